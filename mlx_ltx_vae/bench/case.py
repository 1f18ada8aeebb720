"""What a run measures: a case, and its VAE, latents and plan."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, cast

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ..backend.machine import Backend
from ..backend.mlx_utils import DTYPES, DtypeName, named_parameters
from ..checkpoint import open_checkpoint
from ..latents import load_latents
from ..models.base import NETWORKS, Config, Family, Statistics
from ..models.convolution.prepared import prepare
from ..models.convolution.rules import ConvRule, ConvShape, Formulation
from ..models.specs import NetworkSpec
from ..pipeline.postprocess import FrameChunk
from ..planning.options import BitDepth, OrderName
from ..planning.plan import DecodePlan
from ..published import PublishedVAE
from ..tiling import SpatialTilingConfig, TemporalTilingConfig, TilingConfig, preset
from ..tiling.config import parse_tile
from ..vae import VideoVAE


@dataclass(frozen=True)
class FixedRule:
    """All convolutions without a stride have one formulation."""

    formulation: Formulation

    def __call__(self, shape: ConvShape, backend: Backend, *, allows_winograd: bool = True) -> Formulation:
        return Formulation.CONV3D if shape.is_strided else self.formulation


@dataclass(frozen=True)
class Case:
    """The video, the weights and the mode of a run. Plain values, which JSON can represent.

    Attributes:
        model: a checkpoint, or None for random weights.
        latents: a latent file, which then determines the size and length; None for noise.
        generation: of random weights, a name of `PublishedVAE`.
        base_width: base channels of random weights; the published models have 128.
        dtype: what to compute in; None for the checkpoint's own, or float32 for random weights.
        keeps_dtype: whether convolutions of random weights take their operands in `dtype` although another is more
            accurate, as those of a checkpoint do if `dtype` is given.
        mode: of a decode; of an encode "stream" or "tiled"; of another program its name.
        tiles: a preset's name, or SIZE:OVERLAP in pixels, and after a comma in frames; None for those that a plan takes
            for the network.
        memory_budget: bytes, or a size such as "8GB".
        prefetch: steps ahead; None as planned.
        cache_limit: bytes that MLX's buffer cache may have; None as planned.
        formulation: of all convolutions, a value of `Formulation`; None for the package's rule.
    """

    model: str | None = None
    latents: str | None = None
    generation: str = "ltx-2.3"
    base_width: int = 32
    dtype: DtypeName | None = None
    keeps_dtype: bool = False
    width: int = 256
    height: int = 256
    frames: int = 57
    mode: Any = "exact"
    order: OrderName = "auto"
    chunk: int | None = None
    tiles: str | None = None
    tile_batch_size: int = 1
    memory_budget: str | int | None = None
    prefetch: int | None = None
    cache_limit: int | None = None
    formulation: str | None = None

    def make_tiling(self) -> TilingConfig | None:
        """The tiles that `tiles` names. A preset may depend on the size of the video."""
        if self.tiles is None:
            return None
        if self.tiles[:1].isdigit():
            pixels, _, frames = self.tiles.partition(",")
            temporal = TemporalTilingConfig(*parse_tile(frames)) if frames else None
            return TilingConfig(SpatialTilingConfig(*parse_tile(pixels)), temporal)
        return preset(self.tiles, self.height, self.width, self.frames) or TilingConfig()


def published_vae(case: Case) -> PublishedVAE:
    """What a case without a checkpoint has random weights of."""
    return PublishedVAE.find(case.generation, base_channels=case.base_width)


def load_config(case: Case) -> Config:
    """The configuration of a case's checkpoint, whose headers alone are read, or of its random weights."""
    if case.model:
        return open_checkpoint(case.model).config
    return published_vae(case).config


def load_spec(case: Case, network: str = "decoder") -> NetworkSpec:
    """The layers of one of a case's networks; a `CheckpointError` if it does not have that."""
    if case.model:
        return open_checkpoint(case.model, encoder=network == "encoder").spec(network)
    return published_vae(case).spec(network)


