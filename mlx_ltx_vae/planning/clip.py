"""A clip and its network, the subject of a plan. No MLX."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..backend.machine import FLOAT32_BYTES
from ..models.specs import LONG_CLIP, NetworkSpec
from ..shapes import Grid, LatentShape, ScaleFactors, format_size
from ..streaming.axis import Axis
from ..tiling.layout import Tile, TileLayout
from ..units import format_count
from ..video.frame_format import FrameFormat, FrameOutput, common_format
from .memory import Memory, StreamRun, cut, layer_pieces
from .receptive_field import Excerpt, needed

_DECODE_CHUNK = 1  # latent positions; 1 takes the least memory between layers
_ENCODE_CHUNK = 8  # frames, rounded to a multiple of the time scale
#: Frames that are converted to levels at once.
FRAMES_PER_CONVERSION = 8
_CONVERSION_COPIES = 3  # in float32, of frames that are converted: in [-1, 1], what a step is given, and returns


@dataclass(frozen=True)
class Clip:
    """A clip and the network that it runs through.

    Attributes:
        grid: (T, H, W) of the input: of the latents, or of the video to encode.
        held: the shape of the latents or the pixels that the caller holds in memory; None for those that are read in
            parts, and for levels, which are no arrays of MLX.
        excerpt: the frames to decode, if they are not all; the grid and the shapes are then theirs.
        outputs: what becomes of a decode's frames; empty if they stay floats in the network's dtype.
        is_joined: whether all output becomes one array, and of an encode the input is one.
        weight_bytes: those of all networks that are in memory; None for those of this one alone.
    """

    spec: NetworkSpec
    batch: int
    grid: Grid
    latent_shape: LatentShape
    video: Grid
    is_decode: bool
    held: Sequence[int] | None = None
    outputs: tuple[FrameOutput, ...] = ()
    excerpt: Excerpt | None = None
    is_joined: bool = False
    weight_bytes: int | None = None

    @property
    def scale(self) -> ScaleFactors:
        return self.spec.scale

    def describe(self) -> str:
        frames, height, width = self.video
        if self.spec.sound is not None:
            return format_count(self.latent_shape.frames, "audio latent")
        return f"{format_count(frames, 'frame')} of {format_size(width, height)}"

    def input_bytes(self, itemsize: int, chunk: int, *, axis: Axis = Axis.TIME, frame_size: int | None = None) -> int:
        """Bytes of the caller's latents and a piece of `chunk` positions, or of the queued frames of an encode.

        `itemsize` is that of the network's dtype, and `frame_size` the positions of a set of crops in place of frames.
        """
        chunk *= self.cell
        if not self.is_decode:
            frame = self.batch * self.spec.in_channels * (frame_size or math.prod(self.grid[1:]))
            held = math.prod(self.held) * itemsize if self.held else 0
            # Frames that are given in parts are joined, and cut into pieces.
            return min(2 * chunk + 1, self.grid[0]) * frame * FLOAT32_BYTES + held
        extents = list(self.grid)
        extents[axis.grid] = min(chunk, extents[axis.grid])
        positions = extents[0] * frame_size if frame_size else math.prod(extents)
        # In float32 as read, denormalized and with noise; then in the network's dtype.
        piece = self.batch * self.spec.in_channels * positions * (3 * FLOAT32_BYTES + itemsize)
        whole = math.prod(self.latent_shape) * FLOAT32_BYTES
        has_noise = self.spec.has_latent_noise and axis is not Axis.TIME  # drawn by frame, for all frames of the piece
        held = math.prod(self.held) * FLOAT32_BYTES if self.held else 0
        return piece + held + (whole if has_noise else 0)

    def result_bytes(self, itemsize: int) -> int:
        """Bytes of the whole output, if it becomes one array in the network's dtype."""
        if not self.is_joined:
            return 0
        frames = self.video[0] if self.is_decode else self.latent_shape.frames
        return frames * self.out_frame * itemsize

    @property
    def format(self) -> FrameFormat | None:
        """That of the frames that a decode yields; None for floats in the network's dtype."""
        return common_format(self.outputs)

    def value_bytes(self, itemsize: int) -> int:
        """Bytes of each value of the frames that a decode yields, in a dtype of the network with so many."""
        return itemsize if self.format is None else self.format.dtype.itemsize

    @property
    def out_frame(self) -> int:
        """Elements of one output frame of the whole batch."""
        return self.batch * self.spec.out_channels * math.prod(self.spec.out_grid(self.grid)[1:])

    @property
    def cell(self) -> int:
        """Input positions of what chunks count: latents of any sound, and those or frames of pictures."""
        return 1 if self.is_decode or self.spec.sound is None else self.scale.time

    def default_chunk(self) -> int:
        if self.spec.sound is not None:
            return 1
        return _DECODE_CHUNK if self.is_decode else self.scale.time * max(1, _ENCODE_CHUNK // self.scale.time)

    def pieces(self, length: int, chunk: int) -> tuple[int, ...]:
        """The lengths of the input pieces; the first piece of an encode has one more frame.

        Those in the middle of a long clip are left out: they are like those before them.
        """
        extra = 0 if self.is_decode or length == 1 or self.spec.sound else 1
        if self.spec.sound is not None:
            # Measured: smaller pieces take no less, since layers are flushed at once, and keep pieces whole.
            chunk = max(chunk * self.cell, math.ceil(needed(self.spec, Axis.TIME) / 2))
        rest, longest = max(0, length - chunk - extra), LONG_CLIP * chunk
        return (min(length, chunk + extra), *cut(rest if rest <= longest else longest + rest % chunk, chunk))

    def boxes(self, tile: Tile) -> tuple[Grid, Grid]:
        """(T, H, W) of a tile's input and of its output."""
        latent, pixels = tile.input_size(self.spec.keyframes), tile.output_size
        return (latent, pixels) if self.is_decode else (pixels, latent)


def with_conversions(memory: Memory, clip: Clip, layout: TileLayout | None, run: StreamRun, chunk: int) -> Memory:
    """With what a consumer of floats takes that converts them to all outputs, between two steps of the network."""
    if not clip.outputs or clip.format is not None:
        return memory
    if layout is not None and not layout.is_streamed:
        num_frames = max(layout.time.blended(is_decode=True).final())
    elif run.axis is not Axis.TIME:
        num_frames = min(FRAMES_PER_CONVERSION, clip.video[0])
    elif run.steps is None:
        num_frames, _, _ = clip.spec.out_grid(clip.grid)
    else:
        *_, lengths = layer_pieces(clip.spec, clip.grid, replace(run, pieces=clip.pieces(clip.grid[0], chunk)))
        num_frames = max(lengths)
    position, channels = clip.out_frame // clip.spec.out_channels, clip.spec.out_channels
    some = min(num_frames, FRAMES_PER_CONVERSION)
    pixel = max((step.pixel_bytes for output in clip.outputs for step in output.steps), default=0)
    converting = some * position * (pixel + _CONVERSION_COPIES * channels * FLOAT32_BYTES)
    chunk_bytes = num_frames * clip.out_frame * run.machine.itemsize
    # Sinks hold frames while the next ones are computed, and those before while these are made.
    made = num_frames * clip.out_frame * sum(output.format.dtype.itemsize for output in set(clip.outputs))
    in_flight = memory.work * run.prefetch // (1 + run.prefetch)
    return replace(memory, work=max(memory.work + made, in_flight + chunk_bytes + converting + 2 * made))
