"""The metadata of latent files: its keys, and how their values are read."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..errors import LatentsError, quote
from ..frame_rate import parse_fps
from ..shapes import DEFAULT_SCALE, Grid, ScaleFactors
from .layouts import CHANNELS_FIRST, format_grid, parse_grid

LAYOUT_KEY = "layout"
Sizes = tuple[int | None, int | None, int | None]

_SIZES = ("num_frames", "height", "width")
_GRID_SIZES = ("latent_num_frames", "latent_height", "latent_width")


@dataclass(frozen=True)
class LatentsMetadata:
    """What a latent file states; None for what it does not."""

    sizes: Sizes  # of the video: frames, height, width; or, in data sets of the LTX trainers, of the latent grid
    latent_sizes: Sizes = (None, None, None)  # F', H' and W'
    fps: Fraction | None = None
    grid: Grid | None = None
    normalized: bool | None = None
    is_channels_first: bool = False  # states the layout (B, C, F', H', W'), which only this package does


def check_sizes(metadata: LatentsMetadata, grid: Grid, scale: ScaleFactors | None, source: str) -> None:
    """Raise a `LatentsError` unless the stated sizes are those of latents (F', H', W'), or of their video.

    With `scale` None, any whole numbers of pixels and frames per latent cell are possible.
    """
    video = (scale or DEFAULT_SCALE).video_grid(grid)
    is_video = _fits(metadata.sizes, video) if scale else _can_be_video(metadata.sizes, grid)
    if not is_video and not _fits(metadata.sizes, grid):
        raise LatentsError(
            f"{source}: its metadata states {_describe(metadata.sizes)}, but the latents have {_describe(grid)} and "
            f"their video {_describe(video)}{'' if scale else ' at the usual scale'}; correct the metadata."
        )
    if not _fits(metadata.latent_sizes, grid):
        raise LatentsError(
            f"{source}: its metadata states latents with {_describe(metadata.latent_sizes)}, but they have "
            f"{_describe(grid)}; correct the metadata."
        )


def states_grid(metadata: LatentsMetadata, grid: Grid) -> bool:
    """Whether the stated sizes are those of the latents. A video is larger, unless only its one frame is stated."""
    is_video = _fits(metadata.sizes, DEFAULT_SCALE.video_grid(grid))
    return not metadata.is_channels_first and not is_video and _fits(metadata.sizes, grid)


def if_complete(sizes: Sizes) -> Grid | None:
    """The sizes if all three are stated."""
    frames, height, width = sizes
    return None if frames is None or height is None or width is None else (frames, height, width)


def _fits(sizes: Sizes, grid: Grid) -> bool:
    return all(size in (None, length) for size, length in zip(sizes, grid, strict=True))


def _can_be_video(sizes: Sizes, grid: Grid) -> bool:
    frames, height, width = (length if size is None else size for size, length in zip(sizes, grid, strict=True))
    pairs = (frames - 1, grid[0] - 1), (height, grid[1]), (width, grid[2])
    return all(size == length or (size > length > 0 and size % length == 0) for size, length in pairs)


def _describe(sizes: Sizes) -> str:
    return ", ".join(f"{name} {size}" for name, size in zip(_SIZES, sizes, strict=True) if size is not None)


def parse_metadata(metadata: Mapping[str, str], source: str) -> LatentsMetadata:
    """The values of the known keys. Raises a `LatentsError` for one that cannot be parsed, and for two grids."""
    values: dict[str, Any] = {}
    for key in _PARSERS.keys() & metadata.keys():
        parse, expected = _PARSERS[key]
        try:
            values[key] = parse(metadata[key])
        except (KeyError, ValueError):
            found = f"{key} = {quote(metadata[key][:80])}, which is not {expected}"
            raise LatentsError(f"{source}: its metadata has {found}.") from None
    sizes, latent_sizes = (tuple(values.pop(key, None) for key in keys) for keys in (_SIZES, _GRID_SIZES))
    values["grid"] = merge_grids(values.get("grid"), if_complete(latent_sizes), source)
    is_channels_first = metadata.get(LAYOUT_KEY) == CHANNELS_FIRST
    return LatentsMetadata(sizes, latent_sizes, is_channels_first=is_channels_first, **values)


def merge_grids(first: Grid | None, second: Grid | None, source: str) -> Grid | None:
    """The grid that is not None. Raises `LatentsError` if both are given and differ."""
    if first is None or second is None:
        return second if first is None else first
    if tuple(first) != tuple(second):
        raise LatentsError(
            f"{source}: the latent grid is given as {format_grid(first)} and as {format_grid(second)} (in the "
            "metadata, grid= or --grid); give one."
        )
    return first


def _parse_size(text: str) -> int:
    if not _SIZE.fullmatch(text):
        raise ValueError
    return int(text)


_SIZE = re.compile(r"0*[1-9][0-9]{0,8}")
_FLAGS = {"true": True, "1": True, "false": False, "0": False}
# The parser of each key's value, and what the value should be.
_PARSERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "fps": (parse_fps, "a frame rate"),
    **dict.fromkeys((*_SIZES, *_GRID_SIZES), (_parse_size, "a whole number above 0")),
    "grid": (parse_grid, "a grid such as 16x22x40"),
    "normalized": (lambda text: _FLAGS[text.lower()], "true or false"),
}
METADATA_KEYS = (*_PARSERS, LAYOUT_KEY)
