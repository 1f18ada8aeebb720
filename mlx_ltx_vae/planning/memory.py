"""What a decode holds at its peak, derived from the network and the way it is run. Pure arithmetic, no MLX.

At any moment there are: the weights; the latents; what every convolution remembers; what a stage has handed on and
the next has not taken yet; and the work of the one stage that runs. The peak is the largest such sum over the stages.
"""

import enum
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from ..models.specs import PaddingMode
from ..models.video_vae.config import BlockConfig, BlockKind, NetworkConfig

_TAPS = 3  # a kernel's extent along each axis
_REMEMBERED = _TAPS - 1
_FLOAT32 = 4
_MARGIN = 1.06  # what is not counted here: small arrays, rounding of allocations to pages
_TILES_MARGIN = 1.03
_EMBEDDING = 256  # inputs of a time embedding's first matrix

# Winograd F(6, 3): tiles of 6 x 6 results become 8 x 8 products.
_WINOGRAD_TILE = 6
_WINOGRAD_PRODUCTS = 64
_WINOGRAD_MIN_POSITIONS = 4096
_WINOGRAD_MIN_CHANNELS = 256


class Backend(enum.Enum):
    """Whose convolutions run; they differ in the scratch they take."""

    CPU = "cpu"
    GPU = "gpu"


@dataclass(frozen=True)
class Run:
    """A way of running a network.

    Attributes:
        axis: of the stream: 0 time, 1 rows, 2 columns.
        chunk: latent positions that enter at a time.
        step_elements: the most a stage takes at once.
        whole: whether everything is one chunk, so that nothing needs remembering.
        steps_ahead: steps that are under way beyond the one that is waited for.
        itemsize: bytes of a number.
        backend: whose convolutions run.
    """

    axis: int
    chunk: int
    step_elements: int
    whole: bool
    steps_ahead: int
    itemsize: int
    backend: Backend


@dataclass(frozen=True)
class Footprint:
    """Bytes at the peak of a decode.

    Attributes:
        weights: the decoder's.
        latents: what enters the network, and the caller's own in float32.
        caches: what the convolutions remember between two steps.
        work: the largest stage at work, with what waits in front of it; as often as steps are under way.
    """

    weights: int
    latents: int
    caches: int
    work: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.latents + self.caches + self.work


@dataclass(frozen=True)
class _Conv:
    """One stage: a convolution and what stands around it.

    `skip` is the width of a residual block's input that waits for the second of its convolutions. `fresh` says that
    what is remembered is remembered activated, so that only what is new goes through norm and SiLU.
    """

    in_channels: int
    out_channels: int
    extents: tuple[int, int, int]
    normed: bool = True
    fresh: bool = False
    skip: int = 0
    stride: tuple[int, int, int] = (1, 1, 1)
    repeats: bool = False


