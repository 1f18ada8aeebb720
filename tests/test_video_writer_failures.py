"""Failures while writing: a one-line error, no deadlock, nothing left behind."""

import io
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from imageio_ffmpeg import get_ffmpeg_exe

from conftest import file_size_limit
from mlx_ltx_vae import ReaderError, VideoReader, VideoWriter, WriterError
from mlx_ltx_vae.files import PartFile
from mlx_ltx_vae.frame_format import RGB8
from mlx_ltx_vae.video import Sink, ffmpeg, writer
from mlx_ltx_vae.video.ffmpeg import FfmpegDecoder
from video_files import check_output, children, kill_children, names, open_files, open_sink

SIZE = (256, 192)  # 147 kB a frame, more than a pipe holds


def make_frames(num_frames: int = 2) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (num_frames, SIZE[1], SIZE[0], 3), np.uint8)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out.mp4"


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("out.mp4", {"bit_depth": 12}, "bit depth of 12"),
        ("out.mp4", {"crf": 52}, "not between 0 and 51"),
        ("out.txt", {}, "a video file must end in"),
        ("missing/out.mp4", {}, "No such file or directory"),
        ("file/out.mp4", {}, "Not a directory"),
        ("folder.mp4", {}, "is a folder"),
    ],
)
def test_invalid_options_are_refused_before_ffmpeg_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, options: dict, words: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder.mp4").mkdir()
    monkeypatch.setattr(writer, "FfmpegEncoder", None)
    with pytest.raises(WriterError) as refusal:
        VideoWriter(tmp_path / name, **({"size": SIZE, "fps": 24} | options))
    assert words in str(refusal.value)
    assert names(tmp_path) == ["file", "folder.mp4"]


def test_codec_that_this_ffmpeg_lacks_is_named(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ffmpeg, "listing", lambda *_, **__: [[], ["V....D", "libx264"], ["V....D", "gif"]])
    with pytest.raises(WriterError, match="built without libx265, which hevc needs; use h264, which it has"):
        VideoWriter(target, size=SIZE, fps=24, codec="hevc")
    with pytest.raises(WriterError, match="built without prores_ks, which prores needs; use h264, which it has"):
        VideoWriter(target.with_suffix(".mov"), size=SIZE, fps=24, codec="prores")
    for ending, encoder in ((".webp", "libwebp"), (".avif", "libsvtav1")):
        with pytest.raises(WriterError, match=f"without {encoder}, which {ending} needs; use .gif, which it has"):
            check_output(target.with_suffix(ending), size=SIZE, fps=24)


@pytest.mark.parametrize("name", ["out.mp4", "out.gif"])
def test_missing_ffmpeg_is_a_writer_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    ffmpeg.listing.cache_clear()  # cached, and used for an mp4 only
    monkeypatch.setattr("imageio_ffmpeg.get_ffmpeg_exe", lambda: "/nowhere/ffmpeg")
    with pytest.raises(WriterError, match="ffmpeg cannot be started"):
        open_sink(tmp_path / name, size=SIZE, fps=24)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((1, 192, 256, 3), np.uint16),
        np.zeros((1, 256, 192, 3), np.uint8),
        np.zeros((192, 256, 3), np.uint8),
        np.zeros((1, 192, 256, 4), np.uint8),
        [0],
    ],
)
def test_frames_of_another_shape_or_dtype_are_refused_at_write(target: Path, wrong: object) -> None:
    with VideoWriter(target, size=SIZE, fps=24) as out:
        with pytest.raises(WriterError, match=r"takes uint8 frames \(n, 192, 256, 3\)"):
            out.write(wrong)
        out.write(make_frames())
        assert out.frames_written == 2
    assert names(target.parent) == ["out.mp4"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_exception_in_the_block_leaves_no_file_and_no_process(target: Path, error: type[BaseException]) -> None:
    target.write_bytes(b"earlier")
    with pytest.raises(error), VideoWriter(target, size=SIZE, fps=24) as out:
        out.write(make_frames())
        assert len(children()) == 1
        raise error
    assert children() == []
    assert names(target.parent) == ["out.mp4"]
    assert target.read_bytes() == b"earlier"


@pytest.mark.parametrize("num_more", [10, 0], ids=["between writes", "before close"])
def test_ffmpeg_that_is_killed_is_a_writer_error(target: Path, num_more: int) -> None:
    with pytest.raises(WriterError, match="signal 9"), VideoWriter(target, size=SIZE, fps=24) as out:
        out.write(make_frames())
        kill_children(signal.SIGKILL)
        for _ in range(num_more):
            out.write(make_frames())
    assert names(target.parent) == []


def test_ffmpeg_that_hangs_can_be_aborted(target: Path) -> None:
    out = VideoWriter(target, size=SIZE, fps=24)
    kill_children(signal.SIGSTOP)
    out.write(make_frames(8))  # fills the pipe; the thread waits in it
    out.write(make_frames(8))
    out.abort()
    assert children() == []
    assert names(target.parent) == []


def test_ctrl_c_on_a_terminal_does_not_reach_ffmpeg(target: Path) -> None:
    out = VideoWriter(target, size=SIZE, fps=24)
    assert [os.getpgid(process_id) != os.getpgid(0) for process_id in children()] == [True]
    out.abort()


_WRITE_FOREVER = """
import sys, numpy as np
from mlx_ltx_vae.video import VideoWriter
with VideoWriter(sys.argv[1], size=(256, 192), fps=24) as out:
    while True:
        out.write(np.zeros((4, 192, 256, 3), np.uint8))
        if out.frames_written == 40:
            print("writing", flush=True)
"""


def test_ctrl_c_on_a_terminal_ends_everything_and_leaves_nothing(target: Path) -> None:
    command, pipe = [sys.executable, "-c", _WRITE_FOREVER, target], subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, start_new_session=True)
    assert process.stdout.readline() == b"writing\n"
    (child,) = children(process.pid)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to the whole group
    _, error = process.communicate()
    assert error.decode().strip().endswith("KeyboardInterrupt")
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    assert names(target.parent) == []


