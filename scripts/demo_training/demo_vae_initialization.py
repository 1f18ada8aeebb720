"""The initial weights of the demo VAE's decoder: the inverse of a principal component analysis."""

import math
from typing import NamedTuple

import torch

from demo_vae_data import to_pixels
from demo_vae_network import CONFIG, STRIDES, Upsample, patchify, per_channel, space_to_depth

# Factors along time, height and width by which each level merges blocks of pixels.
MERGES = [(1, 1, 1), *(STRIDES[name] for name, _ in CONFIG["decoder_blocks"] if name != "res_x")]


class Components(NamedTuple):
    """Principal components of 4x4 patches, of 2x2 of those, and so on up to 32x32x8 blocks.

    Attributes:
        mean: the mean patch.
        bases: one (values, components) matrix per level, with orthonormal columns.
        deviation: the standard deviation of the components of the last level.
    """

    mean: torch.Tensor
    bases: list[torch.Tensor]
    deviation: torch.Tensor


def per_position(x, matrix):
    """(B, C, T, H, W) times (C, K) -> (B, K, T, H, W)."""
    return torch.einsum("bcthw,ck->bkthw", x, matrix)


@torch.no_grad()
def principal_components(pool):
    """Return the components of training clips, uint8 (n, T, H, W, 3), 31 to 64 of them per level."""
    x = patchify(to_pixels(pool[:80, 1:]), CONFIG["patch_size"])
    mean = x.mean((0, 2, 3, 4))
    x, bases = x - per_channel(mean), []
    for width, strides in zip((31, 32, 32, 32, 64), MERGES, strict=True):
        x = space_to_depth(x, strides)
        rows = x.transpose(0, 1).flatten(1)
        bases.append(torch.linalg.eigh(rows @ rows.T / rows.shape[1])[1].flip(1)[:, :width].contiguous())
        x = per_position(x, bases[-1]) / math.sqrt(math.prod(strides))
    return Components(mean, bases, x.square().mean((0, 2, 3, 4)).sqrt())


@torch.no_grad()
def to_components(pixels, components):
    """Pixels (B, 3, 1 + 8 (t - 1), H, W) -> components (B, 64, t, h, w) of unit variance."""
    mean, bases, deviation = components
    pixels = torch.cat([pixels[:, :, :1].expand(-1, -1, 7, -1, -1), pixels], dim=2)
    x = patchify(pixels, CONFIG["patch_size"]) - per_channel(mean)
    for basis, strides in zip(bases, MERGES, strict=True):
        x = per_position(space_to_depth(x, strides), basis) / math.sqrt(math.prod(strides))
    return x / per_channel(deviation)


@torch.no_grad()
def initialize_decoder(decoder, components):
    """Make the decoder approximate the inverse of `to_components`, on the center taps of its convolutions.

    The last features are small deviations from 1, where pixel norm and SiLU are nearly linear. They are rotated so
    that they sum to zero.
    """
    mean, bases, deviation = components
    ones_first = torch.cat([torch.ones(32, 1), torch.randn(32, 31)], 1)
    rotation = torch.linalg.qr(ones_first)[0][:, 1:] * 0.35  # (32, 31)

    def set_center(conv, matrix):  # (out, in)
        conv.conv.weight.mul_(0.02)
        conv.conv.weight[:, :, 1, 1, 1] += matrix

    set_center(decoder.conv_in, torch.diag(deviation))
    ups = [block for block in decoder.up_blocks if isinstance(block, Upsample)]
    for up, basis in zip(ups, bases[:0:-1], strict=True):
        parts = math.prod(up.strides)
        matrix = basis * math.sqrt(parts)
        if up is ups[-1]:
            matrix = torch.einsum("oc,cpk->opk", rotation, matrix.view(31, parts, -1)).flatten(0, 1)
            up.conv.conv.bias.fill_(1)
        set_center(up.conv, matrix)
    for name, value in decoder.named_parameters():
        if "conv2" in name:
            value.mul_(0.1)
    set_center(decoder.conv_out, bases[0] @ torch.linalg.pinv(rotation) / 0.9277)  # the slope of SiLU at 1
    decoder.conv_out.conv.bias.copy_(mean - 0.7311 * decoder.conv_out.conv.weight.sum((1, 2, 3, 4)))  # SiLU(1)
