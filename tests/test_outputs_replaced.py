"""Outputs whose name or folder changes hands while they are written: an error, and nobody else's file is touched."""

import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from conftest import nobody
from mlx_ltx_vae import WriterError
from video_files import SIZE, noise, open_sink


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


OUTPUTS = ["out.mp4", "out.mkv", "out.gif", "out.npy", "new/", "%d.png"]


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_whose_folder_becomes_a_file_is_one_error(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "folder"
    for is_completed in (True, False):
        folder.mkdir()
        with (
            pytest.raises(WriterError if is_completed else ValueError) as caught,
            open_sink(f"{folder}/{name}", size=SIZE, fps=24) as out,
        ):
            out.write(noise(2))
            out._queue.finish()
            shutil.rmtree(folder)
            folder.write_bytes(b"precious")
            if not is_completed:
                raise ValueError("the error that is told")
        assert str(caught.value).startswith(f"{folder}/{name}: " if is_completed else "the error")
        assert tree(tmp_path) == ["folder"]
        assert folder.read_bytes() == b"precious"
        folder.unlink()


@contextmanager
def read_only(folder: Path):
    """Root may write everywhere, and becomes somebody else meanwhile."""
    folder.chmod(0o555)
    try:
        with nobody():
            yield
    finally:
        folder.chmod(0o755)


@pytest.mark.parametrize("name", [*OUTPUTS[:4], "old/"])
def test_a_folder_that_becomes_read_only_is_one_error_that_names_the_output(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "folder"
    (folder / "old").mkdir(parents=True)
    changed = folder / "old" if name == "old/" else folder
    (changed / "earlier").write_bytes(b"precious")
    for parent in (tmp_path, *tmp_path.parents[:3]):  # of pytest and its processes, and closed to others
        if parent == Path(tempfile.gettempdir()):
            break
        parent.chmod(0o755)
    out = open_sink(f"{folder}/{name}", size=SIZE, fps=24)
    out.write(noise(2))
    out._queue.finish()
    with read_only(changed):
        with pytest.raises(WriterError, match=r"cannot be written \(Permission denied\); .* kept as ") as refusal:
            out.close()
        assert Path(str(refusal.value).split(" is kept as ")[1].removesuffix(".")).exists()
    assert (changed / "earlier").read_bytes() == b"precious"
