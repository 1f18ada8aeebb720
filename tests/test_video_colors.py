"""Colors of files against the standards' own arithmetic: matrix, levels, depth and chroma site, in both directions.

ffmpeg stores and returns raw planes here, which it does not convert; nothing is written and read by the package alone.
"""

import re
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from imageio_ffmpeg import get_ffmpeg_exe
from PIL import ExifTags, Image, ImageOps

from mlx_ltx_vae import Fit, ReaderError, VideoReader, VideoWriter
from video_files import read, refusal, run_ffmpeg

SIZE = 96, 64
#: Shares of red and blue in luma (ITU-R BT.601, BT.709, BT.2020).
SHARES = {
    "bt470bg": (0.299, 0.114),
    "smpte170m": (0.299, 0.114),
    "bt709": (0.2126, 0.0722),
    "bt2020nc": (0.2627, 0.0593),
}
#: How far right and down of the first luma sample a chroma sample is, where it has two in each direction.
SITES = {"left": (0, 0.5), "topleft": (0, 0), "center": (0.5, 0.5), "bottomleft": (0, 1)}
EDGE = 8  # pixels at which interpolation has no neighbors


def picture(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Linear RGB (H, W, 3) in [0, 1] at places of a frame: interpolating it is exact, and shows where samples are."""
    red, green, blue = 0.1 + 0.008 * x + 0 * y, 0.9 - 0.004 * x - 0.006 * y, 0.05 + 0.014 * y + 0 * x
    return np.stack([red, green, blue], -1)


def to_planes(rgb: np.ndarray, matrix: str, bits: int, levels: str) -> np.ndarray:
    """Y, Cb and Cr (3, H, W) by ITU-R BT.601, BT.709 and BT.2020, not rounded."""
    share_red, share_blue = SHARES[matrix]
    red, green, blue = np.moveaxis(rgb, -1, 0)
    luma = share_red * red + (1 - share_red - share_blue) * green + share_blue * blue
    chroma = [(blue - luma) / (2 - 2 * share_blue), (red - luma) / (2 - 2 * share_red)]
    if levels == "pc":
        peak = 2**bits - 1
        return np.stack([luma * peak, *(part * peak + 2 ** (bits - 1) for part in chroma)])
    return np.stack([16 + 219 * luma, *(128 + 224 * part for part in chroma)]) * 2 ** (bits - 8)


def grid(size: tuple[int, int], steps: tuple[int, int] = (1, 1), place: tuple[float, float] = (0, 0)) -> Iterator:
    """The places x (1, w) and y (h, 1) of samples."""
    (width, height), (right, down) = size, place
    yield np.arange(0, width, steps[0])[None] + right
    yield np.arange(0, height, steps[1])[:, None] + down


def layout(pixel_format: str) -> tuple[int, int, int]:
    """Bits, and the luma samples of a chroma sample across and down."""
    bits = re.search(r"4[0-4]+p(\d+)|gbrp(\d+)", pixel_format)
    steps = {"420": (2, 2), "422": (2, 1), "440": (1, 2), "411": (4, 1)}
    found = re.search(r"4\d\d", pixel_format)
    return int(next(filter(None, bits.groups()))) if bits else 8, *steps.get(found[0] if found else "", (1, 1))


def expected_planes(pixel_format: str, size: tuple[int, int] = SIZE, matrix="bt709", levels="tv", site="left"):  # noqa: ANN201
    """The planes of the picture in a pixel format, not rounded."""
    bits, across, down = layout(pixel_format)
    luma = to_planes(picture(*grid(size)), matrix, bits, levels)[0]
    right, below = SITES[site]
    places = grid(size, (across, down), (right if across > 1 else 0, below if down > 1 else 0))
    return [luma, *to_planes(picture(*places), matrix, bits, levels)[1:]]


def stored_planes(path: Path, pixel_format: str, size: tuple[int, int] = SIZE) -> list[np.ndarray]:
    """The planes of a file's first frame, as its decoder returns them."""
    bits, across, down = layout(pixel_format)
    data = run_ffmpeg("-i", path, "-frames:v", 1, "-pix_fmt", pixel_format, "-f", "rawvideo", "-")
    samples = np.frombuffer(data, np.uint8 if bits == 8 else np.uint16)
    (width, height), chroma = size, (-(-size[0] // across), -(-size[1] // down))
    shapes = [(height, width), chroma[::-1], chroma[::-1]]
    ends = np.cumsum([rows * columns for rows, columns in shapes])
    assert len(samples) >= ends[-1]
    return [
        part.reshape(shape).astype(float)
        for part, shape in zip(np.split(samples, ends)[:3], shapes, strict=True)
    ]  # fmt: skip


def write_picture(path: Path, bit_depth: int, size: tuple[int, int] = SIZE, **options: object) -> Path:
    peak = 255 if bit_depth == 8 else 65535
    frame = np.rint(picture(*grid(size)) * peak).astype(np.uint8 if bit_depth == 8 else np.uint16)
    with VideoWriter(path, size=size, fps=24, bit_depth=bit_depth, **options) as out:
        out.write(np.stack([frame] * 3))
    return path


def difference(found: list[np.ndarray], expected: list[np.ndarray], bits: int) -> float:
    """The largest difference away from the edges, in levels of 8 bits."""
    inner = [np.abs(a - b)[EDGE:-EDGE, EDGE:-EDGE].max() for a, b in zip(found, expected, strict=True)]
    return max(inner) / 2 ** (bits - 8)


LOSSLESS = [
    "yuv420p", "yuv422p", "yuv444p", "yuv420p10le", "yuv422p10le", "yuv444p10le", "yuv420p12le", "yuv444p16le",
]  # fmt: skip


@pytest.mark.quick(5)
@pytest.mark.parametrize(
    ("pixel_format", "bit_depth"),
    [("yuv420p", 10), ("yuv444p16le", 8), *zip(LOSSLESS, 2 * [8, 10, 10, 8], strict=True)],
)
def test_written_planes_are_those_of_the_standard(tmp_path: Path, pixel_format: str, bit_depth: int) -> None:
    path = write_picture(tmp_path / "a.mkv", bit_depth, codec="ffv1", pix_fmt=pixel_format)
    bits = layout(pixel_format)[0]
    rounding = 0.5 / 2 ** (bits - 8) + (0.6 if bit_depth == 8 else 0.002)  # that of the file, and of the frames
    assert difference(stored_planes(path, pixel_format), expected_planes(pixel_format), bits) < rounding


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    ("name", "codec", "bit_depth", "pixel_format", "options"),
    [
        ("a.mp4", "h264", 8, "yuv420p", {"crf": 0}),
        ("a.mp4", "h264", 10, "yuv420p10le", {"crf": 0}),
        ("a.mp4", "h264", 10, "yuv422p10le", {"crf": 0, "pix_fmt": "yuv422p10le"}),
        ("a.mov", "h264", 10, "yuv420p", {"crf": 0, "pix_fmt": "nv12"}),
        ("a.mp4", "hevc", 8, "yuv420p", {"crf": 0}),
        ("a.mp4", "hevc", 10, "yuv420p10le", {"crf": 0}),
        ("a.mp4", "hevc", 10, "yuv444p12le", {"crf": 0, "pix_fmt": "yuv444p12le"}),
        ("a.webm", "vp9", 8, "yuv420p", {"crf": 1}),
        ("a.mkv", "vp9", 10, "yuv420p10le", {"crf": 1}),
        ("a.mp4", "av1", 8, "yuv420p", {"crf": 1}),
        ("a.mkv", "av1", 10, "yuv420p10le", {"crf": 1}),
        ("a.mov", "prores", 8, "yuv422p10le", {}),
        ("a.mov", "prores", 10, "yuv422p10le", {}),
        ("a.mov", "prores", 10, "yuv444p12le", {"pix_fmt": "yuv444p10le"}),  # as ffmpeg decodes it
        ("a.mov", "prores4444", 10, "yuv444p12le", {}),
    ],
)
def test_every_codec_stores_the_levels_of_the_standard(
    tmp_path: Path, name: str, codec: str, bit_depth: int, pixel_format: str, options: dict
) -> None:
    path = write_picture(tmp_path / name, bit_depth, codec=codec, **options)
    found, expected = stored_planes(path, pixel_format), expected_planes(pixel_format)
    scale = 2 ** (layout(pixel_format)[0] - 8)
    for a, b in zip(found, expected, strict=True):  # what is lost is noise; a wrong level or place is not
        assert abs(np.mean((a - b)[EDGE:-EDGE, EDGE:-EDGE])) / scale < 0.13


@pytest.mark.parametrize(
    ("pixel_format", "bit_depth"), [("gbrp10le", 8), ("gbrp12le", 10), ("gbrp16le", 8), ("gbrp16le", 10), ("bgr0", 10)]
)
def test_rgb_of_any_depth_has_the_full_range(tmp_path: Path, pixel_format: str, bit_depth: int) -> None:
    path = write_picture(tmp_path / "a.mkv", bit_depth, codec="ffv1", pix_fmt=pixel_format)
    peak = {"gbrp10le": 1023, "gbrp12le": 4095, "gbrp16le": 65535}.get(pixel_format, 255)
    planar = "gbrp" if pixel_format == "bgr0" else pixel_format
    found = np.stack(stored_planes(path, planar))[[2, 0, 1]].transpose(1, 2, 0) / peak
    assert np.abs(found - picture(*grid(SIZE))).max() < 0.5 / peak + 0.51 / (255 if bit_depth == 8 else 65535)


@pytest.mark.parametrize("size", [(33, 17), (97, 63), (1, 1), (2, 3)])
def test_odd_sizes_are_converted_whole(tmp_path: Path, size: tuple[int, int]) -> None:
    frame = np.full((2, size[1], size[0], 3), 65535, np.uint16)
    with VideoWriter(tmp_path / "a.mkv", size=size, fps=24, codec="vp9", bit_depth=10, crf=0) as out:
        out.write(frame)
    luma, *chroma = stored_planes(tmp_path / "a.mkv", "yuv420p10le", size)
    assert np.abs(luma - 940).max() <= 1
    assert all(np.abs(plane - 512).max() <= 1 for plane in chroma)


@pytest.mark.parametrize(
    ("name", "codec", "bit_depth"),
    [("a.mp4", "h264", 8), ("a.mov", "hevc", 10), ("a.mp4", "av1", 10), ("a.webm", "vp9", 8), ("a.mov", "prores", 10)],
)
def test_a_file_states_what_its_frames_are(tmp_path: Path, name: str, codec: str, bit_depth: int) -> None:
    path = write_picture(tmp_path / name, bit_depth, codec=codec)
    command = [get_ffmpeg_exe(), "-i", path, "-vf", "showinfo=checksum=0", "-f", "null", "-"]
    log = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "color_range:tv color_space:bt709 color_primaries:bt709 color_trc:bt709" in log
    assert re.search(r" cl:(\w+) ", log)[1] == ("unspecified" if codec == "prores" else "left")  # ProRes has no field


@pytest.mark.parametrize(("name", "codec"), [("a.mp4", "h264"), ("a.mov", "hevc")])
def test_the_stream_itself_states_where_chroma_is(tmp_path: Path, name: str, codec: str) -> None:
    path = write_picture(tmp_path / name, 10, codec=codec)
    command = [get_ffmpeg_exe(), "-i", path, "-c", "copy", "-bsf:v", "trace_headers", "-f", "null", "-"]
    headers = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert re.search(r"chroma_loc_info_present_flag +1 = 1", headers)
    assert re.search(r"chroma_sample_loc_type_top_field +1 = 0", headers)  # left
    for field, value in (("video_full_range_flag", 0), ("matrix_coefficients", 1), ("transfer_characteristics", 1)):
        assert re.search(rf"{field} +\d+ = {value}\b", headers)


def store(path: Path, planes: list[np.ndarray], pixel_format: str, size: tuple[int, int] = SIZE, *tags: object) -> Path:
    """A lossless file of planes. They are neither converted nor resampled."""
    bits, *_ = layout(pixel_format)
    samples = [np.rint(plane).astype(np.uint8 if bits == 8 else np.uint16).tobytes() for plane in planes]
    raw = ["-f", "rawvideo", "-pixel_format", pixel_format, "-video_size", f"{size[0]}x{size[1]}", "-i", "-"]
    codec = ["-c:v", "ffv1"] if path.suffix == ".mkv" else ["-c:v", "libx264", "-qp", 0]
    run_ffmpeg(*raw, *tags, *codec, path, data=b"".join(samples))
    return path


def tags_of(matrix: str | None = "bt709", levels: str | None = "tv", site: str | None = "left") -> list[str]:
    """ffmpeg's options that tag frames, and convert nothing."""
    given = {"colorspace": matrix, "range": levels}
    tagged = ":".join(f"{name}={value or 'unknown'}" for name, value in given.items())
    options = {"-colorspace": matrix, "-color_range": levels, "-chroma_sample_location": site}
    return ["-vf", f"setparams={tagged}", *(word for name, value in options.items() if value for word in (name, value))]


def error_of_reading(path: Path, size: tuple[int, int] = SIZE, **options: object) -> float:
    """The largest difference of what is read to the picture, away from the edges, in levels of 8 bits."""
    frames = read(path, multiple=1, **options)
    peak = np.iinfo(frames.dtype).max
    return float(np.abs(frames[0] / peak - picture(*grid(size)))[EDGE:-EDGE, EDGE:-EDGE].max()) * 255


MATRICES = ["bt470bg", "bt709", "bt2020nc"]
#: Each pixel format with a matrix for each range; one with all.
TAGGED = {
    *((each, MATRICES[(index + shift) % 3], levels)
      for index, each in enumerate(LOSSLESS) for shift, levels in enumerate(("tv", "pc"))),
    *(("yuv420p", matrix, levels) for matrix in MATRICES for levels in ("tv", "pc")),
}  # fmt: skip


@pytest.mark.quick(4)
@pytest.mark.parametrize(("pixel_format", "matrix", "levels"), sorted(TAGGED))
def test_planes_are_read_by_the_standard(tmp_path: Path, pixel_format: str, matrix: str, levels: str) -> None:
    planes = expected_planes(pixel_format, matrix=matrix, levels=levels)
    path = store(tmp_path / "a.mkv", planes, pixel_format, SIZE, *tags_of(matrix, levels))
    bits = layout(pixel_format)[0]
    assert error_of_reading(path) < 2.2 / 2 ** (bits - 8) + 0.02  # three rounded planes, and the chroma's weight
    if bits > 8 and levels == "pc":
        white = [
            np.full_like(plane, 2**bits - 1 if index == 0 else 2 ** (bits - 1)) for index, plane in enumerate(planes)
        ]
        frames = read(store(tmp_path / "white.mkv", white, pixel_format, SIZE, *tags_of(matrix, levels)))
        assert frames.min() == 65535


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("pixel_format", "site"),
    [
        *(("yuv420p10le", site) for site in ("left", "topleft", "center", None)),
        *((pixel_format, site) for pixel_format in ("yuv420p", "yuv422p") for site in ("topleft", None)),
    ],
)
def test_chroma_is_read_where_the_file_has_it(tmp_path: Path, pixel_format: str, site: str | None) -> None:
    planes = expected_planes(pixel_format, site=site or "left")
    name = "a.mkv" if pixel_format == "yuv422p" else "a.mp4"  # H.264 has a field for 4:2:0 only
    path = store(tmp_path / name, planes, pixel_format, SIZE, *tags_of(site=site))
    assert error_of_reading(path) < (2.2 if pixel_format != "yuv420p10le" else 0.6)


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("degrees", "site", "size", "ending"),
    [
        *((degrees, "left", SIZE, ".mp4") for degrees in (0, 90, 180, 270)),
        *((degrees, "topleft", SIZE, ".mp4") for degrees in (90, 180)),
        *((degrees, "left", (97, 65), ".mkv") for degrees in (180, 270)),
    ],
)
def test_chroma_of_rotated_videos_is_read_where_it_is(
    tmp_path: Path, site: str, size: tuple[int, int], ending: str, degrees: int
) -> None:
    path, turned = tmp_path / f"a{ending}", tmp_path / f"turned{ending}"
    planes = expected_planes("yuv420p10le", size, site=site)
    store(path, planes, "yuv420p10le", size, *tags_of(site=site))
    run_ffmpeg("-display_rotation", degrees, "-i", path, "-c", "copy", turned)
    frames = read(turned, multiple=1)
    upright = np.rot90(frames[0], -degrees // 90) / 65535
    assert upright.shape[:2] == size[::-1]
    assert np.abs(upright - picture(*grid(size)))[EDGE:-EDGE, EDGE:-EDGE].max() * 255 < 0.65


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("pixel_format", "size"),
    [
        *(("yuv420p10le", size) for size in [(97, 65), (97, 64), (96, 65), (98, 66)]),
        *((other, (97, 65)) for other in ("yuv422p10le", "yuv411p", "yuva420p10le")),
        ("yuv411p", (98, 66)),
    ],
)
def test_chroma_of_odd_sizes_is_read_where_the_file_has_it(
    tmp_path: Path, pixel_format: str, size: tuple[int, int]
) -> None:
    planes = expected_planes(pixel_format, size)
    if "a" in pixel_format:
        planes.append(np.full(size[::-1], 2 ** layout(pixel_format)[0] - 1.0))
    path = store(tmp_path / "a.mkv", planes, pixel_format, size, *tags_of())
    assert error_of_reading(path, size) < (2.2 if pixel_format == "yuv411p" else 0.65)


