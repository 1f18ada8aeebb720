"""Preview what a model is making, after each of its denoising steps.

    python examples/preview_while_denoising.py previews/

An app passes `Previews.after_step` to its sampler as the callback. Here `denoise` takes the sampler's place: it adds
noise to the latents of the demo and removes it step by step. `previews/` gets three stills of the clip, side by side,
for each step, by a projection to RGB, and then the film of the last estimate, which is shown frame by frame as a tiny
autoencoder decodes it.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
from PIL import Image

from mlx_ltx_vae import PreviewVAE, VideoWriter, demo, load_latents

STEPS = 6
MOMENTS = (1 / 4, 1 / 2, 3 / 4)  # of the clip
CELL = 32  # pixels of the video per latent cell and side; a projection makes at most 8, which are enlarged
DEMO_PREVIEW = Path(__file__).with_name("demo_preview.safetensors")


class Previews:
    """Makes previews of the estimates of one clip: stills by a `projection`, and a film by the tiny autoencoder `vae`.

    A film stops when `is_stale` says that a newer estimate is there.
    """

    def __init__(self, projection: PreviewVAE, vae: PreviewVAE, folder: Path, is_stale: Callable[[], bool]) -> None:
        self.projection, self.vae, self.folder, self.is_stale = projection, vae, folder, is_stale
        folder.mkdir(parents=True, exist_ok=True)

    def after_step(self, step: int, estimate: mx.array) -> None:
        """`estimate` (1, C, F', H', W') is the model's estimate of the clean latents, normalized."""
        frame_numbers = [int(moment * estimate.shape[2]) for moment in MOMENTS]
        stills = self.projection.decode(estimate[:, :, mx.array(frame_numbers)])  # of a TAEHV: decode_stills(estimate)
        strip = Image.fromarray(to_uint8(mx.concatenate(list(stills[0].transpose(1, 2, 3, 0)), axis=1)))
        size = CELL * estimate.shape[4] * len(frame_numbers), CELL * estimate.shape[3]
        strip.resize(size, Image.Resampling.BICUBIC).save(self.folder / f"step-{step}.png")

    def play(self, estimate: mx.array, show: Callable[[np.ndarray], None]) -> int:
        """Show the frames of an estimate as they are decoded. Returns the number of frames that were shown."""
        num_shown = 0
        for index in range(estimate.shape[2]):
            frames = self.vae.push(estimate[:, :, index : index + 1])  # the first gives 1 frame, each other one 8
            for frame in () if frames is None else frames[0].transpose(1, 2, 3, 0):
                show(to_uint8(frame))
                num_shown += 1
            if self.is_stale():
                break
        self.vae.flush()  # the next latents belong to another clip, or to a better estimate of this one
        return num_shown


def to_uint8(pixels: mx.array) -> np.ndarray:
    return np.array(mx.round((mx.clip(pixels.astype(mx.float32), -1, 1) + 1) * 127.5).astype(mx.uint8))


def denoise(clean: mx.array, callback: Callable[[int, mx.array], None]) -> mx.array:
    """Stands for a sampler: its estimate of the clean latents becomes better with each step."""
    noise = mx.random.normal(clean.shape, key=mx.random.key(0))
    for step in range(STEPS):
        share = (step + 1) / STEPS
        callback(step, share * clean + (1 - share) * noise)
    return clean


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    projection = PreviewVAE.from_pretrained(demo.LATENT_RGB)  # in an app: what fit_latent_rgb.py has written
    vae = PreviewVAE.from_pretrained(DEMO_PREVIEW)  # in an app: taeltx2_3.safetensors
    clean, info = load_latents(demo.LATENTS)
    previews = Previews(projection, vae, folder, is_stale=lambda: False)
    seconds: list[float] = []

    def callback(step: int, estimate: mx.array) -> None:
        start = time.perf_counter()
        previews.after_step(step, estimate)
        seconds.append(time.perf_counter() - start)

    latents = denoise(clean, callback)
    print(f"{STEPS} previews, {1000 * min(seconds):.0f} ms each")
    size = vae.plan(latents.shape).frame_size
    with VideoWriter(folder / "film.mp4", size=size, fps=info.fps or 24) as film:
        num_shown = previews.play(latents, lambda frame: film.write(frame[None]))
    print(f"{num_shown} frames in film.mp4")


if __name__ == "__main__":
    main()
