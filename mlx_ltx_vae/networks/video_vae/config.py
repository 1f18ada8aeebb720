"""Configurations of video VAEs, the published generations, and the layer specs of their networks. No MLX.

Strings from a checkpoint become enums and block types here.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...errors import CheckpointError, quote, warn
from ...shapes import Axis, Scaled, ScaleFactors, WindowSpec
from ..convolution.rules import ConvRule, choose
from ..specs import Activation, ConvSpec, LayerSpec, NetworkSpec, PaddingMode, Shapes
from ..stored import ANYTHING, Key, choice, flag, listing, only, read_config, whole
from .block_types import (
    ENCODER_BLOCKS,
    STEMS,
    STRIDED,
    BlockConfig,
    NetworkOptions,
    conv_layer,
    embedder_weights,
    resolve_blocks,
)

_MAX_STRIDE = 64  # along each axis; published networks have 8. A plan counts the frames of a step one by one.

_PADDING = choice(*(mode.value for mode in PaddingMode))
# Forms of the encoder's log-variance, which latents do not need: its channels per latent channel, and for all of them.
_LOG_VARIANCE = {"uniform": (0, 1), "per_channel": (1, 0), "constant": (0, 1), "none": (0, 0)}

#: Class name in the configuration of every original checkpoint.
CLASS_NAME = "CausalVideoAutoencoder"

_MAX_BLOCKS = 100


def _is_block(value: Any) -> bool:
    is_pair = isinstance(value, (list, tuple)) and len(value) == 2
    return is_pair and isinstance(value[0], str) and isinstance(value[1], (int, Mapping))


_BLOCKS = listing(_is_block, _MAX_BLOCKS, f"1 to {_MAX_BLOCKS} blocks, each [name, options]")
#: Keys of a configuration of the original.
KEYS: dict[str, Key] = {
    "_class_name": only(CLASS_NAME),
    "dims": only(3),
    "in_channels": only(3),
    "out_channels": only(3),
    "scaling_factor": only(1.0),
    "use_quant_conv": only(False),
    "normalize_latent_channels": only(False),
    # Group norm is an option of ltx-core that no checkpoint uses, and a norm over the whole clip cannot be streamed.
    "norm_layer": only("pixel_norm"),
    "causal_encoder": only(True),
    "latent_channels": whole(4096, 128),
    "patch_size": whole(64, 4),
    "encoder_base_channels": whole(2**16),
    "decoder_base_channels": whole(2**16),
    "timestep_conditioning": flag(False),
    "causal_decoder": flag(False),
    "latent_log_var": choice(*_LOG_VARIANCE, default="uniform"),
    **dict.fromkeys(("spatial_padding_mode", "encoder_spatial_padding_mode", "decoder_spatial_padding_mode"), _PADDING),
    "blocks": _BLOCKS,
    "encoder_blocks": _BLOCKS,
    "decoder_blocks": _BLOCKS,
    # Keys of other programs, which do not change what the networks compute.
    **dict.fromkeys(
        (
            "norm_num_groups", "latents_mean", "latents_std", "ltx_variant", "condition_encoder_subdir",
            "spatial_compression_ratio", "temporal_compression_ratio", "double_z", "latent_log_var_value",
        ),
        ANYTHING,
    ),
}  # fmt: skip


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

_ENCODER_2_3 = (
    _res(4), ("compress_space_res", {"multiplier": 2}), _res(6), ("compress_time_res", {"multiplier": 2}), _res(4),
    ("compress_all_res", {"multiplier": 2}), _res(2), ("compress_all_res", {"multiplier": 1}), _res(2),
)  # fmt: skip

#: LTX-2.3 with a decoder of fewer channels.
PRUNA_VAED = "PrunaVAED"

#: Configurations by common name, in the format of checkpoint metadata. The metadata of a file takes precedence.
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
        "encoder_blocks": _ENCODER_2_3,
        "decoder_blocks": (
            _res(4), ("compress_space", {"multiplier": 2}), _res(6), ("compress_time", {"multiplier": 2}), _res(4),
            ("compress_all", {"multiplier": 1}), _res(2), ("compress_all", {"multiplier": 2}), _res(2),
        ),
        "spatial_padding_mode": "zeros",
    },
    PRUNA_VAED: {
        "encoder_blocks": _ENCODER_2_3,
        "decoder_blocks": (
            _res(4), ("compress_space", {"multiplier": 2}), _res(6), ("compress_time", {"multiplier": 2}),
            ("res_x_y", {"multiplier": 1.5}), _res(4), ("compress_all", {"multiplier": 1}),
            ("res_x_y", {"multiplier": 4 / 3}), _res(2), ("compress_all", {"multiplier": 2}), _res(2),
        ),
        "decoder_base_channels": 64,
        "spatial_padding_mode": "zeros",
    },
}  # fmt: skip


@dataclass(frozen=True)
class NetworkConfig:
    """Encoder or decoder: `conv_in`, blocks in execution order, `conv_out`."""

    in_channels: int
    out_channels: int
    blocks: tuple[BlockConfig, ...]
    options: NetworkOptions

    @property
    def stride(self) -> tuple[int, ...]:
        """Total factors by which the blocks change the grid: (time, height, width)."""
        return tuple(math.prod(block.stride[axis] for block in self.blocks) for axis in range(3))


@dataclass(frozen=True)
class VAEConfig(Scaled):
    """Configuration of a video VAE, or of one network of it.

    A network is `None` if neither the configuration nor the weights describe it. `patch_size` is the number of pixels
    per cell of the finest grid, along each side; `generation` is "LTX-2.3" and the like, or "custom".
    """

    latent_channels: int
    patch_size: int
    encoder: NetworkConfig | None
    decoder: NetworkConfig | None
    generation: str = field(compare=False)

    def __repr__(self) -> str:
        scale = "x".join(map(str, self.scale))
        return f"VAEConfig({self.generation}, {self.latent_channels} latent channels, {scale} frames and pixels a cell)"

    def network(self, name: str) -> NetworkConfig:
        """Return the encoder or the decoder, by its name. Raises a `CheckpointError` if there is none."""
        network = self.encoder if name == "encoder" else self.decoder
        if network is None:
            raise CheckpointError(f"the configuration has no {name}; use the configuration of a whole VAE.")
        return network

    @property
    def scale(self) -> ScaleFactors:
        time, height, width = self.network("encoder" if self.decoder is None else "decoder").stride
        return ScaleFactors(time, height * self.patch_size, width * self.patch_size)

    @property
    def causal_decoder(self) -> bool:
        """Return whether a decoded frame depends on earlier latent frames only."""
        return self.decoder is not None and self.decoder.options.causal

    @property
    def timestep_conditioning(self) -> bool:
        """Return whether the decoder takes a timestep and noise (0.9.1 to 0.9.8)."""
        return self.decoder is not None and self.decoder.options.has_timestep


def name_generation(
    encoder_blocks: Sequence[Any] | None, decoder_blocks: Sequence[Any] | None, has_timestep: bool
) -> str:
    """Return the generation with these block lists, or "custom". No two generations have the same decoder list."""
    if not decoder_blocks:
        return "custom"
    for name, raw in GENERATIONS.items():
        encoder, decoder = (raw.get(key, raw.get("blocks", ())) for key in ("encoder_blocks", "decoder_blocks"))
        is_decoder = _structure(decoder_blocks) == _structure(decoder)
        is_encoder = not encoder_blocks or _structure(encoder_blocks) == _structure(encoder)
        if is_decoder and is_encoder and has_timestep == raw.get("timestep_conditioning", False):
            return name
    return "custom"


def _structure(blocks: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(
        (name, options if isinstance(options, int) else options.get("num_layers", 1)) for name, options in blocks
    )


def parse_vae_config(raw: Mapping[str, Any], source: str, shapes: Mapping[str, Shapes] | None = None) -> VAEConfig:
    """Parse the `vae` entry of a checkpoint's metadata, and fill in missing values.

    The `shapes` of stored weights, by network, decide the widths, and must agree with the configuration. Raises a
    `CheckpointError` for a key or a value that is not supported, since it could change the result.
    """
    values = read_config(raw, KEYS, f"{source}: its configuration")
    lists = {name: values[f"{name}_blocks"] or values["blocks"] for name in ("encoder", "decoder")}
    if not any(lists.values()):
        raise CheckpointError(f"{source}: its configuration lists no encoder_blocks and decoder_blocks (or blocks).")
    generation = name_generation(lists["encoder"], lists["decoder"], values["timestep_conditioning"])
    per_channel, for_all = _LOG_VARIANCE[values["latent_log_var"]]
    latent_channels, pixel_channels = values["latent_channels"], 3 * values["patch_size"] ** 2
    # The shared key matches the reference's outputs. The decoder's key overrides it, and it overrides the encoder's.
    shared = values["spatial_padding_mode"]
    encoder_padding = PaddingMode(shared or values["encoder_spatial_padding_mode"] or "zeros")
    padding = values["decoder_spatial_padding_mode"] or shared or _default_padding(values, lists["decoder"], source)
    options = {
        "encoder": NetworkOptions(causal=True, padding=encoder_padding),
        "decoder": NetworkOptions(values["causal_decoder"], PaddingMode(padding), values["timestep_conditioning"]),
    }
    moments = latent_channels * (1 + per_channel) + for_all
    ends = {"encoder": (pixel_channels, moments), "decoder": (latent_channels, pixel_channels)}
    networks = {}
    for name, blocks in lists.items():
        if blocks:
            base, network_shapes = values[f"{name}_base_channels"], (shapes or {}).get(name)
            block_configs = resolve_blocks(name, blocks, base, options[name], source, network_shapes)
            networks[name] = network = NetworkConfig(*ends[name], block_configs, options[name])
            if max(network.stride) > _MAX_STRIDE:
                scale = " x ".join(quote(factor, 20) for factor in network.stride)
                raise CheckpointError(
                    f"{source}: the blocks of its {name} scale by {scale} (time, height, width); expected at most "
                    f"{_MAX_STRIDE} along each axis."
                )
    encoder, decoder = networks.get("encoder"), networks.get("decoder")
    if encoder and decoder and encoder.stride != decoder.stride:
        raise CheckpointError(
            f"{source}: its encoder scales by {encoder.stride} and its decoder by {decoder.stride} (time, height, "
            "width), so the two do not belong together."
        )
    return VAEConfig(latent_channels, values["patch_size"], encoder, decoder, generation)


def _default_padding(values: Mapping[str, Any], decoder_blocks: Sequence[Any] | None, source: str) -> str:
    """Return the decoder's padding if no key has it: zeros for 0.9.x, and reflection for LTX-2."""
    generation = name_generation(None, decoder_blocks, values["timestep_conditioning"])
    if generation.startswith("LTX-Video 0.9") or values["timestep_conditioning"] or values["blocks"]:
        return "zeros"
    # The encoders of 0.9.0 and 0.9.1 have strided convolutions, and LTX-2's have none.
    kinds = (ENCODER_BLOCKS.get(name) for name, _ in values["encoder_blocks"] or ())
    padding = "zeros" if any(kind is not None and kind.type is STRIDED for kind in kinds) else "reflect"
    if generation == "custom" and decoder_blocks:
        warn(
            f"{source}: its configuration lists decoder blocks of no published VAE and no padding, so {padding} is "
            'assumed; if the picture is wrong, add the key "spatial_padding_mode": "zeros", "reflect" or "replicate".'
        )
    return padding


