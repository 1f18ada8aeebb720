"""What decoding and encoding take, in time and memory, and what they give.

Every figure comes from a fresh process, so that no run sees another's compiled kernels or buffers, and runs of
different cases are interleaved, so that a machine whose speed drifts treats them alike. Quote the ratios.
"""
