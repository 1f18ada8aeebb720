"""The model of the diffusion decoder's time on Apple GPUs: its counts, held against the network's own."""

import re
from dataclasses import replace

import pytest

from benchmarks.metal.attention_model import CHIPS, attention_work, estimate, metal_table, planned_layers
from benchmarks.metal.host import host_table
from mlx_ltx_vae.models.diffusion_decoder.config import ltx_2_5
from mlx_ltx_vae.models.diffusion_decoder.neighborhood import computed_scores
from mlx_ltx_vae.models.diffusion_decoder.network_specs import AttentionSpec, network_spec
from mlx_ltx_vae.shapes import Axis

KERNEL = (11, 11, 11)
FAST = 1e12  # so much of anything a second that it takes no time


def test_a_block_fills_tiles_of_the_kernel_and_copies_what_blocks_in_a_row_share():
    # Rows and columns are borders as a whole: one window for all.
    (grid, steps) = ((27, 11, 11), (27,))
    blocks = [(6, 11), *[(4, 14)] * 3, (3, 13), (6, 11)]  # queries and keys along time: those at a border are one block
    expected = sum(-(-121 * queries // 32) * 32 * -(-121 * keys // 32) * 32 for queries, keys in blocks)
    scores, keys = attention_work(grid, KERNEL, Axis.TIME, steps, 4, 32)
    assert scores == expected
    assert keys == 121 * (11 + (14 + 2 * 4) + 13 + 11), "three blocks share a copy"
    assert attention_work(grid, KERNEL, Axis.TIME, steps, 4, 64)[0] > scores


def test_scores_without_tiles_are_those_that_the_network_counts():
    scores, _ = attention_work((40, 40, 40), KERNEL, Axis.TIME, (40,), 4, 1)
    assert 1 <= scores / computed_scores((40, 40, 40), KERNEL, 4) < 1.02  # the keys of a tile are 32


def test_seconds_are_counted_work_over_rates():
    _, layers = planned_layers()
    only_products = replace(CHIPS["M3 Max"], attention=FAST, bytes=FAST, products=10)
    found = replace(estimate(only_products, layers, 4), host=0)
    spec, grid = network_spec(ltx_2_5(), "decoder"), layers[0].grid
    scores = sum(
        2 * layer.spec.in_channels * computed_scores(layer.grid, layer.spec.kernel, 4)
        for layer in layers
        if isinstance(layer.spec, AttentionSpec)
    )
    assert found.total == pytest.approx(2 * (spec.multiply_adds(grid) - scores) / 10e12, rel=1e-3)
    assert estimate(replace(only_products, products=5), layers, 4).products == pytest.approx(2 * found.products)


def test_the_host_makes_few_calls_and_the_model_waits_for_it():
    """A call for each row of blocks would be 58,048."""
    found = re.search(r"(\d+) calls and [0-9.]+ s in all, by columns in steps of 4", host_table())
    assert 5_000 < int(found[1]) < 20_000
    _, layers = planned_layers()
    waiting = replace(estimate(CHIPS["M5 Max"], layers, 4), scores=0, copies=0, products=0, rest=0)
    assert waiting.total == waiting.host > 0


def test_the_table_has_every_chip_and_says_that_it_is_a_model():
    printed = metal_table()
    assert all(f"| {name}" in printed for name in CHIPS)
    assert "not measured on a Mac" in printed
