"""Vocoders from mel spectrograms to waveforms: a generator, and in LTX-2.3 and later its bandwidth extension.

Operations are on signals (B, T, C). The modules have the original files' tensor names. All channels share the short
filters.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import cast

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ...backend.device import is_cpu
from ...shapes import Axis, WindowSpec
from ...streaming.context import Stage, StreamContext
from ...streaming.driver import branches
from ...streaming.window import Delay, View, Window, windowed
from ..base import Network
from ..convolution.conv3d import PreparedModule
from ..layers import add_weights, extend
from ..specs import LayerSpec, NetworkSpec
from .config import End, ExtensionConfig, GeneratorConfig, VocoderConfig
from .specs import (
    FILTER_BLOCK,
    FILTER_REACH,
    RESAMPLE_REACH,
    BranchesSpec,
    SignalSpec,
    TransposedSpec,
    generator_layers,
    vocoder_spec,
)

SLOPE = 0.1  # slope of leaky ReLU
_AMPLITUDE_EPS = 1e-9
_PI_HIGH = 3.140625  # few bits, so that multiples are exact
_PI_LOW = math.pi - _PI_HIGH
# Parameters of the windowed sincs for resampling: torchaudio's defaults.
ROLLOFF, ZERO_CROSSINGS = 0.99, 6
_END_SLOPE = 0.01  # slope of leaky ReLU before the last convolution of a generator
_LEAST_MEL = 1e-5  # the floor of spectrograms


class _TimeConv(PreparedModule):
    """Convolution whose `weight` is laid out once for `convolve`."""

    _is_arranged = False

    def prepare(self, *, keeps_dtype: bool = False) -> None:
        """Lay out the weight, in its dtype on any device."""
        self.weight = mx.contiguous(self._arranged())
        self._is_arranged = True
        mx.eval(self.weight)

    def _arranged(self) -> mx.array:
        return self.weight if self._is_arranged else arrange(self._kernel())

    def _kernel(self) -> mx.array:
        """Return the weight (O, K, I) of the convolution that it computes."""
        return self.weight


class Conv1d(_TimeConv):
    """Convolution along time. Checkpoint keys: `weight` (O, K, I), `bias` (O,) if it has one."""

    def __init__(self, spec: SignalSpec) -> None:
        super().__init__()
        add_weights(self, spec.weights, spec.name)
        self.spec = spec

    def window(self) -> Window:
        return Window(Axis.TIME, self.spec.window(Axis.TIME))

    def __call__(self, view: View, x: mx.array) -> mx.array:
        """Convolve the view's positions (B, T, C) after an activation, padded with zeros at the true ends."""
        if view.before or view.after:
            x = mx.pad(x, [(0, 0), (view.before, view.after), (0, 0)])
        return convolve(x, self._arranged(), self.get("bias"), dilation=self.spec.dilation)


class TransposedConv1d(_TimeConv):
    """Transposed convolution to `rate` positions per position. Checkpoint keys: `weight` (O, K, I), `bias` (O,).

    It is a convolution that makes all positions of a block at once.
    """

    def __init__(self, spec: TransposedSpec, slope: float | None) -> None:
        super().__init__()
        add_weights(self, spec.weights, spec.name)
        self._spec = spec
        self._slope = slope

    def _kernel(self) -> mx.array:
        spec = self._spec
        blocks = spec.window(Axis.TIME).kernel
        weight = mx.pad(self.weight, [(0, 0), (0, blocks * spec.rate - spec.kernel), (0, 0)])
        weight = weight.reshape(spec.out_channels, blocks, spec.rate, spec.in_channels)[:, ::-1]
        return weight.transpose(2, 0, 1, 3).reshape(spec.rate * spec.out_channels, blocks, spec.in_channels)

    def stages(self, context: StreamContext) -> list[Stage]:
        spec, weight = self._spec, self._arranged()
        window = Window(Axis.TIME, spec.window(Axis.TIME))
        num_inputs = 0

        def step(x: mx.array | None, last: bool) -> mx.array | None:
            nonlocal num_inputs
            num_inputs += 0 if x is None else x.shape[1]
            view = window.push(x, last)
            if view is None:
                return None
            signal = as_signal(view.frames)
            if self._slope is not None:
                signal = nn.leaky_relu(signal, self._slope)
            if view.before or view.after:
                signal = mx.pad(signal, [(0, 0), (view.before, view.after), (0, 0)])
            result = convolve(signal, weight, mx.tile(self.bias, spec.rate))
            result = result.reshape(len(result), -1, spec.out_channels)
            start = view.output * spec.rate - spec.cut  # index of the result's start in the output
            result = result[:, max(0, -start) :]
            if last:
                result = result[:, : spec.rate * num_inputs - max(0, start)]
            return as_frames(result) if result.shape[1] else None

        return [Stage(step, window)]


