"""Published VAEs by their names."""

from typing import Any, Literal, NamedTuple, get_args

from .errors import PlanError, quote, suggest
from .models.base import SOUND, Config, Family
from .models.families import published

#: Decoders of one generation's latents.
DecoderName = Literal["conv", "diffusion"]

# Releases of LTX-Video with the VAE of another one.
_SAME_VAE = dict.fromkeys(("0.9.6", "0.9.7", "0.9.8"), "0.9.5")


class Published(NamedTuple):
    """Published VAE by its name, such as "ltx-2.3"."""

    name: str
    family: Family[Any]
    config: Config


def find_published(generation: str, decoder: DecoderName = "conv", *, base_channels: int | None = None) -> Published:
    """Find the VAE of a generation with this decoder, at its published widths or other ones: see `Family.published`.

    Generations may also have the names that `info` prints, such as "LTX-Video 0.9.5".

    Raises:
        PlanError: if none is published.
    """
    if decoder not in get_args(DecoderName):
        raise PlanError(f"the decoder {quote(decoder)} is not known; expected {' or '.join(get_args(DecoderName))}.")
    families = published()
    if not isinstance(generation, str):
        raise PlanError(f"the generation is {quote(generation)}; expected one of {', '.join(families)}.")
    name = generation.lower().replace(" ", "-").removeprefix("ltx-video-")
    name = _SAME_VAE.get(name, name)
    if decoder == "diffusion":
        name = f"{name.removesuffix('-diffusion')}-diffusion"
    if name not in families:
        hint = suggest(name, list(families))
        raise PlanError(f"no published VAE is named {quote(name)}{hint}; expected one of {', '.join(families)}.")
    family = families[name]
    widths = [] if base_channels is None else [base_channels]
    return Published(name, family, family.published[name](*widths))


def find_published_sound(generation: str) -> Published:
    """Find the audio VAE of the generation of a published VAE. Raises a `PlanError` if there is none."""
    name, families = generation.removesuffix("-diffusion"), published(SOUND)
    if name not in families:
        raise PlanError(f"{generation} has no sound; choose one of {', '.join(families)}.")
    return Published(name, families[name], families[name].published[name]())
