"""The diffusion decoder of LTX-2.5 against the reference, and its streams against its single pass."""

import json
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file

from conftest import FIXTURES
from diffusion_cases import CASES, as_numpy, decode_check, decodes, given_noise, relative_rms
from mlx_ltx_vae import LatentsError, PlanError, VideoVAE
from mlx_ltx_vae.networks.base import Statistics
from mlx_ltx_vae.networks.diffusion_decoder.config import parse_decoder_config
from mlx_ltx_vae.networks.diffusion_decoder.networks import DiffusionDecoder
from mlx_ltx_vae.networks.diffusion_decoder.specs import decoder_spec
from mlx_ltx_vae.networks.noise import draw
from mlx_ltx_vae.options import DecodeOptions, PlanOptions
from mlx_ltx_vae.planning.planner import plan_decode
from mlx_ltx_vae.shapes import Axis, LatentShape
from mlx_ltx_vae.streaming.context import StreamContext
from mlx_ltx_vae.streaming.driver import run_whole
from mlx_ltx_vae.streaming.window import Delay
from synthetic_checkpoint import make_inputs, make_weights, select
from tolerances import cpu_only, tolerance

ORDERS = ["time", "rows", "columns"]


@pytest.mark.golden
@pytest.mark.parametrize("mode", ["single", "exact"])
@pytest.mark.parametrize("name", CASES)
def test_float32_agrees_with_the_reference_within_2e_4(golden, vaes, name, mode):
    case, vae = golden(name), vaes(name)
    for check in decodes(case):
        result = decode_check(vae, case, check, mode=mode)
        assert list(result.shape) == check["full_shape"], check["name"]
        assert np.abs(case.select(result, check) - case.arrays[check["expected"]]).max() < tolerance(2e-4)
    encoded = case.check("encode")
    latents = as_numpy(vae.encode(case.arrays[encoded["input"]]))
    assert np.abs(case.select(latents, encoded) - case.arrays[encoded["expected"]]).max() < tolerance(1e-4)


@pytest.mark.golden
@pytest.mark.parametrize("name", CASES)
def test_bfloat16_agrees_with_the_reference_within_4_5_percent_rms(golden, vaes, name):
    case, vae = golden(name), vaes(name, "bfloat16")
    for check in decodes(case):
        result = case.select(decode_check(vae, case, check), check)
        assert relative_rms(result, case.arrays[check["expected"]]) < 0.045


@pytest.mark.golden
@pytest.mark.slow
def test_the_published_geometry_agrees_with_the_reference(golden, vaes):
    """Also one cell, one and two frames, a batch and two steps."""
    case, vae = golden("ltx2_5_diffusion_published"), vaes("ltx2_5_diffusion_published")
    for check in decodes(case):
        result, expected = case.select(decode_check(vae, case, check), check), case.arrays[check["expected"]]
        assert np.abs(result - expected).max() < tolerance(2e-4), check["name"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "steps", "order"),
    [
        (CASES[0], 1, "time"),
        (CASES[0], 1, "columns"),
        (CASES[1], 1, "rows"),
        (CASES[1], 3, "time"),
        (CASES[1], 3, "columns"),
    ],
)
def test_a_stream_is_the_single_pass_for_every_chunk_and_step(vaes, name, steps, order):
    vae = vaes(name)
    latents = mx.random.normal((1, 8, 4, 3, 4), key=mx.random.key(1))
    single = vae.decode(latents, vae.plan(latents.shape, mode="single", steps=steps), seed=3)
    assert single.shape == (1, 3, 25, 96, 128)
    for chunk in (1, 3):
        plan = vae.plan(latents.shape, mode="exact", order=order, chunk=chunk, steps=steps)
        assert plan.denoising_steps == steps
        for positions in (plan.steps, (1,) * len(plan.steps)) if chunk == 1 and name == CASES[1] else (plan.steps,):
            streamed = vae.decode(latents, replace(plan, steps=positions), seed=3)
            assert mx.abs(streamed - single).max().item() < tolerance(1e-4), (chunk, positions)


@pytest.mark.quick(2)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("grid", [(1, 1, 2), (2, 4, 1)])
def test_small_clips_are_padded_alike_in_every_order(vaes, grid, order):
    vae = vaes(CASES[0])
    latents = mx.random.normal((1, 8, *grid), key=mx.random.key(1))
    single = vae.decode(latents, vae.plan(latents.shape, mode="single"))
    frames, height, width = grid
    assert single.shape == (1, 3, 8 * frames - 7, 32 * height, 32 * width)
    plan = vae.plan(latents.shape, mode="exact", order=order, chunk=1)
    assert mx.abs(vae.decode(latents, plan) - single).max().item() < tolerance(1e-4)


