"""Files of numpy whose headers lie, which hold objects, or which would fill the memory or the disk."""

import io
import math
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from numpy.lib import format as npy_format

import latent_files
from latent_files import open_latents
from mlx_ltx_vae import LatentsError, files, load_latents

SHAPE = (1, 8, 3, 4, 5)
HUGE = (1, 8, 2**20, 2**10, 2**10)  # 35 TB as float32


@pytest.fixture
def latents() -> np.ndarray:
    return np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)


def npy(array: np.ndarray, shape: tuple | None = None) -> bytes:
    """A .npy file, whose header may state another shape."""
    file = io.BytesIO()
    header = npy_format.header_data_from_array_1_0(array) | ({} if shape is None else {"shape": shape})
    npy_format.write_array_header_1_0(file, header)
    return file.getvalue() + array.tobytes()


def write_npz(path: Path, compression: int = zipfile.ZIP_DEFLATED, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def refusal(path: Path) -> str:
    text = latent_files.refusal(path, open_latents)
    assert text.startswith(f"{path}: ")
    return text


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("shape", [HUGE, (1, 8, 3, 4, 6), (1, 8, 3, 4, 4), (1, -8, -3, 4, 5)])
def test_a_shape_that_does_not_fit_the_members_size_is_refused_at_opening(
    tmp_path: Path, latents: np.ndarray, shape: tuple, compression: int
) -> None:
    text = refusal(write_npz(tmp_path / "clip.npz", compression, latents=npy(latents, shape)))
    assert "latents has" in text or "shape is (1, -8, -3, 4, 5)" in text


@pytest.mark.parametrize("num_bytes", [10, 400])
def test_an_archive_without_its_beginning_says_so(tmp_path: Path, latents: np.ndarray, num_bytes: int) -> None:
    path = write_npz(tmp_path / "clip.npz", zipfile.ZIP_STORED, latents=npy(latents))
    content = path.read_bytes()
    path.write_bytes(content[:4] + content[-num_bytes:])
    assert "(a part of it would begin before the file)" in refusal(path)


@pytest.mark.parametrize("shape", [HUGE, (1, 8, 3, 4, 6), (1, -8, -3, 4, 5)])
def test_a_npy_file_that_is_too_short_for_its_shape_is_refused_at_opening(
    tmp_path: Path, latents: np.ndarray, shape: tuple
) -> None:
    (tmp_path / "clip.npy").write_bytes(npy(latents, shape))
    text = refusal(tmp_path / "clip.npy")
    assert "so it was cut short" in text or "shape is (1, -8, -3, 4, 5)" in text


def test_arrays_behind_the_first_in_a_npy_file_are_ignored_as_numpy_does(tmp_path: Path, latents: np.ndarray) -> None:
    with (tmp_path / "clip.npy").open("wb") as file:
        np.save(file, latents)
        np.save(file, latents + 1)
    assert np.array_equal(np.array(load_latents(tmp_path / "clip.npy")[0]), latents)


# Opens files, and prints the peak memory beyond that of the imports.
_OPEN = """
import resource, sys
from mlx_ltx_vae import LTXVAEError
from mlx_ltx_vae.latents import open_latents

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

before = peak()
for path in sys.argv[1:]:
    try:
        print(open_latents(path).shape, file=sys.stderr)
    except LTXVAEError as error:
        print(error, file=sys.stderr)
print(peak() - before)
"""
LARGE = 2**26  # bytes


def deflated_zeros(path: Path, name: str, start: bytes) -> Path:
    """A small .npz with a large member, most of it zeros."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        if name != "latents":
            archive.writestr("latents.npy", npy(np.zeros(SHAPE, np.float32)))
        archive.writestr(f"{name}.npy", start + bytes(LARGE))
    assert path.stat().st_size < 1e6
    return path


def npy_header(shape: tuple, descr: str) -> bytes:
    file = io.BytesIO()
    npy_format.write_array_header_1_0(file, {"shape": shape, "fortran_order": False, "descr": descr})
    return file.getvalue()


@pytest.mark.slow
def test_what_is_large_is_not_read_when_a_file_is_opened(tmp_path: Path) -> None:
    large_header = b"\x93NUMPY\x02\x00" + (LARGE - 12).to_bytes(4, "little")
    starts = {
        "large array": ("fps", npy_header((LARGE // 4,), "<f4"), "frames=3"),
        "large value": ("fps", npy_header((), f"<U{LARGE // 4}"), "fps takes 67.1 MB, where a single value was expec"),
        "large member": ("fps", npy_header((), "<f4"), "fps has 67108992 bytes, where its shape () takes 132"),
        "large header": ("fps", large_header, "cannot be read"),
        "bomb": ("latents", npy_header((1, 8, 2, 2**10, 2**10), "<f4"), "frames=2, height=1024, width=1024"),
    }
    paths = [deflated_zeros(tmp_path / f"{kind}.npz", *start[:2]) for kind, start in starts.items()]
    paths.append(tmp_path / "clip.npy")
    paths[-1].write_bytes(large_header)
    os.truncate(paths[-1], LARGE)
    done = subprocess.run([sys.executable, "-c", _OPEN, *paths], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 30e6
    for words, line in zip(
        [*(words for *_, words in starts.values()), "cannot be read"], done.stderr.splitlines(), strict=True
    ):
        assert words in line


class Bomb:
    """Makes a file when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return (Path.touch, (self.path,))


def test_objects_in_numpy_files_are_never_loaded(tmp_path: Path, latents: np.ndarray) -> None:
    evidence, path = tmp_path / "evidence", tmp_path / "clip.npz"
    bomb = np.array(Bomb(evidence), dtype=object)
    np.savez(path, latents=np.full(SHAPE, bomb, dtype=object))
    assert "latents is stored as object" in refusal(path)
    np.savez(path, latents=latents, fps=bomb)
    assert "it holds Python objects, which could run any code when read" in refusal(path)
    np.savez(path, latents=latents, prompt=bomb)
    assert np.array_equal(np.array(load_latents(path)[0]), latents)
    np.save(tmp_path / "clip.npy", np.full(SHAPE, bomb, dtype=object))
    assert "clip is stored as object" in refusal(tmp_path / "clip.npy")
    assert not evidence.exists()


def test_members_that_numpy_does_not_write_are_refused(tmp_path: Path, latents: np.ndarray) -> None:
    path = write_npz(tmp_path / "clip.npz", zipfile.ZIP_LZMA, latents=npy(latents))
    assert "latents is compressed in a way that numpy does not write" in refusal(path)
    write_npz(path, zipfile.ZIP_STORED, latents=npy(latents))
    content = bytearray(path.read_bytes())
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(signature) + flags] |= 1  # encrypted
    path.write_bytes(content)
    assert "encrypted" in refusal(path)


