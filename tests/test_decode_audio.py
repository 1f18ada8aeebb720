"""`decode` with audio: one command, one video. The audio is that of `AudioVAE`, as long as the picture."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from audio_cases import random_latents
from commands import decode as main
from commands import preview
from mlx_ltx_vae import AudioVAE, LatentsError, PlanError, VideoVAE, demo, load_audio_latents
from mlx_ltx_vae.checkpoint import loading
from mlx_ltx_vae.networks.audio.vae_networks import MelDecoder
from mlx_ltx_vae.pipeline import audio as audio_pipeline
from mlx_ltx_vae.units import format_bytes
from mlx_ltx_vae.video import ffmpeg
from test_video_audio_track import heard
from tolerances import cpu_only
from video_files import kill_children, read, run_ffmpeg

GRID = (1, 2, 2, 2)  # latent channels are those of the VAE; 9 frames
NUM_FRAMES, FPS = 9, 75
LENGTH = 3  # latents of 0.12 s: 0.09 s of audio
SAMPLES = 2880  # of 0.12 s


@pytest.fixture(scope="module")
def video(golden):
    """The checkpoint of a video VAE."""
    return golden("small_ltx2_3").checkpoint


@pytest.fixture
def model(audio_case):
    return audio_case("ltx2").checkpoint


def latents_file(path, video, audio=None, *, name="final_audio_latent", batch=1, frames=GRID[1], **metadata):
    channels = VideoVAE.from_pretrained(video, encoder=False).config.latent_channels
    shape = (batch, channels, frames, *GRID[2:])
    arrays = {"final_video_latent": np.random.default_rng(0).normal(size=shape).astype(np.float32)}
    if audio is not None:
        arrays[name] = audio
    save_file(arrays, path, metadata={"fps": str(FPS), **metadata})
    return path


@cache
def load_vae(model):
    return AudioVAE.from_pretrained(model, encoder=False)


def expected_audio(model, latents, samples=SAMPLES):
    """(2, n), up to the end of the video."""
    audio = np.array(load_vae(model).decode(latents))[0]
    return np.pad(audio, [(0, 0), (0, samples - audio.shape[1])])


def run(*arguments, code=0):
    assert main([str(each) for each in arguments]) == code


@pytest.fixture
def audio_of(tmp_path, video, model):
    """`audio_of(clip, ...)`: the audio of the video that the command makes of a file, (2, n)."""

    def decode(clip, *options, output="a.mov"):
        run(clip, "-m", video, "--audio-model", model, "-y", "-o", tmp_path / "a.mov", "--audio-codec", "pcm", *options)
        return heard(tmp_path / output, 24000)

    return decode


def test_one_command_makes_one_video_with_audio(tmp_path, video, model, capsys):
    audio = random_latents(LENGTH)
    clip = latents_file(tmp_path / "clip.safetensors", video, audio)
    out = tmp_path / "clip.mov"
    run(clip, "-m", video, "--audio-model", model, "-o", out, "--audio-codec", "pcm")
    line = capsys.readouterr().out
    assert "9 frames of 64x64, 0.12 s at 75 fps, audio at 24000 Hz, in " in line
    pictures, decoder = "small_ltx2_3.safetensors (custom, convolutional decoder)", "ltx2.safetensors (LTX-2 audio, "
    assert line.endswith(f"; {pictures}, {decoder}spectrogram decoder)\n")
    assert len(read(out)) == NUM_FRAMES
    result, expected = heard(out, 24000), expected_audio(model, audio)
    assert result.shape == expected.shape == (2, SAMPLES)
    assert np.abs(result - expected).max() < 1e-4
    assert not result[:, 9 * 240 :].any()
    assert expected[:, : 9 * 240].any()


@pytest.mark.quick(1)
@pytest.mark.slow
@pytest.mark.parametrize("where", ["beside", "alone"])
def test_audio_latents_are_found_by_the_names_of_pipelines_and_trainers_and_by_any_name(
    tmp_path, video, model, where, capsys
):
    """A nested tensor is numbered; musubi-tuner names sizes, and stores how many are no padding."""
    audio = random_latents(LENGTH + 3)
    used, padded = np.ascontiguousarray(audio[:, :, :LENGTH]), audio[0]
    (pictures,) = load_file(latents_file(tmp_path / "v.safetensors", video)).values()
    packed = np.ascontiguousarray(used.transpose(0, 2, 1, 3).reshape(1, LENGTH, 128))
    cases = [
        ("final_video_latent", {"stage_1_audio_latent": used}, []),
        ("latents", {"audio_latents": packed}, []),
        ("latent_tensor_0", {"latent_tensor_1": used}, []),
        ("latents_2x2x2_float32", {f"audio_latents_{LENGTH}x16x8_float32": used[0]}, []),
        ("latents", {"audio_latents_6x16x8_float32": padded, "audio_lengths_int32": np.array(LENGTH, np.int32)}, []),
        ("latents", {"music": used, "other": np.zeros((1, 8, 2, 16), np.float32)}, ["--audio-tensor", "music"]),
    ]
    expected = expected_audio(model, used)
    for name, tensors, more in cases:
        clip = tmp_path / "clip.safetensors"
        if where == "beside":
            save_file({name: pictures, **tensors}, clip, {"fps": str(FPS)})
            more = [*more, "--tensor", name] if "other" in tensors else more
            run(
                clip,
                "-m",
                video,
                "--audio-model",
                model,
                *more,
                "-o",
                tmp_path / "a.mkv",
                "-y",
                "--audio-codec",
                "flac",
            )
            found = heard(tmp_path / "a.mkv", 24000)
        else:
            save_file(tensors, clip)
            run(clip, "--audio-model", model, *more, "-o", tmp_path / "a.wav", "-y")
            found = heard(tmp_path / "a.wav", 24000)
        padding = "audio_lengths_int32 is 3, which leaves out 3 audio latents of padding at the end"
        assert (padding in capsys.readouterr().err) is ("audio_lengths_int32" in tensors)
        assert np.abs(found - expected[:, : found.shape[1]]).max() < 1e-4
        read = load_audio_latents(clip, alone=where == "alone", tensor=more[1] if more else None)
        np.testing.assert_array_equal(np.array(read), tensors.get("audio_latents", used))


def test_how_audio_latents_are_named_is_one_story(tmp_path, video, model, capsys):
    """What one error proposes is no error of another."""
    save_file({"a": random_latents(3), "b": random_latents(3)}, tmp_path / "two.safetensors")
    clip = latents_file(tmp_path / "clip.safetensors", video)
    for more, words in (
        ([], "clip.safetensors: has no audio latents by a usual name; name them with --audio-tensor, or their file"),
        (["--audio-latents", tmp_path / "two.safetensors"], "two.safetensors: has no audio latents by a usual name; n"),
        (["--audio-tensor", "c"], "clip.safetensors: has no tensor 'c'; it has final_video_latent"),
        (["--audio-tensor", "final_video_latent"], "has no audio latents: 'final_video_latent' has the shape"),
    ):
        run(clip, "-m", video, "--audio-model", model, "-o", tmp_path / "a.mp4", *more, code=1)
        assert words in capsys.readouterr().err
    named = ["--audio-latents", tmp_path / "two.safetensors", "--audio-tensor", "a"]
    run(clip, "-m", video, "--audio-model", model, "-o", tmp_path / "a.mp4", *named)


@pytest.mark.parametrize("length", [0, 4, -1, 1.5])
def test_a_stated_length_that_no_audio_latents_have_is_refused(tmp_path, length):
    path = tmp_path / "a.safetensors"
    save_file({"audio_latents": random_latents(3), "audio_lengths_int32": np.array(length)}, path)
    with pytest.raises(LatentsError, match="expected audio_lengths_int32 to be one number from 1 to 3; correct it"):
        load_audio_latents(path)


@pytest.mark.parametrize("layout", ["(B, 8, T, 16)", "(8, T, 16)", "(B, T, 128)"])
def test_python_reads_audio_latents_beside_a_video_or_alone(tmp_path, video, layout):
    audio = random_latents(LENGTH, batch=2 if layout.startswith("(B") else 1)
    packed = np.ascontiguousarray(audio.transpose(0, 2, 1, 3).reshape(len(audio), LENGTH, 128))
    stored = {"(8, T, 16)": audio[0], "(B, T, 128)": packed}.get(layout, audio)
    expected = packed if layout == "(B, T, 128)" else audio
    beside = latents_file(tmp_path / "clip.safetensors", video, stored)
    np.save(tmp_path / "alone.npy", stored)
    for found in (load_audio_latents(beside), load_audio_latents(tmp_path / "alone.npy", alone=True)):
        assert found.dtype == mx.float32
        np.testing.assert_array_equal(np.array(found), expected)
    assert load_audio_latents(latents_file(tmp_path / "silent.safetensors", video)) is None
    with pytest.raises(LatentsError, match=r"silent.safetensors: has no audio latents: 'latents' has the shape"):
        save_file({"latents": np.ones((1, 8, 3, 2, 2), np.float32)}, tmp_path / "silent.safetensors")
        load_audio_latents(tmp_path / "silent.safetensors", alone=True)


@pytest.mark.parametrize("shape", [(1, 8, 3, 16), (2, 3, 128)])
def test_python_normalizes_audio_latents_as_their_file_or_the_caller_says(tmp_path, shape):
    values, mean, std = (np.random.default_rng(seed).uniform(1, 2, 128).astype(np.float32) for seed in range(3))
    stored = np.broadcast_to(values, (shape[0], 3, 128))
    expected = (stored - mean) / std
    if len(shape) == 4:  # channel c of bin f is channel 16 * c + f of packed latents
        stored, expected = (each.reshape(1, 3, 8, 16).transpose(0, 2, 1, 3) for each in (stored, expected))
    files = {state: tmp_path / f"{state}.safetensors" for state in ("false", "true", "unknown")}
    for state, file in files.items():
        metadata = {} if state == "unknown" else {"normalized": state}
        save_file({"audio_latents": np.ascontiguousarray(stored)}, file, metadata=metadata)
    statistics = mx.array(mean), mx.array(std)
    for found in (
        load_audio_latents(files["false"], statistics=statistics),
        load_audio_latents(files["unknown"], statistics=statistics, unnormalized=True),
    ):
        assert found.shape == shape and found.dtype == mx.float32
        np.testing.assert_allclose(np.array(found), expected, rtol=1e-6)
    for state in ("true", "unknown"):
        np.testing.assert_array_equal(np.array(load_audio_latents(files[state], statistics=statistics)), stored)
    for state, options, message in (
        ("true", {"unnormalized": True, "statistics": statistics}, "says that these latents are normalized"),
        ("false", {"unnormalized": False}, "says that these latents are unnormalized"),
        ("false", {}, "is unnormalized; give the VAE's statistics"),
        ("false", {"statistics": (None, None)}, "is unnormalized; give the VAE's statistics"),
        ("false", {"statistics": (mx.ones(8), mx.ones(8))}, r"need statistics \(128,\)"),
    ):
        with pytest.raises(LatentsError, match=message):
            load_audio_latents(files[state], **options)


def test_unnormalized_latents_of_both(tmp_path, video, model, audio_of):
    audio_vae, vae = AudioVAE.from_pretrained(model), VideoVAE.from_pretrained(video)
    mean, std = (np.array(values).reshape(8, 1, 16) for values in audio_vae.decoder.statistics)
    audio = random_latents(LENGTH)
    clip = latents_file(tmp_path / "clip.safetensors", video, audio * std + mean)
    arrays = load_file(clip)
    mean, std = (np.array(values).reshape(-1, 1, 1, 1) for values in (vae.mean, vae.std))
    arrays["final_video_latent"] = arrays["final_video_latent"] * std + mean
    save_file(arrays, clip, metadata={"fps": str(FPS)})
    assert np.abs(audio_of(clip, "--unnormalized") - expected_audio(model, audio)).max() < 1e-3


def test_a_plan_counts_the_audio_that_is_decoded_meanwhile(video, model):
    vae, audio_vae = VideoVAE.from_pretrained(video), AudioVAE.from_pretrained(model)
    plans, shape = audio_vae.plans(25), (1, 8, *GRID[1:])
    expected = [audio_vae.plan(25).as_dict(), audio_vae.plan(25, chunk=1).as_dict()]
    assert [plans[0].as_dict(), plans[-1].as_dict()] == expected
    assert expected[0] != expected[1]
    plan = vae.plan(shape, audio=plans)
    assert plan.audio in plans and vae.plan(shape).audio is None
    assert plan.memory.audio == plan.audio.memory.active > 0
    with pytest.raises(PlanError, match="MB for the audio"):
        vae.plan(shape, audio=plans, memory_budget="1MB")


def test_a_whole_models_file_needs_no_audio_model(tmp_path, video, model, audio_case, golden):
    config = audio_case("ltx2").manifest["config"] | {"vae": golden("small_ltx2_3").manifest["vae_config"]}
    both = tmp_path / "model.safetensors"
    save_file({**load_file(video), **load_file(model)}, both, metadata={"config": json.dumps(config)})
    assert [AudioVAE.can_load(path) for path in (both, model, video)] == [True, True, False]
    clip = latents_file(tmp_path / "clip.safetensors", video, random_latents(LENGTH))
    run(clip, "-m", both, "-o", tmp_path / "a.mp4")
    assert SAMPLES <= heard(tmp_path / "a.mp4", 24000).shape[1] <= SAMPLES + 2048


def test_without_an_audio_model_the_one_that_fits_is_named(tmp_path, video, golden, capsys):
    named = shutil.copy(golden("ltx2_3").checkpoint, tmp_path / "LTX23_video_vae.safetensors")
    stated = latents_file(tmp_path / "stated.safetensors", video, random_latents(LENGTH))
    save_file(load_file(stated), stated, metadata={"generation": "LTX-2.3"})
    for source, vae in (
        (stated, video),
        (latents_file(tmp_path / "a.safetensors", named, random_latents(LENGTH)), named),
    ):
        run("--dry-run", source, "-m", vae)
        remark = "; --audio-model ltx-2.3 (0.4 GB, license LTX-2 Community) decodes them into the video."
        assert remark in capsys.readouterr().err


def test_without_an_audio_model_the_video_is_silent_and_a_warning_says_so(tmp_path, video, capsys):
    clip = latents_file(tmp_path / "clip.safetensors", video, random_latents(LENGTH))
    run(clip, "-m", video, "-o", tmp_path / "a.mp4")
    remark = "has audio latents (final_audio_latent) too; --audio-model AUDIO (ltx-2.3, ltx-2.5, ltx-2, or a file)"
    assert remark in capsys.readouterr().err
    assert b"audio" not in run_ffmpeg("-i", tmp_path / "a.mp4", "-c", "copy", "-f", "framehash", "-")


def test_some_frames_have_their_part_of_the_audio(tmp_path, video, model, audio_of):
    audio = random_latents(LENGTH)
    clip = latents_file(tmp_path / "clip.safetensors", video, audio)
    assert np.abs(audio_of(clip, "--frames", "2:7") - expected_audio(model, audio)[:, 640:2240]).max() < 1e-4
    assert len(read(tmp_path / "a.mov")) == 5


def test_a_batch_becomes_videos_with_the_audio_of_each(tmp_path, video, model, audio_of):
    audio = random_latents(LENGTH, batch=2)
    clip = latents_file(tmp_path / "clip.safetensors", video, audio, batch=2)
    first, second = audio_of(clip, output="a-0.mov"), heard(tmp_path / "a-1.mov", 24000)
    assert np.abs(first - expected_audio(model, audio[:1])).max() < 1e-4
    assert np.abs(second - expected_audio(model, audio[1:])).max() < 1e-4


def test_the_plan_has_both_and_the_budget_is_that_of_both(tmp_path, video, model, capsys):
    """The audio is decoded in smaller pieces before the budget is too small, as the picture is."""
    clip = latents_file(tmp_path / "clip.safetensors", video, random_latents(25), frames=4, fps="25")
    command = [clip, "-m", video, "--audio-model", model, "--dry-run"]
    run(*command, "--json")
    plans = json.loads(capsys.readouterr().out)
    assert plans["audio"]["latents"] == plans["audio"]["chunk"] == 25
    run(*command)
    assert "25 latents, 0.97 s at 24000 Hz" in capsys.readouterr().out
    audio_vae = load_vae(model)
    with pytest.raises(PlanError) as refused:
        VideoVAE.from_pretrained(video, encoder=False).plan((1, *plans["plan"]["latent_shape"][1:]), bit_depth=8,
                                                            memory_budget=1000)  # fmt: skip
    pictures = float(re.search(r"the least that works is ([\d.]+) MB", str(refused.value))[1])
    audio = audio_vae.plan(25, chunk=1).memory.active / 1e6
    assert audio < 0.7 * plans["audio"]["peak_bytes"] / 1e6
    for budget in (100, round(1000 * (pictures + audio)) - 200):
        run(*command, "--memory-budget", f"{budget}KB", code=1)
        text = capsys.readouterr().err
        given, least, of_audio = re.search(
            r"budget of ([\d.]+ .B) is too small for .*; the least that works is ([\d.]+) MB \(.*\), "
            r"including ([\d.]+) MB for the audio", text
        ).groups()  # fmt: skip
        assert given == format_bytes(budget * 1000)
        assert float(of_audio) == pytest.approx(audio, abs=0.06)
        assert float(least) == pytest.approx(pictures + audio, abs=0.2)
    chunks = []
    for budget in np.linspace(float(least), (plans["plan"]["peak_bytes"] + 1e5) / 1e6, 3):
        run(*command, "--memory-budget", f"{budget:.1f}MB", "--json")
        both = json.loads(capsys.readouterr().out)
        assert both["plan"]["audio_bytes"] == both["audio"]["peak_bytes"]
        assert both["plan"]["peak_bytes"] < budget * 1e6 + 1e5
        chunks.append(both["audio"]["chunk"])
    assert chunks == sorted(chunks)
    assert (chunks[0], chunks[-1]) == (3, 25), "still smaller ones take no less"


def test_a_decode_in_a_small_budget_has_the_same_audio(tmp_path, video, model, audio_of, capsys):
    audio = random_latents(9)
    clip = latents_file(tmp_path / "clip.safetensors", video, audio, fps="25")
    run(clip, "-m", video, "--audio-model", model, "-o", tmp_path / "a.mov", "--memory-budget", "1KB", code=1)
    (least,) = re.findall(r"least that works is ([\d.]+ MB)", capsys.readouterr().err)
    waveform = audio_of(clip, "--memory-budget", least.replace(" ", ""))
    assert np.abs(waveform - expected_audio(model, audio, 8640)).max() < 1e-4


@pytest.mark.slow
def test_the_audio_of_some_frames_takes_no_more_latents_than_it_needs(tmp_path, video, model, audio_of, monkeypatch):
    """LTX-2 sees 38 latents behind and 5 ahead. The last frame goes on 30 ms after its audio."""
    audio = random_latents(81)
    clip = latents_file(tmp_path / "clip.safetensors", video, audio, frames=11, fps="25")
    taken, prepare = [], MelDecoder.prepare
    monkeypatch.setattr(MelDecoder, "prepare", lambda *given: taken.append(given[1].shape[2]) or prepare(*given))
    found = audio_of(clip, "--frames", "65:70")
    assert 5 < sum(taken) <= 38 + 5 + 5 + 3
    waveform = np.array(load_vae(model).decode(audio))[0]
    assert found.shape == (2, 4800)
    assert np.abs(found - waveform[:, 65 * 960 : 70 * 960]).max() < 1e-4
    expected = np.pad(waveform, [(0, 0), (0, 960)])[:, 80 * 960 : 81 * 960]
    assert np.abs(audio_of(clip, "--frames", "80:81") - expected).max() < 1e-4


def test_frames_behind_the_end_of_the_audio_are_silent(tmp_path, video, audio_of):
    """It ends 30 ms before the picture, of which a frame takes 17 ms."""
    clip = latents_file(tmp_path / "clip.safetensors", video, random_latents(25), fps="60", frames=8)
    audio = audio_of(clip, "--frames", "56:57", "--fps", "57")
    assert audio.shape[1] == round(24000 / 57)
    assert not audio.any()


@cpu_only("plans of the CPU are compared with measurements")
def test_the_plan_of_a_video_with_audio_holds(tmp_path, video, model):
    """In a process of its own, whose peak of memory is that of the decode."""
    clip = latents_file(tmp_path / "clip.safetensors", video, random_latents(25), frames=4, fps="25")
    command = [sys.executable, "-m", "mlx_ltx_vae.decode", str(clip), "-m", str(video), "--audio-model", str(model)]
    command += ["-o", str(tmp_path / "a.mov"), "--json"]
    done = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert done["plan"]["audio_bytes"] > 0
    assert 1 <= done["plan"]["active_bytes"] / done["peak_memory_bytes"] <= 1.3


def test_an_error_of_the_plan_says_nothing_of_the_audio(tmp_path, video, model, capsys):
    clip = latents_file(tmp_path / "clip.safetensors", video, random_latents(25), frames=4, fps="25")
    command = [clip, "-m", video, "--audio-model", model, "-o", tmp_path / "a.mp4"]
    run(*command, "--frames", "30:40", code=1)
    text = capsys.readouterr().err
    assert "within 0:25" in text
    assert "audio" not in text


def test_audio_of_another_length_is_an_error_before_anything_is_decoded(tmp_path, video, model, capsys, monkeypatch):
    monkeypatch.setattr(loading, "load_network", lambda *_: pytest.fail("weights are read"))
    clip = latents_file(tmp_path / "clip.safetensors", video, random_latents(25), frames=4, fps="25")
    run(clip, "-m", video, "--audio-model", model, "-o", tmp_path / "a.mp4", "--fps", "24", code=1)
    message = r"the video takes 1\.04 s and its audio 0\.97 s; .*correct the frame rate"
    assert re.search(message, capsys.readouterr().err)
    assert os.listdir(tmp_path) == ["clip.safetensors"]


def test_audio_that_fails_leaves_no_file(tmp_path, video, model, capsys, monkeypatch):
    monkeypatch.setattr(audio_pipeline, "count_nonfinite", lambda samples: 1)
    clip = latents_file(tmp_path / "clip.safetensors", video, random_latents(LENGTH))
    run(clip, "-m", video, "--audio-model", model, "-o", tmp_path / "a.mp4", code=1)
    assert "are NaN or infinite" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["clip.safetensors"]


def test_audio_alone_needs_no_video_vae(tmp_path, video, model, capsys):
    audio = random_latents(7)
    clip = latents_file(tmp_path / "clip.safetensors", video, audio)
    run(clip, "--audio-model", model, "-o", tmp_path / "a.wav", "--json")
    report = json.loads(capsys.readouterr().out)
    assert (report["samples"], report["sample_rate"]) == (25 * 240, 24000)
    expected = expected_audio(model, audio, 25 * 240)
    assert np.abs(heard(tmp_path / "a.wav", 24000) - expected).max() < 1e-4
    assert report["audio_vae"] == {"file": str(model), "generation": "LTX-2 audio", "decoder": "spectrogram"}
    run(clip, "--audio-model", model, "-o", tmp_path / "b.wav", "--dry-run")
    printed = capsys.readouterr().out
    assert "7 latents" in printed
    assert printed.endswith("VAE      ltx2.safetensors (LTX-2 audio, spectrogram decoder)\n")
    assert not (tmp_path / "b.wav").exists()


def test_audio_alone_of_a_batch_is_named_and_skipped_as_videos_are(tmp_path, video, model, capsys):
    audio = random_latents(7, batch=2)
    latents_file(tmp_path / "clip.safetensors", video, audio, batch=2)
    command = [tmp_path / "clip.safetensors", "--audio-model", model, "-o", tmp_path / "{name}.wav"]
    run(*command, "--json")
    outputs = [str(tmp_path / f"clip-{index}.wav") for index in range(2)]
    assert json.loads(capsys.readouterr().out)["output"] == outputs
    for index, output in enumerate(outputs):
        expected = expected_audio(model, audio[index : index + 1], 25 * 240)
        assert np.abs(heard(output, 24000) - expected).max() < 1e-4
    run(*command, "--skip-existing")
    assert f"skipped, found {outputs[0]}, {outputs[1]}" in capsys.readouterr().out
    run(*command, "--skip-existing", "--json")
    assert json.loads(capsys.readouterr().out)["skipped"] is True
    run(*command, code=1)
    assert "already exists" in capsys.readouterr().err
    Path(outputs[0]).write_bytes(b"kept")
    Path(outputs[1]).unlink()
    run(*command, "-n")
    assert Path(outputs[0]).read_bytes() == b"kept"
    expected = expected_audio(model, audio[1:2], 25 * 240)
    assert np.abs(heard(outputs[1], 24000) - expected).max() < 1e-4


def test_audio_is_found_in_a_pipe(tmp_path, video, model):
    audio = random_latents(LENGTH)
    clip = latents_file(tmp_path / "clip.safetensors", video, audio)
    command = [sys.executable, "-m", "mlx_ltx_vae.decode", "-", "-m", video, "--audio-model", model]
    command += ["-o", tmp_path / "a.mov", "--audio-codec", "pcm"]
    subprocess.run(list(map(str, command)), input=clip.read_bytes(), check=True)
    assert np.abs(heard(tmp_path / "a.mov", 24000) - expected_audio(model, audio)).max() < 1e-4


def test_a_video_and_its_audio_on_standard_output(tmp_path, video, model, capfdbinary):
    clip = latents_file(tmp_path / "clip.safetensors", video, random_latents(LENGTH))
    run(clip, "-m", video, "--audio-model", model, "-o", "-", "--live")
    (tmp_path / "a.mp4").write_bytes(capfdbinary.readouterr().out)
    assert len(read(tmp_path / "a.mp4")) == NUM_FRAMES
    assert SAMPLES <= heard(tmp_path / "a.mp4", 24000).shape[1] <= SAMPLES + 2048


def test_latents_of_another_file_take_the_place_of_those_in_the_video(tmp_path, video, model, audio_of):
    clip = latents_file(tmp_path / "clip.safetensors", video, random_latents(LENGTH))
    audio = random_latents(LENGTH, seed=1)
    np.save(tmp_path / "audio.npy", audio[0])
    waveform = audio_of(clip, "--audio-latents", tmp_path / "audio.npy")
    assert np.abs(waveform - expected_audio(model, audio)).max() < 1e-4


def test_audio_latents_of_another_shape_are_an_error_only_where_audio_is_asked_for(tmp_path, video, model, capsys):
    clip = latents_file(tmp_path / "clip.safetensors", video, np.zeros((2, 24000), np.float32), name="audio_samples")
    command = [clip, "-m", video, "-o", tmp_path / "a.mp4"]
    run(*command, "--audio-model", model, code=1)
    assert "audio latents 'audio_samples' have the shape (2, 24000)" in capsys.readouterr().err
    run(*command)
    assert "(B, T, 128); the video has no audio." in capsys.readouterr().err
    assert len(read(tmp_path / "a.mp4")) == NUM_FRAMES


@pytest.mark.parametrize(
    ("audio", "message"),
    [
        (np.full((1, 8, LENGTH, 16), np.inf, np.float32), "audio latents 'final_audio_latent': 384 of 384 values"),
        (np.ones((1, 8, LENGTH, 16), np.int32), "audio latents 'final_audio_latent' is stored as int32; save it as"),
        (np.ones((1, 8, 16, LENGTH), np.float32), "audio latents 'final_audio_latent' have the shape (1, 8, 16, 3)"),
        (np.ones((1, 8, 0, 16), np.float32), "audio latents 'final_audio_latent' are empty"),
        (np.ones((2, 8, LENGTH, 16), np.float32), "has the audio of 2 videos, and there are 1; give the audio of each"),
    ],
)
def test_audio_latents_that_do_not_decode_leave_no_file(tmp_path, video, model, capsys, audio, message):
    clip = latents_file(tmp_path / "clip.safetensors", video, audio)
    run(clip, "-m", video, "--audio-model", model, "-o", tmp_path / "a.mp4", code=1)
    assert message in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["clip.safetensors"]


@pytest.mark.quick(1)
@pytest.mark.parametrize("order", [["--order", "rows"], ["--tile", "64:32"]])
def test_the_audio_is_the_same_whatever_way_the_picture_is_decoded(tmp_path, video, model, audio_of, order):
    audio = random_latents(LENGTH)
    clip = latents_file(tmp_path / "clip.safetensors", video, audio)
    assert np.abs(audio_of(clip, *order) - expected_audio(model, audio)).max() < 1e-4


@pytest.mark.quick(1)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_ffmpeg_that_dies_in_a_decode_with_audio_is_an_error(tmp_path, video, model, capsys, monkeypatch, number):
    chunks, decode_chunks = [], audio_pipeline._chunks

    def slow_chunks(*arguments):
        for chunk in decode_chunks(*arguments):
            chunks.append(chunk.start)
            if len(chunks) == 2:
                kill_children(number)
            yield chunk

    monkeypatch.setattr(audio_pipeline, "_chunks", slow_chunks)
    monkeypatch.setattr(ffmpeg, "MAX_SILENCE", 3)  # after SIGTERM it may wait for audio
    clip = tmp_path / "clip.safetensors"
    channels = VideoVAE.from_pretrained(video, encoder=False).config.latent_channels
    latents = np.random.default_rng(0).normal(size=(1, channels, 13, 2, 2)).astype(np.float32)
    save_file({"latents": latents, "audio_latents": random_latents(97)}, clip, metadata={"fps": "25"})
    command = [clip, "-m", video, "--audio-model", model, "-o", tmp_path / "a.mp4"]
    run(*command, code=1)
    assert "a.mp4: ffmpeg failed: it " in capsys.readouterr().err
    assert len(chunks) >= 2
    assert os.listdir(tmp_path) == ["clip.safetensors"]


def test_missing_parts_are_named(tmp_path, video, model, capsys):
    silent = latents_file(tmp_path / "silent.safetensors", video)
    audio = latents_file(tmp_path / "audio.safetensors", video, random_latents(LENGTH))
    np.save(tmp_path / "audio.npy", random_latents(3))
    cases = [
        ([silent, "-m", video, "--audio-model", model], "silent.safetensors: has no audio latents"),
        ([audio, "-m", video, "--audio-model", video], "expected an audio VAE"),
        ([audio, "-m", video, "--audio-latents", audio], "need an audio VAE; name it with --audio-model"),
        ([tmp_path / "audio.npy", "-m", video], "are audio latents; give them with --audio-latents"),
    ]
    for command, message in cases:
        run(*command, "-o", tmp_path / "a.mp4", code=1)
        assert message in capsys.readouterr().err


def test_a_preview_with_audio_needs_audio_latents_and_a_gallery_does_not(tmp_path, model, capsys):
    command = [str(demo.LATENTS), "-m", str(demo.LATENT_RGB), "--audio-model", str(model), "-o"]
    assert preview([*command, str(tmp_path / "a.mp4")]) == 1
    assert "latents.safetensors: has no audio latents" in capsys.readouterr().err
    assert preview([*command, str(tmp_path / "a.html")]) == 0


def test_the_example_of_the_page_runs(tmp_path, golden, audio_case, monkeypatch):
    """Its checkpoint has all three networks; the video takes as long as the audio."""
    tensors = {**load_file(audio_case("encoder").checkpoint), **load_file(audio_case("ltx2").checkpoint)}
    path = tmp_path / "ltx-2.3"  # a file on the disk is preferred to the model with that name
    save_file(tensors, path, metadata={"config": json.dumps(audio_case("ltx2").manifest["config"])})
    monkeypatch.chdir(tmp_path)
    vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint, encoder=False)
    played = []
    save_file({"audio_latents": random_latents(26)}, tmp_path / "clip.safetensors")
    names = {"vae": vae, "play": played.append}
    names["video_latents"] = mx.random.normal((1, vae.config.latent_channels, 4, 2, 2))
    page = (Path(__file__).parents[1] / "docs" / "audio.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(block.replace("fps=24", "fps=24.75"), names)
    assert mx.array_equal(mx.concatenate(played, axis=2), names["waveform"]).item()
    assert names["latents"].shape == (1, 8, 26, 16)
    assert len(read(tmp_path / "clip.mp4")) == 25


@pytest.mark.quick(1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_signal_ends_a_decode_with_audio(tmp_path, golden, video, model, number):
    """Nothing is left; of a process that is killed, the part file, which the next run removes, and no ffmpeg."""
    clip = tmp_path / "clip.safetensors"
    vae = VideoVAE.from_pretrained(video, encoder=False)
    latents = np.random.default_rng(0).normal(size=(1, vae.config.latent_channels, 101, 2, 2)).astype(np.float32)
    arrays = {"final_video_latent": latents, "final_audio_latent": random_latents(801)}
    save_file(arrays, clip, metadata={"fps": "25"})
    arguments = [str(clip), "-m", str(video), "--audio-model", str(model), "-o", str(tmp_path / "out" / "a.mp4")]
    (tmp_path / "out").mkdir()
    process = subprocess.Popen([sys.executable, "-m", "mlx_ltx_vae.decode", *arguments], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while not any(path.stat().st_size for path in (tmp_path / "out").iterdir()):
        assert process.poll() is None, process.stderr.read().decode()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}.get(number, -number)
    left = os.listdir(tmp_path / "out")
    assert left == [] if number != signal.SIGKILL else "a.mp4" not in left
    while programs := [each for each in Path("/proc").glob("[0-9]*/cmdline") if _names(each, tmp_path)]:
        assert time.monotonic() < deadline, programs
        time.sleep(0.05)


def _names(cmdline, folder):
    with contextlib.suppress(OSError):
        return f"{folder}/out" in cmdline.read_bytes().decode(errors="replace")
    return False
