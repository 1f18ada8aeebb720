"""Plans decodes and encodes of sound: exact, in pieces along time, or in a single pass. Pure arithmetic, no MLX."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ..backend.machine import FLOAT32_BYTES, Machine
from ..errors import PlanError
from ..models.specs import NetworkSpec
from ..shapes import Grid, SoundInput
from ..streaming.axis import Axis
from ..units import byte_unit, format_bytes, format_count, format_seconds, parse_bytes
from .memory import Memory, StreamRun, cut, largest_layer, layer_pieces, stream_memory, with_buffer_cache
from .plan import Mode
from .planner import MAX_LAYER_ELEMENTS
from .receptive_field import needed

#: Latents per piece, the fastest first: a second of sound, in which no layer of a published network has large arrays.
_CHUNKS = (25, 12, 6, 3, 1)
_SAMPLE_BYTES = 2 * FLOAT32_BYTES  # stereo
_PLANNED_PIECES = 8  # after which the memory of a stream does not grow


@dataclass(frozen=True)
class AudioPlan:
    """How audio latents are decoded. `print(plan)` explains it.

    Attributes:
        latents: their number along time.
        chunk: latents per piece.
        lookahead: latents that are required before the first sample is final.
        memory: estimated peak memory.
    """

    mode: Mode
    batch: int
    latents: int
    num_samples: int
    sample_rate: int
    chunk: int
    lookahead: int
    memory: Memory
    machine: Machine

    @property
    def seconds(self) -> float:
        return self.num_samples / self.sample_rate

    @property
    def peak_bytes(self) -> int:
        """Estimated upper bound of the peak memory, including weights and MLX's buffer cache."""
        return self.memory.total

    def as_dict(self) -> dict[str, Any]:
        """The plan as a JSON-serializable dict."""
        names = ("batch", "latents", "num_samples", "sample_rate", "chunk", "lookahead", "peak_bytes")
        return {"mode": self.mode.value, **{name: getattr(self, name) for name in names}}

    def __str__(self) -> str:
        return "\n".join([*self._lines(), f"first    sample after {format_count(self.lookahead, 'latent')}"])

    def _lines(self) -> list[str]:
        length = f"{format_count(self.latents, 'latent')}, {format_seconds(self.seconds)}"
        exact = f"exact: the single pass's result, streamed {format_count(self.chunk, 'latent')} at a time"
        single = "single: one pass per layer over the whole clip; memory grows with its length"
        unit, name, digits = byte_unit(self.peak_bytes)
        return [
            f"sound    {length} at {self.sample_rate} Hz",
            f"mode     {exact if self.mode is Mode.EXACT else single}",
            f"peak     {self.peak_bytes / unit:.{digits}f} {name}",
        ]


@dataclass(frozen=True)
class AudioEncodePlan(AudioPlan):
    """How sound is encoded, with the attributes of `AudioPlan`. `sample_rate` is that of the spectrogram."""

    def __str__(self) -> str:
        return "\n".join(self._lines())


@dataclass(frozen=True)
class AudioClip:
    """What is decoded or encoded, and the layers between packed latents and samples or a spectrogram.

    `weight_bytes` is the size of their weights.
    """

    spec: NetworkSpec
    weight_bytes: int
    batch: int
    latents: int
    num_samples: int
    sample_rate: int


def plan_audio(
    clip: AudioClip,
    machine: Machine | None = None,
    *,
    memory_budget: str | int | None = None,
    mode: str = "auto",
    chunk: int | None = None,
    joined: bool = False,
) -> AudioPlan:
    """Plan a decode. `mode` is "auto", "exact" or "single". `joined` is whether all samples become one array.

    Raises:
        PlanError: if an option is invalid, if the networks cannot be streamed, or if no plan fits the budget.
    """
    machine = replace(machine or Machine(), itemsize=4)  # vocoders compute in float32
    _check_options(clip, mode, chunk)
    layer = clip.spec.unbounded_layer(Axis.TIME)
    budget = machine.available // 2 if machine.available else None
    if memory_budget is not None:
        budget = parse_bytes(memory_budget, machine.available or 0)
    is_single = mode == "single" or layer is not None
    result = _SAMPLE_BYTES * clip.batch * clip.num_samples if joined else 0
    plans = [
        replace(plan, memory=replace(plan.memory, result=result))
        for plan in (_single(clip, machine) if is_single else _exact(clip, machine, chunk))
    ]
    fitting = [plan for plan in plans if budget is None or plan.memory.active <= budget]
    if not fitting and memory_budget is not None:
        least = format_bytes(min(plan.memory.active for plan in plans), round_up=True)
        raise PlanError(
            f"a memory budget of {format_bytes(budget or 0)} is too small for "
            f"{format_count(clip.latents, 'audio latent')}; the least that works is {least}."
        )
    plan = fitting[0] if fitting else plans[-1]
    return replace(plan, memory=with_buffer_cache(plan.memory, machine.backend, budget if fitting else None))


