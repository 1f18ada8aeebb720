"""encode of many inputs, end to end."""

import json
from pathlib import Path

import pytest

from commands import encode
from many_files import failed, names, run
from mlx_ltx_vae import load_latents
from video_files import run_ffmpeg, save_images


@pytest.fixture
def videos(tmp_path, monkeypatch):
    """A folder with videos made by ffmpeg: 9 frames of 64x64, 17 of 96x64 at 30 fps, and one that is damaged."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "set" / "sub").mkdir(parents=True)
    for name, frames, size, rate in (("a", 9, "64x64", 24), ("sub/b", 17, "96x64", 30)):
        source = f"testsrc=size={size}:rate={rate}"
        run_ffmpeg("-f", "lavfi", "-i", source, "-frames:v", frames, "-c:v", "ffv1", f"set/{name}.mkv")
    Path("set/broken.mp4").write_bytes(b"\0" * 1000)
    return tmp_path


def shape(path) -> tuple[int, ...]:
    return tuple(load_latents(path)[0].shape)


def test_many_videos_become_latents_and_a_broken_one_does_not_stop_them(videos, loads, capsys):
    arguments = ["set/a.mkv", "set/broken.mp4", "set/sub/b.mkv", "--demo", "-o", "latents/"]
    assert run(encode, *arguments) == 1
    captured = capsys.readouterr()
    first, second, *_, summary = captured.out.splitlines()
    assert first.startswith("set/a.mkv -> latents/a.safetensors: 9 frames, ")
    assert second.startswith("set/sub/b.mkv -> latents/b.safetensors: 17 frames, ")
    assert summary == "Inputs: 2 done, 0 skipped, 1 failed"
    broken, last = captured.err.splitlines()
    assert broken.startswith("error: set/broken.mp4: ")
    assert last == "error: 1 of 3 inputs failed."
    assert len(loads) == 1
    assert names("latents") == ["a.safetensors", "b.safetensors"]
    assert (shape("latents/a.safetensors"), shape("latents/b.safetensors")) == ((1, 64, 2, 2, 2), (1, 64, 3, 2, 3))
    assert run(encode, "set/a.mkv", "--demo", "-o", "alone.safetensors", "-q") == 0
    assert Path("alone.safetensors").read_bytes() == Path("latents/a.safetensors").read_bytes()
    assert run(encode, *arguments, "--skip-existing", "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert [sorted({"skipped", "error"} & set(item)) for item in report["items"]] == [
        ["skipped"],
        ["error"],
        ["skipped"],
    ]


def test_a_table_of_a_data_set_encodes_with_its_sizes_into_one_folder(videos, capsys):
    rows = [
        "media_path,caption,width,height,frames,fps,output",
        'sub/b.mkv,"b, b",64,32,9,15,',
        "a.mkv,a,,,,,x/first.safetensors",
    ]
    Path("set/clips.csv").write_text("\n".join(rows))
    (videos / "latents").mkdir()
    assert run(encode, "set/clips.csv", "--demo", "-o", "latents", "--json") == 0
    second, first = json.loads(capsys.readouterr().out)["items"]
    assert names("latents") == ["b.safetensors", "x/first.safetensors"]
    assert (second["source"], second["output"]) == ("set/sub/b.mkv", "latents/b.safetensors")
    assert (second["width"], second["height"], second["frames"], second["fps"]) == (64, 32, 9, 15)
    assert (second["source_fps"], second["latent_shape"]) == (30, [1, 64, 2, 1, 2])
    assert (first["width"], first["frames"], first["fps"]) == (64, 9, 24)
    assert run(encode, "set/clips.csv", "--demo", "-o", "other/", "--size", "32x32", "--frames", ":1", "-q") == 0
    assert shape("other/b.safetensors") == (1, 64, 1, 1, 1), "the command's options come first"


def test_dry_run_of_many_videos_plans_each_and_writes_nothing(videos, capsys):
    before = names(".")
    assert run(encode, "set/a.mkv", "set/sub/b.mkv", "--demo", "-o", "out/", "--dry-run") == 0
    first, second, _, summary = capsys.readouterr().out.splitlines()
    assert first.startswith("set/a.mkv -> out/a.safetensors: 9 frames of 64x64, exact by time, peak ")
    assert second.startswith("set/sub/b.mkv -> out/b.safetensors: 17 frames of 96x64")
    assert summary == "Inputs: 2 planned, 0 skipped, 0 failed"
    assert names(".") == before
    assert not (videos / "out").exists()


def test_latents_are_not_replaced_where_that_is_unwanted(videos, loads, capsys):
    Path("a.safetensors").write_text("kept")
    line = failed(capsys, "set/a.mkv", "--demo", "-o", "a.safetensors", main=encode)
    assert line.startswith("error: a.safetensors: already exists; ")
    assert loads == []
    line = failed(capsys, "set/a.mkv", "set/sub/b.mkv", "--demo", "-o", "./", main=encode)
    assert line == "error: ./a.safetensors: already exists; add -y to replace it, or -n to skip it."
    assert loads == []
    assert run(encode, "set/a.mkv", "set/sub/b.mkv", "--demo", "-o", "./", "-q", "-n") == 0
    assert Path("a.safetensors").read_text() == "kept"
    assert shape("b.safetensors") == (1, 64, 3, 2, 3)


def test_folders_of_images_are_inputs_and_an_output_outside_the_folder_is_refused(videos, capsys):
    save_images(Path("stills"), ["1.png"], (64, 64))
    assert run(encode, "stills/", "set/a.mkv", "--demo", "-o", "out/", "-q") == 0
    assert names("out") == ["a.safetensors", "stills.safetensors"]
    Path("set/clips.csv").write_text("path,output\na.mkv,../kept.safetensors\n")
    line = failed(capsys, "set/clips.csv", "--demo", "-o", "out/", main=encode)
    assert line.startswith("error: set/clips.csv, line 2: its output ")
