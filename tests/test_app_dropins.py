"""`mlx_ltx_vae.integrations` with stand-ins for the apps' decoders."""

import logging
import wave
from enum import Enum
from types import SimpleNamespace
from unittest import mock

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_map, tree_unflatten

from app_packages import network_arrays
from checkpoint_files import named_parameters
from conftest import active_memory
from mlx_ltx_vae import CheckpointError, PlanError, VideoReader, VideoVAE
from mlx_ltx_vae.integrations import decode_and_stream, decode_streaming, decode_tiled, decode_whole, vae_of
from mlx_ltx_vae.integrations.dropins import decode_latent
from mlx_ltx_vae.planning.plan import Mode
from mlx_ltx_vae.tiling import TemporalTilingConfig, TilingConfig
from tolerances import tolerance

# As mlx-video and ltx-2-mlx, mlx-video-with-audio, and LTX-2-MLX call them.
STATISTICS = [
    ("per_channel_statistics.mean", "per_channel_statistics.std"),
    ("latents_mean", "latents_std"),
    ("mean_of_means", "std_of_means"),
]
# LTX-2-MLX's objects: of its own classes, with its own names for sizes along time.
TILES = SimpleNamespace(
    spatial_config=SimpleNamespace(tile_size_in_pixels=128, tile_overlap_in_pixels=32),
    temporal_config=SimpleNamespace(chunk_size_in_frames=32, chunk_overlap_in_frames=8),
)


TILES_IN_TIME = SimpleNamespace(chunk_size_in_frames=16, chunk_overlap_in_frames=8)


class AppDecoder(nn.Module):
    """An app's decoder, with its names and its layout of weights, and a single pass of its own."""

    def __init__(self, weights):
        super().__init__()
        for name, value in weights.items():
            setattr(self, name, value)

    def __call__(self, latents):
        return "the app's own pixels"


class PatchedDecoder(AppDecoder):
    __call__ = decode_whole
    decode_tiled = decode_tiled
    decode_and_stream = decode_and_stream


@pytest.fixture
def make(weights):
    """`make(PatchedDecoder, "ltx2_3")`: with arrays of its own."""

    def make_decoder(kind, case="ltx2_3", statistics=STATISTICS[0]):
        arrays = network_arrays(weights(case), statistics=statistics)
        mx.eval(arrays)
        return kind(tree_unflatten(list(arrays.items())))

    return make_decoder


@pytest.fixture
def expected(golden):
    return VideoVAE.from_pretrained(golden("ltx2_3").checkpoint, encoder=False)


def random_latents(*grid):
    return mx.random.normal((1, 8, *grid), key=mx.random.key(0))


@pytest.mark.quick(2)
@pytest.mark.parametrize("statistics", STATISTICS)
def test_an_apps_decoder_decodes_as_the_checkpoint_does(make, expected, statistics):
    latents = random_latents(2, 2, 3)
    decoder, pixels = make(PatchedDecoder, statistics=statistics), expected.decode(latents)
    assert mx.array_equal(decoder.decode_tiled(latents), pixels)
    assert mx.array_equal(decoder(latents, chunked_conv=True, show_progress=False), pixels)


def test_the_weights_are_in_memory_once_and_loaded_once(make, expected):
    decoder = make(PatchedDecoder)
    shapes = {name: (array.shape, array.dtype) for name, array in named_parameters(decoder).items()}
    size = sum(array.nbytes for array in named_parameters(decoder).values())
    before = active_memory()
    vae = vae_of(decoder)
    assert active_memory() - before < size / 100
    assert {name: (array.shape, array.dtype) for name, array in named_parameters(decoder).items()} == shapes
    decoder.decode_tiled(random_latents(1, 2, 2))
    assert vae_of(decoder) is vae


@pytest.mark.parametrize("statistics", STATISTICS)
def test_the_statistics_stay_for_the_next_generation(make, statistics):
    """Apps upsample the latents of a first stage with those of the decoder."""
    decoder, untouched = make(PatchedDecoder, statistics=statistics), make(AppDecoder, statistics=statistics)
    first = decoder(random_latents(1, 2, 2))
    for name in statistics:
        assert mx.array_equal(named_parameters(decoder)[name], named_parameters(untouched)[name])
    assert mx.array_equal(decoder(random_latents(1, 2, 2)), first)


