"""The calls of `mx.conv3d` in a decode: recorded, and run alone."""

import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import mlx.core as mx

Operands = dict[tuple[tuple[int, ...], mx.Dtype], mx.array]


@dataclass(frozen=True)
class Convolution:
    """One call of `mx.conv3d`, with channels last in all shapes."""

    input_shape: tuple[int, ...]
    weight_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    dtype: mx.Dtype
    options: dict[str, Any]

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        return 2 * math.prod(self.output_shape) * math.prod(self.weight_shape[1:])


def recorded(record: Callable[[Convolution], object]) -> AbstractContextManager:
    """Calls `record` with every convolution while the block runs."""
    conv3d = mx.conv3d

    def recording(x: mx.array, weight: mx.array, **options: Any) -> mx.array:
        output = conv3d(x, weight, **options)
        record(Convolution(x.shape, weight.shape, output.shape, x.dtype, options))
        return output

    return patch.object(mx, "conv3d", recording)


def make_operands(convolutions: list[Convolution]) -> Operands:
    """Noise of every shape and dtype of the inputs and weights."""
    keys = {(shape, each.dtype) for each in convolutions for shape in (each.input_shape, each.weight_shape)}
    operands = {(shape, dtype): mx.random.normal(shape).astype(dtype) for shape, dtype in keys}
    mx.eval(list(operands.values()))
    return operands


def run_alone(convolutions: list[Convolution], operands: Operands, prefetch: int) -> float:
    """Seconds of the convolutions alone, evaluated one by one as in a stream, with `prefetch` of them ahead."""
    pending: deque[mx.array] = deque()
    start = time.perf_counter()
    for each in convolutions:
        x, weight = operands[each.input_shape, each.dtype], operands[each.weight_shape, each.dtype]
        pending.append(mx.conv3d(x, weight, **each.options))
        mx.async_eval(pending[-1])
        if len(pending) > prefetch:
            mx.eval(pending.popleft())
    mx.eval(list(pending))
    return time.perf_counter() - start
