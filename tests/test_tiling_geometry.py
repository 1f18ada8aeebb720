"""Intervals, masks and layouts: the golden tables number by number, and what holds for any of them."""

import json
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import FIXTURES
from mlx_ltx_vae.tiling import (
    Interval,
    SpatialTilingConfig,
    TemporalTilingConfig,
    TileLayout,
    TilingConfig,
    TilingError,
    make_causal,
    space_axis,
    split,
    split_by_count,
    split_with_minimum,
    time_axis,
)
from mlx_ltx_vae.tiling.masks import complementary, sum_to_one, sums, trapezoid, trapezoids

TABLES = json.loads((FIXTURES / "tiling_tables.json").read_text())


def rows(table):
    return pytest.mark.parametrize("row", TABLES[table], ids=lambda row: str(TABLES[table].index(row)))


def as_lists(intervals):
    return [list(interval) for interval in intervals]


def config_of(tiling):
    """The manifest's sizes as a TilingConfig."""
    made = {}
    for axis, name, kind in [
        ("frames", "temporal_config", TemporalTilingConfig),
        ("height", "height_config", SpatialTilingConfig),
        ("width", "width_config", SpatialTilingConfig),
    ]:
        if axis in tiling:
            made[name] = kind(tiling[axis]["tile_size"], tiling[axis]["overlap"])
    return TilingConfig(**made)


@rows("split_spatial")
def test_split_equals_the_table(row):
    assert as_lists(split(row["length"], row["size"], row["overlap"])) == row["intervals"]


@rows("split_temporal_causal")
def test_causal_split_equals_the_table(row):
    assert as_lists(make_causal(split(row["length"], row["size"], row["overlap"]))) == row["intervals"]


@rows("split_spatial_with_minimum")
def test_split_with_a_minimum_equals_the_table(row):
    got = split_with_minimum(row["length"], row["size"], row["overlap"], row["minimum"])
    assert as_lists(got) == row["intervals"]


@pytest.mark.parametrize("table", ["split_by_count", "split_by_count_temporal_causal"])
def test_split_by_count_equals_the_table_and_rejects_what_it_rejects(table):
    for row in TABLES[table]:
        arguments = row["length"], row["tiles"], row["overlap"]
        if row["intervals"] is None:
            with pytest.raises(TilingError, match="too few"):
                split_by_count(*arguments)
            continue
        intervals = split_by_count(*arguments)
        if table.endswith("causal"):
            intervals = make_causal(intervals)
        assert as_lists(intervals) == row["intervals"], arguments


@rows("trapezoidal_mask")
def test_trapezoid_equals_the_table(row):
    mask = trapezoid(row["length"], row["ramp_left"], row["ramp_right"], from_zero=row["left_starts_from_0"])
    assert mask == pytest.approx(row["mask"], abs=1e-7, rel=0)


@pytest.mark.parametrize(
    ("table", "make_axis"), [("decode_map_spatial", space_axis), ("decode_map_temporal", time_axis)]
)
def test_decode_map_equals_the_table(table, make_axis):
    for row in TABLES[table]:
        intervals = split(row["length"], row["size"], row["overlap"])
        axis = make_axis(make_causal(intervals) if make_axis is time_axis else intervals, row["scale"])
        masks = trapezoids(axis.pixels, from_zero=axis.from_zero)
        assert [[each.start, each.end] for each in axis.latent] == [tile["in"] for tile in row["tiles"]]
        assert [[each.start, each.end] for each in axis.pixels] == [tile["out"] for tile in row["tiles"]]
        for mask, tile in zip(masks, row["tiles"], strict=True):
            assert mask == pytest.approx(tile["mask"], abs=1e-7, rel=0)
        if "masks_sum_to_one" in row:
            assert sum_to_one(axis.pixels, masks) == row["masks_sum_to_one"]
            assert (axis.decoded().masks == masks) == row["masks_sum_to_one"]


@rows("size_config")
def test_sizes_in_pixels_and_frames_cut_as_the_table_says(row):
    time, height, width = row["scale"]
    assert height == width
    layout = TileLayout.make(config_of(row["tiling"]), row["latent"], spatial_scale=height, temporal_scale=time)
    assert as_lists(layout.time.latent) == row["frames"]
    assert as_lists(layout.height.latent) == row["height"]
    assert as_lists(layout.width.latent) == row["width"]


