"""A model of the diffusion decoder's time on Apple GPUs, from MLX's source and others' measurements. No MLX.

Nothing of it was measured by this project on a Mac, and a third is a likely error. The kernel of
`mx.fast.scaled_dot_product_attention` (MLX 0.32, head_dim 64) computes tiles of 32 queries (64 on M5's neural
accelerators) and 32 keys, reads a boolean mask for each score and skips no tile that it hides. It takes any strides but
along the head's channels, so that it copies nothing; keys must have one stride, so that the package copies the joint
windows of blocks in a row before.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from mlx_ltx_vae.backend.machine import Backend, Machine
from mlx_ltx_vae.bench.command import table
from mlx_ltx_vae.models.diffusion_decoder.config import ltx_2_5
from mlx_ltx_vae.models.diffusion_decoder.neighborhood import BLOCKS, Segment, segments, shared_axis, whole_starts
from mlx_ltx_vae.models.diffusion_decoder.network_specs import AttentionSpec, MLPSpec, network_spec
from mlx_ltx_vae.models.specs import LayerSpec
from mlx_ltx_vae.planning.memory import StreamRun, cut, layer_pieces, step_results
from mlx_ltx_vae.planning.plan import DecodePlan
from mlx_ltx_vae.planning.planner import plan_decode
from mlx_ltx_vae.shapes import Axis, Grid

VIDEO = (121, 512, 768)
SIZES = (2, 3, 4, 5, 6, 8)  # queries of a block along each axis
_ITEMSIZE = 2
_TILE_KEYS = 32
_TERA, _GIGA = 1e12, 1e9


@dataclass(frozen=True)
class Chip:
    """What a chip does in a second, and seconds of LTX-2.5's conv decoder of `VIDEO` by the model of convolutions.

    Attributes:
        attention: TFLOP in the fused attention with a mask. Without NAX 0.68 of the arithmetic units: 0.76 was measured
            on an M3 Ultra without a mask (mlx pull request 4330), and 0.9 of it is an estimate. With NAX from 50 TFLOP
            on an M5 Max at head_dim 96 (mlx pull request 3943), less for the softmax at 64 and the mask.
        products: TFLOP in large matrix products, 0.75 of the arithmetic units, or those of NAX.
        bytes: GB read or written by copies and elementwise kernels, 0.8 of the memory's.
    """

    attention: float
    products: float
    bytes: float
    conv_seconds: float
    tile_queries: int = 32


CHIPS = {
    "M1 Max": Chip(7.2, 8.0, 320, 4.3),
    "M3 Max": Chip(9.6, 10.6, 320, 3.6),
    "M4 Max": Chip(12.5, 13.8, 437, 2.7),
    "M5": Chip(9.0, 10.0, 122, 7.6, tile_queries=64),
    "M5 Max": Chip(36.0, 40.0, 490, 1.9, tile_queries=64),
}

# Bytes that kernels between products read and write, for each element of a layer's width.
_PASS = 2 * _ITEMSIZE  # reads an array, and writes one
_TWO = 3 * _ITEMSIZE  # a sum of two arrays
_GATED = 12 * _ITEMSIZE  # SiLU of a hidden array, four times as wide, times another one

#: Seconds in which a host builds the graphs of this decode: `python -m benchmarks metal-host` on an AMD EPYC.
_HOST_SECONDS = 0.8


@dataclass(frozen=True)
class Parts:
    """Seconds: `scores` of the attention kernel, `copies` of windows, `products` of matrices, and the `rest`.

    Those of the `host` pass meanwhile.
    """

    scores: float = 0.0
    copies: float = 0.0
    products: float = 0.0
    rest: float = 0.0
    host: float = 0.0

    @property
    def total(self) -> float:
        return max(self.host, self.scores + self.copies + self.products + self.rest)

    def __add__(self, other: "Parts") -> "Parts":
        sums = (getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__)
        return Parts(*sums)


def metal_table() -> str:
    """The decoder of `VIDEO` on each chip, by its plan on a Mac."""
    plan, layers = planned_layers()
    own = BLOCKS[Backend.METAL]
    rows = []
    for name, chip in CHIPS.items():
        parts = estimate(chip, layers, own)
        shares = {part: f"{getattr(parts, part):.1f}" for part in Parts.__dataclass_fields__}
        others = {f"blocks of {size}": estimate(chip, layers, size).total / parts.total for size in SIZES}
        rows.append(
            {
                "chip": name,
                "seconds": f"{parts.total:.1f}",
                **shares,
                "of products": f"{parts.total / parts.products:.2f}",
                "of the conv decoder": f"{parts.total / chip.conv_seconds:.1f}",
                **{size: f"{ratio:.2f}" for size, ratio in others.items() if size != f"blocks of {own}"},
            }
        )
    notes = [
        "A model of MLX's kernels, not measured on a Mac; seconds of each part, with blocks of "
        f"{own}x{own}x{own} queries; the others are ratios to them.",
        f"LTX-2.5's diffusion decoder, bfloat16, {VIDEO[0]} frames of {VIDEO[2]}x{VIDEO[1]}, by {plan.order.value}.",
    ]
    return table(rows, notes)


class Layer(NamedTuple):
    """A layer of a decode, the (T, H, W) of its input, and the lengths of its steps along the axis of the stream."""

    spec: LayerSpec
    grid: Grid
    axis: Axis
    steps: tuple[int, ...]


@lru_cache
def planned_layers() -> tuple[DecodePlan, list[Layer]]:
    """The decode of `VIDEO` on a Mac with enough memory."""
    config = ltx_2_5()
    spec = network_spec(config, "decoder")
    shape = (1, config.latent_channels, *config.scale.latent_grid(VIDEO))
    plan = plan_decode(spec, shape, Machine(Backend.METAL, itemsize=_ITEMSIZE), mode="exact")
    grid, axis = plan.latent_shape.grid, plan.order.axis
    run = StreamRun(axis, tuple(cut(grid[axis.grid], plan.chunk)), plan.steps, plan.prefetch, plan.machine)
    layers = zip(spec.walk(grid), layer_pieces(spec, grid, run), strict=False)
    return plan, [
        Layer(layer, extents, axis, tuple(step_results(pieces, layer, axis))) for (layer, extents), pieces in layers
    ]


def estimate(chip: Chip, layers: Sequence[Layer], block: int) -> Parts:
    """Seconds of a decode with blocks of `block` queries along each axis."""
    total = Parts(host=_HOST_SECONDS)
    for spec, grid, axis, steps in layers:
        total += Parts(products=2 * LayerSpec.multiply_adds(spec, grid, grid) / (chip.products * _TERA))
        moved = _bytes_between(spec, axis, steps) * math.prod(grid) * spec.in_channels
        total += Parts(rest=moved / (chip.bytes * _GIGA))
        if isinstance(spec, AttentionSpec):
            work = attention_work(grid, spec.kernel, axis, steps, block, chip.tile_queries)
            total += _attention(chip, spec, *work)
    return total


def _bytes_between(layer: LayerSpec, axis: Axis, steps: tuple[int, ...]) -> float:
    """Bytes for each element of a layer's input that are moved between its products."""
    if isinstance(layer, MLPSpec):
        return _PASS + _GATED + _TWO + _PASS  # the norm, and the parts joined
    if not isinstance(layer, AttentionSpec):
        return 0
    context = _TWO if layer.waiting_channels else 0
    step = max(steps, key=steps.count)
    window = (step + layer.window(axis).cached) / step
    # The norm for keys and values, and again for queries; norms and rotations of both; keys and values joined to the
    # cached ones; the input until its results come; queries in blocks, results in rows, joined along three axes; and
    # the residual.
    return context + 2 * _PASS + 4 * _PASS + 2 * _PASS * window + _PASS + 5 * _PASS + _TWO


