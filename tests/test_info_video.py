"""`info` of videos and images."""

from pathlib import Path

import numpy as np
import pytest

from mlx_ltx_vae.encode import main as encode
from mlx_ltx_vae.video import SinkOptions, open_sink
from test_info import info, refused, text  # noqa: F401
from video_files import noise, run_ffmpeg

KEYS = {
    "kind", "name", "frames", "width", "height", "fps", "is_variable", "seconds", "codec", "pixel_format", "nearest",
    "scale", "vae", "metadata", "matrix", "range", "primaries", "transfer", "is_interlaced", "pixel_shape", "rotation",
    "notices",
}  # fmt: skip


def write(path: Path | str, num_frames: int, size: tuple[int, int], **options: object) -> None:
    with open_sink(path, size=size, fps=25, options=SinkOptions(**options)) as out:
        out.write(noise(num_frames, size))


@pytest.mark.parametrize(
    ("name", "codec"), [("out.mp4", "h264"), ("out.mkv", "ffv1"), ("out.webm", "vp9"), ("out.gif", "gif")]
)
def test_a_video_is_described(info, tmp_path: Path, name: str, codec: str) -> None:  # noqa: F811
    write(tmp_path / name, 21, (100, 70), codec=codec if codec == "ffv1" else None)
    report = info(tmp_path / name)
    assert report.keys() == KEYS
    assert (report["kind"], report["codec"], report["vae"]) == ("video", codec, None)
    assert (report["frames"], report["width"], report["height"], report["fps"]) == (21, 100, 70, 25)
    assert report["seconds"] == pytest.approx(0.84)
    assert report["nearest"] == {"frames": 17, "width": 96, "height": 64}  # of 21 frames 25 cannot be made


def test_frames_that_are_missing_make_a_video_no_shorter(info, tmp_path: Path) -> None:  # noqa: F811
    write(tmp_path / "a.mkv", 30, (32, 32))
    run_ffmpeg("-i", tmp_path / "a.mkv", "-vf", "select=lt(n\\,4)+gt(n\\,20)", "-fps_mode", "vfr", tmp_path / "b.mkv")
    report = info(tmp_path / "b.mkv")
    assert report["frames"] == 13
    assert report["seconds"] == pytest.approx(1.2, abs=0.1)


def test_colors_and_shape_are_described(info, tmp_path: Path) -> None:  # noqa: F811
    tags = ["-colorspace", "bt2020nc", "-color_primaries", "bt2020", "-color_trc", "smpte2084", "-color_range", "pc"]
    source = ["-f", "lavfi", "-i", "testsrc2=s=64x48:r=24:d=0.5", "-pix_fmt", "yuv420p10le"]
    filters = (
        "setsar=4/3,setfield=tff,setparams=range=pc:colorspace=bt2020nc:color_primaries=bt2020:color_trc=smpte2084"
    )
    run_ffmpeg(*source, "-vf", filters, *tags, "-flags", "+ilme+ildct", "-c:v", "libx264", tmp_path / "a.mp4")
    run_ffmpeg("-display_rotation", 90, "-i", tmp_path / "a.mp4", "-c", "copy", tmp_path / "b.mp4")
    report = info(tmp_path / "b.mp4")
    assert [report[key] for key in ("matrix", "range", "primaries", "transfer")] == [
        "bt2020nc",
        "pc",
        "bt2020",
        "smpte2084",
    ]
    assert (report["is_interlaced"], report["pixel_shape"], report["rotation"]) == (True, [3, 4], 90)
    assert (report["width"], report["height"]) == (48, 64)
    run_ffmpeg(*source[:4], "-pix_fmt", "yuv420p", "-c:v", "libx264", tmp_path / "c.mp4")
    report = info(tmp_path / "c.mp4")
    assert {report[key] for key in ("matrix", "primaries", "transfer", "range")} == {"unknown"}


@pytest.mark.parametrize("drop", ["", "not(eq(n\\,7))", "not(eq(mod(n\\,5)\\,3))"])
def test_a_rate_is_said_to_vary_where_times_are_uneven(info, tmp_path: Path, drop: str) -> None:  # noqa: F811
    source = ["-f", "lavfi", "-i", "testsrc2=s=64x64:r=24:d=2"]
    filters = ["-vf", f"select={drop}"] if drop else []
    run_ffmpeg(*source, *filters, "-fps_mode", "passthrough", "-c:v", "libx264", tmp_path / "a.mkv")
    assert info(tmp_path / "a.mkv")["is_variable"] == bool(drop)


def test_what_it_says_is_nearest_encodes(info, golden, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:  # noqa: F811
    vae = golden("conv_16x16x4").checkpoint
    write(tmp_path / "a.mp4", 6, (40, 56))
    report = info(tmp_path / "a.mp4", "-m", vae)
    assert (report["scale"], report["vae"]) == ({"time": 4, "height": 16, "width": 16}, vae.name)
    nearest = report["nearest"]
    assert (nearest["frames"], nearest["width"], nearest["height"]) == (5, 32, 64)
    out = tmp_path / "a.safetensors"
    command = [str(tmp_path / "a.mp4"), "-m", str(vae), "-o", str(out), "--resize", "-q"]
    assert encode(command) == 0
    assert "6 frames are not 1 + 4*k" in capsys.readouterr().err
    assert {key: info(out, "-m", vae)["video"][key] for key in nearest} == nearest


def test_metadata_is_shown_in_one_line_and_whole_in_json(info, text, tmp_path: Path) -> None:  # noqa: F811
    entries = {"prompt": '{"a": "b\\n"}\n' * 999, "comment": "\x1b[2J"}
    write(tmp_path / "out.mp4", 1, (32, 32), metadata=entries)
    write(f"{tmp_path}/stills/", 1, (32, 32), metadata=entries, bit_depth=8)
    for path in (tmp_path / "out.mp4", tmp_path / "stills" / "00000.png"):
        found = info(path)["metadata"]
        assert {key: found[key] for key in entries} == entries
        lines = text(path).splitlines()
        assert any(line.startswith(r'  prompt: {"a": "b\n"}\n{"a"') and line.endswith("...") for line in lines)
        assert any(line.endswith("comment: \\x1b[2J") for line in lines)
        assert max(map(len, lines)) < 400


def test_an_image_has_no_rate(info, tmp_path: Path) -> None:  # noqa: F811
    with open_sink(f"{tmp_path}/a/", size=(64, 33), fps=24, options=SinkOptions(bit_depth=10)) as out:
        out.write(noise(1, (64, 33), np.uint16))
    report = info(tmp_path / "a" / "00000.png")
    assert (report["frames"], report["fps"], report["seconds"], report["pixel_format"]) == (1, None, None, "rgb48be")
    assert report["nearest"] == {"frames": 1, "width": 64, "height": 32}


def test_options_of_latents_are_refused_for_a_video(refused, tmp_path: Path) -> None:  # noqa: F811
    write(tmp_path / "out.mp4", 1, (32, 32))
    assert "this is a video" in refused(tmp_path / "out.mp4", "--tensor", "a")


def test_a_damaged_video_is_one_and_other_files_are_not(refused, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "out.mp4").write_bytes(bytes(1000))
    assert "out.mp4: contains no video that ffmpeg can read" in refused(tmp_path / "out.mp4")
    (tmp_path / "notes.txt").write_text("nothing\n" * 99)
    assert "not a safetensors file" in refused(tmp_path / "notes.txt")
