"""Exports of a decode or an encode by time as MLX functions, which other programs run (docs/export.md).

The stream itself runs once, without computing anything: each of its steps is traced and becomes a function, whose
arguments are a piece, the step's caches and its weights. Which function runs when, on which arrays, is a list of calls.
Steps of different pieces and layers that are the same function share a file.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from operator import add, sub
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import numpy as np

from ..backend.device import backend
from ..backend.function_file import describe_function, write_function
from ..backend.machine import Reader
from ..backend.mlx_utils import disk_errors, dtype_name, take, tracing
from ..checkpoint.locate import EXPORT_FILES, read_export
from ..checkpoint.weight_files import open_archive
from ..errors import CheckpointError, PlanError, WriterError, printable
from ..files import expand_path, part_folder, writing_to
from ..networks.base import Decoder, Encoder, Network
from ..networks.noise import LatentNoise, draw, frame_noise
from ..networks.specs import LayerSpec
from ..options import DecodeOptions
from ..planning.plan import DecodePlan, Plan
from ..shapes import Axis, format_size
from ..streaming.context import Stage, StreamContext, pointwise
from ..streaming.driver import Schedule, run_stream
from ..streaming.window import CacheState, TraceableCache
from ..units import format_bytes
from .encode import levels_to_pixels

MAX_WARM_UP = 256  # latent frames after which steps must repeat; LTX-2.3 takes 15
FORMAT = 1  # of decode.json
_WHOLE = 2**31  # positions per step of a stage that takes whole pieces
_NOISE = "noise."
_INDEX = "index"  # of a latent frame, on which its noise depends
*_DESCRIPTIONS, _WEIGHTS = EXPORT_FILES

Arrays = dict[str, mx.array]
Call = dict[str, Any]  # the number of a function, and the names of arrays


class Tensors:
    """Arrays that functions take as arguments, by name: weights, statistics, maps of noise, and an index."""

    def __init__(self, network: Network, maps: Mapping[str, mx.array], index: mx.array | None) -> None:
        self._network, self.maps, self.index = network, dict(maps), index
        statistics = {} if network.statistics is None else dict(network.statistics._asdict())
        layers = [self._of_layer(layer) for layer in network.spec.layers]
        # One stage before the layers denormalizes latents, or one after them normalizes them.
        is_encoder = isinstance(network, Encoder)
        self.of_stages: list[Arrays] = [{} if is_encoder else statistics, *layers, statistics if is_encoder else {}]
        self.stored: Arrays = {name: array for arrays in self.of_stages for name, array in arrays.items()}
        if index is not None:
            self.of_stages[0] = {_INDEX: index, **statistics}

    def _of_layer(self, layer: LayerSpec) -> Arrays:
        arrays = {name: self._network.at(name) for name, _ in layer.weights}
        return arrays | ({_NOISE + layer.name: self.maps[layer.name]} if layer.name in self.maps else {})

    def load(self, arrays: Arrays) -> None:
        """Let the network compute with other arrays."""
        for name, array in arrays.items():
            parent, _, leaf = name.rpartition(".")
            if name == _INDEX:
                self.index = array
            elif self._network.statistics is not None and name in self._network.statistics._fields:
                self._network.statistics = self._network.statistics._replace(**{name: array})
            elif name.startswith(_NOISE):
                self.maps[name.removeprefix(_NOISE)] = array
            else:
                (self._network.at(parent) if parent else self._network)[leaf] = array


class Functions:
    """Functions in a folder, each once, in a format of their files."""

    def __init__(self, folder: Path, file_format: int) -> None:
        self._folder, self._format = folder, file_format
        self._numbers: dict[str, int] = {}
        self.num_bytes = 0

    def add(self, text: str, function: Callable[..., list[mx.array]], arguments: Sequence[mx.array]) -> int:
        """Write a function, unless there is one with an equal description, and return its number."""
        if text not in self._numbers:
            path = self._folder / f"{len(self._numbers)}.mlxfn"
            self.num_bytes += write_function(path, function, arguments, backend(), self._format)
            self._numbers[text] = len(self._numbers)
        return self._numbers[text]

    def __len__(self) -> int:
        return len(self._numbers)


@dataclass(frozen=True)
class _Step:
    """Traced step: its call, if it has outputs, its outputs as empty arrays, and what becomes of the caches.

    `unused` are names of arrays that no later call takes. In `caches`, counts are differences.
    """

    call: Call | None
    outputs: Arrays
    unused: tuple[str, ...]
    caches: list[CacheState]


class _Recorder(Schedule):
    """Record of a stream's steps as calls. Each different step is traced once. Pieces and caches are empty arrays."""

    def __init__(self, stages: Sequence[Stage], tensors: Tensors, functions: Functions, names: tuple[str, str]) -> None:
        super().__init__(Axis.TIME)
        self.program: dict[str, int] = {}  # all different calls as JSON, and their numbers
        self.calls: list[int] = []
        self.unused: tuple[str, ...] = ()  # names of arrays that no later call takes
        self._tensors, self._functions = tensors, functions
        caches = [list(dict.fromkeys(cast(Sequence[TraceableCache], stage.caches))) for stage in stages]
        self.caches = {cache: index for index, cache in enumerate(dict.fromkeys(chain.from_iterable(caches)))}
        self._stages = {stage: (index, caches[index]) for index, stage in enumerate(stages)}
        self._input_name, output_name = names
        self._results = ["prepared", *(f"layer{index}" for index in range(len(stages) - 2)), output_name]
        self._names: dict[int, str] = {}  # of pieces, by their ids
        self._steps: dict[Any, _Step] = {}

    def compute(self, stage: Stage, inputs: list[mx.array], last: bool) -> list[mx.array]:
        index, caches = self._stages[stage]
        pieces = {self._names.get(id(piece), self._input_name): piece for piece in inputs}
        inputs.clear()
        states = [cache.state for cache in caches]
        key = index, last, *pieces, _shapes(pieces.values()), _dependence(states)
        if key not in self._steps:
            tensors = self._tensors.of_stages[index]
            self._steps[key] = self._trace(
                lambda piece: stage.step(piece, last), pieces, self._results[index], caches, tensors
            )
        traced = self._record(self._steps[key])
        for cache, state, change in zip(caches, states, traced.caches, strict=True):
            cache.state = change._replace(counts=tuple(map(add, state.counts, change.counts)))
        return [array for name, array in traced.outputs.items() if name == self._results[index]]

    def cut(self, box: list[mx.array], start: int, stop: int) -> mx.array:
        (piece,) = box
        name, is_last = self._names[id(piece)], stop == piece.shape[Axis.TIME]
        part, key = f"{name}.part", (name, start, stop, piece.shape)
        if key not in self._steps:
            step = self._trace(lambda x: take(x, Axis.TIME, start, stop), {name: piece}, part)
            self._steps[key] = step if is_last else replace(step, unused=())
        if is_last:
            box.clear()
        return self._record(self._steps[key]).outputs[part]

    def _trace(
        self,
        step: Callable[[Any], mx.array | None],
        pieces: Arrays,
        result_name: str,
        caches: Sequence[TraceableCache] = (),
        tensors: Arrays | None = None,
    ) -> _Step:
        """Trace a step of a piece, if there is one, as a function that takes caches and tensors, too."""
        states, before, tensors = [cache.state for cache in caches], self._arrays(caches), tensors or {}
        arguments = pieces | before | tensors
        outputs: Arrays = {}
        unused = set(pieces)

        def function(*values: mx.array) -> list[mx.array]:
            remaining = iter(values)
            piece = next(remaining) if pieces else None
            for cache, state in zip(caches, states, strict=True):
                cache.state = state._replace(arrays=tuple(next(remaining) for _ in state.arrays))
            loaded = self._arrays(caches)
            self._tensors.load(dict(zip(tensors, remaining, strict=True)))
            result = step(piece)
            after = self._arrays(caches)
            changed = {name: array for name, array in after.items() if loaded.get(name) is not array}
            outputs.update(({} if result is None else {result_name: result}) | changed)
            unused.update(before.keys() & changed.keys(), before.keys() - after.keys())
            return list(outputs.values()) or [values[0]]

        with tracing():
            values = list(arguments.values())
            text = describe_function(function, values)
            number = self._functions.add(text, function, values) if outputs else None
        call = {"function": number, "inputs": list(arguments), "outputs": list(outputs)} if outputs else None
        changes = [_difference(cache.state, state) for cache, state in zip(caches, states, strict=True)]
        traced = _Step(call, {name: _empty(array) for name, array in outputs.items()}, tuple(sorted(unused)), changes)
        self._names |= {id(array): name for name, array in traced.outputs.items()}
        return traced

    def _record(self, step: _Step) -> _Step:
        """Record a call of a step, and return it. Without outputs it is left out: the next call says what is unused."""
        unused = self.unused = self.unused + step.unused
        if step.call is None:
            return step
        call = json.dumps({**step.call, "unused": unused})
        self.calls.append(self.program.setdefault(call, len(self.program)))
        self.unused = ()
        return step

    def _arrays(self, caches: Sequence[TraceableCache]) -> Arrays:
        return {
            f"cache{self.caches[cache]}.{index}": array for cache in caches for index, array in enumerate(cache.arrays)
        }


