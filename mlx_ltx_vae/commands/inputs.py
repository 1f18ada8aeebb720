"""Inputs of `decode`: the latents of a file with their keyframes, or a film whose windows are files."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np

from ..errors import LatentsError, warn
from ..latents import LatentsFile, LatentsInfo
from ..latents.keyframes import NUMBER_NAMES, STILL_NAMES, Keyframes, KeyframesFile, open_keyframes
from ..models.specs import NetworkSpec
from ..options import PlanOptions
from ..pipeline.film import Film, FilmWindow
from ..pipeline.sources import Latents, check_values
from ..planning.film import DEFAULT_CARRY, FilmPlan
from ..planning.plan import DecodePlan
from ..shapes import Grid, ScaleFactors

if TYPE_CHECKING:
    from .decode_command import DecodeJob


class ClipInput:
    """Latents of an open file, and their keyframes."""

    def __init__(self, job: "DecodeJob", path: str) -> None:
        self._job, self.file = job, job.open_latents(path)
        self.shape, self.info, self.fps = self.file.shape, self.file.info, self.file.info.fps
        self._keyframes = find_keyframes(job.settings.keyframes, self.file, job.spec, is_dry_run=job.arguments.dry_run)

    def num_frames(self, out_grid: Callable[[Grid], Grid]) -> int:
        """Return the number of frames of a decode. `out_grid` maps a grid of latents to frames."""
        return out_grid(self.shape.grid)[0]

    def plan(self, options: PlanOptions, fps: Fraction) -> DecodePlan:
        """Plan the decode of one video of the batch, with this frame rate."""
        numbers = () if self._keyframes is None else self._keyframes.frames
        options = replace(options, keyframes=numbers, holds_latents=False)
        return self._job.make_plan(self.shape._replace(batch=1), options)

    def check_values(self, plan: DecodePlan) -> None:
        """Read all latents that are decoded; raise a `LatentsError` for values that are not finite."""
        check_values(self._job.map(self.file), plan.excerpt and plan.excerpt.latents)
        if self._keyframes is not None:
            self._job.read(self._keyframes)

    def open(self) -> Callable[[int], tuple[Latents | Film, Keyframes | None]]:
        """Return a function that returns the latents and keyframes of the video with an index."""
        latents = self._job.map(self.file)
        keyframes = None if self._keyframes is None else self._job.read(self._keyframes)
        return lambda index: (latents.item(index), None if keyframes is None else keyframes.item(index))


class FilmInput:
    """Film whose windows are files, which are opened one by one."""

    def __init__(self, job: "DecodeJob", paths: Sequence[str]) -> None:
        self._job = job
        self._windows = [_FileWindow(job, path) for path in paths]
        infos, scale = [window.info for window in self._windows], job.checkpoint.config.scale
        self.fps, self._carry = agree_on_film(infos, job.arguments.fps, job.arguments.carry, scale)
        self.info, self.shape = infos[0], self._windows[0].shape
        self._film = Film(self._windows, carry=self._carry, blend=job.arguments.blend)
        self._layout = self._film.layout(scale, job.spec, None)

    @property
    def openers(self) -> list[Callable[[], LatentsFile]]:
        """Functions that open the files of the windows."""
        return [window.open for window in self._windows]

    @property
    def ends(self) -> list[int]:
        """Number of frames of the film up to the end of each window."""
        return [part.frames.end for part in self._layout.parts]

    def num_frames(self, out_grid: Callable[[Grid], Grid]) -> int:
        """Return the number of frames of the film. `out_grid` maps a grid of latents to frames."""
        shared = 0
        if self._carry:
            shared = out_grid((self._job.checkpoint.config.scale.covering_latent_grid((self._carry, 1, 1))[0], 1, 1))[0]
        return sum(out_grid(window.shape.grid)[0] - shared for window in self._windows) + shared

    def plan(self, options: PlanOptions, fps: Fraction) -> FilmPlan:
        """Plan the decode of one film of the batch, with this frame rate."""
        film, scale = self._film.item(0), self._job.checkpoint.config.scale
        return replace(film.plan(scale, self._job.spec, self._job.make_plan, options), fps=fps)

    def check_values(self, plan: DecodePlan) -> None:
        """Read all latents that are decoded; raise a `LatentsError` for values that are not finite."""
        assert isinstance(plan, FilmPlan)
        self._film.check_values(self._layout, self._job.spec, plan.film_frames)

    def open(self) -> Callable[[int], tuple[Latents | Film, Keyframes | None]]:
        """Return a function that returns the film with an index. Its windows have the keyframes."""
        if (statistics := self._job.statistics) is not None:
            mx.eval(*statistics)  # another thread uses them
        return lambda index: (self._film.item(index), None)


class _FileWindow(FilmWindow):
    """Window of a film, whose file is closed: a video of the batch in it, or all of them."""

    def __init__(self, job: "DecodeJob", path: str) -> None:
        self._job, self.name = job, path
        file = job.open_latents(path)
        keyframes = find_keyframes(None, file, job.spec, is_dry_run=job.arguments.dry_run)
        self.shape, self.keyframe_numbers = file.shape, () if keyframes is None else keyframes.frames
        self.info, self._state = file.info, file.file.state

    def open(self) -> LatentsFile:
        """Open the file again. Raises a `LatentsError` if it is not the file that was planned."""
        file = self._job.open_latents(self.name)
        file.file.check_state(self._state)
        return file

    def read(self, *, is_decoded: bool = True) -> FilmWindow:
        items = slice(None) if self.index is None else slice(self.index, self.index + 1)
        latents: Latents = np.broadcast_to(np.float32(0), self.shape)  # of a window that has only a length
        if is_decoded:
            latents = self._job.map(self.open())[(items,)]
        keyframes = self._read_keyframes()
        return FilmWindow(latents, keyframes, self.name)

    def check(self, spec: NetworkSpec, *, is_decoded: bool) -> None:
        if self.index is not None:
            return  # the whole batch has been checked
        if is_decoded:
            check_values(self._job.map(self.open()))
        self._read_keyframes()

    def _read_keyframes(self) -> Keyframes | None:
        if not self.keyframe_numbers:
            return None
        file = find_keyframes(None, self.open(), self._job.spec, is_dry_run=False)
        if file is None:
            return None
        keyframes = self._job.read(file)
        keyframes = keyframes if self.index is None else keyframes.item(self.index)
        mx.eval(keyframes.latents)  # another thread uses them
        return keyframes


def agree_on_film(
    windows: Sequence[LatentsInfo], fps: Fraction | None, carry: int | None, scale: ScaleFactors
) -> tuple[Fraction | None, int]:
    """Return the frame rate and the carry of a film.

    Where `fps` or `carry` is `None`, the windows state it; a `LatentsError` is raised if they differ, or if they state
    another carry.
    """
    rates: dict[Fraction | None, str] = {}
    carries: dict[int, str] = {}
    for info in windows:
        rates.setdefault(info.fps, info.source)
        if info.carry is not None:
            carries.setdefault(info.carry, info.source)
    if len(rates) > 1 and fps is None:
        (rate, path), (other_rate, name), *_ = rates.items()
        raise LatentsError(
            f"{name}: states {other_rate or 'no'} frames per second, and {path} {rate or 'none'}; add --fps."
        )
    for file_carry, path in carries.items():
        if carry not in (None, file_carry):
            problem = f"states a carry of {file_carry} frames, and --carry {carry} contradicts it; leave out --carry"
            raise LatentsError(f"{path}: {problem}.")
    if not carries:
        return fps or windows[0].fps, DEFAULT_CARRY if carry is None else carry
    (carry, path), *other_carries = carries.items()
    if other_carries:
        other_carry, name = other_carries[0]
        raise LatentsError(f"{name}: states a carry of {other_carry} frames, and {path} of {carry}; correct one.")
    if rule := scale.carry_rule(carry):
        raise LatentsError(f"{path}: states a carry of {carry}, and windows share {rule}; correct it.")
    return fps or windows[0].fps, carry


def find_keyframes(
    path: str | None, clip: LatentsFile, decoder: NetworkSpec, *, is_dry_run: bool
) -> KeyframesFile | None:
    """Return the keyframes in the file `path`, or without it in the latent file, or `None` if there are none.

    Warns if the decoder takes none, or does not tag them. The second warning is for dry runs, since a decode warns
    itself. Raises a `LatentsError` for invalid keyframes.
    """
    source = path or clip.info.source
    if path is None and not clip.has_keyframes:
        return None
    if decoder.keyframe_warning and (is_dry_run or decoder.variant is None):
        warn(f"{source}: {decoder.keyframe_warning}")
    if decoder.variant is None:
        return None
    if path is None:
        return clip.find_keyframes()
    file = open_keyframes(path, clip.info.num_frames)
    if file is None:
        names = f"{STILL_NAMES[0]} and {NUMBER_NAMES[0]}"
        raise LatentsError(f"{path}: has no keyframes in the video; name a file with the tensors {names}.")
    file.check(clip.shape)
    if clip.has_keyframes:
        warn(f"{clip.info.source}: its keyframes are not used, since --keyframes names others.")
    return file
