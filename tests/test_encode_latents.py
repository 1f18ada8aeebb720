"""Latent files as the videos of an encode: the last frames of a clip become the first latents of the next."""

import json
import re

import mlx.core as mx
import numpy as np
import pytest

from commands import encode
from many_files import VAE, run
from mlx_ltx_vae import LatentsError, PlanError, VideoVAE, demo, load_latents, save_latents
from video_files import psnr


@pytest.fixture(scope="module")
def vae():
    return VideoVAE.from_pretrained(demo.VAE, dtype="float32")


@pytest.fixture
def clip(tmp_path):
    """A latent file of 25 frames of 64x64, and its latents."""
    latents = load_latents(demo.LATENTS)[0][:, :, :4, :2, :2].astype(mx.float32)
    return save_latents(tmp_path / "clip.safetensors", latents, fps="23.976"), latents


def encoded(tmp_path, capsys, *arguments):
    """(report, latents, info) of an encode in float32 that must work and say nothing on standard error."""
    out = tmp_path / "tail.safetensors"
    assert run(encode, *arguments, *VAE, "--dtype", "float32", "-o", out, "--json", "-y") == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return json.loads(captured.out), *load_latents(out)


def assert_close(actual, expected):
    assert actual.shape == expected.shape
    assert mx.abs(actual - expected).max().item() < 1e-4


def test_the_tail_of_latents_is_encoded_as_the_first_frames(vae, clip, tmp_path, capsys):
    path, latents = clip
    report, tail, info = encoded(tmp_path, capsys, path, "--frames", "-17:")
    assert_close(tail, vae.encode(vae.decode(latents)[:, :, -17:]))
    assert (info.num_frames, info.width, info.height, float(info.fps)) == (17, 64, 64, 24000 / 1001)
    assert (report["frames"], report["source_frames"], report["latent_shape"]) == (17, 17, [1, 64, 3, 2, 2])
    assert report["vae"]["file"] == str(demo.VAE)
    frames = vae.decode(tail)
    assert psnr(np.array(frames), np.array(vae.decode(latents)[:, :, -17:]), 2) > 20
    again, same, _ = encoded(tmp_path, capsys, path, "--frames", "-0.7s:")
    assert again["frames"] == 17
    assert_close(same, tail)


def test_encode_takes_the_chunks_of_a_decode(vae, clip):
    _, latents = clip
    expected = vae.encode(vae.decode(latents)[:, :, 8:])
    assert_close(vae.encode(vae.stream(latents, frames=(8, 25))), expected)
    levels = np.round(np.clip((np.array(vae.decode(latents)[0, :, 8:]) + 1) * 127.5, 0, 255)).astype(np.uint8)
    tail = vae.encode(vae.stream(latents, frames=(8, 25), bit_depth=8))
    assert_close(tail, vae.encode(levels.transpose(1, 2, 3, 0)))


def test_padding_at_the_end_is_no_part_of_the_tail(vae, tmp_path, capsys):
    latents = load_latents(demo.LATENTS)[0][:, :, :4, :2, :3].astype(mx.float32)
    path = save_latents(tmp_path / "padded.safetensors", latents, fps=24, source_frames=20)
    _, tail, _ = encoded(tmp_path, capsys, path, "--frames", "-9:")
    assert_close(tail, vae.encode(vae.decode(latents)[:, :, 11:20]))


@pytest.mark.slow
def test_all_frames_and_windows_of_them(vae, clip, tmp_path, capsys):
    path, latents = clip
    _, again, _ = encoded(tmp_path, capsys, path)
    assert_close(again, vae.encode(vae.decode(latents)))
    windows = ["--windows", "17", "--carry", "9", "-o", f"{tmp_path}/windows/", "-q"]
    assert run(encode, path, *VAE, "--dtype", "float32", *windows) == 0
    parts = [load_latents(tmp_path / "windows" / f"0000{number}.safetensors")[0] for number in (1, 2)]
    assert_close(parts[1], vae.encode(vae.decode(latents)[:, :, 8:]))


def test_the_plan_includes_the_decode_and_stays_exact(clip, vae, tmp_path, capsys):
    path, _ = clip
    arguments = [path, *VAE, "--dtype", "float32", "--frames", "-17:", "-o", tmp_path / "a.safetensors"]
    assert run(encode, *arguments, "--dry-run", "--json") == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    decode = vae.plan((1, 64, 4, 2, 2), frames=(8, 25), mode="exact").memory
    alone = vae.plan_encode((17, 64, 64, 3)).memory
    assert decode.weights == alone.weights  # of both networks, which are loaded
    assert plan["active_bytes"] == pytest.approx(decode.active + alone.active - alone.weights, rel=0.01)
    assert run(encode, *arguments, "--memory-budget", "12MB") == 1
    captured = capsys.readouterr().err
    assert "tiles" not in captured
    least = re.search(r"the least that works is ([\d.]+ MB)", captured)[1]
    assert run(encode, *arguments, "--memory-budget", least.replace(" ", ""), "-q") == 0
    assert capsys.readouterr().err == ""


def test_what_latents_do_not_take_is_refused(vae, clip, tmp_path, capsys):
    path, latents = clip
    for flag, value in (("--size", "64x64"), ("--fps", "12"), ("--matrix", "bt709")):
        assert run(encode, path, *VAE, flag, value, "-o", tmp_path / "a.safetensors") == 1
        assert f"which are decoded as they are, and encoded without audio; leave out {flag}" in capsys.readouterr().err
    both = save_latents(tmp_path / "both.safetensors", mx.concatenate([latents, latents]))
    with pytest.raises(LatentsError, match="has 2 videos, and one is encoded"):
        vae.prepare_encode(both, tmp_path / "a.safetensors")
    with pytest.raises(PlanError, match="none of 50:60; choose frames within 0:25"):
        vae.prepare_encode(path, tmp_path / "a.safetensors", frames=(50, 60))


def test_no_flag_is_advised_to_replace_the_latents_that_are_encoded(clip, tmp_path, monkeypatch, capsys):
    """Without -o the output has the name of the input, which -y does not replace."""
    monkeypatch.chdir(tmp_path)
    assert run(encode, "clip.safetensors", *VAE, "--frames", "-9:") == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("clip-1.safetensors: 2 latent frames from 9 frames")
    assert captured.err == ""
