"""Executes a plan, for decoding and encoding: a single pass, a stream, or tiles. A `Source` provides the input."""

import inspect
import sys
import threading
import traceback
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from operator import itemgetter
from typing import Generic, TypeVar

import mlx.core as mx

from ..backend.device import explained_device_errors, freed_memory_kept, give_back_cache, run_settings, step_settings
from ..backend.mlx_utils import split, take
from ..errors import DecodeCancelled, LatentsError
from ..frame_format import FrameOutput
from ..networks.base import Network
from ..networks.specs import NetworkSpec
from ..planning.plan import DecodePlan, Mode, Order, Plan, choose_variant
from ..planning.tiles import tile_spec
from ..shapes import Axis, Grid, Interval
from ..streaming.context import Stage, StreamContext
from ..streaming.driver import run_chain, run_stream, run_whole
from ..tiling.blend import SpatialBlender, blend_tiles
from ..tiling.layout import Tile, TileBox, TileLayout, tile_batches
from .keyframes import plane_crops
from .sources import Crops, Source, layer_crops

Item = TypeVar("Item")

Chunk = TypeVar("Chunk")
StreamT = TypeVar("StreamT", bound="ChunkStream")

_PACKAGE = __name__.partition(".")[0]


@dataclass
class ExecutionState:
    """State that a run, or several one after another, share with their stream.

    Attributes:
        cancelled: set by any thread to end the run at its next step.
        work: multiply-adds of the run, or 0 if that is not known.
        done: those that are done.
        outputs, joined: options of a plan for what becomes of the frames. A plan that is made at the first chunk gets
            those that were set by then.
    """

    cancelled: threading.Event = field(default_factory=threading.Event)
    work: float = 0.0
    done: float = 0.0
    outputs: tuple[FrameOutput, ...] = ()
    joined: bool | int = False

    @property
    def fraction(self) -> float | None:
        """Fraction of the work that is done, or `None` if it is not known."""
        return min(1.0, self.done / self.work) if self.work else None

    def check(self) -> None:
        """Raise `DecodeCancelled` if the run was cancelled. Called between the steps of a run."""
        if self.cancelled.is_set():
            raise DecodeCancelled("the run was cancelled.")


class ChunkStream(Iterator[Chunk], AbstractContextManager["ChunkStream[Chunk]"], Generic[Chunk]):
    """Chunks of one run, in order. As a context manager, it closes itself.

    One thread at a time takes chunks; `cancel` may be called from any thread at any time. `next` raises a `ValueError`
    while a chunk is being computed, as a generator does: the latents may be from an iterator that uses the stream.
    `state` is shared with the run.
    """

    def __init__(self, chunks: Generator[Chunk, None, None], state: ExecutionState) -> None:
        self._chunks, self.state = chunks, state
        self._running = threading.Lock()
        self._is_computing = False

    def __next__(self) -> Chunk:
        self.state.check()
        if self._is_computing:
            raise ValueError("the stream is already computing a chunk; take the next one when that is done.")
        with self._running:
            self.state.check()
            self._is_computing = True
            try:
                with arrays_released(), explained_device_errors():
                    return next(self._chunks)
            finally:
                self._is_computing = False

    def close(self) -> None:
        """End the run and free its memory; later calls of `next` raise StopIteration.

        If another thread is computing a chunk, this is the same as `cancel`.
        """
        if self._running.acquire(blocking=False):
            try:
                self._chunks.close()
            finally:
                self._running.release()
        else:
            self.state.cancelled.set()

    def cancel(self) -> None:
        """End the run from any thread, without waiting.

        The thread that takes chunks gets `DecodeCancelled`, at the end of the current step or at its next call, so that
        an incomplete file is not kept. Memory is freed then, or now if no chunk is being computed.
        """
        self.state.cancelled.set()
        self.close()

    def __repr__(self) -> str:
        phases = {inspect.GEN_CREATED: "not started", inspect.GEN_CLOSED: "ended"}
        phase = phases.get(inspect.getgeneratorstate(self._chunks), "started")
        return f"{type(self).__name__}({'cancelled' if self.state.cancelled.is_set() else phase})"

    def __enter__(self: StreamT) -> StreamT:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        give_back_cache()  # with the last chunks


