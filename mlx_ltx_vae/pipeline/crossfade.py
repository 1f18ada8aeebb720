"""Joins overlapping parts, each decoded alone, to one stream: windows to the frames of a film, or to its audio."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import islice
from typing import Any, Generic, TypeVar

import mlx.core as mx

from ..backend.mlx_utils import take
from ..planning.film import FilmPart
from ..shapes import Interval
from .execution import ChunkStream

#: A dataclass with `start` and an array, such as `FrameChunk`.
Chunk = TypeVar("Chunk", bound=Any)


class Crossfade(Generic[Chunk]):
    """Joins the chunks of overlapping parts. Only the last positions of a part wait for the next part.

    `array` returns the array of a chunk, whose positions lie along `axis`, and `with_array` a chunk with another start
    and array. At most `longest` positions are blended at once. `weights(k, n)` returns the weights of the earlier and
    the later part at the positions k of a fade of length n. `check` is called with each chunk that has to wait.
    """

    def __init__(
        self,
        array: Callable[[Chunk], mx.array],
        with_array: Callable[[Chunk, int, mx.array], Chunk],
        axis: int,
        weights: Callable[[mx.array, int], tuple[mx.array, mx.array]],
        *,
        longest: int,
        check: Callable[[Chunk], object],
    ) -> None:
        self._array: Callable[[Chunk], mx.array] = array
        self._with: Callable[[Chunk, int, mx.array], Chunk] = with_array
        self._axis, self._weights, self._longest = axis, weights, longest
        self._check: Callable[[Chunk], object] = check
        self._waiting: deque[Chunk] = deque()

    def join(self, parts: Iterable[tuple[Interval, int, Generator[Chunk, None, None]]]) -> Generator[Chunk, None, None]:
        """Yield the chunks of all parts in order.

        A part is a tuple: the interval in which it fades in, the first position that waits, and its chunks, which begin
        with the fade.
        """
        for fade, last, chunks in parts:
            yield from self._take_waiting(fade.start)
            with closing(chunks):
                while box := list(islice(chunks, 1)):
                    start, end = box[0].start, self._end(box[0])
                    spans = (start, min(fade.end, end)), (max(start, fade.end), min(last, end)), (max(start, last), end)
                    boxes = [[self._cut(box[0], *span)] if span[0] < span[1] else [] for span in spans]
                    box.clear()
                    yield from self._blend(boxes[0], fade)
                    if boxes[1]:
                        yield boxes[1].pop()
                    self._waiting += map(self._keep, boxes[2])
                    boxes.clear()
        yield from self._take_waiting(None)

    def _blend(self, box: list[Chunk], fade: Interval) -> Iterator[Chunk]:
        """Blend the chunk in the box, if there is one, with the positions of the part before that wait."""
        for earlier in self._take_waiting(self._end(box[0])) if box else ():
            start, end = earlier.start, self._end(earlier)
            shape = [-1 if axis == self._axis else 1 for axis in range(self._array(earlier).ndim)]
            positions = mx.arange(start - fade.start, end - fade.start)
            before, after = (share.reshape(shape) for share in self._weights(positions, fade.length))
            later = self._cut(box[0], start, end)
            mx.eval(self._array(later))  # before the crossfade, so that what it is computed from is freed
            blended = before * self._array(earlier).astype(mx.float32) + after * self._array(later).astype(mx.float32)
            blended = blended.astype(self._array(later).dtype)
            mx.eval(blended)
            done = [self._with(later, start, blended)]
            del earlier, later, blended, before, after
            yield done.pop()

    def _take_waiting(self, until: int | None) -> Iterator[Chunk]:
        """Yield the positions that wait, up to a position or all of them, a few at a time."""
        while self._waiting and (until is None or self._waiting[0].start < until):
            box = [self._waiting.popleft()]
            start, end = box[0].start, self._end(box[0])
            cut = min(start + self._longest, end, end if until is None else until)
            if cut < end:
                self._waiting.appendleft(self._cut(box[0], cut, end))
            yield self._cut(box.pop(), start, cut)

    def _keep(self, chunk: Chunk) -> Chunk:
        """Return the chunk with an evaluated array of its own: a slice would keep the whole array in memory."""
        self._check(chunk)
        array = mx.contiguous(self._array(chunk))
        mx.eval(array)
        return self._with(chunk, chunk.start, array)

    def _end(self, chunk: Chunk) -> int:
        return chunk.start + self._array(chunk).shape[self._axis]

    def _cut(self, chunk: Chunk, start: int, end: int) -> Chunk:
        if (start, end) == (chunk.start, self._end(chunk)):
            return chunk
        return self._with(chunk, start, take(self._array(chunk), self._axis, start - chunk.start, end - chunk.start))


def count_from_film(box: list[ChunkStream[Chunk]], part: FilmPart) -> Generator[Chunk, None, None]:
    """Yield the chunks of a window, with positions counted from the start of the film."""
    with closing(box.pop()) as stream:
        while chunks := list(islice(stream, 1)):
            yield replace(chunks[0], start=part.start + chunks.pop().start)