def load_vae(case: Case, network: Literal["encoder", "decoder"] = "decoder") -> VideoVAE:
    """A VAE with one of its networks: the checkpoint's, or one with the same random weights in every process."""
    if case.model:
        encoder, decoder = (name == network for name in NETWORKS)
        checkpoint = open_checkpoint(case.model, encoder=encoder, decoder=decoder)
        if case.formulation is not None:
            rule = FixedRule(Formulation(case.formulation))
            checkpoint = replace(checkpoint, family=with_rule(checkpoint.family, rule))
        return VideoVAE.from_pretrained(checkpoint, dtype=case.dtype, encoder=encoder, decoder=decoder)
    module = make_random_network(case, network)
    prepare(module, keeps_dtype=case.keeps_dtype)
    made: dict[str, Any] = {**dict.fromkeys(NETWORKS), network: module}
    return VideoVAE(load_config(case), **made, keeps_dtype=case.keeps_dtype)


def make_random_network(case: Case, network: str = "decoder") -> nn.Module:
    """The random network of a case, with its weights as a checkpoint stores them.

    Raises:
        CheckpointError: if the family has no such network.
    """
    vae = published_vae(case)
    vae.spec(network)
    family, config = vae.family, vae.config
    if case.formulation is not None:
        family = with_rule(family, FixedRule(Formulation(case.formulation)))
    ones = mx.ones((config.latent_channels,))
    mx.random.seed(0)
    module = family.make(config, network, Statistics(0 * ones, ones))
    assert isinstance(module, nn.Module)
    module.set_dtype(DTYPES[case.dtype or "float32"])
    mx.eval(module.parameters())
    return module


def with_rule(family: Family[Any], rule: ConvRule) -> Family[Any]:
    """A family whose networks choose the formulations of their convolutions by another rule."""
    return replace(family, make=partial(cast(Any, family.make), rule=rule))


def count_weight_bytes(vae: VideoVAE) -> int:
    """Bytes of the weights of a VAE with one network."""
    return sum(array.nbytes for array in named_parameters(cast(nn.Module, vae.decoder or vae.encoder)).values())


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
    """One decode of latents (1, C, F', H', W'), ready to run any number of times."""

    vae: VideoVAE
    latents: mx.array
    plan: DecodePlan

    @classmethod
    def from_case(cls, case: Case, *, bit_depth: BitDepth | None = 8) -> "Decode":
        """Load the VAE and the latents, and plan the decode to chunks of this bit depth; None for floats.

        The memory of a plan is not that of another `prefetch`.
        """
        return cls.from_vae(load_vae(case), case, bit_depth=bit_depth)

    @classmethod
    def from_vae(cls, vae: VideoVAE, case: Case, *, bit_depth: BitDepth | None = 8, joined: bool = False) -> "Decode":
        """As `from_case`, with a VAE that is loaded; `joined` is that of `VideoVAE.plan`."""
        latents = load_case_latents(case, vae)
        plan = vae.plan(
            latents.shape,
            memory_budget=case.memory_budget,
            mode=case.mode,
            order=case.order,
            tiling=case.make_tiling() if case.mode == "tiled" else None,
            tile_batch_size=case.tile_batch_size,
            chunk=case.chunk,
            bit_depth=bit_depth,
            joined=joined,
        )
        if case.prefetch is not None:
            plan = replace(plan, prefetch=case.prefetch)
        if case.cache_limit is not None:
            plan = replace(plan, memory=replace(plan.memory, buffer_cache=case.cache_limit))
        return cls(vae, latents, plan)

    def run(self, *, in_float: bool = False) -> Iterator[np.ndarray]:
        """Decode. Yields frames (n, H, W, 3) uint8 on the host, as they become final, or float32 in about [-1, 1]."""
        plan = replace(self.plan, outputs=()) if in_float else self.plan
        return _frames_of(self.vae.stream(self.latents, plan, bit_depth=None if in_float else 8), in_float)


def _frames_of(stream: Iterator[FrameChunk], in_float: bool) -> Iterator[np.ndarray]:
    for chunk in stream:
        if in_float:
            chunk.check()
        frames = [np.array(chunk.frames[0].astype(mx.float32)) if in_float else chunk.to_uint8()]
        # A suspended generator must not hold what it has yielded.
        del chunk
        yield frames.pop()
