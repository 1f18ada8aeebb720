"""The layout of a film: which frames each of its overlapping windows makes. Pure arithmetic, no MLX."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

from ..errors import LatentsError, PlanError, TilingError, option, quote
from ..networks.specs import NetworkSpec
from ..options import PlanOptions
from ..shapes import Interval, LatentShape, ScaleFactors, format_size, is_count
from ..units import format_bytes, format_count, format_seconds
from .plan import DecodePlan

#: Makes the plan of latents of a shape.
MakePlan = Callable[[Sequence[int], PlanOptions], DecodePlan]

#: Frames that windows share by default, as in Lightricks' pipelines.
DEFAULT_CARRY = 25
_AUDIO_FADE = Fraction(40, 1000)  # seconds


def check_carry(scale: ScaleFactors, carry: int) -> None:
    """Check that windows can share this number of frames; raise `PlanError` otherwise."""
    if rule := scale.carry_rule(carry):
        raise PlanError(f"windows share {rule}, not {quote(carry)}; correct the carry.")


@dataclass(frozen=True)
class FilmPart:
    """Part of a film that one window makes. Positions are frames, or samples, counted from the start of the film.

    Attributes:
        start: the position of the window's first frame.
        frames: the positions that the window makes, including the crossfaded ones.
        fade: the first of these positions, in which the previous window fades out; empty for a hard cut.
    """

    start: int
    frames: Interval
    fade: Interval

    def window_range(self, frames: tuple[int, int] | None) -> tuple[int, int] | None:
        """Return the first frame of the window that these frames of the film need, and one more than the last.

        `frames` of `None` are all frames of the film. Returns `None` if the window is not needed.
        """
        first, end = frames or self.frames[:2]
        first, end = max(first, self.frames.start) - self.start, min(end, self.frames.end) - self.start
        return (first, end) if first < end else None


@dataclass
class FilmLayout:
    """Parts of all windows in order, counted in frames of the decoder. Each window is checked when it is added.

    Attributes:
        carry: the number of frames at the start of a window that show the same time as the end of the previous window.
        blend: the maximum number of them that are crossfaded, at the end of the carry. The others are dropped.
        shortens: whether fewer are crossfaded after a window that adds too few frames; otherwise it is an error.
        video_frames: frames of the video per frame of the decoder.
    """

    carry: int
    blend: int
    shortens: bool
    video_frames: int
    parts: list[FilmPart] = field(default_factory=list)
    _shape: LatentShape | None = None  # of the first window

    @classmethod
    def of(cls, scale: ScaleFactors, spec: NetworkSpec, carry: int, blend: int | None) -> "FilmLayout":
        """Return the layout of no windows yet, for a carry and a blend in frames of the video.

        `scale` belongs to the VAE. A decoder of previews may make fewer frames, and its windows then share fewer. A
        blend of `None` is the whole carry, or less where a window adds too few frames. Raises a `PlanError` with the
        valid values.
        """
        steps, shortens = scale.time, blend is None
        check_carry(scale, carry)
        blend = carry if blend is None else blend
        if not is_count(blend) or blend > carry:
            raise PlanError(
                f"a carry of {carry} frames allows a blend of 0 to {carry}, not {quote(blend)}; correct the blend."
            )
        decoder_carry = spec.out_grid((1 + (carry - 1) // steps, 1, 1))[0] if carry else 0
        return cls(decoder_carry, blend * spec.scale.time // steps, shortens, steps // spec.scale.time)

    @property
    def num_frames(self) -> int:
        return self.parts[-1].frames.end if self.parts else 0

    def add(self, spec: NetworkSpec, shape: Sequence[int], name: str) -> FilmPart:
        """Add the next window, with latents (B, C, F', H', W'), and return its part.

        Raises:
            LatentsError: if the window does not fit the earlier windows. The message names it.
        """
        shape, carry, blend = LatentShape(*shape), self.carry, self.blend
        first_shape = self._shape = self._shape or shape
        if shape._replace(frames=1) != first_shape._replace(frames=1):
            actual, expected = (f"latents {tuple(s)}" for s in (shape, first_shape))
            raise LatentsError(f"{name}: has {actual}, and the first window {expected}; only F' may differ.")
        num_frames = spec.out_grid(shape.grid)[0]
        if not self.parts:
            part = FilmPart(0, Interval(0, num_frames), Interval(0, 0))
        else:
            previous = self.parts[-1]
            num_added = previous.frames.end - previous.fade.end
            start = previous.frames.end - carry
            if carry >= num_frames:
                raise LatentsError(
                    f"{name}: has {format_count(num_frames, 'frame')}, and shares the first {carry} with the window "
                    f"before; correct {option('carry=', '--carry')}, or leave this window out."
                )
            shares, right = f"{name}: shares {carry} frames with the window before", option("carry=", "--carry")
            if carry >= previous.frames.end - previous.start:
                length = format_count(previous.frames.end - previous.start, "frame")
                raise LatentsError(f"{shares}, which has {length}; correct {right}, or leave that window out.")
            if self.shortens:
                blend = min(blend, num_added - 1)
            if blend and blend >= num_added:
                max_blend = num_added * self.video_frames - 1
                raise LatentsError(
                    f"{shares}, with a blend of {blend}, and that one adds only {format_count(num_added, 'frame')}; "
                    f"blend at most {max_blend} ({option(f'blend={max_blend}', f'--blend {max_blend}')}), or correct "
                    f"{right}."
                )
            seam = start + carry
            part = FilmPart(start, Interval(seam - blend, start + num_frames), Interval(seam - blend, seam))
        self.parts.append(part)
        return part

    def window_ranges(self, frames: tuple[int, int] | None) -> Iterator[tuple[int, tuple[int, int]]]:
        """Yield the number of each window that these frames of the film need, and its range of frames."""
        for number, part in enumerate(self.parts):
            if (window_range := part.window_range(frames)) is not None:
                yield number, window_range

    def required_windows(self, frames: tuple[int, int] | None) -> Iterator[tuple[int, bool]]:
        """Yield the number of each window that these frames of the film require, and whether it is decoded.

        A window that is not decoded may have keyframes that are carried to a decoded one.
        """
        decoded = [number for number, _ in self.window_ranges(frames)]
        for number, part in enumerate(self.parts[: decoded[-1] + 1]):
            if part.frames.end > self.parts[decoded[0]].start:
                yield number, number in decoded

    def carried_keyframes(self, number: int, previous: Sequence[int], current: Sequence[int]) -> dict[int, int]:
        """Return the keyframes of the previous window that a window sees too: their indices, and frames in the window.

        These are the keyframes in the carry, except at frames where the window has its own keyframes. `previous` has
        the frame numbers of all keyframes that the previous window sees, and `current` the window's own.
        """
        shift = self.parts[number].start - self.parts[number - 1].start if number else 0
        window_frames = {index: frame - shift for index, frame in enumerate(previous) if number}
        return {
            index: frame for index, frame in window_frames.items() if 0 <= frame < self.carry and frame not in current
        }

    def visible_keyframes(self, window_keyframes: Iterable[Sequence[int]]) -> Iterator[tuple[int, ...]]:
        """Yield the frame numbers of all keyframes that each window sees, from each window's own numbers."""
        visible: tuple[int, ...] = ()
        for number, frames in enumerate(window_keyframes):
            visible = (*self.carried_keyframes(number, visible, frames).values(), *frames)
            yield visible


def plan_window(
    make_plan: Callable[[PlanOptions], DecodePlan], options: PlanOptions, frames: tuple[int, int], num_frames: int
) -> DecodePlan:
    """Plan some frames of a window, or all of them for tiles along time, whose positions depend on the whole window."""
    with suppress(TilingError):
        if frames != (0, num_frames):
            return make_plan(replace(options, frames=frames))
    return make_plan(replace(options, frames=None))


def fade_length(sample_rate: int) -> int:
    """Return the number of samples over which the audio of a window fades into the audio of the next."""
    return round(_AUDIO_FADE * sample_rate)


def audio_parts(ends: Iterable[int], lengths: Iterable[int], sample_rate: int, fps: Fraction) -> Iterator[FilmPart]:
    """Yield the part of each window in the audio of a film, in samples.

    The ends of windows are aligned: a window adds its last samples, and fades in over the samples before these. A
    window with too few samples begins with silence, as the first window does. Frames are converted to samples from
    the start of the film, so that the audio does not drift.

    Args:
        ends: for each window, the number of frames of the film up to its end.
        lengths: for each window, the samples that its audio latents make.
    """
    added = 0
    previous: FilmPart | None = None
    for frames, length in zip(ends, lengths, strict=True):
        end = round(frames * sample_rate / fps)
        max_fade = 0  # the samples that both windows have
        if previous is not None:
            num_unfaded = previous.frames.end - max(previous.fade.end, previous.frames.start)
            max_fade = min(fade_length(sample_rate), num_unfaded, max(0, length - (end - added)))
        start, added, seam = end - length, end, added
        fade = Interval(seam - max_fade, seam)
        previous = FilmPart(start, Interval(max(fade.start, start), end), fade)
        yield previous


@dataclass(frozen=True, repr=False, kw_only=True)
class FilmPlan(DecodePlan):
    """Plan of the decode of a film: that of its largest window, whose memory the film takes, and those of all windows.

    Attributes:
        film: the parts of all windows.
        film_frames: the first frame of the film to decode, and one more than the last. `None` means all.
        windows: the plan of each window that is decoded, by its number from 0 on.
        fps: frames per second, if they are known.
    """

    film: FilmLayout
    film_frames: tuple[int, int] | None
    windows: Mapping[int, DecodePlan]
    fps: Fraction | None = None

    @property
    def largest(self) -> DecodePlan:
        """Plan of the window that takes the most memory. The film takes as much."""
        return max(self.windows.values(), key=lambda plan: plan.peak_bytes)

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as a JSON-serializable dict, with the keys of the largest window's plan."""
        excerpt_fields = {} if self.film_frames is None else {"first_frame": self.film_frames[0]}
        fades = [part.fade.length for part in self.film.parts]
        windows = [
            {"window": number + 1, "blend": fades[number], **plan.as_dict()} for number, plan in self.windows.items()
        ]
        film_fields = {
            "frames": self.num_frames,
            "multiply_adds": self.multiply_adds,
            "carry": self.film.carry,
            "blend": self.film.blend,
        }
        return {**self.largest.as_dict(), **film_fields, **excerpt_fields, "windows": windows}

    def __str__(self) -> str:
        film, part = self.film, ""
        blends = sorted({part.fade.length for part in film.parts[1:]} or {film.blend})
        frames = f"{format_count(self.num_frames, 'frame')} of {format_size(*self.frame_size)}"
        if self.film_frames is not None:
            part = f" ({self.film_frames[0]} to {self.film_frames[1] - 1} of {film.num_frames})"
        if self.fps is not None:
            part += f", {format_seconds(float(self.num_frames / self.fps))} at {float(self.fps):.6g} fps"
        lines = [
            f"film     {frames}{part}",
            f"windows  {len(film.parts)}, carry {film.carry}, blend {' to '.join(map(str, blends))}",
            f"peak     {format_bytes(self.peak_bytes)}: one window, and the frames that wait for the next",
        ]
        for plan, group in groupby(self.windows.items(), key=itemgetter(1)):  # of windows in a row
            numbers = [number + 1 for number, _ in group]
            which = f"window {numbers[0]}" if len(numbers) == 1 else f"windows {numbers[0]} to {numbers[-1]}"
            lines += ["", f"{which}:", str(plan)]
        return "\n".join(lines)


def plan_film(
    film: FilmLayout,
    spec: NetworkSpec,
    shapes: Sequence[LatentShape],
    keyframes: Sequence[Sequence[int]],
    make_plan: MakePlan,
    options: PlanOptions,
) -> FilmPlan:
    """Plan the windows of a film, or of the `frames` in the options, from their shapes and the keyframes of each."""
    plans: dict[Any, DecodePlan] = {}  # most windows are alike
    windows: dict[int, DecodePlan] = {}
    visible = list(film.visible_keyframes(keyframes))
    first, end = options.frames or (0, film.num_frames)
    if options.joined is True:
        options = replace(options, joined=end - first)
    for number, frames in film.window_ranges(options.frames):
        key = shapes[number], frames, visible[number]
        if key not in plans:
            window_options = replace(options, keyframes=visible[number], held_frames=film.blend)
            plans[key] = plan_window(
                partial(make_plan, shapes[number]), window_options, frames, spec.out_grid(shapes[number].grid)[0]
            )
        windows[number] = plans[key]
    largest = max(windows.values(), key=lambda plan: plan.peak_bytes)
    all_keyframes = {film.parts[number].start + frame for number, plan in windows.items() for frame in plan.keyframes}
    plan = replace(
        largest,
        num_frames=end - first,
        multiply_adds=sum(plan.multiply_adds for plan in windows.values()),
        excerpt=None,
        keyframes=tuple(sorted(all_keyframes)),
    )
    return FilmPlan(**vars(plan), film=film, film_frames=options.frames, windows=windows)
