"""Stills, arrays and standard output, and the choice of a sink by name."""

import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest
from PIL import Image

from mlx_ltx_vae import VideoReader, WriterError
from video_files import OutputOptions, check_output, names, open_sink, run_ffmpeg

SIZE = (10, 6)


def make_frames(num_frames: int = 5, dtype: type = np.uint8) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, (num_frames, SIZE[1], SIZE[0], 3)).astype(dtype)


def write(path: str | os.PathLike, frames: np.ndarray, **options: object) -> None:
    with open_sink(path, size=SIZE, fps=24, options=OutputOptions(**options)) as out:
        out.write(frames[:2])
        out.write(frames[2:])


@pytest.mark.parametrize(
    ("given", "folder", "pattern"),
    [("new/", "new", "%05d.png"), ("new/a_%03d.png", "new", "a_%03d.png"), ("old", "old", "%05d.png")],
)
def test_stills_are_the_frames_numbered_from_zero(tmp_path: Path, given: str, folder: str, pattern: str) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "notes.txt").write_text("stays")
    write(f"{tmp_path}/{given}", make_frames())
    stills = [name for name in names(tmp_path / folder) if name != "notes.txt"]
    assert stills == [pattern % index for index in range(5)]
    for name, frame in zip(stills, make_frames(), strict=True):
        np.testing.assert_array_equal(iio.imread(tmp_path / folder / name), frame)
    assert names(tmp_path) == sorted({folder, "old"})


def test_stills_of_bit_depth_10_have_all_16_bits(tmp_path: Path) -> None:
    frames = np.random.default_rng(0).integers(0, 2**16, (3, SIZE[1], SIZE[0], 3), np.uint16)
    write(f"{tmp_path}/new/", frames, bit_depth=10)
    with VideoReader(tmp_path / "new", multiple=1) as video:
        np.testing.assert_array_equal(np.concatenate(list(video)), frames)
    raw = run_ffmpeg("-i", tmp_path / "new" / "%05d.png", "-f", "rawvideo", "-pix_fmt", "rgb48le", "-")
    assert raw == frames.tobytes()


def test_stills_appear_only_when_all_are_written(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    for target in ("new/", "old/"):
        with open_sink(f"{tmp_path}/{target}", size=SIZE, fps=24) as out:
            out.write(make_frames())
            assert not list((tmp_path / target).glob("*.png"))
        assert len(names(tmp_path / target)) == 5


@pytest.mark.parametrize("target", ["new/", "old/", "new.npy", "new.mkv", "new.gif"])
def test_exception_in_the_block_leaves_nothing(tmp_path: Path, target: str) -> None:
    (tmp_path / "old").mkdir()
    with pytest.raises(KeyboardInterrupt), open_sink(f"{tmp_path}/{target}", size=SIZE, fps=24) as out:
        out.write(make_frames())
        raise KeyboardInterrupt
    assert names(tmp_path) == ["old"]
    assert names(tmp_path / "old") == []


def test_stills_are_not_mixed_with_earlier_ones(tmp_path: Path) -> None:
    write(tmp_path, make_frames(7))
    with pytest.raises(WriterError, match="00000.png already exists"):
        write(tmp_path, make_frames(5))
    write(tmp_path / "b_%d.png", make_frames(5))
    assert len(names(tmp_path)) == 12


def level(value: int, num_frames: int) -> np.ndarray:
    return np.full((num_frames, SIZE[1], SIZE[0], 3), value, np.uint8)


def levels(folder: Path) -> list[int]:
    """The level of each still, in the order of the names."""
    return [int(iio.imread(folder / name).mean()) for name in names(folder)]


@pytest.mark.parametrize(("folder", "second"), [("old", ""), ("old", "%05d.png"), ("new", ""), ("new", "%d.png")])
def test_stills_of_two_writers_are_not_mixed(tmp_path: Path, folder: str, second: str) -> None:
    (tmp_path / "old").mkdir()
    with open_sink(f"{tmp_path}/{folder}/", size=SIZE, fps=24) as first:
        late = open_sink(f"{tmp_path}/{folder}/{second}", size=SIZE, fps=24)
        late.write(level(200, 9))
        first.write(level(100, 5))
    # Inside a folder that was there, beside one that was not.
    other = tmp_path / ("old/stills" if folder == "old" else "new-1")
    name = f"{other}/{second}"
    said = f"/{second}: the name was taken meanwhile, so the output is {name}."
    with pytest.warns(UserWarning, match=re.escape(said)):
        late.close()
    assert late.name == name
    assert levels(other) == [200] * 9
    for path in other.iterdir():
        path.unlink()
    other.rmdir()
    assert levels(tmp_path / folder) == [100] * 5
    assert names(tmp_path) == sorted({folder, "old"})


def test_stills_that_cannot_all_be_moved_are_kept_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def replace(source: Path, target: Path) -> None:
        if target.name == "00003.png":
            raise OSError(28, "No space left on device")
        shutil.move(source, target)

    (tmp_path / "notes.txt").touch()
    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(WriterError, match=r"\(No space left on device\); the finished output is kept as ") as refusal:
        write(tmp_path, make_frames())
    kept = Path(str(refusal.value).split(" is kept as ")[1].removesuffix("."))
    assert levels(kept) == [int(frame.mean()) for frame in make_frames()]
    assert names(tmp_path) == sorted(["notes.txt", kept.parent.name])


_WRITE_STILLS_WHEN_TOLD = """
import sys, numpy as np
from mlx_ltx_vae.video import open_sink
with open_sink(sys.argv[1], size=(10, 6), fps=24) as out:
    out.write(np.full((40 + int(sys.argv[2]), 6, 10, 3), int(sys.argv[2]), np.uint8))
    out._queue.finish()
    print("written", flush=True)
    sys.stdin.readline()
print(out.name)
"""


@pytest.mark.parametrize("target", ["new/", "old/s_%03d.png"])
def test_of_two_processes_that_write_the_same_stills_one_gets_the_next_name(tmp_path: Path, target: str) -> None:
    (tmp_path / "old").mkdir()
    processes = []
    for value in (10, 20):
        command = [sys.executable, "-c", _WRITE_STILLS_WHEN_TOLD, f"{tmp_path}/{target}", str(value)]
        pipe = subprocess.PIPE
        processes.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True))
    assert [process.stdout.readline() for process in processes] == ["written\n"] * 2
    for process in processes:  # both finish at the same time
        process.stdin.write("\n")
        process.stdin.flush()
    printed = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert sorted(len(warned) > 0 for _, warned in printed) == [False, True]
    folders = [Path(name.strip()) if name.endswith("/\n") else Path(name).parent for name, _ in printed]
    assert sorted(folders) == sorted(
        [tmp_path / Path(target).parts[0], tmp_path / ("new-1" if target == "new/" else "old/stills")]
    )
    for value, folder in zip((10, 20), folders, strict=True):
        stills = sorted(folder.glob("*.png"))
        assert [int(iio.imread(still).mean()) for still in stills] == [value] * (40 + value)