@contextmanager
def arrays_released() -> Iterator[None]:
    """Release the arrays in frames of an exception's traceback. A notebook keeps the last exception alive."""
    handled = sys.exc_info()[1]
    try:
        yield
    except BaseException as error:
        exception: BaseException | None = error
        while exception is not None and exception is not handled:
            for frame, _ in traceback.walk_tb(exception.__traceback__):
                # Frames of callers and their callbacks stay as they are, for a debugger.
                if frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
                    with suppress(RuntimeError):  # it still runs
                        frame.clear()
            exception = exception.__context__
        raise


def join_parts(parts: Iterable[mx.array], axis: int, length: int | None) -> mx.array:
    """Return all parts joined along an axis, evaluated. Exhausts them, since a stream checks its chunks at the end.

    If the total `length` is known, parts are copied into one array as they arrive, so that none is in memory twice.
    """
    joined = mx.concatenate(list(parts), axis=axis) if length is None else _fill(parts, axis, length)
    with explained_device_errors():
        mx.eval(joined)
    return joined


@explained_device_errors()
def _fill(parts: Iterable[mx.array], axis: int, length: int) -> mx.array:
    joined, start = mx.array(()), 0
    for part in parts:
        end = start + part.shape[axis]
        if end - start == length:
            joined = part
        elif not start:
            joined = mx.zeros([length if index == axis else n for index, n in enumerate(part.shape)], part.dtype)
        if joined is not part:
            joined[(slice(None),) * axis + (slice(start, end),)] = part
        start = end
        del part
        mx.eval(joined)
    return take(joined, axis, 0, start)  # of a stream, what was left


def peek(parts: Iterable[Item], message: str) -> tuple[Item, Iterator[Item]]:
    """Return the first part, and all parts; raise a `LatentsError` with this message if there are none.

    The iterator of all parts holds the first one only until it yields it.
    """
    iterator = iter(parts)
    first = next(iterator, None)
    if first is None:
        raise LatentsError(message)
    return first, chain(map(list.pop, [[first]]), iterator)


