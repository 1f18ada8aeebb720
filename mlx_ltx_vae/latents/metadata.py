"""The metadata of latent files: its keys, and how their values are read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..errors import LatentsError
from ..frame_rate import parse_fps
from ..shapes import Grid
from .layouts import CHANNELS_FIRST, format_grid, parse_grid

LAYOUT_KEY = "layout"
_GRID_SIZES = ("latent_num_frames", "latent_height", "latent_width")


@dataclass(frozen=True)
class LatentsMetadata:
    """The metadata of a latent file. A value that the file does not state is None.

    Attributes:
        num_frames, height, width: of the video, or, in data sets of the LTX trainers, of the latent grid.
        grid: (F', H', W').
        normalized: whether the latents are as the diffusion model produces them.
        is_channels_first: whether the file states the layout `(B, C, F', H', W')`, which only this package does.
    """

    fps: Fraction | None = None
    num_frames: int | None = None
    height: int | None = None
    width: int | None = None
    grid: Grid | None = None
    normalized: bool | None = None
    is_channels_first: bool = False

    @property
    def ambiguous_sizes(self) -> Grid | None:
        """Number of frames, height and width, if another program wrote all three: the video's or the latent grid's."""
        if self.is_channels_first or self.num_frames is None or self.height is None or self.width is None:
            return None
        return self.num_frames, self.height, self.width


def parse_metadata(metadata: Mapping[str, str], source: str) -> LatentsMetadata:
    """The values of the known keys. Raises `LatentsError` for one that cannot be parsed, and for two grids."""
    values: dict[str, Any] = {}
    for key in _PARSERS.keys() & metadata.keys():
        parse, expected = _PARSERS[key]
        try:
            values[key] = parse(metadata[key])
        except (KeyError, ValueError):
            found = f"{key} = {metadata[key]!r}, which is not {expected}"
            raise LatentsError(f"{source}: its metadata has {found}.") from None
    frames, rows, columns = (values.pop(key, None) for key in _GRID_SIZES)
    sizes = None if None in (frames, rows, columns) else (frames, rows, columns)
    values["grid"] = merge_grids(values.get("grid"), sizes, source)
    return LatentsMetadata(**values, is_channels_first=metadata.get(LAYOUT_KEY) == CHANNELS_FIRST)


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


_FLAGS = {"true": True, "1": True, "false": False, "0": False}
#: key -> (parser of its value, what the value should be)
_PARSERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "fps": (parse_fps, "a frame rate"),
    **dict.fromkeys(("num_frames", "height", "width", *_GRID_SIZES), (int, "a whole number")),
    "grid": (parse_grid, "a grid such as 16x22x40"),
    "normalized": (lambda text: _FLAGS[text.lower()], "true or false"),
}
METADATA_KEYS = (*_PARSERS, LAYOUT_KEY)
