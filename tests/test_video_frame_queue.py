"""The frame queue: order, bounds, errors, and termination in every case."""

import threading
import weakref
from contextlib import nullcontext

import numpy as np
import pytest

from mlx_ltx_vae.video.sink import FrameQueue


def numbered(index: int) -> np.ndarray:
    return np.full((1, 2, 2, 3), index, np.uint8)


@pytest.mark.slow
def test_queue_is_bounded_by_frames_and_not_by_arrays() -> None:
    def most_waiting(lengths: list[int]) -> int:
        started, release, given = threading.Semaphore(0), threading.Event(), []

        def consume(_: np.ndarray) -> None:
            started.release()
            release.wait()

        frames = FrameQueue(consume, max_frames=8)

        def produce() -> None:
            for length in lengths:
                frames.put(np.zeros((length, 2, 2, 3), np.uint8))
                given.append(length)

        producer = threading.Thread(target=produce)
        producer.start()
        started.acquire()
        producer.join(0.2)
        waiting = sum(given[1:])  # the first is being consumed
        release.set()
        producer.join()
        frames.finish()
        return waiting

    assert most_waiting([2] * 10) == 8
    assert most_waiting([3] * 10) == 9
    assert most_waiting([48] * 4) == 48


def test_failed_consumer_never_blocks_the_producer() -> None:
    queue_full = threading.Event()

    def consume(_: np.ndarray) -> None:
        queue_full.wait()
        threading.Event().wait(0.1)  # long enough for the producer to be waiting in put()
        raise ValueError("disk full")

    frames = FrameQueue(consume)
    refused: list[str] = []

    def produce() -> None:
        try:
            for index in range(20):
                if index == 2:
                    queue_full.set()
                frames.put(numbered(index))
        except ValueError as error:
            refused.append(str(error))

    producer = threading.Thread(target=produce, daemon=True)
    producer.start()
    producer.join(5)
    assert not producer.is_alive()
    frames.cancel()
    assert refused == ["disk full"]


def test_cancel_drops_queued_frames_and_ends_the_thread() -> None:
    entered, release, consumed = threading.Event(), threading.Event(), []

    def consume(array: np.ndarray) -> None:
        entered.set()
        release.wait()
        consumed.append(int(array[0, 0, 0, 0]))

    before = threading.active_count()
    frames = FrameQueue(consume, max_frames=2)
    for index in range(3):
        frames.put(numbered(index))
    entered.wait()
    threading.Timer(0.05, release.set).start()
    frames.cancel()
    assert consumed == [0]
    assert threading.active_count() <= before + 1  # the timer may still be ending


@pytest.mark.parametrize("error", [None, ValueError("five")])
def test_consumed_frames_are_not_kept_alive(error: Exception | None) -> None:
    def consume(_: np.ndarray) -> None:
        if error is not None:
            raise error

    freed = threading.Event()
    frames = FrameQueue(consume)
    array = numbered(0)
    weakref.finalize(array, freed.set)
    frames.put(array)
    del array
    assert freed.wait(5)  # while the thread waits for more, and by the error, which is raised at the end
    with pytest.raises(ValueError, match="five") if error else nullcontext():
        frames.finish()


def test_queue_that_was_never_used_starts_no_thread() -> None:
    before = threading.active_count()
    frames = FrameQueue(lambda _: None)
    frames.finish()
    frames.cancel()
    assert threading.active_count() == before
