"""Padding of a small clip with keyframes, which the noise that a caller passes may be made for.

LTX's own code pads clips that are smaller than the decoder's windows, with keyframes too; diffusers, and this package
where noise comes from a seed, cut the windows in place of it.
"""

from collections.abc import Generator
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

import mlx.core as mx

from ..backend.mlx_utils import to_mlx
from ..latents.keyframes import Keyframes
from ..models.noise import Noise
from ..models.specs import NetworkSpec
from ..shapes import Grid
from ..streaming.axis import Axis
from .latent_sources import Latents
from .postprocess import FrameChunk


class PaddedClip(NamedTuple):
    """Latents and keyframes with repeated edges, and where the video lies in what they decode to."""

    latents: mx.array
    keyframes: Keyframes
    start: Grid
    size: Grid

    def crop(self, chunks: Generator[FrameChunk, None, None]) -> Generator[FrameChunk, None, None]:
        """The part of each chunk that belongs to the video."""
        (_, top, left), (frames, height, width) = self.start, self.size
        with closing(chunks):
            for chunk in chunks:
                if chunk.start < frames:
                    kept = chunk.frames[:, : frames - chunk.start, top : top + height, left : left + width]
                    yield replace(chunk, frames=kept)


def pad_as_noise(spec: NetworkSpec, latents: Latents, keyframes: Keyframes, noise: Noise) -> PaddedClip | None:
    """The clip padded as the first noise array (B, C, T, H, W) is; None if it has the size of the clip itself."""
    time, height, width = latents.shape[2:]
    added = [spec.added(axis, length) for axis, length in zip(Axis, (time, height, width), strict=True)]
    first = noise[0] if isinstance(noise, (list, tuple)) and noise else None
    if not any(map(sum, added)) or first is None or first.ndim != 5:
        return None
    out, scale = spec.out_grid((time, height, width)), spec.scale
    whole = [length + sum(more) * factor for length, more, factor in zip(out, added, scale, strict=True)]
    sizes = [(whole[0], whole[1] // side, whole[2] // side) for side in (1, spec.patch_size or 1)]
    if tuple(first.shape[2:]) not in sizes:
        return None
    padded = mx.pad(to_mlx(latents[:, :, :, :, :], "latents"), [(0, 0), (0, 0), *added], mode="edge")
    planes = mx.pad(to_mlx(keyframes.latents, "latents"), [(0, 0)] * 3 + added[1:], mode="edge")
    starts = [before * factor for (before, _), factor in zip(added, scale, strict=True)]
    return PaddedClip(padded, Keyframes(planes, keyframes.frames), (starts[0], starts[1], starts[2]), out)
