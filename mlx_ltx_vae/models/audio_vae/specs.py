"""The layer specs of the audio VAE, from its configuration alone. No MLX.

Inside, latents and spectrograms are (B, T, F, 1, C): frequencies lie along the height of the grid.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from ...backend.machine import FLOAT32_BYTES, Backend
from ...errors import CheckpointError
from ...shapes import Grid, SoundRules
from ...streaming.axis import Axis, WindowSpec
from ..specs import LayerSpec, NetworkSpec, Step
from .config import AudioConfig, Causality, Norm

#: Into which a group norm divides the channels.
GROUPS = 32

_ALONE = WindowSpec()
_DECODE_CHUNKS = (25, 12, 6, 3, 1)  # a second of sound, in which no layer of a published network has large arrays
_ENCODE_CHUNKS = (64, 25, 6, 1)


@dataclass(frozen=True)
class PlaneSpec(LayerSpec):
    """A layer around one convolution over time and frequency, behind norm and SiLU if it `is_activated`.

    Attributes:
        conv_windows: those of the convolution along time and frequency, which may come behind a repetition.
        dropped_bins: frequencies that are dropped at the low end.
        skip_channels: of the skip connection that is added; 0 for none.
    """

    conv_windows: tuple[WindowSpec, WindowSpec] = (_ALONE, _ALONE)
    is_activated: bool = False
    dropped_bins: int = 0
    skip_channels: int = 0

    def results(self, axis: Axis, length: int) -> int:
        return super().results(axis, length) - (self.dropped_bins if axis is Axis.HEIGHT else 0)

    def work_bytes(self, step: Step) -> int:
        time, *rest = step.grid
        positions = (time + self.window(Axis.TIME).cached) * math.prod(rest)  # with the cache, or padding
        products = positions * math.prod(self.up) // math.prod(self.down)
        # Norm and SiLU in float32; the input of the convolution, unfolded by MLX's CPU backend; the sum with the skip.
        elements = positions * (6 if self.is_activated else 1) * self.in_channels
        elements += products * (self.in_channels + self.out_channels + self.skip_channels)
        if step.machine.backend is Backend.CPU:
            elements += products * math.prod(window.kernel for window in self.conv_windows) * self.in_channels
        return super().work_bytes(step) + elements * FLOAT32_BYTES

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


class Level(NamedTuple):
    """The blocks of one resolution, and what resamples it, if it is not the last one."""

    number: int  # in the checkpoint's names
    blocks: list[tuple[PlaneSpec, PlaneSpec]]
    attentions: list[PlaneAttentionSpec]  # behind the blocks, one each or none
    resample: PlaneSpec | None


class PlaneParts(NamedTuple):
    """The layers of an encoder or a decoder by module, in the order of the checkpoint's names."""

    conv_in: PlaneSpec
    middle: tuple[tuple[PlaneSpec, PlaneSpec], tuple[PlaneSpec, PlaneSpec]]
    mid_attention: PlaneAttentionSpec | None
    levels: list[Level]  # in execution order
    conv_out: PlaneSpec

    def middle_layers(self) -> Iterator[LayerSpec]:
        first, second = self.middle
        yield from first
        if self.mid_attention is not None:
            yield self.mid_attention
        yield from second

    def level_layers(self) -> Iterator[LayerSpec]:
        for level in self.levels:
            for index, block in enumerate(level.blocks):
                yield from block
                yield from level.attentions[index : index + 1]
            if level.resample is not None:
                yield level.resample


