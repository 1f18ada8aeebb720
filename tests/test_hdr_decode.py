"""`decode --hdr`: what other programs find in the files, against formulas in float64 and the reference's planes."""

import json
import re
import struct

import mlx.core as mx
import numpy as np
import pytest
from imageio_ffmpeg import get_ffmpeg_exe

import subprocess

from conftest import FIXTURES
from hdr_formulas import (
    ACESCG_TO_REC709,
    CHROMATICITIES,
    bt2020_planes,
    decode_acescct,
    encode_acescct,
    exr_attributes,
    exr_pixels,
    hlg,
    pq,
    sdr,
    to_rec709,
)
from mlx_ltx_vae import FrameChunk, VideoVAE, WriterError, demo, load_latents
from mlx_ltx_vae.decode import main
from mlx_ltx_vae.pipeline.hdr_frames import HDROptions
from mlx_ltx_vae.pipeline.postprocess import write_chunk
from mlx_ltx_vae.video import SinkOptions, open_sink
from mlx_ltx_vae.video.frame_format import RGB8, RGB16
from tolerances import PEAK_MARGIN
from video_files import run_ffmpeg

PATCH = 16
ROWS, COLUMNS = 8, 12
SIGNALS = {"hlg": hlg, "pq": pq, "sdr": sdr}


def patches():
    """Codes (H, W, 3): a gray ramp from black to far above white, and colors, in patches of 16x16 pixels."""
    rng = np.random.default_rng(0)
    grays = np.repeat(np.linspace(0.05, 0.8, 48)[:, None], 3, axis=1)
    colors = rng.uniform(0.2, 0.65, (48, 3))
    values = np.concatenate([grays, colors]).reshape(ROWS, COLUMNS, 3)
    return values.repeat(PATCH, axis=0).repeat(PATCH, axis=1)


def write_codes(path, codes, hdr, num_frames=1, **options):
    """Write a clip of one picture, of which a decoder has made the codes."""
    frames = hdr.exr_frames if path.suffix == ".exr" else hdr.frames(RGB8)
    pixels = mx.repeat(mx.array((2 * codes - 1).astype(np.float32))[None, None], num_frames, axis=1)
    height, width, _ = codes.shape
    with open_sink(path, size=(width, height), fps=24, options=SinkOptions(frames=frames, **options)) as sink:
        write_chunk(FrameChunk(0, pixels), {sink: frames})
    return path


def read_rgb(path, height, width, pixel_format="gbrp16le"):
    """The first frame, unconverted, (H, W, 3)."""
    data = run_ffmpeg("-i", path, "-frames:v", 1, "-f", "rawvideo", "-pix_fmt", pixel_format, "-")
    planes = np.frombuffer(data, np.uint16).reshape(3, height, width)
    return planes.transpose(1, 2, 0)[..., [2, 0, 1]].astype(np.float64)