def decoder_spec(config: VAEConfig, rule: ConvRule = choose) -> NetworkSpec:
    """Return the whole decoder of denormalized latents (B, T, H, W, C) to pixels (B, T', H', W', 3).

    With a timestep, a separate embedding modulates `conv_out`.
    """
    layers, conv_out = _layers(config, "decoder", rule)
    patch, has_timestep, width = config.patch_size, config.timestep_conditioning, conv_out.in_channels
    if has_timestep:
        weights = (
            *conv_out.weights,
            ("timestep_scale_multiplier", ()),
            *embedder_weights("last_time_embedder", 2 * width),
            ("last_scale_shift_table", (2, width)),
        )
        conv_out = replace(conv_out, weights=weights, is_modulated=True)
    unpatchify = LayerSpec("unpatchify", conv_out.out_channels, 3, up=(1, patch, patch))
    layers += [conv_out, unpatchify]
    return NetworkSpec(tuple(layers), has_timestep=has_timestep, has_latent_noise=has_timestep, patch_size=patch)


def encoder_spec(config: VAEConfig, rule: ConvRule = choose) -> NetworkSpec:
    """Return the whole encoder of pixels (B, T, H, W, 3) to the means of latents (B, T', H', W', C)."""
    layers, conv_out = _layers(config, "encoder", rule)
    means = replace(conv_out, conv_channels=config.latent_channels, out_channels=config.latent_channels)
    patch = config.patch_size
    down, windows = (1, patch, patch), (WindowSpec(), WindowSpec(patch, patch), WindowSpec(patch, patch))
    patchify = LayerSpec("patchify", 3, layers[0].in_channels, down=down, windows=windows)
    return NetworkSpec((patchify, *layers, means), stream_axes=(Axis.TIME,))


def network_spec(config: VAEConfig, network: str) -> NetworkSpec:
    """Return the encoder or the decoder, by its name."""
    return encoder_spec(config) if network == "encoder" else decoder_spec(config)


def _layers(config: VAEConfig, name: str, rule: ConvRule) -> tuple[list[LayerSpec], ConvSpec]:
    """Return the layers of a network before `conv_out`, and `conv_out`."""
    network = config.network(name)
    options = network.options._replace(rule=rule)
    layers: list[LayerSpec] = [conv_layer("conv_in", network.in_channels, network.blocks[0].in_channels, options)]
    for index, block in enumerate(network.blocks):
        layers += block.type.specs(block, options, f"{STEMS[name]}.{index}")
    conv_out = conv_layer("conv_out", network.blocks[-1].out_channels, network.out_channels, options)
    return layers, replace(conv_out, activation=Activation.CACHED)