def _empty(array: mx.array) -> mx.array:
    """Return an array of the same shape, which takes no memory until it is evaluated."""
    return mx.zeros(array.shape, array.dtype)


def _shapes(arrays: Iterable[mx.array]) -> tuple[tuple[int, ...], ...]:
    return tuple(array.shape for array in arrays)


def _dependence(states: Sequence[CacheState]) -> tuple[Any, ...]:
    """Return what a step depends on of the states of its caches."""
    first = next((count for state in states for count in state.counts), 0)
    return tuple(
        (_shapes(state.arrays), *((count - first, count == 0) for count in state.counts), state.remaining)
        for state in states
    )


def _difference(after: CacheState, before: CacheState) -> CacheState:
    """Return a state after a step, with empty arrays and the differences of the counts."""
    return after._replace(arrays=tuple(map(_empty, after.arrays)), counts=tuple(map(sub, after.counts, before.counts)))


class _Recording:
    """Recording of the decodes or encodes of one size."""

    def __init__(self, network: Network, plan: Plan, options: DecodeOptions, functions: Functions) -> None:
        self._network, self._layer_steps, self._functions = network, plan.steps, functions
        self._shape, self._size, self._seed = plan.latent_shape._replace(frames=1), plan.frame_size, options.seed
        self._draws = draw(network.spec, self._shape, network.dtype, options)
        index = None if self._draws.scale is None else mx.array(0, mx.uint32)
        self.tensors = Tensors(network, self._draws.maps, index)
        mx.eval(self.tensors.stored)

    def program(self) -> tuple[list[Call], list[list[int]], list[list[int]]]:
        """Return the calls of functions, and the numbers of those of each step and of each end.

        The last step repeats for all later latent frames. A clip ends with the end that belongs to its number of latent
        frames, or else the last one. After each latent frame, the stream ends, and then continues from the caches
        before that. If a latent frame takes the calls of the one before it and leaves the same caches, all from there
        on take these calls.
        """
        steps: list[list[int]] = []
        ends: list[list[int]] = []
        shapes: list[Any] = []
        stages = self._stages()
        names = ("frames", "latents") if isinstance(self._network, Encoder) else ("latents", "frames")
        recorder = _Recorder(stages, self.tensors, self._functions, names)
        try:
            for index in range(MAX_WARM_UP):
                step, end, cached = self._advance(stages, recorder, self._piece(index))
                if steps and (step, cached) == (steps[-1], shapes):
                    return list(map(json.loads, recorder.program)), steps, ends
                steps.append(step)
                ends.append(end)
                shapes = cached
        finally:
            self.tensors.load(self.tensors.stored)
        raise PlanError(f"the steps do not repeat within {MAX_WARM_UP} latent frames; decode or encode it here.")

    def _advance(
        self, stages: Sequence[Stage], recorder: _Recorder, piece: mx.array
    ) -> tuple[list[int], list[int], list[Any]]:
        """Return the calls of the next latent frame, those of an end after it, and what is cached between them."""
        step: list[int] = []
        states: list[CacheState] = []

        def pieces() -> Iterator[mx.array]:
            yield piece  # all stages take what they can of it, before they ask for another one
            states[:] = [cache.state for cache in recorder.caches]
            step[:], recorder.calls = recorder.calls, []

        for _ in run_stream(stages, pieces(), steps=(_WHOLE, *self._layer_steps, _WHOLE), schedule=recorder):
            pass
        end, recorder.calls, recorder.unused = recorder.calls, [], ()
        for cache, state in zip(recorder.caches, states, strict=True):
            cache.state = state
        return step, end, [(array.shape, array.dtype) for state in states for array in state.arrays]

    def _piece(self, index: int) -> mx.array:
        """Return an empty piece of the input: a latent frame, or its frames."""
        if not isinstance(self._network, Encoder):
            return mx.zeros(self._shape)
        width, height = self._size
        return mx.zeros((1, self._network.spec.scale.time if index else 1, height, width, 3), mx.uint8)

    def _stages(self) -> list[Stage]:
        """Return the stages of a new stream: what prepares the input, the layers, and what completes the output."""
        network = self._network
        context = StreamContext(timesteps=self._draws.timesteps(1), noise_maps=self.tensors.maps)
        with tracing():
            stages = network.stages(context)
        if isinstance(network, Encoder):
            prepare = pointwise(lambda levels: levels_to_pixels(levels, network.dtype))
            return [prepare, *stages, pointwise(network.to_latents)]
        return [pointwise(self._prepare), *stages]

    def _prepare(self, latents: mx.array) -> mx.array:
        noise = None
        if self._draws.scale is not None:
            values = frame_noise(self._seed, cast(mx.array, self.tensors.index), self._shape)[None, :, None]
            noise = LatentNoise(values, self._draws.scale, self._draws.is_late)
        return cast(Decoder, self._network).prepare(latents, noise)


