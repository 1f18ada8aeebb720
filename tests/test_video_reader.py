"""Reading videos and images: exact frames in exact colors, at exact times, and at the rate that is wanted."""

import tracemalloc
from fractions import Fraction
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest

from mlx_ltx_vae import Fit, VideoReader
from video_files import SIZE, noise, numbered, numbers, read, refusal, run_ffmpeg, save_images, write


@pytest.mark.quick(3)
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize(("num_frames", "size"), [(1, (96, 64)), (8, (96, 64)), (17, (33, 17))])
def test_lossless_video_is_read_exactly(tmp_path: Path, num_frames: int, size: tuple, dtype: type) -> None:
    frames = noise(num_frames, size, dtype)
    result = read(write(tmp_path / "clip.mkv", frames, codec="ffv1"), multiple=1)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, frames)


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    ("name", "fps"),
    [
        *((name, fps) for name in ("clip.mp4", "clip.mkv") for fps in ("24000/1001", "25", "60000/1001", "12.5")),
        *(("clip.gif", fps) for fps in ("25", "12.5", "24")),  # GIF counts hundredths of a second
    ],
)
def test_rate_and_every_frame_are_exact(tmp_path: Path, name: str, fps: str) -> None:
    path = write(tmp_path / name, numbered(41), fps)
    with VideoReader(path) as video:
        assert (video.fps, video.size, video.source_size) == (Fraction(fps), SIZE, SIZE)
        assert abs(video.num_frames - 41) <= 1
        assert numbers(np.concatenate(list(video))) == list(range(41))


def test_irregular_times_become_a_constant_rate(tmp_path: Path) -> None:
    source, path = write(tmp_path / "all.mkv", numbered(30), 30, codec="ffv1"), tmp_path / "some.mkv"
    # One frame in seven is left out, so the one before it is shown twice as long.
    run_ffmpeg("-i", source, "-vf", "select='not(eq(mod(n,7),3))'", "-fps_mode", "vfr", "-c:v", "ffv1", path)
    assert numbers(read(path)) == [n - 1 if n % 7 == 3 else n for n in range(30)]


def test_video_that_starts_after_its_audio_is_read_from_its_first_frame(tmp_path: Path) -> None:
    source, path = write(tmp_path / "silent.mkv", numbered(10), codec="ffv1"), tmp_path / "late.mkv"
    audio = ["-f", "lavfi", "-i", "sine=d=2"]
    run_ffmpeg(*audio, "-itsoffset", 0.4, "-i", source, "-map", 0, "-map", 1, "-c:v", "copy", path)
    assert numbers(read(path)) == list(range(10))


