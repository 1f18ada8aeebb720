"""Decodes: latents in, final frames out, as a stream, as one array, or into files."""

import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, cast

import mlx.core as mx
import numpy as np

from ..backend.device import check_process, confirm_device
from ..backend.mlx_utils import to_mlx
from ..checkpoint import VAESource
from ..checkpoint.loading import NetworkHandle
from ..errors import DecodeError, LatentsError, PlanError
from ..frame_format import RGB8, FrameFormat, FrameOutput
from ..latents.keyframes import Keyframes, frame_numbers
from ..networks.base import Config, Decoder
from ..networks.noise import NoiseShapes, draw, window_seed
from ..networks.specs import LONG_CLIP, NetworkSpec
from ..options import DECODE_DEFAULTS, PLAN_DEFAULTS, DecodeOptions, PlanOptions, check_no_options
from ..planning.film import FilmLayout, FilmPlan, MakePlan, plan_window
from ..planning.memory import FRAMES_PER_CONVERSION
from ..planning.plan import DecodePlan, Order, check_plan, choose_variant
from ..planning.planner import MAX_ARRAY_ELEMENTS
from ..planning.tiles import tile_spec
from ..shapes import Axis, Grid, Interval
from ..streaming.context import StreamContext
from .execution import ChunkStream, Execution, ExecutionState, arrays_released, join_parts, peek, tile_origin
from .film import (
    Crossfade,
    Film,
    check_film,
    check_windows,
    count_from_film,
    crop_window,
    film_layout,
    join_keyframes,
    plan_windows,
    read_ahead,
)
from .frame_buffer import buffer_frames
from .frames import FrameChunk, OnFramesReady, mlx_dtype, to_format, to_format_in_parts
from .keyframes import add_planes, crop_chunks, pad_as_noise, usable_keyframes
from .output_check import OutputCheck, explain_not_finite, find_cause
from .progress import Progress, open_bar
from .sources import (
    LatentInput,
    LatentParts,
    LatentPreprocess,
    LatentRecord,
    Latents,
    Source,
    arriving_source,
    as_latents,
    check_part,
    check_values,
    latent_source,
    preprocess_latents,
    sample_moments,
    warn_of_unusual,
)

_NO_EXCERPT = "some frames are decoded from the whole latents; pass them as one array, or plan all frames."


class DecodeStream(ChunkStream[FrameChunk]):
    """Chunks of one decode of a video, in order. `num_frames` is the number of all frames, if it is known."""

    def __init__(
        self, chunks: Generator[FrameChunk, None, None], state: ExecutionState, num_frames: int | None
    ) -> None:
        super().__init__(chunks, state)
        self.num_frames = num_frames


