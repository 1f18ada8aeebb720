"""An emulation of MLX's Metal backend on the CPU: the routes that convolutions take there, and their roundings.

It tells what a GPU's precision does to a decode, not how long a decode takes. Routes and roundings were read in MLX's
source (0.32); nothing was measured on a Mac. Attention and the exact exponentials of Metal are not emulated.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, NamedTuple, cast
from unittest.mock import patch

import mlx.core as mx

from benchmarks.measuring import with_rule
from checkpoint_files import open_weights
from mlx_ltx_vae import VideoVAE
from mlx_ltx_vae.backend import device
from mlx_ltx_vae.backend.machine import Backend
from mlx_ltx_vae.backend.mlx_utils import DtypeName
from mlx_ltx_vae.checkpoint import Checkpoint
from mlx_ltx_vae.networks.convolution import conv3d, rules
from mlx_ltx_vae.networks.convolution.rules import ConvRule, ConvShape, Formulation
from tolerances import skip_where_arrays_cannot_be_patched
from winograd import winograd_conv2d

# Not the emulated ones.
_conv2d: Callable[..., mx.array] = mx.conv2d
_conv3d: Callable[..., mx.array] = mx.conv3d
_matmul: Callable[..., mx.array] = mx.matmul

_MAX_DEPTH = 7  # taps in time up to which a 3D convolution is a sum of 2D convolutions
_MIN_POSITIONS = 4096
_MIN_CHANNELS = 256  # of input and output together
_CHANNEL_STEP = 32
_DEPTH_CHANNEL_STEP = 16

_Size = int | Sequence[int]

# TF32 has 10 bits of mantissa; float32 has 13 more.
_TF32_HALF, _TF32_MASK = 0x1000, 0xFFFFE000


@dataclass(frozen=True)
class EmulatedGPU:
    """The GPU, and what the package asks of it.

    Attributes:
        winograd: False as with `MLX_CONV_WINOGRAD=0`, which is also obeyed.
        tf32: whether float32 matrix products round their operands to TF32, as on M5 and on CUDA.
        magnification: the rule for Winograd counts this many times the positions that there are, for small pictures.
        any_width: the rule for Winograd ignores the sum of channels, for narrow models.
        formulation: of all convolutions; None for what the package chooses. With `CONV3D`, bias and skip are added one
            by one, each rounded, as programs do that call nn.Conv3d.
    """

    winograd: bool = True
    tf32: bool = False
    magnification: int = 1
    any_width: bool = False
    formulation: Formulation | None = None

    def choose(self, shape: ConvShape, backend: Backend, *, allows_winograd: bool = True) -> Formulation:
        """A rule for networks: what the package chooses for the picture and the width that this GPU pretends to see."""
        if self.formulation is not None:
            return self.formulation
        time, height, width = shape.grid
        seen = shape._replace(grid=(time, height * self.magnification, width))
        if self.any_width and shape.out_channels % _CHANNEL_STEP == 0:
            seen = seen._replace(out_channels=_MIN_CHANNELS * shape.out_channels)
        return rules.choose(seen, backend, allows_winograd=allows_winograd)

    def takes_winograd(self, input_shape: Sequence[int], weight_shape: Sequence[int]) -> bool:
        """MLX's rule for a 2D convolution of stride 1: (N, H, W, C) with (O, 3, 3, C)."""
        *grid, in_channels = input_shape
        out_channels, *kernel, _ = weight_shape
        positions = grid[0] * grid[1] * grid[2] * self.magnification
        return (
            kernel == [3, 3]
            and in_channels % _CHANNEL_STEP == out_channels % _CHANNEL_STEP == 0
            and positions >= _MIN_POSITIONS
            and (self.any_width or in_channels + out_channels >= _MIN_CHANNELS)
        )


