"""Inputs of a decode to files: latents in memory, the latents of a file with their keyframes, or a film of files."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np

from ..checkpoint import VAESource
from ..errors import LatentsError, warn
from ..latents import LatentsFile, LatentsInfo, open_latents
from ..latents.formats import MappedLatents, open_tensor_file
from ..latents.keyframes import NUMBER_NAMES, STILL_NAMES, Keyframes, KeyframesFile, open_keyframes
from ..latents.metadata import LatentSpace
from ..model_table import models_for
from ..networks.base import Config, Statistics
from ..networks.specs import NetworkSpec
from ..planning.film import DEFAULT_CARRY, FilmPlan
from ..planning.plan import DecodePlan
from ..shapes import Grid, LatentShape, ScaleFactors
from .film import Film, FilmWindow, check_windows, film_item, film_layout, plan_windows
from .sources import Latents, as_latents, check_values

if TYPE_CHECKING:
    from .decode import DecodePipeline


@dataclass(frozen=True)
class LatentReader:
    """Opens the latent files of a VAE, and reads them normalized.

    Attributes:
        tensor, grid, unnormalized: as for `load_latents`.
        keyframes: a file of keyframes. `None` means those in the latent file.
        is_dry_run: whether nothing is decoded, which would warn of keyframes.
    """

    config: Config
    spec: NetworkSpec  # of the decoder
    statistics: Statistics | None
    source: VAESource
    space: LatentSpace
    tensor: str | None = None
    grid: Grid | None = None
    unnormalized: bool | None = None
    keyframes: str | None = None
    is_dry_run: bool = False
    _compared: set[str] = field(default_factory=set)  # files whose latent space has been compared

    def open(self, path: str) -> LatentsFile:
        """Open a latent file, without reading values."""
        scale, channels = self.config.scale, self.config.latent_channels
        file = open_latents(
            path, latent_channels=channels, tensor=self.tensor, grid=self.grid, scale=scale, vae=self.source.title
        )
        self._compare_space(file)
        if self.statistics is None and (self.unnormalized or file.normalized is False):
            raise LatentsError(
                f"{path}: these latents are unnormalized, and {self.source.name} has no statistics to normalize "
                "them; give normalized latents, without --unnormalized."
            )
        return file

    def _compare_space(self, file: LatentsFile) -> None:
        """Warn, once for a file, if its latents belong to another VAE than the one that decodes them."""
        path, space = file.info.source, file.info.space
        if path in self._compared or (problem := self.source.describe_mismatch(space, self.space)) is None:
            return
        self._compared.add(path)
        is_fitting = space.generation in self.source.generations  # and only the statistics differ
        models = [] if is_fitting else models_for(space.generation, self.source.kind)
        name = "the VAE that they were made for" if not models else f"-m {models[0].name}"
        remedy = f"decode them with {name}"
        warn(f"{path}: its latents are {problem}, so the frames will be wrong; {remedy}.")

    def map(self, file: LatentsFile) -> MappedLatents:
        """Return the normalized latents of a file, which are read as they are needed."""
        return file.map(statistics=self.statistics, unnormalized=self.unnormalized)

    def read(self, file: KeyframesFile) -> Keyframes:
        """Read keyframes, normalized."""
        return file.read(statistics=self.statistics, unnormalized=self.unnormalized)

    def count_padding(self, file: LatentsFile) -> int:
        """Return how many frames pad the source of a file. A decoder may make fewer frames than the video has."""
        grid, scale = file.shape.grid, self.config.scale
        frames, video_frames = self.spec.out_grid(grid)[0], scale.video_grid(grid)[0]
        return frames - ceil(Fraction(file.count_source_frames(scale) * frames, video_frames))


def open_without_vae(path: str, *, tensor: str | None = None, grid: Grid | None = None) -> LatentsFile | None:
    """Open a latent file before its VAE is known. Returns `None` if it cannot be read without one.

    Raises a `LatentsError` for what is no latent file.
    """
    open_tensor_file(path)
    with suppress(LatentsError):  # its layout may depend on the VAE
        return open_latents(path, tensor=tensor, grid=grid)
    return None


class DecodeInput(ABC):
    """Input of a decode to files.

    Attributes:
        fps: frames per second, if files state it.
        shape: of the latents, or `None` if they arrive in parts or are a film of arrays.
        is_whole: whether all latents are there, so that the files can be checked before the first frame.
        is_film: whether it is a film, whose windows are crossfaded.
        files: files that are read.
        info: metadata of the file, or of the first file of a film.
    """

    fps: Fraction | None = None
    shape: LatentShape | None = None
    is_whole, is_film = True, False
    files: Sequence[str | os.PathLike] = ()
    info: LatentsInfo | None = None

    @abstractmethod
    def plan(self, pipeline: "DecodePipeline", fps: Fraction) -> DecodePlan | None:
        """Plan the decode of one video of the batch, or return `None` if the latents arrive in parts."""

    @abstractmethod
    def check_values(self, plan: DecodePlan) -> None:
        """Read all latents that are decoded; raise a `LatentsError` for values that are not finite."""

    @abstractmethod
    def open(self) -> Callable[[int], tuple[Any, Keyframes | None]]:
        """Return a function that returns the latents and keyframes of the video with an index."""


class MemoryInput(DecodeInput):
    """Latents in memory: one array, an iterator, a stream, or a film of arrays."""

    def __init__(self, latents: Any, keyframes: Keyframes | None = None) -> None:
        self._latents, self._keyframes = latents, keyframes
        if isinstance(latents, Latents) and len(latents.shape) == 5:
            self.shape = LatentShape(*latents.shape)
        self.is_film = isinstance(latents, Film)
        self.is_whole = self.is_film or isinstance(latents, Latents)

    def plan(self, pipeline: "DecodePipeline", fps: Fraction) -> DecodePlan | None:
        return pipeline.plan(self._video(0))

    def check_values(self, plan: DecodePlan) -> None:
        if isinstance(self._latents, Latents):
            as_latents(self._latents)

    def open(self) -> Callable[[int], tuple[Any, Keyframes | None]]:
        keyframes, is_batch = self._keyframes, self.shape is not None and self.shape.batch > 1
        item = None if keyframes is None or not is_batch else keyframes.item
        return lambda index: (self._video(index), keyframes if item is None else item(index))

    def _video(self, index: int) -> Any:
        """Return one of several videos of a batch, or the latents of a single one."""
        is_batch = self.shape is not None and self.shape.batch > 1
        return self._latents[(slice(index, index + 1),)] if is_batch else self._latents


class ClipInput(DecodeInput):
    """Latents of an open file, and their keyframes."""

    shape: LatentShape

    def __init__(self, reader: LatentReader, file: LatentsFile, keyframes: Keyframes | None = None) -> None:
        """Make the input of an open file. `keyframes` replace those of files."""
        self._reader, self.file = reader, file
        self.shape, self.info, self.fps = self.file.shape, self.file.info, self.file.info.fps
        self._keyframes: Keyframes | KeyframesFile | None = keyframes
        if keyframes is None:
            self._keyframes = find_keyframes(reader, self.file, reader.keyframes)
        self.files = [reader.keyframes] if reader.keyframes else []

    @cached_property
    def _latents(self) -> MappedLatents:
        return self._reader.map(self.file)

    def num_frames(self, out_grid: Callable[[Grid], Grid]) -> int:
        """Return the number of frames of a decode. `out_grid` maps a grid of latents to frames."""
        return out_grid(self.shape.grid)[0]

    def num_padding(self) -> int:
        """Return how many frames of the decode, the last ones, pad the source to whole latent frames."""
        return self._reader.count_padding(self.file)

    def plan(self, pipeline: "DecodePipeline", fps: Fraction) -> DecodePlan:
        numbers = () if self._keyframes is None else tuple(self._keyframes.frames)
        options = replace(pipeline.consumer_options(), keyframes=numbers, holds_latents=False)
        return pipeline.make_plan(self.shape._replace(batch=1), options)

    def check_values(self, plan: DecodePlan) -> None:
        check_values(self._latents, plan.excerpt and plan.excerpt.latents)
        self._latents = replace(self._latents, is_checked=True)
        self._read_keyframes()

    def open(self) -> Callable[[int], tuple[Any, Keyframes | None]]:
        latents, keyframes = self._latents, self._read_keyframes()
        return lambda index: (latents.item(index), None if keyframes is None else keyframes.item(index))

    def _read_keyframes(self) -> Keyframes | None:
        return self._reader.read(self._keyframes) if isinstance(self._keyframes, KeyframesFile) else self._keyframes


class FilmInput(DecodeInput):
    """Film whose windows are files, which are opened one by one."""

    is_film = True
    shape: LatentShape

    def __init__(
        self, reader: LatentReader, paths: Sequence[str], *, fps: Fraction | None, carry: int | None, blend: int | None
    ) -> None:
        self._reader = reader
        self._windows = [_FileWindow(reader, path) for path in paths]
        infos, scale = [window.info for window in self._windows], reader.config.scale
        self.fps, self._carry = agree_on_film(infos, fps, carry, scale)
        self.info, self.shape, self.files = infos[0], self._windows[0].shape, paths
        self._film = Film(self._windows, carry=self._carry, blend=blend)
        self._layout = film_layout(self._film, scale, reader.spec, None)

    @property
    def openers(self) -> list[Callable[[], LatentsFile]]:
        """Functions that open the files of the windows."""
        return [window.open for window in self._windows]

    @property
    def ends(self) -> list[int]:
        """Number of frames of the film up to the end of each window."""
        return [part.frames.end for part in self._layout.parts]

    def num_frames(self, out_grid: Callable[[Grid], Grid]) -> int:
        """Return the number of frames of a decode. `out_grid` maps a grid of latents to frames."""
        shared = 0
        if self._carry:
            shared = out_grid((self._reader.config.scale.covering_latent_grid((self._carry, 1, 1))[0], 1, 1))[0]
        return sum(out_grid(window.shape.grid)[0] - shared for window in self._windows) + shared

    def num_padding(self) -> int:
        """Return how many frames of the decode, the last ones, pad the source to whole latent frames."""
        return self._reader.count_padding(self._windows[-1].open())

    def plan(self, pipeline: "DecodePipeline", fps: Fraction) -> FilmPlan:
        film, reader, options = film_item(self._film, 0), self._reader, pipeline.consumer_options()
        return replace(plan_windows(film, reader.config.scale, reader.spec, pipeline.make_plan, options), fps=fps)

    def check_values(self, plan: DecodePlan) -> None:
        assert isinstance(plan, FilmPlan)
        check_windows(self._film, self._layout, self._reader.spec, plan.film_frames)

    def open(self) -> Callable[[int], tuple[Any, Keyframes | None]]:
        return lambda index: (film_item(self._film, index), None)  # its windows have the keyframes


class _FileWindow(FilmWindow):
    """Window of a film, whose file is closed: a video of the batch in it, or all of them."""

    def __init__(self, reader: LatentReader, path: str) -> None:
        self._reader, self.name = reader, path
        file = reader.open(path)
        keyframes = find_keyframes(reader, file)
        self.shape, self.keyframe_numbers = file.shape, () if keyframes is None else keyframes.frames
        self.info, self._state = file.info, file.file.state

    def open(self) -> LatentsFile:
        """Open the file again. Raises a `LatentsError` if it is not the file that was planned."""
        file = self._reader.open(self.name)
        file.file.check_state(self._state)
        return file

    def read(self, *, is_decoded: bool = True) -> FilmWindow:
        items = slice(None) if self.index is None else slice(self.index, self.index + 1)
        latents: Latents = np.broadcast_to(np.float32(0), self.shape)  # of a window that has only a length
        if is_decoded:
            latents = self._reader.map(self.open())[(items,)]
        return FilmWindow(latents, self._read_keyframes(), self.name)

    def check(self, spec: NetworkSpec, *, is_decoded: bool) -> None:
        if self.index is not None:
            return  # the whole batch has been checked
        if is_decoded:
            check_values(self._reader.map(self.open()))
        self._read_keyframes()

    def _read_keyframes(self) -> Keyframes | None:
        if not self.keyframe_numbers:
            return None
        file = find_keyframes(self._reader, self.open(), warns=False)
        assert file is not None
        keyframes = self._reader.read(file)
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
    reader: LatentReader, clip: LatentsFile, path: str | None = None, *, warns: bool = True
) -> KeyframesFile | None:
    """Return the keyframes in the file `path`, or without it in the latent file, or `None` if there are none.

    Warns if the decoder takes none, or does not tag them. The second warning is for dry runs, since a decode warns
    itself. Raises a `LatentsError` for invalid keyframes.
    """
    source, decoder = path or clip.info.source, reader.spec
    if path is None and not clip.has_keyframes:
        return None
    if warns and decoder.keyframe_warning and (reader.is_dry_run or decoder.variant is None):
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