def decoder_parts(config: AudioConfig) -> PlaneParts:
    """From latents (B, T, F, 1, C) to spectrograms; its levels run from the last to the first."""
    widths = [config.width * multiplier for multiplier in config.multipliers]
    width = widths[-1]
    layers = _Layers(config)
    conv_in = layers.conv("conv_in", config.channels, width, is_activated=False)
    middle = layers.block("mid.block_1", width, width), layers.block("mid.block_2", width, width)
    mid_attention = layers.attention("mid.attn_1", width) if config.has_mid_attention else None
    levels = []
    for index in reversed(range(len(widths))):
        blocks, attentions = [], []
        for number in range(config.num_blocks + 1):
            blocks.append(layers.block(f"up.{index}.block.{number}", width, widths[index]))
            width = widths[index]
            if index in config.attention_levels:
                attentions.append(layers.attention(f"up.{index}.attn.{number}", width))
        levels.append(Level(index, blocks, attentions, layers.upsample(index, width) if index else None))
    conv_out = layers.conv("conv_out", width, config.audio_channels, norm="norm_out")
    return PlaneParts(conv_in, middle, mid_attention, levels, conv_out)


def encoder_parts(config: AudioConfig) -> PlaneParts:
    """From spectrograms to means and log-variances of latents (B, T, F, 1, 2*C)."""
    widths = [config.width * multiplier for multiplier in config.multipliers]
    width = config.width
    layers = _Layers(config)
    conv_in = layers.conv("conv_in", config.audio_channels, width, is_activated=False)
    levels = []
    for index in range(len(widths)):
        blocks, attentions = [], []
        for number in range(config.num_blocks):
            blocks.append(layers.block(f"down.{index}.block.{number}", width, widths[index]))
            width = widths[index]
            if index in config.attention_levels:
                attentions.append(layers.attention(f"down.{index}.attn.{number}", width))
        is_last = index == len(widths) - 1
        levels.append(Level(index, blocks, attentions, None if is_last else layers.downsample(index, width)))
    middle = layers.block("mid.block_1", width, width), layers.block("mid.block_2", width, width)
    mid_attention = layers.attention("mid.attn_1", width) if config.has_mid_attention else None
    conv_out = layers.conv("conv_out", width, 2 * config.channels, norm="norm_out")
    return PlaneParts(conv_in, middle, mid_attention, levels, conv_out)


def decoder_spec(config: AudioConfig) -> NetworkSpec:
    """Packed latents (B, T, 1, 1, C) to the channels of a spectrogram, one after the other (B, T', 1, 1, 2*bins)."""
    parts = decoder_parts(config)
    mel = config.mel.bins
    unpack = LayerSpec("unpack", config.latent_channels, config.channels, up=(1, config.bins, 1))
    # Networks that are causal along frequencies make more frames, and fewer bins: they are cropped and padded.
    made = NetworkSpec((unpack, *_run(parts, is_decoder=True))).out_grid((2, 1, 1))
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
        (unpack, *_run(parts, is_decoder=True), pack),
        stream_axes=(Axis.TIME,),
        sound=SoundRules(config.sample_rate, _DECODE_CHUNKS, samples),
    )


def encoder_spec(config: AudioConfig) -> NetworkSpec:
    """Spectrograms (B, T, bins, 1, 2) to the means of packed latents (B, T', 1, 1, C)."""
    bins = config.bins
    windows = (_ALONE, WindowSpec(bins, bins), _ALONE)
    pack = LayerSpec("pack", 2 * config.channels, config.latent_channels, down=(1, bins, 1), windows=windows)
    mel = config.mel
    frame_bytes = 3 * FLOAT32_BYTES * config.audio_channels * mel.window  # cut out, windowed, and in frequencies
    return NetworkSpec(
        (*_run(encoder_parts(config), is_decoder=False), pack),
        stream_axes=(Axis.TIME,),
        takes_any_length=True,
        sound=SoundRules(mel.sample_rate, _ENCODE_CHUNKS, hop=mel.hop, bins=mel.bins, frame_bytes=frame_bytes),
    )


def _run(parts: PlaneParts, *, is_decoder: bool) -> tuple[LayerSpec, ...]:
    middle, levels = parts.middle_layers(), parts.level_layers()
    inner = (*middle, *levels) if is_decoder else (*levels, *middle)
    return (parts.conv_in, *inner, parts.conv_out)


