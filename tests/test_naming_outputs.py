"""A finished output gets its name, or a number, or an error says where it is kept, whatever the file system refuses."""

import errno
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import warnings
from contextlib import contextmanager, suppress
from itertools import combinations
from pathlib import Path

import pytest

from checkpoint_files import convert_checkpoint, open_checkpoint
from latent_files import LatentsWriter
from many_files import failed, run
from mlx_ltx_vae import LatentsError, WriterError, decode, demo, encode
from mlx_ltx_vae.files import PartFile, part_folder
from mlx_ltx_vae.pipeline.output import name_outputs
from test_files_kept import PRECIOUS, REFUSED, REPLACED, mode, target_of, write
from test_full_disk import small_disk  # noqa: F401
from video_files import SIZE, noise, open_sink

CALLS = ("create", "rename", "unlink", "close", "fsync")
CONTENT = b"finished"
MOST_CREATED = 2000  # by a name that is tried, before a test fails instead of going on for ever


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@contextmanager
def denied(*calls, number=errno.EPERM):
    """The file system refuses some calls, with an error number. What is closed is closed all the same."""
    error, created = OSError(number, os.strerror(number)), []
    real_open, real_path_open, close = os.open, Path.open, os.close

    def refuse(*_, **__):
        raise error

    def note():
        if "create" in calls:
            refuse()
        created.append(1)
        assert len(created) < MOST_CREATED

    def open_descriptor(path, flags, *arguments, **options):
        if flags & os.O_CREAT:
            note()
        return real_open(path, flags, *arguments, **options)

    def open_path(path, mode="r", *arguments):
        if "x" in mode:
            note()
        file = real_path_open(path, mode, *arguments)
        if "x" in mode and "close" in calls:
            file.close()
            refuse()
        return file

    def close_and_refuse(descriptor):
        with suppress(OSError):  # `shutil.rmtree` closes again what was not closed
            close(descriptor)
        refuse()

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(os, "open", open_descriptor)
        patch.setattr(Path, "open", open_path)
        for name, function in (("create", "mkdir"), ("rename", "replace"), ("rename", "rename"), ("unlink", "unlink"),
                               ("unlink", "rmdir"), ("fsync", "fsync")):  # fmt: skip
            if name in calls:
                patch.setattr(os, function, refuse)
        if "close" in calls:
            patch.setattr(os, "close", close_and_refuse)
        yield


def new_file(folder):
    return PartFile(folder / "out.mp4", overwrite=False), PartFile.complete


def replaced_file(folder):
    (folder / "out.mp4").write_bytes(PRECIOUS)
    return PartFile(folder / "out.mp4"), PartFile.complete


def taken_file(folder):
    part = PartFile(folder / "out.mp4", overwrite=False)
    (folder / "out.mp4").write_bytes(PRECIOUS)
    return part, PartFile.complete


def folder_output(folder):
    context = part_folder(folder / "out")
    part = context.__enter__()

    def complete(part):
        context.__exit__(None, None, None)
        return part.target

    return part, complete


def empty_folder(folder):
    (folder / "out").mkdir()
    return folder_output(folder)


def taken_folder(folder):
    output = folder_output(folder)
    (folder / "out").mkdir()
    (folder / "out" / "1.txt").write_bytes(PRECIOUS)
    return output


def taken_empty_folder(folder):
    output = empty_folder(folder)
    (folder / "out" / "1.txt").write_bytes(PRECIOUS)
    return output


OUTPUTS = [new_file, replaced_file, taken_file, folder_output, empty_folder, taken_folder, taken_empty_folder]


@pytest.mark.parametrize("calls", [calls for count in range(6) for calls in combinations(CALLS, count)], ids="-".join)
def test_every_output_ends_in_its_name_or_a_number_or_an_error_that_names_it(tmp_path, calls):
    for make in OUTPUTS:
        folder = tmp_path / make.__name__
        folder.mkdir()
        part, complete = make(folder)
        files = ["1.txt", "2.txt"] if part.path.is_dir() else [""]
        for name in files:
            (part.path / name).write_bytes(CONTENT)
        target = part.target
        try:
            with denied(*calls):
                path = complete(part) or target
            is_free = make not in (taken_file, taken_folder, taken_empty_folder)
            assert (path == target) == is_free, make
            refused_by_these = {"fsync"} if make is replaced_file else {"fsync", "rename"}
            assert not refused_by_these & set(calls), make
        except WriterError as error:
            assert calls, make
            match = re.fullmatch(r"(.*/out(?:\.mp4)?): cannot be written \(.*\); .* is kept as (.*)\.", str(error))
            assert match[1] == str(target), error
            path = Path(match[2])
        assert [(path / name).read_bytes() for name in files] == [CONTENT] * len(files), make
        others = [file.read_bytes() for file in folder.rglob("*") if file.is_file() and file.read_bytes() != CONTENT]
        is_lost = make is replaced_file and path == target
        assert PRECIOUS in others or make in (new_file, folder_output, empty_folder) or is_lost, make
        assert len([content for content in others if content != PRECIOUS]) <= ("unlink" in calls), make


