"""What ranks exchange: the sums of the plan against what streams take in, and against counts frame by frame."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.convolutions import recorded
from benchmarks.exchange import BorderBytes, halo_bytes, make_exchange
from conftest import CONV_CASES
from mlx_ltx_vae import VideoVAE
from mlx_ltx_vae.backend.machine import Backend, Machine
from mlx_ltx_vae.models.specs import ConvSpec, FrameAttentionSpec, LayerSpec, NetworkSpec
from mlx_ltx_vae.models.video_vae.config import GENERATIONS, decoder_spec, parse_vae_config
from mlx_ltx_vae.planning.clip import Clip
from mlx_ltx_vae.planning.memory import StreamRun, make_steps
from mlx_ltx_vae.shapes import Axis, LatentShape, WindowSpec
from mlx_ltx_vae.streaming.window import Window

CONFIG = parse_vae_config(GENERATIONS["LTX-2.3"], "LTX-2.3")
DECODER = decoder_spec(CONFIG)
ATTENTION = FrameAttentionSpec("attention", 8, 8, unbounded=frozenset({Axis.HEIGHT, Axis.WIDTH}))


def clip_of(spec, latent_grid, *, batch=1):
    video = spec.scale.video_grid(latent_grid)
    return Clip(spec, batch, latent_grid, LatentShape(batch, spec.in_channels, *latent_grid), video, is_decode=True)


def run_of(clip, itemsize):
    length = clip.grid[0]
    steps = make_steps(clip.spec, clip.grid, Axis.TIME, 2, 2**29)
    pieces = clip.pieces(length, min(clip.default_chunk(), length))
    return StreamRun(Axis.TIME, pieces, steps, 0, Machine(Backend.CPU, itemsize))


@pytest.fixture
def pushed(monkeypatch):
    """The shape of every piece that a kernel's cache takes in, and the kernel's length along time."""
    shapes = []
    push = Window.push

    def counting(self, frames, last):
        if frames is not None:
            shapes.append((frames.shape, self.spec.kernel))
        return push(self, frames, last)

    monkeypatch.setattr(Window, "push", counting)
    return shapes


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("name", "frames", "batch"),
    [*((name, 3, 2) for name in CONV_CASES[1::2]), ("ltx2_3", 1, 1), ("ltx2_3_causal", 1, 1)],
)
def test_border_bytes_and_messages_of_a_decode_are_those_of_the_pieces_that_its_kernels_take(
    golden, pushed, name, frames, batch
):
    """Every kernel in these networks spans time, height and width, so each piece that is pushed is one exchange."""
    vae = VideoVAE.from_pretrained(golden(name).checkpoint, encoder=False)
    latents = mx.random.normal((batch, vae.config.latent_channels, frames, 3, 2), key=mx.random.key(0))
    plan = vae.plan(latents.shape, mode="exact", order="time")
    for _ in vae.stream(latents, plan):
        pass
    spec = decoder_spec(vae.config)
    clip = clip_of(spec, (frames, 3, 2), batch=batch)
    run = StreamRun(Axis.TIME, clip.pieces(frames, plan.chunk), plan.steps, plan.prefetch, plan.machine)
    kernels = [shape for shape, kernel in pushed if kernel > 1]
    row_bytes = sum(batch * frames * width * channels * 4 for batch, frames, _, width, channels in kernels)
    assert halo_bytes(spec, clip.grid, clip.batch, 4) == BorderBytes(row_bytes, row_bytes)
    inner = make_exchange(clip, run, [1, 1, 1], 1)
    assert inner.halo_bytes == 2 * row_bytes
    assert inner.halo_messages == 2 * len(kernels)


@pytest.mark.parametrize("name", ["ltxv_0_9_0", "ltxv_0_9_1", "ltx2_3", "ltx2_3_causal"])
def test_multiply_adds_of_a_decode_are_those_of_its_convolutions(golden, name):
    vae = VideoVAE.from_pretrained(golden(name).checkpoint, encoder=False)
    operations = []
    with recorded(lambda convolution: operations.append(convolution.operations)):
        for _ in vae.stream(mx.zeros((1, vae.config.latent_channels, 4, 3, 2)), noise="zeros"):
            pass
    spec = decoder_spec(vae.config)
    pointwise = NetworkSpec(tuple(without_convolution(layer) for layer in spec.layers))
    assert spec.multiply_adds((4, 3, 2)) - pointwise.multiply_adds((4, 3, 2)) == sum(operations) // 2


def without_convolution(layer):
    """A layer with its other matrix products only."""
    return replace(layer, conv_channels=0) if isinstance(layer, ConvSpec) else layer


networks = st.lists(
    st.tuples(
        st.sampled_from([1, 2, 3]),  # kernel along height; an even one sends more one way
        st.integers(1, 5),  # channels
        st.sampled_from([(1, 1, 1), (1, 2, 2), (2, 1, 1), (2, 2, 2)]),
    ),
    min_size=1,
    max_size=5,
)


def make_network(parts):
    layers = []
    for index, (kernel, channels, up) in enumerate(parts):
        following = parts[index + 1][1] if index + 1 < len(parts) else 3
        side = WindowSpec(kernel, 1, kernel // 2, (kernel - 1) // 2)
        windows = (WindowSpec(3, 1, 2, 0), side, side)
        layers.append(LayerSpec(f"{index}", channels, following, up=up, trim=up[0] - 1, windows=windows))
    return NetworkSpec(tuple(layers))


@settings(max_examples=60)
@given(
    parts=networks,
    bands=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    frames=st.integers(1, 5),
    width=st.integers(1, 4),
    itemsize=st.sampled_from([2, 4]),
    batch=st.integers(1, 2),
)
def test_what_each_rank_sends_is_the_sum_over_frames_rows_and_neighbors(parts, bands, frames, width, itemsize, batch):
    """Counted row by row: who owns each row that a rank's windows reach and that it does not have."""
    spec = make_network(parts)
    clip = clip_of(spec, (frames, sum(bands), width), batch=batch)
    sent = Counter()
    for layer, (count, height, columns) in spec.walk(clip.grid):
        scale = height // sum(bands)
        owner = [rank for rank, rows in enumerate(bands) for _ in range(rows * scale)]
        window = layer.window(Axis.HEIGHT)
        for rank in range(len(bands)):
            own = [row for row, of in enumerate(owner) if of == rank]
            needed = {row + shift for row in own for shift in range(-window.before, window.after + 1)} - set(own)
            for row in needed & set(range(height)):
                sent[owner[row]] += batch * count * columns * layer.in_channels * itemsize
    run = run_of(clip, itemsize)
    for rank in range(len(bands)):
        exchange = make_exchange(clip, run, bands, rank)
        assert exchange.halo_bytes == sent[rank]
        assert exchange.given_bytes - exchange.halo_bytes == exchange.output_bytes