def plan_audio_encode(clip: AudioClip, given: SoundInput, machine: Machine | None = None) -> AudioEncodePlan:
    """Plan an encode, which has no options: in pieces, or in a single pass for networks that see the whole clip."""
    machine = machine or Machine()
    length, bins, _ = grid = given.grid
    if clip.spec.unbounded_layer(Axis.TIME) is None:
        mode, chunk = Mode.EXACT, given.piece * clip.latents // length
        grid = (min(length, _PLANNED_PIECES * given.piece), bins, 1)
        run = _run_in_pieces(clip.spec, grid, given.piece, machine)
    else:
        mode, chunk, run = Mode.SINGLE, clip.latents, StreamRun(Axis.TIME, (length,), None, 0, machine)
    memory = stream_memory(clip.spec, grid, clip.batch, run)
    latents = 2 * clip.batch * clip.latents * clip.spec.out_channels * machine.itemsize
    work = max(memory.work, clip.batch * given.piece_bytes)  # a piece is made before the network takes it
    memory = replace(memory, weights=clip.weight_bytes, inputs=latents, work=work)
    memory = with_buffer_cache(memory, machine.backend, None)
    rest = (clip.batch, clip.latents, clip.num_samples, clip.sample_rate, min(chunk, clip.latents))
    return AudioEncodePlan(mode, *rest, clip.latents, memory, machine)


def _check_options(clip: AudioClip, mode: str, chunk: int | None) -> None:
    if mode not in ("auto", "exact", "single"):
        raise PlanError(f"mode {mode!r} is not known for sound; expected auto, exact, single.")
    layer = clip.spec.unbounded_layer(Axis.TIME)
    if mode == "exact" and layer is not None:
        raise PlanError(
            f"layer {layer.name} sees the whole clip, so this audio VAE cannot be streamed; use mode single."
        )
    if chunk is not None and (isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1):
        raise PlanError(f"a chunk must be a whole number of latents, at least 1, not {chunk!r}.")
    if chunk is not None and (mode == "single" or layer is not None):
        raise PlanError("a chunk goes with mode exact; a single pass has one chunk.")


def _single(clip: AudioClip, machine: Machine) -> Iterator[AudioPlan]:
    largest = largest_layer(clip.spec, (clip.latents, 1, 1), clip.batch)
    if largest > MAX_LAYER_ELEMENTS:
        raise PlanError(
            f"a single pass of {format_count(clip.latents, 'audio latent')} would give one layer {largest / 1e6:.0f} "
            f"million elements, but only {MAX_LAYER_ELEMENTS / 1e6:.0f} million are safe; use mode exact, or shorter "
            "sound."
        )
    run = StreamRun(Axis.TIME, (clip.latents,), None, 0, machine)
    yield _plan(clip, Mode.SINGLE, clip.latents, clip.latents, run, clip.latents)


def _exact(clip: AudioClip, machine: Machine, chunk: int | None) -> Iterator[AudioPlan]:
    lookahead = min(needed(clip.spec, Axis.TIME), clip.latents)
    for size in _CHUNKS if chunk is None else (chunk,):
        longest = size + lookahead  # the last piece flushes all layers
        length = min(clip.latents, _PLANNED_PIECES * longest)
        run = _run_in_pieces(clip.spec, (length, 1, 1), longest, machine)
        yield _plan(clip, Mode.EXACT, size, lookahead, run, length)


def _run_in_pieces(spec: NetworkSpec, grid: Grid, size: int, machine: Machine) -> StreamRun:
    """A stream in which each layer takes in one step whatever comes."""
    run = StreamRun(Axis.TIME, tuple(cut(grid[0], size)), (2**40,) * len(spec.layers), 0, machine)
    return replace(run, steps=tuple(max(each) for each in layer_pieces(spec, grid, run))[:-1])


def _plan(clip: AudioClip, mode: Mode, chunk: int, lookahead: int, run: StreamRun, length: int) -> AudioPlan:
    memory = stream_memory(clip.spec, (length, 1, 1), clip.batch, run)
    inputs = 2 * clip.batch * clip.latents * clip.spec.in_channels * run.machine.itemsize
    memory = replace(memory, weights=clip.weight_bytes, inputs=inputs)
    rest = (clip.batch, clip.latents, clip.num_samples, clip.sample_rate, min(chunk, clip.latents))
    return AudioPlan(mode, *rest, lookahead, memory, run.machine)
