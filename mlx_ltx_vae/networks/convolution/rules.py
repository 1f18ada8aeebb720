"""Choose the formulation of a 3x3x3 convolution, and compute its scratch memory. Pure arithmetic, no MLX.

All formulations compute the same sums; they differ in the order of the additions, so that float32 results agree within
rounding. A `ConvRule` decides, for a network's modules and its memory estimates alike; `choose` is the package's. It
does not depend on the number of frames, so that a clip gives the same result however it is cut into steps.

CPU rules are measured (docs/performance.md). Metal's follow MLX 0.32's dispatch code and an emulation of its rounding,
and have not been measured on a Mac.
"""

import enum
import math
from typing import NamedTuple, Protocol

from ...backend.machine import FLOAT32_BYTES, Backend
from ...shapes import Grid

TAPS = 3  # taps of the kernel along each axis

# Frames with fewer positions are convolved by columns on a CPU, since the two columns of padding that a product per tap
# also computes are not negligible in them.
_COLUMNS_BELOW = 1024
# Bytes of output that one chain of matrix products on a CPU adds up. The output should stay in the processor's caches,
# but with few channels a smaller product is too short to be shared by several threads.
_BLOCK_BYTES = 2**21
_BLOCK_BYTES_TIMES_CHANNELS = 2**27

# Metal's Winograd F(6x6, 3x3): a tile of 6x6 outputs takes 8x8 products. Its conditions are as in MLX's dispatch.
_WINOGRAD_TILE = 6
_WINOGRAD_PRODUCTS = 64
_WINOGRAD_MIN_POSITIONS = 4096
_WINOGRAD_MIN_CHANNELS = 256
_WINOGRAD_ALIGNMENT = 32
# One step of a plan has about four frames. With smaller frames it has too few positions for a Winograd kernel.
_STEP_FRAMES = 4
_WINOGRAD_MIN_FRAME = _WINOGRAD_MIN_POSITIONS // _STEP_FRAMES
# Transformed filters of up to this many elements, 512 MB in half precision, are always affordable.
_WINOGRAD_SMALL_FILTERS = 2**28


class Formulation(enum.Enum):
    """Way to compute a convolution."""

    CONV3D = "conv3d"  # one call of mx.conv3d
    TAPS = "taps"  # 27 matrix products, one per tap, over shifted views of the padded frames
    COLUMNS = "columns"  # 9 matrix products over three neighboring columns joined along channels
    JOINED = "joined"  # one mx.conv2d over three neighboring frames joined along channels
    ROWS = "rows"  # 3 matrix products over overlapping rows of three joined frames


class KernelLayout(enum.Enum):
    """Axis order of a convolution's weight (O and I are output and input channels)."""

    STORED = "ODHWI"
    PRODUCTS = "DHWIO"
    JOINED = "OHWDI"


#: The weight's axis order that each formulation needs.
LAYOUTS = {
    Formulation.CONV3D: KernelLayout.STORED,
    Formulation.TAPS: KernelLayout.PRODUCTS,
    Formulation.COLUMNS: KernelLayout.PRODUCTS,
    Formulation.JOINED: KernelLayout.JOINED,
    Formulation.ROWS: KernelLayout.JOINED,
}

#: Formulations that are sums of products in float32.
PRODUCTS = (Formulation.TAPS, Formulation.COLUMNS)


class ConvShape(NamedTuple):
    """Shape of one convolution; `grid` is (T, H, W) of the output."""

    grid: Grid
    in_channels: int
    out_channels: int
    is_strided: bool = False

    @property
    def num_outputs(self) -> int:
        return math.prod(self.grid)


class ConvRule(Protocol):
    """Hashable rule that chooses formulations. On a backend, all but strided ones have the same `KernelLayout`."""

    def __call__(self, shape: ConvShape, backend: Backend, *, allows_winograd: bool = True) -> Formulation:
        """Choose a formulation. `allows_winograd`: operands stay accurate in Winograd kernels, unlike bfloat16."""

    def __hash__(self) -> int: ...


def choose(shape: ConvShape, backend: Backend, *, allows_winograd: bool = True) -> Formulation:
    """Choose the formulation by the package's rule."""
    if shape.is_strided or backend is Backend.CUDA:
        return Formulation.CONV3D
    frame = shape.grid[1] * shape.grid[2]
    if backend is Backend.CPU:
        return Formulation.COLUMNS if frame < _COLUMNS_BELOW else Formulation.TAPS
    # Winograd is faster than matrix products. Where MLX would not use it, products are faster than its implicit GEMM.
    is_large = frame >= _WINOGRAD_MIN_FRAME
    is_possible = allows_winograd and is_large and _can_take_winograd(TAPS * shape.in_channels, shape.out_channels)
    return Formulation.JOINED if is_possible and _are_filters_affordable(shape) else Formulation.ROWS


