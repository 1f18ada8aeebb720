"""The property the package stands on: a stream is the single pass, however it is cut."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.measuring import Case, load_vae
from conftest import CONV_CASES, active_memory
from mlx_ltx_vae import PlanError, VideoVAE
from mlx_ltx_vae.networks.base import Statistics
from mlx_ltx_vae.networks.convolution.conv3d import Conv3d
from mlx_ltx_vae.networks.layers import ResnetBlock
from mlx_ltx_vae.networks.specs import PaddingMode
from mlx_ltx_vae.networks.video_vae.block_types import RES_CHANGE, BlockConfig, NetworkOptions
from mlx_ltx_vae.networks.video_vae.config import parse_vae_config
from mlx_ltx_vae.networks.video_vae.networks import ConvDecoder, ConvEncoder
from mlx_ltx_vae.planning import planner
from mlx_ltx_vae.streaming.context import StreamContext
from mlx_ltx_vae.streaming.driver import run_stream, run_whole
from tolerances import cpu_only, tolerance

TOLERANCE = tolerance(2e-5)
TINY = {
    "latent_channels": 8,
    "encoder_blocks": [["res_x", 1], ["compress_all_res", {"multiplier": 2}], ["res_x", 1]],
    "decoder_blocks": [["res_x", 1], ["compress_all", {"multiplier": 2}], ["res_x", 1]],
    "encoder_base_channels": 8,
    "decoder_base_channels": 8,
    "spatial_padding_mode": "zeros",
}


def random_latents(vae, frames, height=2, width=3, batch=1, seed=0):
    return mx.random.normal((batch, vae.config.latent_channels, frames, height, width), key=mx.random.key(seed))


def tiny_vae(**changes):
    config = parse_vae_config({**TINY, **changes}, "tiny")
    mx.random.seed(7)
    statistics = Statistics(mx.zeros(8), mx.ones(8))
    return VideoVAE(config, ConvEncoder(config, statistics), ConvDecoder(config, statistics))


def largest_difference(one, other):
    assert one.shape == other.shape
    assert one.dtype == other.dtype
    return mx.abs(one - other).max().item()


def streamed(vae, latents, chunk, **options):
    plan = vae.plan(latents.shape, mode="exact", chunk=chunk)
    chunks = list(vae.stream(latents, plan, **options))
    starts = [chunk.start for chunk in chunks]
    assert starts == list(np.cumsum([0] + [chunk.frames.shape[1] for chunk in chunks[:-1]]))
    return mx.concatenate([chunk.pixels for chunk in chunks], axis=2)


@pytest.mark.quick(10)
@pytest.mark.parametrize(("frames", "chunks"), [(1, (1,)), (4, (1, 3))])
@pytest.mark.parametrize("name", CONV_CASES)
def test_stream_equals_single_pass_for_every_chunk_length(golden, name, frames, chunks):
    vae = VideoVAE.from_pretrained(golden(name).checkpoint, encoder=False)
    latents = random_latents(vae, frames)
    single = vae.decode(latents, vae.plan(latents.shape, mode="single"))
    assert single.shape[2] == vae.config.scale.video_grid((frames, 1, 1))[0]
    for chunk in chunks:
        assert largest_difference(streamed(vae, latents, chunk), single) < TOLERANCE, chunk


@settings(max_examples=15)
@given(cuts=st.sets(st.integers(1, 8)), step=st.sampled_from([1, 2, 10**9]), causal=st.booleans())
def test_stream_equals_single_pass_for_irregular_pieces_and_any_step(cuts, step, causal):
    vae = tiny_vae(causal_decoder=causal)
    latents = mx.random.normal((1, 9, 2, 2, 8), key=mx.random.key(3))
    edges = [0, *sorted(cuts), 9]
    pieces = [latents[:, start:stop] for start, stop in zip(edges, edges[1:], strict=False)]
    context = StreamContext()
    steps = [step] * len(vae.decoder.spec.layers)
    result = mx.concatenate(list(run_stream(vae.decoder.stages(context), pieces, steps=steps)), axis=1)
    assert largest_difference(result, run_whole(vae.decoder.stages(context), latents)) < TOLERANCE


def test_batch_items_do_not_see_each_other(golden):
    vae = VideoVAE.from_pretrained(golden("small_ltxv_0_9_1").checkpoint, encoder=False)
    latents = random_latents(vae, 2, batch=2)
    together = vae.decode(latents, seed=5)
    alone = vae.decode(latents[:1], seed=5)
    assert largest_difference(together[:1], alone) < TOLERANCE


def residual_block(channels):
    config = BlockConfig(RES_CHANGE, channels, channels)
    return ResnetBlock(*RES_CHANGE.specs(config, NetworkOptions(False, PaddingMode.ZEROS), "block"))


def test_caches_do_not_pin_the_arrays_they_were_cut_from():
    block = residual_block(16)
    mx.eval(block.parameters())
    frame_bytes = 64 * 64 * 16 * 4
    before = active_memory()
    stages = block.stages(StreamContext())
    pieces = (mx.random.normal((1, 6, 64, 64, 16)) for _ in range(2))
    flow = run_stream(stages, pieces)
    next(flow)
    next(flow)
    assert active_memory() - before < 4.5 * frame_bytes


@pytest.mark.parametrize("name", ["ltx2_3", "ltx2_3_causal", "conv_16x16x4"])
def test_first_frame_leaves_after_as_many_latent_frames_as_the_plan_says(golden, name):
    vae = VideoVAE.from_pretrained(golden(name).checkpoint, encoder=False)
    latents = random_latents(vae, 40).transpose(0, 2, 3, 4, 1)
    lookahead = vae.plan((1, 8, 40, 2, 3)).lookahead
    fed = 0

    def feed():
        nonlocal fed
        for at in range(latents.shape[1]):
            fed += 1
            yield latents[:, at : at + 1]

    next(run_stream(vae.decoder.stages(StreamContext()), feed()))
    assert fed == lookahead


def test_peak_memory_does_not_grow_with_the_clip():
    """At base width 16 in float32: flat, and below 1,000 bytes per pixel of one frame."""
    vae, peaks = load_vae(Case(base_width=16)), []
    for frames in (12, 24):
        latents = random_latents(vae, frames, 2, 2)
        mx.eval(latents)
        before = active_memory()
        mx.reset_peak_memory()
        for chunk in vae.stream(latents):
            chunk.to_uint8()
        peaks.append(mx.get_peak_memory() - before)
    assert abs(peaks[1] - peaks[0]) < 0.05 * peaks[0]
    assert peaks[1] < 1000 * 64 * 64


@cpu_only("plans for a GPU prefetch by themselves")
def test_prefetch_change_no_bit_and_no_more_memory_than_planned(golden):
    """What a GPU is given in advance; here the CPU's queue of work stands for it."""
    vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint, encoder=False)
    latents = random_latents(vae, 5, 4, 4)
    plan = vae.plan(latents.shape)
    assert plan.prefetch == 0

    def run(prefetch):
        before = active_memory()
        mx.reset_peak_memory()
        frames = [chunk.to_uint8().copy() for chunk in vae.stream(latents, replace(plan, prefetch=prefetch))]
        return np.concatenate(frames), mx.get_peak_memory() - before

    run(0)  # compiles
    expected, least = run(0)
    for prefetch in (1, 2):
        frames, peak = run(prefetch)
        assert np.array_equal(frames, expected)
        assert least < peak <= least + prefetch * plan.memory.work