@dataclass(frozen=True)
class Export:
    """Written folder, with the plan of its decodes or encodes and the sizes of its parts."""

    folder: str
    plan: Plan
    functions: int
    function_bytes: int
    weights: str  # the file, which is in the folder, or in the one above it
    weight_bytes: int
    reader: Reader

    def as_dict(self) -> dict[str, Any]:
        """Return what is known of it as a JSON-serializable dict."""
        names = ("functions", "function_bytes", "weights", "weight_bytes")
        values = {"output": self.folder, **{name: getattr(self, name) for name in names}}
        values |= {"mlx": str(self.reader), "function_format": self.reader.file_format}
        return {**values, "width": self.plan.width, "height": self.plan.height, "peak_bytes": self.plan.peak_bytes}

    def __str__(self) -> str:
        is_shared = Path(self.weights).parent != Path(self.folder)
        weights = f"{'shared ' * is_shared}weights of {format_bytes(self.weight_bytes)}"
        noun = "decodes" if isinstance(self.plan, DecodePlan) else "encodes"
        return (
            f"{printable(self.folder)}: {noun} of any length, for programs with MLX {self.reader}\n"
            f"video    frames of {format_size(*self.plan.frame_size)}\n"
            f"files    {self.functions} functions of {format_bytes(self.function_bytes)}; {weights}\n"
            f"peak     {format_bytes(self.plan.peak_bytes)}, by time, one latent frame at a time"
        )


