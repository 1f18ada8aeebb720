"""Audio that is longer or shorter than the video: a warning, and `shortest`."""

import json
import os
import re
import warnings
import wave
from pathlib import Path

import numpy as np
import pytest

from mlx_ltx_vae import demo, load_latents, save_latents
from mlx_ltx_vae.codec_table import AUDIO_CODECS
from mlx_ltx_vae.decode import main
from mlx_ltx_vae.errors import ReaderError, WriterError
from mlx_ltx_vae.video import OutputOptions, VideoReader, VideoWriter, check_output, codecs, open_sink, writer
from mlx_ltx_vae.video.audio import AudioReader
from video_files import numbered, numbers, open_video, read, run_ffmpeg, write_tone

RATE = 48_000
SIZE = (32, 32)
NUM_FRAMES = 24  # a second


def make_audio(path: Path, seconds: float) -> Path:
    """A tone as wav, mp3, m4a, or in an mp4 whose picture is twice as long."""
    wav = write_tone(path.with_suffix(".wav"), seconds)
    if path.suffix == ".mp4":
        run_ffmpeg("-f", "lavfi", "-i", f"color=s=16x16:d={2 * seconds}", "-i", wav, "-c:a", "aac", path)
    elif path != wav:
        run_ffmpeg("-i", wav, path)
    return path


def samples_in(path: Path) -> np.ndarray:
    samples = run_ffmpeg("-i", path, "-map", "0:a", "-ac", "1", "-ar", RATE, "-f", "s16le", "-")
    return np.frombuffer(samples, "<i2").astype(float)


def write(path: Path, **options: object) -> None:
    with open_video(path, size=SIZE, fps=24, **options) as out:
        for index in range(0, NUM_FRAMES, 5):
            out.write(numbered(NUM_FRAMES, SIZE)[index : index + 5])


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("audio", "name", "seconds"),
    [
        ("a.wav", "out.mp4", 0.4),
        ("a.mp3", "out.mov", 1.7),
        ("a.m4a", "out.webm", 1.7),
        ("a.mp4", "out.mkv", 0.4),
        ("a.wav", "live.mp4", 1.7),
    ],
)
@pytest.mark.filterwarnings("error", "ignore:.*and its audio 0.4. s, and the rest is silent", "ignore:.*AAC")
def test_shortest_ends_the_audio_with_the_video_and_keeps_all_frames(
    tmp_path: Path, audio: str, name: str, seconds: float
) -> None:
    source = make_audio(tmp_path / audio, seconds)
    live = name == "live.mp4"
    write(tmp_path / name, audio=source, shortest=True, num_frames=NUM_FRAMES, fragmented=live)
    assert numbers(read(tmp_path / name)) == list(range(NUM_FRAMES))
    heard, end = samples_in(tmp_path / name), round(min(seconds, 1) * RATE)
    assert abs(len(heard) - end) <= 2048  # codecs work in blocks
    assert np.std(heard[end - 6000 : end - 3000]) > 4000


@pytest.mark.quick(1)
@pytest.mark.parametrize("audio", ["a.wav", "a.mp4"])
def test_longer_audio_is_a_warning_with_both_lengths(tmp_path: Path, audio: str) -> None:
    source = make_audio(tmp_path / audio, 1.7)
    with pytest.warns(UserWarning, match=r"out.mp4: the video takes 1.00 s and its audio 1.7\d s; shortest=True"):
        write(tmp_path / "out.mp4", audio=source)
    assert len(samples_in(tmp_path / "out.mp4")) >= 1.7 * RATE


