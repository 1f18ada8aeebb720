"""Copies in words of 8 bytes, and kernels that join frames instead of a copy: the same bits, and how much is copied."""

from contextlib import nullcontext
from functools import partial

import mlx.core as mx
import numpy as np
import pytest

from benchmarks.copies import copies
from benchmarks.host import host
from benchmarks.measuring import Case, FixedRule, open_case
from metal_emulation import EmulatedGPU, emulated, load_decoder, stored_in_bfloat16
from mlx_ltx_vae import VideoVAE, demo, load_latents
from mlx_ltx_vae.backend import mlx_utils
from mlx_ltx_vae.backend.mlx_utils import in_words, tracing
from mlx_ltx_vae.networks import layers
from mlx_ltx_vae.networks.convolution import conv3d
from mlx_ltx_vae.networks.convolution.conv3d import Conv3d
from mlx_ltx_vae.networks.convolution.rules import Formulation
from mlx_ltx_vae.networks.layers import interleave, silu
from mlx_ltx_vae.streaming import window
from mlx_ltx_vae.tiling import SpatialTilingConfig, TilingConfig

LARGE = EmulatedGPU(any_width=True, magnification=60)
MODES = {
    "time": {"mode": "exact", "order": "time", "chunk": 2},
    "rows": {"mode": "exact", "order": "rows"},
    "tiled": {"mode": "tiled", "tiling": TilingConfig(SpatialTilingConfig(96, 32)), "tile_batch_size": 2},
    "columns": {"mode": "exact", "order": "columns"},
    "single": {"mode": "single"},
}
DTYPES = (mx.bfloat16, mx.float16, mx.float32)
MOVES = {
    "join": (lambda *arrays: mx.concatenate(list(arrays), axis=1), None),
    "pad": (lambda x, _: mx.pad(x, [(0, 0), (1, 2), (0, 0)]), None),
    "swap": (lambda x, _: mx.unflatten(x, 2, (2, -1))[:, :, ::-1].flatten(2), 8),
}


def noise(*shape, seed=1):
    return mx.random.normal(shape, key=mx.random.key(seed))


def bits(array):
    return np.array(array.view(mx.uint16 if array.dtype.size == 2 else mx.uint32))


