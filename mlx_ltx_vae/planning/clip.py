"""The input of a plan: a clip and its network, what outputs depend on, and the latents of an excerpt. No MLX."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from numbers import Integral
from typing import NamedTuple

from ..backend.machine import FLOAT32_BYTES, VALUES_AT_ONCE
from ..errors import PlanError, quote
from ..frame_format import FrameFormat, FrameOutput, common_format
from ..networks.specs import LONG_CLIP, NetworkSpec
from ..shapes import Axis, Grid, Interval, LatentShape, format_size
from ..tiling.layout import Tile, TileLayout
from ..units import format_count
from .memory import FRAMES_PER_CONVERSION, Memory, StreamRun, cut, layer_pieces, replace_extent
from .plan import Excerpt


class ReceptiveField(NamedTuple):
    """Latent frames and cells to each side on which an output depends beyond its own.

    `cells` is `None` if it depends on whole frames.
    """

    frames_before: float
    frames_after: float
    cells: float | None


def receptive_field(spec: NetworkSpec) -> ReceptiveField:
    """Return the receptive field of a decoded pixel.

    It is exact: a latent frame affects its own video frames, those up to `frames_after` latent frames earlier and those
    up to `frames_before` latent frames later, and no others. The same applies to latent cells and pixels.
    """
    before, after = _extent(spec, Axis.TIME)
    whole_frames = any(spec.unbounded_layer(axis) for axis in (Axis.HEIGHT, Axis.WIDTH))
    cells = None if whole_frames else max(max(_extent(spec, axis)) for axis in (Axis.HEIGHT, Axis.WIDTH))
    return ReceptiveField(before, after, cells)


def _extent(spec: NetworkSpec, axis: Axis) -> tuple[float, float]:
    """Return the input positions before and after its position that an output depends on."""
    before = after = Fraction(0)
    rate = Fraction(1)  # positions of this layer's input per position of the network's input
    for layer in spec.layers:
        behind, ahead = layer.reach(axis)
        before, after = before + behind / rate, after + ahead / rate
        rate = rate * layer.up[axis.grid] / layer.down[axis.grid]
    return float(before), float(after)


def needed(spec: NetworkSpec, axis: Axis, num_outputs: int = 1) -> int:
    """Return the number of input positions required before the first `num_outputs` outputs are final."""
    for layer in reversed(spec.layers):
        num_outputs = layer.needed(axis, num_outputs)
    return num_outputs


def lookahead(spec: NetworkSpec) -> int:
    """Return the number of latent frames required before the first output frame is final: 1 for a causal decoder."""
    return needed(spec, Axis.TIME)


def first_output_work(spec: NetworkSpec, grid: Grid, outputs: int = 1) -> float:
    """Return the share of a stream's work along time that is done when the first outputs are final, 0 to 1.

    A layer's work is estimated as its multiplications: for each of its results, its weights and its channels. Before
    the first outputs each layer computes only the results that it takes, so far fewer at the end of a decoder, where
    most of the work is, than the lookahead's share of the latent frames.
    """
    first_work = total_work = 0
    for layer, extents in reversed(list(spec.walk(grid))):
        height, width = (layer.window(axis).num_outputs(extents[axis.grid]) for axis in (Axis.HEIGHT, Axis.WIDTH))
        up, dropped = layer.up[Axis.TIME.grid], layer.trim + layer.crop
        num_outputs = math.ceil((layer.num_outputs(Axis.TIME, extents[0]) + dropped) / up)  # before some are dropped
        weights = sum(math.prod(shape) for _, shape in layer.weights)
        work = height * width * (weights + layer.in_channels + layer.out_channels)
        first_work += min(num_outputs, math.ceil((outputs + dropped) / up)) * work
        total_work += num_outputs * work
        outputs = layer.needed(Axis.TIME, outputs)  # of the layer before
    return first_work / total_work


def make_excerpt(spec: NetworkSpec, shape: LatentShape, num_frames: int, frames: tuple[int, int]) -> Excerpt:
    """Return the excerpt of frames `frames[0]` to `frames[1] - 1`; raise `PlanError` if the video lacks them."""
    units, clip_name = f"{spec.clip.unit}s", spec.clip.whole
    if not isinstance(frames, Sequence) or len(frames) != 2 or not all(isinstance(bound, Integral) for bound in frames):
        raise PlanError(f"{units} are the first and one more than the last, such as (24, 48), not {quote(frames)}.")
    first, end = frames
    if not 0 <= first < end <= num_frames:
        raise PlanError(
            f"{units} {first}:{end} are not in the {clip_name}, which has {num_frames}; give the first, and one more "
            f"than the last, within 0:{num_frames}."
        )
    start = _first_latent(spec, first)
    skipped = first - start * spec.scale.time
    count = min(shape.frames - start, needed(spec, Axis.TIME, skipped + end - first))
    if spec.unbounded_layer(Axis.TIME) is not None:
        count = shape.frames
    return Excerpt(Interval(first, end), num_frames, Interval(start, start + count), shape.frames, skipped)


def _first_latent(spec: NetworkSpec, frame: int) -> int:
    """Return the last latent frame at which a decode may begin without a difference in a frame."""
    affected = 0  # leading positions that depend on what comes before the beginning
    rate, step = Fraction(1), 1  # positions per latent frame, and latent frames at which all strides begin anew
    for layer in spec.layers:
        window = layer.window(Axis.TIME)
        if Axis.TIME in layer.unbounded or layer.down[0] != window.stride:
            return 0
        behind = window.behind
        if window.shifts:  # at the end of the clip it moves back
            behind = max(behind, window.kernel - 1)
        step = math.lcm(step, (rate / window.stride).denominator)
        affected = max(0, math.ceil((affected + behind) / window.stride) * layer.up[0] - layer.trim)
        rate = rate * layer.up[0] / layer.down[0]
    return max(0, math.floor((frame - affected) / spec.scale.time) // step * step)


# Copies of a piece of frames while it is joined from parts, with some of the next piece and the magnitudes; and of a
# piece of levels, which are converted to float32.
_PIECE_COPIES, _LEVEL_PIECE_COPIES = 2.5, 2.3
_CONVERSION_COPIES = 3  # in float32, of frames that are converted: in [-1, 1], the input of a step, and its result
_PLAIN_COPIES = 2  # of frames that no step changes
_BLENDED_COPIES = 2  # in float32, of frames that are crossfaded: of the previous window, and of this one
_FILM_MARGIN = 1.05  # for uncounted memory: small arrays, and allocations rounded to pages


@dataclass(frozen=True)
class Clip:
    """Clip and the network that it runs through.

    Attributes:
        grid: (T, H, W) of the input: of the latents, or of the video to encode.
        held: the shape of the latents or pixels that the caller holds in memory. `None` if they are read in parts, and
            for levels, which are not MLX arrays.
        excerpt: the frames to decode, unless all are decoded. The grid and the shapes are then the excerpt's.
        outputs: the formats that a decode's frames are converted to; empty if they stay in the network's dtype.
        level_bytes: bytes per value of frames to encode that are levels; 0 for floats.
        joined: the number of frames, or latent frames, of the one array that all output becomes; 0 if there is none.
            The input of an encode that has one is one array too.
        weight_bytes: bytes of the weights of all networks in memory. `None` counts only this network's.
        held_frames: see `DecodePlan`.
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
    joined: int = 0
    weight_bytes: int | None = None
    level_bytes: int = 0
    held_frames: int | None = None

    @property
    def has_all_latents(self) -> bool:
        """Flag: an excerpt, if there is one, leaves out only frames of the last latent frame."""
        excerpt = self.excerpt
        return excerpt is None or (
            excerpt.latents.length == excerpt.num_latents
            and excerpt.num_frames - excerpt.frames.end < self.spec.scale.time
        )

    def describe(self) -> str:
        frames, height, width = self.video
        if self.spec.clip.unit == "sample":
            return format_count(self.latent_shape.frames, "audio latent")
        return f"{format_count(frames, 'frame')} of {format_size(width, height)}"

    def input_bytes(self, itemsize: int, chunk: int, *, axis: Axis = Axis.TIME, frame_size: int | None = None) -> int:
        """Return the bytes of the caller's latents and a piece of `chunk` positions, or of an encode's queued frames.

        `itemsize` is the size of the network's dtype. `frame_size` is the number of positions of a set of crops, if the
        input is not whole frames.
        """
        chunk *= self.cell
        if not self.is_decode:
            frame = self.batch * self.spec.in_channels * (frame_size or math.prod(self.grid[1:]))
            held = math.prod(self.held) * itemsize if self.held else 0
            # Frames that arrive in parts are joined, then cut into pieces. An array is cut into parts first.
            if held:
                return min(2 * chunk, self.grid[0] - 1) * frame * itemsize + held
            return min(chunk + 1, self.grid[0]) * frame * (self.level_bytes or FLOAT32_BYTES)
        extents = replace_extent(self.grid, axis, min(chunk, self.grid[axis.grid]))
        positions = extents[0] * frame_size if frame_size else math.prod(extents)
        # In float32 as read, denormalized and with noise; then in the network's dtype.
        copies = 3 if self.spec.has_latent_noise else 1 if self.held else 2
        value_bytes = copies * FLOAT32_BYTES + (0 if itemsize == FLOAT32_BYTES else itemsize)
        piece = self.batch * self.spec.in_channels * positions * value_bytes
        latents_bytes = math.prod(self.latent_shape) * FLOAT32_BYTES
        # Noise is drawn by frame, so a piece along another axis needs the noise of all frames.
        has_noise = self.spec.has_latent_noise and axis is not Axis.TIME
        num_held = math.prod(self.held) if self.held else 0
        # Values are checked before they are read, which takes three arrays of flags.
        flags = 3 * min(num_held, VALUES_AT_ONCE)
        return num_held * FLOAT32_BYTES + max(flags, piece + (latents_bytes if has_noise else 0))

    def piece_bytes(self, itemsize: int, chunk: int) -> int:
        """Return the bytes that an encode takes to make a piece of its input: a spectrogram, or joined frames."""
        if frame_bytes := self.spec.clip.frame_bytes:
            return self.batch * min(chunk * self.cell, self.grid[0]) * frame_bytes
        frames = min(chunk + 1, self.grid[0])
        position = self.batch * self.spec.in_channels * math.prod(self.grid[1:])
        copies = _LEVEL_PIECE_COPIES if self.level_bytes else _PIECE_COPIES
        return math.ceil(copies * frames * position * (itemsize if self.held else FLOAT32_BYTES))

    def result_bytes(self, itemsize: int) -> int:
        """Return the bytes of the array that all output becomes, and 0 if there is none.

        It is in the network's dtype, or there is one for each of the `outputs`.
        """
        value_bytes = sum(output.format.dtype.itemsize for output in set(self.outputs)) or itemsize
        return self.joined * self.out_frame * value_bytes

    @property
    def format(self) -> FrameFormat | None:
        """Format of the frames that a decode yields. `None` means floats in the network's dtype."""
        return common_format(self.outputs) if self.held_frames is None else None

    def value_bytes(self, itemsize: int) -> int:
        """Return the bytes per value of the frames that a decode yields; `itemsize` is the network dtype's."""
        return itemsize if self.format is None else self.format.dtype.itemsize

    @property
    def out_frame(self) -> int:
        """Number of elements of one output frame of the whole batch."""
        return self.batch * self.spec.out_channels * math.prod(self.spec.out_grid(self.grid)[1:])

    @property
    def cell(self) -> int:
        """Number of input positions per unit of `chunk`. Chunks of audio count latents, even for an encode."""
        return self.spec.scale.time if self.spec.clip.chunks and not self.is_decode else 1

    def pieces(self, length: int, chunk: int) -> tuple[int, ...]:
        """Return the lengths of the input pieces. The first piece of an encode has one more frame.

        Pieces in the middle of a long clip are left out, since they equal the pieces before them.
        """
        extra = 0 if self.is_decode or length == 1 or self.spec.clip.chunks else 1
        if self.spec.clip.flushes_with_last:
            # Measured: smaller pieces take no less memory, since layers take pieces whole and are flushed at once.
            chunk = max(chunk * self.cell, math.ceil(needed(self.spec, Axis.TIME) / 2))
        remaining, longest = max(0, length - chunk - extra), LONG_CLIP * chunk
        return (
            min(length, chunk + extra),
            *cut(remaining if remaining <= longest else longest + remaining % chunk, chunk),
        )

    def boxes(self, tile: Tile) -> tuple[Grid, Grid]:
        """Return (T, H, W) of a tile's input and of its output."""
        latent, pixels = tile.input_size(self.spec.keyframes), tile.output_size
        return (latent, pixels) if self.is_decode else (pixels, latent)


