"""Layer specs of the diffusion decoder, from the configuration alone. No MLX."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ...backend.machine import FLOAT32_BYTES, Backend, Machine
from ...errors import CheckpointError
from ...shapes import Axis, Grid, TileRules, WindowSpec
from ..specs import PLANES, SINUSOID_CHANNELS, LayerSpec, NetworkSpec, Step, Weights, linear_weights
from ..video_vae.config import encoder_spec
from .config import DecoderConfig, DiffusionVAEConfig, Prediction, StageConfig
from .neighborhood import BLOCKS, CALLS_UNDER_WAY, Times, computed_scores, tokens_at_once, workspace_bytes

#: Rows of a modulation: scale, shift and gate of the attention and of the MLP, and the gate of the context. The gates
#: have no effect: a checkpoint's gates are static, and separate tensors.
MODULATION_ROWS = 7

_MLP_RATIO, _MLP_ALIGNMENT = 4, 16
_UNTAGGED = "this checkpoint has no type_emb, which tells its decoder keyframes from frames; results are worse."


@dataclass(frozen=True)
class EntrySpec(LayerSpec):
    """First layer, which pads a clip smaller than `least`, and repeats the last frame `ghosts` times."""

    least: Grid = (1, 1, 1)
    ghosts: int = 0
    planes: int = 0  # keyframe planes, which follow the frames from here on

    def num_outputs(self, axis: Axis, length: int) -> int:
        return max(length, self.least[axis.grid]) + (self.ghosts + self.planes if axis is Axis.TIME else 0)

    def ready(self, axis: Axis, num_inputs: int) -> int:
        """Return the inputs, but no rows and columns of a small clip before its end, since padding precedes them."""
        return num_inputs if axis is Axis.TIME or num_inputs >= self.least[axis.grid] else 0

    def needed(self, axis: Axis, count: int) -> int:
        return count if axis is Axis.TIME else max(count, self.least[axis.grid])


@dataclass(frozen=True)
class UpsampleSpec(LayerSpec):
    """Linear layer and depth-to-space. The last one drops the frames of the ghosts.

    This delays no frame, since ghosts follow the end of the clip, whose length is then known.
    """

    ghost_frames: int = 0
    planes: int = 0

    def num_outputs(self, axis: Axis, length: int) -> int:
        dropped = self.ghost_frames + (self.up[0] - 1) * self.planes
        return super().num_outputs(axis, length) - (dropped if axis is Axis.TIME else 0)

    def of_tile(self, *, is_first: bool, is_last: bool) -> LayerSpec:
        return replace(self, trim=self.trim if is_first else 0, ghost_frames=self.ghost_frames if is_last else 0)

    def work_bytes(self, step: Step) -> int:
        """Return the bytes of the result before and after depth-to-space, and with planes also after their cut."""
        results = math.prod(step.grid) * math.prod(self.up) * (2 if self.planes and self.up[0] > 1 else 1)
        return super().work_bytes(step) + results * self.out_channels * step.machine.itemsize


@dataclass(frozen=True)
class AttentionSpec(LayerSpec):
    """Attention of each position to its window. Keys and values are cached, and inputs are held until their results.

    `times` are the times of the keyframe planes among its frames. With planes, windows are cut at the borders.
    """

    head_dim: int = 0
    times: Times = ()
    waiting_channels: int = 0  # of other arrays that are held with its input
    max_view: int | None = 2**29  # of the keys and of the values, which are separate arrays

    @property
    def kernel(self) -> Grid:
        time, height, width = (window.kernel for window in self.windows)
        return time, height, width

    def cache_bytes(self, axis: Axis, grid: Grid, piece: int, machine: Machine) -> int:
        extent, window = grid[axis.grid], self.window(axis)
        cells = math.prod(grid) // extent
        keys_values = min(window.cached, extent) * 2 * self.in_channels
        waiting = min(window.ahead, extent) * (self.in_channels + self.waiting_channels)
        return (keys_values + waiting) * cells * machine.itemsize

    def work_bytes(self, step: Step) -> int:
        positions, viewed = math.prod(step.grid), self.positions_in_view(step)
        channels, size = self.in_channels, step.machine.itemsize
        # Norms; queries before and after rotation; keys and values, new and joined; the held input.
        array_bytes = ((8 if step.is_whole else 10) * positions + 2 * viewed) * channels * size
        on_cpu = step.machine.backend is Backend.CPU
        if on_cpu and size != FLOAT32_BYTES:
            # Norms, rotations, products, keys and values are in float32; fitted to measurements.
            elements = 2 * viewed + 7 * positions if step.is_whole else 7 * viewed + 2 * positions
            array_bytes += elements // 4 * channels * FLOAT32_BYTES
        if step.is_whole:
            # The held arrays, and an array that is freed late; a CPU's margin covers the latter.
            array_bytes += positions * ((1 if on_cpu else 2) * channels + self.waiting_channels) * size
        moving = None if step.is_whole else step.axis.grid
        heads = channels // self.head_dim
        workspace = workspace_bytes(step.grid, self.kernel, channels, heads, step.machine, moving, self.times)
        return array_bytes + workspace

    def multiply_adds(self, grid: Grid) -> int:
        """Return the multiply-adds of the matrices and of the scores of blocks, which exceed the windows' scores."""
        return super().multiply_adds(grid) + 2 * self.in_channels * computed_scores(
            grid, self.kernel, BLOCKS[Backend.CPU], self.times
        )