def test_many_failures_leave_no_open_files(target: Path) -> None:
    VideoWriter(target, size=SIZE, fps=24).abort()
    before, writers = open_files(), []  # kept alive, so that only closing closes
    for _ in range(5):
        writers.append(VideoWriter(target, size=SIZE, fps=24))
        writers[-1].abort()
        with VideoWriter(target, size=SIZE, fps=24) as out:
            out.write(make_frames())
        writers.append(out)
    assert open_files() == before


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("text", "contains no audio that ffmpeg can read: Error opening input: Invalid data found"),
        ("nothing", "contains no audio that ffmpeg can read: "),
        ("header", "contains no audio that ffmpeg can read: "),
        ("silent video", "contains no audio stream"),
    ],
)
def test_audio_file_without_audio_is_named_before_ffmpeg_starts(
    target: Path, monkeypatch: pytest.MonkeyPatch, content: str, words: str
) -> None:
    voice = target.parent / "voice.wav"
    if content == "silent video":
        with VideoWriter(target, size=SIZE, fps=24) as out:
            out.write(make_frames())
        target.rename(voice)
    elif content == "header":
        voice.write_bytes(b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x40\x1f\0\0\x80\x3e\0\0\2\0\x10\0")
    else:
        voice.write_text({"text": "not audio", "nothing": ""}[content])
    monkeypatch.setattr(writer, "FfmpegEncoder", None)
    with pytest.raises(WriterError) as refusal:
        VideoWriter(target, size=SIZE, fps=24, audio=voice)
    assert str(refusal.value).startswith(f"{voice}: {words}")
    assert names(target.parent) == ["voice.wav"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="/dev/full exists on Linux only")
@pytest.mark.parametrize(("size", "name"), [(SIZE, "out.mp4"), ((16, 16), "out.mkv")])
def test_full_disk_gives_ffmpegs_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: tuple, name: str
) -> None:
    class FullDisk(PartFile):
        path = Path("/dev/full")

        def __init__(self, target: Path, **_: object) -> None:
            self.target = target

        def discard(self) -> None:
            """Keep the device."""

    monkeypatch.setattr(writer, "PartFile", FullDisk)
    with (
        pytest.raises(WriterError, match=rf"{name}: ffmpeg failed: .*No space left on device"),
        VideoWriter(tmp_path / name, size=size, fps=24) as out,
    ):
        for _ in range(5):  # a few small frames fit into the pipe before ffmpeg notices
            out.write(np.zeros((2, size[1], size[0], 3), np.uint8))


@pytest.mark.parametrize(("name", "size"), [("out.npy", SIZE), ("out.npy", (10, 10)), ("new/", SIZE)])
def test_full_disk_is_a_writer_error_for_other_sinks(tmp_path: Path, name: str, size: tuple) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (1, size[1], size[0], 3), np.uint8)
    with (
        file_size_limit(50_000),
        pytest.raises(WriterError, match=r"cannot be written \(File too large\)"),
        open_sink(f"{tmp_path}/{name}", size=size, fps=24) as out,
    ):
        for _ in range(300):
            out.write(noise)
    assert names(tmp_path) == []