def test_the_network_can_be_called(vaes):
    vae = vaes(CASES[1])
    latents = mx.random.normal((1, 8, 2, 3, 3), key=mx.random.key(1))
    assert mx.abs(vae.decoder(latents, 1) - vae.decode(latents, steps=1)).max().item() < tolerance(1e-4)


def test_latents_that_arrive_are_decoded_by_time(vaes):
    vae = vaes(CASES[0])
    latents = mx.random.normal((1, 8, 4, 3, 3), key=mx.random.key(1))
    whole, arriving = vae.decode(latents, seed=4), vae.decode(iter(mx.split(latents, 4, axis=2)), seed=4)
    assert mx.abs(whole - arriving).max().item() < tolerance(1e-4)


def test_noise_is_a_function_of_seed_and_position(vaes):
    """A wider clip has the noise of a narrower one where they overlap."""
    spec = vaes(CASES[0]).decoder.spec

    def noise(width, seed):
        (volume,) = draw(spec, LatentShape(1, 8, 3, 3, width), mx.float32, DecodeOptions(seed=seed)).volumes.values()
        return volume(((0, 0, 0),), (0, 0, 0), (17, 24, 8 * width))

    narrow, wide, other = noise(3, 9), noise(4, 9), noise(3, 10)
    assert mx.array_equal(wide[:, :, :, :24], narrow)
    assert mx.abs(other - narrow).max().item() > 0.1
    latents = mx.zeros((1, 8, 3, 3, 3))
    given = [narrow.transpose(0, 4, 1, 2, 3)]
    vae = vaes(CASES[0])
    assert mx.abs(vae.decode(latents, seed=9) - vae.decode(latents, noise=given)).max().item() < tolerance(1e-5)


@pytest.mark.slow
def test_a_part_of_a_clip_is_that_of_the_whole(vaes):
    vae = vaes(CASES[1])
    latents = mx.random.normal((1, 8, 10, 3, 3), key=mx.random.key(1))
    whole = vae.decode(latents, vae.plan(latents.shape, steps=1))
    plan = vae.plan(latents.shape, frames=(60, 70), order="time", steps=1)
    assert plan.excerpt.latents.start > 0
    assert mx.abs(vae.decode(latents, plan) - whole[:, :, 60:70]).max().item() < tolerance(1e-4)


def test_steps_come_from_the_plan_or_are_refused(vaes, golden):
    vae, conv = vaes(CASES[1]), VideoVAE.from_pretrained(golden("ltx2_3_causal").checkpoint)
    latents = mx.random.normal((1, 8, 1, 2, 2), key=mx.random.key(1))
    assert vae.plan(latents.shape).denoising_steps == 2
    assert mx.abs(vae.decode(latents, steps=1) - vae.decode(latents)).max().item() > 1e-2
    with pytest.raises(PlanError, match="the plan was made for 2 denoising steps, not 3; plan with steps=3"):
        vae.decode(latents, vae.plan(latents.shape), steps=3)
    for steps in (0, 101, True, 1.0):
        with pytest.raises(PlanError, match="must be a whole number from 1 to 100, not"):
            vae.plan(latents.shape, steps=steps)
    with pytest.raises(PlanError, match="this VAE takes no denoising steps"):
        conv.decode(latents, steps=2)


def test_the_least_memory_is_named(vaes):
    vae = vaes(CASES[0])
    with pytest.raises(PlanError, match="a memory budget of .* is too small .*; the least that works is .* by columns"):
        vae.plan((1, 8, 30, 9, 40), memory_budget="1MB", bit_depth=8)


