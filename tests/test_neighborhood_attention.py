"""Neighborhood attention by blocks against a dense one, and the arithmetic of its blocks."""

import math
from itertools import product

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import active_memory
from mlx_ltx_vae.backend.machine import Backend, Machine
from mlx_ltx_vae.models.diffusion_decoder.attention import LARGEST_SCORE, attend, exponentials
from mlx_ltx_vae.models.diffusion_decoder.blocks import rotate
from mlx_ltx_vae.models.diffusion_decoder.neighborhood import (
    BLOCKS,
    calls,
    segments,
    shared_axis,
    shares,
    workspace_bytes,
)
from tolerances import tolerance

SIZE = BLOCKS[Backend.CPU]


def window_starts(length, kernel):
    """Centered where possible, and shifted inwards at the borders."""
    return [min(max(0, index - kernel // 2), length - kernel) for index in range(length)]


def dense(queries, keys, values, kernel):
    """Query by query, in float64: (B, T, H, W, heads, D) each."""
    result = np.zeros(queries.shape)
    starts = [window_starts(length, width) for length, width in zip(queries.shape[1:4], kernel, strict=True)]
    for t, h, w in np.ndindex(queries.shape[1:4]):
        box = tuple(
            slice(each[at], each[at] + width) for each, at, width in zip(starts, (t, h, w), kernel, strict=True)
        )
        seen_keys, seen_values = (array[(slice(None), *box)].astype(np.float64) for array in (keys, values))
        scores = np.einsum("bnd,bthwnd->bnthw", queries[:, t, h, w], seen_keys) / math.sqrt(queries.shape[-1])
        weights = np.exp(scores - scores.max(axis=(2, 3, 4), keepdims=True))
        weights /= weights.sum(axis=(2, 3, 4), keepdims=True)
        result[:, t, h, w] = np.einsum("bnthw,bthwnd->bnd", weights, seen_values)
    return result.reshape(*queries.shape[:4], -1)


def random_tokens(grid, heads=2, depth=8, batch=1, seed=0):
    generator = np.random.default_rng(seed)
    return [generator.standard_normal((batch, *grid, heads, depth)).astype(np.float32) for _ in range(3)]


def computed(queries, keys, values, kernel, bound):
    starts = tuple(window_starts(length, width) for length, width in zip(queries.shape[1:4], kernel, strict=True))
    keys_values = mx.stack([mx.array(keys), mx.array(values)], axis=4)
    return np.array(attend(mx.array(queries), keys_values, starts, kernel, bound))


AXES = st.integers(1, 6).flatmap(lambda kernel: st.tuples(st.just(kernel), st.integers(kernel, kernel + 6)))


@given(axes=st.tuples(AXES, AXES, AXES), heads=st.integers(1, 3), batch=st.integers(1, 2))
@settings(max_examples=10)
def test_blocks_agree_with_a_window_for_each_query(axes, heads, batch):
    kernel, grid = zip(*axes, strict=True)
    tokens = random_tokens(grid, heads, batch=batch)
    for bound in (LARGEST_SCORE, math.inf):  # by products on a CPU, and fused
        result, expected = computed(*tokens, kernel, bound), dense(*tokens, kernel)
        assert result.shape == expected.shape
        assert np.abs(result - expected).max() < tolerance(1e-5)


def test_the_published_window_agrees_with_a_window_for_each_query():
    tokens = random_tokens((11, 19, 12), heads=1, depth=16)
    assert np.abs(computed(*tokens, (11, 11, 11), LARGEST_SCORE) - dense(*tokens, (11, 11, 11))).max() < tolerance(1e-5)


@given(kernel=st.integers(1, 13), more=st.integers(0, 40))
def test_segments_cover_all_queries_and_their_windows(kernel, more):
    starts = window_starts(kernel + more, kernel)
    seen = []
    for segment in segments(starts, kernel, SIZE):
        assert segment.size <= max(4, kernel)
        for index, offset in product(range(segment.blocks), segment.offsets):
            first = segment.key_start + index * segment.size
            assert first >= 0 and first + segment.window <= kernel + more
            assert offset + kernel <= segment.window
            seen.append(first + offset)
    assert seen == starts


@given(axes=st.tuples(AXES, AXES, AXES), more=st.integers(0, 300), channels=st.sampled_from([8, 256, 2048]))
def test_blocks_that_share_a_copy_cover_each_block_once(axes, more, channels):
    kernel, grid = zip(*axes, strict=True)
    grid = (grid[0], grid[1], grid[2] + more)
    starts = [window_starts(length, width) for length, width in zip(grid, kernel, strict=True)]
    axis, backend = shared_axis(grid), Backend.CPU
    assert grid[axis] == max(grid)
    seen = np.zeros(grid, int)
    for block in product(*(segments(each, width, SIZE) for each, width in zip(starts, kernel, strict=True))):
        for share in product(*shares(backend, channels, block, axis)):
            copied = 2 * channels * math.prod(each.keys for each in share)
            assert share[axis].blocks == 1 or copied <= 2**22
            for call in product(*calls(backend, channels // 8, share)):
                seen[tuple(slice(each.start, each.end) for each in call)] += 1
                for part, whole in zip(call, share, strict=True):
                    assert whole.key_start <= part.key_start
                    assert part.key_start + part.keys <= whole.key_start + whole.keys
    assert (seen == 1).all()


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
def test_pairs_of_channels_are_rotated_by_their_positions(dtype):
    """Of 16 channels 4 by time, 6 by height and 6 by width, also far from the origin."""
    x, first = mx.random.normal((1, 2, 3, 4, 2, 16), key=mx.random.key(1)).astype(dtype), (5000, 0, 70)
    pairs = np.array(x.astype(mx.float32), np.float64).reshape(1, 2, 3, 4, 2, 8, 2)
    grid = np.stack(np.indices((2, 3, 4)), axis=-1) + np.array(first)
    angles = [grid[..., at, None] * 10000.0 ** -(np.arange(n) / n) for at, n in enumerate((2, 3, 3))]
    turned = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * np.concatenate(angles, axis=-1))[:, :, :, None]
    result = rotate(x, first)
    assert result.shape == x.shape and result.dtype == dtype
    expected = np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)
    near = 1e-5 if dtype == mx.float32 else 2e-2
    assert np.abs(np.array(result.astype(mx.float32)) - expected).max() < tolerance(near)


@pytest.mark.parametrize("bound", [0.5, 12.0, LARGEST_SCORE])
def test_exponentials_are_as_exact_as_their_argument(bound):
    scores = np.linspace(-bound, bound, 100_001, dtype=np.float32)
    expected = np.exp(scores.astype(np.float64))
    error = np.abs(np.array(exponentials(mx.array(scores), bound)) / expected - 1)
    assert error.max() < 5e-6 + bound * 3e-7


def test_no_more_than_the_planned_workspace_is_allocated():
    grid, kernel, heads, depth = (8, 40, 40), (11, 11, 11), 4, 16
    starts = tuple([index + shift for index in range(length)] for length, shift in zip(grid, (0, 0, 0), strict=True))
    queries = mx.random.normal((1, *grid, heads, depth))
    keys_values = mx.random.normal((1, *(length + 10 for length in grid), 2, heads, depth))
    mx.eval(queries, keys_values)
    before = active_memory()
    mx.reset_peak_memory()
    mx.eval(attend(queries, keys_values, starts, kernel, LARGEST_SCORE))
    used = mx.get_peak_memory() - before
    workspace = workspace_bytes(grid, kernel, heads * depth, heads, Machine(Backend.CPU))
    assert workspace < used < workspace + 3 * queries.nbytes
