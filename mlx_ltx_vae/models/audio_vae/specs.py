"""The layer specs of the audio VAE, from its configuration alone. No MLX.

Inside, latents and spectrograms are (B, T, F, 1, C): frequencies lie along the height of the grid.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ...backend.machine import FLOAT32_BYTES, Backend, Machine
from ...errors import CheckpointError
from ...shapes import Axis, Grid, SoundRules, WindowSpec
from ..specs import LayerSpec, NetworkSpec, Step, Weights, linear_weights
from .config import AudioConfig, Causality, Norm

#: Into which a group norm divides the channels.
GROUPS = 32

_ALONE = WindowSpec()
_DECODE_CHUNKS = (25, 12, 6, 3, 1)  # a second of sound, in which no layer of a published network has large arrays
_ENCODE_CHUNKS = (64, 25, 6, 1)


@dataclass(frozen=True)
class PlaneSpec(LayerSpec):
    """A layer around one convolution over time and frequency, after norm and SiLU if it `is_activated`.

    Attributes:
        conv_windows: windows of the convolution along time and frequency, which may follow a repetition.
        dropped_bins: frequencies that are dropped at the low end.
        skip_channels: of the skip connection that is added; 0 for none.
    """

    conv_windows: tuple[WindowSpec, WindowSpec] = (_ALONE, _ALONE)
    is_activated: bool = False
    dropped_bins: int = 0
    skip_channels: int = 0

    @property
    def is_strided(self) -> bool:
        return max(self.down) > 1

    def results(self, axis: Axis, length: int) -> int:
        return super().results(axis, length) - (self.dropped_bins if axis is Axis.HEIGHT else 0)

    def work_bytes(self, step: Step) -> int:
        time, *rest = step.grid
        positions = (time + self.window(Axis.TIME).cached) * math.prod(rest)  # with the cache, or padding
        products = positions * math.prod(self.up) // math.prod(self.down)
        # Norm and SiLU in float32; the padded input of the convolution, its result, and the sum with the skip.
        elements = positions * (4 if self.is_activated else 1) * self.in_channels
        elements += products * (self.in_channels + self.out_channels + self.skip_channels)
        if step.machine.backend is Backend.CPU:
            if self.is_strided:  # unfolded by MLX's CPU backend
                elements += products * math.prod(window.kernel for window in self.conv_windows) * self.in_channels
            else:  # without the padding; of repeated positions after two steps that interleave them
                elements += products * self.out_channels * (1 if max(self.up) == 1 else 3)
        return super().work_bytes(step) + elements * FLOAT32_BYTES

    def weight_copy_bytes(self, machine: Machine) -> int:
        """The weight in float32, and on a CPU the 4x4 taps that nine of repeated positions become.

        The dtype of the machine is the vocoder's, which says nothing of this weight's.
        """
        size = math.prod(self.weights[0][1]) * FLOAT32_BYTES
        phases = 16 * size // 9 if max(self.up) > 1 and machine.backend is Backend.CPU else 0
        return phases + size

    def multiply_adds(self, part: Grid, whole: Grid) -> int:
        return math.prod(self.up) * super().multiply_adds(part, whole)


@dataclass(frozen=True)
class PlaneAttentionSpec(LayerSpec):
    """A self-attention layer over all positions of the clip."""

    def work_bytes(self, step: Step) -> int:
        positions = math.prod(step.grid)
        elements = positions * 10 * self.in_channels + positions**2
        return super().work_bytes(step) + elements * FLOAT32_BYTES

    def multiply_adds(self, part: Grid, whole: Grid) -> int:
        return super().multiply_adds(part, whole) + 2 * math.prod(part) * math.prod(whole) * self.in_channels


class Part(NamedTuple):
    """A module of a network, and its layers: two of a residual block, else one."""

    path: str
    layers: tuple[LayerSpec, ...]


def decoder_parts(config: AudioConfig) -> list[Part]:
    """From latents (B, T, F, 1, C) to spectrograms, in execution order; its levels run from the last to the first."""
    width = config.width * config.multipliers[-1]
    layers = _Layers(config)
    parts = [layers.alone("conv_in", config.channels, width), *layers.middle(width)]
    for index in reversed(range(len(config.multipliers))):
        own = config.width * config.multipliers[index]
        parts += layers.level(f"up.{index}", config.num_blocks + 1, width, own, index in config.attention_levels)
        parts += [layers.upsample(f"up.{index}.upsample", own)] if index else []
        width = own
    return [*parts, layers.alone("conv_out", width, config.audio_channels, norm="norm_out")]


def encoder_parts(config: AudioConfig) -> list[Part]:
    """From spectrograms to means and log-variances of latents (B, T, F, 1, 2*C), in execution order."""
    width, last = config.width, len(config.multipliers) - 1
    layers = _Layers(config)
    parts = [layers.alone("conv_in", config.audio_channels, width)]
    for index, multiplier in enumerate(config.multipliers):
        own = config.width * multiplier
        parts += layers.level(f"down.{index}", config.num_blocks, width, own, index in config.attention_levels)
        parts += [layers.downsample(f"down.{index}.downsample", own)] if index < last else []
        width = own
    return [*parts, *layers.middle(width), layers.alone("conv_out", width, 2 * config.channels, norm="norm_out")]


def decoder_spec(config: AudioConfig) -> NetworkSpec:
    """Packed latents (B, T, 1, 1, C) to the channels of a spectrogram, one after the other (B, T', 1, 1, 2*bins)."""
    mel, layers = config.mel.bins, _layers(decoder_parts(config))
    unpack = LayerSpec("unpack", config.latent_channels, config.channels, up=(1, config.bins, 1))
    # Networks that are causal along frequencies make more frames, and fewer bins: they are cropped and padded.
    made = NetworkSpec((unpack, *layers)).out_grid((2, 1, 1))
    crop = made[0] - config.mel_frames(2)
    pack = LayerSpec(
        "pack",
        config.audio_channels,
        config.audio_channels * mel,
        down=(1, mel, 1),
        windows=(_ALONE, WindowSpec(mel, mel, 0, mel - made[1]), _ALONE),
        crop=crop,
    )
    samples = (0, 0)
    if config.vocoder is not None:
        samples = config.num_samples(1), config.num_samples(2) - config.num_samples(1)
    return NetworkSpec(
        (unpack, *layers, pack),
        stream_axes=(Axis.TIME,),
        sound=SoundRules(config.sample_rate, _DECODE_CHUNKS, samples),
    )


def encoder_spec(config: AudioConfig) -> NetworkSpec:
    """Spectrograms (B, T, bins, 1, 2) to the means of packed latents (B, T', 1, 1, C)."""
    bins = config.bins
    windows = (_ALONE, WindowSpec(bins, bins), _ALONE)
    pack = LayerSpec("pack", 2 * config.channels, config.latent_channels, down=(1, bins, 1), windows=windows)
    mel = config.mel
    frame_bytes = 4 * FLOAT32_BYTES * config.audio_channels * mel.window  # cut, windowed, transformed
    return NetworkSpec(
        (*_layers(encoder_parts(config)), pack),
        stream_axes=(Axis.TIME,),
        takes_any_length=True,
        sound=SoundRules(mel.sample_rate, _ENCODE_CHUNKS, hop=mel.hop, bins=mel.bins, frame_bytes=frame_bytes),
    )


def _layers(parts: Sequence[Part]) -> list[LayerSpec]:
    return [layer for part in parts for layer in part.layers]


class _Layers:
    """Makes the parts of one configuration."""

    def __init__(self, config: AudioConfig) -> None:
        self._config = config
        three, causal = WindowSpec(3, 1, 1, 1), WindowSpec(3, 1, 2, 0)
        time = causal if config.causality is Causality.TIME else three
        frequency = causal if config.causality is Causality.FREQUENCY else three
        self._windows = (time, frequency, _ALONE)
        halves, causal_halves = WindowSpec(3, 2, 0, 1), WindowSpec(3, 2, 2, 0)
        time = causal_halves if config.causality is Causality.TIME else halves
        frequency = causal_halves if config.causality is Causality.FREQUENCY else halves
        self._halves = (time, frequency, _ALONE)

    def middle(self, width: int) -> list[Part]:
        attention = [self.attention("mid.attn_1", width)] if self._config.has_mid_attention else []
        return [self.block("mid.block_1", width, width), *attention, self.block("mid.block_2", width, width)]

    def level(self, path: str, count: int, width: int, own: int, is_attended: bool) -> list[Part]:
        """The blocks of one resolution. The first changes the `width`; each has an attention or none."""
        parts: list[Part] = []
        for number in range(count):
            parts.append(self.block(f"{path}.block.{number}", own if number else width, own))
            parts += [self.attention(f"{path}.attn.{number}", own)] if is_attended else []
        return parts

    def alone(self, path: str, in_channels: int, out_channels: int, norm: str = "") -> Part:
        return Part(path, (self._conv(path, in_channels, out_channels, norm),))

    def block(self, path: str, in_channels: int, out_channels: int) -> Part:
        first = self._conv(f"{path}.conv1", in_channels, out_channels, f"{path}.norm1")
        second = self._conv(f"{path}.conv2", out_channels, out_channels, f"{path}.norm2")
        weights = second.weights
        if in_channels != out_channels:
            weights += linear_weights(f"{path}.nin_shortcut.conv", in_channels, out_channels)
        return Part(path, (first, replace(second, weights=weights, skip_channels=in_channels)))

    def attention(self, path: str, width: int) -> Part:
        weights = self._norm_weights(f"{path}.norm", width)
        for part in ("q", "k", "v", "proj_out"):
            weights += linear_weights(f"{path}.{part}", width, width)
        return Part(path, (PlaneAttentionSpec(path, width, width, unbounded=frozenset({Axis.TIME}), weights=weights),))

    def upsample(self, path: str, width: int) -> Part:
        """Every position twice along both axes, a convolution, and the first row along the causal axis dropped."""
        causality = self._config.causality
        time = WindowSpec(2, 1, 1, 0) if causality is Causality.TIME else WindowSpec(3, 1, 1, 1)
        layer = replace(
            self._conv(f"{path}.conv", width, width),
            up=(2, 2, 1),
            windows=(time, _ALONE, _ALONE),
            trim=1 if causality is Causality.TIME else 0,
            dropped_bins=1 if causality is Causality.FREQUENCY else 0,
        )
        return Part(path, (layer,))

    def downsample(self, path: str, width: int) -> Part:
        layer = self._conv(path, width, width)
        return Part(path, (replace(layer, down=(2, 2, 1), windows=self._halves, conv_windows=self._halves[:2]),))

    def _conv(self, name: str, in_channels: int, out_channels: int, norm: str = "") -> PlaneSpec:
        """A convolution, after a norm and SiLU if a norm is named."""
        weights: Weights = (
            (f"{name}.conv.weight", (out_channels, 3, 3, in_channels)),
            (f"{name}.conv.bias", (out_channels,)),
        )
        sees_all = norm and self._config.norm is Norm.GROUP
        return PlaneSpec(
            name,
            in_channels,
            out_channels,
            windows=self._windows,
            conv_windows=self._windows[:2],
            weights=weights + (self._norm_weights(norm, in_channels) if norm else ()),
            is_activated=bool(norm),
            unbounded=frozenset({Axis.TIME}) if sees_all else frozenset(),
        )

    def _norm_weights(self, name: str, width: int) -> Weights:
        if self._config.norm is not Norm.GROUP:
            return ()
        if width % GROUPS:
            raise CheckpointError(
                f"the configuration of the audio VAE has a group norm ({name}) of {width} channels, which are no "
                f"multiple of its {GROUPS} groups; use the configuration that belongs to the file."
            )
        return ((f"{name}.weight", (width,)), (f"{name}.bias", (width,)))
