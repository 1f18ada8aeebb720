"""Self-attention within frames, in blocks of queries."""

import math
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from conftest import active_memory
from mlx_ltx_vae.backend.machine import Machine
from mlx_ltx_vae.networks.layers import FrameAttention
from mlx_ltx_vae.networks.specs import PaddingMode, Step
from mlx_ltx_vae.networks.video_vae.block_types import ATTENTION, BlockConfig, NetworkOptions
from mlx_ltx_vae.shapes import Axis

(SPEC,) = ATTENTION.specs(BlockConfig(ATTENTION, 16, 16), NetworkOptions(False, PaddingMode.ZEROS), "attention")


def attention(spec=SPEC):
    mx.random.seed(0)
    return FrameAttention(spec)


def noise(*shape):
    return mx.random.normal(shape, key=mx.random.key(1))


@pytest.mark.parametrize("max_scores", [1, 3 * 2 * 35, 3 * 2 * 35 * 8, 3 * 2 * 35 * 34])
def test_blocks_of_queries_give_the_same(max_scores):
    x = noise(2, 3, 5, 7, 16)
    expected, result = attention()(x), attention(replace(SPEC, max_scores=max_scores))(x)
    assert result.shape == expected.shape
    assert mx.abs(expected - x).max().item() > 0.05
    assert mx.allclose(result, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("size", "frames", "block"),
    [((1024, 768), 1, 64 * 48), ((1920, 1088), 1, 120 * 68), ((1920, 1088), 4, 4112), ((3840, 2160), 1, 4142)],
)
def test_scores_stay_far_below_what_metal_can_index(size, frames, block):
    width, height = (extent // 16 for extent in size)
    assert SPEC.query_block(frames, width * height) == block
    assert frames * block * width * height <= SPEC.max_scores == 2**27


@pytest.mark.parametrize("max_scores", [2**27, 2**20])
def test_the_planned_memory_holds_with_one_block_and_with_several(max_scores):
    spec = replace(SPEC, max_scores=max_scores)
    layer, x = attention(spec), noise(1, 2, 32, 48, 16)
    mx.eval(layer.parameters(), x)
    before = active_memory()
    mx.reset_peak_memory()
    mx.eval(layer(x))
    taken = mx.get_peak_memory() - before
    planned = spec.work_bytes(Step(Axis.TIME, (2, 32, 48), False, Machine()))
    assert planned / 2 <= taken <= planned, "the softmax may replace the scores"
    assert math.prod((2, 32 * 48, 32 * 48)) > 4 * 2**20, "several blocks"
    assert np.isfinite(np.array(layer(x))).all()
