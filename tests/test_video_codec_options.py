"""Encoder presets, pixel formats, and the encoders of a Mac."""

import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from mlx_ltx_vae.decode import main
from mlx_ltx_vae.errors import WriterError
from mlx_ltx_vae.video import SinkOptions, VideoWriter, check_output, codecs
from test_video_writer import PATCH, SATURATED, patches, probe, read_back
from video_files import noise

SIZE = (64, 64)


def refusal(name: str, size: tuple[int, int] = SIZE, **options: object) -> str:
    """The error of a check, before any file is written."""
    with pytest.raises(WriterError) as error:
        check_output(name, size=size, fps=24, options=SinkOptions(**options))
    return str(error.value)


@pytest.mark.parametrize("codec", ["h264", "hevc"])
def test_encoders_get_the_preset(tmp_path: Path, codec: str) -> None:
    efforts = []
    for preset in ("ultrafast", None, "veryslow"):
        path = tmp_path / f"{preset}.mp4"
        with VideoWriter(path, size=SIZE, fps=24, codec=codec, encoder_preset=preset) as out:
            out.write(noise(3, SIZE))
        efforts += re.findall(rb" subme=(\d+)", path.read_bytes())  # both encoders write their settings into the video
    assert efforts == sorted(set(efforts), key=int)
    assert len(efforts) == 3


def test_presets_that_an_encoder_lacks_are_refused() -> None:
    for codec, name in (("prores", "a.mov"), ("ffv1", "a.mkv"), ("vp9", "a.webm"), ("av1", "a.mp4")):
        assert "has no presets" in refusal(name, codec=codec, encoder_preset="fast")
    assert "'quick' is not known; use one of ultrafast, superfast" in refusal("a.mp4", encoder_preset="quick")
    assert "a.gif: takes no encoder preset" in refusal("a.gif", encoder_preset="fast")


@pytest.mark.parametrize(
    ("name", "codec", "pix_fmt", "stored_as"),
    [
        ("a.mp4", "h264", "yuv444p", "yuv444p(tv, bt709, progressive)"),
        ("a.mp4", "h264", "yuvj420p", "yuvj420p(pc, bt709, progressive)"),
        ("a.mp4", "h264", "nv12", "yuv420p(tv, bt709, progressive)"),
        ("a.mkv", "hevc", "yuv422p10le", "yuv422p10le(tv, bt709, progressive)"),
        ("a.mp4", "hevc", "gbrp", "gbrp(pc, gbr/bt709/bt709, progressive)"),
        ("a.mov", "prores", "yuv444p10le", "yuv444p12le(tv, bt709, progressive)"),
        ("a.mkv", "ffv1", "yuv444p", "yuv444p(tv, bt709, progressive)"),
        ("a.webm", "vp9", "yuv444p", "yuv444p(tv, bt709, progressive)"),
    ],
)
def test_pixel_formats_keep_the_colors_and_the_tags(
    tmp_path: Path, name: str, codec: str, pix_fmt: str, stored_as: str
) -> None:
    frames = patches(3)
    size = (frames.shape[2], frames.shape[1])
    with VideoWriter(tmp_path / name, size=size, fps=24, codec=codec, pix_fmt=pix_fmt) as out:
        out.write(frames)
    assert stored_as in probe(tmp_path / name)
    centers = read_back(tmp_path / name, size).astype(int)[:, PATCH // 2, PATCH // 2 :: PATCH]
    assert np.abs(centers - SATURATED).max() <= 3


def test_pixel_formats_that_an_encoder_lacks_are_refused() -> None:
    text = refusal("a.mp4", pix_fmt="yuv420p12le")
    assert "libx264 has no pixel format 'yuv420p12le'; use one of yuv420p, yuvj420p" in text
    assert "has no pixel format 'gray'" in refusal("a.mkv", codec="ffv1", pix_fmt="gray")
    assert "prores_ks has no pixel format 'yuv420p'" in refusal("a.mov", codec="prores", pix_fmt="yuv420p")
    assert "yuv420p has even sizes, not 33x17; use yuv444p" in refusal("a.mp4", (33, 17), pix_fmt="yuv420p")
    check_output("a.mp4", size=(33, 17), fps=24, options=SinkOptions(pix_fmt="yuv444p"))
    check_output("a.webm", size=(33, 17), fps=24, options=SinkOptions(pix_fmt="yuv422p"))
    assert "takes no pix fmt" in refusal("-", pix_fmt="rgb24")


def test_the_command_checks_both_before_the_weights_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture, loads: list
) -> None:
    command = ["--demo", "-o", str(tmp_path / "a.mp4"), "--dry-run"]
    assert main([*command, "--encoder-preset", "fast", "--pix-fmt", "yuv422p"]) == 0
    assert main([*command, "--pix-fmt", "nonsense"]) == 1
    assert "no pixel format 'nonsense'" in capsys.readouterr().err
    assert loads == []


