"""The bandwidth extension of the vocoders of LTX-2.3 and later."""

import math

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ...streaming.axis import Axis, WindowSpec
from ...streaming.context import Stage, StreamContext
from ...streaming.delay import Delay
from ...streaming.window import Window
from .config import ExtensionConfig, VocoderConfig
from .networks import Generator, Vocoder
from .signals import Filter, as_frames, as_signal, repeat_ends
from .specs import RESAMPLE_REACH, vocoder_spec

#: The floor of spectrograms.
LEAST_MEL = 1e-5
# Of the windowed sinc that resamples the waveform of the first generator.
_ROLLOFF, _ZERO_CROSSINGS = 0.99, 6


class MelSTFT(nn.Module):
    """The stored bases of a spectrogram. Checkpoint keys: `mel_basis` (bins, F), `stft_fn.forward_basis` (2F, K)."""

    def __init__(self, config: ExtensionConfig) -> None:
        super().__init__()
        frequencies = config.window // 2 + 1
        self.mel_basis = mx.zeros((config.bins, frequencies))
        self.stft_fn = nn.Module()
        self.stft_fn.forward_basis = mx.zeros((2 * frequencies, config.window))
        self._hop = config.hop

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
        return mx.log(mx.maximum(mel, LEAST_MEL)).reshape(batch, frames, -1)


class ExtendedVocoder(nn.Module):
    """The vocoder of LTX-2.3 and later: a generator at 16 kHz, and one that extends its bandwidth to 48 kHz.

    The waveform of the first, resampled, is added to that of the second, which takes its spectrogram. Checkpoint keys:
    `vocoder`, `bwe_generator`, `mel_stft`.
    """

    statistics = None
    dtype = mx.float32

    def __init__(self, config: VocoderConfig, extension: ExtensionConfig) -> None:
        super().__init__()
        self.vocoder = Generator(config.generator)
        self.bwe_generator = Generator(extension.generator)
        self.mel_stft = MelSTFT(extension)
        self.spec = vocoder_spec(config)
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
    taps = np.zeros((ratio, 2 * RESAMPLE_REACH + 1))
    for phase, column in np.ndindex(*taps.shape):
        time = _ROLLOFF * (phase / ratio - (column - RESAMPLE_REACH))
        window = math.cos(math.pi * min(max(time, -_ZERO_CROSSINGS), _ZERO_CROSSINGS) / _ZERO_CROSSINGS / 2) ** 2
        if phase + ratio * (2 * RESAMPLE_REACH - column) <= 2 * RESAMPLE_REACH * ratio:
            taps[phase, column] = np.sinc(time) * window * _ROLLOFF
    return taps


def make_vocoder(config: VocoderConfig) -> Vocoder | ExtendedVocoder:
    """A vocoder with weights of zero."""
    return Vocoder(config) if config.extension is None else ExtendedVocoder(config, config.extension)
