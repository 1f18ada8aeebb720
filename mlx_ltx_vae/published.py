"""Published VAEs by their names: their configurations and layers, without files."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import mlx.core as mx

from .backend.mlx_utils import DTYPES, DtypeName
from .errors import PlanError, quote, suggest
from .networks.base import AUDIO, Config, Family, Network, Statistics
from .networks.families import published
from .networks.specs import NetworkSpec
from .shapes import Grid, LatentShape

#: Decoders of one generation's latents.
DecoderName = Literal["conv", "diffusion"]

# Other names: releases of LTX-Video with the VAE of another one, and the short name of the decoder of previews.
_SAME_VAE = {**dict.fromkeys(("0.9.6", "0.9.7", "0.9.8"), "0.9.5"), "taeltx-2.3": "taehv"}


@dataclass(frozen=True)
class PublishedVAE:
    """Published VAE by its name, such as "ltx-2.3", at its published widths unless `config` has other widths."""

    name: str
    family: Family[Any]
    config: Config

    @classmethod
    def find(
        cls, generation: str, decoder: DecoderName = "conv", *, base_channels: int | None = None
    ) -> "PublishedVAE":
        """Find the VAE of this generation with this decoder, or one with other widths: see `Family.published`.

        Generations may also have the names that `info` prints, such as "LTX-Video 0.9.5".

        Raises:
            PlanError: if none is published.
        """
        if decoder not in get_args(DecoderName):
            raise PlanError(
                f"the decoder {quote(decoder)} is not known; expected {' or '.join(get_args(DecoderName))}."
            )
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
        return cls(name, family, family.published[name](*widths))

    @classmethod
    def find_audio(cls, generation: str) -> "PublishedVAE":
        """Return the audio VAE of the generation of a published VAE. Raises a `PlanError` if there is none."""
        name, families = generation.removesuffix("-diffusion"), published(AUDIO)
        if name not in families:
            raise PlanError(f"{generation} has no audio; choose one of {', '.join(families)}.")
        return cls(name, families[name], families[name].published[name]())

    def spec(self, network: str) -> NetworkSpec:
        """Return the layers of a network. Raises a `CheckpointError` if the VAE has no such network."""
        return self.family.spec(self.config, network)

    def make(self, network: str, dtype: DtypeName | None = None) -> Network:
        """Make a network with random weights, the same each time, as a file in this dtype would store them.

        `dtype` is by default the published file's. Raises a `CheckpointError` if the VAE has no such network.
        """
        self.spec(network)
        ones = mx.ones((self.config.latent_channels,))
        mx.random.seed(0)
        module = self.family.make(self.config, network, Statistics(0 * ones, ones))
        module.set_dtype(DTYPES[dtype or self.family.published_dtype])
        mx.eval(module.parameters())
        return module

    def latent_shape(self, video: Grid) -> LatentShape:
        """Return the shape of the latents of a video (F, H, W). Raises a `LatentsError` if it does not fit the grid."""
        return LatentShape(1, self.config.latent_channels, *self.config.scale.latent_grid(video))
