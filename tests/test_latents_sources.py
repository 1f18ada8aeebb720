"""What users name as latents: files, pipes and standard input; and pickles, folders and devices, which are refused."""

import io
import json
import os
import pickle
import re
import shlex
import stat
import subprocess
import sys
import threading
import types
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import save_file

from conftest import file_size_limit, nobody
from latent_files import open_latents, refusal, write
from mlx_ltx_vae import demo, load_latents

SHAPE = (1, 8, 3, 4, 5)


@pytest.fixture
def latents() -> mx.array:
    return mx.random.normal(SHAPE, key=mx.random.key(0))


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files, empty."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


# --- pipes and standard input -----------------------------------------------------------------------------------------


@contextmanager
def standard_input(file: IO[bytes]) -> Iterator[None]:
    before, stdin = os.dup(0), sys.stdin
    os.dup2(file.fileno(), 0)
    try:
        with open(0, closefd=False) as sys.stdin:
            yield
    finally:
        os.dup2(before, 0)
        os.close(before)
        sys.stdin = stdin


@contextmanager
def piped(content: bytes) -> Iterator[None]:
    """Little content, which a pipe holds, comes through one on standard input."""
    read_end, write_end = os.pipe()
    with open(write_end, "wb") as pipe:
        pipe.write(content)
    with open(read_end, "rb") as pipe, standard_input(pipe):
        yield


@pytest.mark.parametrize(("name", "ending"), [("-", "safetensors"), ("/dev/stdin", "npy"), ("-", "npz")])
def test_latents_are_read_from_a_pipe_on_standard_input(
    tmp_path: Path, latents: mx.array, name: str, ending: str
) -> None:
    content = write(tmp_path / f"clip.{ending}", latents).read_bytes()
    with piped(content):
        loaded, info = load_latents(name)
    assert info.source == {"-": "standard input"}.get(name, name)
    assert mx.array_equal(loaded, latents).item()


@pytest.mark.parametrize("name", ["-", "/dev/stdin"])
def test_latents_are_read_from_a_file_on_standard_input(tmp_path: Path, latents: mx.array, name: str) -> None:
    with write(tmp_path / "clip.safetensors", latents).open("rb") as file, standard_input(file):
        assert mx.array_equal(load_latents(name)[0], latents).item()


def test_latents_in_a_named_pipe_are_read_and_leave_no_file(tmp_path: Path, latents: mx.array, temporary: Path) -> None:
    pipe, content = tmp_path / "pipe", write(tmp_path / "clip.safetensors", latents).read_bytes()
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(content,))
    writer.start()
    file = open_latents(pipe)
    writer.join()
    assert os.listdir(temporary) == []
    assert mx.array_equal(file.read(), latents).item()
    assert mx.array_equal(file.map()[:, :, 1:2], latents[:, :, 1:2]).item()


