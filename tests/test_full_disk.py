"""Decoding by rows with a full disk for temporary files: refused in one sentence, never a SIGBUS while it decodes."""

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading

import imageio.v3 as imageio
import mlx.core as mx
import numpy as np
import pytest

from mlx_ltx_vae import LTXVAEError, VideoReader, WriterError, compress_still, load_latents
from mlx_ltx_vae.pipeline import frame_buffer
from mlx_ltx_vae.shapes import Axis
from mlx_ltx_vae.video import FrameOutput
from mlx_ltx_vae.video.exr import EXR_SPACES
from tolerances import cpu_only
from video_files import OutputOptions, open_sink

SHAPE = (1, 17, 64, 96, 3)  # 1.3 MB in float32, a third of that in 8 bits
SIZE = 4 * 17 * 64 * 96 * 3


@pytest.fixture
def latents(tmp_path):
    np.save(tmp_path / "latents.npy", np.random.default_rng(0).normal(size=(1, 8, 3, 2, 3)).astype(np.float32))
    return tmp_path / "latents.npy"


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 4 MB. Mounting it takes root."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder]
    if sys.platform != "linux" or not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("cannot mount a file system here")
    yield folder
    subprocess.run(["umount", folder], check=True)


def fill(folder):
    """Write to a disk until it is full."""
    with (folder / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(2**12))
        except OSError:
            return


def decode(latents, checkpoint, temporary, **options):
    """The command, by rows, with its one error line, which must name the folder, the size and TMPDIR."""
    out = latents.parent / "out"
    out.mkdir()
    command = [sys.executable, "-m", "mlx_ltx_vae.decode", latents, "-m", checkpoint, "--order", "rows"]
    done = subprocess.run(
        [*map(str, command), "-o", str(out / "out.npy")],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"TMPDIR": str(temporary)},
        **options,
    )
    assert done.returncode == 1, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert f"keeps 313 kB of frames in {temporary}, which cannot hold them (" in done.stderr
    assert "set TMPDIR to a larger disk" in done.stderr
    assert list(out.iterdir()) == []
    return done.stderr


def test_a_full_disk_is_refused_in_one_sentence(golden, latents, small_disk):
    fill(small_disk)
    with (small_disk / "filler").open("r+b") as file:
        file.truncate(os.path.getsize(file.name) - 2**16)
    assert "kB left)" in decode(latents, golden("small_ltx2_3").checkpoint, small_disk)
    assert sorted(os.listdir(small_disk)) == ["filler"]


def test_exr_on_a_full_disk_is_an_error_of_their_folder(small_disk):
    frame = np.random.default_rng(0).uniform(size=(1, 512, 768, 3)).astype(np.float16)  # 2 MB
    folder, options = small_disk / "light", OutputOptions(frames=FrameOutput(EXR_SPACES["srgb"]))
    with pytest.raises(WriterError) as error, open_sink(f"{folder}/", size=(768, 512), fps=24, options=options) as sink:
        for _ in range(3):
            sink.write(frame)
    assert str(error.value) == f"{folder}/: cannot be written (No space left on device)."
    assert os.listdir(small_disk) == []