def on_a_mac(name: str, size: tuple[int, int] = SIZE, **options: object) -> str:
    ending = Path(name).suffix
    return " ".join(codecs.video_arguments(name, ending, size, Fraction(24), SinkOptions(**options), None))


@pytest.fixture
def _mac(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ffmpeg with the encoders of a Mac, by what it lists."""
    rows = [["V....D", name, "VideoToolbox"] for name in ("h264_videotoolbox", "hevc_videotoolbox")]
    formats = [["Supported", "pixel", "formats:", "videotoolbox_vld", "nv12", "yuv420p", "p010le"]]
    monkeypatch.setattr(codecs, "listing", lambda *words, error: rows if words == ("-encoders",) else formats)


@pytest.mark.usefixtures("_mac")
def test_the_encoders_of_a_mac_get_a_quality_and_a_tag() -> None:
    text = on_a_mac("a.mp4", codec="h264_videotoolbox")
    assert "-c:v h264_videotoolbox -q:v 65 -vf format=gbrp,zscale=" in text
    assert "format=yuv420p,setparams=range=tv:colorspace=bt709" in text
    assert "-crf" not in text
    assert "-tag:v" not in text
    text = on_a_mac("a.mov", codec="HEVC_VideoToolbox", bit_depth=10)
    assert "-c:v hevc_videotoolbox -q:v 65 -vf format=gbrp16le,zscale=" in text
    assert "format=p010le,setparams=range=tv:colorspace=bt709" in text
    assert "-tag:v hvc1" in text
    assert "-tag:v" not in on_a_mac("a.mkv", codec="hevc_videotoolbox")
    assert "-realtime 1" in on_a_mac("a.mp4", codec="hevc_videotoolbox", fragmented=True)
    assert "format=nv12" in on_a_mac("a.mp4", codec="hevc_videotoolbox", pix_fmt="nv12")


@pytest.mark.usefixtures("_mac")
def test_what_the_encoders_of_a_mac_cannot_do_is_refused() -> None:
    assert "h264_videotoolbox has no crf" in refusal("a.mp4", codec="h264_videotoolbox", crf=20)
    assert "has a bit depth of 8, not 10" in refusal("a.mp4", codec="h264_videotoolbox", bit_depth=10)
    assert "takes even sizes, not 33x17" in refusal("a.mp4", (33, 17), codec="hevc_videotoolbox")
    assert "is not supported in .webm" in refusal("a.webm", codec="hevc_videotoolbox")
    assert "has no presets" in refusal("a.mp4", codec="hevc_videotoolbox", encoder_preset="fast")


def test_the_encoders_of_a_mac_are_refused_elsewhere() -> None:
    if not any(row[1:2] == ["h264_videotoolbox"] for row in codecs.listing("-encoders", error=WriterError)):
        without = "a.mp4: this ffmpeg was built without h264_videotoolbox, which only builds for macOS have"
        others = "use h264 or hevc or vp9 or av1, which it has."
        assert refusal("a.mp4", codec="h264_videotoolbox") == f"{without}; {others}"


def test_a_listing_of_formats_is_that_of_the_encoder(tmp_path: Path) -> None:
    for codec in ("h264", "hevc", "prores", "prores4444", "ffv1", "vp9", "av1"):
        known = codecs.CODECS[codec]
        ending = known.endings[0]
        for bit_depth, pix_fmt in known.pixel_formats.items():
            options = SinkOptions(codec=codec, bit_depth=bit_depth, pix_fmt=pix_fmt)
            check_output(tmp_path / f"a{ending}", size=SIZE, fps=24, options=options)


def test_default_qualities_stay_as_they_are() -> None:
    """Another quality would change every file without a word."""
    for codec, crf in (("h264", 18), ("hevc", 20), ("vp9", 24), ("av1", 24)):
        arguments = codecs.video_arguments("a.mp4", ".mp4", SIZE, Fraction(24), SinkOptions(codec=codec), None)
        assert arguments[arguments.index("-crf") + 1] == str(crf)
