"""The convolutions of a decode: recorded, and run alone."""

import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from unittest.mock import patch

import mlx.core as mx

from mlx_ltx_vae.networks.convolution.conv3d import Conv3d, Padding, Pointwise

Operands = dict[tuple[tuple[int, ...], mx.Dtype], mx.array]


@dataclass(frozen=True)
class Convolution:
    """One call of a convolution, with channels last in all shapes.

    Attributes:
        dtype: of its input, after an activation that it computes.
    """

    module: Conv3d
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    dtype: mx.Dtype
    padding: Padding

    @property
    def operations(self) -> int:
        """Multiplications and additions of its sums, without those for padding that a formulation adds."""
        return 2 * math.prod(self.output_shape) * 27 * self.input_shape[-1]


def recorded(record: Callable[[Convolution], object]) -> AbstractContextManager:
    """Calls `record` with every convolution while the block runs."""
    convolve = Conv3d.__call__

    def recording(
        module: Conv3d,
        frames: mx.array,
        padding: Padding,
        skip: mx.array | None = None,
        activation: Pointwise | None = None,
    ) -> mx.array:
        output = convolve(module, frames, padding, skip, activation)
        operands = frames if activation is None else activation(frames)
        record(Convolution(module, frames.shape, output.shape, operands.dtype, padding))
        return output

    return patch.object(Conv3d, "__call__", recording)


def make_operands(convolutions: list[Convolution]) -> Operands:
    """Noise of every shape and dtype of the inputs."""
    operands = {
        (convolution.input_shape, convolution.dtype): mx.random.normal(convolution.input_shape).astype(
            convolution.dtype
        )
        for convolution in convolutions
    }
    mx.eval(list(operands.values()))
    return operands


def run_alone(convolutions: list[Convolution], operands: Operands, prefetch: int) -> float:
    """Seconds of the convolutions alone, evaluated one by one as in a stream, with `prefetch` of them ahead."""
    pending: deque[mx.array] = deque()
    start = time.perf_counter()
    for convolution in convolutions:
        pending.append(convolution.module(operands[convolution.input_shape, convolution.dtype], convolution.padding))
        mx.async_eval(pending[-1])
        if len(pending) > prefetch:
            mx.eval(pending.popleft())
    mx.eval(list(pending))
    return time.perf_counter() - start
