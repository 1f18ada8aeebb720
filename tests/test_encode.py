"""Encoding through `VideoVAE`: streamed as frames come, in tiles and batches of them, and what is refused."""

import gc
import warnings

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import ENCODER_CASES, active_memory
from mlx_ltx_vae import LatentsError, VideoVAE, tiling
from network_runs import run_network
from test_tiled import tiling_of
from tolerances import tolerance

SPATIAL = tiling.TilingConfig(tiling.SpatialTilingConfig(96, 32))


@pytest.fixture(scope="module")
def vae(golden):
    return VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint)


def random_pixels(frames, height=64, width=96, batch=1, seed=3):
    return mx.random.uniform(-1, 1, (batch, 3, frames, height, width), key=mx.random.key(seed))


def cut(pixels, lengths):
    """The pixels in pieces of such lengths, the last of which takes what is left."""
    starts = np.cumsum([0, *lengths]).tolist()
    return [pixels[:, :, a:b] for a, b in zip(starts, [*starts[1:], pixels.shape[2]], strict=True) if a < b]


def largest_difference(one, other):
    assert one.shape == other.shape
    assert one.dtype == other.dtype
    return mx.abs(one - other).max().item()


def single_pass(vae, pixels):
    """The latents of a single pass, written out."""
    means = run_network(vae.encoder, pixels.transpose(0, 2, 3, 4, 1).astype(vae.dtype))
    return ((means - vae.mean) / vae.std).transpose(0, 4, 1, 2, 3)


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", ENCODER_CASES)
def test_an_iterator_of_frames_gives_the_single_pass_for_every_chunking(golden, name):
    vae = VideoVAE.from_pretrained(golden(name).checkpoint, decoder=False)
    pixels = random_pixels(1 + 2 * vae.config.time_scale, 64, 64)
    expected = single_pass(vae, pixels)
    assert largest_difference(vae.encode(pixels), expected) < tolerance(1e-5)
    for length in (1, 7):
        pieces = cut(pixels, [length] * (pixels.shape[2] // length))
        assert largest_difference(vae.encode(iter(pieces)), expected) < tolerance(1e-5), length


@settings(max_examples=4)
@given(lengths=st.lists(st.integers(1, 12), max_size=6), batch=st.integers(1, 2))
def test_an_iterator_may_bring_any_number_of_frames_at_a_time(vae, lengths, batch):
    pixels = random_pixels(17, 32, 32, batch=batch)
    parts = list(vae.encode_stream(cut(pixels, lengths)))
    assert largest_difference(mx.concatenate(parts, axis=2), single_pass(vae, pixels)) < tolerance(1e-5)


def test_latents_come_while_frames_are_still_to_come(vae):
    taken = []

    def frames():
        for index in range(41):
            taken.append(index)
            yield random_pixels(1, seed=index)

    stream = vae.encode_stream(frames())
    assert taken == []
    first = next(stream)
    assert first.shape == (1, 8, first.shape[2], 2, 3)
    assert len(taken) == 9
    assert first.shape[2] + sum(part.shape[2] for part in stream) == 6


@pytest.mark.parametrize(("dtype", "peak"), [(np.uint8, 255), (np.uint16, 65535)])
def test_levels_are_encoded_as_the_pixels_they_stand_for(vae, dtype, peak):
    levels = np.random.default_rng(0).integers(0, peak + 1, (17, 64, 96, 3)).astype(dtype)
    pixels = mx.array(levels.astype(np.float32) / peak * 2 - 1).transpose(3, 0, 1, 2)[None]
    expected = vae.encode(pixels)
    assert largest_difference(vae.encode(levels), expected) < tolerance(1e-5)
    assert largest_difference(vae.encode(mx.array(levels)), expected) < tolerance(1e-5)
    assert largest_difference(vae.encode(levels[at : at + 5] for at in range(0, 17, 5)), expected) < tolerance(1e-5)


def test_only_the_means_channels_are_kept_and_computed(vae, golden):
    stored = mx.load(str(golden("small_ltx2_3").checkpoint))["vae.encoder.conv_out.conv.weight"]
    conv = vae.encoder.conv_out.conv
    assert (stored.shape[0], len(conv.bias)) == (9, 8)
    assert vae.encode(random_pixels(9)).shape[1] == 8


@pytest.mark.parametrize("as_iterator", [False, True])
def test_frames_over_are_left_out_with_a_warning_that_counts_them(vae, as_iterator):
    pixels = random_pixels(12)
    with pytest.warns(UserWarning, match=r"12 frames are not 1 \+ 8\*k; the last 3 are left out"):
        latents = vae.encode(iter([pixels]) if as_iterator else pixels)
    assert latents.shape == (1, 8, 2, 2, 3)
    assert mx.array_equal(latents, vae.encode(pixels[:, :, :9]))


@pytest.mark.parametrize("frames", [1, 2, 9, 12])
@pytest.mark.parametrize("tiling", [None, tiling.TilingConfig(temporal_config=tiling.TemporalTilingConfig(16, 8))])
def test_padding_repeats_the_last_frame(vae, frames, tiling, recwarn):
    pixels = random_pixels(frames)
    missing = -(frames - 1) % 8
    longer = mx.concatenate([pixels] + [pixels[:, :, -1:]] * missing, axis=2)
    assert largest_difference(
        vae.encode(pixels, pad=True, tiling=tiling), vae.encode(longer, tiling=tiling)
    ) < tolerance(1e-5)
    assert not recwarn.list


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("name", "batch"), [("tiled_encode_all", 1), ("tiled_encode_all", 3), ("tiled_encode_time", 2)]
)
def test_tiled_encode_agrees_with_the_reference_within_1e_4(golden, name, batch):
    case = golden("ltx2_3_tiled")
    vae = VideoVAE.from_pretrained(case.checkpoint, decoder=False)
    check = case.check(name)
    pixels = case.arrays[check["input"]]
    result = np.array(vae.encode(pixels, tiling=tiling_of(check), tile_batch_size=batch))
    assert list(result.shape) == check["full_shape"]
    assert np.abs(case.select(result, check) - case.arrays[check["expected"]]).max() < tolerance(1e-4)


@pytest.mark.parametrize(("frames", "items", "sizes"), [(9, 1, (2, 50)), (1, 2, (3,))])
def test_tiles_in_batches_give_what_tiles_one_by_one_give(vae, frames, items, sizes):
    """256x128 in tiles of 96 that share 32: four shapes, batches that are not full, and batches of one."""
    pixels = random_pixels(frames, 128, 256, batch=items)
    expected = vae.encode(pixels, tiling=SPATIAL)
    for size in sizes:
        batched = vae.encode(pixels, tiling=SPATIAL, tile_batch_size=size)
        assert largest_difference(batched, expected) < tolerance(1e-5), size


@pytest.mark.parametrize("size", [1, 4])
def test_tiles_of_a_stream_are_those_of_the_whole_clip(vae, size):
    pixels = random_pixels(17, 64, 128)
    expected = vae.encode(pixels, tiling=SPATIAL)
    parts = list(vae.encode_stream(cut(pixels, [3, 10, 1]), tiling=SPATIAL, tile_batch_size=size))
    assert len(parts) > 1
    assert largest_difference(mx.concatenate(parts, axis=2), expected) < tolerance(1e-5)


def test_a_network_is_called_once_for_each_batch_of_tiles(vae, monkeypatch):
    calls = []
    stages = vae.encoder.stages
    monkeypatch.setattr(type(vae.encoder), "stages", lambda self, *args: calls.append(args) or stages(*args))
    for size, expected in ((1, 8), (2, 6), (100, 4)):
        calls.clear()
        vae.encode(random_pixels(1, 128, 256), tiling=SPATIAL, tile_batch_size=size)
        assert len(calls) == expected


@pytest.mark.parametrize("size", [0, -3, 1.0])
def test_a_tile_batch_below_one_is_refused_whatever_the_video(vae, size):
    for pixels in (random_pixels(1), iter(()), "no video"):
        with pytest.raises(tiling.TilingError, match="tile batch"):
            vae.encode(pixels, tile_batch_size=size)


@pytest.mark.parametrize(
    ("pixels", "words"),
    [
        (random_pixels(9, 60, 90), "nearest such size is 96x64"),
        (random_pixels(9)[0], r"shape \(3, 9, 64, 96\)"),
        (random_pixels(9) * mx.nan, "NaN"),
        (random_pixels(9) * mx.inf, "infinite"),
        (random_pixels(9) * 127.5 + 127.5, "divide by 127.5"),
        (random_pixels(9).astype(mx.int32), "int32"),
        (np.zeros((9, 64, 96, 4), np.uint8), "uint8"),
        (np.zeros((0, 64, 96, 3), np.uint8), "empty"),
        ([], "no frames"),
        ([random_pixels(1), random_pixels(1, 96, 64)], "alike"),
        ([random_pixels(1), np.zeros((1, 64, 96, 3), np.uint8)], "alike"),
    ],
)
def test_frames_that_cannot_be_encoded_are_refused(vae, pixels, words):
    for tiles in (None, SPATIAL):
        with pytest.raises(LatentsError, match=words):
            vae.encode(pixels, tiling=tiles)


def test_tiles_in_time_of_an_iterator_are_refused_at_once(vae):
    in_time = tiling.TilingConfig(temporal_config=tiling.TemporalTilingConfig(16, 8))
    plan = vae.plan_encode((1, 3, 9, 64, 96), mode="tiled", tiling=in_time)
    for options in ({"tiling": in_time}, {"plan": plan}):
        with pytest.raises(tiling.TilingError, match="exact in time"):
            vae.encode_stream([random_pixels(9)], **options)


def test_an_encoder_in_float16_is_promoted_and_says_so(golden, vae):
    half = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint, dtype="float16")
    assert half.dtype == half.decoder.conv_in.conv.weight.dtype == mx.float16
    with pytest.warns(UserWarning, match="float16 may overflow"):
        latents = half.encode(random_pixels(9))
    assert latents.dtype == mx.float32
    assert mx.abs(latents - vae.encode(random_pixels(9))).max().item() < 0.01  # what rounding the weights does


