"""Files that are not checkpoints are errors of one sentence that names the file, and never reach MLX or pickle."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from checkpoint_files import open_checkpoint
from mlx_ltx_vae import CheckpointError

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
        ((13).to_bytes(8, "little") + b'{"a":{"b":1}}', "missing field"),
    ],
)
def test_a_file_of_another_format_is_an_error_that_names_the_format(tmp_path, content, message):
    (tmp_path / "vae.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"vae\.safetensors: .*{message}"):
        open_checkpoint(tmp_path / "vae.safetensors")


def test_a_truncated_file_is_an_error_with_its_size(golden, tmp_path):
    content = golden("ltx2_3").checkpoint.read_bytes()
    (tmp_path / "vae.safetensors").write_bytes(content[:-1])
    with pytest.raises(CheckpointError, match=rf"it has {len(content) - 1} bytes, not as many .* truncated"):
        open_checkpoint(tmp_path / "vae.safetensors")


@pytest.fixture(scope="module")
def small_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("small") / "small.safetensors"
    tensors = {"decoder.conv_in.conv.weight": np.zeros((2, 2, 3, 3, 3), np.float32), "mean": np.zeros(2, np.float32)}
    save_file(tensors, path, {"config": '{"vae": {}}'})
    return path.read_bytes()


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_anywhere_is_a_checkpoint_error(small_file, tmp_path, data):
    damaged = bytearray(small_file[: data.draw(st.integers(0, len(small_file)), label="length")])
    for _ in range(data.draw(st.integers(0, 3), label="changes")):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "vae.safetensors").write_bytes(damaged)
    with pytest.raises(CheckpointError):  # undamaged, it is not a VAE
        open_checkpoint(tmp_path / "vae.safetensors")


def test_a_missing_path_is_an_error(tmp_path):
    for source in (tmp_path / "none.safetensors", str(tmp_path / "none"), "none.safetensors", "./none/at/all"):
        with pytest.raises(CheckpointError, match="no such file or folder"):
            open_checkpoint(source)


@pytest.mark.parametrize("source", ["x" * 5000, "a\0b", "~no-such-user/vae.safetensors"])
def test_what_cannot_be_a_path_is_an_error(source):
    with pytest.raises(CheckpointError, match="no such file or folder|cannot be read") as caught:
        open_checkpoint(source)
    assert len(str(caught.value)) < 400


def test_a_file_that_may_not_be_read_is_an_error(golden, tmp_path, monkeypatch):
    def refuse(path, *arguments, **options):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)  # root may read every file, so permissions cannot test this
    with pytest.raises(CheckpointError, match=r"ltx2_3\.safetensors: cannot be read \(Permission denied\)"):
        open_checkpoint(golden("ltx2_3").checkpoint)


def test_a_folder_of_pickles_is_an_error(tmp_path):
    (tmp_path / "model.ckpt").write_bytes(b"\x80")
    with pytest.raises(CheckpointError, match="found no safetensors file"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("folder", [False, True])
def test_a_file_without_a_vae_is_an_error_that_lists_its_tensors(tmp_path, folder):
    """Its 2D convolutions are those of an audio VAE."""
    others = ["audio_vae.decoder.a", "decoder.conv_in.conv.weight", "decoder.up_blocks.0.b", "vocoder.c"]
    save_file({name: np.zeros((2, 2, 3, 3), np.float32) for name in others}, tmp_path / "dit.safetensors")
    with pytest.raises(CheckpointError, match=r"expected a video VAE .* found audio_vae\.decoder.*blocks\.0\.b \.\.\."):
        open_checkpoint(tmp_path if folder else tmp_path / "dit.safetensors")


def test_a_configuration_that_is_not_json_is_an_error(golden, tmp_path):
    path, tensors = tmp_path / "vae.safetensors", load_file(golden("ltx2_3_causal").checkpoint)
    save_file(tensors, path, {"config": "{'vae': None}"})
    with pytest.raises(CheckpointError, match=r"vae\.safetensors: its metadata entry 'config' is not JSON"):
        open_checkpoint(path)
    save_file(tensors, path)
    (tmp_path / "config.json").write_bytes(POINTER)
    with pytest.raises(CheckpointError, match=r"config\.json: expected JSON"):
        open_checkpoint(path)
