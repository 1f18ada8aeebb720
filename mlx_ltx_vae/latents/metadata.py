"""Metadata of latent files, and the layouts in which programs store latents, read as `(B, C, F', H', W')`.

In the order in which they are tried, with `N = F' * H' * W'` packed tokens:

- `(B, C, F', H', W')`: this package, ComfyUI, the MLX ports, diffusers' unpacked latents.
- `(B, F', H', W', C)`: latents of an MLX network, saved without a transpose.
- both without `B`: data sets of the LTX trainers, one file per clip.
- `(B, N, C)` and `(N, C)`: transformer input, tokens in the order `F'`, `H'`, `W'`: diffusers' LTX-Video pipelines
  with `output_type="latent"`, and data sets of the first LTX trainer.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from ..errors import LatentsError, excerpt, option, quote
from ..model_table import latents_of
from ..shapes import DEFAULT_SCALE, Grid, LatentShape, ScaleFactors, parse_grid
from ..units import parse_fps

AXES_KEY, CHANNELS_FIRST = "layout", "BCFHW"  # the layout of this package: one letter per axis
#: Names of audio latents in files that also have video latents, the final ones first. The last is the second part of a
#: nested tensor of ComfyUI, whose first part is the video.
AUDIO_NAMES = (
    "audio_latents",
    "audio_latent",
    "final_audio_latent",
    "stage_2_audio_latent",
    "stage_1_audio_latent",
    "audio_samples",
    "audio",
    "latent_tensor_1",
)
#: Name of the number of audio latents without padding, in data sets of musubi-tuner.
AUDIO_LENGTHS = "audio_lengths_int32"
#: In the metadata of files of musubi-tuner.
MUSUBI_ARCHITECTURE = "ltx2_v1"
# Also of musubi-tuner: latents_13x16x24_bfloat16, and audio_latents_126x16x8_bfloat16.
_SIZED_VIDEO_NAME = re.compile(r"latents_\d+x\d+x\d+_\w+")
_SIZED_AUDIO_NAME = re.compile(r"audio_latents_\d+x\d+x\d+_\w+")
#: Largest number of frames, pixels or latent cells in metadata.
MAX_SIZE = 10**9 - 1
_LAYOUTS = {5: (CHANNELS_FIRST, "BFHWC"), 4: ("CFHW", "FHWC"), 3: ("BNC",), 2: ("NC",)}  # by the number of axes
_AXIS_NAMES = {"F": "F'", "H": "H'", "W": "W'", "N": "tokens"}
Sizes = tuple[int | None, int | None, int | None]

_SIZES = ("num_frames", "height", "width")
_GRID_SIZES = ("latent_num_frames", "latent_height", "latent_width")


class LatentSpace(NamedTuple):
    """VAE that latents belong to, as their file states it. A value is `None` if it is not known.

    `generation` is "LTX-2.3" and the like; `fingerprint` is that of the statistics of the VAE (see `Statistics`).
    """

    generation: str | None = None
    fingerprint: str | None = None

    @property
    def key(self) -> frozenset[str | None]:
        """Key that is equal for generations with the same latents, or for the same fingerprint without a generation."""
        return frozenset(latents_of(self.generation) if self.generation else [self.fingerprint])

    @property
    def entries(self) -> dict[str, str]:
        """Metadata of a latent file."""
        return {key: value for key, value in zip(_SPACE_KEYS, self, strict=True) if value is not None}


#: Name of the VAE in errors.
DEFAULT_VAE_NAME = "the VAE"

_SPACE_KEYS = ("generation", "vae_fingerprint")


@dataclass(frozen=True)
class LatentsMetadata:
    """Values in the metadata of a latent file. A value is `None` if the file does not state it."""

    sizes: Sizes  # of the video: frames, height, width; or, in data sets of the LTX trainers, of the latent grid
    latent_sizes: Sizes = (None, None, None)  # F', H' and W'
    fps: Fraction | None = None
    grid: Grid | None = None
    normalized: bool | None = None
    source_frames: int | None = None  # of the video that was encoded, before it was padded or cut to `sizes`
    carry: int | None = None  # frames that a window of a film shares with the next one
    space: LatentSpace = LatentSpace()
    is_channels_first: bool = False  # the file states the layout (B, C, F', H', W'), which only this package writes


@dataclass(frozen=True)
class Layout:
    """Axes of a stored tensor and their sizes. `str(layout)` names the axes: "(B, tokens, C)"."""

    sizes: dict[str, int]  # of the stored axes, a letter each: B, C, F, H, W, or N for packed tokens
    packed_grid: Grid | None = None  # (F', H', W') of packed tokens, once it is known

    def __str__(self) -> str:
        return f"({', '.join(_AXIS_NAMES.get(axis, axis) for axis in self.sizes)})"

    @property
    def shape(self) -> LatentShape:
        grid = self.packed_grid or (self.sizes["F"], self.sizes["H"], self.sizes["W"])
        return LatentShape(self.sizes.get("B", 1), self.sizes["C"], *grid)

    def has_grid(self, grid: Grid) -> bool:
        if "N" in self.sizes:
            return self.sizes["N"] == math.prod(grid)
        return (self.sizes["F"], self.sizes["H"], self.sizes["W"]) == tuple(grid)

    def to_channels_first(self, values: np.ndarray) -> np.ndarray:
        """Return a stored array as a view (B, C, F', H', W')."""
        axes = "B" + "".join(self.sizes).removeprefix("B").replace("N", "FHW")
        sizes = dict(zip(CHANNELS_FIRST, self.shape, strict=True))
        return values.reshape([sizes[axis] for axis in axes]).transpose([axes.index(axis) for axis in CHANNELS_FIRST])


def is_audio_name(name: str) -> bool:
    """Return whether a tensor with this name belongs to the audio of a video."""
    return name in (*AUDIO_NAMES, AUDIO_LENGTHS) or _SIZED_AUDIO_NAME.fullmatch(name) is not None


def is_sized_video_name(name: str) -> bool:
    """Return whether musubi-tuner gives this name, with sizes and dtype, to the latents of a video."""
    return _SIZED_VIDEO_NAME.fullmatch(name) is not None


def _format_grid(grid: Grid) -> str:
    return "x".join(map(str, grid))


def find_layout(
    shape: tuple[int, ...],
    metadata: LatentsMetadata,
    source: str,
    *,
    latent_channels: int | None,
    grid: Grid | None,
    vae: str = DEFAULT_VAE_NAME,
) -> Layout:
    """Find the only layout that fits a stored shape. Without `latent_channels`, unpacked latents are channels-first."""
    grid = _merge_grids(grid, metadata.grid, source)
    sizes = None if None in metadata.sizes else cast(Grid, metadata.sizes)
    if metadata.is_channels_first:
        latent_channels = sizes = None
    layouts = [Layout(dict(zip(axes, shape, strict=True))) for axes in _LAYOUTS.get(len(shape), ())]
    if not layouts:
        raise LatentsError(f"{source}: latents {excerpt(shape)} fit no known layout; save them as (B, C, F', H', W').")
    if latent_channels is None:
        layouts = layouts[:1]
    if grid is None and sizes is not None and any(layout.has_grid(sizes) for layout in layouts):
        grid = sizes  # a video is always larger than its latent grid
    if grid is not None:
        layouts = _layouts_with_grid(layouts, grid, source)
    fitting = [layout for layout in layouts if layout.sizes["C"] == latent_channels] or layouts[:1]
    if len(fitting) > 1:
        by_grid = f"give their grid ({option('grid=', '--grid FxHxW')}), or " if grid is None else ""
        raise LatentsError(
            f"{source}: latents {shape} could be {' or '.join(map(str, fitting))}, as both axes have "
            f"{latent_channels}; {by_grid}write them with save_latents, which stores the layout."
        )
    layout = fitting[0]
    if "N" not in layout.sizes:
        return layout
    channels = layout.sizes["C"]
    if latent_channels not in (None, channels):
        raise LatentsError(
            f"{source}: latents {shape}, read as packed {layout}, have {channels} channels where {vae} has "
            f"{latent_channels}."
        )
    if grid is None:
        way = option("grid=(F', H', W')", "--grid FxHxW")
        raise LatentsError(
            f"{source}: latents {shape} are packed, {layout}, and the file does not state their grid; give it as {way}."
        )
    return replace(layout, packed_grid=grid)


def _layouts_with_grid(layouts: list[Layout], grid: Grid, source: str) -> list[Layout]:
    if len(grid) != 3 or min(grid) < 1:
        raise LatentsError(f"{source}: a latent grid is (F', H', W'), three numbers above 0, not {grid}.")
    fitting = [layout for layout in layouts if layout.has_grid(grid)]
    if not fitting:
        tokens = f", {math.prod(grid)} tokens" if "N" in layouts[0].sizes else ""
        raise LatentsError(
            f"{source}: latents {tuple(layouts[0].sizes.values())}, read as {' or '.join(map(str, layouts))}, do not "
            f"have the grid {_format_grid(grid)}{tokens}; correct it ({option('grid=', '--grid FxHxW')})."
        )
    return fitting


def find_video_sizes(
    metadata: LatentsMetadata, grid: Grid, scale: ScaleFactors | None, source: str
) -> tuple[Sizes, int]:
    """Return the sizes of the video in the metadata, and the number of latent frames without padding at the end.

    Raises a `LatentsError` unless the sizes of video and latents in the metadata fit the grid (F', H', W'). Without a
    scale, any whole numbers of pixels and frames per latent cell fit, unless height and width fit the usual scale.
    """
    factors, (num_frames, *size) = scale or DEFAULT_SCALE, metadata.sizes
    video = factors.video_grid(grid)
    has_scale = scale is not None or tuple(size) == video[1:]
    is_video = _fits(metadata.sizes, video) if has_scale else _can_be_video(metadata.sizes, grid)
    if not is_video and not _fits(metadata.sizes, grid):
        frames = 1 if num_frames is None else factors.covering_latent_grid((num_frames, 1, 1))[0]
        if 1 < frames < grid[0] and _fits(metadata.sizes, factors.video_grid((frames, *grid[1:]))):
            return metadata.sizes, frames
        raise LatentsError(
            f"{source}: its metadata states {_describe(metadata.sizes)}, but the latents have {_describe(grid)} and "
            f"their video {_describe(video)}{'' if scale else ' at the usual scale'}; correct the metadata."
        )
    if not _fits(metadata.latent_sizes, grid):
        raise LatentsError(
            f"{source}: its metadata states latents with {_describe(metadata.latent_sizes)}, but they have "
            f"{_describe(grid)}; correct the metadata."
        )
    # A video is larger than its latents, unless it has one frame, and only this number is in the metadata.
    is_usual = _fits(metadata.sizes, DEFAULT_SCALE.video_grid(grid))
    is_grid = not metadata.is_channels_first and not is_usual and _fits(metadata.sizes, grid)
    return (None, None, None) if is_grid else metadata.sizes, grid[0]


def _fits(sizes: Sizes, grid: Grid) -> bool:
    return all(size in (None, length) for size, length in zip(sizes, grid, strict=True))


def _can_be_video(sizes: Sizes, grid: Grid) -> bool:
    frames, height, width = (length if size is None else size for size, length in zip(sizes, grid, strict=True))
    pairs = (frames - 1, grid[0] - 1), (height, grid[1]), (width, grid[2])
    return all(size == length or (size > length > 0 and size % length == 0) for size, length in pairs)


def _describe(sizes: Sizes) -> str:
    return ", ".join(f"{name} {size}" for name, size in zip(_SIZES, sizes, strict=True) if size is not None)


def parse_metadata(metadata: Mapping[str, str], source: str) -> LatentsMetadata:
    """Parse the values of the keys in `_PARSERS`; raise a `LatentsError` for an invalid value, and for two grids."""
    metadata = _translate(metadata)
    values: dict[str, Any] = dict.fromkeys(_PARSERS)
    for key in _PARSERS.keys() & metadata.keys():
        parse, expected = _PARSERS[key]
        try:
            values[key] = parse(metadata[key])
        except (KeyError, ValueError):
            entry = f"{key} = {quote(metadata[key][:80])}"
            raise LatentsError(f"{source}: its metadata has {entry}, which is not {expected}.") from None
    sizes, latent_sizes = (tuple(values[key] for key in keys) for keys in (_SIZES, _GRID_SIZES))
    latent_grid = None if None in latent_sizes else latent_sizes
    return LatentsMetadata(
        sizes,
        latent_sizes,
        fps=values["fps"],
        grid=_merge_grids(values["grid"], latent_grid, source),
        normalized=values["normalized"],
        source_frames=values["source_frames"],
        carry=values["carry"],
        space=LatentSpace(*(values[key] for key in _SPACE_KEYS)),
        is_channels_first=metadata.get(AXES_KEY) == CHANNELS_FIRST,
    )


def _translate(metadata: Mapping[str, str]) -> Mapping[str, str]:
    """Return metadata of musubi-tuner, whose size is that of the source, in the keys of this package."""
    if metadata.get("architecture") != MUSUBI_ARCHITECTURE:
        return metadata
    names = {"frame_count": "source_frames", "target_fps": "fps"}
    kept = {key: value for key, value in metadata.items() if key not in ("width", "height")}
    return kept | {key: metadata[name] for name, key in names.items() if name in metadata}


def _merge_grids(first: Grid | None, second: Grid | None, source: str) -> Grid | None:
    """Return the grid that is not `None`; raise a `LatentsError` if there are two that differ."""
    if first is None or second is None:
        return second if first is None else first
    if tuple(first) != tuple(second):
        raise LatentsError(
            f"{source}: the latent grid is given as {_format_grid(first)} and as {_format_grid(second)}, by the "
            f"metadata or {option('grid=', '--grid')}; give one."
        )
    return first


def _parse_size(text: str) -> int:
    if not _SIZE.fullmatch(text):
        raise ValueError
    return int(text)


def _parse_count(text: str) -> int:
    return 0 if re.fullmatch("0+", text) else _parse_size(text)


def _match(pattern: str, text: str) -> str | None:
    """Return a text, or `None` for one of another program."""
    return text if re.fullmatch(pattern, text) else None


_SIZE = re.compile(r"0*[1-9][0-9]{0,8}")
_DIGITS = "a whole number, in digits alone,"
_FLAGS = {"true": True, "1": True, "false": False, "0": False}
# For each key, the parser of its value, and the expected value in error messages.
_PARSERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "fps": (parse_fps, "a frame rate"),
    **dict.fromkeys((*_SIZES, *_GRID_SIZES, "source_frames"), (_parse_size, f"{_DIGITS} from 1 to {MAX_SIZE}")),
    "grid": (parse_grid, "a grid such as 16x22x40"),
    "carry": (_parse_count, f"{_DIGITS} from 0 to {MAX_SIZE}"),
    "normalized": (lambda text: _FLAGS[text.lower()], "true or false"),
    "generation": (partial(_match, r"LTX[\w .-]{1,40}"), "a text"),
    "vae_fingerprint": (partial(_match, "[0-9a-f]{16}"), "a text"),
}
METADATA_KEYS = (*_PARSERS, AXES_KEY)
