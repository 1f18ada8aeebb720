"""Writers and readers that a program drops without closing them: nothing of them stays."""

import gc
import io
import os
import signal
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

from mlx_ltx_vae.video import SinkOptions, VideoReader, VideoWriter, open_sink
from video_files import SIZE, children, kill_children, noise, write

PATIENCE = 60  # seconds, for what must happen at all


def open_files() -> set[str]:
    return set(os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"))


class Held:
    """What this process holds, to be compared with what it holds later."""

    def __init__(self, folder: Path) -> None:
        gc.collect()
        self.folder, self.threads = folder, set(threading.enumerate())
        self.before = self.now()

    def now(self) -> tuple[list[int], set[str], list[str]]:
        return children(), open_files(), sorted(map(str, self.folder.rglob("*")))

    def check_freed(self) -> None:
        """Threads end by themselves, and close what they read; programs and files must be gone already."""
        gc.collect()
        assert children() == self.before[0]
        for thread in set(threading.enumerate()) - self.threads:
            thread.join(PATIENCE)
        assert self.now() == self.before


OUTPUTS = [
    ("out.mp4", {}),
    ("out.mp4", {"fragmented": True}),
    ("out.gif", {}),
    ("out.npy", {}),
    ("new/", {}),
    ("old/", {}),
]


@pytest.mark.parametrize("is_in_a_cycle", [False, True])
@pytest.mark.parametrize("num_frames", [0, 30])
@pytest.mark.parametrize(("name", "options"), OUTPUTS)
def test_a_dropped_writer_leaves_nothing(
    tmp_path: Path, name: str, options: dict, num_frames: int, is_in_a_cycle: bool
) -> None:
    (tmp_path / "old").mkdir()
    held = Held(tmp_path)
    out = open_sink(f"{tmp_path}/{name}", size=SIZE, fps=24, options=SinkOptions(**options))
    for frames in np.split(noise(num_frames), 3):
        out.write(frames)
    if is_in_a_cycle:
        out.itself = out
    del out
    held.check_freed()


def test_a_writer_is_dropped_although_its_ffmpeg_hangs(tmp_path: Path) -> None:
    held = Held(tmp_path)
    out = VideoWriter(tmp_path / "out.mp4", size=(256, 192), fps=24)
    kill_children(signal.SIGSTOP)
    for _ in range(2):  # fills the pipe; the thread waits in it
        out.write(noise(8, (256, 192)))
    del out
    held.check_freed()


def test_a_writer_that_has_failed_and_was_not_closed_leaves_nothing(tmp_path: Path) -> None:
    held = Held(tmp_path)
    out = VideoWriter(tmp_path / "out.mp4", size=SIZE, fps=24)
    kill_children(signal.SIGKILL)
    with pytest.raises(Exception, match="signal 9"):
        for _ in range(50):
            out.write(noise(8))
    del out
    held.check_freed()


def test_a_dropped_stream_ends_its_ffmpeg_and_lets_go_of_its_file(tmp_path: Path) -> None:
    held, stream = Held(tmp_path), io.BytesIO()
    out = VideoWriter(stream, size=SIZE, fps=24, fragmented=True)
    out.write(noise(30))
    reference = weakref.ref(stream)
    del out, stream
    held.check_freed()
    assert reference() is None


def test_a_dropped_live_video_can_be_written_again_at_once(tmp_path: Path) -> None:
    for _ in range(5):
        out = VideoWriter(tmp_path / "out.mp4", size=SIZE, fps=24, fragmented=True)
        out.write(noise(30))
        del out
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["video", "images"])
@pytest.mark.parametrize("is_started", [False, True])
def test_a_dropped_reader_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, is_started: bool
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    path = write(tmp_path / "clip.mkv", noise(50)) if kind == "video" else tmp_path / "stills"
    if kind == "images":
        with open_sink(f"{path}/", size=SIZE, fps=24) as out:
            out.write(noise(50))
    held = Held(tmp_path)
    video = VideoReader(path)
    if is_started:
        next(video)
    del video
    held.check_freed()
