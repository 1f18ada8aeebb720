"""Which tiles go through a network together. Pure arithmetic, no MLX."""

from collections.abc import Sequence
from itertools import chain
from typing import TypeVar

from ..errors import TilingError
from .layout import Tile

Result = TypeVar("Result")


def check_batch_size(tile_batch_size: int) -> None:
    """Refuse what is no number of tiles.

    Raises:
        TilingError: unless it is a whole number of at least 1.
    """
    if isinstance(tile_batch_size, bool) or not isinstance(tile_batch_size, int) or tile_batch_size < 1:
        raise TilingError(f"a tile batch is a whole number of tiles, at least 1, and not {tile_batch_size!r}.")


def tile_batches(tiles: Sequence[Tile], tile_batch_size: int) -> list[list[int]]:
    """Tiles that a network takes in one call: equal in shape, and at most `tile_batch_size`.

    Args:
        tiles: in any order. Cut in space alone they have at most four shapes: full ones, and those at the right edge,
            at the lower edge and in the corner.
        tile_batch_size: at least 1.

    Returns:
        Indices into `tiles`, a list for each call; every tile once.

    Raises:
        TilingError: for a batch size below 1.
    """
    check_batch_size(tile_batch_size)
    shapes: dict[tuple[int, int, int], list[int]] = {}
    for index, tile in enumerate(tiles):
        shapes.setdefault(tile.output_size, []).append(index)
    return [
        indices[start : start + tile_batch_size]
        for indices in shapes.values()
        for start in range(0, len(indices), tile_batch_size)
    ]


def in_tile_order(batches: Sequence[Sequence[int]], results: Sequence[Sequence[Result]]) -> list[Result]:
    """The results of the calls that `tile_batches` lists, one for each tile, in the order of the tiles."""
    by_tile = dict(zip(chain(*batches), chain(*results), strict=True))
    return [by_tile[index] for index in range(len(by_tile))]
