"""Computation of the log-mel spectrogram that the encoder takes, from a waveform."""

import math
from collections.abc import Iterable, Iterator

import mlx.core as mx
import numpy as np

from ...backend.mlx_utils import from_numpy
from ...errors import LatentsError
from .config import MelConfig
from .vocoder import ROLLOFF, ZERO_CROSSINGS, windowed_sinc

_FLOOR = 1e-5
_GATHERED_VALUES = 2**20  # values that are multiplied at a time
# Slaney's mel scale: linear up to 1000 Hz, then logarithmic.
_STEP, _CORNER, _LOG_STEP = 200 / 3, 1000.0, math.log(6.4) / 27


def spectrogram(pieces: Iterable[np.ndarray], config: MelConfig, frames: int) -> Iterator[mx.array]:
    """Yield the log-mel spectrogram (B, n, bins, 1, channels) of a waveform, at most `frames` frames at a time.

    The waveform comes in pieces (B, channels, samples) of any lengths and has the rate of `config`. Frames are
    centered, and the ends reflected.
    """
    window = mx.array(0.5 - 0.5 * np.cos(2 * np.pi * np.arange(config.window) / config.window), mx.float32)
    basis = mx.array(mel_basis(config).T.astype(np.float32))
    reflected = _reflected(pieces, config.window // 2, config.sample_rate)
    for part in _overlapping(reflected, config.window, config.hop, frames):
        batch, channels, length = part.shape
        count = 1 + (length - config.window) // config.hop
        strides = (channels * length, length, config.hop, 1)
        framed = mx.as_strided(from_numpy(part), (batch, channels, count, config.window), strides)
        mel = mx.abs(mx.fft.rfft(framed * window)) @ basis
        yield mx.log(mx.maximum(mel, _FLOOR)).transpose(0, 2, 3, 1)[:, :, :, None]


def _reflected(pieces: Iterable[np.ndarray], side: int, sample_rate: int) -> Iterator[np.ndarray]:
    """Yield a waveform in pieces, extended at both ends by a reflection of `side` samples."""
    long_pieces = _gathered(pieces, side + 1)
    first_piece = next(long_pieces, None)
    length = 0 if first_piece is None else first_piece.shape[2]
    if first_piece is None or length <= side:
        raise LatentsError(
            f"the audio has {length} samples at {sample_rate} Hz, and the encoder needs more than {side}; use longer "
            "audio."
        )
    yield first_piece[:, :, side:0:-1]
    yield first_piece
    end = first_piece[:, :, -side - 1 :]
    for piece in long_pieces:
        yield piece
        end = np.concatenate([end, piece], axis=2)[:, :, -side - 1 :]
    yield end[:, :, -2::-1]


def _overlapping(pieces: Iterable[np.ndarray], window: int, hop: int, count: int) -> Iterator[np.ndarray]:
    """Yield parts of a waveform with `count` windows each, the last one with fewer, that are `hop` samples apart."""
    part_length = window + (count - 1) * hop
    buffer: np.ndarray | None = None
    for piece in _gathered(pieces, count * hop):
        buffer = piece if buffer is None else np.concatenate([buffer, piece], axis=2)
        while buffer.shape[2] >= part_length:
            yield buffer[:, :, :part_length]
            buffer = buffer[:, :, count * hop :]
    if buffer is not None and buffer.shape[2] >= window:
        yield buffer[:, :, : buffer.shape[2] - (buffer.shape[2] - window) % hop]


def _gathered(pieces: Iterable[np.ndarray], least: int) -> Iterator[np.ndarray]:
    """Yield the waveform in pieces of at least `least` samples, except for the last one."""
    waiting: list[np.ndarray] = []
    length = 0
    for piece in pieces:
        waiting.append(piece)
        length += piece.shape[2]
        if length >= least:
            yield np.concatenate(waiting, axis=2)
            waiting, length = [], 0
    if length:
        yield np.concatenate(waiting, axis=2)


def mel_basis(config: MelConfig) -> np.ndarray:
    """Return triangular filters (bins, frequencies), evenly spaced on Slaney's mel scale, each of unit area."""
    grid = np.linspace(0, config.sample_rate / 2, config.window // 2 + 1)
    mels = np.linspace(_to_mel(config.low), _to_mel(config.high), config.bins + 2)
    linear = mels * _STEP
    edges = np.where(mels < _CORNER / _STEP, linear, _CORNER * np.exp(_LOG_STEP * (mels - _CORNER / _STEP)))
    rising = (grid - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - grid) / np.diff(edges)[1:, None]
    return np.maximum(0, np.minimum(rising, falling)) * (2 / (edges[2:] - edges[:-2]))[:, None]


def _to_mel(frequency: float) -> float:
    return frequency / _STEP if frequency < _CORNER else _CORNER / _STEP + math.log(frequency / _CORNER) / _LOG_STEP


def resample(pieces: Iterable[np.ndarray], rate: int, new_rate: int) -> Iterator[np.ndarray]:
    """Resample a waveform by a sinc that is windowed by a Hann window.

    It arrives and is returned in pieces (B, channels, samples) float32 of any lengths.
    """
    if rate == new_rate:
        yield from pieces
        return
    common = math.gcd(rate, new_rate)
    old, new = rate // common, new_rate // common
    cutoff = min(old, new) * ROLLOFF
    side = math.ceil(ZERO_CROSSINGS * old / cutoff)
    # Sample m of the result is at m * old / new, and depends on `side` samples before and after it.
    phases = np.arange(new)[:, None]
    times = (phases * old // new + np.arange(-side, side + 1)) / old - phases / new
    taps = (windowed_sinc(times * cutoff) * (cutoff / old)).astype(np.float32)
    width = taps.shape[1]
    step = max(1, _GATHERED_VALUES // width)
    num_results, first, buffer = 0, 0, None  # `first` is the index of the first sample in `buffer`
    for piece in _padded(_gathered(pieces, width), side):
        buffer = piece if buffer is None else np.concatenate([buffer, piece], axis=2)
        ready = -((width - 1 - first - buffer.shape[2]) * new // old)
        for start in range(num_results, ready, step):
            results = np.arange(start, min(start + step, ready))
            positions = results * old // new - first
            windows = np.lib.stride_tricks.sliding_window_view(buffer, width, axis=2)[:, :, positions]
            yield np.einsum("bcnw,nw->bcn", windows, taps[results % new])
        num_results = max(num_results, ready)
        unused = num_results * old // new - first
        first, buffer = first + unused, buffer[:, :, unused:]


def _padded(pieces: Iterable[np.ndarray], side: int) -> Iterator[np.ndarray]:
    """Yield a waveform in pieces, with `side` zeros at both ends."""
    zeros = None
    for piece in pieces:
        if zeros is None:
            zeros = np.zeros((*piece.shape[:2], side), np.float32)
            yield zeros
        yield piece
    if zeros is not None:
        yield zeros
