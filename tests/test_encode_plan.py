"""Plans of encodes: what they say is what runs."""

import json
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from commands import encode as main
from conftest import active_memory
from mlx_ltx_vae import LatentsError, PlanError, VideoVAE, VideoWriter
from mlx_ltx_vae.backend.machine import Backend, Machine
from mlx_ltx_vae.options import PlanOptions
from mlx_ltx_vae.planning.plan import Mode
from mlx_ltx_vae.planning.planner import plan_encode
from mlx_ltx_vae.tiling import SpatialTilingConfig, TemporalTilingConfig, TilingConfig
from tolerances import PEAK_MARGIN, tolerance
from vae_configs import GENERATIONS, encoder_spec, parse_vae_config

GB = 10**9
REAL = encoder_spec(parse_vae_config(GENERATIONS["LTX-2.3"], "LTX-2.3"))
GPU = Machine(Backend.METAL, 2)


@pytest.fixture(scope="module")
def vae(golden):
    return VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint, decoder=False)


def pixels_of(frames=9, height=64, width=96):
    return mx.random.uniform(-1, 1, (1, 3, frames, height, width), key=mx.random.key(3))


def test_it_says_what_it_will_do_and_fits_json(vae):
    plan = vae.plan_encode((1, 3, 41, 64, 96))
    assert (plan.num_frames, plan.frame_size, plan.latent_shape) == (41, (96, 64), (1, 8, 6, 2, 3))
    of_levels = vae.plan_encode((41, 64, 96, 3))
    assert of_levels.peak_bytes < plan.peak_bytes
    assert replace(of_levels, memory=plan.memory, machine=plan.machine) == plan  # what is available changes meanwhile
    for words in (
        "41 frames of 96x64",
        "streamed by time, 8 frames at a time",
        "latent frame after about 4 % of the work",
    ):
        assert words in str(plan), words
    assert json.loads(json.dumps(plan.as_dict()))["mode"] == "exact"


@pytest.mark.parametrize(("pad", "expected"), [(False, 41), (True, 49)])
def test_frames_that_fill_no_latent_frame_count_as_they_are_encoded(vae, pad, expected):
    assert vae.plan_encode((1, 3, 44, 64, 96), pad=pad).num_frames == expected


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((41, 64, 96), r"expected \(B"),
        ((1, 4, 41, 64, 96), r"expected \(B"),
        ((1, 3, 0, 64, 96), "empty"),
        ((1, 3, 9, 60, 96), "frames of 96x60 .* 32x32 pixels each; resize them to 96x64"),
        ((1, 3, 9, 64, 10), "resize them to 32x64"),
    ],
)
def test_other_shapes_are_refused(vae, shape, words):
    with pytest.raises(LatentsError, match=words):
        vae.plan_encode(shape)


def test_orders_other_than_time_are_refused():
    with pytest.raises(PlanError, match="streams by time only"):
        plan_encode(REAL, (1, 3, 9, 64, 64), options=PlanOptions(order="rows"))


def test_a_plan_for_other_frames_is_refused(vae):
    plan = vae.plan_encode((1, 3, 9, 64, 64))
    for encode in (lambda: vae.encode(pixels_of(), plan), lambda: list(vae.encode_stream([pixels_of()], plan))):
        with pytest.raises(PlanError, match="the plan was made for frames"):
            encode()
    with pytest.raises(PlanError, match="the plan has its tile_batch_size already; leave that out"):
        vae.encode(pixels_of(), plan, tile_batch_size=2)


def test_memory_does_not_grow_with_the_clip():
    short, long = (plan_encode(REAL, (1, 3, frames, 512, 768), GPU).peak_bytes for frames in (241, 2401))
    assert long == pytest.approx(short, rel=0.01)


def test_a_small_budget_takes_smaller_steps_and_then_tiles():
    shape = (1, 3, 121, 1088, 1920)
    free = plan_encode(REAL, shape, GPU)
    less = plan_encode(REAL, shape, GPU, PlanOptions(memory_budget=free.memory.active - 1))
    least = plan_encode(REAL, shape, replace(GPU, available=1), PlanOptions(mode="exact")).memory.active
    tiles = plan_encode(REAL, shape, GPU, PlanOptions(memory_budget=least - 1))
    assert (free.mode, less.mode, tiles.mode) == (Mode.EXACT, Mode.EXACT, Mode.TILED)
    assert (free.step, free.prefetch) != (less.step, less.prefetch)
    assert tiles.peak_bytes < least
    assert "blended in space" in str(tiles)
    with pytest.raises(PlanError, match="least that works"):
        plan_encode(REAL, shape, GPU, PlanOptions(memory_budget="500MB"))


def test_every_mode_encodes_what_it_plans(vae):
    pixels = pixels_of(17)
    expected = vae.encode(pixels)
    single = vae.encode(pixels, vae.plan_encode(pixels.shape, mode="single"))
    assert mx.abs(single - expected).max().item() < tolerance(1e-5)
    tiling = TilingConfig(SpatialTilingConfig(64, 32))
    tiled = vae.encode(pixels, vae.plan_encode(pixels.shape, mode="tiled", tiling=tiling))
    assert mx.abs(tiled - vae.encode(pixels, tiling=tiling)).max().item() == 0
    assert tiled.shape == expected.shape


IN_SPACE = {"mode": "tiled", "tiling": TilingConfig(SpatialTilingConfig(96, 32)), "tile_batch_size": 2}
IN_BOTH = {"mode": "tiled", "tiling": TilingConfig(SpatialTilingConfig(96, 32), TemporalTilingConfig(16, 8))}


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        *(("ltx2_3", options) for options in ({}, {"mode": "single"}, IN_SPACE, IN_BOTH)),
        ("ltxv_0_9_0", {}),
        ("ltxv_0_9_5", {}),
        ("conv_16x16x4", {"mode": "single"}),
        ("conv_16x16x4", IN_SPACE),
    ],
)
def test_the_planned_peak_holds(golden, name, options):
    vae = VideoVAE.from_pretrained(golden(name).checkpoint, decoder=False)
    frames = np.random.default_rng(0).integers(0, 256, (17, 96, 160, 3)).astype(np.uint8)
    plan = vae.plan_encode(frames.shape, **options)
    weights = vae.encoder.spec.num_weights * 4
    vae.encode(frames[:1])  # what is compiled and kept once is there now
    held = active_memory() - weights
    mx.reset_peak_memory()
    mx.eval(vae.encode(frames, plan))
    assert (mx.get_peak_memory() - held) / plan.memory.active <= PEAK_MARGIN


def test_the_command_prints_its_plan_and_keeps_to_a_budget(golden, tmp_path, capsys):
    clip, out = tmp_path / "clip.mkv", tmp_path / "latents.safetensors"
    with VideoWriter(clip, size=(96, 64), fps=24, codec="ffv1") as video:
        video.write(np.zeros((17, 64, 96, 3), np.uint8))
    command = [str(clip), "-m", str(golden("small_ltx2_3").checkpoint), "-o", str(out)]
    assert main([*command, "--dry-run"]) == 0
    assert "17 frames of 96x64" in capsys.readouterr().out
    assert main([*command, "--dry-run", "--json", "--memory-budget", "1GB"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"]["peak_bytes"] < GB
    assert not out.exists()
    assert main([*command, "--memory-budget", "1MB"]) == 1
    assert "the least that works" in capsys.readouterr().err
    assert not out.exists()
    assert main([*command, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["plan"]["frames"] == report["frames"] == 17