class AntialiasedActivation(nn.Module):
    """SnakeBeta at twice the rate, between two stored low-pass filters.

    Before each filter, the ends of its input are repeated. Checkpoint keys: `act.alpha` and `act.beta` (C,), the
    parameters of `snake` as logarithms; `upsample.filter`, `downsample.lowpass.filter` (12,).
    """

    def __init__(self, spec: SignalSpec) -> None:
        super().__init__()
        add_weights(self, spec.weights, spec.name)
        self._window = spec.window(Axis.TIME)

    def stages(self, context: StreamContext, skip: Delay | None = None) -> list[Stage]:
        """Return one stage, which also appends its input to `skip`."""
        taps = 2 * np.array(self.upsample.filter.astype(mx.float32))
        # The odd one of two results is the first, so that both depend on the same positions of the input.
        up = Filter(np.stack([taps[10::-2], taps[11::-2]]))
        down = Filter(np.array(self.downsample.lowpass.filter.astype(mx.float32))[None], stride=2)
        frequency = mx.exp(self.act.alpha.astype(mx.float32))
        amplitude = 1 / (mx.exp(self.act.beta.astype(mx.float32)) + _AMPLITUDE_EPS)

        def enter(x: mx.array) -> mx.array:
            if skip is not None:
                skip.push(x)
            return x

        def compute(view: View) -> mx.array:
            doubled = up(extend(as_signal(view.frames), Axis.TIME, view.before, view.after))
            before = max(0, FILTER_REACH - 2 * view.output)  # positions before the true start
            after = FILTER_REACH if view.after else 0
            doubled = snake(doubled[:, before : doubled.shape[1] - after], frequency, amplitude)
            return as_frames(down(extend(doubled, Axis.TIME, before, after)))

        return [windowed(Window(Axis.TIME, self._window), compute, *filter(None, [skip]), enter=enter)]


