"""Table of all families of networks. Each family is a folder here and an entry in this table."""

from typing import Any

from .base import PICTURES, SOUND, Family, Medium
from .diffusion_decoder.family import DIFFUSION_VAE
from .latent_rgb.family import LATENT_RGB
from .preview_vae.family import PREVIEW_VAE
from .sound.family import AUDIO_VAE
from .video_vae.family import CONV_VAE

#: Families of video VAEs.
FAMILIES: tuple[Family[Any], ...] = (CONV_VAE, DIFFUSION_VAE, PREVIEW_VAE, LATENT_RGB)
#: Families of audio VAEs. A file may have networks of both kinds.
AUDIO_FAMILIES: tuple[Family[Any], ...] = (AUDIO_VAE,)


def families_of(medium: Medium) -> tuple[Family[Any], ...]:
    """Return the families of pictures or of sound."""
    return AUDIO_FAMILIES if medium is SOUND else FAMILIES


def published(medium: Medium = PICTURES) -> dict[str, Family[Any]]:
    """Return the families of the published VAEs of pictures or of sound, by the names of these VAEs."""
    return {name: family for family in families_of(medium) for name in family.published}