@dataclass(frozen=True)
class DecodePipeline:
    """Decoder and options of a decode.

    `make_plan` makes the plan of latents of a shape, with `plan_options` unless further options replace some of them.
    """

    decoder: NetworkHandle[Decoder]
    config: Config  # of the VAE, whose scale is that of the video; a decoder of previews may make fewer frames
    make_plan: MakePlan
    source: VAESource = VAESource()
    options: DecodeOptions = DECODE_DEFAULTS
    plan_options: PlanOptions = PLAN_DEFAULTS
    format: FrameFormat | None = None  # of the frames, if they are levels
    state: ExecutionState = field(default_factory=ExecutionState)

    def decode(
        self,
        latents: LatentInput | Film,
        plan: DecodePlan | None,
        *,
        on_frames_ready: OnFramesReady | None,
        progress: Progress,
    ) -> mx.array | None:
        """Return the pixels of a clip, or `None` if a callback receives them; see `VideoVAE.decode`."""
        if isinstance(plan, DecodePlan) and plan.format is not None:
            raise PlanError("the plan was made for levels, and decode returns floats; plan without a bit depth.")
        self.state.joined = on_frames_ready is None
        with arrays_released(), self.stream(latents, plan) as stream:
            with open_bar(progress, stream.num_frames) as bar:
                chunks = bar.follow(stream, stream.state)
                if on_frames_ready is None:
                    return join_chunks(chunks, stream.num_frames)
                for chunk in chunks:
                    chunk.check()
                    on_frames_ready(chunk.pixels, chunk.start)
            return None

    def decode_uint8(self, latents: LatentInput | Film, plan: DecodePlan | None) -> np.ndarray:
        """Return the levels of a clip as one array; see `VideoVAE.decode_uint8`."""
        pipeline = replace(self, format=RGB8, state=ExecutionState(outputs=(FrameOutput(RGB8),), joined=True))
        with arrays_released(), pipeline.stream(latents, plan) as stream:
            return join_levels(stream, stream.num_frames)

    def plan(self, latents: LatentInput | Film | DecodeStream) -> DecodePlan | None:
        """Plan the decode of latents that are there as a whole. For others, return `None`."""
        if isinstance(latents, Film):
            if not latents.is_complete:
                return None
            return plan_windows(latents, self.config.scale, self.decoder.spec, self.make_plan, self.consumer_options())
        if not isinstance(latents, Latents):
            return None
        keyframes = frame_numbers(self.options.keyframes)
        return self.make_plan(latents.shape, replace(self.consumer_options(), keyframes=keyframes))

    def consumer_options(self) -> PlanOptions:
        """Return the options of a plan for what becomes of the frames, as far as the consumer has said."""
        outputs = self.state.outputs or (() if self.format is None else (FrameOutput(self.format),))
        return replace(self.plan_options, outputs=outputs, joined=self.state.joined)

    def stream(self, latents: Any, plan: DecodePlan | None) -> DecodeStream:
        """Check the arguments of `VideoVAE.stream` and return a stream of chunks, which decodes lazily."""
        check_process()
        if isinstance(latents, DecodeStream):
            if plan is not None or (self.options, self.plan_options) != (DECODE_DEFAULTS, PLAN_DEFAULTS):
                raise PlanError("a stream has its plan and its options already; give them where it is made.")
            # Its plan, if it is not made yet, includes what becomes of the frames.
            latents.state.outputs, latents.state.joined = self.state.outputs, self.state.joined
            return latents
        if plan is not None:
            self.check_plan(plan)
        if isinstance(latents, Film):
            if plan is not None and not isinstance(plan, FilmPlan):
                raise PlanError("the plan was made for one window; plan the film, or leave the plan out.")
            if self.options.keyframes is not None:
                raise LatentsError("each window has its own keyframes; give pairs (latents, keyframes) in windows.")
            chunks, num_frames = self._decode_film(latents, plan)
            chunks = chunks if self.format is None else _to_levels(chunks, self.format)
            return DecodeStream(chunks, self.state, num_frames)
        checked_latents, keyframes = as_latents(latents), self.options.keyframes
        if keyframes is not None:
            keyframes = usable_keyframes(self.decoder.spec, keyframes)
        pipeline, num_frames = replace(self, options=replace(self.options, keyframes=keyframes)), None
        if isinstance(checked_latents, Latents):
            plan = plan or pipeline.plan(checked_latents)
            assert plan is not None
            chunks, num_frames = pipeline._decode_array(checked_latents, plan), plan.num_frames
        elif keyframes is not None:
            chunks = pipeline._decode_collected(checked_latents, plan)
        else:
            if plan is not None:
                _check_arriving(plan)
            chunks = pipeline._decode_arriving(checked_latents, plan)
        return DecodeStream(chunks, self.state, num_frames)

    def check_plan(self, plan: DecodePlan) -> None:
        """Check that a plan goes with the options; raise a `PlanError` otherwise."""
        check_plan(plan, DecodePlan)
        steps = self.plan_options.steps
        check_no_options(self.plan_options)
        if steps not in (None, plan.denoising_steps):
            raise PlanError(
                f"the plan was made for {plan.denoising_steps or 'no'} denoising steps, not {steps}; plan with "
                f"steps={steps}, or leave the steps to the plan."
            )
        if self.format is not None and plan.format not in (None, self.format):
            raise PlanError("the plan was made for frames with another bit depth; plan with the stream's bit depth.")

    def _decode_array(self, latents: Latents, plan: DecodePlan) -> Generator[FrameChunk, None, None]:
        shape, keyframes = tuple(latents.shape), self.options.keyframes
        check_shape(plan, shape)
        if plan.keyframes != (numbers := frame_numbers(keyframes)):
            expected, actual = (", ".join(map(str, frames)) or "no frame" for frames in (plan.keyframes, numbers))
            raise PlanError(
                f"the plan was made for keyframes at {expected}, and these are at {actual}; plan with the same."
            )
        if keyframes is not None:
            keyframes.check(shape)
            spec = self.decoder.spec
            if padded := pad_as_noise(spec, latents, keyframes, self.options.noise):
                padded_latents, padded_keyframes, corner = padded
                options = replace(self.options, keyframes=padded_keyframes)
                run = replace(self, options=options, format=self.format or plan.format)
                chunks = run._decode_array(padded_latents, cast(DecodePlan, run.plan(padded_latents)))
                return crop_chunks(chunks, corner, spec.out_grid(plan.whole_shape.grid))
        interval = plan.excerpt.latents if plan.excerpt else None
        if not isinstance(latents, (mx.array, np.ndarray)) and not getattr(latents, "is_checked", False):
            check_values(latents, interval)
        warn_of_unusual(sample_moments(latents), shape, self.decoder.statistics, latents, self.options.unnormalized)
        return self._run(plan, partial(latent_source, latents, frames=interval))

    def _decode_film(self, film: Film, plan: FilmPlan | None) -> tuple[Generator[FrameChunk, None, None], int | None]:
        """Decode windows one after the other; return the chunks of the film, and its number of frames if known."""
        spec, frames = self.decoder.spec, self.plan_options.frames
        if plan is not None:
            frames = plan.film_frames
        layout, num_frames = film_layout(film, self.config.scale, spec, frames), None
        self.state.work = 0 if plan is None else plan.multiply_adds
        if film.is_complete:
            check_windows(film, layout, spec, frames)
            num_frames = layout.num_frames if frames is None else frames[1] - frames[0]
        joined: Crossfade[FrameChunk] = Crossfade(
            "frames", Axis.TIME, _linear, longest=FRAMES_PER_CONVERSION, check=FrameChunk.check
        )
        return joined.join(_decode_windows(self, film, layout, plan, frames)), num_frames

    def _decode_collected(self, parts: LatentParts, plan: DecodePlan | None) -> Generator[FrameChunk, None, None]:
        """Decode latents after all of them have arrived."""
        first, parts = peek(parts, "there are no latents to decode.")
        check_part(first, getattr(first, "shape", ()))
        arrays = []
        for part in parts:
            check_part(part, first.shape)
            arrays.append(to_mlx(part, "latents"))
        latents = cast(Latents, as_latents(mx.concatenate(arrays, axis=2)))
        yield from self._decode_array(latents, plan or cast(DecodePlan, self.plan(latents)))

    def _decode_arriving(self, parts: LatentParts, plan: DecodePlan | None) -> Generator[FrameChunk, None, None]:
        first, parts = peek(parts, "there are no latents to decode.")
        check_part(first, getattr(first, "shape", ()))
        if plan is None:
            plan = self._plan_arriving(first.shape)
        del first  # its buffer is free when it is decoded
        spec = self.decoder.spec
        needs_all = spec.has_latent_noise or any(layer.noise_channels for layer in spec.layers)
        noise = self.options.noise
        if noise is not None and noise != "zeros" and needs_all:
            raise LatentsError('noise arrays need the whole latents; with an iterator use a seed or noise="zeros".')
        moments: list[np.ndarray] = []
        yield from self._run(plan, partial(arriving_source, parts, plan.latent_shape, moments))
        warn_of_unusual(moments, plan.latent_shape, self.decoder.statistics, "latents", self.options.unnormalized)

    def _plan_arriving(self, shape: Sequence[int]) -> DecodePlan:
        """Return the plan of latents that arrive in parts, the first of this shape."""
        options = replace(self.consumer_options(), joined=False)
        if options.frames is not None:
            raise PlanError(_NO_EXCERPT)
        if self.decoder.spec.takes_least_memory and options.order == "auto" and options.mode != "tiled":
            options = replace(options, order="time")
        plan = self.make_plan((*shape[:2], LONG_CLIP, *shape[3:]), options)
        _check_arriving(plan)
        return plan

    def _run(
        self, plan: DecodePlan, make_source: Callable[[LatentPreprocess], Source]
    ) -> Generator[FrameChunk, None, None]:
        """Start a decode. The chunks are computed as they are taken."""
        shape, options, keyframes = plan.whole_shape, self.options, self.options.keyframes
        decoder, spec = self.decoder.get(), choose_variant(self.decoder.spec, plan.denoising_steps, plan.keyframes)
        first = plan.excerpt.latents.start if plan.excerpt else 0
        scale = decoder.spec.scale
        draws = draw(spec, shape, decoder.dtype, options, tiles=_tile_noise(spec, plan, scale.time * first))
        record = LatentRecord(first)
        preprocess = preprocess_latents(decoder, draws, record, unnormalized=options.unnormalized)
        source = make_source(preprocess)
        if keyframes is not None:
            preprocess = preprocess_latents(decoder, draws, LatentRecord(), unnormalized=options.unnormalized)
            source = add_planes(source, latent_source(keyframes.latents, preprocess))
        timesteps, maps = draws.timesteps(shape.batch), draws.maps
        check = OutputCheck(
            decoder.spec.patch_size,
            may_be_flat=lambda: record.may_be_flat(decoder.spec)[
                plan.excerpt.output_range.as_slice if plan.excerpt else slice(None)
            ],
            explain=partial(_explain, weakref.ref(decoder), record),
            find_cause=lambda: find_cause(decoder, "decoder", record.largest),
        )
        mx.eval(timesteps, maps)  # another thread may run the decode, and could not evaluate what is lazy here
        context = StreamContext(
            timesteps=timesteps,
            noise_maps=maps,
            noise=draws.volumes,
            origins=((scale.time * first, 0, 0),),
            denoising_steps=plan.denoising_steps,
            keyframes=plan.keyframes,
            planes=tuple(range(len(plan.keyframes))),
        )
        if not self.state.work and source.grid[0]:
            self.state.work = plan.multiply_adds
        run = Execution(decoder, plan, source, context, self.state)
        return _decode_chunks(run, plan, check, record, self.format or plan.format)


