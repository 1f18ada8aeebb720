"""Paths that begin with "~": after "=" a shell leaves it, and programs that call the package have no shell."""

import json
import os
import shutil
import wave

import mlx.core as mx
import numpy as np
import pytest
from imageio_ffmpeg import get_ffmpeg_exe

from checkpoint_files import convert_checkpoint, open_checkpoint
from commands import decode, report_of, values_of
from mlx_ltx_vae import (
    HDROptions,
    VideoReader,
    VideoVAE,
    VideoWriter,
    demo,
    integrations,
    load_latents,
    save_latents,
)
from video_files import OutputOptions, open_sink

LATENTS = mx.random.normal((1, 64, 1, 2, 2), key=mx.random.key(0))
FRAMES = np.random.default_rng(0).integers(0, 256, (9, 32, 32, 3), np.uint8)
OPTIONS = {
    "decode": ["-o", "--output", "-m", "--list", "--keyframes", "--audio", "--audio-model", "--audio-latents", "--exr"],
    "preview": ["-o", "-m", "--list", "--exr"],
    "encode": ["-o", "-m", "--audio-model"],
    "info": ["-m", "--audio-model"],
    "convert": ["-o"],
    "export": ["-m", "-o"],
    "bench": ["-m"],
    "run": ["--save-latents"],
}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty home folder. The working folder is another one, which is still empty after the test."""
    for name in ("home", "work"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "work")
    yield tmp_path / "home"
    assert os.listdir() == []


@pytest.fixture(scope="module")
def vae():
    return VideoVAE.from_pretrained(demo.VAE)


@pytest.mark.parametrize(("command", "option"), [(name, option) for name in OPTIONS for option in OPTIONS[name]])
def test_every_path_option_may_begin_with_the_home_folder(home, monkeypatch, command, option):
    argument = f"{option}=~/a/" if option.startswith("--") else f"{option}~/a/"
    rest = {"run": ["--", "app", "~/b"], "bench": [], "export": []}.get(command, ["b"])
    values = values_of(monkeypatch, command, [argument, *rest])
    assert f"{home}/a/" in values
    assert command != "run" or ["app", "~/b"] in values  # which belong to the app


@pytest.mark.parametrize("command", ["decode", "preview", "encode", "info"])
def test_inputs_and_lists_may_begin_with_the_home_folder(home, monkeypatch, command):
    inputs = ["~/a.npy", "@~/list.txt", "./~/a.npy", "a~"]
    expected = [f"{home}/a.npy", f"@{home}/list.txt", f"{os.getcwd()}/~/a.npy", "a~"]
    assert expected in values_of(monkeypatch, command, inputs)


def test_lines_of_lists_and_tables_may_begin_with_the_home_folder(home, capsys):
    (home / "list.txt").write_text("~/a.npy\nb.npy\n")
    (home / "table.csv").write_text("path,output\n~/a.npy,~/a.mp4\n")
    for name in ("a.npy", "b.npy"):
        np.save(home / name, LATENTS)
    inputs = [f"@{home}/list.txt", f"{home}/table.csv", "-m", str(demo.VAE), "-o", f"{home}/{{name}}.mkv"]
    assert decode([*inputs, "--dry-run", "--json"]) == 0
    items = json.loads(capsys.readouterr().out)["items"]
    assert [item["source"] for item in items] == [f"{home}/a.npy", f"{home}/b.npy", f"{home}/a.npy"]
    assert items[2]["output"] == f"{home}/a.mp4"


def test_a_command_writes_to_the_home_folder(home):
    save_latents(home / "a.safetensors", LATENTS)
    assert decode(["~/a.safetensors", "-m", str(demo.VAE), "-q", "--output=~/out/"]) == 0
    assert os.listdir(home / "out") == ["a.mp4"]


def write_video(path, **options):
    with VideoWriter(path, size=(32, 32), fps=24, **options) as video:
        video.write(FRAMES)


def write_stills(path):
    with open_sink(path, size=(32, 32), fps=24) as stills:
        stills.write(FRAMES[:1])


WRITERS = {
    "a video": ("a.mp4", lambda vae, path: write_video(path)),
    "stills": ("a/", lambda vae, path: write_stills(path)),
    "a decode": ("a.npy", lambda vae, path: vae.decode_to_file(LATENTS, path)),
    "latents": ("a.safetensors", lambda vae, path: save_latents(path, LATENTS)),
    "a picture": ("a.png", lambda vae, path: next(iter(vae.stream(LATENTS))).save(path)),
    "a conversion": ("a", lambda vae, path: convert_checkpoint(open_checkpoint(demo.VAE), path)),
    "latents of an app": ("a", lambda vae, path: integrations.install(save_latents=path).remove()),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_outputs_may_begin_with_the_home_folder(home, vae, writer):
    name, write = WRITERS[writer]
    write(vae, f"~/{name}")
    assert os.listdir(home) == [name.rstrip("/")]


def test_the_folder_of_exr_images_may_begin_with_the_home_folder(home):
    assert HDROptions("acescct", exr="~/exr/").choose_frames(OutputOptions()).exr_folder == f"{home}/exr/"


def test_inputs_may_begin_with_the_home_folder(home, monkeypatch):
    shutil.copy(demo.VAE, home / "vae.safetensors")
    save_latents(home / "latents.safetensors", LATENTS)
    with wave.open(str(home / "a.wav"), "wb") as file:
        file.setparams((2, 2, 48000, 0, "NONE", ""))
        file.writeframes(bytes(4 * 18000))
    os.symlink(get_ffmpeg_exe(), home / "ffmpeg")
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", "~/ffmpeg")
    write_video(home / "a.mov", audio="~/a.wav", audio_codec="pcm")
    assert VideoReader("~/a.mov").num_frames == len(FRAMES)
    assert report_of("~/a.mov")["frames"] == len(FRAMES)
    assert mx.array_equal(load_latents("~/latents.safetensors")[0], LATENTS)
    assert VideoVAE.from_pretrained("~/vae.safetensors").decode(LATENTS).shape == (1, 3, 1, 64, 64)
