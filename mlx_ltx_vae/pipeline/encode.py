"""Carrying an encode out: a clip streamed through the encoder, whole frames at a time or in tiles.

The encoder is causal, so a stream of it is the single pass, and memory does not grow with the clip.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, tee

import mlx.core as mx

from ..models.video_vae.encoder import Encoder
from ..shapes import ScaleFactors
from ..streaming.driver import run, run_whole
from ..tiling import (
    SpatialBlender,
    Tile,
    TileLayout,
    TilingConfig,
    TilingError,
    blend_tiles,
    in_tile_order,
    tile_batches,
)
from .preprocess import Frames, Intake, check_frame_size, usable_frames

# Frames that a stage takes at once where the activations are widest, and more where they are not. More frames were no
# faster and took up to three times the memory.
_STEP_FRAMES = 2


@dataclass(frozen=True)
class EncodeJob:
    """One encode, ready to run.

    Attributes:
        encoder: the network.
        latent_channels: of its moments, how many are means.
        scale: of the VAE.
        pad: whether the last frame is repeated where the clip does not fill its last latent frame.
        tiling: the tiles, or None.
        tile_batch_size: how many tiles of equal shape are encoded together, at most.
    """

    encoder: Encoder
    latent_channels: int
    scale: ScaleFactors
    pad: bool
    tiling: TilingConfig | None
    tile_batch_size: int

    def run(self, pieces: Iterable[mx.array]) -> Iterator[mx.array]:
        """Pieces (B, n, H, W, 3) of a clip to means (B, T, H, W, C), as they come."""
        stages = self.encoder.stages(self.latent_channels)
        if not self.encoder.streamable:
            yield run_whole(stages, mx.concatenate(list(pieces), axis=1))
            return
        pieces = iter(pieces)
        first = [next(pieces)]
        step_elements = _STEP_FRAMES * self._widest_frame(first[0].shape)
        pieces = chain([first.pop()], pieces)
        yield from run(stages, pieces, step_elements=step_elements)

    def _widest_frame(self, shape: tuple[int, ...]) -> int:
        """Elements of a frame where the activations are widest, for pieces (B, n, H, W, 3) of this shape."""
        batch, _, height, width, channels = shape
        network = self.encoder.config
        # Patches trade pixels for channels.
        cells = height * width * channels // network.in_channels
        widest = cells * network.first_width
        for block in network.blocks:
            cells //= block.stride[1] * block.stride[2]
            widest = max(widest, cells * block.out_channels)
        return batch * widest

    def intake(self, frames: Iterable[Frames]) -> Intake:
        """The pieces of frames (B, n, H, W, 3)."""
        return Intake(frames, self.scale, self.encoder.conv_in.conv.weight.dtype, pad=self.pad)

    def stream(self, frames: Iterable[Frames]) -> Iterator[mx.array]:
        """Frames (B, n, H, W, 3) as they come, to means (B, T, H, W, C), evaluated, in order."""
        pieces = iter(self.intake(frames))
        if self.tiling is None:
            return self.run(pieces)
        if self.tiling.temporal_config is not None:
            raise TilingError(
                "tiles in time take the whole clip as one array; leave out temporal_config, as a stream is exact in "
                "time and no shorter tile saves memory."
            )
        return self._stream_tiles(pieces)

    def encode_tiles(self, clip: Frames) -> Iterator[mx.array]:
        """A whole clip (B, F, H, W, 3) to means (B, T, H, W, C), in tiles: a batch of them is in memory at a time."""
        check_frame_size(clip, self.scale)
        _, frames, height, width, _ = clip.shape
        layout = self._layout(usable_frames(frames, self.scale.time, pad=self.pad), height, width)

        def run_tiles(tiles: list[Tile]) -> list[mx.array]:
            # Beyond the clip's end there is nothing to crop; the intake fills that up.
            time = tiles[0].pixels[0]
            pieces = (clip[:, frame : frame + 1] for frame in range(time.start, min(time.end, frames)))
            means = mx.concatenate(list(self.run(self.intake(_crop_each(pieces, tiles)))), axis=1)
            return mx.split(means, len(tiles))

        with closing(blend_tiles(run_tiles, layout, layout.encoded(), tile_batch_size=self.tile_batch_size)) as results:
            for _, means in results:
                yield means

    def _stream_tiles(self, pieces: Iterator[mx.array]) -> Iterator[mx.array]:
        """Tiles cut in space alone, each its own stream in time, all side by side: so their caches are all there."""
        first = next(pieces)
        layout = self._layout(1, *first.shape[2:4])
        _, rows, columns = layout.encoded()
        blender = SpatialBlender(rows, columns)
        (tiles,) = layout.groups()
        batches = tile_batches(tiles, self.tile_batch_size)
        sources = tee(chain([first], pieces), len(batches))
        del first, pieces
        streams = [
            self.run(_crop_each(source, [tiles[index] for index in batch]))
            for source, batch in zip(sources, batches, strict=True)
        ]
        for results in zip(*streams, strict=True):
            parts = [mx.split(result, len(batch)) for batch, result in zip(batches, results, strict=True)]
            yield blender.blend(in_tile_order(batches, parts))

    def _layout(self, frames: int, height: int, width: int) -> TileLayout:
        scale = self.scale
        grid = 1 + (frames - 1) // scale.time, height // scale.height, width // scale.width
        return TileLayout.make(self.tiling, grid, spatial_scale=scale.height, temporal_scale=scale.time)


def _crop_each(pieces: Iterable[Frames], tiles: Sequence[Tile]) -> Iterator[mx.array]:
    """Of each piece (B, n, H, W, 3) the tiles, stacked as a batch with all items of the first tile in front."""
    places = [tile.pixels[1:] for tile in tiles]
    for piece in pieces:
        yield mx.concatenate([mx.array(piece[:, :, rows.as_slice, columns.as_slice]) for rows, columns in places])
