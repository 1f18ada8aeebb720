"""Modules of the diffusion decoder: norm, attention, MLP, upsampling."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import mlx.core as mx
import mlx.nn as nn

from ...backend.device import backend, is_cpu
from ...backend.mlx_utils import to_float
from ...shapes import Axis, Grid
from ...streaming.context import Stage, StreamContext, pointwise
from ...streaming.window import Delay, Trim, View, window_starts
from ..convolution.conv3d import PreparedModule
from ..layers import add_weights, depth_to_space, gated_silu, inverse_rms, linear, make_window, sinusoid
from ..specs import LayerSpec, Shapes
from .attention import Queue, Tables, attend, rotate
from .neighborhood import Times, WindowStarts, tokens_at_once
from .specs import MODULATION_ROWS, AttentionSpec, MLPSpec

_NORM_EPS = 1e-6
_BOUND_MARGIN = 1.1  # for rounding of normalized queries and keys


#: (bias, matrix (in, out)) of each linear layer. A bias may be `None`.
Matrices = Sequence[tuple[mx.array | None, mx.array]]
#: A norm that keeps the shape of its argument.
Norm = Callable[[mx.array], mx.array]


class RMSNorm(nn.Module):
    """RMS norm with a weight, computed in float32. Checkpoint keys: `weight`."""

    def __call__(self, x: mx.array, weight: mx.array | None = None) -> mx.array:
        """Return the norm of `x`, in one kernel on a GPU. `weight` replaces the layer's own weight; see `modulated`."""
        weight = self.weight if weight is None else weight
        if not is_cpu():
            return mx.fast.rms_norm(x, weight, _NORM_EPS)
        return _scale(x, inverse_rms(x, _NORM_EPS), weight)

    def modulated(self, scale: mx.array, shift: mx.array, matrices: Matrices) -> tuple[Norm, Matrices]:
        """Return the norm and the matrices after it, with a modulation (C,) float32 multiplied into them.

        The shift is in the biases of the matrices: with a shift, the norm would take two kernels on a GPU.
        """
        weight = (self.weight.astype(mx.float32) * (1 + scale)).astype(self.weight.dtype)
        shifted = []
        for bias, matrix in matrices:
            constant = shift @ matrix.astype(mx.float32)
            shifted.append(((constant if bias is None else bias + constant).astype(matrix.dtype), matrix))
        mx.eval(weight, [bias for bias, _ in shifted])
        return partial(self, weight=weight), shifted


@mx.compile
def _scale(x: mx.array, inverse: mx.array, weight: mx.array) -> mx.array:
    return (x.astype(mx.float32) * inverse * weight.astype(mx.float32)).astype(x.dtype)


def _apply(x: mx.array, layer: tuple[mx.array | None, mx.array]) -> mx.array:
    bias, matrix = layer
    return x @ matrix if bias is None else mx.addmm(bias, x, matrix)


class Attention(nn.Module):
    """Queries, keys and values of a neighborhood attention, and the projection of its results.

    Checkpoint keys: `qkv` (or diffusers' `to_q`, `to_k`, `to_v`), `proj`, `q_norm`, `k_norm`.
    """

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.q_norm, self.k_norm = RMSNorm(), RMSNorm()
        self._head_dim = head_dim

    @property
    def bound(self) -> float:
        """Upper bound of the scores: the norms bound the lengths of queries and keys. Evaluates their weights."""
        largest = mx.abs(self.q_norm.weight).max().astype(mx.float32) * mx.abs(self.k_norm.weight).max()
        return to_float(largest) * self._head_dim**0.5 * _BOUND_MARGIN

    @property
    def matrices(self) -> Matrices:
        """Weights of queries, keys and values."""
        if "qkv" not in self:
            return [(layer.bias, layer.weight.T) for layer in (self.to_q, self.to_k, self.to_v)]
        parts = zip(mx.split(self.qkv.bias, 3), mx.split(self.qkv.weight, 3), strict=True)
        return [(bias, weight.T) for bias, weight in parts]

    def queries(self, x: mx.array, matrices: Matrices, start: Grid, tables: Tables, times: Times = ()) -> mx.array:
        """Return rotated queries (B, T, H, W, heads, D), from position `start` on, with planes at `times`."""
        return rotate(self.q_norm(self._split(_apply(x, matrices[0]))), start, tables.turns, times)

    def keys_values(
        self, x: mx.array, matrices: Matrices, start: Grid, tables: Tables, times: Times = ()
    ) -> tuple[mx.array, mx.array]:
        """Return keys, which are rotated, and values, (B, T, H, W, heads * D) each."""
        keys = rotate(self.k_norm(self._split(_apply(x, matrices[1]))), start, tables.turns, times)
        values = _apply(x, matrices[2])
        return keys.reshape(values.shape), values

    def _split(self, x: mx.array) -> mx.array:
        return x.reshape(*x.shape[:-1], -1, self._head_dim)


