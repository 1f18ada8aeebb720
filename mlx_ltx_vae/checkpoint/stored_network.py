"""One network of a checkpoint as its file stores it: where its tensors are, and the axis order of its weights."""

import enum
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import mlx.core as mx

from ..backend.dtypes import DTYPES
from ..errors import CheckpointError, quote
from .files import TensorInfo, read_tensors

Shape = tuple[int, ...]

#: The metadata entry in which a file may state its layout, as the value of a `WeightLayout`.
LAYOUT_KEY = "kernel_layout"

_VECTORS = ("per_channel_scale1", "per_channel_scale2", "gamma")


class WeightLayout(enum.Enum):
    """The axis order of a 3D convolution weight (O and I are output and input channels)."""

    CHANNELS_FIRST = "O, I, D, H, W"
    CHANNELS_LAST = "O, D, H, W, I"


@dataclass(frozen=True)
class StoredNetwork:
    """An encoder or a decoder whose tensors have not been read.

    Attributes:
        tensors: where each tensor is stored, by the original's name within the network ("conv_in.conv.weight").
    """

    tensors: Mapping[str, TensorInfo]
    layout: WeightLayout

    @property
    def dtype(self) -> str:
        """The dtype of `conv_in`, in which the network computes: "float32", "bfloat16" or "float16"."""
        return self.tensors["conv_in.conv.weight"].dtype

    @property
    def parameters_by_dtype(self) -> Counter[str]:
        """How many parameters are stored in each dtype."""
        count: Counter[str] = Counter()
        for info in self.tensors.values():
            count[info.dtype] += math.prod(info.shape)
        return count

    @property
    def num_bytes(self) -> int:
        """The size of its tensors as they are stored."""
        return sum(DTYPES[dtype].size * count for dtype, count in self.parameters_by_dtype.items())

    def channels(self, weight: str) -> tuple[int, int]:
        """(output, input) channels of a convolution weight, (0, 0) if it does not exist."""
        return conv_channels(self.tensors[weight].shape, self.layout) if weight in self.tensors else (0, 0)

    def input_channels(self, weight: str) -> int | None:
        """The input channels of a weight, which for a vector are its size; None if it does not exist."""
        if weight not in self.tensors:
            return None
        shape = self.tensors[weight].shape
        if len(shape) in (4, 5):
            return conv_channels(shape, self.layout)[1]
        return shape[1] if len(shape) == 2 else math.prod(shape)

    def read(self) -> Iterator[tuple[str, mx.array]]:
        """Each tensor by name, in the shape that MLX layers expect (see `sanitize`) and the stored dtype, lazy.

        Evaluate the tensors one by one: evaluated together, every convolution weight exists in both layouts at once.
        """
        for name, array in read_tensors(self.tensors):
            yield name, sanitize(name, array, self.layout)


def stated_layout(metadata: Mapping[str, str], source: str) -> WeightLayout | None:
    """The layout that a file's metadata states, or None."""
    stated = metadata.get(LAYOUT_KEY)
    try:
        return None if stated is None else WeightLayout(stated)
    except ValueError:
        known = " and ".join(f"({layout.value})" for layout in WeightLayout)
        raise CheckpointError(
            f"{source}: its metadata states the {LAYOUT_KEY} {quote(stated)}, and known are {known}; convert it again "
            "from the original."
        ) from None


def infer_layout(shapes: Iterable[Shape], source: str) -> WeightLayout:
    """The layout that all 3x3x3 weights among `shapes` allow; a weight with three input channels allows both."""
    kernels = {(shape[2:] == (3, 3, 3), shape[1:4] == (3, 3, 3)) for shape in shapes if len(shape) == 5}
    is_first, is_last = (True, False) in kernels, (False, True) in kernels
    if is_first and is_last:
        raise CheckpointError(
            f"{source}: some of its convolution weights are stored as ({WeightLayout.CHANNELS_FIRST.value}) and others "
            f"as ({WeightLayout.CHANNELS_LAST.value}); convert it again from the original."
        )
    return WeightLayout.CHANNELS_LAST if is_last else WeightLayout.CHANNELS_FIRST


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