class _Layers:
    """Makes the layers of one configuration."""

    def __init__(self, config: AudioConfig) -> None:
        self._norm = config.norm
        three, causal = WindowSpec(3, 1, 1, 1), WindowSpec(3, 1, 2, 0)
        time = causal if config.causality is Causality.TIME else three
        frequency = causal if config.causality is Causality.FREQUENCY else three
        self._windows = (time, frequency, _ALONE)
        halves, causal_halves = WindowSpec(3, 2, 0, 1), WindowSpec(3, 2, 2, 0)
        time = causal_halves if config.causality is Causality.TIME else halves
        frequency = causal_halves if config.causality is Causality.FREQUENCY else halves
        self._halves = (time, frequency, _ALONE)
        self._causality = config.causality

    def conv(
        self, name: str, in_channels: int, out_channels: int, *, is_activated: bool = True, norm: str = ""
    ) -> PlaneSpec:
        weights: tuple[tuple[str, tuple[int, ...]], ...] = (
            (f"{name}.conv.weight", (out_channels, 3, 3, in_channels)),
            (f"{name}.conv.bias", (out_channels,)),
        )
        if norm:
            weights += self._norm_weights(norm, in_channels)
        return PlaneSpec(
            name,
            in_channels,
            out_channels,
            windows=self._windows,
            conv_windows=self._windows[:2],
            weights=weights,
            is_activated=is_activated,
            unbounded=self._unbounded if norm else frozenset(),
        )

    def block(self, name: str, in_channels: int, out_channels: int) -> tuple[PlaneSpec, PlaneSpec]:
        first = self.conv(f"{name}.conv1", in_channels, out_channels, norm=f"{name}.norm1")
        second = self.conv(f"{name}.conv2", out_channels, out_channels, norm=f"{name}.norm2")
        weights = second.weights
        if in_channels != out_channels:
            shortcut = f"{name}.nin_shortcut.conv"
            weights += ((f"{shortcut}.weight", (out_channels, in_channels)), (f"{shortcut}.bias", (out_channels,)))
        return first, replace(second, weights=weights, skip_channels=in_channels)

    def attention(self, name: str, width: int) -> PlaneAttentionSpec:
        weights = self._norm_weights(f"{name}.norm", width)
        for part in ("q", "k", "v", "proj_out"):
            weights += ((f"{name}.{part}.weight", (width, width)), (f"{name}.{part}.bias", (width,)))
        return PlaneAttentionSpec(name, width, width, unbounded=frozenset({Axis.TIME}), weights=weights)

    def upsample(self, index: int, width: int) -> PlaneSpec:
        """Every position twice along both axes, a convolution, and the first row along the causal axis dropped."""
        name = f"up.{index}.upsample.conv"
        time = WindowSpec(2, 1, 1, 0) if self._causality is Causality.TIME else WindowSpec(3, 1, 1, 1)
        return replace(
            self.conv(name, width, width, is_activated=False),
            up=(2, 2, 1),
            windows=(time, _ALONE, _ALONE),
            trim=1 if self._causality is Causality.TIME else 0,
            dropped_bins=1 if self._causality is Causality.FREQUENCY else 0,
        )

    def downsample(self, index: int, width: int) -> PlaneSpec:
        name = f"down.{index}.downsample"
        layer = self.conv(name, width, width, is_activated=False)
        return replace(layer, down=(2, 2, 1), windows=self._halves, conv_windows=self._halves[:2])

    @property
    def _unbounded(self) -> frozenset[Axis]:
        return frozenset({Axis.TIME}) if self._norm is Norm.GROUP else frozenset()

    def _norm_weights(self, name: str, width: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
        if self._norm is not Norm.GROUP:
            return ()
        if width % GROUPS:
            raise CheckpointError(
                f"the configuration of the audio VAE has a group norm ({name}) of {width} channels, which are no "
                f"multiple of its {GROUPS} groups; use the configuration that belongs to the file."
            )
        return ((f"{name}.weight", (width,)), (f"{name}.bias", (width,)))
