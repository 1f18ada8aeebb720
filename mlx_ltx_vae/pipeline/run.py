"""Executes a plan, for decoding and encoding: a single pass, a stream, or tiles. A `Source` provides the input."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, tee
from operator import itemgetter
from typing import TypeVar

import mlx.core as mx
import numpy as np

from ..backend.device import run_settings, step_settings
from ..backend.mlx_utils import split
from ..distributed.ranks import Ranks, RowBands
from ..errors import LatentsError, PlanError
from ..models.base import Network
from ..planning.plan import DecodePlan, Mode, Plan
from ..shapes import Grid, LatentShape
from ..streaming.axis import Axis
from ..streaming.context import StreamContext
from ..streaming.driver import run, run_whole
from ..tiling.blend import SpatialBlender, blend_tiles
from ..tiling.intervals import Interval
from ..tiling.layout import Tile, TileBox, TileLayout, tile_batches

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
    return mx.concatenate([mx.array(frames[:, :, rows.as_slice, columns.as_slice]) for _, rows, columns in boxes])


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

    def results(self) -> Generator[mx.array, None, None]:
        """Yield the network's output, (B, T, H, W, C) each, in order along the axis of the plan's order.

        The dtype is float32 if tiles are blended, otherwise that of the network.
        """
        with run_settings():
            if self.plan.mode is Mode.SINGLE:
                results = self._single()
            elif self.plan.layout is None:
                results = self._stream(self.source.pieces(self._axis, self.plan.chunk), self.context)
            elif len(self.plan.layout.time.latent) == 1:
                results = self._tiles_in_space(self.plan.layout)
            else:
                results = self._tiles(self.plan.layout)
            yield from results

    @contextmanager
    def _around_step(self) -> Iterator[None]:
        self.check()
        with step_settings(self.plan.memory.buffer_cache):
            yield

    @property
    def _axis(self) -> Axis:
        return self.plan.order.axis

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

    def _stream(self, pieces: Iterator[mx.array], context: StreamContext) -> Iterator[mx.array]:
        stages = self.network.stages(replace(context, axis=self._axis))
        plan = self.plan
        return run(
            stages, pieces, axis=self._axis, steps=plan.steps, prefetch=plan.prefetch, around_step=self._around_step
        )

    def _tile_streams(self, batches: Sequence[Sequence[Tile]]) -> list[Iterator[list[mx.array]]]:
        """For each batch of tiles of equal shape, a stream in time that yields lists with one piece per tile.

        All streams yield pieces of the same frames.
        """
        sources = self.source.tile_pieces([self._boxes(tiles) for tiles in batches], self.plan.chunk)
        return [
            map(partial(split, parts=len(tiles)), self._stream(pieces, self._crop_context(tiles)))
            for pieces, tiles in zip(sources, batches, strict=True)
        ]

    def _tiles_in_space(self, layout: TileLayout) -> Iterator[mx.array]:
        """All streams interleaved, blended as their frames become final."""
        _, rows, columns = layout.blended(is_decode=self._is_decode)
        blender = SpatialBlender(rows, columns)
        (tiles,) = layout.groups()
        batches = tile_batches(tiles, self.plan.tile_batch_size)
        streams = self._tile_streams([[tiles[index] for index in batch] for batch in batches])

        def blend(results: Sequence[list[mx.array]]) -> mx.array:
            numbered = sorted(zip(chain(*batches), chain(*results), strict=True), key=itemgetter(0))
            for pieces in results:
                pieces.clear()  # `zip` keeps its last tuple, and these lists, while the next tiles are computed
            return blender.blend(iter(numbered))

        return map(blend, zip(*streams, strict=True))

    def _tiles(self, layout: TileLayout) -> Iterator[mx.array]:

        def run_tiles(tiles: list[Tile]) -> list[mx.array]:
            (stream,) = self._tile_streams([tiles])
            return [mx.concatenate(list(pieces), axis=1) for pieces in zip(*stream, strict=True)]

        axes = layout.blended(is_decode=self._is_decode)
        with closing(blend_tiles(run_tiles, layout, axes, tile_batch_size=self.plan.tile_batch_size)) as results:
            yield from map(itemgetter(1), results)

    def _crop_context(self, tiles: Sequence[Tile]) -> StreamContext:
        """The context of a batch of tiles, each with its part of the picture's noise."""
        shape, batch = self.plan.latent_shape, self.source.batch
        maps: Mapping[str, mx.array] = {
            name: mx.repeat(mx.stack([crop_map(noise, shape, *tile.latent[1:]) for tile in tiles]), batch, axis=0)
            for name, noise in self.context.noise_maps.items()
        }
        timesteps, first = self.context.timesteps, self.context.origins[0][0]
        return replace(
            self.context,
            origins=tuple(
                (first + time.start, rows.start, columns.start) for time, rows, columns in self._boxes(tiles)
            ),
            noise_maps=maps,
            timesteps=None if timesteps is None else mx.tile(timesteps, len(tiles)),
        )


def crop_map(noise: mx.array, shape: LatentShape, rows: Interval, columns: Interval) -> mx.array:
    """The part of a noise map (H, W) of the whole picture that belongs to some rows and columns of its latents."""
    down, across = noise.shape[0] // shape.height, noise.shape[1] // shape.width
    return noise[rows.start * down : rows.end * down, columns.start * across : columns.end * across]


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
