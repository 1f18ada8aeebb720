"""Video files: the frames read back are the frames written."""

import os
import re
import subprocess
import time
from fractions import Fraction
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest
from imageio_ffmpeg import get_ffmpeg_exe
from PIL import Image

from mlx_ltx_vae import VideoWriter, WriterError
from video_files import (
    ANIMATIONS,
    CODECS,
    CONTAINERS,
    OutputOptions,
    check_output,
    frame_times,
    names,
    noise,
    open_sink,
    open_video,
    run_ffmpeg,
    write,
    write_tone,
)

SATURATED = np.array(
    [[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 0], [0, 255, 255], [255, 0, 255], [255, 255, 255], [0, 0, 0]],
    np.uint8,
)
PATCH = 64


def log(*arguments: object) -> str:
    """What ffmpeg says."""
    command = [get_ffmpeg_exe(), "-hide_banner", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, check=False).stderr.decode()


def probe(path: Path) -> str:
    """The line about the video stream in ffmpeg's log, without the decoder of AV1, which depends on the build."""
    lines = log("-i", path).splitlines()
    return re.sub(r"av1 \(lib[\w-]+\)", "av1", next(line for line in lines if "Video:" in line))


def read_back(path: Path, size: tuple[int, int], pixel_format: str = "rgb24") -> np.ndarray:
    """All frames, converted to RGB by the file's own tags."""
    convert = f"scale=out_range=pc:flags=accurate_rnd+full_chroma_int+full_chroma_inp,format={pixel_format}"
    data = run_ffmpeg("-i", path, "-map", "0:v", "-vf", convert, "-f", "rawvideo", "-")
    return np.frombuffer(data, np.uint8 if pixel_format == "rgb24" else np.uint16).reshape(-1, size[1], size[0], 3)


def patches(num_frames: int, dtype: type = np.uint8) -> np.ndarray:
    """Flat squares of saturated colors in a row."""
    row = np.repeat(SATURATED, PATCH, axis=0)
    frame = np.broadcast_to(row, (PATCH, *row.shape)).astype(dtype)
    return np.stack([frame * (257 if dtype == np.uint16 else 1)] * num_frames)


