"""Configuration of a VAE with a diffusion decoder, checked and resolved, and the published one. No MLX."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from ...errors import CheckpointError
from ...shapes import Grid, Scaled, ScaleFactors
from ..stored import Key, choice, grid, is_grid, is_number, is_whole, listing, needed, only, read_config, whole
from ..video_vae.config import VAEConfig

#: Names of the whole VAE and its decoder in original checkpoints.
CLASS_NAME, DECODER_CLASS_NAME = "CausalDiffusionVAE", "NADiffusionDecoder"
GENERATION = "LTX-2.5 diffusion"

_MAX_WIDTH, _MAX_DEPTH, _MAX_KERNEL, _MAX_STRIDE = 2**16, 64, 63, 8
_MAX_STEPS = 100
_AXES = 3


class Prediction(Enum):
    """Quantity that the network predicts in each denoising step."""

    PICTURE = "x0"
    VELOCITY = "v"  # (noise - picture), the derivative by the noise level


@dataclass(frozen=True)
class StageConfig:
    """Attention blocks of one width and one window, and an upsampling after all stages but the last."""

    channels: int
    depth: int
    kernel: Grid  # of the attention windows, along time, height and width
    up: Grid = (1, 1, 1)
    out_channels: int = 0


@dataclass(frozen=True)
class DecoderConfig:
    """Configuration of the decoder: stages that compute a context from the latents, and one that denoises patches.

    Attributes:
        steps: default number of denoising steps.
        is_fused: one stored matrix computes queries, keys and values.
        has_gates: the checkpoint stores static gates, which scale the last matrices of a block's branches.
        has_type_embedding: the checkpoint stores an embedding that is added to keyframe planes.
    """

    latent_channels: int
    patch_size: int
    head_dim: int
    context_stages: tuple[StageConfig, ...]
    pixel_stage: StageConfig
    embedding_channels: int
    timestep_multiplier: float
    prediction: Prediction
    steps: int
    is_fused: bool = True
    has_gates: bool = False
    has_type_embedding: bool = False

    @property
    def context_channels(self) -> int:
        return self.context_stages[-1].out_channels

    @property
    def pixel_channels(self) -> int:
        """Channels of a patch of pixels."""
        return 3 * self.patch_size**2

    @property
    def ghost_frames(self) -> int:
        """Copies of the last latent frame that the context stages see after it."""
        return 2 * (self.context_stages[0].kernel[0] // 2)

    @property
    def least(self) -> Grid:
        """Smallest latents (T, H, W) that every window fits in. Smaller latents are padded."""
        return self.context_stages[0].kernel

    @property
    def scale(self) -> ScaleFactors:
        time, height, width = (math.prod(stage.up[axis] for stage in self.context_stages) for axis in range(_AXES))
        return ScaleFactors(time, height * self.patch_size, width * self.patch_size)


@dataclass(frozen=True)
class DiffusionVAEConfig(Scaled):
    """Configuration of a VAE with a diffusion decoder. A network is `None` if it is not described."""

    encoder: VAEConfig | None
    decoder: DecoderConfig | None
    generation: str = GENERATION

    @property
    def latent_channels(self) -> int:
        return self._any.latent_channels

    @property
    def scale(self) -> ScaleFactors:
        return self._any.scale

    @property
    def _any(self) -> VAEConfig | DecoderConfig:
        config = self.decoder or self.encoder
        assert config is not None, "one of the networks is described"
        return config


def _is_upsample(value: Any) -> bool:
    is_pair = isinstance(value, (list, tuple)) and len(value) == 2
    return is_pair and is_grid(value[0], _MAX_STRIDE) and is_whole(value[1], 64)


# A file must have the needed keys: with another value, the same weights give another picture, or static.
_KEYS = {
    "_class_name": only(DECODER_CLASS_NAME),
    "dims": only(3),
    "out_channels": only(3),
    "resampler_kind": only("linear"),
    "mlp_ratio": only(4),
    "spatial_padding_mode": only("zeros"),  # no layer pads
    "in_channels": needed(whole(4096)),
    "patch_size": whole(64, 4),
    "head_dim": needed(whole(1024)),
    "stage_channels": needed(listing(partial(is_whole, high=_MAX_WIDTH), _MAX_DEPTH, "widths")),
    "stage_depths": needed(listing(partial(is_whole, high=_MAX_DEPTH), _MAX_DEPTH, "depths")),
    "stage_kernels": needed(listing(partial(is_grid, high=_MAX_KERNEL), _MAX_DEPTH, "kernels, three numbers each")),
    "stage5_kernel": needed(grid(_MAX_KERNEL)),
    "stage5_channels": whole(_MAX_WIDTH, 0),
    "upsamples": needed(listing(_is_upsample, _MAX_DEPTH, "[[time, height, width], reduction]")),
    "t_emb_dim": needed(whole(_MAX_WIDTH)),
    "timestep_scale_multiplier": needed(Key(lambda value: is_number(value) and value > 0, "expected a number above 0")),
    "default_num_inference_steps": needed(whole(_MAX_STEPS)),
    "model_output_type": choice(*(prediction.value for prediction in Prediction)),
}
_OTHER_NAMES = {"na_head_dim": "head_dim"}


def parse_decoder_config(
    raw: Mapping[str, Any],
    model_output_type: Any,
    source: str,
    *,
    is_fused: bool,
    has_gates: bool = False,
    has_type_embedding: bool = False,
) -> DecoderConfig:
    """Parse the `decoder` entry of a configuration; raise a `CheckpointError` for missing keys and unknown ones."""
    entries = {_OTHER_NAMES.get(key, key): value for key, value in raw.items()}
    entries["model_output_type"] = model_output_type
    kernels, depths = (entries.get(key) for key in ("stage_kernels", "stage_depths"))
    if "stage5_kernel" not in entries and isinstance(kernels, (list, tuple)) and isinstance(depths, (list, tuple)):
        entries["stage5_kernel"] = kernels[-1] if len(kernels) == len(depths) > 0 else None
    values = read_config(entries, _KEYS, f"{source}: the decoder of its configuration")
    channels, depths, upsamples = values["stage_channels"], values["stage_depths"], values["upsamples"]
    stage_kernels = [tuple(kernel) for kernel in values["stage_kernels"][: len(upsamples)]]
    if not len(channels) == len(depths) == len(upsamples) + 1 or len(stage_kernels) != len(upsamples):
        raise CheckpointError(
            f"{source}: its configuration has {len(channels)} stage_channels, {len(depths)} stage_depths, "
            f"{len(values['stage_kernels'])} stage_kernels and {len(upsamples)} upsamples; expected one upsample less "
            "than stages."
        )
    stages = tuple(
        StageConfig(width, depth, kernel, tuple(up), width // reduction)
        for width, depth, kernel, (up, reduction) in zip(
            channels[:-1], depths[:-1], stage_kernels, upsamples, strict=True
        )
    )
    pixels = StageConfig(values["stage5_channels"] or channels[-1], depths[-1], tuple(values["stage5_kernel"]))
    _check_widths(stages, channels[1:], pixels, values["head_dim"], source)
    return DecoderConfig(
        latent_channels=values["in_channels"],
        patch_size=values["patch_size"],
        head_dim=values["head_dim"],
        context_stages=stages,
        pixel_stage=pixels,
        embedding_channels=values["t_emb_dim"],
        timestep_multiplier=float(values["timestep_scale_multiplier"]),
        prediction=Prediction(values["model_output_type"]),
        steps=values["default_num_inference_steps"],
        is_fused=is_fused,
        has_gates=has_gates,
        has_type_embedding=has_type_embedding,
    )


def _check_widths(
    stages: Sequence[StageConfig], following: Sequence[int], pixels: StageConfig, head_dim: int, source: str
) -> None:
    for index, (stage, width) in enumerate(zip(stages, following, strict=True)):
        if stage.out_channels != width:
            raise CheckpointError(
                f"{source}: upsample {index} of its configuration makes {stage.out_channels} channels of "
                f"{stage.channels}, and stage {index + 1} has {width}; use the configuration that belongs to the file."
            )
    widths = [*(stage.channels for stage in stages), pixels.channels]
    if head_dim % 8 or any(width % head_dim for width in widths):
        raise CheckpointError(
            f"{source}: its configuration has head_dim = {head_dim} for widths of {', '.join(map(str, widths))}; "
            "expected a multiple of 8 that divides each."
        )


_BASE_CHANNELS = 128  # of the conv decoder of the same latents
_LATENT_CHANNELS, _HEAD_DIM = 128, 64
_LTX_2_5: dict[str, Any] = {
    "stage_channels": [2048, 1024, 512, 512, 256],
    "stage_depths": [4, 6, 4, 2, 8],
    "stage_kernels": [[3, 7, 7], [3, 7, 7], [3, 5, 5], [3, 5, 5]],
    "stage5_kernel": [11, 11, 11],
    "upsamples": [[[1, 2, 2], 2], [[2, 1, 1], 2], [[2, 2, 2], 1], [[2, 2, 2], 2]],
    "t_emb_dim": 384,
    "timestep_scale_multiplier": 1000,
    "default_num_inference_steps": 1,
}


def ltx_2_5(base_channels: int = _BASE_CHANNELS) -> DiffusionVAEConfig:
    """Return LTX-2.5's decoder without its encoder, as narrow as a conv decoder with this many base channels."""
    raw = raw_ltx_2_5(base_channels)
    decoder = parse_decoder_config(raw["decoder"], raw["model_output_type"], GENERATION, is_fused=True)
    return DiffusionVAEConfig(None, decoder)


def raw_ltx_2_5(base_channels: int, in_channels: int = _LATENT_CHANNELS) -> dict[str, Any]:
    """Return the JSON object of the same configuration, as in a file."""
    widths = [width * base_channels // _BASE_CHANNELS for width in _LTX_2_5["stage_channels"]]
    sizes = {"in_channels": in_channels, "stage_channels": widths, "head_dim": min(widths[-1], _HEAD_DIM)}
    decoder = {**_LTX_2_5, **sizes}
    return {
        "_class_name": CLASS_NAME,
        "model_output_type": "x0",
        "decoder": {"_class_name": DECODER_CLASS_NAME, **decoder},
    }
