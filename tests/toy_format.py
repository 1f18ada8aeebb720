"""A format of latent files that a test adds to the table: a line with the shape, and float32 values in that order."""

import numpy as np

from mlx_ltx_vae.latents.files import Header, OpenFile, Reader, TensorFile

START = b"TOY "


class ToyFile(TensorFile):
    names = ("latents",)

    def __init__(self, file: OpenFile) -> None:
        super().__init__(file)
        line = file.pread(0, 200).partition(b"\n")[0]
        shape = tuple(int(length) for length in line.removeprefix(START).split())
        self._header = Header("float32", np.dtype("<f4"), shape, offset=len(line) + 1)

    def header(self, name: str) -> Header:
        return self._header


TOY = Reader("the toy format", (".toy",), lambda start: start.startswith(START), ToyFile)
