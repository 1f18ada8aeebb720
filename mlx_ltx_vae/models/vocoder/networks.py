"""The networks of a vocoder: a generator, and in LTX-2.3 and later its bandwidth extension.

Checkpoint names are those of the original files.
"""

from functools import partial

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ...shapes import Axis, WindowSpec
from ...streaming.context import Stage, StreamContext
from ...streaming.driver import branches
from ...streaming.window import Delay, Window
from ..base import Network
from ..layers import add_weights
from ..specs import LayerSpec
from .layers import (
    ROLLOFF,
    SLOPE,
    AntialiasedActivation,
    Conv1d,
    Filter,
    ResidualBlock,
    TransposedConv1d,
    as_frames,
    as_signal,
    conv_stage,
    repeat_ends,
    windowed_sinc,
)
from .specs import (
    RESAMPLE_REACH,
    BranchesSpec,
    End,
    ExtensionConfig,
    GeneratorConfig,
    SignalSpec,
    TransposedSpec,
    VocoderConfig,
    generator_spec,
    vocoder_spec,
)

_END_SLOPE = 0.01  # of leaky ReLU in front of the last convolution of a generator
_LEAST_MEL = 1e-5  # the floor of spectrograms


class Generator(Network):
    """A spectrogram (B, T, 1, 1, I) to samples (B, T*scale, 1, 1, 2), approximately in [-1, 1].

    It is the whole vocoder of LTX-2, and computes in float32, as everything here does. Checkpoint keys: `conv_pre`,
    `ups.i`, `resblocks.j`, `conv_post`; if antialiased `act_post`.
    """

    dtype = mx.float32

    def __init__(self, config: GeneratorConfig) -> None:
        super().__init__(generator_spec(config))
        first, *middle, last = self.spec.layers
        antialiased = config.is_antialiased
        self.conv_pre = Conv1d(_signal(first))
        if antialiased:
            self.act_post = AntialiasedActivation(_signal(middle.pop()))
        slope = None if antialiased else SLOPE
        self.ups = [TransposedConv1d(spec, slope) for spec in middle if isinstance(spec, TransposedSpec)]
        self.resblocks = [
            ResidualBlock(chain, is_antialiased=antialiased)
            for spec in middle
            if isinstance(spec, BranchesSpec)
            for chain in spec.chains
        ]
        self.conv_post = Conv1d(_signal(last))
        self._end = config.end

    def stages(self, context: StreamContext) -> list[Stage]:
        """One stage per layer of the spec."""
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


def _signal(spec: object) -> SignalSpec:
    assert isinstance(spec, SignalSpec)
    return spec


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
    """The stored bases of a spectrogram. Checkpoint keys: `mel_basis` (bins, F), `stft_fn.forward_basis` (2F, K)."""

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__()
        add_weights(self, spec.weights, spec.name)
        self._hop = spec.window(Axis.TIME).stride

    def __call__(self, signal: mx.array) -> mx.array:
        """(B, T, C) to its log-mel frames (B, 1 + (T - K) // hop, C * bins), channel by channel."""
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
    """The vocoder of LTX-2.3 and later: a generator at 16 kHz, and one that extends its bandwidth to 48 kHz.

    The waveform of the first, resampled, is added to that of the second, which takes its spectrogram. Checkpoint keys:
    `vocoder`, `bwe_generator`, `mel_stft`.
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
        """From the waveform of the first generator to the final one."""
        skip = Delay(Axis.TIME)
        enter = _SpectrogramStage(self.mel_stft, self._extension, skip)
        done, ratio = 0, self._extension.ratio

        def leave(x: mx.array | None, last: bool) -> mx.array | None:
            nonlocal done
            if x is None:
                return None
            # Frames that are padded at the end make samples that the waveform does not have.
            count = min(x.shape[1], ratio * enter.seen - done)
            start, done = done, done + max(0, count)
            return mx.clip(x[:, :count] + skip.take(start, count), -1, 1) if count > 0 else None

        return [
            Stage(enter.step, enter.window, enter.resampling, skip),
            *self.bwe_generator.stages(context),
            Stage(leave, skip),
        ]


class _SpectrogramStage:
    """Returns the spectrogram of a waveform, and appends the resampled waveform to `skip`."""

    def __init__(self, mel_stft: MelSTFT, config: ExtensionConfig, skip: Delay) -> None:
        self.seen = 0  # samples of the waveform, without padding
        before = config.window - config.hop
        self.window = Window(Axis.TIME, WindowSpec(config.window, config.hop, before, 0))
        side = RESAMPLE_REACH
        self.resampling = Window(Axis.TIME, WindowSpec(2 * side + 1, 1, side, side))
        self._mel_stft, self._skip, self._hop = mel_stft, skip, config.hop
        self._resample = Filter(resampling_taps(config.ratio))
        self._last_shape: tuple[int, ...] = ()

    def step(self, x: mx.array | None, last: bool) -> mx.array | None:
        if x is not None:
            self.seen += x.shape[1]
            self._last_shape = x.shape
        missing = -self.seen % self._hop if last else 0
        if missing:  # up to a whole frame
            batch, _, *rest = self._last_shape
            zeros = mx.zeros((batch, missing, *rest))
            x = zeros if x is None else mx.concatenate([x, zeros], axis=1)
        resampled = self.resampling.push(x, last)
        if resampled is not None:
            ends = repeat_ends(as_signal(resampled.frames), resampled.before, resampled.after)
            self._skip.push(as_frames(self._resample(ends)))
        view = self.window.push(x, last)
        if view is None:
            return None
        signal = as_signal(view.frames)
        if view.before:
            signal = mx.pad(signal, [(0, 0), (view.before, 0), (0, 0)])
        return as_frames(self._mel_stft(signal))


def resampling_taps(ratio: int) -> np.ndarray:
    """A windowed sinc (ratio, K), which makes `ratio` samples of each."""
    times = np.arange(ratio)[:, None] / ratio - np.arange(-RESAMPLE_REACH, RESAMPLE_REACH + 1)
    return ROLLOFF * windowed_sinc(ROLLOFF * times)


def make_vocoder(config: VocoderConfig) -> Generator | ExtendedVocoder:
    """A vocoder with weights of zero."""
    return Generator(config.generator) if config.extension is None else ExtendedVocoder(config, config.extension)
