"""Exports of a decode by time as MLX functions, which other programs run without this package (docs/export.md).

The stream itself runs once, without computing anything: each of its steps is traced and becomes a function, whose
arguments are a piece, the step's caches and its weights. Which function runs when, on which arrays, is a list of calls.
Steps of different latent frames and layers that are the same function share a file.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import numpy as np

from ..backend.device import backend
from ..backend.function_file import MLX_VERSION, write_function
from ..backend.mlx_utils import dtype_name, take, tracing
from ..errors import PlanError, WriterError, printable
from ..files import part_folder, writing_to
from ..networks.base import Decoder, Statistics
from ..networks.noise import LatentNoise, draw, frame_noise
from ..options import DecodeOptions
from ..planning.plan import DecodePlan
from ..shapes import Axis, format_size
from ..streaming.context import Stage, StreamContext
from ..streaming.driver import Schedule, run_stream
from ..streaming.window import TraceableCache
from ..units import expand_path, format_bytes

MAX_WARM_UP = 256  # latent frames after which steps must repeat; LTX-2.3 takes 15
FORMAT = 1  # of decode.json
_NOISE = "noise."

Arrays = dict[str, mx.array]
Call = dict[str, Any]  # the number of a function, and the names of arrays


class Tensors:
    """Arrays of a decoder that functions take as arguments, by name: weights, statistics, and maps of noise."""

    def __init__(self, decoder: Decoder, maps: Mapping[str, mx.array]) -> None:
        self._decoder, self.maps = decoder, dict(maps)

    @property
    def statistics(self) -> Arrays:
        return {} if self._decoder.statistics is None else dict(self._decoder.statistics._asdict())

    def of_layer(self, index: int) -> Arrays:
        layer = self._decoder.spec.layers[index]
        arrays = {name: self._decoder.at(name) for name, _ in layer.weights}
        return arrays | ({_NOISE + layer.name: self.maps[layer.name]} if layer.name in self.maps else {})

    def all(self) -> Arrays:
        layers = map(self.of_layer, range(len(self._decoder.spec.layers)))
        return reduce(dict.__or__, layers, self.statistics)

    def load(self, arrays: Arrays) -> None:
        """Let the decoder compute with other arrays."""
        statistics = self.statistics
        for name, array in arrays.items():
            parent, _, leaf = name.rpartition(".")
            if name in statistics:
                statistics[name] = array
                self._decoder.statistics = Statistics(statistics["mean"], statistics["std"])
            elif name.startswith(_NOISE):
                self.maps[name.removeprefix(_NOISE)] = array
            else:
                (self._decoder.at(parent) if parent else self._decoder)[leaf] = array


class Functions:
    """Functions in a folder, each once, and the calls of them by what determines them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers: dict[bytes, int] = {}
        self.num_bytes = 0
        self.calls: dict[Any, Call] = {}

    def trace(self, function: Callable[..., list[mx.array]], arguments: Sequence[mx.array]) -> bytes:
        """Return the content of the file of a function."""
        path = self._folder / "traced.mlxfn"
        write_function(path, function, arguments, backend())
        content = path.read_bytes()
        path.unlink()
        return content

    def add(self, content: bytes) -> int:
        """Write a function, unless there is an equal one, and return its number."""
        digest = hashlib.sha256(content).digest()
        if digest not in self._numbers:
            self._numbers[digest] = len(self._numbers)
            self.num_bytes += (self._folder / f"{self._numbers[digest]}.mlxfn").write_bytes(content)
        return self._numbers[digest]

    def __len__(self) -> int:
        return len(self._numbers)


