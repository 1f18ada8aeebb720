"""`encode` with the audio of a video: into the same latent file, from which `decode` makes a video with audio."""

import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from mlx_ltx_vae import AudioVAE, VideoWriter
from mlx_ltx_vae.decode import main as decode
from mlx_ltx_vae.encode import main as encode
from mlx_ltx_vae.errors import ReaderError
from mlx_ltx_vae.video.audio import AudioReader
from test_video_audio_track import chunks_of, heard, tone
from video_files import children, numbered, read, run_ffmpeg

SIZE, NUM_FRAMES, FPS, RATE = (64, 64), 25, 25, 44100


@pytest.fixture
def model(audio_case, tmp_path):
    """An encoder, a decoder and a vocoder in one file."""
    parts = [audio_case(name) for name in ("ltx2", "encoder")]
    tensors = {**load_file(parts[1].checkpoint), **load_file(parts[0].checkpoint)}
    save_file(tensors, tmp_path / "audio.safetensors", metadata={"config": json.dumps(parts[0].manifest["config"])})
    return tmp_path / "audio.safetensors"


def make_video(path, audio):
    frames = np.repeat(numbered(NUM_FRAMES, (8, 8)), 8, axis=1).repeat(8, axis=2)
    options = {} if audio is None else {"audio": chunks_of(audio), "sample_rate": RATE, "audio_codec": "pcm"}
    with VideoWriter(path, size=SIZE, fps=FPS, **options) as out:
        out.write(frames)
    return path


def test_the_audio_of_a_video_goes_into_its_latent_file_and_back(tmp_path, golden, model, capsys):
    audio = tone(1, RATE)
    video, out = make_video(tmp_path / "a.mov", audio), tmp_path / "a.safetensors"
    arguments = ["-m", str(golden("small_ltx2_3").checkpoint), "--audio-model", str(model)]
    assert encode([str(video), *arguments, "-o", str(out)]) == 0
    assert "4 latent frames and 25 audio latents from 25 frames of 64x64" in capsys.readouterr().out
    stored = load_file(out)
    assert set(stored) == {"latents", "audio_latents"}
    assert stored["audio_latents"].shape == (1, 8, 25, 16)
    levels = np.rint(audio * 2**15) / 2**15  # as they are stored in the video
    expected = AudioVAE.from_pretrained(model).encode(levels, RATE)[:, :, :25]
    assert np.abs(stored["audio_latents"] - np.array(expected)).max() < 1e-2
    assert decode([str(out), *arguments, "-o", str(tmp_path / "b.mov"), "--audio-codec", "pcm"]) == 0
    assert heard(tmp_path / "b.mov", 24000).shape == (2, 24000)