def test_latents_that_are_not_finite_are_refused(golden):
    vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint, decoder=False)
    vae.encoder.conv_out.conv.bias = mx.full(vae.encoder.conv_out.conv.bias.shape, mx.inf)
    with pytest.raises(LatentsError, match="not finite"):
        vae.encode(random_pixels(1))


def test_memory_of_a_stream_does_not_grow_with_the_clip(vae):
    def peak(frames):
        gc.collect()
        mx.clear_cache()
        before = active_memory()
        mx.reset_peak_memory()
        levels = np.zeros((8, 64, 64, 3), np.uint8)
        for part in vae.encode_stream(levels for _ in range(frames // 8)):
            del part
        return mx.get_peak_memory() - before

    with pytest.warns(UserWarning, match="left out"):
        # MLX runs a few operations ahead, so the peak of so small an encode varies by some percent.
        assert peak(256) <= 1.1 * peak(96)


@pytest.mark.parametrize("is_stream", [False, True])
def test_pixels_from_0_to_1_are_said(golden, is_stream):
    vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint, decoder=False)
    pixels = mx.random.uniform(0, 1, (1, 3, 9, 64, 64), key=mx.random.key(0))
    with pytest.warns(UserWarning, match=r"no value of the frames is below 0.*pass 2 \* frames - 1") as caught:
        vae.encode(iter([pixels[:, :, :4], pixels[:, :, 4:]]) if is_stream else pixels)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vae.encode(2 * pixels - 1)
        vae.encode(np.zeros((9, 64, 64, 3), np.uint8))
