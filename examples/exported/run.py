"""Decodes LTX latents with a folder of exported functions, without mlx_ltx_vae.

    python run.py FOLDER LATENTS.safetensors [--float] > frames.rgb

FOLDER is written by `mlx_ltx_vae export`. The file of latents has the tensor `latents`, (1, C, F', H', W') or
(C, F', H', W'), normalized. The frames (F, H, W, 3) go to standard output: 8-bit RGB, or with --float as float32 in
[-1, 1]. Only MLX and numpy are needed. docs/export.md describes the folder.
"""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("MLX_CONV_WINOGRAD_TILE_BATCH", "1")  # on Metal, a frame of scratch memory instead of all

import mlx.core as mx  # noqa: E402
import numpy as np  # noqa: E402


class Decode:
    """The decode that a folder describes."""

    def __init__(self, folder):
        path = folder / "decode.json"
        if not path.exists():
            raise ValueError(f"{folder}: has no decode.json; export it with mlx_ltx_vae export.")
        self.folder, self.program, self.functions = folder, json.loads(path.read_text()), {}
        if numbers(mx.__version__) < numbers(self.program["mlx"]):
            raise ValueError(f"{path}: is of MLX {self.program['mlx']}, and this is {mx.__version__}; update MLX.")
        path = folder / "weights.safetensors"
        if not path.exists():
            raise ValueError(f"{path}: is missing; copy it from an export of the same checkpoint, or export it again.")
        if cache := self.program["plan"]["buffer_cache_bytes"]:
            mx.set_cache_limit(cache)
        self.weights, metadata = mx.load(str(path), return_metadata=True)
        if metadata.get("fingerprint") != self.program["fingerprint"]:
            raise ValueError(f"{path}: has the weights of another checkpoint than decode.json; export both together.")

    def frames(self, latents):
        """Yield the frames (n, H, W, 3) of latents (1, C, F', H', W') as they become final."""
        channels, height, width = self.program["latents"]
        if latents.ndim != 5 or latents.shape[2] < 1 or latents.shape != (1, channels, latents.shape[2], height, width):
            expected = f"(1, {channels}, frames, {height}, {width})"
            raise ValueError(f"the latents have the shape {latents.shape}, and this export is for {expected}.")
        steps, ends, count = self.program["steps"], self.program["ends"], latents.shape[2]
        arrays = dict(self.weights)
        for index in range(count):
            arrays["latents"] = latents[:, :, index : index + 1].astype(mx.float32)
            arrays["index"] = mx.array(index, mx.uint32)
            yield from self.run(steps[min(index, len(steps) - 1)], arrays)
        yield from self.run(ends[min(count, len(ends)) - 1], arrays)

    def run(self, numbers, arrays):
        """Make calls one after another, each evaluated before the next, and yield the frames among their results."""
        for call in map(self.program["calls"].__getitem__, numbers):
            inputs = [arrays[name] for name in call["inputs"]]
            for name in call["unused"]:
                del arrays[name]
            outputs = self.function(call["function"])(*inputs)
            del inputs  # so that their memory is free for the results
            mx.eval(outputs)
            arrays.update(zip(call["outputs"], outputs, strict=True))
            del outputs
            if "frames" in arrays:
                yield arrays.pop("frames")[0]

    def function(self, number):
        if number not in self.functions:
            path = f"{self.folder}/{number}.mlxfn"
            try:
                self.functions[number] = mx.compile(mx.import_function(path))
            except (RuntimeError, ValueError) as error:
                versions = f"MLX {mx.__version__} cannot read a function of MLX {self.program['mlx']}"
                raise ValueError(f"{path}: {versions}; export again with this version.") from error
        return self.functions[number]


def numbers(version):
    return [int(part) for part in version.split(".")[:3]]


def to_bytes(frames, is_float):
    pixels = frames.astype(mx.float32)
    if not is_float:
        pixels = mx.clip(mx.round((pixels + 1) * 127.5), 0, 255).astype(mx.uint8)
    return np.array(pixels).tobytes()


def main():
    paths = [Path(argument) for argument in sys.argv[1:] if argument != "--float"]
    if len(paths) != 2:
        sys.exit("usage: run.py FOLDER LATENTS.safetensors [--float] > frames.rgb")
    try:
        decode, latents = Decode(paths[0]), mx.load(str(paths[1]))["latents"]
        for frames in decode.frames(latents if latents.ndim == 5 else latents[None]):
            sys.stdout.buffer.write(to_bytes(frames, "--float" in sys.argv))
    except (ValueError, RuntimeError, KeyError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
