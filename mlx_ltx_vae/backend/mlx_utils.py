"""Dtypes by name, and small MLX helpers. Gaps in MLX's type stubs are worked around only here."""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from ..errors import CheckpointError, LatentsError, LTXVAEError, excerpt, suggest
from .machine import OTHER_DTYPE_NAMES, VALUES_AT_ONCE
from .machine import DtypeName as DtypeName

#: Values of `dtype=`: names, or `mx.float32`, `mx.bfloat16`, `mx.float16`. `None` means the checkpoint's dtype.
GivenDtype = DtypeName | mx.Dtype | None
DTYPES: dict[str, mx.Dtype] = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}

_HALF_BYTES = 2
_WORD = mx.uint64
_WORD_ELEMENTS = _WORD.size // _HALF_BYTES


def dtype_name(dtype: mx.Dtype | np.dtype) -> str:
    """Return `"bfloat16"` for `mlx.core.bfloat16`."""
    return str(dtype).rpartition(".")[2]


@contextmanager
def disk_errors() -> Iterator[None]:
    """Raise MLX's errors of the block as an `OSError`: it writes files, and the disk may be full."""
    try:
        yield
    except RuntimeError as error:
        raise OSError(f"{str(error).rstrip('.')}; check the free disk space") from error


def parse_dtype(dtype: GivenDtype) -> DtypeName | None:
    """Return the name of a dtype. Raises a `CheckpointError` if no network can have it."""
    name = dtype_name(dtype) if isinstance(dtype, mx.Dtype) else dtype
    if name is not None and name not in DTYPES:
        hint = suggest(name, DTYPES, OTHER_DTYPE_NAMES) if isinstance(name, str) else ""
        raise CheckpointError(f"dtype {name!r} is not known{hint}; expected {', '.join(DTYPES)}.")
    return cast("DtypeName | None", name)


def to_float(array: mx.array) -> float:
    """Evaluate a one-element array and return its value."""
    return float(cast(Any, array.item()))


def to_int(array: mx.array) -> int:
    """Evaluate a one-element integer array and return its value."""
    return int(cast(Any, array.item()))


def to_bool(array: mx.array) -> bool:
    """Evaluate a one-element boolean array and return its value."""
    return bool(array.item())


def to_list(array: mx.array) -> list[Any]:
    """Evaluate an array with at least one axis and return its values."""
    return cast(list[Any], array.tolist())


def split(array: mx.array, parts: int, axis: int = 0) -> list[mx.array]:
    """Call `mx.split`, whose stub declares a single array as its result."""
    return list(cast(Any, mx.split(array, parts, axis=axis)))


def take(array: mx.array, axis: int, start: int, stop: int) -> mx.array:
    """Return `array[start:stop]` along `axis`."""
    index = [slice(None)] * array.ndim
    index[axis] = slice(start, stop)
    return array[tuple(index)]


def take_joined(arrays: Sequence[mx.array], axis: int, start: int, stop: int) -> mx.array:
    """Return `take` of consecutive arrays along `axis`. Only the arrays that have a part of it are joined."""
    parts, begin = [], 0
    for array in arrays:
        end = begin + array.shape[axis]
        if begin < stop and start < end:
            parts.append(take(array, axis, max(start, begin) - begin, min(stop, end) - begin))
        begin = end
    assert parts, "no array has the part"
    return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=axis)


def in_words(move: Callable[..., mx.array], *arrays: mx.array, run: int | None = None) -> mx.array:
    """Return `move(*arrays)`, moved in words of 8 bytes if the arrays are in half precision.

    MLX's kernels for Metal that copy views move one element per thread, whatever its size; those for CUDA move four,
    and need no words. float32 is moved as it is: on a CPU words gain little there, and a convolution's result is a view
    that is not contiguous.

    Args:
        move: moves values without changing them, or adds zeros. It gets the arrays, or views of them as words.
        arrays: of one dtype and one length along the last axis, and contiguous, since MLX copies others for a view.
        run: number of elements along the last axis that `move` keeps together, by default the whole axis. Elements are
            moved if they are no whole words.
    """
    dtype = arrays[0].dtype
    length = arrays[0].shape[-1] if run is None else run
    if dtype.size != _HALF_BYTES or length % _WORD_ELEMENTS or mx.cuda.is_available():
        return move(*arrays)
    return move(*[array.view(_WORD) for array in arrays]).view(dtype)


class _ThreadEnd:
    """Thread-local value that clears MLX's streams of its thread when the thread ends."""

    def __del__(self) -> None:
        mx.clear_streams()


_local = threading.local()


@contextmanager
def tracing() -> Iterator[None]:
    """Let this thread's runs in the block be traced: their steps evaluate nothing, and are made of exportable parts."""
    _local.is_tracing = True
    try:
        yield
    finally:
        _local.is_tracing = False


def is_tracing() -> bool:
    """Return whether this thread's run is traced."""
    return getattr(_local, "is_tracing", False)


