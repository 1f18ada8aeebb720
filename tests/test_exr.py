"""EXR images against ffmpeg's decoder and encoder, and the attributes in their bytes."""

import struct
import sys

import numpy as np
import pytest

from hdr_formulas import CHROMATICITIES, exr_attributes, exr_pixels
from hdr_formulas import write_exr as write_by_ffmpeg
from mlx_ltx_vae import ReaderError, WriterError
from mlx_ltx_vae.video import FrameOutput
from mlx_ltx_vae.video.exr import EXR_SPACES, read_exr, write_exr
from video_files import OutputOptions, run_ffmpeg

WIDTH, HEIGHT = 70, 37  # of which ZIP has blocks of 16 rows


def options_of(space):
    return OutputOptions(frames=FrameOutput(EXR_SPACES[space]))


def half_frame():
    """Light from 1e-6 to the largest half, with zeros."""
    rng = np.random.default_rng(0)
    frame = np.exp(rng.uniform(np.log(1e-6), np.log(60000), (HEIGHT, WIDTH, 3)))
    frame[0, :3] = [[0, 1, 65504], [2**-24, 2**-14, 0.18], [222.86, 55.08, 0.5]]
    return frame.astype(np.float16)


@pytest.mark.parametrize(("space", "name"), [("srgb", "sRGB"), ("acescg", "ACEScg"), ("acescct", "ACEScct")])
def test_images_are_half_float_zip_with_their_color_space_and_each_bit(tmp_path, space, name):
    path, frame = tmp_path / "a.exr", half_frame()
    write_exr(path, frame, options_of(space))
    assert exr_pixels(path, WIDTH, HEIGHT).tobytes() == frame.tobytes()
    found = exr_attributes(path)
    assert found["compression"] == ("compression", b"\x03")  # ZIP, 16 rows
    assert found["colorSpace"] == ("string", name.encode())
    assert found["chromaticities"] == ("chromaticities", struct.pack("<8f", *CHROMATICITIES[name]))
    half = struct.pack("<iBxxxii", 1, 0, 1, 1)
    assert found["channels"][1] == b"".join(channel + b"\0" + half for channel in (b"B", b"G", b"R")) + b"\0"
    assert set(EXR_SPACES) == {"srgb", "acescg", "acescct"}


def test_the_same_frame_makes_the_same_file_at_any_time(tmp_path):
    for name in ("a.exr", "b.exr"):
        write_exr(tmp_path / name, half_frame(), options_of("srgb"))
    assert (tmp_path / "a.exr").read_bytes() == (tmp_path / "b.exr").read_bytes()
    assert "capDate" not in exr_attributes(tmp_path / "a.exr")


@pytest.mark.parametrize(("pixel_format", "channels"), [("gbrpf32le", 3), ("gbrapf32le", 4), ("grayf32le", 1)])
@pytest.mark.parametrize("options", [(), ("-format", "half", "-compression", "zip16")], ids=["float", "half-zip"])
def test_images_of_another_program_are_read_as_they_are(tmp_path, pixel_format, channels, options):
    planes = half_frame().astype(np.float32).clip(2**-12).transpose(2, 0, 1)
    planes = np.concatenate([planes, 0.25 + 0 * planes[:1]])[:channels]
    write_by_ffmpeg(tmp_path / "a.exr", planes[None], *options, pixel_format=pixel_format)
    expected = planes[[2, 0, 1] if channels > 1 else [0, 0, 0]].transpose(1, 2, 0)
    expected = expected / 4 if channels == 4 else expected  # ffmpeg multiplies by alpha, as EXR has it
    found = read_exr(tmp_path / "a.exr", (WIDTH, HEIGHT))
    assert (found.shape, found.dtype) == ((HEIGHT, WIDTH, 3), np.float32)
    np.testing.assert_array_equal(found, expected)