@cpu_only("MLX compiles kernels in files for the CPU only")
def test_a_full_disk_for_kernels_is_one_sentence(small_disk, tmp_path):
    fill(small_disk)
    command = [sys.executable, "-m", "mlx_ltx_vae.decode", "--demo", "-o", str(tmp_path / "out.mp4")]
    environment = os.environ | {"TMPDIR": str(small_disk)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    expected = f"error: MLX could not compile a kernel for the CPU in the folder {small_disk}, which may be full"
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert done.stderr.startswith(expected)
    assert [path.name for path in tmp_path.iterdir()] == ["disk"]


@pytest.mark.quick(1)
@cpu_only("MLX compiles kernels in files for the CPU only")
@pytest.mark.skipif(not shutil.which("g++"), reason="without a compiler MLX compiles nothing")
@pytest.mark.parametrize(("option", "state"), [("noexec", "mounted noexec"), ("ro", "read-only")])
@pytest.mark.parametrize("variable", ["TMPDIR", "TEMP"])  # of the C++ library
def test_a_disk_that_takes_no_kernels_is_named_with_the_reason(small_disk, golden, latents, option, state, variable):
    subprocess.run(["mount", "-o", f"remount,{option}", small_disk], check=True)
    environment = {name: value for name, value in os.environ.items() if name not in ("TMPDIR", "TMP", "TEMP")}
    command = [sys.executable, "-m", "mlx_ltx_vae.decode", latents, "-m", golden("small_ltx2_3").checkpoint]
    command = [*map(str, command), "-q", "-o", str(latents.parent / "out.npy")]
    environment |= {variable: str(small_disk)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert f" the folder {small_disk}, which is {state}; set the environment variable TMPDIR to another one." in line
    assert not (latents.parent / "out.npy").exists()


@pytest.fixture
def no_temporary_folder(tmp_path, monkeypatch):
    """What Python finds where nothing but the output is writable."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "missing")])


NEEDS = {
    "metadata": lambda folder: open_sink(
        folder / "a.mp4", size=(32, 32), fps=24, options=OutputOptions(metadata={"a": "b"})
    ),
    "a pipe as output": lambda folder: open_sink(folder / "pipe.mp4", size=(32, 32), fps=24),
    "a pipe as input": lambda folder: load_latents(folder / "pipe.npy"),
    "images": lambda folder: VideoReader(folder / "images"),
    "a compressed still": lambda folder: compress_still(np.zeros((1, 32, 32, 3), np.uint8), 20),
}


@pytest.mark.parametrize("need", NEEDS)
def test_without_a_folder_for_temporary_files_what_needs_one_says_so(tmp_path, no_temporary_folder, need):
    for name in ("pipe.mp4", "pipe.npy"):
        os.mkfifo(tmp_path / name)
    writer = threading.Thread(target=(tmp_path / "pipe.npy").write_bytes, args=(b"\x93NUMPY" + bytes(99),), daemon=True)
    writer.start()
    (tmp_path / "images").mkdir()
    imageio.imwrite(tmp_path / "images" / "0.png", np.zeros((32, 32, 3), np.uint8))
    with pytest.raises(LTXVAEError, match="^no folder for temporary files can be written.*; set .* TMPDIR to one"):
        NEEDS[need](tmp_path)


def test_a_limit_of_file_sizes_is_refused_in_one_sentence(golden, latents, tmp_path):
    """Blocks are reserved before the decode, which needs no root to test."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    text = decode(latents, golden("small_ltx2_3").checkpoint, temporary, preexec_fn=limit)
    assert "(File too large)" in text
    assert os.listdir(temporary) == []


def test_the_blocks_of_a_buffer_are_reserved(tmp_path, monkeypatch):
    sizes, reserve = [], frame_buffer._reserve

    def reserve_and_measure(descriptor, size):
        reserve(descriptor, size)
        sizes.append(os.fstat(descriptor).st_blocks * 512)

    def parts():
        assert os.listdir(tmp_path) == []
        yield mx.zeros(SHAPE)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(frame_buffer, "_reserve", reserve_and_measure)
    for has_call in (True, False):
        if not has_call:  # as on macOS
            monkeypatch.delattr(os, "posix_fallocate", raising=False)
        for _ in frame_buffer.buffer_frames(parts(), SHAPE, mx.float32, Axis.HEIGHT):
            assert os.listdir(tmp_path) == []
    assert [size >= SIZE for size in sizes] == [True, True]


def test_a_disk_that_others_fill_meanwhile_does_not_matter(small_disk, monkeypatch):
    """With a sparse file, the first write would end the process with SIGBUS."""
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    rows = mx.random.normal(SHAPE)

    def parts():
        fill(small_disk)
        yield rows

    frames = list(frame_buffer.buffer_frames(parts(), SHAPE, mx.float32, Axis.HEIGHT))
    assert mx.array_equal(mx.concatenate(frames, axis=1), rows)