@dataclass(frozen=True)
class NoiseSpec(LayerSpec):
    """First layer of a denoising step. It holds `waiting_channels` of its input for the blocks."""

    waiting_channels: int = 0
    planes: int = 0

    def noise_shapes(self, out: Grid) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the noise of the video, and of the keyframe planes after it."""
        frames, *size = out
        shapes = {self.name: (frames - self.planes, *size, self.noise_channels)}
        planes = {f"{self.name}{PLANES}": (self.planes, *size, self.noise_channels)} if self.planes else {}
        return shapes | planes if self.noise_channels else {}

    def work_bytes(self, step: Step) -> int:
        """Return the bytes, including noise, which several kernels draw in float32, and which is joined for planes."""
        drawn = 6 * FLOAT32_BYTES + (step.machine.itemsize if self.planes else 0)
        return super().work_bytes(step) + math.prod(step.grid) * self.noise_channels * drawn

    def cache_bytes(self, axis: Axis, grid: Grid, piece: int, machine: Machine) -> int:
        """Return the bytes of half a piece, the average. Layers that use other held arrays count them."""
        cells = math.prod(grid) // grid[axis.grid]
        return min(-(-piece // 2), grid[axis.grid]) * cells * self.waiting_channels * machine.itemsize


@dataclass(frozen=True)
class PredictionSpec(LayerSpec):
    """Last layer of a denoising step: a norm, a linear layer, and the update of the noisy picture in float32."""

    def work_bytes(self, step: Step) -> int:
        is_half_on_cpu = step.machine.backend is Backend.CPU and step.machine.itemsize != FLOAT32_BYTES
        elements = (4 if is_half_on_cpu else 1) * self.in_channels + 2 * self.out_channels
        return super().work_bytes(step) + math.prod(step.grid) * elements * FLOAT32_BYTES


@dataclass(frozen=True)
class MLPSpec(LayerSpec):
    """Gated MLP of each position, with `hidden` channels."""

    hidden: int = 0

    def work_bytes(self, step: Step) -> int:
        size, backend = step.machine.itemsize, step.machine.backend
        inner = FLOAT32_BYTES if backend is Backend.CPU else size  # a CPU computes SiLU in float32
        positions = math.prod(step.grid)
        at_once = min(positions, CALLS_UNDER_WAY[backend] * tokens_at_once(backend, self.hidden))
        array = positions * self.in_channels * size
        workspace = at_once * (self.in_channels * 2 * FLOAT32_BYTES + 3 * self.hidden * inner)
        return 2 * array + max(array, workspace)


def hidden_channels(channels: int) -> int:
    """Return the number of hidden channels of an MLP."""
    return -(-_MLP_RATIO * channels // _MLP_ALIGNMENT) * _MLP_ALIGNMENT


def network_spec(config: DiffusionVAEConfig, network: str) -> NetworkSpec:
    """Return the spec of the encoder or the decoder, by its name."""
    if network == "encoder":
        if config.encoder is None:
            raise CheckpointError("the configuration has no encoder; use the configuration of a whole VAE.")
        return encoder_spec(config.encoder)
    if config.decoder is None:
        raise CheckpointError("the configuration has no decoder; use the configuration of a whole VAE.")
    return decoder_spec(config.decoder)


def decoder_spec(
    config: DecoderConfig, steps: int | None = None, keyframes: tuple[int, ...] = (), first_frame: int = 0
) -> NetworkSpec:
    """Return the spec of the decoder with a number of denoising steps, by default the configured one.

    It sees the planes of the frames `keyframes`. A tile begins at `first_frame`.
    """
    steps, planes = steps or config.steps, len(keyframes)
    layers: list[LayerSpec] = [_entry(config, planes)]
    rate = config.scale.time  # frames per frame of a stage
    for index, stage in enumerate(config.context_stages):
        origin = -(-first_frame // rate) if index == len(config.context_stages) - 1 else 0
        times = tuple(_time(frame, rate) - origin for frame in keyframes)
        rate //= stage.up[0]
        for block in range(stage.depth):
            layers += _block(config, stage, f"det_stages.{index}.{block}", times)
        is_last = index == len(config.context_stages) - 1
        upsample = UpsampleSpec(
            f"upsamples.{index}",
            stage.channels,
            stage.out_channels,
            up=stage.up,
            trim=stage.up[0] - 1,
            ghost_frames=config.ghost_frames * config.scale.time if is_last else 0,
            planes=planes,
            weights=linear_weights(f"upsamples.{index}.proj", stage.channels, math.prod(stage.up) * stage.out_channels),
        )
        layers.append(upsample)
    for step in range(steps):
        layers += _denoising_step(config, step, steps, tuple(float(frame - first_frame) for frame in keyframes))
    patch = config.patch_size
    layers.append(LayerSpec("unpatchify", config.pixel_channels, 3, up=(1, patch, patch), crop=planes))
    return NetworkSpec(
        tuple(layers),
        patch_size=patch,
        least=(1, 1, 1) if keyframes else config.least,
        takes_least_memory=True,
        rows_on_gpu=BLOCKS[Backend.METAL],
        tiles=_tile_rules(config, layers),
        denoising_steps=steps,
        keyframes=keyframes,
        keyframe_warning=None if config.has_type_embedding else _UNTAGGED,
        variant=partial(decoder_spec, config),
    )


def _tile_rules(config: DecoderConfig, layers: Sequence[LayerSpec]) -> TileRules:
    """Return the rules of tiles, which run the last context stage and the denoising.

    Tiles overlap by the positions that either of the two sees on each side.
    """
    context, pixels = config.context_stages[-1], config.pixel_stage
    axes = list(zip(context.kernel, pixels.kernel, context.up, strict=True))
    names = [layer.name for layer in layers]
    return TileRules(
        start=names.index(f"det_stages.{len(config.context_stages) - 1}.0.attn"),
        size=_grid(max(kernel, -(-inner // up)) for kernel, inner, up in axes),
        overlap=_grid(
            max(context.depth * (kernel // 2), -(-pixels.depth * (inner // 2) // up)) for kernel, inner, up in axes
        ),
    )


def _grid(values: Iterable[int]) -> Grid:
    time, height, width = values
    return time, height, width


def keeps_noisy(config: DecoderConfig, step: int, steps: int) -> bool:
    """Return whether the result of a denoising step depends on its noisy input beyond the prediction."""
    return config.prediction is Prediction.VELOCITY or step < steps - 1


def _time(frame: int, rate: int) -> float:
    """Return the time of a keyframe plane among a stage's frames, which have `rate` video frames, the first one."""
    return (frame + (rate - 1) / 2) / rate if frame else 0.0