class MLP(nn.Module):
    """Gated MLP: w_down(silu(w_gate x) * w_up x). Checkpoint keys: `w_up`, `w_gate`, `w_down`, without biases."""

    @property
    def matrices(self) -> Matrices:
        """Weights of the gate and of the values that it multiplies."""
        return [(None, layer.weight.T) for layer in (self.w_gate, self.w_up)]

    def __call__(self, x: mx.array, matrices: Matrices) -> mx.array:
        gate, up = (_apply(x, layer) for layer in matrices)
        return self.w_down(gated_silu(gate, up))


class NeighborhoodBlock(PreparedModule):
    """Transformer block: x + attention(norm(x)), then x + MLP(norm(x)).

    Blocks of the denoising first add a projection of the context, and modulate both norms. Static gates, if a
    checkpoint has them, scale the three branches; `prepare` multiplies the last matrix of each by its gate. Checkpoint
    keys: `norm1`, `attn`, `norm2`, `mlp`; of the denoising `context_proj`, `scale_shift_table` (7, C), and `gate_msa`,
    `gate_mlp`, `gate_ctx` (C,).
    """

    scale_shift_table: mx.array

    def __init__(self, attention: AttentionSpec, mlp: MLPSpec) -> None:
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(), RMSNorm()
        self.attn, self.mlp = Attention(attention.head_dim), MLP()
        add_weights(self, attention.weights + mlp.weights, attention.name.rpartition(".")[0])
        self._specs = attention, mlp

    def prepare(self, *, keeps_dtype: bool = False) -> None:
        """Multiply the gates into the matrices, so that a decode does not compute them."""
        for name, layer in self._gated():
            gate = self.pop(name).astype(mx.float32)
            for key in filter(layer.__contains__, ("weight", "bias")):
                values = layer[key]
                layer[key] = (values * (gate[:, None] if values.ndim > 1 else gate)).astype(values.dtype)
            mx.eval(layer.parameters())
        if "scale_shift_table" in self:
            self.scale_shift_table = mx.contiguous(self.scale_shift_table)
            mx.eval(self.scale_shift_table)

    def _gated(self) -> list[tuple[str, nn.Linear]]:
        """Return the gates that are not yet multiplied into a matrix, by name, with the layers of these matrices."""
        if "gate_msa" not in self:
            return []
        return [("gate_msa", self.attn.proj), ("gate_mlp", self.mlp.w_down), ("gate_ctx", self.context_proj)]

    def stages(
        self,
        context: StreamContext,
        modulation: mx.array | None = None,
        latent_context: Callable[[int], mx.array] | None = None,
        tables: Tables | None = None,
        spec: AttentionSpec | None = None,
    ) -> list[Stage]:
        """Return a stage for the attention and one for the MLP.

        Args:
            modulation: (7, C) float32, shared by all blocks of a denoising step.
            latent_context: returns the context of the next positions, from their number.
            tables: tables of the stream. `None` means new ones.
            spec: spec of the attention, if there are keyframe planes.
        """
        assert not self._gated(), "prepare was called"
        norm: Norm = self.norm2
        matrices = self.mlp.matrices
        if modulation is not None:
            modulation = modulation + self.scale_shift_table.astype(mx.float32)
            norm, matrices = self.norm2.modulated(modulation[3], modulation[4], matrices)
        spec, tables = spec or self._specs[0], tables or Tables()
        attention = self._attention(spec, context, modulation, latent_context, tables)
        return [attention, pointwise(partial(self.feed, norm=norm, matrices=matrices))]

    def feed(self, x: mx.array, norm: Norm, matrices: Matrices) -> mx.array:
        """Compute the second half of the block. Results are evaluated here, some tokens at a time (see `attend`)."""
        queue, tokens = Queue(), x.reshape(-1, x.shape[-1])
        size, count = tokens_at_once(backend(), self._specs[1].hidden), len(tokens)
        parts = (tokens[start : start + size] for start in range(0, count, size))
        results = [queue.add(part + self.mlp(norm(part), matrices)) for part in parts]
        return (results[0] if len(results) == 1 else mx.concatenate(results)).reshape(x.shape)

    def _attention(
        self,
        spec: AttentionSpec,
        context: StreamContext,
        modulation: mx.array | None,
        latent_context: Callable[[int], mx.array] | None,
        tables: Tables,
    ) -> Stage:
        norm: Norm = self.norm1
        matrices = self.attn.matrices
        if modulation is not None:
            norm, matrices = self.norm1.modulated(modulation[0], modulation[1], matrices)
        axis, waiting = context.axis, Delay(context.axis)
        # One window for keys and one for values: a window of both would have twice the elements.
        windows = make_window(spec, context), make_window(spec, context)
        bound = self.attn.bound if is_cpu() else math.inf  # elsewhere the attention is fused
        entered = 0

        def position(index: int) -> Grid:
            """Return the position of the first token, whose index along the stream's axis is `index`."""
            start = [0, 0, 0]
            start[axis.grid] = index
            return start[0], start[1], start[2]

        def step(x: mx.array | None, last: bool) -> mx.array | None:
            nonlocal entered
            pieces: Sequence[mx.array | None] = (None, None)
            queue = Queue()
            if x is not None:
                if latent_context is not None:
                    x = x + self.context_proj(latent_context(x.shape[axis]))
                waiting.push(x)
                keys_values = self.attn.keys_values(norm(x), matrices, position(entered), tables, spec.times)
                pieces = [queue.add(array) for array in keys_values]
                entered += x.shape[axis]
            key_view, value_view = (window.push(piece, last) for window, piece in zip(windows, pieces, strict=True))
            if key_view is None or value_view is None:
                return None
            inputs = waiting.take(key_view.output, key_view.num_outputs)
            queries = self.attn.queries(norm(inputs), matrices, position(key_view.output), tables, spec.times)
            queue.add(queries)
            arrays, starts = (key_view.frames, value_view.frames), _window_starts(key_view, spec, axis)
            result = attend(queries, arrays, starts, spec.kernel, bound, tables, spec.times)
            return inputs + self.attn.proj(result)

        return Stage(step, *windows, waiting)


