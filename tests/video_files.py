"""Video and image files for the tests of the reader."""

import os
import signal
import subprocess
import wave
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import imageio.v3 as iio
import numpy as np
import pytest
from imageio_ffmpeg import get_ffmpeg_exe

from mlx_ltx_vae import ReaderError, VideoReader, VideoWriter
from mlx_ltx_vae.codec_table import AUDIO_CODECS, CODECS, CONTAINERS
from mlx_ltx_vae.video import (
    FrameFormat,
    FrameOutput,
    OutputOptions,
    check_output,
    ffmpeg,
    filters,
    open_sink,
    output_files,
)
from mlx_ltx_vae.video.audio import AudioReader, write_wav
from mlx_ltx_vae.video.codecs import ANIMATIONS
from mlx_ltx_vae.video.metadata import read_metadata

__all__ = [
    "ANIMATIONS", "AUDIO_CODECS", "AudioReader", "CODECS", "CONTAINERS", "FrameFormat", "FrameOutput",
    "OutputOptions", "SIZE", "change_listings", "check_output", "children", "forget_ffmpeg", "frame_times",
    "kill_children", "names", "noise", "numbered", "numbers", "open_files", "open_sink", "open_video",
    "output_files", "psnr", "read", "read_metadata", "refusal", "run_ffmpeg", "save_images", "write", "write_tone",
    "write_wav",
]  # fmt: skip

SIZE = (96, 64)


def run_ffmpeg(*arguments: object, data: bytes | None = None) -> bytes:
    """What ffmpeg writes to its standard output. One thread encodes: the bytes of x264 depend on their number."""
    *words, output = map(str, arguments)
    command = [get_ffmpeg_exe(), "-v", "error", "-y", *words, "-threads", "1", output]
    done = subprocess.run(command, input=data, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def forget_ffmpeg() -> None:
    """Ask the next ffmpeg again what it can do: it may be another program."""
    ffmpeg.listing.cache_clear()


def change_listings(monkeypatch: pytest.MonkeyPatch, change: Callable[[list[list[str]]], list[list[str]]]) -> None:
    """Have ffmpeg list what it can do with a change: from rows of words to rows."""
    listing = ffmpeg.listing
    for module in (ffmpeg, filters):
        monkeypatch.setattr(module, "listing", lambda *words, error: change(listing(*words, error=error)))


def names(folder: Path) -> list[str]:
    """The names in a folder, sorted."""
    return sorted(os.listdir(folder))


def open_files() -> list[str]:
    """The numbers of the files that this process has open."""
    return sorted(os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"))


def frame_times(source: object, *options: object, data: bytes | None = None) -> list[Fraction]:
    """The times of the packets of a video in seconds, by ffmpeg."""
    lines = run_ffmpeg(*options, "-i", source, "-c", "copy", "-f", "framecrc", "-", data=data).decode().splitlines()
    (unit,) = (Fraction(line.split(":")[1].strip()) for line in lines if line.startswith("#tb 0"))
    return sorted(int(line.split(",")[2]) * unit for line in lines if line.startswith("0,"))


def write_tone(path: Path, seconds: float) -> Path:
    """A .wav file with a tone in one channel."""
    rate = 48_000
    samples = 8000 * np.sin(np.arange(int(rate * seconds)) / 20)
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes(samples.astype("<i2").tobytes())
    return path


def noise(num_frames: int, size: tuple[int, int] = SIZE, dtype: type = np.uint8) -> np.ndarray:
    shape = (num_frames, size[1], size[0], 3)
    return np.random.default_rng(0).integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def psnr(frames: np.ndarray, other: np.ndarray, span: float = 255) -> float:
    """The peak signal-to-noise ratio of frames of one shape, in dB. `span` is the distance from black to white."""
    assert frames.shape == other.shape
    return float(20 * np.log10(span / np.sqrt(np.mean((frames.astype(np.float64) - other) ** 2))))


def numbered(num_frames: int, size: tuple[int, int] = SIZE) -> np.ndarray:
    """Flat frames whose brightness encodes their index."""
    levels = np.arange(num_frames, dtype=np.uint8) * 5 + 10
    return np.broadcast_to(levels[:, None, None, None], (num_frames, size[1], size[0], 3)).copy()


def numbers(frames: np.ndarray) -> list[int]:
    """The indices of `numbered` frames."""
    return [round((float(frame.mean()) - 10) / 5) for frame in frames]


@contextmanager
def open_video(path: Path, *, fragmented: bool = False, **options: Any) -> Iterator[VideoWriter]:
    """A writer of a video, or of one that plays while it grows in an open file."""
    with ExitStack() as stack:
        target = stack.enter_context(path.open("wb")) if fragmented else path
        yield stack.enter_context(VideoWriter(target, fragmented=fragmented, **options))


def write(target: object, frames: np.ndarray, fps: object = 24, **options: object) -> Any:
    """Write a video to a file or a stream, or stills, and return the target."""
    size = (frames.shape[2], frames.shape[1])
    if isinstance(target, Path) and target.suffix.lower() not in (".mkv", ".mov", ".mp4", ".webm"):
        sink = open_sink(target, size=size, fps=fps)
    else:
        sink = VideoWriter(target, size=size, fps=fps, bit_depth=8 if frames.dtype == np.uint8 else 10, **options)
    with sink as out:
        out.write(frames)
    return target


def read(path: Path, **options: object) -> np.ndarray:
    with VideoReader(path, **options) as video:
        parts = list(video)
        frames = np.concatenate(parts)
        assert all(part.dtype == video.dtype and 1 <= len(part) <= 8 for part in parts)
        assert frames.shape[1:] == (video.size[1], video.size[0], 3)
    return frames


def refusal(path: Path, **options: object) -> str:
    """The one-line error of a read that must fail."""
    with pytest.raises(ReaderError) as error:
        read(path, **options)
    text = str(error.value)
    assert "\n" not in text
    assert text.endswith(".")
    return text


def children(parent: int | None = None) -> list[int]:
    """The programs that a process, by default this one, has started and not waited for."""
    listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,comm="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listing.splitlines()]
    return [int(pid) for pid, above, name in rows if int(above) == (parent or os.getpid()) and not name.endswith("ps")]


def kill_children(number: signal.Signals) -> None:
    """Send a signal to the one program of this process."""
    (process_id,) = children()
    os.kill(process_id, number)


def save_images(folder: Path, names: Sequence[str], size: tuple[int, int] = SIZE) -> np.ndarray:
    folder.mkdir(exist_ok=True)
    frames = numbered(len(names), size)
    for name, frame in zip(names, frames, strict=True):
        iio.imwrite(folder / name, frame, plugin="pillow")
    return frames
