"""The fully resolved configuration of a video VAE.

`parse_vae_config` reads the `vae` entry of a checkpoint's metadata and fills in whatever the file leaves implicit
(widths, padding modes, defaults). Strings from a checkpoint become enums and block types here.
"""

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ...errors import CheckpointError
from ...shapes import ScaleFactors
from ..specs import PaddingMode
from .block_types import DECODER_BLOCKS, ENCODER_BLOCKS, BlockConfig, BlockName, NetworkOptions
from .generations import name_generation
from .raw_config import check_block, check_config

EnumT = TypeVar("EnumT", bound=enum.Enum)


class LogVariance(enum.Enum):
    """The form of the encoder's log-variance output, which is not needed for latents."""

    UNIFORM = "uniform"
    PER_CHANNEL = "per_channel"
    CONSTANT = "constant"
    NONE = "none"


@dataclass(frozen=True)
class NetworkConfig:
    """An encoder or a decoder: `conv_in`, blocks in execution order, `conv_out`."""

    in_channels: int
    out_channels: int
    blocks: tuple[BlockConfig, ...]
    options: NetworkOptions

    @property
    def first_width(self) -> int:
        """Channels between `conv_in` and the first block."""
        return self.blocks[0].in_channels

    @property
    def last_width(self) -> int:
        """Channels between the last block and `conv_out`."""
        return self.blocks[-1].out_channels

    @property
    def stride(self) -> tuple[int, ...]:
        """The total factors by which the blocks change the grid: (time, height, width)."""
        return tuple(math.prod(block.stride[axis] for block in self.blocks) for axis in range(3))


@dataclass(frozen=True)
class VAEConfig:
    """A whole video VAE.

    Attributes:
        patch_size: pixels per cell of the finest grid, along each side.
        generation: "LTX-2.3" and the like, or "custom".
    """

    latent_channels: int
    patch_size: int
    encoder: NetworkConfig
    decoder: NetworkConfig
    generation: str

    @property
    def scale(self) -> ScaleFactors:
        """Pixels per latent cell."""
        time, height, width = self.decoder.stride
        return ScaleFactors(time, height * self.patch_size, width * self.patch_size)

    @property
    def time_scale(self) -> int:
        """Video frames per latent frame, except that the first latent frame is one video frame."""
        return self.scale.time

    @property
    def spatial_scale(self) -> int:
        """Pixels per latent cell along each side."""
        return self.scale.height

    @property
    def causal_decoder(self) -> bool:
        """Whether a decoded frame depends on earlier latent frames only."""
        return self.decoder.options.causal

    @property
    def timestep_conditioning(self) -> bool:
        """Whether the decoder takes a timestep and noise (0.9.1 to 0.9.8)."""
        return self.decoder.options.has_timestep


def parse_vae_config(raw: Mapping[str, Any], source: str) -> VAEConfig:
    """Parse the `vae` entry of a checkpoint's metadata.

    Args:
        raw: the JSON object, with the keys of the original checkpoints.
        source: the checkpoint's name in error messages.

    Raises:
        CheckpointError: if a key or value is not known, since it could change the result.
    """
    values = check_config(raw, source)
    encoder_list = values["encoder_blocks"] or values["blocks"]
    decoder_list = values["decoder_blocks"] or values["blocks"]
    if not encoder_list or not decoder_list:
        raise CheckpointError(f"{source}: its configuration lists no encoder_blocks and decoder_blocks (or blocks).")
    generation = name_generation(encoder_list, decoder_list, values["timestep_conditioning"])
    encoder_padding, decoder_padding = _padding_modes(values, generation, source)
    log_variance = _to_enum(LogVariance, values["latent_log_var"], "latent_log_var", source)
    latent_channels, patch_size = values["latent_channels"], values["patch_size"]
    encoder = NetworkConfig(
        in_channels=3 * patch_size**2,
        out_channels=_moment_channels(latent_channels, log_variance),
        blocks=_encoder_blocks(encoder_list, values["encoder_base_channels"], source),
        options=NetworkOptions(causal=True, padding=encoder_padding),
    )
    decoder = NetworkConfig(
        in_channels=latent_channels,
        out_channels=3 * patch_size**2,
        blocks=_decoder_blocks(decoder_list, values["decoder_base_channels"], source),
        options=NetworkOptions(values["causal_decoder"], decoder_padding, values["timestep_conditioning"]),
    )
    if encoder.stride != decoder.stride:
        raise CheckpointError(
            f"{source}: its encoder scales by {encoder.stride} and its decoder by {decoder.stride} (time, height, "
            "width), so the two do not belong together."
        )
    return VAEConfig(latent_channels, patch_size, encoder, decoder, generation)


