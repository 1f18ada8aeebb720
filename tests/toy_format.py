"""A format of latent files that a test adds to the table: a line with the shape, and float32 values in that order."""

import math

import pytest

from mlx_ltx_vae.files import TensorHeader
from mlx_ltx_vae.latents import formats
from mlx_ltx_vae.latents.formats import Content, OpenFile, Reader, StoredArray

START = b"TOY "
#: The endings of latent files, without that of the toy.
ENDINGS = [ending for reader in formats.READERS for ending in reader.endings]


def open_toy(file: OpenFile) -> Content:
    line = file.read(200).partition(b"\n")[0]
    shape = tuple(int(length) for length in line.removeprefix(START).split())
    begin = len(line) + 1
    header = TensorHeader("float32", shape, begin, begin + 4 * math.prod(shape))
    return {"latents": StoredArray(file, "latents", lambda: header)}, {}


TOY = Reader("the toy format", (".toy",), lambda start: start.startswith(START), open_toy)


def add_toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the toy to the table until the test ends."""
    monkeypatch.setattr(formats, "READERS", [*formats.READERS, TOY])