def _decode_windows(
    pipeline: DecodePipeline, film: Film, layout: FilmLayout, plan: FilmPlan | None, frames: tuple[int, int] | None
) -> Iterator[tuple[Interval, int, Generator[FrameChunk, None, None]]]:
    """Yield for each window the interval in which it fades in, the first position that waits, and its chunks."""
    spec, blend, options = pipeline.decoder.spec, layout.blend, pipeline.options
    if plan is None and film.is_complete:
        plan = plan_windows(film, pipeline.config.scale, spec, pipeline.make_plan, pipeline.consumer_options())
    windows = enumerate(film.windows) if plan is None else read_ahead(film, layout, frames)
    keyframes: Keyframes | None = None
    for number, window in windows:
        shape = window.shape
        part = layout.parts[number] if number < len(layout.parts) else layout.add(spec, shape, window.name)
        keyframes = window.keyframes if spec.variant is None else join_keyframes(layout, number, keyframes, window)
        window_frames = part.window_range(frames)
        if window_frames is not None:
            if plan is None:
                make = partial(pipeline.make_plan, shape)
                plan_options = replace(  # the number of frames of the film is not known
                    pipeline.consumer_options(), joined=False, keyframes=frame_numbers(keyframes), held_frames=blend
                )
                window_plan = plan_window(make, plan_options, window_frames, spec.out_grid(shape.grid)[0])
            else:
                window_plan = plan.windows[number]
            window_options = replace(options, seed=window_seed(spec, options.seed, number), keyframes=keyframes)
            run = replace(pipeline, options=window_options, plan_options=PLAN_DEFAULTS, format=None)
            box: list[ChunkStream[FrameChunk]] = [run.stream(window.latents, window_plan)]
            del window
            first_waiting = max(part.fade.end, part.frames.end - blend)
            yield part.fade, first_waiting, crop_window(count_from_film(box, part), part, window_frames)
        if frames is not None and part.frames.end - blend >= frames[1]:
            return
    check_film(layout, frames)


