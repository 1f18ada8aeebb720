"""Where a file keeps the channels of its kernels, and how each tensor becomes what MLX layers expect."""

import enum
from collections.abc import Iterable, Mapping

import mlx.core as mx

from ..errors import CheckpointError

Shape = tuple[int, ...]

#: The metadata entry in which a file may state its layout, as the value of a `KernelLayout`.
LAYOUT_KEY = "kernel_layout"

_VECTORS = ("per_channel_scale1", "per_channel_scale2", "gamma")


class KernelLayout(enum.Enum):
    """The order of a 3D kernel's axes (O and I are output and input channels)."""

    TORCH = "O, I, D, H, W"
    MLX = "O, D, H, W, I"


def stated_layout(metadata: Mapping[str, str], source: str) -> KernelLayout | None:
    """The layout that a file's metadata states, or None.

    Raises:
        CheckpointError: it states one that is not known.
    """
    stated = metadata.get(LAYOUT_KEY)
    try:
        return None if stated is None else KernelLayout(stated)
    except ValueError:
        known = " and ".join(f"({layout.value})" for layout in KernelLayout)
        raise CheckpointError(
            f"{source}: its metadata states the {LAYOUT_KEY} {stated!r}; known are {known}, so convert it again from "
            "the original."
        ) from None


def kernel_layout(shapes: Iterable[Shape], source: str) -> KernelLayout:
    """The one layout that all 3x3x3 kernels among `shapes` allow; kernels with three input channels allow both.

    Raises:
        CheckpointError: they contradict each other.
    """
    votes = set()
    for shape in shapes:
        if len(shape) == 5:
            torch, mlx = shape[2:] == (3, 3, 3), shape[1:4] == (3, 3, 3)
            if torch != mlx:
                votes.add(KernelLayout.TORCH if torch else KernelLayout.MLX)
    if len(votes) > 1:
        raise CheckpointError(
            f"{source}: some of its kernels are stored as ({KernelLayout.TORCH.value}) and others as "
            f"({KernelLayout.MLX.value}); convert it again from the original."
        )
    return votes.pop() if votes else KernelLayout.TORCH


def kernel_channels(shape: Shape, layout: KernelLayout) -> tuple[int, int]:
    """(output, input) channels of a kernel."""
    return shape[0], shape[1] if layout is KernelLayout.TORCH else shape[-1]


def to_mlx(name: str, array: mx.array, layout: KernelLayout) -> mx.array:
    """One tensor as MLX layers expect it, lazy.

    Kernels (O, D, H, W, I); kernels of size one, 4D or 5D, (O, I); vectors that a file keeps as (C, 1, 1), (C,);
    `timestep_scale_multiplier` (). Any other shape is left for the strict load to complain about.
    """
    leaf = name.rpartition(".")[2]
    if leaf == "timestep_scale_multiplier" and array.size == 1:
        return array.reshape(())
    if leaf in _VECTORS and array.size == max(array.shape, default=0):
        return array.reshape(-1)
    if array.ndim in (4, 5):
        out_channels, in_channels = kernel_channels(array.shape, layout)
        if array.size == out_channels * in_channels:
            return array.reshape(out_channels, in_channels)
        if array.ndim == 5 and layout is KernelLayout.TORCH:
            return mx.contiguous(array.transpose(0, 2, 3, 4, 1))
    return array