@pytest.mark.parametrize(("bit_depth", "dtype"), [(8, np.uint8), (10, np.uint16)])
def test_tiff_has_every_bit(tmp_path: Path, bit_depth: int, dtype: type) -> None:
    """As ffmpeg and Pillow read it, of which the latter has 8 bits of color."""
    frames = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, (5, SIZE[1], SIZE[0], 3), dtype, endpoint=True)
    write(f"{tmp_path}/many.tif/", frames, bit_depth=bit_depth)
    write(tmp_path / "one.tiff", frames[2:3], bit_depth=bit_depth)
    paths = [tmp_path / "many.tif" / f"{number:05d}.tif" for number in range(5)]
    assert (tmp_path / "one.tiff").read_bytes() == paths[2].read_bytes()
    pixel_format = "rgb24" if bit_depth == 8 else "rgb48le"
    for path, frame in zip(paths, frames, strict=True):
        raw = run_ffmpeg("-i", str(path), "-f", "rawvideo", "-pix_fmt", pixel_format, "-")
        np.testing.assert_array_equal(np.frombuffer(raw, dtype).reshape(frame.shape), frame)
        np.testing.assert_array_equal(np.array(Image.open(path)), frame >> (8 if bit_depth == 10 else 0))


@pytest.mark.parametrize(("bit_depth", "dtype"), [(8, np.uint8), (10, np.uint16)])
def test_npy_contains_the_frames(tmp_path: Path, bit_depth: int, dtype: type) -> None:
    write(tmp_path / "out.npy", make_frames(dtype=dtype), bit_depth=bit_depth)
    result = np.load(tmp_path / "out.npy")
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, make_frames(dtype=dtype))
    assert names(tmp_path) == ["out.npy"]


class ShortWriter(io.RawIOBase):
    """Accepts 100 bytes per call."""

    def __init__(self) -> None:
        self.taken = b""

    def writable(self) -> bool:
        return True

    def write(self, data: memoryview) -> int:
        self.taken += bytes(data[:100])
        return min(len(data), 100)


def test_standard_output_gets_raw_frames_also_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = ShortWriter()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(stream)))
    write("-", make_frames())
    assert stream.taken == make_frames().tobytes()


_TO_STANDARD_OUTPUT = """
import sys, numpy as np
from mlx_ltx_vae.errors import WriterError
from mlx_ltx_vae.video import open_sink
sys.stdin.read()
try:
    with open_sink("-", size=(10, 6), fps=24) as out:
        for index in range(2000):
            out.write(np.full((1, 6, 10, 3), index % 256, np.uint8))
except WriterError as error:
    sys.exit(f"WriterError {error}")
"""


