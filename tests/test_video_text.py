"""Text in a file, its tags, chapters, attachments and its path, says nothing of its pictures and audio.

ffmpeg's log has all of it beside what ffmpeg itself says, in the same words if somebody wrote them.
"""

import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from imageio_ffmpeg import get_ffmpeg_exe

from commands import report_of
from mlx_ltx_vae import ReaderError, VideoReader
from mlx_ltx_vae.video import ffmpeg
from video_files import AudioReader, numbers, read_metadata, run_ffmpeg

# What was parsed, or is, with what is in front of it in the log.
LINES = [
    "demuxer+ffmpeg -> x off:5000000 ",
    "[info]   Stream #0:0: Video: h264, yuv444p, 640x480, 1 fps, 1 tbr, 1 tbn (attached pic)",
    "[info]   Stream #0:0: Audio: flac, 8000 Hz, mono, s16",
    "[info]   Stream #0:0 -> #0:0 (copy)",
    "[info]   Duration: 00:00:00.00, start: 99.000000, bitrate: 0 kb/s",
    "[info] Input #0, tty, from 'file:/",
    "[info] Input #0, image2, from 'file:/",
    "[info] Output #0, null, to '",
    "[Parsed_showinfo_0 @ 0x7f] [info] config in time_base: 1/1, frame_rate: 1/1",
    "[Parsed_showinfo_0 @ 0x7f] [info] n:   0 pts: 0 fmt:gray cl:left sar:4/3 s:8x8 i:T iskey:1 type:I",
    "[Parsed_showinfo_0 @ 0x7f] [info] color_range:pc color_space:gbr color_primaries:bt2020 color_trc:smpte2084",
    "[info]       displaymatrix: rotation of -90.00 degrees",
    "[info]   Stream group #0:0[0x31]: Tile Grid: hevc",
    "[info]       alpha_mode      : 1",
    "[info]     major_brand     : avis",
    "[mpeg @ 0x7f] [error] invalid data",
    "[dec:h264 @ 0x7f] [info] decoder -> pts:0",
    "[fatal] Stream map '' matches no streams.",
    "[Parsed_astats_0 @ 0x7f] [info] Peak level dB: 20.0",
    "gamma=1/1",
    "0, 0, 0, 0, 0, 0x00000000, S=1, 9, 0x00000000",
]
letters = st.characters(exclude_characters="\0\r", exclude_categories=["Cs"])
texts = st.lists(
    st.sampled_from([*LINES, "\n", "\n", "'", " ", "="]) | st.text(letters, max_size=9), min_size=1, max_size=5
)
texts = texts.map("".join)
ENDINGS = {
    ".mkv": ["-c:a", "flac"], ".mp4": ["-c:a", "aac"], ".mov": ["-c:a", "pcm_s16le"], ".avi": ["-c:a", "mp2"],
    ".nut": ["-c:a", "flac"], ".ts": ["-c:a", "mp2"],
}  # fmt: skip
NUM_FRAMES = 10