class DilatedBlock(nn.Module):
    """Residual block: for each dilation, x + conv2(act(conv1(act(x)))), where the first convolution is dilated.

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
        """Return one stage per layer."""
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
    end: Callable[[mx.array], mx.array] | None = None,
) -> Stage:
    """Return a convolution after a leaky ReLU with a `slope`, or without activation.

    Its input is pushed to the delay `enters`. The positions of the delay `skip` are added to its result, and then `end`
    is applied.
    """

    def compute(view: View) -> mx.array:
        if enters is not None:
            enters.push_view(view)
        signal = as_signal(view.frames)
        result = as_frames(conv(view, signal if slope is None else nn.leaky_relu(signal, slope)))
        result = result if skip is None else result + skip.take(view.output, view.num_outputs)
        return result if end is None else end(result)

    return windowed(window or conv.window(), compute, *filter(None, (enters, skip)))


class Filter:
    """Filter that all channels share, with `taps` (phases, K): `phases` outputs for every `stride` positions.

    Each block of outputs is one product with a matrix that has the taps along its diagonals.
    """

    def __init__(self, taps: np.ndarray, *, stride: int = 1) -> None:
        self._phases, self._kernel = taps.shape
        self._stride = stride
        matrix = np.zeros((FILTER_BLOCK, self._phases, (FILTER_BLOCK - 1) * stride + self._kernel), np.float32)
        for index in range(FILTER_BLOCK):
            matrix[index, :, index * stride : index * stride + self._kernel] = taps
        self._matrix = mx.array(matrix.reshape(FILTER_BLOCK * self._phases, -1))

    def __call__(self, x: mx.array) -> mx.array:
        """Filter (B, T, C) to (B, phases * (1 + (T - K) // stride), C)."""
        batch, length, channels = x.shape
        results = 1 + (length - self._kernel) // self._stride
        blocks = -(-results // FILTER_BLOCK)
        window = self._matrix.shape[1]
        missing = (blocks - 1) * FILTER_BLOCK * self._stride + window - length
        x = mx.pad(x, [(0, 0), (0, missing), (0, 0)]) if missing > 0 else mx.contiguous(x)
        strides = (x.shape[1] * channels, FILTER_BLOCK * self._stride * channels, channels, 1)
        windows = mx.as_strided(x, (batch, blocks, window, channels), strides)
        return (self._matrix @ windows).reshape(batch, -1, channels)[:, : results * self._phases]


def snake(x: mx.array, frequency: mx.array, amplitude: mx.array) -> mx.array:
    """Return x + amplitude * sin(frequency * x)^2."""
    if not is_cpu():
        return _snake_kernel(x, frequency, amplitude)
    return _add_square(x, _reduce(x, frequency), amplitude)


@partial(mx.compile, shapeless=True)
def _snake_kernel(x: mx.array, frequency: mx.array, amplitude: mx.array) -> mx.array:
    sine = mx.sin(x * frequency)
    return x + amplitude * (sine * sine)


# MLX's CPU backend computes sines one at a time (16 ns each). Here, the angle is reduced to half a period of the
# square, and the sine is its Taylor series, which the compiler vectorizes: a sixth of the time, with the same rounding
# error. Not `shapeless`, and two kernels: see `networks/layers.py` for the reasons.
@mx.compile
def _reduce(x: mx.array, frequency: mx.array) -> mx.array:
    """Reduce frequency * x by a multiple of pi to an angle between -pi/2 and pi/2."""
    angle = x * frequency
    periods = mx.round(angle * (1 / math.pi))
    return (angle - periods * _PI_HIGH) - periods * _PI_LOW


@mx.compile
def _add_square(x: mx.array, angle: mx.array, amplitude: mx.array) -> mx.array:
    square = angle * angle
    c1, c2, c3, c4, c5 = ((-1) ** term / math.factorial(2 * term + 1) for term in range(1, 6))
    ratio = 1 + square * (c1 + square * (c2 + square * (c3 + square * (c4 + square * c5))))  # ratio of sine to angle
    return x + amplitude * (square * (ratio * ratio))


def as_signal(frames: mx.array) -> mx.array:
    """Reshape (B, T, 1, 1, C) to (B, T, C)."""
    return frames[:, :, 0, 0]


def as_frames(signal: mx.array) -> mx.array:
    """Reshape (B, T, C) to (B, T, 1, 1, C)."""
    return signal[:, :, None, None]


def windowed_sinc(times: np.ndarray) -> np.ndarray:
    """Return sinc(times), windowed by a Hann window of `ZERO_CROSSINGS` to each side."""
    times = np.clip(times, -ZERO_CROSSINGS, ZERO_CROSSINGS)
    return np.sinc(times) * np.cos(times * math.pi / ZERO_CROSSINGS / 2) ** 2


def arrange(weight: mx.array) -> mx.array:
    """Return a stored weight (O, K, I) as `convolve` takes it (K, I, O), as a view."""
    return weight.transpose(1, 2, 0)


def convolve(x: mx.array, weight: mx.array, bias: mx.array | None, *, dilation: int = 1) -> mx.array:
    """Convolve (B, T, I) with (K, I, O) to (B, T - dilation * (K-1), O).

    A CPU adds up one product per tap. A GPU would read and write the sum for each tap, so it computes one product of
    unfolded positions.
    """
    return (_add_taps if is_cpu() else _unfold)(x, weight, bias, dilation)


def _add_taps(x: mx.array, weight: mx.array, bias: mx.array | None, dilation: int) -> mx.array:
    taps = len(weight)
    results = x.shape[1] - dilation * (taps - 1)
    total = bias
    for tap in range(taps):
        # The tap is a slice of length 1, since an index would copy the weight.
        view, matrix = x[:, tap * dilation : tap * dilation + results], weight[tap : tap + 1]
        total = view @ matrix if total is None else mx.addmm(total, view, matrix)
    assert total is not None
    return total


def _unfold(x: mx.array, weight: mx.array, bias: mx.array | None, dilation: int) -> mx.array:
    taps, in_channels, out_channels = weight.shape
    batch, length, _ = x.shape
    results = length - dilation * (taps - 1)
    strides = (length * in_channels, in_channels, dilation * in_channels, 1)
    unfolded = mx.as_strided(mx.contiguous(x), (batch, results, taps, in_channels), strides)
    unfolded = unfolded.reshape(batch, results, taps * in_channels)
    matrix = weight.reshape(-1, out_channels)
    return unfolded @ matrix if bias is None else mx.addmm(bias, unfolded, matrix)


class Generator(Network):
    """Generator from spectrograms (B, T, 1, 1, I) to samples (B, T*scale, 1, 1, 2), approximately in [-1, 1].

    It is the whole vocoder of LTX-2, and computes in float32, as all modules of this file do. Checkpoint keys:
    `conv_pre`, `ups.i`, `resblocks.j`, `conv_post`; if antialiased `act_post`.
    """

    dtype = mx.float32

    def __init__(self, config: GeneratorConfig) -> None:
        super().__init__(NetworkSpec(generator_layers(config, ""), stream_axes=(Axis.TIME,)))
        first, *middle, last = self.spec.layers
        antialiased = config.is_antialiased
        self.conv_pre = Conv1d(cast(SignalSpec, first))
        if antialiased:
            self.act_post = AntialiasedActivation(cast(SignalSpec, middle.pop()))
        slope = None if antialiased else SLOPE
        self.ups = [TransposedConv1d(spec, slope) for spec in middle if isinstance(spec, TransposedSpec)]
        self.resblocks = [
            DilatedBlock(chain, is_antialiased=antialiased)
            for spec in middle
            if isinstance(spec, BranchesSpec)
            for chain in spec.chains
        ]
        self.conv_post = Conv1d(cast(SignalSpec, last))
        self._end = config.end

    def stages(self, context: StreamContext) -> list[Stage]:
        """Return one stage per layer of the spec."""
        stages = [conv_stage(self.conv_pre)]
        count = len(self.resblocks) // len(self.ups)
        for index, up in enumerate(self.ups):
            stages += up.stages(context)
            blocks = self.resblocks[index * count : (index + 1) * count]
            stages.append(branches(Axis.TIME, [block.stages(context) for block in blocks], _mean))
        if "act_post" in self:
            stages += self.act_post.stages(context)
        slope = None if "act_post" in self else _END_SLOPE
        return [*stages, conv_stage(self.conv_post, slope, end=partial(_finish, end=self._end))]


def _mean(parts: list[mx.array]) -> mx.array:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total / len(parts)


def _finish(samples: mx.array, end: End) -> mx.array:
    if end is End.TANH:
        return mx.tanh(samples)
    return mx.clip(samples, -1, 1) if end is End.CLAMP else samples


class MelSTFT(nn.Module):
    """Stored bases of a spectrogram. Checkpoint keys: `mel_basis` (bins, F), `stft_fn.forward_basis` (2F, K)."""

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__()
        add_weights(self, spec.weights, spec.name)
        self._hop = spec.window(Axis.TIME).stride

    def __call__(self, signal: mx.array) -> mx.array:
        """Return the log-mel frames (B, 1 + (T - K) // hop, C * bins) of a signal (B, T, C), channel by channel."""
        basis = self.stft_fn.forward_basis
        frequencies, kernel = len(basis) // 2, basis.shape[1]
        batch, length, channels = signal.shape
        frames = 1 + (length - kernel) // self._hop
        strides = (length * channels, self._hop * channels, 1, channels)
        windows = mx.as_strided(mx.contiguous(signal), (batch, frames, channels, kernel), strides)
        products = windows @ basis.T
        real, imaginary = products[..., :frequencies], products[..., frequencies:]
        mel = mx.sqrt(real * real + imaginary * imaginary) @ self.mel_basis.T
        return mx.log(mx.maximum(mel, _LEAST_MEL)).reshape(batch, frames, -1)


class ExtendedVocoder(Network):
    """Vocoder of LTX-2.3 and later: a generator at 16 kHz, and one that extends its bandwidth to 48 kHz.

    The second generator takes a spectrogram of the first one's waveform. The resampled waveform is added to its output.
    Checkpoint keys: `vocoder`, `bwe_generator`, `mel_stft`.
    """

    dtype = mx.float32

    def __init__(self, config: VocoderConfig, extension: ExtensionConfig) -> None:
        super().__init__(vocoder_spec(config))
        self.vocoder = Generator(config.generator)
        self.bwe_generator = Generator(extension.generator)
        self.mel_stft = MelSTFT(next(layer for layer in self.spec.layers if layer.name == "mel_stft"))
        self._extension = extension

    def stages(self, context: StreamContext) -> list[Stage]:
        return [*self.vocoder.stages(context), *self.extension_stages(context)]

    def extension_stages(self, context: StreamContext) -> list[Stage]:
        """Return the stages from the first generator's waveform to the final waveform."""
        config, skip, side = self._extension, Delay(Axis.TIME), RESAMPLE_REACH
        window = Window(Axis.TIME, WindowSpec(config.window, config.hop, config.window - config.hop, 0))
        resampling = Window(Axis.TIME, WindowSpec(2 * side + 1, 1, side, side))
        times = np.arange(config.ratio)[:, None] / config.ratio - np.arange(-side, side + 1)
        resample = Filter(ROLLOFF * windowed_sinc(ROLLOFF * times))  # to `ratio` samples per sample
        num_inputs = num_outputs = 0  # samples of the waveform without padding, and samples of the result
        last_shape: tuple[int, ...] = ()

        def enter(x: mx.array | None, last: bool) -> mx.array | None:
            """Return the spectrogram of a waveform, and push the resampled waveform to `skip`."""
            nonlocal num_inputs, last_shape
            if x is not None:
                num_inputs, last_shape = num_inputs + x.shape[1], x.shape
            missing = -num_inputs % config.hop if last else 0
            if missing:  # up to a whole frame
                batch, _, *sizes = last_shape
                zeros = mx.zeros((batch, missing, *sizes))
                x = zeros if x is None else mx.concatenate([x, zeros], axis=1)
            resampled = resampling.push(x, last)
            if resampled is not None:
                signal = extend(as_signal(resampled.frames), Axis.TIME, resampled.before, resampled.after)
                skip.push(as_frames(resample(signal)))
            view = window.push(x, last)
            if view is None:
                return None
            signal = as_signal(view.frames)
            signal = mx.pad(signal, [(0, 0), (view.before, 0), (0, 0)]) if view.before else signal
            return as_frames(self.mel_stft(signal))

        def leave(x: mx.array | None, last: bool) -> mx.array | None:
            nonlocal num_outputs
            if x is None:
                return None
            # Padding at the end of the waveform makes samples that are not part of the result.
            count = min(x.shape[1], config.ratio * num_inputs - num_outputs)
            start, num_outputs = num_outputs, num_outputs + max(0, count)
            return mx.clip(x[:, :count] + skip.take(start, count), -1, 1) if count > 0 else None

        return [Stage(enter, window, resampling, skip), *self.bwe_generator.stages(context), Stage(leave, skip)]