def _attention(chip: Chip, layer: AttentionSpec, scores: float, keys: float) -> Parts:
    """Seconds of the scores and the copies of a layer."""
    heads = layer.in_channels // layer.head_dim
    kernel = 4 * scores * layer.head_dim / (chip.attention * _TERA)
    read = 2 * keys * layer.head_dim * _ITEMSIZE / (chip.bytes * _GIGA)  # of keys and values, once
    return Parts(scores=heads * max(kernel, read), copies=heads * 2 * read)


@lru_cache
def attention_work(
    grid: Grid, kernel: Grid, axis: Axis, steps: tuple[int, ...], block: int, tile: int
) -> tuple[int, int]:
    """The scores in the tiles of all blocks of a layer, and the keys that are copied for them, of one head.

    Blocks in a row along the longest axis of a step share a copy.

    Args:
        grid: of the whole clip; `steps` are the lengths of its steps along `axis`.
        tile: queries of a tile of the kernel.
    """
    axes = [_shapes(whole_starts(extent, width), width, block) for extent, width in zip(grid, kernel, strict=True)]
    starts = whole_starts(grid[axis.grid], kernel[axis.grid])
    counts: Counter[tuple[Segment, ...]] = Counter()  # of steps that are alike, as most are
    seen = 0
    for length in steps:
        counts[_shapes(starts[seen : seen + length], kernel[axis.grid], block)] += 1
        seen += length
    scores = keys = 0
    for shapes, count in counts.items():
        axes[axis.grid] = shapes
        extents = [sum(each.blocks * each.size for each in segments_of_axis) for segments_of_axis in axes]
        along = shared_axis(extents)
        for each in product(*axes):
            blocks, queries, window = (
                math.prod(getattr(segment, name) for segment in each) for name in ("blocks", "size", "window")
            )
            scores += count * blocks * _aligned(queries, tile) * _aligned(window, _TILE_KEYS)
            shared = each[along]
            keys += count * blocks // shared.blocks * window // shared.window * shared.keys
    return scores, keys


def _shapes(starts: list[int], kernel: int, block: int) -> tuple[Segment, ...]:
    """The blocks of an axis, wherever they are."""
    return tuple(each._replace(start=0, key_start=0, offsets=()) for each in segments(starts, kernel, block))


def _aligned(count: int, size: int) -> int:
    return -(-count // size) * size
