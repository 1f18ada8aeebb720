"""The configuration of a video VAE: what a checkpoint says about itself, made exact.

`parse_vae_config` reads the `vae` entry of the original files' metadata. It resolves everything that the files
leave to convention (channel widths, padding modes, defaults), so that the networks are built without a decision
left to take. Strings end here: past this module every choice is an enum.
"""

import enum
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import CheckpointError
from ...shapes import ScaleFactors
from ..specs import PaddingMode


class BlockKind(enum.Enum):
    """What a block of the encoder or decoder computes."""

    RES_STACK = "res_x"  # residual blocks of one width, sharing a time embedding
    RES_CHANGE = "res_x_y"  # one residual block that changes the number of channels
    SHUFFLE = "shuffle"  # a convolution and a rearrangement between depth and space
    STRIDED = "strided"  # a strided convolution (encoders of 0.9.0 and 0.9.1)
    ATTENTION = "attn"  # self-attention within each frame


class NormKind(enum.Enum):
    """The normalisation in front of each convolution."""

    PIXEL = "pixel_norm"
    GROUP = "group_norm"


class LogVariance(enum.Enum):
    """How many channels the encoder spends on the log-variance (which a latent does not need)."""

    UNIFORM = "uniform"
    PER_CHANNEL = "per_channel"
    CONSTANT = "constant"
    NONE = "none"


@dataclass(frozen=True)
class BlockConfig:
    """One block, in the order in which data passes it, with its widths resolved.

    `stride` is (time, height, width): by how much a SHUFFLE or STRIDED block changes the grid.
    """

    kind: BlockKind
    in_channels: int
    out_channels: int
    num_layers: int = 1
    stride: tuple[int, int, int] = (1, 1, 1)
    residual: bool = False
    inject_noise: bool = False

    @property
    def num_convolutions(self) -> int:
        """How many convolutions over time stand one after the other in it."""
        if self.kind is BlockKind.ATTENTION:
            return 0
        return 1 if self.kind in (BlockKind.SHUFFLE, BlockKind.STRIDED) else 2 * self.num_layers


@dataclass(frozen=True)
class NetworkConfig:
    """One half of the VAE, from `conv_in` (in_channels) to `conv_out` (out_channels)."""

    in_channels: int
    out_channels: int
    blocks: tuple[BlockConfig, ...]
    causal: bool
    padding: PaddingMode
    norm: NormKind
    norm_groups: int
    timestep_conditioning: bool

    @property
    def first_width(self) -> int:
        """Channels between `conv_in` and the first block."""
        return self.blocks[0].in_channels

    @property
    def last_width(self) -> int:
        """Channels between the last block and `conv_out`."""
        return self.blocks[-1].out_channels

    @property
    def stride(self) -> ScaleFactors:
        """By how much the blocks change the grid altogether, per axis."""
        return ScaleFactors(*(math.prod(block.stride[axis] for block in self.blocks) for axis in range(3)))


@dataclass(frozen=True)
class VAEConfig:
    """A whole video VAE. `scale` follows from the blocks and nothing else."""

    latent_channels: int
    patch_size: int
    encoder: NetworkConfig
    decoder: NetworkConfig
    generation: str

    @property
    def scale(self) -> ScaleFactors:
        """Pixels per latent cell: frames, rows, columns."""
        time, height, width = self.decoder.stride
        return ScaleFactors(time, height * self.patch_size, width * self.patch_size)

    @property
    def time_scale(self) -> int:
        """Frames per latent frame (but for the first, which is one frame)."""
        return self.scale.time

    @property
    def spatial_scale(self) -> int:
        """Pixels per latent cell along each side."""
        return self.scale.height

    @property
    def causal_decoder(self) -> bool:
        """Whether a decoded frame depends on earlier latent frames only."""
        return self.decoder.causal

    @property
    def timestep_conditioning(self) -> bool:
        """Whether the decoder takes a timestep and noise (0.9.1 to 0.9.8)."""
        return self.decoder.timestep_conditioning

    def num_frames(self, latent_frames: int) -> int:
        """Frames that `latent_frames` latent frames decode to."""
        return 1 + self.scale.time * (latent_frames - 1)


