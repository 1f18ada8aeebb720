"""Values that are sampled while a block runs."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

_Value = TypeVar("_Value")

_SECONDS = 0.02


@contextmanager
def sampled(take: Callable[[], _Value]) -> Iterator[list[_Value]]:
    """Call `take` from a thread every 20 ms while the block runs, and once at its end: a list of what it returns."""
    samples: list[_Value] = []
    done = threading.Event()

    def sample() -> None:
        is_last = False
        while not is_last:
            is_last = done.wait(_SECONDS)
            samples.append(take())

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        done.set()
        thread.join()