def error_of_picture(path: Path) -> float:
    """The largest mean difference in a strip along an edge to what Pillow (libjpeg, libwebp) reads."""
    image = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    (frame,) = read(path, multiple=1)
    error = np.abs(frame - np.asarray(image, dtype=float))
    width, height = image.width // 8, image.height // 8
    return max(strip.mean() for strip in (error[:, :width], error[:, -width:], error[:height], error[-height:]))


def colorful(size: tuple[int, int]) -> Image.Image:
    """A picture whose colors change within a few pixels."""
    small = np.random.default_rng(0).integers(0, 256, (size[1] // 6, size[0] // 6, 3), np.uint8)
    return Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    ("name", "subsampling", "size"),
    [
        *(("a.jpg", 2, size) for size in [(200, 134), (201, 135), (201, 134), (200, 135)]),
        *(("a.jpg", subsampling, (201, 135)) for subsampling in (1, 0)),
        *(("a.webp", None, size) for size in [(200, 134), (201, 135)]),
    ],
)
def test_pictures_of_any_size_are_read_as_by_their_own_libraries(
    tmp_path: Path, name: str, subsampling: int | None, size: tuple[int, int]
) -> None:
    colorful(size).save(tmp_path / name, quality=95, subsampling=subsampling)
    assert error_of_picture(tmp_path / name) < 3.2  # the libraries interpolate chroma linearly; stretched, it is over 8


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    ("orientation", "size"), [*((number, (201, 135)) for number in range(1, 9)), (3, (200, 134)), (6, (200, 134))]
)
def test_turned_pictures_are_read_as_by_libjpeg(tmp_path: Path, size: tuple[int, int], orientation: int) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    colorful(size).save(tmp_path / "a.jpg", quality=95, exif=exif)
    assert error_of_picture(tmp_path / "a.jpg") < 3.2


