"""Tensors of weight files: where they are stored, and how they are read, also those that MLX has quantized.

MLX's affine format stores a weight as `.weight` (uint32, several values each), `.scales` and `.biases`, which have a
value per group: value = scale * integer + bias. The bits and the group size follow from these shapes and the length of
a row, which the configuration of a network has, so that `quantization` in a config.json is not needed.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from ..backend.device import evaluate
from ..backend.mlx_utils import DTYPES, load_safetensors, to_mlx
from ..errors import CheckpointError, excerpt
from ..files import FileState, file_state
from ..shapes import Shape

#: Keys of a config.json that say how the weights of all networks in its folder are quantized.
QUANTIZATION_KEYS = ("quantization", "quantization_config")
#: Sizes of groups in MLX's affine format, the default first, and its bits per value.
GROUP_SIZES = (64, 32, 128)
_BITS = (2, 3, 4, 5, 6, 8)
_WORD, _WORD_BITS = "uint32", 32


class TensorInfo(NamedTuple):
    """Location of a tensor that has not been read.

    Its values are at `begin` in the file. `state` is the state of the file when its header was read. For
    an `array` in memory, `path` is the name of its mapping in error messages. A quantized weight has the dtype of its
    scales, and the shape and the location of its weight; its `parts` are the stored weight, scales and biases.
    """

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int = 0
    array: mx.array | np.ndarray | None = None
    state: FileState | None = None
    parts: tuple["TensorInfo", ...] = ()

    @property
    def stored(self) -> tuple["TensorInfo", ...]:
        """Stored tensors: `parts`, or this one."""
        return self.parts or (self,)

    @property
    def num_bytes(self) -> int:
        """Stored bytes."""
        sizes = {_WORD: _WORD_BITS // 8} | {name: dtype.size for name, dtype in DTYPES.items()}
        return sum(math.prod(part.shape) * sizes[part.dtype] for part in self.stored)

    @property
    def group_size(self) -> int:
        """Number of values of a quantized weight that share a scale."""
        return self.shape[-1] // self.parts[1].shape[-1]

    @property
    def bits(self) -> int:
        """Bits per value of a quantized weight."""
        return self.parts[0].shape[-1] * _WORD_BITS // self.shape[-1]

    def with_group_size(self, size: int) -> "TensorInfo":
        """Return a quantized weight with the shape for a group size, if possible. Other tensors are unchanged."""
        shapes = _possible_shapes(*self.parts) if self.parts else {}
        return self._replace(shape=shapes.get(size, self.shape))


def join_quantized(tensors: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """Return the tensors, with the three of each quantized weight as one, whose group size is a guess."""
    joined = dict(tensors)
    for name, weight in tensors.items():
        stem = name.removesuffix("weight")
        scales, biases = tensors.get(f"{stem}scales"), tensors.get(f"{stem}biases")
        if weight.dtype != _WORD or stem == name or scales is None or biases is None:
            continue
        if shapes := _possible_shapes(weight, scales, biases):
            del joined[scales.name], joined[biases.name]
            shape = next(iter(shapes.values()))
            joined[name] = weight._replace(dtype=scales.dtype, shape=shape, parts=(weight, scales, biases))
    return joined


def _possible_shapes(weight: TensorInfo, scales: TensorInfo, biases: TensorInfo) -> dict[int, Shape]:
    """Return the shapes that a quantized weight may have, by group size; none if its tensors do not fit together."""
    is_fitting = (scales.shape, scales.dtype) == (biases.shape, biases.dtype) and scales.dtype in DTYPES
    if not is_fitting or len(weight.shape) < 2 or weight.shape[:-1] != scales.shape[:-1] or not scales.shape[-1]:
        return {}
    bits = weight.shape[-1] * _WORD_BITS
    lengths = {size: scales.shape[-1] * size for size in GROUP_SIZES}
    return {
        size: (*weight.shape[:-1], length) for size, length in lengths.items() if bits in [length * n for n in _BITS]
    }


def check_dtypes(tensors: Iterable[TensorInfo]) -> None:
    """Check that tensors are float32, float16 or bfloat16, or quantized to one of them in MLX's affine format.

    Raises a `CheckpointError` otherwise.
    """
    for info in tensors:
        if info.dtype not in DTYPES:
            remedy = "use a file whose VAE is not quantized"
            if info.dtype == "uint32":
                remedy += ", or is so in MLX's affine format, with .scales and .biases beside each .weight"
            elif info.dtype == "float64":
                remedy = "cast it to float32 in the program that wrote it"
            elif info.dtype.startswith("F8_"):
                remedy += ", also not by scaled fp8; for LTX-2, the folder vae of Lightricks/LTX-2"
            raise CheckpointError(
                f"{info.path}: {excerpt(info.name)} is stored as {info.dtype}, and only float32, float16 and bfloat16 "
                f"are supported; {remedy}."
            )


def check_unchanged(tensors: Iterable[TensorInfo]) -> None:
    """Check that files have not changed since their headers were read; raise a `CheckpointError` otherwise."""
    for path, state in {info.path: info.state for info in tensors if info.state is not None}.items():
        if not path.exists():
            raise CheckpointError(f"{path}: the file has been moved or removed since it was opened; open it again.")
        if file_state(path) != state:
            raise CheckpointError(
                f"{path}: the file has changed since it was opened; open it again when no program writes it."
            )


def read_tensors(tensors: Mapping[str, TensorInfo], dtype: mx.Dtype | None = None) -> Iterator[tuple[str, mx.array]]:
    """Yield each key in `tensors` with its tensor, in the stored shape and dtype, which `check_dtypes` has accepted.

    A quantized weight is dequantized in float32, and rounded once: to `dtype`, by default that of its scales.

    The arrays are lazy, with two exceptions. MLX rejects a file if any tensor in it, requested or not, has a type that
    MLX does not know; the tensors of such a file are read by offset, when the iterator reaches them. Arrays in memory
    are evaluated then, too, and must not be lazy arrays of another thread. Callers check again that files are unchanged
    when all arrays are evaluated.
    """
    stored = {(key, number): part for key, info in tensors.items() for number, part in enumerate(info.stored)}
    parts: dict[str, dict[int, mx.array]] = {key: {} for key in tensors}
    for (key, number), array in _read_stored(stored):
        parts[key][number] = array
        del array  # a suspended generator must not hold an array that it has yielded
        if len(parts[key]) == len(tensors[key].stored):
            yield key, _join(tensors[key], parts.pop(key), dtype)


def _join(info: TensorInfo, parts: Mapping[int, mx.array], dtype: mx.Dtype | None) -> mx.array:
    """Return a stored array, or the values of the three of a quantized weight."""
    if not info.parts:
        return parts[0]
    scales, biases = (parts[number].astype(mx.float32) for number in (1, 2))
    values = mx.dequantize(parts[0], scales, biases, group_size=info.group_size, bits=info.bits)
    return values.astype(dtype or DTYPES[info.dtype])


def _read_stored(tensors: Mapping[tuple[str, int], TensorInfo]) -> Iterator[tuple[tuple[str, int], mx.array]]:
    """Yield the stored arrays, those of one file after another."""
    for path in {info.path: None for info in tensors.values()}:
        requested = {key: info for key, info in tensors.items() if info.path == path}
        in_memory = {key: info.array for key, info in requested.items() if info.array is not None}
        if in_memory:
            for key, values in in_memory.items():
                array = to_mlx(values, f"weights {excerpt(key[0])}", CheckpointError)
                evaluate("weights", array, error=CheckpointError)
                yield key, array
            continue
        try:
            arrays = load_safetensors(path)
        except RuntimeError:
            check_unchanged(requested.values())
            yield from _read_by_offset(path, requested)
        else:
            check_unchanged(requested.values())
            last_keys = {info.name: key for key, info in requested.items()}  # tied tensors have several keys
            for key, info in requested.items():
                yield key, arrays.pop(info.name) if last_keys[info.name] == key else arrays[info.name]


def _read_by_offset(
    path: Path, tensors: Mapping[tuple[str, int], TensorInfo]
) -> Iterator[tuple[tuple[str, int], mx.array]]:
    for key, info in tensors.items():
        dtype = info.dtype.replace("bfloat16", "uint16")  # the bits, since numpy has no bfloat16
        values = np.fromfile(path, dtype, math.prod(info.shape), offset=info.begin)
        check_unchanged([info])
        array = mx.array(values.reshape(info.shape))
        yield key, array.view(mx.bfloat16) if info.dtype == "bfloat16" else array
