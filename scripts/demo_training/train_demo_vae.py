"""Train the small VAE in `mlx_ltx_vae/demo` and encode its clip.

The network has the blocks of LTX-2.3 with few channels. It is trained only on the clips of `procedural_clips.py`.
Needs torch, NumPy and safetensors.

    python scripts/demo_training/train_demo_vae.py --state demo_vae.pt     # an hour on two cores
    python scripts/demo_training/train_demo_vae.py --evaluate --pictures frames/

Such a short training needs a good start: the decoder is initialized as the inverse of a principal component analysis,
the encoder first learns to predict those components, and then both are trained together. The default options
are the shipped model's schedule. A run with an existing `--state` continues where the last one was interrupted. The
checkpoint has the layout of the published files: tensors `vae.encoder.*`, `vae.decoder.*` and
`vae.per_channel_statistics.*`, and the metadata entry `config`.
"""

import argparse
import math
import sys
import time
from pathlib import Path

import numpy as np

try:
    import torch
except ImportError:
    sys.exit("train_demo_vae.py needs torch: pip install torch")
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

import procedural_clips
from demo_vae_data import draw_batch, load_pool, to_pixels
from demo_vae_initialization import initialize_decoder, principal_components, to_components
from demo_vae_network import CONFIG, VAE, load_checkpoint, per_channel, save_checkpoint

DEMO_FOLDER = Path(__file__).resolve().parents[2] / "mlx_ltx_vae" / "demo"
ENCODER_ONLY = 0.15  # the fraction of the training in which the encoder alone learns the components
SECONDS_PER_SAVE = 60
STEPS_PER_LOG = 50


def reconstruction_loss(result, pixels):
    """Return the sum of the L1 error, the squared error, and the L1 error of horizontal and vertical differences."""
    error = result - pixels
    edges = error.diff(dim=-1).abs().mean() + error.diff(dim=-2).abs().mean()
    return error.abs().mean() + 5 * error.square().mean() + 0.25 * edges


class Muon(torch.optim.Optimizer):
    """SGD with momentum and orthogonalized updates, for convolution weights as (out, in * 27) matrices."""

    def __init__(self, params, lr, momentum=0.95):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                average = self.state[p].setdefault("average", torch.zeros_like(p))
                average.lerp_(p.grad, 1 - group["momentum"])
                x = p.grad.lerp(average, group["momentum"]).flatten(1).bfloat16()
                x = x / (x.norm() + 1e-12)
                for _ in range(5):  # Newton-Schulz iteration: moves all singular values toward 1
                    gram = x @ x.T
                    x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
                p.add_(x.view_as(p), alpha=-group["lr"] * 0.2 * math.sqrt(max(x.shape)))


def schedule(progress, step):
    """Factor of the learning rate: a half cosine for the encoder alone, twice as high, then one for both networks."""
    encoder_only = progress < ENCODER_ONLY
    phase = progress / ENCODER_ONLY if encoder_only else (progress - ENCODER_ONLY) / (1 - ENCODER_ONLY)
    return (1 + encoder_only) * min(1, (step + 1) / 100) * (0.02 + 0.49 * (1 + math.cos(math.pi * phase)))