def _linear(positions: mx.array, length: int) -> tuple[mx.array, mx.array]:
    later_weights = (positions + 1).astype(mx.float32) / (length + 1)
    return 1 - later_weights, later_weights


def _to_levels(chunks: Generator[FrameChunk, None, None], levels: FrameFormat) -> Generator[FrameChunk, None, None]:
    """Yield the chunks with levels instead of floats."""
    with closing(chunks):
        for chunk in chunks:
            yield replace(chunk, frames=to_format_in_parts(chunk.frames, levels))


def _explain(decoder: Callable[[], Decoder | None], record: LatentRecord) -> str:
    """Explain why pixels are not finite. A chunk refers to this function, and keeps no weights alive by it."""
    if (network := decoder()) is None:
        return "their VAE is gone; decode again."
    return explain_not_finite(network, "decoder", record.largest)


def _tile_noise(spec: NetworkSpec, plan: DecodePlan, first_frame: int) -> dict[Grid, NoiseShapes]:
    """Return the noise shapes of tiles by their origins. Empty unless all layers that take noise run on tiles only."""
    if plan.layout is None or not plan.layout.start:
        return {}
    return {
        tile_origin(tile, first_frame): tile_spec(spec, plan.layout, tile).noise_shapes(tile.input_size(spec.keyframes))
        for tile in chain.from_iterable(plan.layout.groups())
    }


