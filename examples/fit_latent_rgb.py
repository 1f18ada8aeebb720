"""Fit a linear projection from latents to small pictures: a preview of any clip in milliseconds.

    python examples/fit_latent_rgb.py -m VAE --latents *.safetensors -o latent_rgb.safetensors
    python examples/fit_latent_rgb.py -m VAE --videos *.mp4 -o latent_rgb.safetensors
    python examples/fit_latent_rgb.py --demo            # the one of the demo VAE, anew: minutes

    python -m mlx_ltx_vae.preview clip.safetensors -m latent_rgb.safetensors -o preview.mp4

The picture of a latent frame is fitted by least squares to the last of its frames: of the VAE's own decode of the
latents, or of the videos, which are then encoded. Every fifth clip is left out of the fit, and measures it. Some
thousand cells of different scenes are enough: a few clips of a few seconds.

A cell becomes 1, 2, 4 or 8 pixels per side. More pixels show more, but also the borders of the cells, since each cell
is projected alone. The best of them is the one that, enlarged to 8 pixels per cell, is nearest to the frames.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx
import numpy as np
from PIL import Image
from safetensors.numpy import save_file

from mlx_ltx_vae import Fit, LTXVAEError, VideoReader, VideoVAE, demo, load_latents

PATCH_SIZES = (1, 2, 4, 8)
LARGEST = PATCH_SIZES[-1]
UNSEEN = 5  # every fifth clip
DEMO_CLIPS = 120, (25, 256, 256)


class Clip(NamedTuple):
    """Latents (F', H', W', C), and a frame of each latent frame at 8 pixels per cell (F', 8*H', 8*W', 3)."""

    latents: np.ndarray
    pictures: np.ndarray


class Pictures:
    """Collects the frames of a video that latent frames end with, downscaled."""

    def __init__(self, vae):
        self.scale, self.start, self.kept = vae.config.scale, 0, []

    def add(self, frames):
        """Take the next frames, uint8 (n, H, W, 3), and return them."""
        first = -self.start % self.scale.time
        factor = self.scale.height // LARGEST
        self.kept += [downscale(frame / 127.5 - 1, factor) for frame in frames[first :: self.scale.time]]
        self.start += len(frames)
        return frames


def read_latents(vae, path):
    """Yield the clips of a latent file, decoded by the VAE."""
    latents, _ = load_latents(path, latent_channels=vae.config.latent_channels, scale=vae.config.scale)
    for item in range(len(latents)):
        yield decode(vae, latents[item : item + 1])


def decode(vae, latents):
    """Decode the clip of latents (1, C, F', H', W')."""
    pictures = Pictures(vae)
    for chunk in vae.stream(latents, bit_depth=8):
        pictures.add(chunk.to_uint8())
    return Clip(channels_last(latents), np.stack(pictures.kept))


def read_video(vae, path):
    """Yield the clip of a video, encoded by the VAE as it is read."""
    pictures = Pictures(vae)
    with VideoReader(path, fit=Fit.RESIZE, multiple=vae.config.spatial_scale) as video:
        latents = vae.encode(map(pictures.add, video))
    yield Clip(channels_last(latents), np.stack(pictures.kept))


def channels_last(latents):
    """Latents (1, C, F', H', W') as float32 (F', H', W', C)."""
    return np.array(latents[0].transpose(1, 2, 3, 0).astype(mx.float32))


def downscale(picture, factor):
    """Average squares to (..., H/factor, W/factor, 3)."""
    *leading, height, width, _ = picture.shape
    squares = picture.reshape(*leading, height // factor, factor, width // factor, factor, 3)
    return squares.mean((-4, -2), dtype=np.float32)


def enlarge(picture, factor):
    """Enlarge a picture (H, W, 3) by `factor`."""
    size = picture.shape[1] * factor, picture.shape[0] * factor
    colors = [Image.fromarray(color).resize(size, Image.Resampling.BICUBIC) for color in np.moveaxis(picture, -1, 0)]
    return np.stack([np.asarray(color) for color in colors], -1)


class Projection:
    """Projects a cell to 8x8 pixels. That to fewer pixels is the mean of these: least squares is linear in both."""

    def __init__(self):
        self.gram = self.cross = 0.0  # of the latents with themselves and with the pixels
        self.cells = 0

    def add(self, clip):
        inputs = self._inputs(clip.latents).astype(np.float64)
        frames, rows, columns = clip.latents.shape[:3]
        patches = clip.pictures.reshape(frames, rows, LARGEST, columns, LARGEST, 3).transpose(0, 1, 3, 2, 4, 5)
        self.gram = self.gram + inputs.T @ inputs
        self.cross = self.cross + inputs.T @ patches.reshape(len(inputs), -1)
        self.cells += len(inputs)

    def weights(self, size):
        """Solve for the weight (size*size*3, C) and the bias (size*size*3,) for patches of `size` pixels, float16."""
        ridge = 1e-6 * np.trace(self.gram) / len(self.gram) * np.eye(len(self.gram))
        solution = np.linalg.solve(self.gram + ridge, self.cross).reshape(len(self.gram), LARGEST, LARGEST, 3)
        solution = downscale(solution, LARGEST // size).reshape(len(self.gram), -1).astype(np.float16)
        return np.ascontiguousarray(solution[:-1].T), solution[-1]

    def apply(self, clip, size):
        """Return the pictures (F', size*H', size*W', 3) of a clip."""
        weight, bias = self.weights(size)
        frames, rows, columns = clip.latents.shape[:3]
        pixels = self._inputs(clip.latents) @ np.vstack([weight.T, bias]).astype(np.float32)
        pixels = pixels.reshape(frames, rows, columns, size, size, 3).transpose(0, 1, 3, 2, 4, 5)
        return pixels.reshape(frames, rows * size, columns * size, 3).clip(-1, 1)

    @staticmethod
    def _inputs(latents):
        cells = latents.reshape(-1, latents.shape[-1])
        return np.hstack([cells, np.ones((len(cells), 1), np.float32)])


def measure(projection, size, clips):
    """Return the mean PSNR of patches of `size` pixels over all pictures: at their size, and at 8 pixels per cell."""
    sizes_psnr, enlarged = [], []
    for clip in clips:
        for picture, target in zip(projection.apply(clip, size), clip.pictures, strict=True):
            sizes_psnr.append(psnr(picture, downscale(target, LARGEST // size)))
            enlarged.append(psnr(enlarge(picture, LARGEST // size), target))
    return float(np.mean(sizes_psnr)), float(np.mean(enlarged))


def psnr(one, other):
    """Return the peak signal-to-noise ratio of pixels in [-1, 1], in dB."""
    return 10 * np.log10(4 / max(np.square(one - other).mean(), 1e-12))


def fit(clips, *, path, vae, name):
    """Fit a projection to clips, print its quality, and write it. Returns the quality in dB."""
    projection, unseen = Projection(), []
    for index, clip in enumerate(clips):
        if index % UNSEEN == 1:
            unseen.append(clip)
        else:
            projection.add(clip)
    channels = vae.config.latent_channels
    if projection.cells <= channels or not unseen:
        sys.exit(f"error: {projection.cells} latent cells are too few to fit {channels} channels; give more clips")
    qualities = {size: measure(projection, size, unseen) for size in PATCH_SIZES}
    for size, (native, enlarged) in qualities.items():
        print(f"{size}x{size} pixels per cell: {native:.2f} dB, and {enlarged:.2f} dB at {LARGEST}x{LARGEST}")
    best = max(PATCH_SIZES, key=lambda size: qualities[size][1])
    weight, bias = projection.weights(best)
    quality = round(qualities[best][0], 2)
    config = {"latent_rgb": {"scale": list(vae.config.scale), "vae": name, "psnr": quality}}
    tensors = {"decoder.to_rgb.weight": weight, "decoder.to_rgb.bias": bias}
    save_file(tensors, path, {"format": "mlx", "config": json.dumps(config)})
    print(f"{path}: {best}x{best} pixels per cell, {quality:.2f} dB on {len(unseen)} unseen clips")
    return quality


def demo_clips(vae):
    """Clips of the generator, encoded and decoded by the demo VAE. The unseen ones are unseen by the VAE, too."""
    sys.path.append(str(Path(__file__).resolve().parents[1] / "scripts" / "demo_training"))
    import procedural_clips

    count, size = DEMO_CLIPS
    for index in range(count):
        seed = procedural_clips.HELD_OUT + index if index % UNSEEN == 1 else index
        yield decode(vae, vae.encode(procedural_clips.make_clip(seed, *size)))


def main(argv=None):
    """Run the command."""
    parser = argparse.ArgumentParser(description="Fit a linear projection from latents to small pictures.")
    parser.add_argument("-m", "--model", metavar="VAE", help="file, folder, or hub id")
    parser.add_argument("--latents", nargs="+", default=[], metavar="FILE", help="latent files, which are decoded")
    parser.add_argument("--videos", nargs="+", default=[], metavar="FILE", help="videos, which are encoded")
    parser.add_argument("--demo", action="store_true", help="fit to the demo VAE, on procedural clips")
    parser.add_argument("-o", "--output", type=Path, help="the projection: a .safetensors file")
    arguments = parser.parse_args(argv)
    model, output = (
        (demo.VAE, arguments.output or demo.LATENT_RGB) if arguments.demo else (arguments.model, arguments.output)
    )
    if not model or not output:
        parser.error("give -m VAE and -o latent_rgb.safetensors, or --demo")
    if not arguments.demo and len(arguments.latents) + len(arguments.videos) < 2:
        parser.error("give at least two clips with --latents or --videos: one to fit, and one to measure the fit")
    try:
        inputs = [path for path in (Path(model), *map(Path, arguments.latents + arguments.videos)) if path.exists()]
        if output.exists() and any(path.samefile(place) for path in inputs for place in (output, output.parent)):
            sys.exit(f"error: {output}: is one of the inputs, which are never replaced; choose another output")
        needed = bool(arguments.videos or arguments.demo), bool(arguments.latents or arguments.demo)
        vae = VideoVAE.from_pretrained(model, encoder=needed[0], decoder=needed[1])
        if vae.config.spatial_scale % LARGEST:
            parser.error(f"{model}: its cells are {vae.config.spatial_scale} pixels wide, no multiple of {LARGEST}")
        if arguments.demo:
            clips = demo_clips(vae)
        else:
            read = [(read_latents, path) for path in arguments.latents]
            read += [(read_video, path) for path in arguments.videos]
            clips = (clip for function, path in read for clip in function(vae, path))
        fit(clips, path=output, vae=vae, name="the demo VAE" if arguments.demo else Path(model).name)
    except LTXVAEError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
