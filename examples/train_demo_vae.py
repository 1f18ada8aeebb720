"""Train the small VAE that ships as ``mlx_ltx_vae/demo``, and encode its clip.

The network has the blocks of LTX-2.3 at narrow widths; it learns from the
clips of ``procedural_clips.py`` alone. Needs torch, NumPy and safetensors.

    python examples/train_demo_vae.py --minutes 30 --state demo_vae.pt
    python examples/train_demo_vae.py --evaluate --pictures frames/

So small a budget leaves no time to discover what a block of pixels is made
of. So the decoder starts as the inverse of a principal component analysis,
the encoder first learns to answer those components, and then both learn
together. A run that is called again with the same ``--state`` goes on where
the last one ended. The checkpoint has the layout of the published files: tensors
``vae.encoder.*``, ``vae.decoder.*``, ``vae.per_channel_statistics.*`` and the
metadata entry ``config``.

Shapes are torch's here: pixels ``(B, 3, T, H, W)`` in [-1, 1], latents
``(B, C, t, h, w)``.
"""

import argparse
import json
import math
import multiprocessing
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import procedural_clips

DEMO_FOLDER = Path(__file__).resolve().parent.parent / "mlx_ltx_vae" / "demo"

# A res_x is followed by its layers, a compress_* by its multiplier. Both lists run from pixels to latents.
ENCODER = "res_x 1, compress_space_res 1, res_x 1, compress_time_res 1, res_x 2, compress_all_res 2, res_x 1, \
           compress_all_res 1, res_x 2"
DECODER = (
    "res_x 1, compress_space 1, res_x 2, compress_time 1, res_x 2, compress_all 1, res_x 2, compress_all 2, res_x 1"
)


def block_list(text):
    """'res_x 1, compress_all 2' -> the list that a checkpoint's configuration holds."""
    pairs = (entry.split() for entry in text.split(","))
    return [[name, {"num_layers" if name == "res_x" else "multiplier": int(value)}] for name, value in pairs]


CONFIG = {
    "_class_name": "CausalVideoAutoencoder",
    "dims": 3,
    "in_channels": 3,
    "out_channels": 3,
    "latent_channels": 64,
    "encoder_blocks": block_list(ENCODER),
    "decoder_blocks": block_list(DECODER),
    "scaling_factor": 1.0,
    "norm_layer": "pixel_norm",
    "patch_size": 4,
    "latent_log_var": "uniform",
    "use_quant_conv": False,
    "causal_decoder": False,
    "timestep_conditioning": False,
    "normalize_latent_channels": False,
    "encoder_base_channels": 32,
    "decoder_base_channels": 32,
    "spatial_padding_mode": "zeros",
}

# Axes (time, height, width) that a block halves or doubles.
STRIDES = {"compress_time": (2, 1, 1), "compress_space": (1, 2, 2), "compress_all": (2, 2, 2)}


# The network --------------------------------------------------------------


def pixel_norm(x):
    """Divide every position by the root mean square of its channels."""
    return x * torch.rsqrt(x.float().square().mean(1, keepdim=True) + 1e-8).to(x.dtype)