@dataclass(frozen=True)
class Execution:
    """Execution of a plan."""

    network: Network
    plan: Plan
    source: Source
    context: StreamContext = field(default_factory=StreamContext)
    state: ExecutionState = field(default_factory=ExecutionState)

    def outputs(self) -> Iterator[mx.array]:
        """Yield the network's outputs, arrays (B, T, H, W, C) in order along the axis of the plan's order.

        If the plan has an excerpt, only its frames are yielded. The dtype is float32 if tiles are blended, otherwise
        the network's.
        """
        with run_settings():
            if self.plan.mode is Mode.SINGLE:
                outputs = self._single()
            elif self.plan.layout is None:
                pieces = self.source.pieces(self._axis, self.plan.chunk)
                outputs = self._stream(pieces, self.context, self._spec, self.source.grid)
            elif self.plan.layout.is_streamed:
                outputs = self._tiles_in_space(self.plan.layout)
            else:
                outputs = self._tiles(self.plan.layout)
            outputs = iter(outputs)
            excerpt = self.plan.excerpt if isinstance(self.plan, DecodePlan) else None
            if excerpt is not None and self.plan.order is Order.TIME:
                outputs = _between(outputs, excerpt.output_range)
            elif excerpt is not None:
                outputs = map(itemgetter((slice(None), excerpt.output_range.as_slice)), outputs)
            while True:
                with freed_memory_kept():  # between the results, malloc has its usual settings
                    box = list(islice(outputs, 1))
                if not box:
                    return
                yield box.pop()

    @contextmanager
    def _around_step(self, multiply_adds: float) -> Iterator[None]:
        self.state.check()
        with step_settings(self.plan.memory.buffer_cache):
            yield
        self.state.done += multiply_adds

    def _stages(
        self, context: StreamContext, spec: NetworkSpec, grid: Grid, layers: slice = slice(None)
    ) -> list[Stage]:
        """Return the stages of some layers, with their work if it is counted. `grid` is that of the input of `spec`."""
        stages = self.network.stages(replace(context, axis=self._axis))[layers]
        for stage, (layer, extents) in zip(stages, spec.walk(grid), strict=True) if self.state.work else ():
            stage.work = layer.multiply_adds(extents) / extents[self._axis.grid]
        return stages

    @property
    def _spec(self) -> NetworkSpec:
        """Layers of the network in this run."""
        plan, spec = self.plan, self.network.spec
        return choose_variant(spec, plan.denoising_steps, plan.keyframes) if isinstance(plan, DecodePlan) else spec

    @property
    def _axis(self) -> Axis:
        """Axis of the streams: height instead of time for tiles with keyframe planes, which are not cut along time."""
        axis = self.plan.order.axis
        return Axis.HEIGHT if self.context.keyframes and axis is Axis.TIME else axis

    @property
    def _is_decode(self) -> bool:
        return isinstance(self.plan, DecodePlan)

    def _boxes(self, tiles: Sequence[Tile]) -> list[TileBox]:
        """Return the part of the input of each tile."""
        return [tile.latent if self._is_decode else tile.pixels for tile in tiles]

    def _single(self) -> Iterator[mx.array]:
        pieces = list(self.source.pieces(Axis.TIME, self.plan.chunk))
        box = [mx.concatenate(pieces, axis=Axis.TIME)]
        del pieces
        stages = self._stages(self.context, self._spec, self.source.grid)
        yield run_whole(stages, box.pop(), around_step=self._around_step)

    def _stream(
        self,
        pieces: Iterator[mx.array],
        context: StreamContext,
        spec: NetworkSpec,
        grid: Grid,
        layers: slice = slice(None),
    ) -> Iterator[mx.array]:
        """Stream pieces through the stages of some layers, which only the stream holds, until they end."""
        plan, stages = self.plan, self._stages(context, spec, grid, layers)
        if self.network.spec.clip.flushes_with_last:
            return run_chain(stages, pieces, axis=self._axis, around_step=self._around_step)
        return run_stream(
            stages,
            pieces,
            axis=self._axis,
            steps=plan.steps[layers],
            prefetch=plan.prefetch,
            around_step=self._around_step,
        )

    def _tile_streams(
        self, batches: Sequence[Sequence[Tile]], source: Source, layout: TileLayout
    ) -> list[Iterator[list[mx.array]]]:
        """Return a stream in time for each batch of tiles of equal shape. It yields lists with one piece per tile.

        All streams yield pieces of the same frames.
        """
        sources = source.tile_pieces([self._boxes(tiles) for tiles in batches], self.plan.chunk * layout.rate)
        layers, spec = slice(layout.start, None), self._spec

        def stream(pieces: Iterator[mx.array], tiles: Sequence[Tile]) -> Iterator[mx.array]:
            grid = tiles[0].run_size(spec.keyframes, is_decode=self._is_decode)
            return self._stream(pieces, self._crop_context(tiles), tile_spec(spec, layout, tiles[0]), grid, layers)

        return [
            map(partial(split, parts=len(tiles)), stream(pieces, tiles))
            for pieces, tiles in zip(sources, batches, strict=True)
        ]

    def _tiles_in_space(self, layout: TileLayout) -> Iterator[mx.array]:
        """Yield the frames of all tile streams, which are advanced in turns, blended as they become final."""
        blender = SpatialBlender(layout.height, layout.width, is_decode=self._is_decode)
        (tiles,) = layout.groups()
        batches = tile_batches(tiles, self.plan.tile_batch_size)
        streams = self._tile_streams([[tiles[index] for index in batch] for batch in batches], self.source, layout)

        def blend(outputs: Sequence[list[mx.array]]) -> mx.array:
            numbered = sorted(zip(chain(*batches), chain(*outputs), strict=True), key=itemgetter(0))
            for pieces in outputs:
                pieces.clear()  # `zip` keeps its last tuple, with these lists, while the next tiles are computed
            return blender.blend(iter(numbered))

        return map(blend, zip(*streams, strict=True))

    def _tiles(self, layout: TileLayout) -> Iterator[mx.array]:
        """Yield the frames of batches of tiles one after the other. The layers before the tiles run once, as needed."""
        source = self.source
        if layout.start:
            pieces = source.pieces(Axis.TIME, self.plan.chunk)
            spec, layers = self._spec.before_tiles(), slice(layout.start)
            cells = self._stream(pieces, self.context, spec, source.grid, layers)
            has_planes = bool(self.context.keyframes)
            source = replace(source, crops=self._plane_crops(cells, layout) if has_planes else layer_crops(cells))

        def run_tiles(tiles: list[Tile]) -> list[mx.array]:
            (stream,) = self._tile_streams([tiles], source, layout)
            return [mx.concatenate(list(pieces), axis=self._axis) for pieces in zip(*stream, strict=True)]

        batch_size = self.plan.tile_batch_size
        blended = blend_tiles(run_tiles, layout, is_decode=self._is_decode, tile_batch_size=batch_size)
        with closing(blended) as outputs:
            frames = map(itemgetter(1), outputs)
            if layout.clip is not None:
                span, rows, columns = layout.clip
                full = slice(None)
                frames = map(itemgetter((full, full, rows.as_slice, columns.as_slice)), _between(frames, span))
            yield from frames

    def _plane_crops(self, outputs: Iterator[mx.array], layout: TileLayout) -> Crops:
        keyframes = self.context.keyframes
        planes = {tile.latent[0]: tile.planes(keyframes) for tile, *_ in layout.groups()}
        return plane_crops(outputs, len(keyframes), planes)

    def _crop_context(self, tiles: Sequence[Tile]) -> StreamContext:
        """Return the context of a batch of tiles, with the part of the picture's noise of each tile."""
        plan, batch = self.plan, self.source.batch
        size = (plan.height, plan.width)
        maps: Mapping[str, mx.array] = {
            name: mx.repeat(mx.stack([crop_map(noise, size, *tile.pixels[1:]) for tile in tiles]), batch, axis=0)
            for name, noise in self.context.noise_maps.items()
        }
        timesteps, first = self.context.timesteps, self.context.origins[0][0]
        is_part = plan.layout is not None and plan.layout.start
        return replace(
            self.context,
            origins=tuple(tile_origin(tile, first) for tile in tiles),
            noise_maps=maps,
            timesteps=None if timesteps is None else mx.tile(timesteps, len(tiles)),
            planes=tiles[0].planes(self.context.keyframes),
            first_frame=tiles[0].pixels[0].start if is_part else 0,
            clip=plan.latent_shape.grid if is_part else None,
        )


def _between(pieces: Iterator[mx.array], frames: Interval) -> Iterator[mx.array]:
    """Yield some frames of a video in pieces (B, n, H, W, C) along time, and take no piece after the last of them."""
    end = 0
    while end < frames.end and (box := list(islice(pieces, 1))):
        start, end = end, end + box[0].shape[1]
        if end > frames.start:
            yield box.pop()[:, max(0, frames.start - start) : frames.end - start]
        box.clear()  # before the next piece is computed


def crop_map(noise: mx.array, size: tuple[int, int], rows: Interval, columns: Interval) -> mx.array:
    """Return the part of a picture's noise map (H, W) for rows and columns of a grid of `size`, latents or pixels."""
    spans = zip((rows, columns), noise.shape, size, strict=True)
    map_rows, map_columns = (
        slice(span.start * length // extent, span.end * length // extent) for span, length, extent in spans
    )
    return noise[map_rows, map_columns]


def tile_origin(tile: Tile, first_frame: int) -> Grid:
    """Return the position of a tile in a video whose decode starts at the excerpt's first frame."""
    time, rows, columns = tile.pixels
    return first_frame + time.start, rows.start, columns.start
