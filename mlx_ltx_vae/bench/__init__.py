"""Time and memory of decoding and encoding, measured on the machine at hand.

Every run is a fresh process, so that no run sees another's compiled kernels or buffers, and the runs of different cases
are interleaved, so that a machine whose speed drifts slows all of them alike. Quote ratios, not seconds.
"""
