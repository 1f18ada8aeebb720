"""Partial files and folders: those of living processes stay, those of killed ones are removed by the next."""

import fcntl
import os
import subprocess
import sys
from functools import partial

import pytest

from mlx_ltx_vae import WriterError, files
from mlx_ltx_vae.files import PartFile, part_folder
from video_files import names, open_files, open_sink

KEEPS = """
import sys
from pathlib import Path
from mlx_ltx_vae.files import PartFile
parts = [PartFile(Path(name)) for name in sys.argv[1:]]
print(flush=True)
sys.stdin.read()
"""


def finish(part: PartFile) -> None:
    part.path.write_bytes(b"whole")
    part.complete()


@pytest.fixture
def other(tmp_path):
    """Another process that writes to out.mp4, and has begun. `other.kill()` leaves its partial file."""
    command = [sys.executable, "-c", KEEPS, str(tmp_path / "out.mp4")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def test_the_part_of_a_living_process_stays_and_that_of_a_killed_one_goes(tmp_path, other):
    (theirs,) = names(tmp_path)
    others = {".out.0a1b2c3d.part.mkv", ".out2.0a1b2c3d.part.mp4", ".out.x.part.mp4", "out.0a1b2c3d.part.mp4"}
    for name in others:
        (tmp_path / name).touch()
    part = PartFile(tmp_path / "out.mp4")
    assert set(names(tmp_path)) == {theirs, part.path.name} | others
    finish(part)
    assert set(names(tmp_path)) == {theirs, "out.mp4"} | others
    other.kill()
    other.wait()
    part = PartFile(tmp_path / "out.mp4")
    assert set(names(tmp_path)) == {part.path.name, "out.mp4"} | others


def test_two_of_one_process_do_not_remove_each_other(tmp_path):
    first, second = PartFile(tmp_path / "out.mp4"), PartFile(tmp_path / "out.mp4")
    finish(second)
    first.path.write_bytes(b"first")
    first.complete()
    assert (tmp_path / "out.mp4").read_bytes() == b"first"


def test_folders_that_nobody_has_locked_are_removed(tmp_path):
    def leave(name):
        (tmp_path / name).mkdir()
        (tmp_path / name / "00000.png").touch()

    leave(".stills.0a1b2c3d.part")
    stills = open_sink(f"{tmp_path}/stills/", size=(8, 8), fps=24)
    assert not (tmp_path / ".stills.0a1b2c3d.part").exists()
    stills.abort()
    leave(".vae.0a1b2c3d.part")
    with part_folder(tmp_path / "vae"):
        assert not (tmp_path / ".vae.0a1b2c3d.part").exists()
    assert set(names(tmp_path)) == {"vae"}


@pytest.mark.parametrize("step", range(6))
def test_replaced_files_are_all_in_their_folder_if_a_step_of_their_replacement_fails(tmp_path, monkeypatch, step):
    """The first steps are that the new files are on the disk, and that each of three old ones leaves the folder."""
    old = {"a": "old", "b": "old", "c": "old"}
    for name, text in old.items():
        (tmp_path / name).write_text(text)
    actions = {"sync": files.sync, "replace": os.replace}
    steps = []

    def act(action, *arguments, **options):
        steps.append(action)
        if len(steps) == step + 2:
            raise OSError(5, "Input/output error")
        return actions[action](*arguments, **options)

    with pytest.raises(WriterError, match=r"Input/output error.* is kept as "), part_folder(tmp_path, [*old]) as part:
        for name in ("a", "b"):
            (part.path / name).write_text("new")
        monkeypatch.setattr(files, "sync", partial(act, "sync"))
        monkeypatch.setattr(os, "replace", partial(act, "replace"))
    assert {path.name: path.read_text() for path in tmp_path.iterdir() if path.is_file()} == old
    (kept,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert sorted(path.name for path in kept.rglob("*")) == ["a", "b", "output"]


def test_links_with_the_name_of_a_part_are_left_alone(tmp_path):
    (tmp_path / "precious").touch()
    (tmp_path / ".out.00000000.part.mp4").symlink_to("precious")
    (tmp_path / ".out.00000001.part.mp4").symlink_to("missing")
    PartFile(tmp_path / "out.mp4").discard()
    assert len(names(tmp_path)) == 3


def test_a_part_that_is_removed_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    """As another process may do that looks for abandoned ones at this moment."""
    lock, calls = fcntl.flock, []

    def late(descriptor, operation):
        if not calls:
            calls.append(operation)
            (path,) = tmp_path.iterdir()
            path.unlink()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    part = PartFile(tmp_path / "out.mp4")
    assert part.path.exists()
    finish(part)
    assert set(names(tmp_path)) == {"out.mp4"}


def test_file_systems_without_locks_keep_what_was_left(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    (tmp_path / ".out.0a1b2c3d.part.mp4").touch()
    finish(PartFile(tmp_path / "out.mp4"))
    assert set(names(tmp_path)) == {".out.0a1b2c3d.part.mp4", "out.mp4"}


def test_no_descriptor_stays_open(tmp_path):
    before = open_files()
    finish(PartFile(tmp_path / "out.mp4"))
    PartFile(tmp_path / "out.mp4").discard()
    with pytest.raises(WriterError):
        PartFile(tmp_path / "missing" / "out.mp4")
    assert open_files() == before
