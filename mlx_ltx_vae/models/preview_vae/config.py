"""The configuration of a tiny autoencoder. No MLX."""

from dataclasses import dataclass, field

from ...shapes import DEFAULT_SCALE, Scaled, ScaleFactors

#: Channels of LTX's latents, by which files of other models are told apart.
LTX_CHANNELS = 128
#: Pixels per side of the patches that the networks make pictures of.
PATCH = 4
#: Widths of the published decoders, the channels of a group in the wide one, and the width of the encoders.
STANDARD_WIDTHS = (256, 128, 64, 64)
WIDE_WIDTHS = (1024, 512, 256, 64)
WIDE_GROUP_WIDTH = 64
ENCODER_WIDTH = 64


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
    encoder_width: int | None = ENCODER_WIDTH
    group_width: int | None = None
    latent_channels: int = LTX_CHANNELS
    generation: str = field(default="custom", compare=False)
    makes_stills: bool = False  # the decoder makes one picture of each latent frame, in place of 8 frames

    @property
    def scale(self) -> ScaleFactors:
        return DEFAULT_SCALE
