"""The tensors of a VAE, one after another: never more than one of them in memory.

A safetensors file is 8 bytes of header length, a JSON header with every tensor's type, shape and place, and the
tensors' bytes. Types and shapes of lazy arrays are known, so the header goes first and each tensor is read, written
and freed in turn.
"""

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from mlx_ltx_vae.checkpoint import Checkpoint, load_checkpoint
from mlx_ltx_vae.checkpoint.files import DTYPE_NAMES
from mlx_ltx_vae.checkpoint.original import HALVES
from mlx_ltx_vae.latents.tensor_files import safetensors_header

#: Told the names that are about to be worked on and what is done with them; hands them on one by one, as `tqdm` does.
Progress = Callable[[Sequence[str], str], Iterable[str]]

MEAN = "per_channel_statistics.mean-of-means"
STD = "per_channel_statistics.std-of-means"

_STORED_NAMES = {name: stored for stored, name in DTYPE_NAMES.items()}


@dataclass(frozen=True)
class Written:
    """What a file of tensors holds.

    Attributes:
        tensors: how many.
        parameters: the numbers in them.
        bytes: what they take, without the header.
        dtypes: the names of their types, sorted.
        fingerprint: hexadecimal SHA-256 of what they were made of (see `write_tensors`).
    """

    tensors: int
    parameters: int
    bytes: int
    dtypes: tuple[str, ...]
    fingerprint: str


def silent(names: Sequence[str], _description: str) -> Iterable[str]:
    """The `Progress` that shows nothing."""
    return names


def one_by_one(names: Sequence[str], description: str, progress: Progress) -> Iterator[str]:
    """The names in turn. What the work on one leaves in MLX's cache of buffers goes before the next."""
    for name in progress(names, description):
        yield name
        mx.clear_cache()


def open_checkpoint(source: str | os.PathLike, only: str | None) -> Checkpoint:
    """`load_checkpoint` for the half that is named, or for all there is."""
    return load_checkpoint(source, encoder=only != "decoder", decoder=only != "encoder")


def take_tensors(checkpoint: Checkpoint) -> dict[str, mx.array]:
    """All tensors by full name, lazy. They leave the checkpoint's own dictionaries, which would keep them alive."""
    tensors = {MEAN: checkpoint.mean, STD: checkpoint.std}
    for half in HALVES:
        weights = getattr(checkpoint, half) or {}
        tensors |= {f"{half}.{name}": weights.pop(name) for name in list(weights)}
    return tensors


def raw_bytes(array: mx.array) -> mx.array:
    """The bytes of an array in C order, (n,) uint8."""
    return array.reshape(-1).view(mx.uint8)


def dtype_name(dtype: mx.Dtype) -> str:
    """`bfloat16` for `mlx.core.bfloat16`."""
    return str(dtype).rpartition(".")[2]


def write_tensors(
    path: Path, tensors: dict[str, mx.array], dtype: mx.Dtype | None, metadata: Mapping[str, str], progress: Progress
) -> Written:
    """Write a safetensors file.

    The fingerprint is the SHA-256 of a list, sorted by name, of a line `<SHA-256 of its bytes>  <name>` for each
    tensor before it is cast. So it is the same for every file of the same weights, however that lays out its kernels.

    Args:
        path: the file to make.
        tensors: by name, lazy. Consumed.
        dtype: what to write all but the statistics in; None for each tensor's own.
        metadata: strings for the header.
        progress: told of each tensor.
    """
    shapes = {name: array.shape for name, array in tensors.items()}
    dtypes = {name: array.dtype if dtype is None or name in (MEAN, STD) else dtype for name, array in tensors.items()}
    # Wide types first, as the safetensors library has it: each tensor then begins at a multiple of its item's size.
    order = sorted(tensors, key=lambda name: (-dtypes[name].size, name))
    digests = {}
    with path.open("wb") as file:
        file.write(_header(order, shapes, dtypes, metadata))
        for name in one_by_one(order, "convert", progress):
            stored = tensors.pop(name)
            digests[name] = hashlib.sha256(memoryview(raw_bytes(stored))).hexdigest()
            file.write(memoryview(raw_bytes(stored.astype(dtypes[name]))))
    listing = "".join(f"{digests[name]}  {name}\n" for name in sorted(digests))
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    return Written(
        tensors=len(order),
        parameters=sum(sizes.values()),
        bytes=sum(size * dtypes[name].size for name, size in sizes.items()),
        dtypes=tuple(sorted({dtype_name(kind) for kind in dtypes.values()})),
        fingerprint=hashlib.sha256(listing.encode()).hexdigest(),
    )


def _header(
    order: Sequence[str],
    shapes: Mapping[str, Sequence[int]],
    dtypes: Mapping[str, mx.Dtype],
    metadata: Mapping[str, str],
) -> bytes:
    """What goes in front of the tensors, whose bytes follow each other in this order."""
    entries = {}
    start = 0
    for name in order:
        stop = start + math.prod(shapes[name]) * dtypes[name].size
        kind = _STORED_NAMES[dtype_name(dtypes[name])]
        entries[name] = {"dtype": kind, "shape": list(shapes[name]), "data_offsets": [start, stop]}
        start = stop
    return safetensors_header(entries, metadata)
