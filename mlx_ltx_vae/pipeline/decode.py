"""Executes a decode plan: latents in, final frames out."""

from collections.abc import Generator, Iterator
from dataclasses import dataclass

import mlx.core as mx

from ..errors import DecodeError, LatentsError, PlanError
from ..mlx_utils import count_nonfinite, evaluate, to_bool
from ..models.base import Decoder
from ..models.noise import Noise, draw, make_timesteps
from ..planning.plan import DecodePlan, Order
from ..streaming.context import StreamContext
from .frame_buffer import FrameBuffer
from .postprocess import FrameChunk, OutputCheck, to_levels, to_levels_in_parts
from .run import Run
from .sources import LatentSource


def start_decode(
    decoder: Decoder,
    plan: DecodePlan,
    latents: mx.array,
    mean: mx.array,
    std: mx.array,
    *,
    timestep: float | None = None,
    seed: int = 0,
    noise: Noise = None,
    noise_scale: float | None = None,
    bit_depth: int | None = None,
) -> Generator[FrameChunk, None, None]:
    """Check the arguments of `VideoVAE.stream` and return a generator of chunks, which decodes lazily.

    Raises:
        LatentsError: if the network cannot take the latents or the noise.
        PlanError: if the plan was made for another shape.
    """
    if plan.latent_shape != latents.shape:
        raise PlanError(
            f"the plan was made for latents of shape {tuple(plan.latent_shape)}; these are {latents.shape}."
        )
    if bit_depth not in (None, 8, 10):
        raise LatentsError(f"the bit depth must be 8 or 10, not {bit_depth!r}.")
    evaluate("latents", latents)
    bad = count_nonfinite(latents)
    if bad:
        raise LatentsError(f"{bad} of {latents.size} latent values are NaN or infinite.")
    draws = draw(noise, seed, plan.latent_shape, decoder.spec, decoder.dtype, scale=noise_scale)
    prepared = decoder.prepare(latents, mean, std, draws)
    timesteps = make_timesteps(decoder.spec, timestep, plan.latent_shape.batch)
    may_be_flat = to_bool((latents == latents[:, :, :1, :1, :1]).all())
    check = OutputCheck(decoder.spec.layers[-1].up[1], may_be_flat=may_be_flat)
    # Another thread may run the decode, and could not evaluate what is lazy here.
    mx.eval(prepared, timesteps, draws.maps)
    context = StreamContext(timesteps=timesteps, noise_maps=draws.maps)
    run = Run(decoder, plan, LatentSource(prepared), context, check.update)
    return DecodeRun(run, check, bit_depth).chunks()


@dataclass(frozen=True)
class DecodeRun:
    """The execution of one decode.

    Attributes:
        run: runs the network on the latents.
        check: checks the pixels.
        bit_depth: 8 or 10 for integer levels; None for floats.
    """

    run: Run
    check: OutputCheck
    bit_depth: int | None = None

    def chunks(self) -> Generator[FrameChunk, None, None]:
        """Yield every frame once, in order.

        Raises:
            DecodeError: if the pixels are not finite, or are the same patch everywhere.
            PlanError: if frames are buffered on disk and there is not enough free space.
        """
        plan, check = self.run.plan, self.check
        frames = self.run.results() if plan.order is Order.TIME else self._buffered()
        start = 0
        for piece in frames:
            chunk = [FrameChunk(start, self._finish(piece), check.is_finite)]
            start += piece.shape[1]
            del piece
            yield chunk.pop()
        check.close()
        if start != plan.num_frames:
            raise DecodeError(f"{start} frames came out of the network, and {plan.num_frames} should have.")

    @property
    def _dtype(self) -> mx.Dtype:
        """The dtype of the yielded frames."""
        return {None: self.run.network.dtype, 8: mx.uint8, 10: mx.uint16}[self.bit_depth]

    def _finish(self, frames: mx.array) -> mx.array:
        """Convert frames to the yielded dtype."""
        if frames.dtype == self._dtype:
            return frames
        if self.bit_depth is None:
            return frames.astype(self._dtype)
        # Along rows and columns, pieces have all frames, and are small already.
        convert = to_levels_in_parts if self.run.plan.order is Order.TIME else to_levels
        return convert(frames, self.bit_depth)

    def _buffered(self) -> Iterator[mx.array]:
        """Stream along rows or columns. No frame is complete before the last one, so all are buffered on disk."""
        plan = self.run.plan
        axis = plan.order.axis
        shape = (plan.latent_shape.batch, *plan.video_grid, self.run.network.spec.out_channels)
        with FrameBuffer(shape, self._dtype) as buffer:
            start = 0
            for part in self.run.results():
                buffer.write(self._finish(part), axis, start)
                start += part.shape[axis]
                del part
            yield from buffer.read()