def module_with(**attributes):
    module = nn.Module()
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


class PaddingModeType(Enum):
    ZEROS = "zeros"


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("case", "attributes", "stated"),
    [
        ("ltx2_3", {"spatial_padding_mode": "reflect"}, {"spatial_padding_mode": "reflect"}),
        (
            "ltx2",
            {"inner": module_with(spatial_padding_mode=PaddingModeType.ZEROS)},
            {"spatial_padding_mode": "zeros"},
        ),
        ("ltx2_3", {"spatial_padding_mode": "zeros", "inner": module_with(spatial_padding_mode="conv")}, {}),
        ("ltx2_3", {"_causal": True}, {"causal_decoder": True}),
    ],
)
def test_what_an_app_states_of_its_decoder_is_followed(make, golden, weights, case, attributes, stated):
    """Of LTX-2.3 the weights imply zeros, of LTX-2 reflection, and of both a decoder that is not causal."""
    decoder, latents = make(PatchedDecoder, case), random_latents(2, 2, 3)
    arrays = {name: mx.array(array) for name, array in weights(case).items()}
    implied, expected = (
        VideoVAE.from_weights(arrays, golden(case).manifest["vae_config"] | more).decode(latents)
        for more in ({}, stated)
    )
    for name, value in attributes.items():
        setattr(decoder, name, value)
    assert mx.array_equal(decoder(latents), expected)
    assert mx.array_equal(implied, expected) == (not stated)


@pytest.mark.parametrize("modes", [("circular",), ("reflect", "zeros")])
def test_padding_that_is_not_known_is_refused(make, modes):
    decoder = make(PatchedDecoder)
    arrays = named_parameters(decoder)
    decoder.inner = [module_with(spatial_padding_mode=mode) for mode in modes]
    words = " and ".join(map(repr, modes))
    with pytest.raises(CheckpointError, match=f"the app's decoder pads with {words}; expected zeros or reflect in all"):
        decoder(random_latents(1, 2, 2))
    assert all(array is arrays[name] for name, array in named_parameters(decoder).items())


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float32])
def test_pixels_have_the_dtype_of_the_latents(make, dtype):
    decoder, latents, streamed = make(PatchedDecoder), random_latents(2, 2, 2).astype(dtype), []
    decoder.update(tree_map(lambda array: array.astype(mx.bfloat16), decoder.parameters()))
    assert decoder(latents).dtype == dtype
    tiled = decoder.decode_tiled(latents, on_frames_ready=lambda frames, start: streamed.append(frames.dtype))
    assert {tiled.dtype, *streamed} == {dtype}


@pytest.mark.parametrize(
    ("decode", "dtype"),
    [(decode_tiled, "float32"), (decode_tiled, "bfloat16"), (decode_latent, "float32"), (decode_latent, "bfloat16")],
)
def test_a_plan_counts_the_array_that_an_app_gets(make, caplog, decode, dtype):
    """Its values are smaller than the network's bfloat16, or larger."""
    decoder, latents = make(AppDecoder), random_latents(2, 2, 3).astype(getattr(mx, dtype))
    decoder.update(tree_map(lambda array: array.astype(mx.bfloat16), decoder.parameters()))
    plans, plan = [], VideoVAE.plan
    with mock.patch.object(
        VideoVAE, "plan", lambda *given, **options: plans.append(plan(*given, **options)) or plans[-1]
    ):
        array = decode(latents, decoder) if decode is decode_latent else decode(decoder, latents)
    assert array.dtype == (mx.uint8 if decode is decode_latent else latents.dtype)
    assert plans[-1].memory.result == array.nbytes


