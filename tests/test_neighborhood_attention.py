"""Neighborhood attention by blocks against a dense one, and the arithmetic of its blocks."""

import math
import re
from itertools import product

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import active_memory
from mlx_ltx_vae.backend.machine import Backend, Machine
from mlx_ltx_vae.networks.diffusion_decoder import attention, blocks
from mlx_ltx_vae.networks.diffusion_decoder.attention import (
    LARGEST_SCORE,
    Tables,
    attend,
    exponentials,
    make_turns,
    rotate,
)
from mlx_ltx_vae.networks.diffusion_decoder.blocks import RMSNorm
from mlx_ltx_vae.networks.diffusion_decoder.neighborhood import (
    BLOCKS,
    calls,
    copied_keys,
    segments,
    shared_axis,
    shares,
    workspace_bytes,
)
from tolerances import tolerance

SIZE = BLOCKS[Backend.CPU]
MOST_COPIED = {Backend.CPU: 2**22, Backend.METAL: 2**26, Backend.CUDA: 2**26}


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


def random_tokens(grid, heads=2, depth=8, batch=1):
    generator = np.random.default_rng(0)
    return [generator.standard_normal((batch, *grid, heads, depth)).astype(np.float32) for _ in range(3)]


def computed(queries, keys, values, kernel, bound):
    starts = tuple(
        tuple(window_starts(length, width)) for length, width in zip(queries.shape[1:4], kernel, strict=True)
    )
    keys_values = tuple(mx.array(each).flatten(4) for each in (keys, values))
    return np.array(attend(mx.array(queries), keys_values, starts, kernel, bound, Tables()))


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


@pytest.mark.parametrize("grid", [(9, 40, 11), (4, 9, 41), (21, 6, 6)])
def test_large_calls_as_on_metal_agree_with_those_of_a_cpu(monkeypatch, grid):
    """Rows of blocks have copies of their own, and are heads of one call. Two items of a batch."""
    kernel, tokens = (3, 5, 5), random_tokens(grid, batch=2)
    expected = computed(*tokens, kernel, math.inf)
    made = []
    monkeypatch.setattr(attention, "backend", lambda: Backend.METAL)
    monkeypatch.setattr(attention.Queue, "add", lambda _, result: made.append(result) or result)
    assert np.abs(computed(*tokens, kernel, math.inf) - expected).max() < tolerance(1e-5)
    starts = [window_starts(length, width) for length, width in zip(grid, kernel, strict=True)]
    kinds = math.prod(len(segments(each, width, SIZE)) for each, width in zip(starts, kernel, strict=True))
    assert len(made) == kinds, "one call for each kind of block"


def test_steps_of_a_stream_make_no_index_on_the_host(monkeypatch):
    tables, kernel = Tables(), (3, 3, 3)
    queries = mx.random.normal((1, 4, 12, 12, 2, 8))
    keys_values = mx.random.normal((1, 6, 12, 12, 16)), mx.random.normal((1, 6, 12, 12, 16))
    starts = (tuple(range(4)), *[tuple(window_starts(12, 3))] * 2)
    first = attend(queries, keys_values, starts, kernel, math.inf, tables)
    monkeypatch.setattr(attention, "np", None)  # which makes all indices and masks
    assert mx.array_equal(attend(queries, keys_values, starts, kernel, math.inf, tables), first)


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


@given(axes=st.tuples(AXES, AXES, AXES), more=st.integers(0, 300), channels=st.sampled_from([8, 256, 2048]),
       backend=st.sampled_from(Backend))  # fmt: skip
