"""The network of the demo VAE in torch, and its checkpoint: the blocks of LTX-2.3 with few channels.

Shapes: pixels (B, 3, T, H, W) in [-1, 1], latents (B, C, t, h, w), with T = 1 + 8 (t - 1), H = 32 h and W = 32 w.
"""

import json
import math

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

# Each block is followed by its number of layers (res_x) or its multiplier (compress_*). Both lists are ordered from
# pixels to latents.
ENCODER = (
    "res_x 1, compress_space_res 1, res_x 1, compress_time_res 1, res_x 2, compress_all_res 2, res_x 1, "
    "compress_all_res 1, res_x 2"
)
DECODER = (
    "res_x 1, compress_space 1, res_x 2, compress_time 1, res_x 2, compress_all 1, res_x 2, compress_all 2, res_x 1"
)


def block_list(text):
    """Return the blocks "res_x 1, compress_all 2" in the form of a checkpoint's configuration."""
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

# Factors along time, height and width by which a block downsamples or upsamples.
STRIDES = {"compress_time": (2, 1, 1), "compress_space": (1, 2, 2), "compress_all": (2, 2, 2)}


def per_channel(values):
    """(C,) -> (1, C, 1, 1, 1)."""
    return values.view(1, -1, 1, 1, 1)


def pixel_norm(x):
    """Divide each position by the root mean square of its channels."""
    return x * torch.rsqrt(x.float().square().mean(1, keepdim=True) + 1e-8).to(x.dtype)


def space_to_depth(x, strides):
    """(B, C, T, H, W) -> (B, C * prod(strides), T / p1, H / p2, W / p3)."""
    b, c, t, h, w = x.shape
    p1, p2, p3 = strides
    x = x.view(b, c, t // p1, p1, h // p2, p2, w // p3, p3).permute(0, 1, 3, 5, 7, 2, 4, 6)
    return x.reshape(b, c * p1 * p2 * p3, t // p1, h // p2, w // p3)


def depth_to_space(x, strides):
    """Return the inverse of `space_to_depth`; channels are (c p1 p2 p3)."""
    b, c, t, h, w = x.shape
    p1, p2, p3 = strides
    c //= p1 * p2 * p3
    x = x.view(b, c, p1, p2, p3, t, h, w).permute(0, 1, 5, 2, 6, 3, 7, 4)
    return x.reshape(b, c, t * p1, h * p2, w * p3)


def patchify(x, patch):
    """(B, 3, T, H, W) -> (B, 3 * patch^2, T, H / patch, W / patch); channels are (c, width, height)."""
    b, c, t, h, w = x.shape
    x = x.view(b, c, t, h // patch, patch, w // patch, patch).permute(0, 1, 6, 4, 2, 3, 5)
    return x.reshape(b, c * patch * patch, t, h // patch, w // patch)


def unpatchify(x, patch):
    """Return the inverse of `patchify`."""
    b, c, t, h, w = x.shape
    c //= patch * patch
    x = x.view(b, c, patch, patch, t, h, w).permute(0, 1, 4, 5, 3, 6, 2)
    return x.reshape(b, c, t, h * patch, w * patch)


class CausalConv3d(nn.Module):
    """3x3x3 convolution that pads time with copies of the edge frames and space with zeros."""

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
    """A sequence of residual blocks: res_x."""

    def __init__(self, channels, num_layers, causal):
        super().__init__()
        self.res_blocks = nn.ModuleList(ResBlock(channels, causal) for _ in range(num_layers))

    def forward(self, x):
        for block in self.res_blocks:
            x = block(x)
        return x


class Downsample(nn.Module):
    """compress_*_res of an encoder: a convolution and space to depth, plus the group means of the input."""

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
    """compress_* of a decoder: a convolution and depth to space. Upsampling in time drops the first frame."""

    def __init__(self, in_channels, out_channels, strides, causal):
        super().__init__()
        self.strides = strides
        self.conv = CausalConv3d(in_channels, out_channels * math.prod(strides), causal)

    def forward(self, x):
        x = depth_to_space(self.conv(x), self.strides)
        return x[:, :, 1:] if self.strides[0] == 2 else x


class Encoder(nn.Module):
    """Pixels (B, 3, T, H, W) -> unnormalized means (B, C, t, h, w)."""

    def __init__(self, config):
        super().__init__()
        self.patch = config["patch_size"]
        channels = config["encoder_base_channels"]
        self.conv_in = CausalConv3d(config["in_channels"] * self.patch**2, channels, causal=True)
        nn.init.ones_(self.conv_in.conv.bias[::4])  # a constant channel preserves the scale of the others in pixel norm
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
    """Unnormalized latents (B, C, t, h, w) -> pixels (B, 3, T, H, W)."""

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
    """Encoder, decoder, and the statistics that normalize latents."""

    def __init__(self, config):
        super().__init__()
        self.encoder, self.decoder = Encoder(config), Decoder(config)
        self.register_buffer("mean", torch.zeros(config["latent_channels"]))
        self.register_buffer("std", torch.ones(config["latent_channels"]))

    def encode(self, pixels):
        """Pixels (B, 3, T, H, W) -> normalized latents (B, C, t, h, w)."""
        return (self.encoder(pixels) - per_channel(self.mean)) / per_channel(self.std)

    def decode(self, latents):
        """Normalized latents (B, C, t, h, w) -> pixels (B, 3, T, H, W)."""
        return self.decoder(latents * per_channel(self.std) + per_channel(self.mean))


# Names of the buffers of `VAE` in the published files.
STATISTICS = {"mean": "vae.per_channel_statistics.mean-of-means", "std": "vae.per_channel_statistics.std-of-means"}


def save_checkpoint(vae, config, path):
    """Write a bfloat16 checkpoint with the names and metadata of the published files."""
    tensors = {STATISTICS.get(k, "vae." + k): v.to(torch.bfloat16).contiguous() for k, v in vae.state_dict().items()}
    save_file(tensors, str(path), metadata={"config": json.dumps({"vae": config})})


def load_checkpoint(path):
    """Load the float32 VAE of a checkpoint written by `save_checkpoint`."""
    with safe_open(str(path), "pt") as file:
        config = json.loads(file.metadata()["config"])["vae"]
    names = {v: k for k, v in STATISTICS.items()}
    tensors = {names.get(k, k.removeprefix("vae.")): v.float() for k, v in load_file(str(path)).items()}
    vae = VAE(config)
    vae.load_state_dict({k: v for k, v in tensors.items() if not k.startswith("per_channel_statistics.")})
    return vae.eval()
