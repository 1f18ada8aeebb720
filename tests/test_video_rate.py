"""Reading at another frame rate: the speed is kept, frames are dropped or repeated."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mlx_ltx_vae.video import VideoReader
from mlx_ltx_vae.video.reader import RateConverter
from video_files import SIZE, numbered, numbers, read, run_ffmpeg, save_images, write


def frames_of_ffmpeg(path: Path, filters: str) -> list[int]:
    """The indices of `numbered` frames that the ffmpeg program returns."""
    raw = run_ffmpeg("-i", path, "-vf", filters, "-f", "rawvideo", "-pix_fmt", "rgb24", "-")
    return numbers(np.frombuffer(raw, np.uint8).reshape(-1, SIZE[1], SIZE[0], 3))


@pytest.mark.parametrize(
    ("name", "source", "fps", "expected"),
    [
        ("clip.mp4", 60, 30, range(0, 41, 2)),
        ("clip.mkv", 60, 30, range(0, 41, 2)),  # its times are in milliseconds
        ("clip.mkv", "60000/1001", "30000/1001", range(0, 41, 2)),
        ("clip.mkv", 50, 25, range(0, 41, 2)),
        ("clip.mp4", 60, 24, [1, 3, 6, 8, 11, 13, 16, 18, 21, 23, 26, 28, 31, 33, 36, 38]),
        ("clip.mp4", 12, 24, [n // 2 for n in range(82)]),
        ("clip.gif", 25, 12.5, range(0, 41, 2)),
        ("clip.mp4", 24, "24000/1001", range(41)),
        ("clip.mkv", 24, 24, range(41)),
    ],
)
def test_frames_are_dropped_or_repeated_to_the_rate(
    tmp_path: Path, name: str, source: object, fps: object, expected: range
) -> None:
    path = write(tmp_path / name, numbered(41), source)
    with VideoReader(path, fps=fps) as video:
        assert (video.fps, video.source_fps) == (Fraction(fps), Fraction(source))
        result = numbers(np.concatenate(list(video)))
        assert abs(video.num_frames - len(result)) <= 1
    assert result == list(expected)
    if path.suffix != ".mkv":
        assert result == frames_of_ffmpeg(path, f"fps={Fraction(fps)}")


def test_irregular_times_become_the_given_rate_at_once(tmp_path: Path) -> None:
    """A screen recording: bursts, and pauses. By way of its average rate other frames would be lost."""
    source, path = write(tmp_path / "all.mkv", numbered(40), 25, codec="ffv1"), tmp_path / "screen.mp4"
    milliseconds = [n * 17 + 700 * (n // 10) for n in range(40)]
    times = ["-vf", "settb=1/1000,setpts=17*N+700*floor(N/10)", "-fps_mode", "vfr", "-enc_time_base", "1:1000"]
    run_ffmpeg("-i", source, *times, "-c:v", "libx264", "-video_track_timescale", 1000, path)
    with VideoReader(path, fps=24) as video:
        assert video.source_fps < 24
        result = numbers(np.concatenate(list(video)))
    ticks = [round(time * 24 / 1000) for time in milliseconds]
    expected = [max(n for n in range(40) if ticks[n] <= tick) for tick in range(ticks[-1] + 1)]
    assert result[: len(expected)] == expected
    assert set(result[len(expected) :]) <= {39}


def test_as_many_frames_as_requested_are_counted_at_the_new_rate(tmp_path: Path) -> None:
    path = write(tmp_path / "clip.mp4", numbered(41), 60)
    assert numbers(read(path, fps=30, max_frames=9)) == list(range(0, 18, 2))
    with VideoReader(path, fps=30, max_frames=9) as video:
        assert video.num_frames == 9


def test_all_images_are_read_whatever_their_rate(tmp_path: Path) -> None:
    frames = save_images(tmp_path, [f"{number}.png" for number in range(10)])
    for path, count in ((tmp_path, 10), (tmp_path / "%d.png", 10), (tmp_path / "3.png", 1)):
        with VideoReader(path, fps="12.5") as video:
            assert (video.fps, video.source_fps, video.num_frames) == (Fraction(25, 2), None, count)
            np.testing.assert_array_equal(np.concatenate(list(video)), frames if count > 1 else frames[3:4])


def frames_at(times: list[float], fps: object, source: object = None, *, is_variable: bool = False) -> list[int]:
    """The indices of the frames that a conversion of frames at the given times returns."""
    rate = RateConverter(Fraction(fps), source and Fraction(source), is_variable=is_variable)
    counts = [rate.add(Fraction(time)) for time in times][1:] + [rate.end()]
    return [n for n, count in enumerate(counts) for _ in range(count)]


def test_jitter_of_a_constant_rate_loses_nothing() -> None:
    times = [n / 30 + jitter for n, jitter in enumerate(np.random.default_rng(0).uniform(-0.008, 0.008, 200))]
    assert frames_at(times, 30, 30) == list(range(200))
    assert frames_at(times, 15, 30) == list(range(0, 200, 2))


def test_pauses_are_filled_and_times_that_go_back_follow() -> None:
    assert frames_at([0, 1, 4, 5], 1, 1) == [0, 1, 1, 1, 2, 3]
    assert frames_at([0, 1, 1, 2, 3], 1, 1) == [0, 1, 2, 3, 4]
    assert frames_at([0, 1, 2, 0, 1, 2], 1, 1) == list(range(6))
    assert frames_at([7], 24, 60) == frames_at([7], 24) == [0]


def test_frames_that_come_faster_than_the_rate_are_kept_at_a_higher_one() -> None:
    times = [n / 30 for n in range(30)] + [1 + n / 240 for n in range(80)]
    assert len(set(frames_at(times, 30, 30))) < 110
    assert set(frames_at(times, 240, 30)) == set(frames_at(times, 240, 70, is_variable=True)) == set(range(110))


@pytest.mark.parametrize(("name", "kind"), [("a.gif", "GIF"), ("a.png", "PNG"), ("a.webp", "WEBP")])
def test_the_last_picture_of_an_animation_lasts_as_long_as_the_file_says(tmp_path: Path, name: str, kind: str) -> None:
    pictures = [Image.fromarray(frame) for frame in numbered(3)]
    pictures[0].save(tmp_path / name, kind, save_all=True, append_images=pictures[1:], duration=[100, 200, 1500])
    with VideoReader(tmp_path / name, fps=10) as video:
        assert video.num_frames == 18
        result = numbers(np.concatenate(list(video)))
    assert result == [0] + [1] * 2 + [2] * 15


@pytest.mark.parametrize("ending", ["mkv", "webm", "mp4", "mov", "ts", "nut"])
def test_a_late_start_makes_a_video_no_longer(tmp_path: Path, ending: str) -> None:
    path, codec = tmp_path / f"a.{ending}", "libvpx-vp9" if ending == "webm" else "libx264"
    run_ffmpeg("-f", "lavfi", "-i", "testsrc2=s=96x64:r=24:d=1", "-c:v", codec, "-output_ts_offset", 5, path)
    with VideoReader(path) as video:
        assert abs(video.num_frames - 24) <= 1
        assert sum(map(len, video)) == 24