def test_blocks_that_share_a_copy_cover_each_block_once(axes, more, channels, backend):
    kernel, grid = zip(*axes, strict=True)
    grid = (grid[0], grid[1], grid[2] + more)
    starts = [window_starts(length, width) for length, width in zip(grid, kernel, strict=True)]
    axis = shared_axis(grid)
    assert grid[axis] == max(grid)
    seen = np.zeros(grid, int)
    for block in product(*(segments(each, width, SIZE) for each, width in zip(starts, kernel, strict=True))):
        for share in product(*shares(backend, channels, channels // 8, block, axis)):
            copied = 2 * channels * copied_keys(share, axis)
            assert math.prod(each.blocks for each in share) == 1 or copied <= MOST_COPIED[backend]
            for part in calls(backend, channels // 8, share, axis):
                call = [part if other == axis else each for other, each in enumerate(share)]
                seen[tuple(slice(each.start, each.end) for each in call)] += 1
                assert share[axis].key_start <= part.key_start
                assert part.key_start + part.keys <= share[axis].key_start + share[axis].keys
    assert (seen == 1).all()


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
def test_pairs_of_channels_are_rotated_by_their_positions(dtype):
    """Of 16 channels 4 by time, 6 by height and 6 by width, also far from the origin."""
    x, first = mx.random.normal((1, 2, 3, 4, 2, 16), key=mx.random.key(1)).astype(dtype), (5000, 0, 70)
    pairs = np.array(x.astype(mx.float32), np.float64).reshape(1, 2, 3, 4, 2, 8, 2)
    grid = np.stack(np.indices((2, 3, 4)), axis=-1) + np.array(first)
    angles = [grid[..., at, None] * 10000.0 ** -(np.arange(n) / n) for at, n in enumerate((2, 3, 3))]
    turned = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * np.concatenate(angles, axis=-1))[:, :, :, None]
    result = rotate(x, first, make_turns)
    assert result.shape == x.shape and result.dtype == dtype
    expected = np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)
    near = 1e-5 if dtype == mx.float32 else 2e-2
    assert np.abs(np.array(result.astype(mx.float32)) - expected).max() < tolerance(near)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
def test_a_rotation_is_one_kernel_of_a_gpu_and_rounds_as_on_a_cpu(monkeypatch, tmp_path, dtype):
    x = mx.random.normal((1, 2, 3, 4, 2, 16), key=mx.random.key(1)).astype(dtype)
    mx.eval(x)
    expected = rotate(x, (5000, 0, 70), make_turns)
    monkeypatch.setattr(attention, "is_cpu", lambda: False)
    found = rotate(x, (5000, 0, 70), make_turns)
    mx.export_to_dot(str(tmp_path / "graph.dot"), found)
    made = re.findall(r'label ="(\w+)', (tmp_path / "graph.dot").read_text())
    assert len([name for name in made if name not in ("Reshape", "Slice")]) == 1, made
    assert found.dtype == dtype and mx.array_equal(found, expected)


@pytest.mark.parametrize(("on_cpu", "has_bias"), [(True, False), (False, True)])
@pytest.mark.parametrize(("dtype", "near"), [(mx.float32, 2e-6), (mx.bfloat16, 6e-3)], ids=str)
def test_a_modulated_norm_is_one_kernel_of_a_gpu_and_its_shift_a_bias(monkeypatch, on_cpu, has_bias, dtype, near):
    x, matrix = (mx.random.normal((64, 64), key=mx.random.key(seed)).astype(dtype) for seed in (1, 2))
    weight, scale, shift, bias = mx.random.normal((4, 64), key=mx.random.key(3))
    norm, rms_norm, made = RMSNorm(), mx.fast.rms_norm, []
    norm.weight = weight.astype(dtype)
    wide = [np.array(each.astype(mx.float32), np.float64) for each in (x, matrix, norm.weight, scale, shift, bias)]
    x_, matrix_, weight_, scale_, shift_, bias_ = wide
    normed = x_ / np.sqrt(np.square(x_).mean(axis=1, keepdims=True) + 1e-6)
    expected = (normed * weight_ * (1 + scale_) + shift_) @ matrix_.T + bias_ * has_bias
    monkeypatch.setattr(blocks, "is_cpu", lambda: on_cpu)
    monkeypatch.setattr(mx.fast, "rms_norm", lambda *given: made.append(rms_norm(*given)) or made[-1])
    norm, [(shifted, turned)] = norm.modulated(scale, shift, [(bias.astype(dtype) if has_bias else None, matrix.T)])
    modulated = norm(x)
    result = mx.addmm(shifted, modulated, turned)
    assert result.dtype == dtype and (on_cpu or modulated is made[0])
    error = np.array(result.astype(mx.float32)) - expected
    assert np.abs(error).max() < tolerance(near) * np.abs(expected).max()


@pytest.mark.parametrize("bound", [0.5, 12.0, LARGEST_SCORE])
def test_exponentials_are_as_exact_as_their_argument(bound):
    scores = np.linspace(-bound, bound, 100_001, dtype=np.float32)
    expected = np.exp(scores.astype(np.float64))
    error = np.abs(np.array(exponentials(mx.array(scores), bound)) / expected - 1)
    assert error.max() < 5e-6 + bound * 3e-7


def test_no_more_than_the_planned_workspace_is_allocated():
    grid, kernel, heads, depth = (8, 40, 40), (11, 11, 11), 4, 16
    starts = tuple(tuple(range(length)) for length in grid)
    queries = mx.random.normal((1, *grid, heads, depth))
    keys_values = [mx.random.normal((1, *(length + 10 for length in grid), heads * depth)) for _ in range(2)]
    mx.eval(queries, keys_values)
    before = active_memory()
    mx.reset_peak_memory()
    mx.eval(attend(queries, keys_values, starts, kernel, LARGEST_SCORE, Tables()))
    used = mx.get_peak_memory() - before
    workspace = workspace_bytes(grid, kernel, heads * depth, heads, Machine(Backend.CPU))
    assert workspace < used < workspace + 3 * queries.nbytes