@pytest.mark.parametrize(("name", "levels"), [("a.jpg", "pc"), ("a.mp4", "tv")])
def test_untagged_files_have_the_matrix_and_the_place_of_their_format(tmp_path: Path, name: str, levels: str) -> None:
    if name == "a.jpg":
        Image.fromarray(np.rint(picture(*grid(SIZE)) * 255).astype(np.uint8)).save(tmp_path / name, quality=100)
    else:
        planes = expected_planes("yuv420p", matrix="bt470bg", levels=levels)
        store(tmp_path / name, planes, "yuv420p", SIZE, *tags_of(None, None, None))
    assert error_of_reading(tmp_path / name) < 3.5  # half a sample is 1.8 more


@contextmanager
def caught() -> Iterator[list[str]]:
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield texts
    texts += [str(warning.message) for warning in found]


@pytest.mark.parametrize(("size", "warns"), [((96, 576), False), ((96, 578), True), ((1280, 64), True)])
def test_untagged_video_is_bt601_at_any_size_with_a_warning_where_players_differ(
    tmp_path: Path, size: tuple[int, int], warns: bool
) -> None:
    red = to_planes(np.broadcast_to([1.0, 0, 0], (size[1], size[0], 3)), "smpte170m", 8, "tv")
    path = store(tmp_path / "a.mkv", [*red], "yuv444p", size, *tags_of(None, None, None))
    with caught() as texts:
        frames = read(path, multiple=1)
    assert np.abs(frames.astype(int) - [255, 0, 0]).max() <= 2
    text = 'does not state its color matrix, and is read as BT.601, as ffmpeg does; matrix="bt709" reads it as'
    assert texts == ([f"{path}: {text} players do."] if warns else [])
    with caught() as texts:
        assert np.abs(read(path, multiple=1, matrix="bt601").astype(int) - [255, 0, 0]).max() <= 2
        as_hd = read(path, multiple=1, matrix="bt709").astype(int)
    assert np.abs(as_hd - [255, 24, 0]).max() <= 4
    assert texts == []


