"""Audio that is computed while a video is written: what is heard, how long it is, and what happens if it fails."""

import itertools
import os
import re
import threading
import time
import wave

import mlx.core as mx
import numpy as np
import pytest

from conftest import file_size_limit
from mlx_ltx_vae import VideoWriter, WriterError
from video_files import change_listings, numbered, numbers, open_video, read, run_ffmpeg, write_wav

SIZE, NUM_FRAMES = (32, 32), 48  # two seconds


def tone(seconds, rate, frequency=440):
    """Two channels (2, n), of which the second has twice the frequency."""
    angle = 2 * np.pi * frequency * np.arange(round(seconds * rate)) / rate
    return (0.5 * np.sin(np.stack([angle, 2 * angle]))).astype(np.float32)


def chunks_of(samples):
    return (samples[:, start : start + 7001] for start in range(0, samples.shape[1], 7001))


def write(path, audio, rate=None, *, count=NUM_FRAMES, piece=5, **options):
    frames = np.concatenate([numbered(48, SIZE)] * (count // 48))
    with open_video(path, size=SIZE, fps=24, audio=audio, sample_rate=rate, **options) as out:
        for start in range(0, count, piece):
            out.write(frames[start : start + piece])
    return path


def heard(path, rate):
    """The audio (2, n) of a file, at its own rate, which must be `rate`."""
    listing = run_ffmpeg("-i", path, "-map", "0:a", "-c", "copy", "-f", "framehash", "-").decode()
    lines = {line.split(": ")[0]: line.split(": ")[-1] for line in listing.splitlines() if line.startswith("#")}
    assert (lines["#sample_rate 0"], lines["#channel_layout_name 0"]) == (str(rate), "stereo")
    data = run_ffmpeg("-i", path, "-map", "0:a", "-f", "f32le", "-")
    return np.frombuffer(data, np.float32).reshape(-1, 2).T


CODECS = [
    ("a.mp4", None, 24000),
    ("a.mov", "pcm", 48000),
    ("a.mkv", "flac", 48000),
    ("a.mp4", "alac", 24000),
    ("a.webm", None, 48000),
    ("live.mp4", None, 48000),
]


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("name", "codec", "rate", "ahead"),
    [*((*each, index % 2 == 0) for index, each in enumerate(CODECS)), (*CODECS[0], False), (*CODECS[-1], True)],
)
def test_the_video_has_the_audio_from_its_first_to_its_last_sample(tmp_path, name, codec, rate, ahead):
    audio = tone(2, rate)
    options = {"num_frames": NUM_FRAMES} if ahead else {}
    path = write(tmp_path / name, chunks_of(audio), rate, audio_codec=codec, fragmented=name == "live.mp4", **options)
    assert numbers(read(path)) == list(range(NUM_FRAMES))
    result = heard(path, rate)
    assert result.shape[0] == 2
    is_lossless = codec is not None
    assert 0 <= result.shape[1] - audio.shape[1] <= (0 if is_lossless else 2048)  # codecs work in blocks
    middle = slice(rate // 2, rate)
    error = np.abs(result[:, middle] - audio[:, middle]).max()
    assert error < (1e-4 if is_lossless else 0.1), "late, early, or the channels are exchanged"


def stored(path, rate):
    """The audio (2, n) of a file at any rate, as ffmpeg decodes it."""
    return np.frombuffer(run_ffmpeg("-i", path, "-map", "0:a", "-ar", rate, "-f", "f32le", "-"), "<f4").reshape(-1, 2).T


def chirp(seconds, rate):
    """(2, n), loud from the first sample on, from 100 Hz to nearly the highest frequency."""
    time = np.arange(round(seconds * rate)) / rate
    wave = 0.5 * np.sin(2 * np.pi * (100 + (0.4 * rate - 100) / 2 / seconds * time) * time)
    return np.stack([wave, 0.8 * wave]).astype(np.float32)


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("name", "codec", "onset", "ratio", "rate"),
    [
        *(("a.mp4", "aac", 0.06, 35, rate) for rate in (16000, 48000)),
        *(("a.webm", "opus", 0.06, 29, rate) for rate in (16000, 24000)),
        ("a.mov", "pcm", 2**-23, 120, 24000),
        ("a.mkv", "flac", 2**-23, 120, 16000),
        ("a.mp4", "alac", 2**-23, 120, 48000),
    ],
)
def test_audio_that_begins_at_once_and_loud_tones_are_not_damaged(tmp_path, name, codec, onset, ratio, rate):
    """The largest error of the first 25 ms, and the signal-to-noise ratio of a tone of 0.9 in dB."""
    bass, middle = (1.8 * tone(1, rate, frequency)[:1].repeat(2, axis=0) for frequency in (100, 1000))
    audio = np.concatenate([chirp(2, rate), bass, middle], axis=1)
    path = write(tmp_path / name, audio, rate, count=96, audio_codec=codec)
    found = stored(path, rate)[:, : audio.shape[1]]
    assert np.abs(found - audio)[:, : rate // 40].max() <= onset
    for start in (2, 3):
        part = slice(round((start + 0.1) * rate), round((start + 0.9) * rate))
        noise = np.square(found[:, part] - audio[:, part]).mean()
        assert 10 * np.log10(np.square(audio[:, part]).mean() / max(noise, 1e-20)) > ratio


def test_an_encoder_that_ffmpeg_lacks_is_an_error(tmp_path, monkeypatch):
    change_listings(monkeypatch, lambda rows: [row for row in rows if "alac" not in row])
    words = "a.mp4: this ffmpeg was built without alac, which stores its audio; use aac or flac, which it has"
    with pytest.raises(WriterError, match=words):
        write(tmp_path / "a.mp4", tone(2, 24000), 24000, audio_codec="alac")
    assert not os.listdir(tmp_path)


LEVELS = [-(2**23), -(2**23) + 1, -1, 0, 1, 2**22 + 1, 2**23 - 1]


@pytest.mark.parametrize(("name", "codec"), [("a.wav", None), ("a.mov", "pcm"), ("a.mkv", "flac"), ("a.mp4", "alac")])
def test_lossless_audio_has_24_bits_on_one_scale(tmp_path, name, codec):
    """1 is 2^23, one step above the largest level."""
    audio = np.resize(np.float32([*LEVELS, 2**23]) / 2**23, (2, 2 * 24000))
    expected = np.resize(np.array([*LEVELS, 2**23 - 1], np.int32), (2, 2 * 24000))
    path = tmp_path / name
    if codec is None:
        assert write_wav(path, chunks_of(audio), sample_rate=24000) == (48000, None)
    else:
        write(path, audio, 24000, audio_codec=codec)
    data = run_ffmpeg("-i", path, "-map", "0:a", "-f", "s32le", "-")
    assert np.array_equal(np.frombuffer(data, "<i4").reshape(-1, 2).T >> 8, expected)
    if codec is None:
        with wave.open(str(path)) as file:
            assert (file.getsampwidth(), file.getnchannels(), file.getframerate()) == (3, 2, 24000)


@pytest.mark.quick(1)
@pytest.mark.parametrize("level", [-1.25, 1, 2])
@pytest.mark.filterwarnings("error")
def test_audio_is_stored_without_a_warning_and_clipped_at_1(tmp_path, level):
    audio = np.full((2, 2 * 44100), level, np.float32)
    for name in ("a.mp4", "a.webm", "a.mov"):
        write(tmp_path / name, chunks_of(audio), 44100)
    write_wav(tmp_path / "a.wav", chunks_of(audio), sample_rate=44100)
    assert np.abs(heard(tmp_path / "a.wav", 44100) - np.sign(level)).max() <= 2**-23


@pytest.mark.parametrize("difference", [-0.05, -0.01, 0.03])
def test_audio_that_nearly_fits_is_continued_by_silence_or_cut_and_all_frames_are_kept(tmp_path, difference):
    audio = tone(2 + difference, 48000)
    path = write(tmp_path / "a.mov", chunks_of(audio), 48000, audio_codec="pcm")
    assert numbers(read(path)) == list(range(NUM_FRAMES))
    result = heard(path, 48000)
    assert result.shape[1] == 96000
    assert np.abs(result[:, : audio.shape[1]] - audio[:, :96000]).max() < 1e-4
    assert not result[:, audio.shape[1] :].any()


@pytest.mark.parametrize("seconds", [1.9, 2.1])
def test_audio_of_another_length_is_an_error_that_says_both_and_leaves_nothing(tmp_path, seconds):
    message = f"a.mp4: the video takes 2.00 s and its audio {seconds:.2f} s; give the audio of this video"
    with pytest.raises(WriterError, match=message):
        write(tmp_path / "a.mp4", chunks_of(tone(seconds, 24000)), 24000)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("length", "words"),
    [
        (7001, r"the video takes 2\.00 s and its audio at least 12\.\d\d s; "),
        (0, "the audio goes on without samples; "),
    ],
)
def test_audio_without_an_end_is_an_error(tmp_path, length, words):
    with pytest.raises(WriterError, match=words):
        write(tmp_path / "a.mp4", itertools.repeat(np.zeros((2, length), np.float32)), 24000)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("taken", [0.5, 2])
def test_a_stream_that_has_been_taken_from_is_an_error(tmp_path, taken):
    """It says how long it was, and gives less."""

    class Stream:
        sample_rate, num_samples = 24000, 48000
        chunks = chunks_of(tone(2 - taken, 24000))

        def __iter__(self):
            return self.chunks

    with pytest.raises(WriterError, match=f"takes 2.00 s and its audio {2 - taken:.2f} s"):
        write(tmp_path / "a.mp4", Stream(), num_frames=NUM_FRAMES)
    assert not os.listdir(tmp_path)


def test_the_lengths_are_compared_at_once_if_they_are_known(tmp_path):
    class Stream:
        sample_rate, num_samples = 24000, 24000

        def __iter__(self):
            raise AssertionError("not reached: nothing is decoded")

        __next__ = __iter__

    stream = Stream()
    stream.__class__.__iter__ = lambda self: self
    with pytest.raises(WriterError, match=r"the video takes 2\.00 s and its audio 1\.00 s"):
        VideoWriter(tmp_path / "a.mp4", size=SIZE, fps=24, audio=stream, num_frames=NUM_FRAMES)
    assert not os.listdir(tmp_path)


def test_longer_audio_is_cut_on_request(tmp_path):
    cut = {"shortest": True, "num_frames": NUM_FRAMES, "audio_codec": "flac"}
    path = write(tmp_path / "a.mkv", chunks_of(tone(5, 24000)), 24000, **cut)
    assert heard(path, 24000).shape[1] == 48000


def test_audio_is_taken_as_frames_are_written_and_not_before(tmp_path):
    taken = []

    def chunks():
        for index in range(20):
            taken.append(index)
            yield tone(0.5, 24000)

    frames = np.concatenate([numbered(48, SIZE)] * 5)
    with VideoWriter(tmp_path / "a.mp4", size=SIZE, fps=24, audio=chunks(), sample_rate=24000, num_frames=240) as out:
        for start in range(0, 240, 12):
            out.write(frames[start : start + 12])
            assert len(taken) <= start // 12 + 1 + 2, "two half seconds ahead of the picture"
    assert len(taken) == 20


def test_a_stream_that_fails_ends_the_video_or_the_audio_file_and_leaves_nothing(tmp_path):
    def chunks():
        yield tone(1, 24000)
        raise ValueError("the decode failed")

    with pytest.raises(ValueError, match="the decode failed"):
        write(tmp_path / "a.mp4", chunks(), 24000)
    with pytest.raises(ValueError, match="the decode failed"):
        write_wav(tmp_path / "a.wav", chunks(), sample_rate=24000)
    assert not os.listdir(tmp_path)
    deadline = time.monotonic() + 10
    while any(thread.name == "frame-writer" for thread in threading.enumerate()):
        assert time.monotonic() < deadline, "the thread is left"
        time.sleep(0.01)


def test_an_abandoned_video_ends_the_stream_of_its_audio(tmp_path):
    closed = []

    def chunks():
        try:
            while True:
                yield tone(1, 24000)
        finally:
            closed.append(True)

    given = {"size": SIZE, "fps": 24, "audio": chunks(), "sample_rate": 24000}
    with pytest.raises(KeyboardInterrupt), VideoWriter(tmp_path / "a.mp4", **given) as out:
        out.write(numbered(20, SIZE))
        raise KeyboardInterrupt
    assert closed
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("a.mp4", {"audio_codec": "pcm"}, "pcm audio is not supported in .mp4; use aac or flac or alac, or"),
        ("a.webm", {"audio_codec": "aac"}, "not supported in .webm; use opus, or a file that ends in .mp4 or .mov"),
        ("a.mp4", {"audio_codec": "acc"}, "the audio codec 'acc' is not supported; use one of aac, pcm"),
        ("a.mp4", {"sample_rate": None}, "audio needs its sample rate as a whole number"),
        ("a.mp4", {"sample_rate": 999}, "as a whole number from 1000 to 768000, not 999"),
        ("a.mp4", {"audio": None, "audio_codec": "aac"}, "an audio codec goes with audio"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path, name, options, message):
    options = {"audio": iter([]), "sample_rate": 24000} | options
    with pytest.raises(WriterError, match=message):
        VideoWriter(tmp_path / name, size=SIZE, fps=24, **options)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        (np.zeros((3, 10), np.float32), "takes audio (2, n) of one video, floats in [-1, 1], not float32 (3, 10)"),
        (np.zeros((2, 2, 10), np.float32), "takes audio (2, n) of one video"),
        (np.zeros(10, np.float32), "takes audio (2, n) of one video"),
        (np.zeros((2, 48000), np.int16), "floats in [-1, 1], not int16 (2, 48000)"),
        (mx.zeros((2, 48000), mx.bfloat16), "floats in [-1, 1], not mlx.core.bfloat16 (2, 48000)"),
        (None, "floats in [-1, 1], not NoneType"),
        (np.full((2, 48000), np.nan, np.float32), "the audio has values that are NaN or infinite"),
    ],
)
def test_what_is_no_audio_is_refused(tmp_path, chunk, message):
    for function in (lambda: write(tmp_path / "a.mp4", [chunk], 24000),
                     lambda: write_wav(tmp_path / "a.wav", [chunk], sample_rate=24000)):  # fmt: skip
        with pytest.raises(WriterError, match=re.escape(message)):
            function()
        assert not os.listdir(tmp_path)


