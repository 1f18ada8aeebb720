"""The encoder: pixels to latents."""

from functools import partial

import mlx.nn as nn

from ...streaming.stage import NoCache, Stage
from ...streaming.window import Axis, WindowCache
from ..layers.ends import first_conv, last_conv
from ..layers.resample import patchify
from .blocks import block_stages, make_conv_in, make_conv_out, make_down_block, make_norm_out
from .config import NetworkConfig, NormKind


class Encoder(nn.Module):
    """Pixels (B, 1 + t*(T-1), s*H, s*W, 3) in [-1, 1] to moments (B, T, H, W, C+...): un-normalised means first.

    Checkpoint keys: `conv_in`, `down_blocks.i`, `conv_out`; with group norm `conv_norm_out`.
    """

    def __init__(self, config: NetworkConfig, patch_size: int) -> None:
        super().__init__()
        self.conv_in = make_conv_in(config)
        self.down_blocks = [make_down_block(block, config) for block in config.blocks]
        self.conv_norm_out = make_norm_out(config)
        self.conv_out = make_conv_out(config)
        self.config = config
        self._patch_size = patch_size

    @property
    def streamable(self) -> bool:
        """Whether a clip may be cut in time: not with group norms, which look at the whole of it."""
        return self.config.norm is not NormKind.GROUP

    def stages(self, outputs: int | None = None) -> list[Stage]:
        """The forward pass of one new stream along time, with fresh caches.

        Args:
            outputs: so many of the moments' channels are computed, the first; None for all.
        """
        stages = [Stage(lambda x, last: None if x is None else patchify(x, self._patch_size), NoCache())]
        cache = WindowCache(self.conv_in.window(Axis.TIME))
        stages.append(Stage(partial(first_conv, conv=self.conv_in, cache=cache), cache))
        for block in self.down_blocks:
            stages += block_stages(block, Axis.TIME, None, iter(()))
        cache = WindowCache(self.conv_out.window(Axis.TIME))
        last = partial(
            last_conv, conv=self.conv_out, norm=self.conv_norm_out, modulation=None, cache=cache, outputs=outputs
        )
        stages.append(Stage(last, cache))
        return stages