def test_broken_pipe_is_a_writer_error_and_nothing_else() -> None:
    pipe, buffered = subprocess.PIPE, os.environ | {"PYTHONUNBUFFERED": ""}
    command = [sys.executable, "-c", _TO_STANDARD_OUTPUT]
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=buffered)
    process.stdout.close()
    process.stdin.close()
    error = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait() == 1
    assert error.strip() == "WriterError standard output: cannot be written (Broken pipe)."


@pytest.mark.parametrize(
    ("name", "options", "stream", "words"),
    [
        ("clips", {}, {}, r"/clips: .* write .*/clips/ for PNG stills, or .*/clips\.mp4\.$"),
        ("out.avi", {}, {}, r"\.mp4, \.mov, \.mkv, \.webm, \.gif, \.webp, .*\.tif, .*\.exr, a folder .* or -"),
        ("out.mp4.part", {}, {}, "its ending is not supported"),
        ("out.gif", {"audio": "voice.wav"}, {}, "takes no audio"),
        ("out.gif", {"bit_depth": 10}, {}, "frames have 16 bits per color, and it takes 8 bits"),
        ("out.gif", {}, {"fps": 60}, "a GIF plays at most 50 frames per second, not 60"),
        ("out.npy", {"crf": 3}, {}, "takes no crf"),
        ("new/", {"audio": "voice.wav"}, {}, "takes no audio"),
        ("%05d.png", {"codec": "h264"}, {}, "takes no codec"),
        ("-", {"crf": 20}, {}, "takes no crf"),
        ("out.mp4", {"codec": "divx"}, {}, "'divx' is not supported; use one of h264, hevc, prores, prores4444, ffv1,"),
        ("out.mp4", {"codec": "ffv1"}, {}, r"ffv1 is not supported in \.mp4; use \.mkv"),
        ("out.webm", {"codec": "h264"}, {}, r"h264 is not supported in \.webm; use \.mp4 or \.mov or \.mkv"),
        ("out.mov", {"codec": "prores", "crf": 3}, {}, "has no crf"),
        ("out.mp4", {"crf": 52}, {}, "52 is not between 0 and 51"),
        ("out.mp4", {"crf": -1}, {}, "-1 is not between 0 and 51"),
        ("out.mp4", {}, {"fps": 0}, "frame rate"),
        ("out.mp4", {}, {"size": (0, 6)}, "frames of 0x6 pixels cannot be written"),
        ("out.mp4", {"audio": "missing.wav"}, {}, r"missing\.wav: there is no such audio file"),
        ("out.mp4", {"audio": __file__}, {}, "contains no audio"),
        ("out.mp4", {"shortest": True}, {}, "add audio"),
        *((pattern, {}, {}, "exactly one number field") for pattern in ("%d_%d.png", "%s.png", "100%_%d.png")),
        ("stills/", {}, {}, r"00000\.png already exists"),
        ("stills/00000.png/", {}, {}, "is a file, not a folder"),
    ],
)
def test_what_an_output_cannot_be_is_refused_also_by_a_check_that_creates_nothing(
    tmp_path: Path, name: str, options: dict, stream: dict, words: str
) -> None:
    write(f"{tmp_path}/stills/", make_frames(1))
    path = name if name == "-" else f"{tmp_path}/{name}"
    arguments = {"size": SIZE, "fps": 24, "options": OutputOptions(**options)} | stream
    with pytest.raises(WriterError, match=words) as expected:
        open_sink(path, **arguments)
    with pytest.raises(WriterError) as found:
        check_output(path, **arguments)
    assert str(found.value) == str(expected.value)
    assert (names(tmp_path), names(tmp_path / "stills")) == (["stills"], ["00000.png"])


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing/out.mp4", "missing"),
        ("missing/out.npy", "missing"),
        ("missing/more/", "missing"),
        ("file/out.gif", "not a folder"),
        ("read-only/out.mp4", "read-only"),
    ],
)
def test_check_output_wants_an_existing_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "read-only").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: path.name != "read-only")  # root may write everywhere
    if reason != "read-only":
        monkeypatch.undo()
    with pytest.raises(WriterError, match=rf"{name}: cannot be written \(the folder .* is {reason}\)"):
        check_output(f"{tmp_path}/{name}", size=SIZE, fps=24)


@pytest.mark.parametrize("name", ["out.mp4", "out.GIF", "out.npy", "new/", "old", "a_%d.png", "new/a_%d.png", "-"])
def test_check_output_accepts_outputs_and_creates_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "old").mkdir()
    monkeypatch.chdir(tmp_path)
    check_output(name, size=SIZE, fps=24)
    assert names(tmp_path) == ["old"]
