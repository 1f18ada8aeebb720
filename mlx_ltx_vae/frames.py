"""Frames on their way out of the network: from pixels in [-1, 1] to what a sink writes."""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from .errors import DecodeError, LatentsError


@dataclass(frozen=True)
class FrameChunk:
    """Finished frames, in order.

    Attributes:
        start: the index of the first of them in the video.
        frames: (B, n, H, W, 3) in about [-1, 1], as the network gives them.
    """

    start: int
    frames: mx.array

    @property
    def pixels(self) -> mx.array:
        """(B, 3, n, H, W) in about [-1, 1]."""
        return self.frames.transpose(0, 4, 1, 2, 3)

    def to_uint8(self) -> np.ndarray:
        """The frames of a single video as (n, H, W, 3) uint8, converted on the device: round((x + 1) * 127.5).

        Raises:
            LatentsError: for a batch, which is several videos.
        """
        return self._quantise(255, mx.uint8)

    def to_uint16(self) -> np.ndarray:
        """Likewise (n, H, W, 3) uint16 over the full range, for sinks of more than 8 bits."""
        return self._quantise(65535, mx.uint16)

    def _quantise(self, peak: int, dtype: mx.Dtype) -> np.ndarray:
        if self.frames.shape[0] != 1:
            raise LatentsError(
                f"a batch of {self.frames.shape[0]} is as many videos and not one; decode latents[i:i+1] by itself."
            )
        # float32 first: bfloat16 has 8 bits and would round away half of the levels.
        levels = (self.frames[0].astype(mx.float32) + 1) * (peak / 2)
        return np.asarray(mx.clip(mx.round(levels), 0, peak).astype(dtype))


def check_frames(frames: mx.array, start: int, patch_size: int, *, may_be_flat: bool) -> None:
    """Refuse frames (B, n, H, W, 3) that cannot be a decode: not finite, or every patch of a frame the same.

    A convolution that silently returned zeros (known of GPU kernels on huge inputs) leaves nothing but the last
    bias, which repeats from patch to patch. A picture is never so to the last bit, unless its latents are flat.

    Args:
        frames: evaluated.
        start: the index of the first of them, for the message.
        patch_size: of the network.
        may_be_flat: whether the latents are the same everywhere.

    Raises:
        DecodeError: saying from which frame on, and what to try.
    """
    finite = mx.isfinite(frames).all()
    down = (frames[:, :, patch_size:] == frames[:, :, :-patch_size]).all()
    across = (frames[:, :, :, patch_size:] == frames[:, :, :, :-patch_size]).all()
    is_finite, is_flat = mx.stack([finite, down & across]).tolist()
    if is_finite and (may_be_flat or not is_flat):
        return
    what = "all one flat patch" if is_finite else "not finite"
    raise DecodeError(
        f"the pixels from frame {start} on are {what}: the network or a convolution on this device failed; try another "
        "dtype, or mode exact with a chunk of 1."
    )
