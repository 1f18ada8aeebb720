"""Layer specs of the audio VAE and the vocoder, from their configuration alone. No MLX.

Inside the VAE, latents and spectrograms are (B, T, F, 1, C): frequencies lie along the height of the grid. The signals
of the vocoder are (B, T, 1, 1, C), and each of its layers is local in time: a stream needs a few positions before and
after each position.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction

from ...backend.machine import FLOAT32_BYTES, Backend, Machine
from ...errors import CheckpointError
from ...shapes import Axis, ClipRules, Grid, WindowSpec
from ..specs import LayerSpec, NetworkSpec, Step, Weights, linear_weights
from .config import AudioVAEConfig, Causality, ExtensionConfig, GeneratorConfig, Norm, VocoderConfig

#: Taps of the stored low-pass filters of an antialiased activation, whose rate is twice its input's.
FILTER_TAPS = 12
#: Input positions to each side that an output of such an activation depends on.
FILTER_REACH = 5
#: Outputs of a filter per matrix product. More outputs take more products with zero, fewer more small matrices.
FILTER_BLOCK = 16
#: Input positions to each side that a sample of the resampled waveform depends on.
RESAMPLE_REACH = 7
_END_KERNEL = 7  # size of the first and the last convolution
#: Number of groups into which a group norm divides the channels.
GROUPS = 32

_ALONE = WindowSpec()
_DECODE_CHUNKS = (25, 12, 6, 3, 1)  # a second of audio, in which no layer of a published network has large arrays
_ENCODE_CHUNKS = (64, 25, 6, 1)


@dataclass(frozen=True)
class Conv2DSpec(LayerSpec):
    """Layer around one convolution over time and frequency, after norm and SiLU if it `is_activated`.

    Attributes:
        conv_windows: windows of the convolution along time and frequency, which may follow a repetition.
        dropped_bins: number of frequencies that are dropped at the low end.
        skip_channels: channels of the skip connection that is added, or 0.
    """

    conv_windows: tuple[WindowSpec, WindowSpec] = (_ALONE, _ALONE)
    is_activated: bool = False
    dropped_bins: int = 0
    skip_channels: int = 0

    @property
    def is_strided(self) -> bool:
        return max(self.down) > 1

    def num_outputs(self, axis: Axis, length: int) -> int:
        return super().num_outputs(axis, length) - (self.dropped_bins if axis is Axis.HEIGHT else 0)

    def work_bytes(self, step: Step) -> int:
        time, *extents = step.grid
        positions = (time + self.window(Axis.TIME).cached) * math.prod(extents)  # with the cache, or padding
        products = positions * math.prod(self.up) // math.prod(self.down)
        # Norm and SiLU in float32; the padded input of the convolution, its result, and the sum with the skip.
        elements = positions * (4 if self.is_activated else 1) * self.in_channels
        elements += products * (self.in_channels + self.out_channels + self.skip_channels)
        if step.machine.backend is Backend.CPU:
            if self.is_strided:  # unfolded by MLX's CPU backend
                elements += products * math.prod(window.kernel for window in self.conv_windows) * self.in_channels
            else:  # without the padding, and for repeated positions after two steps that interleave them
                elements += products * self.out_channels * (1 if max(self.up) == 1 else 3)
        return super().work_bytes(step) + elements * FLOAT32_BYTES

    def weight_copy_bytes(self, machine: Machine) -> int:
        """Return the bytes of the weight in float32, and on a CPU of 4x4 taps for the nine taps of repeated positions.

        The machine's dtype is the vocoder's and does not apply to this weight.
        """
        size = math.prod(self.weights[0][1]) * FLOAT32_BYTES
        phases = 16 * size // 9 if max(self.up) > 1 and machine.backend is Backend.CPU else 0
        return phases + size

    def multiply_adds(self, grid: Grid) -> int:
        return math.prod(self.up) * super().multiply_adds(grid)


@dataclass(frozen=True)
class ClipAttentionSpec(LayerSpec):
    """Self-attention layer over all positions of the clip."""

    def work_bytes(self, step: Step) -> int:
        positions = math.prod(step.grid)
        elements = positions * 10 * self.in_channels + positions**2
        return super().work_bytes(step) + elements * FLOAT32_BYTES

    def multiply_adds(self, grid: Grid) -> int:
        return super().multiply_adds(grid) + 2 * math.prod(grid) * math.prod(grid) * self.in_channels


def _decoder_layers(config: AudioVAEConfig) -> list[LayerSpec]:
    """Return the layers from latents (B, T, F, 1, C) to spectrograms, in execution order, with the last level first."""
    width = config.width * config.multipliers[-1]
    make = _Layers(config)
    layers = [make.conv("conv_in", config.channels, width), *make.middle(width)]
    for index in reversed(range(len(config.multipliers))):
        out_width = config.width * config.multipliers[index]
        layers += make.level(f"up.{index}", config.num_blocks + 1, width, out_width, index in config.attention_levels)
        layers += [make.upsample(f"up.{index}.upsample", out_width)] if index else []
        width = out_width
    return [*layers, make.conv("conv_out", width, config.audio_channels, norm="norm_out")]


def _encoder_layers(config: AudioVAEConfig) -> list[LayerSpec]:
    """Return the layers from spectrograms to means and log-variances (B, T, F, 1, 2*C), in execution order."""
    width, last_level = config.width, len(config.multipliers) - 1
    make = _Layers(config)
    layers: list[LayerSpec] = [make.conv("conv_in", config.audio_channels, width)]
    for index, multiplier in enumerate(config.multipliers):
        out_width = config.width * multiplier
        layers += make.level(f"down.{index}", config.num_blocks, width, out_width, index in config.attention_levels)
        layers += [make.downsample(f"down.{index}.downsample", out_width)] if index < last_level else []
        width = out_width
    return [*layers, *make.middle(width), make.conv("conv_out", width, 2 * config.channels, norm="norm_out")]


def decoder_spec(config: AudioVAEConfig) -> NetworkSpec:
    """Return the decoder of packed latents (B, T, 1, 1, C) to spectrogram channels in order (B, T', 1, 1, 2*bins)."""
    mel, layers = config.mel.bins, _decoder_layers(config)
    unpack = LayerSpec("unpack", config.latent_channels, config.channels, up=(1, config.bins, 1))
    # Networks that are causal along frequencies make more frames, and fewer bins: they are cropped and padded.
    out_grid = NetworkSpec((unpack, *layers)).out_grid((2, 1, 1))
    crop = out_grid[0] - config.mel_frames(2)
    pack = LayerSpec(
        "pack",
        config.audio_channels,
        config.audio_channels * mel,
        down=(1, mel, 1),
        windows=(_ALONE, WindowSpec(mel, mel, 0, mel - out_grid[1]), _ALONE),
        crop=crop,
    )
    lengths = None
    if config.vocoder is not None:
        lengths = config.num_samples(1), config.num_samples(2) - config.num_samples(1)
    return NetworkSpec(
        (unpack, *layers, pack),
        stream_axes=(Axis.TIME,),
        clip=ClipRules("sample", _DECODE_CHUNKS, True, 2, lengths, config.sample_rate),
    )


def encoder_spec(config: AudioVAEConfig) -> NetworkSpec:
    """Return the encoder of spectrograms (B, T, bins, 1, 2) to the means of packed latents (B, T', 1, 1, C)."""
    bins = config.bins
    windows = (_ALONE, WindowSpec(bins, bins), _ALONE)
    pack = LayerSpec("pack", 2 * config.channels, config.latent_channels, down=(1, bins, 1), windows=windows)
    mel = config.mel
    frame_bytes = 4 * FLOAT32_BYTES * config.audio_channels * mel.window  # cut, windowed, transformed
    return NetworkSpec(
        (*_encoder_layers(config), pack),
        stream_axes=(Axis.TIME,),
        takes_any_length=True,
        clip=ClipRules(
            "sample",
            _ENCODE_CHUNKS,
            flushes_with_last=True,
            sample_rate=mel.sample_rate,
            hop=mel.hop,
            bins=mel.bins,
            frame_bytes=frame_bytes,
        ),
    )


class _Layers:
    """Layers of the networks of one configuration."""

    def __init__(self, config: AudioVAEConfig) -> None:
        self._config = config
        three, causal = WindowSpec(3, 1, 1, 1), WindowSpec(3, 1, 2, 0)
        time = causal if config.causality is Causality.TIME else three
        frequency = causal if config.causality is Causality.FREQUENCY else three
        self._windows = (time, frequency, _ALONE)
        halves, causal_halves = WindowSpec(3, 2, 0, 1), WindowSpec(3, 2, 2, 0)
        time = causal_halves if config.causality is Causality.TIME else halves
        frequency = causal_halves if config.causality is Causality.FREQUENCY else halves
        self._halves = (time, frequency, _ALONE)

    def middle(self, width: int) -> list[LayerSpec]:
        attention = [self.attention("mid.attn_1", width)] if self._config.has_mid_attention else []
        return [*self.block("mid.block_1", width, width), *attention, *self.block("mid.block_2", width, width)]

    def level(self, path: str, count: int, width: int, out_width: int, is_attended: bool) -> list[LayerSpec]:
        """Return the blocks of one resolution. The first one changes the width; an attention may follow each."""
        layers: list[LayerSpec] = []
        for number in range(count):
            layers += self.block(f"{path}.block.{number}", out_width if number else width, out_width)
            layers += [self.attention(f"{path}.attn.{number}", out_width)] if is_attended else []
        return layers

    def block(self, path: str, in_channels: int, out_channels: int) -> list[LayerSpec]:
        first = self.conv(f"{path}.conv1", in_channels, out_channels, f"{path}.norm1")
        second = self.conv(f"{path}.conv2", out_channels, out_channels, f"{path}.norm2")
        weights = second.weights
        if in_channels != out_channels:
            weights += linear_weights(f"{path}.nin_shortcut.conv", in_channels, out_channels)
        return [first, replace(second, weights=weights, skip_channels=in_channels)]

    def attention(self, path: str, width: int) -> ClipAttentionSpec:
        weights = self._norm_weights(f"{path}.norm", width)
        for part in ("q", "k", "v", "proj_out"):
            weights += linear_weights(f"{path}.{part}", width, width)
        return ClipAttentionSpec(path, width, width, unbounded=frozenset({Axis.TIME}), weights=weights)

    def upsample(self, path: str, width: int) -> Conv2DSpec:
        """Repeat positions along both axes, convolve, and drop the first row along the causal axis."""
        causality = self._config.causality
        time = WindowSpec(2, 1, 1, 0) if causality is Causality.TIME else WindowSpec(3, 1, 1, 1)
        return replace(
            self.conv(f"{path}.conv", width, width),
            up=(2, 2, 1),
            windows=(time, _ALONE, _ALONE),
            trim=1 if causality is Causality.TIME else 0,
            dropped_bins=1 if causality is Causality.FREQUENCY else 0,
        )

    def downsample(self, path: str, width: int) -> Conv2DSpec:
        conv = self.conv(path, width, width)
        return replace(conv, down=(2, 2, 1), windows=self._halves, conv_windows=self._halves[:2])

    def conv(self, name: str, in_channels: int, out_channels: int, norm: str = "") -> Conv2DSpec:
        """Return a convolution, after a norm and SiLU if `norm` names a norm."""
        weights: Weights = (
            (f"{name}.conv.weight", (out_channels, 3, 3, in_channels)),
            (f"{name}.conv.bias", (out_channels,)),
        )
        is_unbounded = norm and self._config.norm is Norm.GROUP
        return Conv2DSpec(
            name,
            in_channels,
            out_channels,
            windows=self._windows,
            conv_windows=self._windows[:2],
            weights=weights + (self._norm_weights(norm, in_channels) if norm else ()),
            is_activated=bool(norm),
            unbounded=frozenset({Axis.TIME}) if is_unbounded else frozenset(),
        )

    def _norm_weights(self, name: str, width: int) -> Weights:
        if self._config.norm is not Norm.GROUP:
            return ()
        if width % GROUPS:
            raise CheckpointError(
                f"the configuration of the audio VAE has a group norm ({name}) of {width} channels, which are not a "
                f"multiple of its {GROUPS} groups; use the configuration that belongs to the file."
            )
        return ((f"{name}.weight", (width,)), (f"{name}.bias", (width,)))


@dataclass(frozen=True)
class SignalSpec(LayerSpec):
    """Layer along time.

    Attributes:
        taps: number of positions that each product sees, which GPUs unfold before it.
        copies: number of other arrays of the size of its input that it allocates.
        dilation: dilation of its convolution.
        waiting: number of positions that wait between two pieces in addition to its window, with `waiting_channels`; at
            most `waiting_rate` for each position of its input.
    """

    taps: int = 0
    copies: int = 2
    dilation: int = 1
    waiting: int = 0
    waiting_channels: int = 0
    waiting_rate: int = 1

    def cache_bytes(self, axis: Axis, grid: Grid, piece: int, machine: Machine) -> int:
        waiting = min(self.waiting, grid[0] * self.waiting_rate) * self.waiting_channels
        return super().cache_bytes(axis, grid, piece, machine) + waiting * FLOAT32_BYTES

    def work_bytes(self, step: Step) -> int:
        positions = math.prod(step.grid) + self.window(Axis.TIME).cached
        unfolded = 0 if step.machine.backend is Backend.CPU else self.taps
        elements = (unfolded + self.copies) * positions * self.in_channels
        return super().work_bytes(step) + elements * FLOAT32_BYTES


@dataclass(frozen=True)
class TransposedSpec(SignalSpec):
    """Transposed convolution that makes exactly `rate` positions of each, with `cut` dropped at both ends.

    After `n` positions have arrived, `rate * n - cut` results are final.
    """

    rate: int = 1
    kernel: int = 1
    cut: int = 0

    def num_outputs(self, axis: Axis, length: int) -> int:
        return self.rate * length if axis is Axis.TIME else length

    def ready(self, axis: Axis, num_inputs: int) -> int:
        return max(0, self.rate * num_inputs - self.cut)

    def needed(self, axis: Axis, count: int) -> int:
        return math.ceil((count + self.cut) / self.rate) if axis is Axis.TIME else count

    def reach(self, axis: Axis) -> tuple[Fraction, Fraction]:
        if axis is not Axis.TIME:
            return Fraction(0), Fraction(0)
        before, after = math.ceil((self.kernel - 1 - self.cut) / self.rate), (self.rate - 1 + self.cut) // self.rate
        return Fraction(before), Fraction(after)

    def multiply_adds(self, grid: Grid) -> int:
        return math.prod(grid) * self.kernel * self.in_channels * self.out_channels


@dataclass(frozen=True)
class ActivationSpec(SignalSpec):
    """Antialiased activation."""

    def multiply_adds(self, grid: Grid) -> int:
        return math.prod(grid) * self.in_channels * 4 * FILTER_TAPS


@dataclass(frozen=True)
class BranchesSpec(SignalSpec):
    """Residual blocks of one stage, in parallel; `chains` are the layers of each. Their outputs are averaged."""

    chains: tuple[tuple[SignalSpec, ...], ...] = ()

    def cache_bytes(self, axis: Axis, grid: Grid, piece: int, machine: Machine) -> int:
        layers = sum(layer.cache_bytes(axis, grid, piece, machine) for chain in self.chains for layer in chain)
        ahead = self.window(axis).after - min(_reach(chain) for chain in self.chains)
        return layers + len(self.chains) * ahead * self.out_channels * FLOAT32_BYTES

    def work_bytes(self, step: Step) -> int:
        work = max(layer.work_bytes(step) for chain in self.chains for layer in chain)
        results = (len(self.chains) + 3) * math.prod(step.grid) * self.out_channels * FLOAT32_BYTES
        return work + results

    def multiply_adds(self, grid: Grid) -> int:
        return sum(layer.multiply_adds(grid) for chain in self.chains for layer in chain)


@dataclass(frozen=True)
class SpectrogramSpec(SignalSpec):
    """Log-mel spectrogram of a waveform that is padded with zeros to whole frames at its end."""

    def num_outputs(self, axis: Axis, length: int) -> int:
        return -(-length // self.window(axis).stride) if axis is Axis.TIME else length


def generator_layers(config: GeneratorConfig, prefix: str) -> tuple[LayerSpec, ...]:
    """Return a generator from spectrograms (B, T, 1, 1, I) to samples (B, T*scale, 1, 1, 2), with names after `prefix`.

    Per stage there are a transposed convolution and residual blocks.
    """
    width = config.width
    layers: list[LayerSpec] = [conv_layer(f"{prefix}conv_pre", config.in_channels, width, _END_KERNEL)]
    for index, (rate, kernel) in enumerate(zip(config.rates, config.kernels, strict=True)):
        layers.append(_transposed(f"{prefix}ups.{index}", width, rate, kernel))
        width //= 2
        layers.append(_branches(config, prefix, index, width))
    if config.is_antialiased:
        layers.append(activation_layer(f"{prefix}act_post", width))
    post = conv_layer(f"{prefix}conv_post", width, config.out_channels, _END_KERNEL, bias=config.has_final_bias)
    return (*layers, post)


def vocoder_spec(config: VocoderConfig) -> NetworkSpec:
    """Return the vocoder from spectrograms (B, T, 1, 1, 2 * bins), channel by channel, to samples (B, T', 1, 1, 2)."""
    if config.extension is None:
        return NetworkSpec(generator_layers(config.generator, ""), stream_axes=(Axis.TIME,))
    first = generator_layers(config.generator, "vocoder.")
    second = generator_layers(config.extension.generator, "bwe_generator.")
    enter, leave = extension_layers(config.extension, second)
    return NetworkSpec((*first, enter, *second, leave), stream_axes=(Axis.TIME,))


def extension_layers(config: ExtensionConfig, second: tuple[LayerSpec, ...]) -> tuple[SignalSpec, SignalSpec]:
    """Return the layers before and after the second generator. The resampled waveform waits from one to the other."""
    frequencies = config.window // 2 + 1
    channels = config.generator.out_channels
    stft = WindowSpec(config.window, config.hop, config.window - config.hop, 0)
    frames = 1  # frames of the spectrogram after which the first sample of the second generator is final
    for layer in reversed(second):
        frames = layer.needed(Axis.TIME, frames)
    enter = SpectrogramSpec(
        "mel_stft",
        channels,
        config.generator.in_channels,
        down=(config.hop, 1, 1),
        windows=(stft, _ALONE, _ALONE),
        weights=(
            ("mel_stft.mel_basis", (config.bins, frequencies)),
            ("mel_stft.stft_fn.forward_basis", (2 * frequencies, config.window)),
        ),
        copies=2 - (-5 * config.window // config.hop),
        waiting=frames * config.hop * config.ratio,
        waiting_channels=channels,
        waiting_rate=config.ratio,
    )
    return enter, SignalSpec("extension", channels, channels, copies=4)


def conv_layer(
    name: str, in_channels: int, out_channels: int, kernel: int, *, dilation: int = 1, bias: bool = True
) -> SignalSpec:
    """Return a convolution that pads both ends with zeros, and returns as many positions as it takes."""
    side = dilation * (kernel - 1) // 2
    weights: tuple[tuple[str, tuple[int, ...]], ...] = ((f"{name}.weight", (out_channels, kernel, in_channels)),)
    if bias:
        weights += ((f"{name}.bias", (out_channels,)),)
    return SignalSpec(
        name,
        in_channels,
        out_channels,
        windows=(WindowSpec(2 * side + 1, 1, side, side), _ALONE, _ALONE),
        weights=weights,
        taps=kernel,
        dilation=dilation,
    )


def activation_layer(name: str, channels: int) -> ActivationSpec:
    """Return SnakeBeta at twice the rate."""
    weights = (
        (f"{name}.act.alpha", (channels,)),
        (f"{name}.act.beta", (channels,)),
        (f"{name}.upsample.filter", (FILTER_TAPS,)),
        (f"{name}.downsample.lowpass.filter", (FILTER_TAPS,)),
    )
    window = WindowSpec(2 * FILTER_REACH + 1, 1, FILTER_REACH, FILTER_REACH)
    # The matrices of its two filters: two outputs for each position, and one for two positions.
    up, down = FILTER_BLOCK - 1 + FILTER_TAPS // 2, 2 * (FILTER_BLOCK - 1) + FILTER_TAPS
    return ActivationSpec(
        name,
        channels,
        channels,
        windows=(window, _ALONE, _ALONE),
        weights=weights,
        fixed_bytes=FILTER_BLOCK * (2 * up + down) * FLOAT32_BYTES,
        copies=12,
    )


def _transposed(name: str, width: int, rate: int, kernel: int) -> TransposedSpec:
    blocks = -(-kernel // rate)  # blocks of `rate` positions that each position contributes to
    out_channels = width // 2
    return TransposedSpec(
        name,
        width,
        out_channels,
        up=(rate, 1, 1),
        windows=(WindowSpec(blocks, 1, blocks - 1, blocks - 1), _ALONE, _ALONE),
        weights=((f"{name}.weight", (out_channels, kernel, width)), (f"{name}.bias", (out_channels,))),
        taps=blocks,
        copies=2 + rate // 2,
        fixed_bytes=-kernel % rate * width * out_channels * FLOAT32_BYTES,  # of its weight, laid out in whole blocks
        rate=rate,
        kernel=kernel,
        cut=(kernel - rate) // 2,
    )


def _branches(config: GeneratorConfig, prefix: str, stage: int, width: int) -> BranchesSpec:
    start = stage * len(config.block_kernels)
    chains = tuple(
        block_layers(config, f"{prefix}resblocks.{start + index}", width, kernel, dilations)
        for index, (kernel, dilations) in enumerate(zip(config.block_kernels, config.dilations, strict=True))
    )
    side = max(map(_reach, chains))
    return BranchesSpec(
        f"{prefix}resblocks.{start}",
        width,
        width,
        windows=(WindowSpec(2 * side + 1, 1, side, side), _ALONE, _ALONE),
        weights=tuple(weight for chain in chains for layer in chain for weight in layer.weights),
        fixed_bytes=sum(layer.fixed_bytes for chain in chains for layer in chain),
        chains=chains,
    )


def block_layers(
    config: GeneratorConfig, name: str, width: int, kernel: int, dilations: tuple[int, ...]
) -> tuple[SignalSpec, ...]:
    """Return a residual block: per dilation two convolutions, each after an activation, and a skip connection."""
    layers: list[SignalSpec] = []
    for index, dilation in enumerate(dilations):
        pair: list[SignalSpec] = []
        for number, conv_dilation in ((1, dilation), (2, 1)):
            if config.is_antialiased:
                pair.append(activation_layer(f"{name}.acts{number}.{index}", width))
            pair.append(conv_layer(f"{name}.convs{number}.{index}", width, width, kernel, dilation=conv_dilation))
        pair[-1] = replace(pair[-1], waiting=_reach(tuple(pair)), waiting_channels=width)
        layers += pair
    return tuple(layers)


def _reach(chain: tuple[SignalSpec, ...]) -> int:
    return sum(layer.window(Axis.TIME).ahead for layer in chain)
