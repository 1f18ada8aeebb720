"""Blended decodes: the reference's results, the order of frames, memory and errors."""

import gc
import math

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import active_memory
from mlx_ltx_vae import DecodeError, LatentsError, PlanError, VideoVAE
from mlx_ltx_vae.shapes import DEFAULT_SCALE
from mlx_ltx_vae.tiling import (
    SpatialTilingConfig,
    TemporalTilingConfig,
    TilingConfig,
    TilingError,
    blend,
    decode_with_tiling,
)
from mlx_ltx_vae.tiling.blend import SpatialBlender, blend_tiles
from mlx_ltx_vae.tiling.layout import TileLayout, space_axis, split
from test_tiling_geometry import config_of
from tolerances import tolerance

GOLDEN = ["tiled_all", "tiled_overlap_over_half"]
ALL_AXES = TilingConfig(SpatialTilingConfig(96, 32), TemporalTilingConfig(24, 8))


class Upscaler:
    """A decoder that repeats each latent cell. It uses no context, so overlapping tiles are equal."""

    def __init__(self, spatial=32, temporal=8):
        self.scales = temporal, spatial, spatial
        self.calls = []

    def __call__(self, latents, **options):
        self.calls.append((latents.shape, options))
        pixels = latents[:, :3]
        for axis, scale in enumerate(self.scales, 2):
            pixels = mx.repeat(pixels, scale, axis)
        return pixels[:, :, self.scales[0] - 1 :]


def random_latents(*size, batch=1, channels=4, dtype=mx.float32):
    return mx.random.normal((batch, channels, *size), key=mx.random.key(1)).astype(dtype)


def collect(decoder, latents, config, **options):
    """The calls of `on_frames_ready`: [(start, frames)]."""
    calls = []
    result = decode_with_tiling(
        decoder,
        latents,
        config,
        on_frames_ready=lambda frames, start: calls.append((start, frames)),
        keep_output=False,
        **options,
    )
    assert result is None
    return calls


@pytest.fixture(scope="module")
def vae(golden):
    return VideoVAE.from_pretrained(golden("ltx2_3_tiled").checkpoint, encoder=False)


@pytest.mark.parametrize("name", GOLDEN)
def test_tiled_decode_agrees_with_the_reference_within_1e_4(golden, vae, name):
    case = golden("ltx2_3_tiled")
    check = case.check(name)
    latents = mx.array(case.arrays[check["input"]])

    def decode(tile, **_):
        return vae.decode(tile, vae.plan(tile.shape, mode="single"))

    config = config_of(check["tiling"])
    calls = collect(decode, latents, config)
    lengths = [frames.shape[2] for _, frames in calls]
    assert lengths == [length for length in check["chunk_frames"] if length]
    assert [start for start, _ in calls] == list(np.cumsum([0, *lengths[:-1]]))
    result = np.concatenate([np.array(frames) for _, frames in calls], axis=2)
    assert list(result.shape) == check["full_shape"]
    expected = case.arrays[check["expected"]]
    selected = case.select(result, check)
    assert selected.shape == expected.shape
    assert np.abs(selected - expected).max() < tolerance(1e-4)


@settings(max_examples=25)
@given(
    size=st.tuples(st.integers(1, 9), st.integers(1, 7), st.integers(1, 7)),
    height=st.sampled_from([None, (64, 0), (64, 32), (96, 64), (128, 32)]),
    width=st.sampled_from([None, (64, 0), (64, 32), (96, 64), (128, 96)]),
    frames=st.sampled_from([None, (16, 0), (16, 8), (24, 16), (32, 8), (40, 32)]),
    scales=st.sampled_from([(32, 8), (16, 4)]),
)
def test_equal_tiles_blend_to_the_untiled_result(size, height, width, frames, scales):
    config = TilingConfig(
        temporal_config=frames and TemporalTilingConfig(*frames),
        height_config=height and SpatialTilingConfig(*height),
        width_config=width and SpatialTilingConfig(*width),
    )
    latents = random_latents(*size, batch=2)
    result = decode_with_tiling(Upscaler(*scales), latents, config, *scales)
    expected = Upscaler(*scales)(latents)
    assert result.shape == expected.shape
    assert mx.abs(result - expected).max().item() < 1e-5


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
def test_the_result_has_the_dtype_of_the_latents_and_is_blended_in_float32(dtype):
    latents = random_latents(7, 4, 4, dtype=dtype)
    decoder = Upscaler()
    whole = decode_with_tiling(decoder, latents, ALL_AXES)
    assert whole.dtype == dtype
    assert all(frames.dtype == dtype for _, frames in collect(decoder, latents, ALL_AXES))
    layout = TileLayout.make(ALL_AXES, latents.shape[2:], DEFAULT_SCALE)
    pixels = decoder(latents).transpose(0, 2, 3, 4, 1)
    for _, frames in blend_tiles(
        lambda tiles: [pixels[(slice(None), *(i.as_slice for i in tile.pixels))] for tile in tiles],
        layout,
        is_decode=True,
    ):
        assert frames.dtype == mx.float32
    # Blending equal values changes only the last bits of float32, which half precision does not show.
    difference = mx.abs(whole - decoder(latents)).max().item()
    assert difference < 1e-6 if dtype == mx.float32 else difference == 0


