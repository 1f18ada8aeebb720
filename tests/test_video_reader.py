"""Videos and images as frames: what comes is what there is, in its colours, and all of it or an error."""

import os
import shutil
import subprocess
import tracemalloc
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from imageio_ffmpeg import get_ffmpeg_exe

from mlx_ltx_vae.errors import ReaderError
from mlx_ltx_vae.video import Fit, VideoReader, VideoWriter, open_sink
from mlx_ltx_vae.video import source as video_source
from mlx_ltx_vae.video.fit import fit_size
from mlx_ltx_vae.video.probe import parse_log

COLOURS = np.array(
    [
        [255, 0, 0],
        [0, 255, 0],
        [0, 0, 255],
        [255, 255, 0],
        [0, 255, 255],
        [255, 0, 255],
        [200, 120, 40],
        [128, 128, 128],
    ],
    np.uint8,
)
SIZE = (96, 64)


def run_ffmpeg(*arguments: object, data: bytes | None = None) -> None:
    command = [get_ffmpeg_exe(), "-v", "error", "-y", *map(str, arguments)]
    done = subprocess.run(command, input=data, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def noise(num_frames: int, size: tuple[int, int] = SIZE, dtype: type = np.uint8) -> np.ndarray:
    shape = (num_frames, size[1], size[0], 3)
    return np.random.default_rng(0).integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def numbered(num_frames: int, size: tuple[int, int] = SIZE) -> np.ndarray:
    """Flat frames that tell their number by their brightness."""
    levels = np.arange(num_frames, dtype=np.uint8) * 5 + 10
    return np.broadcast_to(levels[:, None, None, None], (num_frames, size[1], size[0], 3)).copy()


def numbers(frames: np.ndarray) -> list[int]:
    """Which of the `numbered` frames these are."""
    return [round((float(frame.mean()) - 10) / 5) for frame in frames]


def write(path: Path, frames: np.ndarray, fps: object = 24, **options: object) -> Path:
    size = (frames.shape[2], frames.shape[1])
    if path.suffix in (".mkv", ".mp4", ".webm"):
        sink = VideoWriter(path, size=size, fps=fps, bit_depth=8 if frames.dtype == np.uint8 else 10, **options)
    else:
        sink = open_sink(path, size=size, fps=fps)
    with sink as out:
        out.write(frames)
    return path


def read(path: Path, **options: object) -> np.ndarray:
    with VideoReader(path, **options) as video:
        parts = list(video)
        frames = np.concatenate(parts)
        assert all(part.dtype == video.dtype and 1 <= len(part) <= 8 for part in parts)
        assert frames.shape[1:] == (video.size[1], video.size[0], 3)
    return frames


def refusal(path: Path, **options: object) -> str:
    """The one sentence with which reading fails, which names the file."""
    with pytest.raises(ReaderError) as error:
        read(path, **options)
    text = str(error.value)
    assert "\n" not in text
    assert text.endswith(".")
    return text


def is_running(process_id: int) -> bool:
    """Whether there is such a process, be it a zombie."""
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize(("num_frames", "size"), [(1, (96, 64)), (8, (96, 64)), (17, (33, 17))])
def test_lossless_video_comes_back_bit_by_bit(tmp_path: Path, num_frames: int, size: tuple, dtype: type) -> None:
    frames = noise(num_frames, size, dtype)
    result = read(write(tmp_path / "clip.mkv", frames, codec="ffv1"), multiple=1)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, frames)


