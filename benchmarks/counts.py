"""How often a decode synchronizes with the host: reads from the device, arrays made from host data, evaluations."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass, replace
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import numpy as np

# Methods of an array that return values to Python, NumPy functions that read an array, and MLX's evaluations.
_READS = ("item", "tolist", "__bool__", "__float__", "__int__", "__index__")
_CONVERSIONS = ("asarray", "array")
_EVALUATIONS = ("eval", "async_eval")
_ARRAY = mx.array  # `counted` replaces the name


@dataclass
class Counts:
    """Numbers of calls.

    Attributes:
        readbacks: reads of an array's values on the host.
        arrays: arrays made from lists, scalars or NumPy arrays.
        evaluations: calls of `mx.eval` and `mx.async_eval`.
    """

    readbacks: int = 0
    arrays: int = 0
    evaluations: int = 0

    def __sub__(self, earlier: "Counts") -> "Counts":
        return Counts(*(now - then for now, then in zip(astuple(self), astuple(earlier), strict=True)))


def count_chunks(chunks: Iterable[object]) -> list[Counts]:
    """Consume an iterator and count up to its first item, between each two, and after its last."""
    with counted() as counts:
        snapshots = [Counts()]
        for _ in chunks:
            snapshots.append(replace(counts))
        snapshots.append(replace(counts))
    return [after - before for before, after in zip(snapshots, snapshots[1:], strict=False)]


@contextmanager
def counted() -> Iterator[Counts]:
    """Count in this process while the block runs.

    Not counted are arrays that MLX makes from a number in an operation, and reads through the buffer protocol other
    than `np.asarray` and `np.array`.
    """
    counts = Counts()

    def read(*_: object) -> None:
        counts.readbacks += 1

    def convert(*arguments: object) -> None:
        counts.readbacks += _is_mlx(*arguments)

    def make(*arguments: object) -> None:
        counts.arrays += not _is_mlx(*arguments)

    def evaluate(*_: object) -> None:
        counts.evaluations += 1

    groups = ((mx.array, _READS, read), (np, _CONVERSIONS, convert), (mx, _EVALUATIONS, evaluate))
    with ExitStack() as stack:
        for owner, names, count in groups:
            for name in names:
                stack.enter_context(patch.object(owner, name, _counting(getattr(owner, name), count)))
        stack.enter_context(patch.object(mx, "array", _counting_class(make)))
        yield counts


def _counting(function: Callable[..., Any], count: Callable[..., None]) -> Callable[..., Any]:
    def counting(*arguments: Any, **options: Any) -> Any:
        count(*arguments)
        return function(*arguments, **options)

    return counting


def _counting_class(count: Callable[..., None]) -> type:
    """Make a class that replaces `mx.array`: it makes the same arrays, and `isinstance` accepts them."""

    class Counting(type):
        def __call__(cls, *arguments: Any, **options: Any) -> Any:
            count(*arguments)
            return _ARRAY(*arguments, **options)

        def __instancecheck__(cls, instance: object) -> bool:
            return _is_mlx(instance)

    return Counting("array", (), {})


def _is_mlx(values: object = None, *_: object) -> bool:
    return isinstance(values, _ARRAY)
