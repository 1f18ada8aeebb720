"""The neighborhood attention of the diffusion decoder against what it cannot do without: its scores and its products.

One step of a stream in the last stage at the published widths: 256 channels in 4 heads, windows of 11x11x11.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx

from benchmarks.measuring import Case, Job, Run
from mlx_ltx_vae.backend.device import freed_memory_kept
from mlx_ltx_vae.backend.machine import Backend
from mlx_ltx_vae.commands.bench_command import table
from mlx_ltx_vae.models.diffusion_decoder.attention import LARGEST_SCORE, Tables, attend, exponentials
from mlx_ltx_vae.models.diffusion_decoder.blocks import Attention, NeighborhoodBlock
from mlx_ltx_vae.models.diffusion_decoder.config import ltx_2_5
from mlx_ltx_vae.models.diffusion_decoder.neighborhood import BLOCKS, segments
from mlx_ltx_vae.models.diffusion_decoder.specs import AttentionSpec, MLPSpec, decoder_spec, hidden_channels

_KERNEL, _HEADS, _DEPTH = (11, 11, 11), 4, 64
_GRIDS = ((2, 32, 48), (4, 32, 48))
_BOUND = 12.0  # of scores of norms whose weights are near 1
_SAMPLE = (8, _HEADS, 64, 2744)  # scores of some blocks of 4x4x4 queries
_MATRIX = 1024
_ROUNDS = 5


def neighborhood_jobs() -> list[Job]:
    """Steps of two and four frames."""
    return [Job(measure_attention, Case(), {"grid": list(grid)}) for grid in _GRIDS]


def measure_attention(case: Case, *, grid: list[int]) -> dict[str, Any]:
    """Processor seconds of each part, the least of some rounds in turns."""
    time_extent, height, width = grid
    extents = [extent + reach - 1 for extent, reach in zip(grid, _KERNEL, strict=True)]
    queries = mx.random.normal((1, *grid, _HEADS, _DEPTH))
    channels = _HEADS * _DEPTH
    keys_values = mx.random.normal((1, *extents, channels)), mx.random.normal((1, *extents, channels))
    starts = tuple(range(time_extent)), tuple(range(height)), tuple(range(width))
    tables = Tables()
    hidden = hidden_channels(channels)
    decoder = ltx_2_5().decoder
    assert decoder is not None
    layers = {layer.name: layer for layer in decoder_spec(decoder).layers}
    attention, mlp = (layers[f"diff_blocks.0.{name}"] for name in ("attn", "mlp"))
    assert isinstance(attention, AttentionSpec) and isinstance(mlp, MLPSpec)
    block, tokens = NeighborhoodBlock(attention, mlp), mx.random.normal((1, *grid, channels))
    scores = mx.random.uniform(-_BOUND, _BOUND, _SAMPLE)
    left, right = mx.random.normal((_MATRIX, _MATRIX)), mx.random.normal((_MATRIX, _MATRIX))
    mx.eval(queries, keys_values, tokens, scores, left, right, block.parameters())
    parts: dict[str, Callable[[], mx.array]] = {
        "attention": lambda: attend(queries, keys_values, starts, _KERNEL, _BOUND, tables),
        "fused": lambda: attend(queries, keys_values, starts, _KERNEL, LARGEST_SCORE + 1, tables),
        "softmax": lambda: mx.softmax(scores, axis=-1),
        "exponentials": lambda: exponentials(scores, _BOUND),
        "product": lambda: left @ right,
        "mlp": lambda: block.feed(tokens, block.norm2, block.mlp.matrices),
        "projections": lambda: _project(block.attn, tokens, tables),
    }
    least = _time(parts)
    cut = [
        segments(window_starts, reach, BLOCKS[Backend.CPU])
        for window_starts, reach in zip(starts, _KERNEL, strict=True)
    ]
    computed = _HEADS * math.prod(
        sum(segment.blocks * segment.size * segment.window for segment in axis) for axis in cut
    )
    exact = _HEADS * math.prod(grid) * math.prod(_KERNEL)
    rate = _MATRIX**3 / least["product"]
    products = 2 * computed * _DEPTH / rate
    return {
        "grid": grid,
        "seconds": least,
        "waste": computed / exact,
        "floor": products + computed / scores.size * least["exponentials"],
        "softmax_floor": products + computed / scores.size * least["softmax"],
        "mlp_floor": 3 * math.prod(grid) * channels * hidden / rate,
        "projections_floor": 4 * math.prod(grid) * channels**2 / rate,
    }


def _project(attention: Attention, tokens: mx.array, tables: Tables) -> mx.array:
    """All that a block does for its attention but the scores."""
    arguments = attention.matrices, (0, 0, 0), tables
    queries, keys_values = attention.queries(tokens, *arguments), attention.keys_values(tokens, *arguments)
    mx.eval(queries, keys_values)
    return attention.proj(queries.reshape(tokens.shape))


def _time(parts: Mapping[str, Callable[[], mx.array]]) -> dict[str, float]:
    """Return the least processor seconds of some rounds in turns, as in a decode, whose buffers malloc keeps."""
    least = dict.fromkeys(parts, math.inf)
    with freed_memory_kept():
        for _ in range(_ROUNDS):
            for name, part in parts.items():
                start = time.process_time()
                mx.eval(part())
                mx.synchronize()
                least[name] = min(least[name], time.process_time() - start)
    return least


def neighborhood_table(results: list[list[Run]]) -> str:
    """Ratios, medians over processes."""

    def ratio(runs: list[Run], part: str, floor: str) -> str:
        ratios = [run["seconds"][part] / run[floor] for run in runs]
        return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"

    rows = [
        {
            "tokens": "x".join(map(str, runs[0]["grid"])),
            "scores": f"{runs[0]['waste']:.2f}",
            "attention": ratio(runs, "attention", "floor"),
            "with mx.softmax": ratio(runs, "attention", "softmax_floor"),
            "fused": ratio(runs, "fused", "softmax_floor"),
            "MLP": ratio(runs, "mlp", "mlp_floor"),
            "projections": ratio(runs, "projections", "projections_floor"),
            "seconds": f"{statistics.median(run['seconds']['attention'] for run in runs):.2f}",
        }
        for runs in results
    ]
    notes = [
        f"{len(results[0])} fresh processes in turns; processor time; medians, least and largest.",
        "scores: computed scores, as a multiple of the exact windows' scores.",
        "attention: time / (scores at the rate of its exponentials + products at the rate of a large product).",
        "with mx.softmax: the same, with scores at the rate of mx.softmax. fused: so for mx.fast's attention.",
        "MLP: time, with norm and residual, / its three products. projections: time of queries, keys and values, with",
        "norms and rotation, and of the last matrix, / its four products. All products at the rate of a large one.",
    ]
    return table(rows, notes)
