"""Headers of safetensors files: what a file has is known without reading it, and what is malformed is a ValueError."""

import json
import os
import subprocess
import sys

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import save_file

from mlx_ltx_vae import files


def write_raw(path, header, size):
    """A file with this header as JSON (or bytes) and `size` zeros."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(size))
    return path


def read_header(path):
    with path.open("rb") as stream:
        return files.read_header(stream)


def entry(dtype, shape, start, stop):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


EMPTY = json.dumps(entry("F32", [0], 0, 0)).encode()


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "int32", "int16", "int8", "uint8", "uint64", "bool"])
def test_names_shapes_dtypes_and_metadata_are_those_that_were_written(tmp_path, dtype):
    arrays = {"b": np.zeros((2, 3), dtype), "a": np.zeros((), dtype), "empty": np.zeros((0, 4), dtype)}
    save_file(arrays, tmp_path / "a.safetensors", {"fps": "24", "": ""})
    tensors, metadata = read_header(tmp_path / "a.safetensors")
    assert {name: header[:2] for name, header in tensors.items()} == {
        name: (dtype, a.shape) for name, a in arrays.items()
    }
    assert metadata == {"fps": "24", "": ""}


def test_files_that_mlx_writes_are_read(tmp_path):
    """MLX writes null where it is given no metadata."""
    path = tmp_path / "a.safetensors"
    mx.save_safetensors(str(path), {"a": mx.zeros((2, 1), mx.bfloat16), "c": mx.zeros(1, mx.complex64)})
    assert b'"__metadata__":null' in path.read_bytes()
    tensors, metadata = read_header(path)
    assert {name: header[:2] for name, header in tensors.items()} == {
        "a": ("bfloat16", (2, 1)),
        "c": ("complex64", (1,)),
    }
    assert metadata == {}


@pytest.mark.parametrize(("dtype", "size"), [("F8_E4M3", 4), ("F8_E5M2", 4), ("F8_E8M0", 4), ("F4", 2)])
def test_types_that_no_array_has_keep_the_names_of_the_file(tmp_path, dtype, size):
    path = write_raw(tmp_path / "a.safetensors", {"a": entry(dtype, [4], 0, size)}, size)
    begin = path.stat().st_size - size
    assert read_header(path)[0]["a"][:4] == (dtype, (4,), begin, begin + size)


@pytest.mark.parametrize(
    ("header", "size", "reason"),
    [
        ({"a": entry("F32", [2], 0, 8)}, 7, r"^it has \d+ bytes, not as many .* truncated"),
        ({"a": entry("F32", [2], 0, 8)}, 9, r"^it has \d+ bytes, not as many"),
        ({"a": entry("F32", [2], 0, 4)}, 4, "tensor"),
        ({"a": entry("F32", [2], 8, 16)}, 16, "invalid offset for tensor `a`"),
        ({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 0, 8)}, 8, "invalid offset for tensor"),
        ({"a": entry("F32", [-2], 0, 8)}, 8, "-2"),
        ({"a": entry("F32", [1 << 62, 1 << 62], 0, 8)}, 8, "overflow"),
        ({"a": entry("X9", [2], 0, 8)}, 8, "unknown variant `X9`"),
        ({"a": {"shape": [2]}}, 8, "missing field"),
        ({"__metadata__": {"fps": 24}}, 0, "expected a string"),
        ([], 0, "invalid JSON in header"),
        (b'{"a": no', 0, "invalid JSON in header"),
        (b'{"a":' + b"[" * 100_000, 0, "recursion limit"),
        (b'{"a":%b,"a":%b}' % (EMPTY, EMPTY), 0, "has 'a' twice"),
        (b'{"__metadata__":{"fps":"24","fps":"25"}}', 0, "has 'fps' twice"),
    ],
)
def test_a_malformed_file_is_a_value_error_with_a_reason(tmp_path, header, size, reason):
    with pytest.raises(ValueError, match=reason) as caught:
        read_header(write_raw(tmp_path / "a.safetensors", header, size))
    assert "deserializing" not in str(caught.value)


_UNDER_A_LIMIT = """
import resource, sys
from mlx_ltx_vae.checkpoint.weight_files import open_archive
from mlx_ltx_vae.latents import open_latents
from pathlib import Path

resource.setrlimit(resource.RLIMIT_AS, (2**36, 2**36))  # 69 GB
print(*open_archive(Path(sys.argv[1])).tensors, open_latents(sys.argv[1]).shape.frames)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="macOS does not enforce the limit")
def test_a_header_takes_no_address_space_of_its_file(tmp_path):
    """As `ulimit -v` and batch systems limit it."""
    size = 2**40
    path = write_raw(tmp_path / "a.safetensors", {"latents": entry("F32", [1, 8, 2**25, 32, 32], 0, size)}, 0)
    os.truncate(path, path.stat().st_size + size)
    done = subprocess.run([sys.executable, "-c", _UNDER_A_LIMIT, path], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("latents 33554432\n", "")


@pytest.mark.parametrize(("tensors", "padding"), [(101, 0), (1, 2**24)])
def test_headers_that_take_seconds_and_gigabytes_to_parse_are_refused_unparsed(tmp_path, monkeypatch, tensors, padding):
    """900,000 empty tensors took 7.5 s and 1.25 GB. The largest published model has some thousands."""
    assert files.MAX_MEMBERS == 65536
    monkeypatch.setattr(files, "MAX_MEMBERS", 100)
    header = {f"t{index}": entry("F32", [0], 0, 0) for index in range(tensors)}
    path = write_raw(tmp_path / "a.safetensors", json.dumps(header).encode() + b" " * padding, 0)
    with pytest.raises(ValueError, match="header too large; expected at most 16 MB and 100 tensors"):
        read_header(path)
    assert len(read_header(write_raw(path, dict(list(header.items())[:-1]), 0))[0]) == tensors - 1
