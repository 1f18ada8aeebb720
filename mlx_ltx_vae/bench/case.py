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
from ..checkpoint import Checkpoint, open_checkpoint
from ..latents import load_latents
from ..models.base import NETWORKS, Family, Statistics
from ..models.convolution.prepared import prepare
from ..models.convolution.rules import ConvRule, ConvShape, Formulation
from ..pipeline.postprocess import FrameChunk
from ..planning.options import OrderName
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
    """The video, the weights and the mode of a run. Plain values, which JSON can represent."""

    model: str | None = None  # a checkpoint; None for random weights
    latents: str | None = None  # a latent file, of this size and length; None for noise
    generation: str = "ltx-2.3"  # of random weights, a name of `PublishedVAE`
    base_width: int = 32  # of random weights; the published models have 128
    dtype: DtypeName | None = None  # None for the checkpoint's own, or float32 for random weights
    keeps_dtype: bool = False  # whether random weights compute in `dtype` although another is more accurate
    width: int = 256
    height: int = 256
    frames: int = 57
    mode: Any = "exact"  # of a decode; of an encode "stream" or "tiled"; of another program its name
    order: OrderName = "auto"
    chunk: int | None = None
    tiles: str | None = None  # a preset, or SIZE:OVERLAP in pixels, and after a comma in frames; None as planned
    tile_batch_size: int = 1
    memory_budget: str | int | None = None
    prefetch: int | None = None  # steps ahead; None as planned
    cache_limit: int | None = None  # bytes that MLX's buffer cache may have; None as planned
    formulation: str | None = None  # of all convolutions, a value of `Formulation`; None for the package's rule

    def make_tiling(self) -> TilingConfig | None:
        """The tiles that `tiles` names. A preset may depend on the size of the video."""
        if self.tiles is None:
            return None
        if self.tiles[:1].isdigit():
            pixels, _, frames = self.tiles.partition(",")
            temporal = TemporalTilingConfig(*parse_tile(frames)) if frames else None
            return TilingConfig(SpatialTilingConfig(*parse_tile(pixels)), temporal)
        return preset(self.tiles, self.height, self.width, self.frames) or TilingConfig()


def open_case(case: Case, network: str = "decoder") -> Checkpoint | PublishedVAE:
    """What has the configuration and the layers of a case: the headers of its checkpoint, or a published VAE."""
    if case.model is None:
        return PublishedVAE.find(case.generation, base_channels=case.base_width)
    encoder, decoder = (name == network for name in NETWORKS)
    return open_checkpoint(case.model, encoder=encoder, decoder=decoder)


def load_vae(case: Case, network: Literal["encoder", "decoder"] = "decoder") -> VideoVAE:
    """A VAE with one of its networks: the checkpoint's, or one with the same random weights in every process."""
    opened = open_case(case, network)
    made: dict[str, Any] = dict.fromkeys(NETWORKS)
    if isinstance(opened, Checkpoint):
        opened = replace(opened, family=_family(case, opened))
        return VideoVAE.from_pretrained(opened, dtype=case.dtype, **{name: name == network for name in made})
    made[network] = make_random_network(case, network)
    prepare(made[network], keeps_dtype=case.keeps_dtype)
    return VideoVAE(opened.config, **made, keeps_dtype=case.keeps_dtype)


def make_random_network(case: Case, network: str = "decoder") -> nn.Module:
    """The random network of a case, with its weights as a checkpoint stores them.

    Raises:
        CheckpointError: if the family has no such network.
    """
    vae = PublishedVAE.find(case.generation, base_channels=case.base_width)
    vae.spec(network)
    ones = mx.ones((vae.config.latent_channels,))
    mx.random.seed(0)
    module = _family(case, vae).make(vae.config, network, Statistics(0 * ones, ones))
    assert isinstance(module, nn.Module)
    module.set_dtype(DTYPES[case.dtype or "float32"])
    mx.eval(module.parameters())
    return module


def _family(case: Case, opened: Checkpoint | PublishedVAE) -> Family[Any]:
    if case.formulation is None:
        return opened.family
    return with_rule(opened.family, FixedRule(Formulation(case.formulation)))


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
    def from_case(cls, case: Case, vae: VideoVAE | None = None, **options: Any) -> "Decode":
        """Load the latents, and the VAE if none is given, and plan the decode; `options` are those of `VideoVAE.plan`.

        The memory of a plan is not that of another `prefetch`.
        """
        vae = vae or load_vae(case)
        latents = load_case_latents(case, vae)
        plan = vae.plan(
            latents.shape,
            memory_budget=case.memory_budget,
            mode=case.mode,
            order=case.order,
            tiling=case.make_tiling() if case.mode == "tiled" else None,
            tile_batch_size=case.tile_batch_size,
            chunk=case.chunk,
            **{"bit_depth": 8, **options},
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
