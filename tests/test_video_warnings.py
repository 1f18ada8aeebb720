"""Videos whose colors, pixels or fields are converted as players do, with one warning, against ffmpeg's own filters."""

import struct
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mlx_ltx_vae import Fit, VideoReader
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


def by_hand(path: Path, filters: str, frames: np.ndarray) -> np.ndarray:
    """The frames that ffmpeg's filters make, in the shape and dtype of `frames`."""
    pixel_format = "rgb24" if frames.dtype == np.uint8 else "rgb48le"
    raw = run_ffmpeg("-i", path, "-vf", filters, "-f", "rawvideo", "-pix_fmt", pixel_format, "-")
    return np.frombuffer(raw, frames.dtype).reshape(frames.shape)


def are_within_a_level(frames: np.ndarray, expected: np.ndarray) -> bool:
    """Whether frames differ by at most one of 255 levels."""
    unit = 1 if frames.dtype == np.uint8 else 257
    return np.abs(frames.astype(int) - expected.astype(int)).max() <= unit


def read_quietly(path: Path, **options: Any) -> np.ndarray:
    with warnings.catch_warnings(), VideoReader(path, multiple=1, **options) as video:
        warnings.simplefilter("ignore")
        return np.concatenate(list(video))


def stored(path: Path) -> np.ndarray:
    """The frames as they are stored, which are read without a warning."""
    with warnings.catch_warnings(), VideoReader(path, multiple=1, as_stored=True) as video:
        warnings.simplefilter("error")
        return np.concatenate(list(video))


def saturation(frames: np.ndarray) -> float:
    low, *_, high = sorted(frames[0, 32, 48].astype(float))
    return (high - low) / high


def write_color(path: Path, color: tuple[int, int, int], filters: str) -> Path:
    """A 10-bit video of one sRGB color, converted by filters of ffmpeg."""
    frames = np.full((3, 64, 96, 3), color, np.uint8)
    raw = ["-f", "rawvideo", "-pixel_format", "rgb24", "-video_size", "96x64", "-i", "-"]
    run_ffmpeg(*raw, "-vf", f"{filters},format=yuv420p10le", "-c:v", "libx264", "-crf", 1, path, data=frames.tobytes())
    return path


@pytest.mark.quick(1)
@pytest.mark.parametrize(("transfer", "name", "gamma"), [("smpte2084", "PQ", 1), ("arib-std-b67", "HLG", 1.2)])
def test_hdr_is_tone_mapped(tmp_path: Path, transfer: str, name: str, gamma: float) -> None:
    """The ratio of the channels is kept, in BT.1886. To write HLG, zscale applies the `gamma` to each channel."""
    path = write_color(tmp_path / "hdr.mkv", (220, 60, 60), f"{SRGB}iec61966-2-1,zscale=npl=100,{BT2020}={transfer}")
    text = f"{path}: is converted from {name} to BT.709, as players show it; as_stored=True reads it as it is."
    assert warnings_of(path) == [text]
    low, high = (((level / 255 + 0.055) / 1.055) ** 2.4 for level in (60, 220))
    expected = 1 - (low / high) ** (1 / gamma / 2.4)
    assert saturation(stored(path)) < expected - 0.02
    assert abs(saturation(read_quietly(path)) - expected) < 0.02


@pytest.mark.parametrize(
    ("primaries", "filters", "change", "tolerance"),
    [("BT.2020", f"{BT2020}=bt709", 15, 6), ("Display P3", "zscale=p=smpte432:t=709:m=709:r=limited", 10, 3)],
)
def test_wide_gamut_is_converted_to_bt709(
    tmp_path: Path, primaries: str, filters: str, change: int, tolerance: int
) -> None:
    color = (200, 60, 60)
    path = write_color(tmp_path / "wide.mkv", color, f"{SRGB}bt709,{filters}")
    (warning,) = warnings_of(path)
    assert warning.startswith(f"{path}: is converted from {primaries} to BT.709, as players show it; ")
    assert np.abs(stored(path)[0, 32, 48] / 257 - color).max() > change
    assert np.abs(read_quietly(path)[0, 32, 48] / 257 - color).max() <= tolerance


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


