"""TAEHV for LTX: tiny causal networks of two-dimensional convolutions, for previews."""