@contextmanager
def emulated(gpu: EmulatedGPU = EmulatedGPU()) -> Iterator[Counter[str]]:
    """Inside the block, the package believes that it runs on a GPU, and MLX's convolutions and products are emulated.

    Load networks with the rule `gpu.choose` (`load_decoder`). Evaluate inside the block: a stream makes its graph while
    it is consumed. Functions that were compiled outside keep what they were compiled with.

    Yields:
        How often each route was taken: "winograd" and "direct" (2D convolutions; a 3D convolution of batch 1 is one
        for each tap in time), "volume" (other 3D convolutions), "product".
    """
    skip_where_arrays_cannot_be_patched()
    emulation = _Emulation(gpu)
    default, is_cpu = mx.default_device(), device.is_cpu
    with ExitStack() as stack:
        for name, loaded in list(sys.modules.items()):
            if name.split(".")[0] == "mlx_ltx_vae" and getattr(loaded, "is_cpu", None) is is_cpu:
                stack.enter_context(patch.object(loaded, "is_cpu", lambda: False))
        stack.enter_context(patch.object(mx.metal, "is_available", lambda: True))
        if gpu.formulation is Formulation.CONV3D:
            stack.enter_context(patch.object(conv3d, "add_bias", _add_one_by_one))
        for name in ("conv2d", "conv3d", "matmul", "addmm"):
            stack.enter_context(patch.object(mx, name, getattr(emulation, name)))
        stack.enter_context(patch.object(mx.array, "__matmul__", lambda one, other: emulation.matmul(one, other)))
        mx.set_default_device(mx.Device(mx.cpu))
        stack.callback(mx.set_default_device, default)
        yield emulation.routes


def load_decoder(checkpoint: Checkpoint, rule: ConvRule, dtype: DtypeName | None = None) -> VideoVAE:
    """A VAE with a checkpoint's decoder, as `VideoVAE.from_pretrained` loads it, with another rule for convolutions."""
    checkpoint = replace(checkpoint, family=with_rule(checkpoint.family, rule))
    return VideoVAE.from_pretrained(checkpoint, dtype=dtype, encoder=False)


def stored_in_bfloat16(model: str | os.PathLike) -> Checkpoint:
    """A checkpoint in float32, as one that is stored in bfloat16."""
    weights, metadata = cast(Any, mx.load(os.fspath(model), return_metadata=True))
    stored = {name: array if "statistics" in name else array.astype(mx.bfloat16) for name, array in weights.items()}
    return open_weights(stored, json.loads(metadata["config"]))


class _Window(NamedTuple):
    """What a convolution does with its kernel along each axis."""

    stride: Sequence[int]
    padding: Sequence[int]
    groups: int = 1

    @classmethod
    def of(cls, axes: int, *sizes: _Size, groups: int = 1) -> "_Window":
        """From MLX's arguments, each one number for all axes, or one for each."""
        stride, padding = ((size,) * axes if isinstance(size, int) else tuple(size) for size in sizes)
        return cls(stride, padding, groups)

    @property
    def is_dense(self) -> bool:
        """Whether it has a result for every position, from neighbors."""
        return all(size == 1 for size in (*self.stride, self.groups))


def _is_split(x: mx.array, weight: mx.array, window: _Window) -> bool:
    """MLX's rule for a 3D convolution as a sum of 2D convolutions."""
    in_channels, out_channels = x.shape[-1], weight.shape[0]
    return (
        x.shape[0] == window.stride[0] == window.groups == 1
        and window.padding[0] == 0
        and weight.shape[1] <= _MAX_DEPTH
        and in_channels % _DEPTH_CHANNEL_STEP == 0
        and (out_channels <= _DEPTH_CHANNEL_STEP or out_channels % _DEPTH_CHANNEL_STEP == 0)
    )