def test_other_weights_are_noticed(make, golden):
    decoder, latents = make(PatchedDecoder), random_latents(1, 2, 2)
    before = decoder(latents)
    others = {name: array * 0.5 if name.startswith("conv_in") else array
              for name, array in named_parameters(make(AppDecoder)).items()}  # fmt: skip
    decoder.load_weights(list(others.items()))
    after = decoder(latents)
    decoder.load_weights(list(named_parameters(make(AppDecoder)).items()))
    assert not mx.array_equal(after, before)
    assert mx.array_equal(decoder(latents), before)


def test_a_decoder_with_a_single_pass_of_its_own_keeps_its_arrays(make, expected):
    decoder, latents = make(AppDecoder), random_latents(1, 2, 2)
    arrays = named_parameters(decoder)
    assert mx.array_equal(decode_tiled(decoder, latents), expected.decode(latents))
    assert all(array is arrays[name] for name, array in named_parameters(decoder).items())
    assert vae_of(decoder) is vae_of(decoder)


def test_damaged_weights_are_an_error_and_stay_where_they_are(make):
    decoder = make(PatchedDecoder)
    decoder.conv_in["conv"]["bias"] = bias = decoder.conv_in["conv"]["bias"][:-1]
    with pytest.raises(CheckpointError, match=r"^weights: .*conv_in\.conv\.bias has the shape"):
        vae_of(decoder)
    assert decoder.conv_in["conv"]["bias"] is bias


def test_frames_come_in_order_and_are_those_of_the_result_and_of_an_exact_plan(make, expected):
    streamed, latents = [], random_latents(5, 2, 5)

    def on_frames_ready(frames, start):
        assert start == sum(each.shape[2] for each in streamed)
        streamed.append(frames)

    video = make(PatchedDecoder).decode_tiled(latents, TILES, on_frames_ready=on_frames_ready)
    assert len(streamed) > 1
    assert mx.array_equal(video, expected.decode(latents))
    assert mx.array_equal(mx.concatenate(streamed, axis=2), video)


@pytest.mark.parametrize("tiling", [TILES, None, TilingConfig.spatial_only(100, 10)])  # the last one fits no VAE
def test_the_apps_tiles_are_used_where_no_exact_plan_fits(make, monkeypatch, caplog, tiling):
    choose, plans = VideoVAE.plan, []
    monkeypatch.setattr(
        VideoVAE, "plan", lambda self, shape, **options: choose(self, shape, **{"mode": "tiled"} | options)
    )
    monkeypatch.setattr(
        VideoVAE, "stream", lambda self, latents, plan, **options: plans.append(plan) or (_ for _ in ())
    )
    caplog.set_level(logging.INFO, "mlx_ltx_vae.integrations")
    assert list(decode_streaming(random_latents(9, 5, 9), make(PatchedDecoder), tiling, show_progress=False)) == []
    (plan,) = plans
    assert plan.mode is Mode.TILED
    sizes = plan.tiling.spatial_config.tile_size_in_pixels, plan.tiling.spatial_config.tile_overlap_in_pixels
    assert (sizes == (128, 32)) == (tiling is TILES)
    if tiling is TILES:
        assert plan.tiling.temporal_config == TemporalTilingConfig(32, 8)
    assert str(plan) in caplog.text


def test_a_timestep_is_for_those_that_take_one(make, golden):
    latents = random_latents(1, 2, 2)
    decoder = make(PatchedDecoder, "ltxv_0_9_5")
    vae = VideoVAE.from_pretrained(golden("ltxv_0_9_5").checkpoint, encoder=False)
    assert mx.array_equal(decoder.decode_tiled(latents, timestep=mx.array([0.3])), vae.decode(latents, timestep=0.3))
    assert mx.array_equal(decoder.decode_tiled(latents), vae.decode(latents))
    decoder.decode_timestep, decoder.decode_noise_scale = 0.4, 0.1  # as mlx-video's decoders have them
    assert mx.array_equal(decoder(latents), vae.decode(latents, timestep=0.4, noise_scale=0.1))
    assert mx.array_equal(decoder(latents, timestep=0.3), vae.decode(latents, timestep=0.3, noise_scale=0.1))
    decoder = make(PatchedDecoder)
    assert mx.array_equal(decoder(latents, timestep=0.3), decoder(latents))


