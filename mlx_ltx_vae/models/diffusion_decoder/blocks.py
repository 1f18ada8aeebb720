"""The modules of the diffusion decoder: norm, rotary embedding, attention, MLP, upsampling."""

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
from ..specs import LayerSpec, Rate, Shapes
from .attention import Queue, Tables, attend, rotate
from .neighborhood import Times, WindowStarts, tokens_at_once
from .specs import MODULATION_ROWS, SINUSOID_CHANNELS, AttentionSpec, MLPSpec

_NORM_EPS = 1e-6
_BOUND_MARGIN = 1.1  # for rounding of normalized queries and keys


#: (bias, matrix (in, out)) of each linear layer; a bias may be None.
Matrices = Sequence[tuple[mx.array | None, mx.array]]


class RMSNorm(nn.Module):
    """RMS norm with a weight, computed in float32. Checkpoint keys: `weight`."""

    def __call__(self, x: mx.array, weight: mx.array | None = None) -> mx.array:
        """The norm of `x`, in one kernel on a GPU; with the result of `modulated` instead of the weight."""
        weight = self.weight if weight is None else weight
        if not is_cpu():
            return mx.fast.rms_norm(x, weight, _NORM_EPS)
        return _scale(x, inverse_rms(x, _NORM_EPS), weight)

    def modulated(self, scale: mx.array, shift: mx.array, matrices: Matrices) -> tuple[mx.array, Matrices]:
        """The weight and the matrices after the norm, with a modulation (C,) float32: the shift is in their biases.

        A kernel of a GPU that adds a shift would take the sum over the channels as another one.
        """
        weight = (self.weight.astype(mx.float32) * (1 + scale)).astype(self.weight.dtype)
        shifted = []
        for bias, matrix in matrices:
            constant = shift @ matrix.astype(mx.float32)
            shifted.append(((constant if bias is None else bias + constant).astype(matrix.dtype), matrix))
        mx.eval(weight, [bias for bias, _ in shifted])
        return weight, shifted


@mx.compile
def _scale(x: mx.array, inverse: mx.array, weight: mx.array) -> mx.array:
    return (x.astype(mx.float32) * inverse * weight.astype(mx.float32)).astype(x.dtype)


def _apply(x: mx.array, layer: tuple[mx.array | None, mx.array]) -> mx.array:
    bias, matrix = layer
    return x @ matrix if bias is None else mx.addmm(bias, x, matrix)