@pytest.mark.parametrize(("bit_depth", "pixel_format"), [(8, "rgb24"), (10, "rgb48le")])
@pytest.mark.parametrize("size", [(48, 32), (33, 17)])
def test_ffv1_is_lossless(tmp_path: Path, size: tuple, bit_depth: int, pixel_format: str) -> None:
    frames = noise(7, size, np.uint8 if bit_depth == 8 else np.uint16)
    path = tmp_path / "out.mkv"
    with VideoWriter(path, size=size, fps=24, codec="ffv1", bit_depth=bit_depth) as out:
        for start, stop in ((0, 1), (1, 4), (4, 7)):
            out.write(frames[start:stop])
    np.testing.assert_array_equal(read_back(path, size, pixel_format), frames)


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    ("name", "codec", "bit_depth", "stored_as"),
    [
        ("out.mp4", "h264", 8, "h264 (High) (avc1 / 0x31637661), yuv420p(tv, bt709, progressive)"),
        ("out.MOV", "h264", 10, "h264 (High 10) (avc1 / 0x31637661), yuv420p10le(tv, bt709, progressive)"),
        ("out.mp4", "hevc", 8, "hevc (Main) (hvc1 / 0x31637668), yuv420p(tv, bt709, progressive)"),
        ("out.mkv", "hevc", 10, "hevc (Main 10), yuv420p10le(tv, bt709, progressive)"),
        ("out.mov", "prores", 8, "prores (HQ) (apch / 0x68637061), yuv422p10le(tv, bt709, progressive)"),
        ("out.mov", "prores4444", 8, "prores (4444) (ap4h / 0x68347061), yuv444p12le(tv, bt709, progressive)"),
        ("out.webm", "vp9", 8, "vp9 (Profile 0), yuv420p(tv, bt709, progressive)"),
        ("out.webm", "av1", 10, "av1 (Main), yuv420p10le(tv, bt709, progressive)"),
    ],
)
def test_saturated_colors_are_kept_and_tagged(
    tmp_path: Path, name: str, codec: str, bit_depth: int, stored_as: str
) -> None:
    frames = patches(4, np.uint8 if bit_depth == 8 else np.uint16)
    size = (frames.shape[2], frames.shape[1])
    write(tmp_path / name, frames, codec=codec)
    assert f"{stored_as}, {size[0]}x{size[1]}" in probe(tmp_path / name)
    result = read_back(tmp_path / name, size).astype(int)
    assert result.shape == frames.shape
    centers = result[:, PATCH // 2, PATCH // 2 :: PATCH]
    assert np.abs(centers - SATURATED).max() <= 3


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    ("name", "codec", "size", "least"),
    [
        ("out.mp4", "av1", (63, 64), (64, 64)),
        ("out.avif", None, (64, 63), (64, 64)),
        ("out.mkv", "hevc", (34, 18), (49, 16)),  # below it writes outside its memory
        ("out.mp4", "hevc", (48, 64), (49, 16)),
        ("out.mp4", "hevc", (64, 15), (49, 16)),
        ("out.mkv", "ffv1", (1, 24), (2, 1)),
    ],
)
@pytest.mark.parametrize("bit_depth", [8, 10])
def test_encoders_take_no_smaller_frames_than_measured(
    tmp_path: Path, name: str, codec: str | None, size: tuple, least: tuple, bit_depth: int
) -> None:
    options = OutputOptions(codec=codec, bit_depth=bit_depth)
    found = rf"frames are {size[0]}x{size[1]}, and \w+ takes {least[0]}x{least[1]} and more; use another codec\.$"
    with pytest.raises(WriterError, match=found):
        check_output(tmp_path / name, size=size, fps=24, options=options)
    with open_sink(tmp_path / name, size=least, fps=24, options=options) as out:
        out.write(noise(3, least, out.frames.dtype.type))
    assert log("-v", "error", "-i", tmp_path / name, "-f", "null", "-") == ""


@pytest.mark.parametrize(("name", "codec"), [("out.mp4", "av1"), ("out.webm", "av1"), ("out.avif", None)])
def test_rates_that_the_encoder_of_av1_refuses_are_refused_first(tmp_path: Path, name: str, codec: str | None) -> None:
    options = OutputOptions(codec=codec)
    for fps in (241, 1000):
        found = f"libsvtav1 takes at most 240 frames per second, not {fps}"
        with pytest.raises(WriterError, match=found):
            check_output(tmp_path / name, size=(64, 64), fps=fps, options=options)
    with open_sink(tmp_path / name, size=(64, 64), fps=240, options=options) as out:
        out.write(noise(3, (64, 64)))
    assert (tmp_path / name).stat().st_size > 1000


