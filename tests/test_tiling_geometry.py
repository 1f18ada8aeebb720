"""Intervals, masks, layouts and batches of tiles: the golden tables, and properties of all of them."""

import json
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import FIXTURES
from mlx_ltx_vae import ScaleFactors
from mlx_ltx_vae.options import PlanOptions
from mlx_ltx_vae.shapes import DEFAULT_SCALE, TileRules
from mlx_ltx_vae.tiling import SpatialTilingConfig, TemporalTilingConfig, TilingConfig, TilingError
from mlx_ltx_vae.tiling.layout import (
    TileLayout,
    complementary,
    grow_last,
    make_causal,
    space_axis,
    split,
    sums,
    tile_batches,
    time_axis,
    trapezoids,
)

TABLES = json.loads((FIXTURES / "tiling_tables.json").read_text())


def rows(table):
    """Run a test of one row for all rows of a table."""

    def decorate(test):
        def check_rows():
            for row in TABLES[table]:
                test(row)

        check_rows.__doc__ = test.__doc__
        return check_rows

    return decorate


def as_lists(intervals):
    return [list(interval) for interval in intervals]


def sum_to_one(intervals, masks):
    return sums(intervals, masks) == pytest.approx([1.0] * intervals[-1].end, abs=1e-9)


def config_of(tiling):
    """The sizes of a manifest as a TilingConfig."""
    made = {}
    for axis, name, kind in [
        ("frames", "temporal_config", TemporalTilingConfig),
        ("height", "height_config", SpatialTilingConfig),
        ("width", "width_config", SpatialTilingConfig),
    ]:
        if axis in tiling:
            made[name] = kind(tiling[axis]["tile_size"], tiling[axis]["overlap"])
    return TilingConfig(**made)


@rows("split_spatial_with_minimum")
def test_a_short_last_tile_grows_as_in_the_table(row):
    assert as_lists(grow_last(split(row["length"], row["size"], row["overlap"]), row["minimum"])) == row["intervals"]