@rows("encode_tiles")
def test_encode_map_equals_the_table(row):
    frames, height, width = row["pixels"]
    layout = TileLayout.make(config_of(row["tiling"]), (1 + (frames - 1) // 8, height // 32, width // 32))
    axes = layout.time, layout.height, layout.width
    masks = list(product(*(trapezoids(axis.latent, from_zero=axis.from_zero) for axis in axes)))
    tiles = [tile for group in layout.groups() for tile in group]
    assert [[[i.start, i.end] for i in tile.pixels] for tile in tiles] == [entry["pixels"] for entry in row["tiles"]]
    assert [[[i.start, i.end] for i in tile.latent] for tile in tiles] == [entry["latent"] for entry in row["tiles"]]
    for got, entry in zip(masks, row["tiles"], strict=True):
        for mask, expected in zip(got, entry["masks"], strict=True):
            assert mask == pytest.approx(expected, abs=1e-7, rel=0)


@st.composite
def cuts(draw):
    """The intervals of some valid split of some axis, causal or not, and their axis."""
    length = draw(st.integers(1, 70))
    size = draw(st.integers(1, 24))
    overlap = draw(st.integers(0, size - 1))
    minimum = draw(st.integers(1, size))
    scale = draw(st.sampled_from([1, 2, 4, 8]))
    count = draw(st.integers(1, 6))
    intervals = draw(
        st.sampled_from([split(length, size, overlap), split_with_minimum(length, size, overlap, minimum)])
    )
    if draw(st.booleans()) and (length + (count - 1) * overlap) // count > overlap:
        intervals = split_by_count(length, count, overlap)
    return length, draw(st.sampled_from([space_axis(intervals, scale), time_axis(make_causal(intervals), scale)]))


@settings(max_examples=300, deadline=None)
@given(cuts())
def test_tiles_cover_the_axis_in_order_and_none_reaches_outside(cut):
    length, axis = cut
    for intervals, end in [(axis.latent, length), (axis.pixels, axis.length)]:
        covered = {position for interval in intervals for position in range(interval.start, interval.end)}
        assert covered == set(range(end))
        assert all(interval.length >= 1 for interval in intervals)
        assert list(intervals) == sorted(intervals, key=lambda interval: (interval.start, interval.end))
        ends = [interval.end for interval in intervals]
        assert ends == sorted(set(ends))


@settings(max_examples=300, deadline=None)
@given(cuts())
def test_masks_add_up_to_one_everywhere_and_none_is_negative(cut):
    _, axis = cut
    for intervals, masks in [axis.decoded(), axis.encoded()]:
        assert [len(mask) for mask in masks] == [interval.length for interval in intervals]
        assert all(weight >= 0 for mask in masks for weight in mask)
        assert sums(intervals, masks) == pytest.approx([1.0] * intervals[-1].end, abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 70), st.integers(1, 24), st.integers(0, 11), st.sampled_from([1, 4, 8]))
def test_masks_of_tiles_two_overlaps_long_need_no_divisor(length, more, overlap, scale):
    intervals = split(length, 2 * overlap + more, overlap)
    for axis in [space_axis(intervals, scale), time_axis(make_causal(intervals), scale)]:
        last = axis.latent[-1].length
        if len(intervals) > 1 and last < 2 * overlap:
            continue
        assert sum_to_one(axis.pixels, trapezoids(axis.pixels, from_zero=axis.from_zero))


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 40), st.sampled_from([16, 24, 64]), st.sampled_from([0, 8, 16]), st.sampled_from([4, 8]))
def test_final_frames_are_the_whole_clip_and_no_later_tile_reaches_them(length, size, overlap, scale):
    config = TilingConfig(temporal_config=TemporalTilingConfig(size, min(overlap, size - 8)))
    layout = TileLayout.make(config, (length, 1, 1), temporal_scale=scale)
    counts = layout.time.decoded().final()
    assert sum(counts) == 1 + scale * (length - 1) == layout.time.length
    done = 0
    for count, following in zip(counts, layout.time.pixels[1:], strict=False):
        done += count
        assert done == following.start


def test_masks_proven_complementary_are_left_as_they_are():
    axis = space_axis(split(9, 4, 2), 32)
    masks = trapezoids(axis.pixels)
    assert all(given is kept for given, kept in zip(masks, complementary(axis.pixels, masks), strict=True))


def test_height_and_width_have_their_own_sizes_where_they_are_given():
    both, other = SpatialTilingConfig(64, 32), SpatialTilingConfig(96, 0)
    for config, height, width in [
        (TilingConfig(both), (2, 1), (2, 1)),
        (TilingConfig(both, height_config=other), (3, 0), (2, 1)),
        (TilingConfig(both, width_config=other), (2, 1), (3, 0)),
        (TilingConfig(height_config=other, width_config=both), (3, 0), (2, 1)),
        (TilingConfig(width_config=other), (5, 0), (3, 0)),
    ]:
        layout = TileLayout.make(config, (1, 5, 5))
        assert layout.height.latent == split(5, *height)
        assert layout.width.latent == split(5, *width)


def test_a_tile_says_where_it_lies():
    layout = TileLayout.make(TilingConfig.spatial_only(64, 32), (2, 3, 2))
    (group,) = layout.groups()
    assert [tile.latent_slices for tile in group] == [
        (slice(0, 2), slice(0, 2), slice(0, 2)),
        (slice(0, 2), slice(1, 3), slice(0, 2)),
    ]
    assert [tile.output_size for tile in group] == [(9, 64, 64), (9, 64, 64)]


@pytest.mark.parametrize(
    "cut",
    [
        lambda: split(0, 2, 1),
        lambda: split(5, 2, 2),
        lambda: split(5, 2, -1),
        lambda: split_with_minimum(5, 3, 1, 4),
        lambda: split_with_minimum(5, 3, 1, 0),
        lambda: split_by_count(5, 0, 0),
        lambda: split_by_count(5, 2, -1),
        lambda: split_by_count(0, 1, 0),
    ],
)
def test_impossible_cuts_are_refused(cut):
    with pytest.raises(TilingError):
        cut()


def test_a_single_tile_by_count_is_the_whole_axis():
    assert split_by_count(5, 1, 7) == (Interval(0, 5, 0, 0),)


@pytest.mark.parametrize(
    ("config", "scales"),
    [
        (TilingConfig.spatial_only(96, 32), {"spatial_scale": 64}),
        (TilingConfig.spatial_only(128, 32), {"spatial_scale": 64}),
        (TilingConfig.temporal_only(24, 0), {"temporal_scale": 16}),
        (TilingConfig.temporal_only(32, 8), {"temporal_scale": 16}),
    ],
)
def test_sizes_that_are_not_whole_latent_cells_are_refused(config, scales):
    with pytest.raises(TilingError, match="whole latent cells"):
        TileLayout.make(config, (5, 5, 5), **scales)
