"""The layer specs of the diffusion decoder, from the configuration alone. No MLX."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ...backend.machine import FLOAT32_BYTES, Backend, Machine
from ...errors import CheckpointError
from ...shapes import Axis, Border, Grid, TileRules, WindowSpec
from ..specs import PLANES, LayerSpec, NetworkSpec, Step, Weights, linear_weights
from ..video_vae.config import encoder_spec
from .config import DecoderConfig, DiffusionVAEConfig, Prediction, StageConfig
from .neighborhood import BLOCKS, CALLS_UNDER_WAY, Times, computed_scores, tokens_at_once, workspace_bytes

#: Channels of the sinusoid of a noise level.
SINUSOID_CHANNELS = 256
#: Rows of a modulation: scale, shift and gate of the attention and of the MLP, and the gate of the context. The gates
#: have no effect: a checkpoint's gates are static, and separate tensors.
MODULATION_ROWS = 7

_MLP_RATIO, _MLP_ALIGNMENT = 4, 16
_UNTAGGED = "this checkpoint has no type_emb, which tells its decoder keyframes from frames; results are worse."


@dataclass(frozen=True)
class EntrySpec(LayerSpec):
    """The first layer: pads a clip that is smaller than `least`, and repeats the last frame `ghosts` times."""

    least: Grid = (1, 1, 1)
    ghosts: int = 0
    planes: int = 0  # keyframe planes, which follow the frames from here on

    def num_outputs(self, axis: Axis, length: int) -> int:
        return max(length, self.least[axis.grid]) + (self.ghosts + self.planes if axis is Axis.TIME else 0)

    def ready(self, axis: Axis, seen: int) -> int:
        """Rows and columns of a small clip wait for its end, since some of the padding lies before them."""
        return seen if axis is Axis.TIME or seen >= self.least[axis.grid] else 0

    def needed(self, axis: Axis, count: int) -> int:
        return count if axis is Axis.TIME else max(count, self.least[axis.grid])

    def least_band(self, axis: Axis) -> int:
        """Bands are not padded."""
        return self.least[axis.grid]


@dataclass(frozen=True)
class UpsampleSpec(LayerSpec):
    """A linear layer and depth-to-space. The last one drops the frames that ghosts become.

    No frame waits for that: ghosts come when the clip has ended, and its length is known.
    """

    ghost_frames: int = 0
    planes: int = 0

    def num_outputs(self, axis: Axis, length: int) -> int:
        dropped = self.ghost_frames + (self.up[0] - 1) * self.planes
        return super().num_outputs(axis, length) - (dropped if axis is Axis.TIME else 0)

    def of_tile(self, *, first: bool, last: bool) -> LayerSpec:
        return replace(self, trim=self.trim if first else 0, ghost_frames=self.ghost_frames if last else 0)

    def work_bytes(self, step: Step) -> int:
        """The result exists twice, before and after depth-to-space; with planes a third time, without what is cut."""
        results = math.prod(step.grid) * math.prod(self.up) * (2 if self.planes and self.up[0] > 1 else 1)
        return super().work_bytes(step) + results * self.out_channels * step.machine.itemsize


@dataclass(frozen=True)
class AttentionSpec(LayerSpec):
    """Attention of each position to its window. Keys and values are cached, and inputs wait for their results.

    `times` are the times of the keyframe planes among its frames. With planes, windows are cut at the borders.
    """

    head_dim: int = 0
    times: Times = ()
    waiting_channels: int = 0  # of what else waits beside the positions of its input
    max_view: int | None = 2**29  # of the keys, and of the values, which are separate arrays

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
        positions, seen = math.prod(step.grid), self.seen(step)
        channels, size = self.in_channels, step.machine.itemsize
        # Norms; queries before and after rotation; keys and values, new and joined; the waiting input.
        made = ((8 if step.is_whole else 10) * positions + 2 * seen) * channels * size
        on_cpu = step.machine.backend is Backend.CPU
        if on_cpu and size != FLOAT32_BYTES:
            # Norms, rotations, products, keys and values are in float32; fitted to measurements.
            elements = 2 * seen + 7 * positions if step.is_whole else 7 * seen + 2 * positions
            made += elements // 4 * channels * FLOAT32_BYTES
        if step.is_whole:
            # What waits, and an array that is not yet freed when the next one is allocated; a CPU's margin covers that.
            made += positions * ((1 if on_cpu else 2) * channels + self.waiting_channels) * size
        moving = None if step.is_whole else step.axis.grid
        heads = channels // self.head_dim
        workspace = workspace_bytes(step.grid, self.kernel, channels, heads, step.machine, moving, self.times)
        return made + workspace

    def multiply_adds(self, part: Grid, whole: Grid) -> int:
        """Multiply-adds of the matrices and of the scores of blocks, which exceed the windows' scores."""
        return super().multiply_adds(part, whole) + 2 * self.in_channels * computed_scores(
            part, self.kernel, BLOCKS[Backend.CPU], self.times
        )


