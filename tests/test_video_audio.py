"""Audio that is longer or shorter than the video: a warning, and `shortest`."""

import json
import warnings
import wave
from pathlib import Path

import numpy as np
import pytest

from mlx_ltx_vae.decode import main
from mlx_ltx_vae.errors import WriterError
from mlx_ltx_vae.video import SinkOptions, VideoWriter, check_output, open_sink
from video_files import numbered, numbers, read, run_ffmpeg

RATE = 48_000
SIZE = (32, 32)
NUM_FRAMES = 24  # a second


def make_audio(path: Path, seconds: float) -> Path:
    """A tone as wav, mp3, m4a, or in an mp4 whose picture is twice as long."""
    tone = 8000 * np.sin(np.arange(int(RATE * seconds)) / 20)
    wav = path.with_suffix(".wav")
    with wave.open(str(wav), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(tone.astype("<i2").tobytes())
    if path.suffix == ".mp4":
        run_ffmpeg("-f", "lavfi", "-i", f"color=s=16x16:d={2 * seconds}", "-i", wav, "-c:a", "aac", path)
    elif path != wav:
        run_ffmpeg("-i", wav, path)
    return path


def sound(path: Path) -> np.ndarray:
    samples = run_ffmpeg("-i", path, "-map", "0:a", "-ac", "1", "-ar", RATE, "-f", "s16le", "-")
    return np.frombuffer(samples, "<i2").astype(float)


def write(path: Path, **options: object) -> None:
    with VideoWriter(path, size=SIZE, fps=24, **options) as out:
        for index in range(0, NUM_FRAMES, 5):
            out.write(numbered(NUM_FRAMES, SIZE)[index : index + 5])


@pytest.mark.parametrize("seconds", [0.4, 1.7])
@pytest.mark.parametrize(
    ("audio", "name"),
    [("a.wav", "out.mp4"), ("a.mp3", "out.mov"), ("a.m4a", "out.webm"), ("a.mp4", "out.mkv"), ("a.wav", "live.mp4")],
)
@pytest.mark.filterwarnings("error")
def test_shortest_ends_the_audio_with_the_video_and_keeps_all_frames(
    tmp_path: Path, audio: str, name: str, seconds: float
) -> None:
    source = make_audio(tmp_path / audio, seconds)
    live = name == "live.mp4"
    write(tmp_path / name, audio=source, shortest=True, num_frames=NUM_FRAMES, fragmented=live)
    assert numbers(read(tmp_path / name)) == list(range(NUM_FRAMES))
    heard, end = sound(tmp_path / name), round(min(seconds, 1) * RATE)
    assert abs(len(heard) - end) <= 2048  # codecs work in blocks
    assert np.std(heard[end - 6000 : end - 3000]) > 4000


@pytest.mark.parametrize("audio", ["a.wav", "a.mp3", "a.m4a", "a.mp4"])
def test_longer_audio_is_a_warning_with_both_lengths(tmp_path: Path, audio: str) -> None:
    source = make_audio(tmp_path / audio, 1.7)
    with pytest.warns(UserWarning, match=r"out.mp4: the video takes 1.00 s and its audio 1.7\d s; --shortest"):
        write(tmp_path / "out.mp4", audio=source)
    assert len(sound(tmp_path / "out.mp4")) >= 1.7 * RATE


@pytest.mark.parametrize("seconds", [0.4, 1.03])
@pytest.mark.filterwarnings("error")
def test_audio_that_is_not_longer_by_more_than_a_frame_is_no_warning(tmp_path: Path, seconds: float) -> None:
    write(tmp_path / "out.mp4", audio=make_audio(tmp_path / "a.wav", seconds))
    assert abs(len(sound(tmp_path / "out.mp4")) - seconds * RATE) <= 2048  # codecs work in blocks


def test_a_checked_output_warns_once(tmp_path: Path) -> None:
    options = SinkOptions(audio=make_audio(tmp_path / "a.wav", 3))
    video = {"size": SIZE, "fps": 24, "options": options, "num_frames": 2}
    with pytest.warns(UserWarning, match=r"0\.08 s and its audio 3\.00 s"):
        check_output(tmp_path / "out.mp4", **video)
    with warnings.catch_warnings(), open_sink(tmp_path / "out.mp4", **video) as out:
        warnings.simplefilter("error")
        out.write(numbered(2, SIZE))


def test_decode_warns_before_it_decodes_and_cuts_with_shortest(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    audio, out = make_audio(tmp_path / "a.wav", 9), tmp_path / "out.mp4"
    command = ["--demo", "-o", str(out), "--audio", str(audio)]
    assert main([*command, "--dry-run", "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err.count("warning: ") == 1
    assert "its audio 9.00 s" in captured.err
    assert main([*command, "--shortest", "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    report = json.loads(captured.out)
    assert len(read(out)) == report["frames"]
    assert abs(len(sound(out)) / RATE - report["frames"] / report["fps"]) < 0.05


def test_shortest_without_audio_is_refused(tmp_path: Path) -> None:
    for name, text in (("out.mp4", "add audio"), ("out.gif", "takes no shortest"), ("-", "takes no shortest")):
        with pytest.raises(WriterError, match=text):
            check_output(tmp_path / name if name != "-" else "-", size=SIZE, fps=24, options=SinkOptions(shortest=True))


def test_shortest_needs_the_number_of_frames_and_gets_it(tmp_path: Path) -> None:
    audio = make_audio(tmp_path / "a.wav", 3)
    with pytest.raises(WriterError, match="add num_frames"):
        write(tmp_path / "out.mp4", audio=audio, shortest=True)
    with pytest.raises(WriterError, match="got 24 frames, not 23"):
        write(tmp_path / "out.mp4", audio=audio, shortest=True, num_frames=23)
    assert [path.name for path in tmp_path.iterdir()] == ["a.wav"]