def find_exported(folder: Path) -> list[str]:
    """Return the names of the files of an export that is in the folder, its description first."""
    if read_export(folder) is None:
        return []
    names = sorted((path.name for path in folder.iterdir()), key=lambda name: (name not in EXPORT_FILES, name))
    return [name for name in names if name in EXPORT_FILES or re.fullmatch(r"[0-9]+\.mlxfn", name)]


def export_network(
    network: Network,
    plan: Plan,
    options: DecodeOptions,
    folder: str | os.PathLike,
    *,
    shares_weights: bool,
    generation: str,
    reader: Reader,
    overwrite: bool = False,
) -> Export:
    """Write the functions, the weights and the description of decodes or encodes by the steps of a plan by time.

    With `overwrite` they replace an export that is in the folder. With `shares_weights` the weights are in the folder
    above it, unless it has other ones.
    """
    target = Path(expand_path(folder, WriterError)).resolve()
    shared_path = target.parent / _WEIGHTS
    if shares_weights:
        with writing_to(target):
            target.parent.mkdir(parents=True, exist_ok=True)
    with part_folder(target, find_exported(target) if overwrite else ()) as output, writing_to(target):
        functions = Functions(output.path, reader.file_format)
        recording = _Recording(network, plan, options, functions)
        (calls, steps, ends), arrays = recording.program(), recording.tensors.stored
        values_hash = fingerprint(arrays)
        content = {
            "format": FORMAT,
            "function_format": reader.file_format,
            "mlx": str(reader),
            "backend": backend().value,
            "dtype": dtype_name(network.dtype),
            "generation": generation,
            "fingerprint": values_hash,
            "latents": [plan.latent_shape.channels, plan.latent_shape.height, plan.latent_shape.width],
            "frames": [plan.height, plan.width],
            "first_frames": 1 if isinstance(network, Encoder) else network.spec.first_frames,
            "next_frames": network.spec.scale.time,
            "seed": options.seed,
            "plan": {
                "steps": plan.steps,
                "peak_bytes": plan.peak_bytes,
                "buffer_cache_bytes": plan.memory.buffer_cache,
            },
            "calls": calls,
            "steps": steps,
            "ends": ends,
        }
        name = _DESCRIPTIONS[isinstance(network, Encoder)]
        (output.path / name).write_text(json.dumps(content) + "\n", encoding="utf-8")
        has_weights = not shares_weights or _read_fingerprint(shared_path) != values_hash
        if has_weights:
            metadata = {"format": "mlx", "fingerprint": values_hash}
            with disk_errors():
                mx.save_safetensors(str(output.path / _WEIGHTS), arrays, metadata)
    path = output.target / _WEIGHTS if has_weights else shared_path
    if has_weights and shares_weights and not os.path.lexists(shared_path):
        with writing_to(shared_path):
            path = path.rename(shared_path)
    weight_bytes = sum(array.nbytes for array in arrays.values())
    return Export(str(output.target), plan, len(functions), functions.num_bytes, str(path), weight_bytes, reader)


def _read_fingerprint(weights: Path) -> str | None:
    """Return the fingerprint of a file of weights, or `None` if it is not there, or not one of an export."""
    with suppress(CheckpointError):
        return open_archive(weights).metadata.get("fingerprint")
    return None


def fingerprint(arrays: Arrays) -> str:
    """Return a hash of names, shapes, dtypes and values."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {dtype_name(array.dtype)} {array.shape}\n".encode())
        digest.update(np.asarray(array.reshape(-1).view(mx.uint8)).data)
    return digest.hexdigest()
