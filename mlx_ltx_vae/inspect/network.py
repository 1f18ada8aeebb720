"""What an encoder or a decoder is: its blocks, and how a file has it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..checkpoint.load import StoredHalf
from ..checkpoint.weight_layout import KernelLayout
from ..models.video_vae.config import BlockConfig, BlockKind, NetworkConfig


@dataclass(frozen=True)
class HalfSummary:
    """One half of a VAE.

    Attributes:
        network: its configuration.
        dtype: in which it computes.
        dtypes: how many of its numbers are stored in which.
        num_bytes: what they take in the file.
        kernel_layout: the order of its kernels' axes in the file.
    """

    network: NetworkConfig
    dtype: str
    dtypes: Mapping[str, int]
    num_bytes: int
    kernel_layout: KernelLayout

    @classmethod
    def of(cls, stored: StoredHalf, network: NetworkConfig) -> "HalfSummary":
        """What there is to say about a half of a checkpoint."""
        return cls(network, stored.dtype, stored.parameters_by_dtype, stored.num_bytes, stored.layout)

    @property
    def parameters(self) -> int:
        """How many numbers it has."""
        return sum(self.dtypes.values())

    def as_dict(self) -> dict[str, Any]:
        """The half in JSON's terms.

        `blocks` are in the order in which data passes them, each with its `stride` as (time, height, width); `dtypes`
        is how many numbers are stored in which; `kernel_layout` is the order of axes.
        """
        network = self.network
        return {
            "in_channels": network.in_channels,
            "out_channels": network.out_channels,
            "causal": network.causal,
            "padding": network.padding.value,
            "norm": network.norm.value,
            "blocks": [_block_as_dict(block) for block in network.blocks],
            "parameters": self.parameters,
            "dtypes": dict(self.dtypes),
            "bytes": self.num_bytes,
            "kernel_layout": self.kernel_layout.value,
        }

    def describe_blocks(self) -> list[str]:
        """A line for each block, with the channels that go in and come out."""
        network = self.network
        steps = [("conv_in", network.in_channels, network.first_width)]
        steps += [(_block_name(block), block.in_channels, block.out_channels) for block in network.blocks]
        steps += [("conv_out", network.last_width, network.out_channels)]
        channels = [str(before) if before == after else f"{before} -> {after}" for _, before, after in steps]
        return [f"{name:24}{width:>12}" for (name, _, _), width in zip(steps, channels, strict=True)]

    def describe_storage(self) -> list[str]:
        """Lines on what the file has of it."""
        names = sorted(self.dtypes, key=self.dtypes.get, reverse=True)
        return [
            f"{self.parameters:,} parameters",
            f"{show_bytes(self.num_bytes)} of {' and '.join(names)}",
            f"kernels ({self.kernel_layout.value})",
        ]


def show_bytes(count: int) -> str:
    """As people read it: 2.42 GB (1e9), 5.6 MB, 812 kB."""
    if count >= 1e8:
        return f"{count / 1e9:.2f} GB"
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"


def _block_as_dict(block: BlockConfig) -> dict[str, Any]:
    return {
        "kind": block.kind.value,
        "in_channels": block.in_channels,
        "out_channels": block.out_channels,
        "layers": block.num_layers,
        "stride": list(block.stride),
        "residual": block.residual,
        "inject_noise": block.inject_noise,
    }


def _block_name(block: BlockConfig) -> str:
    """What a block does, in a few words; strides are time x height x width."""
    stride = "x".join(map(str, block.stride))
    names = {
        BlockKind.RES_STACK: f"{block.num_layers} residual",
        BlockKind.RES_CHANGE: "1 residual",
        BlockKind.SHUFFLE: f"shuffle {stride}",
        BlockKind.STRIDED: f"strided {stride}",
        BlockKind.ATTENTION: "attention",
    }
    extras = [word for word, is_on in (("skip", block.residual), ("noise", block.inject_noise)) if is_on]
    return " + ".join([names[block.kind], *extras])
