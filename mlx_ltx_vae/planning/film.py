"""The layout of a film: which frames each of its overlapping windows makes. Pure arithmetic, no MLX."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ..errors import LatentsError, PlanError, option, quote
from ..models.specs import NetworkSpec
from ..shapes import LatentShape, ScaleFactors
from ..tiling.layout import Interval
from ..units import format_count

#: Frames that windows share by default, as in Lightricks' pipelines.
DEFAULT_CARRY = 25


@dataclass(frozen=True)
class Overlap:
    """The frames that two windows of a film share, counted in frames of the decoder.

    Attributes:
        carry: the number of frames at the start of a window that show the same time as the end of the window before.
        blend: the number of them that are crossfaded, at the end of the carry. The others are dropped.
    """

    carry: int
    blend: int

    @classmethod
    def of(cls, scale: ScaleFactors, spec: NetworkSpec, carry: int, blend: int | None) -> "Overlap":
        """Check a carry and a blend that count frames of the video; a `PlanError` says what is possible.

        `scale` belongs to the VAE. A decoder of previews may make fewer frames, and its windows then share fewer.
        """
        steps = scale.time
        if not _is_count(carry) or (carry and (carry - 1) % steps):
            raise PlanError(
                f"windows share 1 + {steps}*k frames, or 0 for none, not {quote(carry)}; correct the carry."
            )
        blend = carry if blend is None else blend
        if not _is_count(blend) or blend > carry:
            raise PlanError(
                f"a carry of {carry} frames allows a blend of 0 to {carry}, not {quote(blend)}; correct the blend."
            )
        own = spec.out_grid((1 + (carry - 1) // steps, 1, 1))[0] if carry else 0
        return cls(own, blend if own == carry else round(blend * own / carry))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


@dataclass(frozen=True)
class Part:
    """The part of a film that one window makes. Positions are frames, or samples, counted from the start of the film.

    Attributes:
        start: the position of the window's first frame.
        frames: the positions that the window makes, faded ones included.
        fade: the first of these positions, in which the window before fades out; empty for a hard cut.
    """

    start: int
    frames: Interval
    fade: Interval

    def wanted(self, frames: tuple[int, int] | None) -> tuple[int, int] | None:
        """Return the frames of the window that some frames of the film need, the first and one more than the last."""
        first, end = frames or self.frames[:2]
        first, end = max(first, self.frames.start) - self.start, min(end, self.frames.end) - self.start
        return (first, end) if first < end else None


@dataclass
class Film:
    """The parts of all windows in order. Each window is checked when it is added."""

    overlap: Overlap
    parts: list[Part] = field(default_factory=list)
    _shape: LatentShape | None = None  # of the first window

    @property
    def num_frames(self) -> int:
        return self.parts[-1].frames.end if self.parts else 0

    def add(self, spec: NetworkSpec, shape: Sequence[int], name: str) -> Part:
        """Return the part of the next window, with latents (B, C, F', H', W').

        A `LatentsError` names the window if it does not fit the windows before.
        """
        shape, carry, blend = LatentShape(*shape), self.overlap.carry, self.overlap.blend
        first = self._shape = self._shape or shape
        if shape._replace(frames=1) != first._replace(frames=1):
            found, expected = (f"latents {tuple(each)}" for each in (shape, first))
            raise LatentsError(f"{name}: has {found}, and the first window {expected}; only F' may differ.")
        num_frames = spec.out_grid(shape.grid)[0]
        if not self.parts:
            part = Part(0, Interval(0, num_frames), Interval(0, 0))
        else:
            before = self.parts[-1]
            kept = before.frames.end - before.fade.end
            start = before.frames.end - carry
            if carry >= num_frames:
                raise LatentsError(
                    f"{name}: has {format_count(num_frames, 'frame')}, and shares the first {carry} with the window "
                    f"before; correct {option('carry=', '--carry')}, or leave this window out."
                )
            if carry >= before.frames.end - before.start or (blend and blend >= kept):
                raise LatentsError(
                    f"{name}: shares {carry} frames with the window before, with a blend of {blend}, and that one adds "
                    f"only {kept} frames; correct {option('carry=', '--carry')}, or blend fewer "
                    f"({option('blend=', '--blend')})."
                )
            seam = start + carry
            part = Part(start, Interval(seam - blend, start + num_frames), Interval(seam - blend, seam))
        self.parts.append(part)
        return part

    def wanted(self, frames: tuple[int, int] | None) -> Iterator[tuple[int, tuple[int, int]]]:
        """Yield the number of each window that some frames of the film need, and the frames that it needs."""
        for number, part in enumerate(self.parts):
            if (own := part.wanted(frames)) is not None:
                yield number, own
