"""An ffmpeg that no longer responds is ended wherever it is waited for, and one that works may take any time."""

import io
import os
import signal
import wave
from collections.abc import Callable
from pathlib import Path

import pytest

from mlx_ltx_vae.errors import ReaderError, WriterError
from mlx_ltx_vae.files import PartFile
from mlx_ltx_vae.video import VideoReader, VideoWriter, ffmpeg
from mlx_ltx_vae.video.audio import AudioReader
from mlx_ltx_vae.video.ffmpeg import FfmpegDecoder
from mlx_ltx_vae.video.metadata import read_metadata
from mlx_ltx_vae.video.writer import FfmpegEncoder
from video_files import SIZE, children, kill_children, noise, save_images, write

SILENT = r"ffmpeg failed: it has not responded for 0\.2 seconds\.$"


@pytest.fixture
def stop(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Stops the ffmpeg that runs, and then waits for signs of life for two ticks instead of a minute."""

    def begin() -> None:
        kill_children(signal.SIGSTOP)
        monkeypatch.setattr(ffmpeg, "MAX_SILENCE", 0.2)
        monkeypatch.setattr(ffmpeg, "TICK", 0.1)

    return begin


@pytest.fixture
def stopped_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ffmpeg that stops as soon as it has closed its output."""
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\n[ "$1" = -version ] && echo ffmpeg version && exit\nexec >&-\nkill -STOP $$\n')
    program.chmod(0o755)
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(program))
    assert ffmpeg._look_up(str(program))[1]
    monkeypatch.setattr(ffmpeg, "MAX_SILENCE", 0.2)
    monkeypatch.setattr(ffmpeg, "TICK", 0.1)


@pytest.mark.quick(2)
@pytest.mark.parametrize("is_live", [False, True])
@pytest.mark.parametrize("moment", ["write", "close"])
def test_a_stopped_ffmpeg_ends_a_write(tmp_path: Path, stop: Callable[[], None], moment: str, is_live: bool) -> None:
    target = io.BytesIO() if is_live else tmp_path / "out.mp4"
    out = VideoWriter(target, size=(256, 192), fps=24, fragmented=is_live)
    out.write(noise(2, (256, 192)))
    stop()
    with pytest.raises(WriterError, match=SILENT), out:
        for _ in range(20 if moment == "write" else 0):
            out.write(noise(8, (256, 192)))
    assert (children(), list(tmp_path.iterdir())) == ([], [])


@pytest.mark.quick(2)
@pytest.mark.parametrize("kind", ["video", "images", "audio"])
def test_a_stopped_ffmpeg_ends_a_read(tmp_path: Path, stop: Callable[[], None], kind: str) -> None:
    if kind == "video":
        reader = VideoReader(write(tmp_path / "in.mkv", noise(100), codec="ffv1"))
    elif kind == "images":
        save_images(tmp_path / "in", [f"{index}.png" for index in range(100)])
        reader = VideoReader(tmp_path / "in", fps=24)
    else:
        with wave.open(str(tmp_path / "in.wav"), "wb") as file:
            file.setparams((2, 2, 48_000, 0, "NONE", ""))
            file.writeframes(bytes(2_000_000))  # more than the pipe holds
        reader = AudioReader(tmp_path / "in.wav")
    stop()
    with pytest.raises(ReaderError, match=SILENT):
        list(reader)
    assert children() == []


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "read",
    [
        lambda path: ffmpeg.run_ffmpeg("in.mp4", ["-i", path], ReaderError),
        lambda path: FfmpegDecoder("in.mp4", ["-i", path]).finish(),
        lambda _: AudioReader(__file__),
        lambda path: read_metadata(Path(path)),
    ],
    ids=["probe", "end", "audio", "metadata"],
)
def test_an_ffmpeg_that_does_not_end_is_an_error(stopped_program: None, read: Callable[[str], object]) -> None:
    with pytest.raises(ReaderError, match=SILENT):
        read("in.mp4")
    assert children() == []


@pytest.mark.parametrize(("signs", "is_alive"), [([0] * 61, False), ([0] * 60, True), ([*range(9)] * 60, True)])
def test_only_silence_counts_however_long_it_takes(signs: list[int], is_alive: bool) -> None:
    """One sign a second of an ffmpeg that then is done. In the first second it cannot be known to be silent."""
    left = iter(signs)
    is_done = iter([False] * len(signs) + [True])
    assert ffmpeg.lives_until(lambda: next(is_done), lambda: next(left)) is is_alive


def test_a_file_that_ffmpeg_rewrites_is_a_sign_of_life(tmp_path: Path) -> None:
    """As it does at the end of an mp4, for minutes if that has many gigabytes, and without a report."""
    part = PartFile(tmp_path / "out.mkv")
    out = part.path
    arguments = ["-f", "rawvideo", "-pixel_format", "rgb24", "-video_size", "96x64", "-i", "pipe:0"]
    encoder = FfmpegEncoder("out.mkv", [*arguments, "-c:v", "ffv1"], part)
    encoder.write(noise(1, SIZE))
    kill_children(signal.SIGSTOP)
    out.touch()
    os.utime(out, ns=(0, 1))
    before = encoder._signs()
    assert encoder._signs() == before
    os.utime(out, ns=(0, 2))
    assert encoder._signs() != before
    encoder.kill()
    encoder.release()