class _Recorder(Schedule):
    """Trace of a stream's steps, which are recorded as calls while there are `calls`. Pieces and caches are empty."""

    def __init__(self, stages: Sequence[Stage], tensors: Tensors, functions: Functions) -> None:
        super().__init__(Axis.TIME)
        self.calls: list[Call] | None = None
        self._stages, self._tensors, self._functions = list(stages), tensors, functions
        self._names: dict[int, str] = {}  # of pieces, by their ids
        self._caches = list(dict.fromkeys(chain.from_iterable(map(_caches, stages))))
        self._unused: list[str] = []  # names of arrays that no later call takes

    @property
    def cached(self) -> list[tuple[tuple[int, ...], mx.Dtype]]:
        """Shapes and dtypes of all cached arrays."""
        return [(array.shape, array.dtype) for cache in self._caches for array in cache.arrays]

    def compute(self, stage: Stage, inputs: list[mx.array], last: bool) -> list[mx.array]:
        index, caches = self._stages.index(stage), _caches(stage)
        pieces = {self._names.pop(id(piece)): piece for piece in inputs}
        inputs.clear()
        before, weights = self._arrays(caches), self._tensors.of_layer(index)

        def step(*values: mx.array) -> tuple[Arrays, set[str]]:
            remaining = iter(values)
            piece = next(remaining) if pieces else None
            for cache in caches:
                cache.load([next(remaining) for _ in cache.arrays])
            loaded = self._arrays(caches)
            self._tensors.load(dict(zip(weights, remaining, strict=True)))
            result = stage.step(piece, last)
            after = self._arrays(caches)
            changed = {name: array for name, array in after.items() if loaded.get(name) is not array}
            results = {} if result is None else {self._result_name(index): result}
            return results | changed, pieces.keys() | changed.keys() | (before.keys() - after.keys())

        counts = [count for cache in caches for count in cache.counts]
        state = [(count - counts[0], count == 0) for count in counts], [cache.remaining for cache in caches]
        outputs = self.call(step, {**pieces, **before, **weights}, (index, last, str(state)))
        self._tensors.load(weights)
        for cache in caches:
            cache.load([_empty(array) for array in cache.arrays])
        return [outputs[name] for name in (self._result_name(index),) if name in outputs]

    def cut(self, box: list[mx.array], start: int, stop: int) -> mx.array:
        (piece,) = box
        name = self._names[id(piece)]
        part, is_last = f"{name}.part", stop == piece.shape[Axis.TIME]
        unused = {name} if is_last else set()
        outputs = self.call(
            lambda x: ({part: take(x, Axis.TIME, start, stop)}, unused), {name: piece}, (name, start, stop)
        )
        if is_last:
            del self._names[id(box.pop())]
        return outputs[part]

    def call(self, function: Callable[..., tuple[Arrays, set[str]]], arguments: Arrays, key: tuple) -> Arrays:
        """Trace a function, which returns arrays by name and the names of arguments that no later call takes.

        The function is determined by the `key` and the shapes of its arguments. Returns empty arrays of these shapes.
        """
        outputs: Arrays = {}
        unused: list[str] = []

        def traced(*values: mx.array) -> list[mx.array]:
            results, names = function(*values)
            unused.extend(sorted(names & arguments.keys()))
            outputs.update(results)
            return list(results.values()) or [values[0]]

        key = (*key, *((name, array.shape) for name, array in arguments.items()))
        call = self._functions.calls.get(key)
        with tracing():
            if self.calls is None or call is not None:
                traced(*arguments.values())
            else:
                content = self._functions.trace(traced, list(arguments.values()))
                number = self._functions.add(content) if outputs else None
                call = {"function": number, "inputs": list(arguments), "outputs": list(outputs)}
                self._functions.calls[key] = call
        assert call is None or call["outputs"] == list(outputs), "an equal step has other results"
        if self.calls is not None:
            self._unused += unused
            if call is not None and outputs:
                self.calls.append({**call, "unused": self._unused})
                self._unused = []
        results = {name: _empty(array) for name, array in outputs.items()}
        self._names |= {id(array): name for name, array in results.items()}
        return results

    def _arrays(self, caches: Sequence[TraceableCache]) -> Arrays:
        return {
            f"cache{self._caches.index(cache)}.{index}": array
            for cache in caches
            for index, array in enumerate(cache.arrays)
        }

    def _result_name(self, index: int) -> str:
        return "frames" if index + 1 == len(self._stages) else f"layer{index}"


def _caches(stage: Stage) -> list[TraceableCache]:
    """Return the caches of a stage, each once."""
    return list(dict.fromkeys(cast(Sequence[TraceableCache], stage.caches)))


def _empty(array: mx.array) -> mx.array:
    """Return an array of the same shape, which takes no memory until it is evaluated."""
    return mx.zeros(array.shape, array.dtype)


