"""One network of a checkpoint as its file stores it, known by header only."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import mlx.core as mx

from ..dtypes import SAFETENSORS_NAMES
from .files import TensorInfo, read_tensors
from .weight_layout import WeightLayout, conv_channels, sanitize


@dataclass(frozen=True)
class StoredNetwork:
    """An encoder or a decoder whose tensors have not been read.

    Attributes:
        tensors: where each tensor is stored, by the original's name within the network ("conv_in.conv.weight").
        layout: the axis order of its convolution weights.
    """

    tensors: Mapping[str, TensorInfo]
    layout: WeightLayout

    @property
    def dtype(self) -> str:
        """The dtype of `conv_in`, in which the network computes: "float32", "bfloat16" or "float16"."""
        return SAFETENSORS_NAMES[self.tensors["conv_in.conv.weight"].dtype]

    @property
    def parameters_by_dtype(self) -> Counter[str]:
        """How many parameters are stored in each dtype."""
        count: Counter[str] = Counter()
        for info in self.tensors.values():
            count[SAFETENSORS_NAMES[info.dtype]] += math.prod(info.shape)
        return count

    @property
    def num_bytes(self) -> int:
        """The size of its tensors in the file."""
        return sum(info.stop - info.start for info in self.tensors.values())

    def channels(self, weight: str) -> tuple[int, int]:
        """(output, input) channels of a convolution weight, (0, 0) if it does not exist."""
        return conv_channels(self.tensors[weight].shape, self.layout) if weight in self.tensors else (0, 0)

    def read(self) -> Iterator[tuple[str, mx.array]]:
        """Each tensor by name, in the shape that MLX layers expect (see `sanitize`) and the stored dtype, lazy.

        Evaluate the tensors one by one: evaluated together, every convolution weight exists in both layouts at once.
        """
        for name, array in read_tensors(self.tensors):
            yield name, sanitize(name, array, self.layout)
