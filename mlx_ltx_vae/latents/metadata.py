"""The metadata of latent files: its keys, and how their values are read and written."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from ..errors import LatentsError, WriterError
from ..frame_rate import parse_fps
from ..shapes import Grid
from .layouts import CHANNELS_FIRST, format_grid, parse_grid

_LAYOUT_KEY = "layout"
_VIDEO_SIZES = ("num_frames", "height", "width")
_GRID_SIZES = ("latent_num_frames", "latent_height", "latent_width")


@dataclass(frozen=True)
class LatentsMetadata:
    """The metadata of a latent file. A value that the file does not state is None.

    Attributes:
        fps: frames per second.
        num_frames, height, width: of the video, or, in data sets of the LTX trainers, of the latent grid.
        grid: (F', H', W').
        normalized: whether the latents are as the diffusion model produces them.
        is_channels_first: whether the file states the layout `(B, C, F', H', W')`, which only this package does.
    """

    fps: Fraction | None
    num_frames: int | None
    height: int | None
    width: int | None
    grid: Grid | None
    normalized: bool | None
    is_channels_first: bool

    @property
    def ambiguous_sizes(self) -> Grid | None:
        """Number of frames, height and width, if another program wrote all three: the video's or the latent grid's."""
        if self.is_channels_first or self.num_frames is None or self.height is None or self.width is None:
            return None
        return self.num_frames, self.height, self.width


def parse_metadata(metadata: Mapping[str, str], source: str) -> LatentsMetadata:
    """The values of the known keys; other keys are ignored.

    Raises:
        LatentsError: for a value that cannot be parsed, and for two different grids.
    """
    values: dict[str, Any] = {}
    for key in _PARSERS.keys() & metadata.keys():
        parse, expected = _PARSERS[key]
        try:
            values[key] = parse(metadata[key])
        except ValueError:
            raise LatentsError(
                f"{source}: its metadata has {key} = {metadata[key]!r}, which is not {expected}."
            ) from None
    grid_sizes: Grid | None = None
    if values.keys() >= set(_GRID_SIZES):
        frames, rows, columns = (values[key] for key in _GRID_SIZES)
        grid_sizes = frames, rows, columns
    return LatentsMetadata(
        fps=values.get("fps"),
        num_frames=values.get("num_frames"),
        height=values.get("height"),
        width=values.get("width"),
        grid=merge_grids(values.get("grid"), grid_sizes, source),
        normalized=values.get("normalized"),
        is_channels_first=metadata.get(_LAYOUT_KEY) == CHANNELS_FIRST,
    )


def make_metadata(
    target: Path,
    *,
    fps: str | float | Fraction | None,
    num_frames: int | None,
    height: int | None,
    width: int | None,
) -> dict[str, str]:
    """The metadata of a file of normalized latents `(B, C, F', H', W')`; None is left out.

    Raises:
        WriterError: for an invalid frame rate, naming the target.
    """
    try:
        exact_fps = None if fps is None else parse_fps(fps)
    except ValueError as error:
        raise WriterError(f"{target}: {error}") from error
    known = {"fps": exact_fps, "num_frames": num_frames, "height": height, "width": width}
    metadata = {key: str(value) for key, value in known.items() if value is not None}
    return metadata | {"normalized": "true", _LAYOUT_KEY: CHANNELS_FIRST}


def merge_grids(first: Grid | None, second: Grid | None, source: str) -> Grid | None:
    """The grid that is not None.

    Raises:
        LatentsError: if both are given and differ.
    """
    if first is None or second is None:
        return second if first is None else first
    if tuple(first) != tuple(second):
        raise LatentsError(
            f"{source}: the latent grid is given as {format_grid(first)} and as {format_grid(second)} (in the "
            "metadata, grid= or --grid); give one."
        )
    return first


def _parse_flag(text: str) -> bool:
    flags = {"true": True, "1": True, "false": False, "0": False}
    if text.lower() not in flags:
        raise ValueError(text)
    return flags[text.lower()]


#: key -> (parser of its value, what the value should be)
_PARSERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "fps": (parse_fps, "a frame rate"),
    **dict.fromkeys((*_VIDEO_SIZES, *_GRID_SIZES), (int, "a whole number")),
    "grid": (parse_grid, "a grid such as 16x22x40"),
    "normalized": (_parse_flag, "true or false"),
}

#: Every key that is read.
METADATA_KEYS = (*_PARSERS, _LAYOUT_KEY)
