"""What a run measures: a case, and its VAE, latents and plan."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ..backend.machine import Backend
from ..backend.mlx_utils import DTYPES, DtypeName, named_parameters
from ..checkpoint import Checkpoint, open_checkpoint
from ..latents import load_latents
from ..models.base import Statistics
from ..models.convolution.prepared import prepare
from ..models.convolution.rules import ConvRule, ConvShape, Formulation, choose
from ..models.diffusion_decoder.config import CLASS_NAME, DECODER_CLASS_NAME, DiffusionVAEConfig, parse_decoder_config
from ..models.diffusion_decoder.networks import DiffusionDecoder
from ..models.preview_vae.config import STANDARD_WIDTHS, WIDE_WIDTHS, PreviewConfig
from ..models.preview_vae.networks import PreviewDecoder
from ..models.specs import NetworkSpec
from ..models.video_vae.config import VAEConfig, parse_vae_config
from ..models.video_vae.generations import GENERATIONS
from ..models.video_vae.networks import ConvDecoder, ConvEncoder
from ..pipeline.postprocess import FrameChunk
from ..planning.memory import StreamRun, cut, stream_memory, with_buffer_cache
from ..planning.options import BitDepth, OrderName
from ..planning.plan import DecodePlan
from ..tiling import SpatialTilingConfig, TilingConfig, preset
from ..tiling.config import parse_tile
from ..vae import VideoVAE

#: What a generation is called on the command line, and its name in `GENERATIONS`.
GENERATION_NAMES = {name.split()[-1].lower(): name for name in GENERATIONS}
#: Tiny decoders, which a benchmark may name as the generation: widths and group width beside 128 base channels.
PREVIEWS: dict[str, tuple[Sequence[int], int | None]] = {
    "taehv": (STANDARD_WIDTHS, None),
    "taehv-wide": (WIDE_WIDTHS, 64),
}
#: LTX-2.5's other decoder, which a benchmark may name too; its published geometry beside 128 base channels.
DIFFUSION = "ltx-2.5-diffusion"
_DIFFUSION_GEOMETRY: dict[str, Any] = {
    "in_channels": 128,
    "head_dim": 64,
    "stage_channels": [2048, 1024, 512, 512, 256],
    "stage_depths": [4, 6, 4, 2, 8],
    "stage_kernels": [[3, 7, 7], [3, 7, 7], [3, 5, 5], [3, 5, 5]],
    "stage5_kernel": [11, 11, 11],
    "upsamples": [[[1, 2, 2], 2], [[2, 1, 1], 2], [[2, 2, 2], 1], [[2, 2, 2], 2]],
    "t_emb_dim": 384,
    "timestep_scale_multiplier": 1000,
    "default_num_inference_steps": 1,
}
_FULL_BASE_WIDTH = 128


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
        generation: of random weights, a key of `GENERATION_NAMES` or `PREVIEWS`, or `DIFFUSION`.
        base_width: base channels of random weights; the published models have 128.
        dtype: what to compute in; None for the checkpoint's own, or float32 for random weights.
        keeps_dtype: whether convolutions of random weights take their operands in `dtype` although another is more
            accurate, as those of a checkpoint do if `dtype` is given.
        mode: of a decode; of an encode "stream" or "tiled"; of another program its name.
        tiles: a preset's name, or SIZE:OVERLAP in pixels.
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
    tiles: str = "default"
    tile_batch_size: int = 1
    memory_budget: str | int | None = None
    prefetch: int | None = None
    cache_limit: int | None = None
    formulation: str | None = None

    def make_tiling(self) -> TilingConfig:
        """The tiles that `tiles` names. A preset may depend on the size of the video."""
        if self.tiles[:1].isdigit():
            return TilingConfig(SpatialTilingConfig(*parse_tile(self.tiles)))
        return preset(self.tiles, self.height, self.width, self.frames) or TilingConfig()


def load_config(case: Case) -> VAEConfig:
    """The configuration of a case's checkpoint, whose headers alone are read, or of its random weights."""
    if case.model:
        config = open_checkpoint(case.model).config
        assert isinstance(config, VAEConfig)
        return config
    widths = {"decoder_base_channels": case.base_width, "encoder_base_channels": case.base_width}
    name = GENERATION_NAMES[case.generation]
    return parse_vae_config({**GENERATIONS[name], **widths}, name)


def load_vae(case: Case, network: Literal["encoder", "decoder"] = "decoder") -> VideoVAE:
    """A VAE with one of its networks: the checkpoint's, or one with the same random weights in every process."""
    if case.model and network == "encoder":
        return VideoVAE.from_pretrained(case.model, dtype=case.dtype, decoder=False)
    rule = choose if case.formulation is None else FixedRule(Formulation(case.formulation))
    if case.model:
        checkpoint = open_checkpoint(case.model, encoder=False)
        if not isinstance(checkpoint.config, VAEConfig):
            return VideoVAE.from_pretrained(checkpoint, dtype=case.dtype, encoder=False)
        return load_decoder(checkpoint, rule, case.dtype)
    if case.generation in PREVIEWS:
        return _random_preview(case)
    if case.generation == DIFFUSION:
        return _random_diffusion(case)
    config = load_config(case)
    ones = mx.ones((config.latent_channels,))
    statistics = Statistics(0 * ones, ones)
    mx.random.seed(0)
    make = ConvEncoder if network == "encoder" else ConvDecoder
    module = make(config, statistics, rule)
    _prepare(module, case)
    encoder, decoder = (module, None) if isinstance(module, ConvEncoder) else (None, module)
    return VideoVAE(config, encoder, decoder)