def test_an_archive_behind_other_content_is_read(tmp_path: Path, latents: np.ndarray) -> None:
    """As zip readers do: offsets count from the start of the archive."""
    write_npz(tmp_path / "inner.npz", zipfile.ZIP_STORED, latents=npy(latents))
    path = tmp_path / "clip.npz"
    path.write_bytes(b"PK, a line\n" + (tmp_path / "inner.npz").read_bytes())
    assert np.array_equal(np.array(load_latents(path)[0]), latents)


def test_two_arrays_of_one_name_are_refused(tmp_path: Path, latents: np.ndarray) -> None:
    """Programs differ in which of them they take."""
    with zipfile.ZipFile(tmp_path / "clip.npz", "w") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        for values in (latents, latents + 1):
            archive.writestr("latents.npy", npy(values))
    assert "it has two members 'latents.npy'" in refusal(tmp_path / "clip.npz")


def test_members_that_are_not_used_are_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, latents: np.ndarray
) -> None:
    """Their number costs a line of the directory each: opening them took 22 s for 150,000."""
    monkeypatch.setattr(files, "MAX_MEMBERS", 1000)
    others = {f"other {index}": b"" for index in range(999)}
    path = write_npz(tmp_path / "clip.npz", zipfile.ZIP_STORED, latents=npy(latents), **others)
    calls, count = 0, lambda frame, event, _: count_calls(event)

    def count_calls(event: str) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        assert open_latents(path).shape == SHAPE
    finally:
        sys.setprofile(None)
    assert calls < 20 * len(others)
    write_npz(path, zipfile.ZIP_STORED, latents=npy(latents), more=b"", **others)
    assert "header too large; expected at most 16 MB and 1000 tensors" in refusal(path)


def test_arrays_that_must_be_read_at_once_have_a_limit(tmp_path: Path, latents: np.ndarray) -> None:
    shape = (2, 8, 2**20, 64, 64)
    with (tmp_path / "clip.npy").open("wb") as file:
        file.write(npy_header(shape, "<f4"))
        file.truncate(file.tell() + 4 * math.prod(shape))
    with pytest.raises(LatentsError, match=r"takes 274.88 GB, and more than 2.15 GB are read frame by frame only"):
        open_latents(tmp_path / "clip.npy").map()[:, :, :1]


def test_damaged_compressed_latents_are_refused(tmp_path: Path, latents: np.ndarray) -> None:
    path = tmp_path / "clip.npz"
    np.savez_compressed(path, latents=latents)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(LatentsError, match="clip.npz: cannot be read"):
        load_latents(path)
