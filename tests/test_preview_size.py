"""`preview --max-size`: frames are scaled on the device, as Pillow's antialiased bilinear filter scales them."""

import json
from base64 import b64decode
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from PIL import Image

from gallery_pages import read_cards
from many_files import run
from mlx_ltx_vae import PreviewVAE, VideoReader, demo, load_latents, save_latents
from mlx_ltx_vae.frame_format import RGB8, FrameOutput
from mlx_ltx_vae.pipeline.frames import scaling_step, to_format_in_parts
from mlx_ltx_vae.preview import main as preview
from mlx_ltx_vae.shapes import fit_within
from tolerances import tolerance

RGB = ["-m", str(demo.LATENT_RGB)]


@pytest.mark.parametrize(
    ("size", "max_size", "expected"),
    [
        ((768, 512), 512, (512, 342)),
        ((512, 768), 512, (342, 512)),
        ((384, 256), 512, (384, 256)),
        ((768, 512), 511, (510, 340)),
        ((4096, 32), 64, (64, 2)),
    ],
)
def test_sizes_are_even_and_never_larger(size, max_size, expected):
    assert fit_within(size, max_size) == expected


def test_frames_are_scaled_as_by_pillow():
    frames = mx.random.uniform(-1, 1, (2, 11, 96, 160, 3), key=mx.random.key(0))  # more frames than are scaled at once
    step = scaling_step(64)
    levels = np.array(to_format_in_parts(frames, RGB8, (step,)))
    assert levels.shape == (2, 11, 38, 64, 3)
    assert FrameOutput(RGB8, (step,)).resize((160, 96)) == (64, 38)
    for item, frame in ((0, 0), (1, 10)):
        channels = np.array(frames[item, frame]).transpose(2, 0, 1)
        images = [Image.fromarray(channel).resize((64, 38), Image.Resampling.BILINEAR) for channel in channels]
        expected = (np.stack([np.asarray(image) for image in images], -1) + 1) * 127.5
        assert np.abs(levels[item, frame] - expected).max() <= 0.5 + 255 * tolerance(1e-4)


def test_previews_have_the_size_that_is_asked_for(golden, tmp_path, capsys):
    vae = PreviewVAE.from_pretrained(golden("taehv_ltx2").checkpoint)
    latents = mx.random.normal((1, vae.config.latent_channels, 2, 3, 4), key=mx.random.key(0))
    path = save_latents(tmp_path / "clip.safetensors", latents, fps=24)
    model = ["-m", golden("taehv_ltx2").checkpoint]
    assert run(preview, path, *model, "--max-size", "64", "-o", tmp_path / "clip.npy", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["width"], report["height"], report["frames"]) == (64, 48, 9)
    assert (report["plan"]["width"], report["plan"]["height"]) == (128, 96)
    frames, whole = np.load(tmp_path / "clip.npy"), vae.decode_uint8(latents)
    assert frames.shape == (9, 48, 64, 3)
    for frame, decoded in zip(frames, whole, strict=True):
        scaled = np.asarray(Image.fromarray(decoded).resize((64, 48), Image.Resampling.BILINEAR))
        assert np.abs(frame.astype(int) - scaled).max() <= 2


def test_galleries_have_small_previews_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_latents("clip.safetensors", load_latents(demo.LATENTS)[0][:, :, :2], fps=24)
    assert run(preview, "clip.safetensors", *RGB, "-o", "page.html", "-q", "--max-size", "48") == 0
    (card,) = read_cards(tmp_path / "page.html")
    assert "max_size 48" in card["state"][2]
    Path("clip.mp4").write_bytes(b64decode(card["data"][0]))
    with VideoReader("clip.mp4", multiple=2) as video:
        assert video.size == (48, 32)
    with pytest.raises(SystemExit, match="2"):
        run(preview, "clip.safetensors", *RGB, "--max-size", "0")
