"""What latent files say of themselves in words: the keys, and how to read and write their values."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..errors import LatentsError, WriterError
from ..frame_rate import parse_fps
from .layouts import Grid, parse_grid, show_grid

#: Under "layout": the axes are in this package's order, whatever their lengths suggest.
LAYOUT = "BCFHW"
_VIDEO_SIZES = ("num_frames", "height", "width")
_GRID_SIZES = ("latent_num_frames", "latent_height", "latent_width")


@dataclass(frozen=True)
class LatentsMetadata:
    """The metadata of a latent file. What it does not say is None.

    Attributes:
        fps: frames per second.
        num_frames, height, width: of the video, or, in data sets of the LTX trainers, of the latents.
        grid: (F', H', W') of the latents.
        normalized: whether they are as the diffusion model makes them.
        is_channels_first: whether the axes are marked as being in this package's order, as only this package does.
    """

    fps: Fraction | None
    num_frames: int | None
    height: int | None
    width: int | None
    grid: Grid | None
    normalized: bool | None
    is_channels_first: bool

    @property
    def foreign_sizes(self) -> Grid | None:
        """Number of frames, height and width, where another program wrote them all and may mean the latents'."""
        sizes = (self.num_frames, self.height, self.width)
        return None if self.is_channels_first or None in sizes else sizes


def parse_metadata(metadata: Mapping[str, str], source: str) -> LatentsMetadata:
    """The values of those keys that mean something here.

    Raises:
        LatentsError: for values that make no sense, and for two grids.
    """
    said = {}
    for key in _PARSERS.keys() & metadata.keys():
        parse, kind = _PARSERS[key]
        try:
            said[key] = parse(metadata[key])
        except ValueError:
            raise LatentsError(f"{source}: its metadata says {key} = {metadata[key]!r}, which is not {kind}.") from None
    grid_sizes = tuple(said[key] for key in _GRID_SIZES) if said.keys() >= set(_GRID_SIZES) else None
    return LatentsMetadata(
        said.get("fps"),
        *(said.get(key) for key in _VIDEO_SIZES),
        grid=one_grid(said.get("grid"), grid_sizes, source),
        normalized=said.get("normalized"),
        is_channels_first=metadata.get("layout") == LAYOUT,
    )


def make_metadata(
    target: str | os.PathLike,
    *,
    fps: str | float | Fraction | None,
    num_frames: int | None,
    height: int | None,
    width: int | None,
) -> dict[str, str]:
    """The metadata of a file of normalised latents `(B, C, F', H', W')` with what is known of their video.

    Raises:
        WriterError: for a frame rate that is none, naming the target.
    """
    try:
        exact_fps = None if fps is None else parse_fps(fps)
    except ValueError as error:
        raise WriterError(f"{target}: {error}") from error
    known = {"fps": exact_fps, "num_frames": num_frames, "height": height, "width": width}
    metadata = {key: str(value) for key, value in known.items() if value is not None}
    return metadata | {"normalized": "true", "layout": LAYOUT}


def one_grid(first: Grid | None, second: Grid | None, source: str) -> Grid | None:
    """Whichever is there.

    Raises:
        LatentsError: where both are and differ.
    """
    if first is not None and second is not None and tuple(first) != tuple(second):
        raise LatentsError(
            f"{source}: its grid is {show_grid(first)} by one account and {show_grid(second)} by another (in its "
            "metadata, grid= or --grid); give one."
        )
    return second if first is None else tuple(first)


def _parse_flag(text: str) -> bool:
    flags = {"true": True, "1": True, "false": False, "0": False}
    if text.lower() not in flags:
        raise ValueError(text)
    return flags[text.lower()]


#: key -> (what reads its value, what the value should be)
_PARSERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "fps": (parse_fps, "a frame rate"),
    **dict.fromkeys((*_VIDEO_SIZES, *_GRID_SIZES), (int, "a whole number")),
    "grid": (parse_grid, "a grid such as 16x22x40"),
    "normalized": (_parse_flag, "true or false"),
}
