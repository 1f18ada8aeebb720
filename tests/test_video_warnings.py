"""Videos whose colors or fields need a conversion that reading does not do: one warning that says how to convert."""

import re
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

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


@pytest.mark.parametrize(
    ("primaries", "filters", "change", "tolerance"),
    [("BT.2020", f"{BT2020}=bt709", 15, 6), ("Display P3", "zscale=p=smpte432:t=709:m=709:r=limited", 10, 3)],
)
def test_wide_gamut_is_reported_and_the_given_line_restores_its_colors(
    tmp_path: Path, primaries: str, filters: str, change: int, tolerance: int
) -> None:
    color = (200, 60, 60)
    path = write_color(tmp_path / "wide.mkv", color, f"{SRGB}bt709,{filters}")
    (warning,) = warnings_of(path)
    assert warning.startswith(f"{path}: has {primaries} primaries, and its colors are read as they are; convert it to")
    assert np.abs(read_quietly(path)[0, 32, 48] / 257 - color).max() > change
    assert np.abs(converted(path, warning)[0, 32, 48].astype(int) - color).max() <= tolerance


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


def test_a_profile_counts_more_than_a_gamma_and_a_damaged_one_is_none(tmp_path: Path) -> None:
    make_png(tmp_path / "gamma.png", 0.5, b"gAMA" + struct.pack(">I", 100_000))
    data = (tmp_path / "gamma.png").read_bytes()
    for content, words in [
        (icc_profile("p3", PRIMARIES["Display P3"], None), "color profile 'p3'"),
        (icc_profile("srgb", PRIMARIES["sRGB"], None), ""),
        (b"no profile at all", "gamma of 1"),
    ]:
        body = b"iCCPname\0\0" + zlib.compress(content)
        chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
        (tmp_path / "a.png").write_bytes(data[:33] + chunk + data[33:])
        texts = warnings_of(tmp_path / "a.png")
        assert len(texts) == bool(words)
        assert all(words in text for text in texts)


@pytest.mark.parametrize(
    ("transfer", "words"),
    [("bt470bg", "a gamma of 2.8"), ("log100", "a logarithmic transfer"), ("log316", "a logarithmic transfer")],
)
def test_transfer_functions_that_no_display_has_are_reported_and_the_given_line_converts_them(
    tmp_path: Path, transfer: str, words: str
) -> None:
    color = (200, 90, 90)
    path = write_color(tmp_path / "a.mkv", color, f"{SRGB}bt709,zscale=p=709:t={transfer}:m=709:r=limited")
    (text,) = warnings_of(path)
    assert text.startswith(f"{path}: has {words}")
    assert np.abs(read_quietly(path)[0, 32, 48] / 257 - color).max() > 10
    assert np.abs(converted(path, text)[0, 32, 48].astype(int) - color).max() <= 3


def test_transfer_functions_like_that_of_a_display_are_read_without_a_warning(tmp_path: Path) -> None:
    for transfer in ("bt709", "smpte170m", "smpte240m", "bt470m", "iec61966-2-1", "iec61966-2-4", "bt2020-10"):
        path, source = tmp_path / f"{transfer}.mp4", f"color=gray:s=64x64:d=0.1,setparams=color_trc={transfer}"
        run_ffmpeg("-f", "lavfi", "-i", source, path)
        assert warnings_of(path) == []


def dolby_vision(path: Path, profile: int, compatibility: int) -> Path:
    """HEVC in an mp4 with the box of Dolby Vision, which no encoder here writes."""
    run_ffmpeg("-f", "lavfi", "-i", "testsrc2=s=64x64:d=0.1:r=20", "-c:v", "libx265", "-tag:v", "hvc1", path)
    box = struct.pack(">I4sBBHB19x", 32, b"dvcC", 1, 0, profile << 9 | 6 << 3 | 1 << 2 | 1, compatibility << 4)
    beginnings = {b"moov": 8, b"trak": 8, b"mdia": 8, b"minf": 8, b"stbl": 8, b"stsd": 16, b"hvc1": 86}
    data = bytearray(path.read_bytes())  # moov is last, so that no offset changes

    def insert(start: int, end: int) -> bool:
        while start < end:
            size, kind = int.from_bytes(data[start : start + 4], "big"), bytes(data[start + 4 : start + 8])
            if kind == b"hvc1":
                data[start + size : start + size] = box
            if kind == b"hvc1" or (kind in beginnings and insert(start + beginnings[kind], start + size)):
                data[start : start + 4] = struct.pack(">I", size + len(box))
                return True
            start += size
        return False

    assert insert(0, len(data))
    path.write_bytes(data)
    return path


def test_dolby_vision_without_a_compatible_layer_is_reported(tmp_path: Path) -> None:
    (text,) = warnings_of(dolby_vision(tmp_path / "5.mp4", 5, 0))
    assert "5.mp4: is Dolby Vision of profile 5, and its colors are read as they are; convert it first" in text
    for profile, compatibility in ((8, 1), (8, 2), (8, 4)):
        assert warnings_of(dolby_vision(tmp_path / "8.mp4", profile, compatibility)) == []


@pytest.mark.parametrize("ending", [".mkv", ".mp4"])
@pytest.mark.parametrize(
    ("first", "second", "is_reported"), [("0", "default", True), ("default", "0", False), ("0", "0", False)]
)
def test_a_second_video_that_is_the_default_is_reported_and_the_given_line_chooses_it(
    tmp_path: Path, ending: str, first: str, second: str, is_reported: bool
) -> None:
    path = tmp_path / f"a{ending}"
    black, white = (["-f", "lavfi", "-i", f"color={color}:s=64x64:d=0.1:r=20"] for color in ("black", "white"))
    dispositions = ["-disposition:v:0", first, "-disposition:v:1", second]
    run_ffmpeg(*black, *white, "-map", 0, "-map", 1, *dispositions, path)
    texts = warnings_of(path)
    assert len(texts) == is_reported
    assert read_quietly(path).max() < 20
    if texts:
        assert "has a second video stream, which it marks as the default, and the first is read" in texts[0]
        new = tmp_path / f"b{ending}"
        line = texts[0].split("ffmpeg ")[1].rstrip(".").replace("VIDEO", str(path)).replace("NEW", str(new))
        run_ffmpeg(*line.split())
        assert read_quietly(new).min() > 230


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


@pytest.mark.parametrize("codec", ["prores_ks", "mjpeg", "mpeg2video"])
def test_progressive_video_is_read_without_a_warning(tmp_path: Path, codec: str) -> None:
    run_ffmpeg(*TEST_PICTURE, "-c:v", codec, tmp_path / "clip.mov")
    assert warnings_of(tmp_path / "clip.mov") == []