def contiguous(array: mx.array) -> mx.array:
    """Return an array that keeps no larger one alive. In a traced run it is a product, since MLX exports no copies."""
    return array * mx.array(1, array.dtype) if is_tracing() else mx.contiguous(array)


def clear_streams_at_thread_end() -> None:
    """Clear MLX's streams of this thread when it ends; otherwise MLX may abort the process at its exit.

    They are not cleared earlier, since MLX fails in a thread whose streams are cleared. Threads that Python has not
    started are left alone: there, each call of Python from another language counts as a thread.
    """
    if not hasattr(_local, "end"):
        thread = threading.current_thread()
        is_started = thread is not threading.main_thread() and not isinstance(thread, threading._DummyThread)
        _local.end = _ThreadEnd() if is_started else None


@contextmanager
def refused_in_transformations() -> Iterator[None]:
    """Explain MLX's error of an evaluation while a function is traced, as by `mx.compile`: raise an `LTXVAEError`."""
    try:
        yield
    except ValueError as error:
        if "during function transformations" not in str(error):
            raise
        raise LTXVAEError(
            "decodes and encodes evaluate their steps one by one, so that memory stays flat, and cannot be compiled, "
            "vmapped or differentiated; call them outside of mx.compile and other transformations of functions."
        ) from error


def native_array(values: Any, noun: str, error: type[LTXVAEError] = LatentsError) -> mx.array | np.ndarray:
    """Return a caller's array in the byte order of this machine. Raises `error` for anything but numbers."""
    if isinstance(values, mx.array):
        return values
    try:
        array = np.asanyarray(values)
    except Exception as problem:  # such as torch's TypeError for bfloat16 and for arrays on a GPU
        raise error(
            f"the {noun} are {type(values).__name__}, which numpy cannot convert ({excerpt(problem, 120)}); pass "
            "float32 in the memory of the CPU: tensor.detach().cpu().float()."
        ) from problem
    if array.dtype.kind in "OSUmM":
        name = type(values).__name__ if values is not array else array.dtype
        raise error(f"the {noun} are {name}; expected an array of numbers.")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def to_mlx(values: Any, noun: str, error: type[LTXVAEError] = LatentsError) -> mx.array:
    """Convert a caller's array to an MLX array (see `native_array`). A numpy array is copied."""
    array = native_array(values, noun, error)
    return array if isinstance(array, mx.array) else from_numpy(array)


def from_numpy(array: np.ndarray) -> mx.array:
    """Return a copy of a numpy array of any memory layout.

    MLX takes no negative strides, and copies a strided view with all bytes between its values.
    """
    array = np.asarray(array, order="C")
    # To numpy, an array with a negative stride is contiguous if the axis has the length 1, and is not copied.
    return mx.array(np.flip(array, tuple(axis for axis, stride in enumerate(array.strides) if stride < 0)))


def count_nonfinite(array: mx.array) -> int:
    """Count the NaN and infinite values. Evaluates the array, and checks it in parts along its longest axis."""
    clear_streams_at_thread_end()
    if array.size <= VALUES_AT_ONCE:
        return array.size - to_int(mx.isfinite(array).sum())
    axis = max(range(array.ndim), key=array.shape.__getitem__)
    length, step = array.shape[axis], max(1, VALUES_AT_ONCE * array.shape[axis] // array.size)
    parts = (take(array, axis, start, min(start + step, length)) for start in range(0, length, step))
    return array.size - sum(to_int(mx.isfinite(part).sum()) for part in parts)


@contextmanager
def kept_random_state() -> Iterator[None]:
    """Restore this thread's random state, from which new layers draw their weights, after the block."""
    (state,) = cast(list[mx.array], mx.random.state)
    high, low = to_list(state)
    try:
        yield
    finally:
        mx.random.seed(high << 32 | low)


def load_safetensors(path: Path) -> dict[str, mx.array]:
    """Return the lazy tensors of a safetensors file by name. Raises a `RuntimeError` for dtypes that MLX lacks."""
    return cast(dict[str, mx.array], mx.load(str(path), format="safetensors"))


def named_parameters(module: nn.Module) -> dict[str, mx.array]:
    """Return the parameters of a module by dotted name."""
    return dict(cast(Any, tree_flatten(module.parameters())))


def psnr(one: mx.array, other: mx.array, *, span: float = 2.0) -> float:
    """Return the peak signal-to-noise ratio of two arrays of one shape, in dB. It is infinite if they are equal.

    `span` is the distance between black and white: 2 for pixels in [-1, 1], 255 for uint8.
    """
    error = rms(one.astype(mx.float32) - other.astype(mx.float32))
    return math.inf if error == 0 else 20 * math.log10(span / error)


def rms(array: mx.array) -> float:
    """Return the root mean square of a float32 array."""
    return to_float(mx.sqrt(mx.square(array).mean()))


def max_difference(one: mx.array, other: mx.array) -> float:
    """Return the largest absolute difference of two arrays of one shape."""
    return to_float(mx.abs(one.astype(mx.float32) - other.astype(mx.float32)).max())
