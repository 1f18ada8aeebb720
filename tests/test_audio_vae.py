"""`AudioVAE`: streams, plans, checks, and the files that it opens."""

import re
import tracemalloc
from contextlib import nullcontext
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_unflatten

from audio_cases import random_latents
from conftest import active_memory
from mlx_ltx_vae import (
    AudioVAE,
    CheckpointError,
    DecodeCancelled,
    DecodePlan,
    EncodePlan,
    LatentsError,
    PlanError,
)
from mlx_ltx_vae.backend.machine import Machine
from mlx_ltx_vae.networks.audio.config import AudioVAEConfig, Norm
from mlx_ltx_vae.networks.audio.specs import Conv2DSpec, conv_layer, decoder_spec, encoder_spec
from mlx_ltx_vae.networks.audio.vae_networks import Conv2DLayer, Upsample
from mlx_ltx_vae.networks.audio.vocoder import Conv1d, as_frames
from mlx_ltx_vae.networks.convolution.conv3d import prepare
from mlx_ltx_vae.options import PlanOptions
from mlx_ltx_vae.pipeline.audio import unpack_latents
from mlx_ltx_vae.pipeline.execution import Execution
from mlx_ltx_vae.planning.memory import StreamRun, layer_pieces
from mlx_ltx_vae.planning.planner import plan_decode
from mlx_ltx_vae.shapes import Axis, WindowSpec
from mlx_ltx_vae.streaming.context import Stage, StreamContext
from mlx_ltx_vae.streaming.driver import run_chain, run_stream, run_whole
from mlx_ltx_vae.streaming.window import View
from tolerances import cpu_only, tolerance

_THREE = WindowSpec(3, 1, 1, 1)
PLANE = Conv2DSpec(
    "conv",
    32,
    32,
    windows=(_THREE, _THREE, WindowSpec()),
    conv_windows=(_THREE, _THREE),
    weights=(("conv.conv.weight", (32, 3, 3, 32)), ("conv.conv.bias", (32,))),
)


def joined(chunks):
    chunks = list(chunks)
    starts = np.cumsum([0, *(chunk.waveform.shape[2] for chunk in chunks)])
    assert [chunk.start for chunk in chunks] == starts[:-1].tolist()
    return np.concatenate([np.array(chunk.waveform) for chunk in chunks], axis=2)


@pytest.mark.parametrize(
    ("name", "error"),
    [("ltx2", 1e-5), ("ltx2_3", 2e-5), pytest.param("ltx2_3_options", 1e-4, marks=pytest.mark.slow)],
)
def test_a_stream_is_the_single_pass_for_every_chunk_length(audio_vae, name, error):
    """OpenBLAS rounds a product differently for other numbers of rows, and random weights amplify it.

    The signal of LTX-2.3's reaches 50 inside; differences are 0.6e-5 to 1.2e-5, depending on the processor.
    """
    vae, latents = audio_vae(name), random_latents(10, batch=2)
    whole = np.array(vae.decode(latents, vae.plan(10, batch=2, mode="single")))
    assert whole.shape == (2, 2, vae.config.num_samples(10))
    for chunk in (1, 4):
        streamed = joined(vae.stream(latents, vae.plan(10, batch=2, chunk=chunk)))
        assert streamed.shape == whole.shape
        assert streamed.dtype == whole.dtype == np.float32
        assert np.abs(streamed - whole).max() < tolerance(error), chunk


