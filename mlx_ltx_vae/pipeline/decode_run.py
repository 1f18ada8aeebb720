"""Executes a decode plan: latents in, final frames out."""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, cast

import mlx.core as mx
import numpy as np

from ..backend.device import check_process, confirm_device
from ..backend.mlx_utils import to_mlx
from ..distributed import RowBands
from ..errors import DecodeError, LatentsError, PlanError, warn
from ..latents.keyframes import check_keyframes
from ..latents.statistics import find_notice, join_moments
from ..models.base import Decoder
from ..models.noise import NoiseShapes, draw
from ..models.specs import LONG_CLIP, NetworkSpec
from ..planning.options import choose_variant
from ..planning.plan import DecodePlan, Order
from ..planning.tiles import tile_spec
from ..shapes import Axis, Grid
from ..streaming.context import StreamContext
from ..tiling.layout import Interval
from ..video.frame_format import FrameFormat
from .chunk_stream import ChunkStream, check_cancelled
from .decode_options import DecodeOptions
from .latent_sources import (
    KeyframeSource,
    LatentParts,
    LatentPreprocess,
    Latents,
    LatentSource,
    LatentStreamSource,
    Magnitude,
    as_latents,
    check_part,
    is_whole,
    pad_as_noise,
    sample_moments,
)
from .postprocess import (
    FrameBuffer,
    FrameChunk,
    OutputCheck,
    explain_not_finite,
    find_cause,
    mlx_dtype,
    to_format,
    to_format_in_parts,
)
from .run import Run, Source, crop_map, make_bands, peek, tile_origin


class DecodeStream(ChunkStream[FrameChunk]):
    """The chunks of one decode of a video, in order."""


