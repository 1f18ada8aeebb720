"""Reading unusual streams: every frame of streams that change, start late or have their transparency apart."""

import re
import struct
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from video_files import SIZE, numbered, numbers, read, run_ffmpeg

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


def transparent(num_frames: int, dtype: type = np.uint8) -> np.ndarray:
    """Frames of one color: opaque, half transparent, and transparent from left to right."""
    top = np.iinfo(dtype).max
    frames = np.empty((num_frames, SIZE[1], SIZE[0], 4), dtype)
    frames[..., :3] = FLAT.astype(dtype) * (top // 255)
    frames[..., :32, 3], frames[..., 32:64, 3], frames[..., 64:, 3] = top, top // 2 + 1, 0
    return frames


def check_composited(frames: np.ndarray, tolerance: float) -> None:
    """Check that frames are `transparent` ones over black."""
    assert frames.dtype == np.uint8
    for column, alpha in ((16, 1), (48, 128 / 255), (80, 0)):
        assert np.abs(frames[:, 8:-8, column].astype(int) - FLAT * alpha).max() <= tolerance


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
    rate = re.search(r"--fps (\d+) would keep them\.$", warning)
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
    frames = transparent(4)
    for index, frame in enumerate(frames):
        Image.fromarray(frame[..., :3] if index % 2 == 0 else frame).save(tmp_path / f"{index}.png")
    result = read(tmp_path)
    assert np.array_equal(result[0], frames[0, ..., :3])
    check_composited(result[1::2], 1)
