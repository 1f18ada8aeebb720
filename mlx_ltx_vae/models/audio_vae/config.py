"""The configuration of an audio VAE and its vocoder. No MLX."""

import enum
from dataclasses import dataclass

from ...shapes import Scaled, ScaleFactors
from ..vocoder.config import VocoderConfig


class Norm(enum.Enum):
    """The norm in front of each convolution."""

    PIXEL = "pixel"
    GROUP = "group"


class Causality(enum.Enum):
    """The axis along which convolutions see no later positions."""

    TIME = "height"
    FREQUENCY = "width"
    NONE = "none"


@dataclass(frozen=True)
class MelConfig:
    """The spectrogram that the encoder takes."""

    sample_rate: int = 16000
    hop: int = 160
    window: int = 1024
    bins: int = 64
    low: float = 0.0
    high: float = 8000.0


@dataclass(frozen=True)
class AudioConfig(Scaled):
    """An audio VAE and its vocoder. Latents are (B, channels, T, bins), or packed (B, T, channels * bins).

    Attributes:
        channels: of the latents, which are not packed.
        width: channels of the first level; `multipliers` are those of all levels relative to it.
        attention_levels: levels whose blocks are each followed by an attention.
        vocoder: None for a VAE without one.
    """

    channels: int
    width: int
    multipliers: tuple[int, ...]
    num_blocks: int
    mel: MelConfig = MelConfig()
    audio_channels: int = 2
    norm: Norm = Norm.PIXEL
    causality: Causality = Causality.TIME
    attention_levels: frozenset[int] = frozenset()
    has_mid_attention: bool = False
    vocoder: VocoderConfig | None = None
    generation: str = "custom"

    @property
    def scale(self) -> ScaleFactors:
        """Mel frames and bins per latent cell."""
        factor = 2 ** (len(self.multipliers) - 1)
        return ScaleFactors(factor, factor, 1)

    @property
    def bins(self) -> int:
        """Frequency bins of the latents."""
        return self.mel.bins // self.time_scale

    @property
    def latent_channels(self) -> int:
        """Channels of packed latents, each of which has statistics."""
        return self.channels * self.bins

    @property
    def sample_rate(self) -> int:
        """Samples per second that the vocoder makes; 0 without one."""
        return 0 if self.vocoder is None else self.vocoder.sample_rate

    @property
    def latents_per_second(self) -> float:
        return self.mel.sample_rate / self.mel.hop / self.time_scale

    def mel_frames(self, latents: int) -> int:
        """The number of mel frames that so many latents decode to."""
        first = self.time_scale if self.causality is Causality.NONE else 1
        return first + self.time_scale * (latents - 1)

    def num_samples(self, latents: int) -> int:
        """The number of samples that so many latents decode to."""
        assert self.vocoder is not None
        return self.vocoder.num_samples(self.mel_frames(latents))
