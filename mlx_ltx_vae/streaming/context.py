"""Parts of a network in one stream: its stages, and the context that all of its layers share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import mlx.core as mx

from ..shapes import Axis, Grid

#: Start of the results in the whole video, (F, H, W) in frames and pixels, for each tile of a batch.
Origins = tuple[Grid, ...]
#: Draws the noise of one layer, as `StreamContext.draw_noise` does, from the origins of the stream.
DrawNoise = Callable[[Origins, Grid, Grid, Sequence[int]], mx.array]


@dataclass(frozen=True)
class StreamContext:
    """Context of one stream through a network.

    `noise_maps` has the injected noise by the name of the layer that adds it: (H, W) for the whole picture, shared by
    all batch items, or (B, H, W).
    """

    axis: Axis = Axis.TIME  # the axis along which pieces arrive
    timesteps: mx.array | None = None  # (B,) float32 in [0, 1], for networks that take one
    noise_maps: Mapping[str, mx.array] = field(default_factory=dict)
    noise: Mapping[str, DrawNoise] = field(default_factory=dict)
    origins: Origins = ((0, 0, 0),)
    denoising_steps: int | None = None  # `None` means the network's default, if it denoises
    keyframes: tuple[int, ...] = ()  # frame numbers of planes, which follow the frames of each piece
    planes: tuple[int, ...] = ()  # indices of the planes that the stream has
    # For a tile of the layers after the cut of `TileRules`: its first frame among those of the clip, and (T, H, W) of
    # the network's input. Layers drop leading frames only at 0. If all layers run, 0 and `None`.
    first_frame: int = 0
    clip: Grid | None = None

    def draw_noise(self, layer: str, start: Grid, size: Grid, planes: Sequence[int] = ()) -> mx.array:
        """Return the noise (B, T, H, W, C) float32 of `size` (T, H, W) positions of a layer's output from `start` on.

        With `planes` it is the noise of these keyframe planes instead of frames.
        """
        return self.noise[layer](self.origins, start, size, planes)


class Cache(Protocol):
    """State that a stage keeps between two pieces of a stream."""

    @property
    def arrays(self) -> list[mx.array]:
        """Cached arrays. They are evaluated after each step, since unevaluated arrays keep their graph alive."""

    @property
    def closed(self) -> bool:
        """Return whether the stream has ended and all output has been returned."""


class Stage:
    """Step of a network in one stream, with its caches.

    `step` takes the next piece (or `None`) and whether the stream ends here. It returns the output that is final now,
    or `None`. After the last piece, the stage is flushed by `step(None, True)` until `closed`. Each such call returns
    at most one kernel's delay, so that flushing takes no more memory than any other step. `caches` are all that the
    step reads or changes, some of them shared with other stages. `work` is the multiply-adds of one position along the
    stream's axis, if somebody counts them.
    """

    def __init__(self, step: Callable[[Any, bool], mx.array | None], *caches: Cache) -> None:
        self.step = step
        self.work = 0.0
        self.caches: Sequence[Cache] = caches

    @property
    def arrays(self) -> list[mx.array]:
        return [array for cache in self.caches for array in cache.arrays]

    @property
    def closed(self) -> bool:
        return all(cache.closed for cache in self.caches)


def pointwise(function: Callable[[Any], mx.array]) -> Stage:
    """Return a stage that computes each position independently and caches nothing."""
    return Stage(lambda x, last: None if x is None else function(x))
