"""The configuration of a VAE with a diffusion decoder, checked and resolved. No MLX."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from ...errors import CheckpointError, quote
from ...shapes import Grid, Scaled, ScaleFactors
from ..video_vae.config import VAEConfig
from ..video_vae.raw_config import unknown_key

#: What original checkpoints call the whole VAE and its decoder.
CLASS_NAME, DECODER_CLASS_NAME = "CausalDiffusionVAE", "NADiffusionDecoder"
GENERATION = "LTX-2.5 diffusion"

_MAX_WIDTH, _MAX_DEPTH, _MAX_KERNEL, _MAX_STRIDE = 2**16, 64, 63, 8
_MAX_STEPS = 100
_AXES = 3


class Prediction(Enum):
    """What the network predicts in each denoising step."""

    PICTURE = "x0"
    VELOCITY = "v"  # (noise - picture), the derivative by the noise level


@dataclass(frozen=True)
class StageConfig:
    """Attention blocks of one width and one window; then, but for the last stage, an upsampling."""

    channels: int
    depth: int
    kernel: Grid  # of the attention windows, along time, height and width
    up: Grid = (1, 1, 1)
    out_channels: int = 0


@dataclass(frozen=True)
class DecoderConfig:
    """The decoder: stages that make a context of the latents, and one that denoises patches of pixels.

    Attributes:
        steps: of the denoising, by default.
        is_fused: queries, keys and values are made by one stored matrix.
        has_gates: the checkpoint stores static gates, which scale the last matrices of a block's branches.
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

    @property
    def context_channels(self) -> int:
        return self.context_stages[-1].out_channels

    @property
    def pixel_channels(self) -> int:
        """Channels of a patch of pixels."""
        return 3 * self.patch_size**2

    @property
    def ghost_frames(self) -> int:
        """Copies of the last latent frame that the context stages see behind it."""
        return 2 * (self.context_stages[0].kernel[0] // 2)

    @property
    def least(self) -> Grid:
        """The smallest latents (T, H, W) that every window fits; smaller ones are padded."""
        return self.context_stages[0].kernel

    @property
    def scale(self) -> ScaleFactors:
        time, height, width = (math.prod(stage.up[axis] for stage in self.context_stages) for axis in range(_AXES))
        return ScaleFactors(time, height * self.patch_size, width * self.patch_size)


@dataclass(frozen=True)
class DiffusionVAEConfig(Scaled):
    """A VAE whose decoder is a diffusion decoder. A network is None if it is not described."""

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


class _Key(NamedTuple):
    is_valid: Callable[[Any], bool]
    expected: str
    default: Any = None  # None: it must be stated


def _is_whole(value: Any, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= high


def _whole(high: int, default: int | None = None) -> _Key:
    return _Key(lambda value: _is_whole(value, high), f"a whole number from 1 to {high}", default)


def _is_list(value: Any, is_item: Callable[[Any], bool]) -> bool:
    return isinstance(value, (list, tuple)) and 0 < len(value) <= _MAX_DEPTH and all(map(is_item, value))


def _is_grid(value: Any, high: int) -> bool:
    return _is_list(value, lambda extent: _is_whole(extent, high)) and len(value) == _AXES


def _is_upsample(value: Any) -> bool:
    return _is_list(value, bool) and len(value) == 2 and _is_grid(value[0], _MAX_STRIDE) and _is_whole(value[1], 64)


_KERNEL = _Key(lambda value: _is_grid(value, _MAX_KERNEL), f"three whole numbers from 1 to {_MAX_KERNEL}")
# Those without a default must be stated: with another value, the same weights give another picture, or static.
_KEYS = {
    "in_channels": _whole(4096),
    "patch_size": _whole(64, 4),
    "head_dim": _whole(1024),
    "stage_channels": _Key(lambda value: _is_list(value, lambda each: _is_whole(each, _MAX_WIDTH)), "a list of widths"),
    "stage_depths": _Key(lambda value: _is_list(value, lambda each: _is_whole(each, _MAX_DEPTH)), "a list of depths"),
    "stage_kernels": _Key(lambda value: _is_list(value, _KERNEL.is_valid), "a list of kernels, three numbers each"),
    "stage5_kernel": _KERNEL,
    "stage5_channels": _whole(_MAX_WIDTH, 0),
    "upsamples": _Key(lambda value: _is_list(value, _is_upsample), "a list of [[time, height, width], reduction]"),
    "t_emb_dim": _whole(_MAX_WIDTH),
    "timestep_scale_multiplier": _Key(
        lambda value: isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf,
        "a number above 0",
    ),
    "default_num_inference_steps": _whole(_MAX_STEPS),
}
# Keys with one known value.
_FIXED = {
    "_class_name": DECODER_CLASS_NAME,
    "dims": 3,
    "out_channels": 3,
    "resampler_kind": "linear",
    "mlp_ratio": 4,
    "spatial_padding_mode": "zeros",  # no layer pads
}
_OTHER_NAMES = {"na_head_dim": "head_dim"}


def parse_decoder_config(
    raw: Mapping[str, Any], model_output_type: Any, source: str, *, is_fused: bool, has_gates: bool
) -> DecoderConfig:
    """Parse the `decoder` entry of a configuration; whatever is missing or not known is a `CheckpointError`."""
    values = _check(raw, source)
    try:
        prediction = Prediction(model_output_type)
    except ValueError:
        known = " or ".join(repr(each.value) for each in Prediction)
        raise CheckpointError(
            f"{source}: its configuration has model_output_type = {quote(model_output_type)}; expected {known}, since "
            "another prediction than the trained one gives static."
        ) from None
    channels, depths, upsamples = values["stage_channels"], values["stage_depths"], values["upsamples"]
    kernels = [tuple(kernel) for kernel in values["stage_kernels"][: len(upsamples)]]
    if not len(channels) == len(depths) == len(upsamples) + 1 or len(kernels) != len(upsamples):
        raise CheckpointError(
            f"{source}: its configuration has {len(channels)} stage_channels, {len(depths)} stage_depths, "
            f"{len(values['stage_kernels'])} stage_kernels and {len(upsamples)} upsamples; expected one upsample less "
            "than stages."
        )
    stages = tuple(
        StageConfig(width, depth, kernel, tuple(up), width // reduction)
        for width, depth, kernel, (up, reduction) in zip(channels[:-1], depths[:-1], kernels, upsamples, strict=True)
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
        prediction=prediction,
        steps=values["default_num_inference_steps"],
        is_fused=is_fused,
        has_gates=has_gates,
    )


def _check(raw: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The known keys with their values. Refuses whatever is not known, and what is missing."""
    given = {_OTHER_NAMES.get(key, key): value for key, value in raw.items()}
    what = f"{source}: the decoder of its configuration has"
    for key, expected in _FIXED.items():
        if given.get(key, expected) != expected:
            raise CheckpointError(f"{what} {key} = {quote(given[key])}; only {expected!r} is supported.")
    for key in sorted(given.keys() - _KEYS.keys() - _FIXED.keys()):
        if given[key] and not key.startswith("_"):
            raise unknown_key(f"{source}: the decoder of its configuration", key, given[key])
    kernels, depths = (given.get(key) for key in ("stage_kernels", "stage_depths"))
    if "stage5_kernel" not in given and isinstance(kernels, (list, tuple)) and isinstance(depths, (list, tuple)):
        given["stage5_kernel"] = kernels[-1] if len(kernels) == len(depths) > 0 else None
    checked = {}
    for key, (is_valid, expected, default) in _KEYS.items():
        checked[key] = given.get(key, default)
        if checked[key] is None:
            raise CheckpointError(
                f"{what} no {key}, without which the same weights may give static; use the configuration that belongs "
                "to the file."
            )
        if key in given and not is_valid(checked[key]):
            raise CheckpointError(f"{what} {key} = {quote(given[key])}; expected {expected}.")
    return checked


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