def test_a_png_of_linear_light_becomes_srgb(tmp_path: Path) -> None:
    light, path = 0.3, tmp_path / "image.png"
    make_png(path, light, b"gAMA" + struct.pack(">I", 100_000))
    assert abs(stored(path)[0, 9, 9, 0] / 65535 - light) < 1e-3
    assert abs(read_quietly(path)[0, 9, 9, 0] / 65535 - (1.055 * light ** (1 / 2.4) - 0.055)) < 0.003


@pytest.mark.parametrize("chunk", [b"gAMA" + struct.pack(">I", 45455), b"sRGB\0"])
def test_usual_png_is_read_without_a_warning(tmp_path: Path, chunk: bytes) -> None:
    make_png(tmp_path / "image.png", 0.5, chunk)
    assert warnings_of(tmp_path / "image.png") == []


def test_linear_video_is_converted_to_bt709(tmp_path: Path) -> None:
    path = write_color(tmp_path / "linear.mkv", (60, 60, 60), f"{SRGB}linear,zscale=m=709:r=limited")
    (warning,) = warnings_of(path)
    assert warning.startswith(f"{path}: is converted from linear light to BT.709, as players show it; ")
    light = 60 / 255  # of a display that follows ITU-R BT.1886
    assert np.abs(read_quietly(path)[0, 32, 48] / 65535 - light ** (1 / 2.4)).max() < 0.005


#: x and y of red, green, blue and white.
PRIMARIES = {
    "sRGB": (0.64, 0.33, 0.3, 0.6, 0.15, 0.06, 0.3127, 0.329),
    "Display P3": (0.68, 0.32, 0.265, 0.69, 0.15, 0.06, 0.3127, 0.329),
    "Adobe RGB": (0.64, 0.33, 0.21, 0.71, 0.15, 0.06, 0.3127, 0.329),
    "ProPhoto": (0.7347, 0.2653, 0.1596, 0.8404, 0.0366, 0.0001, 0.3457, 0.3585),
}
BRADFORD = np.array([[0.8951, 0.2664, -0.1614], [-0.7502, 1.7135, 0.0367], [0.0389, -0.0685, 1.0296]])
D50 = np.array([0.9642, 1.0, 0.8249])


def icc_profile(name: str, primaries: tuple[float, ...] | None, gamma: float | None) -> bytes:
    """A profile by the ICC's specification; gray without primaries, with the curve of sRGB without a gamma."""
    numbers = lambda *values: struct.pack(f">{len(values)}i", *(round(value * 65536) for value in values))  # noqa: E731
    curve = b"curv" + struct.pack(">IIH", 0, 1, round((gamma or 0) * 256))
    if gamma is None:
        curve = b"para" + struct.pack(">IHH", 0, 3, 0) + numbers(2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045)
    tags = {
        b"desc": b"desc" + struct.pack(">II", 0, len(name) + 1) + name.encode() + bytes(79),
        b"wtpt": b"XYZ \0\0\0\0" + numbers(*D50),
    }
    if primaries is None:
        tags[b"kTRC"] = curve
    else:
        points = np.array([[x, y, 1 - x - y] for x, y in zip(primaries[::2], primaries[1::2], strict=True)]).T
        white = points[:, 3] / points[1, 3]
        to_xyz = points[:, :3] * np.linalg.solve(points[:, :3], white)
        to_xyz = np.linalg.inv(BRADFORD) @ np.diag((BRADFORD @ D50) / (BRADFORD @ white)) @ BRADFORD @ to_xyz
        for letter, column in zip("rgb", to_xyz.T, strict=True):
            tags[f"{letter}XYZ".encode()] = b"XYZ \0\0\0\0" + numbers(*column)
            tags[f"{letter}TRC".encode()] = curve
    table, data = struct.pack(">I", len(tags)), b""
    for tag, value in tags.items():
        table += tag + struct.pack(">II", 128 + 4 + 12 * len(tags) + len(data), len(value))
        data += value + bytes(-len(value) % 4)
    space = b"GRAY" if primaries is None else b"RGB "
    header = struct.pack(
        ">I4sI4s4s4s12s4s", 128 + len(table + data), b"", 0x02400000, b"mntr", space, b"XYZ ", b"", b"acsp"
    )
    return header.ljust(68, b"\0") + numbers(*D50) + bytes(128 - 80) + table + data