def check_shape(plan: DecodePlan, shape: Sequence[int]) -> None:
    """Check that a plan was made for latents of this shape; raise a `PlanError` otherwise."""
    if plan.whole_shape != tuple(shape):
        raise PlanError(f"the plan was made for latents of shape {tuple(plan.whole_shape)}; these are {tuple(shape)}.")


def _check_arriving(plan: DecodePlan) -> None:
    """Check that a plan can decode latents as they arrive; raise a `PlanError` otherwise."""
    if plan.excerpt is not None:
        raise PlanError(_NO_EXCERPT)
    if plan.order is not Order.TIME or (plan.layout is not None and not plan.layout.is_streamed):
        raise PlanError(
            f"an iterator of latents is decoded by time, and the plan needs all latents first ({plan.mode.value} by "
            f"{plan.order.value}); use mode exact with order time, tiles in space only, or a larger budget."
        )


def _decode_chunks(
    run: Execution, plan: DecodePlan, check: OutputCheck, record: LatentRecord, levels: FrameFormat | None
) -> Generator[FrameChunk, None, None]:
    """Yield every frame once, in order, as floats in the network's dtype or as levels."""
    dtype = run.network.dtype if levels is None else mlx_dtype(levels)
    is_by_time, excerpt = plan.order is Order.TIME, plan.excerpt
    offset, start = excerpt.frames.start if excerpt else 0, 0

    def finish(frames: mx.array) -> mx.array:
        """Convert frames to the yielded dtype."""
        if levels is None:
            return frames.astype(dtype)
        if frames.dtype == dtype:
            return frames
        # Along rows and columns, pieces have all frames, and are already small.
        convert = to_format_in_parts if is_by_time else to_format
        return convert(frames, levels)

    def chunk(piece: mx.array) -> FrameChunk:
        nonlocal start
        frames = piece
        if is_by_time:  # frames of a buffer are already checked and converted
            check.update(piece, start)
            frames = finish(piece)
        first, start = start, start + piece.shape[1]
        mx.async_eval(frames)  # so that another thread can use them
        return FrameChunk(offset + first, frames, check.is_finite, check.explain)

    yield from map(chunk, run.outputs() if is_by_time else _buffered(run, plan, check, finish, dtype))
    num_latents, height, width = run.source.grid
    expected, _, _ = run.network.spec.out_grid((num_latents or record.num_frames, height, width))
    expected = excerpt.frames.length if excerpt else expected
    if start != expected:
        raise DecodeError(f"{start} frames came out of the network, and {expected} should have.")
    check.close()
    confirm_device()


def _buffered(
    run: Execution, plan: DecodePlan, check: OutputCheck, finish: Callable[[mx.array], mx.array], dtype: mx.Dtype
) -> Iterator[mx.array]:
    """Return the frames of a run along rows or columns. All frames are buffered on disk until the last is complete."""

    def checked(part: mx.array) -> mx.array:
        check.update(part, 0)
        return finish(part)

    shape = (plan.latent_shape.batch, *plan.video_grid, run.network.spec.out_channels)
    return buffer_frames(map(checked, run.outputs()), shape, dtype, plan.order.axis)


