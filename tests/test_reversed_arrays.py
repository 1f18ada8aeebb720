"""Numpy arrays with negative strides along axes of length 1, which numpy calls contiguous and MLX refuses."""

import mlx.core as mx
import numpy as np
import pytest

from audio_cases import random_latents
from mlx_ltx_vae import VideoVAE, hdr, load_latents, save_latents

RANDOM = np.random.default_rng(0)
LATENTS = RANDOM.normal(size=(1, 8, 1, 4, 4)).astype(np.float32)
FRAMES = RANDOM.integers(0, 256, (9, 64, 64, 3), np.uint8)
PIXELS = RANDOM.uniform(-1, 1, (1, 3, 9, 64, 64)).astype(np.float32)
COLORS = RANDOM.uniform(size=(1, 4, 3)).astype(np.float32)


def reverse(array):
    """Return the same values, reversed along every axis of length 1."""
    view = np.flip(array, [axis for axis, length in enumerate(array.shape) if length == 1])
    assert view.flags.c_contiguous
    assert (min(view.strides) < 0) == (1 in array.shape)
    return view


def decode_saved(vae, latents, folder):
    save_latents(folder / "a.safetensors", latents)
    return vae.decode(load_latents(folder / "a.safetensors")[0])


def decode_to_array_file(vae, latents, folder):
    vae.decode_to_file(latents, folder / "a.npy")
    return np.load(folder / "a.npy")


WAYS = {
    "latents": lambda vae, change, folder: vae.decode(change(LATENTS)),
    "parts of latents": lambda vae, change, folder: vae.decode(change(LATENTS) for _ in range(2)),
    "to a file": lambda vae, change, folder: decode_to_array_file(vae, iter([change(LATENTS)]), folder),
    "saved latents": lambda vae, change, folder: decode_saved(vae, change(LATENTS), folder),
    "a frame": lambda vae, change, folder: vae.encode(change(FRAMES[:1])),
    "16 bits frame by frame": lambda vae, change, folder: vae.encode(map(change, 257 * FRAMES[:, None].astype("u2"))),
    "pixels": lambda vae, change, folder: vae.encode(change(PIXELS)),
    "colors": lambda vae, change, folder: hdr.to_hlg(change(COLORS)),
}


@pytest.fixture(scope="module")
def vae(golden):
    return VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.filterwarnings("ignore:latents")
def test_an_array_that_is_reversed_along_axes_of_length_1_gives_the_result_of_its_copy(vae, way, tmp_path):
    expected = WAYS[way](vae, np.copy, tmp_path)
    assert mx.array_equal(mx.array(WAYS[way](vae, reverse, tmp_path)), mx.array(expected))


def test_frames_in_reverse_order_are_encoded_like_a_copy(vae):
    assert mx.array_equal(vae.encode(FRAMES[::-1]), vae.encode(FRAMES[::-1].copy()))


def test_weights_and_audio_may_be_reversed_along_axes_of_length_1(golden, weights, audio_vae):
    arrays = weights("ltxv_0_9_1")
    config = golden("ltxv_0_9_1").manifest["vae_config"]
    results = [
        VideoVAE.from_weights({name: change(array) for name, array in arrays.items()}, config).encode(PIXELS)
        for change in (np.copy, reverse)
    ]
    assert mx.array_equal(*results)
    latents = random_latents(1)
    assert mx.array_equal(audio_vae("ltx2").decode(reverse(latents)), audio_vae("ltx2").decode(latents))
