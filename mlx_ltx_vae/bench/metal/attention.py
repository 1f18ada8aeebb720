"""The neighborhood attention of LTX-2.5's diffusion decoder, with blocks of several sizes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx

from ...backend.device import backend
from ...backend.mlx_utils import DTYPES
from ...models.diffusion_decoder.attention import LARGEST_SCORE, attend
from ...models.diffusion_decoder.neighborhood import BLOCKS, whole_starts
from ..case import Case
from .kernels import Call, median_seconds

#: Queries of a block along each axis.
SIZES = (3, 4, 5, 6, 8)

# The last stage at the published widths: patches of 4x4 pixels, and a step of one latent column of 768 pixels.
_KERNEL, _HEADS, _HEAD_DIM, _PATCH = 11, 4, 64, 4
_PIXELS_OF_A_COLUMN = 96


def neighborhood(case: Case, *, sizes: Sequence[int]) -> dict[str, Any]:
    """Time one layer's attention for a step of columns, with blocks of each size, in turns.

    Returns:
        runs: for each size the grid (T, H, W) of queries, size, is_ours (whether the package takes it), seconds, and
        scratch_bytes, with the output.
    """
    grid = (max(case.frames, _KERNEL), max(case.height // _PATCH, _KERNEL), max(1, case.width // _PIXELS_OF_A_COLUMN))
    dtype = DTYPES[case.dtype or "bfloat16"]
    queries = mx.random.normal((1, *grid, _HEADS, _HEAD_DIM), key=mx.random.key(0)).astype(dtype)
    seen = (*grid[:2], grid[2] + _KERNEL - 1)
    keys_values = mx.random.normal((1, *seen, 2, _HEADS, _HEAD_DIM), key=mx.random.key(1)).astype(dtype)
    mx.eval(queries, keys_values)
    starts = whole_starts(grid[0], _KERNEL), whole_starts(grid[1], _KERNEL), range(grid[2])

    def call(size: int) -> Call:
        def run() -> mx.array:
            with _blocks_of(size):
                # Scores may be larger than the CPU's own attention takes: `mx.fast`'s runs on every device.
                return attend(queries, keys_values, starts, (_KERNEL,) * 3, LARGEST_SCORE + 1)

        return run

    calls = {size: call(size) for size in sizes}
    scratch = {size: _scratch_bytes(each) for size, each in calls.items()}
    return {
        "runs": [
            {
                "grid": list(grid),
                "size": size,
                "is_ours": size == BLOCKS[backend()],
                "seconds": seconds,
                "scratch_bytes": scratch[size],
            }
            for size, seconds in median_seconds(calls).items()
        ]
    }


def _scratch_bytes(call: Call) -> int:
    mx.synchronize()
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    mx.eval(call())
    return mx.get_peak_memory() - before


@contextmanager
def _blocks_of(size: int) -> Iterator[None]:
    """Blocks of another size than the package's, in this process."""
    before = BLOCKS[backend()]
    try:
        BLOCKS[backend()] = size
        yield
    finally:
        BLOCKS[backend()] = before
