"""The configuration of a vocoder. No MLX."""

import enum
from dataclasses import dataclass
from math import prod


class End(enum.Enum):
    """What a generator's samples go through at the end."""

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
        is_antialiased: whether activations are SnakeBeta at twice the rate, in place of leaky ReLU.
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
        return prod(self.rates)


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