@pytest.mark.quick(1)
@cpu_only("GPUs have no float64")
@pytest.mark.parametrize("name", ["ltx2", "ltx2_3"])
def test_in_float64_a_streamed_vocoder_is_the_single_pass(audio_case, name):
    """What float32 leaves between them is rounding, also with loud weights, which amplify it."""
    vocoder = AudioVAE.from_pretrained(audio_case(name).checkpoint).vocoder
    weights = tree_flatten(vocoder.parameters())
    loud = [(key, (1.3 if array.ndim == 3 else 1) * array.astype(mx.float64)) for key, array in weights]
    vocoder.update(tree_unflatten(loud))
    mel = mx.array(np.random.default_rng(0).normal(size=(1, 10, 1, 1, 128)), mx.float64)
    whole = run_whole(vocoder.stages(StreamContext()), mel)
    assert whole.dtype == mx.float64
    pieces = (mel[:, start : start + 4] for start in range(0, 10, 4))
    streamed = mx.concatenate(list(run_stream(vocoder.stages(StreamContext()), pieces)), axis=1)
    assert streamed.shape == whole.shape
    assert mx.abs(streamed - whole).max().item() < 1e-10


@pytest.mark.quick(1)
@pytest.mark.parametrize(("name", "ahead", "rate", "per_frame"), [("ltx2", 5, 24000, 240), ("ltx2_3", 13, 48000, 480)])
def test_the_first_samples_come_after_the_lookahead_of_the_layers(audio_vae, name, ahead, rate, per_frame):
    vae = audio_vae(name)
    plan = vae.plan(50, chunk=1)
    assert (plan.lookahead, plan.sample_rate, vae.sample_rate) == (ahead + 1, rate, rate)
    assert plan.num_samples == (4 * 50 - 3) * per_frame
    length = ahead + 1
    changed = random_latents(length + 1)
    changed[:, :, -1] += 1  # beyond the lookahead of the first samples
    first = [next(vae.stream(each, vae.plan(length + 1, chunk=1))) for each in (random_latents(length + 1), changed)]
    mx.eval([chunk.waveform for chunk in first])
    assert mx.array_equal(*(chunk.waveform for chunk in first)).item()


def test_packed_latents_are_the_same_latents(audio_vae):
    vae, latents = audio_vae("ltx2"), random_latents(3)
    packed = latents.transpose(0, 2, 1, 3).reshape(1, 3, 128)
    assert np.array_equal(vae.decode(mx.array(packed)), vae.decode(latents))


def test_unnormalized_latents_are_normalized_first(audio_vae):
    vae, latents = audio_vae("ltx2"), random_latents(3)
    mean, std = (np.array(values).reshape(8, 1, 16) for values in vae.decoder.statistics)
    decoded = np.array(vae.decode(latents * std + mean, unnormalized=True))
    assert np.abs(decoded - np.array(vae.decode(latents))).max() < tolerance(1e-5)


@pytest.mark.parametrize("name", ["vae_attention", "vae_group"])
def test_networks_that_see_the_whole_clip_are_not_streamed(audio_vae, name):
    """They have no vocoder, so their spec alone is planned."""
    spec = audio_vae(name).decoder.spec
    shape = (1, spec.in_channels, 10, 1, 1)
    assert plan_decode(spec, shape).mode.value == "single"
    with pytest.raises(PlanError, match="sees the whole clip, so the network cannot be streamed by time; use mode sin"):
        plan_decode(spec, shape, options=PlanOptions(mode="exact"))
    with pytest.raises(PlanError, match="use mode single"):
        plan_decode(spec, shape, options=PlanOptions(chunk=5))
    with pytest.raises(PlanError, match="audio has no tiles"):
        plan_decode(spec, shape, options=PlanOptions(mode="tiled"))


def test_the_plan_of_a_stream_does_not_grow_with_the_audio(audio_vae):
    vae = audio_vae("ltx2_3")
    short, long = (vae.plan(length) for length in (500, 7500))
    inputs = [plan.memory.inputs for plan in (short, long)]
    assert long.peak_bytes - inputs[1] == short.peak_bytes - inputs[0]
    assert vae.plan(7500, mode="single").peak_bytes > 20 * long.peak_bytes
    assert "exact: the single pass's result, streamed by time, 25 latents at a time" in str(long)
    assert isinstance(long, DecodePlan)


