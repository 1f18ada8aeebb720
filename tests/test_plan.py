"""Plans: what is chosen, what it says, and that its peaks hold."""

import json
import math
from dataclasses import replace

import mlx.core as mx
import pytest

from benchmarks.convolutions import recorded
from benchmarks.measuring import Case, Job, decode, run_job
from benchmarks.validation import validation_cases
from mlx_ltx_vae import PlanError, VideoVAE, demo, load_latents, save_latents
from mlx_ltx_vae.backend.machine import Backend, Machine
from mlx_ltx_vae.frame_format import RGB8, FrameOutput
from mlx_ltx_vae.networks.convolution.rules import ConvShape, winograd_elements
from mlx_ltx_vae.networks.diffusion_decoder.config import ltx_2_5
from mlx_ltx_vae.networks.diffusion_decoder.specs import decoder_spec as diffusion_spec
from mlx_ltx_vae.networks.specs import ConvSpec, FrameAttentionSpec, LayerSpec, NetworkSpec
from mlx_ltx_vae.networks.video_vae.config import GENERATIONS, decoder_spec, parse_vae_config
from mlx_ltx_vae.options import PlanOptions
from mlx_ltx_vae.planning import planner
from mlx_ltx_vae.planning.memory import StreamRun, stream_memory
from mlx_ltx_vae.planning.plan import Mode, Order
from mlx_ltx_vae.planning.planner import plan_decode
from mlx_ltx_vae.shapes import Axis, WindowSpec
from mlx_ltx_vae.tiling import TilingConfig

GB = 10**9
REAL = Machine(Backend.METAL, 2)


def config(name="LTX-2.3", **changes):
    return parse_vae_config({**GENERATIONS[name], **changes}, name)


