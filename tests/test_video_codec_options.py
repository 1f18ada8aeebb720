"""Encoder presets, pixel formats, and the encoders of a Mac."""

import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from commands import decode as main
from mlx_ltx_vae import VideoWriter, WriterError
from mlx_ltx_vae.codec_table import AUDIO_CODECS, CODECS, Codec
from mlx_ltx_vae.commands.parsers import decode_parser
from mlx_ltx_vae.video import codecs, ffmpeg
from test_video_writer import PATCH, SATURATED, patches, probe, read_back
from video_files import OutputOptions, check_output, noise, write

SIZE = (64, 64)


def refusal(name: str, size: tuple[int, int] = SIZE, **options: object) -> str:
    """The error of a check, before any file is written."""
    with pytest.raises(WriterError) as error:
        check_output(name, size=size, fps=24, options=OutputOptions(**options))
    return str(error.value)


@pytest.mark.parametrize("codec", ["h264", "hevc"])
def test_encoders_get_the_preset(tmp_path: Path, codec: str) -> None:
    efforts = []
    for preset in ("ultrafast", None, "veryslow"):
        path = tmp_path / f"{preset}.mp4"
        write(path, noise(3, SIZE), codec=codec, encoder_preset=preset)
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
        ("a.mp4", "h264", "yuvj420p", "yuvj420p(pc, bt709, progressive)"),
        ("a.mp4", "h264", "nv12", "yuv420p(tv, bt709, progressive)"),
        ("a.mkv", "hevc", "yuv422p10le", "yuv422p10le(tv, bt709, progressive)"),
        ("a.mp4", "hevc", "gbrp", "gbrp(pc, gbr/bt709/bt709, progressive)"),
        ("a.mov", "prores", "yuv444p10le", "yuv444p12le(tv, bt709, progressive)"),
        ("a.webm", "vp9", "yuv444p", "yuv444p(tv, bt709, progressive)"),
    ],
)
def test_pixel_formats_keep_the_colors_and_the_tags(
    tmp_path: Path, name: str, codec: str, pix_fmt: str, stored_as: str
) -> None:
    frames = patches(3)
    size = (frames.shape[2], frames.shape[1])
    write(tmp_path / name, frames, codec=codec, pix_fmt=pix_fmt)
    assert stored_as in probe(tmp_path / name)
    centers = read_back(tmp_path / name, size).astype(int)[:, PATCH // 2, PATCH // 2 :: PATCH]
    assert np.abs(centers - SATURATED).max() <= 3


def test_pixel_formats_that_an_encoder_lacks_are_refused() -> None:
    text = refusal("a.mp4", pix_fmt="yuv420p12le")
    assert "'yuv420p12le' is not supported for libx264 (did you mean yuv420p10le?); use one of yuv420p, " in text
    assert "'gray' is not supported for ffv1; use one of bgr0, gbrp16le, " in refusal(
        "a.mkv", codec="ffv1", pix_fmt="gray"
    )
    text = refusal("a.mov", codec="prores", pix_fmt="yuv420p")
    assert text.endswith("use one of yuv422p10le, yuv444p10le.")
    assert "yuv420p has even sizes, not 33x17; use yuv444p" in refusal("a.mp4", (33, 17), pix_fmt="yuv420p")
    check_output("a.mp4", size=(33, 17), fps=24, options=OutputOptions(pix_fmt="yuv444p"))
    check_output("a.webm", size=(33, 17), fps=24, options=OutputOptions(pix_fmt="yuv422p"))
    assert "takes no pix fmt" in refusal("-", pix_fmt="rgb24")


def test_the_command_checks_both_before_the_weights_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture, loads: list
) -> None:
    command = ["--demo", "-o", str(tmp_path / "a.mp4"), "--dry-run"]
    assert main([*command, "--encoder-preset", "fast", "--pix-fmt", "yuv422p"]) == 0
    assert main([*command, "--pix-fmt", "nonsense"]) == 1
    assert "'nonsense' is not supported for libx264" in capsys.readouterr().err
    assert loads == []


def on_a_mac(name: str, **options: object) -> str:
    ending = Path(name).suffix
    return " ".join(codecs.video_arguments(name, ending, SIZE, Fraction(24), OutputOptions(**options), None))