def test_a_chosen_matrix_counts_more_than_the_tag_and_rgb_has_none(tmp_path: Path) -> None:
    path = store(tmp_path / "a.mkv", expected_planes("yuv444p"), "yuv444p", SIZE, *tags_of("smpte170m"))
    assert error_of_reading(path, matrix="bt709") < 2.2
    assert error_of_reading(path) > 5
    assert "the matrix 'bt2020' is not one of bt601, bt709" in refusal(path, matrix="bt2020")
    Image.new("RGB", SIZE).save(tmp_path / "a.png")
    assert "is stored as RGB, without a matrix; leave out matrix=" in refusal(tmp_path / "a.png", matrix="bt601")


def test_images_of_8_and_16_bits_and_gray_ones_have_the_same_levels(tmp_path: Path) -> None:
    levels = np.arange(256, dtype=np.uint8).reshape(16, 16).repeat(2, 0).repeat(2, 1)
    gray = ["-f", "rawvideo", "-pixel_format", "gray", "-video_size", "32x32", "-i", "-"]
    run_ffmpeg(*gray, tmp_path / "a.png", data=levels.tobytes())
    for name, mode in (("b.png", "RGB"), ("c.png", "RGBA"), ("d.png", "P")):
        Image.fromarray(levels).convert(mode).save(tmp_path / name)
    deep = (levels.astype("<u2") * 257).repeat(3).tobytes()
    raw = ["-f", "rawvideo", "-pixel_format", "rgb48le", "-video_size", "32x32", "-i", "-"]
    run_ffmpeg(*raw, "-pix_fmt", "rgb48be", tmp_path / "e.png", data=deep)
    frames = read(tmp_path)
    assert frames.dtype == np.uint8
    for index, frame in enumerate(frames):
        np.testing.assert_array_equal(frame, np.stack([levels] * 3, -1), err_msg=f"image {index}")
    (tmp_path / "e.png").rename(tmp_path / "0.png")
    np.testing.assert_array_equal(read(tmp_path), np.stack([levels.astype(np.uint16) * 257] * 3, -1)[None].repeat(5, 0))


