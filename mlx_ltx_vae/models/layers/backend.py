"""Where the layers run. MLX's CPU backend is quick at other operations than a GPU, so a few things are said twice."""

import mlx.core as mx


def on_cpu() -> bool:
    """Whether the default device is the CPU."""
    return mx.default_device() == mx.Device(mx.cpu)