@pytest.mark.parametrize("name", MOVES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_words_are_moved_as_their_elements_are(name, dtype):
    move, run = MOVES[name]
    moved = []

    def moving(*arrays):
        moved.extend(arrays)
        return move(*arrays)

    x, y = noise(2, 3, 16).astype(dtype), noise(2, 4, 16, seed=2).astype(dtype)
    x = mx.where(x > 1, mx.nan, x)
    result = in_words(moving, x, y, run=run)
    takes_words = dtype != mx.float32 and not mx.cuda.is_available()
    assert {each.dtype for each in moved} == {mx.uint64 if takes_words else dtype}
    assert result.dtype == dtype
    assert np.array_equal(bits(result), bits(move(x, y)))
    with tracing():
        assert np.array_equal(bits(mx.compile(partial(in_words, move, run=run))(x, y)), bits(move(x, y)))


def test_elements_that_are_no_whole_words_or_are_on_cuda_are_moved_one_by_one(monkeypatch):
    x = noise(1, 2, 6).astype(mx.bfloat16)
    assert in_words(lambda array: array, x) is x
    with monkeypatch.context() as patched:
        patched.setattr(mx.cuda, "is_available", lambda: True)
        x = noise(1, 2, 8).astype(mx.bfloat16)
        assert in_words(lambda array: array, x) is x
    assert in_words(lambda array: array, noise(1, 2, 8).astype(mx.bfloat16), run=2).dtype == mx.bfloat16
    for channels in (2, 4):
        x = noise(1, 1, 3, 2, 8 * channels).astype(mx.float16)
        expected = interleave(x.astype(mx.float32), (2, 2, 2)).astype(mx.float16)
        assert mx.array_equal(interleave(x, (2, 2, 2)), expected)


def make_vae(backend):
    """The demo VAE for a backend, and its latents. Call it where it is run."""
    latents = load_latents(demo.LATENTS)[0][:, :, :3, :3, :3]
    if backend == "cpu":
        return VideoVAE.from_pretrained(demo.VAE, dtype="bfloat16", encoder=False), latents
    return load_decoder(stored_in_bfloat16(demo.VAE), LARGE.choose), latents


def decode(vae, latents, mode):
    return np.array(vae.decode(latents, vae.plan(latents.shape, **MODES[mode])).astype(mx.float32))


@pytest.mark.quick(2)
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_decodes_to_the_same_bits_as_without_words_and_kernels_that_join(monkeypatch, mode):
    with emulated(LARGE):
        vae, latents = make_vae("metal")
        result = decode(vae, latents, mode)
        for module in (window, layers, conv3d):
            monkeypatch.setattr(module, "in_words", lambda move, *arrays, run=None: move(*arrays))
        monkeypatch.setattr(Conv3d, "takes_activation", lambda *_: False)
        assert np.array_equal(result, decode(vae, latents, mode))


@pytest.mark.parametrize("mode", MODES)
def test_the_bits_on_a_cpu_are_those_without_words(monkeypatch, mode):
    vae, latents = make_vae("cpu")
    result = decode(vae, latents, mode)
    for module in (window, layers, conv3d):
        monkeypatch.setattr(module, "in_words", lambda move, *arrays, run=None: move(*arrays))
    assert np.array_equal(result, decode(vae, latents, mode))


@pytest.mark.parametrize("backend", ["cpu", "metal"])
def test_what_is_viewed_as_words_is_contiguous_but_for_the_latents(monkeypatch, backend):
    copied = []

    def check(move, *arrays, run=None):
        mx.eval(arrays)
        for array in arrays:
            if array.dtype.size == 2 and (run or array.shape[-1]) % 4 == 0:
                view = np.array(array.view(mx.uint16), copy=False)
                copied.extend([] if view.flags.c_contiguous else [view.shape])
        return mlx_utils.in_words(move, *arrays, run=run)

    for module in (window, layers, conv3d):
        monkeypatch.setattr(module, "in_words", check)

    with emulated(LARGE) if backend == "metal" else nullcontext():
        vae, latents = make_vae(backend)
        for mode in ("time", "rows") if backend == "cpu" else ("time",):
            decode(vae, latents, mode)
    assert {shape[2:] for shape in copied} <= {(*latents.shape[3:], latents.shape[1])}


@pytest.mark.parametrize("padding", [(0, 1, 1), (0, 0, 0)])
@pytest.mark.parametrize("formulation", [Formulation.JOINED, Formulation.ROWS, Formulation.CONV3D])
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_activation_within_a_convolution_gives_the_bits_of_one_before_it(formulation, dtype, padding):
    with emulated(LARGE):
        mx.random.seed(0)
        conv = Conv3d(32, 32, rule=FixedRule(formulation))
        conv.set_dtype(dtype)
        conv.prepare()
        operands = conv.operands(lambda: 32**0.5)
        activation = partial(silu, dtype=operands)
        x = noise(2, 5, 7, 6, 32).astype(dtype)
        expected = conv(activation(x), padding)
        takes = conv.takes_activation(operands)
        assert takes is (formulation is not Formulation.CONV3D)
        if takes:
            assert np.array_equal(bits(conv(x, padding, None, activation)), bits(expected))
        assert not Conv3d(32, 32, stride=(2, 1, 1)).takes_activation(dtype)
        with tracing():
            assert not conv.takes_activation(operands)
    assert not Conv3d(32, 32).takes_activation(dtype)


def test_convolutions_on_metal_join_no_frames_by_a_copy():
    case = Case(base_width=16, dtype="bfloat16", width=256, height=192, frames=121)
    run = copies(case)
    assert {name for name in run["copied_bytes"] if "join" in name} == {"window._join"}
    # Each value is read and written once, and has two bytes.
    upsampled, per_latent = 0, 1
    spec = open_case(case).family.spec(open_case(case).config, "decoder")
    grids = [extents for _, extents in spec.walk((2, 6, 8))][1:]
    for layer, (_, height, width) in zip(spec.layers, grids, strict=False):
        per_latent *= layer.up[0]
        upsampled += per_latent * height * width * layer.out_channels if layer.up != (1, 1, 1) else 0
    pixels = 8 * 256 * 192 * 3
    assert run["copied_bytes"]["layers.interleave"] == 4 * (upsampled + pixels)


@pytest.mark.slow
def test_the_host_is_timed_in_the_steps_of_a_decode():
    case = Case(base_width=16, dtype="bfloat16", width=256, height=192, frames=121)
    metal, cuda = (host(case, target=target) for target in ("metal", "cuda"))
    layers_of_decoder = len(open_case(case).family.spec(open_case(case).config, "decoder").layers)
    assert metal["steps"] == cuda["steps"] >= layers_of_decoder / 2, "a chunk has two latent frames"
    assert cuda["seconds"] > 0 and metal["seconds"] > 0
