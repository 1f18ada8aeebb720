"""How often a decode stops for the host: reads from the device, arrays made for it, evaluations."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

# Methods of an array that give its values to Python, and functions of NumPy that take an array's values.
_READS = ("item", "tolist", "__bool__", "__float__", "__int__", "__index__")
_CONVERSIONS = ("asarray", "array")
_EVALUATIONS = ("eval", "async_eval")
_ARRAY = mx.array  # while something counts, the name stands for something else


@dataclass
class Counts:
    """What was counted.

    Attributes:
        readbacks: times that values of an array were read on the host.
        arrays: arrays built from lists, scalars or NumPy arrays.
        evaluations: calls of `mx.eval` and `mx.async_eval`.
    """

    readbacks: int = 0
    arrays: int = 0
    evaluations: int = 0

    def copy(self) -> "Counts":
        """As they are now."""
        return Counts(self.readbacks, self.arrays, self.evaluations)

    def __sub__(self, earlier: "Counts") -> "Counts":
        return Counts(
            self.readbacks - earlier.readbacks, self.arrays - earlier.arrays, self.evaluations - earlier.evaluations
        )


def count_chunks(chunks: Iterable[object]) -> list[Counts]:
    """Consume an iterator: what was counted up to its first item, between each two, and after its last."""
    with counted() as counts:
        seen = [Counts()]
        for _ in chunks:
            seen.append(counts.copy())
        seen.append(counts.copy())
    return [after - before for before, after in zip(seen, seen[1:], strict=False)]


@contextmanager
def counted() -> Iterator[Counts]:
    """Count while the block runs, in this process; everything is put back at its end.

    Not seen are arrays that MLX makes by itself of a number in an operation, and reads through the buffer protocol
    by anything but `np.asarray` and `np.array`.
    """
    counts = Counts()

    def note(field: str) -> None:
        setattr(counts, field, getattr(counts, field) + 1)

    with ExitStack() as stack:
        for name in _READS:
            _replace(stack, mx.array, name, _noting(getattr(mx.array, name), lambda *_: note("readbacks")))
        for name in _CONVERSIONS:
            _replace(stack, np, name, _noting(getattr(np, name), lambda *args: _is_mlx(*args) and note("readbacks")))
        for name in _EVALUATIONS:
            _replace(stack, mx, name, _noting(getattr(mx, name), lambda *_: note("evaluations")))
        _replace(stack, mx, "array", _noting_class(mx.array, lambda *args: _is_mlx(*args) or note("arrays")))
        yield counts


def _replace(stack: ExitStack, owner: object, name: str, value: object) -> None:
    stack.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)


def _noting(function: Callable[..., Any], note: Callable[..., object]) -> Callable[..., Any]:
    def watched(*args: Any, **options: Any) -> Any:
        note(*args)
        return function(*args, **options)

    return watched


def _noting_class(array: type, note: Callable[..., object]) -> type:
    """What stands for `mx.array`: it makes the same arrays, and `isinstance` knows them."""

    class Watched(type):
        def __call__(cls, *args: Any, **options: Any) -> Any:
            note(*args)
            return array(*args, **options)

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, array)

    return Watched("array", (), {})


def _is_mlx(values: object = None, *_: object) -> bool:
    return isinstance(values, _ARRAY)
