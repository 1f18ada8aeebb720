"""The tiling helpers that apps import by name: signatures, golden tables and errors."""

import inspect

import mlx.core as mx
import numpy as np
import pytest

from mlx_ltx_vae import tiling
from test_tiling_geometry import TABLES, rows


def rows_of(intervals):
    """The intervals as the tables write them: [start, end, left_ramp, right_ramp] each."""
    lists = intervals.starts, intervals.ends, intervals.left_ramps, intervals.right_ramps
    assert all(type(values) is list for values in lists)
    return [list(row) for row in zip(*lists, strict=True)]


def assert_mask(mask, expected):
    assert isinstance(mask, mx.array)
    assert (mask.shape, mask.dtype) == ((len(expected),), mx.float32)
    assert np.abs(np.array(mask) - np.array(expected, np.float32)).max() <= 1e-7


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (tiling.compute_trapezoidal_mask_1d, ["length", "ramp_left", "ramp_right", "left_starts_from_0"]),
        (tiling.split_in_spatial, ["size", "overlap", "dimension_size"]),
        (tiling.split_in_temporal, ["size", "overlap", "dimension_size"]),
        (tiling.map_spatial_slice, ["begin", "end", "left_ramp", "right_ramp", "scale"]),
        (tiling.map_temporal_slice, ["begin", "end", "left_ramp", "right_ramp", "scale"]),
        (tiling.DimensionIntervals, ["starts", "ends", "left_ramps", "right_ramps"]),
    ],
)
def test_arguments_have_the_names_and_order_that_apps_use(function, names):
    parameters = inspect.signature(function).parameters
    assert list(parameters) == names
    assert all(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in parameters.values())


@rows("split_spatial")
def test_split_in_spatial_equals_the_table(row):
    assert rows_of(tiling.split_in_spatial(row["size"], row["overlap"], row["length"])) == row["intervals"]


@rows("split_temporal_causal")
def test_split_in_temporal_equals_the_table(row):
    assert rows_of(tiling.split_in_temporal(row["size"], row["overlap"], row["length"])) == row["intervals"]


@rows("trapezoidal_mask")
def test_mask_equals_the_table(row):
    arguments = row["length"], row["ramp_left"], row["ramp_right"], row["left_starts_from_0"]
    assert_mask(tiling.compute_trapezoidal_mask_1d(*arguments), row["mask"])


@pytest.mark.parametrize(
    ("table", "split", "map_slice"),
    [
        ("decode_map_spatial", tiling.split_in_spatial, tiling.map_spatial_slice),
        ("decode_map_temporal", tiling.split_in_temporal, tiling.map_temporal_slice),
    ],
)
def test_mapped_slices_and_masks_equal_the_table(table, split, map_slice):
    for row in TABLES[table]:
        intervals = rows_of(split(row["size"], row["overlap"], row["length"]))
        assert [interval[:2] for interval in intervals] == [tile["in"] for tile in row["tiles"]]
        for interval, tile in zip(intervals, row["tiles"], strict=True):
            where, mask = map_slice(*interval, row["scale"])
            assert where == slice(*tile["out"])
            assert_mask(mask, tile["mask"])


def test_a_left_ramp_starts_above_zero_unless_asked_otherwise():
    assert tiling.compute_trapezoidal_mask_1d(4, 3, 0).tolist() == [0.25, 0.5, 0.75, 1]
    assert tiling.compute_trapezoidal_mask_1d(4, 2, 1, True).tolist() == [0, 0.5, 1, 0.5]


def test_ramps_are_cut_to_the_mask_and_negative_ramps_are_none():
    assert mx.array_equal(
        tiling.compute_trapezoidal_mask_1d(4, 9, 0), tiling.compute_trapezoidal_mask_1d(4, 4, 0)
    ).item()
    assert tiling.compute_trapezoidal_mask_1d(3, -7, -1, True).tolist() == [1, 1, 1]


@pytest.mark.parametrize("length", [0, -1])
def test_a_mask_without_positions_is_refused(length):
    with pytest.raises(tiling.TilingError, match=f"length {length}"):
        tiling.compute_trapezoidal_mask_1d(length, 0, 0)


@pytest.mark.parametrize("split", [tiling.split_in_spatial, tiling.split_in_temporal])
@pytest.mark.parametrize("arguments", [(2, 2, 5), (2, -1, 5), (2, 1, 0)])
def test_impossible_splits_are_value_errors(split, arguments):
    with pytest.raises(ValueError, match=r"\.$"):
        split(*arguments)


def blended_as_apps_do(decode, latents, tile, overlap, scale):
    """An app's own loop over tiles along time and width, with a weight buffer."""
    frames, columns = 1 + scale[0] * (latents.shape[2] - 1), scale[1] * latents.shape[4]
    output = mx.zeros((*latents.shape[:2], frames, scale[1] * latents.shape[3], columns))
    weights = mx.zeros((frames, 1, columns))
    time = tiling.split_in_temporal(tile, overlap, latents.shape[2])
    width = tiling.split_in_spatial(tile, overlap, latents.shape[4])
    for t in range(len(time.starts)):
        t_where, t_mask = tiling.map_temporal_slice(
            time.starts[t], time.ends[t], time.left_ramps[t], time.right_ramps[t], scale[0]
        )
        for w in range(len(width.starts)):
            w_where, w_mask = tiling.map_spatial_slice(
                width.starts[w], width.ends[w], width.left_ramps[w], width.right_ramps[w], scale[1]
            )
            part = decode(latents[:, :, time.starts[t] : time.ends[t], :, width.starts[w] : width.ends[w]])
            mask = t_mask.reshape(-1, 1, 1) * w_mask.reshape(1, 1, -1)
            output[:, :, t_where, :, w_where] = output[:, :, t_where, :, w_where] + part * mask
            weights[t_where, :, w_where] = weights[t_where, :, w_where] + mask
    return output / mx.maximum(weights, 1e-8)


@pytest.mark.parametrize(("tile", "overlap"), [(3, 1), (4, 3), (9, 2)])
def test_an_apps_own_loop_over_tiles_gives_the_untiled_result(tile, overlap):
    def decode(latents):
        pixels = latents
        for axis, scale in [(2, 4), (3, 8), (4, 8)]:
            pixels = mx.repeat(pixels, scale, axis)
        return pixels[:, :, 3:]

    latents = mx.random.normal((1, 3, 8, 2, 7), key=mx.random.key(2))
    result = blended_as_apps_do(decode, latents, tile, overlap, (4, 8))
    expected = decode(latents)
    assert result.shape == expected.shape
    assert mx.abs(result - expected).max().item() < 1e-5
