"""The preview command, end to end: latents in, a small clip or a contact sheet out, in one process each."""

import json
import os
import subprocess
import sys
from pathlib import Path

import imageio.v3 as iio
import mlx.core as mx
import numpy as np
import pytest

from checkpoint_files import tiny_decoder_tensors
from commands import preview
from many_files import failed, names, run
from mlx_ltx_vae import PreviewVAE, VideoReader, VideoVAE, demo, load_latents, save_latents

RGB = ["-m", str(demo.LATENT_RGB)]


def command(*arguments, **options):
    """The command in a process of its own."""
    line = [sys.executable, "-m", "mlx_ltx_vae", "preview", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, check=False, **options)


@pytest.fixture
def clips(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    latents, _ = load_latents(demo.LATENTS)
    save_latents("one.safetensors", latents, fps=24, num_frames=73, height=256, width=384)
    save_latents("pair.safetensors", mx.concatenate([latents[:, :, :2], latents[:, :, 2:4]]), fps=16)
    Path("broken.npy").write_text("not latents")
    return tmp_path


def test_the_demo_needs_nothing_else(tmp_path):
    done = command("--demo", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["frames"], report["width"], report["height"]) == (10, 96, 64)
    assert report["fps"] == 240 / 73, "the duration of 73 frames at 24 frames a second"
    assert report["output"] == "preview.mp4"
    with VideoReader(tmp_path / "preview.mp4") as video:
        frames = np.concatenate(list(video))
    projected = VideoVAE.from_pretrained(demo.LATENT_RGB).decode_uint8(load_latents(demo.LATENTS)[0])
    assert frames.shape == projected.shape
    assert np.abs(frames.astype(int) - projected).mean() < 4  # of compression


def test_a_name_that_ends_in_png_is_a_contact_sheet(clips, capsys):
    assert run(preview, "one.safetensors", *RGB, "-o", "one.png") == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.startswith("one.png: 10 frames of 96x64, 3.0 s at 3.28767 fps, in ")
    sheet = iio.imread("one.png")
    assert sheet.shape == (3 * 276 + 8, 4 * 392 + 8, 3)
    projected = VideoVAE.from_pretrained(demo.LATENT_RGB).decode_uint8(load_latents("one.safetensors")[0])
    for place, frame in enumerate(projected):
        top, left = 8 + place // 4 * 276, 8 + place % 4 * 392
        picture = sheet[top : top + 256, left : left + 384].reshape(64, 4, 96, 4, 3).mean((1, 3))
        assert np.abs(picture - frame).mean() < 3
    assert run(preview, "one.safetensors", *RGB, "-o", "%05d.png", "-q") == 0  # stills, as everywhere
    assert len(names(".")) == 3 + 1 + 10


def test_many_inputs_batches_and_errors_are_those_of_decode(clips, capsys):
    assert (
        run(preview, "one.safetensors", "pair.safetensors", "broken.npy", *RGB, "-o", "out/{name}.png", "--json") == 1
    )
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert [item.get("frames") for item in report["items"]] == [10, 4, None]
    assert (report["failed"], report["skipped"]) == (1, 0)
    assert report["items"][1]["contact_sheet"] == ["out/pair-0.png", "out/pair-1.png"]
    assert names("out") == ["one.png", "pair-0.png", "pair-1.png"]
    assert "error: broken.npy: " in printed.err
    assert run(preview, "one.safetensors", "pair.safetensors", *RGB, "-o", "clips/", "-q") == 0
    assert names("clips") == ["one.mp4", "pair-0.mp4", "pair-1.mp4"]
    assert run(preview, "one.safetensors", *RGB, "-o", "out/one.gif", "-q") == 0
    assert capsys.readouterr().out == ""
    assert "one.png: already exists" in failed(capsys, "one.safetensors", *RGB, "-o", "out/one.png", main=preview)
    assert run(preview, "one.safetensors", *RGB, "-o", "out/one.png", "--skip-existing") == 0
    assert capsys.readouterr().out == "one.safetensors: skipped, found out/one.png\n"


def test_latents_of_another_vae_are_one_error(clips, capsys):
    np.save("other.npy", np.zeros((1, 128, 2, 2, 2), np.float32))
    line = failed(capsys, "other.npy", *RGB, "-o", "other.png", main=preview)
    assert line.startswith(
        "error: other.npy: latents (1, 128, 2, 2, 2) have 128 channels where the VAE latent_rgb.safetensors has 64"
    )
    assert "no such file" in failed(capsys, "one.safetensors", "-m", "missing", "-o", "one.png", main=preview)


def test_frames_are_counted_in_pictures_and_a_plan_is_shown(clips, capsys):
    assert run(preview, "one.safetensors", *RGB, "-o", "one.npy", "--frames", "2:5", "-q") == 0
    whole = VideoVAE.from_pretrained(demo.LATENT_RGB).decode_uint8(load_latents("one.safetensors")[0])
    assert np.array_equal(np.load("one.npy"), whole[2:5])
    assert run(preview, "one.safetensors", *RGB, "--dry-run") == 0
    assert "10 frames of 96x64" in capsys.readouterr().out


def test_any_decoder_makes_a_sheet(clips):
    small = mx.array(np.array(load_latents("one.safetensors")[0][:, :, :2, :2, :2].astype(mx.float32)))
    save_latents("small.safetensors", small)
    assert run(preview, "small.safetensors", "-m", demo.VAE, "-o", "small.png", "-q") == 0
    assert iio.imread("small.png").shape == (3 * (384 + 20) + 8, 3 * 392 + 8, 3)  # nine frames of 64x64


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A TAEHV with few channels and random weights."""
    path = tmp_path_factory.mktemp("tiny") / "taeltx2_3.safetensors"
    arrays = tiny_decoder_tensors(8, 8, 8, 8)
    arrays["decoder.layers.22.weight"] *= 100  # pictures that one can see
    arrays["decoder.layers.22.bias"] += 0.5
    mx.save_safetensors(str(path), arrays)
    return path


def test_a_preview_has_the_frames_of_the_source_without_padding(clips, tiny, capsys):
    latents = mx.random.normal((1, 128, 4, 2, 3), key=mx.random.key(0))
    save_latents("padded.safetensors", latents, fps=24, num_frames=25, source_frames=20)
    for options, frames in (([], 20), (["--all-frames"], 25)):
        assert run(preview, "padded.safetensors", "-m", tiny, "-o", "a.npy", "-y", "-q", *options) == 0
        assert len(np.load("a.npy")) == frames
    assert run(preview, "padded.safetensors", "-m", tiny, "-o", "gallery.html", "-q") == 0
    assert "20 frames" in Path("gallery.html").read_text()


def test_a_tiny_decoder_makes_all_frames_of_a_clip_and_one_picture_per_latent_frame_of_a_sheet(clips, tiny, capsys):
    latents = mx.random.normal((1, 128, 4, 2, 3))
    save_latents("clip.safetensors", latents, fps=24, num_frames=25, height=64, width=96)
    vae = PreviewVAE.from_pretrained(tiny)
    reports = {}
    for output in ("clip.npy", "clip.png", "%05d.png"):
        assert run(preview, "clip.safetensors", "-m", tiny, "-o", output, "--json") == 0
        reports[output] = json.loads(capsys.readouterr().out)
    assert [(each["frames"], each["fps"]) for each in reports.values()] == [(25, 24), (4, 3.84), (25, 24)]
    assert {(each["width"], each["height"]) for each in reports.values()} == {(96, 64)}
    frames = np.load("clip.npy")
    assert np.array_equal(frames, vae.decode_uint8(latents))
    stills = np.array(vae.decode_stills(latents)[0].transpose(1, 2, 3, 0))
    sheet = iio.imread("clip.png")
    for place in range(4):
        top, left = 8 + place // 2 * 276, 8 + place % 2 * 392
        picture = sheet[top : top + 256, left : left + 384].reshape(64, 4, 96, 4, 3).mean((1, 3))
        distances = np.abs(picture - np.round((stills + 1) * 127.5)).mean((1, 2, 3))
        assert distances.argmin() == place
        assert distances[place] < 10  # of enlarging a random picture
    assert (Path("00024.png").exists(), Path("00025.png").exists()) == (True, False)


def test_it_is_a_console_script(tmp_path):
    (tmp_path / "mlx_ltx_vae").write_text("import sys\nfrom mlx_ltx_vae.__main__ import main\nsys.exit(main())\n")
    line = [sys.executable, tmp_path / "mlx_ltx_vae", "preview", "--help"]
    shown = subprocess.run(line, capture_output=True, text=True, check=True, env=os.environ).stdout
    assert shown.startswith("usage: mlx_ltx_vae preview LATENTS... -m MODEL [-o OUT] [options]")
