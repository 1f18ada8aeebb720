"""Convolutions as matrix products: pairs of frames against `mx.conv3d`, and the same bits however a clip is cut."""

from unittest.mock import patch

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import active_memory
from mlx_ltx_vae import VideoVAE
from mlx_ltx_vae.backend.machine import Backend
from mlx_ltx_vae.models.conv_spec import ConvSpec
from mlx_ltx_vae.models.convolution import conv3d, rules
from mlx_ltx_vae.models.convolution.conv3d import Conv3d
from mlx_ltx_vae.models.convolution.products import by_products
from mlx_ltx_vae.models.convolution.rules import ConvShape, choose, pair_sums, scratch_bytes, takes_pairs
from mlx_ltx_vae.models.specs import LONG_CLIP
from mlx_ltx_vae.planning import memory
from mlx_ltx_vae.planning.memory import Pace
from mlx_ltx_vae.published import PublishedVAE
from mlx_ltx_vae.shapes import Axis
from test_stream import random_latents
from tolerances import cpu_only

PADDING = (0, 1, 1)


def operands(time, height, width, channels, outputs, batch=1):
    mx.random.seed(0)
    frames = mx.random.normal((batch, time + 2, height, width, channels))
    weight = mx.random.normal((3, 3, 3, channels, outputs)) * (27 * channels) ** -0.5
    return frames, weight, mx.random.normal((outputs,))


@settings(max_examples=30)
@given(
    grid=st.tuples(st.integers(1, 7), st.integers(1, 9), st.integers(1, 7)),
    channels=st.tuples(st.sampled_from([1, 5, 16]), st.sampled_from([1, 6, 24])),
    batch=st.integers(1, 2),
    parity=st.sampled_from([None, 0, 1]),
    joins_columns=st.booleans(),
    block=st.sampled_from([1, 500, 2**21]),
)
def test_products_are_the_convolution(grid, channels, batch, parity, joins_columns, block):
    frames, weight, bias = operands(*grid, *channels, batch)
    expected = mx.conv3d(frames, weight.transpose(4, 0, 1, 2, 3), padding=PADDING) + bias
    with patch.object(rules, "_BLOCK_BYTES", block), patch.object(rules, "_BLOCK_BYTES_TIMES_CHANNELS", 1):
        found = by_products(frames, weight, bias, PADDING, joins_columns=joins_columns, parity=parity)
    assert found.shape == expected.shape
    assert mx.abs(found - expected).max().item() < 2e-5


@cpu_only("the products are the CPU's")
@settings(max_examples=30)
@given(
    cuts=st.sets(st.integers(1, 10)),
    parity=st.sampled_from([0, 1]),
    joins_columns=st.booleans(),
    channels=st.sampled_from([4, 32]),
)
def test_a_frame_has_the_same_bits_with_its_partner_and_alone(cuts, parity, joins_columns, channels):
    frames, weight, bias = operands(11, 6, 9, channels, 8)
    options = {"joins_columns": joins_columns}
    whole = by_products(frames, weight, bias, PADDING, parity=parity, **options)
    starts = [0, *sorted(cuts), 11]
    for start, end in zip(starts, starts[1:], strict=False):
        part = by_products(frames[:, start : end + 2], weight, bias, PADDING, parity=(start + parity) % 2, **options)
        assert mx.array_equal(part, whole[:, start:end])


@cpu_only("pairs are made on a CPU")
@pytest.mark.parametrize("generation", ["0.9.0", "0.9.5", "ltx-2", "ltx-2.3", "prunavaed"])
@pytest.mark.parametrize("network", ["decoder", "encoder"])
def test_a_long_stream_computes_whole_pairs(generation, network):
    """But for the layers that make one frame of each latent frame, and the ends of the clip."""
    vae = PublishedVAE.find(generation, base_channels=8)
    spec = vae.spec(network)
    arrivals = range(LONG_CLIP, LONG_CLIP + 4)
    if network == "encoder":
        arrivals = [vae.config.scale.video_grid((latents, 1, 1))[0] for latents in arrivals]
    for layer in spec.layers:
        if isinstance(layer, ConvSpec):
            window = layer.window(Axis.TIME)
            ends = [window.ready(seen) for seen in arrivals]
            made = {window.stride * (end - start) for start, end in zip(ends, ends[1:], strict=False)}
            if layer.pairing is not None:
                assert all(layer.parity(end) == 0 for end in ends), layer.name
                assert all(count % 2 == 0 for count in made), layer.name
            else:
                assert made == {1} or layer.conv_stride != (1, 1, 1), layer.name
        arrivals = [layer.ready(Axis.TIME, seen) for seen in arrivals]


@cpu_only("pairs are made on a CPU")
def test_decodes_and_encodes_that_make_pairs_have_the_same_bits_in_any_steps(golden, monkeypatch):
    vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint)
    latents = random_latents(vae, 5)
    video = mx.random.uniform(-1, 1, (1, 3, 33, 64, 96))
    parities = set()
    products = conv3d.by_products

    def spy(*arguments, parity, **options):
        parities.add(parity)
        return products(*arguments, parity=parity, **options)

    monkeypatch.setattr(conv3d, "by_products", spy)
    whole = vae.decode(latents, vae.plan(latents.shape, mode="single"))
    encoded = vae.encode(video)
    for steps in (1, 2, 3, 8):
        monkeypatch.setitem(memory._PACES, Backend.CPU, (Pace(steps, 0),))
        assert mx.array_equal(vae.decode(latents, vae.plan(latents.shape, mode="exact", order="time")), whole)
        assert mx.array_equal(vae.encode(video), encoded)
    assert parities == {None, 0, 1}


@cpu_only("pairs are made on a CPU")
@pytest.mark.parametrize(
    ("shape", "parity"),
    [
        (((2, 48, 64), 32, 32), 0),
        (((4, 64, 96), 64, 64), 0),
        (((2, 16, 24), 64, 48), 0),
        (((1, 48, 64), 64, 64), 0),
        (((1, 48, 64), 64, 64), 1),
    ],
)
def test_the_memory_of_pairs_is_counted(shape, parity):
    """Of what a long stream takes in a step: whole pairs, or a single frame."""
    shape = ConvShape(*shape)
    (time, height, width), formulation = shape.grid, choose(shape, Backend.CPU)
    assert takes_pairs(shape, formulation)
    conv = Conv3d(shape.in_channels, shape.out_channels)
    conv.prepare()
    frames = mx.random.normal((1, time + 2, height, width, shape.in_channels))
    mx.eval(frames, conv.parameters())
    peaks = []
    for _ in range(3):
        before = active_memory()
        mx.reset_peak_memory()
        mx.eval(conv(frames, PADDING, parity=parity))
        peaks.append(mx.get_peak_memory() - before)
    planned = scratch_bytes(shape, formulation, 4, on_cpu=True, makes_pairs=True) + 4 * pair_sums(shape, formulation)
    assert 0.99 <= planned / max(peaks) <= 1.2
