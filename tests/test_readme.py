"""The README's example runs as it stands there."""

import re
import shutil
import wave
from pathlib import Path

import mlx.core as mx

from mlx_ltx_vae import demo, load_latents, save_latents

README = Path(__file__).parents[1] / "README.md"


def test_the_python_example_runs(tmp_path, monkeypatch):
    example = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[1]
    shutil.copy(demo.VAE, tmp_path / "ltx-2.5-video-vae-conv-bf16.safetensors")
    latents, info = load_latents(demo.LATENTS)
    save_latents(tmp_path / "clip.safetensors", latents[:, :, :2, :3, :4], fps=info.fps)
    with wave.open(str(tmp_path / "voice.wav"), "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", "not compressed"))
        sound.writeframes(bytes(8000))
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(example, str(README), "exec"), names)  # noqa: S102  (the example is ours)
    assert (tmp_path / "out.mp4").stat().st_size > 1000
    assert names["pixels"].shape == (1, 3, 9, 96, 128)
    assert names["latents"].shape == latents[:, :, :2, :3, :4].shape
    assert mx.isfinite(names["latents"]).all()
