"""Reading unusual streams: every frame of streams that change, start late or have their transparency apart."""

import base64
import re
import struct
from fractions import Fraction
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from commands import report_of
from mlx_ltx_vae import Fit, VideoReader
from video_files import SIZE, numbered, numbers, read, refusal, run_ffmpeg

FLAT = np.array([200, 100, 50], np.uint8)


def raw(frames: np.ndarray, fps: object = 25) -> list[object]:
    """ffmpeg's arguments to read frames `(n, height, width, 3 or 4)` from its standard input."""
    pixels = {(3, 1): "rgb24", (4, 1): "rgba", (4, 2): "rgba64le"}[frames.shape[3], frames.itemsize]
    size = f"{frames.shape[2]}x{frames.shape[1]}"
    return ["-f", "rawvideo", "-pixel_format", pixels, "-video_size", size, "-framerate", fps, "-i", "-"]


def write_parts(path: Path, stream: str, codec: str, parts: list[list[str]]) -> Path:
    """A video of `numbered` frames, 10 for each part, whose parts are encoded with different options."""
    joined, frames = path.with_suffix(f".{stream}"), numbered(10 * len(parts))
    for index, options in enumerate(parts):
        data = frames[10 * index : 10 * index + 10]
        part = path.with_name(f"part{index}.{stream}")
        run_ffmpeg(*raw(data), "-c:v", codec, "-q:v", 2, *options, part, data=data.tobytes())
        with joined.open("ab") as file:
            file.write(part.read_bytes())
    if joined != path:
        run_ffmpeg("-framerate", 25, "-i", joined, "-c", "copy", path)
    return path


def transparent() -> np.ndarray:
    """Four frames of one color: opaque, half transparent, and transparent from left to right."""
    frames = np.empty((4, SIZE[1], SIZE[0], 4), np.uint8)
    frames[..., :3] = FLAT
    frames[..., :32, 3], frames[..., 32:64, 3], frames[..., 64:, 3] = 255, 128, 0
    return frames


def check_composited(frames: np.ndarray) -> None:
    """Check that frames are `transparent` ones over black."""
    assert frames.dtype == np.uint8
    for column, alpha in ((16, 1), (48, 128 / 255), (80, 0)):
        assert np.abs(frames[:, 8:-8, column].astype(int) - FLAT * alpha).max() <= 1


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("name", "stream", "codec", "parts"),
    [
        ("pixels.avi", "mjpeg", "mjpeg", [["-pix_fmt", f"yuvj4{c}p"] for c in ("20", "44", "22", "20")]),
        ("pixels.mkv", "mjpeg", "mjpeg", [["-pix_fmt", f"yuvj4{c}p"] for c in ("44", "20", "44")]),
        ("depth.h264", "h264", "libx264", [["-pix_fmt", p, "-bf", 0] for p in ("yuv444p", "yuv444p10le")]),
        ("range.h264", "h264", "libx264",
         [["-vf", f"scale=out_range={r}", "-color_range", r, "-bf", 0] for r in ("tv", "pc")]),
    ],
)  # fmt: skip
def test_no_frame_is_lost_where_a_stream_changes(
    tmp_path: Path, name: str, stream: str, codec: str, parts: list
) -> None:
    path = write_parts(tmp_path / name, stream, codec, parts)
    everything = list(range(10 * len(parts)))
    assert numbers(read(path)) == everything
    assert numbers(read(path, fps=50)) == sorted(2 * everything)
    assert numbers(read(path, fps=12.5)) == everything[::2]