def _num_yielded(clip: Clip, layout: TileLayout | None, run: StreamRun, chunk: int) -> int:
    """Return the largest number of frames that a decode yields at once."""
    if layout is not None and not layout.is_streamed:
        return max(layout.time.final(is_decode=True))
    if run.axis is not Axis.TIME:
        return min(FRAMES_PER_CONVERSION, clip.video[0])
    if run.steps is None:
        return clip.spec.out_grid(clip.grid)[0]
    *_, lengths = layer_pieces(clip.spec, clip.grid, replace(run, pieces=clip.pieces(clip.grid[0], chunk)))
    return max(lengths)


def with_consumer(memory: Memory, clip: Clip, layout: TileLayout | None, run: StreamRun, chunk: int) -> Memory:
    """Add the memory that the yielded frames of a decode take between two steps of the network.

    A film crossfades them, and a consumer of floats converts them to all its outputs.
    """
    is_film, is_converted = clip.held_frames is not None, bool(clip.outputs) and clip.format is None
    if not is_film and not is_converted:
        return memory
    num_frames, itemsize = _num_yielded(clip, layout, run, chunk), run.machine.itemsize
    num_at_once = min(num_frames, FRAMES_PER_CONVERSION)
    chunk_bytes = num_frames * clip.out_frame * itemsize
    # Sinks hold frames while the next ones are computed, and the previous frames during a conversion.
    output_bytes = num_frames * clip.out_frame * sum(output.format.dtype.itemsize for output in set(clip.outputs))
    working = memory.work + output_bytes
    between_steps = memory.work * run.prefetch // (1 + run.prefetch) + chunk_bytes
    peaks = []
    if is_film:
        if layout is None and (run.steps is None or run.axis is not Axis.TIME):  # the caches are free
            working += chunk_bytes  # of the previous window, which the consumer holds
            between_steps -= memory.caches
        blended = min(num_at_once, clip.held_frames or 0) * clip.out_frame
        sum_bytes = 0 if itemsize == FLOAT32_BYTES else itemsize
        crossfade = between_steps + chunk_bytes + blended * (_BLENDED_COPIES * FLOAT32_BYTES + sum_bytes)
        peaks.append(math.ceil(_FILM_MARGIN * crossfade) + output_bytes)
        between_steps += blended * itemsize
    if is_converted:
        position, channels = clip.out_frame // clip.spec.out_channels, clip.spec.out_channels
        step_bytes = [step.pixel_bytes for output in clip.outputs for step in output.steps]
        copies = _CONVERSION_COPIES if step_bytes else _PLAIN_COPIES
        conversion = num_at_once * position * (max(step_bytes, default=0) + copies * channels * FLOAT32_BYTES)
        peaks.append(between_steps + conversion + 2 * output_bytes)
    return replace(memory, work=max(working, *peaks))
