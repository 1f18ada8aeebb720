"""Stages, the sequential steps of a network that a stream runs through."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import mlx.core as mx

#: What stages pass on: an array; or several that travel together, each with its own position in the stream, of which
#: the first decides how a piece is cut. None in place of one that has no positions yet.
Piece = mx.array | tuple[mx.array | None, ...]


class Cache(Protocol):
    """What a stage keeps between two pieces of a stream: a `Window`, a `Delay` or a `Trim`."""

    @property
    def arrays(self) -> list[mx.array]:
        """The cached arrays. They are evaluated after each step; unevaluated, they would keep their graph alive."""

    @property
    def closed(self) -> bool:
        """Whether the stream has ended and all output has been returned."""


class Stage:
    """One step of a network in one stream, with its caches.

    Args:
        step: takes the next piece (or None) and whether the stream ends here; returns the output that is final now, or
            None. After the last piece, the stage is flushed by `step(None, True)` until `closed`. Each such call
            returns no more than one kernel's delay, so that flushing takes no more memory than any other step.
        caches: those of the step.
    """

    def __init__(self, step: Callable[[Any, bool], Piece | None], *caches: Cache) -> None:
        self.step = step
        self._caches: Sequence[Cache] = caches

    @property
    def arrays(self) -> list[mx.array]:
        return [array for cache in self._caches for array in cache.arrays]

    @property
    def closed(self) -> bool:
        return all(cache.closed for cache in self._caches)


def pointwise(function: Callable[[Any], Piece]) -> Stage:
    """A stage that computes each position independently and caches nothing."""
    return Stage(lambda x, last: None if x is None else function(x))