WRITERS = {"a.png": {}, "a.jpg": {"quality": 95}, "a.tif": {}, "a.webp": {"lossless": True}}


@pytest.mark.quick(5)
@pytest.mark.parametrize("source", ["file", "folder"])
@pytest.mark.parametrize(
    ("file", "name", "gamma", "is_reported"),
    [
        ("a.png", "sRGB", None, False),
        ("a.jpg", "sRGB", 2.2, False),
        ("a.tif", "sRGB", 1.8, True),
        ("a.webp", "Display P3", None, True),
        ("a.png", "Adobe RGB", 2.2, True),
        ("a.jpg", "ProPhoto", 1.8, True),
    ],
)
def test_color_profiles_that_are_not_srgb_by_their_colors_are_reported(
    tmp_path: Path, file: str, source: str, name: str, gamma: float | None, is_reported: bool
) -> None:
    other = f"not {name}"  # the colors count, and not the name
    path = tmp_path / f"0{file}"
    profile = icc_profile(other, PRIMARIES[name], gamma)
    Image.new("RGB", (64, 64), (200, 100, 50)).save(path, icc_profile=profile, **WRITERS[file])
    given = path if source == "file" else tmp_path
    text = f"{given}: has the color profile '{other}', and its colors are read as they are; convert it to sRGB first."
    assert warnings_of(given) == ([text] if is_reported else [])


@pytest.mark.parametrize(("gamma", "is_reported"), [(2.2, False), (1.8, True)])
def test_color_profiles_of_gray_pictures_are_reported(tmp_path: Path, gamma: float, is_reported: bool) -> None:
    Image.new("L", (64, 64), 100).save(tmp_path / "a.png", icc_profile=icc_profile("dots", None, gamma))
    assert ["has the color profile 'dots'" in text for text in warnings_of(tmp_path / "a.png")] == [True] * is_reported


def test_color_profiles_of_animations_are_reported(tmp_path: Path) -> None:
    first, second = (Image.new("RGB", (64, 64), color) for color in ("red", "green"))
    profile = icc_profile("wide", PRIMARIES["Adobe RGB"], 2.2)
    first.save(tmp_path / "a.png", save_all=True, append_images=[second], duration=100, icc_profile=profile)
    (text,) = warnings_of(tmp_path / "a.png")
    assert "has the color profile 'wide'" in text


def test_a_damaged_profile_is_none(tmp_path: Path) -> None:
    make_png(tmp_path / "gamma.png", 0.5, b"gAMA" + struct.pack(">I", 45_455))
    data = (tmp_path / "gamma.png").read_bytes()
    for content, words in [
        (icc_profile("p3", PRIMARIES["Display P3"], None), "color profile 'p3'"),
        (icc_profile("srgb", PRIMARIES["sRGB"], None), ""),
        (b"no profile at all", ""),
    ]:
        body = b"iCCPname\0\0" + zlib.compress(content)
        chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
        (tmp_path / "a.png").write_bytes(data[:33] + chunk + data[33:])
        texts = warnings_of(tmp_path / "a.png")
        assert len(texts) == bool(words)
        assert all(words in text for text in texts)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("transfer", "words"),
    [("bt470bg", "a gamma of 2.8"), ("log100", "a logarithmic transfer"), ("log316", "a logarithmic transfer")],
)
def test_transfer_functions_that_no_display_has_are_converted(tmp_path: Path, transfer: str, words: str) -> None:
    color = (200, 90, 90)
    path = write_color(tmp_path / "a.mkv", color, f"{SRGB}bt709,zscale=p=709:t={transfer}:m=709:r=limited")
    (text,) = warnings_of(path)
    assert text.startswith(f"{path}: is converted from {words}")
    assert np.abs(stored(path)[0, 32, 48] / 257 - color).max() > 10
    assert np.abs(read_quietly(path)[0, 32, 48] / 257 - color).max() <= 3