def test_decoder_is_called_as_apps_expect():
    decoder = Upscaler()
    timestep = mx.array(0.05)
    decode_with_tiling(decoder, random_latents(2, 3, 2), TilingConfig.spatial_only(64, 32), 32, 8, True, timestep, True)
    assert [shape for shape, _ in decoder.calls] == [(1, 4, 2, 2, 2), (1, 4, 2, 2, 2)]
    for _, options in decoder.calls:
        assert options.pop("timestep") is timestep
        assert options == {"causal": True, "debug": False, "chunked_conv": True}


def test_frames_come_once_in_order_and_as_soon_as_they_are_final():
    latents = random_latents(9, 4, 4)
    decoder = Upscaler()
    layout = TileLayout.make(ALL_AXES, latents.shape[2:], DEFAULT_SCALE)
    tiles_per_group = len(layout.height.pixels) * len(layout.width.pixels)
    seen = []
    decode_with_tiling(
        decoder,
        latents,
        ALL_AXES,
        on_frames_ready=lambda frames, start: seen.append((start, frames.shape[2], len(decoder.calls))),
    )
    assert tiles_per_group == 4
    starts = [interval.start for interval in layout.time.pixels]
    assert seen == [
        (start, after - start, tiles_per_group * (group + 1))
        for group, (start, after) in enumerate(zip(starts, [*starts[1:], 65], strict=True))
    ]


def test_with_a_callback_the_video_is_returned_too_whatever_the_callback_does_with_its_frames():
    seen = []

    def clear(frames, start):
        seen.append(np.array(frames))
        frames[:] = 0
        mx.eval(frames)

    latents = random_latents(9, 4, 4)
    video = decode_with_tiling(Upscaler(), latents, ALL_AXES, on_frames_ready=clear)
    assert mx.array_equal(video, decode_with_tiling(Upscaler(), latents, ALL_AXES)).item()
    assert np.array_equal(np.concatenate(seen, axis=2), video)


def test_a_decode_that_would_discard_every_frame_is_refused():
    decoder = Upscaler()
    with pytest.raises(PlanError, match="on_frames_ready"):
        decode_with_tiling(decoder, random_latents(2, 2, 2), None, keep_output=False)
    assert decoder.calls == []


def test_no_configuration_is_a_single_tile():
    latents = random_latents(3, 2, 2)
    decoder = Upscaler()
    assert mx.array_equal(decode_with_tiling(decoder, latents, None), decoder(latents)).item()
    assert [shape for shape, _ in decoder.calls] == [latents.shape] * 2


@pytest.mark.parametrize("failing", ["callback", "decoder"])
def test_an_exception_reaches_the_caller_and_the_next_decode_emits_every_frame(failing):
    latents = random_latents(9, 4, 4)
    decoder = Upscaler()

    def fail(*_, **__):
        raise KeyboardInterrupt

    def fail_late(tile, **options):
        return (fail if len(decoder.calls) > 6 else decoder)(tile, **options)

    with pytest.raises(KeyboardInterrupt):
        if failing == "callback":
            decode_with_tiling(decoder, latents, ALL_AXES, on_frames_ready=fail)
        else:
            decode_with_tiling(fail_late, latents, ALL_AXES, on_frames_ready=lambda frames, start: None)
    calls = collect(decoder, latents, ALL_AXES)
    assert calls[0][0] == 0
    assert sum(frames.shape[2] for _, frames in calls) == 65
    result = mx.concatenate([frames for _, frames in calls], axis=2)
    assert mx.abs(result - Upscaler()(latents)).max().item() < 1e-5


@pytest.mark.parametrize("keep_output", [True, False])
def test_an_exception_that_the_caller_keeps_holds_no_frames(keep_output):
    latents = random_latents(9, 4, 4)

    def fail(frames, start):
        if start:
            raise RuntimeError

    gc.collect()
    before = active_memory()
    with pytest.raises(RuntimeError) as kept:
        decode_with_tiling(Upscaler(), latents, ALL_AXES, on_frames_ready=fail, keep_output=keep_output)
    mx.synchronize()
    group = 25 * 128 * 128 * 3 * 4
    assert active_memory() - before <= group + 100_000, kept  # only the frames passed to the callback


@pytest.mark.parametrize("change", ["longer", "smaller", "gray", "flat"])
@pytest.mark.parametrize("config", [ALL_AXES, TilingConfig()])
def test_a_tile_of_the_wrong_shape_is_refused(change, config):
    def decode(latents, **_):
        pixels = Upscaler()(latents)
        return {
            "longer": lambda: mx.concatenate([pixels, pixels[:, :, :1]], axis=2),
            "smaller": lambda: pixels[..., :-1],
            "gray": lambda: pixels[:, :1],
            "flat": lambda: pixels[0],
        }[change]()

    with pytest.raises(DecodeError, match="shape .* was expected"):
        decode_with_tiling(decode, random_latents(9, 4, 4), config)


