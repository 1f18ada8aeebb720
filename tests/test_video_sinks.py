"""Stills, arrays and standard output, and the choice of a sink by name."""

import io
import os
import subprocess
import sys
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest

from mlx_ltx_vae.errors import WriterError
from mlx_ltx_vae.video import open_sink

SIZE = (10, 6)


def make_frames(num_frames: int = 5, dtype: type = np.uint8) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, (num_frames, SIZE[1], SIZE[0], 3)).astype(dtype)


def write(path: str | os.PathLike, frames: np.ndarray, **options: object) -> None:
    with open_sink(path, size=SIZE, fps=24, **options) as out:
        out.write(frames[:2])
        out.write(frames[2:])


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


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


@pytest.mark.parametrize("pattern", ["out.png", "%d_%d.png", "%s.png", "100%_%d.png"])
def test_stills_need_one_number_field_in_their_name(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(WriterError, match="exactly one number field"):
        open_sink(tmp_path / pattern, size=SIZE, fps=24)


@pytest.mark.parametrize(("bit_depth", "dtype"), [(8, np.uint8), (10, np.uint16)])
def test_npy_contains_the_frames(tmp_path: Path, bit_depth: int, dtype: type) -> None:
    write(tmp_path / "out.npy", make_frames(dtype=dtype), bit_depth=bit_depth)
    result = np.load(tmp_path / "out.npy")
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, make_frames(dtype=dtype))
    assert names(tmp_path) == ["out.npy"]


def test_standard_output_gets_raw_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", stdout)
    write("-", make_frames())
    assert stdout.buffer.getvalue() == make_frames().tobytes()


class ShortWriter(io.RawIOBase):
    """Accepts 100 bytes per call."""

    def __init__(self) -> None:
        self.taken = b""

    def writable(self) -> bool:
        return True

    def write(self, data: memoryview) -> int:
        self.taken += bytes(data[:100])
        return min(len(data), 100)


def test_short_writes_are_continued(monkeypatch: pytest.MonkeyPatch) -> None:
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


def run_to_standard_output() -> subprocess.Popen:
    pipe = subprocess.PIPE
    buffered = os.environ | {"PYTHONUNBUFFERED": ""}
    command = [sys.executable, "-c", _TO_STANDARD_OUTPUT]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=buffered)


def test_a_real_pipe_gets_every_byte_of_many_frames() -> None:
    output, _ = run_to_standard_output().communicate()
    assert output == b"".join(bytes([index % 256]) * 6 * 10 * 3 for index in range(2000))


def test_broken_pipe_is_a_writer_error_and_nothing_else() -> None:
    process = run_to_standard_output()
    process.stdout.close()
    process.stdin.close()
    error = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait() == 1
    assert error.strip() == "WriterError standard output: cannot be written (Broken pipe)."


@pytest.mark.parametrize("name", ["out", "out.avi", "out.jpg", "out.mp4.part"])
def test_error_for_an_unknown_ending_lists_the_supported_ones(tmp_path: Path, name: str) -> None:
    with pytest.raises(WriterError, match=r"\.mp4, \.mov, \.mkv, \.webm, \.gif, \.npy, a folder .* %05d\.png, or -"):
        open_sink(tmp_path / name, size=SIZE, fps=24)


@pytest.mark.parametrize("name", ["out.gif", "out.npy", "new/", "%05d.png", "-"])
@pytest.mark.parametrize("option", [{"audio": "voice.wav"}, {"codec": "h264"}, {"crf": 20}])
def test_option_that_a_sink_does_not_support_is_refused(tmp_path: Path, name: str, option: dict) -> None:
    path = name if name == "-" else f"{tmp_path}/{name}"
    with pytest.raises(WriterError, match=f"takes no {next(iter(option))}"):
        open_sink(path, size=SIZE, fps=24, **option)
    assert names(tmp_path) == []


@pytest.mark.parametrize("name", ["out.gif", "new/"])
def test_bit_depth_10_is_refused_for_8_bit_formats(tmp_path: Path, name: str) -> None:
    with pytest.raises(WriterError, match="8 bits"):
        open_sink(f"{tmp_path}/{name}", size=SIZE, fps=24, bit_depth=10)
    assert names(tmp_path) == []


def test_gif_that_players_would_slow_down_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WriterError, match="at most 50"):
        open_sink(tmp_path / "out.gif", size=SIZE, fps=60)
