"""The convolutional decoder: latents to pixels."""

from collections.abc import Iterable
from functools import partial

import mlx.core as mx
import mlx.nn as nn

from ...streaming.stage import NoCache, Stage
from ...streaming.window import Axis, WindowCache
from ..layers.activation import Modulation
from ..layers.ends import first_conv, last_conv
from ..layers.resample import unpatchify
from ..layers.time_embedding import TimeEmbedder
from .blocks import block_stages, make_conv_in, make_conv_out, make_norm_out, make_up_block
from .config import BlockKind, NetworkConfig, NormKind


class Decoder(nn.Module):
    """Un-normalised latents (B, T, H, W, C) to pixels (B, 1 + t*(T-1), s*H, s*W, 3) in about [-1, 1].

    Checkpoint keys: `conv_in`, `up_blocks.i`, `conv_out`; with timestep conditioning `timestep_scale_multiplier`,
    `last_time_embedder`, `last_scale_shift_table` (2, C: shift, scale); with group norm `conv_norm_out`.

    There is one forward pass, `stages`: what runs a clip through them decides how much of it at a time.
    """

    def __init__(self, config: NetworkConfig, patch_size: int) -> None:
        super().__init__()
        self.conv_in = make_conv_in(config)
        self.up_blocks = [make_up_block(block, config) for block in config.blocks]
        self.conv_norm_out = make_norm_out(config)
        self.conv_out = make_conv_out(config)
        if config.timestep_conditioning:
            self.timestep_scale_multiplier = mx.array(1000.0)
            self.last_time_embedder = TimeEmbedder(2 * config.last_width)
            self.last_scale_shift_table = mx.zeros((2, config.last_width))
        self.config = config
        self._patch_size = patch_size

    @property
    def streamable(self) -> bool:
        """Whether a clip may be cut in time: not with group norms, which look at the whole of it."""
        return self.config.norm is not NormKind.GROUP

    def field_shapes(self, height: int, width: int) -> list[tuple[int, int]]:
        """The (H, W) of each noise field a decode draws, in order, for latents of `height` x `width` cells."""
        shapes = []
        for block in self.config.blocks:
            height, width = height * block.stride[1], width * block.stride[2]
            if block.kind is BlockKind.RES_STACK and block.inject_noise:
                shapes += [(height, width)] * (2 * block.num_layers)
        return shapes

    def stages(
        self, axis: Axis = Axis.TIME, *, timesteps: mx.array | None = None, fields: Iterable[mx.array] = ()
    ) -> list[Stage]:
        """The forward pass of one new stream along `axis`, with fresh caches.

        Args:
            axis: along which the pieces will come.
            timesteps: (B,) between 0 and 1, for timestep conditioning.
            fields: noise as `field_shapes` lists it: (H, W) for all items of a batch, or (B, H, W).
        """
        if timesteps is not None:
            timesteps = timesteps.astype(mx.float32) * self.timestep_scale_multiplier.astype(mx.float32)
        fields = iter(fields)
        cache = WindowCache(self.conv_in.window(axis))
        stages = [Stage(partial(first_conv, conv=self.conv_in, cache=cache), cache)]
        for block in self.up_blocks:
            stages += block_stages(block, axis, timesteps, fields)
        cache = WindowCache(self.conv_out.window(axis))
        modulation = self._last_modulation(timesteps)
        last = partial(last_conv, conv=self.conv_out, norm=self.conv_norm_out, modulation=modulation, cache=cache)
        stages.append(Stage(last, cache))
        stages.append(Stage(lambda x, last: None if x is None else unpatchify(x, self._patch_size), NoCache()))
        return stages

    def _last_modulation(self, timesteps: mx.array | None) -> Modulation | None:
        if timesteps is None:
            return None
        embedding = self.last_time_embedder(timesteps)
        table = self.last_scale_shift_table.astype(mx.float32)[None] + embedding.reshape(embedding.shape[0], 2, -1)
        shift, scale = (table[:, row, None, None, None, :] for row in range(2))
        return Modulation(shift, scale)
