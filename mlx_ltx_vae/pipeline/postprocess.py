"""Frames on their way out of the network: from pixels in [-1, 1] to what a sink writes."""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from ..errors import DecodeError, LatentsError

_NOT_FINITE = "the decoded pixels are not finite: the network overflowed; try dtype float32."

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
        is_finite: a flag on the device: whether all that the decode has made so far is; None where nobody watched.
    """

    start: int
    frames: mx.array
    is_finite: mx.array | None = None

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
            DecodeError: for pixels that are not finite.
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
            levels = np.asarray(quantise(self.frames[0], bit_depth))
        elif self.frames.dtype == _LEVELS[bit_depth][1]:
            levels = np.asarray(self.frames[0])
        else:
            raise LatentsError(
                f"this stream was told another bit depth than {bit_depth} and has kept no more than that."
            )
        self.check()
        return levels

    def check(self) -> None:
        """See that the frames can be a picture. Waits for them, so call it where they are read anyway.

        Raises:
            DecodeError: if they are not finite.
        """
        if self.is_finite is not None and not self.is_finite.item():
            raise DecodeError(_NOT_FINITE)


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
        self._is_flat = mx.array(not may_be_flat)
        #: A flag on the device: whether everything seen so far is finite.
        self.is_finite = mx.array(True)

    def see(self, frames: mx.array) -> None:
        """Look at a piece (B, n, h, w, 3). What is found stays on the device: nothing waits for it here."""
        step = self._patch
        down = (frames[:, :, step:] == frames[:, :, :-step]).all()
        across = (frames[:, :, :, step:] == frames[:, :, :, :-step]).all()
        self._is_flat = self._is_flat & down & across
        self.is_finite = self.is_finite & mx.isfinite(frames).all()
        mx.async_eval(self._is_flat, self.is_finite)

    def close(self) -> None:
        """Say what was wrong with what was seen, in all.

        Raises:
            DecodeError: if something was not finite, or if nothing but one flat patch was seen.
        """
        is_finite, is_flat = mx.stack([self.is_finite, self._is_flat]).tolist()
        if not is_finite:
            raise DecodeError(_NOT_FINITE)
        if is_flat:
            raise DecodeError(
                "the decoded pixels are one flat patch everywhere: a convolution on this device failed silently; "
                "try another dtype, or mode exact with a chunk of 1."
            )
