"""Keyframe planes: stills that LTX-2.5's diffusion decoder sees beside the latents of a video."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from ..backend.mlx_utils import native_array
from ..errors import LatentsError


@dataclass(frozen=True, eq=False)
class Keyframes:
    """Stills at some frames of a video, which the diffusion decoder attends to at any distance in time.

    Attributes:
        latents: (B, C, P, H', W') on the grid of the video's latents and normalized like them, each still encoded as a
            clip of one frame.
        frames: the frame number of each still in the decoded video, (P,) whole numbers from 0 on. They may repeat, lie
            behind the end of the video, and have any order.

    Raises:
        LatentsError: if the latents have other axes or no stills, or the frame numbers do not fit them.
    """

    latents: mx.array | np.ndarray
    frames: Sequence[int]

    def __post_init__(self) -> None:
        latents, frames = native_array(self.latents, "keyframe latents"), np.asarray(self.frames)
        if latents.ndim != 5 or 0 in latents.shape:
            raise LatentsError(f"keyframe latents have the shape {tuple(latents.shape)}; expected (B, C, P, H', W').")
        if frames.shape != (latents.shape[2],) or frames.dtype.kind not in "iu" or (frames < 0).any():
            raise LatentsError(
                f"keyframes need one frame number from 0 on for each of their {latents.shape[2]} stills, and have "
                f"{frames.tolist()}."
            )
        object.__setattr__(self, "latents", latents)
        object.__setattr__(self, "frames", tuple(int(frame) for frame in frames))

    def check(self, shape: Sequence[int]) -> None:
        """Raise a `LatentsError` unless the stills are on the grid of latents (B, C, F', H', W')."""
        batch, channels, _, *size = shape
        count = self.latents.shape[2]
        if tuple(self.latents.shape) != (expected := (batch, channels, count, *size)):
            raise LatentsError(
                f"keyframe latents have the shape {tuple(self.latents.shape)}, and the latents of the "
                f"video {tuple(shape)}; expected {expected}."
            )