@dataclass(frozen=True)
class DecodePipeline:
    """Starts a decode, in this process or together with a group. `make_plan` makes the default plan."""

    decoder: Decoder
    make_plan: Callable[..., DecodePlan]
    options: DecodeOptions
    group: mx.distributed.Group | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)
    bands: list[RowBands] = field(default_factory=list)  # those of the run, if it has any, once it is made

    def stream(self, latents: Any, plan: DecodePlan | None) -> DecodeStream:
        """Check the arguments of `VideoVAE.stream` and return a stream of chunks, which decodes lazily."""
        check_process()
        if plan is not None and self.options.steps not in (None, plan.denoising_steps):
            raise PlanError(
                f"the plan was made for {plan.denoising_steps or 'no'} denoising steps, not {self.options.steps}; plan "
                f"with steps={self.options.steps}, or leave the steps to the plan."
            )
        wanted = self.options.format
        if plan is not None and wanted is not None and plan.format not in (None, wanted):
            raise PlanError("the plan was made for frames with another bit depth; plan with that of the stream.")
        given, pipeline = as_latents(latents), self._with_keyframes()
        if is_whole(given):
            chunks = pipeline._decode_whole(given, plan)
        elif pipeline.options.keyframes is not None:
            chunks = pipeline._decode_joined(cast(LatentParts, given), plan)
        else:
            if plan is not None:
                _check_arriving(plan)
            chunks = pipeline._decode_arriving(cast(LatentParts, given), plan)
        return DecodeStream(chunks, self.cancelled, self.bands)

    def _with_keyframes(self) -> "DecodePipeline":
        """With keyframes that were checked as latents are; without them for a network that takes none."""
        keyframes, spec = self.options.keyframes, self.decoder.spec
        if keyframes is None:
            return self
        check_keyframes(keyframes)
        if warning := self.decoder.keyframe_warning:
            warn(warning)
        if spec.variant is not None:
            kept = replace(keyframes, latents=cast(mx.array, as_latents(keyframes.latents)))
        return replace(self, options=replace(self.options, keyframes=None if spec.variant is None else kept))

    def _decode_whole(self, latents: Latents, plan: DecodePlan | None) -> Generator[FrameChunk, None, None]:
        """Decode latents that are all known."""
        plan, shape, keyframes = plan or self.make_plan(latents.shape), tuple(latents.shape), self.options.keyframes
        if plan.whole_shape != shape:
            raise PlanError(f"the plan was made for latents of shape {tuple(plan.whole_shape)}; these are {shape}.")
        frames = () if keyframes is None else keyframes.frames
        if plan.keyframes != frames:
            made, given = (", ".join(map(str, each)) or "no frame" for each in (plan.keyframes, frames))
            raise PlanError(f"the plan was made for keyframes at {made}, and these are at {given}; plan with the same.")
        if keyframes is not None:
            keyframes.check(shape)
            if padded := pad_as_noise(self.decoder.spec, latents, keyframes, self.options.noise):
                options = replace(self.options, keyframes=padded.keyframes, format=self.options.format or plan.format)
                run = replace(self, options=options)._decode_whole(padded.latents, self.make_plan(padded.latents.shape))
                return padded.crop(run)
        self._check_values(sample_moments(latents), shape, latents)
        interval = plan.excerpt.latents if plan.excerpt else None
        return self._run(plan, partial(LatentSource, latents, frames=interval)).chunks()

    def _decode_joined(self, parts: LatentParts, plan: DecodePlan | None) -> Generator[FrameChunk, None, None]:
        """Decode latents when all have arrived."""
        first, parts = peek(parts, "there are no latents to decode.")
        check_part(first, getattr(first, "shape", ()))
        arrived = []
        for part in parts:
            check_part(part, first.shape)
            arrived.append(to_mlx(part, "latents"))
        joined = mx.concatenate(arrived, axis=2)
        yield from self._decode_whole(cast(Latents, as_latents(joined)), plan)

    def _decode_arriving(self, parts: LatentParts, plan: DecodePlan | None) -> Generator[FrameChunk, None, None]:
        """Decode latents as they arrive."""
        first, parts = peek(parts, "there are no latents to decode.")
        check_part(first, getattr(first, "shape", ()))
        if plan is None:
            order = "time" if self.decoder.spec.takes_least_memory else "auto"
            plan = self.make_plan((*first.shape[:2], LONG_CLIP, *first.shape[3:]), order=order)
            _check_arriving(plan)
        del first  # its buffer is free when it is decoded
        spec = self.decoder.spec
        needs_all = spec.has_latent_noise or any(layer.noise_channels for layer in spec.layers)
        if self.options.noise is not None and self.options.noise != "zeros" and needs_all:
            raise LatentsError('noise arrays need the whole latents; with an iterator use a seed or noise="zeros".')
        moments: list[np.ndarray] = []
        yield from self._run(plan, partial(LatentStreamSource, parts, plan.latent_shape, moments)).chunks()
        self._check_values(moments, plan.latent_shape)

    def _check_values(self, moments: Sequence[np.ndarray], shape: Sequence[int], latents: object = None) -> None:
        """Warn if a sample of the latents looks unlike those of a model. Of ranks, the first does."""
        if self.group is not None and self.group.rank():
            return
        (means, stds), statistics = join_moments(moments), self.decoder.statistics
        if self.options.unnormalized and statistics is not None:
            mean, std = (np.array(values.astype(mx.float32)) for values in statistics)
            means, stds = (means - mean) / std, stds / std
        num_values = len(moments) * shape[0] * shape[3] * shape[4]
        was_unnormalized = self.options.unnormalized or getattr(latents, "was_unnormalized", False)
        if notice := find_notice(means, stds, num_values, statistics, was_unnormalized=was_unnormalized):
            warn(f"{getattr(latents, 'source', 'latents')}: {notice}")

    def _run(self, plan: DecodePlan, make_source: Callable[[LatentPreprocess, Interval | None], Source]) -> "DecodeRun":
        shape, options, keyframes = plan.whole_shape, self.options, self.options.keyframes
        decoder, spec = self.decoder, choose_variant(self.decoder.spec, plan.denoising_steps, plan.keyframes)
        first = plan.excerpt.latents.start if plan.excerpt else 0
        scale = decoder.spec.scale
        draws = draw(
            spec,
            shape,
            decoder.dtype,
            noise=options.noise,
            seed=options.seed,
            timestep=options.timestep,
            noise_scale=options.noise_scale,
            like=options.like,
            tiles=_tile_noise(spec, plan, scale.time * first),
        )
        preprocess = LatentPreprocess(decoder, draws, unnormalized=options.unnormalized, first_frame=first)
        bands = make_bands(self.group, plan)
        if bands is not None:
            self.bands.append(bands)
        band = None if bands is None else plan.bands[bands.rank]
        source = make_source(preprocess, band)
        if keyframes is not None:
            planes = LatentPreprocess(decoder, draws, unnormalized=options.unnormalized)
            source = KeyframeSource(source, LatentSource(keyframes.latents, planes, band))
        timesteps, maps = draws.timesteps(shape.batch), draws.maps
        if band is not None:
            whole = Interval(0, shape.width)
            maps = {name: mx.contiguous(crop_map(noise, shape[-2:], band, whole)) for name, noise in maps.items()}
        check = OutputCheck(
            decoder.spec.patch_size,
            may_be_flat=lambda: preprocess.may_be_flat()[plan.excerpt.kept.as_slice if plan.excerpt else slice(None)],
            explain=partial(_explain, weakref.ref(decoder), preprocess.largest),
            find_cause=lambda: find_cause(decoder, "decoder", preprocess.largest.value()),
            combine=None if bands is None else bands.all_true,
        )
        mx.eval(timesteps, maps)  # another thread may run the decode, and could not evaluate what is lazy here
        origins = ((scale.time * first, 0 if band is None else scale.height * band.start, 0),)
        context = StreamContext(
            timesteps=timesteps,
            noise_maps=maps,
            noise=draws.volumes,
            neighbors=bands,
            origins=origins,
            denoising_steps=plan.denoising_steps,
            keyframes=plan.keyframes,
        )
        run = Run(decoder, plan, source, context, partial(check_cancelled, self.cancelled))
        return DecodeRun(run, check, bands, options.format or plan.format)