@pytest.mark.parametrize("fit", [Fit.EXACT, Fit.RESIZE])
def test_transparent_pixels_are_composited_over_black(tmp_path: Path, fit: Fit) -> None:
    image = np.zeros((64, 96, 4), np.uint8)
    image[:, :32] = (200, 100, 50, 255)
    image[:, 32:64] = (200, 100, 50, 128)
    image[:, 64:] = (255, 255, 255, 0)
    iio.imwrite(tmp_path / "image.png", image)
    size = None if fit is Fit.EXACT else (192, 128)
    (frame,) = read(tmp_path / "image.png", fit=fit, size=size)
    row = frame[frame.shape[0] // 2].astype(int)
    third = len(row) // 3
    for part, color in enumerate([(200, 100, 50), (100, 50, 25), (0, 0, 0)]):
        assert np.abs(row[part * third + 8 : (part + 1) * third - 8] - color).max() <= 1
    assert row[third + third // 2 :, 2].max() <= 27, "transparent white does not bleed into its neighbors"


@pytest.mark.quick(3)
@pytest.mark.parametrize("ending", [".png", ".PNG", ".bmp", ".tif", ".webp", ".jpg"])
def test_images_of_a_folder_are_in_natural_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    folder, temporary = tmp_path / "it's 100%d of it: a folder", tmp_path / "50%d"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    save_images(folder, [f"Take 2 - {number}{ending}" for number in (1, 2, 9, 10, 11, 100)])
    (folder / "notes.txt").write_text("no image")
    (folder / ".hidden.gif").touch()
    with VideoReader(folder) as video:
        assert (video.fps, video.num_frames) == (None, 6)
        assert numbers(np.concatenate(list(video))) == list(range(6))


def test_pattern_of_images_may_start_anywhere(tmp_path: Path) -> None:
    frames = save_images(tmp_path, [f"a_{number:05d}.png" for number in range(95, 105)])
    save_images(tmp_path, ["a_x.png", "b_00001.png"])
    np.testing.assert_array_equal(read(tmp_path / "a_%05d.png"), frames)
    assert len(read(tmp_path / "a_%05d.png", max_frames=9)) == 9


def test_one_image_is_one_frame(tmp_path: Path) -> None:
    iio.imwrite(tmp_path / "50%.png", noise(1)[0])
    with VideoReader(tmp_path / "50%.png") as video:
        assert (video.fps, video.num_frames) == (None, 1)
        np.testing.assert_array_equal(next(video), noise(1))


def test_cropping_keeps_the_middle_exactly(tmp_path: Path) -> None:
    frames = noise(3, (101, 70))
    path = write(tmp_path / "clip.mkv", frames, codec="ffv1")
    np.testing.assert_array_equal(read(path, fit=Fit.CROP), frames[:, 3:67, 2:98])
    np.testing.assert_array_equal(read(path, fit=Fit.CROP, multiple=16), frames[:, 3:67, 2:98])


def test_cropping_to_a_size_covers_it_and_keeps_proportions(tmp_path: Path) -> None:
    path = write(tmp_path / "clip.mkv", noise(2, (64, 32)), codec="ffv1")
    larger = read(path, fit=Fit.RESIZE, size=(128, 64))
    np.testing.assert_array_equal(read(path, fit=Fit.CROP, size=(64, 64)), larger[:, :, 32:96])
    np.testing.assert_array_equal(read(path, fit=Fit.CROP, size=(128, 32)), larger[:, 16:48])


def test_resizing_reaches_the_size_or_the_nearest_valid_one(tmp_path: Path) -> None:
    path = write(tmp_path / "clip.mkv", numbered(2, (100, 49)), codec="ffv1")
    for size, expected in ((None, (96, 64)), ((32, 128), (32, 128))):
        result = read(path, fit=Fit.RESIZE, size=size)
        assert result.shape == (2, expected[1], expected[0], 3)
        assert numbers(result) == [0, 1]


@pytest.mark.quick(2)
@pytest.mark.parametrize("max_frames", [1, 8, 9, 100])
def test_no_more_than_max_frames_are_read(tmp_path: Path, max_frames: int) -> None:
    path = write(tmp_path / "clip.mp4", numbered(20))
    assert numbers(read(path, max_frames=max_frames)) == list(range(min(max_frames, 20)))
    with VideoReader(path, max_frames=max_frames) as video:
        assert video.num_frames == min(max_frames, 20)
    assert "cannot read 0 frames" in refusal(path, max_frames=0)


def test_the_middle_of_a_video_is_read_at_the_rate_that_is_wanted(tmp_path: Path) -> None:
    path = write(tmp_path / "clip.mp4", numbered(20))
    assert numbers(read(path, first_frame=5, max_frames=9)) == list(range(5, 14))
    assert numbers(read(path, first_frame=9)) == list(range(9, 20))
    assert numbers(read(path, first_frame=3, fps=12)) == list(range(6, 20, 2))
    assert numbers(read(path, first_frame=3, fps=48)) == [1, *np.repeat(range(2, 20), 2)]
    with VideoReader(path, first_frame=5, max_frames=9) as video:
        assert video.num_frames == 9
        next(video)
        assert video.start == Fraction(5, 24)
    images = write(tmp_path / "i_%05d.png", numbered(5))
    assert numbers(read(images, first_frame=2)) == [2, 3, 4]
    for source, num_frames in ((path, 20), (images, 5)):
        assert f"ends with frame {num_frames - 1}, before frame 30" in refusal(source, first_frame=30)
    assert "cannot begin with frame -1" in refusal(path, first_frame=-1)


def test_memory_does_not_grow_with_the_clip(tmp_path: Path) -> None:
    path = write(tmp_path / "clip.mp4", numbered(48, (512, 512)))
    piece = 8 * 512 * 512 * 3
    tracemalloc.start()
    try:
        with VideoReader(path) as video:
            count = sum(len(frames) for frames in video)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 48
    assert peak < 2.5 * piece  # the loop variable still holds the previous piece


def frames_of_ffmpeg(path: Path, filters: str) -> list[int]:
    """The indices of `numbered` frames that the ffmpeg program returns."""
    raw = run_ffmpeg("-i", path, "-vf", filters, "-f", "rawvideo", "-pix_fmt", "rgb24", "-")
    return numbers(np.frombuffer(raw, np.uint8).reshape(-1, SIZE[1], SIZE[0], 3))


@pytest.mark.quick(4)
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


@pytest.mark.quick(3)
@pytest.mark.parametrize("ending", ["mkv", "webm", "mp4", "mov", "ts", "nut"])
def test_a_late_start_makes_a_video_no_longer(tmp_path: Path, ending: str) -> None:
    path, codec = tmp_path / f"a.{ending}", "libvpx-vp9" if ending == "webm" else "libx264"
    run_ffmpeg("-f", "lavfi", "-i", "testsrc2=s=96x64:r=24:d=1", "-c:v", codec, "-output_ts_offset", 5, path)
    with VideoReader(path) as video:
        assert abs(video.num_frames - 24) <= 1
        assert sum(map(len, video)) == 24
