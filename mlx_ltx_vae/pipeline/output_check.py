"""Check that a decoder's output is finite and no flat patch, and the explanation if it is not.

Frames of one color are an error only here: where a patch repeats bit for bit and the latents are not constant, so that
the device has failed. All others are a remark in the report (`FrameChunk.is_plain`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import mlx.core as mx
import mlx.nn as nn

from ..backend.mlx_utils import count_nonfinite, dtype_name, named_parameters, to_list
from ..errors import DecodeError
from ..networks.base import Network
from ..planning.memory import FRAMES_PER_CONVERSION
from .frames import NOT_FINITE

_FLAT = "the decoded pixels are one flat patch everywhere"
_SILENT_FAILURE = "a convolution on this device failed silently; try another dtype, or mode exact with a chunk of 1."
_MAX_PARTS = 64  # of flags, so that a long clip does not hold many small arrays
_SHORT_PIECE = 2 * FRAMES_PER_CONVERSION
_NEARLY_BLACK = 0.95  # of 1: a flat frame of larger magnitude is black or white
_PLAUSIBLE = 1e3  # normalized latents of a model stay below a tenth of this


class FrameFlags:
    """Flag per frame on the device: the logical and over all pieces that have the frame."""

    def __init__(self) -> None:
        self._parts: list[mx.array] = []
        self.length = 0  # number of frames

    def update(self, start: int, flags: mx.array) -> None:
        """Add the flags (n,) of the frames from `start` on. `start` is at most the number of frames so far."""
        num_existing = min(self.length - start, flags.shape[0])
        if num_existing > 0:
            joined = self.all()
            joined[start : start + num_existing] = joined[start : start + num_existing] & flags[:num_existing]
            self._parts, flags = [joined], flags[num_existing:]
        self._parts.append(flags)
        self.length += flags.shape[0]
        if len(self._parts) > _MAX_PARTS:
            self._parts = [self.all()]
        mx.async_eval(self._parts[-2:])

    def all(self) -> mx.array:
        """Return the flags of all frames so far, (F,) bool."""
        return mx.concatenate(self._parts)


@dataclass(eq=False)
class OutputCheck:
    """Check that a decoder's output is finite, and that no frame is the same patch everywhere.

    If a convolution silently returns zeros (a known failure of GPU kernels on huge inputs), only the last bias remains,
    which is identical in every patch. A real picture never repeats bit for bit, unless its latents are constant, or it
    is black or white.
    """

    patch_size: int | None  # see `NetworkSpec`
    may_be_flat: Callable[[], mx.array]  # called at the end: for each frame, (F,), whether its latents are constant
    explain: Callable[[], str]  # why pixels are not finite
    find_cause: Callable[[], str | None]  # why pixels are flat, if it is not the device
    _is_flat: FrameFlags = field(default_factory=FrameFlags, init=False)
    _has_two_patches: bool = field(default=False, init=False)  # two patches could differ; a single patch tells nothing
    # The first frame of a piece, and its first patch of each frame.
    _corner: tuple[int, mx.array] | None = field(default=None, init=False)
    #: Flag on the device: whether all pixels so far are finite.
    is_finite: mx.array = field(default_factory=lambda: mx.array(True), init=False)

    def update(self, frames: mx.array, start: int) -> None:
        """Check a piece (B, n, h, w, 3) of the frames from `start` on. A long one is checked part by part at once.

        Pieces of the same frames have the same `start`, and whole patches.
        """
        count = frames.shape[1]
        is_same = None  # with an earlier piece of the same frames
        if step := self.patch_size:
            corner = mx.contiguous(frames[:, :, :step, :step])
            if self._corner is not None and self._corner[0] == start:
                is_same = (corner == self._corner[1]).all(axis=(2, 3, 4)).any(axis=0)
                self._has_two_patches = True
            else:
                self._corner = start, corner
                mx.async_eval(corner)  # unevaluated, it keeps the piece alive
            self._has_two_patches |= max(frames.shape[2:4]) > step
        for first in range(0, count, FRAMES_PER_CONVERSION):
            part = slice(first, first + FRAMES_PER_CONVERSION)
            self._update(frames[:, part], start + first, None if is_same is None else is_same[part])
            if count > _SHORT_PIECE:
                mx.eval(self.is_finite)

    def _update(self, frames: mx.array, start: int, is_same: mx.array | None) -> None:
        if step := self.patch_size:
            pixel_axes, top = (2, 3, 4), frames[:, :, :step]
            down = (frames[:, :, step:] == frames[:, :, :-step]).all(axis=pixel_axes)
            # If all rows of patches are equal, the first row decides.
            across = (top[:, :, :, step:] == top[:, :, :, :-step]).all(axis=pixel_axes)
            is_visible = (mx.abs(top[:, :, :, :step]) < _NEARLY_BLACK).any(axis=pixel_axes)
            is_flat = (down & across & is_visible).any(axis=0)
            self._is_flat.update(start, is_flat if is_same is None else is_flat & is_same)
        self.is_finite = self.is_finite & _are_finite(frames)
        mx.async_eval(self.is_finite)

    def close(self) -> None:
        """Wait for all checks; raise `DecodeError` if one has failed."""
        of_frames = [self._is_flat.all() & self._has_two_patches, self.may_be_flat()] if self.patch_size else []
        flags = mx.concatenate([self.is_finite[None], *of_frames])
        is_finite, *flat_flags = to_list(flags)
        if not is_finite:
            raise DecodeError(f"{NOT_FINITE}: {self.explain()}")
        count = len(flat_flags) // 2
        flat = [frame for frame in range(count) if flat_flags[frame] and not flat_flags[count + frame]]
        if flat:
            where = f"{len(flat)} of the frames {flat[0]} to {flat[-1]} of {count}"
            problem = _FLAT if len(flat) == count else f"{where} are one flat patch, and their latents are not constant"
            raise DecodeError(f"{problem}: {self.find_cause() or _SILENT_FAILURE}")


@mx.compile
def _are_finite(frames: mx.array) -> mx.array:
    return mx.isfinite(frames).all()


def find_cause(network: Network, name: str, largest: float | None = None) -> str | None:
    """Explain a useless output of a network by its weights or its latents, or return `None`. May be slow.

    `name` is "encoder" or "decoder", and `largest` the largest magnitude of the latents, normalized.
    """
    parameters = named_parameters(network) if isinstance(network, nn.Module) else {}
    for key, weight in parameters.items():
        if count := count_nonfinite(weight):
            return f"NaN weights in {name}.{key} ({count} of {weight.size}); load the checkpoint again."
    if largest is not None and largest > _PLAUSIBLE:
        return (
            f"the latents reach {largest:.3g}, and a model's stay below {_PLAUSIBLE / 10:g} when they are "
            "normalized; check the program that made them."
        )
    return None


def explain_not_finite(network: Network, name: str, largest: float | None = None) -> str:
    """Return why a network's output is not finite, and what to do. Arguments are as for `find_cause`."""
    if cause := find_cause(network, name, largest):
        return cause
    if network.dtype == mx.float32:
        return f"the {name} overflowed in float32, which no trained weights do; download the checkpoint again."
    return f"the {name} overflowed in {dtype_name(network.dtype)}; try dtype float32."