def shape(width, height, frames):
    return (1, 128, 1 + (frames - 1) // 8, height // 32, width // 32)


def plan(size, budget=None, machine=REAL, must_fit=True, **options):
    memory_budget = None if budget is None else round(budget * GB)
    if not must_fit:  # half of what is available is an aim, and not a bound
        machine, memory_budget = replace(machine, available=2 * memory_budget), None
    return plan_decode(
        decoder_spec(config()), shape(*size), machine, PlanOptions(memory_budget=memory_budget, **options)
    )


def test_weights_are_counted_as_the_published_files_have_them(golden):
    for name in ("ltx2_3", "ltx2", "ltxv_0_9_0", "ltxv_0_9_1", "ltxv_0_9_5", "conv_16x16x4"):
        manifest = golden(name).manifest
        sizes = [math.prod(dims) for key, dims in manifest["weights"].items() if key.startswith("vae.decoder.")]
        assert decoder_spec(parse_vae_config(manifest["vae_config"], name)).num_weights == sum(sizes), name


@pytest.mark.parametrize("name", ["ltxv_0_9_0", "ltxv_0_9_1", "ltx2_3", "ltx2_3_causal"])
def test_multiply_adds_of_a_decode_are_those_of_its_convolutions(golden, name):
    vae = VideoVAE.from_pretrained(golden(name).checkpoint, encoder=False)
    operations = []
    with recorded(lambda convolution: operations.append(convolution.operations)):
        for _ in vae.stream(mx.zeros((1, vae.config.latent_channels, 4, 3, 2)), noise="zeros"):
            pass
    spec = decoder_spec(vae.config)
    pointwise = NetworkSpec(
        tuple(replace(layer, conv_channels=0) if isinstance(layer, ConvSpec) else layer for layer in spec.layers)
    )
    assert spec.multiply_adds((4, 3, 2)) - pointwise.multiply_adds((4, 3, 2)) == sum(operations) // 2


def test_each_position_of_an_attention_takes_part_in_two_products_with_its_frame():
    spec = NetworkSpec((FrameAttentionSpec("attention", 8, 8, unbounded=frozenset({Axis.HEIGHT, Axis.WIDTH})),))
    assert spec.multiply_adds((5, 6, 4)) == 2 * 5 * (6 * 4) * (6 * 4) * 8


def test_embeddings_of_a_timestep_are_computed_once_and_not_for_each_position():
    spec = decoder_spec(config("LTX-Video 0.9.1"))
    shared = [name for name in spec.weights if "time_embedder" in name]
    assert shared
    layers = (
        replace(layer, weights=tuple(weight for weight in layer.weights if weight[0] not in shared))
        for layer in spec.layers
    )
    assert spec.multiply_adds((2, 2, 2)) == NetworkSpec(tuple(layers)).multiply_adds((2, 2, 2))


def test_quality_comes_first_then_speed_then_memory():
    size = (3840, 2176, 121)
    generous, less, little = plan(size, 64), plan(size, 8), plan(size, 5)
    assert (generous.mode, generous.order) == (Mode.EXACT, Order.TIME)
    assert (less.mode, less.order) == (Mode.EXACT, Order.ROWS)
    assert little.mode is Mode.EXACT
    peaks = [candidate.peak_bytes for candidate in (generous, less, little)]
    assert peaks == sorted(peaks, reverse=True)
    assert less.peak_bytes <= 8 * GB


def test_4k_decodes_exactly_within_8_gb_at_the_real_widths_weights_included():
    chosen = plan((3840, 2176, 121), 8)
    assert chosen.mode is Mode.EXACT
    assert chosen.redundant_work == 0
    assert chosen.memory.weights == pytest.approx(0.814 * GB, rel=0.01)
    assert chosen.peak_bytes <= 8 * GB


@pytest.mark.parametrize(
    ("grid", "options"),
    [
        ((131_072, 128, 128), {"mode": "exact", "order": "rows"}),
        ((16, 400, 400), {"mode": "exact", "order": "time"}),
        ((9, 128, 128), {"mode": "tiled"}),
    ],
)
def test_no_array_reaches_the_size_that_kernels_cannot_index(monkeypatch, grid, options):
    with pytest.raises(PlanError, match="more than 2147 million elements, beyond which results are wrong"):
        plan_decode(decoder_spec(config()), (1, 128, *grid), REAL, PlanOptions(**options))
    monkeypatch.setattr(planner, "MAX_ARRAY_ELEMENTS", 2**40)
    assert plan_decode(decoder_spec(config()), (1, 128, *grid), REAL, PlanOptions(**options)).peak_bytes > 2**31


def test_no_array_is_larger_than_the_largest_buffer_of_the_device():
    """Hosted macOS machines report 3.76e9 bytes. An array may be in float32 for some time."""
    hosted, spec = replace(REAL, largest_buffer=3_760_000_000), decoder_spec(config())
    shape = (1, 128, 16, 256, 256)
    assert largest_array(spec, plan_decode(spec, shape, REAL)) > 3_760_000_000
    assert largest_array(spec, plan_decode(spec, shape, hosted)) <= 3_760_000_000
    # A convolution on Metal joins three frames.
    plan = plan_decode(
        spec, (1, 128, 16, 168, 168), replace(hosted, itemsize=4, available=None), PlanOptions(order="time")
    )
    layers = zip(plan.steps, spec.walk(plan.latent_shape.grid), strict=True)
    convolved = [12 * step * layer.in_channels * math.prod(grid[1:]) for step, (layer, grid) in layers if layer.weights]
    assert max(convolved) <= 3_760_000_000
    with pytest.raises(PlanError, match="more than 38 million elements, the largest buffer of this device; use"):
        plan_decode(spec, shape, replace(hosted, largest_buffer=150_000_000), PlanOptions(mode="exact"))
    with pytest.raises(PlanError, match="one array of 24.36 GB, and the largest buffer of this device has 3.76 GB;"):
        plan_decode(spec, (1, 128, 16, 128, 256), hosted, PlanOptions(joined=True))
    levels = PlanOptions(joined=True, outputs=(FrameOutput(RGB8),))  # an array of numpy
    assert plan_decode(spec, (1, 128, 16, 128, 256), hosted, levels).memory.result == 121 * 4096 * 8192 * 3
    tiles = {"mode": "tiled", "tiling": TilingConfig.default(), "joined": True}
    assert plan_decode(spec, (1, 128, 16, 64, 64), hosted, PlanOptions(**tiles)).memory.result < 3_760_000_000


def largest_array(spec, plan):
    """Bytes in float32 of the largest input of a step with the frames before it."""
    axis = plan.order.axis
    return 4 * max(
        (min(step, grid[axis.grid]) + layer.window(axis).kernel - 1)
        * layer.in_channels * math.prod(grid) // grid[axis.grid]
        for (layer, grid), step in zip(spec.walk(plan.latent_shape.grid), plan.steps, strict=True)
    )  # fmt: skip


@pytest.mark.parametrize(("grid", "order"), [((33, 34, 60), each) for each in ("time", "rows", "columns")]
                         + [((33, 68, 120), "auto")])  # fmt: skip
def test_keys_and_values_of_a_step_have_at_most_2_to_the_29_elements(grid, order):
    """Each of them; 257 frames of 1920x1088, and of 3840x2176."""
    spec = diffusion_spec(ltx_2_5().decoder)
    found = plan_decode(spec, (1, 128, *grid), REAL, PlanOptions(order=order, mode="exact"))
    assert largest_array(spec, found) <= 4 * 2**29
    if order == "time":
        with pytest.raises(PlanError, match="more than 537 million elements, beyond which results are wrong"):
            plan_decode(spec, (1, 128, 33, 68, 120), REAL, PlanOptions(order="time", mode="exact"))


def test_a_network_says_its_pace_along_rows_and_columns_on_a_gpu():
    """Six outputs of a tile of Metal's Winograd convolutions, or the four queries of a block of the attention."""
    for spec, expected in ((decoder_spec(config()), 6), (diffusion_spec(ltx_2_5().decoder), 4)):
        for order in ("rows", "columns"):
            assert plan_decode(spec, (1, 128, 16, 16, 24), REAL, PlanOptions(order=order)).step == expected


def test_blended_tiles_are_the_last_resort():
    long_and_large = (3840, 2176, 2001)
    least = plan(long_and_large, 0.001, mode="exact", must_fit=False).memory.active / GB
    assert plan(long_and_large, least).mode is Mode.EXACT
    chosen = plan(long_and_large, 0.99 * least)
    assert chosen.mode is Mode.TILED
    assert chosen.tiling.temporal_config is None
    assert chosen.redundant_work > 0
    assert "not exact" in str(chosen)


def test_a_budget_that_nothing_meets_names_the_least_that_works():
    with pytest.raises(PlanError, match=r"the least that works is ([0-9.]+) GB") as caught:
        plan((768, 512, 65), 0.5)
    least = float(str(caught.value).split("works is ")[1].split(" GB")[0])
    assert plan((768, 512, 65), least).peak_bytes <= least * GB
    with pytest.raises(PlanError):
        plan((768, 512, 65), least - 0.02)
    assert plan((768, 512, 65), 0.5, must_fit=False).memory.active <= least * GB


def test_exact_memory_does_not_grow_with_the_clip_and_the_single_pass_does():
    short, long = (plan((768, 512, frames)) for frames in (241, 961))
    assert long.peak_bytes - short.peak_bytes < 0.05 * short.peak_bytes
    singles = [plan((256, 256, frames), mode="single").peak_bytes for frames in (241, 961)]
    assert singles[1] > 3 * singles[0]


def test_rows_hold_less_than_time_where_frames_are_large_and_clips_short():
    large, small = (3840, 2176, 25), (256, 256, 961)
    assert plan(large, order="rows").peak_bytes < plan(large, order="time").peak_bytes
    assert plan(small, order="rows").peak_bytes > plan(small, order="time").peak_bytes


def test_metals_winograd_scratch_is_a_term_of_its_own():
    """MLX takes that route from 4096 positions and 256 channels on, multiples of 32; here for three taps joined."""

    def scratch(channels, outputs, *grid):
        return winograd_elements(ConvShape(grid, channels, outputs))

    assert scratch(128, 128, 1, 62, 61) == 0
    assert scratch(120, 128, 1, 64, 64) == 0
    assert scratch(128, 136, 1, 64, 64) == 0
    one, two = (scratch(128, 128, frames, 66, 66) for frames in (1, 2))
    filters = 64 * 384 * 128
    assert one - filters == (68 * 68) * 384 + 64 * 11 * 11 * 512
    assert two == one, "one frame at a time"
    assert scratch(128, 128, 1, 62, 62) > 0, "with the zeros around them, which are input positions"


def test_plan_shows_what_it_will_do():
    text = str(plan((1280, 704, 121), 16))
    for words in (
        "121 frames of 1280x704",
        "exact",
        "GB (weights 0.81",
        "trillion multiply-adds",
        "after about 20 % of",
    ):
        assert words in text, words
    tiled = plan((1280, 704, 121), mode="tiled", tiling=TilingConfig.default())
    assert json.loads(json.dumps(tiled.as_dict()))["calls"] == 3 * 2 * 3
    assert (
        "512 px of height, overlapping by 64; 512 px of width, overlapping by 64; 64 frames, overlapping by 24"
        in str(tiled)
    )


@pytest.mark.quick(4)
@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize("length", [1, 2, 5, 40])
def test_caches_of_short_clips_are_those_of_the_layers_that_hold_positions_at_once(order, length):
    """Twelve layers that each wait for one position: of a clip of n, no more than n + 2 hold any."""
    kernel = WindowSpec(3, before=1, after=1)
    layer = LayerSpec("layer", 16, 16, windows=(kernel, kernel, kernel))
    spec = NetworkSpec((layer,) * 12)
    grid = tuple(length if axis is order.axis else 64 for axis in Axis)
    run = StreamRun(order.axis, (1,) * length, (1,) * 12, 0, Machine(Backend.METAL))
    one = min(2, length) * 64 * 64 * 16 * 4
    caches = stream_memory(spec, grid, 1, run).caches
    assert min(length, 12) * one <= caches <= 1.06 * min(length + 2, 12) * one + 1


@pytest.mark.parametrize("part", [0.999, pytest.param(0.93, marks=pytest.mark.slow)])
def test_a_decode_under_a_budget_never_exceeds_it(part):
    """A little less than the best plan takes makes it take another, which then has to keep to the budget."""
    case = replace(validation_cases()[0], generation="ltx-2.3", mode="auto", order="auto", width=256)
    generous = plan_decode(decoder_spec(config(decoder_base_channels=16)), shape(256, 96, 41))
    budget = int(part * generous.peak_bytes)
    run = run_job(Job(decode, replace(case, memory_budget=budget)))
    assert run["planned_bytes"] < generous.peak_bytes
    assert run["total_peak_bytes"] <= budget


def test_the_shipped_demo_keeps_its_budget(tmp_path):
    """In bfloat16, on the CPU: the norms and SiLU of its narrow layers compute in float32."""
    save_latents(path := tmp_path / "clip.safetensors", load_latents(demo.LATENTS)[0][:, :, :4])
    case = Case(model=str(demo.VAE), latents=str(path), width=384, height=256, memory_budget=32_000_000)
    run = run_job(Job(decode, case))
    assert run["planned_bytes"] <= 32_000_000
    assert run["total_peak_bytes"] <= 32_000_000


def test_a_clip_that_is_padded_takes_the_memory_of_one_of_the_size_that_it_is_padded_to():
    parsed = ltx_2_5(16).decoder
    spec = diffusion_spec(parsed)
    assert spec.least == (3, 7, 7)
    for order in ("rows", "columns"):
        small, padded = (
            plan_decode(spec, (1, 128, 3, *size), options=PlanOptions(mode="exact", order=order))
            for size in ((2, 2), (7, 7))
        )
        assert small.memory.caches == padded.memory.caches
        assert small.memory.active > 0.9 * padded.memory.active


def test_an_hour_of_latents_is_held_once():
    """Its values are checked in parts, so the flags of the check are not as large as the latents."""
    plan = VideoVAE.estimate("ltx-2.3", frames=3600 * 24 + 1, size="1280x704", dtype="bfloat16")
    assert plan.memory.inputs < 1.02 * 4 * math.prod(plan.latent_shape)


def test_a_plan_says_that_bits_may_differ_where_a_budget_moves_it_from_time_to_rows():
    remark = "; bits may differ, by rounding\n"
    by_time, by_rows = plan((3840, 2176, 121), 64), plan((3840, 2176, 121), 8)
    assert (by_time.order, by_rows.order) == (Order.TIME, Order.ROWS)
    assert remark not in str(by_time) and remark in str(by_rows)
