"""Joins overlapping parts, each decoded alone, to one stream: windows to the frames of a film, or to its sound."""

import math
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

import mlx.core as mx

from ..backend.mlx_utils import take, to_mlx
from ..errors import LatentsError, PlanError
from ..latents.keyframes import Keyframes, check_keyframes, frame_numbers
from ..models.noise import window_seed
from ..models.specs import NetworkSpec
from ..planning.film import Film, Part, fade_length, plan_window
from ..planning.memory import FRAMES_PER_CONVERSION
from ..planning.plan import DecodePlan
from ..shapes import Axis, Interval, LatentShape
from .audio import AudioChunk, AudioStream
from .decode import DecodeOptions, DecodePipeline, DecodeStream
from .frames import FrameChunk
from .run import ChunkStream
from .sources import Latents, check_values

Chunk = TypeVar("Chunk", FrameChunk, AudioChunk)


class Crossfade(Generic[Chunk]):
    """Joins the chunks of overlapping parts. Only the last positions of a part wait for the next part.

    Chunks have an array `name`, whose positions lie along `axis`. At most `longest` positions are blended at once.
    `weights(k, n)` returns the weights of the earlier and the later part at the positions k of a fade of length n.
    `check` is called with each chunk that has to wait.
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
        self._name, self._axis, self._weights = name, axis, weights
        self._longest = longest
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

    def _end(self, chunk: Chunk) -> int:
        return chunk.start + self._array(chunk).shape[self._axis]

    def _cut(self, chunk: Chunk, start: int, end: int) -> Chunk:
        if (start, end) == (chunk.start, self._end(chunk)):
            return chunk
        return self._with(chunk, start, take(self._array(chunk), self._axis, start - chunk.start, end - chunk.start))

    def _with(self, chunk: Chunk, start: int, array: mx.array) -> Chunk:
        changed: dict[str, Any] = {"start": start, self._name: array}
        return replace(chunk, **changed)


def join_sound(
    parts: Iterable[tuple[Part, Callable[[tuple[int, int]], AudioStream]]],
    sample_rate: int,
    *,
    samples: tuple[int, int] | None = None,
    num_samples: int | None = None,
) -> AudioStream:
    """Decode the sound of windows one after the other, and join it with equal power.

    Args:
        parts: the part of each window, and a function that decodes samples of the window.
        samples: the first sample to decode, counted from the start of the film, and one more than the last. `None`
            means all.
        num_samples: the number of samples that are decoded, or `None` if it is unknown.
    """
    longest, cancelled = fade_length(sample_rate), threading.Event()

    def decoded() -> Iterator[tuple[Interval, int, Generator[AudioChunk, None, None]]]:
        for part, decode in parts:
            if (window_samples := part.window_range(samples)) is not None:
                first_waiting = max(part.fade.end, part.frames.end - longest)
                yield part.fade, first_waiting, _count_from_film([decode(window_samples)], part)

    joined: Crossfade[AudioChunk] = Crossfade(
        "waveform", 2, _equal_power, longest=longest, check=lambda chunk: mx.eval(chunk.waveform)
    )
    chunks = _fill_gaps(joined.join(decoded()), samples[0] if samples else 0)
    return AudioStream(chunks, cancelled, sample_rate, num_samples)


def _fill_gaps(chunks: Generator[AudioChunk, None, None], start: int) -> Generator[AudioChunk, None, None]:
    """Yield chunks from the sample `start` on, with silence where a window has less sound than frames."""
    with closing(chunks):
        for chunk in chunks:
            if chunk.start > start:
                batch, channels, _ = chunk.waveform.shape
                yield AudioChunk(start, mx.zeros((batch, channels, chunk.start - start)))
            start = chunk.start + chunk.waveform.shape[2]
            yield chunk


def _equal_power(positions: mx.array, length: int) -> tuple[mx.array, mx.array]:
    angles = positions.astype(mx.float32) * (math.pi / 2 / max(1, length - 1))
    return mx.cos(angles), mx.sin(angles)


def _linear(positions: mx.array, length: int) -> tuple[mx.array, mx.array]:
    later_weights = (positions + 1).astype(mx.float32) / (length + 1)
    return 1 - later_weights, later_weights


class FilmWindow(NamedTuple):
    """Latents (B, C, F', H', W') of one window of a film, and keyframes with frame numbers counted in the window."""

    latents: Latents
    keyframes: Keyframes | None = None
    name: str = ""  # in errors


def stream_joined(
    pipeline: DecodePipeline,
    windows: Iterable[Any],
    film: Film,
    frames: tuple[int, int] | None,
) -> DecodeStream:
    """Decode windows one after the other to the frames of a film, or some of them; see `VideoVAE.stream_joined`."""
    film_windows: Iterator[FilmWindow] = (_to_window(window, number) for number, window in enumerate(windows, 1))
    num_frames, spec = None, pipeline.decoder.spec
    if isinstance(windows, Sequence):
        film_windows = iter(window_list := list(film_windows))
        for window in window_list:
            film.add(spec, window.latents.shape, window.name)
        _check_film(film, frames)
        for number, is_decoded in film.required_windows(frames):
            _check_window(window_list[number], spec, is_decoded=is_decoded)
        num_frames = film.num_frames if frames is None else frames[1] - frames[0]
    joined: Crossfade[FrameChunk] = Crossfade(
        "frames", Axis.TIME, _linear, longest=FRAMES_PER_CONVERSION, check=FrameChunk.check
    )
    parts = _decode_parts(pipeline, film_windows, film, frames)
    return DecodeStream(joined.join(parts), pipeline.cancelled, pipeline.bands, num_frames, pipeline.consumer)


def _check_film(film: Film, frames: tuple[int, int] | None) -> None:
    """Check that a film, after its last window, has windows and the requested frames."""
    if not film.parts:
        raise LatentsError("there are no windows to decode.")
    if frames is not None and not 0 <= frames[0] < frames[1] <= film.num_frames:
        raise PlanError(f"the film has the frames 0:{film.num_frames}, and {frames[0]}:{frames[1]} are not in it.")


def _check_window(window: FilmWindow, spec: NetworkSpec, *, is_decoded: bool) -> None:
    """Check the values of the keyframes of a window, and of its latents if they are decoded."""
    if is_decoded:
        check_values(window.latents, name=window.name)
    if window.keyframes is not None and spec.variant is not None:
        window.keyframes.check(window.latents.shape, f"{window.name}: ")
        check_values(window.keyframes.latents, name=f"{window.name}, keyframes")


def _to_window(window: Any, number: int) -> FilmWindow:
    """Check a caller's window: latents, or a pair of latents and keyframes."""
    name = f"window {number}"
    latents, keyframes, *names = window if isinstance(window, tuple) else (window, None)
    if keyframes is not None:
        check_keyframes(keyframes)
    if not isinstance(latents, Latents) or len(latents.shape) != 5:
        kind = getattr(latents, "shape", type(latents).__name__)
        raise LatentsError(f"{name}: is {kind}; expected latents (B, C, F', H', W'), or a pair of these and Keyframes.")
    return FilmWindow(latents, keyframes, *names or [name])


def _decode_parts(
    pipeline: DecodePipeline,
    windows: Iterator[FilmWindow],
    film: Film,
    frames: tuple[int, int] | None,
) -> Iterator[tuple[Interval, int, Generator[FrameChunk, None, None]]]:
    spec, blend, seed = pipeline.decoder.spec, film.overlap.blend, pipeline.options["seed"]
    plans: dict[Any, DecodePlan] = {}  # most windows are alike
    keyframes: Keyframes | None = None
    for number, window in enumerate(windows):
        shape = LatentShape(*window.latents.shape)
        part = film.parts[number] if number < len(film.parts) else film.add(spec, shape, window.name)
        keyframes = window.keyframes if spec.variant is None else _join_keyframes(film, number, keyframes, window)
        window_frames = part.window_range(frames)
        if window_frames is not None:
            key = shape, window_frames, frame_numbers(keyframes)
            if key not in plans:
                plan = partial(pipeline.plan_for_consumer, shape, keyframes=key[2], held_frames=blend)
                plans[key] = plan_window(plan, window_frames, spec.out_grid(shape.grid)[0])
            options: DecodeOptions = {
                **pipeline.options,
                "seed": window_seed(spec, seed, number),
                "keyframes": keyframes,
            }
            box: list[ChunkStream[FrameChunk]] = [replace(pipeline, options=options).stream(window.latents, plans[key])]
            del window
            first_waiting = max(part.fade.end, part.frames.end - blend)
            yield part.fade, first_waiting, _crop_chunks(_count_from_film(box, part), part, window_frames)
        if frames is not None and part.frames.end - blend >= frames[1]:
            return
    _check_film(film, frames)


def _join_keyframes(film: Film, number: int, previous: Keyframes | None, window: FilmWindow) -> Keyframes | None:
    """Return the keyframes of a window, after those `previous` ones, of the window before, that it shares."""
    if (keyframes := window.keyframes) is not None:
        keyframes.check(window.latents.shape, f"{window.name}: ")
    carried = film.carried_keyframes(number, frame_numbers(previous), frame_numbers(keyframes))
    if previous is None or not carried:
        return keyframes
    stills = [to_mlx(part.latents, "keyframe latents") for part in (previous, keyframes) if part is not None]
    stills[0] = stills[0][:, :, list(carried)]
    return Keyframes(mx.concatenate(stills, axis=2), [*carried.values(), *frame_numbers(keyframes)])


def _crop_chunks(
    chunks: Generator[FrameChunk, None, None], part: Part, window_frames: tuple[int, int]
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


def _count_from_film(box: list[ChunkStream[Chunk]], part: Part) -> Generator[Chunk, None, None]:
    """Yield the chunks of a window, with positions counted from the start of the film."""
    with closing(box.pop()) as stream:
        while chunks := list(islice(stream, 1)):
            yield replace(chunks[0], start=part.start + chunks.pop().start)
