"""Warnings name the line that called the package, and not one inside it."""

import inspect
import wave
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlx_ltx_vae import Keyframes, VideoReader, VideoVAE, VideoWriter, demo
from test_security import calls
from video_files import run_ffmpeg


@pytest.fixture(scope="module")
def vae():
    return VideoVAE.from_pretrained(demo.VAE, dtype="bfloat16")


@pytest.fixture
def untagged(tmp_path):
    run_ffmpeg(
        "-f", "lavfi", "-i", "testsrc=size=1280x64:d=0.1", "-c:v", "ffv1", "-pix_fmt", "yuv420p", tmp_path / "clip.mkv"
    )
    return tmp_path / "clip.mkv"


PIXELS = mx.zeros((1, 3, 12, 32, 32))
LATENTS = mx.zeros((1, 64, 1, 1, 1))


def read(vae, path):
    VideoReader(path).close()


def encode(vae, path):
    vae.encode(PIXELS)


def encode_stream(vae, path):
    list(vae.encode_stream(PIXELS))


def ignore_keyframes(vae, path):
    vae.decode(mx.random.normal((1, 64, 2, 2, 2)), keyframes=Keyframes(LATENTS, (0,)))


def write_hdr(vae, path):
    vae.decode_to_file(mx.random.normal((1, 64, 1, 2, 2)), path.with_name("hdr.mp4"), hdr="acescct")


def write_audio(vae, path):
    with wave.open(str(path.with_name("long.wav")), "wb") as audio:
        audio.setparams((1, 2, 8000, 0, "NONE", "not compressed"))
        audio.writeframes(bytes(16000))
    writer = VideoWriter(path.with_name("audio.mp4"), size=(64, 64), fps=24, audio=path.with_name("long.wav"))
    writer.write(np.zeros((1, 64, 64, 3), np.uint8))
    writer.close()


def call_back(vae, path):
    def show(frames, start):
        VideoReader(path).close()

    vae.decode(mx.random.normal((1, 64, 1, 2, 2)), on_frames_ready=show)


@pytest.mark.parametrize("act", [read, encode, encode_stream, ignore_keyframes, write_hdr, write_audio, call_back])
def test_a_warning_names_the_caller_s_line(vae, untagged, act):
    with pytest.warns(UserWarning) as caught:
        act(vae, untagged)
    lines, first = inspect.getsourcelines(act)
    assert [Path(warning.filename).name for warning in caught] == [Path(__file__).name] * len(caught)
    assert all(first < warning.lineno < first + len(lines) for warning in caught)


@pytest.mark.slow
def test_only_one_function_warns():
    """It finds the caller's line. What cannot be removed is said at the end of a process, which has none."""
    found = {module for module, function, _ in calls() if function == "warnings.warn"}
    assert found == {"errors.py", "process.py"}