def test_the_order_with_the_least_memory_is_chosen(vaes):
    vae = vaes(CASES[0])
    for grid, order in [((6, 8, 40), "columns"), ((6, 40, 8), "rows"), ((30, 6, 6), "time")]:
        plans = {each: vae.plan((1, 8, *grid), order=each, memory_budget="50GB", bit_depth=8) for each in ORDERS}
        chosen = vae.plan((1, 8, *grid), memory_budget="50GB", bit_depth=8)
        assert chosen.order.value == order
        assert chosen.memory.active == min(plan.memory.active for plan in plans.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype", "options"),
    [
        (CASES[0], "float32", {"order": "time"}),
        (CASES[0], "float32", {"mode": "single"}),
        (CASES[0], "bfloat16", {"order": "columns"}),
        (CASES[1], "float32", {"order": "time", "chunk": 3}),
        (CASES[1], "float32", {"order": "rows"}),
        (CASES[1], "float32", {"order": "columns", "steps": 3}),
    ],
)
@cpu_only("plans for a GPU count a step ahead, which may not overlap")
def test_its_planned_peak_holds(vaes, name, options, dtype):
    vae = vaes(name, dtype)
    latents = mx.random.normal((1, 8, 6, 7, 9), key=mx.random.key(1))
    plan = vae.plan(latents.shape, **options)
    mx.eval(latents)
    held = mx.get_active_memory() - plan.memory.weights - latents.nbytes
    mx.reset_peak_memory()
    for chunk in vae.stream(latents, plan):
        mx.eval(chunk.frames)
        del chunk
    ratio = plan.memory.active / (mx.get_peak_memory() - held)
    assert 1.0 <= ratio <= 1.5


def test_noise_of_another_shape_is_refused(vaes, golden):
    case = golden(CASES[0])
    vae, check = vaes(CASES[0]), case.check("decode")
    (noise,) = given_noise(case, check)
    expected = r"the network expects \(1, 48, 17, 24, 32\), or the picture \(1, 3, 17, 96, 128\)\.$"
    with pytest.raises(LatentsError, match=expected):
        vae.decode(case.arrays[check["input"]], noise=[noise[:, :, 1:]])


@pytest.mark.parametrize(("order", "lookahead"), [("time", 20), ("columns", 40)])
def test_the_published_lookahead_is_20_latent_frames(golden, order, lookahead):
    manifest = golden("ltx2_5_diffusion_published").manifest["vae_config"]
    config = parse_decoder_config(manifest["decoder"], "x0", "file", is_fused=True, has_gates=False)
    assert plan_decode(decoder_spec(config), (1, 8, 40, 8, 8), options=PlanOptions(order=order)).lookahead == lookahead


@pytest.mark.slow
def test_memory_by_time_does_not_grow_with_the_clip(vaes):
    vae, peaks = vaes(CASES[0]), []
    for frames in (25, 60):
        latents = mx.random.normal((1, 8, frames, 4, 4), key=mx.random.key(1))
        mx.eval(latents)
        held = mx.get_active_memory()
        mx.reset_peak_memory()
        for chunk in vae.stream(latents, vae.plan(latents.shape, order="time")):
            mx.eval(chunk.frames)
            del chunk
        peaks.append(mx.get_peak_memory() - held)
    assert peaks[1] < 1.05 * peaks[0]


@pytest.mark.full_width
def test_blocks_of_the_published_widths_agree_with_the_reference():
    manifest = json.loads((FIXTURES / "full_width_ltx2_5_diffusion_blocks.json").read_text())
    arrays = load_file(FIXTURES / "full_width_ltx2_5_diffusion_blocks.safetensors") | make_inputs(manifest)
    weights = {name.removeprefix("vae.decoder."): mx.array(array) for name, array in make_weights(manifest).items()}
    decoder = manifest["vae_config"]["decoder"]
    config = parse_decoder_config(decoder, "x0", "file", is_fused=True, has_gates=False)
    network = DiffusionDecoder(config, Statistics(mx.zeros(128), mx.ones(128)))
    embedder, adaln = network.t_embedder, network.shared_adaln
    for name in ("t_embedder", "shared_adaln"):
        network.at(name).load_weights(below(weights, f"{name}."))
    for check in manifest["checks"]:
        name, is_denoising = check["block"], "context" in check
        block = network.at(name)
        block.load_weights(below(weights, f"{name}."))
        modulation, delay = None, Delay(Axis.TIME)
        if is_denoising:
            modulation = adaln(embedder(mx.array([check["timestep"] * config.timestep_multiplier])))
            delay.push(mx.array(arrays[check["context"]]))
        stages = block.stages(StreamContext(), modulation, delay.take_next if is_denoising else None)
        result = as_numpy(run_whole(stages, mx.array(arrays[check["input"]])))
        assert list(result.shape) == check["full_shape"]
        assert np.abs(select(result, check) - arrays[check["expected"]]).max() < tolerance(2e-4)


def below(weights, prefix):
    return [(name.removeprefix(prefix), array) for name, array in weights.items() if name.startswith(prefix)]
