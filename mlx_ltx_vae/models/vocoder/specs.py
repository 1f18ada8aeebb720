"""The configuration of a vocoder, and its layer specs. No MLX.

Signals are (B, T, 1, 1, C). Every layer is local in time: a stream needs a few positions before and after its own.
"""

import enum
import math
from dataclasses import dataclass, replace
from fractions import Fraction

from ...backend.machine import FLOAT32_BYTES, Backend, Machine
from ...shapes import Axis, Grid, WindowSpec
from ..specs import LayerSpec, NetworkSpec, Step

#: Taps of the stored low-pass filters of an antialiased activation, whose rate is twice its input's.
FILTER_TAPS = 12
#: Input positions before and after its own that an output of such an activation depends on.
FILTER_REACH = 5
#: Outputs of a filter per matrix product. More outputs take more products with zero, fewer more small matrices.
FILTER_BLOCK = 16
#: Input positions to each side that a sample of the resampled waveform depends on.
RESAMPLE_REACH = 7
_END_KERNEL = 7  # of the first and the last convolution
_ALONE = WindowSpec()


class End(enum.Enum):
    """Function applied to a generator's samples at the end."""

    TANH = "tanh"
    CLAMP = "clamp"
    NONE = "none"


@dataclass(frozen=True)
class GeneratorConfig:
    """One generator: a convolution, stages of upsampling and residual blocks, and a convolution.

    Attributes:
        in_channels: channels of its input, the mel bins of both channels.
        width: channels before the first stage; each stage halves them.
        rates, kernels: for each stage, the samples that it makes of one, and the size of its convolution.
        block_kernels, dilations: of the residual blocks, which all stages have alike.
        is_antialiased: True if activations are SnakeBeta at twice the rate, False for leaky ReLU.
    """

    in_channels: int
    width: int
    rates: tuple[int, ...]
    kernels: tuple[int, ...]
    block_kernels: tuple[int, ...]
    dilations: tuple[tuple[int, ...], ...]
    is_antialiased: bool
    end: End
    has_final_bias: bool = True
    out_channels: int = 2

    @property
    def scale(self) -> int:
        """Samples per frame of its input."""
        return math.prod(self.rates)


@dataclass(frozen=True)
class ExtensionConfig:
    """The bandwidth extension: a second generator, on a spectrogram of the first one's waveform."""

    generator: GeneratorConfig
    hop: int
    window: int
    bins: int
    input_rate: int
    output_rate: int

    @property
    def ratio(self) -> int:
        return self.output_rate // self.input_rate


@dataclass(frozen=True)
class VocoderConfig:
    """A generator, and in LTX-2.3 and later its bandwidth extension."""

    generator: GeneratorConfig
    sample_rate: int
    extension: ExtensionConfig | None = None

    def num_samples(self, mel_frames: int) -> int:
        return mel_frames * self.generator.scale * (self.extension.ratio if self.extension else 1)


@dataclass(frozen=True)
class SignalSpec(LayerSpec):
    """A layer along time.

    Attributes:
        taps: positions that each product sees, which GPUs unfold in front of it.
        copies: arrays of the size of its input that it allocates beside these.
        dilation: of its convolution.
        waiting: positions that wait beside its window between two pieces, with `waiting_channels`; at most
            `waiting_rate` for each position of its input.
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
        seen = math.prod(step.grid) + self.window(Axis.TIME).cached
        unfolded = 0 if step.machine.backend is Backend.CPU else self.taps
        elements = (unfolded + self.copies) * seen * self.in_channels
        return super().work_bytes(step) + elements * FLOAT32_BYTES


@dataclass(frozen=True)
class TransposedSpec(SignalSpec):
    """A transposed convolution that makes exactly `rate` positions of each, with `cut` dropped at both ends.

    Of `n` positions that have arrived, `rate * n - cut` results are final.
    """

    rate: int = 1
    kernel: int = 1
    cut: int = 0

    def results(self, axis: Axis, length: int) -> int:
        return self.rate * length if axis is Axis.TIME else length

    def ready(self, axis: Axis, seen: int) -> int:
        return max(0, self.rate * seen - self.cut)

    def needed(self, axis: Axis, count: int) -> int:
        return math.ceil((count + self.cut) / self.rate) if axis is Axis.TIME else count

    def fixed_bytes(self) -> int:
        """Additional bytes of its weight once it is laid out in whole blocks."""
        added = -self.kernel % self.rate
        return added * self.in_channels * self.out_channels * FLOAT32_BYTES

    def reach(self, axis: Axis) -> tuple[Fraction, Fraction]:
        if axis is not Axis.TIME:
            return Fraction(0), Fraction(0)
        before, after = math.ceil((self.kernel - 1 - self.cut) / self.rate), (self.rate - 1 + self.cut) // self.rate
        return Fraction(before), Fraction(after)

    def multiply_adds(self, part: Grid, whole: Grid) -> int:
        return math.prod(part) * self.kernel * self.in_channels * self.out_channels


@dataclass(frozen=True)
class ActivationSpec(SignalSpec):
    """An antialiased activation."""

    def fixed_bytes(self) -> int:
        """The matrices of its two filters: two outputs for each position, and one for two positions."""
        up, down = FILTER_BLOCK - 1 + FILTER_TAPS // 2, 2 * (FILTER_BLOCK - 1) + FILTER_TAPS
        return FILTER_BLOCK * (2 * up + down) * FLOAT32_BYTES

    def multiply_adds(self, part: Grid, whole: Grid) -> int:
        return math.prod(part) * self.in_channels * 4 * FILTER_TAPS


@dataclass(frozen=True)
class BranchesSpec(SignalSpec):
    """The residual blocks of one stage, side by side; `chains` are the layers of each. They are averaged."""

    chains: tuple[tuple[SignalSpec, ...], ...] = ()

    def cache_bytes(self, axis: Axis, grid: Grid, piece: int, machine: Machine) -> int:
        layers = sum(layer.cache_bytes(axis, grid, piece, machine) for chain in self.chains for layer in chain)
        ahead = self.window(axis).after - min(_reach(chain) for chain in self.chains)
        return layers + len(self.chains) * ahead * self.out_channels * FLOAT32_BYTES

    def work_bytes(self, step: Step) -> int:
        work = max(layer.work_bytes(step) for chain in self.chains for layer in chain)
        held = (len(self.chains) + 3) * math.prod(step.grid) * self.out_channels * FLOAT32_BYTES
        return work + held

    def fixed_bytes(self) -> int:
        return sum(layer.fixed_bytes() for chain in self.chains for layer in chain)

    def multiply_adds(self, part: Grid, whole: Grid) -> int:
        return sum(layer.multiply_adds(part, whole) for chain in self.chains for layer in chain)


@dataclass(frozen=True)
class SpectrogramSpec(SignalSpec):
    """The log-mel spectrogram of a waveform that is padded with zeros to whole frames at its end."""

    def results(self, axis: Axis, length: int) -> int:
        return -(-length // self.window(axis).stride) if axis is Axis.TIME else length


def generator_layers(config: GeneratorConfig, prefix: str) -> tuple[LayerSpec, ...]:
    """One generator, whose modules begin with `prefix`: spectrogram (B, T, 1, 1, I) to samples (B, T*scale, 1, 1, 2).

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


