"""Files that are not checkpoints are errors of one sentence that names the file, and never reach MLX or pickle."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from mlx_ltx_vae.checkpoint import open_checkpoint
from mlx_ltx_vae.errors import CheckpointError

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0000\nsize 2000000000\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a safetensors file"),
        (b"hello, this is a text file of some length", "not a safetensors file"),
        (POINTER, "git-lfs pointer.*git lfs pull"),
        (b"<!DOCTYPE html><html><body>404 not found</body></html>", "web page.*download the file"),
        (b"\n  <html><head></head></html>", "web page.*download the file"),
        (b"PK\x03\x04" + bytes(100), "pickle.*never loaded.*convert it to safetensors"),
        (b"GGUF" + bytes(100), "GGUF"),
        ((1 << 62).to_bytes(8, "little") + b'{"a":1}', "not a whole safetensors file .header too large"),
        ((90_000_000).to_bytes(8, "little") + b'{"a":1}', "not a whole safetensors file .*download it again"),
        ((8).to_bytes(8, "little") + b'{"a": no', "invalid JSON in header"),
        ((12).to_bytes(8, "little") + b'{"a":{"b":1}}'[:12] + b" ", "invalid JSON in header"),
        ((13).to_bytes(8, "little") + b'{"a":{"b":1}}', "missing field"),
    ],
)
def test_a_file_of_another_format_is_an_error_that_names_the_format(
    tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "vae.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"vae\.safetensors: .*{message}"):
        open_checkpoint(tmp_path / "vae.safetensors")


def test_a_truncated_file_is_an_error_with_its_size(golden: Callable, tmp_path: Path) -> None:
    content = golden("ltx2_3").checkpoint.read_bytes()
    (tmp_path / "vae.safetensors").write_bytes(content[:-1])
    with pytest.raises(CheckpointError, match=rf"it has {len(content) - 1} bytes, not as many .* truncated"):
        open_checkpoint(tmp_path / "vae.safetensors")


@pytest.fixture(scope="module")
def small_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("small") / "small.safetensors"
    tensors = {"decoder.conv_in.conv.weight": np.zeros((2, 2, 3, 3, 3), np.float32), "mean": np.zeros(2, np.float32)}
    save_file(tensors, path, {"config": '{"vae": {}}'})
    return path.read_bytes()


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_anywhere_is_a_checkpoint_error(small_file: bytes, tmp_path: Path, data: st.DataObject) -> None:
    damaged = bytearray(small_file[: data.draw(st.integers(0, len(small_file)), label="length")])
    for _ in range(data.draw(st.integers(0, 3), label="changes")):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "vae.safetensors").write_bytes(damaged)
    with pytest.raises(CheckpointError):  # undamaged, it is not a VAE
        open_checkpoint(tmp_path / "vae.safetensors")


def test_a_missing_path_is_an_error(tmp_path: Path) -> None:
    for source in (tmp_path / "none.safetensors", str(tmp_path / "none"), "none.safetensors", "./none/at/all"):
        with pytest.raises(CheckpointError, match="no such file or folder"):
            open_checkpoint(source)


@pytest.mark.parametrize("source", ["x" * 5000, "a\0b", "~no-such-user/vae.safetensors"])
def test_what_cannot_be_a_path_is_an_error(source: str) -> None:
    with pytest.raises(CheckpointError, match="no such file or folder|cannot be read") as caught:
        open_checkpoint(source)
    assert len(str(caught.value)) < 400


def test_a_file_that_may_not_be_read_is_an_error(
    golden: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)  # root may read every file, so permissions cannot test this
    with pytest.raises(CheckpointError, match=r"ltx2_3\.safetensors: cannot be read \(Permission denied\)"):
        open_checkpoint(golden("ltx2_3").checkpoint)


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="found no safetensors file"):
        open_checkpoint(tmp_path)


def test_a_folder_of_pickles_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "model.ckpt").write_bytes(b"\x80")
    with pytest.raises(CheckpointError, match="found no safetensors file"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("folder", [False, True])
def test_a_file_without_a_vae_is_an_error_that_lists_its_tensors(tmp_path: Path, folder: bool) -> None:
    others = ["audio_vae.decoder.conv_in.conv.weight", "model.diffusion_model.a", "vocoder.b", "vocoder.c"]
    save_file({name: np.zeros((2, 2, 3, 3), np.float32) for name in others}, tmp_path / "dit.safetensors")
    with pytest.raises(CheckpointError, match=r"expected a video VAE .* found audio_vae\.decoder.*, vocoder\.b \.\.\."):
        open_checkpoint(tmp_path if folder else tmp_path / "dit.safetensors")


def test_a_tensor_in_a_float8_type_is_an_error_that_names_it(golden: Callable, tmp_path: Path) -> None:
    path, name = tmp_path / "vae.safetensors", "vae.decoder.conv_out.conv.bias"
    content = golden("ltx2_3").checkpoint.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    size = int(np.prod(header[name]["shape"]))
    tail = max(entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__")
    start, stop = header[name]["data_offsets"]
    header["padding"] = {"dtype": "U8", "shape": [stop - start - size], "data_offsets": [start + size, stop]}
    header[name] = {"dtype": "F8_E4M3", "shape": [size], "data_offsets": [start, start + size]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
    assert len(content) - 8 - length == tail
    with pytest.raises(CheckpointError, match=rf"{name} is stored as F8_E4M3, and only .* not quantized"):
        open_checkpoint(path)


def test_an_audio_vae_is_not_accepted_as_a_video_vae(tmp_path: Path) -> None:
    names = ["decoder.conv_in.conv.weight", "decoder.up_blocks.0.conv.weight"]
    save_file({name: np.zeros((2, 2, 3, 3), np.float32) for name in names}, tmp_path / "audio.safetensors")
    with pytest.raises(CheckpointError, match="expected a video VAE"):
        open_checkpoint(tmp_path / "audio.safetensors")


def test_metadata_that_is_not_json_is_an_error(golden: Callable, tmp_path: Path) -> None:
    save_file(vae_tensors(golden), tmp_path / "vae.safetensors", {"config": "{'vae': None}"})
    with pytest.raises(CheckpointError, match=r"vae\.safetensors: its metadata entry 'config' is not JSON"):
        open_checkpoint(tmp_path / "vae.safetensors")


def test_a_config_json_that_is_not_json_is_an_error(golden: Callable, tmp_path: Path) -> None:
    save_file(vae_tensors(golden), tmp_path / "vae.safetensors")
    (tmp_path / "config.json").write_bytes(POINTER)
    with pytest.raises(CheckpointError, match=r"config\.json: expected JSON"):
        open_checkpoint(tmp_path / "vae.safetensors")


def vae_tensors(golden: Callable) -> dict[str, np.ndarray]:
    return load_file(golden("ltx2_3_causal").checkpoint)
