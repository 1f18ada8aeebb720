"""From a block's configuration to its module and its stages: what the encoder and the decoder share."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ...streaming.stage import NoCache, Stage
from ...streaming.window import Axis
from ..layers.attention import FrameAttention
from ..layers.conv import CausalConv3d
from ..layers.norm import make_norm
from ..layers.resample import DepthToSpaceUpsample, SpaceToDepthDownsample, StridedDownsample
from ..layers.resnet import ResnetBlock, ResnetStack
from .config import BlockConfig, BlockKind, NetworkConfig, NormKind


def conv_options(config: NetworkConfig) -> dict[str, Any]:
    """What every convolution of a network is told."""
    return {"causal": config.causal, "padding": config.padding}


def norm_groups(config: NetworkConfig) -> int | None:
    """The number of groups of a network's norms, or None for pixel norms."""
    return config.norm_groups if config.norm is NormKind.GROUP else None


def make_conv_in(config: NetworkConfig) -> CausalConv3d:
    """The network's first convolution."""
    return CausalConv3d(config.in_channels, config.first_width, **conv_options(config))


def make_conv_out(config: NetworkConfig) -> CausalConv3d:
    """The network's last convolution."""
    return CausalConv3d(config.last_width, config.out_channels, **conv_options(config))


def make_norm_out(config: NetworkConfig) -> nn.Module:
    """The norm before the last convolution."""
    return make_norm(config.last_width, norm_groups(config))


def make_up_block(block: BlockConfig, config: NetworkConfig) -> nn.Module:
    """A block of the decoder."""
    if block.kind is BlockKind.SHUFFLE:
        return DepthToSpaceUpsample(
            block.in_channels, block.out_channels, block.stride, residual=block.residual, **conv_options(config)
        )
    return _make_level_block(block, config)


def make_down_block(block: BlockConfig, config: NetworkConfig) -> nn.Module:
    """A block of the encoder."""
    padding = conv_options(config)["padding"]
    if block.kind is BlockKind.SHUFFLE:
        return SpaceToDepthDownsample(block.in_channels, block.out_channels, block.stride, padding=padding)
    if block.kind is BlockKind.STRIDED:
        return StridedDownsample(block.in_channels, block.out_channels, block.stride, padding=padding)
    return _make_level_block(block, config)


def _make_level_block(block: BlockConfig, config: NetworkConfig) -> nn.Module:
    """A block that leaves the grid as it is."""
    if block.kind is BlockKind.ATTENTION:
        return FrameAttention(block.in_channels)
    options = {**conv_options(config), "groups": norm_groups(config)}
    if block.kind is BlockKind.RES_CHANGE:
        return ResnetBlock(block.in_channels, block.out_channels, **options)
    return ResnetStack(
        block.in_channels,
        block.num_layers,
        timestep_conditioning=config.timestep_conditioning,
        inject_noise=block.inject_noise,
        **options,
    )


def block_stages(block: nn.Module, axis: Axis, timesteps: mx.array | None, fields: Iterator[mx.array]) -> list[Stage]:
    """The stages of one block in a new stream along `axis`.

    Args:
        block: from `make_up_block` or `make_down_block`.
        axis: along which the stream runs.
        timesteps: (B,), scaled, or None.
        fields: the noise fields left to draw, in order.
    """
    if isinstance(block, ResnetStack):
        return block.stages(axis, timesteps, fields)
    if isinstance(block, ResnetBlock):
        return block.stages(axis)
    if isinstance(block, FrameAttention):
        return [Stage(lambda x, last: None if x is None else block(x), NoCache())]
    cache = block.make_cache(axis)
    return [Stage(partial(block, cache=cache), cache)]