def test_chunks_without_samples_are_passed_over(tmp_path):
    """One of them ended the thread that writes, and ffmpeg waited for ever."""
    audio, empty = tone(2, 24000), np.zeros((2, 0), np.float32)
    chunks = [empty, audio[:, :24000], empty, empty, audio[:, 24000:], empty]
    path = write(tmp_path / "a.mov", chunks, 24000, audio_codec="pcm")
    assert np.abs(heard(path, 24000) - audio).max() < 1e-4


@pytest.mark.parametrize("make", [np.array, mx.array, lambda audio: audio[None]])
def test_audio_may_be_one_array(tmp_path, make):
    audio = tone(2, 24000)
    path = write(tmp_path / "a.mov", make(audio), 24000, audio_codec="pcm")
    assert np.abs(heard(path, 24000) - audio).max() < 1e-4


def test_audio_alone_has_samples(tmp_path):
    for chunks in ([], [np.zeros((2, 0), np.float32)]):
        with pytest.raises(WriterError, match="a.wav: the audio has no samples"):
            write_wav(tmp_path / "a.wav", chunks, sample_rate=24000)
    assert not os.listdir(tmp_path)


def test_audio_alone_on_a_full_disk_is_an_error_of_one_line(tmp_path):
    with file_size_limit(50_000), pytest.raises(WriterError, match=r"a\.wav: cannot be written \(File too large\)"):
        write_wav(tmp_path / "a.wav", chunks_of(tone(2, 24000)), sample_rate=24000)
    assert not os.listdir(tmp_path)
