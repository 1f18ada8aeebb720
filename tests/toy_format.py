"""A format of latent files that a test adds to the table: a line with the shape, and float32 values in that order."""

import math

from mlx_ltx_vae.files import TensorHeader
from mlx_ltx_vae.latents.formats import Content, OpenFile, Reader, StoredArray

START = b"TOY "


def open_toy(file: OpenFile) -> Content:
    line = file.pread(0, 200).partition(b"\n")[0]
    shape = tuple(int(length) for length in line.removeprefix(START).split())
    begin = len(line) + 1
    header = TensorHeader("float32", shape, begin, begin + 4 * math.prod(shape))
    return {"latents": StoredArray(file, "latents", lambda: header)}, {}


TOY = Reader("the toy format", (".toy",), lambda start: start.startswith(START), open_toy)
