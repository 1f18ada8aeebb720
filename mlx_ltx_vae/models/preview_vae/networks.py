"""The tiny decoder and encoder."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn

from ...streaming.context import Stage, StreamContext, pointwise
from ..base import DecoderModule, EncoderModule
from ..layers.resample import depth_to_space_order, interleave
from .config import BLOCKS, LEVELS, PATCH, POOLS, FrameLayerSpec, Output, PreviewConfig, decoder_spec, encoder_spec
from .layers import (
    FrameConv,
    GroupedMemoryBlock,
    Growth,
    MemoryBlock,
    Pool,
    relu,
    whole_groups,
)

_LIMIT = 3  # latents are squashed to (-3, 3)


class PreviewDecoder(DecoderModule):
    """Decodes normalized latents (B, T, H, W, C) to pixels (B, 8T - 7, 32H, 32W, 3), clamped to [-1, 1].

    It is strictly causal: each latent frame gives its frames at once. It can also be called, on latents in the axes of
    the API. `stills` returns decoders with the same weights for cheaper previews. Checkpoint keys: `layers.i`.
    """

    def __init__(self, config: PreviewConfig, layers: list[Any] | None = None) -> None:
        super().__init__(decoder_spec(config))
        specs = {layer.name: cast(FrameLayerSpec, layer) for layer in self.spec.layers}
        block = MemoryBlock if config.group_width is None else GroupedMemoryBlock
        kinds: dict[int, Callable[..., nn.Module]] = {1: FrameConv, LEVELS[-1] + 7: _to_colors}
        for first in LEVELS:
            kinds |= dict.fromkeys(range(first, first + BLOCKS), block)
            kinds |= {first + 4: Growth, first + 5: FrameConv}
        self.layers = _make_layers(kinds, specs) if layers is None else layers
        self._config = config

    def stills(self, *, small: bool) -> "PreviewDecoder":
        """The decoder of `Output.STILLS` or small ones with the same weights."""
        config = replace(self._config, output=Output.SMALL_STILLS if small else Output.STILLS)
        return PreviewDecoder(config, self.layers)

    def stages(self, context: StreamContext) -> list[Stage]:
        specs = {layer.name: layer for layer in self.spec.layers}
        stages: list[Stage] = []
        for index, layer in enumerate(self.layers):
            own = specs.get(f"layers.{index}")
            if isinstance(layer, (MemoryBlock, GroupedMemoryBlock)):
                stages += layer.stages(context)
            elif own is not None and isinstance(layer, Growth):
                stages += layer.stages(context, grows=own.up[0] == 2, trim=own.trim)
            elif isinstance(own, FrameLayerSpec):
                enter = {1: _squash, len(self.layers) - 1: relu}.get(index)
                leave = {1: relu, len(self.layers) - 1: _to_pixels}.get(index, _same)
                stages += layer.stages(context, enter=enter, leave=leave, upsamples=own.is_upsampled)
        return stages


class PreviewEncoder(EncoderModule):
    """Encodes pixels (B, F, 32H, 32W, 3) in [-1, 1] to normalized latents (B, ceil(F / 8), H, W, C).

    The last frame is repeated until there are 8 for each latent frame, which sees all of them. It streams along time.
    It can also be called, on frames in the axes of the API. Checkpoint keys: `layers.i`.
    """

    def __init__(self, config: PreviewConfig) -> None:
        super().__init__(encoder_spec(config))
        specs = {layer.name: cast(FrameLayerSpec, layer) for layer in self.spec.layers}
        kinds: dict[int, Callable[..., nn.Module]] = {0: FrameConv, POOLS[-1] + 5: FrameConv}
        for first in POOLS:
            kinds |= {first: Pool, first + 1: FrameConv}
            kinds |= dict.fromkeys(range(first + 2, first + 2 + BLOCKS), MemoryBlock)
        self.layers = _make_layers(kinds, specs)

    def stages(self, context: StreamContext) -> list[Stage]:
        stages = [whole_groups(context), pointwise(_from_pixels)]
        for index, layer in enumerate(self.layers):
            if isinstance(layer, FrameConv):
                stages += layer.stages(context, leave=relu if index == 0 else _same)
            elif isinstance(layer, (MemoryBlock, Pool)):
                stages += layer.stages(context)
        return stages


def _make_layers(kinds: Mapping[int, Callable[..., nn.Module]], specs: dict[str, FrameLayerSpec]) -> list[Any]:
    """The modules by their index in the checkpoint, which counts activations and resampling as well."""
    layers: list[Any] = []
    for index in range(1 + max(kinds)):
        kind = kinds.get(index, nn.Identity)
        prefix = f"layers.{index}"
        if kind is nn.Identity:
            layers.append(nn.Identity())
        elif kind in (MemoryBlock, GroupedMemoryBlock):
            layers.append(kind(*(spec for name, spec in specs.items() if name.startswith(f"{prefix}."))))
        else:
            layers.append(kind(specs[prefix]))
    return layers


def _to_colors(spec: FrameLayerSpec) -> FrameConv:
    """The last convolution, whose channels a checkpoint orders (c, rows, columns), as `interleave` takes them."""
    return FrameConv(spec, depth_to_space_order(spec.weights[0][1][0], (1, PATCH, PATCH)))


def _squash(x: mx.array) -> mx.array:
    wide = x.astype(mx.float32)
    return (_LIMIT * mx.tanh(wide / _LIMIT)).astype(x.dtype)


def _same(x: mx.array) -> mx.array:
    return x


def _to_pixels(x: mx.array) -> mx.array:
    """(B, T, H, W, p * p * 3) in [0, 1] to pixels (B, T, H*p, W*p, 3)."""
    return interleave(_clamp(x), (1, PATCH, PATCH))


@partial(mx.compile, shapeless=True)
def _clamp(x: mx.array) -> mx.array:
    return mx.clip(x, 0, 1) * 2 - 1


def _from_pixels(x: mx.array) -> mx.array:
    """Pixels (B, T, H*p, W*p, 3) to (B, T, H, W, 3 * p * p) in [0, 1], channels ordered (c, rows, columns)."""
    batch, time, height, width, _ = x.shape
    x = x.reshape(batch, time, height // PATCH, PATCH, width // PATCH, PATCH, 3).transpose(0, 1, 2, 4, 6, 3, 5)
    return (x.flatten(-3).astype(mx.float32) * 0.5 + 0.5).astype(x.dtype)