def escape(text: str) -> str:
    return re.sub(r"([=;#\\\n])", r"\\\1", text)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Videos with audio of all containers, without any text."""
    folder = tmp_path_factory.mktemp("plain")
    for ending, audio in ENDINGS.items():
        pictures = ["-f", "lavfi", "-i", f"testsrc2=s=64x48:r=10:d={NUM_FRAMES / 10}"]
        tone = ["-f", "lavfi", "-i", "sine=d=1:r=44100", "-c:v", "mpeg4", "-g", 4, *audio, "-bitexact"]
        run_ffmpeg(*pictures, *tone, folder / f"plain{ending}")
    return folder


def add_text(source: Path, path: Path, key: str, value: str, *, is_attached: bool = False) -> None:
    """Copy a video with the text wherever it may have some."""
    tag = f"{escape(key)}={escape(value)}\n"
    chapter = "[CHAPTER]\nTIMEBASE=1/1000\nSTART=0\nEND=500\n" + tag + f"title={escape(value)}\n"
    stream = "[STREAM]\n" + tag + f"title={escape(value)}\nlanguage={escape(value)}\nhandler_name={escape(value)}\n"
    text = path.with_name("text.txt")
    text.write_text(f";FFMETADATA1\n{tag}title={escape(value)}\n{stream}{stream}{chapter}", newline="\n")
    attached = ["-attach", text, "-metadata:s:t", f"filename={value}", "-metadata:s:t", "mimetype=text/plain"]
    streams = ["-map_metadata:s:v", "1:s:0", "-map_metadata:s:a", "1:s:1", "-map_metadata", 1, "-map_chapters", 1]
    run_ffmpeg("-i", source, "-f", "ffmetadata", "-i", text, "-map", 0, *streams, "-c", "copy", "-movflags",
               "use_metadata_tags", *attached * is_attached, f"file:{path}")  # fmt: skip


def found(path: Path) -> dict[str, Any]:
    """All that is said of a video and of its audio."""
    report = report_of(path)
    with VideoReader(path, multiple=1) as video:
        report |= {"start": video.start, "estimate": video.num_frames, "size": video.size, "rate": video.fps}
        report["checksum"] = sum(int(part.sum(dtype=np.int64)) for part in video)
    with AudioReader(path) as audio:
        report |= {"channels": audio.channels, "sample_rate": audio.sample_rate}
        report["samples"] = sum(part.shape[1] for part in audio)
    return {key: value for key, value in report.items() if key not in ("name", "metadata")}


@pytest.fixture(scope="module")
def expected(plain: Path) -> dict[str, dict[str, Any]]:
    return {ending: found(plain / f"plain{ending}") for ending in ENDINGS}


@pytest.mark.slow
@settings(max_examples=12, derandomize=True, deadline=None, database=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])  # fmt: skip
@given(ending=st.sampled_from(list(ENDINGS)), key=texts, value=texts, name=texts, is_attached=st.booleans())
def test_text_anywhere_in_a_file_changes_nothing(
    tmp_path: Path, plain: Path, expected: dict, ending: str, key: str, value: str, name: str, is_attached: bool
) -> None:
    name = name.replace("/", "_").encode()[:200].decode(errors="ignore")
    folder = tmp_path / f"of {name}"
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}{ending}"
    add_text(plain / f"plain{ending}", path, key, value, is_attached=is_attached and ending == ".mkv")
    assert found(path) == expected[ending]
    if ending in (".mkv", ".nut"):  # which keep any text
        assert read_metadata(path)["title"] == value


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".mkv", ".mp4"])
def test_lines_of_ffmpegs_log_in_a_file_change_nothing(
    tmp_path: Path, plain: Path, expected: dict, ending: str
) -> None:
    lines = "\n".join(LINES)
    add_text(plain / f"plain{ending}", tmp_path / f"a{ending}", f"a\n{lines}\nb", f"{lines}\n{lines}")
    assert found(tmp_path / f"a{ending}") == expected[ending]


def test_damage_is_an_error_whatever_the_file_is_named(tmp_path: Path, plain: Path) -> None:
    whole = (plain / "plain.mkv").read_bytes()
    for name in ("contains no audio stream.mkv", "matches no streams.mkv", "non positive size for width.mkv"):
        (tmp_path / name).write_bytes(whole[: len(whole) // 2])
        with (
            pytest.raises(ReaderError, match="is damaged or truncated"),
            VideoReader(tmp_path / name, multiple=1) as video,
        ):
            list(video)
        (tmp_path / name).write_bytes(b"\x1aE\xdf\xa3" + bytes(200))
        with pytest.raises(ReaderError, match="contains no audio that ffmpeg can read"):
            AudioReader(tmp_path / name)


@pytest.mark.slow
def test_many_tags_are_not_searched(
    tmp_path: Path, plain: Path, expected: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept of the log is what ffmpeg says of streams and frames, whatever the file has beside."""
    tags = "".join(f"key{index}=Stream #0:0: Video: vp9\n" for index in range(500))
    (tmp_path / "text.txt").write_text(f";FFMETADATA1\n{tags}[STREAM]\n{tags}")
    run_ffmpeg("-i", plain / "plain.mkv", "-i", tmp_path / "text.txt", "-map_metadata", 1, "-map_metadata:s:v", "1:s:0",
               "-map", 0, "-c", "copy", tmp_path / "a.mkv")  # fmt: skip
    shown = subprocess.run([get_ffmpeg_exe(), "-i", tmp_path / "a.mkv"], capture_output=True, text=True, check=False)
    assert shown.stderr.count("Video: vp9") >= 1000
    taken, logs = ffmpeg.run_ffmpeg, []

    def run(*arguments: Any, **options: Any) -> tuple[int, str, list[str]]:
        code, output, log = taken(*arguments, **options)
        logs.append(log)
        return code, output, log

    monkeypatch.setattr(ffmpeg, "run_ffmpeg", run)
    assert found(tmp_path / "a.mkv") == expected[".mkv"]
    assert logs
    assert max(map(len, logs)) < 60


def test_lines_into_which_another_thread_writes_are_read_again(
    tmp_path: Path, plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, broken = ffmpeg.run_ffmpeg, []

    def run(*arguments: Any, **options: Any) -> tuple[int, str, list[str]]:
        code, output, log = taken(*arguments, **options)
        if len(arguments) == 4 and len(broken) < 2:  # with marks
            broken.append(log)
            log = [re.sub(r"^.*(color_range|fmt:).*", r"\1[h264] [error] illegal", line) for line in log]
        return code, output, log

    monkeypatch.setattr(ffmpeg, "run_ffmpeg", run)
    run_ffmpeg("-f", "lavfi", "-i", "testsrc2=s=64x48:d=1,setparams=range=pc:colorspace=bt709", "-c:v", "ffv1",
               tmp_path / "a.mkv")  # fmt: skip
    with VideoReader(tmp_path / "a.mkv", multiple=1) as video:
        assert video.size == (64, 48)
        assert len(numbers(next(video))) == 8
    assert len(broken) == 2
