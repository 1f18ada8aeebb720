"""Decodes LTX latents, or encodes frames, with a folder of exported functions, without mlx_ltx_vae.

    python run.py FOLDER LATENTS.safetensors [--float] > frames.rgb
    python run.py FOLDER FRAMES.safetensors --encode LATENTS.safetensors

FOLDER is written by `mlx_ltx_vae export`, with --encoder for the second line. The file of latents has the tensor
`latents`, (1, C, F', H', W') or (C, F', H', W'), normalized. The frames (F, H, W, 3) go to standard output: 8-bit RGB,
or with --float as float32 in [-1, 1]. To encode, a file has the tensor `frames`, uint8 (F, H, W, 3). Only MLX and numpy
are needed. docs/export.md describes the folder.
"""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("MLX_CONV_WINOGRAD_TILE_BATCH", "1")  # on Metal, a frame of scratch memory instead of all

import mlx.core as mx  # noqa: E402
import numpy as np  # noqa: E402

FORMAT = 1  # of decode.json and encode.json
FUNCTION_FORMAT = 2 if [int(part) for part in mx.__version__.split(".")[:3]] >= [0, 32, 1] else 1


class ExportError(Exception):
    """One sentence about a folder or an input."""


class Exported:
    """The decode or the encode that a folder describes."""

    def __init__(self, folder, name="decode"):
        path = folder / f"{name}.json"
        if not path.exists():
            sizes = sorted(size.parent.name for size in folder.glob(f"*/{path.name}"))
            remedy = f"name that of a size, {', '.join(sizes)}" if sizes else "export it with mlx_ltx_vae export"
            raise ExportError(f"{folder}: has no {path.name}; {remedy}.")
        self.folder, self.program, self.functions = folder, json.loads(path.read_text()), {}
        if self.program["format"] != FORMAT:
            raise ExportError(f"{path}: has format {self.program['format']}, and this program reads {FORMAT}.")
        if self.program["function_format"] != FUNCTION_FORMAT:
            formats = f"functions of format {self.program['function_format']}, and MLX {mx.__version__} reads format"
            raise ExportError(f"{path}: has {formats} {FUNCTION_FORMAT}; export it for this version, see --for.")
        path = folder / "weights.safetensors"
        if not path.exists():  # exports of several sizes can share those of the folder that they are in
            path = folder.parent / path.name
        if not path.exists():
            missing = f"{folder / path.name}: is missing"
            raise ExportError(f"{missing}; copy it from an export of the same checkpoint, or export it again.")
        self.weights, metadata = load(path)
        if cache := self.program["plan"]["buffer_cache_bytes"]:
            mx.set_cache_limit(cache)
        if metadata.get("fingerprint") != self.program["fingerprint"]:
            raise ExportError(f"{path}: has the weights of another checkpoint than {name}.json; export both together.")

    def decode(self, latents):
        """Yield the frames (n, H, W, 3) of latents (1, C, F', H', W') as they become final."""
        channels, height, width = self.program["latents"]
        count = latents.shape[2] if latents.ndim == 5 else 0
        if count < 1 or latents.shape != (1, channels, count, height, width):
            expected = f"(1, {channels}, frames, {height}, {width})"
            raise ExportError(f"the latents have the shape {latents.shape}, and this export is for {expected}.")
        pieces = (latents[:, :, index : index + 1].astype(mx.float32) for index in range(count))
        for frames in self.run("latents", pieces, "frames"):
            yield frames[0]

    def encode(self, frames):
        """Yield the latents (1, C, n, H', W') of frames (F, H, W, 3) in uint8 as they become final."""
        size, first, step = (self.program[name] for name in ("frames", "first_frames", "next_frames"))
        count = frames.shape[0] if frames.ndim == 4 else 0
        if frames.shape != (count, *size, 3) or frames.dtype != mx.uint8 or count < first or (count - first) % step:
            expected = f"uint8 ({first} + {step}*k, {size[0]}, {size[1]}, 3)"
            raise ExportError(f"the frames are {frames.dtype} {frames.shape}, and this export is for {expected}.")
        ends = range(first, count + 1, step)
        yield from self.run("frames", (frames[None, max(0, end - step) : end] for end in ends), "latents")

    def run(self, name, pieces, output):
        """Make the calls for each piece and for the end, and yield the results of this name."""
        steps, ends, count = self.program["steps"], self.program["ends"], 0
        arrays = dict(self.weights)
        for count, arrays[name] in enumerate(pieces, 1):
            arrays["index"] = mx.array(count - 1, mx.uint32)
            yield from self.call(steps[min(count, len(steps)) - 1], arrays, output)
        yield from self.call(ends[min(count, len(ends)) - 1], arrays, output)

    def call(self, numbers, arrays, output):
        """Make calls one after another, each evaluated before the next."""
        for call in map(self.program["calls"].__getitem__, numbers):
            inputs = [arrays[name] for name in call["inputs"]]
            for name in call["unused"]:
                del arrays[name]
            try:
                outputs = self.function(call["function"])(*inputs)
            except ValueError as error:
                path = self.folder / f"{call['function']}.mlxfn"
                raise ExportError(f"{path}: takes other arrays than its call has; export the folder again.") from error
            del inputs  # so that their memory is free for the results
            mx.eval(outputs)
            arrays.update(zip(call["outputs"], outputs, strict=True))
            del outputs
            if output in call["outputs"]:
                yield arrays.pop(output)

    def function(self, number):
        if number not in self.functions:
            path = self.folder / f"{number}.mlxfn"
            if not path.exists():
                raise ExportError(f"{path}: is missing; export the folder again.")
            try:
                self.functions[number] = mx.compile(mx.import_function(str(path)))
            except (RuntimeError, ValueError, MemoryError) as error:
                reason = "is damaged; export the folder again"
                if "stream" in str(error):
                    reason = f"is for {self.program['backend']}, which this MLX lacks; export it with another --backend"
                raise ExportError(f"{path}: {reason} ({error}).") from error
        return self.functions[number]


