"""The device that computes: its memory, its errors, and helpers for MLX."""