def generator_spec(config: GeneratorConfig) -> NetworkSpec:
    """A generator that is the whole vocoder."""
    return NetworkSpec(generator_layers(config, ""), stream_axes=(Axis.TIME,))


def vocoder_spec(config: VocoderConfig) -> NetworkSpec:
    """The whole vocoder: spectrogram (B, T, 1, 1, 2 * bins), channel by channel, to samples (B, T', 1, 1, 2)."""
    if config.extension is None:
        return generator_spec(config.generator)
    first = generator_layers(config.generator, "vocoder.")
    second = generator_layers(config.extension.generator, "bwe_generator.")
    enter, leave = extension_layers(config.extension, second)
    return NetworkSpec((*first, enter, *second, leave), stream_axes=(Axis.TIME,))


def extension_layers(config: ExtensionConfig, second: tuple[LayerSpec, ...]) -> tuple[SignalSpec, SignalSpec]:
    """The layers before and after the second generator, between which the resampled waveform waits."""
    frequencies = config.window // 2 + 1
    channels = config.generator.out_channels
    stft = WindowSpec(config.window, config.hop, config.window - config.hop, 0)
    frames = 1  # of the spectrogram, before the first sample of the second generator is final
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
    """A convolution that pads both ends with zeros, and returns as many positions as it takes."""
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
    """SnakeBeta at twice the rate."""
    weights = (
        (f"{name}.act.alpha", (channels,)),
        (f"{name}.act.beta", (channels,)),
        (f"{name}.upsample.filter", (FILTER_TAPS,)),
        (f"{name}.downsample.lowpass.filter", (FILTER_TAPS,)),
    )
    window = WindowSpec(2 * FILTER_REACH + 1, 1, FILTER_REACH, FILTER_REACH)
    return ActivationSpec(name, channels, channels, windows=(window, _ALONE, _ALONE), weights=weights, copies=12)


def _transposed(name: str, width: int, rate: int, kernel: int) -> TransposedSpec:
    blocks = -(-kernel // rate)  # of `rate` positions that each position contributes to
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
        rate=rate,
        kernel=kernel,
        cut=(kernel - rate) // 2,
    )


def _branches(config: GeneratorConfig, prefix: str, stage: int, width: int) -> BranchesSpec:
    first = stage * len(config.block_kernels)
    chains = tuple(
        block_layers(config, f"{prefix}resblocks.{first + index}", width, kernel, dilations)
        for index, (kernel, dilations) in enumerate(zip(config.block_kernels, config.dilations, strict=True))
    )
    side = max(map(_reach, chains))
    return BranchesSpec(
        f"{prefix}resblocks.{first}",
        width,
        width,
        windows=(WindowSpec(2 * side + 1, 1, side, side), _ALONE, _ALONE),
        weights=tuple(weight for chain in chains for layer in chain for weight in layer.weights),
        chains=chains,
    )


def block_layers(
    config: GeneratorConfig, name: str, width: int, kernel: int, dilations: tuple[int, ...]
) -> tuple[SignalSpec, ...]:
    """A residual block: per dilation two convolutions, each after an activation, and a skip connection."""
    layers: list[SignalSpec] = []
    for index, dilation in enumerate(dilations):
        pair: list[SignalSpec] = []
        for number, each in ((1, dilation), (2, 1)):
            if config.is_antialiased:
                pair.append(activation_layer(f"{name}.acts{number}.{index}", width))
            pair.append(conv_layer(f"{name}.convs{number}.{index}", width, width, kernel, dilation=each))
        pair[-1] = replace(pair[-1], waiting=_reach(tuple(pair)), waiting_channels=width)
        layers += pair
    return tuple(layers)


def _reach(chain: tuple[SignalSpec, ...]) -> int:
    return sum(layer.window(Axis.TIME).ahead for layer in chain)
