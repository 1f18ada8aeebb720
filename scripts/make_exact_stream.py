"""Writes the test vectors of examples/exact_stream: python scripts/make_exact_stream.py [FOLDER]

A checkpoint in the layers of LTX-2.3 with few channels, latents, and what the package makes of them in one pass over
the whole clip: some of the frames, the means of all of them, and the two frames of its input that each convolution has
to keep after 1, 2, 9 and 16 latent frames.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import mlx.core as mx

from mlx_ltx_vae import VideoVAE
from mlx_ltx_vae.networks.layers import CausalConv3d

#: Latent frames after which the caches are stored. From the 16th on, each adds eight frames.
CACHED_AFTER = (1, 2, 9, 16)
NUM_LATENTS = 17
GRID = (2, 2)  # rows and columns of latents
FRAMES = [0, 1, 8, 9, 64, 113, 120, 128]  # that are stored
FOLDER = Path(__file__).parents[1] / "examples" / "exact_stream"
CONFIG = {
    "_class_name": "CausalVideoAutoencoder",
    "dims": 3,
    "latent_channels": 8,
    "decoder_base_channels": 4,
    "decoder_blocks": [
        ["res_x", {"num_layers": 4}],
        ["compress_space", {"multiplier": 2}],
        ["res_x", {"num_layers": 6}],
        ["compress_time", {"multiplier": 2}],
        ["res_x", {"num_layers": 4}],
        ["compress_all", {"multiplier": 1}],
        ["res_x", {"num_layers": 2}],
        ["compress_all", {"multiplier": 2}],
        ["res_x", {"num_layers": 2}],
    ],
    "norm_layer": "pixel_norm",
    "patch_size": 4,
    "causal_decoder": False,
    "timestep_conditioning": False,
    "spatial_padding_mode": "zeros",
}
# Of conv_in and of what follows it: input and output channels of a convolution and the factor of time of upsampling, or
# the channels and the number of residual blocks.
LAYERS = [(32, 2), (32, 128, 2), (16, 2), (16, 128, 2), (16, 4), (16, 16, 2), (8, 6), (8, 16, 1), (4, 4)]


def convolutions() -> Iterator[tuple[str, tuple[int, int], tuple[int, int], int]]:
    """Yield the name, the channels, the number of the stage and of the convolution in it, and its factor of time."""
    stage = 0
    yield "conv_in", (8, 32), (stage, 0), 1
    for index, (channels, count, *factors) in enumerate(LAYERS):
        if factors:
            stage += 1
            yield f"up_blocks.{index}.conv", (channels, count), (stage, 0), factors[0]
            continue
        for block in range(count):
            stage += 1
            for number in range(2):
                name = f"up_blocks.{index}.res_blocks.{block}.conv{number + 1}"
                yield name, (channels, channels), (stage, number), 1
    yield "conv_out", (4, 48), (stage + 1, 0), 1


def make_checkpoint() -> dict[str, mx.array]:
    weights = {}
    for name, (inputs, outputs), _, _ in convolutions():
        scale = (0.3 if name == "conv_out" else 0.5) * (27 * inputs) ** -0.5  # pixels are then in [-1, 1]
        weights[f"vae.decoder.{name}.conv.weight"] = mx.random.normal((outputs, inputs, 3, 3, 3)) * scale
        weights[f"vae.decoder.{name}.conv.bias"] = mx.random.normal((outputs,)) * 0.3
    weights["vae.per_channel_statistics.mean-of-means"] = mx.random.normal((8,)) * 0.1
    weights["vae.per_channel_statistics.std-of-means"] = mx.random.uniform(0.5, 1.5, (8,))
    return {name: array.astype(mx.bfloat16) for name, array in weights.items()}


def make_caches(inputs: Sequence[mx.array]) -> dict[str, mx.array]:
    """Return the frames that each convolution keeps, of all frames (F, H, W, C) that it sees in a whole clip."""
    caches = {}
    for latents in CACHED_AFTER:
        num_frames = latents
        for (_, _, (stage, number), factor), frames in zip(convolutions(), inputs, strict=True):
            if num_frames == 0:
                break
            extended = mx.concatenate([frames[:1], frames])
            caches[f"caches.{latents}.{stage}.{number}"] = extended[num_frames - 1 : num_frames + 1]
            num_frames = factor * (num_frames - 1) - (factor > 1 and num_frames > 1)
    return caches


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    mx.random.seed(0)
    metadata = {"config": json.dumps({"vae": CONFIG})}
    mx.save_safetensors(str(folder / "checkpoint.safetensors"), make_checkpoint(), metadata)
    decoder = VideoVAE.from_pretrained(folder / "checkpoint.safetensors", dtype="float32").decoder
    latents = mx.random.normal((1, 8, NUM_LATENTS, *GRID))
    inputs, call = [], CausalConv3d.__call__

    def record(layer: CausalConv3d, view: Any, frames: mx.array, *arguments: Any, **options: Any) -> mx.array:
        inputs.append(frames[0])
        return call(layer, view, frames, *arguments, **options)

    with mock.patch.object(CausalConv3d, "__call__", record):
        frames = decoder(latents)[0].transpose(1, 2, 3, 0)
    vectors = {
        "latents": latents,
        "frames": frames[mx.array(FRAMES)],
        "frame_numbers": mx.array(FRAMES, mx.uint32),
        "means": frames.mean(axis=(1, 2)),
    }
    mx.save_safetensors(str(folder / "vectors.safetensors"), vectors | make_caches(inputs))


if __name__ == "__main__":
    main()