@pytest.fixture
def _mac(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ffmpeg with the encoders of a Mac, by what it lists."""
    rows = [["V....D", name, "VideoToolbox"] for name in ("h264_videotoolbox", "hevc_videotoolbox")]
    formats = [["Supported", "pixel", "formats:", "videotoolbox_vld", "nv12", "yuv420p", "p010le"]]
    monkeypatch.setattr(ffmpeg, "listing", lambda *words, error: rows if words == ("-encoders",) else formats)


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
    assert "has 8 bits per color, not 10" in refusal("a.mp4", codec="h264_videotoolbox", bit_depth=10)
    assert "takes even sizes, not 33x17" in refusal("a.mp4", (33, 17), codec="hevc_videotoolbox")
    assert "is not supported in .webm" in refusal("a.webm", codec="hevc_videotoolbox")
    assert "has no presets" in refusal("a.mp4", codec="hevc_videotoolbox", encoder_preset="fast")


def test_the_encoders_of_a_mac_are_refused_elsewhere() -> None:
    if not any(row[1:2] == ["h264_videotoolbox"] for row in ffmpeg.listing("-encoders", error=WriterError)):
        without = "a.mp4: this ffmpeg was built without h264_videotoolbox, which only builds for macOS have"
        others = "use h264 or hevc or vp9 or av1, which it has."
        assert refusal("a.mp4", codec="h264_videotoolbox") == f"{without}; {others}"


@pytest.mark.quick(2)
@pytest.mark.parametrize("codec", [name for name, codec in CODECS.items() if not codec.is_mac_only])
def test_every_pixel_format_of_the_table_is_written_and_has_the_colors(tmp_path: Path, codec: str) -> None:
    known = CODECS[codec]
    formats = {*known.pixel_formats.values(), *(known.odd_pixel_formats or {}).values(), *known.more_pixel_formats}
    frames = patches(2)
    size = (frames.shape[2], frames.shape[1])
    for pix_fmt in sorted(formats):
        path = tmp_path / f"{pix_fmt}{known.endings[-1]}"
        write(path, frames, codec=codec, pix_fmt=pix_fmt)
        centers = read_back(path, size).astype(int)[:, PATCH // 2, PATCH // 2 :: PATCH]
        assert np.abs(centers - SATURATED).max() <= 4


def test_a_codec_is_an_entry_that_errors_and_arguments_follow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    toy = Codec("mpeg4", (".mkv",), {8: "yuv420p"}, about="a toy", other_names=("divx",), max_fps=60, min_size=(9, 9))
    monkeypatch.setitem(CODECS, "toy", toy)
    assert "use one of h264, hevc, prores, prores4444, ffv1, vp9, av1, h264_videotoolbox, " in refusal(
        "a.mkv", codec="theora"
    )
    assert "toy is not supported in .mp4; use .mkv." in refusal("a.mp4", codec="toy")
    assert "frames are 64x8, and mpeg4 takes 9x9 and more" in refusal("a.mkv", (64, 8), codec="toy")
    write(tmp_path / "a.mkv", noise(2, SIZE), codec="DivX")
    assert "Video: mpeg4" in probe(tmp_path / "a.mkv")


def test_help_and_docstrings_name_every_codec() -> None:
    shown = " ".join(decode_parser().format_help().split())
    for name, codec in CODECS.items():
        assert f"{name} is {codec.about}" in shown if codec.about else re.search(rf"\b{name}\b", shown)
    for name, audio_codec in AUDIO_CODECS.items():
        assert f"{name} ({', '.join(audio_codec.endings)})" in shown
    for name in CODECS:
        assert re.search(rf"\b{name}\b", VideoWriter.__doc__ or "")


def test_default_qualities_stay_as_they_are() -> None:
    """Another quality would change every file without a word."""
    for codec, crf in (("h264", 18), ("hevc", 20), ("vp9", 24), ("av1", 24)):
        arguments = codecs.video_arguments("a.mp4", ".mp4", SIZE, Fraction(24), OutputOptions(codec=codec), None)
        assert arguments[arguments.index("-crf") + 1] == str(crf)