def test_the_decode_command_takes_latents_from_a_pipe(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mlx_ltx_vae.decode", "-", "-m", demo.VAE, "--dry-run", "--json"]
    done = subprocess.run(command, input=demo.LATENTS.read_bytes(), capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["plan"]["latent_shape"][1] == 64


def test_standard_input_without_latents_is_refused() -> None:
    with piped(b""):
        assert "standard input: is empty" in refusal("-")
    with piped(b"hello, world"):
        assert "standard input: is neither safetensors nor .npy nor .npz" in refusal("-")
    with piped(b"hello, world"):
        assert "or turn a video into latents with encode" in refusal("-")
    with open(os.devnull, "rb") as device, standard_input(device):
        assert "standard input is a terminal or another device; pipe" in refusal("-")
        assert "/dev/stdin: cannot be read (a device or a socket instead of a file)" in refusal("/dev/stdin")


def test_closed_standard_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for closed in (None, io.StringIO()):
        monkeypatch.setattr(sys, "stdin", closed)
        assert refusal("-") == "standard input is closed; pipe a latent file into it, or name one."


def test_an_endless_pipe_of_something_else_is_not_copied(tmp_path: Path, temporary: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def write_until_refused() -> None:
        with pytest.raises(BrokenPipeError), pipe.open("wb", buffering=0) as file:
            while True:
                file.write(b"yes\n" * 1000)

    writer = threading.Thread(target=write_until_refused)
    writer.start()
    assert "is neither safetensors nor .npy nor .npz" in refusal(pipe)
    writer.join()
    assert os.listdir(temporary) == []


def test_a_full_disk_is_named_and_left_empty(tmp_path: Path, latents: mx.array, temporary: Path) -> None:
    pipe, content = tmp_path / "pipe", write(tmp_path / "clip.safetensors", latents).read_bytes()
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(content,))
    writer.start()
    with file_size_limit(1000):
        text = refusal(pipe)
    writer.join()
    assert re.search(rf"cannot be copied to {temporary} \(.+\); set TMPDIR to a larger disk", text)
    assert os.listdir(temporary) == []


# --- what is no file --------------------------------------------------------------------------------------------------


@contextmanager
def without_permission(path: Path) -> Iterator[None]:
    """Root may read everything, so the test is not root in this block."""
    path.chmod(0)
    try:
        with nobody():
            yield
    finally:
        path.chmod(stat.S_IRUSR | stat.S_IWUSR)


def test_files_that_cannot_be_read_are_refused_in_one_sentence(tmp_path: Path, latents: mx.array) -> None:
    empty, private = tmp_path / "empty.safetensors", write(tmp_path / "private.safetensors", latents)
    empty.touch()
    assert refusal(tmp_path) == f"{tmp_path}: is a folder; name one latent file."
    assert refusal(empty) == f"{empty}: is empty; expected latents as safetensors, .npy or .npz."
    assert refusal(tmp_path / "no.npy") == f"{tmp_path / 'no.npy'}: there is no such file."
    assert refusal(tmp_path / "clip.pt") == f"{tmp_path / 'clip.pt'}: there is no such file."
    assert refusal("/dev/zero") == "/dev/zero: cannot be read (a device or a socket instead of a file)."
    assert re.search(r"cannot be read \(.*embedded null .*\)", refusal("clip\0.npy"))  # in the words of this Python
    assert "cannot be read (Not a directory)" in refusal(empty / "clip.npy")
    with without_permission(private):
        assert refusal(private) == f"{private}: cannot be read (Permission denied)."


# --- pickles ----------------------------------------------------------------------------------------------------------


def write_torch_zip(path: Path) -> Path:
    """The parts of a file of `torch.save`, without its tensor."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("clip/data.pkl", pickle.dumps({"latents": "a storage", "fps": 24.0}, protocol=2))
        for part, content in {
            ".format_version": b"1",
            "byteorder": b"little",
            "data/0": bytes(960),
            "version": b"3\n",
        }.items():
            archive.writestr(f"clip/{part}", content)
    return path


def write_old_torch(path: Path) -> Path:
    """As torch.save wrote files before PyTorch 1.6: pickles in a row, the first of which is a magic number."""
    parts = [0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, {"latents": "a storage"}, ["0"]]
    path.write_bytes(b"".join(pickle.dumps(part, protocol=2) for part in parts) + bytes(960))
    return path


@pytest.mark.parametrize("write_torch", [write_torch_zip, write_old_torch])
@pytest.mark.parametrize("name", ["clip.pt", "clip.safetensors", "clip.npz", "clip"])
def test_files_of_torch_are_refused_whatever_they_are_called(
    tmp_path: Path, name: str, write_torch: Callable[[Path], Path]
) -> None:
    path = write_torch(tmp_path / name)
    text = refusal(path)
    assert f"{path}: is a pickle of torch.save, which could run any code when read; convert it to safetensors:" in text
    assert text == " ".join(text.split())  # so that an error line shows the command as it is
    assert "weights_only=True" in text


@pytest.mark.parametrize(("name", "content"), [("my clip's.ckpt", "data set"), ("clip.safetensors", "tensor")])
def test_the_command_for_files_of_torch_makes_a_file_that_is_read(
    tmp_path: Path, latents: mx.array, monkeypatch: pytest.MonkeyPatch, name: str, content: str
) -> None:
    path = write_torch_zip(tmp_path / name)
    python, option, code, *files = shlex.split(refusal(path).split("convert it to safetensors: ")[1])
    assert (python, option, files[0]) == ("python", "-c", str(path))
    tensor = np.array(latents[0]).view(Contiguous)
    fps = np.float32(23.976).reshape(1).view(Contiguous)
    data_set = {"latents": tensor, "fps": fps, "num_frames": 3, "height": 4, "width": 5, "prompt": None}

    def load(file: str, device: str, *, weights_only: bool) -> object:
        assert (file, device, weights_only) == (str(path), "cpu", True)
        return data_set if content == "data set" else tensor

    torch = types.SimpleNamespace(load=load, is_tensor=lambda it: isinstance(it, Contiguous))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "safetensors.torch", types.SimpleNamespace(save_file=save_file))
    monkeypatch.setattr(sys, "argv", ["-c", *files])
    exec(code, {})
    assert files[1] != files[0]
    result, info = load_latents(files[1], latent_channels=8)
    assert mx.array_equal(result, latents).item()
    assert (info.fps is None) == (content == "tensor")
    assert info.num_frames is None  # a data set's sizes are those of the latents


class Contiguous(np.ndarray):
    """An array with the method of a torch tensor that the command calls."""

    def contiguous(self) -> np.ndarray:
        return np.ascontiguousarray(self)


@pytest.mark.parametrize(("name", "protocol"), [("clip.pkl", 2), ("clip", 3), ("clip.safetensors", 4), ("clip", 5)])
def test_other_pickles_are_refused_whatever_they_are_called(tmp_path: Path, name: str, protocol: int) -> None:
    path = tmp_path / name
    path.write_bytes(pickle.dumps({"latents": np.zeros(3)}, protocol=protocol))
    assert refusal(path).startswith(f"{path}: is a pickle, which could run any code when read; save the latents as")


def test_the_oldest_pickles_are_known_by_their_ending(tmp_path: Path) -> None:
    (tmp_path / "clip.PKL").write_bytes(pickle.dumps({"latents": 1}, protocol=0))
    assert "is a pickle" in refusal(tmp_path / "clip.PKL")


def test_safetensors_are_read_whatever_they_are_called(tmp_path: Path, latents: mx.array) -> None:
    for ending in ("bin", "pt", "ckpt"):
        path = write(tmp_path / "clip.safetensors", latents).rename(tmp_path / f"clip.{ending}")
        assert mx.array_equal(load_latents(path)[0], latents).item()
