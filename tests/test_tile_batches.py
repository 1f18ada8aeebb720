"""Batches of tiles of equal shape."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_ltx_vae import PlanError
from mlx_ltx_vae.shapes import DEFAULT_SCALE
from mlx_ltx_vae.tiling import SpatialTilingConfig, TilingConfig, TilingError
from mlx_ltx_vae.tiling.layout import TileLayout, check_batch_size, tile_batches


def tiles_of(width, height, tile=512, overlap=128):
    """The tiles of one frame. Its sides are rounded down to whole latent cells."""
    config = TilingConfig(SpatialTilingConfig(tile, overlap))
    (tiles,) = TileLayout.make(config, (1, height // 32, width // 32), DEFAULT_SCALE).groups()
    return tiles


@settings(max_examples=200)
@given(
    width=st.integers(32, 4000),
    height=st.integers(32, 4000),
    tile=st.sampled_from([64, 96, 256, 512]),
    overlap=st.sampled_from([0, 32]),
    size=st.integers(1, 70),
)
def test_batches_contain_every_tile_once_and_only_equal_shapes(width, height, tile, overlap, size):
    tiles = tiles_of(width, height, tile, overlap)
    batches = tile_batches(tiles, size)
    assert sorted(index for batch in batches for index in batch) == list(range(len(tiles)))
    assert all(1 <= len(batch) <= size for batch in batches)
    assert all(len({tiles[index].output_size for index in batch}) == 1 for batch in batches)
    shapes = {tile.output_size for tile in tiles}
    assert len(shapes) <= 4
    assert len(tile_batches(tiles, len(tiles))) == len(shapes)


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "2"])
def test_an_invalid_batch_size_is_refused_for_any_tiles(size):
    for tiles in ([], tiles_of(512, 512), tiles_of(1280, 720)):
        with pytest.raises(TilingError, match="tile batch size must be a whole number"):
            tile_batches(tiles, size)
    with pytest.raises(PlanError, match="tile batch"):
        check_batch_size(size)
