"""A network as the list of its stages: what a stream runs through, one after the other."""

from collections.abc import Callable, Sequence
from typing import Protocol

import mlx.core as mx


class Memory(Protocol):
    """What a stage keeps between two pieces of a stream: a `Window` or a `Delay`."""

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays kept now. They are evaluated after each step; unevaluated, they would keep their graph alive."""

    @property
    def closed(self) -> bool:
        """Whether the stream has ended and nothing is held back."""


class Stage:
    """One step of a network in one running stream, with what it keeps in between.

    Args:
        step: takes the next piece (or None) and whether the stream ends here; returns what is finished now, or None.
            A stream that ends after its pieces is flushed by `step(None, True)` until `closed`: each such call finishes
            no more than one kernel's delay, so that flushing takes no more memory than any other step.
        memory: what the step keeps.
    """

    def __init__(self, step: Callable[[mx.array | None, bool], mx.array | None], *memory: Memory) -> None:
        self.step = step
        self._memory: Sequence[Memory] = memory

    @property
    def arrays(self) -> list[mx.array]:
        """Everything kept between two steps."""
        return [array for memory in self._memory for array in memory.arrays]

    @property
    def closed(self) -> bool:
        """Whether the stream has ended and nothing is held back."""
        return all(memory.closed for memory in self._memory)


def pointwise(function: Callable[[mx.array], mx.array]) -> Stage:
    """A stage that computes each position from that position alone, and keeps nothing."""
    return Stage(lambda x, last: None if x is None else function(x))
