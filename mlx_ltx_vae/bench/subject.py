"""The VAE, the latents and the plan of a case."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ..checkpoint import open_checkpoint
from ..dtypes import DTYPES
from ..latents import load_latents
from ..mlx_utils import named_parameters
from ..models.video_vae.config import VAEConfig, parse_vae_config
from ..models.video_vae.decoder import ConvDecoder
from ..models.video_vae.encoder import ConvEncoder
from ..models.video_vae.generations import GENERATIONS
from ..planning.plan import DecodePlan
from ..vae import VideoVAE
from .case import GENERATION_NAMES, Case


def load_config(case: Case) -> VAEConfig:
    """The configuration of a case's checkpoint, whose headers alone are read, or of its random weights."""
    if case.model:
        return open_checkpoint(case.model).config
    widths = {"decoder_base_channels": case.base_width, "encoder_base_channels": case.base_width}
    name = GENERATION_NAMES[case.generation]
    return parse_vae_config({**GENERATIONS[name], **widths}, name)


def load_vae(case: Case, network: Literal["encoder", "decoder"] = "decoder") -> VideoVAE:
    """A VAE with one of its networks: the checkpoint's, or one with the same random weights in every process."""
    if case.model:
        is_encoder = network == "encoder"
        return VideoVAE.from_pretrained(case.model, dtype=case.dtype, encoder=is_encoder, decoder=not is_encoder)
    config = load_config(case)
    mx.random.seed(0)
    encoder = ConvEncoder(config) if network == "encoder" else None
    decoder = ConvDecoder(config) if network == "decoder" else None
    for module in (encoder, decoder):
        if module is not None:
            module.set_dtype(DTYPES[case.dtype or "float32"])
            mx.eval(module.parameters())
    ones = mx.ones((config.latent_channels,))
    return VideoVAE(config, encoder, decoder, mean=0 * ones, std=ones)


def load_case_latents(case: Case, vae: VideoVAE) -> mx.array:
    """The latents (1, C, F', H', W') of a case: its file's, or noise, the same in every process."""
    if case.latents:
        return load_latents(case.latents)[0]
    grid = vae.config.scale.latent_grid((case.frames, case.height, case.width))
    latents = mx.random.normal((1, vae.config.latent_channels, *grid), key=mx.random.key(0))
    mx.eval(latents)
    return latents


def count_weight_bytes(vae: VideoVAE) -> int:
    """Bytes of the weights of the networks that were loaded."""
    return sum(array.nbytes for network in loaded_networks(vae) for array in named_parameters(network).values())


def loaded_networks(vae: VideoVAE) -> list[nn.Module]:
    """The encoder and the decoder, those that were loaded."""
    return [network for network in (vae.encoder, vae.decoder) if isinstance(network, nn.Module)]


@dataclass(frozen=True)
class Decode:
    """One decode, ready to run any number of times.

    Attributes:
        vae: with a decoder.
        latents: (1, C, F', H', W').
        plan: how they are decoded.
    """

    vae: VideoVAE
    latents: mx.array
    plan: DecodePlan

    @classmethod
    def from_case(cls, case: Case) -> "Decode":
        """Load the VAE and the latents, and plan the decode."""
        vae = load_vae(case)
        latents = load_case_latents(case, vae)
        plan = vae.plan(
            latents.shape,
            memory_budget=case.memory_budget,
            mode=case.mode,
            order=case.order,
            tiling=case.make_tiling() if case.mode == "tiled" else None,
            tile_batch_size=case.tile_batch_size,
            chunk=case.chunk,
        )
        return cls(vae, latents, plan)

    def run(self) -> Iterator[np.ndarray]:
        """Decode. Yields frames (n, H, W, 3) uint8 on the host, as they become final."""
        for chunk in self.vae.stream(self.latents, self.plan, bit_depth=8):
            frames = [chunk.to_uint8()]
            # A suspended generator must not hold what it has yielded.
            del chunk
            yield frames.pop()

    def decode_pixels(self) -> mx.array:
        """Decode to pixels (1, 3, F, H, W) in about [-1, 1]."""
        return mx.concatenate([chunk.pixels for chunk in self.vae.stream(self.latents, self.plan)], axis=2)
