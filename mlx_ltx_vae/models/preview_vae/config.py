"""The configuration of a tiny autoencoder. No MLX."""

from dataclasses import dataclass, field
from enum import Enum

from ...shapes import DEFAULT_SCALE, Scaled, ScaleFactors

#: Channels of LTX's latents, by which files of other models are told apart.
LTX_CHANNELS = 128
#: Pixels per side of the patches that the networks make pictures of.
PATCH = 4
#: Widths of the published decoders, and the channels of a group in the wide one.
STANDARD_WIDTHS = (256, 128, 64, 64)
WIDE_WIDTHS = (1024, 512, 256, 64)


class Output(Enum):
    """What a decoder makes of each latent frame."""

    FRAMES = "frames"
    STILLS = "stills"  # one picture, which stands for the last of its frames
    SMALL_STILLS = "small stills"  # of 4x4 pixels per latent cell, since no layer repeats positions


@dataclass(frozen=True)
class PreviewConfig(Scaled):
    """A tiny autoencoder whose networks have these widths; None for one that does not exist.

    Attributes:
        decoder_widths: channels of the three levels of the decoder, and of what follows them.
        group_width: channels per group of the convolutions in the wide decoder's memory blocks; None for the standard
            blocks.
        generation: the published file that this is, such as "taeltx2_3". Files of equal shapes differ in it alone.
    """

    decoder_widths: tuple[int, int, int, int] | None = STANDARD_WIDTHS
    encoder_width: int | None = 64
    group_width: int | None = None
    latent_channels: int = LTX_CHANNELS
    generation: str = field(default="custom", compare=False)
    output: Output = Output.FRAMES

    @property
    def scale(self) -> ScaleFactors:
        return DEFAULT_SCALE
