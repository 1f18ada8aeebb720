"""A format of latent files that a test adds to the table: a line with the shape, and float32 values in that order."""

import numpy as np

from mlx_ltx_vae.latents.files import Content, Header, OpenFile, Reader, StoredArray

START = b"TOY "


def open_toy(file: OpenFile) -> Content:
    line = file.pread(0, 200).partition(b"\n")[0]
    shape = tuple(int(length) for length in line.removeprefix(START).split())
    header = Header("float32", np.dtype("<f4"), shape, offset=len(line) + 1)
    return {"latents": StoredArray(file, "latents", lambda: header)}, {}


TOY = Reader("the toy format", (".toy",), lambda start: start.startswith(START), open_toy)