def _random_preview(case: Case) -> VideoVAE:
    """A tiny decoder with random weights, as narrow as a full one with this base width."""

    def scale(width: int) -> int:
        return max(1, width * case.base_width // _FULL_BASE_WIDTH)

    widths, group_width = PREVIEWS[case.generation]
    n0, n1, n2, n3 = map(scale, widths)
    config = PreviewConfig((n0, n1, n2, n3), None, group_width and scale(group_width))
    mx.random.seed(0)
    decoder = PreviewDecoder(config)
    _prepare(decoder, case)
    return VideoVAE(config, None, decoder)


def diffusion_config(case: Case) -> dict[str, Any]:
    """The configuration of a diffusion decoder as narrow as a convolutional one with this base width."""
    widths = [width * case.base_width // _FULL_BASE_WIDTH for width in _DIFFUSION_GEOMETRY["stage_channels"]]
    geometry = {**_DIFFUSION_GEOMETRY, "stage_channels": widths, "head_dim": min(widths[-1], 64)}
    decoder = {"_class_name": DECODER_CLASS_NAME, **geometry}
    return {"_class_name": CLASS_NAME, "model_output_type": "x0", "decoder": decoder}


def _random_diffusion(case: Case) -> VideoVAE:
    """The diffusion decoder with random weights."""
    raw = diffusion_config(case)
    config = parse_decoder_config(raw["decoder"], raw["model_output_type"], DIFFUSION, is_fused=True, has_gates=False)
    ones = mx.ones((config.latent_channels,))
    mx.random.seed(0)
    decoder = DiffusionDecoder(config, Statistics(0 * ones, ones))
    _prepare(decoder, case)
    return VideoVAE(DiffusionVAEConfig(None, config), None, decoder)


def _prepare(module: nn.Module, case: Case) -> None:
    module.set_dtype(DTYPES[case.dtype or "float32"])
    mx.eval(module.parameters())
    prepare(module, keeps_dtype=case.keeps_dtype)


def load_decoder(checkpoint: Checkpoint, rule: ConvRule, dtype: DtypeName | None = None) -> VideoVAE:
    """A VAE with a checkpoint's decoder, as `VideoVAE.from_pretrained` loads it, with another rule for convolutions."""

    def make(config: VAEConfig, network: str, statistics: Statistics | None) -> ConvDecoder:
        assert statistics is not None, "a checkpoint of this family has them"
        return ConvDecoder(config, statistics, rule)

    changed = replace(checkpoint, family=replace(checkpoint.family, make=make))
    return VideoVAE.from_pretrained(changed, dtype=dtype, encoder=False)


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
    """One decode of latents (1, C, F', H', W'), ready to run any number of times."""

    vae: VideoVAE
    latents: mx.array
    plan: DecodePlan

    @classmethod
    def from_case(cls, case: Case, *, bit_depth: BitDepth | None = 8) -> "Decode":
        """Load the VAE and the latents, and plan the decode to chunks of this bit depth; None for floats."""
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
        assert vae.decoder
        return cls(vae, latents, change_plan(plan, vae.decoder.spec, case.prefetch, case.cache_limit))

    def run(self, *, in_float: bool = False) -> Iterator[np.ndarray]:
        """Decode. Yields frames (n, H, W, 3) uint8 on the host, as they become final, or float32 in about [-1, 1]."""
        return _frames_of(self.vae.stream(self.latents, self.plan, bit_depth=None if in_float else 8), in_float)

    def decode_pixels(self) -> mx.array:
        """Decode to pixels (1, 3, F, H, W) in about [-1, 1]."""
        return mx.concatenate([chunk.pixels for chunk in self.vae.stream(self.latents, self.plan)], axis=2)


def _frames_of(stream: Iterator[FrameChunk], in_float: bool) -> Iterator[np.ndarray]:
    for chunk in stream:
        if in_float:
            chunk.check()
        frames = [np.array(chunk.frames[0].astype(mx.float32)) if in_float else chunk.to_uint8()]
        # A suspended generator must not hold what it has yielded.
        del chunk
        yield frames.pop()


def change_plan(plan: DecodePlan, spec: NetworkSpec, prefetch: int | None, cache_limit: int | None) -> DecodePlan:
    """A plan with another prefetch, whose memory is planned anew, and another limit of MLX's buffer cache, in bytes."""
    if prefetch is not None:
        run = replace(stream_run(plan), prefetch=prefetch)
        memory = stream_memory(spec, plan.latent_shape.grid, plan.latent_shape.batch, run)
        memory = with_buffer_cache(replace(memory, inputs=plan.memory.inputs), plan.machine.backend, None)
        plan = replace(plan, prefetch=prefetch, memory=memory)
    if cache_limit is not None:
        plan = replace(plan, memory=replace(plan.memory, buffer_cache=cache_limit))
    return plan


def stream_run(plan: DecodePlan) -> StreamRun:
    """How an exact plan runs the network."""
    pieces = tuple(cut(plan.latent_shape.grid[plan.order.axis.grid], plan.chunk))
    return StreamRun(plan.order.axis, pieces, plan.steps, plan.prefetch, plan.machine)
