"""Stills through one frame of H.264: the pixels, which files may be compressed, and what commands say."""

import json
import shutil
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from PIL import Image

from commands import encode
from mlx_ltx_vae import ReaderError, VideoReader, VideoVAE, compress_still, demo, load_latents
from video_files import children, run_ffmpeg

HEIGHT, WIDTH = 67, 99


@pytest.fixture
def use_ffmpeg(tmp_path, monkeypatch):
    """`use_ffmpeg(script)`: the package's ffmpeg is a shell script, which first says its version."""

    def use(script):
        program = tmp_path / "ffmpeg"
        program.write_text(f"#!/bin/sh\n[ $1 = -version ] && echo ffmpeg version 9.0 && exit\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(program))

    return use


@pytest.fixture(scope="module")
def picture():
    """Ramps, a red square and noise, with odd sides."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    picture = np.stack([2 * x % 256, 3 * y % 256, (x + y) % 256], -1).astype(np.uint8)
    picture[10:40, 20:60] = (200, 30, 30)
    picture[45:60, 5:35] = np.random.default_rng(0).integers(0, 255, (15, 30, 3))
    return picture


@pytest.fixture
def photo(picture, tmp_path):
    Image.fromarray(picture).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def by_ffmpeg(photo: Path, crf: int) -> np.ndarray:
    """One frame of an mp4, as PyAV makes it for the pipelines, in one thread: swscale's bilinear filter, BT.601."""
    height, width = HEIGHT // 2 * 2, WIDTH // 2 * 2
    video, raw = photo.with_suffix(".mp4"), photo.with_suffix(".rgb")
    scale = ["-sws_flags", "bilinear"]
    crop = ["-vf", f"format=rgb24,crop={width}:{height}:0:0,scale=flags=bilinear,format=yuv420p"]
    x264 = ["-c:v", "libx264", "-preset", "veryfast", "-threads", "1", "-crf", str(crf)]
    run_ffmpeg("-framerate", "1", "-i", str(photo), *crop, *x264, str(video))
    run_ffmpeg("-i", str(video), "-vf", "scale=flags=bilinear,format=rgb24", *scale, "-f", "rawvideo", str(raw))
    return np.fromfile(raw, np.uint8).reshape(height, width, 3)


@pytest.mark.parametrize("crf", [18, 33])
def test_the_picture_is_one_frame_of_a_video(picture, photo, crf):
    expected = by_ffmpeg(photo, crf)
    assert np.array_equal(compress_still(picture, crf), expected)
    assert np.array_equal(compress_still(np.stack([picture[::-1], picture]), crf)[1], expected)
    with VideoReader(photo, crf=crf, multiple=1) as reader:
        assert np.array_equal(next(reader), expected[None])
        assert reader.source_size == (98, 66)


def test_a_higher_crf_is_a_worse_picture_and_0_the_same(picture):
    even = picture[:66, :98].astype(float)
    errors = [np.abs(compress_still(picture, crf) - even).mean() for crf in (5, 18, 33, 51)]
    assert errors == sorted(errors)
    assert errors[0] < errors[-1] / 2
    assert compress_still(picture, 0) is picture


def test_an_ffmpeg_that_fails_is_an_error(picture, use_ffmpeg):
    use_ffmpeg("echo Unknown encoder >&2; exit 1")
    with pytest.raises(ReaderError, match="^the still: ffmpeg failed: Unknown encoder"):
        compress_still(picture)


def test_pictures_with_more_levels_become_8_bits_first(picture, photo):
    deep = photo.with_name("deep.png")
    height, width, _ = picture.shape
    raw = ("-f", "rawvideo", "-pix_fmt", "rgb48le", "-s", f"{width}x{height}", "-i", "-", "-pix_fmt", "rgb48be")
    run_ffmpeg(*raw, deep, data=(picture.astype("<u2") * 257 + 100).tobytes())
    with VideoReader(deep, crf=33, multiple=1) as reader:
        assert np.array_equal(next(reader)[0], compress_still(picture, 33))


@pytest.mark.parametrize(
    ("frames", "crf", "words"),
    [
        (np.zeros((4, 4, 3), np.float32), 33, "float32; expected uint8"),
        (np.zeros((4, 4), np.uint8), 33, r"shape \(4, 4\)"),
        (np.zeros((1, 4, 3), np.uint8), 33, "2x2 pixels at least"),
        (np.zeros((4, 4, 3), np.uint8), 52, "expected a CRF from 0 .* to 51, not '52'"),
        (np.zeros((4, 4, 3), np.uint8), True, "expected a CRF"),
        (np.zeros((4, 4, 3), np.uint8), "33", "expected a CRF"),
    ],
)
def test_what_is_no_still_and_no_crf_is_refused(frames, crf, words):
    with pytest.raises(ReaderError, match=words):
        compress_still(frames, crf)


@pytest.mark.parametrize(("folder", "given", "crf"), [("vae", [], 33), ("ltx-2.5-mlx-q8", [], 18), ("vae", ["20"], 20)])
def test_the_command_compresses_as_the_generation_of_the_vae_wants(photo, picture, capsys, folder, given, crf):
    model, out = photo.parent / folder / "vae.safetensors", photo.with_name("a.safetensors")
    model.parent.mkdir()
    shutil.copy(demo.VAE, model)
    command = [str(photo), "-m", str(model), "-o", str(out), "--crop", "-y", "--compress", *given]
    assert encode([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["compress"] == crf
    cropped = compress_still(picture, crf)[1:65, 1:97]
    expected = VideoVAE.from_pretrained(demo.VAE, decoder=False).encode(cropped[None])
    assert mx.array_equal(load_latents(out)[0], expected)
    assert encode(command) == 0
    assert f" from 1 frame of 96x64 (cropped from 98x66), through H.264 at CRF {crf}, in " in capsys.readouterr().out


@pytest.mark.parametrize(("name", "number", "crf"), [("ltx-2.5", 0, 18), ("ltx-2.3", 1, 33)])
def test_the_name_of_a_model_tells_the_release_whatever_its_file_is_called(photo, hub_cache, capsys, name, number, crf):
    """The VAE of two releases, whose pipelines compress stills differently."""
    hub_cache("ltx-2.3", demo.VAE, number=number)
    command = [str(photo), "-m", name, "-o", "a.safetensors", "--crop", "--compress", "--json"]
    assert encode(command) == 0
    assert json.loads(capsys.readouterr().out)["compress"] == crf


@pytest.mark.parametrize(
    ("script", "count"),
    [("exit 0", "0"), ("head -c 100 /dev/zero", "100"), ("head -c 6144 /dev/zero", "at least 3073")],
)
def test_an_ffmpeg_that_prints_another_number_of_bytes_is_one_sentence(use_ffmpeg, script, count):
    use_ffmpeg(script)
    with pytest.raises(ReaderError) as error:
        compress_still(np.zeros((32, 32, 3), np.uint8))
    expected = "expected are the 3072 of one frame of 32x32, so use the ffmpeg of imageio-ffmpeg"
    assert str(error.value) == f"the still: ffmpeg returned {count} bytes; {expected}."
    assert children() == []


def test_noise_at_the_best_quality_is_compressed_whole():
    noise = np.random.default_rng(0).integers(0, 255, (256, 256, 3), np.uint8)
    assert np.abs(compress_still(noise, 0.1).astype(int) - compress_still(noise, 1)).mean() < 4


def test_videos_and_hdr_are_not_compressed(photo, capsys):
    run_ffmpeg("-loop", "1", "-t", "1", "-i", str(photo), "-vf", "scale=64:64", str(photo.with_suffix(".mp4")))
    command = ["-m", str(demo.VAE), "-o", str(photo.with_name("a.safetensors"))]
    assert encode([str(photo.with_suffix(".mp4")), *command, "--compress"]) == 1
    assert "photo.mp4: --compress is for one image, and this is a video or several" in capsys.readouterr().err
    for more, words in (
        (["--hdr", "acescg", "--compress"], "--compress is for pictures with 8 bits"),
        (["--compress", "52"], "--compress: expected a CRF from 0 to 51, not '52'"),
    ):
        with pytest.raises(SystemExit):
            encode([str(photo), *command, *more])
        assert words in capsys.readouterr().err
