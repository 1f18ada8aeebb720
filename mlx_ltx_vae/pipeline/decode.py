"""Carrying a plan out: one prepared decode, run the way the plan says."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import mlx.core as mx
import numpy as np

from ..errors import DecodeError
from ..models.video_vae.decoder import Decoder
from ..planning.plan import DecodePlan, Mode, Order, widest_position
from ..streaming.driver import MAX_STEP_ELEMENTS, run, run_whole
from ..streaming.stage import Stage
from ..streaming.window import Axis, take
from ..tiling import SpatialBlender, Tile, TileLayout, blend_tiles, in_tile_order, tile_batches
from .frame_buffer import FrameSpool
from .postprocess import FrameChunk, Watch, quantise

_AXES = {Order.TIME: Axis.TIME, Order.ROWS: Axis.HEIGHT, Order.COLUMNS: Axis.WIDTH}


@dataclass(frozen=True)
class Job:
    """One decode, ready to run.

    Attributes:
        decoder: the network.
        latents: (B, T, H, W, C), un-normalised, in the network's dtype.
        timesteps: (B,) or None.
        fields: the injected noise, in order: (H, W) for all items of the batch, or (B, H, W).
        watch: looks at what comes out.
    """

    decoder: Decoder
    latents: mx.array
    watch: Watch
    timesteps: mx.array | None = None
    fields: list[mx.array] = field(default_factory=list)

    def stages(self, axis: Axis = Axis.TIME) -> list[Stage]:
        """A new stream of this decode."""
        return self.decoder.stages(axis, timesteps=self.timesteps, fields=self.fields)

    def crop(self, tiles: Sequence[Tile]) -> "Job":
        """The same decode of some boxes of the clip, of one shape: a batch with all items of the first box in front.

        A box sees nothing beyond it, and keeps its part of the noise.
        """
        batch, _, height, width, _ = self.latents.shape

        def part(noise: mx.array, tile: Tile) -> mx.array:
            _, rows, columns = tile.latent_slices
            down, across = noise.shape[0] // height, noise.shape[1] // width
            return noise[rows.start * down : rows.stop * down, columns.start * across : columns.stop * across]

        latents = mx.concatenate([self.latents[(slice(None), *tile.latent_slices)] for tile in tiles])
        fields = [mx.repeat(mx.stack([part(noise, tile) for tile in tiles]), batch, axis=0) for noise in self.fields]
        timesteps = None if self.timesteps is None else mx.tile(self.timesteps, len(tiles))
        return replace(self, latents=latents, fields=fields, timesteps=timesteps)

    def run_tiles(self, tiles: Sequence[Tile], plan: DecodePlan) -> Iterator[list[mx.array]]:
        """Some boxes of one shape, streamed in time together. Every box takes its steps at the same frames.

        Yields:
            A list of pieces, one for each box.
        """
        cropped = self.crop(tiles)
        batch, time, height, width, channels = cropped.latents.shape
        shape = (batch, channels, time, height, width)
        elements = plan.step_positions * widest_position(self.decoder.config, shape, Order.TIME)
        for frames in cropped.run(Axis.TIME, plan.chunk, elements, plan.steps_ahead):
            held = [mx.split(frames, len(tiles))]
            del frames
            yield held.pop()

    def run(self, axis: Axis, chunk: int, step_elements: int, steps_ahead: int) -> Iterator[mx.array]:
        """The decode streamed along `axis`, `chunk` latent positions at a time: pieces (B, T, H, W, 3)."""
        length = self.latents.shape[axis]
        pieces = (take(self.latents, axis, at, min(at + chunk, length)) for at in range(0, length, chunk))
        options = {"axis": axis, "step_elements": step_elements, "steps_ahead": steps_ahead}
        for frames in run(self.stages(axis), pieces, **options):
            self.watch.see(frames)
            # A suspended generator must not hold what it has handed over.
            held = [frames]
            del frames
            yield held.pop()


def execute(job: Job, plan: DecodePlan, layout: TileLayout | None, bit_depth: int | None) -> Iterator[FrameChunk]:
    """Decode as planned: every frame once, in order.

    Args:
        job: what to decode.
        plan: how.
        layout: where the tiles lie, in mode TILED.
        bit_depth: all that the caller will take of a sample (8 or 10), or None for floats. It matters where frames
            have to wait.
    """
    if plan.mode is Mode.SINGLE:
        results = _single(job, plan)
    elif plan.mode is Mode.TILED:
        results = _tiles_in_space(job, plan, layout) if len(layout.time.latent) == 1 else _tiles(job, plan, layout)
    elif plan.order is Order.TIME:
        results = job.run(Axis.TIME, plan.chunk, plan.step_elements, plan.steps_ahead)
    else:
        results = _spooled(job, plan, bit_depth)
    start = 0
    for frames in results:
        chunk = [FrameChunk(start, frames, job.watch.is_finite)]
        start += frames.shape[1]
        del frames
        yield chunk.pop()
    job.watch.close()
    if start != plan.num_frames:
        raise DecodeError(f"{start} frames came out of the network and {plan.num_frames} should have.")


def _single(job: Job, plan: DecodePlan) -> Iterator[mx.array]:
    """The whole clip as one chunk; a layer takes it in parts only where all of it is more than is safe at once."""
    widest = plan.num_frames * widest_position(job.decoder.config, plan.latent_shape, Order.TIME)
    if widest > MAX_STEP_ELEMENTS and job.decoder.streamable:
        yield from job.run(Axis.TIME, plan.chunk, MAX_STEP_ELEMENTS, plan.steps_ahead)
        return
    frames = run_whole(job.stages(), job.latents)
    job.watch.see(frames)
    yield frames


def _tiles(job: Job, plan: DecodePlan, layout: TileLayout) -> Iterator[mx.array]:
    """Tiles cut in time too, blended on all three axes, as the reference does."""

    def decode_tiles(tiles: list[Tile]) -> list[mx.array]:
        pieces = zip(*job.run_tiles(tiles, plan), strict=True)
        return [mx.concatenate(list(frames), axis=1) for frames in pieces]

    with closing(blend_tiles(decode_tiles, layout, layout.decoded(), tile_batch_size=plan.tile_batch_size)) as groups:
        for _, frames in groups:
            result = [frames.astype(job.latents.dtype)]
            del frames
            yield result.pop()


def _tiles_in_space(job: Job, plan: DecodePlan, layout: TileLayout) -> Iterator[mx.array]:
    """Tiles cut in space alone: each its own stream in time, blended as the frames come."""
    _, rows, columns = layout.decoded()
    blender = SpatialBlender(rows, columns)
    (tiles,) = layout.groups()
    batches = tile_batches(tiles, plan.tile_batch_size)
    streams = [job.run_tiles([tiles[index] for index in batch], plan) for batch in batches]
    for results in zip(*streams, strict=True):
        result = [blender.blend(in_tile_order(batches, results)).astype(job.latents.dtype)]
        del results
        yield result.pop()


def _spooled(job: Job, plan: DecodePlan, bit_depth: int | None) -> Iterator[mx.array]:
    """Stream along rows or columns; no frame is whole before the last of them, so all wait on disk."""
    axis = _AXES[plan.order]
    kept, dtype, restore = _kept(job.latents.dtype, bit_depth)
    shape = (job.latents.shape[0], plan.num_frames, plan.height, plan.width, 3)
    with FrameSpool(shape, np.dtype(dtype)) as spool:
        start = 0
        for part in job.run(axis, plan.chunk, plan.step_elements, plan.steps_ahead):
            spool.put(np.asarray(kept(part)), axis, start)
            start += part.shape[axis]
            del part
        for frames in spool.frames():
            yield restore(mx.array(frames))


def _kept(
    dtype: mx.Dtype, bit_depth: int | None
) -> tuple[Callable[[mx.array], mx.array], type, Callable[[mx.array], mx.array]]:
    """How frames wait: what is kept of them, NumPy's type for it, and the way back."""
    if bit_depth is None:
        return lambda x: x.astype(mx.float32), np.float32, lambda x: x.astype(dtype)
    return lambda x: quantise(x, bit_depth), {8: np.uint8, 10: np.uint16}[bit_depth], lambda x: x