@pytest.mark.parametrize(
    ("matrix", "colour_range", "tags", "size", "pixels"),
    [
        ("bt601", "tv", "range=tv:colorspace=smpte170m", (256, 64), "yuv420p"),
        ("bt601", "tv", "range=tv:colorspace=smpte170m", (1280, 64), "yuv420p"),
        ("bt709", "pc", "range=pc:colorspace=bt709", (256, 64), "yuv420p"),
        ("bt2020", "tv", "range=tv:colorspace=bt2020nc:color_trc=smpte2084", (256, 64), "yuv420p10le"),
        ("bt601", "tv", "range=unknown:colorspace=unknown", (256, 64), "yuv420p"),
        ("bt709", "tv", "range=unknown:colorspace=unknown", (1280, 64), "yuv420p"),
        ("bt709", "tv", "range=unknown:colorspace=unknown", (256, 640), "yuv444p10le"),
    ],
)  # fmt: skip
def test_colours_come_back_by_tags_or_as_players_guess(
    tmp_path: Path, matrix: str, colour_range: str, tags: str, size: tuple, pixels: str
) -> None:
    width, height = size
    row = np.repeat(COLOURS, width // len(COLOURS), axis=0)
    frame = np.ascontiguousarray(np.broadcast_to(row, (height, width, 3)))
    path = tmp_path / "clip.mkv"
    raw = ["-f", "rawvideo", "-pixel_format", "rgb24", "-video_size", f"{width}x{height}", "-i", "-"]
    scale = f"scale=out_range={colour_range}:out_color_matrix={matrix}:flags=accurate_rnd+full_chroma_int"
    filters = f"{scale},format={pixels},setparams={tags}"
    run_ffmpeg(*raw, "-vf", filters, "-c:v", "libx264", "-crf", "1", path, data=frame.tobytes())
    result = read(path)
    assert result.dtype == (np.uint16 if "10" in pixels else np.uint8)
    levels = result / (257 if result.dtype == np.uint16 else 1)
    step = width // len(COLOURS)
    assert np.abs(levels[0, height // 2, step // 2 :: step] - COLOURS).max() <= 3


@pytest.mark.parametrize("name", ["clip.mp4", "clip.webm"])
def test_colours_that_we_write_come_back(tmp_path: Path, name: str) -> None:
    frames = np.broadcast_to(np.repeat(COLOURS, 32, axis=0), (2, 64, 256, 3)).astype(np.uint8)
    result = read(write(tmp_path / name, frames)).astype(int)
    assert np.abs(result[:, 32, 16::32] - COLOURS).max() <= 3


@pytest.mark.parametrize(
    ("name", "fps"),
    [
        *((name, fps) for name in ("clip.mp4", "clip.mkv") for fps in ("24000/1001", "25", "60000/1001", "12.5")),
        *(("clip.gif", fps) for fps in ("25", "12.5", "24")),  # which counts hundredths of a second
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
    # One frame of seven is left out, so that the one before it is shown twice as long.
    run_ffmpeg("-i", source, "-vf", "select='not(eq(mod(n,7),3))'", "-fps_mode", "vfr", "-c:v", "ffv1", path)
    assert numbers(read(path)) == [n - 1 if n % 7 == 3 else n for n in range(30)]


def test_video_that_starts_after_its_sound_is_read_from_its_first_frame_on(tmp_path: Path) -> None:
    source, path = write(tmp_path / "silent.mkv", numbered(10), codec="ffv1"), tmp_path / "late.mkv"
    sound = ["-f", "lavfi", "-i", "sine=d=2"]
    run_ffmpeg(*sound, "-itsoffset", 0.4, "-i", source, "-map", 0, "-map", 1, "-c:v", "copy", path)
    assert numbers(read(path)) == list(range(10))


@pytest.mark.parametrize("name", ["clip.mp4", "clip.webm"])  # 4:4:4, and 4:2:0 rounded up
def test_odd_sizes_are_kept(tmp_path: Path, name: str) -> None:
    frames = np.full((2, 17, 33, 3), 200, np.uint8)
    frames[:, -1], frames[:, :, -1] = 40, 40
    result = read(write(tmp_path / name, frames), multiple=1)
    assert result.shape == frames.shape
    assert np.abs(result.astype(int) - frames).max() <= 20


def test_rotation_is_done(tmp_path: Path) -> None:
    frames = noise(2)
    path, rotated = write(tmp_path / "clip.mp4", frames, crf=0), tmp_path / "rotated.mp4"
    run_ffmpeg("-display_rotation", 90, "-i", path, "-c", "copy", rotated)
    upright = read(path).astype(int)
    with VideoReader(rotated) as video:
        assert video.source_size == video.size == SIZE[::-1]
        result = np.concatenate(list(video))
    assert np.abs(result - np.rot90(upright, axes=(1, 2))).mean() < 2  # chroma is interpolated along other axes


@pytest.mark.parametrize("fit", [Fit.EXACT, Fit.RESIZE])
def test_transparent_pixels_are_put_over_black(tmp_path: Path, fit: Fit) -> None:
    image = np.zeros((64, 96, 4), np.uint8)
    image[:, :32] = (200, 100, 50, 255)
    image[:, 32:64] = (200, 100, 50, 128)
    image[:, 64:] = (255, 255, 255, 0)
    iio.imwrite(tmp_path / "image.png", image)
    size = None if fit is Fit.EXACT else (192, 128)
    (frame,) = read(tmp_path / "image.png", fit=fit, size=size)
    row = frame[frame.shape[0] // 2].astype(int)
    third = len(row) // 3
    for part, colour in enumerate([(200, 100, 50), (100, 50, 25), (0, 0, 0)]):
        assert np.abs(row[part * third + 8 : (part + 1) * third - 8] - colour).max() <= 1
    assert row[third + third // 2 :, 2].max() <= 27, "no white runs out of what is transparent"


def save_images(folder: Path, names: Sequence[str], size: tuple[int, int] = SIZE) -> np.ndarray:
    folder.mkdir(exist_ok=True)
    frames = numbered(len(names), size)
    for name, frame in zip(names, frames, strict=True):
        iio.imwrite(folder / name, frame, plugin="pillow")
    return frames


@pytest.mark.parametrize("ending", [".png", ".PNG", ".bmp", ".tif", ".webp", ".jpg"])
def test_folder_of_images_comes_in_natural_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    folder, temporary = tmp_path / "it's 100%d of it: a folder", tmp_path / "50%d"
    temporary.mkdir()
    monkeypatch.setattr(video_source.tempfile, "tempdir", str(temporary))
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


def test_what_our_stills_writer_wrote_comes_back(tmp_path: Path) -> None:
    frames = noise(10)
    write(tmp_path / "stills_%03d.png", frames)
    np.testing.assert_array_equal(read(tmp_path), frames)


def test_one_image_is_one_frame(tmp_path: Path) -> None:
    iio.imwrite(tmp_path / "50%.png", noise(1)[0])
    with VideoReader(tmp_path / "50%.png") as video:
        assert (video.fps, video.num_frames) == (None, None)
        np.testing.assert_array_equal(next(video), noise(1))


def test_cropping_keeps_the_middle_as_it_is(tmp_path: Path) -> None:
    frames = noise(3, (101, 70))
    path = write(tmp_path / "clip.mkv", frames, codec="ffv1")
    np.testing.assert_array_equal(read(path, fit=Fit.CROP), frames[:, 3:67, 2:98])
    np.testing.assert_array_equal(read(path, fit=Fit.CROP, multiple=16), frames[:, 3:67, 2:98])


def test_cropping_to_a_size_covers_it_and_keeps_proportions(tmp_path: Path) -> None:
    path = write(tmp_path / "clip.mkv", noise(2, (64, 32)), codec="ffv1")
    larger = read(path, fit=Fit.RESIZE, size=(128, 64))
    np.testing.assert_array_equal(read(path, fit=Fit.CROP, size=(64, 64)), larger[:, :, 32:96])
    np.testing.assert_array_equal(read(path, fit=Fit.CROP, size=(128, 32)), larger[:, 16:48])


def test_resizing_goes_to_the_size_or_the_nearest(tmp_path: Path) -> None:
    path = write(tmp_path / "clip.mkv", numbered(2, (100, 49)), codec="ffv1")
    for size, expected in ((None, (96, 64)), ((32, 128), (32, 128))):
        result = read(path, fit=Fit.RESIZE, size=size)
        assert result.shape == (2, expected[1], expected[0], 3)
        assert numbers(result) == [0, 1]


sides = st.integers(1, 5000)
sizes = st.tuples(sides, sides)


@given(source=sizes, multiple=st.sampled_from([1, 16, 32]), wanted=st.none() | sizes, fit=st.sampled_from(Fit))
def test_fitted_sizes_are_multiples_within_what_was_scaled(
    source: tuple, multiple: int, wanted: tuple | None, fit: Fit
) -> None:
    wanted = None if wanted is None else tuple(-(-side // multiple) * multiple for side in wanted)
    try:
        scaled, target = fit_size("clip", source, wanted, fit, multiple)
    except ReaderError:
        assert fit is not Fit.RESIZE
        assert fit is Fit.EXACT or (wanted is None and min(source) < multiple)
        assert source != wanted
        return
    assert all(side >= multiple and side % multiple == 0 for side in target)
    assert target == (wanted or target)
    assert all(whole >= part for whole, part in zip(scaled, target, strict=True))
    if fit is Fit.CROP:
        assert wanted is None or any(whole == part for whole, part in zip(scaled, target, strict=True))
        assert abs(scaled[0] * source[1] - scaled[1] * source[0]) <= max(source), "in proportion, but for rounding"
    else:
        assert scaled == target
        assert fit is Fit.RESIZE or target == source


def test_sizes_that_do_not_fit_are_refused_with_the_ways_out(tmp_path: Path) -> None:
    path = write(tmp_path / "clip.mkv", numbered(1, (100, 49)), codec="ffv1")
    text = refusal(path)
    assert text.startswith(f"{path}: is 100x49, and both sides must be multiples of 32; ")
    for way in ("96x64 (--resize)", "96x32 (--crop)", "--size WxH"):
        assert way in text
    assert "not 128x64" in refusal(path, size=(128, 64))
    assert "100x50; both sides must be multiples of 32" in refusal(path, size=(100, 50), fit=Fit.RESIZE)
    small = write(tmp_path / "small.mkv", numbered(1, (100, 20)), codec="ffv1")
    assert "100x20 cannot be cut to multiples of 32; resize it to 96x32" in refusal(small, fit=Fit.CROP)
    assert "--crop" not in refusal(small)


@pytest.mark.parametrize("max_frames", [1, 8, 9, 16, 100])
def test_no_more_frames_come_than_were_asked_for(tmp_path: Path, max_frames: int) -> None:
    path = write(tmp_path / "clip.mp4", numbered(20))
    assert numbers(read(path, max_frames=max_frames)) == list(range(min(max_frames, 20)))
    with VideoReader(path, max_frames=max_frames) as video:
        assert video.num_frames == min(max_frames, 20)
    assert "at most 0 frames" in refusal(path, max_frames=0)


@pytest.mark.parametrize(("ending", "codec"), [(".mp4", "h264"), (".mkv", "h264"), (".mkv", "ffv1"), (".gif", None)])
@pytest.mark.parametrize("is_cut", [True, False])
def test_damaged_video_is_an_error_and_no_short_clip(tmp_path: Path, ending: str, codec: str, is_cut: bool) -> None:
    path = tmp_path / f"clip{ending}"
    write(path, noise(60), **({} if codec is None else {"codec": codec}))
    whole = bytearray(path.read_bytes())
    middle = len(whole) * 6 // 10
    if is_cut:
        del whole[middle:]
    else:
        whole[middle : middle + 3000] = b"\xde\xad\xbe\xef\x01\x02" * 500
    path.write_bytes(whole)
    with VideoReader(path) as video:
        count = 0
        with pytest.raises(ReaderError, match="clip.*damaged or was cut short; ffmpeg says: "):
            for frames in video:
                count += len(frames)
        assert list(video) == [], "it is closed"
    if ending == ".mp4":  # of other formats ffmpeg only complains
        assert count < 50, "what comes after the damage is not read"


def test_what_is_no_video_is_refused_by_name(tmp_path: Path) -> None:
    text = tmp_path / "note.txt"
    text.write_text("some words\n" * 200)
    fake = tmp_path / "fake.mp4"
    shutil.copy(text, fake)
    sound, song = tmp_path / "sound.wav", tmp_path / "song.m4a"
    run_ffmpeg("-f", "lavfi", "-i", "sine=d=1", sound)
    cover = tmp_path / "cover.png"
    iio.imwrite(cover, noise(1)[0])
    run_ffmpeg("-i", sound, "-i", cover, "-map", 0, "-map", 1, "-c:v", "copy", "-disposition:v", "attached_pic", song)
    empty, pictures = tmp_path / "empty", tmp_path / "kinds"
    empty.mkdir()
    save_images(pictures, ["1.png", "2.jpg"])
    save_images(tmp_path, ["n1.png", "n3.png"])
    for path, words in [
        (tmp_path / "missing.mp4", "there is no such file or folder"),
        (text, "is text and no video"),
        (fake, "is no video that ffmpeg can read"),
        (sound, "holds no video"),
        (song, "holds no video"),
        (empty, "holds no images; known are .png, .jpg"),
        (pictures, "images of several kinds (jpg, png)"),
        (tmp_path / "m%d.png", "there are no such images"),
        (tmp_path / "n%d_%d.png", "one number"),
        (tmp_path / "n%s.png", "one number"),
    ]:
        assert refusal(path).startswith(f"{path}: ")
        assert words in refusal(path)
    assert refusal(tmp_path / "n%d.png") == f"{tmp_path}/n2.png: is missing between n1.png and n3.png."


@pytest.mark.parametrize("fit", Fit)
def test_images_of_different_sizes_are_refused(tmp_path: Path, fit: Fit) -> None:
    for index, size in enumerate([(96, 64), (96, 64), (192, 128), (96, 64)]):
        iio.imwrite(tmp_path / f"{index}.png", noise(1, size)[0])
    assert refusal(tmp_path, fit=fit) == (f"{tmp_path}: its frames have different sizes, of which the first is 96x64.")


def test_missing_ffmpeg_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "clip.mp4", numbered(1))
    monkeypatch.setattr("mlx_ltx_vae.video.ffmpeg.get_ffmpeg_exe", lambda: "/nowhere/ffmpeg")
    assert "/nowhere/ffmpeg" in refusal(path)


@pytest.mark.parametrize("leave", ["close", "error", "interrupt"])
def test_leaving_early_ends_ffmpeg_and_removes_the_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leave: str
) -> None:
    monkeypatch.setattr(video_source.tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    save_images(tmp_path / "stills", [f"{number}.png" for number in range(60)], (512, 512))
    problem = {"close": None, "error": ValueError, "interrupt": KeyboardInterrupt}[leave]
    try:
        with VideoReader(tmp_path / "stills") as video:
            process_id = video._ffmpeg.process_id
            assert len(next(video)) == 8
            assert is_running(process_id), "it waits for somebody to take the next frames"
            assert len(list((tmp_path / "temporary").iterdir())) == 1
            if problem:
                raise problem
            video.close()
            assert list(video) == []
    except (ValueError, KeyboardInterrupt) as error:
        assert type(error) is problem
    assert not is_running(process_id), "not even as a zombie"
    assert list((tmp_path / "temporary").iterdir()) == []


def test_refused_images_leave_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video_source.tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    save_images(tmp_path / "stills", ["1.png"], (100, 70))
    with pytest.raises(ReaderError) as refusal:
        VideoReader(tmp_path / "stills")
    assert list((tmp_path / "temporary").iterdir()) == [], "while the traceback still holds the reader"
    assert "100x70" in str(refusal.value)


def test_interrupt_while_reading_ends_ffmpeg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    video = VideoReader(write(tmp_path / "clip.mp4", numbered(3)))
    process_id = video._ffmpeg.process_id
    monkeypatch.setattr(video._ffmpeg, "read_into", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(video)
    assert not is_running(process_id)


def test_memory_holds_a_few_frames_of_many(tmp_path: Path) -> None:
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
    assert peak < 2.5 * piece  # the piece before the current one is still in the loop's hand


LOG = """\
[info] Input #0, matroska,webm, from 'file:clip.mkv':
[info]   Duration: 01:02:03.50, start: 0.000000, bitrate: 79 kb/s
[info]   Stream #0:0: Video: mjpeg, yuvj420p(pc), 600x600, 90k tbr, 90k tbn (attached pic)
[info]   Stream #0:1(eng): Video: h264 (High), yuv420p10le(tv, bt709), 96x64, {average}{nominal} tbr, 1k tbn (default)
[info]   Stream #0:11: Video: vp9, 32x32, 5 fps, 5 tbr, 1k tbn
[info] Stream mapping:
[info]   Stream #0:1 -> #0:0 (h264 (native) -> wrapped_avframe (native))
[Parsed_showinfo_0 @ 0x7f] [info] config in time_base: 1/1000, frame_rate: {nominal}
[Parsed_showinfo_0 @ 0x7f] [info] config out time_base: 0/0, frame_rate: 0/0
[Parsed_showinfo_0 @ 0x7f] [info] n:   0 pts:      0 fmt:yuv420p10le cl:left sar:1/1 s:64x96 i:P iskey:1 type:I
[Parsed_showinfo_0 @ 0x7f] [info]   side data - something of 8x8
[Parsed_showinfo_0 @ 0x7f] [info] color_range:tv color_space:{matrix} color_primaries:unknown
"""


@pytest.mark.parametrize(
    ("nominal", "average", "fps"),
    [
        ("24000/1001", "23.98 fps, ", Fraction(24000, 1001)),
        ("19001/317", "59.94 fps, ", Fraction(60000, 1001)),  # as Matroska, which counts milliseconds, has it
        ("30/1", "29.87 fps, ", Fraction(30)),  # a telephone's
        ("30/1", "", Fraction(30)),
        ("1000/1", "24.50 fps, ", Fraction(49, 2)),  # a screen recording's clock
        ("60000/1001", "29.97 fps, ", Fraction(30000, 1001)),  # of fields
        ("0/0", "12 fps, ", Fraction(12)),
        ("1/0", "", None),
    ],
)
def test_rate_is_the_nominal_one_or_the_average_where_that_makes_more_sense(
    nominal: str, average: str, fps: Fraction | None
) -> None:
    info = parse_log(LOG.format(nominal=nominal, average=average, matrix="bt709"), "clip.mkv")
    assert (info.fps, info.size, info.pixel_format) == (fps, (64, 96), "yuv420p10le")
    assert info.seconds == Fraction(7447, 2)
    assert info.has_matrix


def test_log_without_what_is_needed_is_understood_or_refused() -> None:
    log = LOG.format(nominal="24/1", average="24 fps, ", matrix="unknown")
    assert not parse_log(log, "clip").has_matrix
    assert parse_log(log.replace("Duration: 01:02:03.50", "Duration: N/A"), "clip").seconds is None
    with pytest.raises(ReaderError, match="clip: holds no frames"):
        parse_log(log.replace("n:   0", "n:   1"), "clip")
    with pytest.raises(ReaderError, match="clip: a frame rate must be"):
        parse_log(LOG.format(nominal="90000/1", average="", matrix="bt709"), "clip")