def test_a_resized_video_keeps_its_levels_and_places(tmp_path: Path) -> None:
    path = store(tmp_path / "a.mkv", expected_planes("yuv420p10le"), "yuv420p10le", SIZE, *tags_of())
    frames = read(path, size=(192, 128), fit=Fit.RESIZE)
    x, y = (places / 2 - 0.25 for places in grid((192, 128)))
    assert np.abs(frames[0] / 65535 - picture(x, y))[16:-16, 16:-16].max() * 255 < 0.6


def test_a_palette_with_transparency_is_over_black(tmp_path: Path) -> None:
    image = Image.new("P", SIZE)
    image.putpalette([0, 0, 0, 200, 100, 50, 90, 180, 255])
    image.paste(1, (0, 0, 48, 64))
    image.paste(2, (48, 0, 96, 64))
    image.save(tmp_path / "1.png", transparency=bytes([255, 51, 255]))
    Image.new("RGB", SIZE, (9, 8, 7)).save(tmp_path / "0.png")
    frames = read(tmp_path)
    assert frames[0, 5, 5].tolist() == [9, 8, 7]
    assert [frames[1, 5, 5].tolist(), frames[1, 5, 90].tolist()] == [[40, 20, 10], [90, 180, 255]]


def test_a_matrix_that_cannot_be_converted_is_refused(tmp_path: Path) -> None:
    path = store(tmp_path / "a.mkv", expected_planes("yuv444p"), "yuv444p", SIZE, *tags_of("ycgco-re"))
    with pytest.raises(ReaderError, match=r"its color matrix \(\S+\) is not supported; convert the video first"):
        VideoReader(path)
