"""Groups tiles of equal shape into batches. Pure Python, no MLX."""

from collections.abc import Sequence
from itertools import chain
from typing import TypeVar

from ..errors import TilingError
from ..shapes import Grid
from .layout import Tile

Result = TypeVar("Result")


def check_batch_size(tile_batch_size: int) -> None:
    """Raise a `TilingError` unless a batch size is a whole number of at least 1."""
    if isinstance(tile_batch_size, bool) or not isinstance(tile_batch_size, int) or tile_batch_size < 1:
        raise TilingError(f"a tile batch size must be a whole number of at least 1, not {tile_batch_size!r}.")


def tile_batches(tiles: Sequence[Tile], tile_batch_size: int) -> list[list[int]]:
    """Indices into `tiles`, in batches of at most `tile_batch_size` tiles of equal shape for one call of a network.

    Tiles of one interval of time have at most four shapes: the full size, and those at the right edge, at the lower
    edge and in the corner.
    """
    check_batch_size(tile_batch_size)
    by_shape: dict[Grid, list[int]] = {}
    for index, tile in enumerate(tiles):
        by_shape.setdefault(tile.output_size, []).append(index)
    return [
        indices[start : start + tile_batch_size]
        for indices in by_shape.values()
        for start in range(0, len(indices), tile_batch_size)
    ]


def in_tile_order(batches: Sequence[Sequence[int]], results: Sequence[Sequence[Result]]) -> list[Result]:
    """The results of the batches of `tile_batches`, one per tile, in the order of the tiles."""
    by_tile = dict(zip(chain(*batches), chain(*results), strict=True))
    return [by_tile[index] for index in range(len(by_tile))]
