"""The fully resolved configuration of a video VAE: strings from a checkpoint become enums and block types here."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import CheckpointError, quote
from ...shapes import Scaled, ScaleFactors
from ..specs import PaddingMode, Shapes
from ..stored import Key, anything, flag, listing, only, read_config, whole, word
from .block_types import ENCODER_BLOCKS, STRIDED, BlockConfig, NetworkOptions, resolve_blocks
from .generations import name_generation

_MAX_STRIDE = 64  # along each axis; published networks have 8. A plan counts the frames of a step one by one.

_PADDING = {mode.value: mode for mode in PaddingMode}
# The forms of the encoder's log-variance, which is not needed for latents: channels for each channel and for all.
_LOG_VARIANCE = {"uniform": (0, 1), "per_channel": (1, 0), "constant": (0, 1), "none": (0, 0)}

#: What the configuration of every original checkpoint calls itself.
CLASS_NAME = "CausalVideoAutoencoder"

_MAX_BLOCKS = 100


def _is_block(value: Any) -> bool:
    is_pair = isinstance(value, (list, tuple)) and len(value) == 2
    return is_pair and isinstance(value[0], str) and isinstance(value[1], (int, Mapping))


_BLOCKS = listing(_is_block, _MAX_BLOCKS, f"1 to {_MAX_BLOCKS} blocks, each [name, options]")
_KEYS: dict[str, Key] = {
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
    "latent_log_var": word("uniform"),
    "spatial_padding_mode": word(),
    "encoder_spatial_padding_mode": word(),
    "decoder_spatial_padding_mode": word(),
    "blocks": _BLOCKS,
    "encoder_blocks": _BLOCKS,
    "decoder_blocks": _BLOCKS,
    # Of other programs: they do not change what the networks compute.
    **dict.fromkeys(
        (
            "norm_num_groups", "latents_mean", "latents_std", "ltx_variant", "condition_encoder_subdir",
            "spatial_compression_ratio", "temporal_compression_ratio", "double_z", "latent_log_var_value",
        ),
        anything(),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class NetworkConfig:
    """An encoder or a decoder: `conv_in`, blocks in execution order, `conv_out`."""

    in_channels: int
    out_channels: int
    blocks: tuple[BlockConfig, ...]
    options: NetworkOptions

    @property
    def stride(self) -> tuple[int, ...]:
        """The total factors by which the blocks change the grid: (time, height, width)."""
        return tuple(math.prod(block.stride[axis] for block in self.blocks) for axis in range(3))


@dataclass(frozen=True)
class VAEConfig(Scaled):
    """A whole video VAE, or one network of it.

    A network is None if neither the configuration nor the weights say what it is. `patch_size` is the pixels per cell
    of the finest grid, along each side; `generation` is "LTX-2.3" and the like, or "custom".
    """

    latent_channels: int
    patch_size: int
    encoder: NetworkConfig | None
    decoder: NetworkConfig | None
    generation: str

    def __repr__(self) -> str:
        scale = "x".join(map(str, self.scale))
        return f"VAEConfig({self.generation}, {self.latent_channels} latent channels, {scale} frames and pixels a cell)"

    @property
    def networks(self) -> dict[str, NetworkConfig]:
        both = {"encoder": self.encoder, "decoder": self.decoder}
        return {name: network for name, network in both.items() if network is not None}

    def network(self, name: str) -> NetworkConfig:
        """The encoder or the decoder, by its name; a `CheckpointError` if there is none."""
        if name not in self.networks:
            raise CheckpointError(f"the configuration has no {name}; use that of a whole VAE.")
        return self.networks[name]

    @property
    def scale(self) -> ScaleFactors:
        time, height, width = self.network("encoder" if self.decoder is None else "decoder").stride
        return ScaleFactors(time, height * self.patch_size, width * self.patch_size)

    @property
    def causal_decoder(self) -> bool:
        """Whether a decoded frame depends on earlier latent frames only."""
        return self.decoder is not None and self.decoder.options.causal

    @property
    def timestep_conditioning(self) -> bool:
        """Whether the decoder takes a timestep and noise (0.9.1 to 0.9.8)."""
        return self.decoder is not None and self.decoder.options.has_timestep


def check_config(raw: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The known keys of a configuration with their values, defaults included. Refuses whatever is not known."""
    return read_config(raw, _KEYS, f"{source}: its configuration")


