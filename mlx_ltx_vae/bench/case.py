"""What a run measures: a case, and its VAE, latents and plan."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ..backend.dtypes import DTYPES
from ..backend.mlx_utils import named_parameters
from ..checkpoint import Checkpoint, open_checkpoint
from ..latents import load_latents
from ..models.base import Config, Statistics
from ..models.convolution.module import prepare
from ..models.convolution.rules import ConvRule, FixedRule, Formulation, choose
from ..models.specs import NetworkSpec
from ..models.video_vae.config import VAEConfig, parse_vae_config
from ..models.video_vae.decoder import ConvDecoder
from ..models.video_vae.encoder import ConvEncoder
from ..models.video_vae.generations import GENERATIONS
from ..models.video_vae.network_specs import decoder_spec
from ..pipeline.decode_stream import DecodeStream
from ..planning.plan import DecodePlan
from ..tiling import SpatialTilingConfig, TilingConfig, preset
from ..tiling.config import parse_tile
from ..vae import VideoVAE

#: What a generation is called on the command line, and its name in `GENERATIONS`.
GENERATION_NAMES = {name.split()[-1].lower(): name for name in GENERATIONS}


@dataclass(frozen=True)
class Case:
    """The video, the weights and the mode of a run. Plain values, which JSON can represent.

    Attributes:
        model: a checkpoint, or None for random weights.
        latents: a latent file, which then determines the size and length; None for noise.
        generation: of random weights, a key of `GENERATION_NAMES`.
        base_width: base channels of random weights; the published models have 128.
        dtype: what to compute in; None for the checkpoint's own, or float32 for random weights.
        keeps_dtype: whether convolutions of random weights take their operands in `dtype` although another is more
            accurate, as those of a checkpoint do if `dtype` is given.
        mode: of a decode; of an encode "stream" or "tiled"; of another program its name.
        tiles: a preset's name, or SIZE:OVERLAP in pixels.
        formulation: of all convolutions, a value of `Formulation`; None for the package's rule.
        memory_budget: bytes, or a size such as "8GB".
    """

    model: str | None = None
    latents: str | None = None
    generation: str = "ltx-2.3"
    base_width: int = 32
    dtype: str | None = None
    keeps_dtype: bool = False
    width: int = 256
    height: int = 256
    frames: int = 57
    mode: str = "exact"
    order: str = "auto"
    chunk: int | None = None
    tiles: str = "default"
    tile_batch_size: int = 1
    memory_budget: str | int | None = None
    formulation: str | None = None

    @property
    def rule(self) -> ConvRule:
        """What chooses the formulation of each convolution."""
        return choose if self.formulation is None else FixedRule(Formulation(self.formulation))

    def make_tiling(self) -> TilingConfig:
        """The tiles that `tiles` names. A preset may depend on the size of the video."""
        if self.tiles[:1].isdigit():
            return TilingConfig(SpatialTilingConfig(*parse_tile(self.tiles)))
        return preset(self.tiles, self.height, self.width, self.frames) or TilingConfig()


def load_config(case: Case) -> Config:
    """The configuration of a case's checkpoint, whose headers alone are read, or of its random weights."""
    return open_checkpoint(case.model).config if case.model else _random_config(case)


def load_spec(case: Case) -> NetworkSpec:
    """The layers of a case's decoder. Of a checkpoint the headers alone are read."""
    return open_checkpoint(case.model).spec("decoder") if case.model else decoder_spec(_random_config(case))


def _random_config(case: Case) -> VAEConfig:
    widths = {"decoder_base_channels": case.base_width, "encoder_base_channels": case.base_width}
    name = GENERATION_NAMES[case.generation]
    return parse_vae_config({**GENERATIONS[name], **widths}, name)


def load_vae(case: Case, network: Literal["encoder", "decoder"] = "decoder") -> VideoVAE:
    """A VAE with one of its networks: the checkpoint's, or one with the same random weights in every process."""
    is_encoder = network == "encoder"
    if case.model and case.formulation:
        checkpoint = with_rule(open_checkpoint(case.model, encoder=False), case.rule)
        return VideoVAE.from_pretrained(checkpoint, dtype=case.dtype, encoder=False)
    if case.model:
        return VideoVAE.from_pretrained(case.model, dtype=case.dtype, encoder=is_encoder, decoder=not is_encoder)
    config = _random_config(case)
    ones = mx.ones((config.latent_channels,))
    statistics = Statistics(0 * ones, ones)
    mx.random.seed(0)
    encoder = ConvEncoder(config, statistics, case.rule) if is_encoder else None
    decoder = None if is_encoder else ConvDecoder(config, statistics, case.rule)
    vae = VideoVAE(config, encoder, decoder)
    module = loaded_network(vae)
    module.set_dtype(DTYPES[case.dtype or "float32"])
    mx.eval(module.parameters())
    prepare(module, keeps_dtype=case.keeps_dtype)
    return vae


def with_rule(checkpoint: Checkpoint, rule: ConvRule) -> Checkpoint:
    """A checkpoint whose decoder gets another rule for convolutions."""

    def make(config: VAEConfig, network: str, statistics: Statistics | None) -> ConvDecoder:
        assert statistics is not None, "a checkpoint of this family has them"
        return ConvDecoder(config, statistics, rule)

    return replace(checkpoint, family=replace(checkpoint.family, make=make))


def loaded_network(vae: VideoVAE) -> nn.Module:
    """The network of a VAE that has one."""
    (network,) = (each for each in (vae.encoder, vae.decoder) if isinstance(each, nn.Module))
    return network


def count_weight_bytes(vae: VideoVAE) -> int:
    """Bytes of the weights of a VAE with one network."""
    return sum(array.nbytes for array in named_parameters(loaded_network(vae)).values())


def load_case_latents(case: Case, vae: VideoVAE) -> mx.array:
    """The latents (1, C, F', H', W') of a case: its file's, or noise, the same in every process."""
    if case.latents:
        return load_latents(case.latents)[0]
    grid = vae.config.scale.latent_grid((case.frames, case.height, case.width))
    latents = mx.random.normal((1, vae.config.latent_channels, *grid), key=mx.random.key(0))
    mx.eval(latents)
    return latents


@dataclass(frozen=True)
class Decode:
    """One decode of latents (1, C, F', H', W'), ready to run any number of times.

    Attributes:
        group: the processes that decode together; None for this one alone.
    """

    vae: VideoVAE
    latents: mx.array
    plan: DecodePlan
    group: mx.distributed.Group | None = None

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

    @property
    def spec(self) -> NetworkSpec:
        """The spec of the decoder."""
        assert self.vae.decoder is not None
        return self.vae.decoder.spec

    def run(self) -> Iterator[np.ndarray]:
        """Decode. Yields frames (n, H, W, 3) uint8 on the host, as they become final."""
        return self.frames_of(self.stream())

    def stream(self) -> DecodeStream:
        """A new stream of levels."""
        return self.vae.stream(self.latents, self.plan, bit_depth=8, group=self.group)

    @staticmethod
    def frames_of(stream: DecodeStream) -> Iterator[np.ndarray]:
        """The frames (n, H, W, 3) uint8 of a stream of levels, on the host."""
        for chunk in stream:
            frames = [chunk.to_uint8()]
            # A suspended generator must not hold what it has yielded.
            del chunk
            yield frames.pop()

    def decode_pixels(self) -> mx.array:
        """Decode to pixels (1, 3, F, H, W) in about [-1, 1]."""
        return mx.concatenate([chunk.pixels for chunk in self.vae.stream(self.latents, self.plan)], axis=2)
