"""The script that fits a projection: the least squares, the choice of the size, and the script end to end."""

import json
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from safetensors import safe_open

from examples.fit_latent_rgb import (
    LARGEST,
    PATCH_SIZES,
    Clip,
    Projection,
    decode,
    downscale,
    enlarge,
    fit,
    main,
    measure,
)
from mlx_ltx_vae import VideoVAE, demo, load_latents, save_latents
from video_files import write

SCRIPT = Path(__file__).parents[1] / "examples" / "fit_latent_rgb.py"
CHANNELS = 6


def clip_of(seed, weight, noise=0.0):
    """Latents, and pictures that are a projection of them and noise."""
    generator = np.random.default_rng(seed)
    latents = generator.normal(size=(4, 5, 6, CHANNELS)).astype(np.float32)
    pixels = np.tensordot(latents, weight, 1) * 0.1  # (F', H', W', 8, 8, 3)
    pictures = pixels.transpose(0, 1, 3, 2, 4, 5).reshape(4, 5 * LARGEST, 6 * LARGEST, 3)
    return Clip(latents, (pictures + noise * generator.normal(size=pictures.shape)).astype(np.float32))


@pytest.fixture(scope="module")
def vae():
    return VideoVAE.from_pretrained(demo.VAE)


@pytest.mark.parametrize("size", PATCH_SIZES)
def test_it_is_the_least_squares_fit_of_each_size(size):
    clips = [
        clip_of(seed, np.random.default_rng(9).normal(size=(CHANNELS, LARGEST, LARGEST, 3)), 0.3) for seed in (1, 2)
    ]
    projection = Projection()
    for clip in clips:
        projection.add(clip)
    weight, bias = projection.weights(size)
    assert (weight.shape, bias.shape) == ((3 * size**2, CHANNELS), (3 * size**2,))
    inputs = np.concatenate([clip.latents.reshape(-1, CHANNELS) for clip in clips])
    targets = [downscale(clip.pictures, LARGEST // size).reshape(4, 5, size, 6, size, 3) for clip in clips]
    targets = np.concatenate([each.transpose(0, 1, 3, 2, 4, 5).reshape(-1, 3 * size**2) for each in targets])
    expected = np.linalg.lstsq(np.hstack([inputs, np.ones((len(inputs), 1))]), targets, rcond=None)[0]
    assert np.abs(weight.T - expected[:-1]).max() < 1e-3  # float16
    assert np.abs(bias - expected[-1]).max() < 1e-3


def test_what_is_a_projection_is_found_again_and_written(tmp_path, vae, capsys):
    weight = np.random.default_rng(3).normal(size=(CHANNELS, LARGEST, LARGEST, 3))
    clips = [clip_of(seed, weight) for seed in range(7)]
    path = tmp_path / "rgb.safetensors"
    config = vae.config
    with pytest.raises(SystemExit, match="120 latent cells are too few to fit 128 channels"):
        fit(clips[:2], path=path, vae=stand_in(config, 128), name="a VAE")
    quality = fit(clips, path=path, vae=stand_in(config, CHANNELS), name="a VAE")
    assert quality > 40
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["1x1", "2x2", "4x4", "8x8", f"{path}:"]
    assert lines[-1].endswith(f"8x8 pixels per cell, {quality:.2f} dB on 2 unseen clips")
    loaded = VideoVAE.from_pretrained(path)
    assert (loaded.config.patch_size, loaded.config.vae, loaded.config.psnr) == (8, "a VAE", quality)
    latents = mx.array(clips[1].latents.transpose(3, 0, 1, 2)[None])
    pictures = np.array(loaded.decode(latents).astype(mx.float32))[0].transpose(1, 2, 3, 0)
    assert np.abs(pictures.clip(-1, 1) - clips[1].pictures.clip(-1, 1)).max() < 0.02


class stand_in:
    """What `fit` uses of a VAE."""

    def __init__(self, config, channels):
        self.config = self
        self.scale, self.latent_channels = config.scale, channels


def test_smooth_pictures_choose_fewer_pixels_than_sharp_ones():
    """Enlarged pictures of fewer pixels have no borders of cells, which is nearer where there are none."""
    generator = np.random.default_rng(0)
    coarse = generator.normal(size=(3, 12, 12, 3)).astype(np.float32) * 0.2
    smooth = Clip(coarse, np.stack([enlarge(picture, LARGEST) for picture in coarse]))  # a color per cell
    projection = Projection()
    projection.add(smooth)
    qualities = [measure(projection, size, [smooth])[1] for size in PATCH_SIZES]
    assert np.argmax(qualities) < len(PATCH_SIZES) - 1
    own = [measure(projection, size, [smooth])[0] for size in PATCH_SIZES]
    assert own == sorted(own, reverse=True)


def test_the_frames_are_the_last_of_each_latent_frame(vae):
    latents = load_latents(demo.LATENTS)[0][:, :, :3, :2, :3]
    clip = decode(vae, latents)
    frames = vae.decode_uint8(latents)
    assert frames.shape == (17, 64, 96, 3)
    for index, picture in enumerate(clip.pictures):
        assert np.abs(picture - downscale(frames[8 * index] / 127.5 - 1, 4)).max() < 1e-6
    assert np.array_equal(clip.latents[1, 0, 2], np.array(latents.astype(mx.float32))[0, :, 1, 0, 2])


@pytest.mark.slow
def test_the_script_fits_latents_and_videos(tmp_path, vae):
    latents = load_latents(demo.LATENTS)[0]
    for index in range(3):
        save_latents(tmp_path / f"{index}.safetensors", latents[:, :, 2 * index : 2 * index + 2, 2:6, 2:7], fps=24)
    frames = np.random.default_rng(0).integers(0, 256, (9, 70, 100, 3), np.uint8)
    write(tmp_path / "clip.mkv", frames, codec="ffv1")
    sources = ["--latents", *(f"{index}.safetensors" for index in range(3)), "--videos", "clip.mkv"]
    line = [sys.executable, SCRIPT, "-m", demo.VAE, *sources, "-o", "rgb.safetensors"]
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    with safe_open(tmp_path / "rgb.safetensors", "np") as file:
        config = json.loads(file.metadata()["config"])["latent_rgb"]
        assert file.get_tensor("decoder.to_rgb.weight").shape[1] == 64
        assert str(file.get_tensor("decoder.to_rgb.bias").dtype) == "float16"
    assert (config["scale"], config["vae"]) == ([8, 32, 32], "vae.safetensors")
    assert done.stdout.splitlines()[-1].endswith(f"{config['psnr']:.2f} dB on 1 unseen clips")
    taken = str(tmp_path / "0.safetensors")
    before = (tmp_path / "0.safetensors").read_bytes()
    with pytest.raises(SystemExit, match=r"0\.safetensors: is one of the inputs"):
        main([*map(str, line[2:4]), "--latents", *(f"{tmp_path}/{each}.safetensors" for each in "01"), "-o", taken])
    assert (tmp_path / "0.safetensors").read_bytes() == before
    options = {"capture_output": True, "text": True}
    missing = subprocess.run([*line[:4], "--latents", "a.npy", "b.npy", "-o", "c.safetensors"], **options)
    assert (missing.returncode, missing.stderr.count("\n")) == (1, 1)
    alone = subprocess.run([*line[:4], "--latents", "a.npy", "-o", "c.safetensors"], **options)
    assert alone.returncode == 2
    assert "give at least two clips" in alone.stderr
