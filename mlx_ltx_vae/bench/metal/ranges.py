"""The range of the numbers in a decode."""

import math
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ...backend.mlx_utils import to_float
from ...models.convolution.formulations import Padding
from ...models.convolution.module import Conv3d
from ...models.layers.conv import CausalConv3d
from ...models.specs import Activation
from ..case import Case, Decode, loaded_network


def ranges(case: Case) -> dict[str, Any]:
    """Decode, and note the largest numbers at each convolution.

    Returns:
        runs: for each convolution, the largest output first, its layer, channels, is_normalized, and the largest
        absolute values input and output, None if they are not finite.
    """
    subject = Decode.from_case(case)
    layers = [layer for layer in loaded_network(subject.vae).modules() if isinstance(layer, CausalConv3d)]
    recorded = [_RecordedConv(layer.conv) for layer in layers]
    for layer, conv in zip(layers, recorded, strict=True):
        layer.update_modules({"conv": conv})
    mx.eval(subject.decode_pixels())
    runs: list[dict[str, Any]] = [
        {
            "layer": layer.spec.name,
            "channels": [layer.spec.in_channels, layer.spec.conv_channels],
            "is_normalized": layer.spec.activation is not Activation.NONE,
            **{name: size if math.isfinite(size) else None for name, size in conv.largest.items()},
        }
        for layer, conv in zip(layers, recorded, strict=True)
    ]
    return {"runs": sorted(runs, key=lambda run: -math.inf if run["output"] is None else -run["output"])}


class _RecordedConv(nn.Module):
    """A convolution that notes the largest absolute values of its inputs and outputs."""

    def __init__(self, conv: Conv3d) -> None:
        super().__init__()
        self._conv = conv
        self.dtype, self.operands = conv.dtype, conv.operands
        self.largest = {"input": 0.0, "output": 0.0}

    def __call__(self, frames: mx.array, padding: Padding, skip: mx.array | None = None) -> mx.array:
        output = self._conv(frames, padding, skip)
        for name, array in (("input", frames), ("output", output)):
            size = to_float(mx.abs(array.astype(mx.float32)).max())
            self.largest[name] = max(size, self.largest[name]) if size == size else math.inf
        return output
