"""Plans and their options: everything that is decided before the first latent or frame is processed. No MLX."""

import enum
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..backend.machine import Machine
from ..errors import PlanError, quote
from ..frame_format import FrameFormat, FrameOutput, common_format
from ..networks.specs import NetworkSpec
from ..options import PlanOptions
from ..shapes import Axis, ClipRules, Grid, Interval, LatentShape, format_size, is_count
from ..tiling.config import TilingConfig
from ..tiling.layout import TileLayout
from ..units import byte_unit, format_bytes, format_count, format_seconds
from .memory import Memory, is_cache_tight


class Excerpt(NamedTuple):
    """Frames of a video that are decoded alone, and equal the same frames of the whole decode.

    Attributes:
        frames: the frames to decode, out of `num_frames`.
        latents: the latent frames that are decoded for them, out of `num_latents`.
        skipped: the number of frames that these latent frames make before the first of `frames`.
    """

    frames: Interval
    num_frames: int
    latents: Interval
    num_latents: int
    skipped: int

    @property
    def output_range(self) -> Interval:
        """Range of `frames` in the network's output, which begins `skipped` frames earlier."""
        return Interval(self.skipped, self.skipped + self.frames.length)

    def __str__(self) -> str:
        frames, latents = self.frames, self.latents
        return (
            f"{frames.start} to {frames.end - 1} of {self.num_frames}, from the latent frames {latents.start} to "
            f"{latents.end - 1} of {self.num_latents}"
        )


class Mode(enum.Enum):
    """Way in which a clip is run through the network."""

    EXACT = "exact"  # streamed piece by piece; same output as a single pass
    SINGLE = "single"  # one pass per layer over the whole clip
    TILED = "tiled"  # in overlapping tiles that are blended; different output


class Order(enum.Enum):
    """Axis along which a clip is streamed."""

    TIME = "time"
    ROWS = "rows"
    COLUMNS = "columns"

    @property
    def axis(self) -> Axis:
        return {Order.TIME: Axis.TIME, Order.ROWS: Axis.HEIGHT, Order.COLUMNS: Axis.WIDTH}[self]


#: The largest number of denoising steps: each one takes as long as a decode of one step.
MAX_STEPS = 100

_IN_JSON = (
    "chunk", "step", "prefetch", "height", "width", "lookahead", "first_output_work", "tile_batch_size", "calls",
    "redundant_work", "multiply_adds", "peak_bytes",
)  # fmt: skip
_IN_JSON_OF_AUDIO = ("batch", "latents", "num_samples", "sample_rate", "chunk", "lookahead", "peak_bytes")
_LARGE_NUMBERS = ((10**12, "trillion"), (10**9, "billion"), (10**6, "million"))
_NOUNS = {Order.TIME: "frame", Order.ROWS: "row", Order.COLUMNS: "column"}