@pytest.mark.parametrize("call", [decode_tiled, decode_whole])
def test_another_padding_along_time_is_refused(make, call):
    with pytest.raises(PlanError, match="causal=True is not supported"):
        call(make(PatchedDecoder), random_latents(2, 2, 2), causal=True)


def test_a_video_is_written_with_its_audio(make, expected, tmp_path):
    with wave.open(str(tmp_path / "voice.wav"), "wb") as voice:
        voice.setparams((1, 2, 16000, 0, "NONE", ""))
        voice.writeframes(bytes(2 * 6000))
    latents, written = random_latents(2, 2, 3), tmp_path / "clip.mp4"
    audio = str(tmp_path / "voice.wav")
    make(PatchedDecoder).decode_and_stream(latents, str(written), frame_rate=25.0, audio_path=audio)
    expected.decode_to_file(latents, tmp_path / "expected.mp4", fps=25, audio=audio, crf=18)
    videos = []
    for path in (written, tmp_path / "expected.mp4"):
        with VideoReader(path) as reader:
            assert reader.fps == 25
            videos.append(np.concatenate(list(reader)))
    assert videos[0].shape == (9, 64, 96, 3)
    assert np.array_equal(*videos)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("budget", "text"),
    [
        ("0.001", "a memory budget of .* is too small.*; this is taken"),
        ("0", "the default budget is taken"),
        ("much", "is a size such as 8GB.*'muchGiB'; the default budget is taken"),
    ],
)
def test_the_apps_budget_is_a_wish(make, expected, monkeypatch, tmp_path, caplog, budget, text):
    monkeypatch.setenv("LTX2_VAE_DECODE_BUDGET_GB", budget)
    latents = random_latents(2, 2, 3)
    with pytest.warns(UserWarning, match=text):
        make(PatchedDecoder).decode_and_stream(latents, str(tmp_path / "clip.mp4"), frame_rate=25)
    with VideoReader(tmp_path / "clip.mp4") as reader:
        assert np.concatenate(list(reader)).shape == (9, 64, 96, 3)
    caplog.set_level(logging.INFO, "mlx_ltx_vae.integrations")
    with pytest.warns(UserWarning, match=text):
        pixels = make(PatchedDecoder)(latents)
    assert mx.abs(pixels - expected.decode(latents)).max().item() < tolerance(1e-4)


@pytest.mark.parametrize("show_progress", [True, False])
def test_a_stream_yields_pixels_and_shows_how_far_it_is(make, expected, capsys, show_progress):
    latents = random_latents(4, 2, 2)
    chunks = list(decode_streaming(latents, make(PatchedDecoder), TILES, show_progress=show_progress))
    assert len(chunks) > 1
    assert mx.array_equal(mx.concatenate(chunks, axis=2), expected.decode(latents))
    printed = capsys.readouterr()
    assert printed.out == ""
    assert ("25/25 frames" in printed.err) == show_progress


@pytest.mark.parametrize(
    ("tiling", "num_chunks"),
    [(SimpleNamespace(spatial_config=None, temporal_config=TILES_IN_TIME), 4), (TILES, 2), (None, 1)],
)
def test_a_function_in_place_of_a_decoder_gets_the_apps_tiles(tiling, num_chunks):
    """As a test of LTX-2-MLX has it: what decodes each latent cell alone, of which tiles are blended to the whole."""
    calls, latents = [], mx.arange(96.0).reshape(1, 4, 6, 2, 2) / 7

    def decode(part, timestep=None, show_progress=False):
        calls.append((part.shape[2], timestep, show_progress))
        times = mx.array([0, *(1 + frame // 8 for frame in range(8 * (part.shape[2] - 1)))])
        return mx.repeat(mx.repeat(mx.take(part[:, :3], times, axis=2), 32, axis=3), 32, axis=4)

    chunks = list(decode_streaming(latents, decode, tiling, timestep=0.3, show_progress=False))
    found, expected = mx.concatenate(chunks, axis=2), decode(latents)
    assert found.shape == expected.shape
    assert mx.abs(found - expected).max().item() < 1e-4
    assert len(chunks) == num_chunks
    assert calls[0][1:] == (0.3, False)
