"""Train the small VAE that ships as ``mlx_ltx_vae/demo``, and encode its clip.

The network has the blocks of LTX-2.3 at narrow widths; it learns from the
clips of ``procedural_clips.py`` alone. Needs torch, NumPy and safetensors.

    python examples/train_demo_vae.py --minutes 50 --state demo.pt
    python examples/train_demo_vae.py --evaluate --pictures frames/

A run that is called again with the same ``--state`` goes on where the last
one ended. The checkpoint has the layout of the published files: tensors
``vae.encoder.*``, ``vae.decoder.*``, ``vae.per_channel_statistics.*`` and the
metadata entry ``config``.

Shapes are torch's here: pixels ``(B, 3, T, H, W)`` in [-1, 1], latents
``(B, C, t, h, w)``.
"""

import argparse
import json
import math
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

CONFIG = {
    "_class_name": "CausalVideoAutoencoder",
    "dims": 3,
    "in_channels": 3,
    "out_channels": 3,
    "latent_channels": 64,
    "encoder_blocks": [
        ["res_x", {"num_layers": 1}],
        ["compress_space_res", {"multiplier": 1}],
        ["res_x", {"num_layers": 1}],
        ["compress_time_res", {"multiplier": 1}],
        ["res_x", {"num_layers": 1}],
        ["compress_all_res", {"multiplier": 1}],
        ["res_x", {"num_layers": 1}],
        ["compress_all_res", {"multiplier": 1}],
        ["res_x", {"num_layers": 1}],
    ],
    "decoder_blocks": [  # as in the published files: walked from the last to the first
        ["res_x", {"num_layers": 2}],
        ["compress_space", {"multiplier": 2}],
        ["res_x", {"num_layers": 2}],
        ["compress_time", {"multiplier": 1}],
        ["res_x", {"num_layers": 3}],
        ["compress_all", {"multiplier": 1}],
        ["res_x", {"num_layers": 2}],
        ["compress_all", {"multiplier": 2}],
        ["res_x", {"num_layers": 1}],
    ],
    "scaling_factor": 1.0,
    "norm_layer": "pixel_norm",
    "patch_size": 4,
    "latent_log_var": "uniform",
    "use_quant_conv": False,
    "causal_decoder": False,
    "timestep_conditioning": False,
    "normalize_latent_channels": False,
    "encoder_base_channels": 64,
    "decoder_base_channels": 16,
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