def test_a_small_budget_takes_smaller_pieces_or_says_the_least_that_works(audio_vae):
    vae = audio_vae("ltx2")
    usual, least = vae.plan(500), vae.plan(500, chunk=1)
    assert least.peak_bytes < usual.peak_bytes
    assert vae.plan(500, memory_budget=int(least.peak_bytes * 1.01)).chunk < usual.chunk
    with pytest.raises(PlanError, match="is too small for 500 audio latents; the least that works is"):
        vae.plan(500, memory_budget=least.peak_bytes // 2)


@pytest.mark.parametrize("name", ["ltx2", "ltx2_3"])
def test_the_planned_memory_of_short_audio_in_a_single_pass_holds(audio_vae, name):
    """A large part of it does not grow with the audio: filters, weights as they are laid out, and padding."""
    vae = audio_vae(name)
    weights = sum(network.spec.num_weights * 4 for network in (vae.decoder, vae.vocoder))
    for batch, length in ((1, 1), (3, 4)):
        latents, plan = random_latents(length, batch=batch), vae.plan(length, batch=batch, mode="single")
        before = active_memory() - weights
        mx.reset_peak_memory()
        vae.decode(latents, plan)
        measured = mx.get_peak_memory() - before
        assert measured < plan.memory.active < 1.3 * measured, (batch, length)


@pytest.mark.parametrize("name", ["ltx2", "ltx2_3"])
def test_layers_of_audio_take_pieces_as_long_as_planned(audio_vae, name):
    """The last piece, with which all layers are flushed at once, is longer than the others."""
    vae = audio_vae(name)
    spec, context = vae.vocoder.spec, StreamContext()
    taken = [[] for _ in spec.layers]

    def counted(stage, lengths):
        def step(x, last):
            lengths.extend([] if x is None else [x.shape[1]])
            return stage.step(x, last)

        return Stage(step, stage)

    stages = [counted(stage, each) for stage, each in zip(vae.vocoder.stages(context), taken, strict=True)]
    pieces = [mx.zeros((1, length, 1, 1, 128)) for length in (30, 30, 10)]
    lengths = [each.shape[1] for each in run_chain(stages, pieces, axis=Axis.TIME, around_step=nullcontext)]
    stream = StreamRun(Axis.TIME, (30, 30, 10), (2**30,) * len(stages), 0, Machine())
    *expected, output = layer_pieces(replace(spec, clip=vae.decoder.spec.clip), (70, 1, 1), stream)
    assert taken == expected
    assert lengths == output


@cpu_only("GPUs unfold positions along time, and MLX has fast convolutions of planes there")
@pytest.mark.parametrize("kind", ["time", "plane"])
def test_convolutions_of_audio_do_not_unfold_their_input(kind):
    if kind == "time":
        conv = Conv1d(conv_layer("conv", 32, 32, 11, dilation=3))
        x, shape = mx.zeros((1, 4096, 32)), (1, 4096, 32)
        view = View(as_frames(x), 15, 15, 0, 0, 4096)
    else:
        conv = Conv2DLayer(PLANE)
        x, shape = mx.zeros((1, 64, 64, 1, 32)), (1, 64, 64, 1, 32)
        view = View(x, 1, 1, 0, 0, 64)
    prepare(conv, keeps_dtype=False)
    mx.eval(x)
    before = active_memory()
    mx.reset_peak_memory()
    result = conv(view, x)
    mx.eval(result)
    assert result.shape == shape
    assert mx.get_peak_memory() - before < 3.5 * x.nbytes


@pytest.mark.parametrize("causal", ["none", "time", "frequency"])
def test_upsampled_audio_is_a_convolution_of_repeated_positions(causal):
    three, behind = WindowSpec(3, 1, 1, 1), WindowSpec(3, 1, 2, 0)
    time, frequency = (behind if causal == name else three for name in ("time", "frequency"))
    window = WindowSpec(2, 1, 1, 0) if causal == "time" else three
    spec = replace(
        PLANE,
        up=(2, 2, 1),
        windows=(window, WindowSpec(), WindowSpec()),
        conv_windows=(time, frequency),
        trim=int(causal == "time"),
        dropped_bins=int(causal == "frequency"),
    )
    random = np.random.default_rng(0)
    x, weight = random.normal(size=(1, 5, 4, 1, 32)), random.normal(size=(32, 3, 3, 32)) / 17
    bias = random.normal(size=32)
    layer = Upsample(spec)
    layer.conv.conv.weight, layer.conv.conv.bias = mx.array(weight, mx.float32), mx.array(bias, mx.float32)
    repeated = np.pad(
        x[0, :, :, 0].repeat(2, axis=0).repeat(2, axis=1),
        [(time.before, time.after), (frequency.before, frequency.after), (0, 0)],
    )
    windows = np.lib.stride_tricks.sliding_window_view(repeated, (3, 3), axis=(0, 1))
    expected = np.einsum("tfidw,odwi->tfo", windows, weight) + bias
    expected = expected[spec.trim :, spec.dropped_bins :]
    for is_prepared in (False, True):
        if is_prepared:
            prepare(layer.conv, keeps_dtype=False)
        whole = run_whole(layer.stages(StreamContext()), mx.array(x, mx.float32))
        pieces = (mx.array(x[:, start : start + 2], mx.float32) for start in range(0, 5, 2))
        streamed = mx.concatenate(list(run_stream(layer.stages(StreamContext()), pieces)), axis=1)
        for result in (whole, streamed):
            assert result.shape == (1, *expected.shape[:2], 1, 32)
            assert np.abs(np.array(result)[0, :, :, 0] - expected).max() < tolerance(1e-5)


def test_memory_is_flat(audio_vae):
    vae = audio_vae("ltx2")
    peaks = []
    for length in (20, 50):
        latents = random_latents(length)
        stream = vae.stream(latents, vae.plan(length, chunk=5))
        mx.reset_peak_memory()
        before = active_memory()
        for _ in stream:
            pass
        peaks.append(mx.get_peak_memory() - before)
    assert peaks[1] < 1.05 * peaks[0]


@pytest.mark.parametrize(
    ("latents", "message"),
    [
        (np.zeros((1, 8, 5, 15), np.float32), "this VAE decodes (B, 8, T, 16), or packed (B, T, 128)"),
        (np.zeros((8, 5, 16), np.float32), "this VAE decodes (B, 8, T, 16), or packed (B, T, 128)"),
        (np.zeros((1, 8, 0, 16), np.float32), "which is empty"),
        (np.full((1, 8, 3, 16), np.nan, np.float32), "384 of 384 latent values are NaN or infinite"),
        (np.ones((1, 8, 3, 16), np.int64), "audio latents are int64; expected float32"),
        ([1.0], "audio latents are list; expected an array"),
    ],
)
def test_other_latents_are_refused(audio_vae, latents, message):
    with pytest.raises(LatentsError, match=re.escape(message)):
        audio_vae("ltx2").stream(latents)


def test_a_plan_for_other_latents_is_refused(audio_vae):
    vae = audio_vae("ltx2")
    for latents in (0, 2.5, (1, 8, 3, 16)):
        with pytest.raises(LatentsError, match="audio latents"):
            vae.plan(latents)
    with pytest.raises(PlanError, match="the plan was made for 1 x 4 audio latents; these are 1 x 3"):
        vae.stream(random_latents(3), vae.plan(4))


@pytest.mark.parametrize(
    ("name", "behind", "ahead", "error", "mode"),
    [
        ("ltx2", 38, 5, 1e-5, "exact"),
        pytest.param("ltx2", 38, 5, 1e-5, "single", marks=pytest.mark.slow),
        pytest.param("ltx2_3", 47, 13, 2e-5, "exact", marks=pytest.mark.slow),
        # Its strides begin anew at every third latent.
        pytest.param("ltx2_3_options", 47, 13, 1e-4, "exact", marks=pytest.mark.slow),
    ],
)
def test_an_excerpt_is_that_of_the_whole_and_decodes_what_it_depends_on(
    audio_vae, monkeypatch, name, behind, ahead, error, mode
):
    """`behind` and `ahead` are the reach of the networks, by the sizes of their kernels."""
    vae, latents = audio_vae(name), random_latents(66)
    whole, per_latent = np.array(vae.decode(latents)), vae.config.num_samples(2) - vae.config.num_samples(1)
    taken, prepare = [], type(vae.decoder).prepare
    monkeypatch.setattr(type(vae.decoder), "prepare", lambda *given: taken.append(given[1].shape[2]) or prepare(*given))
    for first, end in (
        (0, 1),
        (5, 6 * per_latent),
        (52 * per_latent + 7, 53 * per_latent),
        (len(whole[0, 0]) - 1,) * 2,
    ):
        end = min(end + 1, whole.shape[2])
        plan = vae.plan(66, samples=(first, end), mode=mode)
        taken.clear()
        with vae.stream(latents, plan) as stream:
            assert (stream.num_samples, plan.num_samples) == (end - first, end - first)
            chunks = list(stream)
        assert chunks[0].start == first
        found = np.concatenate([np.array(chunk.waveform) for chunk in chunks], axis=2)
        assert found.shape == (1, 2, end - first)
        assert np.abs(found - whole[:, :, first:end]).max() < tolerance(error), (first, end)
        assert sum(taken) == plan.latents <= behind + (end - first) / per_latent + ahead + 3, (first, end)
    assert plan.latents < 66
    assert vae.plan(66, samples=(0, whole.shape[2])).latents == 66
    with pytest.raises(PlanError, match=f"samples 5:5 are not in the audio, which has {whole.shape[2]}"):
        vae.plan(66, samples=(5, 5))


def test_a_stream_that_is_cancelled_while_it_computes_ends_at_the_next_step(audio_vae, monkeypatch):
    vae, pieces, prepare = audio_vae("ltx2"), [], type(audio_vae("ltx2").decoder).prepare

    def cancelling(*given):
        pieces.append(given[1].shape[2])
        if len(pieces) == 3:
            stream.cancel()
        return prepare(*given)

    monkeypatch.setattr(type(vae.decoder), "prepare", cancelling)
    stream = vae.stream(random_latents(30), vae.plan(30, chunk=1))
    with pytest.raises(DecodeCancelled):
        next(stream)
    assert len(pieces) == 3
    with pytest.raises(DecodeCancelled):
        next(stream)


def test_audio_encodes_alike_in_every_form(audio_vae):
    vae = audio_vae("encoder")
    mono = np.random.default_rng(0).uniform(-1, 1, 3200).astype(np.float32)
    expected = vae.encode(np.stack([mono, mono])[None], 16000)
    assert expected.shape == (1, 8, 6, 16)
    assert np.array_equal(vae.encode(mono[None], 16000), expected)
    assert np.array_equal(vae.encode(mx.array(np.stack([mono, mono])), 16000), expected)
    pieces = (mono[None, start : start + 700] for start in range(0, 3200, 700))
    assert np.array_equal(vae.encode(pieces, 16000), expected)
    with pytest.raises(LatentsError, match="the encoder needs more than 512"):
        vae.encode(mono[None, :512], 16000)
    with pytest.raises(LatentsError, match="expected \\(B, 2, samples\\)"):
        vae.encode(mono, 16000)
    with pytest.raises(CheckpointError, match="this AudioVAE has no decoder"):
        vae.decode(random_latents(2))


@pytest.mark.parametrize(
    ("rate", "sizes"), [(16000, (7, 997)), (48000, (50_000,)), (44100, (2**15, 163)), (11111, (7000,))]
)
def test_audio_in_pieces_has_the_spectrogram_of_the_whole(audio_vae, rate, sizes):
    encoder = audio_vae("encoder").encoder
    waveform = np.random.default_rng(0).uniform(-1, 1, (1, 2, 3 * rate)).astype(np.float32)
    expected = mx.concatenate(list(encoder.prepare([waveform], rate)), axis=1)
    assert expected.shape == (1, 301, 64, 1, 2)
    for size in sizes:
        pieces = (waveform[:, :, start : start + size] for start in range(0, 3 * rate, size))
        found = mx.concatenate(list(encoder.prepare(pieces, rate)), axis=1)
        assert found.shape == expected.shape
        assert mx.abs(found - expected).max().item() < tolerance(1e-5), size


def test_the_memory_of_a_spectrogram_is_flat(audio_vae):
    encoder, rate, peaks = audio_vae("encoder").encoder, 44100, []
    piece = np.zeros((1, 2, rate), np.float32)
    for seconds in (8, 24):
        tracemalloc.start()  # numpy's arrays
        before = active_memory()
        mx.clear_cache()  # which after the first audio has buffers nearly twice as large as an array
        mx.reset_peak_memory()
        for part in encoder.prepare((piece for _ in range(seconds)), rate):
            mx.eval(part)
            mx.synchronize()  # or what the CPU backend frees late is counted with the next piece
        del part
        peaks.append((tracemalloc.get_traced_memory()[1], mx.get_peak_memory() - before))
        tracemalloc.stop()
    short, long = peaks
    assert long[0] < 1.2 * short[0]
    # Memory of the whole audio would be three times as much. The CPU backend may free one array of a piece late.
    assert long[1] < 2 * short[1]


@pytest.mark.parametrize(("name", "mode"), [("encoder", "exact"), ("vae_attention", "single"), ("vae_group", "single")])
def test_the_planned_memory_of_an_encode_holds(audio_vae, name, mode):
    """Several pieces of audio take what a minute does, but for the latents."""
    vae, rate = audio_vae(name), 16000
    for seconds in (0.4, 6) if mode == "exact" else (0.4, 1.6):
        plan = vae.plan_encode(seconds)
        assert (plan.mode.value, plan.latents, plan.seconds) == (mode, round(25 * seconds), seconds)
        assert vae.encoder is not None  # its weights are in memory, as those of networks beside it are
        before = active_memory() - plan.memory.weights
        mx.reset_peak_memory()
        vae.encode(np.zeros((2, round(seconds * rate)), np.float32), rate)
        measured = mx.get_peak_memory() - before
        assert measured < plan.memory.active < 1.3 * measured, seconds
    if mode == "exact":
        assert vae.plan_encode(60).memory.work == plan.memory.work


def test_an_encode_runs_its_plan(audio_vae, monkeypatch):
    vae, waveform = audio_vae("encoder"), np.random.default_rng(0).uniform(-1, 1, (1, 2, 48_000)).astype(np.float32)
    ran, outputs = [], Execution.outputs
    monkeypatch.setattr(
        Execution, "outputs", lambda run: ran.append((type(run.plan), run.plan.as_dict())) or outputs(run)
    )
    pieces, convolve = [], type(vae.encoder.conv_in).__call__
    monkeypatch.setattr(
        type(vae.encoder.conv_in),
        "__call__",
        lambda conv, view, frames: (
            (pieces.append(frames.shape[1]) if conv is vae.encoder.conv_in else None) or convolve(conv, view, frames)
        ),
    )
    default = vae.plan_encode(3)
    expected = vae.encode(waveform, 16000)
    assert ran == [(EncodePlan, default.as_dict())]
    assert pieces == [4 * default.chunk, 301 - 4 * default.chunk + 2]
    small = vae.plan_encode(3, memory_budget=round(0.6 * default.peak_bytes))
    assert small.peak_bytes < 0.6 * default.peak_bytes and small.chunk < default.chunk
    pieces.clear()
    found = vae.encode(iter([waveform[:, :, :30_000], waveform[:, :, 30_000:]]), 16000, small)
    assert ran[1:] == [(EncodePlan, small.as_dict())]
    assert pieces[0] == max(pieces) - 2 == 4 * small.chunk
    assert found.shape == expected.shape
    assert mx.abs(found - expected).max().item() < tolerance(1e-5)
    with pytest.raises(PlanError, match="the least that works is"):
        vae.plan_encode(3, memory_budget=1000)
    with pytest.raises(PlanError, match="the plan was made for 2 clips of audio encoded at once; these are 1"):
        vae.encode(waveform, 16000, vae.plan_encode(3, batch=2))


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_an_encode_of_no_audio_is_not_planned(audio_vae, seconds):
    with pytest.raises(LatentsError, match="seconds of audio cannot be encoded; there must be some"):
        audio_vae("encoder").plan_encode(seconds)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vae_attention", "vae_group"])
def test_an_encoder_that_sees_the_whole_clip_takes_it_in_one(audio_vae, name):
    vae = audio_vae(name)
    waveform = np.random.default_rng(0).uniform(-1, 1, (1, 2, 42_000)).astype(np.float32)
    pieces = list(vae.encoder.prepare([waveform], 16000))
    assert len(pieces) > 1
    whole = run_whole(vae.encoder.stages(StreamContext()), mx.concatenate(pieces, axis=1))
    expected = vae.encoder.to_latents(whole)
    found = vae.encode(waveform, 16000)
    assert found.shape == (1, vae.config.channels, expected.shape[2], vae.config.bins)
    expected = unpack_latents(expected, vae.config.channels, vae.config.bins)
    assert mx.abs(found - expected).max().item() < tolerance(1e-5)


@pytest.mark.parametrize(
    ("waveform", "rate", "message"),
    [
        (np.zeros((2, 9600), np.int16), 48000, "the audio is int16; expected floating-point values in [-1, 1]"),
        (mx.zeros((2, 9600), mx.int32), 48000, "the audio is mlx.core.int32"),
        (np.zeros((9600, 2), np.float32), 48000, "the audio has the shape (9600, 2); expected (B, 2, samples)"),
        (np.full((2, 9600), np.nan, np.float32), 48000, "the audio has values that are NaN or infinite"),
        ([np.zeros((2, 9600)), np.zeros((1, 9600))], 48000, "a piece of the audio has the shape (1, 1, 9600), and"),
        ([[0.0, 0.0]], 48000, "a piece of the audio is list; expected an array"),
        ("a.wav", 48000, "audio is str; expected an array (B, 2, samples), or an iterator"),
        (None, 48000, "audio is NoneType"),
        (np.zeros((2, 0), np.float32), 48000, "the audio has 0 samples at 16000 Hz"),
        (iter([]), 48000, "the audio has 0 samples at 16000 Hz"),
        (np.zeros((2, 9600), np.float32), 0, "a sample rate of 0 is not possible"),
        (np.zeros((2, 9600), np.float32), 999, "a sample rate of 999 is not possible; give a whole number from 1000"),
        (np.zeros((2, 9600), np.float32), 44100.0, "a sample rate of 44100.0 is not possible"),
    ],
)
def test_audio_that_does_not_encode_is_refused(audio_vae, waveform, rate, message):
    with pytest.raises(LatentsError, match=re.escape(message)):
        audio_vae("encoder").encode(waveform, rate)


@pytest.mark.parametrize("make", [encoder_spec, decoder_spec])
def test_a_group_norm_needs_a_multiple_of_its_groups(make):
    for width, norm in ((32, Norm.GROUP), (64, Norm.GROUP), (48, Norm.PIXEL)):
        make(AudioVAEConfig(channels=8, width=width, multipliers=(1, 2), num_blocks=1, norm=norm))
    with pytest.raises(CheckpointError, match="of 48 channels, which are not a multiple of its 32 groups"):
        make(AudioVAEConfig(channels=8, width=48, multipliers=(1, 2), num_blocks=1, norm=Norm.GROUP))