class Attention(nn.Module):
    """Queries, keys and values of a neighborhood attention, and what follows it.

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
        """The weights of queries, keys and values."""
        if "qkv" not in self:
            return [(layer.bias, layer.weight.T) for layer in (self.to_q, self.to_k, self.to_v)]
        parts = zip(mx.split(self.qkv.bias, 3), mx.split(self.qkv.weight, 3), strict=True)
        return [(bias, weight.T) for bias, weight in parts]

    def queries(self, x: mx.array, matrices: Matrices, first: Grid, tables: Tables, times: Times = ()) -> mx.array:
        """(B, T, H, W, heads, D), rotated; `first` is the position of the first, `times` the times of planes."""
        return rotate(self.q_norm(self._split(_apply(x, matrices[0]))), first, tables.turns, times)

    def keys_values(
        self, x: mx.array, matrices: Matrices, first: Grid, tables: Tables, times: Times = ()
    ) -> tuple[mx.array, mx.array]:
        """(B, T, H, W, heads * D) each: keys, which are rotated, and values."""
        keys = rotate(self.k_norm(self._split(_apply(x, matrices[1]))), first, tables.turns, times)
        values = _apply(x, matrices[2])
        return keys.reshape(values.shape), values

    def _split(self, x: mx.array) -> mx.array:
        return x.reshape(*x.shape[:-1], -1, self._head_dim)


class MLP(nn.Module):
    """w_down(silu(w_gate x) * w_up x). Checkpoint keys: `w_up`, `w_gate`, `w_down`, without biases."""

    @property
    def matrices(self) -> Matrices:
        """The weights of the gate and of what it multiplies."""
        return [(None, layer.weight.T) for layer in (self.w_gate, self.w_up)]

    def __call__(self, x: mx.array, matrices: Matrices) -> mx.array:
        gate, up = (_apply(x, layer) for layer in matrices)
        return self.w_down(gated_silu(gate, up))


class NeighborhoodBlock(PreparedModule):
    """x + attention(norm(x)), then x + MLP(norm(x)).

    Blocks of the denoising first add a projection of the context, and modulate both norms. Static gates, where a
    checkpoint has them, scale the three branches; `prepare` multiplies the last matrices of these by them. Checkpoint
    keys: `norm1`, `attn`, `norm2`, `mlp`; of the denoising `context_proj`, `scale_shift_table` (7, C), and `gate_msa`,
    `gate_mlp`, `gate_ctx` (C,).
    """

    scale_shift_table: mx.array

    def __init__(self, first: AttentionSpec, second: MLPSpec) -> None:
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(), RMSNorm()
        self.attn, self.mlp = Attention(first.head_dim), MLP()
        add_weights(self, first.weights + second.weights, first.name.rpartition(".")[0])
        self._specs = first, second

    def prepare(self, *, keeps_dtype: bool = False) -> None:
        """Multiply the gates into the matrices, which takes no time in a decode."""
        for name, last in self._gated():
            gate = self.pop(name).astype(mx.float32)
            for key in filter(last.__contains__, ("weight", "bias")):
                stored = last[key]
                last[key] = (stored * (gate[:, None] if stored.ndim > 1 else gate)).astype(stored.dtype)
            mx.eval(last.parameters())
        if "scale_shift_table" in self:
            self.scale_shift_table = mx.contiguous(self.scale_shift_table)
            mx.eval(self.scale_shift_table)

    def _gated(self) -> list[tuple[str, nn.Linear]]:
        """The gates that are still to be multiplied into a matrix, by name."""
        if "gate_msa" not in self:
            return []
        return [("gate_msa", self.attn.proj), ("gate_mlp", self.mlp.w_down), ("gate_ctx", self.context_proj)]

    def stages(
        self,
        context: StreamContext,
        rate: Rate = (1, 1, 1),
        modulation: mx.array | None = None,
        latent_context: Callable[[int], mx.array] | None = None,
        tables: Tables | None = None,
        spec: AttentionSpec | None = None,
    ) -> list[Stage]:
        """A stage for the attention and one for the MLP.

        Args:
            rate: positions per frame, row and column of the video, by which a band knows where it begins.
            modulation: (7, C) float32, shared by all blocks of a denoising step.
            latent_context: takes the context of the positions that arrive, given their number.
            tables: the stream's; None for its own.
            spec: of the attention, if there are keyframe planes.
        """
        assert not self._gated(), "prepare was called"
        first = second = None
        to_attention, to_mlp = self.attn.matrices, self.mlp.matrices
        if modulation is not None:
            rows = modulation + self.scale_shift_table.astype(mx.float32)
            first, to_attention = self.norm1.modulated(rows[0], rows[1], to_attention)
            second, to_mlp = self.norm2.modulated(rows[3], rows[4], to_mlp)
        spec, tables = spec or self._specs[0], tables or Tables()
        attention = self._attention(
            spec, context, rate, partial(self.norm1, weight=first), to_attention, latent_context, tables
        )
        return [attention, pointwise(partial(self.feed, norm=partial(self.norm2, weight=second), matrices=to_mlp))]

    def feed(self, x: mx.array, norm: Callable[[mx.array], mx.array], matrices: Matrices) -> mx.array:
        """The second half of the block. Results are evaluated here, some tokens at a time (see `attend`)."""
        queue, tokens = Queue(), x.reshape(-1, x.shape[-1])
        size, count = tokens_at_once(backend(), self._specs[1].hidden), len(tokens)
        parts = (tokens[start : start + size] for start in range(0, count, size))
        results = [queue.add(part + self.mlp(norm(part), matrices)) for part in parts]
        return (results[0] if len(results) == 1 else mx.concatenate(results)).reshape(x.shape)

    def _attention(
        self,
        spec: AttentionSpec,
        context: StreamContext,
        rate: Rate,
        norm: Callable[[mx.array], mx.array],
        matrices: Matrices,
        latent_context: Callable[[int], mx.array] | None,
        tables: Tables,
    ) -> Stage:
        axis, waiting = context.axis, Delay(context.axis)
        # Of keys and of values: one window of both would have twice the elements.
        windows = make_window(spec, context), make_window(spec, context)
        bound = self.attn.bound if is_cpu() else math.inf  # elsewhere the attention is fused
        row = 0 if context.neighbors is None else int(context.origins[0][1] * rate[1])
        entered = 0

        def position(index: int) -> Grid:
            """The position of the first token, if the first along the stream's axis has this index."""
            at = [0, row, 0]
            at[axis.grid] += index
            return at[0], at[1], at[2]

        def step(x: mx.array | None, last: bool) -> mx.array | None:
            nonlocal entered
            made: Sequence[mx.array | None] = (None, None)
            queue = Queue()
            if x is not None:
                if latent_context is not None:
                    given = latent_context(x.shape[axis])
                    x = x + self.context_proj(given)
                waiting.push(x)
                new = self.attn.keys_values(norm(x), matrices, position(entered), tables, spec.times)
                made = [queue.add(each) for each in new]
                entered += x.shape[axis]
            keys, values = (window.push(each, last) for window, each in zip(windows, made, strict=True))
            if keys is None or values is None:
                return None
            own = waiting.take(keys.output, keys.num_outputs)
            queries = self.attn.queries(norm(own), matrices, position(keys.output), tables, spec.times)
            queue.add(queries)
            (seen, starts), (contents, _) = (_extend(view, spec, context) for view in (keys, values))
            result = attend(queries, (seen, contents), starts, spec.kernel, bound, tables, spec.times)
            return own + self.attn.proj(result)

        return Stage(step, *windows, waiting)