@rows("diffusion_tiles")
def test_tiles_behind_the_first_layers_equal_the_table(row):
    """Here what these layers make of a latent frame are four cells; 8 cells of padding follow the clip."""
    frames, height, width = row["stage4"]
    rules = TileRules(1, tuple(row["minimum_tile"]), tuple(max(halos) for halos in zip(*row["halos"], strict=True)))
    scales = ScaleFactors(4, 4, 4), ScaleFactors(2, 8, 8)
    grid = (1 + (frames - 1) // 4, height // 4, width // 4)
    config, cells = config_of(row["tiling"]), (frames + 8, height, width)
    layout = TileLayout.behind(config, grid, cells, rules, scales, [(0, 0)] * 3)
    axes = layout.time, layout.height, layout.width
    tiles = [tile for group in layout.groups() for tile in group]
    assert len(tiles) == len(row["tiles"])
    for tile, masks, expected in zip(
        tiles, product(*(axis.masks(is_decode=True) for axis in axes)), row["tiles"], strict=True
    ):
        for axis, (span, pixels, mask) in enumerate(zip(tile.latent, tile.pixels, masks, strict=True)):
            if expected["stage4"][axis] is None:
                assert (span.start, span.end) == (0, cells[axis])
                continue
            start, end = expected["stage4"][axis]
            assert (span.start, span.end) == (start, cells[axis] if end == row["stage4"][axis] else end)
            assert [pixels.start, pixels.end] == expected["pixels"][axis]
            assert mask == pytest.approx(expected["masks"][axis], abs=1e-7, rel=0)


@rows("size_config")
def test_sizes_in_pixels_and_frames_give_the_intervals_of_the_table(row):
    layout = TileLayout.make(config_of(row["tiling"]), row["latent"], ScaleFactors(*row["scale"]))
    assert as_lists(layout.time.latent) == row["frames"]
    assert as_lists(layout.height.latent) == row["height"]
    assert as_lists(layout.width.latent) == row["width"]


@rows("encode_tiles")
def test_encode_map_equals_the_table(row):
    latent_grid = DEFAULT_SCALE.latent_grid(row["pixels"])
    layout = TileLayout.make(config_of(row["tiling"]), latent_grid, DEFAULT_SCALE)
    axes = layout.time, layout.height, layout.width
    masks = list(product(*(trapezoids(axis.latent, from_zero=axis.from_zero) for axis in axes)))
    tiles = [tile for group in layout.groups() for tile in group]
    assert [[[i.start, i.end] for i in tile.pixels] for tile in tiles] == [entry["pixels"] for entry in row["tiles"]]
    assert [[[i.start, i.end] for i in tile.latent] for tile in tiles] == [entry["latent"] for entry in row["tiles"]]
    for got, entry in zip(masks, row["tiles"], strict=True):
        for mask, expected in zip(got, entry["masks"], strict=True):
            assert mask == pytest.approx(expected, abs=1e-7, rel=0)


@st.composite
def axes(draw):
    """The length of an axis on the latent grid, and the axis with a valid split of it, in space or time."""
    length = draw(st.integers(1, 70))
    size = draw(st.integers(1, 24))
    overlap = draw(st.integers(0, size - 1))
    scale = draw(st.sampled_from([1, 2, 4, 8]))
    intervals = split(length, size, overlap)
    return length, draw(st.sampled_from([space_axis(intervals, scale), time_axis(make_causal(intervals), scale)]))


@settings(max_examples=300)
@given(axes())
def test_tiles_cover_the_axis_in_order_and_stay_inside(split_axis):
    length, axis = split_axis
    for intervals, end in [(axis.latent, length), (axis.pixels, axis.pixels[-1].end)]:
        covered = {position for interval in intervals for position in range(interval.start, interval.end)}
        assert covered == set(range(end))
        assert all(interval.length >= 1 for interval in intervals)
        assert list(intervals) == sorted(intervals, key=lambda interval: (interval.start, interval.end))
        ends = [interval.end for interval in intervals]
        assert ends == sorted(set(ends))


@settings(max_examples=300)
@given(axes())
def test_masks_add_up_to_one_everywhere_and_none_is_negative(split_axis):
    _, axis = split_axis
    for is_decode, intervals in [(True, axis.pixels), (False, axis.latent)]:
        masks = axis.masks(is_decode=is_decode)
        assert [len(mask) for mask in masks] == [interval.length for interval in intervals]
        assert all(weight >= 0 for mask in masks for weight in mask)
        assert sum_to_one(intervals, masks)


@settings(max_examples=100)
@given(st.integers(1, 40), st.sampled_from([16, 24, 64]), st.sampled_from([0, 8, 16]), st.sampled_from([4, 8]))
def test_final_frames_add_up_to_the_clip_and_end_where_the_next_tile_starts(length, size, overlap, scale):
    config = TilingConfig(temporal_config=TemporalTilingConfig(size, min(overlap, size - 8)))
    layout = TileLayout.make(config, (length, 1, 1), ScaleFactors(scale, 32, 32))
    counts = layout.time.final(is_decode=True)
    assert sum(counts) == 1 + scale * (length - 1) == layout.size(is_decode=True)[0]
    done = 0
    for count, following in zip(counts, layout.time.pixels[1:], strict=False):
        done += count
        assert done == following.start


def test_masks_that_add_up_to_one_are_returned_unchanged():
    axis = space_axis(split(9, 4, 2), 32)
    masks = trapezoids(axis.pixels)
    assert all(given is kept for given, kept in zip(masks, complementary(axis.pixels, masks), strict=True))


def test_height_and_width_configurations_override_the_spatial_one():
    both, other = SpatialTilingConfig(64, 32), SpatialTilingConfig(96, 0)
    for config, height, width in [
        (TilingConfig(both), (2, 1), (2, 1)),
        (TilingConfig(both, height_config=other), (3, 0), (2, 1)),
        (TilingConfig(both, width_config=other), (2, 1), (3, 0)),
        (TilingConfig(height_config=other, width_config=both), (3, 0), (2, 1)),
        (TilingConfig(width_config=other), (5, 0), (3, 0)),
    ]:
        layout = TileLayout.make(config, (1, 5, 5), DEFAULT_SCALE)
        assert layout.height.latent == split(5, *height)
        assert layout.width.latent == split(5, *width)


SMALL_CELLS = ScaleFactors(4, 16, 16)
LARGE_CELLS = ScaleFactors(16, 64, 64)


@pytest.mark.parametrize(
    ("config", "scale", "words"),
    [
        (TilingConfig.spatial_only(100, 0), DEFAULT_SCALE, "tile of 100 pixels .* multiple of 32 .* use 96 or 128"),
        (TilingConfig.spatial_only(32, 0), DEFAULT_SCALE, "tile of 32 pixels .* at least 64; use 64"),
        (TilingConfig.spatial_only(128, 16), DEFAULT_SCALE, "overlap of 16 pixels .* multiple of 32 .* use 0 or 32"),
        (TilingConfig.spatial_only(64, 48), DEFAULT_SCALE, "overlap of 48 pixels .* use 32"),
        (TilingConfig.temporal_only(8, 0), DEFAULT_SCALE, "tile of 8 frames .* multiple of 8 .* at least 16; use 16"),
        (TilingConfig.temporal_only(32, 4), DEFAULT_SCALE, "overlap of 4 frames .* use 0 or 8"),
        (TilingConfig.temporal_only(18, 4), SMALL_CELLS, "tile of 18 frames .* multiple of 4 .* use 16 or 20"),
        (TilingConfig.temporal_only(20, 6), SMALL_CELLS, "overlap of 6 frames .* use 4 or 8"),
        (TilingConfig.temporal_only(32, 8), LARGE_CELLS, "overlap of 8 frames .* use 0 or 16"),
    ],
)
def test_sizes_that_do_not_fit_the_latent_cells_are_refused_with_the_nearest_that_do(config, scale, words):
    with pytest.raises(TilingError, match=words + r"\.$") as caught:
        TileLayout.make(config, (5, 5, 5), scale)
    assert "\n" not in str(caught.value)


def test_height_and_width_may_have_different_scale_factors():
    config = TilingConfig.spatial_only(128, 32)
    layout = TileLayout.make(config, (1, 10, 10), ScaleFactors(8, 16, 32))
    assert layout.height.latent == split(10, 8, 2)
    assert layout.width.latent == split(10, 4, 1)
    assert layout.size(is_decode=True) == (1, 160, 320)
    with pytest.raises(TilingError, match="overlap of 16 pixels .* multiple of 32"):
        TileLayout.make(TilingConfig.spatial_only(128, 16), (1, 10, 10), ScaleFactors(8, 16, 32))


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
def test_an_invalid_batch_size_is_refused(size):
    with pytest.raises(TilingError, match="tile batch size must be a whole number"):
        PlanOptions(tile_batch_size=size)
