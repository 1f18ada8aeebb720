"""One network of a checkpoint as its file stores it: where its tensors are, and the axis order of its weights."""

import enum
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import mlx.core as mx

from ..backend.mlx_utils import DTYPES
from ..errors import CheckpointError, quote
from ..shapes import Shape
from .files import TensorInfo, read_tensors

#: The metadata entry in which a file may state its layout, as the value of a `WeightLayout`.
WEIGHT_LAYOUT_KEY = "kernel_layout"


class WeightLayout(enum.Enum):
    """The axis order of convolution weights: O and I are output and input channels, and some have no D, or no H."""

    CHANNELS_FIRST = "O, I, D, H, W"
    CHANNELS_LAST = "O, D, H, W, I"


@dataclass(frozen=True)
class StoredNetwork:
    """An encoder or a decoder whose tensors have not been read.

    Attributes:
        tensors: where each tensor is stored, by its name within the network ("conv_in.conv.weight").
        expected: the shape of each weight in its module, in the order of the layers; empty while it is not known.
    """

    tensors: Mapping[str, TensorInfo]
    layout: WeightLayout
    kernels: Collection[Shape]
    expected: Mapping[str, Shape] = field(default_factory=dict)

    @property
    def shapes(self) -> dict[str, Shape]:
        """The shapes of the tensors as `read` yields them."""
        return {
            name: _sanitized_shape(info.shape, self.layout, self.kernels, self.expected.get(name))
            for name, info in self.tensors.items()
        }

    @property
    def dtype(self) -> str:
        """The dtype of its first weight, in which the network computes: "float32", "bfloat16" or "float16"."""
        return next(self.tensors[name].dtype for name in [*self.expected, *self.tensors] if name in self.tensors)

    @property
    def parameters_by_dtype(self) -> Counter[str]:
        count: Counter[str] = Counter()
        for info in self.tensors.values():
            count[info.dtype] += math.prod(info.shape)
        return count

    @property
    def num_bytes(self) -> int:
        return sum(DTYPES[dtype].size * count for dtype, count in self.parameters_by_dtype.items())

    def read(self) -> Iterator[tuple[str, mx.array]]:
        """Each tensor, sanitized and lazy. Weights whose layout changes are views, so that one copy lays them out."""
        for name, array in read_tensors(self.tensors):
            held = [sanitize(array, self.layout, self.kernels, self.expected.get(name))]
            del array  # a suspended generator must not hold what it has yielded
            yield name, held.pop()


def stated_layout(metadata: Mapping[str, str], source: str) -> WeightLayout | None:
    """The layout that a file's metadata states, if any."""
    stated = metadata.get(WEIGHT_LAYOUT_KEY)
    try:
        return None if stated is None else WeightLayout(stated)
    except ValueError:
        known = " and ".join(f"({layout.value})" for layout in WeightLayout)
        raise CheckpointError(
            f"{source}: its metadata states the {WEIGHT_LAYOUT_KEY} {quote(stated)}, and known are {known}; convert it "
            "again from the original."
        ) from None


def infer_layout(shapes: Iterable[Shape], kernels: Collection[Shape], source: str) -> WeightLayout:
    """The layout that all weights with one of the `kernels` allow. A weight may allow both."""
    # A filter has the same values in all layouts.
    allowed = {(shape[2:] in kernels, shape[1:-1] in kernels) for shape in shapes if len(_without_ones(shape)) > 1}
    is_first, is_last = (True, False) in allowed, (False, True) in allowed
    if is_first and is_last:
        raise CheckpointError(
            f"{source}: some of its convolution weights are stored as ({WeightLayout.CHANNELS_FIRST.value}) and others "
            f"as ({WeightLayout.CHANNELS_LAST.value}); convert it again from the original."
        )
    return WeightLayout.CHANNELS_LAST if is_last else WeightLayout.CHANNELS_FIRST


def sanitize(array: mx.array, layout: WeightLayout, kernels: Collection[Shape], expected: Shape | None) -> mx.array:
    """Convolution weights become channels-last, axes of length one as expected. The strict load rejects others.

    Those of transposed convolutions are stored with output channels first by MLX, and input channels first by torch.
    """
    shape = _sanitized_shape(array.shape, layout, kernels, expected)
    if _is_channels_first(array.shape, layout, kernels):
        array = mx.moveaxis(array, 1, -1)
    if array.shape == shape:
        return array
    return array.reshape(shape) if _without_ones(array.shape) == _without_ones(shape) else array.swapaxes(0, 2)


def _sanitized_shape(shape: Shape, layout: WeightLayout, kernels: Collection[Shape], expected: Shape | None) -> Shape:
    """The shape of what `sanitize` makes of an array of a shape."""
    if _is_channels_first(shape, layout, kernels):
        shape = (shape[0], *shape[2:], shape[1])
    is_transposed = expected is not None and len(shape) == 3 and shape == expected[::-1]
    if expected is not None and (_without_ones(shape) == _without_ones(expected) or is_transposed):
        return expected
    return shape


def _is_channels_first(shape: Shape, layout: WeightLayout, kernels: Collection[Shape]) -> bool:
    return layout is WeightLayout.CHANNELS_FIRST and shape[2:] in kernels


def _without_ones(shape: Shape) -> Shape:
    return tuple(extent for extent in shape if extent != 1)
