"""How to decode: what is decided before the first latent is touched. Pure arithmetic, no MLX."""

import enum
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import LatentsError, PlanError
from ..models.specs import PaddingMode
from ..models.video_vae.config import BlockKind, NetworkConfig, NormKind, VAEConfig
from ..tiling.batches import check_batch_size, tile_batches
from ..tiling.config import SpatialTilingConfig, TilingConfig
from ..tiling.layout import TileLayout
from .memory import Backend, Footprint, Run, TileFrames, cut_in_time, footprint, side_by_side
from .receptive_field import lookahead

_GB = 1e9
_UNITS = {"": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


class Mode(enum.Enum):
    """Which way a clip is decoded."""

    EXACT = "exact"  # streamed chunk by chunk, the single pass's result
    SINGLE = "single"  # the whole clip as one chunk
    TILED = "tiled"  # in tiles that are blended, which is not the same result


class Order(enum.Enum):
    """Along which axis a clip is streamed."""

    TIME = "time"
    ROWS = "rows"
    COLUMNS = "columns"


_LATENT_AXES = {Order.TIME: 2, Order.ROWS: 3, Order.COLUMNS: 4}
_LATENT_NOUNS = {Order.TIME: "frame", Order.ROWS: "row", Order.COLUMNS: "column"}

# Latent positions (frames, or rows, or columns) handed to the network at a time. One keeps the least between layers.
_DEFAULT_CHUNK = 1

# Positions that a layer takes at once where the activations are widest, and more where they are not, with the steps
# that are under way beyond the one that is waited for; best first. A convolution looks at two positions besides those
# it is given: norming these again for every single one costs time. A GPU stands idle while it is waited for.
_PACES = {Backend.CPU: ((2, 0), (1, 0)), Backend.GPU: ((2, 1), (1, 1), (1, 0))}

# The sides of the tiles that are tried where nothing exact fits, largest first, and what they share.
_LAST_RESORT_TILES = (1024, 768, 512, 384, 256, 192)
_LAST_RESORT_OVERLAP = 64


@dataclass(frozen=True)
class Machine:
    """What a plan has to know of where it will run.

    Attributes:
        backend: whose convolutions.
        itemsize: bytes of a number in the network's dtype.
    """

    backend: Backend = Backend.CPU
    itemsize: int = 4


@dataclass(frozen=True)
class DecodePlan:
    """How one clip will be decoded. `print(plan)` explains it.

    Attributes:
        mode: SINGLE, EXACT or TILED.
        order: the axis of the stream.
        latent_shape: (B, C, F', H', W').
        chunk: latent positions handed to the network at a time.
        step_positions: what a layer takes at once, in positions where the activations are widest.
        step_elements: the same in elements of its input.
        steps_ahead: steps that are under way beyond the one that is waited for.
        tiling: the tiles, in mode TILED.
        tile_batch_size: how many tiles of equal shape are decoded together, at most.
        num_frames: frames that come out.
        height: their rows.
        width: their columns.
        lookahead: latent frames that must be seen before the first frame is final.
        calls: decodes that make up the whole: 1, or the number of batches of tiles.
        redundant_work: latent positions decoded more than once, as a part of all there are.
        memory: what it holds at its peak, estimated.
    """

    mode: Mode
    order: Order
    latent_shape: tuple[int, int, int, int, int]
    chunk: int
    step_positions: int
    step_elements: int
    steps_ahead: int
    tiling: TilingConfig | None
    tile_batch_size: int
    num_frames: int
    height: int
    width: int
    lookahead: int
    calls: int
    redundant_work: float
    memory: Footprint

    @property
    def frame_size(self) -> tuple[int, int]:
        """(width, height) in pixels, as video writers want it."""
        return self.width, self.height

    @property
    def peak_bytes(self) -> int:
        """What the decode takes at its peak, weights included: an estimate from above."""
        return self.memory.total

    def as_dict(self) -> dict[str, Any]:
        """The plan in JSON's terms."""
        return {
            "mode": self.mode.value,
            "order": self.order.value,
            "latent_shape": list(self.latent_shape),
            "chunk": self.chunk,
            "step": self.step_positions,
            "steps_ahead": self.steps_ahead,
            "frames": self.num_frames,
            "height": self.height,
            "width": self.width,
            "lookahead": self.lookahead,
            "tile_batch_size": self.tile_batch_size,
            "calls": self.calls,
            "redundant_work": self.redundant_work,
            "peak_bytes": self.peak_bytes,
        }

    def __str__(self) -> str:
        batch, channels, time, height, width = self.latent_shape
        videos = f"{batch} x " if batch > 1 else ""
        memory = self.memory
        parts = f"weights {memory.weights / _GB:.2f}, caches {memory.caches / _GB:.2f}, work {memory.work / _GB:.2f}"
        lines = [
            f"latents  {videos}{channels} channels, {time} x {height} x {width} (frames x rows x columns)",
            f"video    {videos}{self.num_frames} frames of {self.width}x{self.height}",
            f"mode     {self._describe_mode()}",
            f"calls    {self.calls}, redundant work {100 * self.redundant_work:.0f} %",
            f"peak     {self.peak_bytes / _GB:.2f} GB ({parts})",
            f"first    {self._describe_first(time)}",
        ]
        if self.tiling is not None:
            lines.insert(3, f"tiles    {self._describe_tiles()}")
        return "\n".join(lines)

    def _describe_mode(self) -> str:
        if self.mode is Mode.SINGLE:
            return "single: the whole clip at once; memory grows with its length"
        noun = _LATENT_NOUNS[self.order]
        unit = f"1 latent {noun}" if self.chunk == 1 else f"{self.chunk} latent {noun}s"
        if self.mode is Mode.EXACT:
            return f"exact: the single pass's result, streamed by {self.order.value}, {unit} at a time"
        if self.tiling.temporal_config is None:
            return f"tiled: blended in space, so not exact; exact in time, each tile streamed {unit} at a time"
        return "tiled: blended in space and time, so not exact"

    def _describe_tiles(self) -> str:
        tiling = self.tiling
        height, width = tiling.height_config or tiling.spatial_config, tiling.width_config or tiling.spatial_config
        sizes = [
            f"{config.tile_size_in_pixels} px of {what}, {config.tile_overlap_in_pixels} shared"
            for what, config in (("height", height), ("width", width))
            if config is not None
        ]
        if tiling.temporal_config is not None:
            time = tiling.temporal_config
            sizes.append(f"{time.tile_size_in_frames} frames, {time.tile_overlap_in_frames} shared")
        if self.tile_batch_size > 1:
            sizes.append(f"up to {self.tile_batch_size} at a time")
        return "; ".join(sizes) or "one"

    def _describe_first(self, time: int) -> str:
        if self.order is Order.TIME:
            return f"frame after {min(self.lookahead, time)} of {time} latent frames"
        return f"frame at the end: all frames wait on disk for their last {self.order.value}"


def make_plan(
    config: VAEConfig,
    latent_shape: Sequence[int],
    *,
    mode: str = "auto",
    order: str = "auto",
    tiling: TilingConfig | None = None,
    tile_batch_size: int = 1,
    chunk: int | None = None,
    memory_budget: int | None = None,
    must_fit: bool = True,
    machine: Machine | None = None,
) -> DecodePlan:
    """Decide how to decode latents of a shape: exactly rather than blended, then fast rather than slow.

    Args:
        config: of the VAE.
        latent_shape: (B, C, F', H', W').
        mode: "auto", "exact", "single" or "tiled". "auto" is exact wherever that fits.
        order: "auto", "time", "rows" or "columns".
        tiling: the tiles, for mode tiled.
        tile_batch_size: how many tiles of equal shape are decoded together, at most.
        chunk: latent frames (rows, columns) at a time for the exact mode; None to choose.
        memory_budget: bytes that the peak must stay below; None for no bound.
        must_fit: whether a budget that nothing meets is an error, or else the least is taken.
        machine: where it will run; float32 on the CPU by default.

    Raises:
        LatentsError: for a shape that the VAE cannot decode.
        PlanError: for an option that is not known or cannot be had, and for a budget that nothing meets.
        TilingError: for tiles or a batch of them that cannot be.
    """
    check_batch_size(tile_batch_size)
    shape = check_latent_shape(config, latent_shape)
    wanted_mode, wanted_order = _choice(mode, Mode, "mode"), _choice(order, Order, "order")
    _check_options(config.decoder, wanted_mode, wanted_order, tiling, chunk)
    planner = _Planner(config, shape, chunk, tile_batch_size, machine or Machine())
    best = None
    for candidate in planner.candidates(wanted_mode, wanted_order, tiling):
        if memory_budget is None or candidate.peak_bytes <= memory_budget:
            return candidate
        if best is None or candidate.peak_bytes < best.peak_bytes:
            best = candidate
    if must_fit:
        raise PlanError(
            f"a memory budget of {memory_budget / _GB:.2f} GB is too small for {best.num_frames} frames of "
            f"{best.width}x{best.height}; the least that works is {math.ceil(best.peak_bytes / 1e7) / 100:.2f} GB "
            f"({best.mode.value} by {best.order.value})."
        )
    return best


def parse_budget(text: str | int | float, available: int) -> int:
    """Bytes of a memory budget: "8GB" (1e9 each), "7.5 GiB", "50%" of what is available, or a number of bytes.

    Raises:
        PlanError: for what is none of these.
    """
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(%|[KMGT]I?B|)\s*", str(text).upper())
    if not match or float(match[1]) <= 0:
        raise PlanError(f"a memory budget is like 8GB, 500MB or 50%, and not {text!r}.")
    unit = available / 100 if match[2] == "%" else _UNITS[match[2]]
    return int(float(match[1]) * unit)


class _Planner:
    """The ways in which one clip can be decoded."""

    def __init__(
        self, config: VAEConfig, shape: tuple[int, ...], chunk: int | None, tile_batch_size: int, machine: Machine
    ) -> None:
        self._config = config
        self._shape = shape
        self._chunk = chunk
        self._tile_batch_size = tile_batch_size
        self._machine = machine

    def candidates(self, mode: Mode | None, order: Order | None, tiling: TilingConfig | None) -> Iterator[DecodePlan]:
        """What was asked for, best first."""
        local = self._config.decoder.norm is not NormKind.GROUP
        if mode is Mode.SINGLE or not local:
            yield self._single()
            return
        if mode is Mode.TILED:
            for pace in self._paces:
                yield self._tiled(tiling or TilingConfig.default(), *pace)
            return
        for wanted in (order,) if order else Order:
            if _refusal(self._config.decoder, wanted) is None:
                for pace in self._paces:
                    yield self._exact(wanted, *pace)
        if mode is None and order is None and self._chunk is None:
            yield from self._last_resort()

    def _exact(self, order: Order, step: int, steps_ahead: int) -> DecodePlan:
        axis = _LATENT_AXES[order]
        chunk = min(self._chunk or _DEFAULT_CHUNK, self._shape[axis])
        step_elements = step * widest_position(self._config.decoder, self._shape, order)
        memory = footprint(self._config.decoder, self._shape, self._run(axis, chunk, step_elements, steps_ahead))
        return self._plan(Mode.EXACT, order, chunk, step, step_elements, steps_ahead, memory)

    def _single(self) -> DecodePlan:
        frames = self._shape[2]
        memory = footprint(self._config.decoder, self._shape, self._run(2, frames, 0, 0, whole=True))
        return self._plan(Mode.SINGLE, Order.TIME, frames, 0, 0, 0, memory)

    def _tiled(self, tiling: TilingConfig, step: int, steps_ahead: int) -> DecodePlan:
        """Each tile is streamed in time; a tile's step is as many frames as any other's."""
        layout = make_layout(self._config, self._shape, tiling)
        batch, channels, *_ = self._shape
        calls = [
            (len(together), tuple(interval.length for interval in group[together[0]].latent))
            for group in layout.groups()
            for together in tile_batches(group, self._tile_batch_size)
        ]
        chunk = min(self._chunk or _DEFAULT_CHUNK, self._shape[2])

        def memory_of(count: int, size: tuple[int, ...]) -> Footprint:
            shape = (count * batch, channels, *size)
            elements = step * widest_position(self._config.decoder, shape, Order.TIME)
            return footprint(self._config.decoder, shape, self._run(2, chunk, elements, steps_ahead))

        memories = {call: memory_of(*call) for call in set(calls)}
        scale = self._config.scale
        latents = math.prod(self._shape) * (self._machine.itemsize + 4)
        frame = 3 * batch * scale.height * self._shape[3] * scale.width * self._shape[4]
        if len(layout.time.latent) == 1:
            # As many whole frames are blended at a time as have no more elements than a step.
            widest = step * widest_position(self._config.decoder, self._shape, Order.TIME)
            memory = side_by_side([memories[call] for call in calls], latents, frame * max(1, widest // frame))
        else:
            largest = max(memories.values(), key=lambda memory: memory.total)
            together = max(count for count, _ in calls)
            memory = cut_in_time(largest, latents, self._tile_frames(layout, frame, together), self._machine.itemsize)
        work = sum(count * math.prod(size) for count, size in calls) / math.prod(self._shape[2:])
        plan = self._plan(Mode.TILED, Order.TIME, chunk, step, 0, steps_ahead, memory)
        if len(layout.time.latent) > 1:
            plan = replace(plan, lookahead=layout.time.latent[0].length)
        return replace(
            plan,
            tiling=tiling,
            tile_batch_size=self._tile_batch_size,
            calls=len(calls),
            redundant_work=work - 1,
        )

    def _tile_frames(self, layout: TileLayout, frame: int, together: int) -> TileFrames:
        """What a decode with tiles cut in time, `together` at a time, holds of frames that are `frame` numbers each."""
        spans = layout.time.pixels
        groups = list(layout.groups())
        pixels = frame // (layout.height.length * layout.width.length)
        return TileFrames(
            tile=pixels * max(math.prod(tile.output_size) for tile in groups[0] + groups[-1]),
            together=together,
            group=frame * max(span.length for span in spans),
            shared=frame * max(before.end - after.start for before, after in zip(spans, spans[1:], strict=False)),
            final=frame * max(layout.time.decoded().final()),
            single=len(groups[0]) == 1,
        )

    def _last_resort(self) -> Iterator[DecodePlan]:
        """Spatial tiles, each its own stream in time."""
        scale = self._config.scale.height
        for side in _LAST_RESORT_TILES:
            smaller = side < scale * max(self._shape[3:])
            if smaller and side % scale == 0 and _LAST_RESORT_OVERLAP % scale == 0:
                tiling = TilingConfig(SpatialTilingConfig(side, _LAST_RESORT_OVERLAP))
                for pace in self._paces:
                    yield self._tiled(tiling, *pace)

    @property
    def _paces(self) -> tuple[tuple[int, int], ...]:
        return _PACES[self._machine.backend]

    def _run(self, axis: int, chunk: int, step_elements: int, steps_ahead: int, *, whole: bool = False) -> Run:
        machine = self._machine
        return Run(axis - 2, chunk, step_elements, whole, steps_ahead, machine.itemsize, machine.backend)

    def _plan(
        self,
        mode: Mode,
        order: Order,
        chunk: int,
        step: int,
        step_elements: int,
        steps_ahead: int,
        memory: Footprint,
    ) -> DecodePlan:
        _, _, frames, height, width = self._shape
        scale = self._config.scale
        return DecodePlan(
            mode=mode,
            order=order,
            latent_shape=self._shape,
            chunk=chunk,
            step_positions=step,
            step_elements=step_elements,
            steps_ahead=steps_ahead,
            tiling=None,
            tile_batch_size=1,
            num_frames=self._config.num_frames(frames),
            height=scale.height * height,
            width=scale.width * width,
            lookahead=lookahead(self._config.decoder) if mode is not Mode.SINGLE and order is Order.TIME else frames,
            calls=1,
            redundant_work=0.0,
            memory=memory,
        )


def make_layout(config: VAEConfig, latent_shape: Sequence[int], tiling: TilingConfig) -> TileLayout:
    """Where the tiles of a clip lie."""
    scale = config.scale
    return TileLayout.make(tiling, latent_shape[2:], spatial_scale=scale.height, temporal_scale=scale.time)


def _choice(name: str, kind: type[enum.Enum], what: str) -> Any:
    """The member that a user's word means, or None for "auto"."""
    if name == "auto":
        return None
    try:
        return kind(name)
    except ValueError:
        known = ", ".join(member.value for member in kind)
        raise PlanError(f"{what} {name!r} is not known; there are auto, {known}.") from None


def _check_options(
    decoder: NetworkConfig, mode: Mode | None, order: Order | None, tiling: TilingConfig | None, chunk: int | None
) -> None:
    """Refuse wishes that contradict each other or the network."""
    if chunk is not None and (isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1):
        raise PlanError(f"a chunk is a whole number of latent positions, at least 1, and not {chunk!r}.")
    if tiling is not None and mode is not Mode.TILED:
        raise PlanError('tiles go with mode "tiled"; the other modes blend nothing.')
    if mode is Mode.SINGLE and (chunk is not None or order not in (None, Order.TIME)):
        raise PlanError("a chunk length and an order go with mode exact; a single pass has one chunk.")
    if mode is Mode.TILED and order not in (None, Order.TIME):
        raise PlanError("tiles are streamed in time; an order goes with mode exact.")
    if decoder.norm is NormKind.GROUP and (mode not in (None, Mode.SINGLE) or order is not None or chunk is not None):
        raise PlanError("this decoder's group norms look at the whole clip, so it cannot be cut; use mode single.")
    refusal = _refusal(decoder, order) if order else None
    if refusal:
        raise PlanError(refusal)


def _refusal(decoder: NetworkConfig, order: Order) -> str | None:
    """Why this decoder cannot be streamed in an order, or None where it can."""
    if order is Order.TIME:
        return None
    if any(block.kind is BlockKind.ATTENTION for block in decoder.blocks):
        return f"this decoder attends to whole frames, so it cannot be streamed by {order.value}; use order time."
    if decoder.padding is PaddingMode.CIRCULAR:
        return f"this decoder's padding goes round the frame, so {order.value} cannot be cut; use order time."
    return None


def check_latent_shape(config: VAEConfig, shape: Sequence[int]) -> tuple[int, int, int, int, int]:
    """The shape as a tuple of five, if the VAE can decode it.

    Raises:
        LatentsError: saying what is wrong with it.
    """
    shown = "(" + ", ".join(str(size) for size in shape) + ")"
    if len(shape) != 5:
        raise LatentsError(f"latents have the shape {shown}; expected are five axes (B, C, F', H', W').")
    if 0 in shape:
        raise LatentsError(f"latents have the shape {shown}, which is empty.")
    batch, channels, time, height, width = shape
    if channels != config.latent_channels:
        raise LatentsError(
            f"latents have the shape {shown} with {channels} channels, and this VAE decodes {config.latent_channels} "
            "(axes are (B, C, F', H', W'))."
        )
    if config.decoder.padding is PaddingMode.REFLECT and min(height, width) < 2:
        raise LatentsError(
            f"latents have the shape {shown}; this VAE pads by reflection, which takes at least 2 cells a side."
        )
    return batch, channels, time, height, width


def widest_position(decoder: NetworkConfig, latent_shape: Sequence[int], order: Order) -> int:
    """Elements of one position along the stream where the decoder's activations are widest."""
    batch, _, *extents = latent_shape
    across = [index for index in range(3) if index != _LATENT_AXES[order] - 2]
    widest = batch * math.prod(extents[index] for index in across) * decoder.first_width
    for block in decoder.blocks:
        extents = [extent * stride for extent, stride in zip(extents, block.stride, strict=True)]
        widest = max(widest, batch * math.prod(extents[index] for index in across) * block.out_channels)
    return widest
