"""Chooses a plan. Exact plans come before blended ones, then faster before slower. Pure arithmetic, no MLX."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

from ..backend.machine import Backend, Machine
from ..errors import PlanError
from ..models.input_shapes import check_frame_shape, check_latent_shape
from ..models.specs import NetworkSpec
from ..shapes import Grid, LatentShape
from ..streaming.axis import Axis
from ..tiling.batches import tile_batches
from ..tiling.config import SpatialTilingConfig, TilingConfig
from ..tiling.layout import TileLayout
from ..units import format_bytes, parse_bytes
from .clip import Clip
from .exchange import layer_multiply_adds, make_exchange
from .memory import (
    Memory,
    StreamRun,
    largest_layer,
    largest_step,
    layer_pieces,
    make_steps,
    stream_memory,
    with_buffer_cache,
)
from .options import PlanOptions, check_order, parse_options, why_not
from .plan import DecodePlan, EncodePlan, Mode, Order, Plan
from .receptive_field import first_output_work, lookahead
from .row_split import split_rows
from .tiled_memory import tiled_memory

#: Maximum number of elements per layer and step. Metal's convolutions have silently returned zeros for inputs of more
#: than about 1.6e9 elements; this is a third of that.
MAX_LAYER_ELEMENTS = 2**29

#: MLX's kernels compute with 32-bit indices, and no array of a run reaches this number of elements.
MAX_ARRAY_ELEMENTS = 2**31

# Multiply-adds of one step on a GPU: what Apple's slowest supported chip (M1, about 0.8e12 per second by a model, not
# measured) computes in two seconds. macOS stops programs whose work occupies the GPU for several seconds.
_STEP_MULTIPLY_ADDS = 16 * 10**11


class _Pace(NamedTuple):
    """How much of the clip is processed at a time.

    Attributes:
        step: positions per step of the layer with the largest activations. A convolution also processes the cached
            positions of its window; activating both of them again for every single position costs time.
        prefetch: steps in flight beyond the one that is waited for. Without any, a GPU is idle between steps.
        chunk: default pieces per piece that the network takes.
    """

    step: int
    prefetch: int
    chunk: int = 1


# Fastest first. On a GPU, larger steps use Metal's fast convolutions better: those work on tiles of 6x6 outputs and
# transform their filters once per step. The figures follow a model of Metal's kernels and were not measured on a Mac.
_ON_GPU = (_Pace(4, 1, 2), _Pace(2, 1), _Pace(1, 1), _Pace(1, 0))
_PACES = {
    Backend.CPU: (_Pace(2, 0), _Pace(1, 0)),
    Backend.METAL: _ON_GPU,
    Backend.CUDA: _ON_GPU,
}
_ROWS_ON_GPU = (_Pace(6, 1), *_ON_GPU[1:])

# Of the frames that ranks gather: those of each rank, padded to one height, all of them, and whole frames.
_GATHERED_COPIES = 3
_LEVEL_BYTES = 2

# Tiles to try if no exact plan fits: side lengths, largest first, and overlap, in latent cells.
_LAST_RESORT_TILES = (32, 24, 16, 12, 8, 6)
_LAST_RESORT_OVERLAP = 2


def plan_decode(
    spec: NetworkSpec,
    latent_shape: Sequence[int],
    machine: Machine | None = None,
    *,
    holds_latents: bool = True,
    **options: Any,
) -> DecodePlan:
    """Plan the decode of latents of a given shape.

    Args:
        latent_shape: (B, C, F', H', W').
        machine: the machine to plan for; by default float32 on the CPU with unlimited memory.
        holds_latents: whether all latents are in memory, rather than in a file that is read in parts.
        options: see `PlanOptions` and `parse_options`.

    Raises:
        LatentsError: if the decoder cannot decode this shape.
        PlanError: if the options are invalid, or if no plan fits the budget (the message states the minimum).
        TilingError: if the tiles do not fit the latent grid.
    """
    shape = check_latent_shape(spec, latent_shape)
    clip = Clip(
        spec, shape.batch, shape.grid, shape, spec.out_grid(shape.grid), is_decode=True, holds_latents=holds_latents
    )
    planner = _Planner(clip, parse_options(**options), machine or Machine())
    return DecodePlan(**vars(planner.choose()))


def plan_encode(
    spec: NetworkSpec,
    frame_shape: Sequence[int],
    machine: Machine | None = None,
    *,
    pad: bool = False,
    **options: Any,
) -> EncodePlan:
    """Plan the encode of frames of a given shape. Arguments and errors are those of `plan_decode`, except:

    Args:
        frame_shape: (B, 3, F, H, W) or (F, H, W, 3).
        pad: whether to pad the clip to 1 + t*k frames; otherwise excess frames are dropped.
    """
    batch, grid = check_frame_shape(spec, frame_shape, pad=pad)
    latents = LatentShape(batch, spec.out_channels, *spec.out_grid(grid))
    clip = Clip(spec, batch, grid, latents, grid, is_decode=False)
    planner = _Planner(clip, parse_options(**options), machine or Machine())
    return EncodePlan(**vars(planner.choose()))


class _Planner:
    """Generates the possible plans for one clip, and chooses one."""

    def __init__(self, clip: Clip, options: PlanOptions, machine: Machine) -> None:
        self._clip = clip
        self._spec = clip.spec
        self._options = options
        self._machine = machine
        self._must_fit = options.memory_budget is not None
        check_order(clip.spec, options)
        available = machine.available
        self._budget = available // 2 if available else None
        if options.memory_budget is not None:
            self._budget = parse_bytes(options.memory_budget, available or 0)

    def choose(self) -> Plan:
        """The first way with a plan that fits the budget; within a way, a plan whose buffer cache is not tight."""
        seen: list[Plan] = []
        for way in self._ways():
            plans = list(way)
            seen += plans
            fitting = [plan for plan in plans if self._budget is None or plan.memory.total <= self._budget]
            if fitting:
                return next((plan for plan in fitting if not plan.is_cache_tight), fitting[0])
        if not seen:
            raise PlanError(
                f"{self._clip.describe()} cannot be computed: a single step would have an array of 2^31 elements, "
                "beyond which results are wrong; use smaller frames or tiles, shorter clips, or fewer videos at once."
            )
        least = min(seen, key=lambda plan: plan.memory.active)
        if self._must_fit and self._budget is not None:
            needed = format_bytes(least.memory.active, round_up=True)
            raise PlanError(
                f"a memory budget of {format_bytes(self._budget)} is too small for {self._clip.describe()}; the least "
                f"that works is {needed} ({least.mode.value} by {least.order.value})."
            )
        return replace(least, memory=with_buffer_cache(least.memory, self._machine.backend, None))

    def _ways(self) -> Iterator[Iterator[Plan]]:
        """The ways that the options allow, best first; each is an iterator of its plans, fastest first."""
        mode, order = self._options.mode, self._options.order
        if self._options.ranks > 1:
            yield self._bands(self._options.ranks)
            return
        if mode is Mode.SINGLE:
            yield iter([self._single()])
            return
        if mode is Mode.TILED:
            yield self._tiled(self._options.tiling or TilingConfig.default())
            return
        orders = [order] if order else list(Order)
        streamable = [each for each in orders if why_not(self._spec, each) is None]
        if not streamable:
            yield iter([self._single()])
        for each in streamable:
            yield self._exact(each)
        if mode is None and order is None and self._options.chunk is None:
            yield from self._last_resort()

    def _single(self) -> Plan:
        clip = self._clip
        largest = largest_layer(self._spec, clip.grid, clip.batch)
        if largest > MAX_LAYER_ELEMENTS:
            raise PlanError(
                f"a single pass of {clip.describe()} would give one layer {largest / 1e6:.0f} million elements, but "
                f"only {MAX_LAYER_ELEMENTS / 1e6:.0f} million are safe; use mode exact, which gives the same result."
            )
        frames = clip.grid[0]
        memory = self._stream_memory(StreamRun(Axis.TIME, (frames,), None, 0, self._machine), frames)
        return self._plan(Mode.SINGLE, Order.TIME, frames, 0, (), 0, memory, lookahead=frames)

    def _exact(self, order: Order) -> Iterator[Plan]:
        clip, axis = self._clip, order.axis
        length = clip.grid[axis.grid]
        for pace in self._paces(axis):
            step, prefetch, chunk = pace.step, pace.prefetch, min(self._chunk(pace), length)
            steps = self._steps(clip.grid, axis, step)
            if largest_step(self._spec, clip.grid, axis, clip.batch, steps) >= MAX_ARRAY_ELEMENTS:
                continue
            run = StreamRun(axis, clip.pieces(length, chunk), steps, prefetch, self._machine)
            memory = self._stream_memory(run, chunk)
            yield self._plan(Mode.EXACT, order, chunk, step, steps, prefetch, memory)

    def _bands(self, ranks: int) -> Iterator[Plan]:
        """Bands of rows, streamed in time in lockstep: all take the steps that the largest band needs."""
        clip = self._clip
        bands = split_rows(clip.latent_shape.height, ranks)
        rows = clip.grid[1] // clip.latent_shape.height * bands[0].length
        largest = replace(self._clip, grid=(clip.grid[0], rows, clip.grid[2]))
        for pace in self._paces(Axis.TIME):
            step, prefetch, chunk = pace.step, pace.prefetch, min(self._chunk(pace), clip.grid[0])
            steps = self._steps(largest.grid, Axis.TIME, step)
            if largest_step(self._spec, largest.grid, Axis.TIME, clip.batch, steps) >= MAX_ARRAY_ELEMENTS:
                continue
            pieces = clip.pieces(clip.grid[0], chunk)
            run = StreamRun(Axis.TIME, pieces, steps, prefetch, self._machine, is_band=True)
            memory = stream_memory(self._spec, largest.grid, clip.batch, run)
            # A piece of whole frames as levels: as each rank gives them, gathered and joined.
            *_, output = layer_pieces(self._spec, largest.grid, run)
            gathered = _GATHERED_COPIES * max(output) * clip.out_frame * _LEVEL_BYTES
            inputs = largest.input_bytes(self._machine.itemsize, chunk)
            memory = replace(memory, inputs=inputs, work=memory.work + gathered)
            plan = self._plan(Mode.EXACT, Order.TIME, chunk, step, steps, prefetch, memory)
            rows_of = [band.length for band in bands]
            itemsize = 1 if clip.is_decode else self._machine.itemsize  # of levels, or of latents
            exchanges = tuple(make_exchange(clip, run, rows_of, rank, itemsize) for rank in range(ranks))
            yield replace(plan, bands=bands, exchanges=exchanges)

    def _paces(self, axis: Axis) -> tuple[_Pace, ...]:
        """The paces to try, fastest first."""
        paces = _PACES[self._machine.backend]
        return _ROWS_ON_GPU if paces is _ON_GPU and axis is not Axis.TIME else paces

    def _chunk(self, pace: _Pace) -> int:
        return self._options.chunk or pace.chunk * self._clip.default_chunk()

    def _steps(self, grid: Grid, axis: Axis, step: int) -> tuple[int, ...]:
        """Positions per step of each layer, within the limits of a layer's size and, on a GPU, of a step's work."""
        batch = self._clip.batch
        steps = make_steps(self._spec, grid, axis, step, MAX_LAYER_ELEMENTS // batch)
        if self._machine.backend is Backend.CPU:
            return steps
        position_work = (
            batch * layer_multiply_adds(layer, extents, extents) // extents[axis.grid]
            for layer, extents in self._spec.walk(grid)
        )
        return tuple(
            min(size, max(1, _STEP_MULTIPLY_ADDS // max(1, work)))
            for size, work in zip(steps, position_work, strict=True)
        )

    def _stream_memory(self, run: StreamRun, chunk: int) -> Memory:
        memory = stream_memory(self._spec, self._clip.grid, self._clip.batch, run)
        return replace(memory, inputs=self._clip.input_bytes(self._machine.itemsize, chunk, axis=run.axis))

    def _tiled(self, tiling: TilingConfig) -> Iterator[Plan]:
        """Tiles, each streamed in time. All tiles take the same number of frames per step."""
        clip = self._clip
        layout = TileLayout.make(tiling, clip.latent_shape.grid, clip.scale)
        calls = [
            (len(together), group[together[0]])
            for group in layout.groups()
            for together in tile_batches(group, self._options.tile_batch_size)
        ]
        time = (layout.decoded() if clip.is_decode else layout.encoded())[0].intervals
        blended = clip.out_frame * (max(span.length for span in time) if len(time) > 1 else clip.scale.time)
        positions = sum(count * math.prod(clip.boxes(tile)[0]) for count, tile in calls)
        for pace in self._paces(Axis.TIME):
            step, prefetch, chunk = pace.step, pace.prefetch, min(self._chunk(pace), clip.grid[0])
            steps = self._steps(clip.grid, Axis.TIME, step)
            in_tiles = (
                largest_step(self._spec, clip.boxes(tile)[0], Axis.TIME, count * clip.batch, steps)
                for count, tile in calls
            )
            if max(blended, *in_tiles) >= MAX_ARRAY_ELEMENTS:
                continue
            memory = tiled_memory(clip, layout, calls, StreamRun(Axis.TIME, (), steps, prefetch, self._machine), chunk)
            plan = self._plan(Mode.TILED, Order.TIME, chunk, step, steps, prefetch, memory)
            if len(layout.time.latent) > 1:
                first = [clip.boxes(tile)[0] for tile in next(layout.groups())]
                share = sum(map(math.prod, first)) / positions
                plan = replace(plan, lookahead=first[0][0], first_output_work=share)
            yield replace(
                plan,
                tiling=tiling,
                layout=layout,
                tile_batch_size=self._options.tile_batch_size,
                calls=len(calls),
                redundant_work=positions / math.prod(clip.grid) - 1,
            )

    def _last_resort(self) -> Iterator[Iterator[Plan]]:
        """Spatial tiles, each streamed in time, from large to small."""
        scale = self._clip.scale
        for cells in _LAST_RESORT_TILES:
            if cells < max(self._clip.latent_shape.grid[1:]):
                height, width = (
                    SpatialTilingConfig(cells * factor, _LAST_RESORT_OVERLAP * factor)
                    for factor in (scale.height, scale.width)
                )
                tiling = (
                    TilingConfig(height) if height == width else TilingConfig(height_config=height, width_config=width)
                )
                yield self._tiled(tiling)

    def _plan(
        self,
        mode: Mode,
        order: Order,
        chunk: int,
        step: int,
        steps: tuple[int, ...],
        prefetch: int,
        memory: Memory,
        lookahead: int | None = None,
    ) -> Plan:
        clip = self._clip
        frames, height, width = clip.video
        if lookahead is None:
            lookahead = self._lookahead if order is Order.TIME else clip.grid[0]
        return Plan(
            mode=mode,
            order=order,
            latent_shape=clip.latent_shape,
            num_frames=frames,
            height=height,
            width=width,
            chunk=chunk,
            step=step,
            steps=steps,
            prefetch=prefetch,
            lookahead=lookahead,
            first_output_work=1.0 if mode is Mode.SINGLE or order is not Order.TIME else self._first_output_work,
            tiling=None,
            layout=None,
            tile_batch_size=1,
            calls=1,
            redundant_work=0.0,
            memory=with_buffer_cache(memory, self._machine.backend, self._budget),
            machine=self._machine,
        )

    @cached_property
    def _lookahead(self) -> int:
        return lookahead(self._spec)

    @cached_property
    def _first_output_work(self) -> float:
        return first_output_work(self._spec, self._clip.grid)
