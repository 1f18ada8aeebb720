"""Executes a plan, for decoding and encoding: a single pass, a stream, or tiles. A `Source` provides the input."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice, tee
from operator import itemgetter
from typing import TypeVar

import mlx.core as mx
import numpy as np

from ..backend.device import freed_memory_kept, run_settings, step_settings
from ..backend.mlx_utils import split, to_mlx
from ..distributed import Ranks, RowBands
from ..errors import LatentsError, PlanError
from ..models.base import Network
from ..planning.plan import DecodePlan, Mode, Order, Plan
from ..shapes import Axis, Grid
from ..streaming.context import StreamContext, TilePart
from ..streaming.driver import run, run_chain, run_whole
from ..tiling.blend import SpatialBlender, blend_tiles
from ..tiling.layout import Interval, Tile, TileBox, TileLayout, tile_batches

Part = TypeVar("Part")


class Source(ABC):
    """The input of a run."""

    batch: int
    grid: Grid  # its extents

    @abstractmethod
    def pieces(self, axis: Axis, chunk: int) -> Iterator[mx.array]:
        """Yield the whole input in order along `axis`, `chunk` positions at a time: (B, T, H, W, C) each."""

    def tile_pieces(self, batches: Sequence[Sequence[TileBox]], chunk: int) -> list[Iterator[mx.array]]:
        """For each batch of boxes of equal shape, an iterator of its pieces in order along time.

        All items of the first box come first in a piece. The iterators are advanced in turns. Here the boxes must span
        the input in time.
        """
        copies = tee(self.pieces(Axis.TIME, chunk), len(batches))
        return [map(partial(crop_space, boxes=boxes), copy) for copy, boxes in zip(copies, batches, strict=True)]


def crop_space(frames: mx.array | np.ndarray, boxes: Sequence[TileBox]) -> mx.array:
    """Crop (B, n, H, W, C) to the rows and columns of some boxes, as a batch with all items of the first box first."""
    crops = (frames[:, :, rows.as_slice, columns.as_slice] for _, rows, columns in boxes)
    return mx.concatenate([to_mlx(crop, "frames") for crop in crops])


class LayerSource(Source):
    """The results of a network's first layers for a source, of which tiles are cut in the order of their frames.

    Positions before those of the tiles under way are dropped.
    """

    def __init__(self, source: Source, results: Iterator[mx.array]) -> None:
        self.batch, self.grid = source.batch, source.grid
        self._results = results
        self._held: list[mx.array] = []
        self._start = self._end = 0

    def pieces(self, axis: Axis, chunk: int) -> Iterator[mx.array]:
        return self._results

    def tile_pieces(self, batches: Sequence[Sequence[TileBox]], chunk: int) -> list[Iterator[mx.array]]:
        return [self._crops(boxes, chunk) for boxes in batches]

    def _crops(self, boxes: Sequence[TileBox], chunk: int) -> Iterator[mx.array]:
        time = boxes[0][0]  # all boxes of a batch have the same
        while self._held and self._start + self._held[0].shape[1] <= time.start:
            self._start += self._held.pop(0).shape[1]
        while self._end < time.end:
            self._held.append(next(self._results))
            self._end += self._held[-1].shape[1]
        for start in range(time.start, time.end, chunk):
            yield crop_space(self._take(start, min(start + chunk, time.end)), boxes)

    def _take(self, start: int, end: int) -> mx.array:
        parts, first = [], self._start
        for held in self._held:
            if first < end and start < first + held.shape[1]:
                parts.append(held[:, max(0, start - first) : end - first])
            first += held.shape[1]
        return mx.concatenate(parts, axis=1)


class PlaneSource(Source):
    """The results of a network's first layers, all of them, of which tiles with keyframe planes are cut.

    They come in order of rows, with `count` planes behind the frames; `planes` are the indices of those of each
    interval of frames.
    """

    def __init__(
        self, source: Source, results: Iterator[mx.array], count: int, planes: Mapping[Interval, Sequence[int]]
    ) -> None:
        self.batch, self.grid = source.batch, source.grid
        self._results, self._count, self._planes = results, count, planes
        self._held: list[mx.array] = []

    def pieces(self, axis: Axis, chunk: int) -> Iterator[mx.array]:
        return self._results

    def tile_pieces(self, batches: Sequence[Sequence[TileBox]], chunk: int) -> list[Iterator[mx.array]]:
        self._held += self._results
        return [self._crops(boxes, chunk) for boxes in batches]

    def _crops(self, boxes: Sequence[TileBox], chunk: int) -> Iterator[mx.array]:
        for start in range(0, boxes[0][1].length, chunk):
            yield mx.concatenate([self._crop(box, start, chunk) for box in boxes])

    def _crop(self, box: TileBox, start: int, count: int) -> mx.array:
        """`count` rows of a box, or those that it has left."""
        time, rows, columns = box
        start, end = rows.start + start, min(rows.start + start + count, rows.end)
        parts, first = [], 0
        for held in self._held:
            last = first + held.shape[Axis.HEIGHT]
            if first < end and start < last:
                own = held[:, :, max(0, start - first) : end - first, columns.as_slice]
                planes = mx.array([own.shape[1] - self._count + plane for plane in self._planes[time]])
                parts.append(mx.concatenate([own[:, time.as_slice], own[:, planes]], axis=1))
            first = last
        return mx.concatenate(parts, axis=Axis.HEIGHT)


def peek(parts: Iterable[Part], missing: str) -> tuple[Part, Iterator[Part]]:
    """The first part, and all parts. A `LatentsError` says what is `missing` if there are none."""
    iterator = iter(parts)
    first = next(iterator, None)
    if first is None:
        raise LatentsError(missing)
    return first, chain([first], iterator)


@dataclass(frozen=True)
class Run:
    """The execution of a plan. `check` is called before each step; an exception in it ends the run."""

    network: Network
    plan: Plan
    source: Source
    context: StreamContext = field(default_factory=StreamContext)
    check: Callable[[], None] = lambda: None

    def results(self) -> Iterator[mx.array]:
        """The network's output, (B, T, H, W, C) each, in order along the axis of the plan's order.

        Of an excerpt, those are the frames that it keeps. The dtype is float32 if tiles are blended, otherwise that of
        the network.
        """
        excerpt = self.plan.excerpt if isinstance(self.plan, DecodePlan) else None
        if excerpt is None:
            return self._results()
        if self.plan.order is Order.TIME:
            return self._until(excerpt.kept)
        return map(itemgetter((slice(None), excerpt.kept.as_slice)), self._results())

    def _until(self, kept: Interval) -> Iterator[mx.array]:
        """Yield some frames of a run along time, and end it with the last of them."""
        start = 0
        with closing(self._results()) as results:
            while start < kept.end and (box := list(islice(results, 1))):
                first, start = start, start + box[0].shape[1]
                if start > kept.start:
                    yield box.pop()[:, max(0, kept.start - first) : kept.end - first]

    def _results(self) -> Generator[mx.array, None, None]:
        with run_settings():
            if self.plan.mode is Mode.SINGLE:
                results = self._single()
            elif self.plan.layout is None:
                results = self._stream(self.source.pieces(self._axis, self.plan.chunk), self.context)
            elif self.plan.layout.is_streamed:
                results = self._tiles_in_space(self.plan.layout)
            else:
                results = self._tiles(self.plan.layout)
            results = iter(results)
            while box := _next_box(results):
                yield box.pop()

    @contextmanager
    def _around_step(self) -> Iterator[None]:
        self.check()
        with step_settings(self.plan.memory.buffer_cache):
            yield

    @property
    def _axis(self) -> Axis:
        """The axis of streams. Those of tiles with keyframe planes are not cut along time."""
        axis = self.plan.order.axis
        return Axis.HEIGHT if self.context.keyframes and axis is Axis.TIME else axis

    @property
    def _is_decode(self) -> bool:
        return isinstance(self.plan, DecodePlan)

    def _boxes(self, tiles: Sequence[Tile]) -> list[TileBox]:
        """The parts of the input that tiles cover."""
        return [tile.latent if self._is_decode else tile.pixels for tile in tiles]

    def _single(self) -> Iterator[mx.array]:
        pieces = list(self.source.pieces(Axis.TIME, self.plan.chunk))
        box = [mx.concatenate(pieces, axis=Axis.TIME)]
        del pieces
        yield run_whole(self.network.stages(self.context), box.pop(), around_step=self._around_step)

    def _stream(
        self, pieces: Iterator[mx.array], context: StreamContext, layers: slice = slice(None)
    ) -> Iterator[mx.array]:
        plan, stages = self.plan, self.network.stages(replace(context, axis=self._axis))[layers]
        if self.network.spec.sound is not None:
            return run_chain(stages, pieces, axis=self._axis, around_step=self._around_step)
        return run(
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
        """For each batch of tiles of equal shape, a stream in time that yields lists with one piece per tile.

        All streams yield pieces of the same frames.
        """
        sources = source.tile_pieces([self._boxes(tiles) for tiles in batches], self.plan.chunk * layout.rate)
        layers = slice(layout.start, None)
        return [
            map(partial(split, parts=len(tiles)), self._stream(pieces, self._crop_context(tiles), layers))
            for pieces, tiles in zip(sources, batches, strict=True)
        ]

    def _tiles_in_space(self, layout: TileLayout) -> Iterator[mx.array]:
        """All streams interleaved, blended as their frames become final."""
        _, rows, columns = layout.blended(is_decode=self._is_decode)
        blender = SpatialBlender(rows, columns)
        (tiles,) = layout.groups()
        batches = tile_batches(tiles, self.plan.tile_batch_size)
        streams = self._tile_streams([[tiles[index] for index in batch] for batch in batches], self.source, layout)

        def blend(results: Sequence[list[mx.array]]) -> mx.array:
            numbered = sorted(zip(chain(*batches), chain(*results), strict=True), key=itemgetter(0))
            for pieces in results:
                pieces.clear()  # `zip` keeps its last tuple, and these lists, while the next tiles are computed
            return blender.blend(iter(numbered))

        return map(blend, zip(*streams, strict=True))

    def _tiles(self, layout: TileLayout) -> Iterator[mx.array]:
        """Batches of tiles one after the other; the layers before the cut run once, as far as the tiles need them."""
        source = self.source
        if layout.start:
            pieces = source.pieces(Axis.TIME, self.plan.chunk)
            cells = self._stream(pieces, self.context, slice(layout.start))
            has_planes = bool(self.context.keyframes)
            source = self._plane_source(cells, layout) if has_planes else LayerSource(source, cells)

        def run_tiles(tiles: list[Tile]) -> list[mx.array]:
            (stream,) = self._tile_streams([tiles], source, layout)
            return [mx.concatenate(list(pieces), axis=self._axis) for pieces in zip(*stream, strict=True)]

        axes = layout.blended(is_decode=self._is_decode)
        with closing(blend_tiles(run_tiles, layout, axes, tile_batch_size=self.plan.tile_batch_size)) as results:
            frames = map(itemgetter(1), results)
            if layout.clip is None:
                yield from frames
            else:
                yield from _crop(frames, layout.clip)

    def _plane_source(self, results: Iterator[mx.array], layout: TileLayout) -> "PlaneSource":
        keyframes = self.context.keyframes
        planes = {tile.latent[0]: tile.planes(keyframes) for tile, *_ in layout.groups()}
        return PlaneSource(self.source, results, len(keyframes), planes)

    def _crop_context(self, tiles: Sequence[Tile]) -> StreamContext:
        """The context of a batch of tiles, each with its part of the picture's noise."""
        plan, batch = self.plan, self.source.batch
        size = (plan.height, plan.width)
        maps: Mapping[str, mx.array] = {
            name: mx.repeat(mx.stack([crop_map(noise, size, *tile.pixels[1:]) for tile in tiles]), batch, axis=0)
            for name, noise in self.context.noise_maps.items()
        }
        timesteps, first = self.context.timesteps, self.context.origins[0][0]
        is_part = plan.layout is not None and plan.layout.start
        frames, planes = tiles[0].pixels[0], tiles[0].planes(self.context.keyframes)
        return replace(
            self.context,
            origins=tuple(tile_origin(tile, first) for tile in tiles),
            noise_maps=maps,
            timesteps=None if timesteps is None else mx.tile(timesteps, len(tiles)),
            part=TilePart(plan.latent_shape.grid, frames.start, planes) if is_part else None,
        )


