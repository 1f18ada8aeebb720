"""Audio beside what else a decode can do: contact sheets, previews, and `folder:file`."""

import json

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file, save_file

from audio_cases import random_latents
from commands import decode, preview
from mlx_ltx_vae import AudioVAE, demo, load_latents
from test_decode_audio import LENGTH, NUM_FRAMES, expected_audio, latents_file
from test_video_audio_track import heard
from video_files import read


@pytest.fixture
def video(golden):
    return golden("small_ltx2_3").checkpoint


@pytest.fixture
def model(audio_case):
    return audio_case("ltx2").checkpoint


def test_a_contact_sheet_beside_a_video_with_audio(tmp_path, video, model):
    audio = random_latents(LENGTH)
    clip = latents_file(tmp_path / "clip.safetensors", video, audio)
    options = ["--audio-model", str(model), "--audio-codec", "pcm", "--contact-sheet", "-o", str(tmp_path / "a.mov")]
    assert decode([str(clip), "-m", str(video), *options]) == 0
    assert len(read(tmp_path / "a.mov")) == NUM_FRAMES
    assert np.abs(heard(tmp_path / "a.mov", 24000) - expected_audio(model, audio)).max() < 1e-4
    assert Image.open(tmp_path / "a.png").size[0] > 3 * 384


def test_a_contact_sheet_alone_takes_no_audio(tmp_path, video, model, capsys):
    clip = latents_file(tmp_path / "clip.safetensors", video, random_latents(LENGTH))
    arguments = [str(clip), "-m", str(video), "--contact-sheet", "-o", str(tmp_path / "a.png")]
    with pytest.raises(SystemExit, match="2"):
        decode([*arguments, "--audio-model", str(model)])
    assert "a.png: takes no audio" in capsys.readouterr().err
    assert decode(arguments) == 0
    assert "audio" not in capsys.readouterr().err


def test_a_whole_models_file_in_a_folder_needs_no_audio_model(tmp_path, video, model, audio_case, golden):
    config = audio_case("ltx2").manifest["config"] | {"vae": golden("small_ltx2_3").manifest["vae_config"]}
    tensors = {**load_file(video), **load_file(model)}
    save_file(tensors, tmp_path / "whole.safetensors", metadata={"config": json.dumps(config)})
    save_file(load_file(video), tmp_path / "other.safetensors")
    audio = random_latents(LENGTH)
    clip = latents_file(tmp_path / "clip.safetensors", video, audio)
    out = tmp_path / "a.mov"
    assert decode([str(clip), "-m", f"{tmp_path}:whole.safetensors", "-o", str(out), "--audio-codec", "pcm"]) == 0
    assert np.abs(heard(out, 24000) - expected_audio(model, audio)).max() < 1e-4


@pytest.mark.parametrize("named", ["audio_vae", "vocoder"])
def test_a_file_of_a_pack_brings_the_other_one_of_audio(tmp_path, model, named):
    tensors = load_file(model)
    for part in ("audio_vae", "vocoder"):
        own = {name: array for name, array in tensors.items() if name.startswith(f"{part}.")}
        save_file(own, tmp_path / f"{part}.safetensors")
    save_file(tensors, tmp_path / "another_audio_vae.safetensors")
    latents = random_latents(2)
    expected = AudioVAE.from_pretrained(model).decode(latents)
    loaded = AudioVAE.from_pretrained(f"{tmp_path}:{named}.safetensors")
    assert np.array_equal(loaded.decode(latents), expected)


def test_a_preview_has_no_audio_and_says_nothing_of_it(tmp_path, capsys):
    latents, _ = load_latents(demo.LATENTS)
    clip = tmp_path / "clip.safetensors"
    save_file({"video_latents": np.array(latents), "audio_latents": random_latents(LENGTH)}, clip)
    arguments = [str(clip), "-m", str(demo.LATENT_RGB), "--tensor", "video_latents"]
    assert preview([*arguments, "-o", str(tmp_path / "a.mp4")]) == 0
    assert "audio" not in capsys.readouterr().err
    assert len(read(tmp_path / "a.mp4"))
    with pytest.raises(SystemExit, match="2"):
        preview([*arguments, "-o", str(tmp_path / "a.wav")])
    assert "a.wav" in capsys.readouterr().err
