"""Frames on their way out of the network: from pixels in [-1, 1] to what a sink writes."""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from .errors import DecodeError, LatentsError

_LEVELS = {8: (255, mx.uint8), 10: (65535, mx.uint16)}


def quantise(frames: mx.array, bit_depth: int) -> mx.array:
    """Pixels in [-1, 1] to levels, rounded: uint8 for a bit depth of 8, uint16 over its full range for 10."""
    peak, dtype = _LEVELS[bit_depth]
    # float32 first: bfloat16 has 8 bits and would round away half of the levels.
    levels = (frames.astype(mx.float32) + 1) * (peak / 2)
    return mx.clip(mx.round(levels), 0, peak).astype(dtype)


@dataclass(frozen=True)
class FrameChunk:
    """Finished frames, in order.

    Attributes:
        start: the index of the first of them in the video.
        frames: (B, n, H, W, 3): floats in about [-1, 1], as the network gives them; or levels, where the stream was
            told a bit depth and has kept no more than that.
    """

    start: int
    frames: mx.array

    @property
    def pixels(self) -> mx.array:
        """(B, 3, n, H, W) in about [-1, 1].

        Raises:
            LatentsError: where only levels were kept.
        """
        if not mx.issubdtype(self.frames.dtype, mx.floating):
            raise LatentsError("this stream was told a bit depth and keeps no floats; leave out bit_depth for pixels.")
        return self.frames.transpose(0, 4, 1, 2, 3)

    def to_uint8(self) -> np.ndarray:
        """The frames of a single video as (n, H, W, 3) uint8, converted on the device: round((x + 1) * 127.5).

        Raises:
            LatentsError: for a batch, which is several videos, and where other levels were kept.
        """
        return self._levels(8)

    def to_uint16(self) -> np.ndarray:
        """Likewise (n, H, W, 3) uint16 over the full range, for sinks of more than 8 bits."""
        return self._levels(10)

    def _levels(self, bit_depth: int) -> np.ndarray:
        batch = self.frames.shape[0]
        if batch != 1:
            raise LatentsError(f"a batch of {batch} is as many videos and not one; decode latents[i:i+1] by itself.")
        if mx.issubdtype(self.frames.dtype, mx.floating):
            return np.asarray(quantise(self.frames[0], bit_depth))
        if self.frames.dtype != _LEVELS[bit_depth][1]:
            raise LatentsError(
                f"this stream was told another bit depth than {bit_depth} and has kept no more than that."
            )
        return np.asarray(self.frames[0])


class Watch:
    """Sees that what comes out of the network can be a decode: finite, and not the same patch everywhere.

    A convolution that silently returned zeros (known of GPU kernels on huge inputs) leaves nothing but the last
    bias, which repeats from patch to patch. A picture is never so to the last bit, unless its latents are flat.

    Args:
        patch_size: of the network.
        may_be_flat: whether the latents are the same everywhere.
    """

    def __init__(self, patch_size: int, *, may_be_flat: bool) -> None:
        self._patch = patch_size
        self._flat = not may_be_flat

    def see(self, frames: mx.array) -> None:
        """Look at a piece (B, n, h, w, 3), evaluated.

        Raises:
            DecodeError: if it is not finite.
        """
        step = self._patch
        down = (frames[:, :, step:] == frames[:, :, :-step]).all()
        across = (frames[:, :, :, step:] == frames[:, :, :, :-step]).all()
        is_finite, is_flat = mx.stack([mx.isfinite(frames).all(), down & across]).tolist()
        if not is_finite:
            raise DecodeError("the decoded pixels are not finite: the network overflowed; try dtype float32.")
        self._flat = self._flat and is_flat

    def close(self) -> None:
        """Say so if nothing but one flat patch was seen.

        Raises:
            DecodeError: then.
        """
        if self._flat:
            raise DecodeError(
                "the decoded pixels are one flat patch everywhere: a convolution on this device failed silently; "
                "try another dtype, or mode exact with a chunk of 1."
            )