def test_the_audio_of_a_padded_video_ends_with_its_picture(tmp_path, golden, model):
    video, out = make_video(tmp_path / "a.mov", tone(1, RATE)), tmp_path / "a.safetensors"
    arguments = ["-m", str(golden("small_ltx2_3").checkpoint), "--audio-model", str(model), "-q"]
    assert encode([str(video), *arguments, "-o", str(out), "--frames", "20", "--pad"]) == 0
    for options, frames in ([], 20), (["--all-frames"], 25):
        command = [str(out), *arguments, "-o", str(tmp_path / "b.mov"), "--audio-codec", "pcm", "-y", *options]
        assert decode(command) == 0
        assert heard(tmp_path / "b.mov", 24000).shape == (2, 24000 * frames // FPS)
        assert len(read(tmp_path / "b.mov")) == frames
    with safe_open(out, "np") as file:
        metadata = file.metadata()
    for latents, code in ((20, 0), (15, 1)):  # audio of the source, and of less
        tensors = load_file(out)
        save_file(tensors | {"audio_latents": tensors["audio_latents"][:, :, :latents]}, tmp_path / "c", metadata)
        assert decode([str(tmp_path / "c"), *arguments, "-o", str(tmp_path / "b.mov"), "-y"]) == code


def test_the_audio_of_some_frames_is_theirs(tmp_path, golden, model):
    audio = tone(1, RATE)
    video, out = make_video(tmp_path / "a.mov", audio), tmp_path / "a.safetensors"
    arguments = ["-m", str(golden("ltx2_3").checkpoint), "--audio-model", str(model), "--frames", "10:19"]
    assert encode([str(video), *arguments, "-o", str(out), "-q"]) == 0
    levels = np.rint(audio * 2**15) / 2**15
    part = levels[:, RATE * 10 // FPS : RATE * 19 // FPS]
    expected = np.array(AudioVAE.from_pretrained(model).encode(part, RATE))[:, :, :9]
    assert np.abs(load_file(out)["audio_latents"] - expected).max() < 1e-2


def test_the_plan_counts_the_audio(tmp_path, golden, model, capsys):
    """The audio is in the report of a dry run, and within the budget."""
    video = make_video(tmp_path / "a.mov", tone(1, RATE))
    arguments = [str(video), "-m", str(golden("ltx2_3").checkpoint), "-o", str(tmp_path / "a.safetensors")]
    with_audio = [*arguments, "--audio-model", str(model), "--dry-run"]
    assert encode([*with_audio, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["audio"]["latents"], report["audio"]["sample_rate"]) == (25, 16000)
    assert encode(with_audio) == 0
    assert "audio    25 latents, 1.0 s at 16000 Hz\nmode     exact" in capsys.readouterr().out
    budget = report["plan"]["peak_bytes"] + report["audio"]["peak_bytes"]
    assert encode([*with_audio, "--memory-budget", f"{budget / 1e6}MB"]) == 0
    assert encode([*with_audio, "--memory-budget", f"{budget / 4e6}MB"]) == 1
    assert " for the audio" in capsys.readouterr().err
    assert encode([*arguments, "--dry-run", "--json"]) == 0
    assert "audio" not in json.loads(capsys.readouterr().out)


def test_a_video_without_audio_gives_a_warning_and_its_pictures(tmp_path, golden, model, capsys):
    video, out = make_video(tmp_path / "a.mov", None), tmp_path / "a.safetensors"
    arguments = ["-m", str(golden("small_ltx2_3").checkpoint), "--audio-model", str(model)]
    assert encode([str(video), *arguments, "-o", str(out)]) == 0
    assert "has no audio, so only its pictures are encoded" in capsys.readouterr().err
    assert set(load_file(out)) == {"latents"}


def test_audio_that_is_not_encoded_is_named_with_the_option_that_encodes_it(tmp_path, golden, model, capsys):
    video = make_video(tmp_path / "a.mov", tone(1, RATE))
    arguments = [str(video), "-m", str(golden("small_ltx2_3").checkpoint), "--frames", "9", "-o"]
    for out, more in (("a.safetensors", ""), ("a.latent", ", into a .safetensors file")):
        assert encode([*arguments, str(tmp_path / out)]) == 0
        warnings = [line for line in capsys.readouterr().err.splitlines() if "audio" in line]
        (warning,) = warnings
        assert warning.startswith(f"warning: {video}: its audio is not encoded; --audio-model AUDIO (ltx-2.")
        assert warning.endswith(f", or a file) encodes it too{more}.")
    silent = make_video(tmp_path / "b.mov", None)
    assert encode([str(silent), *arguments[1:], str(tmp_path / "b.safetensors")]) == 0
    assert encode([*arguments, str(tmp_path / "c.safetensors"), "--audio-model", str(model)]) == 0
    assert "audio is not encoded" not in capsys.readouterr().err


def read_audio(path):
    """The whole audio (channels, n), and its rate."""
    with AudioReader(path) as audio:
        return np.concatenate(list(audio), axis=1), audio.sample_rate


def test_mono_stays_mono_and_more_channels_become_two(tmp_path):
    for channels, expected in ((1, 1), (6, 2)):
        path = tmp_path / f"{channels}.wav"
        run_ffmpeg("-f", "lavfi", "-i", f"sine=f=440:r=22050:d=1,aformat=channel_layouts={channels}c", path)
        samples, rate = read_audio(path)
        assert (samples.shape, rate) == ((expected, 22050), 22050)
        assert samples.any()


def test_audio_that_begins_after_the_first_frame_stays_there(tmp_path):
    silent = make_video(tmp_path / "a.mov", None)
    run_ffmpeg("-i", silent, "-itsoffset", "0.5", "-f", "lavfi", "-i", "sine=f=440:r=48000:d=0.5", "-c:v", "copy",
               "-c:a", "pcm_s16le", tmp_path / "late.mov")  # fmt: skip
    samples, rate = read_audio(tmp_path / "late.mov")
    assert samples.shape == (1, 48000)
    assert not samples[:, : rate // 2].any()
    assert samples[:, rate // 2 : rate // 2 + 100].any()


@pytest.mark.quick(1)
@pytest.mark.parametrize(("ending", "codec"), [("mkv", ["flac"]), ("ts", ["s302m", "-ac", "2", "-strict", "-2"])])
def test_audio_that_begins_before_the_first_frame_is_cut_there(tmp_path, golden, model, ending, codec):
    """The audio is silent for half a second, and the picture begins after it."""
    run_ffmpeg("-itsoffset", "0.5", "-i", make_video(tmp_path / "a.mov", None), "-f", "lavfi", "-i",
               "sine=r=48000:d=1,adelay=500", "-c:v", "copy", "-c:a", *codec, tmp_path / f"late.{ending}")  # fmt: skip
    run_ffmpeg("-i", tmp_path / "a.mov", "-f", "lavfi", "-i", "sine=r=48000:d=1", "-c:v", "copy", "-c:a", *codec,
               tmp_path / f"both.{ending}")  # fmt: skip
    latents = []
    for name in ("late", "both"):
        out = tmp_path / f"{name}.safetensors"
        arguments = ["-m", str(golden("small_ltx2_3").checkpoint), "--audio-model", str(model), "-o", str(out)]
        assert encode([str(tmp_path / f"{name}.{ending}"), *arguments]) == 0
        latents.append(load_file(out))
    assert np.abs(latents[0]["latents"] - latents[1]["latents"]).max() < 1e-5
    assert np.abs(latents[0]["audio_latents"] - latents[1]["audio_latents"]).max() < 1e-2


@pytest.mark.parametrize(("start", "length"), [(0, 1), (100, 44_000), (40_000, 4_100), (0, 200_000), (50_000, 10)])
def test_the_audio_of_a_video_is_cut_or_continued_by_silence_to_its_length(tmp_path, start, length):
    audio = tone(1, RATE)
    with AudioReader(make_video(tmp_path / "a.mov", audio)) as reader:
        pieces = list(reader.cut(start, length))
    assert max(piece.shape[1] for piece in pieces) <= 2**15
    found = np.concatenate(pieces, axis=1)
    assert found.shape == (2, length)
    expected = np.pad(audio, [(0, 0), (0, 200_000)])[:, start : start + length]
    assert np.abs(found - expected).max() < 1e-4


def test_damaged_parts_of_audio_are_a_warning_and_a_file_without_any_an_error(tmp_path):
    run_ffmpeg("-f", "lavfi", "-i", "sine=f=440:r=44100:d=4", "-c:a", "flac", tmp_path / "a.mka")
    data = bytearray((tmp_path / "a.mka").read_bytes())
    data[len(data) // 2 : len(data) // 2 + 2000] = bytes(2000)
    (tmp_path / "a.mka").write_bytes(data)
    with pytest.warns(UserWarning, match=r"a\.mka: parts of its audio are damaged; ffmpeg says: .+\."):
        assert read_audio(tmp_path / "a.mka")[0].shape[1] > 44100
    (tmp_path / "b.mp4").write_bytes(b"hello")
    with pytest.raises(ReaderError, match=r"b\.mp4: contains no audio that ffmpeg can read: .+\."):
        AudioReader(tmp_path / "b.mp4")
    assert not children()


def test_a_closed_reader_has_no_more_and_leaves_no_program(tmp_path):
    reader = AudioReader(make_video(tmp_path / "a.mov", tone(1, RATE)))
    next(reader)
    reader.close()
    reader.close()
    assert list(reader) == []
    assert not children()


@pytest.mark.parametrize("given", ["missing", "decoder"])
def test_a_wrong_audio_model_is_an_error_before_anything_is_encoded(tmp_path, golden, audio_case, capsys, loads, given):
    video = make_video(tmp_path / "a.mov", None)
    model = {"missing": tmp_path / "no.safetensors", "decoder": audio_case("ltx2").checkpoint}[given]
    arguments = ["-m", str(golden("small_ltx2_3").checkpoint), "--audio-model", str(model)]
    for more in ([], ["--dry-run"]):
        assert encode([str(video), *arguments, "-o", str(tmp_path / "a.safetensors"), *more]) == 1
        message = {"missing": "no such file or folder", "decoder": "has no encoder of audio; give a file or folder"}
        assert message[given] in capsys.readouterr().err
    assert not loads
    assert not (tmp_path / "a.safetensors").exists()


def test_a_video_of_one_short_frame_has_one_latent(tmp_path, golden, model):
    run_ffmpeg("-f", "lavfi", "-i", "testsrc=s=64x64:r=60:d=0.1", "-f", "lavfi", "-i", "sine=r=48000:d=0.1",
               "-c:v", "ffv1", "-c:a", "flac", tmp_path / "a.mkv")  # fmt: skip
    arguments = ["-m", str(golden("small_ltx2_3").checkpoint), "--audio-model", str(model), "--frames", ":1"]
    assert encode([str(tmp_path / "a.mkv"), *arguments, "-o", str(tmp_path / "a.safetensors")]) == 0
    assert load_file(tmp_path / "a.safetensors")["audio_latents"].shape == (1, 8, 1, 16)
