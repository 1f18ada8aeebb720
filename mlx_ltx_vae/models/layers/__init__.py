"""The layers of the networks, each written for a stream. Arrays are (B, T, H, W, C)."""