# Keys of a `vae` configuration whose only admissible value is the one every published checkpoint has.
_FIXED_KEYS = {
    "_class_name": "CausalVideoAutoencoder",
    "dims": 3,
    "in_channels": 3,
    "out_channels": 3,
    "scaling_factor": 1.0,
    "use_quant_conv": False,
    "normalize_latent_channels": False,
}
_READ_KEYS = {
    "latent_channels",
    "blocks",
    "encoder_blocks",
    "decoder_blocks",
    "norm_layer",
    "norm_num_groups",
    "patch_size",
    "latent_log_var",
    "causal_decoder",
    "timestep_conditioning",
    "encoder_base_channels",
    "decoder_base_channels",
    "spatial_padding_mode",
    "encoder_spatial_padding_mode",
}
_BLOCK_KEYS = {"num_layers", "multiplier", "residual", "inject_noise", "attention_head_dim"}
_STRIDES = {"compress_space": (1, 2, 2), "compress_time": (2, 1, 1), "compress_all": (2, 2, 2)}
_DEFAULT_BASE_CHANNELS = 128


def parse_vae_config(raw: Mapping[str, Any], source: str) -> VAEConfig:
    """Make a `VAEConfig` from the `vae` entry of a checkpoint's metadata.

    Args:
        raw: the JSON object, in the vocabulary of the original checkpoints.
        source: what to call the checkpoint in errors.

    Raises:
        CheckpointError: for a key or value that this package does not know, as it would change the result.
    """
    _refuse_unknown(raw, source)
    latent_channels = int(raw.get("latent_channels", 128))
    patch_size = int(raw.get("patch_size", 4))
    timestep_conditioning = bool(raw.get("timestep_conditioning", False))
    encoder_list = raw.get("encoder_blocks", raw.get("blocks"))
    decoder_list = raw.get("decoder_blocks", raw.get("blocks"))
    if not encoder_list or not decoder_list:
        raise CheckpointError(f"{source}: its configuration lists no encoder_blocks and decoder_blocks (or blocks).")
    encoder_padding, decoder_padding = _padding_modes(raw, timestep_conditioning, source)
    norm = _enum(NormKind, raw.get("norm_layer", "pixel_norm"), "norm_layer", source)
    norm_groups = int(raw.get("norm_num_groups", 32))
    log_variance = _enum(LogVariance, raw.get("latent_log_var", "uniform"), "latent_log_var", source)
    encoder = NetworkConfig(
        in_channels=3 * patch_size**2,
        out_channels=_moment_channels(latent_channels, log_variance),
        blocks=_encoder_blocks(encoder_list, int(raw.get("encoder_base_channels", _DEFAULT_BASE_CHANNELS)), source),
        causal=True,
        padding=encoder_padding,
        norm=norm,
        norm_groups=norm_groups,
        timestep_conditioning=False,
    )
    decoder = NetworkConfig(
        in_channels=latent_channels,
        out_channels=3 * patch_size**2,
        blocks=_decoder_blocks(decoder_list, int(raw.get("decoder_base_channels", _DEFAULT_BASE_CHANNELS)), source),
        causal=bool(raw.get("causal_decoder", False)),
        padding=decoder_padding,
        norm=norm,
        norm_groups=norm_groups,
        timestep_conditioning=timestep_conditioning,
    )
    if encoder.stride != decoder.stride:
        raise CheckpointError(
            f"{source}: its encoder scales by {tuple(encoder.stride)} and its decoder by {tuple(decoder.stride)} "
            "(time, height, width), so the two do not belong together."
        )
    return VAEConfig(latent_channels, patch_size, encoder, decoder, name_generation(raw))


def name_generation(raw: Mapping[str, Any]) -> str:
    """The name people use for the generation whose block lists these are, or "custom"."""
    layout = _layout(raw)
    for name, known in GENERATIONS.items():
        if layout == _layout(known):
            return name
    return "custom"


def _layout(raw: Mapping[str, Any]) -> tuple:
    """What tells generations apart: block names, layer counts and timestep conditioning; no widths."""

    def names(blocks: Sequence) -> tuple:
        return tuple((name, _block_options(options, name, "").get("num_layers", 1)) for name, options in blocks)

    return (
        names(raw.get("encoder_blocks", raw.get("blocks", ()))),
        names(raw.get("decoder_blocks", raw.get("blocks", ()))),
        bool(raw.get("timestep_conditioning", False)),
    )