def _are_filters_affordable(shape: ConvShape) -> bool:
    """Return whether Winograd's transformed filters do not dominate the memory of a whole decode."""
    filters = _WINOGRAD_PRODUCTS * TAPS * shape.in_channels * shape.out_channels
    step = shape._replace(grid=(_STEP_FRAMES, *shape.grid[1:]))
    return filters <= max(_WINOGRAD_SMALL_FILTERS, _joined_elements(step) + winograd_elements(step) - filters)


def blocks(rows: int, row_bytes: int, in_channels: int) -> list[tuple[int, int]]:
    """Return the rows of each chain of matrix products on a CPU, as (start, end), in blocks of nearly equal heights.

    `row_bytes` are the bytes of a row of one frame's output. The number of frames does not matter, since the rounding
    of a product may depend on its size, and frames should not depend on how a clip is cut.
    """
    size = max(_BLOCK_BYTES, _BLOCK_BYTES_TIMES_CHANNELS // in_channels)
    height = max(1, size // max(1, row_bytes))
    height = -(-rows // -(-rows // height))
    return [(start, min(rows, start + height)) for start in range(0, rows, height)]


def scratch_bytes(
    shape: ConvShape, formulation: Formulation, itemsize: int, *, on_cpu: bool, bounds_winograd: bool = True
) -> int:
    """Return the bytes that a convolution allocates per batch item: input copies, intermediate results and output."""
    frames, height, width = (extent + TAPS - 1 for extent in shape.grid)  # extents of the padded input
    size = FLOAT32_BYTES if on_cpu else itemsize
    padded = frames * height * width * shape.in_channels
    output = shape.num_outputs * shape.out_channels
    if formulation is Formulation.CONV3D:
        # The CPU backend unfolds the input for one matrix product. Other backends add up a 2D convolution per temporal
        # tap, and free their buffers after all three are done.
        unfolded = shape.num_outputs * TAPS**3 * shape.in_channels if on_cpu else 0
        elements = padded + unfolded + (output if on_cpu else TAPS * output)
    elif formulation is Formulation.TAPS:
        elements = padded + output * width // shape.grid[2]  # two of each row's sums are left out
    elif formulation is Formulation.COLUMNS:
        columns = frames * height * shape.grid[2] * TAPS * shape.in_channels
        # Nine products are few enough for MLX to allocate the output in half precision before the first one is freed.
        half = output // 2 if itemsize < size else 0
        elements = padded + columns + output + half
    elif formulation is Formulation.JOINED:
        elements = _joined_elements(shape) + winograd_elements(shape, 1 if bounds_winograd else shape.grid[0])
    else:
        joined = shape.grid[0] * height * width * TAPS * shape.in_channels
        elements = padded + joined + 4 * output
    return elements * size


def winograd_elements(shape: ConvShape, frames: int = 1) -> int:
    """Return the scratch elements of Metal's Winograd kernel for frames of a joined convolution; 0 without it."""
    joined = TAPS * shape.in_channels
    is_large = _padded_positions(shape.grid) >= _WINOGRAD_MIN_POSITIONS
    if not (is_large and _can_take_winograd(joined, shape.out_channels)):
        return 0
    tiles_high, tiles_wide = (-(-extent // _WINOGRAD_TILE) for extent in shape.grid[1:])
    padded = winograd_positions(shape.grid) * joined
    transformed = _WINOGRAD_PRODUCTS * tiles_high * tiles_wide * (joined + shape.out_channels)
    return frames * (padded + transformed) + _WINOGRAD_PRODUCTS * joined * shape.out_channels


def winograd_positions(grid: Grid) -> int:
    """Return the positions of a frame that MLX has padded to whole tiles."""
    _, height, width = (-(-extent // _WINOGRAD_TILE) * _WINOGRAD_TILE + TAPS - 1 for extent in grid)
    return height * width


def is_padded_first(grid: Grid) -> bool:
    """Return whether frames (T, H, W) are padded by a copy first, so that MLX counts enough positions for Winograd."""
    return math.prod(grid) < _WINOGRAD_MIN_POSITIONS <= _padded_positions(grid)


def _padded_positions(grid: Grid) -> int:
    time, height, width = grid
    return time * (height + TAPS - 1) * (width + TAPS - 1)


def _joined_elements(shape: ConvShape) -> int:
    """Return the elements of the joined input and of the output, with and without bias."""
    time, height, width = shape.grid
    inputs = TAPS * shape.num_outputs
    if is_padded_first(shape.grid):
        inputs = _padded_positions((TAPS * time, height, width)) + _padded_positions((time + TAPS - 1, height, width))
    return inputs * shape.in_channels + 2 * shape.num_outputs * shape.out_channels


def _can_take_winograd(in_channels: int, out_channels: int) -> bool:
    is_aligned = in_channels % _WINOGRAD_ALIGNMENT == 0 and out_channels % _WINOGRAD_ALIGNMENT == 0
    return is_aligned and in_channels + out_channels >= _WINOGRAD_MIN_CHANNELS