def to_bytes(frames, is_float):
    pixels = frames.astype(mx.float32)
    if not is_float:
        pixels = mx.clip(mx.round((pixels + 1) * 127.5), 0, 255).astype(mx.uint8)
    return np.array(pixels).tobytes()


def load(path, name=None):
    try:
        arrays, metadata = mx.load(str(path), return_metadata=True)
    except (RuntimeError, ValueError) as error:
        raise ExportError(f"{path}: cannot be read ({error}).") from error
    if name is None:
        return arrays, metadata
    if name not in arrays:
        raise ExportError(f"{path}: has no tensor {name}.")
    return arrays[name]


def main():
    words = [word for word in sys.argv[1:] if word not in ("--float", "--encode")]
    is_encode = sys.argv[3:4] == ["--encode"]
    if len(words) != 2 + is_encode:
        sys.exit("usage: run.py FOLDER LATENTS.safetensors [--float] > frames.rgb\n"
                 "       run.py FOLDER FRAMES.safetensors --encode LATENTS.safetensors")  # fmt: skip
    folder = Path(words[0])
    try:
        if is_encode:
            latents = mx.concatenate(list(Exported(folder, "encode").encode(load(words[1], "frames"))), axis=2)
            mx.save_safetensors(words[2], {"latents": latents}, {"normalized": "true"})
        else:
            exported, latents = Exported(folder), load(words[1], "latents")
            for frames in exported.decode(latents if latents.ndim == 5 else latents[None]):
                sys.stdout.buffer.write(to_bytes(frames, "--float" in sys.argv))
    except (ExportError, RuntimeError, OSError) as error:
        sys.exit(f"error: {error}")
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        sys.exit(f"error: {folder}: is damaged ({type(error).__name__}: {error}); export it again.")


if __name__ == "__main__":
    main()