@dataclass(frozen=True)
class Plan:
    """Plan of the run of one clip through a network. The pipeline executes it and makes no decisions of its own.

    Attributes:
        latent_shape: (B, C, F', H', W'), the input of a decoder or the output of an encoder.
        num_frames, height, width: size of the video, in frames and pixels.
        chunk: positions per piece: latent frames, rows or columns of a decode, frames of an encode.
        step: positions per step of the layer with the largest activations; 0 for a single pass.
        steps: positions per step of each layer.
        prefetch: steps submitted to the device ahead of the one that is waited for.
        lookahead: input positions along time that are required before the first output is final.
        first_output_work: the share of the work that is done when the first output is final: 0 to 1, an estimate.
        tile_batch_size: maximum number of tiles of equal shape that run together.
        multiply_adds: of all matrix products and convolutions.
        calls: runs of the network: 1, or the number of tile batches.
        redundant_work: input positions that are computed more than once, as a fraction of all input positions.
        memory: estimated peak memory of the run.
        audio: the plan of a video's audio.
        clip: the units of the clip, which are frames or samples. Chunks of audio count latents; its grid is (T, 1, 1).
    """

    mode: Mode
    order: Order
    latent_shape: LatentShape
    num_frames: int
    height: int
    width: int
    chunk: int
    step: int
    steps: tuple[int, ...]
    prefetch: int
    lookahead: int
    first_output_work: float
    memory: Memory
    machine: Machine
    tiling: TilingConfig | None = None
    layout: TileLayout | None = None
    tile_batch_size: int = 1
    multiply_adds: int = 0
    calls: int = 1
    redundant_work: float = 0.0
    audio: "Plan | None" = None
    clip: ClipRules = ClipRules()

    @property
    def unit(self) -> str:
        """Unit of lengths along time: "frame", or "sample" for audio."""
        return self.clip.unit

    @property
    def batch(self) -> int:
        return self.latent_shape.batch

    @property
    def latents(self) -> int:
        """Number of latents along time. An excerpt counts only the latents that are decoded."""
        return self.latent_shape.frames

    @property
    def sample_rate(self) -> int:
        """Sample rate of the audio, or of the audio that a spectrogram is made from; 0 for a video."""
        return self.clip.sample_rate

    @property
    def num_samples(self) -> int:
        """Number of samples of audio."""
        return self.num_frames * self.clip.hop

    @property
    def seconds(self) -> float:
        """Length of the audio in seconds; 0 for a video, since a plan does not know its frame rate."""
        return self.num_samples / self.sample_rate if self.sample_rate else 0.0

    @property
    def frame_size(self) -> tuple[int, int]:
        """(width, height) in pixels, the argument order of video writers."""
        return self.width, self.height

    @property
    def video_grid(self) -> Grid:
        """(F, H, W) of the video."""
        return self.num_frames, self.height, self.width

    @property
    def blended(self) -> tuple[str, ...]:
        """Axes along which tiles are blended, so that the result differs from the single pass: "space", "time"."""
        if self.layout is None:
            return ()
        axes = {"space": (self.layout.height, self.layout.width), "time": (self.layout.time,)}
        return tuple(name for name, tiles in axes.items() if any(len(axis.latent) > 1 for axis in tiles))

    @property
    def peak_bytes(self) -> int:
        """Estimated upper bound of the run's peak memory, including weights and MLX's buffer cache."""
        return self.memory.total

    def __repr__(self) -> str:
        mode = f"exact by {self.order.value}" if self.mode is Mode.EXACT else self.mode.value
        size = f"{format_count(self.num_frames, 'frame')} of {format_size(*self.frame_size)}"
        if self.unit == "sample":
            size = format_count(self.latents, "audio latent")
        return f"{type(self).__name__}({mode}, {size}, {format_bytes(self.peak_bytes)})"

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as a JSON-serializable dict, with `peak_bytes` = `active_bytes` + `buffer_cache_bytes`.

        For a video with audio, `active_bytes` include `audio_bytes`.
        """
        if self.unit == "sample":
            return {"mode": self.mode.value, **{name: getattr(self, name) for name in _IN_JSON_OF_AUDIO}}
        return {
            "mode": self.mode.value,
            "order": self.order.value,
            "latent_shape": list(self.latent_shape),
            "frames": self.num_frames,
            **{name: getattr(self, name) for name in _IN_JSON},
            "active_bytes": self.memory.active,
            "buffer_cache_bytes": self.memory.buffer_cache,
            **({"audio_bytes": self.memory.audio} if self.memory.audio else {}),
        }


@dataclass(frozen=True, repr=False)
class DecodePlan(Plan):
    """Plan of a decode. `print(plan)` explains it.

    With an `excerpt`, the shapes count only the latent frames and frames that are decoded. `denoising_steps` belong
    to a network that denoises, and `keyframes` are the frame numbers of the keyframes that it sees. The consumer
    converts the frames to `outputs`, and gets them in `format`; `None` means floats. `held_frames` is the number of
    frames of another window that wait to be blended with this window's; `None` outside a film.
    """

    excerpt: Excerpt | None = None
    denoising_steps: int | None = None
    keyframes: tuple[int, ...] = ()
    outputs: tuple[FrameOutput, ...] = ()
    held_frames: int | None = None

    @property
    def format(self) -> FrameFormat | None:
        return common_format(self.outputs) if self.held_frames is None else None

    @property
    def whole_shape(self) -> LatentShape:
        """Shape of all latents, including the ones that an excerpt leaves out."""
        return self.latent_shape._replace(frames=self.excerpt.num_latents) if self.excerpt else self.latent_shape

    def as_dict(self) -> dict[str, Any]:
        extra = {f"first_{self.unit}": self.excerpt.frames.start} if self.excerpt else {}
        extra |= {"denoising_steps": self.denoising_steps} if self.denoising_steps else {}
        return super().as_dict() | extra | ({"keyframes": list(self.keyframes)} if self.keyframes else {})

    def __str__(self) -> str:
        frames = f"\n{self.unit + 's':<9}{self.excerpt}" if self.excerpt else ""
        steps = f"\ndenoises in {format_count(self.denoising_steps, 'step')}" if self.denoising_steps else ""
        keyframes = f"\nkeyframes at {', '.join(map(str, self.keyframes))}" if self.keyframes else ""
        return _describe(self, f"latent {_NOUNS[self.order]}", self.unit) + frames + steps + keyframes


@dataclass(frozen=True, repr=False)
class EncodePlan(Plan):
    """Plan of an encode. `print(plan)` explains it."""

    def __str__(self) -> str:
        return _describe(self, "frame", "latent frame")


def _describe(plan: Plan, unit: str, output: str) -> str:
    if plan.unit == "sample":
        length = f"{format_count(plan.latents, 'latent')}, {format_seconds(plan.seconds)} at {plan.sample_rate} Hz"
        first = f"\nfirst    sample after {format_count(plan.lookahead, 'latent')}" if output == "sample" else ""
        return f"audio    {length}\nmode     {_mode(plan, 'latent')}\npeak     {_memory(plan.memory)}{first}"
    batch, channels, frames, height, width = plan.latent_shape
    videos = f"{batch} x " if batch > 1 else ""
    lines = [
        f"latents  {videos}{channels} channels, {frames} x {height} x {width} (frames x rows x columns)",
        f"video    {videos}{format_count(plan.num_frames, 'frame')} of {format_size(*plan.frame_size)}",
        f"mode     {_mode(plan, unit)}",
    ]
    if plan.tiling is not None:
        lines.append(f"tiles    {_tiles(plan.tiling, plan.tile_batch_size)}")
    lines += [f"work     {_work(plan)}", f"peak     {_memory(plan.memory)}"]
    if is_cache_tight(plan.memory, plan.machine.backend):
        lines.append("         the budget limits MLX's buffer cache: slower, since buffers are allocated anew")
    return "\n".join([*lines, f"first    {output} {_first_output(plan)}"])


def _mode(plan: Plan, unit: str) -> str:
    if plan.mode is Mode.SINGLE:
        return "single: one pass per layer over the whole clip; memory grows with its length"
    pieces = f"1 {unit}" if plan.chunk == 1 else f"{plan.chunk} {unit}s"
    if plan.mode is Mode.EXACT:
        rounding = "" if plan.order is Order.TIME else "; bits may differ, by rounding"
        return f"exact: the single pass's result, streamed by {plan.order.value}, {pieces} at a time{rounding}"
    if not plan.blended:
        return f"tiled: one tile, so the single pass's result, streamed {pieces} at a time"
    streamed = plan.layout is not None and plan.layout.is_streamed
    exact = f"; exact in time, each tile streamed {pieces} at a time" if streamed else ""
    return f"tiled: blended in {' and '.join(plan.blended)}, so not exact{exact}"


def _tiles(tiling: TilingConfig, batch_size: int) -> str:
    height, width = tiling.height_config or tiling.spatial_config, tiling.width_config or tiling.spatial_config
    sizes = [
        f"{config.tile_size_in_pixels} px of {side}, overlapping by {config.tile_overlap_in_pixels}"
        for side, config in (("height", height), ("width", width))
        if config is not None
    ]
    time = tiling.temporal_config
    if time is not None:
        sizes.append(f"{time.tile_size_in_frames} frames, overlapping by {time.tile_overlap_in_frames}")
    if batch_size > 1:
        sizes.append(f"up to {batch_size} at a time")
    return "; ".join(sizes) or "one"


def _work(plan: Plan) -> str:
    """Describe the work of a plan, and how much of it tiles add."""
    unit, name = next(((unit, name) for unit, name in _LARGE_NUMBERS if plan.multiply_adds >= unit), _LARGE_NUMBERS[-1])
    text = f"{plan.multiply_adds / unit:.3g} {name} multiply-adds"
    if plan.layout is None:
        return text
    return f"{text} in {format_count(plan.calls, 'call')}, {100 * plan.redundant_work:.0f} % for overlaps"


def _memory(memory: Memory) -> str:
    """Return the total and its parts in one unit, rounded so that the parts add up to the total."""
    unit, name, digits = byte_unit(memory.total)
    parts = {name: getattr(memory, name) for name in ("weights", "inputs", "caches", "work", "result", "audio")}
    parts["MLX's buffer cache"] = memory.buffer_cache
    scale = 10**digits
    rounded = {part: round(size / unit * scale) for part, size in parts.items()}
    breakdown = ", ".join(f"{part} {size / scale:.{digits}f}" for part, size in rounded.items() if parts[part])
    return f"{sum(rounded.values()) / scale:.{digits}f} {name} ({breakdown})"


def _first_output(plan: Plan) -> str:
    """Describe when the first output is final."""
    if plan.order is not Order.TIME:
        return f"at the end: frames wait on disk until their last {plan.order.value} are done"
    percent = round(100 * plan.first_output_work)
    return "at the end" if percent == 100 else f"after about {max(1, percent)} % of the work"


def check_plan(plan: object, kind: type[Plan]) -> None:
    """Check that an argument is a plan of this kind; raise a `PlanError` otherwise."""
    if isinstance(plan, kind):
        return
    method = "plan_encode" if kind is EncodePlan else "plan"
    remedy = f"pass what {method} returns"
    if isinstance(plan, (str, int)):
        remedy = f"give a memory budget by its name, memory_budget={quote(plan)}, to {method} or in place of the plan"
    raise PlanError(f"plan is {quote(plan)}; expected a {kind.__name__}, so {remedy}.")


def choose_variant(spec: NetworkSpec, steps: int | None, keyframes: tuple[int, ...]) -> NetworkSpec:
    """Return the network with a number of denoising steps and with planes of these keyframes, if it takes them."""
    if spec.variant is None:
        if steps is not None:
            raise PlanError("this VAE takes no denoising steps; the diffusion decoder of LTX-2.5 does.")
        return spec
    if steps is not None and not (is_count(steps, 1) and steps <= MAX_STEPS):
        raise PlanError(f"the denoising steps must be a whole number from 1 to {MAX_STEPS}, not {steps!r}.")
    return spec.variant(steps, keyframes)


def check_order(spec: NetworkSpec, options: PlanOptions) -> None:
    """Check that the network can run in the requested order, or in tiles; raise `PlanError` otherwise."""
    reason = None if options.order == "auto" else why_not(spec, Order(options.order))
    if spec.clip.unit == "sample" and options.mode == "tiled":
        reason = "audio has no tiles; use mode exact or single."
    if reason:
        raise PlanError(reason)


def why_not(spec: NetworkSpec, order: Order) -> str | None:
    """Return the reason why a network cannot be streamed in this order, or `None` if it can."""
    if order.axis not in spec.stream_axes:
        return f"this network streams by time only, not by {order.value}."
    layer = spec.unbounded_layer(order.axis)
    if layer is None:
        return None
    if spec.keyframes:
        return "frames see keyframes at any distance, so the decode cannot be streamed by time; use columns or rows."
    sees, other = ("the whole clip", "mode single") if order is Order.TIME else ("whole frames", "order time")
    return f"layer {layer.name} sees {sees}, so the network cannot be streamed by {order.value}; use {other}."
