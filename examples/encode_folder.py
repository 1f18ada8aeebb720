"""Encode all videos of a folder to latents, with one load of the VAE: what a trainer's data set needs.

    python examples/encode_folder.py videos/ latents/          # with the demo VAE
    python examples/encode_folder.py videos/ latents/ VAE

`python -m mlx_ltx_vae.encode videos/* -m VAE -o latents/` does the same, with more options.
"""

import sys
from pathlib import Path

from mlx_ltx_vae import Fit, LTXVAEError, VideoReader, VideoVAE, demo, save_latents

ENDINGS = (".mp4", ".mov", ".mkv", ".webm", ".gif")


def encode_folder(source: Path, target: Path, vae: VideoVAE) -> dict[Path, str]:
    """Encode each video in `source` to a file in `target`. Returns the error of each one that failed."""
    target.mkdir(parents=True, exist_ok=True)
    errors = {}
    for path in sorted(path for path in source.iterdir() if path.suffix.lower() in ENDINGS):
        try:
            with VideoReader(path, fit=Fit.RESIZE, multiple=vae.config.spatial_scale) as video:
                latents = vae.encode(video, pad=True)  # as the frames come: memory does not grow with the clip
                target_file = target / f"{path.stem}.safetensors"
                save_latents(target_file, latents, fps=video.fps, space=vae.latent_space)
            print(f"{path.name}: latents {latents.shape}", flush=True)
        except LTXVAEError as error:
            errors[path] = str(error)
            print(error, file=sys.stderr)
    return errors


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    model = sys.argv[3] if len(sys.argv) > 3 else demo.VAE
    failed = encode_folder(Path(sys.argv[1]), Path(sys.argv[2]), VideoVAE.from_pretrained(model, decoder=False))
    sys.exit(1 if failed else 0)
