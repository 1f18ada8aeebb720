"""The axis order of stored convolution weights, and the conversion of each tensor to what MLX layers expect."""

import enum
from collections.abc import Iterable, Mapping

import mlx.core as mx

from ..errors import CheckpointError

Shape = tuple[int, ...]

#: The metadata entry in which a file may state its layout, as the value of a `WeightLayout`.
LAYOUT_KEY = "kernel_layout"

_VECTORS = ("per_channel_scale1", "per_channel_scale2", "gamma")


class WeightLayout(enum.Enum):
    """The axis order of a 3D convolution weight (O and I are output and input channels)."""

    CHANNELS_FIRST = "O, I, D, H, W"
    CHANNELS_LAST = "O, D, H, W, I"


def stated_layout(metadata: Mapping[str, str], source: str) -> WeightLayout | None:
    """The layout that a file's metadata states, or None.

    Raises:
        CheckpointError: the stated layout is unknown.
    """
    stated = metadata.get(LAYOUT_KEY)
    try:
        return None if stated is None else WeightLayout(stated)
    except ValueError:
        known = " and ".join(f"({layout.value})" for layout in WeightLayout)
        raise CheckpointError(
            f"{source}: its metadata states the {LAYOUT_KEY} {stated!r}, and known are {known}; convert it again from "
            "the original."
        ) from None


def infer_layout(shapes: Iterable[Shape], source: str) -> WeightLayout:
    """The one layout that all 3x3x3 weights among `shapes` allow; a weight with three input channels allows both.

    Raises:
        CheckpointError: the weights are stored in different layouts.
    """
    votes = set()
    for shape in shapes:
        if len(shape) == 5:
            first, last = shape[2:] == (3, 3, 3), shape[1:4] == (3, 3, 3)
            if first != last:
                votes.add(WeightLayout.CHANNELS_FIRST if first else WeightLayout.CHANNELS_LAST)
    if len(votes) > 1:
        raise CheckpointError(
            f"{source}: some of its convolution weights are stored as ({WeightLayout.CHANNELS_FIRST.value}) and others "
            f"as ({WeightLayout.CHANNELS_LAST.value}); convert it again from the original."
        )
    return votes.pop() if votes else WeightLayout.CHANNELS_FIRST


def conv_channels(shape: Shape, layout: WeightLayout) -> tuple[int, int]:
    """(output, input) channels of a convolution weight."""
    return shape[0], shape[1] if layout is WeightLayout.CHANNELS_FIRST else shape[-1]


def sanitize(name: str, array: mx.array, layout: WeightLayout) -> mx.array:
    """One tensor as MLX layers expect it, lazy.

    3D convolution weights become (O, D, H, W, I); those with a kernel of one, 4D or 5D, become (O, I); vectors that are
    stored as (C, 1, 1) become (C,); `timestep_scale_multiplier` becomes (). Other shapes are returned as they are, for
    the strict load to reject.
    """
    leaf = name.rpartition(".")[2]
    if leaf == "timestep_scale_multiplier" and array.size == 1:
        return array.reshape(())
    if leaf in _VECTORS and array.size == max(array.shape, default=0):
        return array.reshape(-1)
    if array.ndim in (4, 5):
        out_channels, in_channels = conv_channels(array.shape, layout)
        if array.size == out_channels * in_channels:
            return array.reshape(out_channels, in_channels)
        if array.ndim == 5 and layout is WeightLayout.CHANNELS_FIRST:
            return mx.contiguous(array.transpose(0, 2, 3, 4, 1))
    return array
