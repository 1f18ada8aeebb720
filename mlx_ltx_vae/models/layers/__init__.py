"""The pieces the networks are made of, each with its streaming rule beside it. Arrays are (B, T, H, W, C)."""
