"""The layers of a vocoder. Checkpoint names are those of the original files."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ...streaming.axis import Axis
from ...streaming.context import Stage, StreamContext
from ...streaming.delay import Delay
from ...streaming.window import View, Window
from ..convolution.prepared import PreparedModule
from .signals import Filter, as_frames, as_signal, convolve, repeat_ends, snake
from .specs import FILTER_REACH, SignalSpec, TransposedSpec

SLOPE = 0.1  # of leaky ReLU
_AMPLITUDE_EPS = 1e-9


class Conv1d(nn.Module):
    """A convolution along time. Checkpoint keys: `weight` (O, K, I), `bias` (O,) if it has one."""

    def __init__(self, spec: SignalSpec) -> None:
        super().__init__()
        for name, shape in spec.weights:
            setattr(self, name.rpartition(".")[2], mx.zeros(shape))
        self.spec = spec

    def window(self) -> Window:
        return Window(Axis.TIME, self.spec.window(Axis.TIME))

    def __call__(self, view: View, x: mx.array) -> mx.array:
        """Convolve the view's positions (B, T, C) after an activation, padded with zeros at the true ends."""
        if view.before or view.after:
            x = mx.pad(x, [(0, 0), (view.before, view.after), (0, 0)])
        return convolve(x, self.weight, self.get("bias"), dilation=self.spec.dilation)


class TransposedConv1d(PreparedModule):
    """A transposed convolution: exactly `rate` positions of each. Checkpoint keys: `weight` (O, K, I), `bias` (O,)."""

    def __init__(self, spec: TransposedSpec, slope: float | None) -> None:
        super().__init__()
        self.weight = mx.zeros((spec.out_channels, spec.kernel, spec.in_channels))
        self.bias = mx.zeros((spec.out_channels,))
        self._spec = spec
        self._slope = slope
        self._is_arranged = False

    def prepare(self, *, keeps_dtype: bool = False) -> None:
        """Lay out the weight, once, as that of a convolution that makes all positions of a block at once."""
        self.weight = self._arranged()
        self._is_arranged = True
        mx.eval(self.weight)

    def _arranged(self) -> mx.array:
        if self._is_arranged:
            return self.weight
        spec = self._spec
        blocks = spec.window(Axis.TIME).kernel
        weight = mx.pad(self.weight, [(0, 0), (0, blocks * spec.rate - spec.kernel), (0, 0)])
        weight = weight.reshape(spec.out_channels, blocks, spec.rate, spec.in_channels)[:, ::-1]
        return weight.transpose(2, 0, 1, 3).reshape(spec.rate * spec.out_channels, blocks, spec.in_channels)

    def stages(self, context: StreamContext) -> list[Stage]:
        spec, weight = self._spec, self._arranged()
        window = Window(Axis.TIME, spec.window(Axis.TIME))
        seen = 0

        def step(x: mx.array | None, last: bool) -> mx.array | None:
            nonlocal seen
            seen += 0 if x is None else x.shape[1]
            view = window.push(x, last)
            if view is None:
                return None
            signal = as_signal(view.frames)
            if self._slope is not None:
                signal = nn.leaky_relu(signal, self._slope)
            if view.before or view.after:
                signal = mx.pad(signal, [(0, 0), (view.before, view.after), (0, 0)])
            result = convolve(signal, weight, None)
            result = result.reshape(len(result), -1, spec.out_channels) + self.bias
            start = view.output * spec.rate - spec.cut  # of the result, in the output
            result = result[:, max(0, -start) :]
            if last:
                result = result[:, : spec.rate * seen - max(0, start)]
            return as_frames(result) if result.shape[1] else None

        return [Stage(step, window)]