def _entry(config: DecoderConfig, planes: int) -> EntrySpec:
    width = config.context_stages[0].channels
    weights = linear_weights("conv_in", config.latent_channels, width)
    if config.has_type_embedding:
        weights = (("type_emb", (config.latent_channels,)), *weights)
    return EntrySpec(
        "conv_in",
        config.latent_channels,
        width,
        weights=weights,
        least=(1, 1, 1) if planes else config.least,
        ghosts=config.ghost_frames,
        planes=planes,
    )


def _window(kernel: int, *, is_cut: bool) -> WindowSpec:
    """Return the window of an attention. Its padding stands for positions that are cut."""
    if not is_cut:
        return WindowSpec(kernel, shifts=True)
    return WindowSpec(kernel, before=kernel // 2, after=kernel - 1 - kernel // 2)


def _denoising_step(config: DecoderConfig, step: int, steps: int, times: Times) -> list[LayerSpec]:
    stage, pixels = config.pixel_stage, config.pixel_channels
    waiting = (0 if step else config.context_channels) + (pixels if keeps_noisy(config, step, steps) else 0)
    enter = NoiseSpec(
        "conv_in_x_t",
        pixels if step else config.context_channels,
        stage.channels,
        noise_channels=0 if step else pixels,
        waiting_channels=waiting,
        planes=len(times),
        weights=(*linear_weights("conv_in_x_t", pixels, stage.channels), *_modulation(config)),
    )
    layers: list[LayerSpec] = [enter]
    waiting = config.context_channels + (pixels if keeps_noisy(config, step, steps) else 0)
    for block in range(stage.depth):
        layers += _block(config, stage, f"diff_blocks.{block}", times, waiting)
    output_weights = (("norm_out.weight", (stage.channels,)), *linear_weights("conv_out", stage.channels, pixels))
    return [*layers, PredictionSpec("conv_out", stage.channels, pixels, weights=output_weights)]


def _modulation(config: DecoderConfig) -> Weights:
    width = config.embedding_channels
    return (
        *linear_weights("t_embedder.mlp.0", SINUSOID_CHANNELS, width),
        *linear_weights("t_embedder.mlp.2", width, width),
        *linear_weights("shared_adaln.proj", width, MODULATION_ROWS * config.pixel_stage.channels),
    )


def _block(
    config: DecoderConfig, stage: StageConfig, name: str, times: Times, waiting_channels: int = 0
) -> list[LayerSpec]:
    """Return the two layers of a block. With `waiting_channels` it is a denoising block, which takes the context."""
    channels, head_dim = stage.channels, config.head_dim
    time, height, width = (_window(kernel, is_cut=bool(times)) for kernel in stage.kernel)
    attention_weights: Weights = ((f"{name}.norm1.weight", (channels,)),)
    if config.is_fused:
        attention_weights += linear_weights(f"{name}.attn.qkv", channels, 3 * channels)
    else:
        attention_weights += tuple(
            weight for part in "qkv" for weight in linear_weights(f"{name}.attn.to_{part}", channels, channels)
        )
    attention_weights += linear_weights(f"{name}.attn.proj", channels, channels)
    attention_weights += ((f"{name}.attn.q_norm.weight", (head_dim,)), (f"{name}.attn.k_norm.weight", (head_dim,)))
    hidden = hidden_channels(channels)
    mlp_weights: Weights = (
        (f"{name}.norm2.weight", (channels,)),
        (f"{name}.mlp.w_up.weight", (hidden, channels)),
        (f"{name}.mlp.w_gate.weight", (hidden, channels)),
        (f"{name}.mlp.w_down.weight", (channels, hidden)),
    )
    if waiting_channels:
        attention_weights += linear_weights(f"{name}.context_proj", config.context_channels, channels)
        attention_weights += ((f"{name}.scale_shift_table", (MODULATION_ROWS, channels)),)
        if config.has_gates:
            attention_weights += ((f"{name}.gate_msa", (channels,)), (f"{name}.gate_ctx", (channels,)))
            mlp_weights += ((f"{name}.gate_mlp", (channels,)),)
    attention = AttentionSpec(
        f"{name}.attn",
        channels,
        channels,
        windows=(time, height, width),
        weights=attention_weights,
        head_dim=head_dim,
        times=times,
        unbounded=frozenset({Axis.TIME}) if times else frozenset(),
        waiting_channels=waiting_channels,
    )
    return [attention, MLPSpec(f"{name}.mlp", channels, channels, weights=mlp_weights, hidden=hidden)]