def test_a_power_cut_that_may_remove_a_name_is_a_warning(tmp_path, monkeypatch):
    fsync = os.fsync

    def refuse(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, "Input/output error")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse)
    part = PartFile(tmp_path / "out.mp4")
    part.path.write_bytes(CONTENT)
    with pytest.warns(UserWarning, match=r"out\.mp4: is complete, and a power cut .* \(Input/output error\)\.$"):
        assert part.complete() is None
    assert (tmp_path / "out.mp4").read_bytes() == CONTENT


def test_a_kept_output_outlives_the_next_one_of_the_same_name(tmp_path):
    part = PartFile(tmp_path / "out.mp4")
    part.path.write_bytes(CONTENT)
    with pytest.raises(WriterError, match="kept as") as refusal, denied("fsync", number=errno.EIO):
        part.complete()
    kept = Path(str(refusal.value).split("kept as ")[1].removesuffix("."))
    PartFile(tmp_path / "out.mp4").discard()
    assert os.listdir(tmp_path) == [kept.name] and not kept.name.startswith(".")
    assert kept.read_bytes() == CONTENT


def test_a_kept_output_that_could_not_be_renamed_outlives_the_next_one(tmp_path):
    part = PartFile(tmp_path / "out.mp4")
    part.path.write_bytes(CONTENT)
    with pytest.raises(WriterError, match="kept as") as refusal, denied("rename"):
        part.complete()
    kept = Path(str(refusal.value).split("kept as ")[1].removesuffix("."))
    PartFile(tmp_path / "out.mp4").discard()
    assert kept.name.startswith(".") and kept.read_bytes() == CONTENT


def test_several_outputs_go_through_a_link_to_a_missing_folder(here):
    Path("link").symlink_to("disk")
    inputs = [str(shutil.copy(demo.LATENTS, name)) for name in ("a.safetensors", "b.safetensors")]
    command = [*inputs, "-m", str(demo.VAE), "--frames", "0:1", "-o", "link/{name}.npy"]
    assert run(decode.main, *command) == 0
    assert sorted(os.listdir("disk")) == ["a.npy", "b.npy"] and Path("link").is_symlink()


def test_a_thousand_numbers_are_tried_and_no_more(tmp_path):
    for index in range(1, 1001):
        (tmp_path / f"out-{index}.mp4").touch()
    part = PartFile(tmp_path / "out.mp4", overwrite=False)
    (tmp_path / "out.mp4").touch()
    part.path.write_bytes(CONTENT)
    with pytest.raises(WriterError, match=r"\(its name and the next 1000 are taken\); .* is kept as .*\.part\.mp4\.$"):
        part.complete()
    assert len(os.listdir(tmp_path)) == 1002


@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("chattr"), reason="chattr is a program of Linux")
def test_a_folder_where_nothing_can_be_renamed_gets_one_file_and_one_error(tmp_path):
    folder = tmp_path / "append"
    folder.mkdir()
    (folder / "out.mp4").write_bytes(PRECIOUS)
    if subprocess.run(["chattr", "+a", folder], capture_output=True).returncode:
        pytest.skip("this file system, or user, has no append-only folders")
    try:
        part = PartFile(folder / "out.mp4")
        part.path.write_bytes(CONTENT)
        with (
            denied(),  # counts
            pytest.raises(WriterError, match=rf"not permitted\); .* is kept as {re.escape(str(part.path))}\.$"),
        ):
            part.complete()
        assert sorted(os.listdir(folder)) == [part.path.name, "out-1.mp4", "out.mp4"]
        assert (folder / "out.mp4").read_bytes() == PRECIOUS and part.path.read_bytes() == CONTENT
    finally:
        subprocess.run(["chattr", "-a", folder], check=True)


def fill(target):
    with part_folder(Path(target)) as part:
        (part.path / "1.txt").write_bytes(CONTENT)
        (part.path / "2.txt").write_bytes(CONTENT)
    return part.target


@pytest.mark.parametrize("name", [".", "./", "../out", "../out/"])
def test_a_folder_that_is_empty_stays_and_keeps_its_mode(here, monkeypatch, name):
    Path("out").mkdir()
    Path("out").chmod(0o700)
    monkeypatch.chdir("out")
    before = os.stat(".").st_ino
    assert fill(name) == Path(name)
    assert os.stat(here / "out").st_ino == before and mode(here / "out") == 0o700
    assert sorted(os.listdir(here / "out")) == ["1.txt", "2.txt"] and os.listdir(here) == ["out"]
    with pytest.raises(WriterError, match="already exists and is not an empty folder"):
        fill(name)


def test_a_conversion_fills_the_working_folder(here, golden):
    checkpoint = open_checkpoint(golden("conv_16x16x4").checkpoint)
    before = os.stat(".").st_ino
    assert convert_checkpoint(checkpoint, ".").output == str(here)
    assert os.stat(here).st_ino == before
    assert sorted(os.listdir(here)) == ["README.md", "config.json", "model.safetensors"]


