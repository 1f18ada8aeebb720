"""Choice of a plan: exact plans before blended ones, then faster before slower. Pure arithmetic, no MLX."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import cast

from ..backend.machine import FLOAT32_BYTES, Backend, Machine
from ..errors import PlanError, TilingError, option, warn
from ..frame_format import common_format
from ..networks.convolution.rules import TAPS
from ..networks.specs import LONG_CLIP, NetworkSpec, check_frame_shape, check_latent_shape
from ..options import PLAN_DEFAULTS, PlanOptions
from ..shapes import Axis, Grid, LatentShape, ScaleFactors, Size, format_size
from ..tiling.config import TilingConfig
from ..tiling.layout import TileLayout, tile_batches
from ..units import MB, format_bytes, parse_bytes
from .clip import Clip, first_output_work, make_excerpt, needed, with_consumer
from .memory import (
    FRAMES_PER_CONVERSION,
    Memory,
    StreamRun,
    is_cache_tight,
    largest_layer,
    layer_pieces,
    make_steps,
    paces,
    position_elements,
    stream_memory,
    with_buffer_cache,
)
from .plan import DecodePlan, EncodePlan, Mode, Order, Plan, check_order, choose_variant, why_not
from .tiles import (
    blended_frame,
    call_kind,
    default_tiling,
    last_resort_tilings,
    latents_of,
    make_layout,
    tile_spec,
    tiled_grid,
    tiled_memory,
)

#: Maximum number of elements per layer and step. Metal's convolutions have silently returned zeros for inputs of more
#: than about 1.6e9 elements; this is a third of that, since one joins `TAPS` frames.
MAX_LAYER_ELEMENTS = 2**29

#: MLX's kernels compute with 32-bit indices, and no array of a run reaches this number of elements.
MAX_ARRAY_ELEMENTS = 2**31

# Multiply-adds of one step on a GPU: what Apple's slowest supported chip (M1, about 0.8e12 per second by a model, not
# measured) computes in two seconds. macOS stops programs whose work occupies the GPU for several seconds.
_STEP_MULTIPLY_ADDS = 16 * 10**11

_READ_COPIES = 2.1  # of frames from the disk: the frames read, the previous ones that the caller holds, small arrays
_LEVEL_BYTES = 2
_ENCODE_CHUNK = 8  # frames, rounded to a multiple of the time scale


def plan_decode(
    spec: NetworkSpec, latent_shape: Sequence[int], machine: Machine | None = None, options: PlanOptions = PLAN_DEFAULTS
) -> DecodePlan:
    """Plan the decode of latents (B, C, F', H', W'), or (B, C, T, 1, 1) of audio. Errors are as in `VideoVAE.plan`.

    `machine` is by default float32 on the CPU with unlimited memory.
    """
    spec = choose_variant(spec, options.steps, options.keyframes)
    whole_shape = shape = check_latent_shape(spec, latent_shape)
    num_frames, height, width = spec.decoded_grid(shape.grid)
    excerpt = None
    if options.frames is not None:
        excerpt = make_excerpt(spec, shape, num_frames, options.frames)
        shape, num_frames = shape._replace(frames=excerpt.latents.length), excerpt.frames.length
    clip = Clip(
        spec,
        shape.batch,
        shape.grid,
        shape,
        (num_frames, height, width),
        is_decode=True,
        held=(spec.clip.held_copies, *whole_shape) if options.holds_latents else None,
        outputs=options.outputs,
        excerpt=excerpt,
        joined=num_frames if options.joined is True else options.joined,
        weight_bytes=options.weight_bytes,
        held_frames=options.held_frames,
    )
    return cast(DecodePlan, _Planner(clip, options, machine or Machine()).choose())


def plan_encode(
    spec: NetworkSpec,
    frame_shape: Sequence[int],
    machine: Machine | None = None,
    options: PlanOptions = PLAN_DEFAULTS,
    *,
    pad: bool = False,
) -> EncodePlan:
    """Plan the encode of frames (B, 3, F, H, W) or (F, H, W, 3), padded to 1 + t*k or without excess frames.

    A spectrogram is (B, C, T, bins, 1). Arguments and errors are as in `VideoVAE.plan_encode`.
    """
    batch, grid = check_frame_shape(spec, frame_shape, pad=pad)
    latents = LatentShape(batch, spec.out_channels, *spec.out_grid(grid))
    held = frame_shape if options.joined and len(frame_shape) == 5 and not spec.clip.frame_bytes else None
    clip = Clip(
        spec,
        batch,
        grid,
        latents,
        grid,
        is_decode=False,
        held=held,
        joined=latents.frames if options.joined else 0,
        weight_bytes=options.weight_bytes,
        level_bytes=_LEVEL_BYTES if len(frame_shape) == 4 else 0,
    )
    return cast(EncodePlan, _Planner(clip, options, machine or Machine()).choose())


def plan_export(
    spec: NetworkSpec,
    scale: ScaleFactors,
    machine: Machine,
    size: Size,
    memory_budget: str | int | None,
    *,
    encoder: bool = False,
) -> Plan:
    """Plan decodes or encodes of videos of a size (width, height), with a long clip in the place of all lengths.

    Without a budget, the plan does not depend on the memory of this machine.

    Raises:
        LatentsError: if no latents have this size.
        PlanError: if the decoder cannot be exported, or not within the budget; it then names the largest size.
    """
    if spec.variant is not None:
        raise PlanError(
            "this decoder denoises, with attention over neighboring frames, and is not exported; export LTX-2.5's conv "
            "decoder, which decodes the same latents."
        )
    if memory_budget is None:
        machine = replace(machine, available=None, memory=None)
    chunk = scale.time if encoder else 1
    options = PlanOptions(mode="exact", order="time", chunk=chunk, memory_budget=memory_budget)

    def plan(grid: Grid) -> Plan:
        _, rows, columns = grid
        if not encoder:
            return plan_decode(spec, (1, spec.in_channels, LONG_CLIP, rows, columns), machine, options)
        frames = 1 + scale.time * LONG_CLIP
        return plan_encode(spec, (frames, rows * scale.height, columns * scale.width, 3), machine, options)

    grid = scale.latent_grid((1, size[1], size[0]))
    try:
        return plan(grid)
    except PlanError as error:
        largest = None if error.least_bytes is None else _plan_largest(plan, grid)
        if largest is None:
            raise
        advice = f"the largest size of this shape that works by time is {format_size(*largest.frame_size)}"
        raise PlanError(f"{str(error).rstrip('.')}; {advice}.", least_bytes=error.least_bytes) from None


def _plan_largest(plan: Callable[[Grid], Plan], grid: Grid) -> Plan | None:
    """Return the plan of the largest smaller grid of about the same shape that has one, or `None`."""
    longest = max(grid)
    for cells in range(longest - 1, 0, -1):
        rows, columns = (max(1, side * cells // longest) for side in grid[1:])
        with suppress(PlanError):
            return plan((1, rows, columns))
    return None


class _Planner:
    """Generator of the possible plans for one clip, with the choice of one of them."""

    def __init__(self, clip: Clip, options: PlanOptions, machine: Machine) -> None:
        self._clip = clip
        self._least_audio = min(options.audio, key=lambda plan: plan.memory.active, default=None)
        self._spec = clip.spec
        self._options = options
        self._mode = None if options.mode == "auto" else Mode(options.mode)
        self._order = None if options.order == "auto" else Order(options.order)
        self._tiling = None if options.tiling is None else TilingConfig.of(options.tiling)
        self._machine = machine
        check_order(clip.spec, options)
        # Maximum elements of an array, which may be float32 temporarily, and the limit that every plan exceeded.
        buffer = machine.largest_buffer or MAX_ARRAY_ELEMENTS * FLOAT32_BYTES
        self._limit = self._exceeded = min(MAX_ARRAY_ELEMENTS - 1, buffer // FLOAT32_BYTES)
        available = machine.available
        self._budget = available // 2 if available else None
        if options.memory_budget is not None:
            self._budget = parse_bytes(options.memory_budget, available or 0)

    def choose(self) -> Plan:
        """Return the best plan. Warns if its tiles are blended although no mode was requested."""
        candidates: list[Plan] = []
        plan = self._best(candidates)
        if plan.blended and self._mode is None:
            exact_sizes = [candidate.memory.active for candidate in candidates if not candidate.blended]
            least = (
                f"takes at least {format_bytes(min(exact_sizes), round_up=True)}"
                if exact_sizes
                else "is too large for any step"
            )
            budget = option("memory_budget", "--memory-budget")
            warn(
                f"{self._clip.describe()}: tiles are blended, which changes the result and may show seams, since an "
                f"exact plan {least}; give a larger {budget}, or use a smaller size."
            )
        return replace(plan, multiply_adds=self._multiply_adds(plan.layout))

    def _best(self, candidates: list[Plan]) -> Plan:
        """Return a plan within the budget from the first way that has one, preferably without a tight buffer cache.

        All plans that were considered are added to `candidates`. They plan the audio with the least memory, since it
        takes a small part of the time; the chosen plan may give it more.
        """
        backend = self._machine.backend
        for way in self._ways():
            plans = list(way)
            candidates += plans
            fitting = [plan for plan in plans if self._budget is None or plan.memory.total <= self._budget]
            if fitting:
                plan = next((plan for plan in fitting if not is_cache_tight(plan.memory, backend)), fitting[0])
                return self._with_more_audio(plan) if plan.audio else plan
        if not candidates:
            is_buffer = self._exceeded == self._limit < MAX_ARRAY_ELEMENTS - 1
            why = "the largest buffer of this device" if is_buffer else "beyond which results are wrong"
            raise PlanError(
                f"{self._clip.describe()} cannot be computed: a single step would have an array of more than "
                f"{self._exceeded / 1e6:.0f} million elements, {why}; use smaller frames or tiles, shorter clips, or "
                "fewer videos at once."
            )
        least = min(candidates, key=lambda plan: plan.memory.active)
        if (memory_budget := self._options.memory_budget) is not None:
            least_size = format_bytes(least.memory.active, round_up=True)
            budget = format_bytes(parse_bytes(memory_budget, self._machine.available or 0))
            audio = f", including {format_bytes(least.memory.audio)} for the audio" if least.audio else ""
            if isinstance(memory_budget, (int, float)) and memory_budget < MB:
                budget = f'{memory_budget} bytes (write "8GB" for gigabytes)'
            raise PlanError(
                f"a memory budget of {budget} is too small for {self._clip.describe()}; the least "
                f"that works is {least_size} ({least.mode.value} by {least.order.value}){audio}.",
                least_bytes=least.memory.active,
            )
        memory = self._machine.memory
        if memory is not None and least.memory.active > memory:
            raise PlanError(
                f"{self._clip.describe()} cannot be computed: the least plan takes "
                f"{format_bytes(least.memory.active, round_up=True)} ({least.mode.value} by {least.order.value}), and "
                f"this machine has {format_bytes(memory)} for it; {self._advice(least)}."
            )
        return replace(least, memory=with_buffer_cache(least.memory, backend, memory))

    def _advice(self, least: Plan) -> str:
        """Return advice for a plan that is too large for the machine."""
        ways, is_chosen = [], self._mode is not None or self._order not in (None, Order.COLUMNS)
        if least.memory.result:
            ways.append("write a file, or take the frames from stream, instead of one array")
        if is_chosen and why_not(self._spec, Order.COLUMNS) is None:
            ways.append("use order columns in mode exact")
        return ", or ".join([*ways, "use a smaller size or fewer frames"])

    def _with_more_audio(self, plan: Plan) -> Plan:
        """Return the plan with the fastest plan of the audio that fits in the remaining budget."""
        remaining = math.inf if self._budget is None else self._budget - plan.memory.total
        max_size = plan.memory.audio + remaining
        audio = next(candidate for candidate in self._options.audio if candidate.memory.active <= max_size)
        memory = replace(plan.memory, audio=audio.memory.active)
        return replace(plan, audio=audio, memory=with_buffer_cache(memory, self._machine.backend, self._budget))

    def _ways(self) -> Iterator[Iterator[Plan]]:
        """Yield the ways that the options allow, best first; each is an iterator of its plans, fastest first."""
        mode, order = self._mode, self._order
        if mode is Mode.SINGLE:
            yield iter([self._single()])
            return
        if mode is Mode.TILED:
            yield self._tiled(self._tiling or default_tiling(self._clip))
            return
        orders = [order] if order else list(Order)
        streamable = [candidate for candidate in orders if why_not(self._spec, candidate) is None]
        if not streamable:
            if mode is Mode.EXACT or self._options.chunk is not None:
                raise PlanError(str(why_not(self._spec, order or Order.TIME)))
            yield iter([self._single()])
        if self._spec.takes_least_memory:
            streamable.sort(
                key=lambda candidate: min((plan.memory.active for plan in self._exact(candidate)), default=0)
            )
        for candidate in streamable:
            yield self._exact(candidate)
        if mode is None and order is None and self._options.chunk is None and self._spec.clip.unit == "frame":
            for tiling in last_resort_tilings(self._clip):
                with suppress(TilingError):  # where the last tile would be too short
                    yield iter(list(self._tiled(tiling)))

    def _single(self) -> Plan:
        clip = self._clip
        largest = largest_layer(self._spec, clip.grid, clip.batch)
        if largest > (most := min(MAX_LAYER_ELEMENTS, self._limit // TAPS)):
            way = "mode exact, which gives the same result" if self._spec.stream_axes else "a shorter clip"
            raise PlanError(
                f"a single pass of {clip.describe()} would give one layer {largest / 1e6:.0f} million elements, but "
                f"only {most / 1e6:.0f} million are safe; use {way}."
            )
        frames, chunk = clip.grid[0], clip.grid[0] // clip.cell
        run = StreamRun(Axis.TIME, (frames,), None, 0, self._machine)
        return self._plan(Order.TIME, chunk, self._stream_memory(run, chunk), run)

    def _exact(self, order: Order) -> Iterator[Plan]:
        """Yield plans of one stream."""
        clip, axis = self._clip, order.axis
        length = clip.grid[axis.grid]
        for step, prefetch, chunk in self._paces(axis):
            chunk = chunk if clip.cell > 1 else min(chunk, length)
            pieces = clip.pieces(length, chunk)
            steps = self._steps(clip.grid, axis, step, pieces)
            if self._exceeds(self._spec, clip.grid, axis, clip.batch, steps):
                continue
            run = StreamRun(axis, pieces, steps, prefetch, self._machine)
            yield self._plan(order, chunk, self._stream_memory(run, chunk), run, step=step)

    def _exceeds(self, spec: NetworkSpec, grid: Grid, axis: Axis, batch: int, steps: tuple[int, ...]) -> bool:
        """Return whether a layer's input with its cache, or its output, has too many elements in a step.

        The limit is that of all plans, or a smaller one of a layer for its input.
        """
        for (layer, extents), step in zip(spec.walk(grid), steps, strict=True):
            position = batch * position_elements(layer, extents, axis)
            length = min(step, extents[axis.grid])
            growth = layer.out_channels * math.prod(layer.up), layer.in_channels * math.prod(layer.down)
            input_limit = min(self._limit, layer.max_view or self._limit)
            if (length + layer.window(axis).cached) * position > input_limit:
                self._exceeded = input_limit
                return True
            if length * position * growth[0] // growth[1] > self._limit:
                self._exceeded = self._limit
                return True
        return False

    def _paces(self, axis: Axis) -> Iterable[tuple[int, int, int]]:
        """Return the possible steps, prefetches and chunks, the fastest first, each once."""
        is_latent, factor = self._clip.is_decode or bool(self._spec.clip.chunks), self._spec.scale.time
        size = 1 if is_latent else factor * max(1, _ENCODE_CHUNK // factor)  # 1 takes the least memory between layers
        return dict.fromkeys(
            (step, prefetch, self._options.chunk or count * size)
            for step, prefetch, count in paces(self._spec, self._machine.backend, axis)
        )

    def _steps(self, grid: Grid, axis: Axis, step: int, pieces: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Return the positions per step of each layer, within the limits of its size and, on a GPU, of a step's work.

        Layers that are flushed with the last piece take whole `pieces`.
        """
        if self._spec.clip.flushes_with_last:
            run = StreamRun(axis, pieces, (MAX_ARRAY_ELEMENTS,) * len(self._spec.layers), 0, self._machine)
            return tuple(map(max, layer_pieces(self._spec, grid, run)))[:-1]
        batch = self._clip.batch
        steps = make_steps(self._spec, grid, axis, step, min(MAX_LAYER_ELEMENTS, self._limit // TAPS) // batch)
        if self._machine.backend is Backend.CPU:
            return steps
        position_work = (
            batch * layer.multiply_adds(extents) // extents[axis.grid] for layer, extents in self._spec.walk(grid)
        )
        return tuple(
            min(size, max(1, _STEP_MULTIPLY_ADDS // max(1, work)))
            for size, work in zip(steps, position_work, strict=True)
        )

    def _stream_memory(self, run: StreamRun, chunk: int) -> Memory:
        clip = self._clip
        memory = stream_memory(self._spec, clip.grid, clip.batch, run)
        if not clip.is_decode:  # a piece is made, and checked, before the network takes it
            memory = replace(memory, work=max(memory.work, clip.piece_bytes(self._machine.itemsize, chunk)))
        if run.axis is not Axis.TIME:  # the whole frames that are read at the end are a light network's peak
            frames = min(FRAMES_PER_CONVERSION, clip.video[0]) * clip.out_frame
            value = clip.value_bytes(self._machine.itemsize) + (0 if clip.format or clip.joined else _LEVEL_BYTES)
            read = math.ceil(_READ_COPIES * frames * value) - memory.caches
            # The whole output is joined from the frames read, after the network's arrays are freed; not in a film.
            result = clip.result_bytes(self._machine.itemsize) if clip.held_frames is None else 0
            memory = replace(memory, work=max(memory.work - result, read))
        return replace(memory, inputs=clip.input_bytes(self._machine.itemsize, chunk, axis=run.axis))

    def _tiled(self, tiling: TilingConfig) -> Iterator[Plan]:
        """Yield plans of tiles that are streamed in time, all with the same number of frames per step."""
        clip, spec = self._clip, self._spec
        layout = make_layout(clip, tiling)
        calls = [
            (len(batch), group[batch[0]])
            for group in layout.groups()
            for batch in tile_batches(group, self._options.tile_batch_size)
        ]
        spans = layout.time.blended(is_decode=clip.is_decode)
        at_once = spec.scale.time if layout.is_streamed else max(span.length for span in spans)
        blended, axis = at_once * blended_frame(clip, layout), Axis.HEIGHT if spec.keyframes else Axis.TIME
        positions = sum(count * math.prod(clip.boxes(tile)[0]) for count, tile in calls)
        kinds = {call_kind(spec, layout, call): (call, tile_spec(spec, layout, call[1])) for call in calls}.values()
        for step, prefetch, chunk in self._paces(axis) if blended <= self._limit else ():
            chunk = min(chunk, clip.grid[axis.grid])
            steps = self._steps(clip.grid, axis, step)
            before_tiles = spec.before_tiles(), clip.grid, axis, clip.batch, steps[: layout.start]
            if self._exceeds(*before_tiles) or any(
                self._exceeds(network, clip.boxes(tile)[0], axis, count * clip.batch, steps[layout.start :])
                for (count, tile), network in kinds
            ):
                continue
            run = StreamRun(axis, (), steps, prefetch, self._machine)
            memory = tiled_memory(clip, layout, calls, run, chunk)
            plan = replace(
                self._plan(Order.TIME, chunk, memory, run, step=step, layout=layout),
                tiling=tiling,
                tile_batch_size=self._options.tile_batch_size,
                calls=len(calls),
                redundant_work=positions / math.prod(tiled_grid(clip)) - 1,
            )
            if not layout.is_streamed:
                sizes = [clip.boxes(tile)[0] for tile in next(layout.groups())]
                share = sum(map(math.prod, sizes)) / positions
                plan = replace(plan, lookahead=latents_of(clip, sizes[0][0]), first_output_work=share)
            yield plan

    def _multiply_adds(self, layout: TileLayout | None) -> int:
        """Return the multiply-adds of a run, of all tiles if there are some."""
        spec, clip = self._spec, self._clip
        if layout is None:
            return clip.batch * spec.multiply_adds(clip.grid)
        work = spec.before_tiles().multiply_adds(clip.grid) if layout.start else 0
        for tiles in layout.groups():
            work += sum(tile_spec(spec, layout, tile).multiply_adds(clip.boxes(tile)[0]) for tile in tiles)
        return clip.batch * work

    def _with_all_memory(self, memory: Memory) -> Memory:
        """Add the memory outside of the run: other networks' weights, the whole output, the audio."""
        result, buffer = self._clip.result_bytes(self._machine.itemsize), self._machine.largest_buffer
        is_numpy = common_format(self._clip.outputs) is not None  # the array of `decode_uint8`
        if buffer is not None and result > buffer and not is_numpy:
            raise PlanError(
                f"the whole output would be one array of {format_bytes(result)}, and the largest buffer of this device "
                f"has {format_bytes(buffer)}; take it in parts, as from stream."
            )
        # Latents are joined after the run's arrays have been freed.
        work = memory.work if self._clip.is_decode else max(memory.work, result - memory.caches)
        weights = memory.weights if self._clip.weight_bytes is None else self._clip.weight_bytes
        audio = self._least_audio.memory.active if self._least_audio else 0
        held = (self._clip.held_frames or 0) * self._clip.out_frame * self._machine.itemsize
        inputs = memory.inputs + held + self._options.input_bytes
        return replace(memory, weights=weights, inputs=inputs, work=work, result=result, audio=audio)

    def _plan(
        self,
        order: Order,
        chunk: int,
        memory: Memory,
        run: StreamRun,
        *,
        step: int = 0,
        layout: TileLayout | None = None,
    ) -> Plan:
        clip, spec = self._clip, self._spec
        frames, height, width = clip.video
        outputs = clip.excerpt.skipped + 1 if clip.excerpt else 1  # up to the first of the excerpt
        memory = self._with_all_memory(with_consumer(memory, clip, layout, run, chunk))
        is_early = run.steps is not None and order is Order.TIME  # output is final before the end
        plan = (DecodePlan if clip.is_decode else EncodePlan)(
            mode=Mode.SINGLE if run.steps is None else Mode.TILED if layout else Mode.EXACT,
            order=order,
            latent_shape=clip.latent_shape,
            num_frames=frames,
            height=height,
            width=width,
            chunk=chunk,
            step=step,
            steps=run.steps or (),
            prefetch=run.prefetch,
            lookahead=min(needed(self._spec, Axis.TIME, outputs) if is_early else clip.grid[0], clip.grid[0]),
            first_output_work=first_output_work(self._spec, clip.grid, outputs) if is_early else 1.0,
            memory=with_buffer_cache(memory, self._machine.backend, self._budget),
            machine=self._machine,
            layout=layout,
            clip=spec.clip,
            audio=self._least_audio,
        )
        if isinstance(plan, EncodePlan):
            return plan
        return replace(
            plan,
            excerpt=clip.excerpt,
            denoising_steps=spec.denoising_steps,
            keyframes=spec.keyframes,
            outputs=clip.outputs,
            held_frames=clip.held_frames,
        )
