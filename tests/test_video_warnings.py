"""Videos whose colors or fields need a conversion that reading does not do: one warning that says how to convert."""

import re
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest

from mlx_ltx_vae.video import Fit, VideoReader
from video_files import noise, numbered, read, run_ffmpeg, write

TEST_PICTURE = ("-f", "lavfi", "-i", "testsrc2=s=320x192:d=0.25:r=24")
SRGB = "setparams=range=pc:colorspace=gbr:color_primaries=bt709:color_trc="
BT2020 = "zscale=p=2020:m=2020_ncl:r=limited:t"


def warnings_of(path: Path) -> list[str]:
    """The warnings of reading a video."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        read(path)
    assert all(warning.category is UserWarning and warning.filename.endswith("video_files.py") for warning in caught)
    return [str(warning.message) for warning in caught]


def converted(path: Path, warning: str) -> np.ndarray:
    """The frames of the video that the warning's ffmpeg line writes, which are read without a warning."""
    match = re.search(r"ffmpeg -i VIDEO -vf (\S+) NEW\.$", warning)
    assert match
    assert "\n" not in warning
    new = path.with_name(f"new-{path.stem}.mkv")
    run_ffmpeg("-i", path, "-vf", match[1], "-c:v", "ffv1", new)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return read(new)


def read_quietly(path: Path) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return read(path)


def saturation(frames: np.ndarray) -> float:
    low, *_, high = sorted(frames[0, 32, 48].astype(float))
    return (high - low) / high


def write_color(path: Path, color: tuple[int, int, int], filters: str) -> Path:
    """A 10-bit video of one sRGB color, converted by filters of ffmpeg."""
    frames = np.full((3, 64, 96, 3), color, np.uint8)
    raw = ["-f", "rawvideo", "-pixel_format", "rgb24", "-video_size", "96x64", "-i", "-"]
    run_ffmpeg(*raw, "-vf", f"{filters},format=yuv420p10le", "-c:v", "libx264", "-crf", 1, path, data=frames.tobytes())
    return path


@pytest.mark.parametrize(("transfer", "word"), [("smpte2084", "HDR (PQ)"), ("arib-std-b67", "HDR (HLG)")])
def test_hdr_is_reported_and_the_given_line_tone_maps_it(tmp_path: Path, transfer: str, word: str) -> None:
    path = write_color(tmp_path / "hdr.mkv", (220, 60, 60), f"{SRGB}iec61966-2-1,zscale=npl=100,{BT2020}={transfer}")
    (warning,) = warnings_of(path)
    assert warning.startswith(f"{path}: is {word}, ")
    given = (220 - 60) / 220
    assert saturation(read_quietly(path)) < given - 0.1
    assert abs(saturation(converted(path, warning)) - given) < 0.07


def test_wide_gamut_is_reported_and_the_given_line_restores_its_colors(tmp_path: Path) -> None:
    color = (200, 60, 60)
    path = write_color(tmp_path / "wide.mkv", color, f"{SRGB}bt709,{BT2020}=bt709")
    (warning,) = warnings_of(path)
    assert warning.startswith(f"{path}: has BT.2020 primaries, ")
    assert abs(read_quietly(path)[0, 32, 48, 0] / 257 - color[0]) > 15
    assert np.abs(converted(path, warning)[0, 32, 48].astype(int) - color).max() <= 6


def test_display_p3_is_reported_and_the_given_line_restores_its_colors(tmp_path: Path) -> None:
    color = (200, 60, 60)
    path = write_color(tmp_path / "p3.mkv", color, f"{SRGB}bt709,zscale=p=smpte432:t=709:m=709:r=limited")
    (warning,) = warnings_of(path)
    assert warning.startswith(f"{path}: has Display P3 primaries, and its colors are read as they are; convert it to")
    assert np.abs(read_quietly(path)[0, 32, 48] / 257 - color).max() > 10
    assert np.abs(converted(path, warning)[0, 32, 48].astype(int) - color).max() <= 3


def make_png(path: Path, level: float, chunk: bytes) -> None:
    """A flat gray PNG with a chunk in front of its pixels."""
    path.with_suffix(".pam").write_bytes(
        b"P6 32 32 65535\n" + np.full((32, 32, 3), round(level * 65535), ">u2").tobytes()
    )
    run_ffmpeg("-i", path.with_suffix(".pam"), path)
    data = path.read_bytes()
    start = data.index(b"IDAT") - 4
    length = struct.pack(">I", len(chunk) - 4)
    path.write_bytes(data[:start] + length + chunk + struct.pack(">I", zlib.crc32(chunk)) + data[start:])


@pytest.mark.parametrize("gamma", [1.0, 1 / 1.8, 1 / 2.8])
def test_gamma_of_png_is_reported_and_the_given_line_makes_it_srgb(tmp_path: Path, gamma: float) -> None:
    light, path = 0.3, tmp_path / "image.png"
    make_png(path, light**gamma, b"gAMA" + struct.pack(">I", round(gamma * 100_000)))
    (warning,) = warnings_of(path)
    assert warning.startswith(f"{path}: has a gamma of {gamma:.4g}, and its colors are read as they are; convert it to")
    assert abs(read_quietly(path)[0, 9, 9, 0] / 65535 - light**gamma) < 1e-3
    filters = re.search(r'ffmpeg -i VIDEO -vf "(.+)" NEW\.$', warning)
    run_ffmpeg("-i", path, "-vf", filters[1], tmp_path / "new.png")
    samples = np.frombuffer(run_ffmpeg("-i", tmp_path / "new.png", "-f", "rawvideo", "-"), np.uint8)  # as ffmpeg writes
    assert np.abs(samples / 255 - light ** (1 / 2.2)).max() < 0.003