@pytest.mark.parametrize("is_there", [False, True])
def test_a_link_to_a_folder_is_written_through(here, is_there):
    Path("link").symlink_to("disk")
    if is_there:
        Path("disk").mkdir()
    assert fill("link/") == Path("link")
    Path("others").symlink_to("new")
    with open_sink("others/", size=SIZE, fps=24) as out:
        out.write(noise(1))
    assert Path("link").is_symlink() and Path("others").is_symlink()
    assert sorted(os.listdir("disk")) == ["1.txt", "2.txt"] and os.listdir("new") == ["00000.png"]


def test_the_root_of_a_disk_is_filled(small_disk):  # noqa: F811
    assert fill(small_disk) == small_disk
    assert sorted(os.listdir(small_disk)) == ["1.txt", "2.txt"]
    subprocess.run(["umount", small_disk], check=True)
    try:
        assert os.listdir(small_disk) == [] and os.listdir(small_disk.parent) == ["disk"]
    finally:
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", small_disk], check=True)


@pytest.mark.parametrize("kind", ["empty", "missing", "none"])
def test_windows_name_the_folder_that_they_are_in(here, capsys, monkeypatch, kind):
    """Another program fills the folder meanwhile."""
    with open_sink("clip.mp4", size=(64, 64), fps=24) as out:
        out.write(noise(9, size=(64, 64)))
    if kind != "none":
        Path("windows").symlink_to("real")
    if kind == "empty":
        Path("real").mkdir()
    folder = here / ("windows" if kind == "none" else "real")
    complete = LatentsWriter.complete

    def late(writer, **options):
        folder.mkdir(exist_ok=True)
        (folder / "theirs").write_bytes(PRECIOUS)
        return complete(writer, **options)

    monkeypatch.setattr(LatentsWriter, "complete", late)
    command = ["clip.mp4", "-m", demo.VAE, "--windows", "9", "--carry", "1", "-o", "windows/", "--json"]
    assert run(encode.main, *map(str, command)) == 0
    printed, warned = capsys.readouterr()
    output = json.loads(printed)["output"]
    expected = {"empty": f"{folder}/output/", "missing": f"{folder}-1/", "none": "windows-1/"}[kind]
    assert output == expected
    assert f"windows: the name was taken meanwhile, so the output is {output.rstrip('/')}." in warned
    assert os.listdir(output) == ["00001.safetensors"]
    assert [path.name for path in folder.iterdir() if path.is_file()] == ["theirs"]


def test_windows_fill_the_working_folder(here, capsys, monkeypatch):
    with open_sink("clip.mp4", size=(64, 64), fps=24) as out:
        out.write(noise(9, size=(64, 64)))
    Path("out").mkdir()
    monkeypatch.chdir("out")
    command = ["../clip.mp4", "-m", str(demo.VAE), "--windows", "9", "--carry", "1", "-o"]
    assert "already exists and is not an empty folder" in failed(capsys, *command, "..", main=encode.main)
    assert run(encode.main, *command, "./") == 0
    assert os.listdir(here / "out") == ["00001.safetensors"]


@pytest.mark.parametrize("name", [*REPLACED, *REFUSED])
def test_a_file_that_is_read_only_is_never_replaced(here, name):
    target = target_of(name)
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(PRECIOUS)
    target.chmod(0o444)
    with pytest.raises(WriterError, match=rf"^{re.escape(str(target))}: already exists and is read-only; "):
        write(name, True)
    assert target.read_bytes() == PRECIOUS and len([path for path in here.rglob("*") if path.is_file()]) == 1


@pytest.mark.parametrize("name", [*REPLACED, *REFUSED])
def test_a_file_that_becomes_read_only_meanwhile_costs_no_output(here, name):
    target = target_of(name)
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(PRECIOUS)
    with pytest.warns(UserWarning, match="the name was taken meanwhile"):
        other = write(name, True, lambda: target.chmod(0o444))
    assert target.read_bytes() == PRECIOUS and target_of(other).stat().st_size > 50


def test_outputs_of_a_batch_are_named_after_the_output():
    assert name_outputs("a/clip.mp4", 1) == ["a/clip.mp4"]
    assert name_outputs("a/clip.mp4", 2) == ["a/clip-0.mp4", "a/clip-1.mp4"]
    assert name_outputs("out/", 2) == ["out-0/", "out-1/"]
    assert name_outputs("out/%05d.png", 2) == ["out-0/%05d.png", "out-1/%05d.png"]


@pytest.mark.parametrize("output", [".", "./", "..", "%05d.png", "../%05d.png"])
def test_videos_of_a_batch_need_a_folder_with_a_name(here, output):
    with pytest.raises(LatentsError, match=rf"^{re.escape(output)}: has no name for the folders of 2 videos; "):
        name_outputs(output, 2)