def damage(path, how):
    data = path.read_bytes()
    if how == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif how == "changed":
        middle = len(data) // 2
        path.write_bytes(data[:middle] + bytes(each ^ 255 for each in data[middle : middle + 40]) + data[middle + 40 :])
    elif how == "huge":
        window = struct.pack("<4i", 0, 0, WIDTH - 1, HEIGHT - 1)
        path.write_bytes(data.replace(window, struct.pack("<4i", 0, 0, 2**20, 2**20)))
    elif how == "cropped":
        at = data.index(b"displayWindow") + len(b"displayWindow\0box2i\0") + 4
        path.write_bytes(data[:at] + struct.pack("<4i", 0, 0, WIDTH, HEIGHT) + data[at + 16 :])
    elif how == "named":
        path.write_bytes(data.replace(b"chlist", b"chl\xa5st"))
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "gone":
        path.unlink()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("cut", "is damaged"),
        ("changed", "is damaged"),
        ("huge", "not possible|cannot be read"),
        ("cropped", "its data window, 70x37, is not its display window, 71x38"),
        ("named", "cannot be read as EXR .*Invalid type 'chl\N{REPLACEMENT CHARACTER}st'"),
        ("empty", "cannot be read as EXR"),
        ("gone", "cannot be read as EXR"),
    ],
)
def test_damaged_images_are_errors_and_print_nothing(tmp_path, how, message, capfd):
    path = tmp_path / "a.exr"
    frame = np.sort(half_frame(), axis=1)  # noise would be stored as it is, and changes in it unseen
    write_exr(path, frame, options_of("srgb"))
    damage(path, how)
    with pytest.raises(ReaderError, match=f"^{path}: .*({message})"):
        read_exr(path)
    assert capfd.readouterr() == ("", "")


def test_an_image_of_another_size_or_format_is_refused(tmp_path):
    write_exr(tmp_path / "a.exr", half_frame(), options_of("srgb"))
    with pytest.raises(ReaderError, match="is 70x37, and the images before it are 64x64"):
        read_exr(tmp_path / "a.exr", (64, 64))
    run_ffmpeg("-i", tmp_path / "a.exr", tmp_path / "b.png")
    (tmp_path / "b.png").rename(tmp_path / "b.exr")
    with pytest.raises(ReaderError, match=r"b\.exr: cannot be read as EXR \(it does not begin as EXR does\)"):
        read_exr(tmp_path / "b.exr")


def test_chromaticities_of_another_type_are_none(tmp_path):
    path, frame = tmp_path / "a.exr", half_frame()
    write_exr(path, frame, options_of("srgb"))
    kind, value = exr_attributes(path)["chromaticities"]
    name = b"chromaticities\0"
    numbers = name + kind.encode() + b"\0" + struct.pack("<i", len(value)) + value
    length = len(numbers) - len(name + b"string\0\0\0\0\0")  # places in the file count from its start
    text = name + b"string\0" + struct.pack("<i", length) + b"x" * length
    path.write_bytes(path.read_bytes().replace(numbers, text))
    np.testing.assert_array_equal(read_exr(path, space="acescg"), frame)


def test_integers_are_no_light(tmp_path):
    path = tmp_path / "a.exr"
    write_exr(path, half_frame(), options_of("srgb"))
    # ffmpeg writes no integers: another type of pixels, 0 for 1, in the three channels of the header.
    kinds = [name + b"\0" + struct.pack("<i", 1) for name in (b"B", b"G", b"R")]
    data = path.read_bytes()
    for kind in kinds:
        data = data.replace(kind, kind[:2] + struct.pack("<i", 0), 1)
    path.write_bytes(data)
    with pytest.raises(ReaderError, match="has integers, which are not light; expected half or float"):
        read_exr(path)


def test_a_folder_that_is_not_there_is_an_error_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_exr(tmp_path / "missing" / "a.exr", half_frame(), options_of("srgb"))


def test_without_the_library_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "OpenImageIO", None)
    command = r'EXR needs OpenImageIO, which is not installed; install it with: pip install "mlx_ltx_vae\[exr\]"\.'
    with pytest.raises(WriterError, match=command):
        write_exr(tmp_path / "a.exr", half_frame(), options_of("srgb"))
    with pytest.raises(ReaderError, match=command):
        read_exr(tmp_path / "a.exr")