def _refuse_unknown(raw: Mapping[str, Any], source: str) -> None:
    class_name = raw.get("_class_name", _FIXED_KEYS["_class_name"])
    if class_name == "CausalDiffusionVAE":
        raise CheckpointError(
            f"{source}: this is the diffusion decoder of LTX-2.5 (CausalDiffusionVAE), which is not supported yet; "
            "use the file of the convolutional decoder (its name ends in video-vae-conv)."
        )
    for key, expected in _FIXED_KEYS.items():
        if key in raw and raw[key] != expected:
            raise CheckpointError(f"{source}: its configuration has {key} = {raw[key]!r}; only {expected!r} is known.")
    for key in sorted(raw.keys() - _FIXED_KEYS.keys() - _READ_KEYS):
        if key.startswith("_"):
            continue
        if raw[key]:
            raise CheckpointError(
                f"{source}: its configuration has the unknown key {key!r} = {raw[key]!r}, which could change the "
                "result; a newer mlx_ltx_vae may know it."
            )
        warnings.warn(f"{source}: the unknown configuration key {key!r} is switched off and ignored.", stacklevel=3)


def _enum(kind: type[enum.Enum], value: Any, key: str, source: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        names = ", ".join(member.value for member in kind)
        raise CheckpointError(f"{source}: its configuration has {key} = {value!r}; known are {names}.") from None


def _padding_modes(raw: Mapping[str, Any], timestep: bool, source: str) -> tuple[PaddingMode, PaddingMode]:
    """Encoder and decoder padding. LTX-2 says nothing and reflects in its decoder; 0.9.x says nothing and does not.

    `spatial_padding_mode` rules both halves, as it does in the reference's results; a mode of the encoder's own counts
    where that is absent.
    """
    from_ltx_0_9 = timestep or "blocks" in raw
    decoder = raw.get("spatial_padding_mode", "zeros" if from_ltx_0_9 else "reflect")
    encoder = raw.get("spatial_padding_mode", raw.get("encoder_spatial_padding_mode", "zeros"))
    return (
        _enum(PaddingMode, encoder, "encoder_spatial_padding_mode", source),
        _enum(PaddingMode, decoder, "spatial_padding_mode", source),
    )


def _moment_channels(latent_channels: int, log_variance: LogVariance) -> int:
    extra = {LogVariance.UNIFORM: 1, LogVariance.CONSTANT: 1, LogVariance.PER_CHANNEL: latent_channels}
    return latent_channels + extra.get(log_variance, 0)


def _block_options(options: Any, name: str, source: str) -> dict[str, Any]:
    if isinstance(options, int):
        return {"num_layers": options}
    unknown = sorted(options.keys() - _BLOCK_KEYS)
    if unknown:
        raise CheckpointError(f"{source}: block {name!r} has the unknown option {unknown[0]!r}.")
    return dict(options)


def _encoder_blocks(blocks: Sequence, width: int, source: str) -> tuple[BlockConfig, ...]:
    result = []
    for name, raw_options in blocks:
        options = _block_options(raw_options, name, source)
        base_name = name.removesuffix("_res").removesuffix("_x_y")
        if name == "res_x":
            block = BlockConfig(BlockKind.RES_STACK, width, width, options.get("num_layers", 1))
        elif name == "res_x_y":
            block = BlockConfig(BlockKind.RES_CHANGE, width, width * options.get("multiplier", 2))
        elif name == "attn":
            block = BlockConfig(BlockKind.ATTENTION, width, width)
        elif base_name in _STRIDES:
            shuffled = name.endswith("_res")
            grows = shuffled or name.endswith("_x_y")
            out_width = width * options.get("multiplier", 2) if grows else width
            kind = BlockKind.SHUFFLE if shuffled else BlockKind.STRIDED
            block = BlockConfig(kind, width, out_width, stride=_STRIDES[base_name], residual=shuffled)
        else:
            raise CheckpointError(f"{source}: its encoder has a block of the unknown kind {name!r}.")
        if options.get("inject_noise"):
            raise CheckpointError(f"{source}: its encoder injects noise, which no known encoder does.")
        width = block.out_channels
        result.append(block)
    return tuple(result)


def _decoder_blocks(blocks: Sequence, base_channels: int, source: str) -> tuple[BlockConfig, ...]:
    walk = [(name, _block_options(options, name, source)) for name, options in reversed(list(blocks))]
    shrink = [options.get("multiplier", 2 if name == "res_x_y" else 1) for name, options in walk]
    width = base_channels * math.prod(shrink)
    result = []
    for (name, options), multiplier in zip(walk, shrink, strict=True):
        if name == "res_x":
            noise = bool(options.get("inject_noise", False))
            layers = options.get("num_layers", 1)
            block = BlockConfig(BlockKind.RES_STACK, width, width, layers, inject_noise=noise)
        elif name == "res_x_y":
            if options.get("inject_noise"):
                raise CheckpointError(f"{source}: its decoder injects noise in a res_x_y block, which is not known.")
            block = BlockConfig(BlockKind.RES_CHANGE, width, width // multiplier)
        elif name == "attn":
            block = BlockConfig(BlockKind.ATTENTION, width, width)
        elif name in _STRIDES:
            residual = bool(options.get("residual", False))
            block = BlockConfig(BlockKind.SHUFFLE, width, width // multiplier, stride=_STRIDES[name], residual=residual)
        else:
            raise CheckpointError(f"{source}: its decoder has a block of the unknown kind {name!r}.")
        width = block.out_channels
        result.append(block)
    return tuple(result)


def _res(layers: int, **options: Any) -> tuple[str, dict[str, Any]]:
    return ("res_x", {"num_layers": layers, **options})


_ENCODER_0_9_0 = (
    _res(4), ("compress_all", 1), ("res_x_y", 1), _res(3), ("compress_all", 1), ("res_x_y", 1), _res(3),
    ("compress_all", 1), _res(3), _res(4),
)  # fmt: skip
_UP_RESIDUAL = ("compress_all", {"residual": True, "multiplier": 2})
_ENCODER_0_9_5 = (
    _res(4), ("compress_space_res", {"multiplier": 2}), _res(6), ("compress_time_res", {"multiplier": 2}), _res(6),
    ("compress_all_res", {"multiplier": 2}), _res(2), ("compress_all_res", {"multiplier": 2}), _res(2),
)  # fmt: skip
_DECODER_0_9_5 = (_res(5), _UP_RESIDUAL, _res(5), _UP_RESIDUAL, _res(5), _UP_RESIDUAL, _res(5))

#: The published generations as their own metadata writes them, for files that have lost it. Trust metadata first.
GENERATIONS: dict[str, dict[str, Any]] = {
    "LTX-Video 0.9.0": {"blocks": _ENCODER_0_9_0},
    "LTX-Video 0.9.1": {
        "encoder_blocks": _ENCODER_0_9_0,
        "decoder_blocks": (
            _res(5, inject_noise=True), _UP_RESIDUAL, _res(6, inject_noise=True), _UP_RESIDUAL,
            _res(7, inject_noise=True), _UP_RESIDUAL, _res(8),
        ),
        "timestep_conditioning": True,
    },
    "LTX-Video 0.9.5": {
        "encoder_blocks": _ENCODER_0_9_5,
        "decoder_blocks": _DECODER_0_9_5,
        "timestep_conditioning": True,
    },
    "LTX-2": {"encoder_blocks": _ENCODER_0_9_5, "decoder_blocks": _DECODER_0_9_5},
    "LTX-2.3": {
        "encoder_blocks": (
            _res(4), ("compress_space_res", {"multiplier": 2}), _res(6), ("compress_time_res", {"multiplier": 2}),
            _res(4), ("compress_all_res", {"multiplier": 2}), _res(2), ("compress_all_res", {"multiplier": 1}),
            _res(2),
        ),
        "decoder_blocks": (
            _res(4), ("compress_space", {"multiplier": 2}), _res(6), ("compress_time", {"multiplier": 2}), _res(4),
            ("compress_all", {"multiplier": 1}), _res(2), ("compress_all", {"multiplier": 2}), _res(2),
        ),
        "spatial_padding_mode": "zeros",
    },
}  # fmt: skip
