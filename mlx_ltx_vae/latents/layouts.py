"""The ways in which programs store latents, and the one way in which this package has them, `(B, C, F', H', W')`.

In the order in which they are tried, with `N` for `F' * H' * W'` packed tokens:

- `(B, C, F', H', W')`: this package, ComfyUI, the MLX ports, diffusers where it does not pack.
- `(B, F', H', W', C)`: what an MLX network sees, saved as it is.
- both without `B`: data sets of the LTX trainers, a file per clip.
- `(B, N, C)` and `(N, C)`: what the transformer sees, tokens in the order of `F'`, `H'`, `W'`: diffusers' LTX-Video
  pipelines with `output_type="latent"`, and data sets of the first LTX trainer.
"""

import math
import re
from dataclasses import dataclass

import numpy as np

from ..errors import LatentsError

#: (F', H', W').
Grid = tuple[int, int, int]

_LAYOUTS = {5: ("BCFHW", "BFHWC"), 4: ("CFHW", "FHWC"), 3: ("BNC",), 2: ("NC",)}  # by the number of axes
_SHOWN = {"F": "F'", "H": "H'", "W": "W'", "N": "tokens"}
_GRID = re.compile(r"([1-9]\d{0,8})x([1-9]\d{0,8})x([1-9]\d{0,8})")


@dataclass(frozen=True)
class _Layout:
    """One way to read a stored shape: a letter for each axis."""

    axes: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"({', '.join(_SHOWN.get(axis, axis) for axis in self.axes)})"

    @property
    def is_packed(self) -> bool:
        return "N" in self.axes

    @property
    def channels(self) -> int:
        return self.shape[self.axes.index("C")]

    def has_grid(self, grid: Grid) -> bool:
        """Whether latents of this grid have such a shape."""
        if self.is_packed:
            return self.shape[self.axes.index("N")] == math.prod(grid)
        first = self.axes.index("F")
        return self.shape[first : first + 3] == grid

    def apply(self, stored: np.ndarray) -> np.ndarray:
        """`(B, C, F', H', W')` from what is stored so, and not packed."""
        batched = stored if "B" in self.axes else stored[None]
        return np.moveaxis(batched, -1, 1) if self.axes.endswith("C") else batched


def parse_grid(text: str) -> Grid:
    """`(F', H', W')` from "16x22x40".

    Raises:
        ValueError: for what is not three whole numbers above 0.
    """
    match = _GRID.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text!r} is not a grid of latents; write F'xH'xW', such as 16x22x40.")
    return int(match[1]), int(match[2]), int(match[3])


def show_grid(grid: Grid) -> str:
    """As `parse_grid` takes it."""
    return "x".join(map(str, grid))


def to_channels_first(
    stored: np.ndarray, source: str, *, latent_channels: int | None, grid: Grid | None, sizes: Grid | None
) -> np.ndarray:
    """`(B, C, F', H', W')` from stored latents of any layout.

    Args:
        stored: the latents as they are in the file.
        source: what to call them in errors.
        latent_channels: channels of the VAE. With None, latents that are not packed are taken for channels-first.
        grid: what the latents' grid is known to be.
        sizes: what the file calls number of frames, height and width. Most programs mean the video's, the LTX
            trainers the grid's. Where these numbers fit the latents they are the grid's: the video's are larger.

    Returns:
        A view wherever that can be. What fits no layout is left for `check_latents` to refuse.

    Raises:
        LatentsError: for a grid that does not fit, packed latents of no known grid or with other channels, and latents
            that can be read in two ways.
    """
    layouts = [_Layout(axes, stored.shape) for axes in _LAYOUTS.get(stored.ndim, ())]
    if not layouts:
        return stored
    if latent_channels is None:
        layouts = layouts[:1]
    if grid is None and sizes is not None and any(layout.has_grid(sizes) for layout in layouts):
        grid = sizes
    if grid is not None:
        layouts = _with_grid(layouts, grid, source)
    fitting = [layout for layout in layouts if layout.channels == latent_channels] or layouts[:1]
    if len(fitting) > 1:
        by_grid = "give their grid (grid=, or --grid FxHxW), or " if grid is None else ""
        raise LatentsError(
            f"{source}: latents {stored.shape} could be {' or '.join(map(str, fitting))}, as both axes have "
            f"{latent_channels}; {by_grid}write them with save_latents, which notes the layout."
        )
    layout = fitting[0]
    if layout.is_packed:
        return _unpack(stored, layout, source, latent_channels=latent_channels, grid=grid)
    return layout.apply(stored)


def _unpack(
    stored: np.ndarray, layout: _Layout, source: str, *, latent_channels: int | None, grid: Grid | None
) -> np.ndarray:
    if latent_channels not in (None, layout.channels):
        raise LatentsError(
            f"{source}: latents {stored.shape}, read as packed {layout}, have {layout.channels} channels where the VAE "
            f"has {latent_channels}."
        )
    if grid is None:
        raise LatentsError(
            f"{source}: latents {stored.shape} are packed, {layout}, and the file does not say their grid; give it as "
            "grid=(F', H', W'), or --grid FxHxW."
        )
    unpacked = stored.reshape(*stored.shape[:-2], *grid, layout.channels)
    return _Layout(layout.axes.replace("N", "FHW"), unpacked.shape).apply(unpacked)


def _with_grid(layouts: list[_Layout], grid: Grid, source: str) -> list[_Layout]:
    """Those that have this grid."""
    shape = layouts[0].shape
    if len(grid) != 3 or min(grid) < 1:
        raise LatentsError(f"{source}: a grid of latents is (F', H', W'), three numbers above 0, and not {grid}.")
    fitting = [layout for layout in layouts if layout.has_grid(grid)]
    if not fitting:
        tokens = f", {math.prod(grid)} tokens" if layouts[0].is_packed else ""
        raise LatentsError(
            f"{source}: latents {shape}, read as {' or '.join(map(str, layouts))}, do not have the grid "
            f"{show_grid(grid)}{tokens}; correct it (grid=, or --grid FxHxW)."
        )
    return fitting