class PushedDecode:
    """Decode of one clip whose latents are pushed. `start` makes the stream from an iterator of latents."""

    def __init__(self, spec: NetworkSpec, start: Callable[[LatentParts], DecodeStream]) -> None:
        self._spec = spec
        self._waiting: deque[mx.array] = deque()
        self._stream = start(self._pull())
        self._num_latents = self._num_frames = 0  # pushed latent frames, and frames that were returned

    def push(self, latents: mx.array | np.ndarray) -> mx.array | None:
        """Add latents (B, C, n', H', W'), and return the frames (B, 3, n, H, W) that are final; `None` if none are."""
        if getattr(latents, "ndim", 0) != 5 or latents.shape[2] < 1:
            shape = getattr(latents, "shape", type(latents).__name__)
            raise LatentsError(f"pushed latents are {shape}; expected an array (B, C, n, H', W') with n of at least 1.")
        self._waiting.append(to_mlx(latents, "latents"))  # copies numpy arrays, since the caller may assign to them
        self._num_latents += latents.shape[2]
        ready = self._num_latents
        for layer in self._spec.layers:
            ready = layer.ready(Axis.TIME, ready)
        return self._take(ready)

    def flush(self) -> mx.array | None:
        """End the clip, and return its remaining frames. If there are none, as with a causal network, return `None`."""
        try:
            return self._take(None) if self._num_latents else None
        finally:
            self._stream.close()

    def _pull(self) -> Iterator[mx.array]:
        while self._waiting:  # the stream asks for more latents than were pushed only when the clip ends
            yield self._waiting.popleft()

    def _take(self, end: int | None) -> mx.array | None:
        """Return the frames up to `end`, by default all. The stream computes no further than necessary."""
        parts = []
        while end is None or self._num_frames < end:
            chunk = next(self._stream, None)
            if chunk is None:
                break
            self._num_frames += chunk.frames.shape[1]
            chunk.check()
            parts.append(chunk.pixels)
        if not parts:
            return None
        frames = parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=2)
        mx.async_eval(frames)  # so that another thread can use them
        return frames


def join_chunks(chunks: Iterable[FrameChunk], num_frames: int | None) -> mx.array:
    """Return the pixels of all chunks, (B, 3, F, H, W). `num_frames` is F, or `None` if it is unknown."""
    size = 0

    def frames_of(chunk: FrameChunk) -> mx.array:
        nonlocal size
        frames = chunk.frames
        size += frames.size
        if max(size, frames[:, :1].size * (num_frames or 0)) >= MAX_ARRAY_ELEMENTS:
            raise LatentsError(
                "the video would be an array of 2^31 elements or more, which MLX computes wrongly; take its frames "
                "from stream, or pass on_frames_ready."
            )
        return frames

    pixels = join_parts(map(frames_of, chunks), Axis.TIME, num_frames).transpose(0, 4, 1, 2, 3)
    mx.eval(pixels)  # so that another thread can use them
    return pixels


def join_levels(chunks: Iterable[FrameChunk], num_frames: int | None) -> np.ndarray:
    """Return the frames of all chunks as uint8, (F, H, W, 3), or (B, F, H, W, 3) for several videos.

    They are copied into one array as they come. If their number is not known, they wait until it is; pages of the array
    are in memory from when they are written, and the frames that were copied are freed.
    """
    parts: Iterator[np.ndarray] = map(FrameChunk.to_uint8, chunks)
    if num_frames is None:
        waiting = deque(parts)
        num_frames = sum(part.shape[-4] for part in waiting)
        parts = (waiting.popleft() for _ in range(len(waiting)))
    frames, end = np.empty(0, np.uint8), 0
    for part in parts:
        start, end = end, end + part.shape[-4]
        if not start:
            frames = np.empty((*part.shape[:-4], num_frames, *part.shape[-3:]), np.uint8)
        frames[..., start:end, :, :, :] = part
        del part
    return frames[..., :end, :, :, :]  # of a stream, the frames that were left
