"""Outputs whose name or folder changes hands while they are written: an error, and nobody else's file is touched."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from conftest import nobody
from mlx_ltx_vae.errors import WriterError
from mlx_ltx_vae.process import remove_folder
from mlx_ltx_vae.video import OutputOptions, VideoWriter, open_sink
from video_files import SIZE, noise, numbered, numbers, read

LOST = "out.mp4: another program has moved, removed or replaced it while it was written; write it again."


def live(path: Path) -> VideoWriter:
    return VideoWriter(path, size=SIZE, fps=24, fragmented=True)


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def replace_file(path: Path) -> None:
    (path.parent / "other").write_bytes(b"precious")
    os.replace(path.parent / "other", path)


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def remove_its_folder(path: Path) -> None:
    remove_folder(path.parent)


def make_its_folder_a_file(path: Path) -> None:
    remove_folder(path.parent)
    path.parent.write_bytes(b"precious")


def move_it(path: Path) -> None:
    path.rename(path.with_name("moved.mp4"))


CHANGES: list[tuple[Callable[[Path], None], list[str]]] = [
    (replace_file, ["folder", "folder/out.mp4"]),
    (make_folder, ["folder", "folder/out.mp4"]),
    (remove_its_folder, []),
    (make_its_folder_a_file, ["folder"]),
    (move_it, ["folder", "folder/moved.mp4"]),
]


@pytest.mark.parametrize(("change", "left"), CHANGES)
def test_a_live_video_that_loses_its_name_fails_and_touches_no_other_file(
    tmp_path: Path, change: Callable[[Path], None], left: list[str]
) -> None:
    path = tmp_path / "folder" / "out.mp4"
    path.parent.mkdir()
    for is_completed in (True, False):
        out = live(path)
        out.write(noise(30))
        change(path)
        if is_completed:
            with pytest.raises(WriterError) as caught:
                out.close()
            assert str(caught.value).endswith(LOST)
        else:
            out.abort()
        assert tree(tmp_path) == left
        for name in left:
            if (tmp_path / name).is_file() and "moved" not in name:
                assert (tmp_path / name).read_bytes() == b"precious"
        for file in (path.parent, path):
            if file.is_file():
                file.unlink()
        remove_folder(path.parent)
        path.parent.mkdir()


def test_a_second_live_video_of_one_name_is_refused_and_the_first_is_whole(tmp_path: Path) -> None:
    path, link = tmp_path / "out.mp4", tmp_path / "link.mp4"
    link.symlink_to(path)
    with live(path) as first:
        first.write(numbered(24))
        for name in (path, link):
            with pytest.raises(WriterError, match=r"another live video is being written to it; choose another name\.$"):
                live(name)
        first.write(numbered(48)[24:])
    assert numbers(read(path)) == list(range(48))
    before = path.stat().st_ino
    with live(link) as second:  # the first is done
        second.write(numbered(12))
    assert numbers(read(path)) == list(range(12))
    assert path.stat().st_ino == before
    assert link.is_symlink()


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
            remove_folder(folder)
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


@pytest.mark.parametrize("name", [*OUTPUTS[:4], "live.mp4", "old/"])
def test_a_folder_that_becomes_read_only_is_one_error_that_names_the_output(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "folder"
    (folder / "old").mkdir(parents=True)
    changed = folder / "old" if name == "old/" else folder
    (changed / "earlier").write_bytes(b"precious")
    for parent in (tmp_path, *tmp_path.parents[:3]):  # of pytest and its processes, and closed to others
        if parent == Path(tempfile.gettempdir()):
            break
        parent.chmod(0o755)
    options = OutputOptions(fragmented=name == "live.mp4")
    out = open_sink(f"{folder}/{name}", size=SIZE, fps=24, options=options)
    out.write(noise(2))
    out._queue.finish()
    with read_only(changed):
        if name == "live.mp4":  # which could be completed
            with pytest.warns(UserWarning, match=r"live.mp4: cannot be removed \(Permission denied\); remove it"):
                out.abort()
        else:
            with pytest.raises(WriterError, match=r"cannot be written \(Permission denied\); .* kept as ") as refusal:
                out.close()
            assert Path(str(refusal.value).split(" is kept as ")[1].removesuffix(".")).exists()
    assert (changed / "earlier").read_bytes() == b"precious"


_LIVE = """
import sys
from mlx_ltx_vae.video import VideoWriter
import numpy as np
with VideoWriter(sys.argv[1], size=(96, 64), fps=24, fragmented=True) as out:
    out.write(np.zeros((30, 64, 96, 3), np.uint8))
    print("begun", flush=True)
    sys.stdin.readline()
"""


def test_a_live_video_in_another_process_is_noticed_and_its_end_too(tmp_path: Path) -> None:
    path = tmp_path / "out.mp4"
    command = [sys.executable, "-c", _LIVE, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"begun\n"
        with pytest.raises(WriterError, match="another live video"):
            live(path)
        process.kill()
    with live(path) as out:
        out.write(np.concatenate([numbered(5)]))
    assert numbers(read(path)) == list(range(5))
