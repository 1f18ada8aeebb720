"""Train the small TAEHV decoder `demo_preview.safetensors`, which previews the latents of the demo VAE.

It learns to repeat what the demo VAE's decoder makes of the latents of procedural clips. Needs nothing but the package.

    python scripts/demo_training/train_demo_preview.py --folder preview/  # continues an interrupted run
    python scripts/demo_training/train_demo_preview.py --evaluate

The network has the layers and the tensor names of `madebyollin/taehv` for LTX, with fewer channels.
"""

import argparse
import json
import math
import sys
import time
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten

import procedural_clips
from mlx_ltx_vae import VideoVAE, demo, load_latents
from mlx_ltx_vae.backend.mlx_utils import psnr

WIDTHS = (48, 48, 24, 24)
CHANNELS = 64  # of the demo VAE's latents
CLIP = (17, 192, 192)  # frames, height, width of a training clip
SIDE = 4  # latent cells of a training step
FIRST_SEED = 100_000  # other clips than in the demo VAE's training
CONFIG = {"_class_name": "TAEHV", "generation": "demo", "latent_channels": CHANNELS}
SECONDS_PER_SAVE = 60
OUTPUT = Path(__file__).resolve().parents[2] / "examples" / "demo_preview.safetensors"


class MemoryBlock(nn.Module):
    """relu(f(frame, previous frame) + frame), with zeros before the first frame."""

    def __init__(self, channels):
        super().__init__()
        widths = (2 * channels, channels, channels)
        self.conv = [
            nn.ReLU() if index % 2 else nn.Conv2d(widths[index // 2], channels, 3, padding=1) for index in range(5)
        ]

    def __call__(self, x):
        y = mx.concatenate([x, mx.pad(x, [(0, 0), (1, 0), (0, 0), (0, 0), (0, 0)])[:, :-1]], axis=-1)
        for layer in self.conv:
            y = per_frame(layer, y)
        return mx.maximum(x + y, 0)


class Growth(nn.Module):
    """Two frames of each."""

    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, 2 * channels, 1, bias=False)

    def __call__(self, x):
        y = per_frame(self.conv, x)
        return mx.stack(mx.split(y, 2, axis=-1), axis=2).flatten(1, 2)


class Decoder(nn.Module):
    """Normalized latents (B, T, H, W, C) to pixels (B, 8T - 7, 32H, 32W, 3), about in [0, 1]."""

    def __init__(self):
        super().__init__()
        self.layers = [nn.Identity(), nn.Conv2d(CHANNELS, WIDTHS[0], 3, padding=1), nn.ReLU()]
        for width, after in zip(WIDTHS, WIDTHS[1:], strict=False):
            self.layers += [MemoryBlock(width) for _ in range(3)]
            self.layers += [nn.Upsample(2), Growth(width), nn.Conv2d(width, after, 3, padding=1, bias=False)]
        self.layers += [nn.ReLU(), nn.Conv2d(WIDTHS[-1], 48, 3, padding=1)]

    def __call__(self, latents):
        x = 3 * mx.tanh(latents / 3)
        for layer in self.layers:
            x = layer(x) if isinstance(layer, (MemoryBlock, Growth)) else per_frame(layer, x)
        batch, frames, height, width, _ = x.shape
        x = x.reshape(batch, frames, height, width, 3, 4, 4).transpose(0, 1, 2, 5, 3, 6, 4)
        return x.reshape(batch, frames, 4 * height, 4 * width, 3)[:, 7:]


def per_frame(layer, x):
    """Apply a layer of pictures to (B, T, H, W, C)."""
    return mx.unflatten(layer(x.flatten(0, 1)), 0, x.shape[:2])


def load_pairs(folder, count):
    """Latents (n, T, H, W, C) and what the demo VAE decodes them to, uint8 (n, F, H, W, 3), made once and stored."""
    paths = [folder / f"{name}.npy" for name in ("latents", "pixels")]
    done = folder / "pairs.txt"
    if not (done.exists() and int(done.read_text()) == count):
        vae = VideoVAE.from_pretrained(demo.VAE)
        frames, height, width = CLIP
        grid = (1 + (frames - 1) // 8, height // 32, width // 32)
        latents = np.lib.format.open_memmap(paths[0], "w+", np.float16, (count, *grid, CHANNELS))
        pixels = np.lib.format.open_memmap(paths[1], "w+", np.uint8, (count, *CLIP, 3))
        for index in range(count):
            encoded = vae.encode(procedural_clips.make_clip(FIRST_SEED + index, *CLIP))
            latents[index] = np.array(encoded[0].astype(mx.float32)).transpose(1, 2, 3, 0)
            pixels[index] = vae.decode_uint8(encoded)
            if index % 20 == 0:
                log(f"pair {index} of {count}")
        latents.flush(), pixels.flush()
        done.write_text(str(count))
    return [np.load(path, mmap_mode="r") for path in paths]


def draw(pairs, rng):
    """Return the latents and the pixels of a random square of `SIDE` latent cells."""
    latents, pixels = pairs
    index = rng.integers(len(latents))
    row, column = (int(rng.integers(size - SIDE + 1)) for size in latents.shape[2:4])
    cells = (index, slice(None), slice(row, row + SIDE), slice(column, column + SIDE))
    picture = (index, slice(None), *(slice(32 * part.start, 32 * part.stop) for part in cells[2:]))
    return mx.array(latents[cells])[None].astype(mx.float32), mx.array(pixels[picture])[None]


def initialize(decoder):
    """At first a gray picture; memory blocks change nothing, and both frames of a growth are its input."""
    for layer in decoder.layers:
        if isinstance(layer, MemoryBlock):
            layer.conv[-1].weight *= 0.1
        elif isinstance(layer, Growth):
            copies = mx.tile(mx.eye(layer.conv.weight.shape[-1]), (2, 1))
            layer.conv.weight = copies[:, None, None] + 0.1 * layer.conv.weight
        elif isinstance(layer, nn.Conv2d):
            layer.weight *= math.sqrt(3)  # as much variance in its output as in its input
    decoder.layers[-1].bias += 0.5


def loss_of(decoder, latents, pixels):
    """Return the L1 error, the squared error, and the L1 error of differences between neighbors."""
    error = decoder(latents) - pixels.astype(mx.float32) / 255
    edges = mx.abs(error[:, :, 1:] - error[:, :, :-1]).mean() + mx.abs(error[:, :, :, 1:] - error[:, :, :, :-1]).mean()
    square = error.square().mean()
    return mx.abs(error).mean() + 5 * square + 0.25 * edges, square


def train(arguments):
    """Train, and write the averaged weights as float16."""
    arguments.folder.mkdir(parents=True, exist_ok=True)
    pairs = load_pairs(arguments.folder, arguments.clips)
    mx.random.seed(0)
    decoder = Decoder()
    initialize(decoder)
    weights = dict(tree_flatten(decoder.parameters()))
    first, last = "layers.1.", f"layers.{len(decoder.layers) - 1}."
    inner = {name for name, value in weights.items() if value.ndim == 4 and not name.startswith((first, last))}
    rate = optim.join_schedules(
        [optim.linear_schedule(0, 1, 50), optim.cosine_decay(1, arguments.steps - 50, 0.01)], [50]
    )
    muon = optim.Muon(lambda step: 6 * arguments.rate * rate(step), momentum=0.95, weight_decay=0)
    adam = optim.Adam(lambda step: arguments.rate * rate(step), betas=[0.9, 0.99])
    groups = [(muon, inner), (adam, weights.keys() - inner)]
    average, step = dict(weights), 0
    state_path = arguments.folder / "state.safetensors"
    if state_path.exists():
        weights, average, step = load_state(state_path, groups)
    decoder.load_weights(list(weights.items()))
    value_and_grad = nn.value_and_grad(decoder, loss_of)
    rng = np.random.default_rng(step)
    errors, saved, began = [], time.monotonic(), time.monotonic()
    while step < arguments.steps:
        (_, square), gradients = value_and_grad(decoder, *draw(pairs, rng))
        gradients, _ = optim.clip_grad_norm(dict(tree_flatten(gradients)), 1.0)
        for optimizer, names in groups:
            chosen = {name: gradients[name] for name in names}
            weights |= optimizer.apply_gradients(chosen, {name: weights[name] for name in names})
        step += 1
        decay = min(0.995, step / (step + 10))
        average = {name: decay * value + (1 - decay) * weights[name] for name, value in average.items()}
        mx.eval(weights, average, muon.state, adam.state, square)
        decoder.load_weights(list(weights.items()))
        errors.append(square.item())
        if step % 25 == 0:
            minutes = (time.monotonic() - began) / 60
            log(f"{minutes:6.1f} minutes  step {step:5d}  {-10 * math.log10(np.mean(errors)):5.2f} dB")
            errors = []
        if time.monotonic() - saved > SECONDS_PER_SAVE or step == arguments.steps:
            saved = time.monotonic()
            save_state(state_path, groups, weights, average, step)
            write(average, arguments.output)


def save_state(path, groups, weights, average, step):
    """Write everything that a later run needs to continue."""
    states = {
        f"state {index} {name}": value
        for index, (optimizer, _) in enumerate(groups)
        for name, value in tree_flatten(optimizer.state)
    }
    stored = {f"weights {name}": value for name, value in weights.items()}
    stored |= {f"average {name}": value for name, value in average.items()}
    mx.save_safetensors(str(path), stored | states, {"step": str(step)})


def load_state(path, groups):
    """Return the weights, their average and the step that `save_state` wrote. Gives the optimizers their states."""
    stored, metadata = mx.load(str(path), return_metadata=True)
    for index, (optimizer, _) in enumerate(groups):
        head = f"state {index} "
        flat = {name.removeprefix(head): value for name, value in stored.items() if name.startswith(head)}
        for name, value in flat.items():
            parameter, _, entry = name.rpartition(".")  # "v" of a weight, or "step" of the optimizer
            (optimizer.state.setdefault(parameter, {}) if parameter else optimizer.state)[entry] = value
        optimizer._initialized = True
    parts = [
        {name.removeprefix(head): value for name, value in stored.items() if name.startswith(head)}
        for head in ("weights ", "average ")
    ]
    return (*parts, int(metadata["step"]))


def write(weights, path):
    """Write a checkpoint as TAEHV's files are: float16, channels first."""
    tensors = {}
    for name, value in tree_flatten(weights):
        value = value.astype(mx.float16)
        name = name.replace("layers.", "decoder.", 1)
        tensors[name] = mx.contiguous(value.transpose(0, 3, 1, 2)) if value.ndim == 4 else value
    mx.save_safetensors(str(path), tensors, {"config": json.dumps(CONFIG)})


def evaluate(path, num_clips=4):
    """Print the PSNR of the demo clip and of clips that nothing was trained on."""
    full, preview = VideoVAE.from_pretrained(demo.VAE), VideoVAE.from_pretrained(path)
    clips = [("demo clip", load_latents(demo.LATENTS)[0], procedural_clips.demo_clip())]
    for seed in range(procedural_clips.HELD_OUT, procedural_clips.HELD_OUT + num_clips):
        frames = procedural_clips.make_clip(seed, 25, 256, 256)
        clips.append((f"seed {seed}", full.encode(frames), frames))
    for name, latents, frames in clips:
        frames, decoded, quick = (
            mx.array(clip_frames) for clip_frames in (frames, full.decode_uint8(latents), preview.decode_uint8(latents))
        )
        print(
            f"{name:13s} preview to the full decoder {psnr(quick, decoded, span=255):5.2f} dB, to the clip "
            f"{psnr(quick, frames, span=255):5.2f} dB; the full decoder to the clip "
            f"{psnr(decoded, frames, span=255):5.2f} dB",
            flush=True,
        )


def log(text):
    """Print progress on standard error."""
    print(text, file=sys.stderr, flush=True)


def main(argv=None):
    """Run the command."""
    parser = argparse.ArgumentParser(description="Train the preview decoder of the demo VAE.")
    parser.add_argument("--folder", type=Path, default=Path("demo_preview"), help="folder for data and the state")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="the file to write")
    parser.add_argument("--steps", type=int, default=4500, help="steps of the whole training")
    parser.add_argument("--clips", type=int, default=240, help="number of training clips")
    parser.add_argument("--rate", type=float, default=1e-3, help="peak learning rate of Adam")
    parser.add_argument("--evaluate", action="store_true", help="do not train; measure --output")
    arguments = parser.parse_args(argv)
    if not arguments.evaluate:
        train(arguments)
    evaluate(arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
