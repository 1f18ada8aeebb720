"""A description of an encoder or a decoder: its blocks, and how a file stores it."""

from dataclasses import dataclass
from typing import Any

from ..checkpoint import StoredNetwork
from ..models.video_vae.block_types import BlockConfig
from ..models.video_vae.config import NetworkConfig
from ..units import format_bytes


@dataclass(frozen=True)
class NetworkReport:
    """An encoder or a decoder, by its configuration and its tensors in the file."""

    config: NetworkConfig
    stored: StoredNetwork

    def as_dict(self) -> dict[str, Any]:
        """The network as a JSON object.

        `blocks` are in the order of the data flow, each with its `stride` as (time, height, width); `dtypes` counts the
        parameters stored in each dtype; `weight_layout` is the axis order of the stored convolution weights.
        """
        config, stored = self.config, self.stored
        return {
            "in_channels": config.in_channels,
            "out_channels": config.out_channels,
            "causal": config.options.causal,
            "padding": config.options.padding.value,
            "blocks": [_block_as_dict(block) for block in config.blocks],
            "parameters": stored.parameters_by_dtype.total(),
            "dtypes": dict(stored.parameters_by_dtype),
            "bytes": stored.num_bytes,
            "weight_layout": stored.layout.value,
        }

    def describe_blocks(self) -> list[str]:
        """A line for each block and convolution, with its input and output channels."""
        config = self.config
        layers = [("conv_in", config.in_channels, config.first_width)]
        layers += [(_describe_block(block), block.in_channels, block.out_channels) for block in config.blocks]
        layers += [("conv_out", config.last_width, config.out_channels)]
        return [
            f"{name:29}{str(before) if before == after else f'{before} -> {after}':>12}"
            for name, before, after in layers
        ]

    def describe_storage(self) -> list[str]:
        """Lines on what the file stores."""
        parameters = self.stored.parameters_by_dtype
        return [
            f"{parameters.total():,} parameters",
            f"{format_bytes(self.stored.num_bytes)} of {' and '.join(dtype for dtype, _ in parameters.most_common())}",
            f"weights ({self.stored.layout.value})",
        ]


def _block_as_dict(block: BlockConfig) -> dict[str, Any]:
    return {
        "kind": block.type.name,
        "in_channels": block.in_channels,
        "out_channels": block.out_channels,
        "layers": block.num_layers,
        "stride": list(block.stride),
        "residual": block.residual,
        "inject_noise": block.inject_noise,
    }


def _describe_block(block: BlockConfig) -> str:
    """A block in a few words, such as "4 residual" or "depth to space 2x2x2 + skip" (time x height x width)."""
    count = f"{block.num_layers} " if block.num_layers > 1 else ""
    stride = "" if set(block.stride) == {1} else f" {'x'.join(map(str, block.stride))}"
    extras = (" + skip" if block.residual else "") + (" + noise" if block.inject_noise else "")
    return f"{count}{block.type.name}{stride}{extras}"
