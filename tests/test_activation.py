"""Norm and SiLU by themselves: right, and the same for a frame whatever piece of the clip it comes in."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_ltx_vae.networks.layers import PIXEL_NORM_EPS, Modulation, activate, gated_silu, pixel_norm, silu
from tolerances import ROUNDINGS, assert_same_bits

DTYPES = {mx.float32: 1.5e-6, mx.float16: 2**-11, mx.bfloat16: 2**-8}
FRAMES = 6


def exact_silu(x):
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-x))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_silu_is_right_everywhere(dtype):
    numbers = np.concatenate([np.linspace(-120, 120, 200_001), [-6e4, 6e4, 0.0]])
    given_numbers = mx.array(numbers).astype(dtype)
    x = np.array(given_numbers.astype(mx.float32), np.float64)
    result = silu(given_numbers)
    assert result.dtype == dtype
    error = np.abs(np.array(result.astype(mx.float32), np.float64) - exact_silu(x))
    assert (error <= ROUNDINGS * DTYPES[dtype] * np.maximum(1, np.abs(x))).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gated_silu_is_rounded_once(dtype):
    x, other = mx.random.normal((2, 300, 64), key=mx.random.key(1)).astype(dtype)
    wide_x, wide_other = (np.array(each.astype(mx.float32), np.float64) for each in (x, other))
    result = gated_silu(4 * x, other)
    assert result.dtype == dtype
    expected = exact_silu(4 * wide_x) * wide_other
    error = np.abs(np.array(result.astype(mx.float32), np.float64) - expected)
    near = DTYPES[dtype] * np.abs(expected) + 2e-6 * (1 + np.abs(4 * wide_x)) * (0.1 + np.abs(wide_other))
    assert (error <= ROUNDINGS * near).all()


@pytest.mark.parametrize("far", [1e20, -1e20, 3e38, -3e38])
def test_silu_of_huge_numbers_is_finite(far):
    assert silu(mx.array([far])).item() == pytest.approx(max(far, 0.0))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("channels", [1, 7, 24, 48, 128])
def test_pixel_norm_divides_by_the_root_mean_square(channels, dtype):
    given_numbers = (3 * mx.random.normal((1, 2, 3, 4, channels), key=mx.random.key(channels))).astype(dtype)
    x = np.array(given_numbers.astype(mx.float32), np.float64)
    result = pixel_norm(given_numbers)
    assert result.dtype == dtype
    expected = x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + PIXEL_NORM_EPS)
    np.testing.assert_allclose(
        np.array(result.astype(mx.float32)), expected, rtol=2 * ROUNDINGS * DTYPES[dtype], atol=1e-6
    )


@given(channels=st.sampled_from([5, 16, 40, 128]), cut=st.integers(1, FRAMES - 1), modulated=st.booleans())
def test_a_frame_is_activated_alike_in_every_piece(channels, cut, modulated):
    clip = mx.random.normal((1, FRAMES, 9, 7, channels), key=mx.random.key(channels))
    modulation = Modulation(clip[:, :1, :1, :1], clip[:, 1:2, :1, :1]) if modulated else None
    whole = activate(clip, modulation)
    pieces = [activate(mx.contiguous(piece), modulation) for piece in (clip[:, :cut], clip[:, cut:])]
    assert_same_bits(mx.concatenate(pieces, axis=1), whole)