def parse_vae_config(raw: Mapping[str, Any], source: str, stored: Mapping[str, Shapes] | None = None) -> VAEConfig:
    """Parse the `vae` entry of a checkpoint's metadata, and fill in what it leaves implicit.

    The shapes of `stored` weights decide the widths, and must agree with what is stated. A key or value that is not
    known is a `CheckpointError`, since it could change the result.
    """
    values = check_config(raw, source)
    lists = {name: values[f"{name}_blocks"] or values["blocks"] for name in ("encoder", "decoder")}
    if not any(lists.values()):
        raise CheckpointError(f"{source}: its configuration lists no encoder_blocks and decoder_blocks (or blocks).")
    generation = name_generation(lists["encoder"], lists["decoder"], values["timestep_conditioning"])
    encoder_padding, decoder_padding = _padding_modes(values, lists["decoder"], source)
    for_each, for_all = _look_up(_LOG_VARIANCE, values["latent_log_var"], "latent_log_var", source)
    latent_channels, pixel_channels = values["latent_channels"], 3 * values["patch_size"] ** 2
    options = {
        "encoder": NetworkOptions(causal=True, padding=encoder_padding),
        "decoder": NetworkOptions(values["causal_decoder"], decoder_padding, values["timestep_conditioning"]),
    }
    moments = latent_channels * (1 + for_each) + for_all
    ends = {"encoder": (pixel_channels, moments), "decoder": (latent_channels, pixel_channels)}
    networks = {}
    for name, blocks in lists.items():
        if blocks:
            base, weights = values[f"{name}_base_channels"], (stored or {}).get(name)
            resolved = resolve_blocks(name, blocks, base, options[name], source, weights)
            networks[name] = network = NetworkConfig(*ends[name], resolved, options[name])
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


def _look_up(known: Mapping[str, Any], value: str, key: str, source: str) -> Any:
    if value not in known:
        raise CheckpointError(
            f"{source}: its configuration has {key} = {quote(value)}; supported are {', '.join(known)}."
        )
    return known[value]


def _padding_modes(
    values: Mapping[str, Any], decoder_blocks: Sequence[Any] | None, source: str
) -> tuple[PaddingMode, PaddingMode]:
    """Encoder and decoder padding. The decoder's default is zeros for 0.9.x and reflection for LTX-2.

    `spatial_padding_mode` applies to both networks, which matches the reference's outputs; a network's own key applies
    to the decoder always, and to the encoder if `spatial_padding_mode` is absent.
    """
    both = values["spatial_padding_mode"]
    decoder = values["decoder_spatial_padding_mode"] or both or _default_padding(values, decoder_blocks, source)
    encoder = both or values["encoder_spatial_padding_mode"] or "zeros"
    return (
        _look_up(_PADDING, encoder, "encoder_spatial_padding_mode", source),
        _look_up(_PADDING, decoder, "spatial_padding_mode", source),
    )


def _default_padding(values: Mapping[str, Any], decoder_blocks: Sequence[Any] | None, source: str) -> str:
    generation = name_generation(None, decoder_blocks, values["timestep_conditioning"])
    if generation.startswith("LTX-Video 0.9") or values["timestep_conditioning"] or values["blocks"]:
        return "zeros"
    # The encoders of 0.9.0 and 0.9.1 have strided convolutions, and those of LTX-2 have none.
    kinds = (ENCODER_BLOCKS.get(name) for name, _ in values["encoder_blocks"] or ())
    padding = "zeros" if any(kind is not None and kind.type is STRIDED for kind in kinds) else "reflect"
    if generation == "custom" and decoder_blocks:
        warnings.warn(
            f"{source}: its configuration lists decoder blocks of no published VAE and no padding, so {padding} is "
            'assumed; if the picture is wrong, add the key "spatial_padding_mode": "zeros", "reflect" or "replicate".',
            stacklevel=2,
        )
    return padding