def footprint(network: NetworkConfig, latent_shape: tuple[int, ...], run: Run) -> Footprint:
    """What decoding latents (B, C, F', H', W') holds at its peak.

    Args:
        network: the decoder.
        latent_shape: (B, C, F', H', W').
        run: how it is run.
    """
    batch, channels, *extents = latent_shape
    length = extents[run.axis]
    pieces = _cut(length, run.chunk)
    causal = network.causal and run.axis == 0
    waiting = 0
    delay, rate = Fraction(0), 1
    delays, caches, works = [], [], []
    for conv in _walk(network, tuple(extents)):
        position = batch * conv.in_channels * math.prod(conv.extents) // conv.extents[run.axis]
        if run.whole:
            pieces = [conv.extents[run.axis]]
        most = max(pieces) if run.whole else max(1, run.step_elements // position)
        if max(pieces) > most:
            waiting += max(pieces) * position * run.itemsize
        taken = min(most, max(pieces))
        delays.append(delay)
        caches.append(min(_REMEMBERED, conv.extents[run.axis]) * position * run.itemsize)
        works.append(waiting + batch * _stage_bytes(conv, taken, network.padding, run))
        pieces = _pass(pieces, most, causal, conv.stride[run.axis], drop=run.axis == 0)
        delay += 0 if causal else Fraction(1, rate)
        rate *= conv.stride[run.axis]
    frames = batch * _frame_bytes(conv, taken, run)
    works[-1] = max(works[-1], waiting + frames)
    remembered, work = _worst(delays, [] if run.whole else caches, works, length)
    return Footprint(
        weights=count_weights(network) * run.itemsize,
        latents=batch * channels * math.prod(extents) * (run.itemsize + _FLOAT32),
        caches=math.ceil(_MARGIN * remembered),
        work=math.ceil(_MARGIN * work * (1 + run.steps_ahead)) + (0 if run.whole else frames // 2),
    )


@dataclass(frozen=True)
class TileFrames:
    """Numbers in the frames that a decode with tiles cut in time holds, of all items of a batch.

    Attributes:
        tile: in the largest tile.
        together: how many tiles are decoded at a time, at most.
        group: in the frames of the longest interval of time.
        shared: in the frames that two intervals share.
        final: in the most frames that leave at a time.
        single: whether one tile is a whole interval of time.
    """

    tile: int
    together: int
    group: int
    shared: int
    final: int
    single: bool


def cut_in_time(largest: Footprint, latents: int, frames: TileFrames, itemsize: int) -> Footprint:
    """What decoding in tiles holds at its peak, where time is cut too.

    Args:
        largest: of the largest tile by itself.
        latents: bytes of the latents.
        frames: what is held besides.
        itemsize: bytes of a number in the network's dtype.
    """
    tiles, group, shared = frames.together * frames.tile * itemsize, frames.group * _FLOAT32, frames.shared * _FLOAT32
    gathered = 0 if frames.single else group
    decoding = largest.caches + largest.work + tiles + gathered
    # Tiles' pieces and the tiles; where there are several, also one weighted, and added to what is there.
    joining = 2 * tiles + (0 if frames.single else gathered + 2 * frames.tile * _FLOAT32)
    fading = group + shared
    # What leaves is a part of its interval's frames, and is turned into levels.
    leaving = group + frames.final * (_FLOAT32 + 1 + (itemsize + _FLOAT32 if itemsize != _FLOAT32 else 0))
    work = shared + max(decoding, joining, fading, leaving)
    return Footprint(largest.weights, latents, 0, math.ceil(_TILES_MARGIN * work))


def side_by_side(tiles: Sequence[Footprint], latents: int, frame: int) -> Footprint:
    """What decoding in spatial tiles holds at its peak, where each is a stream of its own and all go together.

    Args:
        tiles: of each tile by itself.
        latents: bytes of the latents.
        frame: numbers in the frames that are blended at a time, of all items of a batch.
    """
    work = max(tile.work for tile in tiles) + 4 * frame * _FLOAT32
    return Footprint(tiles[0].weights, latents, sum(tile.caches for tile in tiles), work)


def _cut(length: int, most: int) -> list[int]:
    """The lengths of what `length` positions are cut into."""
    return [min(most, length - start) for start in range(0, length, most)]


def _pass(pieces: list[int], most: int, causal: bool, stride: int, *, drop: bool) -> list[int]:
    """The lengths of what a stage hands on, when pieces of these lengths reach it and it takes at most `most`.

    It waits for the positions its kernel needs, flushes the rest at the end, and hands `stride` times as many on, but
    for the first frame of a doubled time (`drop`).
    """
    before, after = (_REMEMBERED, 0) if causal else (1, 1)
    memory = 0
    results = []
    for part in [part for piece in pieces for part in _cut(piece, most)] + [0]:
        flush = after if part == 0 else 0
        count = before + memory + part + flush - _REMEMBERED
        if count <= 0:
            memory += part
            continue
        results.append(count * stride)
        memory += part - max(0, count - before)
        before = max(0, before - count)
    if drop and stride > 1:
        results[0] -= 1
    return results


def _worst(delays: list[Fraction], caches: list[int], works: list[int], length: int) -> tuple[int, int]:
    """Caches and work at the moment when their sum is largest.

    A clip shorter than the network's delay is never everywhere at once: while a stage is at work, only those remember
    anything that are less than the clip's length before or behind it.
    """
    moments = []
    for delay, work in zip(delays, works, strict=True):
        alive = sum(cache for other, cache in zip(delays, caches, strict=False) if abs(other - delay) < length)
        moments.append((alive, work))
    return max(moments, key=sum)


def _walk(network: NetworkConfig, extents: tuple[int, int, int]) -> Iterator[_Conv]:
    """The convolutions in order, with the extents (time, height, width) of what enters each."""
    yield _Conv(network.in_channels, network.first_width, extents, normed=False)
    for block in network.blocks:
        if block.kind is BlockKind.SHUFFLE:
            wide = block.out_channels * math.prod(block.stride)
            stride = block.stride
            yield _Conv(block.in_channels, wide, extents, normed=False, stride=stride, repeats=block.residual)
            extents = tuple(
                1 + step * (extent - 1) if axis == 0 else step * extent
                for axis, (extent, step) in enumerate(zip(extents, stride, strict=True))
            )
        elif block.kind in (BlockKind.RES_STACK, BlockKind.RES_CHANGE):
            for _ in range(block.num_layers):
                yield _Conv(block.in_channels, block.out_channels, extents)
                yield _Conv(block.out_channels, block.out_channels, extents, fresh=True, skip=block.in_channels)
    yield _Conv(network.last_width, network.out_channels, extents, fresh=True)


def _stage_bytes(conv: _Conv, taken: int, padding: PaddingMode, run: Run) -> int:
    """A stage at work on `taken` positions of one item of a batch.

    MLX allocates ahead of what it computes, so everything in a stage's graph counts, not only what is needed at once.
    """
    extents = [taken if axis == run.axis else extent for axis, extent in enumerate(conv.extents)]
    position = math.prod(extents) // taken
    context = 0 if run.whole else _REMEMBERED
    seen = position * (taken + context)
    # What was remembered joined to what came, and the next memory; norm, and SiLU with what it is computed from.
    activated = conv.normed * (position * taken if conv.fresh else seen)
    elements = (seen + position * context + 3 * activated) * conv.in_channels
    elements += seen * conv.skip
    padded = math.prod(extent + _REMEMBERED for extent in extents) * conv.in_channels
    if run.axis != 0 or run.whole:
        elements += padded  # in time by a copy, as the convolution must not do it
    if padding is not PaddingMode.ZEROS:
        elements += 2 * padded  # in height and in width by a copy each
    results = math.prod(extents) * conv.out_channels
    if conv.stride != (1, 1, 1):
        elements += results
    if conv.repeats:
        elements += results + math.prod(extents) * conv.in_channels
    return elements * run.itemsize + _conv_bytes(conv, padded, extents, run)


def _conv_bytes(conv: _Conv, padded: int, extents: list[int], run: Run) -> int:
    """A convolution's own scratch and its result."""
    results = math.prod(extents) * conv.out_channels
    if run.backend is Backend.CPU:
        # The CPU unfolds the input for one matrix product, in float32 whatever it is given.
        unfolded = math.prod(extents) * _TAPS**3 * conv.in_channels
        scratch = (padded + unfolded + results) * _FLOAT32
        if run.itemsize != _FLOAT32:
            # The result in its own precision, the kernel in float32, and a norm's squares and results in float32.
            scratch += results * run.itemsize
            scratch += (_TAPS**3 * conv.in_channels * conv.out_channels + 2 * conv.normed * padded) * _FLOAT32
        return scratch
    # Metal adds up a 2D convolution per tap of time; their buffers come back when all three are done.
    winograd = winograd_elements(conv.in_channels, conv.out_channels, extents)
    return (padded + _TAPS * (results + winograd)) * run.itemsize


def winograd_elements(in_channels: int, out_channels: int, extents: list[int]) -> int:
    """Scratch of Metal's Winograd route for one 3x3 convolution over `extents` (frames, rows, columns), in elements.

    None where Metal does not take that route. Not measured on a Mac: this is what MLX 0.32's dispatch allocates,
    unless MLX_CONV_WINOGRAD_WORKING_SET or MLX_CONV_WINOGRAD bound it.
    """
    frames, height, width = extents
    aligned = in_channels % 32 == 0 and out_channels % 32 == 0
    enough = math.prod(extents) >= _WINOGRAD_MIN_POSITIONS and in_channels + out_channels >= _WINOGRAD_MIN_CHANNELS
    if not (aligned and enough):
        return 0
    tiles_high, tiles_wide = -(-height // _WINOGRAD_TILE), -(-width // _WINOGRAD_TILE)
    padded = (_WINOGRAD_TILE * tiles_high + 2) * (_WINOGRAD_TILE * tiles_wide + 2) * in_channels
    transformed = _WINOGRAD_PRODUCTS * tiles_high * tiles_wide * (in_channels + out_channels)
    return frames * (padded + transformed) + _WINOGRAD_PRODUCTS * in_channels * out_channels


def _frame_bytes(conv: _Conv, taken: int, run: Run) -> int:
    """Unpatchified frames on their way out: the pixels, looked at, and turned into levels in float32.

    About half of that is still held by who took them while the next are computed.
    """
    position = math.prod(conv.extents) // conv.extents[run.axis] * conv.out_channels
    if not run.whole:
        taken = min(taken, max(1, run.step_elements // position))
    return position * taken * (run.itemsize + max(run.itemsize, 2 * _FLOAT32 + 1))


def count_weights(network: NetworkConfig) -> int:
    """Numbers in a decoder's weights."""
    total = sum(
        _TAPS**3 * conv.in_channels * conv.out_channels + conv.out_channels for conv in _walk(network, (1, 1, 1))
    )
    if network.timestep_conditioning:
        total += 1 + 2 * network.last_width + _count_embedder(2 * network.last_width)
    return total + sum(_block_extras(block, network.timestep_conditioning) for block in network.blocks)


def _count_embedder(channels: int) -> int:
    return (_EMBEDDING + 1) * channels + (channels + 1) * channels


def _block_extras(block: BlockConfig, timestep: bool) -> int:
    """What a block has besides its convolutions."""
    channels = block.in_channels
    if block.kind is BlockKind.ATTENTION:
        return 4 * channels * channels + 5 * channels
    if block.kind is BlockKind.RES_CHANGE:
        return channels * block.out_channels + block.out_channels + 2 * channels
    if block.kind is not BlockKind.RES_STACK:
        return 0
    extras = 2 * channels * block.num_layers if block.inject_noise else 0
    if timestep:
        extras += 4 * channels * block.num_layers + _count_embedder(4 * channels)
    return extras
