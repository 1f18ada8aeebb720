"""How closely results must agree, by the backend that computes them. The only place where tests ask for the backend."""

import os

import mlx.core as mx
import pytest

#: Whether the tests run on MLX's CPU backend. Otherwise they run on Metal or CUDA, or with Metal's rounding emulated.
ON_CPU = mx.default_device() == mx.Device(mx.cpu) and not os.environ.get("EMULATE_METAL")

# Whether float32 matrix products may round their operands to TF32: on CUDA and Apple's M5, unless it is switched off as
# `conftest.py` does.
_MAY_USE_TF32 = not ON_CPU and os.environ.get("MLX_ENABLE_TF32") != "0"

# The largest difference of float32 results of a network on a GPU. Emulated, not measured: a Winograd F(6x6, 3x3)
# convolution in float32 has a relative error of 3e-6 to 6e-6, and a decode of the demo differs by up to 1e-5. MLX
# chooses Winograd by the size of a chunk, so a stream and a single pass may differ by as much. 1e-3 leaves room for
# other weights. It is a quarter of half an 8-bit level, and mistakes at the edges of chunks are far larger.
_GPU_FLOAT32 = 1e-3

# The same with TF32: a whole decode of the demo in emulation differs by up to 0.02.
_GPU_TF32 = 4e-2

#: By how much a peak may exceed the planned one. GPU: not measured; buffers are whole pages of 16 kB on Metal, which
#: matters at the tests' sizes.
PEAK_MARGIN = 1.01 if ON_CPU else 1.25

#: The factor between the rounding errors of elementwise functions and those on the CPU, which rounds once: a GPU rounds
#: after every operation, and its exponentials are less exact. Not measured.
ROUNDINGS = 1 if ON_CPU else 8


def tolerance(on_cpu: float) -> float:
    """The largest difference of float32 results of a network: `on_cpu` where the CPU computes them."""
    if ON_CPU:
        return on_cpu
    return max(on_cpu, _GPU_TF32 if _MAY_USE_TF32 else _GPU_FLOAT32)


def assert_same_bits(result: mx.array, expected: mx.array) -> None:
    """Equal bits on the CPU. A GPU may choose another kernel for another shape, and then sums in another order."""
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    difference = mx.abs(result.astype(mx.float32) - expected.astype(mx.float32)).max().item()
    assert difference <= (0 if ON_CPU else _GPU_FLOAT32)


def cpu_only(reason: str) -> pytest.MarkDecorator:
    """Skips a test elsewhere whose assertion is about the CPU backend."""
    return pytest.mark.skipif(not ON_CPU, reason=reason)


def gpu_only(reason: str) -> pytest.MarkDecorator:
    """Skips a test on the CPU whose assertion is about GPUs."""
    return pytest.mark.skipif(ON_CPU, reason=reason)


def skip_where_arrays_cannot_be_patched() -> None:
    """Skip a test that replaces methods of `mx.array`: on Python 3.15 MLX's classes are immutable."""
    try:
        mx.array.__matmul__ = mx.array.__matmul__
    except TypeError as error:
        pytest.skip(str(error))