def _window_starts(view: View, spec: LayerSpec, stream_axis: Axis) -> WindowStarts:
    """Return the start of the window of each output in the positions in view, along each axis."""
    starts: list[tuple[int, ...]] = []
    for axis in Axis:
        length = view.frames.shape[axis]
        outputs = (view.output - view.start, view.num_outputs) if axis is stream_axis else (0, length)
        stream_starts = view.window_starts if axis is stream_axis else None
        starts.append(stream_starts or window_starts(spec.window(axis), length, *outputs))
    return starts[0], starts[1], starts[2]


class TimestepEmbedder(nn.Module):
    """Embedding of noise levels (B,), scaled, as (B, channels) in float32. Checkpoint keys: `mlp.0`, `mlp.2`."""

    def __init__(self, shapes: Shapes) -> None:
        super().__init__()
        self.mlp = [linear(shapes, "t_embedder.mlp.0"), nn.SiLU(), linear(shapes, "t_embedder.mlp.2")]

    def __call__(self, timesteps: mx.array) -> mx.array:
        linear1, _, linear2 = self.mlp
        return linear2(nn.silu(linear1(sinusoid(timesteps)))).astype(mx.float32)


class SharedModulation(nn.Module):
    """Modulation of all blocks, (7, C) float32. Checkpoint keys: `proj`."""

    def __call__(self, embedding: mx.array) -> mx.array:
        return self.proj(nn.silu(embedding)).astype(mx.float32).reshape(MODULATION_ROWS, -1)


class LinearUpsample(nn.Module):
    """Linear layer and depth-to-space. If time doubles, the first frame is dropped. Checkpoint keys: `proj`.

    A keyframe plane becomes several frames, and only the last one is kept.
    """

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__()
        add_weights(self, spec.weights, spec.name)
        self._spec = spec

    def stages(
        self, context: StreamContext, cut: Callable[[mx.array], mx.array | None] | None = None, planes: int = 0
    ) -> list[Stage]:
        """Return one stage. `cut` drops the padding of its results. The last frames are `planes`."""
        trim, up = Trim(context.axis, 0 if context.first_frame else self._spec.trim), self._spec.up

        def step(x: mx.array | None, last: bool) -> mx.array | None:
            result = trim.push(None if x is None else depth_to_space(self.proj(x), up), last)
            if planes and up[0] > 1 and result is not None:
                end = result.shape[1] - up[0] * planes
                result = mx.concatenate([result[:, :end], result[:, end + up[0] - 1 :: up[0]]], axis=1)
            return cut(result) if cut is not None and result is not None else result

        return [Stage(step, trim)]
