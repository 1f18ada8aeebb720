"""Videos that play while they grow: what has arrived so far can be played, and nothing hangs when nobody reads."""

import io
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from imageio_ffmpeg import get_ffmpeg_exe

from commands import decode as main
from mlx_ltx_vae import VideoWriter, WriterError, demo, load_latents, save_latents
from video_files import (
    SIZE,
    OutputOptions,
    check_output,
    children,
    frame_times,
    kill_children,
    names,
    noise,
    numbered,
    numbers,
    open_files,
    open_sink,
    read,
    run_ffmpeg,
    write,
    write_tone,
)

PATIENCE = 60  # seconds, for what must happen at all
FIRST_FRAGMENT = 18  # frames at 24 per second: 12 of the fragment, and up to 6 that a codec and ffmpeg hold back


class Recorder(io.BytesIO):
    """A file object that says when the first fragment has arrived."""

    def __init__(self) -> None:
        super().__init__()
        self.has_fragment = threading.Event()

    def write(self, data) -> int:
        count = super().write(data)
        if b"mdat" in self.getvalue():
            self.has_fragment.set()
        return count


class Blocked(io.BytesIO):
    """A file object whose reader takes nothing before `released` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.released, self.left = threading.Event(), threading.Event(), threading.Event()

    def write(self, data) -> int:
        self.entered.set()
        self.released.wait(PATIENCE)
        self.left.set()
        return super().write(data)


@pytest.fixture
def tone(tmp_path: Path) -> Path:
    return write_tone(tmp_path / "tone.wav", 2)


def play(data: bytes) -> np.ndarray:
    """The frames that a player gets through a pipe that ends here."""
    raw_video = ["-map", "0:v", "-pix_fmt", "rgb24", "-f", "rawvideo", "-"]
    command = [get_ffmpeg_exe(), "-v", "error", "-i", "pipe:0", *raw_video]
    raw = subprocess.run(command, input=data, capture_output=True, check=False).stdout  # it may end anywhere
    return np.frombuffer(raw, np.uint8).reshape(-1, SIZE[1], SIZE[0], 3)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("codec", "with_audio"), [("h264", False), ("h264", True), ("hevc", False), ("vp9", True), ("av1", True)]
)
def test_what_a_stream_has_received_plays_while_later_frames_are_missing(
    tone: Path, codec: str, with_audio: bool
) -> None:
    stream = Recorder()
    with VideoWriter(
        stream, size=SIZE, fps=24, codec=codec, audio=tone if with_audio else None, fragmented=True
    ) as out:
        out.write(numbered(FIRST_FRAGMENT))
        assert stream.has_fragment.wait(PATIENCE)
        early = numbers(play(stream.getvalue()))
        out.write(numbered(48)[FIRST_FRAGMENT:])
    assert 12 <= len(early) <= FIRST_FRAGMENT
    assert early == list(range(len(early)))
    assert numbers(play(stream.getvalue())) == list(range(48))


def test_any_prefix_of_the_bytes_plays_up_to_where_it_ends() -> None:
    stream = io.BytesIO()
    write(stream, numbered(48), fragmented=True)
    data = stream.getvalue()
    counts = []
    for part in (0.5, 0.75, 0.9, 1):
        got = numbers(play(data[: int(len(data) * part)]))
        assert got == list(range(len(got)))
        counts.append(len(got))
    assert 0 < counts[0] < counts[1] < counts[2] < counts[3] == 48


def test_audio_and_frame_times_are_exact(tone: Path) -> None:
    stream = io.BytesIO()
    write(stream, numbered(30), "24000/1001", audio=tone, fragmented=True)
    data = stream.getvalue()
    assert frame_times("pipe:0", data=data) == [index * Fraction(1001, 24000) for index in range(30)]
    raw = run_ffmpeg("-i", "pipe:0", "-map", "0:a", "-f", "s16le", "-ar", "48000", "-", data=data)
    decoded = np.frombuffer(raw, "<i2").astype(float)
    assert 2 * 48_000 - 1024 <= len(decoded) <= 2 * 48_000 + 2048  # longer than the video, and whole
    assert np.std(decoded[48_000:90_000]) > 5000


def test_ffmpeg_that_fails_is_an_error() -> None:
    with (
        pytest.raises(WriterError, match=r"the output stream: ffmpeg failed: it was ended by signal 9\."),
        VideoWriter(io.BytesIO(), size=SIZE, fps=24, fragmented=True) as out,
    ):
        kill_children(signal.SIGKILL)
        for _ in range(10):
            out.write(noise(8))


def test_a_buffered_file_passes_each_fragment_on_at_once() -> None:
    read_end, write_end = os.pipe()
    with (
        open(read_end, "rb", buffering=0) as reader,
        open(write_end, "wb") as file,
        VideoWriter(file, size=SIZE, fps=24, fragmented=True) as out,
    ):
        out.write(numbered(FIRST_FRAGMENT))
        os.set_blocking(read_end, False)
        deadline, data = time.monotonic() + PATIENCE, b""
        while len(play(data)) < 12:
            assert time.monotonic() < deadline
            time.sleep(0.05)
            data += reader.read() or b""


@pytest.mark.parametrize("buffering", [0, -1])
def test_a_reader_that_goes_away_is_one_error(buffering: int) -> None:
    before = open_files()
    read_end, write_end = os.pipe()
    file = open(write_end, "wb", buffering=buffering)  # noqa: SIM115
    with (
        pytest.raises(WriterError, match=r"^the output stream: cannot be written \(Broken pipe\)\.$"),
        VideoWriter(file, size=SIZE, fps=24, fragmented=True) as out,
    ):
        os.close(read_end)
        for _ in range(1000):
            out.write(noise(8))
    assert 0 < out.frames_written < 8000
    assert children() == []
    with suppress(BrokenPipeError):  # a buffered file still has data
        file.close()
    assert open_files() == before


def test_a_reader_that_goes_away_before_the_last_frames_is_an_error() -> None:
    class Closed(io.BytesIO):
        def write(self, data) -> int:
            raise ValueError("closed by\nits reader")

    out = VideoWriter(Closed(), size=SIZE, fps=24, fragmented=True)
    out.write(noise(2))  # fewer than a fragment: ffmpeg writes when its input ends, and exits with 0
    with pytest.raises(WriterError, match="the output stream: cannot be written"):
        out.close()
    assert children() == []


@pytest.mark.slow
def test_frames_wait_for_a_reader_that_is_slow() -> None:
    stream, frames = Blocked(), noise(8)
    out = VideoWriter(stream, size=SIZE, fps=24, fragmented=True)

    def write_all() -> None:
        for _ in range(100):
            out.write(frames)

    writer = threading.Thread(target=write_all)
    writer.start()
    assert stream.entered.wait(PATIENCE)
    count = -1
    while count != out.frames_written:  # until it stands still
        count = out.frames_written
        time.sleep(1)
    assert count < 400
    stream.released.set()
    writer.join()
    out.close()
    assert len(play(stream.getvalue())) == 800


@pytest.mark.slow
def test_abort_does_not_wait_for_a_reader_that_hangs() -> None:
    stream = Blocked()
    out = VideoWriter(stream, size=SIZE, fps=24, fragmented=True)
    out.write(noise(30))
    assert stream.entered.wait(PATIENCE)
    out.abort()
    assert children() == []
    assert not stream.left.is_set()
    stream.released.set()


def test_a_file_that_does_not_block_is_an_error() -> None:
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    with (
        open(read_end, "rb"),
        open(write_end, "wb", buffering=0) as file,
        pytest.raises(WriterError, match="the file does not block"),
        VideoWriter(file, size=SIZE, fps=24, fragmented=True) as out,
    ):
        out.write(noise(200))


@pytest.mark.parametrize("name", ["out.mp4", "out.mov", "out.mkv", "out.gif", "out.npy", "new/", "%05d.png"])
def test_a_file_is_no_fragmented_video(tmp_path: Path, name: str) -> None:
    options = OutputOptions(fragmented=True)
    text = "only a file object gets a fragmented video; pass an open file"
    for function in (open_sink, check_output):
        with pytest.raises(WriterError, match=f"{name}: {text}"):
            function(f"{tmp_path}/{name}", size=SIZE, fps=24, options=options)
    if name.startswith("out.m"):
        with pytest.raises(WriterError, match=f"{name}: {text}"):
            VideoWriter(tmp_path / name, size=SIZE, fps=24, fragmented=True)
    assert names(tmp_path) == []


def test_a_stream_takes_only_fragmented_videos() -> None:
    with pytest.raises(WriterError, match="the output stream: .*add fragmented=True"):
        VideoWriter(io.BytesIO(), size=SIZE, fps=24)


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    """25 frames of the demo, 128x96 pixels."""
    latents, info = load_latents(demo.LATENTS)
    save_latents(tmp_path / "clip.safetensors", latents[:, :, :4, :3, :4], fps=info.fps)
    return tmp_path / "clip.safetensors"


def decode(*arguments: object, **options: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "mlx_ltx_vae.decode", *map(str, arguments), "-m", str(demo.VAE)]
    return subprocess.run(command, capture_output=True, check=False, **options)


@pytest.mark.slow
def test_the_command_writes_the_same_frames_live(clip: Path, tmp_path: Path, tone: Path) -> None:
    command = [str(clip), "-m", str(demo.VAE), "--audio", str(tone), "-q", "-o"]
    assert main([*command, str(tmp_path / "whole.mp4")]) == 0
    piped = decode(clip, "-o", "-", "--live", "--audio", tone)
    assert piped.returncode == 0, piped.stderr
    assert b"standard output: the video takes 1.04 s and its audio 2.00 s" in piped.stderr
    assert b"\nstandard output: 25 frames of " in piped.stderr
    assert piped.stdout.count(b"moof") >= 2
    (tmp_path / "piped.mp4").write_bytes(piped.stdout)
    expected, frames = (read(tmp_path / name).astype(float) for name in ("whole.mp4", "piped.mp4"))
    assert frames.shape == expected.shape == (25, 96, 128, 3)
    assert np.square(frames - expected).mean() < 255**2 / 10**3.5  # a psnr of 35 dB


def test_the_command_ends_quietly_when_its_reader_goes_away(clip: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "mlx_ltx_vae.decode", clip, "-m", demo.VAE, "-o", "-", "--live"]
    done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(("name", "options"), [("out.mp4", []), ("out.gif", []), ("-", ["--codec", "prores"])])
def test_the_command_refuses_what_cannot_be_live_before_it_reads_the_weights(
    clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture, name: str, options: list[str]
) -> None:
    output = name if name == "-" else str(tmp_path / name)
    with pytest.raises(SystemExit) as caught:
        main([str(clip), "-m", str(demo.VAE), "-o", output, "--live", "--dry-run", *options])
    assert caught.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    text = (
        "standard output: " if name == "-" else f"{output}: --live goes with -o -; redirect standard output to a file."
    )
    assert captured.err.startswith(f"error: {text}")