def test_no_frame_of_an_animation_in_lossy_and_lossless_webp_is_lost(tmp_path: Path) -> None:
    def chunk(name: bytes, data: bytes) -> bytes:
        return name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)

    def bits24(*values: int) -> bytes:
        return b"".join(struct.pack("<I", value)[:3] for value in values)

    width, height = SIZE
    body = b"WEBP" + chunk(b"VP8X", b"\2\0\0\0" + bits24(width - 1, height - 1)) + chunk(b"ANIM", bytes(6))
    for index, frame in enumerate(numbered(8)):
        image = BytesIO()
        Image.fromarray(frame).save(image, "WEBP", lossless=index % 2 == 1)
        body += chunk(b"ANMF", bits24(0, 0, width - 1, height - 1, 100) + b"\2" + image.getvalue()[12:])
    (tmp_path / "clip.webp").write_bytes(chunk(b"RIFF", body))
    assert numbers(read(tmp_path / "clip.webp")) == list(range(8))


@pytest.mark.parametrize("ticks", [[1, 2, 1, 3, 1, 5], [1, 1, 1, 1, 1, 10], [12, 1, 1, 1, 1, 1], [2, 3]])
@pytest.mark.parametrize("kind", ["gif", "png", "webp"])
def test_every_picture_of_an_animation_is_shown_as_long_as_it_states(
    tmp_path: Path, kind: str, ticks: list[int]
) -> None:
    """The last one too, for whose end no next one comes."""
    first, *others = map(Image.fromarray, numbered(len(ticks)))
    path, milliseconds = tmp_path / f"clip.{kind}", [40 * count for count in ticks]
    options = {"lossless": True} if kind == "webp" else {}
    first.save(path, save_all=True, append_images=others, duration=milliseconds, loop=0, **options)
    expected = [index for index, count in enumerate(ticks) for _ in range(count)]
    assert numbers(read(path, fps=25)) == expected
    assert numbers(read(path, fps=50)) == [index for index in expected for _ in range(2)]
    with VideoReader(path, fps=25) as video:
        assert video.num_frames == len(expected)


@pytest.mark.parametrize(
    ("milliseconds", "fps", "expected"),
    [
        ([40, 40, 40, 40, 1000], 25, [0, 1, 2, 3, *[4] * 25]),
        ([1000, 40, 40, 80], 25, [*[0] * 25, 1, 2, 3, 3]),
        ([200, 400], 5, [0, 1, 1]),  # equally common
        ([*[70, 60, 70] * 3, 1000], 15, [*range(9), *[9] * 15]),  # 15 a second, in the hundredths of a GIF
        ([100, 100], 10, [0, 1]),
        (None, 10, [0, 1]),  # as browsers show pictures without a time
    ],
)
@pytest.mark.parametrize("kind", ["gif", "png", "webp"])
@pytest.mark.filterwarnings("ignore:.* has a variable frame rate.* 0 of its 4 frames were left out")
def test_an_animation_has_the_rate_of_its_most_common_time(
    tmp_path: Path, kind: str, milliseconds: list[int] | None, fps: int, expected: list[int]
) -> None:
    first, *others = map(Image.fromarray, numbered(len(milliseconds or expected)))
    path, times = tmp_path / f"clip.{kind}", {"duration": milliseconds} if milliseconds else {}
    first.save(path, save_all=True, append_images=others, **times, **({"lossless": True} if kind == "webp" else {}))
    if kind == "png" and milliseconds is None:
        fps = Fraction(100000, 6667)  # ffmpeg's 15
    with VideoReader(path) as video:
        assert (video.fps, video.num_frames) == (fps, len(expected))
    assert numbers(read(path)) == expected


@pytest.mark.parametrize("options", [{}, {"duration": 40}, {"duration": 5000, "loop": 0}])
@pytest.mark.parametrize("kind", ["gif", "png", "webp"])
def test_an_animation_of_one_picture_is_an_image(tmp_path: Path, kind: str, options: dict) -> None:
    shown, skipped = map(Image.fromarray, numbered(2))
    path = tmp_path / f"still.{kind}"
    if kind == "png":  # otherwise it is no APNG
        skipped.save(path, save_all=True, default_image=True, append_images=[shown], **options)
    else:
        shown.save(path, save_all=True, **({"lossless": True} if kind == "webp" else {}), **options)
    with VideoReader(path) as video:
        assert (video.fps, video.source_fps, video.num_frames) == (None, None, 1)
    assert numbers(read(path)) == numbers(read(path, fps=25)) == [0]
    assert read(path, crf=20).shape == read(path).shape
    report = report_of(path)
    assert (report["frames"], report["fps"], report["seconds"], report["is_variable"]) == (1, None, None, False)


