"""Frames on their way out of a decoder: from pixels in [-1, 1] to what a sink writes."""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from ..errors import DecodeError, LatentsError
from ..mlx_utils import to_bool, to_list

_NOT_FINITE = "the decoded pixels are not finite: the network overflowed; try dtype float32."

_PEAKS = {8: 255, 10: 65535}
_DTYPES = {8: mx.uint8, 10: mx.uint16}


def to_levels(frames: mx.array, bit_depth: int) -> mx.array:
    """Pixels in [-1, 1] as levels, rounded: uint8 for a bit depth of 8, uint16 over its full range for 10."""
    # float32 first: bfloat16 has 8 bits and would round half of the levels away.
    levels = (frames.astype(mx.float32) + 1) * (_PEAKS[bit_depth] / 2)
    return mx.clip(mx.round(levels), 0, _PEAKS[bit_depth]).astype(_DTYPES[bit_depth])


@dataclass(frozen=True)
class FrameChunk:
    """Finished frames, in order. It means the same whatever the plan.

    Attributes:
        start: the index of the first of them in the video.
        frames: (B, n, H, W, 3): floats in about [-1, 1], as the network gives them; or, from a stream that was given a
            bit depth, levels.
        is_finite: a flag on the device: whether everything that the decode has made so far is finite; None where nobody
            looked.
    """

    start: int
    frames: mx.array
    is_finite: mx.array | None = None

    @property
    def pixels(self) -> mx.array:
        """(B, 3, n, H, W) in about [-1, 1]. Levels come back as float32, rounded as they are."""
        frames = self.frames
        bit_depth = self._bit_depth
        if bit_depth:
            frames = frames.astype(mx.float32) * (2 / _PEAKS[bit_depth]) - 1
        return frames.transpose(0, 4, 1, 2, 3)

    def to_uint8(self) -> np.ndarray:
        """The frames of a single video as (n, H, W, 3) uint8, converted on the device: round((x + 1) * 127.5).

        Raises:
            LatentsError: for a batch, which is several videos.
            DecodeError: for pixels that are not finite.
        """
        return self._levels(8)

    def to_uint16(self) -> np.ndarray:
        """Likewise (n, H, W, 3) uint16 over the full range, for sinks of more than 8 bits."""
        return self._levels(10)

    def check(self) -> None:
        """Refuse frames that cannot be a picture. Waits for them, so call it where they are read anyway.

        Raises:
            DecodeError: if they are not finite.
        """
        if self.is_finite is not None and not to_bool(self.is_finite):
            raise DecodeError(_NOT_FINITE)

    @property
    def _bit_depth(self) -> int | None:
        """Of the levels; None for floats."""
        return next((depth for depth, dtype in _DTYPES.items() if self.frames.dtype == dtype), None)

    def _levels(self, bit_depth: int) -> np.ndarray:
        batch = self.frames.shape[0]
        if batch != 1:
            raise LatentsError(f"a batch of {batch} is as many videos and not one; decode latents[i:i+1] by itself.")
        frames = self.frames[0]
        own = self._bit_depth
        if own is None:
            frames = to_levels(frames, bit_depth)
        elif own != bit_depth:
            frames = mx.round(frames.astype(mx.float32) * (_PEAKS[bit_depth] / _PEAKS[own])).astype(_DTYPES[bit_depth])
        levels = np.asarray(frames)
        self.check()
        return levels


class OutputCheck:
    """Checks that what comes out of a decoder can be a picture: finite, and not the same patch everywhere.

    A convolution that silently returned zeros (known of GPU kernels on huge inputs) leaves nothing but the last bias,
    which repeats from patch to patch. A picture never does so to the last bit, unless its latents are constant.

    Args:
        patch_size: pixels per cell of the network's finest grid, along each side.
        may_be_flat: whether the latents are the same everywhere.
    """

    def __init__(self, patch_size: int, *, may_be_flat: bool) -> None:
        self._patch_size = patch_size
        self._is_flat = mx.array(not may_be_flat)
        #: A flag on the device: whether everything so far is finite.
        self.is_finite = mx.array(True)

    def update(self, frames: mx.array) -> None:
        """Look at a piece (B, n, h, w, 3). What is found stays on the device; nothing waits for it here."""
        step = self._patch_size
        down = (frames[:, :, step:] == frames[:, :, :-step]).all()
        across = (frames[:, :, :, step:] == frames[:, :, :, :-step]).all()
        self._is_flat = self._is_flat & down & across
        self.is_finite = self.is_finite & mx.isfinite(frames).all()
        mx.async_eval(self._is_flat, self.is_finite)

    def close(self) -> None:
        """Raise what was wrong with everything that was seen.

        Raises:
            DecodeError: if something was not finite, or if there was nothing but one flat patch.
        """
        is_finite, is_flat = to_list(mx.stack([self.is_finite, self._is_flat]))
        if not is_finite:
            raise DecodeError(_NOT_FINITE)
        if is_flat:
            raise DecodeError(
                "the decoded pixels are one flat patch everywhere: a convolution on this device failed silently; "
                "try another dtype, or mode exact with a chunk of 1."
            )
