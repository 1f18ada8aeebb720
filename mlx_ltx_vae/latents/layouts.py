"""The layouts in which programs store latents, and how each is read as `(B, C, F', H', W')`.

In the order in which they are tried, with `N = F' * H' * W'` packed tokens:

- `(B, C, F', H', W')`: this package, ComfyUI, the MLX ports, diffusers' unpacked latents.
- `(B, F', H', W', C)`: latents of an MLX network, saved without a transpose.
- both without `B`: data sets of the LTX trainers, one file per clip.
- `(B, N, C)` and `(N, C)`: transformer input, tokens in the order `F'`, `H'`, `W'`: diffusers' LTX-Video pipelines
  with `output_type="latent"`, and data sets of the first LTX trainer.
"""

import math
import re
from dataclasses import dataclass, replace

from ..errors import LatentsError, excerpt, quote
from ..shapes import Grid, LatentShape
from .stored import StoredArray

CHANNELS_FIRST = "BCFHW"  # the layout of this package: one letter per axis
_LAYOUTS = {5: (CHANNELS_FIRST, "BFHWC"), 4: ("CFHW", "FHWC"), 3: ("BNC",), 2: ("NC",)}  # by the number of axes
_AXIS_NAMES = {"F": "F'", "H": "H'", "W": "W'", "N": "tokens"}
_GRID = re.compile(r"([1-9]\d{0,8})x([1-9]\d{0,8})x([1-9]\d{0,8})")


@dataclass(frozen=True)
class Layout:
    """One way to read a stored shape. `str(layout)` names the axes: "(B, tokens, C)"."""

    axes: str  # one letter per stored axis: B, C, F, H, W, or N for packed tokens
    stored_shape: tuple[int, ...]
    packed_grid: Grid | None = None  # (F', H', W') of packed tokens, once it is known

    def __str__(self) -> str:
        return f"({', '.join(_AXIS_NAMES.get(axis, axis) for axis in self.axes)})"

    @property
    def sizes(self) -> dict[str, int]:
        return dict(zip(self.axes, self.stored_shape, strict=True))

    @property
    def shape(self) -> LatentShape:
        sizes = self.sizes
        grid = self.packed_grid or (sizes["F"], sizes["H"], sizes["W"])
        return LatentShape(sizes.get("B", 1), sizes["C"], *grid)

    def has_grid(self, grid: Grid) -> bool:
        sizes = self.sizes
        if "N" in sizes:
            return sizes["N"] == math.prod(grid)
        return (sizes["F"], sizes["H"], sizes["W"]) == tuple(grid)

    def to_channels_first(self, stored: StoredArray) -> StoredArray:
        strides = dict(zip(self.axes, stored.strides, strict=True))
        if self.packed_grid:
            _, height, width = self.packed_grid
            token = strides["N"]
            strides |= {"F": height * width * token, "H": width * token, "W": token}
        return replace(stored, shape=self.shape, strides=tuple(strides.get(axis, 0) for axis in CHANNELS_FIRST))


def parse_grid(text: str) -> Grid:
    """`(F', H', W')` from "16x22x40". Raises `ValueError` for anything but three whole numbers above 0."""
    match = _GRID.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{quote(text)} is not a latent grid; write F'xH'xW', such as 16x22x40.")
    return int(match[1]), int(match[2]), int(match[3])


def format_grid(grid: Grid) -> str:
    """The text that `parse_grid` reads: "16x22x40"."""
    return "x".join(map(str, grid))


def find_layout(
    stored_shape: tuple[int, ...], source: str, *, latent_channels: int | None, grid: Grid | None, sizes: Grid | None
) -> Layout:
    """The only layout that fits a stored shape. Without `latent_channels`, unpacked latents are channels-first.

    `sizes` are num_frames, height and width in the file's metadata. Most programs store the video's, the LTX trainers
    the grid (F', H', W'). Sizes that fit the latents are the grid, since a video is always larger.
    """
    layouts = [Layout(axes, stored_shape) for axes in _LAYOUTS.get(len(stored_shape), ())]
    if not layouts:
        raise LatentsError(
            f"{source}: latents {excerpt(stored_shape)} fit no known layout; save them as (B, C, F', H', W')."
        )
    if latent_channels is None:
        layouts = layouts[:1]
    if grid is None and sizes is not None and any(layout.has_grid(sizes) for layout in layouts):
        grid = sizes
    if grid is not None:
        layouts = _layouts_with_grid(layouts, grid, source)
    fitting = [layout for layout in layouts if layout.sizes["C"] == latent_channels] or layouts[:1]
    if len(fitting) > 1:
        by_grid = "give their grid (grid=, or --grid FxHxW), or " if grid is None else ""
        raise LatentsError(
            f"{source}: latents {stored_shape} could be {' or '.join(map(str, fitting))}, as both axes have "
            f"{latent_channels}; {by_grid}write them with save_latents, which stores the layout."
        )
    layout = fitting[0]
    if "N" not in layout.sizes:
        return layout
    channels = layout.sizes["C"]
    if latent_channels not in (None, channels):
        found = f"read as packed {layout}, have {channels} channels"
        raise LatentsError(f"{source}: latents {stored_shape}, {found} where the VAE has {latent_channels}.")
    if grid is None:
        raise LatentsError(
            f"{source}: latents {stored_shape} are packed, {layout}, and the file does not state their grid; give it "
            "as grid=(F', H', W'), or --grid FxHxW."
        )
    return replace(layout, packed_grid=grid)


def _layouts_with_grid(layouts: list[Layout], grid: Grid, source: str) -> list[Layout]:
    if len(grid) != 3 or min(grid) < 1:
        raise LatentsError(f"{source}: a latent grid is (F', H', W'), three numbers above 0, not {grid}.")
    fitting = [layout for layout in layouts if layout.has_grid(grid)]
    if not fitting:
        tokens = f", {math.prod(grid)} tokens" if "N" in layouts[0].sizes else ""
        raise LatentsError(
            f"{source}: latents {layouts[0].stored_shape}, read as {' or '.join(map(str, layouts))}, do not have the "
            f"grid {format_grid(grid)}{tokens}; correct it (grid=, or --grid FxHxW)."
        )
    return fitting