@pytest.mark.parametrize("config", [ALL_AXES, TilingConfig()])
def test_a_tile_of_the_wrong_shape_is_refused_by_blend_tiles_too(config):
    layout = TileLayout.make(config, (3, 4, 4), DEFAULT_SCALE)
    with pytest.raises(DecodeError, match="tile 0"):
        next(blend_tiles(lambda tiles: [mx.zeros((1, 3, *tiles[0].output_size))], layout, is_decode=True))


@pytest.mark.parametrize("shape", [(4, 3, 2, 2), (1, 4, 0, 2, 2)])
def test_latents_without_five_axes_or_empty_are_refused(shape):
    with pytest.raises(LatentsError, match="expected a non-empty"):
        decode_with_tiling(Upscaler(), mx.zeros(shape), ALL_AXES)


def test_tile_sizes_that_do_not_fit_the_latent_cells_are_refused_before_anything_is_decoded():
    decoder = Upscaler()
    with pytest.raises(TilingError, match="multiple of 64"):
        decode_with_tiling(decoder, random_latents(2, 2, 2), ALL_AXES, spatial_scale=64)
    assert decoder.calls == []


@pytest.mark.slow
def test_with_a_callback_memory_grows_by_the_returned_video_alone_and_without_it_not_at_all():
    def peak(frames, keep_output):
        latents = random_latents(frames, 4, 4)
        mx.eval(latents)
        gc.collect()
        before = active_memory()
        mx.reset_peak_memory()
        decode_with_tiling(Upscaler(), latents, ALL_AXES, on_frames_ready=ignore, keep_output=keep_output)
        return mx.get_peak_memory() - before

    def ignore(frames, start):
        pass

    short, long = peak(9, keep_output=False), peak(41, keep_output=False)
    assert long <= 1.01 * short
    group, shared, tile = (math.prod(size) * 3 * 4 for size in [(33, 128, 128), (9, 128, 128), (33, 96, 96)])
    assert short < group + shared + 2.5 * tile
    video = math.prod((321, 128, 128)) * 3 * 4
    assert video < peak(41, keep_output=True) <= 1.01 * short + video


def test_the_cache_is_cleared_every_fourth_tile(monkeypatch):
    decoder = Upscaler()
    cleared = []
    monkeypatch.setattr(blend.mx, "clear_cache", lambda: cleared.append(len(decoder.calls)))
    decode_with_tiling(decoder, random_latents(9, 4, 4), ALL_AXES)
    assert len(decoder.calls) == 16
    assert cleared == [4, 8, 12, 16]
    decoder.calls.clear()
    cleared.clear()
    decode_with_tiling(decoder, random_latents(9, 1, 1), ALL_AXES)
    assert (len(decoder.calls), cleared) == (4, [4])


def numpy_blend(parts, height, width, scale):
    """The sum of weighted tiles divided by the sum of weights, in float64."""
    total = np.zeros((*parts[0].shape[:2], scale * height[-1].end, scale * width[-1].end, 3))
    weights = np.zeros((*total.shape[2:4], 1))

    def ramp(interval):
        mask = np.ones(scale * (interval.end - interval.start))
        for direction, length in [(1, scale * interval.left_ramp), (-1, scale * interval.right_ramp)]:
            mask[::direction][:length] *= np.arange(1, length + 1) / (length + 1)
        return mask

    places = [(row, column) for row in height for column in width]
    for part, (row, column) in zip(parts, places, strict=True):
        mask = np.outer(ramp(row), ramp(column))[..., None]
        rows = slice(scale * row.start, scale * row.end)
        columns = slice(scale * column.start, scale * column.end)
        total[:, :, rows, columns] += np.array(part.astype(mx.float32)) * mask
        weights[rows, columns] += mask
    return total / weights


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("cut", [(3, 1), (3, 2), (4, 3), (2, 0), (9, 0)])
def test_spatial_blender_equals_numpy(cut, dtype):
    height, width, scale = split(7, *cut), split(5, 3, 1), 4
    blender = SpatialBlender(space_axis(height, scale), space_axis(width, scale), is_decode=True)
    sizes = [(scale * row.length, scale * column.length) for row in height for column in width]
    for num_frames in (3, 1):  # one blender, any number of calls
        parts = [
            mx.random.normal((2, num_frames, *size, 3), key=mx.random.key(index)).astype(dtype)
            for index, size in enumerate(sizes)
        ]
        result = blender.blend(enumerate(parts))
        expected = numpy_blend(parts, height, width, scale)
        assert result.shape == expected.shape == (2, num_frames, 28, 20, 3)
        assert result.dtype == mx.float32
        assert np.abs(np.array(result) - expected).max() < 1e-5


def test_a_blender_keeps_no_masks():
    rows = space_axis(split(8, 4, 2), 32)
    before = active_memory()
    blender = SpatialBlender(rows, rows, is_decode=True)
    frames = blender.blend((index, mx.zeros((1, 1, 128, 128, 3))) for index in range(9))
    del frames
    assert active_memory() - before < 128 * 128 * 4  # one mask
