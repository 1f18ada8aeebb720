"""Draw docs/gallery.png: a gallery of clips that the demo VAE encodes, in Chromium.

.venv/bin/python scripts/draw_gallery.py
"""

import io
import os
import sys
import tempfile
import time
from pathlib import Path

import mlx.core as mx
from chromium import browser
from PIL import Image

from mlx_ltx_vae import VideoVAE, demo
from mlx_ltx_vae.preview import main as preview

ROOT = Path(__file__).resolve().parents[1]
CLIPS = {  # the seeds of procedural clips, and prompts that fit them
    14: "a sign in front of blue mountains, handheld",
    11: "a red sunset over dark hills",
    1: "a tower at night, a neon sign, slow push in",
    21: "dusk over the pines, an empty billboard",
    19: "a skyline at night under the moon",
    23: "a hut on the plain, clear sky, wide shot",
    6: "lit windows of a street at night, pan to the left",
    22: "paper shapes slide over each other",
}
PICTURE_SIZE, NUM_COLORS = (1200, 764), 128  # few colors make a small file


def main() -> None:
    """Write the picture."""
    sys.path.append(str(ROOT / "scripts" / "demo_training"))
    import procedural_clips

    vae = VideoVAE.from_pretrained(demo.VAE)
    start = time.mktime((2026, 11, 28, 1, 7, 0, 0, 0, -1))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("latents").mkdir()
        for number, (seed, prompt) in enumerate(CLIPS.items(), 1):
            latents = vae.encode(procedural_clips.make_clip(seed, 49, 256, 384))
            metadata = {"fps": "24", "seed": str(seed), "generation": "LTX-2.3", "prompt": prompt}
            path = f"latents/2026-11-28-{number:03}.safetensors"
            mx.save_safetensors(path, {"latents": latents}, metadata)
            os.utime(path, (start + 540 * number, start + 540 * number))
        model = ROOT / "examples" / "demo_preview.safetensors"
        if preview(["latents", "-m", str(model), "-o", "gallery.html", "-q"]) != 0:
            sys.exit("the gallery failed")
        with browser(Path(folder)) as page:
            page.open(Path("gallery.html"), width=PICTURE_SIZE[0], height=PICTURE_SIZE[1])
            page.press("p", "ArrowDown", "p", "ArrowRight", "x", "ArrowRight")
            page.wait("[...document.querySelectorAll('video')].every(video => video.currentTime > 0.5)")
            picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        target = ROOT / "docs" / "gallery.png"
        picture.quantize(NUM_COLORS, dither=Image.Dither.NONE).save(target, optimize=True)
    print(f"{target}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