def test_variable_rate_is_reported_with_the_rate_that_keeps_all_frames(tmp_path: Path) -> None:
    frames, path = numbered(40), tmp_path / "screen.mp4"
    times = ["-vf", "settb=1/1000,setpts=17*N+700*floor(N/10)", "-fps_mode", "vfr", "-enc_time_base", "1:1000"]
    run_ffmpeg(*raw(frames), *times, "-video_track_timescale", 1000, path, data=frames.tobytes())
    with pytest.warns(UserWarning, match="variable frame rate") as caught:
        result = read(path)
    assert len(caught) == 1
    warning = str(caught[0].message)
    lost = 40 - len(set(numbers(result)))
    assert lost > 0
    assert f"{lost} of its 40 frames were left out" in warning
    assert caught[0].filename.endswith("video_files.py")
    rate = re.search(r"fps=(\d+) would keep them\.$", warning)
    assert rate
    assert set(numbers(read(path, fps=rate[1]))) == set(range(40))


def test_all_frames_are_read_if_their_times_do_not_increase(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    frames = numbered(26)
    run_ffmpeg(*raw(frames, 24), "-c:v", "libx264", "-video_track_timescale", 7, path, data=frames.tobytes())
    plain = run_ffmpeg("-i", path, "-fps_mode", "passthrough", "-f", "rawvideo", "-pix_fmt", "rgb24", "-")
    decoded = numbers(np.frombuffer(plain, np.uint8).reshape(-1, *frames.shape[1:]))
    assert len(decoded) == 25, "ffmpeg drops one"
    result = numbers(read(path))
    assert sorted(set(result)) == decoded
    assert result == sorted(result)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize(("name", "codec"), [("clip.mov", "png"), ("clip.mkv", "ffv1"), ("clip.apng", "apng")])
def test_transparency_is_composited_exactly(tmp_path: Path, name: str, codec: str, dtype: type) -> None:
    top = np.iinfo(dtype).max
    random = np.random.default_rng(0)
    frames = random.integers(0, top, (3, SIZE[1], SIZE[0], 4), dtype, endpoint=True)
    frames[:, : SIZE[1] // 2, :, 3] = top
    pixels = "gbrap16le" if codec == "ffv1" else "rgba64be"
    options = [] if dtype == np.uint8 and codec != "ffv1" else ["-pix_fmt", "bgra" if dtype == np.uint8 else pixels]
    run_ffmpeg(*raw(frames), "-c:v", codec, *options, tmp_path / name, data=frames.tobytes())
    result = read(tmp_path / name)
    assert result.dtype == dtype
    opaque = slice(None), slice(SIZE[1] // 2)
    np.testing.assert_array_equal(result[opaque], frames[opaque][..., :3])
    assert np.abs(result - frames[..., :3] * (frames[..., 3:] / top)).max() <= 1


def test_transparency_that_comes_after_the_first_picture_is_composited(tmp_path: Path) -> None:
    frames = transparent()
    for index, frame in enumerate(frames):
        Image.fromarray(frame[..., :3] if index % 2 == 0 else frame).save(tmp_path / f"{index}.png")
    result = read(tmp_path)
    assert np.array_equal(result[0], frames[0, ..., :3])
    check_composited(result[1::2])


# Two tiles of 64x64, by `avifenc --grid 2x1`.
TILES = """
AAAAIGZ0eXBhdmlmAAAAAGF2aWZtaWYxbWlhZk1BMUEAAAF/bWV0YQAAAAAAAAAoaGRscgAAAAAAAAAAcGljdAAAAAAAAAAAAAAA
AGxpYmF2aWYAAAAADnBpdG0AAAAAAAEAAAA6aWxvYwAAAABEAAADAAEAAAABAAABpwAAAAgAAgAAAAEAAAGvAAAAJQADAAAAAQAA
Aa8AAAAlAAAAXGlpbmYAAAAAAAMAAAAaaW5mZQIAAAAAAQAAZ3JpZENvbG9yAAAAABppbmZlAgAAAQACAABhdjAxQ29sb3IAAAAA
GmluZmUCAAABAAMAAGF2MDFDb2xvcgAAAAAcaXJlZgAAAAAAAAAQZGltZwABAAIAAgADAAAAi2lwcnAAAABfaXBjbwAAABRpc3Bl
AAAAAAAAAIAAAABAAAAAEHBpeGkAAAAAAwgICAAAABNjb2xybmNseAABAA0ABoAAAAAUaXNwZQAAAAAAAABAAAAAQAAAAAxhdjFD
gSAAAAAAACRpcG1hAAAAAAAAAAMAAQMBAgMAAgQEAoUDAAMEBAKFAwAAADVtZGF0AAAAAQCAAEASAAoJOBV//YQENBpAMhYWQAYY
YYQAwbY/ZRhe4tIsEiYP1BHA
"""


def test_a_picture_in_tiles_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.avif").write_bytes(base64.b64decode(TILES))
    assert "a.avif: is a picture in several tiles, which are not joined" in refusal(tmp_path / "a.avif")


def test_a_video_beside_a_stream_that_nothing_is_known_of_is_read(tmp_path: Path) -> None:
    """ffmpeg cannot copy the second stream, which has no codec and no size."""
    second = ["-f", "lavfi", "-i", "testsrc2=s=66x48:r=24:d=1"]
    run_ffmpeg("-f", "lavfi", "-i", "testsrc2=s=64x32:r=24:d=1", *second, "-map", 0, "-map", 1, "-c:v", "ffv1",
               tmp_path / "a.mkv")  # fmt: skip
    data = (tmp_path / "a.mkv").read_bytes()
    start = data.rindex(b"V_FFV1")
    rest = data[start:].replace(b"V_FFV1", b"V_NONE").replace(b"\xb0\x81\x42", b"\xb0\x81\0", 1)
    (tmp_path / "b.mkv").write_bytes(data[:start] + rest.replace(b"\xba\x81\x30", b"\xba\x81\0", 1))
    with VideoReader(tmp_path / "b.mkv") as video:
        assert (video.size, video.fps, video.num_frames) == ((64, 32), 24, 24)
        assert sum(len(frames) for frames in video) == 24


@pytest.mark.filterwarnings("ignore:.*as players show it")
@pytest.mark.parametrize(
    ("fps", "size", "pixels"), [("25", (720, 576), "yuv420p"), ("30000/1001", (720, 480), "yuv411p")]
)
def test_tapes_are_read(tmp_path: Path, fps: str, size: tuple, pixels: str) -> None:
    frames = numbered(9, size)
    run_ffmpeg(*raw(frames, fps), "-pix_fmt", pixels, "-c:v", "dvvideo", tmp_path / "tape.dv", data=frames.tobytes())
    with VideoReader(tmp_path / "tape.dv", fit=Fit.CROP) as video:
        assert str(video.fps) == fps
        assert abs(video.num_frames - 9) <= 1
        assert numbers(np.concatenate(list(video))) == list(range(9))


def write_broadcast(path: Path) -> Path:
    """A transport stream."""
    source = ["-f", "lavfi", "-i", "testsrc2=s=192x128:r=10:d=4"]
    run_ffmpeg(*source, "-c:v", "libx264", "-g", 12, "-bf", 2, path)
    return path


def test_a_stream_that_starts_within_a_group_of_pictures_is_damaged(tmp_path: Path) -> None:
    path = write_broadcast(tmp_path / "clip.ts")
    packets = path.read_bytes()
    path.write_bytes(packets[len(packets) // 188 // 4 * 188 :])
    assert refusal(path).startswith(f"{path}: is damaged or truncated; ")
