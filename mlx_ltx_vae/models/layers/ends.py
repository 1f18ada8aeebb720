"""The two ends of a network: its first convolution and its last."""

import mlx.core as mx
import mlx.nn as nn

from ...streaming.window import WindowCache
from .activation import Modulation, activate
from .conv import CausalConv3d


def first_conv(x: mx.array | None, last: bool, *, conv: CausalConv3d, cache: WindowCache) -> mx.array | None:
    """`conv_in`: one step of a convolution on what is given, (B, T, H, W, I) -> (B, T', H, W, O) or None."""
    view = cache.window.push(x, last)
    return None if view is None else conv(view, view.frames, cache.window.axis)


def last_conv(
    x: mx.array | None,
    last: bool,
    *,
    conv: CausalConv3d,
    norm: nn.Module,
    modulation: Modulation | None,
    cache: WindowCache,
    outputs: int | None = None,
) -> mx.array | None:
    """`conv_out` with the norm, modulation and SiLU in front of it, (B, T, H, W, I) -> (B, T', H, W, O) or None.

    Of its output channels only the first `outputs` are computed, where that is given.
    """
    view = cache.window.push(None if x is None else activate(x, norm, modulation), last)
    return None if view is None else conv(view, view.frames, cache.window.axis, outputs)
