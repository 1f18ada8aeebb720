"""What a run measures: a VAE, latents and a plan, made from a case."""

from collections.abc import Iterator
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from ..latents import load_latents
from ..models.video_vae.config import GENERATIONS, parse_vae_config
from ..models.video_vae.decoder import Decoder
from ..models.video_vae.encoder import Encoder
from ..pipeline.postprocess import FrameChunk
from ..planning.plan import DecodePlan
from ..vae import DTYPES, VideoVAE
from .case import GENERATION_NAMES, Case, Task, latent_grid


def load_vae(case: Case) -> VideoVAE:
    """The half that a case needs, of its checkpoint or with random weights: the same ones in every process."""
    halves = {"encoder": case.task is Task.ENCODE, "decoder": case.task is not Task.ENCODE}
    if case.model:
        return VideoVAE.from_pretrained(case.model, dtype=case.dtype, **halves)
    widths = {"decoder_base_channels": case.base_width, "encoder_base_channels": case.base_width}
    name = GENERATION_NAMES[case.generation]
    config = parse_vae_config({**GENERATIONS[name], **widths}, name)
    mx.random.seed(0)
    make, half = (Encoder, config.encoder) if halves["encoder"] else (Decoder, config.decoder)
    network = make(half, config.patch_size)
    network.set_dtype(DTYPES[case.dtype or "float32"])
    mx.eval(network.parameters())
    ones = mx.ones((config.latent_channels,))
    encoder, decoder = (network, None) if halves["encoder"] else (None, network)
    return VideoVAE(config, encoder, decoder, 0 * ones, ones)


def load_case_latents(case: Case, vae: VideoVAE) -> mx.array:
    """The latents (1, C, F', H', W') of a case: its file's, or noise, the same in every process."""
    if case.latents:
        return load_latents(case.latents)[0]
    shape = (1, vae.config.latent_channels, *latent_grid(vae.config, case.frames, case.height, case.width))
    latents = mx.random.normal(shape, key=mx.random.key(0))
    mx.eval(latents)
    return latents


@dataclass(frozen=True)
class Decode:
    """One decode, ready to run any number of times.

    Attributes:
        vae: with a decoder.
        latents: (1, C, F', H', W').
        plan: how.
    """

    vae: VideoVAE
    latents: mx.array
    plan: DecodePlan

    @classmethod
    def of(cls, case: Case) -> "Decode":
        """What a case says."""
        vae = load_vae(case)
        latents = load_case_latents(case, vae)
        options = {"mode": case.mode, "order": case.order, "chunk": case.chunk, "tiling": case.tiling}
        options |= {"tile_batch_size": case.tile_batch_size, "memory_budget": case.memory_budget}
        return cls(vae, latents, vae.plan(latents.shape, **options))

    def run(self) -> Iterator[np.ndarray]:
        """Decode: frames (n, H, W, 3) uint8 as they are finished. Whoever has them on the host has waited for them."""
        for chunk in self.vae.stream(self.latents, self.plan, bit_depth=8):
            frames = [chunk.to_uint8()]
            # A suspended generator must not hold what it has handed over.
            del chunk
            yield frames.pop()


def to_levels(pixels: mx.array) -> np.ndarray:
    """Pixels (1, 3, n, H, W) in [-1, 1] as frames (n, H, W, 3) uint8, converted on the device."""
    return FrameChunk(0, pixels.transpose(0, 2, 3, 4, 1)).to_uint8()
