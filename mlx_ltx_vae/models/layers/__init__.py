"""The layers that networks are made of, each with its streaming rule. Arrays are (B, T, H, W, C)."""
