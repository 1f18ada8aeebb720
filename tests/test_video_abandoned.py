"""Writers and readers that a program drops without closing them: nothing of them stays."""

import gc
import io
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

from mlx_ltx_vae import VideoReader, VideoWriter
from video_files import SIZE, children, kill_children, noise, open_files, open_sink, run_ffmpeg, write

PATIENCE = 60  # seconds, for what must happen at all


class Held:
    """What this process holds, to be compared with what it holds later."""

    def __init__(self, folder: Path) -> None:
        gc.collect()
        self.folder, self.threads = folder, set(threading.enumerate())
        self.before = self.now()

    def now(self) -> tuple[list[int], list[str], list[str]]:
        return children(), open_files(), sorted(map(str, self.folder.rglob("*")))

    def check_freed(self) -> None:
        """Threads end by themselves, and close what they read; programs and files must be gone already."""
        gc.collect()
        assert children() == self.before[0]
        for thread in set(threading.enumerate()) - self.threads:
            thread.join(PATIENCE)
        assert self.now() == self.before


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("name", "num_frames", "is_in_a_cycle"),
    [
        *((name, 30, True) for name in ("out.mp4", "out.gif", "out.npy", "new/", "old/")),
        *(("out.mp4", count, False) for count in (0, 30)),
    ],
)
def test_a_dropped_writer_leaves_nothing(tmp_path: Path, name: str, num_frames: int, is_in_a_cycle: bool) -> None:
    (tmp_path / "old").mkdir()
    held = Held(tmp_path)
    out = open_sink(f"{tmp_path}/{name}", size=SIZE, fps=24)
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


@pytest.mark.quick(2)
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


FORKS = """
import os, sys, time
import numpy as np
from mlx_ltx_vae.video import OutputOptions, VideoReader, VideoWriter, open_sink
from mlx_ltx_vae.video.audio import write_wav

def fork(act):
    if (child := os.fork()) == 0:
        act()  # and then the interpreter of the child exits, with all its finalizers
        sys.exit()
    os.waitpid(child, 0)

def drop():
    global used
    del used

def leave():
    with used:
        raise SystemExit

def attempt(act):
    try:
        act()
    except Exception as error:
        print(error, flush=True)

def end_all(*acts):
    for act in (lambda: None, drop, leave, *acts):
        fork(act)

folder, kind = sys.argv[1:]
if kind == "wav":
    def chunks():
        for _ in range(3):
            fork(lambda: None)
            yield np.full((2, 1000), 0.5, np.float32)
    write_wav(f"{folder}/out.wav", chunks(), sample_rate=48_000)
    sys.exit()
frames = np.random.default_rng(0).integers(0, 256, (30, 64, 96, 3), np.uint8)
if kind == "reader":
    with VideoWriter(f"{folder}/clip.mkv", size=(96, 64), fps=24, codec="ffv1") as used:
        used.write(frames)
    used = VideoReader(f"{folder}/clip.mkv")
    parts = [next(used)]
    end_all(lambda: attempt(lambda: next(used)), lambda: used.close())
    parts += list(used)
    assert (np.concatenate(parts) == frames).all()
    sys.exit()
name, options = {
    "file": ("out.mkv", {"codec": "ffv1"}),
    "audio": ("out.mkv", {"codec": "ffv1", "audio": iter([np.zeros((2, 60_000), np.float32)]), "sample_rate": 48_000}),
    "gif": ("out.gif", {}),
    "npy": ("out.npy", {}),
    "stills": ("out/", {}),
}[kind]
used = open_sink(f"{folder}/{name}", size=(96, 64), fps=24, options=OutputOptions(**options))
used.write(frames[:10])
end_all(lambda: attempt(lambda: used.write(frames)), lambda: attempt(lambda: used.close()), lambda: used.abort())
used.write(frames[10:])
read_end, write_end = os.pipe()
if (child := os.fork()) == 0:  # one that lives on
    os.close(write_end)
    os.read(read_end, 1)
    os._exit(0)
used.close()
os.close(write_end)
os.waitpid(child, 0)
"""


@pytest.mark.quick(2)
@pytest.mark.parametrize("kind", ["file", "reader", "audio", "gif", "npy", "stills", "wav"])
def test_a_forked_child_leaves_what_its_parent_writes_and_reads(tmp_path: Path, kind: str) -> None:
    """It exits, drops its copy, leaves the with-block by an error, or writes; and it may outlive the file."""
    allowed = "ignore:This process:DeprecationWarning"  # from Python 3.12 on: it has threads and forks
    command = [sys.executable, "-W", allowed, "-c", FORKS, str(tmp_path), kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    (output,) = tmp_path.iterdir()
    refusals = done.stdout.splitlines()
    assert len(refusals) == {"wav": 0, "reader": 1}.get(kind, 2)
    assert all("by the process that opened it; open" in line for line in refusals)
    if kind == "reader":
        return  # it has compared what it has read
    if kind == "wav":
        samples = np.frombuffer(run_ffmpeg("-i", output, "-f", "s16le", "-"), np.int16)
        assert (len(samples), set(samples)) == (6000, {16384})
        return
    if kind == "npy":
        frames = np.load(output)
    else:
        source = output if output.is_file() else output / "%05d.png"
        raw = run_ffmpeg("-i", source, "-map", "0:v", "-f", "rawvideo", "-pix_fmt", "rgb24", "-")
        frames = np.frombuffer(raw, np.uint8).reshape(-1, 64, 96, 3)
    assert len(frames) == 30
    if kind != "gif":  # which is lossy
        np.testing.assert_array_equal(frames, np.random.default_rng(0).integers(0, 256, frames.shape, np.uint8))