def test_transfer_functions_like_that_of_a_display_are_read_without_a_warning(tmp_path: Path) -> None:
    for transfer in ("bt709", "smpte170m", "smpte240m", "bt470m", "iec61966-2-1", "iec61966-2-4", "bt2020-10"):
        path, source = tmp_path / f"{transfer}.mp4", f"color=gray:s=64x64:d=0.1,setparams=color_trc={transfer}"
        run_ffmpeg("-f", "lavfi", "-i", source, path)
        assert warnings_of(path) == []


def test_oblong_pixels_become_squares(tmp_path: Path) -> None:
    path = tmp_path / "oblong.mkv"
    run_ffmpeg(*TEST_PICTURE, "-vf", "setsar=6/5", "-c:v", "libx264", path)
    (warning,) = warnings_of(path)
    assert warning.startswith(f"{path}: is scaled from 320x192 to square pixels (384x192), as players show it; ")
    with VideoReader(path, multiple=1) as video:
        assert video.size == video.source_size == (384, 192)
    frames = read_quietly(path)
    to_rgb = "setparams=color_trc=bt709,zscale=min=170m:rin=limited:cin=left:m=gbr:r=full:filter=bicubic"
    scaled = "format=gbrp16le,zscale=384:192:filter=bicubic,format=gbrp"
    assert are_within_a_level(frames, by_hand(path, f"{to_rgb},{scaled}", frames))
    assert stored(path).shape[1:3] == (192, 320)
    with VideoReader(path, size=(352, 192), fit=Fit.CROP) as video:
        assert video.scaled_size == (384, 192)


@pytest.mark.quick(2)
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
def test_interlaced_video_of_every_codec_is_deinterlaced(tmp_path: Path, name: str, options: list[str]) -> None:
    run_ffmpeg(*TEST_PICTURE, *options, "-flags", "+ilme+ildct", tmp_path / name)
    with pytest.warns(UserWarning, match=f"{name}: is .*deinterlaced, as players show it") as caught:
        VideoReader(tmp_path / name, fit=Fit.CROP).close()
    assert len(caught) == 1
    assert len(read_quietly(tmp_path / name)) == len(stored(tmp_path / name))


def test_warning_that_is_an_error_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_ffmpeg(*TEST_PICTURE, "-vf", "setfield=tff", "-c:v", "libx264", "-flags", "+ilme+ildct", tmp_path / "clip.mkv")
    monkeypatch.setattr("mlx_ltx_vae.video.reader.FfmpegDecoder", None)
    with warnings.catch_warnings(), pytest.raises(UserWarning, match="deinterlaced"):
        warnings.simplefilter("error")
        VideoReader(tmp_path / "clip.mkv")


def test_fields_become_whole_frames(tmp_path: Path) -> None:
    def combing(frames: np.ndarray) -> float:
        return np.abs(np.diff(frames.astype(int), axis=1)).mean()

    source, path = write(tmp_path / "twice.mkv", numbered(24) // 2 * 3, 48, codec="ffv1"), tmp_path / "fields.mkv"
    run_ffmpeg("-i", source, "-vf", "tinterlace=interleave_top", "-c:v", "libx264", "-flags", "+ilme+ildct", path)
    frames = read_quietly(path)
    assert len(frames) == len(stored(path)) == 12
    assert combing(stored(path)) > 5
    assert combing(frames) < 1
    to_rgb = "setparams=color_trc=bt709,zscale=min=170m:rin=limited:cin=left:m=gbr:r=full:filter=bicubic,format=gbrp"
    assert are_within_a_level(frames, by_hand(path, f"bwdif=mode=send_frame,{to_rgb}", frames))


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", ["clip.mp4", "clip.mkv", "clip.webm", "clip.gif", "clip%d.png"])
def test_videos_of_this_package_are_read_without_a_warning(tmp_path: Path, name: str) -> None:
    assert warnings_of(write(tmp_path / name, noise(3))) == []


@pytest.mark.parametrize("codec", ["prores_ks", "mjpeg", "mpeg2video"])
def test_progressive_video_is_read_without_a_warning(tmp_path: Path, codec: str) -> None:
    run_ffmpeg(*TEST_PICTURE, "-c:v", codec, tmp_path / "clip.mov")
    assert warnings_of(tmp_path / "clip.mov") == []