def _to_enum(kind: type[EnumT], value: Any, key: str, source: str) -> EnumT:
    try:
        return kind(value)
    except ValueError:
        names = ", ".join(str(member.value) for member in kind)
        raise CheckpointError(f"{source}: its configuration has {key} = {value!r}; supported are {names}.") from None


def _padding_modes(values: Mapping[str, Any], generation: str, source: str) -> tuple[PaddingMode, PaddingMode]:
    """Encoder and decoder padding. The decoder's default is zeros for 0.9.x and reflection for LTX-2.

    `spatial_padding_mode` applies to both networks, which matches the reference's outputs; a network's own key applies
    to the decoder always, and to the encoder if `spatial_padding_mode` is absent.
    """
    is_ltx_0_9 = generation.startswith("LTX-Video 0.9") or values["timestep_conditioning"] or values["blocks"]
    both = values["spatial_padding_mode"]
    decoder = values["decoder_spatial_padding_mode"] or both or ("zeros" if is_ltx_0_9 else "reflect")
    encoder = both or values["encoder_spatial_padding_mode"] or "zeros"
    return (
        _to_enum(PaddingMode, encoder, "encoder_spatial_padding_mode", source),
        _to_enum(PaddingMode, decoder, "spatial_padding_mode", source),
    )


def _moment_channels(latent_channels: int, log_variance: LogVariance) -> int:
    extra = {LogVariance.UNIFORM: 1, LogVariance.CONSTANT: 1, LogVariance.PER_CHANNEL: latent_channels}
    return latent_channels + extra.get(log_variance, 0)


def _read_blocks(
    blocks: Sequence[Any], known: Mapping[str, BlockName], network: str, source: str
) -> list[tuple[BlockName, dict[str, Any], int]]:
    """For each block of a list: the meaning of its name, its options, and the factor by which its width changes."""
    result = []
    for name, raw_options in blocks:
        block_name = known.get(name)
        if block_name is None:
            raise CheckpointError(f"{source}: its {network} has a block of the unknown kind {name[:80]!r}.")
        options = check_block(name, raw_options, source)
        factor = (options["multiplier"] or block_name.multiplier) if block_name.multiplier else 1
        result.append((block_name, options, factor))
    return result


def _encoder_blocks(blocks: Sequence[Any], width: int, source: str) -> tuple[BlockConfig, ...]:
    result = []
    for name, options, factor in _read_blocks(blocks, ENCODER_BLOCKS, "encoder", source):
        if options["inject_noise"]:
            raise CheckpointError(f"{source}: its encoder injects noise, which no known encoder does.")
        block = BlockConfig(name.type, width, width * factor, options["num_layers"], name.stride, name.residual)
        result.append(block)
        width = result[-1].out_channels
    return tuple(result)


def _decoder_blocks(blocks: Sequence[Any], base_channels: int, source: str) -> tuple[BlockConfig, ...]:
    """The blocks in execution order: checkpoints list them in reverse, and the base width is that of the last one."""
    entries = _read_blocks(blocks, DECODER_BLOCKS, "decoder", source)[::-1]
    width = base_channels * math.prod(factor for _, _, factor in entries)
    result = []
    for name, options, factor in entries:
        noise = options["inject_noise"]
        if noise and not name.takes_noise:
            raise CheckpointError(
                f"{source}: its decoder injects noise in a {name.type.name} block, which is not known."
            )
        layers = options["num_layers"]
        residual = name.residual if options["residual"] is None else options["residual"]
        result.append(BlockConfig(name.type, width, width // factor, layers, name.stride, residual, noise))
        width = result[-1].out_channels
    return tuple(result)