def test_closing_a_stream_half_way_frees_everything(golden):
    vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint, encoder=False)
    latents = random_latents(vae, 24, 4, 4)
    next(vae.stream(latents))  # whatever is kept once is kept now, such as the constants of what is compiled
    before = active_memory()
    stream = vae.stream(latents)
    next(stream)
    assert active_memory() > before
    stream.close()
    assert active_memory() <= before


def test_exception_in_the_callback_reaches_the_caller_and_the_next_decode_is_whole(golden):
    vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint, encoder=False)
    latents = random_latents(vae, 4)
    seen = []

    def fail(frames, start):
        seen.append(start)
        raise ValueError("the sink is full")

    with pytest.raises(ValueError, match="the sink is full"):
        vae.decode(latents, on_frames_ready=fail)
    assert seen == [0]
    parts = {}
    assert vae.decode(latents, on_frames_ready=lambda frames, start: parts.update({start: frames})) is None
    whole = mx.concatenate([parts[start] for start in sorted(parts)], axis=2)
    assert largest_difference(whole, vae.decode(latents)) == 0


def test_two_interleaved_streams_of_one_vae_do_not_disturb_each_other(golden):
    vae = VideoVAE.from_pretrained(golden("small_ltxv_0_9_1").checkpoint, encoder=False)
    latents = [random_latents(vae, 3, seed=seed) for seed in (1, 2)]
    alone = [vae.decode(one, seed=seed) for seed, one in enumerate(latents)]
    together = ([], [])
    for pair in zip(*(vae.stream(one, seed=seed) for seed, one in enumerate(latents)), strict=True):
        for parts, chunk in zip(together, pair, strict=True):
            parts.append(chunk.pixels)
    for parts, expected in zip(together, alone, strict=True):
        assert largest_difference(mx.concatenate(parts, axis=2), expected) == 0


def test_a_single_pass_is_one_step_per_layer_or_refused(golden, monkeypatch):
    """What the plan says is what runs, also where a layer is larger than is safe."""
    vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint, encoder=False)
    latents = random_latents(vae, 5)
    plan = vae.plan(latents.shape, mode="single")
    calls = []
    convolve = Conv3d.__call__
    monkeypatch.setattr(Conv3d, "__call__", lambda self, x, *rest: calls.append(x.size) or convolve(self, x, *rest))
    exact = vae.decode(latents)
    convolutions = sum(layer.name != "unpatchify" for layer in vae.decoder.spec.layers)
    assert len(calls) > convolutions
    calls.clear()
    assert largest_difference(vae.decode(latents, plan), exact) < TOLERANCE
    assert len(calls) == convolutions
    largest = max(calls)
    monkeypatch.setattr(planner, "MAX_LAYER_ELEMENTS", largest // 3)
    with pytest.raises(PlanError, match="use mode exact"):
        vae.plan(latents.shape, mode="single")
    calls.clear()
    limited = vae.plan(latents.shape, mode="exact", chunk=5)
    assert largest_difference(vae.decode(latents, limited), exact) < TOLERANCE
    assert max(calls) <= 2 * largest // 3  # with the two positions that a kernel sees besides
