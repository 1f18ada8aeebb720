"""The golden cases of the diffusion decoder, and their noise as the package takes it."""

from functools import cache

import mlx.core as mx
import numpy as np
import pytest

from mlx_ltx_vae import VideoVAE

#: Narrow networks of two geometries: one step that predicts the picture, and two steps that predict the velocity.
CASES = ["ltx2_5_diffusion", "ltx2_5_diffusion_gated"]


def patched(noise: np.ndarray) -> np.ndarray:
    """Noise on pixels (B, 3, F, H, W) as a volume of patches (B, 48, F, H/4, W/4), channels ordered (c, w, h)."""
    batch, channels, frames, height, width = noise.shape
    noise = noise.reshape(batch, channels, frames, height // 4, 4, width // 4, 4)
    noise = noise.transpose(0, 1, 6, 4, 2, 3, 5)
    return np.ascontiguousarray(noise.reshape(batch, -1, frames, height // 4, width // 4))


def given_noise(case, check) -> list[np.ndarray]:
    return [patched(case.arrays[name]) for name in check["noise"]]


def decodes(case) -> list[dict]:
    return [check for check in case.manifest["checks"] if check["op"] == "decode"]


def relative_rms(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2)))


def as_numpy(array: mx.array) -> np.ndarray:
    return np.array(array.astype(mx.float32))


def decode_check(vae, case, check, **options) -> np.ndarray:
    """What the public API makes of a decode of the golden data."""
    latents = case.arrays[check["input"]]
    plan = vae.plan(latents.shape, steps=check.get("num_inference_steps"), **options)
    return as_numpy(vae.decode(latents, plan, noise=given_noise(case, check)))


@pytest.fixture(scope="module")
def vaes(golden):
    """`vaes(name, dtype)`: the VAE of a case, loaded once."""
    return cache(lambda name, dtype="float32": VideoVAE.from_pretrained(golden(name).checkpoint, dtype=dtype))
