"""The pictures of the README and of docs/planning.md, decoded from the demo clip."""

from pathlib import Path

import mlx.core as mx
import numpy as np

from mlx_ltx_vae import VideoVAE, demo, load_latents
from mlx_ltx_vae.bench.plot import new_figure
from mlx_ltx_vae.planning.plan import DecodePlan
from mlx_ltx_vae.tiling import TilingConfig
from mlx_ltx_vae.video import open_sink

_GIF_STEP = 2  # every second frame, at half the rate: half the size
_AMPLIFIED = 8


def draw_pictures(folder: Path) -> list[str]:
    """Write demo.gif, the clip; and tiles.png, a frame decoded in three ways. Returns their names."""
    vae = VideoVAE.from_pretrained(demo.VAE, dtype="float32", encoder=False)
    latents, _ = load_latents(demo.LATENTS)
    exact = _decode(vae, latents, vae.plan(latents.shape, mode="exact"))
    with open_sink(folder / "demo.gif", size=(exact.shape[2], exact.shape[1]), fps=24 / _GIF_STEP) as gif:
        gif.write(exact[::_GIF_STEP])
    single = _decode(vae, latents, vae.plan(latents.shape, mode="single"))
    tiles = _decode(vae, latents, vae.plan(latents.shape, mode="tiled", tiling=TilingConfig.aggressive()))
    _draw_tiles({"single pass": single, "exact, by time": exact, "tiles, aggressive": tiles}, folder / "tiles.png")
    return ["demo.gif", "tiles.png"]


def _decode(vae: VideoVAE, latents: mx.array, plan: DecodePlan) -> np.ndarray:
    """Frames (F, H, W, 3) uint8."""
    return vae.decode_uint8(latents, plan)


def _draw_tiles(ways: dict[str, np.ndarray], path: Path) -> None:
    """The frame in which the last way differs most from the first, and each way's difference, amplified."""
    reference, *_, last = (frames.astype(np.float32) for frames in ways.values())
    frame = int(np.square(last - reference).mean(axis=(1, 2, 3)).argmax())
    figure = new_figure()
    figure.set_size_inches(10.5, 5)
    axes = figure.subplots(2, len(ways))
    for (name, frames), (above, below) in zip(ways.items(), axes.T, strict=True):
        difference = np.abs(frames[frame] - reference[frame])
        above.imshow(frames[frame])
        above.set_title(f"{name}, frame {frame}")
        below.imshow(np.minimum(_AMPLIFIED * difference, 255).astype(np.uint8))
        below.set_title(f"difference x {_AMPLIFIED}, at most {difference.max():.0f} of 255")
        for axis in (above, below):
            axis.set_axis_off()
    figure.savefig(path, dpi=100)
