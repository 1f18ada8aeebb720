"""A decode being carried out: latents in, finished frames out."""

from collections.abc import Generator, Iterator
from dataclasses import dataclass

import mlx.core as mx

from ..errors import DecodeError
from ..models.base import Decoder
from ..models.noise import Draws
from ..planning.plan import DecodePlan, Order
from ..streaming.context import StreamContext
from .frame_buffer import FrameBuffer
from .postprocess import FrameChunk, OutputCheck, to_levels
from .run import Run
from .sources import LatentSource


@dataclass(frozen=True)
class DecodeRun:
    """One decode, ready to run.

    Attributes:
        decoder: the network.
        plan: how.
        latents: (B, C, F', H', W'), normalized.
        mean: (C,) float32, of the latents.
        std: (C,) float32, of the latents.
        noise: drawn for the whole picture.
        timesteps: (B,) float32, or None.
        may_be_flat: whether the latents are constant, so that flat frames may be right.
        bit_depth: 8 or 10 where levels are wanted; None for floats.
    """

    decoder: Decoder
    plan: DecodePlan
    latents: mx.array
    mean: mx.array
    std: mx.array
    noise: Draws
    timesteps: mx.array | None = None
    may_be_flat: bool = False
    bit_depth: int | None = None

    def chunks(self) -> Generator[FrameChunk, None, None]:
        """Every frame once, in order.

        Raises:
            DecodeError: for pixels that cannot be a picture.
            PlanError: where frames wait on disk and there is no room for them.
        """
        check = OutputCheck(self.decoder.spec.layers[-1].up[1], may_be_flat=self.may_be_flat)
        prepared = self.decoder.prepare(self.latents, self.mean, self.std, self.noise)
        context = StreamContext(timesteps=self.timesteps, noise_maps=self.noise.maps)
        run = Run(self.decoder, self.plan, LatentSource(prepared), context, check.update)
        del prepared
        frames = run.results() if self.plan.order is Order.TIME else self._buffered(run)
        start = 0
        for piece in frames:
            chunk = [FrameChunk(start, self._finish(piece), check.is_finite)]
            start += piece.shape[1]
            del piece
            yield chunk.pop()
        check.close()
        if start != self.plan.num_frames:
            raise DecodeError(f"{start} frames came out of the network, and {self.plan.num_frames} should have.")

    @property
    def _dtype(self) -> mx.Dtype:
        """Of finished frames."""
        return {None: self.decoder.dtype, 8: mx.uint8, 10: mx.uint16}[self.bit_depth]

    def _finish(self, frames: mx.array) -> mx.array:
        """Frames as the caller wants them."""
        if frames.dtype == self._dtype:
            return frames
        return frames.astype(self._dtype) if self.bit_depth is None else to_levels(frames, self.bit_depth)

    def _buffered(self, run: Run) -> Iterator[mx.array]:
        """Stream along rows or columns. No frame is whole before the last of them, so all wait on disk."""
        plan, axis = self.plan, self.plan.order.axis
        shape = (plan.latent_shape.batch, *plan.video_grid, self.decoder.spec.out_channels)
        with FrameBuffer(shape, self._dtype) as buffer:
            start = 0
            for part in run.results():
                buffer.write(self._finish(part), axis, start)
                start += part.shape[axis]
                del part
            yield from buffer.read()
