"""Frames on their way into the encoder: the mirror of `frames`.

They come as a camera or a file has them, or as the decoder makes them; the encoder gets pixels in pieces of one length.
"""

import warnings
from collections.abc import Iterable, Iterator

import mlx.core as mx
import numpy as np

from ..errors import LatentsError
from ..shapes import ScaleFactors

Frames = mx.array | np.ndarray

_PIECE_FRAMES = 8
_PEAKS = {"uint8": 255, "uint16": 65535}
# Decoded pixels leave [-1, 1] a little. What leaves it as far as this is in 0 to 255.
_FAR_OUT = 16


def channels_last(frames: Frames) -> Frames:
    """What a caller hands over as (B, n, H, W, 3).

    Args:
        frames: levels, uint8 or uint16 (n, H, W, 3), over their full range; or floats (B, 3, n, H, W) in [-1, 1].

    Raises:
        LatentsError: for anything else.
    """
    shape = tuple(frames.shape)
    if _levels_peak(frames):
        if frames.ndim == 4 and shape[-1] == 3:
            return frames[None]
    elif frames.ndim == 5 and shape[1] == 3 and _is_floating(frames):
        return frames.transpose(0, 2, 3, 4, 1)
    raise LatentsError(
        f"frames have the shape {shape} and the type {str(frames.dtype).rpartition('.')[2]}; expected are floats "
        "(B, 3, F, H, W) in [-1, 1], or uint8 or uint16 (F, H, W, 3)."
    )


def usable_frames(num_frames: int, time_scale: int, *, pad: bool) -> int:
    """How many frames of a clip are encoded: the next 1 + `time_scale`*k, below, or above where it is padded.

    Where frames are left out, a warning says how many.
    """
    over = (num_frames - 1) % time_scale
    if over == 0:
        return num_frames
    if pad:
        return num_frames + time_scale - over
    warnings.warn(
        f"{num_frames} frames are not 1 + {time_scale}*k; the last {over} are left out (or ask for padding).",
        stacklevel=2,
    )
    return num_frames - over


def check_frame_size(frames: Frames, scale: ScaleFactors) -> None:
    """Refuse frames (B, n, H, W, 3) that are empty, or not whole latent cells.

    Raises:
        LatentsError: naming the nearest size that can be encoded.
    """
    _, _, height, width, _ = frames.shape
    if 0 in frames.shape:
        raise LatentsError(f"frames (B, F, H, W, 3) have the shape {tuple(frames.shape)}, which is empty.")
    if height % scale.height or width % scale.width:
        near_width = max(1, round(width / scale.width)) * scale.width
        near_height = max(1, round(height / scale.height)) * scale.height
        raise LatentsError(
            f"frames are {width}x{height}; both sides must be multiples of {scale.height}, and the nearest such "
            f"size is {near_width}x{near_height}."
        )


class Intake:
    """One clip on its way into the encoder: checked, in pieces of 1 + 8 and then of 8 frames (or whole multiples).

    What does not fill a latent frame at the end is left out, with a warning, or filled up.

    Args:
        frames: (B, n, H, W, 3) each, in order, as `channels_last` gives them; every n may be another.
        scale: of the VAE.
        dtype: of the encoder.
        pad: whether the last frame is repeated until the clip can be encoded in full.
    """

    def __init__(self, frames: Iterable[Frames], scale: ScaleFactors, dtype: mx.Dtype, *, pad: bool) -> None:
        self._frames = frames
        self._scale = scale
        self._dtype = dtype
        self._pad = pad
        self._piece = scale.time * max(1, _PIECE_FRAMES // scale.time)

    def __iter__(self) -> Iterator[mx.array]:
        """Pieces (B, n, H, W, 3) in the encoder's dtype.

        Raises:
            LatentsError: for frames that the encoder cannot take.
        """
        waiting: list[mx.array] = []
        count, wanted = 0, 1 + self._piece
        for part in self._parts():
            waiting.append(part)
            count += part.shape[1]
            if sum(each.shape[1] for each in waiting) >= wanted:  # once: a part is no longer than a piece
                joined = mx.concatenate(waiting, axis=1)
                waiting = [joined[:, wanted:]]
                box = [self._pixels(joined[:, :wanted])]
                del joined, part
                yield box.pop()
                wanted = self._piece
        if count == 0:
            raise LatentsError("there are no frames to encode.")
        missing = usable_frames(count, self._scale.time, pad=self._pad) - count
        rest = mx.concatenate(waiting, axis=1)
        if missing > 0:
            rest = mx.concatenate([rest] + [rest[:, -1:]] * missing, axis=1)
        elif missing < 0:
            rest = rest[:, :missing]
        if rest.shape[1]:
            yield self._pixels(rest)

    def _parts(self) -> Iterator[mx.array]:
        """The frames as MLX arrays of at most a piece each, so that a long array is not held twice."""
        first = None
        for frames in self._frames:
            kind = (frames.shape[0], *frames.shape[2:], str(frames.dtype).rpartition(".")[2])
            if first is None:
                check_frame_size(frames, self._scale)
                first = kind
            if kind != first:
                raise LatentsError(
                    f"frames (batch, height, width, 3, type) {kind} follow such as {first}; all must be alike."
                )
            for start in range(0, frames.shape[1], self._piece):
                part = frames[:, start : start + self._piece]
                yield part if isinstance(part, mx.array) else mx.array(np.ascontiguousarray(part))

    def _pixels(self, frames: mx.array) -> mx.array:
        peak = _levels_peak(frames)
        if peak:
            return (frames.astype(mx.float32) * (2 / peak) - 1).astype(self._dtype)
        largest = mx.abs(frames).max().item()  # NaN where one is among them
        if not largest < float("inf"):
            raise LatentsError("frames hold NaN or infinite values.")
        if largest > _FAR_OUT:
            raise LatentsError(
                f"frames reach {largest:g}, and expected is [-1, 1]; divide by 127.5 and subtract 1, or give uint8."
            )
        return frames.astype(self._dtype)


def _levels_peak(frames: Frames) -> int | None:
    """The highest level of whole numbers; None for floats."""
    return _PEAKS.get(str(frames.dtype).rpartition(".")[2])


def _is_floating(frames: Frames) -> bool:
    if isinstance(frames, mx.array):
        return mx.issubdtype(frames.dtype, mx.floating)
    return np.issubdtype(frames.dtype, np.floating)