def _explain(decoder: Callable[[], Decoder | None], largest: Magnitude) -> str:
    """Why pixels are not finite. A chunk has this, and keeps no weights alive by it."""
    if (found := decoder()) is None:
        return "their VAE is gone; decode again."
    return explain_not_finite(found, "decoder", largest.value())


def _tile_noise(spec: NetworkSpec, plan: DecodePlan, first_frame: int) -> dict[Grid, NoiseShapes]:
    """The shapes of each tile's noise by where it begins, if the layers that take noise run on tiles alone."""
    if plan.layout is None or not plan.layout.start:
        return {}
    return {
        tile_origin(tile, first_frame): tile_spec(spec, plan.layout, tile).noise_shapes(tile.input_size(spec.keyframes))
        for tile in chain.from_iterable(plan.layout.groups())
    }


def _check_arriving(plan: DecodePlan) -> None:
    """Check that a plan can decode latents as they arrive."""
    if plan.excerpt is not None:
        raise PlanError("some frames are decoded from the whole latents; pass them as one array, or plan all frames.")
    if plan.order is not Order.TIME or (plan.layout is not None and not plan.layout.is_streamed):
        raise PlanError(
            f"an iterator of latents is decoded by time, and the plan needs all latents first ({plan.mode.value} by "
            f"{plan.order.value}); use mode exact with order time, tiles in space only, or a larger budget."
        )


@dataclass(frozen=True)
class DecodeRun:
    """The execution of one decode.

    `bands` joins the bands of all ranks to whole frames. The number of frames of the source is final when all is done.
    """

    run: Run
    check: OutputCheck
    bands: RowBands | None
    format: FrameFormat | None  # of the frames that are yielded, if they are levels

    def chunks(self) -> Generator[FrameChunk, None, None]:
        """Yield every frame once, in order."""
        start, excerpt = 0, self._plan.excerpt
        offset = excerpt.frames.start if excerpt else 0

        def chunk(piece: mx.array) -> FrameChunk:
            nonlocal start
            frames = piece
            if self._plan.order is Order.TIME:  # those of a buffer are finished
                self.check.update(piece, start)
                frames = self._finish(piece)
            first, start = start, start + piece.shape[1]
            mx.async_eval(frames)  # so that another thread can use them
            return FrameChunk(offset + first, frames, self.check.is_finite, self.check.explain)

        yield from map(chunk, self.run.results() if self._plan.order is Order.TIME else self._buffered())
        expected, _, _ = self.run.network.spec.out_grid(self.run.source.grid)
        expected = excerpt.frames.length if excerpt else expected
        if start != expected:
            raise DecodeError(f"{start} frames came out of the network, and {expected} should have.")
        self.check.close()
        confirm_device()

    @property
    def _plan(self) -> DecodePlan:
        return cast(DecodePlan, self.run.plan)

    @property
    def _dtype(self) -> mx.Dtype:
        return self.run.network.dtype if self.format is None else mlx_dtype(self.format)

    def _finish(self, frames: mx.array) -> mx.array:
        """Convert frames to the yielded dtype, and join the bands."""
        if self.format is None:
            frames = frames.astype(self._dtype)
        elif frames.dtype != self._dtype:
            # Along rows and columns, pieces have all frames, and are small already.
            convert = to_format_in_parts if self.run.plan.order is Order.TIME else to_format
            frames = convert(frames, self.format)
        return frames if self.bands is None else self.bands.gather(frames)

    def _buffered(self) -> Iterator[mx.array]:
        """Stream along rows or columns. No frame is complete before the last one, so all are buffered on disk."""
        plan = self.run.plan
        axis = plan.order.axis
        shape = (plan.latent_shape.batch, *plan.video_grid, self.run.network.spec.out_channels)
        with FrameBuffer(shape, self._dtype) as buffer:
            start = 0
            for part in self.run.results():
                self.check.update(part, 0)
                buffer.write(self._finish(part), axis, start)
                start += part.shape[axis]
                del part
            yield from buffer.read()


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