@contextmanager
def few_open_files(number: int) -> Iterator[None]:
    """Lets this process open as many files more, at most."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)  # the lowest number that is free
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + number, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


TOO_MANY_OPEN_FILES = (
    r"^ffmpeg cannot be started \(Too many open files\); raise the limit of open files \(ulimit -n\)\.$"
)


@pytest.mark.quick(2)
@pytest.mark.parametrize("number", [2, 4])
@pytest.mark.parametrize("name", ["out.gif", "out.mp4"])
def test_the_limit_of_open_files_is_named(tmp_path: Path, name: str, number: int) -> None:
    open_sink(tmp_path / name, size=SIZE, fps=24).abort()  # which lists what this ffmpeg can do
    with few_open_files(number), pytest.raises(WriterError, match=TOO_MANY_OPEN_FILES):
        open_sink(tmp_path / name, size=SIZE, fps=24)
    assert names(tmp_path) == []


@pytest.mark.parametrize("number", [1, 3])
def test_the_limit_of_open_files_is_named_by_a_reader(tmp_path: Path, number: int) -> None:
    with VideoWriter(tmp_path / "in.mp4", size=SIZE, fps=24) as out:
        out.write(make_frames())
    with few_open_files(number), pytest.raises(ReaderError, match=TOO_MANY_OPEN_FILES):
        FfmpegDecoder("in.mp4", ["-i", str(tmp_path / "in.mp4"), "-f", "rawvideo"])


@pytest.mark.parametrize("name", ["out.mp4", "out.gif"])
def test_the_limit_of_file_sizes_is_named(tmp_path: Path, name: str) -> None:
    with (
        file_size_limit(50_000),
        pytest.raises(WriterError, match=rf"{name}: ffmpeg failed: the file would be larger than .* \(ulimit -f\)\.$"),
        open_sink(tmp_path / name, size=SIZE, fps=24) as out,
    ):
        for _ in range(20):
            out.write(make_frames())
    assert names(tmp_path) == []


NOISE = {"lines": "yes noise that nobody needs | head -c 500000 >&2", "line": "head -c 500000 /dev/zero >&2"}


@pytest.mark.parametrize("noise", NOISE)
def test_an_ffmpeg_that_logs_more_than_a_pipe_holds_writes_and_reads(
    target: Path, monkeypatch: pytest.MonkeyPatch, noise: str
) -> None:
    program = target.with_name("ffmpeg")
    program.write_text(f'#!/bin/sh\ncase "$*" in *pipe:*) {NOISE[noise]};; esac\nexec {get_ffmpeg_exe()} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setattr("imageio_ffmpeg.get_ffmpeg_exe", lambda: str(program))
    for output, options in ((target, {}), (io.BytesIO(), {"fragmented": True})):
        with VideoWriter(output, size=SIZE, fps=24, **options) as out:
            out.write(make_frames(20))
    with pytest.raises(ReaderError) as caught:  # a file for which ffmpeg logs anything is not trusted
        list(VideoReader(target))
    assert len(str(caught.value)) < 1200
    assert str(caught.value).isprintable()


def test_lost_frame_is_an_error(target: Path) -> None:
    with (
        pytest.raises(WriterError, match="received 3 frames and wrote 2"),
        VideoWriter(target, size=SIZE, fps=24) as out,
    ):
        out.write(make_frames(2))
        out.frames_written += 1
    assert names(target.parent) == []


@pytest.mark.parametrize("name", ["out.mp4", "out.gif", "out.npy", "new/"])
def test_no_frames_is_an_error_and_no_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(WriterError, match="no frames"), open_sink(f"{tmp_path}/{name}", size=SIZE, fps=24) as out:
        out.write(make_frames(0))
    assert names(tmp_path) == []


def test_closed_sink_refuses_frames_and_can_be_closed_and_aborted_again(target: Path) -> None:
    with VideoWriter(target, size=SIZE, fps=24) as out:
        out.write(make_frames())
    out.close()
    out.abort()
    with pytest.raises(WriterError, match="closed"):
        out.write(make_frames())
    assert names(target.parent) == ["out.mp4"]


def failing_sink(consume: Callable[[], None], discard: Callable[[], None]) -> Sink:
    """A minimal sink that cannot be completed."""

    def complete(_: int) -> None:
        raise OSError(28, "No space left on device")

    return Sink("somewhere", SIZE, RGB8, lambda _: consume(), complete, discard)


@pytest.mark.parametrize("error", [OSError(5, "five"), ValueError("five"), WriterError("five")])
def test_any_error_in_the_thread_is_a_writer_error(error: Exception) -> None:
    def consume() -> None:
        raise error

    discards: list[str] = []
    out = failing_sink(consume, lambda: discards.append("discarded"))
    with pytest.raises(WriterError, match="five"), out:
        for _ in range(3):
            out.write(make_frames())
    assert discards == ["discarded"]


def test_error_at_the_end_is_a_writer_error_and_discards() -> None:
    discards: list[str] = []
    out = failing_sink(lambda: None, lambda: discards.append("discarded"))
    with pytest.raises(WriterError, match=r"somewhere: cannot be written \(No space left on device\)"), out:
        out.write(make_frames())
    assert discards == ["discarded"]