@dataclass(frozen=True)
class NoiseSpec(LayerSpec):
    """The first layer of a denoising step. What arrives waits for the blocks, as `waiting_channels`."""

    waiting_channels: int = 0
    planes: int = 0

    def noise_shapes(self, out: Grid) -> dict[str, tuple[int, ...]]:
        """The noise of the video, and of the keyframe planes after it."""
        frames, *size = out
        shapes = {self.name: (frames - self.planes, *size, self.noise_channels)}
        planes = {f"{self.name}{PLANES}": (self.planes, *size, self.noise_channels)} if self.planes else {}
        return shapes | planes if self.noise_channels else {}

    def work_bytes(self, step: Step) -> int:
        """Noise is drawn in float32, by several kernels; with planes, the noise of both is joined."""
        drawn = 6 * FLOAT32_BYTES + (step.machine.itemsize if self.planes else 0)
        return super().work_bytes(step) + math.prod(step.grid) * self.noise_channels * drawn

    def cache_bytes(self, axis: Axis, grid: Grid, piece: int, machine: Machine) -> int:
        """Half of a piece, on average; what else waits counts where it is needed."""
        cells = math.prod(grid) // grid[axis.grid]
        return min(-(-piece // 2), grid[axis.grid]) * cells * self.waiting_channels * machine.itemsize


@dataclass(frozen=True)
class PredictionSpec(LayerSpec):
    """The last layer of a denoising step: a norm, a linear layer, and the update of the noisy picture in float32."""

    def work_bytes(self, step: Step) -> int:
        is_half_on_cpu = step.machine.backend is Backend.CPU and step.machine.itemsize != FLOAT32_BYTES
        elements = (4 if is_half_on_cpu else 1) * self.in_channels + 2 * self.out_channels
        return super().work_bytes(step) + math.prod(step.grid) * elements * FLOAT32_BYTES


@dataclass(frozen=True)
class MLPSpec(LayerSpec):
    """The gated MLP of each position, of `hidden` channels."""

    hidden: int = 0

    def work_bytes(self, step: Step) -> int:
        size, backend = step.machine.itemsize, step.machine.backend
        inner = FLOAT32_BYTES if backend is Backend.CPU else size  # SiLU is computed in float32 there
        positions = math.prod(step.grid)
        at_once = min(positions, CALLS_UNDER_WAY[backend] * tokens_at_once(backend, self.hidden))
        array = positions * self.in_channels * size
        workspace = at_once * (self.in_channels * 2 * FLOAT32_BYTES + 3 * self.hidden * inner)
        return 2 * array + max(array, workspace)


def hidden_channels(channels: int) -> int:
    """The hidden channels of an MLP."""
    return -(-_MLP_RATIO * channels // _MLP_ALIGNMENT) * _MLP_ALIGNMENT


def network_spec(config: DiffusionVAEConfig, network: str) -> NetworkSpec:
    """The encoder or the decoder, by its name."""
    if network == "encoder":
        if config.encoder is None:
            raise CheckpointError("the configuration has no encoder; use the configuration of a whole VAE.")
        return encoder_spec(config.encoder)
    if config.decoder is None:
        raise CheckpointError("the configuration has no decoder; use the configuration of a whole VAE.")
    return decoder_spec(config.decoder)


def decoder_spec(
    config: DecoderConfig,
    steps: int | None = None,
    keyframes: tuple[int, ...] = (),
    first_frame: int = 0,
) -> NetworkSpec:
    """The decoder with a number of denoising steps, by default the configured one: latents to pixels.

    It sees planes of the frames `keyframes`. Of a tile, `first_frame` is where it begins.
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
            weights=linear_weights(
                f"upsamples.{index}.proj",
                stage.channels,
                math.prod(stage.up) * stage.out_channels,
            ),
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
    """The last context stage and the denoising run on tiles, which share what either of the two sees to each side."""
    last, pixels = config.context_stages[-1], config.pixel_stage
    axes = list(zip(last.kernel, pixels.kernel, last.up, strict=True))
    names = [layer.name for layer in layers]
    return TileRules(
        start=names.index(f"det_stages.{len(config.context_stages) - 1}.0.attn"),
        size=_grid(max(kernel, -(-inner // up)) for kernel, inner, up in axes),
        overlap=_grid(
            max(last.depth * (kernel // 2), -(-pixels.depth * (inner // 2) // up)) for kernel, inner, up in axes
        ),
    )


def _grid(values: Iterable[int]) -> Grid:
    time, height, width = values
    return time, height, width


def keeps_noisy(config: DecoderConfig, step: int, steps: int) -> bool:
    """Return whether the result of a denoising step depends on its noisy input beyond the prediction."""
    return config.prediction is Prediction.VELOCITY or step < steps - 1


def _time(frame: int, rate: int) -> float:
    """The time of a keyframe plane among the frames of a stage, each of `rate` frames; the first is of one."""
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
    """The window of an attention. What is padding here is cut."""
    if not is_cut:
        return WindowSpec(kernel, border=Border.SHIFT)
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
    leave = (
        ("norm_out.weight", (stage.channels,)),
        *linear_weights("conv_out", stage.channels, pixels),
    )
    return [*layers, PredictionSpec("conv_out", stage.channels, pixels, weights=leave)]


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
    """The two layers of a block; with `waiting_channels` it is one of the denoising, which takes the context."""
    channels, head_dim = stage.channels, config.head_dim
    time, height, width = (_window(kernel, is_cut=bool(times)) for kernel in stage.kernel)
    first: Weights = ((f"{name}.norm1.weight", (channels,)),)
    if config.is_fused:
        first += linear_weights(f"{name}.attn.qkv", channels, 3 * channels)
    else:
        first += tuple(
            weight for part in "qkv" for weight in linear_weights(f"{name}.attn.to_{part}", channels, channels)
        )
    first += linear_weights(f"{name}.attn.proj", channels, channels)
    first += ((f"{name}.attn.q_norm.weight", (head_dim,)), (f"{name}.attn.k_norm.weight", (head_dim,)))
    hidden = hidden_channels(channels)
    second: Weights = (
        (f"{name}.norm2.weight", (channels,)),
        (f"{name}.mlp.w_up.weight", (hidden, channels)),
        (f"{name}.mlp.w_gate.weight", (hidden, channels)),
        (f"{name}.mlp.w_down.weight", (channels, hidden)),
    )
    if waiting_channels:
        first += linear_weights(f"{name}.context_proj", config.context_channels, channels)
        first += ((f"{name}.scale_shift_table", (MODULATION_ROWS, channels)),)
        if config.has_gates:
            first += ((f"{name}.gate_msa", (channels,)), (f"{name}.gate_ctx", (channels,)))
            second += ((f"{name}.gate_mlp", (channels,)),)
    attention = AttentionSpec(
        f"{name}.attn",
        channels,
        channels,
        windows=(time, height, width),
        weights=first,
        head_dim=head_dim,
        times=times,
        unbounded=frozenset({Axis.TIME}) if times else frozenset(),
        waiting_channels=waiting_channels,
    )
    return [attention, MLPSpec(f"{name}.mlp", channels, channels, weights=second, hidden=hidden)]
