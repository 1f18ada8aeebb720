"""Latent upsamplers for tests: golden cases, random weights of any configuration, and what they compute, in NumPy."""

import json
import math
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

import synthetic_checkpoint

FOLDER = Path(__file__).parent / "fixtures" / "upsampler"
CASES = sorted(path.stem for path in FOLDER.glob("*.json"))
RATIOS = {0.75: (3, 4), 1.5: (3, 2), 2.0: (2, 1), 4.0: (4, 1)}
_TAPS = np.array([1, 4, 6, 4, 1]) / 16


def golden_case(name, folder):
    """A golden case: its file, written to a folder, its arrays, and its configuration."""
    manifest, arrays = json.loads((FOLDER / f"{name}.json").read_text()), load_file(FOLDER / f"{name}.safetensors")
    seed, shapes = manifest["seed"], manifest["weights"]
    weights = {name: synthetic_checkpoint.make_tensor(seed, name, shape) for name, shape in shapes.items()}
    weights |= {name: arrays[name] for name in manifest["stored"]}
    return write(folder / f"{name}.safetensors", weights, manifest["config"]), arrays, manifest["config"]


def write(path, weights, config=None):
    """Write a single file with its configuration in the metadata, as it is published."""
    save_file(weights, path, None if config is None else {"config": json.dumps(config)})
    return path


def make_config(mid=32, *, channels=8, blocks=1, dims=3, space=True, time=False, scale=None):
    """A configuration as ltx-core states it. With a `scale`, space is resampled by it."""
    return {
        "_class_name": "LatentUpsampler",
        "in_channels": channels,
        "mid_channels": mid,
        "num_blocks_per_stage": blocks,
        "dims": dims,
        "spatial_upsample": space,
        "temporal_upsample": time,
        "spatial_scale": scale or 2.0,
        "rational_resampler": scale is not None,
    }


def make_weights(config, seed=0):
    """Random weights of a configuration."""
    channels, mid, dims = (config[key] for key in ("in_channels", "mid_channels", "dims"))
    shapes = {}

    def add_conv(name, inputs, outputs, axes):
        shapes.update({f"{name}.weight": (outputs, inputs, *[3] * axes), f"{name}.bias": (outputs,)})

    add_conv("initial_conv", channels, mid, dims)
    norms = ["initial_norm"]
    for stage in ("res_blocks", "post_upsample_res_blocks"):
        for block in range(config["num_blocks_per_stage"]):
            for number in (1, 2):
                add_conv(f"{stage}.{block}.conv{number}", mid, mid, dims)
                norms.append(f"{stage}.{block}.norm{number}")
    for name in norms:
        shapes.update({f"{name}.weight": (mid,), f"{name}.bias": (mid,)})
    factor, is_rational = math.prod(_up(config)), _is_rational(config)
    name = "upsampler.conv" if is_rational else "upsampler.0"
    add_conv(name, mid, factor * mid, 3 if config["temporal_upsample"] else 2)
    add_conv("final_conv", mid, channels, dims)
    weights = {name: synthetic_checkpoint.make_tensor(seed, name, shape) for name, shape in shapes.items()}
    if is_rational:
        weights["upsampler.blur_down.kernel"] = np.outer(_TAPS, _TAPS).astype(np.float32)[None, None]
    return weights


def _is_rational(config):
    return config["rational_resampler"] and not config["temporal_upsample"]


def _up(config):
    space = RATIOS[config["spatial_scale"]][0] if _is_rational(config) else 2 if config["spatial_upsample"] else 1
    return 2 if config["temporal_upsample"] else 1, space, space


def compute(config, weights, latents):
    """What the network makes of latents (B, C, T, H, W) that are not normalized, in float64."""
    weights, frames = {name: array.astype(np.float64) for name, array in weights.items()}, latents.shape[2]
    x = latents.astype(np.float64)
    is_flat = config["dims"] == 2
    if is_flat:  # each frame is a clip
        x = x.swapaxes(1, 2).reshape(-1, latents.shape[1], 1, *latents.shape[3:])
    x = _silu(_norm(_conv(x, weights, "initial_conv"), weights, "initial_norm"))
    x = _blocks(x, weights, "res_blocks", config)
    x = _shuffle(_conv(x, weights, "upsampler.conv" if _is_rational(config) else "upsampler.0"), _up(config))
    if _is_rational(config) and (stride := RATIOS[config["spatial_scale"]][1]) > 1:
        kernel, padded = np.outer(_TAPS, _TAPS), np.pad(x, [(0, 0)] * 3 + [(2, 2)] * 2)
        windows = np.lib.stride_tricks.sliding_window_view(padded, (5, 5), axis=(3, 4))
        x = np.einsum("bcthwij,ij->bcthw", windows, kernel)[:, :, :, ::stride, ::stride]
    x = x[:, :, 1:] if config["temporal_upsample"] else x
    x = _conv(_blocks(x, weights, "post_upsample_res_blocks", config), weights, "final_conv")
    return x[:, :, 0].reshape(-1, frames, *x.shape[1:2], *x.shape[3:]).swapaxes(1, 2) if is_flat else x


def _blocks(x, weights, stage, config):
    for block in (f"{stage}.{index}" for index in range(config["num_blocks_per_stage"])):
        hidden = _silu(_norm(_conv(x, weights, f"{block}.conv1"), weights, f"{block}.norm1"))
        x = _silu(_norm(_conv(hidden, weights, f"{block}.conv2"), weights, f"{block}.norm2") + x)
    return x


def _silu(x):
    return x / (1 + np.exp(-x))


def _conv(x, weights, name):
    kernel, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
    if kernel.ndim == 4:  # of frames alone
        kernel = kernel[:, :, None]
    padded = np.pad(x, [(0, 0), (0, 0), *((size // 2, size // 2) for size in kernel.shape[2:])])
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernel.shape[2:], axis=(2, 3, 4))
    result = np.tensordot(windows, kernel, axes=([1, 5, 6, 7], [1, 2, 3, 4]))
    return np.moveaxis(result + bias, -1, 1)


def _norm(x, weights, name):
    groups = x.reshape(len(x), 32, -1)
    normalized = (groups - groups.mean(2, keepdims=True)) / np.sqrt(groups.var(2, keepdims=True) + 1e-5)
    scale, shift = (weights[f"{name}.{leaf}"].reshape(-1, 1, 1, 1) for leaf in ("weight", "bias"))
    return normalized.reshape(x.shape) * scale + shift


def _shuffle(x, up):
    batch, channels, *grid = x.shape
    x = x.reshape(batch, -1, *up, *grid).transpose(0, 1, 5, 2, 6, 3, 7, 4)
    return x.reshape(batch, channels // math.prod(up), *(size * factor for size, factor in zip(grid, up, strict=True)))
