"""Table of all families of networks. Each family is a folder here and an entry in this table."""

from typing import Any

from .audio.family import AUDIO_VAE
from .base import PICTURES, Family, Medium
from .diffusion_decoder.family import DIFFUSION_VAE
from .latent_rgb.family import LATENT_RGB
from .preview_vae.family import PREVIEW_VAE
from .upsampler.family import UPSAMPLER
from .video_vae.family import CONV_VAE

FAMILIES: tuple[Family[Any], ...] = (CONV_VAE, DIFFUSION_VAE, PREVIEW_VAE, LATENT_RGB, AUDIO_VAE, UPSAMPLER)


def published(medium: Medium = PICTURES) -> dict[str, Family[Any]]:
    """Return the families of the published VAEs of pictures or of audio, by the names of these VAEs."""
    return {name: family for family in FAMILIES if family.medium is medium for name in family.published}
