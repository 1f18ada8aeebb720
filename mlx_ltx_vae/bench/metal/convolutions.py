"""The time of each convolution of a decode, and the range of its numbers."""

import math
import statistics
import time
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn

from ...backend.device import backend
from ...backend.mlx_utils import to_float
from ...models.convolution.conv3d import Conv3d, Padding
from ...models.convolution.rules import ConvShape, choose
from ...models.layers.conv import CausalConv3d
from ...models.specs import Activation
from ..case import Case, Decode


def convolutions(case: Case) -> dict[str, Any]:
    """Decode twice, and in the second decode wait for the device before and after each convolution.

    Returns:
        runs: for each convolution layer, in_channels, out_channels, grid, the (T, H, W) of
        its largest output, is_normalized (its input comes from a norm), calls, seconds of all calls (their median times
        their number), rule (the formulation that the package chooses), and the largest absolute values input and
        output, None if they are not finite.
    """
    subject = Decode.from_case(case)
    for _ in subject.run():  # which compiles kernels
        pass
    layers = [each for each in cast(nn.Module, subject.vae.decoder).modules() if isinstance(each, CausalConv3d)]
    timed = [_TimedConv(layer.conv) for layer in layers]
    for layer, conv in zip(layers, timed, strict=True):
        layer.update_modules({"conv": conv})
    for _ in subject.run():
        pass
    runs = [
        {
            "layer": layer.spec.name,
            "in_channels": layer.spec.in_channels,
            "out_channels": layer.spec.conv_channels,
            "is_normalized": layer.spec.activation is not Activation.NONE,
            **conv.measured(),
        }
        for layer, conv in zip(layers, timed, strict=True)
    ]
    return {"runs": runs}


class _TimedConv(nn.Module):
    """A convolution that notes of each call the time, the output's shape and the largest absolute values."""

    def __init__(self, conv: Conv3d) -> None:
        super().__init__()
        self._conv = conv
        self._calls: list[tuple[float, tuple[int, ...], float, float]] = []
        self.dtype, self.operands = conv.dtype, conv.operands
        self.bias = conv.bias  # by which a network tells its dtype

    def __call__(self, frames: mx.array, padding: Padding, skip: mx.array | None = None) -> mx.array:
        mx.eval([frames] if skip is None else [frames, skip])
        mx.synchronize()
        start = time.perf_counter()
        output = self._conv(frames, padding, skip)
        mx.eval(output)
        mx.synchronize()
        seconds = time.perf_counter() - start
        self._calls.append((seconds, output.shape, _largest(frames), _largest(output)))
        return output

    def measured(self) -> dict[str, Any]:
        seconds, shapes, *sizes = zip(*self._calls, strict=True)
        _, *grid, out_channels = max(shapes)
        shape = ConvShape((grid[0], grid[1], grid[2]), self._conv.weight.shape[-1], out_channels)
        rule = choose(shape, backend(), allows_winograd=self._conv.weight.dtype != mx.bfloat16)
        largest = (max(each) if all(map(math.isfinite, each)) else None for each in sizes)
        return {
            "grid": grid,
            "calls": len(seconds),
            "seconds": len(seconds) * statistics.median(seconds),
            "rule": rule.value,
            **dict(zip(("input", "output"), largest, strict=True)),
        }


def _largest(array: mx.array) -> float:
    return to_float(mx.abs(array.astype(mx.float32)).max())
