"""Films: overlapping windows of latents, decoded one after another and crossfaded to one video, or to its audio."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Generic, TypeVar

import mlx.core as mx

from ..backend.mlx_utils import take, to_mlx
from ..errors import LatentsError, PlanError
from ..latents.keyframes import Keyframes, check_keyframes, frame_numbers
from ..networks.specs import NetworkSpec
from ..options import PlanOptions
from ..planning.film import DEFAULT_CARRY, FilmLayout, FilmPart, FilmPlan, MakePlan, plan_film
from ..shapes import Axis, Interval, LatentShape, ScaleFactors
from .execution import ChunkStream
from .frames import FrameChunk
from .sources import Latents, check_values

#: A dataclass with `start` and an array, such as `FrameChunk`.
Chunk = TypeVar("Chunk", bound=Any)

# The windows of all films are read on one thread, since MLX keeps a thread of the system for each that has computed.
_reader = ThreadPoolExecutor(1, "window-reader")


class FilmWindow:
    """Window of a film: latents (B, C, F', H', W'), and keyframes with frame numbers counted in the window.

    Subclasses whose latents are in a file have `shape`, `keyframe_numbers` and a `name` for errors, and read the rest.
    """

    latents: Latents
    keyframes: Keyframes | None
    index: int | None = None  # of the video in the batch; `None` means all

    def __init__(self, latents: Latents, keyframes: Keyframes | None = None, name: str = "") -> None:
        self.latents, self.keyframes, self.name = latents, keyframes, name
        self.shape, self.keyframe_numbers = LatentShape(*latents.shape), frame_numbers(keyframes)

    def item(self, index: int) -> "FilmWindow":
        """Return the window of one video of the batch, for windows that are read from a file."""
        window = copy(self)
        window.index, window.shape = index, self.shape._replace(batch=1)
        return window

    def read(self, *, is_decoded: bool = True) -> "FilmWindow":
        """Return the window with its keyframes in memory, and with its latents if they are decoded."""
        return self

    def check(self, spec: NetworkSpec, *, is_decoded: bool) -> None:
        """Check the values of the keyframes, and of the latents if they are decoded; raise a `LatentsError`."""
        if is_decoded:
            check_values(self.latents, name=self.name)
        if self.keyframes is not None and spec.variant is not None:
            self.keyframes.check(self.latents.shape, f"{self.name}: ")
            check_values(self.keyframes.latents, name=f"{self.name}, keyframes")


class Film:
    """Overlapping windows of latents that become one video. It is given where latents are given.

    Each window is decoded exactly and alone. The last `blend` frames of a window are crossfaded with the frames of the
    next window at the same time, as floats.

    Args:
        windows: latents (B, C, F', H', W'), or pairs of latents and `Keyframes`, whose numbers count the frames of the
            window; the next window sees those in the carry too, except where it has its own. An iterator is asked for
            the next window when the last one has been decoded; a sequence is checked as a whole first.
        carry: the frames at the start of a window that the previous window has at its end: 1 + 8*k, or 0.
        blend: how many of them are crossfaded, at the end of the carry. `None` means all, or as many as fit if the
            previous window adds fewer. The others are dropped.

    Raises:
        LatentsError: at once for a sequence, if something in it is no window.
    """

    def __init__(self, windows: Iterable[Any], *, carry: int = DEFAULT_CARRY, blend: int | None = None) -> None:
        film_windows = (_to_window(window, number) for number, window in enumerate(windows, 1))
        #: All windows, or an iterator of those that have not been decoded.
        self.windows: Sequence[FilmWindow] | Iterator[FilmWindow] = (
            list(film_windows) if isinstance(windows, Sequence) else film_windows
        )
        self.carry, self.blend = carry, blend

    @property
    def is_complete(self) -> bool:
        """Flag: all windows are there."""
        return isinstance(self.windows, Sequence)


def film_item(film: Film, index: int) -> Film:
    """Return the film of one video of the batch, for windows that are read from files."""
    return Film([window.item(index) for window in film.windows], carry=film.carry, blend=film.blend)


def film_layout(film: Film, scale: ScaleFactors, spec: NetworkSpec, frames: tuple[int, int] | None) -> FilmLayout:
    """Return the parts of the windows that are there. `scale` belongs to the VAE, and `spec` to its decoder.

    Raises:
        LatentsError: if windows differ in more than F', or are too short.
        PlanError: for a carry, a blend or `frames` that the film does not have.
    """
    layout = FilmLayout.of(scale, spec, film.carry, film.blend)
    if isinstance(film.windows, Sequence):
        for window in film.windows:
            layout.add(spec, window.shape, window.name)
        check_film(layout, frames)
    return layout


def check_windows(film: Film, layout: FilmLayout, spec: NetworkSpec, frames: tuple[int, int] | None) -> None:
    """Check the values of all windows that these frames of a complete film need; raise a `LatentsError`."""
    assert isinstance(film.windows, Sequence)
    for number, is_decoded in layout.required_windows(frames):
        film.windows[number].check(spec, is_decoded=is_decoded)


def plan_windows(
    film: Film, scale: ScaleFactors, spec: NetworkSpec, make_plan: MakePlan, options: PlanOptions
) -> FilmPlan:
    """Plan the decode of a complete film, or of the frames in the options; raise a `PlanError` for an iterator."""
    if not isinstance(film.windows, Sequence):
        raise PlanError("windows that come from an iterator are planned as they come; give a list of windows.")
    layout = film_layout(film, scale, spec, options.frames)
    shapes = [window.shape for window in film.windows]
    keyframes = [window.keyframe_numbers if spec.variant else () for window in film.windows]
    return plan_film(layout, spec, shapes, keyframes, make_plan, options)


def _to_window(window: Any, number: int) -> FilmWindow:
    """Check a caller's window: latents, or a pair of latents and keyframes."""
    if isinstance(window, FilmWindow):
        return window
    name = f"window {number}"
    latents, keyframes = window if isinstance(window, tuple) else (window, None)
    if keyframes is not None:
        check_keyframes(keyframes)
    if not isinstance(latents, Latents) or len(latents.shape) != 5:
        kind = getattr(latents, "shape", type(latents).__name__)
        raise LatentsError(f"{name}: is {kind}; expected latents (B, C, F', H', W'), or a pair of these and Keyframes.")
    return FilmWindow(latents, keyframes, name)


def check_film(layout: FilmLayout, frames: tuple[int, int] | None) -> None:
    """Check that a film, after its last window, has windows and the requested frames."""
    if not layout.parts:
        raise LatentsError("there are no windows to decode.")
    if frames is not None and not 0 <= frames[0] < frames[1] <= layout.num_frames:
        raise PlanError(f"the film has the frames 0:{layout.num_frames}, and {frames[0]}:{frames[1]} are not in it.")


def read_ahead(film: Film, layout: FilmLayout, frames: tuple[int, int] | None) -> Iterator[tuple[int, FilmWindow]]:
    """Yield the numbers of the windows that are needed, and the windows, each read while the last one is decoded."""
    assert isinstance(film.windows, Sequence)
    readers = [
        (number, partial(film.windows[number].read, is_decoded=is_decoded))
        for number, is_decoded in layout.required_windows(frames)
    ]
    futures = [_reader.submit(readers[0][1])]
    try:
        for index, (number, _) in enumerate(readers):
            window = futures.pop().result()
            futures += [_reader.submit(read) for _, read in readers[index + 1 : index + 2]]
            yield number, window
            del window
    finally:
        for future in futures:
            future.cancel()


def join_keyframes(layout: FilmLayout, number: int, previous: Keyframes | None, window: FilmWindow) -> Keyframes | None:
    """Return the keyframes of a window, after those `previous` ones, of the window before, that it shares."""
    if (keyframes := window.keyframes) is not None:
        keyframes.check(window.shape, f"{window.name}: ")
    carried = layout.carried_keyframes(number, frame_numbers(previous), frame_numbers(keyframes))
    if previous is None or not carried:
        return keyframes
    stills = [to_mlx(part.latents, "keyframe latents") for part in (previous, keyframes) if part is not None]
    stills[0] = stills[0][:, :, list(carried)]
    return Keyframes(mx.concatenate(stills, axis=2), [*carried.values(), *frame_numbers(keyframes)])


def crop_window(
    chunks: Generator[FrameChunk, None, None], part: FilmPart, window_frames: tuple[int, int]
) -> Generator[FrameChunk, None, None]:
    """Yield some frames of a window. `chunks` have more frames if the window was decoded in tiles along time."""
    with closing(chunks):
        while box := list(islice(chunks, 1)):
            start, count = box[0].start, box[0].frames.shape[1]
            first, end = max(start, part.start + window_frames[0]), min(start + count, part.start + window_frames[1])
            if 0 < end - first < count:
                frames = take(box[0].frames, Axis.TIME, first - start, end - start)
                box[0] = replace(box[0], start=first, frames=frames)
                del frames
            if first < end:
                yield box.pop()
            box.clear()


class Crossfade(Generic[Chunk]):
    """Joins the chunks of overlapping parts. Only the last positions of a part wait for the next part.

    `name` is that of a chunk's array, whose positions lie along `axis`. At most `longest` positions are blended at
    once. `weights(k, n)` returns the weights of the earlier and the later part at the positions k of a fade of length
    n. `check` is called with each chunk that has to wait.
    """

    def __init__(
        self,
        name: str,
        axis: int,
        weights: Callable[[mx.array, int], tuple[mx.array, mx.array]],
        *,
        longest: int,
        check: Callable[[Chunk], object],
    ) -> None:
        self._name, self._axis, self._weights, self._longest = name, axis, weights, longest
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

    def _array(self, chunk: Chunk) -> mx.array:
        return getattr(chunk, self._name)

    def _with(self, chunk: Chunk, start: int, array: mx.array) -> Chunk:
        return replace(chunk, start=start, **{self._name: array})

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
