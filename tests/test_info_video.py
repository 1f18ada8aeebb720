"""`info` of videos and images: in every container what was written, what a reader reads, and what ffmpeg decodes."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from commands import encode, report_of
from mlx_ltx_vae import VideoReader
from test_info import info, refused, text  # noqa: F401
from video_files import OutputOptions, noise, open_sink, run_ffmpeg, save_images

KEYS = {
    "kind", "name", "frames", "width", "height", "fps", "is_variable", "seconds", "codec", "pixel_format", "nearest",
    "scale", "vae", "metadata", "matrix", "range", "primaries", "transfer", "is_interlaced", "pixel_shape", "rotation",
    "notices",
}  # fmt: skip


def write(path: Path | str, num_frames: int, size: tuple[int, int], **options: object) -> None:
    with open_sink(path, size=size, fps=25, options=OutputOptions(**options)) as out:
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


def test_colors_and_shape_are_described(info, tmp_path: Path) -> None:  # noqa: F811
    tags = ["-colorspace", "bt2020nc", "-color_primaries", "bt2020", "-color_trc", "smpte2084", "-color_range", "pc"]
    source = ["-f", "lavfi", "-i", "testsrc2=s=64x48:r=24:d=0.5", "-pix_fmt", "yuv420p10le"]
    colors = "setparams=range=pc:colorspace=bt2020nc:color_primaries=bt2020:color_trc=smpte2084"
    run_ffmpeg(
        *source,
        "-vf",
        f"setsar=4/3,setfield=tff,{colors}",
        *tags,
        "-flags",
        "+ilme+ildct",
        "-c:v",
        "libx264",
        tmp_path / "a.mp4",
    )
    run_ffmpeg("-display_rotation", 90, "-i", tmp_path / "a.mp4", "-c", "copy", tmp_path / "b.mp4")
    report = info(tmp_path / "b.mp4")
    found = [report[key] for key in ("matrix", "range", "primaries", "transfer")]
    assert found == ["bt2020nc", "pc", "bt2020", "smpte2084"]
    assert (report["is_interlaced"], report["pixel_shape"], report["rotation"]) == (True, [3, 4], 90)
    assert (report["width"], report["height"]) == (48, 64)
    run_ffmpeg(*source[:4], "-pix_fmt", "yuv420p", "-c:v", "libx264", tmp_path / "c.mp4")
    report = info(tmp_path / "c.mp4")
    assert {report[key] for key in ("matrix", "primaries", "transfer", "range")} == {"unknown"}


@pytest.mark.parametrize("is_variable", [False, True])
def test_a_rate_is_said_to_vary_where_times_are_uneven(info, tmp_path: Path, is_variable: bool) -> None:  # noqa: F811
    times = "17*N+700*floor(N/10)" if is_variable else "40*N"
    source = ["-f", "lavfi", "-i", "testsrc2=s=64x64:r=24:d=2", "-vf", f"settb=1/1000,setpts={times}"]
    run_ffmpeg(
        *source, "-fps_mode", "vfr", "-enc_time_base", "1:1000", "-video_track_timescale", 1000, tmp_path / "a.mp4"
    )
    assert info(tmp_path / "a.mp4")["is_variable"] == is_variable


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
    with open_sink(f"{tmp_path}/a/", size=(64, 33), fps=24, options=OutputOptions(bit_depth=10)) as out:
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
    (tmp_path / "a.bmp").write_bytes(b"BM")
    assert "a.bmp: contains no video that ffmpeg can read" in refused(tmp_path / "a.bmp")
    (tmp_path / "a.exr").write_bytes(b"v/")
    assert "a.exr: cannot be read as EXR (it does not begin as EXR does)" in refused(tmp_path / "a.exr")
    (tmp_path / "notes.txt").write_text("nothing\n" * 99)
    assert "not a safetensors file" in refused(tmp_path / "notes.txt")


NUM_FRAMES = 50
PICTURES = ["-f", "lavfi", "-i", "testsrc2=s=64x48:r=25:d=2,noise=alls=40:allf=t+u"]
TONE = ["-f", "lavfi", "-i", "sine=d=2:r=48000"]
# All into which ffmpeg 9 writes a video that this package reads, with the options that some need. But for raw MJPEG,
# which is pictures without times.
CONTAINERS: dict[str, list[str]] = {
    "apng": [], "asf": [], "avi": ["-c:a", "pcm_s16le"],
    "dv": ["-s", "720x576"], "fits": ["-pix_fmt", "gray"], "flv": [], "gif": [], "h264": [], "matroska": [], "mov": [],
    "mp4": [], "mpegts": [], "mxf": [], "nut": [], "ogg": [], "webm": [], "webp": [], "yuv4mpegpipe": [],
}  # fmt: skip
RARE_CONTAINERS: dict[str, list[str]] = {
    "3g2": ["-c:v", "mpeg4", "-an"], "3gp": ["-c:v", "mpeg4", "-an"], "avm2": [],
    "dirac": ["-c:v", "vc2", "-pix_fmt", "yuv422p"], "dvd": [], "f4v": [], "film_cpk": ["-c:v", "cinepak"],
    "h261": ["-s", "352x288"], "h263": ["-s", "352x288"], "hevc": [], "ipod": [], "ismv": [], "ivf": [], "m4v": [],
    "mpeg": [], "mpeg1video": [], "mpeg2video": [], "obu": ["-c:v", "libaom-av1", "-cpu-used", "8"], "psp": [],
    "rm": [], "smjpeg": [], "svcd": [], "swf": [], "vcd": [], "vob": [], "vvc": [], "wtv": [],
}  # fmt: skip
# Of formats that state none, or have only one.
RATES = {"fits": Fraction(1), "h261": Fraction(30000, 1001), "h263": Fraction(30000, 1001)}
# Of formats whose packets do not all state when they are shown: the number of frames is a guess of ffmpeg's.
WITHOUT_TIMES = {"dirac", "dvd", "h263", "h264", "mpeg", "mpeg1video", "vcd"}


def make(path: Path, muxer: str) -> Path:
    """Two seconds, 50 frames, with audio if the container has any."""
    options = ["-pix_fmt", "yuv420p", *(CONTAINERS | RARE_CONTAINERS)[muxer], "-f", muxer, path]
    try:
        run_ffmpeg(*PICTURES, *TONE, *options)
    except AssertionError:
        run_ffmpeg(*PICTURES, "-an", *options)
    return path


def decoded(path: Path) -> int:
    """The number of frames that ffmpeg decodes."""
    rows = run_ffmpeg("-i", path, "-map", "0:V:0", "-fps_mode", "passthrough", "-f", "framecrc", "-").decode()
    return sum(not row.startswith("#") for row in rows.splitlines())


@pytest.mark.quick(6)
@pytest.mark.parametrize(
    "muxer", [*CONTAINERS, *(pytest.param(name, marks=pytest.mark.slow) for name in RARE_CONTAINERS)]
)
@pytest.mark.filterwarnings("ignore:.*as players show it")
def test_what_is_stated_of_a_container_is_what_was_written_and_is_read(tmp_path: Path, muxer: str) -> None:
    path = make(tmp_path / f"clip.{muxer}", muxer)
    report, fps = report_of(path), RATES.get(muxer, Fraction(25))
    with VideoReader(path, multiple=1) as video:
        assert sum(len(part) for part in video) == NUM_FRAMES
    slack = 1 if muxer in WITHOUT_TIMES else 0
    assert (report["frames"], report["fps"]) == (pytest.approx(NUM_FRAMES, abs=slack), float(fps))
    assert report["seconds"] == pytest.approx(NUM_FRAMES / fps, abs=float(slack / fps) + 0.002)
    assert report["is_variable"] is False or muxer in WITHOUT_TIMES
    assert decoded(path) == NUM_FRAMES
    assert video.source_fps == fps
    assert video.num_frames == pytest.approx(NUM_FRAMES, abs=1)


def test_all_frames_count_where_packets_have_no_times(tmp_path: Path) -> None:
    """Of an AVI with B-frames, packets have no time at which they are shown."""
    run_ffmpeg(*PICTURES, "-c:v", "mpeg4", "-bf", 2, tmp_path / "a.avi")
    report = report_of(tmp_path / "a.avi")
    assert (report["frames"], report["fps"], report["is_variable"]) == (50, 25, False)
    assert report["seconds"] == 2


@pytest.mark.parametrize("name", ["a.png", "a.apng"])
def test_pictures_of_an_animation_are_counted_whatever_its_name(tmp_path: Path, name: str) -> None:
    save_images(tmp_path / "in", [f"{index}.png" for index in range(6)])
    run_ffmpeg("-framerate", 10, "-i", tmp_path / "in" / "%d.png", "-c:v", "apng", "-f", "apng", tmp_path / name)
    report = report_of(tmp_path / name)
    with VideoReader(tmp_path / name) as video:
        assert sum(len(part) for part in video) == report["frames"]
    assert report["frames"] == 6


def test_what_an_edit_list_leaves_out_is_not_counted(tmp_path: Path) -> None:
    source = ["-f", "lavfi", "-i", "testsrc2=s=64x48:r=24:d=3", "-c:v", "libx264", "-g", 100, tmp_path / "a.mp4"]
    run_ffmpeg(*source)
    run_ffmpeg("-ss", 0.25, "-i", tmp_path / "a.mp4", "-c", "copy", tmp_path / "b.mov")
    report = report_of(tmp_path / "b.mov")
    assert report["frames"] == decoded(tmp_path / "b.mov") == 72 - 6
    assert report["seconds"] == 66 / 24


def test_a_late_and_short_picture_is_as_long_as_it_is(tmp_path: Path) -> None:
    pictures = ["-itsoffset", 1, "-f", "lavfi", "-i", "testsrc2=s=64x48:r=24:d=1"]
    run_ffmpeg(*pictures, "-f", "lavfi", "-i", "sine=d=9", "-c:v", "mpeg4", "-c:a", "flac", tmp_path / "a.mkv")
    report = report_of(tmp_path / "a.mkv")
    assert (report["frames"], report["is_variable"]) == (24, False)
    assert report["seconds"] == pytest.approx(1, abs=0.002)  # Matroska counts milliseconds
    with VideoReader(tmp_path / "a.mkv", multiple=1) as video:
        assert (video.num_frames, float(video.start)) == (24, pytest.approx(1, abs=0.01))
