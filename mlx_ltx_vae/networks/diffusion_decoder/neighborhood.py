"""Neighborhood attention by blocks: the keys that a block of queries sees, and their cost. Pure arithmetic, no MLX.

Every query sees a window of K positions along each axis, which shifts inwards at the borders. A block of neighboring
queries is computed against the joint window of all of them, and a mask hides the keys outside of each query's window.
At a border, the queries whose windows are equal form one block and need no mask.

With keyframe planes, which follow the frames of the video, windows are cut at the borders. A frame sees its window and
the same rows and columns of its two nearest planes; a plane sees itself and its two nearest frames.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import groupby, product
from typing import Any, NamedTuple

from ...backend.machine import FLOAT32_BYTES, Backend, Machine
from ...shapes import Grid

#: Queries of a block along each axis. Small blocks mask fewer scores, and large ones have larger products. The number
#: for CPUs is measured.
BLOCKS = {Backend.CPU: 4, Backend.METAL: 4, Backend.CUDA: 4}
# Scores of one call of the attention, for all heads together, and elements of its copies of keys and values. A fused
# attention keeps no scores; its calls are large, since the host builds a graph for each.
_SCORES = {Backend.CPU: 2**20, Backend.METAL: 2**28, Backend.CUDA: 2**28}
_SHARED = {Backend.CPU: 2**22, Backend.METAL: 2**25, Backend.CUDA: 2**26}
_NEAREST = 2  # keyframe planes that a frame sees, and frames that a plane sees
# Elements of the hidden arrays of one call of an MLP.
_HIDDEN = {Backend.CPU: 2**20, Backend.METAL: 2**25, Backend.CUDA: 2**26}

#: Calls in flight at once, so that a GPU is not idle between calls.
CALLS_UNDER_WAY = {Backend.CPU: 1, Backend.METAL: 2, Backend.CUDA: 2}


class Segment(NamedTuple):
    """Blocks of equal shape, one after another along an axis."""

    start: int  # the first query
    blocks: int
    size: int  # queries of each block
    key_start: int  # the first key of the first block; the keys of the next block begin `size` later
    window: int  # keys of each block
    offsets: tuple[int, ...]  # the start of each query's window in the keys of its block; negative if it is cut
    # Along time, with keyframe planes: the keys of each block, which may be any frames, and the keys each query sees.
    frames: tuple[tuple[int, ...], ...] = ()
    visible: tuple[tuple[bool, ...], ...] = ()

    @property
    def end(self) -> int:
        return self.start + self.blocks * self.size

    @property
    def keys(self) -> int:
        """Number of keys of all blocks."""
        return self.window + (self.blocks - 1) * self.size

    def cut(self, max_blocks: int) -> "list[Segment]":
        """Cut it into parts of at most `max_blocks` blocks, and of at least one."""
        max_blocks = max(1, max_blocks)
        count = -(-self.blocks // -(-self.blocks // max_blocks))
        return [self._part(block, min(count, self.blocks - block)) for block in range(0, self.blocks, count)]

    def _part(self, block: int, count: int) -> "Segment":
        offset, frames = block * self.size, self.frames[block : block + count]
        key_start = self.key_start + (0 if frames else offset)
        return self._replace(start=self.start + offset, key_start=key_start, blocks=count, frames=frames)


#: The times of keyframe planes among the frames of a layer.
Times = tuple[float, ...]
#: A grid of blocks of equal shape: their segments along time, height and width.
Block = tuple[Segment, Segment, Segment]
#: The start of the window of each query, along each axis.
WindowStarts = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
#: Parts of the segments along each axis.
Cuts = tuple[list[Segment], list[Segment], list[Segment]]


def segments(starts: Sequence[int], kernel: int, size: int, keys: float = math.inf) -> tuple[Segment, ...]:
    """Cut the queries of an axis, whose windows of `kernel` keys begin at `starts`, into blocks of at most `size`.

    Queries with the same window, at a border, are one block of any size. Windows are cut to the number of `keys`.
    """
    result: list[Segment] = []
    index = 0
    while index < len(starts):
        end = index + 1
        if end < len(starts) and starts[end] == starts[index]:  # a border: all windows are the same
            while end < len(starts) and starts[end] == starts[index]:
                end += 1
            result.append(Segment(index, 1, end - index, starts[index], kernel, (0,) * (end - index)))
        else:
            while end < len(starts) and starts[end] == starts[end - 1] + 1 and not _is_border(starts, end):
                end += 1
            result += _moving(index, end - index, starts[index], kernel, size, keys)
        index = end
    return tuple(result)


def _is_border(starts: Sequence[int], index: int) -> bool:
    return index + 1 < len(starts) and starts[index + 1] == starts[index]


def _moving(
    start: int, length: int, key_start: int, kernel: int, max_size: int, keys: float = math.inf
) -> tuple[Segment, ...]:
    """Return even blocks, the larger ones first, for windows that move with their queries and are cut to `keys`."""
    parts = []
    for queries in _even(length, max_size):
        end, cut = min(key_start + kernel + queries - 1, keys), max(0, -key_start)
        offsets = tuple(range(-cut, queries - cut))
        parts.append(Segment(start, 1, queries, key_start + cut, int(end) - key_start - cut, offsets))
        start, key_start = start + queries, key_start + queries
    return _joined(parts)


def _even(length: int, max_size: int) -> list[int]:
    """Split `length` into parts of at most `max_size`, as even as possible, the larger ones first."""
    count = -(-length // max_size)
    size, larger = divmod(length, count)
    return [size + 1] * larger + [size] * (count - larger)


def _joined(parts: Iterable[Segment]) -> tuple[Segment, ...]:
    """Join equal segments of one block each to segments of several blocks."""
    joined = []
    for _, equal in groupby(parts, key=lambda part: (part.size, part.window, part.offsets, part.visible)):
        head, *tail = equal
        frames = sum((segment.frames for segment in tail), head.frames)
        joined.append(head._replace(blocks=1 + len(tail), frames=frames))
    return tuple(joined)


@lru_cache(maxsize=256)
def joint_segments(cells: int, kernel: int, times: Times, size: int) -> tuple[Segment, ...]:
    """Return the blocks along time of `cells` frames and of the keyframe planes after them, which have these `times`.

    Of two planes or frames at the same distance, the one with the lower index is nearer.
    """
    near_planes = [_nearest(cell, times) for cell in range(cells)]
    parts, start = [], 0
    for queries in _even(cells, size):
        block_cells = range(start, start + queries)
        window = range(max(0, start - kernel // 2), min(cells, start + queries - 1 - kernel // 2 + kernel))
        planes = sorted({plane for cell in block_cells for plane in near_planes[cell]})
        frames = (*window, *(cells + plane for plane in planes))
        visible = tuple(
            (
                *(0 <= frame - cell + kernel // 2 < kernel for frame in window),
                *(plane in near_planes[cell] for plane in planes),
            )
            for cell in block_cells
        )
        parts.append(Segment(start, 1, queries, 0, len(frames), (), (frames,), visible))
        start += queries
    for plane, time in enumerate(times):
        frames = (*_nearest(time, range(cells)), cells + plane)
        parts.append(Segment(cells + plane, 1, 1, 0, len(frames), (), (frames,), ((True,) * len(frames),)))
    return _joined(parts)


def _nearest(time: float, times: Sequence[float]) -> list[int]:
    """Return the indices of the nearest times."""
    return sorted(range(len(times)), key=lambda index: (abs(times[index] - time), index))[:_NEAREST]


def shared_axis(grid: Sequence[int], *, has_planes: bool = False) -> int:
    """Return the axis along which blocks share copies of keys and values: the axis with the most queries.

    With keyframe planes it is not time, since the keys along time are not contiguous then.
    """
    return max(range(has_planes, len(grid)), key=lambda axis: grid[axis])


def shares(backend: Backend, channels: int, heads: int, block: Block, axis: int) -> Cuts:
    """Cut the segments of each axis so that the blocks of a combination share copies of keys and values.

    Blocks in a row along `axis` share one copy. If a row is short enough, several rows of blocks have a copy each.
    """
    other_windows = math.prod(segment.window for i, segment in enumerate(block) if i != axis)
    keys = _SHARED[backend] // (2 * channels * other_windows)
    rows = block[axis].cut((keys - block[axis].window) // block[axis].size + 1)
    num_rows = 1
    if len(rows) == 1:
        scores = heads * rows[0].blocks * _scores(block)
        num_rows = min(keys // rows[0].keys, _SCORES[backend] // scores)
    cuts = [rows] * len(block)
    for i in sorted({0, 1, 2} - {axis}, reverse=True):
        cuts[i] = block[i].cut(num_rows)
        num_rows //= block[i].blocks
    return cuts[0], cuts[1], cuts[2]


def calls(backend: Backend, heads: int, share: Block, axis: int) -> list[Segment]:
    """Cut the segment along `axis` of blocks that share copies, so that one call computes few scores."""
    num_rows = math.prod(segment.blocks for i, segment in enumerate(share) if i != axis)
    return share[axis].cut(_SCORES[backend] // (heads * num_rows * _scores(share)))


def copied_keys(share: Block, axis: int) -> int:
    """Return the number of keys in the copies of a share, whose rows along `axis` have a copy each."""
    return math.prod(segment.keys if i == axis else segment.blocks * segment.window for i, segment in enumerate(share))


class Share(NamedTuple):
    """Blocks that share copies of keys and values, and the calls that compute them."""

    block: Block
    calls: tuple[Segment, ...]  # the segment of each call along the shared axis


#: One item for each combination of segments of the three axes.
Nested = Sequence[Sequence[Sequence[Any]]]


def for_all(axes: Sequence[Sequence[Segment]], make: Callable[[Block], Any]) -> Nested:
    """Return the results of `make` for all combinations of segments of the three axes."""
    return [[[make((time, row, column)) for column in axes[2]] for row in axes[1]] for time in axes[0]]


@lru_cache(maxsize=256)
def layout(
    backend: Backend, starts: WindowStarts, keys: Grid, kernel: Grid, times: Times, channels: int, heads: int
) -> tuple[int, Nested]:
    """Return the shared axis, and the shares of each combination of segments, which are the calls of a step.

    It is cached, since most steps of a stream have the same layout, and it takes longer than their graphs. `keys` are
    the numbers of keys along each axis, along time with the keyframe planes of `times`.
    """
    axis, size = shared_axis([len(axis_starts) for axis_starts in starts], has_planes=bool(times)), BLOCKS[backend]

    def make(block: Block) -> Share:
        return Share(block, tuple(calls(backend, heads, block, axis)))

    axes = [
        segments(axis_starts, width, size, extent)
        for axis_starts, width, extent in zip(starts, kernel, keys, strict=True)
    ]
    if times:
        axes[0] = joint_segments(keys[0] - len(times), kernel[0], times, size)
    return axis, for_all(axes, lambda block: for_all(shares(backend, channels, heads, block, axis), make))


def tokens_at_once(backend: Backend, hidden: int) -> int:
    """Return the number of tokens that an MLP computes at once, so that its workspace is bounded."""
    return max(1, _HIDDEN[backend] // hidden)


def _scores(block: Block) -> int:
    return math.prod(segment.size * segment.window for segment in block)


@lru_cache
def _whole_axis(length: int, kernel: int, size: int) -> tuple[Segment, ...]:
    length = max(length, kernel)
    starts = [min(max(0, index - kernel // 2), length - kernel) for index in range(length)]
    return segments(starts, kernel, size)


def _whole_axes(grid: Grid, kernel: Grid, size: int, times: Times) -> list[tuple[Segment, ...]]:
    """Return the segments of each axis of a whole grid (T, H, W), which has the keyframe planes of `times`."""
    if not times:
        return [_whole_axis(length, width, size) for length, width in zip(grid, kernel, strict=True)]
    axes = [_moving(0, length, -(width // 2), width, size, length) for length, width in zip(grid, kernel, strict=True)]
    return [joint_segments(grid[0] - len(times), kernel[0], times, size), *axes[1:]]


def computed_scores(grid: Grid, kernel: Grid, size: int, times: Times = ()) -> int:
    """Return the number of scores that blocks of this size compute for a grid (T, H, W) of queries, of one head."""
    return math.prod(
        sum(segment.blocks * segment.size * segment.window for segment in axis)
        for axis in _whole_axes(grid, kernel, size, times)
    )


@lru_cache
def workspace_bytes(
    grid: Grid, kernel: Grid, channels: int, heads: int, machine: Machine, moving: int | None = None, times: Times = ()
) -> int:
    """Return the bytes that the attention of one step allocates at once: copies of keys and values, and scores.

    `moving` is the index of the stream's axis, if the step has a part of it. `None` means that it has the whole clip.
    `times` are the times of keyframe planes.
    """
    size, backend = BLOCKS[machine.backend], machine.backend
    axes = _whole_axes(grid, kernel, size, times)
    if moving is not None:
        axes[moving] = _moving(0, grid[moving], 0, kernel[moving], size)
    shared = shared_axis(grid, has_planes=bool(times))
    is_cpu = backend is Backend.CPU
    largest = 0
    table_bytes: dict[tuple[Any, ...], int] = {}  # of the index and the mask of each kind of copy
    for block in product(axes[0], axes[1], axes[2]):
        for share in product(*shares(backend, channels, heads, block, shared)):
            keys = copied_keys(share, shared)
            copied = 2 * channels * keys
            num_rows = math.prod(segment.blocks for segment in share) // share[shared].blocks
            scores = max(
                heads * _scores(share) * call.blocks * num_rows for call in calls(backend, heads, share, shared)
            )
            # On a CPU, scores are materialized, all is float32, and masks are not kept.
            kind = tuple((segment.blocks, segment.size, segment.window) for segment in share)
            table_bytes[kind] = keys * heads * FLOAT32_BYTES + (0 if is_cpu else _scores(share))
            mask = _scores(share) * (1 + FLOAT32_BYTES if is_cpu else 1)
            arrays = (copied + scores) * FLOAT32_BYTES if is_cpu else copied * machine.itemsize
            largest = max(largest, mask + arrays)
    return CALLS_UNDER_WAY[backend] * largest + sum(table_bytes.values())