def _extend(view: View, spec: LayerSpec, context: StreamContext) -> tuple[mx.array, WindowStarts]:
    """The positions in view, including neighboring bands', and where the window of each output begins."""
    frames, before = view.frames, 0
    rows = frames.shape[Axis.HEIGHT]
    if view.halo is not None:
        frames, has_front, _ = view.halo.extend(frames, view.start)
        before = spec.halo(Axis.HEIGHT)[0] if has_front else 0
    starts: list[tuple[int, ...]] = []
    for axis in Axis:
        outputs = (before, rows) if axis is Axis.HEIGHT else (0, frames.shape[axis])
        if axis is context.axis:
            outputs = view.output - view.start, view.num_outputs
        own = view.window_starts if axis is context.axis else None
        starts.append(own or window_starts(spec.window(axis), frames.shape[axis], *outputs))
    return frames, (starts[0], starts[1], starts[2])


class TimestepEmbedder(nn.Module):
    """Noise levels (B,), scaled, to (B, channels) in float32. Checkpoint keys: `mlp.0`, `mlp.2`."""

    def __init__(self, shapes: Shapes) -> None:
        super().__init__()
        self.mlp = [linear(shapes, "t_embedder.mlp.0"), nn.SiLU(), linear(shapes, "t_embedder.mlp.2")]

    def __call__(self, timesteps: mx.array) -> mx.array:
        first, _, second = self.mlp
        return second(nn.silu(first(sinusoid(timesteps, SINUSOID_CHANNELS)))).astype(mx.float32)


class SharedModulation(nn.Module):
    """The modulation of all blocks, (7, C) float32. Checkpoint keys: `proj`."""

    def __call__(self, embedding: mx.array) -> mx.array:
        return self.proj(nn.silu(embedding)).astype(mx.float32).reshape(MODULATION_ROWS, -1)


class LinearUpsample(nn.Module):
    """A linear layer and depth-to-space; if time doubles, the first frame is dropped. Checkpoint keys: `proj`.

    Of the frames that a keyframe plane becomes, the last one is kept.
    """

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__()
        add_weights(self, spec.weights, spec.name)
        self._spec = spec

    def stages(
        self, context: StreamContext, cut: Callable[[mx.array], mx.array | None] | None = None, planes: int = 0
    ) -> list[Stage]:
        """One stage; `cut` drops what does not remain of its results. The last frames are `planes`."""
        trim, up = Trim(context.axis, 0 if context.is_inside else self._spec.trim), self._spec.up

        def step(x: mx.array | None, last: bool) -> mx.array | None:
            result = trim.push(None if x is None else depth_to_space(self.proj(x), up), last)
            if planes and up[0] > 1 and result is not None:
                end = result.shape[1] - up[0] * planes
                result = mx.concatenate([result[:, :end], result[:, end + up[0] - 1 :: up[0]]], axis=1)
            return cut(result) if cut is not None and result is not None else result

        return [Stage(step, trim)]
