"""Decodes latents that are pushed as they come, in place of an iterator that is pulled."""

from collections import deque
from collections.abc import Callable, Iterator

import mlx.core as mx
import numpy as np

from ..backend.mlx_utils import to_mlx
from ..errors import LatentsError
from ..models.specs import NetworkSpec
from ..streaming.axis import Axis
from .decode_run import DecodeStream
from .latent_sources import LatentParts


class PushedDecode:
    """One clip whose latents are pushed. `start` makes the stream of an iterator of latents."""

    def __init__(self, spec: NetworkSpec, start: Callable[[LatentParts], DecodeStream]) -> None:
        self._spec = spec
        self._waiting: deque[mx.array] = deque()
        self._stream = start(self._pull())
        self._seen = self._done = 0

    def push(self, latents: mx.array | np.ndarray) -> mx.array | None:
        """The frames (B, 3, n, H, W) that are final with these latents (B, C, n', H', W'); None if there are none."""
        if getattr(latents, "ndim", 0) != 5 or latents.shape[2] < 1:
            shape = getattr(latents, "shape", type(latents).__name__)
            raise LatentsError(f"pushed latents are {shape}; expected an array (B, C, n, H', W') with n of at least 1.")
        self._waiting.append(to_mlx(latents, "latents"))  # a copy of one of numpy, which the caller may assign to
        self._seen += latents.shape[2]
        ready = self._seen
        for layer in self._spec.layers:
            ready = layer.ready(Axis.TIME, ready)
        return self._take(ready)

    def flush(self) -> mx.array | None:
        """End the clip. Returns its remaining frames; None if all are out, as with a causal network."""
        try:
            return self._take(None) if self._seen else None
        finally:
            self._stream.close()

    def _pull(self) -> Iterator[mx.array]:
        while self._waiting:  # the stream asks for more than is there only when the clip ends
            yield self._waiting.popleft()

    def _take(self, end: int | None) -> mx.array | None:
        """The frames up to `end`, or all; the stream computes no further than it is asked."""
        parts = []
        while end is None or self._done < end:
            chunk = next(self._stream, None)
            if chunk is None:
                break
            self._done += chunk.frames.shape[1]
            chunk.check()
            parts.append(chunk.pixels)
        if not parts:
            return None
        frames = parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=2)
        mx.async_eval(frames)  # so that another thread can use them
        return frames