def _next_box(results: Iterator[mx.array]) -> list[mx.array]:
    """The next result in a list, or an empty list. While a stream waits for its caller, malloc is as usual."""
    with freed_memory_kept():
        return list(islice(results, 1))


def _crop(pieces: Iterator[mx.array], box: TileBox) -> Iterator[mx.array]:
    """What is in the box, which begins with the first frame, of a video in pieces (B, n, H, W, C) along time."""
    frames, rows, columns = box
    start = 0
    while start < frames.end and (piece := list(islice(pieces, 1))):
        first, start = start, start + piece[0].shape[1]
        yield piece.pop()[:, : frames.end - first, rows.as_slice, columns.as_slice]


def crop_map(noise: mx.array, size: tuple[int, int], rows: Interval, columns: Interval) -> mx.array:
    """The part of a noise map (H, W) of the whole picture for some rows and columns of `size`, of latents or pixels."""
    spans = zip((rows, columns), noise.shape, size, strict=True)
    down, across = (slice(*(at * length // whole for at in (span.start, span.end))) for span, length, whole in spans)
    return noise[down, across]


def tile_origin(tile: Tile, first_frame: int) -> Grid:
    """Where a tile begins in a video of which the frames from the first one on are decoded."""
    time, rows, columns = tile.pixels
    return first_frame + time.start, rows.start, columns.start


def make_bands(group: mx.distributed.Group | None, plan: Plan) -> RowBands | None:
    """This process's view of the bands of a plan; None without bands. All ranks must have the same plan."""
    ranks = 1 if group is None else group.size()
    planned = max(1, len(plan.bands))
    if planned != ranks:
        raise PlanError(f"the plan was made for {planned} ranks, and the group has {ranks}; plan with ranks={ranks}.")
    if group is None or ranks == 1:
        return None

    lengths = [band.length for band in plan.bands]
    steps = [list(plan.latent_shape), plan.num_frames, plan.chunk, list(plan.steps), plan.prefetch]
    Ranks(group).check_same(lambda: {"the plans": [steps, lengths]})
    return RowBands(group, lengths)