def space_to_depth(x, strides):
    """(B, C, T, H, W) -> (B, C * prod(strides), T / p1, H / p2, W / p3)."""
    b, c, t, h, w = x.shape
    p1, p2, p3 = strides
    x = x.view(b, c, t // p1, p1, h // p2, p2, w // p3, p3).permute(0, 1, 3, 5, 7, 2, 4, 6)
    return x.reshape(b, c * p1 * p2 * p3, t // p1, h // p2, w // p3)


def depth_to_space(x, strides):
    """The inverse of `space_to_depth`; channels are ``(c p1 p2 p3)``."""
    b, c, t, h, w = x.shape
    p1, p2, p3 = strides
    c //= p1 * p2 * p3
    x = x.view(b, c, p1, p2, p3, t, h, w).permute(0, 1, 5, 2, 6, 3, 7, 4)
    return x.reshape(b, c, t * p1, h * p2, w * p3)


def patchify(x, patch):
    """(B, 3, T, H, W) -> (B, 3 * patch^2, T, H / patch, W / patch), width before height."""
    b, c, t, h, w = x.shape
    x = x.view(b, c, t, h // patch, patch, w // patch, patch).permute(0, 1, 6, 4, 2, 3, 5)
    return x.reshape(b, c * patch * patch, t, h // patch, w // patch)


def unpatchify(x, patch):
    """The inverse of `patchify`."""
    b, c, t, h, w = x.shape
    c //= patch * patch
    x = x.view(b, c, patch, patch, t, h, w).permute(0, 1, 4, 5, 3, 6, 2)
    return x.reshape(b, c, t, h * patch, w * patch)


class CausalConv3d(nn.Module):
    """3x3x3 convolution: time is padded with edge frames, space with zeros."""

    def __init__(self, in_channels, out_channels, causal):
        super().__init__()
        self.conv = nn.Conv3d(in_channels, out_channels, 3, padding=(0, 1, 1))
        self.causal = causal
        nn.init.normal_(self.conv.weight, std=(27 * in_channels) ** -0.5)
        nn.init.zeros_(self.conv.bias)

    def forward(self, x):
        first, last = x[:, :, :1], x[:, :, -1:]
        return self.conv(torch.cat([first, first, x] if self.causal else [first, x, last], dim=2))


class ResBlock(nn.Module):
    """x + conv2(silu(norm(conv1(silu(norm(x))))))."""

    def __init__(self, channels, causal):
        super().__init__()
        self.conv1 = CausalConv3d(channels, channels, causal)
        self.conv2 = CausalConv3d(channels, channels, causal)
        with torch.no_grad():  # start close to the identity
            self.conv2.conv.weight.mul_(0.2)

    def forward(self, x):
        return x + self.conv2(F.silu(pixel_norm(self.conv1(F.silu(pixel_norm(x))))))


class MidBlock(nn.Module):
    """``res_x``: a run of residual blocks."""

    def __init__(self, channels, num_layers, causal):
        super().__init__()
        self.res_blocks = nn.ModuleList(ResBlock(channels, causal) for _ in range(num_layers))

    def forward(self, x):
        for block in self.res_blocks:
            x = block(x)
        return x


class Downsample(nn.Module):
    """``compress_*_res``: space to depth after a convolution, plus the input's group means."""

    def __init__(self, in_channels, out_channels, strides):
        super().__init__()
        self.strides, self.out_channels = strides, out_channels
        self.conv = CausalConv3d(in_channels, out_channels // math.prod(strides), causal=True)

    def forward(self, x):
        if self.strides[0] == 2:
            x = torch.cat([x[:, :, :1], x], dim=2)
        skip = space_to_depth(x, self.strides)
        skip = skip.unflatten(1, (self.out_channels, -1)).mean(2)
        return space_to_depth(self.conv(x), self.strides) + skip


class Upsample(nn.Module):
    """``compress_*`` of a decoder: a convolution, then depth to space; the first frame is dropped."""

    def __init__(self, in_channels, out_channels, strides, causal):
        super().__init__()
        self.strides = strides
        self.conv = CausalConv3d(in_channels, out_channels * math.prod(strides), causal)

    def forward(self, x):
        x = depth_to_space(self.conv(x), self.strides)
        return x[:, :, 1:] if self.strides[0] == 2 else x


class Encoder(nn.Module):
    """Pixels (B, 3, 1 + 8 (t - 1), 32 h, 32 w) -> means (B, C, t, h, w), not normalised."""

    def __init__(self, config):
        super().__init__()
        self.patch = config["patch_size"]
        channels = config["encoder_base_channels"]
        self.conv_in = CausalConv3d(config["in_channels"] * self.patch**2, channels, causal=True)
        nn.init.ones_(self.conv_in.conv.bias[::4])  # a constant beside the others lets pixel norm keep their size
        self.down_blocks = nn.ModuleList()
        for name, options in config["encoder_blocks"]:
            if name == "res_x":
                self.down_blocks.append(MidBlock(channels, options["num_layers"], causal=True))
            else:
                wider = channels * options["multiplier"]
                self.down_blocks.append(Downsample(channels, wider, STRIDES[name.removesuffix("_res")]))
                channels = wider
        self.conv_out = CausalConv3d(channels, config["latent_channels"] + 1, causal=True)

    def forward(self, pixels):
        x = self.conv_in(patchify(pixels, self.patch))
        for block in self.down_blocks:
            x = block(x)
        return self.conv_out(F.silu(pixel_norm(x)))[:, :-1]  # the last channel is the log-variance


class Decoder(nn.Module):
    """Latents (B, C, t, h, w), not normalised -> pixels (B, 3, 1 + 8 (t - 1), 32 h, 32 w)."""

    def __init__(self, config):
        super().__init__()
        self.patch = config["patch_size"]
        causal = config["causal_decoder"]
        blocks = list(reversed(config["decoder_blocks"]))
        factors = [options["multiplier"] for name, options in blocks if name != "res_x"]
        channels = config["decoder_base_channels"] * math.prod(factors)
        self.conv_in = CausalConv3d(config["latent_channels"], channels, causal)
        self.up_blocks = nn.ModuleList()
        for name, options in blocks:
            if name == "res_x":
                self.up_blocks.append(MidBlock(channels, options["num_layers"], causal))
            else:
                narrower = channels // options["multiplier"]
                self.up_blocks.append(Upsample(channels, narrower, STRIDES[name], causal))
                channels = narrower
        self.conv_out = CausalConv3d(channels, config["out_channels"] * self.patch**2, causal)

    def forward(self, latents):
        x = self.conv_in(latents)
        for block in self.up_blocks:
            x = block(x)
        return unpatchify(self.conv_out(F.silu(pixel_norm(x))), self.patch)


class VAE(nn.Module):
    """Encoder, decoder and the statistics by which latents are normalised."""

    def __init__(self, config):
        super().__init__()
        self.encoder, self.decoder = Encoder(config), Decoder(config)
        self.register_buffer("mean", torch.zeros(config["latent_channels"]))
        self.register_buffer("std", torch.ones(config["latent_channels"]))

    def encode(self, pixels):
        """Pixels -> normalised latents (B, C, t, h, w)."""
        mean, std = (s.view(1, -1, 1, 1, 1) for s in (self.mean, self.std))
        return (self.encoder(pixels) - mean) / std

    def decode(self, latents):
        """Normalised latents -> pixels (B, 3, T, H, W)."""
        mean, std = (s.view(1, -1, 1, 1, 1) for s in (self.mean, self.std))
        return self.decoder(latents * std + mean)


# Checkpoints --------------------------------------------------------------

STATISTICS = {"mean": "vae.per_channel_statistics.mean-of-means", "std": "vae.per_channel_statistics.std-of-means"}


def save_checkpoint(vae, config, path):
    """Write ``vae`` in the layout of the published files, in bfloat16."""
    tensors = {STATISTICS.get(k, "vae." + k): v.to(torch.bfloat16).contiguous() for k, v in vae.state_dict().items()}
    save_file(tensors, str(path), metadata={"config": json.dumps({"vae": config})})


def load_checkpoint(path):
    """Read (float32 VAE, config) from a file in the layout of the published files."""
    with safe_open(str(path), "pt") as file:
        config = json.loads(file.metadata()["config"])["vae"]
    names = {v: k for k, v in STATISTICS.items()}
    tensors = {names.get(k, k.removeprefix("vae.")): v.float() for k, v in load_file(str(path)).items()}
    vae = VAE(config)
    vae.load_state_dict({k: v for k, v in tensors.items() if not k.startswith("per_channel_statistics.")})
    return vae.eval(), config


# Training clips -----------------------------------------------------------

POOL_SHAPE = (25, 192, 192)  # frames, height, width of a training clip
CROPS = [  # (batch, frames, side), drawn by weight
    ((4, 17, 96), 6),
    ((8, 17, 64), 2),
    ((4, 9, 128), 3),
    ((3, 25, 96), 2),
    ((2, 49, 96), 2),
    ((2, 9, 192), 3),
    ((2, 17, 128), 2),
    ((6, 1, 128), 1),
]


def pool_clip(seed):
    return procedural_clips.make_clip(seed, *POOL_SHAPE)


def load_pool(path, count):
    """Training clips, drawn once and kept in a file -> uint8 (n, T, H, W, 3)."""
    if not path.exists():
        log(f"drawing {count} clips into {path}")
        pool = np.lib.format.open_memmap(path.with_suffix(".part"), "w+", np.uint8, (count, *POOL_SHAPE, 3))
        with multiprocessing.Pool() as workers:
            for index, clip in enumerate(workers.imap(pool_clip, range(count), chunksize=8)):
                pool[index] = clip
        path.with_suffix(".part").rename(path)
    return np.load(path)


def to_pixels(frames):
    """uint8 (B, T, H, W, 3) -> float pixels (B, 3, T, H, W)."""
    return torch.from_numpy(np.ascontiguousarray(frames)).permute(0, 4, 1, 2, 3).float() / 127.5 - 1


def random_crop(pool, rng, frames, side):
    """Frames of a clip, forwards and then backwards if it is too short -> uint8 (frames, side, side, 3)."""
    y, x = (int(rng.integers(size - side + 1)) for size in POOL_SHAPE[1:])
    crop = pool[rng.integers(len(pool)), :, y : y + side, x : x + side]
    crop = np.concatenate([crop, crop[-2::-1]])[:: rng.choice([1, 1, -1])]
    start = int(rng.integers(max(POOL_SHAPE[0], frames) - frames + 1))
    crop = crop[start : start + frames, :, :: rng.choice([1, -1])]
    return crop[..., rng.permutation(3)] if rng.uniform() < 0.3 else crop


def draw_batch(pool, rng):
    """Random crops, mirrored, reversed in time, with colours exchanged; one in five cuts to another."""
    weights = np.array([weight for _, weight in CROPS])
    (batch, frames, side), _ = CROPS[rng.choice(len(CROPS), p=weights / weights.sum())]
    crops = [random_crop(pool, rng, frames, side) for _ in range(batch)]
    for index in range(batch):
        if frames > 1 and rng.uniform() < 0.2:
            cut = int(rng.integers(1, frames))
            crops[index] = np.concatenate([crops[index][:cut], random_crop(pool, rng, frames - cut, side)])
    return to_pixels(np.stack(crops))


# A linear start -----------------------------------------------------------

MERGES = [(1, 1, 1), *(STRIDES[name] for name, _ in CONFIG["decoder_blocks"] if name != "res_x")]


def per_position(x, matrix):
    """(B, C, T, H, W) times (C, K) -> (B, K, T, H, W)."""
    return torch.einsum("bcthw,ck->bkthw", x, matrix)


@torch.no_grad()
def principal_components(pool, widths=(31, 32, 32, 32, 64)):
    """Principal components of 4x4 patches, of 2x2 of those, and so on up to 32x32x8 blocks.

    Returns the mean patch, one (values, components) matrix per level with
    orthonormal columns, and the standard deviation of the last components.
    """
    x = patchify(to_pixels(pool[:80, 1:]), CONFIG["patch_size"])
    mean = x.mean((0, 2, 3, 4))
    x, bases = x - mean.view(1, -1, 1, 1, 1), []
    for width, strides in zip(widths, MERGES, strict=True):
        x = space_to_depth(x, strides)
        rows = x.transpose(0, 1).flatten(1)
        bases.append(torch.linalg.eigh(rows @ rows.T / rows.shape[1])[1].flip(1)[:, :width].contiguous())
        x = per_position(x, bases[-1]) / math.sqrt(math.prod(strides))
    return mean, bases, x.square().mean((0, 2, 3, 4)).sqrt()


@torch.no_grad()
def to_components(pixels, components):
    """Pixels (B, 3, 1 + 8 (t - 1), H, W) -> unit-variance components (B, 64, t, h, w)."""
    mean, bases, deviation = components
    pixels = torch.cat([pixels[:, :, :1].expand(-1, -1, 7, -1, -1), pixels], dim=2)
    x = patchify(pixels, CONFIG["patch_size"]) - mean.view(1, -1, 1, 1, 1)
    for basis, strides in zip(bases, MERGES, strict=True):
        x = per_position(space_to_depth(x, strides), basis) / math.sqrt(math.prod(strides))
    return x / deviation.view(1, -1, 1, 1, 1)


@torch.no_grad()
def start_decoder(decoder, components):
    """Let the decoder begin as the inverse of `to_components`, on the centre taps of its convolutions.

    The last features are small deviations from one, where pixel norm and SiLU
    are nearly linear; they are rotated so that they sum to zero.
    """
    mean, bases, deviation = components
    ones_first = torch.cat([torch.ones(32, 1), torch.randn(32, 31)], 1)
    rotation = torch.linalg.qr(ones_first)[0][:, 1:] * 0.35  # (32, 31)

    def set_centre(conv, matrix):  # matrix (out, in)
        conv.conv.weight.mul_(0.02)
        conv.conv.weight[:, :, 1, 1, 1] += matrix

    set_centre(decoder.conv_in, torch.diag(deviation))
    ups = [block for block in decoder.up_blocks if isinstance(block, Upsample)]
    for up, basis in zip(ups, bases[:0:-1], strict=True):
        parts = math.prod(up.strides)
        matrix = basis * math.sqrt(parts)
        if up is ups[-1]:
            matrix = torch.einsum("oc,cpk->opk", rotation, matrix.view(31, parts, -1)).flatten(0, 1)
            up.conv.conv.bias.fill_(1)
        set_centre(up.conv, matrix)
    for name, value in decoder.named_parameters():
        if "conv2" in name:
            value.mul_(0.1)
    set_centre(decoder.conv_out, bases[0] @ torch.linalg.pinv(rotation) / 0.9277)  # the slope of SiLU at 1
    decoder.conv_out.conv.bias.copy_(mean - 0.7311 * decoder.conv_out.conv.weight.sum((1, 2, 3, 4)))  # SiLU(1)


# Training -----------------------------------------------------------------

ENCODER_ONLY = 0.15  # the part of the training in which the encoder learns the components


def reconstruction_loss(result, pixels):
    """L1 and squared error, and the L1 error of horizontal and vertical differences."""
    error = result - pixels
    edges = error.diff(dim=-1).abs().mean() + error.diff(dim=-2).abs().mean()
    return error.abs().mean() + 5 * error.square().mean() + 0.25 * edges


class Muon(torch.optim.Optimizer):
    """Momentum whose step is made orthogonal, for weights seen as (out, in * 27) matrices."""

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
                for _ in range(5):  # Newton-Schulz: singular values towards 1
                    gram = x @ x.T
                    x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
                p.add_(x.view_as(p), alpha=-group["lr"] * 0.2 * math.sqrt(max(x.shape)))


def processor_time():
    """Seconds on all threads' processors, so that a busy machine does not shorten the training."""
    return time.process_time() / torch.get_num_threads()


def schedule(progress, step):
    """Factor of the learning rate: two half cosines, the first for the encoder alone and twice as high."""
    alone = progress < ENCODER_ONLY
    part = progress / ENCODER_ONLY if alone else (progress - ENCODER_ONLY) / (1 - ENCODER_ONLY)
    return (1 + alone) * min(1, (step + 1) / 100) * (0.02 + 0.49 * (1 + math.cos(math.pi * part)))


def train(arguments):
    """Train until ``arguments.minutes`` are used up, all runs with this state together.

    Returns the VAE with averaged weights and the training clips.
    """
    pool = load_pool(arguments.state.with_suffix(".clips.npy"), arguments.clips)
    components = principal_components(pool)
    vae = VAE(CONFIG)
    start_decoder(vae.decoder, components)
    weights = (components[2] / components[2][0]).view(1, -1, 1, 1, 1)
    inner = [p for n, p in vae.named_parameters() if p.dim() == 5 and "conv_in" not in n and "conv_out" not in n]
    outer = [p for p in vae.parameters() if all(p is not q for q in inner)]
    optimizers = [Muon(inner, 1), torch.optim.AdamW(outer, 1, (0.9, 0.99), weight_decay=0.0)]
    average = {k: v.clone() for k, v in vae.state_dict().items()}
    step, used = 0, 0.0
    if arguments.state.exists():
        state = torch.load(arguments.state)
        vae.load_state_dict(state["vae"])
        average, step, used = state["average"], state["step"], state["used"]
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
    rng = np.random.default_rng(step)
    begun, saved_at, losses = processor_time() - used, time.monotonic(), []
    while (used := processor_time() - begun) < 60 * arguments.minutes:
        progress = used / (60 * arguments.minutes)
        rate = arguments.rate * schedule(progress, step)
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = rate
        pixels = draw_batch(pool, rng)
        with torch.autocast("cpu", torch.bfloat16):
            latents = vae.encoder(pixels).float()
            if progress >= ENCODER_ONLY:
                noise = 0.03 * latents.detach().std() * torch.randn(latents.shape)
                result = vae.decoder(latents + noise).float()
        if progress < ENCODER_ONLY:
            error = (latents - to_components(pixels, components)).square() * weights
            loss = error.mean() / weights.mean()
            losses.append(loss.item())
        else:
            loss = reconstruction_loss(result, pixels)
            losses.append(F.mse_loss(result.detach(), pixels).item() / 4)
        loss.backward()
        nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        step += 1
        keep = min(0.998, step / (step + 10))
        for name, value in vae.state_dict().items():
            average[name].lerp_(value, 1 - keep)
        if step % 50 == 0:
            name = "components" if progress < ENCODER_ONLY else "pixels"
            psnr = -10 * math.log10(np.mean(losses))
            log(f"{used / 60:6.1f} min  step {step:6d}  rate {rate:.1e}  {name} {psnr:5.2f} dB")
            losses = []
        if time.monotonic() - saved_at > 60:
            saved_at = time.monotonic()
            save_state(arguments.state, vae, average, optimizers, step, used)
    save_state(arguments.state, vae, average, optimizers, step, used)
    vae.load_state_dict(average)
    return vae.eval(), pool


def save_state(path, vae, average, optimizers, step, used):
    """Write all that a later run needs to go on."""
    saved = {"vae": vae.state_dict(), "average": average, "step": step, "used": used}
    torch.save(saved | {"optimizers": [optimizer.state_dict() for optimizer in optimizers]}, path)


@torch.no_grad()
def set_statistics(vae, pool):
    """Per-channel mean and standard deviation of the latents of whole training clips."""
    latents = torch.cat([vae.encoder(to_pixels(pool[i : i + 4])) for i in range(0, min(len(pool), 160), 4)])
    vae.mean.copy_(latents.mean((0, 2, 3, 4)))
    vae.std.copy_(latents.std((0, 2, 3, 4)))


# Results ------------------------------------------------------------------


@torch.no_grad()
def write_latents(vae, path):
    """Encode the demo clip, which no training seed gives, and store its latents."""
    frames = procedural_clips.demo_clip()
    latents = vae.encode(to_pixels(frames[None]))
    num_frames, height, width, _ = frames.shape
    metadata = {"fps": 24, "num_frames": num_frames, "height": height, "width": width, "normalized": "true"}
    save_file({"latents": latents.contiguous()}, str(path), {k: str(v) for k, v in metadata.items()})


def count_flop(vae, latents):
    """Multiplications and additions of the decoder's convolutions for these latents."""
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
    """Print the PSNR of unseen clips and of the demo clip, from the files in ``folder``."""
    vae, _ = load_checkpoint(folder / "vae.safetensors")
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
    """Originals above results, four frames side by side."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    chosen = np.linspace(0, len(frames) - 1, 4).astype(int)
    rows = [np.concatenate(list(video[chosen]), 1) for video in (frames, result.astype(np.uint8))]
    Image.fromarray(np.concatenate(rows)).save(folder / f"{name}.png")


def log(text):
    print(text, file=sys.stderr, flush=True)


def main(argv=None):
    parser = argparse.ArgumentParser(description="Train the demo VAE and encode its clip.")
    parser.add_argument("--output", type=Path, default=DEMO_FOLDER, help="folder for the two files")
    parser.add_argument("--state", type=Path, default=Path("demo_vae.pt"), help="file to go on from and to save to")
    parser.add_argument("--minutes", type=float, default=30, help="processor minutes per thread, all runs together")
    parser.add_argument("--clips", type=int, default=1200, help="number of training clips")
    parser.add_argument("--rate", type=float, default=1e-3, help="highest learning rate of the joint training")
    parser.add_argument("--threads", type=int, help="torch threads")
    parser.add_argument("--evaluate", action="store_true", help="train nothing, measure the files in --output")
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
        vae, _ = load_checkpoint(arguments.output / "vae.safetensors")  # as others will read it
        write_latents(vae, arguments.output / "latents.safetensors")
    evaluate(arguments.output, arguments.pictures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