@pytest.mark.quick(2)
@pytest.mark.parametrize(("name", "codec"), [("a.mp4", "h264"), ("a.mov", "hevc"), ("a.webm", "vp9"), ("a.mp4", "av1")])
def test_a_keyframe_comes_every_two_seconds(tmp_path: Path, name: str, codec: str) -> None:
    write(tmp_path / name, noise(3, (64, 64))[np.arange(90) // 30], 10, codec=codec)
    read_keys = ["-skip_frame", "nokey", "-i", tmp_path / name, "-fps_mode", "passthrough", "-f", "framecrc", "-"]
    lines = run_ffmpeg(*read_keys).decode().splitlines()
    unit = Fraction(next(line for line in lines if line.startswith("#tb")).split(":")[1].strip())
    times = [int(line.split(",")[1]) * unit for line in lines if not line.startswith("#")]
    assert times[0] == 0
    assert max(np.diff([*times, Fraction(9)])) <= 2


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    ("fps", "exact"),
    [
        ("119.88", Fraction(120000, 1001)),
        ("239.76", Fraction(240000, 1001)),
        (23.976, Fraction(24000, 1001)),
        ("30000/1001", Fraction(30000, 1001)),
        ("12.5", Fraction(25, 2)),
        (24, Fraction(24)),
    ],
)
@pytest.mark.parametrize("name", ["out.mp4", "out.mkv"])
def test_frames_are_evenly_spaced_at_any_rate(tmp_path: Path, name: str, fps: object, exact: Fraction) -> None:
    num_frames = 1003  # the 501st frame was late where 120000/1001 was taken for 120
    write(tmp_path / name, np.zeros((num_frames, 16, 16, 3), np.uint8), fps)
    times = frame_times(tmp_path / name)
    clock = Fraction(1, 1000) if name.endswith("mkv") else 0  # Matroska counts milliseconds
    assert len(times) == num_frames
    assert max(abs(time - index / exact) for index, time in enumerate(times)) <= clock / 2


@pytest.mark.parametrize(("name", "codec"), [("H265", "hevc"), ("ProRes", "prores")])
def test_codecs_are_found_by_their_other_names_and_in_any_case(tmp_path: Path, name: str, codec: str) -> None:
    write(tmp_path / "out.mov", noise(2, (64, 32)), codec=name)
    assert f"Video: {codec}" in probe(tmp_path / "out.mov")


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    ("ending", "codec", "size"),
    [
        *((".mp4", "h264", size) for size in ((33, 17), (34, 17), (33, 18), (1920, 1080))),
        *((*name, (33, 17)) for name in ((".mov", "prores"), (".webm", "vp9"), (".webm", "av1"))),
        (".mp4", "hevc", (65, 17)),
    ],
)
def test_decoded_size_is_the_requested_size(tmp_path: Path, size: tuple, ending: str, codec: str) -> None:
    size = tuple(side + 64 for side in size) if codec == "av1" else size
    path = tmp_path / f"out{ending}"
    write(path, np.full((1, size[1], size[0], 3), 90, np.uint8), codec=codec)
    assert f"{size[0]}x{size[1]}" in probe(path)
    assert np.abs(read_back(path, size).astype(int) - 90).max() <= 3


def write_every_container(folder: Path) -> dict[str, bytes]:
    """The bytes of a file for each codec, each container, live ones, and animated pictures."""
    size, frames = (96, 64), noise(3, (96, 64))
    audio = np.random.default_rng(0).uniform(-0.5, 0.5, (1, 2, 6000)).astype(np.float32)
    files = {f"{name}{codec.endings[0]}": {"codec": name} for name, codec in CODECS.items() if not codec.is_mac_only}
    files |= {f"a{ending}": {} for ending in CONTAINERS}
    files["live.mp4"] = {"fragmented": True}
    folder.mkdir()
    for name, options in files.items():
        metadata = {"prompt": "a hill"}
        with open_video(
            folder / name, size=size, fps=24, audio=[audio], sample_rate=48000, metadata=metadata, **options
        ) as out:
            out.write(frames)
    for ending in ANIMATIONS:
        with open_sink(folder / f"a{ending}", size=size, fps=24) as out:
            out.write(frames)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_equal_frames_give_equal_bytes_in_every_container(tmp_path: Path) -> None:
    first = write_every_container(tmp_path / "first")
    time.sleep(1.1)  # containers count seconds
    second = write_every_container(tmp_path / "second")
    assert {Path(name).suffix for name in first} == {*CONTAINERS, *ANIMATIONS}
    assert [name for name in first if first[name] != second[name]] == []


def test_fast_start_puts_the_index_before_the_frames(tmp_path: Path) -> None:
    write(tmp_path / "out.mp4", noise(3, (32, 32)))
    content = (tmp_path / "out.mp4").read_bytes()
    assert 0 < content.index(b"moov") < content.index(b"mdat")


def test_lower_crf_makes_a_larger_file(tmp_path: Path) -> None:
    sizes = []
    for crf in (0, None, 40):
        write(tmp_path / "out.mp4", noise(4, (64, 64)), crf=crf)
        sizes.append((tmp_path / "out.mp4").stat().st_size)
    assert sizes[0] > sizes[1] > sizes[2]