class SnakeBeta(nn.Module):
    """The parameters of `snake`, as logarithms. Checkpoint keys: `alpha`, `beta` (C,)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = mx.zeros((channels,))
        self.beta = mx.zeros((channels,))


class AntialiasedActivation(nn.Module):
    """SnakeBeta at twice the rate, between two stored low-pass filters.

    Before each filter, the ends of its own input are repeated. Checkpoint keys: `act`, `upsample.filter`,
    `downsample.lowpass.filter` (12,).
    """

    def __init__(self, spec: SignalSpec) -> None:
        super().__init__()
        shapes = dict(spec.weights)
        taps = shapes[f"{spec.name}.upsample.filter"]
        self.act = SnakeBeta(spec.in_channels)
        self.upsample, self.downsample = nn.Module(), nn.Module()
        self.upsample.filter = mx.zeros(taps)
        self.downsample.lowpass = nn.Module()
        self.downsample.lowpass.filter = mx.zeros(taps)
        self._window = spec.window(Axis.TIME)

    def stages(self, context: StreamContext, skip: Delay | None = None) -> list[Stage]:
        """One stage, which also appends its input to `skip`."""
        window = Window(Axis.TIME, self._window)
        stored = 2 * np.array(self.upsample.filter.astype(mx.float32))
        # Of two results, the first is the odd one: both then depend on the same positions of the input.
        up = Filter(np.stack([stored[10::-2], stored[11::-2]]))
        down = Filter(np.array(self.downsample.lowpass.filter.astype(mx.float32))[None], stride=2)
        frequency = mx.exp(self.act.alpha.astype(mx.float32))
        amplitude = 1 / (mx.exp(self.act.beta.astype(mx.float32)) + _AMPLITUDE_EPS)

        def step(x: mx.array | None, last: bool) -> mx.array | None:
            if skip is not None and x is not None:
                skip.push(x)
            view = window.push(x, last)
            if view is None:
                return None
            doubled = up(repeat_ends(as_signal(view.frames), view.before, view.after))
            before = max(0, FILTER_REACH - 2 * view.output)  # positions in front of the true start
            after = FILTER_REACH if view.after else 0
            doubled = snake(doubled[:, before : doubled.shape[1] - after], frequency, amplitude)
            return as_frames(down(repeat_ends(doubled, before, after)))

        return [Stage(step, window) if skip is None else Stage(step, window, skip)]


class ResidualBlock(nn.Module):
    """For each dilation, x + conv2(act(conv1(act(x)))), where the first convolution is dilated.

    Checkpoint keys: `convs1.i`, `convs2.i`; if antialiased `acts1.i`, `acts2.i`.
    """

    def __init__(self, layers: tuple[SignalSpec, ...], *, is_antialiased: bool) -> None:
        super().__init__()
        pairs = len(layers) // (4 if is_antialiased else 2)
        convs = layers[1::2] if is_antialiased else layers
        self.convs1 = [Conv1d(convs[2 * index]) for index in range(pairs)]
        self.convs2 = [Conv1d(convs[2 * index + 1]) for index in range(pairs)]
        if is_antialiased:
            self.acts1 = [AntialiasedActivation(layers[4 * index]) for index in range(pairs)]
            self.acts2 = [AntialiasedActivation(layers[4 * index + 2]) for index in range(pairs)]

    def stages(self, context: StreamContext) -> list[Stage]:
        """One stage per layer."""
        stages: list[Stage] = []
        for index, (first, second) in enumerate(zip(self.convs1, self.convs2, strict=True)):
            if "acts1" in self:
                skip = Delay(Axis.TIME)
                stages += self.acts1[index].stages(context, skip)
                stages.append(conv_stage(first))
                stages += self.acts2[index].stages(context)
                stages.append(conv_stage(second, skip=skip))
            else:
                window = first.window()
                skip = Delay(Axis.TIME, window)
                stages.append(conv_stage(first, SLOPE, window=window, enters=skip))
                stages.append(conv_stage(second, SLOPE, skip=skip))
        return stages


def conv_stage(
    conv: Conv1d,
    slope: float | None = None,
    *,
    window: Window | None = None,
    enters: Delay | None = None,
    skip: Delay | None = None,
) -> Stage:
    """A convolution behind a leaky ReLU with a `slope`, whose input enters one delay, and to which another is added."""
    window = window or conv.window()

    def step(x: mx.array | None, last: bool) -> mx.array | None:
        view = window.push(x, last)
        if view is None:
            return None
        if enters is not None:
            enters.push_view(view)
        signal = as_signal(view.frames)
        result = as_frames(conv(view, signal if slope is None else nn.leaky_relu(signal, slope)))
        return result if skip is None else result + skip.take(view.output, view.results)

    return Stage(step, window, *(delay for delay in (enters, skip) if delay is not None))