class _Recording:
    """Recording of decodes of one size."""

    def __init__(self, decoder: Decoder, plan: DecodePlan, options: DecodeOptions, functions: Functions) -> None:
        self._decoder, self._layer_steps, self._functions = decoder, plan.steps, functions
        self._shape, self._seed = plan.latent_shape._replace(frames=1), options.seed
        self._draws = draw(decoder.spec, self._shape, decoder.dtype, options)
        self.tensors = Tensors(decoder, self._draws.maps)
        mx.eval(self.tensors.all())

    def program(self) -> tuple[list[Call], list[list[int]], list[list[int]]]:
        """Return the calls of functions, and the numbers of those of each step and of each end.

        The last step repeats for all later latent frames. A clip ends with the end that belongs to its number of latent
        frames, or else the last one. Clips with 1, 2, 3, ... latent frames run until one takes the calls of the one
        before it. If it also leaves the same caches, all latent frames from there on take these calls.
        """
        numbers: dict[str, int] = {}
        steps: list[list[int]] = []
        ends: list[list[int]] = []
        cached: list[Any] = []
        for count in range(1, MAX_WARM_UP + 1):
            *calls, state = self._clip(count)
            step, end = ([numbers.setdefault(json.dumps(call), len(numbers)) for call in part] for part in calls)
            if steps and (step, state) == (steps[-1], cached):
                return [json.loads(call) for call in numbers], steps, ends
            steps.append(step)
            ends.append(end)
            cached = state
        raise PlanError(f"the steps of this decode do not repeat within {MAX_WARM_UP} latent frames; decode it here.")

    def _clip(self, count: int) -> tuple[list[Call], list[Call], list[Any]]:
        """Return the calls of the last one of some latent frames and of the end, and what is cached between them."""
        context = StreamContext(timesteps=self._draws.timesteps(1), noise_maps=self.tensors.maps)
        with tracing():
            stages = self._decoder.stages(context)
        recorder = _Recorder(stages, self.tensors, self._functions)
        latents = {"latents": mx.zeros(self._shape)}
        if self._draws.scale is not None:
            latents["index"] = mx.array(0, mx.uint32)
        step: list[Call] = []
        end: list[Call] = []
        state: list[Any] = []

        def pieces() -> Iterator[mx.array]:
            for index in range(count):
                recorder.calls = step if index == count - 1 else None
                yield recorder.call(self._prepare, latents | self.tensors.statistics, ("prepare",))["prepared"]
            state[:] = recorder.cached
            recorder.calls = end

        arrays = self.tensors.all()
        try:
            for _ in run_stream(stages, pieces(), steps=self._layer_steps, schedule=recorder):
                pass
        finally:
            self.tensors.load(arrays)
        return step, end, state

    def _prepare(self, latents: mx.array, *arrays: mx.array) -> tuple[Arrays, set[str]]:
        """Return the first stage's input of one latent frame, whose number comes first if there is noise."""
        before, draws = self.tensors.statistics, self._draws
        noise = None
        if draws.scale is not None:
            values = frame_noise(self._seed, arrays[0], self._shape)[None, :, None]
            noise = LatentNoise(values, draws.scale, draws.is_late)
        self.tensors.load(dict(zip(before, arrays[len(arrays) - len(before) :], strict=True)))
        prepared = self._decoder.prepare(latents, noise)
        self.tensors.load(before)
        return {"prepared": prepared}, {"latents"}


@dataclass(frozen=True)
class Export:
    """Written folder, with the plan of its decodes and the sizes of its parts."""

    folder: str
    plan: DecodePlan
    functions: int
    function_bytes: int
    weight_bytes: int  # 0 if it has no weights

    def as_dict(self) -> dict[str, Any]:
        """Return what is known of it as a JSON-serializable dict."""
        values = {name: getattr(self, name) for name in ("folder", "functions", "function_bytes", "weight_bytes")}
        return {**values, "width": self.plan.width, "height": self.plan.height, "peak_bytes": self.plan.peak_bytes}

    def __str__(self) -> str:
        weights = format_bytes(self.weight_bytes) if self.weight_bytes else "not written"
        return (
            f"{printable(self.folder)}: decodes of any length\n"
            f"video    frames of {format_size(*self.plan.frame_size)}\n"
            f"files    {self.functions} functions of {format_bytes(self.function_bytes)}; weights {weights}\n"
            f"peak     {format_bytes(self.plan.peak_bytes)}, by time, one latent frame at a time"
        )


def export_decode(
    decoder: Decoder,
    plan: DecodePlan,
    options: DecodeOptions,
    folder: str | os.PathLike,
    *,
    weights: bool,
    generation: str,
) -> Export:
    """Write the functions, the weights and `decode.json` of decodes by the steps of a plan by time."""
    target = Path(expand_path(folder, WriterError)).resolve()
    with part_folder(target) as output, writing_to(target):
        functions = Functions(output.path)
        recording = _Recording(decoder, plan, options, functions)
        (calls, steps, ends), arrays = recording.program(), recording.tensors.all()
        values_hash = fingerprint(arrays)
        content = {
            "format": FORMAT,
            "mlx": MLX_VERSION,
            "backend": backend().value,
            "dtype": dtype_name(decoder.dtype),
            "generation": generation,
            "fingerprint": values_hash,
            "latents": [plan.latent_shape.channels, plan.latent_shape.height, plan.latent_shape.width],
            "frames": [plan.height, plan.width],
            "first_frames": decoder.spec.first_frames,
            "next_frames": decoder.spec.scale.time,
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
        (output.path / "decode.json").write_text(json.dumps(content) + "\n", encoding="utf-8")
        if weights:
            metadata = {"format": "mlx", "fingerprint": values_hash}
            try:
                mx.save_safetensors(str(output.path / "weights.safetensors"), arrays, metadata)
            except RuntimeError as error:
                raise OSError(f"{str(error).rstrip('.')}; check the free disk space") from error
    weight_bytes = sum(array.nbytes for array in arrays.values()) if weights else 0
    return Export(str(output.target), plan, len(functions), functions.num_bytes, weight_bytes)


def fingerprint(arrays: Arrays) -> str:
    """Return a hash of names, shapes, dtypes and values."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {dtype_name(array.dtype)} {array.shape}\n".encode())
        digest.update(np.asarray(array.reshape(-1).view(mx.uint8)).data)
    return digest.hexdigest()
