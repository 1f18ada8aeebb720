"""Chooses a plan: exact rather than blended, then fast rather than slow. Pure arithmetic, no MLX."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ..errors import PlanError
from ..models.specs import FLOAT32_BYTES, Backend, NetworkSpec
from ..shapes import Grid, LatentShape, ScaleFactors, format_size
from ..streaming.axis import Axis
from ..tiling.batches import tile_batches
from ..tiling.config import SpatialTilingConfig, TilingConfig
from ..tiling.layout import Tile, TileLayout
from ..units import GB
from .memory import (
    Machine,
    Memory,
    StreamRun,
    TiledResult,
    cut,
    largest_layer,
    make_steps,
    space_tiled_memory,
    stream_memory,
    time_tiled_memory,
    with_buffer_cache,
)
from .options import PlanOptions, check_latent_shape, why_not
from .plan import DecodePlan, EncodePlan, Mode, Order, Plan
from .receptive_field import lookahead

#: Elements that one layer may take at once. Metal's convolutions have returned zeros in silence for inputs of more than
#: about 1.6e9 elements; this is a third of that.
MAX_LAYER_ELEMENTS = 2**29

# Positions that a layer takes at once where activations are widest, and the steps that are under way beyond the one
# that is waited for; the best first. A convolution sees two positions besides those that enter: activating these again
# for every single position costs time. A GPU stands idle while it is waited for.
_PACES = {Backend.CPU: ((2, 0), (1, 0)), Backend.GPU: ((2, 1), (1, 1), (1, 0))}

# Tiles that are tried where nothing exact fits: sides and overlap in latent cells, the largest first.
_LAST_RESORT_TILES = (32, 24, 16, 12, 8, 6)
_LAST_RESORT_OVERLAP = 2

_DECODE_CHUNK = 1  # latent positions; one keeps the least between layers
_ENCODE_CHUNK = 8  # frames, or the next multiple of a latent frame's


def plan_decode(
    spec: NetworkSpec,
    latent_shape: Sequence[int],
    options: PlanOptions | None = None,
    *,
    memory_budget: int | None = None,
    must_fit: bool = True,
    machine: Machine | None = None,
) -> DecodePlan:
    """How to decode latents of a shape.

    Args:
        spec: the decoder.
        latent_shape: (B, C, F', H', W').
        options: what was asked for; None for the best that fits.
        memory_budget: bytes that the peak must stay below, MLX's buffer cache included; None for no bound.
        must_fit: whether a budget that nothing meets is an error; otherwise the plan with the least memory is taken.
        machine: where it runs; float32 on the CPU by default.

    Raises:
        LatentsError: for a shape that the decoder cannot decode.
        PlanError: for options that cannot be met, and for a budget that nothing meets, naming the least that works.
        TilingError: for tiles that do not fit the latent grid.
    """
    shape = check_latent_shape(spec, latent_shape)
    grid, video = shape.grid, spec.out_grid(shape.grid)
    clip = _Clip(spec, shape.batch, grid, shape, video, is_decode=True)
    planner = _Planner(clip, options or PlanOptions(), machine or Machine(), memory_budget)
    return DecodePlan(**vars(planner.choose(must_fit)))


def plan_encode(
    spec: NetworkSpec,
    video_grid: Grid,
    options: PlanOptions | None = None,
    *,
    batch: int = 1,
    memory_budget: int | None = None,
    must_fit: bool = True,
    machine: Machine | None = None,
) -> EncodePlan:
    """How to encode a video. Arguments and errors as `plan_decode`, but for:

    Args:
        spec: the encoder.
        video_grid: (F, H, W) with F = 1 + t*k, and H and W multiples of the spatial factors.
        options: see `plan_decode`.
        batch: videos that are encoded together.
        memory_budget: see `plan_decode`.
        must_fit: see `plan_decode`.
        machine: see `plan_decode`.
    """
    latents = LatentShape(batch, spec.out_channels, *spec.out_grid(video_grid))
    clip = _Clip(spec, batch, video_grid, latents, video_grid, is_decode=False)
    planner = _Planner(clip, options or PlanOptions(), machine or Machine(), memory_budget)
    return EncodePlan(**vars(planner.choose(must_fit)))


@dataclass(frozen=True)
class _Clip:
    """What goes through which network.

    Attributes:
        spec: the network.
        batch: items of the batch.
        grid: (T, H, W) of what enters.
        latent_shape: of the latents, which enter or leave.
        video: (F, H, W) of the video, which leaves or enters.
        is_decode: whether latents enter.
    """

    spec: NetworkSpec
    batch: int
    grid: Grid
    latent_shape: LatentShape
    video: Grid
    is_decode: bool

    @property
    def scale(self) -> ScaleFactors:
        """Pixels per latent cell."""
        return self.spec.scale

    def describe(self) -> str:
        """The video in words."""
        frames, height, width = self.video
        return f"{frames} frames of {format_size(width, height)}"

    def input_bytes(self, itemsize: int, chunk: int, frame_size: int | None = None) -> int:
        """What enters: all latents; or the frames of two pieces, as they come and converted.

        Args:
            itemsize: bytes of a number in the network's dtype.
            chunk: frames of a piece.
            frame_size: pixels of a frame, or of its crops; None for whole frames.
        """
        if self.is_decode:
            return math.prod(self.latent_shape) * (itemsize + FLOAT32_BYTES)
        frame = self.batch * self.spec.in_channels * (frame_size or math.prod(self.grid[1:]))
        return min(2 * chunk + 1, self.grid[0] + 1) * frame * (itemsize + FLOAT32_BYTES)

    def default_chunk(self) -> int:
        """Positions that enter at once."""
        return _DECODE_CHUNK if self.is_decode else self.scale.time * max(1, _ENCODE_CHUNK // self.scale.time)

    def pieces(self, length: int, chunk: int) -> tuple[int, ...]:
        """The lengths of the pieces that enter; the first of an encode has one frame more."""
        extra = 0 if self.is_decode or length == 1 else 1
        return (min(length, chunk + extra), *cut(max(0, length - chunk - extra), chunk))

    def boxes(self, tile: Tile) -> tuple[Grid, Grid]:
        """(T, H, W) of what enters for a tile, and of what leaves."""
        latent, pixels = tile.latent_size, tile.output_size
        return (latent, pixels) if self.is_decode else (pixels, latent)


class _Planner:
    """The ways in which one clip can go through its network."""

    def __init__(self, clip: _Clip, options: PlanOptions, machine: Machine, budget: int | None) -> None:
        self._clip = clip
        self._spec = clip.spec
        self._options = options
        self._machine = machine
        self._budget = budget
        self._chunk = options.chunk or clip.default_chunk()

    def choose(self, must_fit: bool) -> Plan:
        """The first way that fits the budget; within a way, one whose buffer cache is not tight comes first."""
        seen: list[Plan] = []
        for way in self._ways():
            plans = list(way)
            seen += plans
            fitting = [plan for plan in plans if self._budget is None or plan.memory.total <= self._budget]
            if fitting:
                return next((plan for plan in fitting if not plan.is_cache_tight), fitting[0])
        least = min(seen, key=lambda plan: plan.memory.active)
        if must_fit and self._budget is not None:
            needed = math.ceil(least.memory.active / 1e7) / 100
            raise PlanError(
                f"a memory budget of {self._budget / GB:.2f} GB is too small for {self._clip.describe()}; the least that "
                f"works is {needed:.2f} GB ({least.mode.value} by {least.order.value})."
            )
        return replace(least, memory=with_buffer_cache(least.memory, self._machine.backend, None))

    def _ways(self) -> Iterator[Iterator[Plan]]:
        """What was asked for, the best way first: per way its plans, the fastest first."""
        mode, order = self._options.mode, self._options.order
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
                f"a single pass of {clip.describe()} would give one layer {largest / 1e6:.0f} million elements, and "
                f"{MAX_LAYER_ELEMENTS / 1e6:.0f} million is the most that is safe; use mode exact, which has the same "
                "result."
            )
        frames = clip.grid[0]
        run = StreamRun(Axis.TIME, (frames,), None, 0, self._machine)
        memory = self._with_inputs(stream_memory(self._spec, clip.grid, clip.batch, run), frames)
        return self._plan(Mode.SINGLE, Order.TIME, frames, 0, (), 0, memory, lookahead=frames)

    def _exact(self, order: Order) -> Iterator[Plan]:
        clip, axis = self._clip, order.axis
        length = clip.grid[axis.grid]
        chunk = min(self._chunk, length)
        for step, prefetch in _PACES[self._machine.backend]:
            steps = self._steps(clip.grid, clip.batch, axis, step)
            run = StreamRun(axis, clip.pieces(length, chunk), steps, prefetch, self._machine)
            memory = self._with_inputs(stream_memory(self._spec, clip.grid, clip.batch, run), chunk)
            yield self._plan(Mode.EXACT, order, chunk, step, steps, prefetch, memory)

    def _steps(self, grid: Grid, batch: int, axis: Axis, step: int) -> tuple[int, ...]:
        return make_steps(self._spec, grid, axis, step, MAX_LAYER_ELEMENTS // batch)

    def _with_inputs(self, memory: Memory, chunk: int) -> Memory:
        return replace(memory, inputs=self._clip.input_bytes(self._machine.itemsize, chunk))

    def _tiled(self, tiling: TilingConfig) -> Iterator[Plan]:
        """Each tile is streamed in time; a step is as many frames of one tile as of any other."""
        clip = self._clip
        layout = TileLayout.make(tiling, clip.latent_shape.grid, clip.scale)
        calls = [
            (len(together), group[together[0]])
            for group in layout.groups()
            for together in tile_batches(group, self._options.tile_batch_size)
        ]
        chunk = min(self._chunk, clip.grid[0])
        work = sum(count * math.prod(clip.boxes(tile)[0]) for count, tile in calls) / math.prod(clip.grid)
        for step, prefetch in _PACES[self._machine.backend]:
            steps = self._steps(clip.grid, clip.batch, Axis.TIME, step)
            memory = _TiledMemory(clip, layout, calls, steps, prefetch, chunk, self._machine).estimate()
            plan = self._plan(Mode.TILED, Order.TIME, chunk, step, steps, prefetch, memory)
            if len(layout.time.latent) > 1:
                plan = replace(plan, lookahead=clip.boxes(next(layout.groups())[0])[0][0])
            yield replace(
                plan,
                tiling=tiling,
                layout=layout,
                tile_batch_size=self._options.tile_batch_size,
                calls=len(calls),
                redundant_work=work - 1,
            )

    def _last_resort(self) -> Iterator[Iterator[Plan]]:
        """Spatial tiles, each its own stream in time."""
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


@dataclass(frozen=True)
class _TiledMemory:
    """What a run in tiles holds.

    Attributes:
        clip: the clip.
        layout: its tiles.
        calls: per run of the network, how many tiles, and one of them.
        steps: see `Plan`.
        prefetch: see `Plan`.
        chunk: see `Plan`.
        machine: where it runs.
    """

    clip: _Clip
    layout: TileLayout
    calls: list[tuple[int, Tile]]
    steps: tuple[int, ...]
    prefetch: int
    chunk: int
    machine: Machine

    def estimate(self) -> Memory:
        """At the peak, without MLX's buffer cache."""
        clip, itemsize = self.clip, self.machine.itemsize
        by_size = {(count, clip.boxes(tile)[0]): None for count, tile in self.calls}
        memories = {size: self._stream(*size) for size in by_size}
        if len(self.layout.time.latent) == 1:
            return space_tiled_memory(
                [memories[count, clip.boxes(tile)[0]] for count, tile in self.calls],
                clip.input_bytes(itemsize, self.chunk),
                self._blended_at_once(),
            )
        crops = max(count * math.prod(clip.boxes(tile)[0][1:]) for count, tile in self.calls)
        largest = max(memories.values(), key=lambda memory: memory.active)
        return time_tiled_memory(largest, clip.input_bytes(itemsize, self.chunk, crops), self._result(), itemsize)

    def _stream(self, count: int, grid: Grid) -> Memory:
        pieces = self.clip.pieces(grid[0], self.chunk)
        run = StreamRun(Axis.TIME, pieces, self.steps, self.prefetch, self.machine)
        return stream_memory(self.clip.spec, grid, count * self.clip.batch, run)

    @property
    def _frame(self) -> int:
        """Elements of one frame of the result, of all items of a batch."""
        clip = self.clip
        return clip.batch * clip.spec.out_channels * math.prod(clip.spec.out_grid(clip.grid)[1:])

    def _blended_at_once(self) -> int:
        """As many whole frames are blended at once as the last layer hands on."""
        return self._frame * max(1, self.steps[-1])

    def _result(self) -> TiledResult:
        clip, layout = self.clip, self.layout
        axes = layout.decoded() if clip.is_decode else layout.encoded()
        spans = axes[0].intervals
        groups = list(layout.groups())
        per_position = clip.batch * clip.spec.out_channels
        sizes = [math.prod(clip.boxes(tile)[1]) for tile in groups[0] + groups[-1]]
        return TiledResult(
            tile=per_position * max(sizes),
            together=max(count for count, _ in self.calls),
            group=self._frame * max(span.length for span in spans),
            shared=self._frame * max(before.end - after.start for before, after in zip(spans, spans[1:], strict=False)),
            final=self._frame * max(axes[0].final()),
            single=len(groups[0]) == 1,
        )
