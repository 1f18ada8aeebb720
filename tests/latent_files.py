"""Latent files as other programs write them, and what the tests of several files say of reading them."""

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import save_file

from mlx_ltx_vae import LatentsError, load_latents
from mlx_ltx_vae.latents import LatentsWriter, open_latents, writer
from mlx_ltx_vae.latents.metadata import LatentSpace
from mlx_ltx_vae.latents.writer import rescue_latents
from mlx_ltx_vae.pipeline import sources

__all__ = [
    "LatentSpace", "LatentsWriter", "assert_same", "check_in_parts", "open_latents", "refusal", "rescue_latents",
    "write", "write_in_blocks", "write_sparse",
]  # fmt: skip


def assert_same(result: mx.array, expected: np.ndarray | mx.array, dtype: mx.Dtype | None = None) -> None:
    expected = mx.array(expected)
    expected = expected if dtype is None else expected.astype(dtype)
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    assert mx.array_equal(result, expected).item()


def write(path: Path, tensors: object, metadata: Mapping[str, str] | None = None, *, compressed: bool = False) -> Path:
    """Tensors by name, or latents alone, as MLX writes its arrays, and numpy and safetensors write those of numpy."""
    named = tensors if isinstance(tensors, Mapping) else {"latents": tensors}
    library = mx if any(isinstance(tensor, mx.array) for tensor in named.values()) else np
    if path.suffix == ".npy":
        library.save(str(path), tensors)
    elif path.suffix == ".npz":
        (library.savez_compressed if compressed else library.savez)(str(path), **named, **(metadata or {}))
    elif library is mx:
        mx.save_safetensors(str(path), named, metadata)
    else:
        save_file({name: np.ascontiguousarray(tensor) for name, tensor in named.items()}, path, metadata)
    return path


def write_sparse(path: Path, shape: tuple[int, ...], dtype: str = "F32") -> Path:
    """A file of zeros that takes no space on the disk."""
    num_bytes = math.prod(shape) * {"F32": 4, "BF16": 2}[dtype]
    header = json.dumps({"latents": {"dtype": dtype, "shape": shape, "data_offsets": [0, num_bytes]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(path, 8 + len(header) + num_bytes)
    return path


def check_in_parts(monkeypatch: pytest.MonkeyPatch, num_values: int) -> None:
    """Have the latents of a file checked in parts of so many values before they are decoded."""
    monkeypatch.setattr(sources, "VALUES_AT_ONCE", num_values)


def write_in_blocks(monkeypatch: pytest.MonkeyPatch, num_bytes: int) -> None:
    """Have a `LatentsWriter` write blocks of this size, so that small latents are several."""
    monkeypatch.setattr(writer, "_BLOCK_BYTES", num_bytes)


def refusal(path: object, read: Callable[..., object] = load_latents) -> str:
    """The error of reading a file, which has one line."""
    with pytest.raises(LatentsError) as refused:
        read(path)
    assert "\n" not in str(refused.value)
    return str(refused.value)
