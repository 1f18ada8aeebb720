"""Diffusion decoder, with the padding of its latents and the removal of the pixels that the padding becomes."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import mlx.core as mx

from ...backend.mlx_utils import take
from ...shapes import Axis, Grid, ScaleFactors
from ...streaming.context import Stage, StreamContext
from ...streaming.window import Delay
from ..base import Decoder, Statistics
from ..layers import add_weights, extend, unpatchify
from ..specs import PLANES, NetworkSpec
from .attention import Tables
from .blocks import LinearUpsample, NeighborhoodBlock, RMSNorm, SharedModulation, TimestepEmbedder
from .config import DecoderConfig, Prediction
from .specs import AttentionSpec, MLPSpec, decoder_spec, keeps_noisy

#: For each axis, the number of padding positions before and after the clip, and the length of the clip.
Extents = dict[Axis, tuple[int, int, int]]


class Padding:
    """Cache of a `Stage` that pads a clip by repeating its edges, and its last frame `ghosts` times more.

    `added` is `NetworkSpec.added`. A `clip` is one that is padded already: only its extents are used. The last frames
    of each piece are keyframe `planes`.
    """

    def __init__(
        self,
        axis: Axis,
        added: Callable[[Axis, int], tuple[int, int]],
        ghosts: int,
        clip: Grid | None = None,
        planes: int = 0,
    ) -> None:
        self._axis, self._added, self._ghosts, self._planes = axis, added, ghosts, planes
        self._length = 0  # positions so far along the axis of the stream
        self._held: list[mx.array] = []  # all positions while there are too few; then the last frame
        self.closed = clip is not None
        self.extents: Extents = {}
        for clip_axis, length in zip(Axis, clip or (), strict=clip is not None):
            self.extents[clip_axis] = (*added(clip_axis, length), length)

    @property
    def arrays(self) -> list[mx.array]:
        return self._held

    def push(self, x: mx.array | None, last: bool) -> mx.array | None:
        """Add the next piece, or `None` at the end. Returns the padded positions, or `None` if there are none yet."""
        axis = self._axis
        if x is not None:
            for complete_axis in Axis:
                if complete_axis is not axis:
                    x = self._pad(x, complete_axis)
            self._length += x.shape[axis]
        self.closed = last
        result = self._in_time(x, last) if axis is Axis.TIME else self._in_space(x, last)
        self.extents[axis] = (*self._added(axis, self._length), self._length)
        return result

    def _pad(self, x: mx.array, axis: Axis) -> mx.array:
        """Pad `x` along an axis whose positions are all there."""
        length = x.shape[axis] - (self._planes if axis is Axis.TIME else 0)
        before, after = self._added(axis, length)
        self.extents[axis] = before, after, length
        if axis is not Axis.TIME:
            return extend(x, axis, before, after)
        padded = extend(x[:, :length], axis, before, after + self._ghosts)
        return mx.concatenate([padded, x[:, length:]], axis=axis) if self._planes else padded

    def _in_time(self, x: mx.array | None, last: bool) -> mx.array | None:
        """Return the frames of this piece, and the repeated frames at the end."""
        if x is not None:
            self._held = [mx.contiguous(take(x, Axis.TIME, x.shape[1] - 1, x.shape[1]))]
        if not last or not self._held:
            return x
        edge = self._held.pop()
        _, after = self._added(Axis.TIME, self._length)
        repeats = [edge] * (after + self._ghosts)
        return mx.concatenate([*([] if x is None else [x]), *repeats], axis=1) if repeats else x

    def _in_space(self, x: mx.array | None, last: bool) -> mx.array | None:
        """Return padded rows or columns. Fewer positions than the minimum are held until the end."""
        if x is not None:
            self._held.append(x)
        before, after = self._added(self._axis, self._length)
        if not self._held or (before + after and not last):
            return None
        joined = self._held[0] if len(self._held) == 1 else mx.concatenate(self._held, axis=self._axis)
        self._held = []
        return extend(joined, self._axis, before, after)


def ghost_cut(
    axis: Axis, padding: Padding, scale: ScaleFactors, first_frame: int, planes: int
) -> Callable[[mx.array], mx.array | None]:
    """Return a function that drops the frames of ghosts in one stream, which begins at `first_frame` of the clip.

    It takes the next piece (B, T, H, W, C), and returns `None` if all of its frames are ghosts. Ghosts follow the clip,
    whose length is then known. The last frames of each piece are keyframe `planes`.
    """
    start = first_frame  # frames of the clip before the next piece

    def cut(x: mx.array) -> mx.array | None:
        nonlocal start
        if axis is Axis.TIME and not padding.closed:
            start += x.shape[1]
            return x
        frames = scale.time * (sum(padding.extents[Axis.TIME]) - 1) + 1
        if axis is Axis.TIME:
            frames, start = max(0, frames - start), start + x.shape[1]
        if planes:
            end = x.shape[1] - planes
            return mx.concatenate([x[:, : min(frames - start, end)], x[:, end:]], axis=1)
        return take(x, Axis.TIME, 0, min(frames, x.shape[1])) if frames else None

    return cut


def padding_cut(stream_axis: Axis, extents: Extents, scale: ScaleFactors) -> Callable[[mx.array], mx.array | None]:
    """Return a function that removes the pixels of the padding from a stream.

    It takes the next piece (B, T, H, W, C), and returns `None` if none of its pixels belong to the clip.
    """
    start = 0  # pixels so far along the axis of the stream

    def cut(x: mx.array) -> mx.array | None:
        nonlocal start
        for axis in Axis:
            before, after, length = extents[axis]
            factor = scale[axis.grid]
            begin = before * factor
            # Only a clip that is too short is padded, and all of it arrives before the first pixels are returned.
            end = begin + length * factor - (factor - 1 if axis is Axis.TIME else 0) if before + after else None
            if axis is stream_axis:
                begin, end = max(0, begin - start), None if end is None else max(0, end - start)
                start += x.shape[axis]
            if begin or end is not None:
                x = take(x, axis, begin, x.shape[axis] if end is None else min(end, x.shape[axis]))
            if not x.shape[axis]:
                return None
        return x

    return cut


class DiffusionDecoder(Decoder):
    """Decoder of denormalized latents (B, T, H, W, C) to pixels (B, 1 + t*(T-1), s*H, s*W, 3), about in [-1, 1].

    Context stages upsample the latents to the grid of patches of pixels. There the last stage turns noise into the
    picture, in one or several steps. Checkpoint keys: `conv_in`, `det_stages.i.j`, `upsamples.i`, `conv_in_x_t`,
    `t_embedder`, `shared_adaln`, `diff_blocks.i`, `norm_out`, `conv_out`; `type_emb` if it was trained with keyframes.

    Keyframe planes follow the frames of the video in all layers, and the attention connects both. A clip with planes is
    not streamed along time, since a frame sees planes at any distance.
    """

    def __init__(self, config: DecoderConfig, statistics: Statistics) -> None:
        super().__init__(decoder_spec(config), statistics)
        layers = {layer.name: layer for layer in self.spec.layers}

        def block(name: str) -> NeighborhoodBlock:
            attention, mlp = layers[f"{name}.attn"], layers[f"{name}.mlp"]
            assert isinstance(attention, AttentionSpec) and isinstance(mlp, MLPSpec)
            return NeighborhoodBlock(attention, mlp)

        self.det_stages = [
            [block(f"det_stages.{index}.{number}") for number in range(stage.depth)]
            for index, stage in enumerate(config.context_stages)
        ]
        self.upsamples = [LinearUpsample(layers[f"upsamples.{index}"]) for index in range(len(config.context_stages))]
        self.t_embedder, self.shared_adaln = TimestepEmbedder(self.spec.weights), SharedModulation()
        self.diff_blocks = [block(f"diff_blocks.{number}") for number in range(config.pixel_stage.depth)]
        self.norm_out = RMSNorm()
        add_weights(self, tuple(self.spec.weights.items()))
        self._config = config

    def __call__(self, latents: mx.array, steps: int | None = None) -> mx.array:
        """Decode like any decoder, in a number of denoising steps."""
        return self.decode_whole(latents, steps=steps)

    def stages(self, context: StreamContext) -> list[Stage]:
        config, clip, planes = self._config, context.clip, context.planes
        if planes and context.axis is Axis.TIME:  # the clip is one piece
            context = replace(context, axis=Axis.HEIGHT)
        axis, first_frame = context.axis, context.first_frame
        steps, tables = context.denoising_steps or config.steps, Tables()
        keyframes = tuple(context.keyframes[plane] for plane in planes)
        is_default = steps == config.steps and not planes
        spec = self.spec if is_default else decoder_spec(config, steps, keyframes, first_frame)
        padding = Padding(axis, spec.added, config.ghost_frames, clip, len(planes))
        cut_ghosts = ghost_cut(axis, padding, config.scale, first_frame, len(planes))
        specs = {layer.name: layer for layer in spec.layers if isinstance(layer, AttentionSpec)}
        stages = [Stage(partial(self._enter, padding, len(planes)), padding)]
        for index, (blocks, upsample) in enumerate(zip(self.det_stages, self.upsamples, strict=True)):
            for block in blocks:
                stages += block.stages(context, tables=tables, spec=specs[f"det_stages.{index}.0.attn"])
            is_last = upsample is self.upsamples[-1]
            stages += upsample.stages(context, cut_ghosts if is_last else None, len(planes))
        delay = Delay(axis, readers=steps * len(self.diff_blocks))
        for step in range(steps):
            stages += self._denoising_step(step, steps, spec, delay, context, tables)
        cut = padding_cut(axis, padding.extents, config.scale)

        def leave(x: mx.array | None, last: bool) -> mx.array | None:
            pixels = None if x is None else unpatchify(x[:, : x.shape[1] - len(planes)], config.patch_size)
            return pixels if pixels is None or clip else cut(pixels)  # the padding of tiles is cut off after blending

        return [*stages, Stage(leave)]

    def _enter(self, padding: Padding, planes: int, x: mx.array | None, last: bool) -> mx.array | None:
        if planes and x is not None and "type_emb" in self:
            end = x.shape[1] - planes
            x = mx.concatenate([x[:, :end], x[:, end:] + self.type_emb], axis=1)
        padded = padding.push(x, last)
        return None if padded is None else self.conv_in(padded)

    def _draw_noise(self, context: StreamContext, start: Grid, size: Grid) -> mx.array:
        """Draw the noise of the first step: for the frames, and for the keyframe planes after them."""
        planes, (frames, *extents) = context.planes, size
        video_size = frames - len(planes), extents[0], extents[1]
        parts = [context.draw_noise("conv_in_x_t", start, video_size).astype(self.dtype)]
        if planes:
            planes_size = (len(planes), *video_size[1:])
            parts.append(context.draw_noise(f"conv_in_x_t{PLANES}", start, planes_size, planes).astype(self.dtype))
        return mx.concatenate(parts, axis=1)

    def _denoising_step(
        self, step: int, steps: int, spec: NetworkSpec, delay: Delay, context: StreamContext, tables: Tables
    ) -> list[Stage]:
        """Return the stages of one step. `delay` holds the context for the blocks of all steps."""
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
                x = self._draw_noise(context, (start[0], start[1], start[2]), (size[0], size[1], size[2]))
            if keeps:
                noisy.push(x)
            return self.conv_in_x_t(x)

        def leave(x: mx.array) -> mx.array:
            predicted = self.conv_out(self.norm_out(x))
            if not keeps:
                return predicted
            past, predicted = noisy.take_next(x.shape[axis]).astype(mx.float32), predicted.astype(mx.float32)
            if self._config.prediction is Prediction.PICTURE:
                predicted = (past - predicted) / level
            return (past - (level - next_level) * predicted).astype(x.dtype)

        attention = next(layer for layer in spec.layers if layer.name == "diff_blocks.0.attn")
        assert isinstance(attention, AttentionSpec)
        stages = [Stage(enter, delay, noisy)]
        for index, block in enumerate(self.diff_blocks):
            latent_context = partial(delay.take_next, reader=step * len(self.diff_blocks) + index)
            stages += block.stages(context, modulation, latent_context, tables, attention)
        return [*stages, Stage(lambda x, last: None if x is None else leave(x))]
