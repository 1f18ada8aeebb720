"""The diffusion decoder."""

from functools import partial

import mlx.core as mx
import mlx.nn as nn

from ...shapes import LatentShape
from ...streaming.context import Stage, StreamContext
from ...streaming.delay import Delay
from ...streaming.driver import run_whole
from ..base import Statistics
from ..input_shapes import check_latent_shape
from ..noise import LatentNoise, draw
from ..patches import unpatchify
from ..specs import NetworkSpec
from .blocks import LinearUpsample, NeighborhoodBlock, Reader, RMSNorm, SharedModulation, TimestepEmbedder
from .config import DecoderConfig, Prediction
from .edges import Cut, GhostCut, Padding
from .network_specs import AttentionSpec, MLPSpec, decoder_spec, keeps_noisy


class DiffusionDecoder(nn.Module):
    """Decodes denormalized latents (B, T, H, W, C) to pixels (B, 1 + t*(T-1), s*H, s*W, 3), approximately in [-1, 1].

    Context stages upsample the latents to the grid of patches of pixels. There the last stage turns noise into the
    picture, in one or several steps. `stages` is the only forward pass; the decoder can also be called, on normalized
    latents in the axes of the API. Checkpoint keys: `conv_in`, `det_stages.i.j`, `upsamples.i`, `conv_in_x_t`,
    `t_embedder`, `shared_adaln`, `diff_blocks.i`, `norm_out`, `conv_out`.
    """

    def __init__(self, config: DecoderConfig, statistics: Statistics) -> None:
        super().__init__()
        self.spec = decoder_spec(config)
        layers = {layer.name: layer for layer in self.spec.layers}

        def block(name: str, context_channels: int = 0) -> NeighborhoodBlock:
            first, second = layers[f"{name}.attn"], layers[f"{name}.mlp"]
            assert isinstance(first, AttentionSpec) and isinstance(second, MLPSpec)
            gates = config.has_gates and context_channels > 0
            return NeighborhoodBlock(
                first, second, is_fused=config.is_fused, context_channels=context_channels, has_gates=gates
            )

        first, pixels = config.context_stages[0], config.pixel_stage
        self.conv_in = nn.Linear(config.latent_channels, first.channels)
        self.det_stages = [
            [block(f"det_stages.{index}.{each}") for each in range(stage.depth)]
            for index, stage in enumerate(config.context_stages)
        ]
        self.upsamples = [LinearUpsample(layers[f"upsamples.{index}"]) for index in range(len(config.context_stages))]
        self.conv_in_x_t = nn.Linear(config.pixel_channels, pixels.channels)
        self.t_embedder = TimestepEmbedder(config.embedding_channels)
        self.shared_adaln = SharedModulation(config.embedding_channels, pixels.channels)
        self.diff_blocks = [block(f"diff_blocks.{each}", config.context_channels) for each in range(pixels.depth)]
        self.norm_out = RMSNorm(pixels.channels)
        self.conv_out = nn.Linear(pixels.channels, config.pixel_channels)
        self.statistics = statistics
        self._config = config

    def __call__(self, latents: mx.array, steps: int | None = None) -> mx.array:
        """Decode normalized latents (B, C, T, H, W) to pixels (B, 3, F, H, W) in one pass, with noise of seed 0.

        Its memory grows with the clip; `VideoVAE.stream` gives the same result.
        """
        shape: LatentShape = check_latent_shape(self.spec, latents.shape)
        volumes = draw(self.spec, shape, self.dtype).volumes
        context = StreamContext(noise=volumes, denoising_steps=steps)
        return run_whole(self.stages(context), self.prepare(latents, None)).transpose(0, 4, 1, 2, 3)

    @property
    def dtype(self) -> mx.Dtype:
        return self.conv_in.weight.dtype

    def prepare(self, latents: mx.array, noise: LatentNoise | None) -> mx.array:
        assert noise is None  # has_latent_noise
        return self.statistics.denormalize(latents).transpose(0, 2, 3, 4, 1).astype(self.dtype)

    def stages(self, context: StreamContext) -> list[Stage]:
        config, axis = self._config, context.axis
        steps = context.denoising_steps or config.steps
        spec = self.spec if steps == config.steps else decoder_spec(config, steps)
        part = context.part
        padding = Padding(axis, spec.added, config.ghost_frames, part and part.clip)
        ghosts = GhostCut(axis, padding, config.scale, part.first_frame if part else 0)
        stages = [Stage(partial(self._enter, padding), padding)]
        for index, (blocks, upsample) in enumerate(zip(self.det_stages, self.upsamples, strict=True)):
            rate = spec.rate(f"det_stages.{index}.0.attn")
            for block in blocks:
                stages += block.stages(context, rate)
            is_last = upsample is self.upsamples[-1]
            stages += upsample.stages(context, ghosts if is_last else None)
        delay = Delay(axis, readers=steps * len(self.diff_blocks))
        for step in range(steps):
            stages += self._denoising_step(step, steps, spec, delay, context)
        cut = Cut(axis, padding.extents, config.scale)

        def leave(x: mx.array | None, last: bool) -> mx.array | None:
            pixels = None if x is None else unpatchify(x, config.patch_size)
            return pixels if pixels is None or part else cut(pixels)  # of tiles, the padding is cut off once blended

        return [*stages, Stage(leave)]

    def _enter(self, padding: Padding, x: mx.array | None, last: bool) -> mx.array | None:
        padded = padding.push(x, last)
        return None if padded is None else self.conv_in(padded)

    def _denoising_step(
        self, step: int, steps: int, spec: NetworkSpec, delay: Delay, context: StreamContext
    ) -> list[Stage]:
        """The stages of one step; the context waits in `delay` for the blocks of all steps."""
        axis = context.axis
        level, next_level = (steps - step) / steps, (steps - step - 1) / steps
        timestep = mx.array([self._config.timestep_multiplier * level])
        modulation = self.shared_adaln(self.t_embedder(timestep))
        noisy = Delay(axis)
        keeps = keeps_noisy(self._config, step, steps)
        drawn = 0

        def enter(x: mx.array | None, last: bool) -> mx.array | None:
            nonlocal drawn
            if x is None:
                return None
            if step == 0:
                delay.push(x)
                start, size = [0, 0, 0], x.shape[1:4]
                start[axis.grid], drawn = drawn, drawn + x.shape[axis]
                x = context.draw_noise("conv_in_x_t", (start[0], start[1], start[2]), (size[0], size[1], size[2]))
                x = x.astype(self.dtype)
            if keeps:
                noisy.push(x)
            return self.conv_in_x_t(x)

        reader = Reader(noisy, 0)

        def leave(x: mx.array) -> mx.array:
            predicted = self.conv_out(self.norm_out(x))
            if not keeps:
                return predicted
            past, predicted = reader.take(x.shape[axis]).astype(mx.float32), predicted.astype(mx.float32)
            if self._config.prediction is Prediction.PICTURE:
                predicted = (past - predicted) / level
            return (past - (level - next_level) * predicted).astype(x.dtype)

        rate = spec.rate("conv_in_x_t")
        stages = [Stage(enter, delay, noisy)]
        for index, block in enumerate(self.diff_blocks):
            own = Reader(delay, step * len(self.diff_blocks) + index)
            stages += block.stages(context, rate, modulation, own)
        return [*stages, Stage(lambda x, last: None if x is None else leave(x))]
