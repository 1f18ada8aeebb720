"""A network as the list of its stages: what a stream runs through, one after the other."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import mlx.core as mx


class Cache(Protocol):
    """What a stage remembers between two pieces of a stream."""

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays held now; to be evaluated after each step."""


class NoCache:
    """The cache of a stage that takes each position by itself."""

    arrays: list[mx.array] = []


class Stage(NamedTuple):
    """One step of a network in one running stream, with the memory it has there.

    `step(x, last)` takes the next piece (None where the stage before had nothing to give) and whether the stream
    ends with it; it returns what is finished now, or None.
    """

    step: Callable[[mx.array | None, bool], mx.array | None]
    cache: Cache
