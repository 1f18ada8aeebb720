"""A network as the list of its stages: what a stream runs through, one after the other."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import mlx.core as mx


class Cache(Protocol):
    """What a stage remembers between two pieces of a stream."""

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays held now; to be evaluated after each step, lest they hold a whole graph alive."""

    @property
    def closed(self) -> bool:
        """Whether the stage has been told of the stream's end and holds nothing back."""


class NoCache:
    """The cache of a stage that takes each position by itself."""

    arrays: list[mx.array] = []
    closed = True


class Stage(NamedTuple):
    """One step of a network in one running stream, with the memory it has there.

    `step(x, last)` takes the next piece and whether the stream ends with it; it returns what is finished now, or
    None. A stream that ends after its pieces is flushed by `step(None, True)` until the cache is closed: each such
    call finishes no more than one convolution's delay, so that a flush takes no more memory than any other step.
    """

    step: Callable[[mx.array | None, bool], mx.array | None]
    cache: Cache