def test_gif_has_every_frame_in_accurate_colors(tmp_path: Path) -> None:
    frames = patches(6)
    frames[3] = 255 - frames[3]  # another palette in the middle
    with open_sink(tmp_path / "out.gif", size=(frames.shape[2], frames.shape[1]), fps=25) as out:
        out.write(frames[:2])
        out.write(frames[2:])
    result = iio.imread(tmp_path / "out.gif", mode="RGB")
    assert result.shape == frames.shape
    assert np.abs(result.astype(int) - frames).max() <= 8
    assert iio.immeta(tmp_path / "out.gif")["duration"] == 40
    assert iio.immeta(tmp_path / "out.gif")["loop"] == 0


@pytest.mark.parametrize("size", [(96, 64), (97, 65)])
@pytest.mark.parametrize("ending", [".webp", ".avif"])
def test_animations_have_every_frame_in_its_colors_and_at_its_time(tmp_path: Path, ending: str, size: tuple) -> None:
    width, height = size
    across, down = np.arange(width)[None, :, None] / width, np.arange(height)[:, None, None] / height
    tints = np.array([[1, 0.2, 0.3], [0.1, 0.9, 0.4], [0.6, 0.6, 0.6]])
    frames = np.stack([np.rint(255 * tint * (across + down) / 2).astype(np.uint8) for tint in tints])
    path = tmp_path / f"out{ending}"
    with open_sink(path, size=size, fps=25) as out:
        out.write(frames)
    with Image.open(path) as picture:
        assert (picture.size, picture.n_frames) == (size, 3)
        for index, expected in enumerate(frames):
            picture.seek(index)
            found = np.array(picture.convert("RGB")).astype(int)
            assert np.abs(found - expected).mean() < 2
            assert picture.info["duration"] == 40
    assert os.listdir(tmp_path) == [path.name]


def test_avif_of_bit_depth_10_has_10_bits_and_says_what_its_colors_are(tmp_path: Path) -> None:
    with open_sink(tmp_path / "out.avif", size=(64, 64), fps=24, options=OutputOptions(bit_depth=10)) as out:
        out.write(np.full((2, 64, 64, 3), 65535, np.uint16))
    said = log("-i", tmp_path / "out.avif", "-f", "null", "-")
    assert "av1" in said and "yuv420p10le(tv, bt709" in said
    luma = run_ffmpeg("-i", tmp_path / "out.avif", "-frames:v", "1", "-f", "rawvideo", "-")
    assert np.abs(np.frombuffer(luma, "<u2")[: 64 * 64].astype(int) - 940).max() <= 1


def test_gif_frames_have_their_own_palettes(tmp_path: Path) -> None:
    levels = np.broadcast_to(np.arange(240, dtype=np.uint8), (16, 240))
    frames = np.zeros((6, 16, 240, 3), np.uint8)
    for index in range(6):  # 6 x 240 colors
        frames[index, :, :, index % 3] = levels
        frames[index, :, :, (index + 1) % 3] = 255 * (index // 3)
    with open_sink(tmp_path / "out.gif", size=(240, 16), fps=25) as out:
        out.write(frames)
    result = iio.imread(tmp_path / "out.gif", mode="RGB")
    assert np.abs(result.astype(int) - frames).mean((1, 2, 3)).max() < 1  # 1.5 with a shared palette


def test_names_that_look_like_protocols_or_patterns_are_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    audio = write_tone(Path("pipe:%d.wav"), 0.08)
    write("http:%d.mp4", noise(2, (32, 32)), audio=audio)
    assert names(tmp_path) == ["http:%d.mp4", "pipe:%d.wav"]


def test_frames_that_are_not_contiguous_are_written_correctly(tmp_path: Path) -> None:
    frames = noise(4, (64, 32))[:, :, ::2]
    write(tmp_path / "out.mkv", frames, codec="ffv1")
    np.testing.assert_array_equal(read_back(tmp_path / "out.mkv", (32, 32)), frames)