def test_works_of_all_bands_add_up_to_the_whole():
    whole = DECODER.multiply_adds((3, 16, 24))
    assert sum(DECODER.multiply_adds((3, 16, 24), rows) for rows in (6, 5, 5)) == whole


def test_attention_gathers_keys_and_values_and_each_band_attends_to_the_whole_frame():
    spec = NetworkSpec((ATTENTION,))
    clip = clip_of(spec, (5, 6, 4))
    exchange = make_exchange(clip, run_of(clip, itemsize=2), [3, 2, 1], 2)
    assert exchange.halo_bytes == exchange.halo_messages == 0
    assert exchange.gathered_bytes == 5 * 3 * 4 * 2 * 8 * 2  # frames, rows of the largest band, columns, channels
    assert exchange.output_bytes == 5 * 3 * 4 * 8
    assert exchange.sent_bytes == 2 * (exchange.gathered_bytes + exchange.output_bytes)
    assert spec.multiply_adds((5, 6, 4), 2) == 2 * 5 * (2 * 4) * (6 * 4) * 8


def test_embeddings_of_a_timestep_are_computed_once_and_not_for_each_position():
    spec = decoder_spec(parse_vae_config(GENERATIONS["LTX-Video 0.9.1"], "0.9.1"))
    shared = [name for name in spec.weights if "time_embedder" in name]
    assert shared
    layers = (replace(each, weights=tuple(w for w in each.weights if w[0] not in shared)) for each in spec.layers)
    assert spec.multiply_adds((2, 2, 2)) == NetworkSpec(tuple(layers)).multiply_adds((2, 2, 2))


def test_figures_of_the_real_decoder_are_those_of_the_documentation():
    """768x512 in bfloat16: one latent frame more, in the middle of a clip."""
    text = Path(__file__).parent.parent.joinpath("docs/scaling.md").read_text()
    one, two = (clip_of(DECODER, (frames, 16, 24)) for frames in (16, 17))
    (down, up), (more_down, more_up) = (halo_bytes(DECODER, clip.grid, 1, 2) for clip in (one, two))
    assert down == up and more_down == more_up
    assert f"{(more_down - down) / 1e6:.1f} MB per latent frame" in text
    products = DECODER.multiply_adds(two.grid) - DECODER.multiply_adds(one.grid)
    assert f"{2 * products / 1e12:.1f} TFLOP per latent frame" in text
    assert f"{sum(layer.window(Axis.HEIGHT).kernel > 1 for layer in DECODER.layers)} convolutions" in text