class Trainer:
    """The state of a training run, and its steps.

    Args:
        components: the target of the encoder, and the start of the decoder.
    """

    def __init__(self, components):
        self.components = components
        self.component_weights = per_channel(components.deviation / components.deviation[0])
        self.vae = VAE(CONFIG)
        initialize_decoder(self.vae.decoder, components)
        named = list(self.vae.named_parameters())
        inner = [p for n, p in named if p.dim() == 5 and "conv_in" not in n and "conv_out" not in n]
        outer = [p for _, p in named if all(p is not q for q in inner)]
        self.optimizers = [Muon(inner, 1), torch.optim.AdamW(outer, 1, (0.9, 0.99), weight_decay=0.0)]
        self.average = {name: value.clone() for name, value in self.vae.state_dict().items()}
        self.step = 0

    def load(self, path):
        """Continue from a file written by `save`."""
        state = torch.load(path)
        self.vae.load_state_dict(state["vae"])
        self.average, self.step = state["average"], state["step"]
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)

    def save(self, path):
        """Write everything that a later run needs to continue."""
        state = {"vae": self.vae.state_dict(), "average": self.average, "step": self.step}
        torch.save(state | {"optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}, path)

    def train_step(self, pixels, rate, encoder_only):
        """Train on a batch of pixels (B, 3, T, H, W) and return the squared error to log."""
        for optimizer in self.optimizers:
            optimizer.param_groups[0]["lr"] = rate
        loss, error = self.component_loss(pixels) if encoder_only else self.pixel_loss(pixels)
        loss.backward()
        nn.utils.clip_grad_norm_(self.vae.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        decay = min(0.998, self.step / (self.step + 10))
        for name, value in self.vae.state_dict().items():
            self.average[name].lerp_(value, 1 - decay)
        return error

    def component_loss(self, pixels):
        """Return the weighted squared error of the encoder's components, as a loss and as a number."""
        with torch.autocast("cpu", torch.bfloat16):
            latents = self.vae.encoder(pixels).float()
        error = (latents - to_components(pixels, self.components)).square() * self.component_weights
        loss = error.mean() / self.component_weights.mean()
        return loss, loss.item()

    def pixel_loss(self, pixels):
        """Return the loss of the reconstruction from noisy latents, and its squared error for a signal range of 1."""
        with torch.autocast("cpu", torch.bfloat16):
            latents = self.vae.encoder(pixels).float()
            noise = 0.03 * latents.detach().std() * torch.randn(latents.shape)
            result = self.vae.decoder(latents + noise).float()
        return reconstruction_loss(result, pixels), F.mse_loss(result.detach(), pixels).item() / 4


def train(arguments):
    """Train for `arguments.steps` steps, including an interrupted run's.

    Returns the VAE with averaged weights and the training clips.
    """
    pool = load_pool(arguments.state.with_suffix(".clips.npy"), arguments.clips)
    trainer = Trainer(principal_components(pool))
    if arguments.state.exists():
        trainer.load(arguments.state)
    rng = np.random.default_rng(trainer.step)
    start, saved_at, errors = time.process_time(), time.monotonic(), []
    while trainer.step < arguments.steps:
        progress = trainer.step / arguments.steps
        rate, encoder_only = arguments.rate * schedule(progress, trainer.step), progress < ENCODER_ONLY
        errors.append(trainer.train_step(draw_batch(pool, rng), rate, encoder_only))
        if trainer.step % STEPS_PER_LOG == 0:
            target = "components" if encoder_only else "pixels"
            psnr, minutes = -10 * math.log10(np.mean(errors)), (time.process_time() - start) / 60
            log(f"{minutes:6.1f} core minutes  step {trainer.step:6d}  rate {rate:.1e}  {target} {psnr:5.2f} dB")
            errors = []
        if time.monotonic() - saved_at > SECONDS_PER_SAVE:
            saved_at = time.monotonic()
            trainer.save(arguments.state)
    trainer.save(arguments.state)
    trainer.vae.load_state_dict(trainer.average)
    return trainer.vae.eval(), pool


@torch.no_grad()
def set_statistics(vae, pool):
    """Set the mean and standard deviation of each channel from the latents of whole training clips."""
    latents = torch.cat([vae.encoder(to_pixels(pool[i : i + 4])) for i in range(0, min(len(pool), 160), 4)])
    vae.mean.copy_(latents.mean((0, 2, 3, 4)))
    vae.std.copy_(latents.std((0, 2, 3, 4)))


@torch.no_grad()
def write_latents(vae, path):
    """Encode the demo clip, which is not among the training clips, and write its latents."""
    frames = procedural_clips.demo_clip()
    latents = vae.encode(to_pixels(frames[None]))
    num_frames, height, width, _ = frames.shape
    metadata = {"fps": 24, "num_frames": num_frames, "height": height, "width": width, "normalized": "true"}
    save_file({"latents": latents.contiguous()}, str(path), {k: str(v) for k, v in metadata.items()})


def count_flop(vae, latents):
    """Return the multiplications and additions of the decoder's convolutions for these latents."""
    counts = []

    def count(conv, _, output):
        counts.append(2 * conv.weight[0].numel() * output.numel())

    hooks = [m.register_forward_hook(count) for m in vae.decoder.modules() if isinstance(m, nn.Conv3d)]
    vae.decode(latents)
    for hook in hooks:
        hook.remove()
    return sum(counts)


@torch.no_grad()
def evaluate(folder, pictures, num_clips=12, num_frames=49, side=256):
    """Print the PSNR of unseen clips and of the demo clip, for the files in `folder`."""
    vae = load_checkpoint(folder / "vae.safetensors")
    stored = load_file(str(folder / "latents.safetensors"))["latents"]
    seeds = [procedural_clips.HELD_OUT + i for i in range(num_clips)]
    clips = [(f"seed {s}", procedural_clips.make_clip(s, num_frames, side, side)) for s in seeds]
    means = []
    for name, frames in [*clips, ("demo clip", procedural_clips.demo_clip())]:
        latents = stored if name == "demo clip" else vae.encode(to_pixels(frames[None]))
        result = vae.decode(latents).clamp(-1, 1)
        result = ((result + 1) * 127.5).round()[0].permute(1, 2, 3, 0).numpy()  # (T, H, W, 3), 0 to 255
        errors = np.square(result - frames.astype(np.float32)).mean((1, 2, 3))
        psnr = 10 * np.log10(255**2 / np.maximum(errors, 1e-9))
        print(f"{name:14s} PSNR mean {psnr.mean():5.2f} dB, worst frame {psnr.min():5.2f} dB")
        means.append(psnr.mean())
        if pictures:
            save_pictures(pictures, name.replace(" ", "_"), frames, result)
    print(f"{num_clips} unseen clips: mean {np.mean(means[:-1]):.2f} dB, worst {np.min(means[:-1]):.2f} dB")
    size = sum(p.stat().st_size for p in folder.iterdir() if p.suffix == ".safetensors")
    parameters = sum(p.numel() for p in vae.parameters())
    print(f"{parameters:,} parameters, {size / 1e6:.2f} MB, demo decode {count_flop(vae, stored) / 1e9:.0f} GFLOP")


def save_pictures(folder, name, frames, result):
    """Write a picture of four frames side by side, originals above results."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    chosen = np.linspace(0, len(frames) - 1, 4).astype(int)
    rows = [np.concatenate(list(video[chosen]), 1) for video in (frames, result.astype(np.uint8))]
    Image.fromarray(np.concatenate(rows)).save(folder / f"{name}.png")


def log(text):
    """Print progress on standard error."""
    print(text, file=sys.stderr, flush=True)


def main(argv=None):
    """Run the command."""
    parser = argparse.ArgumentParser(description="Train the demo VAE and encode its clip.")
    parser.add_argument("--output", type=Path, default=DEMO_FOLDER, help="folder for the two files")
    parser.add_argument("--state", type=Path, default=Path("demo_vae.pt"), help="file to continue from and to save to")
    parser.add_argument("--steps", type=int, default=7000, help="steps of the whole training")
    parser.add_argument("--clips", type=int, default=1200, help="number of training clips")
    parser.add_argument("--rate", type=float, default=1e-3, help="peak learning rate of the joint training")
    parser.add_argument("--threads", type=int, help="torch threads")
    parser.add_argument("--evaluate", action="store_true", help="do not train; measure the files in --output")
    parser.add_argument("--pictures", type=Path, help="with --evaluate: folder for pictures, results below originals")
    arguments = parser.parse_args(argv)
    torch.manual_seed(0)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if not arguments.evaluate:
        vae, pool = train(arguments)
        set_statistics(vae, pool)
        arguments.output.mkdir(parents=True, exist_ok=True)
        save_checkpoint(vae, CONFIG, arguments.output / "vae.safetensors")
        vae = load_checkpoint(arguments.output / "vae.safetensors")  # with the stored bfloat16 weights
        write_latents(vae, arguments.output / "latents.safetensors")
    evaluate(arguments.output, arguments.pictures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