@pytest.mark.parametrize("chunk", [b"gAMA" + struct.pack(">I", 45455), b"sRGB\0"])
def test_usual_png_is_read_without_a_warning(tmp_path: Path, chunk: bytes) -> None:
    make_png(tmp_path / "image.png", 0.5, chunk)
    assert warnings_of(tmp_path / "image.png") == []


def test_linear_video_is_reported_and_the_given_line_is_bt709(tmp_path: Path) -> None:
    path = write_color(tmp_path / "linear.mkv", (60, 60, 60), f"{SRGB}linear,zscale=m=709:r=limited")
    (warning,) = warnings_of(path)
    assert warning.startswith(f"{path}: has linear light, and its colors are read as they are; convert it to BT.709")
    light = 60 / 255  # of a display that follows ITU-R BT.1886
    assert np.abs(converted(path, warning)[0, 32, 48] / 255 - light ** (1 / 2.4)).max() < 0.005


def test_oblong_pixels_are_reported_and_the_given_line_makes_them_square(tmp_path: Path) -> None:
    path = tmp_path / "oblong.mkv"
    run_ffmpeg(*TEST_PICTURE, "-vf", "setsar=4/3", "-c:v", "libx264", path)
    (warning,) = warnings_of(path)
    assert warning.startswith(f"{path}: has pixels of 4:3, which are read as squares; scale it first: ffmpeg -i VIDEO")
    run_ffmpeg("-i", path, "-vf", re.search(r"-vf (\S+) NEW", warning)[1].replace("'", ""), tmp_path / "new.mkv")
    with VideoReader(tmp_path / "new.mkv", multiple=1) as video:
        assert video.size == (426, 192)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("top.mkv", ["-vf", "setfield=tff", "-c:v", "libx264"]),
        ("bottom.mp4", ["-vf", "setfield=bff", "-c:v", "libx264"]),
        ("option.mp4", ["-field_order", "tt", "-vf", "setfield=tff", "-c:v", "libx264"]),
        ("broadcast.ts", ["-vf", "setfield=tff", "-c:v", "mpeg2video"]),
        ("camera.mov", ["-vf", "setfield=tff", "-c:v", "prores_ks"]),
        ("tape.avi", ["-vf", "scale=720:576,fps=25,setfield=bff", "-pix_fmt", "yuv420p", "-c:v", "dvvideo"]),
    ],
)
def test_interlaced_video_is_reported_for_every_codec(tmp_path: Path, name: str, options: list[str]) -> None:
    run_ffmpeg(*TEST_PICTURE, *options, "-flags", "+ilme+ildct", tmp_path / name)
    with pytest.warns(UserWarning, match=f"{name}: is marked as interlaced") as caught:
        VideoReader(tmp_path / name, fit=Fit.CROP).close()
    assert sum("is marked as interlaced" in str(warning.message) for warning in caught) == 1


def test_warning_that_is_an_error_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_ffmpeg(*TEST_PICTURE, "-vf", "setfield=tff", "-c:v", "libx264", "-flags", "+ilme+ildct", tmp_path / "clip.mkv")
    monkeypatch.setattr("mlx_ltx_vae.video.reader.FfmpegDecoder", None)
    with warnings.catch_warnings(), pytest.raises(UserWarning, match="interlaced"):
        warnings.simplefilter("error")
        VideoReader(tmp_path / "clip.mkv")


def test_given_line_separates_the_fields(tmp_path: Path) -> None:
    def combing(frames: np.ndarray) -> float:
        return np.abs(np.diff(frames.astype(int), axis=1)).mean()

    source, path = write(tmp_path / "twice.mkv", numbered(24) // 2 * 3, 48, codec="ffv1"), tmp_path / "fields.mkv"
    run_ffmpeg("-i", source, "-vf", "tinterlace=interleave_top", "-c:v", "libx264", "-flags", "+ilme+ildct", path)
    (warning,) = warnings_of(path)
    frames = converted(path, warning)
    assert len(frames) == 12
    assert combing(read_quietly(path)) > 5
    assert combing(frames) < 1


@pytest.mark.parametrize("name", ["clip.mp4", "clip.mkv", "clip.webm", "clip.gif", "clip%d.png"])
def test_videos_of_this_package_are_read_without_a_warning(tmp_path: Path, name: str) -> None:
    assert warnings_of(write(tmp_path / name, noise(3))) == []


@pytest.mark.parametrize("codec", ["prores_ks", "mjpeg", "mpeg2video", "mpeg4"])
def test_progressive_video_is_read_without_a_warning(tmp_path: Path, codec: str) -> None:
    run_ffmpeg(*TEST_PICTURE, "-c:v", codec, tmp_path / "clip.mov")
    assert warnings_of(tmp_path / "clip.mov") == []