@dataclass
class _Emulation:
    """The emulated functions, with the arguments of MLX's own that the package uses: none dilates."""

    gpu: EmulatedGPU
    routes: Counter[str] = field(default_factory=Counter)

    def conv3d(
        self, x: mx.array, weight: mx.array, stride: _Size = 1, padding: _Size = 0, groups: int = 1, stream: Any = None
    ) -> mx.array:
        """(B, T, H, W, C) with (O, kt, kh, kw, C), added over the taps in time if MLX splits it so."""
        x, weight = _same_type(x, weight)
        window = _Window.of(3, stride, padding, groups=groups)
        return self._by_taps(x, weight, window) if _is_split(x, weight, window) else self._volume(x, weight, window)

    def conv2d(
        self, x: mx.array, weight: mx.array, stride: _Size = 1, padding: _Size = 0, groups: int = 1, stream: Any = None
    ) -> mx.array:
        """(N, H, W, C) with (O, kh, kw, C)"""
        x, weight = _same_type(x, weight)
        return self._frames(x, weight, _Window.of(2, stride, padding, groups=groups))

    def matmul(self, one: mx.array, other: mx.array, **_: Any) -> mx.array:
        """`one @ other`, rounded once."""
        return self._product(one, other).astype(_result_type(one, other))

    def addmm(
        self, c: mx.array, one: mx.array, other: mx.array, alpha: float = 1.0, beta: float = 1.0, **_: Any
    ) -> mx.array:
        """`beta * c + alpha * one @ other`, rounded once."""
        total = alpha * self._product(one, other) + beta * _wide(c)
        return total.astype(_result_type(c, one, other))

    def _product(self, one: mx.array, other: mx.array) -> mx.array:
        """`one @ other` in float32."""
        self.routes["product"] += 1
        return self._multiply(one, other)

    def _multiply(self, one: mx.array, other: mx.array) -> mx.array:
        if self.gpu.tf32 and _result_type(one, other) == mx.float32:
            one, other = round_to_tf32(one), round_to_tf32(other)
        return _matmul(_wide(one), _wide(other))

    def _by_taps(self, x: mx.array, weight: mx.array, window: "_Window") -> mx.array:
        """A 2D convolution for each tap in time; their results are added in the dtype."""
        frames = x.shape[1] - weight.shape[1] + 1
        in_space = _Window(window.stride[1:], window.padding[1:])
        total = None
        for tap in range(weight.shape[1]):
            result = self._frames(x[0, tap : tap + frames], weight[:, tap], in_space)
            total = result if total is None else total + result
        assert total is not None
        return total[None]

    def _volume(self, x: mx.array, weight: mx.array, window: "_Window") -> mx.array:
        """One kernel for all taps, which rounds once."""
        self.routes["volume"] += 1
        return _conv3d(_wide(x), _wide(weight), **window._asdict()).astype(x.dtype)

    def _frames(self, x: mx.array, weight: mx.array, window: "_Window") -> mx.array:
        """A 2D convolution by the route that MLX takes."""
        is_allowed = self.gpu.winograd and os.environ.get("MLX_CONV_WINOGRAD", "1") != "0"
        if is_allowed and window.is_dense and self.gpu.takes_winograd(x.shape, weight.shape):
            self.routes["winograd"] += 1
            pads = window.padding
            return winograd_conv2d(
                x, weight, (pads[0], pads[1]), lambda one, other: self._multiply(one, other).astype(x.dtype)
            )
        self.routes["direct"] += 1
        return _conv2d(_wide(x), _wide(weight), **window._asdict()).astype(x.dtype)


def _add_one_by_one(result: mx.array, bias: mx.array, skip: mx.array | None, factors: mx.array | None) -> mx.array:
    assert factors is None, "no weight was scaled"
    result = result.astype(bias.dtype) + bias
    return result if skip is None else result + skip


def round_to_tf32(x: mx.array) -> mx.array:
    """Round float32 to the 10 bits of mantissa of TF32; halves away from zero."""
    return ((x.view(mx.uint32) + _TF32_HALF) & _TF32_MASK).view(mx.float32)


def _result_type(*operands: mx.array) -> mx.Dtype:
    """`mx.result_type`, which MLX before 0.32 lacks."""
    return reduce(mx.add, (mx.zeros((), operand.dtype) for operand in operands)).dtype


def _same_type(x: mx.array, weight: mx.array) -> tuple[mx.array, mx.array]:
    dtype = _result_type(x, weight)
    return x.astype(dtype), weight.astype(dtype)


def _wide(x: mx.array) -> mx.array:
    return x.astype(mx.float32)