def test_audio_is_kept_for_a_limited_time_after_the_video(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour, which is a second here."""
    monkeypatch.setattr(codecs, "MAX_REST", 1)
    source = make_audio(tmp_path / "a.wav", 3)
    message = r"its audio 3.00 s; 1 s after the video are kept; shortest=True"
    with pytest.warns(UserWarning, match=message):
        write(tmp_path / "out.mkv", audio=source, num_frames=NUM_FRAMES, audio_codec="pcm")
    assert len(samples_in(tmp_path / "out.mkv")) == 2 * RATE


@pytest.mark.parametrize("rate", [1, 999])
def test_a_file_that_states_a_rate_that_no_audio_has_is_refused(tmp_path: Path, rate: int) -> None:
    """Which would become hours, and take minutes."""
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setparams((1, 1, rate, 0, "NONE", ""))
        file.writeframes(bytes(16_700))
    words = f"a.wav: its audio has {rate} samples per second; expected are 1000 to 768000"
    with pytest.raises(WriterError, match=words):
        write(tmp_path / "out.mp4", audio=tmp_path / "a.wav")
    with pytest.raises(ReaderError, match=words):
        AudioReader(tmp_path / "a.wav")
    assert os.listdir(tmp_path) == ["a.wav"]


def test_shorter_audio_is_a_warning_with_both_lengths(tmp_path: Path) -> None:
    message = r"out.mp4: the video takes 1.00 s and its audio 0.40 s, and the rest is silent\.$"
    with pytest.warns(UserWarning, match=message):
        write(tmp_path / "out.mp4", audio=make_audio(tmp_path / "a.wav", 0.4))
    assert abs(len(samples_in(tmp_path / "out.mp4")) - 0.4 * RATE) <= 2048


@pytest.mark.parametrize("seconds", [0.97, 1.03])
@pytest.mark.filterwarnings("error", "ignore:.*AAC")
def test_audio_that_is_not_longer_or_shorter_by_more_than_a_frame_is_no_warning(tmp_path: Path, seconds: float) -> None:
    write(tmp_path / "out.mp4", audio=make_audio(tmp_path / "a.wav", seconds))
    assert abs(len(samples_in(tmp_path / "out.mp4")) - seconds * RATE) <= 2048


def test_a_checked_output_warns_once(tmp_path: Path) -> None:
    options = OutputOptions(audio=make_audio(tmp_path / "a.wav", 3))
    video = {"size": SIZE, "fps": 24, "options": options, "num_frames": 2}
    with pytest.warns(UserWarning, match=r"0\.08 s and its audio 3\.00 s"):
        check_output(tmp_path / "out.mp4", **video)
    with warnings.catch_warnings(), open_sink(tmp_path / "out.mp4", **video) as out:
        warnings.simplefilter("error")
        out.write(numbered(2, SIZE))


def test_decode_warns_before_it_decodes_and_cuts_with_shortest(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    audio, clip, out = make_audio(tmp_path / "a.wav", 9), tmp_path / "clip.safetensors", tmp_path / "out.mp4"
    save_latents(clip, load_latents(demo.LATENTS)[0][:, :, :3, :2, :3], fps=24)
    command = [str(clip), "-m", str(demo.VAE), "-o", str(out), "--audio", str(audio)]
    assert main([*command, "--dry-run", "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err.count("warning: ") == 2
    assert "is stored as AAC, which is lossy; --audio-codec flac keeps it lossless" in captured.err
    assert "its audio 9.00 s" in captured.err
    assert main([*command, "--shortest", "--audio-codec", "aac", "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    report = json.loads(captured.out)
    assert len(read(out)) == report["frames"]
    assert abs(len(samples_in(out)) / RATE - report["frames"] / report["fps"]) < 0.05


def make_tones(path: Path, layout: str, *, rate: int = RATE, level: float = 0.5, codec: str = "pcm_s16le") -> Path:
    """A second of tones, one for each channel."""
    run_ffmpeg("-f", "lavfi", "-i", f"aevalsrc={level}*sin(2*PI*440*t):s={rate}:d=1,aformat=channel_layouts={layout}",
               "-c:a", codec, path)  # fmt: skip
    return path


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("encoding", "name", "lossless"),
    [("pcm_s16le", "out.mp4", "flac"), ("pcm_f32le", "out.mov", "pcm"), ("flac", "out.mkv", "pcm")],
)
def test_one_warning_says_that_aac_is_lossy(tmp_path: Path, encoding: str, name: str, lossless: str) -> None:
    source = make_tones(tmp_path / ("a.flac" if encoding == "flac" else "a.wav"), "stereo", codec=encoding)
    words = rf'{name}: its audio is stored as AAC, which is lossy; audio_codec="{lossless}" keeps it lossless\.$'
    with pytest.warns(UserWarning, match=words) as caught:
        write(tmp_path / name, audio=source)
    assert len(caught) == 1


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("audio", "name", "codec"),
    [
        ({"layout": "stereo", "codec": "libmp3lame"}, "out.mp4", None),  # was lossy before
        ({"layout": "stereo"}, "out.mp4", "aac"),  # as the user asked
        ({"layout": "stereo", "rate": 44100}, "out.webm", None),  # which has no lossless codec
        ({"layout": "7.1(wide)"}, "out.mov", "alac"),
        ({"layout": "mono", "codec": "pcm_s32le"}, "out.mkv", "flac"),
        ({"layout": "stereo", "codec": "pcm_f32le", "level": 1.5}, "out.mov", "pcm"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_rates_channels_bits_and_levels_are_no_warning(
    tmp_path: Path, audio: dict, name: str, codec: str | None
) -> None:
    source = make_tones(tmp_path / ("a.mka" if "lame" in audio.get("codec", "") else "a.wav"), **audio)
    write(tmp_path / name, audio=source, audio_codec=codec)
    assert abs(len(samples_in(tmp_path / name)) - RATE) <= 3000


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("layout", "encoding", "name", "codec"),
    [
        ("mono", "libmp3lame", "out.mp4", None),
        ("5.1(side)", "pcm_s16le", "out.webm", None),  # which libopus does not take as it is
        ("5.1(side)", "pcm_s24le", "out.mov", "alac"),
        ("7.1", "pcm_s24le", "out.mp4", "flac"),
        ("7.1", "pcm_f32le", "out.mp4", "aac"),
        ("hexagonal", "pcm_s24le", "out.mov", "pcm"),
    ],
)
def test_audio_keeps_its_channels(tmp_path: Path, layout: str, encoding: str, name: str, codec: str | None) -> None:
    source = make_tones(tmp_path / ("a.wav" if encoding.startswith("pcm") else "a.mka"), layout, codec=encoding)
    write(tmp_path / name, audio=source, audio_codec=codec)
    shapes = [np.frombuffer(run_ffmpeg("-i", path, "-f", "f32le", "-map", "0:a", "-"), "<f4").size
              for path in (source, tmp_path / name)]  # fmt: skip
    assert shapes[1] == pytest.approx(shapes[0], rel=0.05)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("name", "codec", "bits"),
    [("a.mov", "pcm", 16), ("a.mov", "pcm", 24), ("a.mkv", "flac", 24), ("a.mov", "alac", 16)],
)
@pytest.mark.filterwarnings("error")
def test_lossless_codecs_keep_every_bit(tmp_path: Path, name: str, codec: str, bits: int) -> None:
    levels = np.random.default_rng(0).integers(-(2**31), 2**31, (RATE, 2)) >> (32 - bits) << (32 - bits)
    data = levels.astype("<i4").tobytes()
    run_ffmpeg("-f", "s32le", "-ar", RATE, "-ac", 2, "-i", "-", "-c:a", f"pcm_s{bits}le", tmp_path / "a.wav", data=data)
    write(tmp_path / name, audio=tmp_path / "a.wav", audio_codec=codec)
    assert run_ffmpeg("-i", tmp_path / name, "-f", "s32le", "-") == data


# The places of channels, by `ffmpeg -layouts`.
PLACES = {
    "mono": "FC", "stereo": "FL FR", "2.1": "FL FR LFE", "3.0": "FL FR FC", "3.0(back)": "FL FR BC",
    "3.1": "FL FR FC LFE", "4.0": "FL FR FC BC", "quad": "FL FR BL BR", "4.1": "FL FR FC LFE BC",
    "5.0": "FL FR FC BL BR", "5.1": "FL FR FC LFE BL BR", "6.0": "FL FR FC BC SL SR", "hexagonal": "FL FR FC BL BR BC",
    "6.1(back)": "FL FR FC LFE BL BR BC", "7.0": "FL FR FC BL BR SL SR", "7.1": "FL FR FC LFE BL BR SL SR",
    "7.1(wide)": "FL FR FC LFE BL BR FLC FRC", "octagonal": "FL FR FC BL BR BC SL SR",
    "5.1.2": "FL FR FC LFE SL SR TFL TFR", "7.1.4": "FL FR FC LFE BL BR SL SR TFL TFR TBL TBR",
}  # fmt: skip


def tones(layout: str) -> np.ndarray:
    """Half a second of a tone of its own in each channel, (n, channels) float32; those of an LFE are low."""
    pitches = [60 if place == "LFE" else 300 + 160 * index for index, place in enumerate(PLACES[layout].split())]
    return (0.2 * np.sin(2 * np.pi * np.outer(np.arange(RATE // 2) / RATE, pitches))).astype("<f4")


def loudness(heard: np.ndarray, layout: str) -> np.ndarray:
    """How loud the tones of a layout are in the channels that are heard, (channels, tones); 1 as they were."""
    inner = slice(RATE // 10, RATE // 10 * 4)
    reference = tones(layout)[inner]
    quadrature = np.gradient(reference, axis=0)
    quadrature *= np.linalg.norm(reference, axis=0) / np.linalg.norm(quadrature, axis=0)
    parts = [heard[inner].T @ wave / (wave * wave).sum(axis=0) for wave in (reference, quadrature)]
    return np.hypot(*parts)


def write_tones(path: Path, layout: str, *encoder: object) -> Path:
    source = ["-f", "f32le", "-ar", RATE, "-ch_layout", layout, "-i", "-"]
    run_ffmpeg(*source, *(encoder or ["-c:a", "pcm_s24le"]), path, data=tones(layout).tobytes())
    return path


def hear(path: Path, channels: int) -> np.ndarray:
    return np.frombuffer(run_ffmpeg("-i", path, "-map", "0:a", "-f", "f32le", "-"), "<f4").reshape(-1, channels)


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", reversed(AUDIO_CODECS))
def test_encoders_store_every_channel_of_the_tables_layouts(tmp_path: Path, name: str) -> None:
    """By ffmpeg alone."""
    codec = AUDIO_CODECS[name]
    usual = ("mono", "stereo", "3.0", "4.0", "5.0", "5.1", "6.1(back)", "7.1")
    for layout in codec.layouts or usual:
        count = len(PLACES[layout].split())
        rate = [] if codec.kilobits is None else ["-b:a", f"{codec.kilobits * max(2, count)}k"]
        out = write_tones(tmp_path / "a.mkv", layout, "-c:a", codec.encoder, *rate)
        np.testing.assert_allclose(loudness(hear(out, count), layout), np.eye(count), atol=0.05, err_msg=layout)


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("name", "codec", "layout", "stored"),
    [
        ("a.mov", "alac", "3.1", "5.1"), ("a.mkv", "alac", "hexagonal", "6.1(back)"),
        ("a.mp4", "aac", "6.0", "hexagonal"), ("a.mp4", "alac", "4.1", "6.1(back)"),
        ("a.webm", "opus", "5.0", "5.1"), ("a.mkv", "opus", "2.1", "5.1"),
        ("a.mkv", "flac", "octagonal", "octagonal"), ("a.mov", "pcm", "5.1.2", "5.1.2"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("error", "ignore:.*the rest is silent")
def test_channels_of_a_layout_that_a_codec_lacks_are_stored_in_a_larger_one(
    tmp_path: Path, name: str, codec: str, layout: str, stored: str
) -> None:
    write(tmp_path / name, audio=write_tones(tmp_path / "a.wav", layout), audio_codec=codec)
    places, moved = PLACES[stored].split(), {"SL": "BL", "SR": "BR"}
    expected = np.zeros((len(places), len(PLACES[layout].split())))
    for index, place in enumerate(PLACES[layout].split()):
        expected[places.index(place if place in places else moved[place]), index] = 1
    np.testing.assert_allclose(loudness(hear(tmp_path / name, len(places)), layout), expected, atol=0.05)


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("name", "codec", "layout", "stored", "better"),
    [
        ("a.mov", "alac", "7.1", "5.1", "pcm"), ("a.mkv", "alac", "7.0", "5.0", "flac"),
        ("a.mp4", "aac", "5.1.2", "5.1", "flac"), ("a.webm", "opus", "4.1", "5.1", None),
        ("a.mkv", "opus", "7.1(wide)", "5.1", "flac"), ("a.mkv", "flac", "7.1.4", "7.1", "pcm"),
        ("a.mp4", "flac", "7.1.4", "7.1", None),
    ],
)  # fmt: skip
def test_a_codec_that_cannot_store_all_channels_is_a_warning_that_names_one_that_can(
    tmp_path: Path, name: str, codec: str, layout: str, stored: str, better: str | None
) -> None:
    advice = "" if better is None else f'; audio_codec="{better}" keeps all channels'
    text = f"{tmp_path / name}: its audio is {layout}, which becomes {stored} with {codec}{advice}."
    with pytest.warns(UserWarning, match=re.escape(text)):
        write(tmp_path / name, audio=write_tones(tmp_path / "a.wav", layout), audio_codec=codec)
    loud = loudness(hear(tmp_path / name, len(PLACES[stored].split())), layout)
    heard = [place for place, tone in zip(PLACES[layout].split(), loud.T, strict=True) if tone.max() > 0.1]
    assert set(PLACES[layout].split()) - set(heard) <= {"LFE", "TBL", "TBR"}, "which ffmpeg leaves out"
    if better is not None:
        write(tmp_path / "b.mkv", audio=tmp_path / "a.wav", audio_codec=better)
        count = len(PLACES[layout].split())
        np.testing.assert_allclose(loudness(hear(tmp_path / "b.mkv", count), layout), np.eye(count), atol=0.05)


def test_a_larger_layout_keeps_every_bit(tmp_path: Path) -> None:
    levels = np.random.default_rng(0).integers(-(2**23), 2**23, (RATE, 4)) << 8
    data = levels.astype("<i4").tobytes()
    run_ffmpeg("-f", "s32le", "-ar", RATE, "-ch_layout", "quad", "-i", "-", "-c:a", "pcm_s24le", tmp_path / "a.wav",
               data=data)  # fmt: skip
    write(tmp_path / "a.mov", audio=tmp_path / "a.wav", audio_codec="alac")
    result = np.frombuffer(run_ffmpeg("-i", tmp_path / "a.mov", "-f", "s32le", "-"), "<i4").reshape(-1, 5)
    assert np.array_equal(result[:, [0, 1, 3, 4]], levels)
    assert not result[:, 2].any()


def test_audio_at_a_rate_that_the_codec_lacks_keeps_its_treble(tmp_path: Path) -> None:
    """ffmpeg takes the nearest rate of Opus, 24000, which has nothing above 12 kHz."""
    run_ffmpeg("-f", "lavfi", "-i", "sine=f=14000:r=32000:d=1,volume=4", tmp_path / "a.wav")
    write(tmp_path / "out.webm", audio=tmp_path / "a.wav")
    spectrum = np.abs(np.fft.rfft(samples_in(tmp_path / "out.webm")[:RATE]))
    assert np.argmax(spectrum) == pytest.approx(14000, abs=5)


def make_stream(path: Path, audio_at: float, picture_at: float) -> Path:
    """Two seconds of pictures and a second of audio, which begin at these times."""
    pictures = ["-itsoffset", picture_at, "-f", "lavfi", "-i", "testsrc=s=64x64:r=25:d=2", "-c:v", "mpeg2video"]
    tone = ["-itsoffset", audio_at, "-f", "lavfi", "-i", "sine=f=440:r=48000:d=1,volume=4", "-c:a", "mp2"]
    run_ffmpeg(*pictures[:-2], *tone[:-2], *pictures[-2:], *tone[-2:], path)
    return path


def audio_from_the_files_start(path: Path) -> np.ndarray:
    """What ffmpeg plays of a file whose pictures it reads, too."""
    both = ["-map", "0:a", "-af", "aresample=async=1:first_pts=0", "-f", "f32le", "pipe:1", "-map", "0:v"]
    return np.frombuffer(run_ffmpeg("-i", path, *both, "-f", "null", "-"), "<f4")


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("name", "times"), [("a.ts", (0.5, 0)), ("a.ts", (0, 0.4)), ("a.mpg", (0.5, 0)), ("a.mkv", (0, 0.4))]
)
@pytest.mark.filterwarnings("ignore:.* and the rest is silent")
def test_audio_begins_where_it_does_in_its_file(tmp_path: Path, name: str, times: tuple[float, float]) -> None:
    source = make_stream(tmp_path / name, *times)
    expected = audio_from_the_files_start(source)
    begins = np.argmax(np.abs(expected) > 0.1) / RATE
    assert begins == pytest.approx(times[0], abs=0.02)
    with AudioReader(source) as reader:
        assert np.array_equal(np.concatenate(list(reader), axis=1)[0], expected)
    with VideoReader(source) as video:
        next(video)
        picture_at = 0 if name == "a.mpg" else times[1]  # where ffmpeg repeats the first picture from the start on
        assert video.start == pytest.approx(picture_at, abs=0.03)
    frames = numbered(48, SIZE)
    with VideoWriter(tmp_path / "out.mov", size=SIZE, fps=24, audio=source, audio_codec="pcm", shortest=True,
                     num_frames=48) as out:  # fmt: skip
        out.write(frames)
    result = np.frombuffer(run_ffmpeg("-i", tmp_path / "out.mov", "-f", "f32le", "-"), "<f4")
    assert abs(len(result) - len(expected)) <= 1
    assert np.abs(result - expected[: len(result)]).max() < 1e-4


def test_audio_that_begins_late_is_cut_where_the_video_ends(tmp_path: Path) -> None:
    source = make_stream(tmp_path / "a.ts", 0.5, 0)
    write(tmp_path / "out.mov", audio=source, audio_codec="pcm", shortest=True, num_frames=NUM_FRAMES)
    heard = samples_in(tmp_path / "out.mov")
    assert len(heard) == RATE
    assert np.argmax(np.abs(heard) > 3000) / RATE == pytest.approx(0.5, abs=0.02)


def test_a_file_that_is_removed_once_it_is_in_the_video_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, warn = make_audio(tmp_path / "a.wav", 2), writer.warn_of_audio

    def remove_and_warn(*arguments: object, **options: object) -> None:
        source.unlink()
        warn(*arguments, **options)

    monkeypatch.setattr(writer, "warn_of_audio", remove_and_warn)
    write(tmp_path / "out.mp4", audio=source)
    assert len(samples_in(tmp_path / "out.mp4")) >= 2 * RATE


@pytest.mark.parametrize("gap", [0.03, 0.3])
def test_what_follows_a_gap_stays_in_its_place(tmp_path: Path, gap: float) -> None:
    tone = (8000 * np.sin(np.arange(RATE) / 20)).astype("<i2")
    times = f"asetnsamples=480,asetpts=PTS+gte(T\\,0.5)*{gap}/TB"
    run_ffmpeg("-f", "s16le", "-ar", RATE, "-ac", 1, "-i", "-", "-af", times, "-c:a", "flac", tmp_path / "a.mkv",
               data=tone.tobytes())  # fmt: skip
    expected = np.insert(tone, RATE // 2, np.zeros(round(gap * RATE), "<i2")) / 2**15
    with AudioReader(tmp_path / "a.mkv") as reader:
        read = np.concatenate(list(reader), axis=1)[0]
    with VideoWriter(tmp_path / "out.mov", size=SIZE, fps=24, audio=tmp_path / "a.mkv", audio_codec="pcm") as out:
        out.write(numbered(round((1 + gap) * 24), SIZE))
    written = np.frombuffer(run_ffmpeg("-i", tmp_path / "out.mov", "-f", "f32le", "-"), "<f4")
    for found in (read, written):
        assert abs(len(found) - len(expected)) <= 48  # times in milliseconds
        assert np.array_equal(found[: RATE // 2], expected[: RATE // 2])
        assert np.array_equal(found[-RATE // 2 :], expected[-RATE // 2 :])


def test_times_that_are_a_little_wrong_change_nothing(tmp_path: Path) -> None:
    """Those of Ogg Vorbis are, by up to 13 ms."""
    notes = "aevalsrc=0.4*sin(2*PI*220*t)*exp(-9*mod(t\\,0.3))+0.4*random(0)*exp(-60*mod(t\\,0.5)):s=44100:d=4"
    run_ffmpeg("-f", "lavfi", "-i", notes, "-c:a", "libvorbis", tmp_path / "a.ogg")
    with AudioReader(tmp_path / "a.ogg") as reader:
        found = np.concatenate(list(reader), axis=1)[0]
    assert np.array_equal(found, np.frombuffer(run_ffmpeg("-i", tmp_path / "a.ogg", "-f", "f32le", "-"), "<f4"))


def test_shortest_without_audio_is_refused(tmp_path: Path) -> None:
    for name, text in (("out.mp4", "add audio"), ("out.gif", "takes no shortest"), ("-", "takes no shortest")):
        with pytest.raises(WriterError, match=text):
            check_output(
                tmp_path / name if name != "-" else "-", size=SIZE, fps=24, options=OutputOptions(shortest=True)
            )


def test_shortest_needs_the_number_of_frames_and_gets_it(tmp_path: Path) -> None:
    audio = make_audio(tmp_path / "a.wav", 3)
    with pytest.raises(WriterError, match="add num_frames"):
        write(tmp_path / "out.mp4", audio=audio, shortest=True)
    with pytest.raises(WriterError, match="got 24 frames, not 23"):
        write(tmp_path / "out.mp4", audio=audio, shortest=True, num_frames=23)
    assert [path.name for path in tmp_path.iterdir()] == ["a.wav"]