def read_planes(path, height, width):
    """The 10-bit planes of the first frame, unconverted."""
    data = np.frombuffer(
        run_ffmpeg("-i", path, "-frames:v", 1, "-f", "rawvideo", "-pix_fmt", "yuv420p10le", "-"), "<u2"
    )
    luma, chroma = height * width, height * width // 4
    parts = data[:luma], data[luma : luma + chroma], data[luma + chroma :]
    sizes = (height, width), (height // 2, width // 2), (height // 2, width // 2)
    return [part.reshape(size).astype(np.float64) for part, size in zip(parts, sizes, strict=True)]


@pytest.mark.parametrize("signal", ["hlg", "pq"])
@pytest.mark.parametrize("transfer", ["acescct", "logc3"])
def test_patches_are_the_formula_within_one_code_losslessly(signal, transfer, tmp_path):
    codes = patches()
    hdr = HDROptions(transfer, signal)
    expected = SIGNALS[signal](to_rec709(codes, transfer))
    rgb = write_codes(tmp_path / "rgb.mkv", codes, hdr, codec="ffv1")
    found = read_rgb(rgb, *codes.shape[:2]) / 65535 * 1023
    assert np.abs(found - expected * 1023).max() < 0.5
    yuv = write_codes(tmp_path / "yuv.mkv", codes, hdr, codec="ffv1", pix_fmt="yuv420p10le")
    for plane, wanted in zip(read_planes(yuv, *codes.shape[:2]), bt2020_planes(expected), strict=True):
        assert np.abs(plane - wanted).max() <= 1


def test_planes_are_those_of_the_reference_within_one_code(tmp_path):
    frame = json.loads((FIXTURES / "hdr" / "hdr.json").read_text())["hlg"]["frame"]
    codes = encode_acescct(np.array(frame["linear_rec709"]) @ np.linalg.inv(ACESCG_TO_REC709).T)
    path = write_codes(tmp_path / "a.mkv", codes, HDROptions("acescct"), codec="ffv1", pix_fmt="yuv420p10le")
    for plane, name in zip(read_planes(path, *codes.shape[:2]), "yuv", strict=True):
        assert np.abs(plane - frame[name]).max() <= 1


@pytest.mark.parametrize("signal", ["hlg", "pq"])
def test_patches_survive_hevc_within_three_codes(signal, tmp_path):
    codes = patches()
    path = write_codes(tmp_path / "a.mp4", codes, HDROptions("acescct", signal), num_frames=5)
    expected = bt2020_planes(SIGNALS[signal](to_rec709(codes, "acescct")))
    for plane, wanted in zip(read_planes(path, *codes.shape[:2]), expected, strict=True):
        side = plane.shape[0] // ROWS
        means = [each.reshape(ROWS, side, COLUMNS, side).mean(axis=(1, 3)) for each in (plane, wanted)]
        assert np.abs(means[0] - means[1]).max() <= 3


@pytest.mark.parametrize("exposure", [0, 1.5])
@pytest.mark.parametrize("frames", [RGB8, RGB16], ids=["8-bit", "10-bit"])
def test_sdr_is_tone_mapped(exposure, frames, tmp_path):
    codes, path = patches(), tmp_path / "a.png"
    output = HDROptions("acescct", "sdr", exposure).frames(frames)
    chunk = FrameChunk(0, mx.array((2 * codes - 1).astype(np.float32))[None, None])
    size = codes.shape[1::-1]
    with open_sink(path, size=size, fps=24, options=SinkOptions(frames=output)) as sink:
        write_chunk(chunk, {sink: output})
    found = read_rgb(path, *codes.shape[:2]) / 65535
    levels = 255 if frames is RGB8 else 65535
    expected = sdr(to_rec709(codes, "acescct"), exposure)
    assert np.abs(found * levels - expected * levels).max() < (0.51 if frames is RGB8 else 2)


def describe(path):
    """What ffmpeg says of the video stream, and of its first packets' headers: name to value."""
    command = [get_ffmpeg_exe(), "-v", "verbose", "-i", path, "-map", "0:v", "-c", "copy"]
    done = subprocess.run(
        [*command, "-frames:v", "1", "-bsf:v", "trace_headers", "-f", "null", "-"], capture_output=True, check=True
    )
    text = done.stderr.decode()
    stream = next(line for line in text.splitlines() if "Video:" in line)
    headers = re.findall(r"\] \d+ +(\w+) +[01]+ = (\d+)", text)
    return stream, {name: int(value) for name, value in headers}, text


@pytest.mark.parametrize("ending", [".mp4", ".mov", ".mkv"])
@pytest.mark.parametrize(("signal", "number", "name"), [("hlg", 18, "arib-std-b67"), ("pq", 16, "smpte2084")])
def test_stream_and_container_are_tagged(ending, signal, number, name, tmp_path):
    path = write_codes(tmp_path / f"a{ending}", patches(), HDROptions("acescct", signal))
    stream, headers, text = describe(path)
    assert re.search(rf"hevc \(Main 10\).*yuv420p10le\(tv, bt2020nc/bt2020/{name}, progressive, center\)", stream)
    expected = {
        "colour_primaries": 9,
        "transfer_characteristics": number,
        "matrix_coefficients": 9,
        "video_full_range_flag": 0,
        "chroma_sample_loc_type_top_field": 1,
    }
    if signal == "pq":
        expected |= {"max_content_light_level": 10000, "max_pic_average_light_level": 400}
        assert "Content light level metadata: MaxCLL=10000, MaxFALL=400" in text
    else:
        assert "max_content_light_level" not in headers
    assert {key: headers.get(key) for key in expected} == expected
    data = path.read_bytes()
    if ending != ".mkv":
        kind, full_range = (b"nclx", b"\0") if ending == ".mp4" else (b"nclc", b"")
        assert b"colr" + kind + struct.pack(">3H", 9, number, 9) + full_range in data
        assert b"hvc1" in data and b"hev1" not in data
        assert (b"clli" + struct.pack(">2H", 10000, 400) in data) == (signal == "pq")


@pytest.mark.parametrize(
    ("ending", "codec"), [(".mov", "prores"), (".mkv", "ffv1"), (".mp4", "h264"), (".webm", None), (".mkv", "av1")]
)
def test_other_codecs_are_tagged(ending, codec, tmp_path):
    path = write_codes(tmp_path / f"a{ending}", patches(), HDROptions("acescct"), codec=codec)
    stream, _, _ = describe(path)
    assert re.search(r"1[06]le\((tv|pc), (bt2020nc|gbr)/bt2020/arib-std-b67", stream)


def test_a_png_of_hdr_is_tagged(tmp_path):
    path = write_codes(tmp_path / "a.png", patches(), HDROptions("acescct"))
    assert re.search(r"rgb48be\(pc, gbr/bt2020/arib-std-b67", describe(path)[0])


@pytest.mark.parametrize(("space", "name"), [("srgb", "sRGB"), ("acescg", "ACEScg"), ("acescct", "ACEScct")])
@pytest.mark.parametrize("transfer", ["acescct", "logc3"])
def test_exr_has_light_or_codes(transfer, space, name, tmp_path):
    codes = patches()
    path = write_codes(tmp_path / "a.exr", codes, HDROptions(transfer, exr_space=space))
    light = to_rec709(codes, transfer)
    in_acescg = decode_acescct(codes) if transfer == "acescct" else light @ np.linalg.inv(ACESCG_TO_REC709).T
    in_acescg = np.maximum(in_acescg, 0)
    same = codes if transfer == "acescct" else encode_acescct(in_acescg)
    expected = {"srgb": light, "acescg": in_acescg, "acescct": same}[space]
    found = exr_pixels(path, codes.shape[1], codes.shape[0]).astype(np.float64)
    np.testing.assert_allclose(found, expected, rtol=2**-11 + 1e-5, atol=1e-6)  # half a unit of 11 bits
    attributes = exr_attributes(path)
    assert attributes["colorSpace"] == ("string", name.encode())
    assert attributes["chromaticities"][1] == struct.pack("<8f", *CHROMATICITIES[name])


def decode(*arguments):
    return main(["--demo", *map(str, arguments), "-q"])


@pytest.fixture(scope="module")
def pixels():
    """The demo in float32, (F, H, W, 3), which takes a second."""
    vae = VideoVAE.from_pretrained(demo.VAE, dtype="float32", encoder=False)
    frames = vae.decode(load_latents(demo.LATENTS)[0])
    return (np.array(frames[0].transpose(1, 2, 3, 0)).astype(np.float64) + 1) / 2


@pytest.mark.parametrize("order", ["time", "rows"])
def test_video_and_exr_come_from_one_decode_in_float32(order, pixels, tmp_path, capsys):
    video, folder = tmp_path / "a.mkv", tmp_path / "light"
    options = ["--hdr", "acescct", "--codec", "ffv1", "--exr", folder, "--order", order, "--first-seconds", "0.5"]
    mx.reset_peak_memory()
    assert main(["--demo", *map(str, options), "-o", str(video), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["peak_memory_bytes"] <= PEAK_MARGIN * report["plan"]["peak_bytes"]
    images = sorted(path.name for path in folder.iterdir())
    assert images == [f"frame_{number:05d}.exr" for number in range(report["frames"])]
    _, height, width, _ = pixels.shape
    for number in (0, report["frames"] - 1):
        light = to_rec709(pixels[number], "acescct")
        found = exr_pixels(folder / images[number], width, height).astype(np.float64)
        np.testing.assert_allclose(found, light, rtol=1e-3, atol=1e-4)
    expected = hlg(to_rec709(pixels[0], "acescct"))
    assert np.abs(read_rgb(video, height, width) / 65535 - expected).max() * 1023 < 0.6


def test_every_order_makes_the_same_files(tmp_path):
    for order in ("time", "rows", "columns"):
        out = tmp_path / order
        options = ["--hdr", "logc3", "--order", order, "--frames", "0:9", "--exr", out / "exr"]
        assert decode("-o", out / "a.npy", *options) == 0
    for name in ("a.npy", "exr/frame_00000.exr", "exr/frame_00008.exr"):
        first, *others = ((tmp_path / order / name).read_bytes() for order in ("time", "rows", "columns"))
        assert others == [first, first]


def test_exr_may_be_the_only_output(tmp_path):
    assert decode("--hdr", "acescct", "-o", f"{tmp_path}/a.exr/", "--frames", "0:2") == 0
    assert decode("--hdr", "acescct", "--exr", tmp_path / "b", "--frames", "0:2", "-o", tmp_path / "b.exr/") == 0
    assert decode("--hdr", "acescct", "-o", tmp_path / "c.exr", "--frames", "1:2") == 0
    one = (tmp_path / "c.exr").read_bytes()
    assert one == (tmp_path / "a.exr/frame_00001.exr").read_bytes() == (tmp_path / "b/frame_00001.exr").read_bytes()
