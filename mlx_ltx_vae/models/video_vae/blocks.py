"""The module that computes each block type of `block_types.py`."""

from collections.abc import Callable, Sequence
from typing import Any

from ..base import Layer
from ..layers.attention import FrameAttention
from ..layers.conv import CausalConv3d
from ..layers.resample import DepthToSpaceUpsample, SpaceToDepthDownsample
from ..layers.resnet import ResnetBlock, ResnetStack
from ..specs import LayerSpec
from .block_types import ATTENTION, DOWNSAMPLE, RES_CHANGE, RES_STACK, STRIDED, UPSAMPLE, BlockType
from .network_specs import BlockSpec


def _of_all(module: Callable[[Any], Layer]) -> Callable[[Sequence[LayerSpec]], Layer]:
    return module


def _of_each(module: Callable[..., Layer]) -> Callable[[Sequence[LayerSpec]], Layer]:
    return lambda layers: module(*layers)


#: For each type, a function that builds a block's module from its layer specs.
BLOCK_MODULES: dict[BlockType, Callable[[Sequence[LayerSpec]], Layer]] = {
    RES_STACK: _of_all(ResnetStack),
    RES_CHANGE: _of_each(ResnetBlock),
    UPSAMPLE: _of_each(DepthToSpaceUpsample),
    DOWNSAMPLE: _of_each(SpaceToDepthDownsample),
    STRIDED: _of_each(CausalConv3d),
    ATTENTION: _of_each(FrameAttention),
}


def make_block(block: BlockSpec) -> Layer:
    """Build the module of a block."""
    return BLOCK_MODULES[block.config.type](block.layers)
