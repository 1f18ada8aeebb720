"""Decodes: latents in, final frames out, as a stream, as one array, or into a file."""

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypedDict, cast

import mlx.core as mx
import numpy as np

from ..backend.device import check_process, confirm_device
from ..backend.mlx_utils import to_mlx
from ..distributed import RowBands
from ..errors import DecodeError, LatentsError, PlanError, WriterError
from ..frame_format import FrameFormat, common_format
from ..latents.keyframes import Keyframes, frame_numbers
from ..models.base import Decoder
from ..models.noise import Noise, NoiseShapes, draw
from ..models.specs import DEFAULT_CONVENTION, LONG_CLIP, ConventionName, NetworkSpec
from ..planning.plan import DecodePlan, Order, choose_variant
from ..planning.planner import MAX_ARRAY_ELEMENTS
from ..planning.tiles import tile_spec
from ..shapes import Axis, Grid, Interval
from ..streaming.context import StreamContext
from ..units import Rate, expand_path, parse_fps
from ..video import add_metadata, check_output, check_output_options, open_sink, output_files
from ..video.sink import SinkOptions
from .frames import (
    FrameBuffer,
    FrameChunk,
    OnFramesReady,
    OutputCheck,
    explain_not_finite,
    find_cause,
    mlx_dtype,
    to_format,
    to_format_in_parts,
    write_chunk,
)
from .keyframes import KeyframeSource, pad_as_noise, usable_keyframes
from .progress import Progress, show_progress
from .run import ChunkStream, Run, arrays_released, check_cancelled, crop_map, join_parts, make_bands, peek, tile_origin
from .sources import (
    LatentInput,
    LatentParts,
    LatentPreprocess,
    Latents,
    LatentSource,
    LatentStreamSource,
    Magnitude,
    Source,
    as_latents,
    check_part,
    check_values,
    sample_moments,
    warn_of_unusual,
)


class DecodeOptions(TypedDict, total=False):
    """Options of a decode, which `VideoVAE.stream` documents."""

    timestep: float | None
    seed: int
    noise: Noise
    noise_scale: float | None
    like: ConventionName
    unnormalized: bool
    steps: int | None
    keyframes: Keyframes | None


_DEFAULTS = DecodeOptions(
    timestep=None,
    seed=0,
    noise=None,
    noise_scale=None,
    like=DEFAULT_CONVENTION,
    unnormalized=False,
    steps=None,
    keyframes=None,
)
# Options of `VideoVAE.plan` only.
_PLAN_OPTIONS = {"memory_budget", "mode", "order", "tiling", "tile_batch_size", "chunk", "ranks", "frames", "joined"}


def check_options(function: str, options: Mapping[str, object], option_type: type = DecodeOptions) -> None:
    """Raise a `TypeError`, as Python does, if options are not in a `TypedDict`."""
    planner, array, plan_options = "plan", "latents", _PLAN_OPTIONS
    if option_type is not DecodeOptions:
        planner, array, plan_options = "plan_encode", "pixels", {"memory_budget", "mode", "ranks", "joined"}
    for name in options.keys() - option_type.__annotations__.keys():
        call = (
            f"partial(vae.plan, {name}=...)"
            if function == "stream_joined"
            else f"vae.{planner}({array}.shape, {name}=...)"
        )
        hint = f"; it is one of {planner}(): {function}(..., plan={call})"
        text = f"{function}() got an unexpected keyword argument {name!r}"
        raise TypeError(text + (hint if name in plan_options else ""))


class DecodeStream(ChunkStream[FrameChunk]):
    """Chunks of one decode of a video, in order.

    `num_frames` is the number of frames of all chunks, if it is known. `consumer` has options of `VideoVAE.plan` for
    what becomes of the frames; a plan that is made at the first chunk gets those that were added by then.
    """

    def __init__(
        self,
        chunks: Generator[FrameChunk, None, None],
        cancelled: threading.Event,
        bands: Sequence[RowBands],
        num_frames: int | None = None,
        consumer: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(chunks, cancelled, bands)
        self.num_frames = num_frames
        self.consumer = {} if consumer is None else consumer


@dataclass(frozen=True)
class DecodePipeline:
    """Decoder and options of a decode, in this process or together with a group.

    `make_plan` is called with a latent shape and further options of `VideoVAE.plan`; it adds the steps and keyframes.
    """

    decoder: Decoder
    make_plan: Callable[..., DecodePlan]
    options: DecodeOptions
    format: FrameFormat | None = None  # of the frames, if they are levels
    group: mx.distributed.Group | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)
    bands: list[RowBands] = field(default_factory=list)  # filled by the run, if it is divided in bands
    consumer: dict[str, Any] = field(default_factory=dict)  # see `DecodeStream`

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", {**_DEFAULTS, **self.options})

    def decode(
        self,
        latents: LatentInput,
        plan: DecodePlan | None,
        *,
        on_frames_ready: OnFramesReady | None,
        memory_budget: str | int | None,
        progress: Progress,
    ) -> mx.array | None:
        """Return the pixels of a clip, or `None` if a callback receives them; see `VideoVAE.decode`."""
        plan = self._plan(latents, plan, memory_budget, joined=on_frames_ready is None)
        if plan is not None and plan.format is not None:
            raise PlanError("the plan was made for levels, and decode returns floats; plan without a bit depth.")
        with arrays_released(), self.stream(latents, plan) as stream:
            num_frames = plan.num_frames if plan is not None and isinstance(latents, Latents) else stream.num_frames
            chunks = show_progress(stream, progress, plan.num_frames if plan else None)
            if on_frames_ready is None:
                return join_chunks(chunks, num_frames)
            for chunk in chunks:
                chunk.check()
                on_frames_ready(chunk.pixels, chunk.start)
            return None

    def decode_to_file(
        self,
        latents: LatentInput | DecodeStream,
        plan: DecodePlan | None,
        path: str | os.PathLike,
        output: SinkOptions,
        *,
        fps: Rate,
        memory_budget: str | int | None,
        progress: Progress,
    ) -> "DecodeReport":
        """Write a decode to a file; see `VideoVAE.decode_to_file`."""
        start = time.perf_counter()
        name = expand_path(path, WriterError)
        files = output_files(name, output)
        for file, options in files.items():
            check_output_options(file, options, fps=fps)
            files[file] = add_metadata(file, options)
        outputs = tuple(options.frames for options in files.values())
        levels = common_format(outputs)
        plan = self._plan(latents, plan, memory_budget, outputs=outputs)
        video: dict[str, Any] = {}
        if plan is not None and isinstance(latents, Latents):  # check early what writing would check
            if plan.format is not None and plan.format != levels:
                raise PlanError(f"{name}: the plan was made for other frames; plan with outputs=, or leave it out.")
            video = {"size": plan.frame_size, "num_frames": plan.num_frames}
            for file, options in files.items():
                check_output(file, fps=fps, options=options, **video)
        pipeline = replace(self, format=levels, consumer={"outputs": outputs})
        with arrays_released(), pipeline.stream(latents, plan) as stream:
            chunks: Iterable[FrameChunk] = stream
            batch = plan.latent_shape.batch if plan else 1
            if not video:
                first, chunks = peek(stream, "there are no latents to decode.")
                batch, _, height, width, _ = first.frames.shape
                video = {"size": (width, height), "num_frames": stream.num_frames}
                del first  # its buffer is free when it is written
            if batch > 1:
                raise LatentsError(f"{name}: is one video, and these latents are {batch}; write each.")
            progress_chunks = show_progress(chunks, progress, video.get("num_frames"), name=name)
            written = write_files(progress_chunks, files, start, fps=fps, **video)
            width, height = video["size"]
            return DecodeReport(
                output=written.new_names.get(name, name),
                frames=written.frames,
                width=width,
                height=height,
                fps=parse_fps(fps),
                sample_rate=getattr(output.audio, "sample_rate", None),
                seconds=time.perf_counter() - start,
                first_frame_seconds=written.first_frame_seconds,
                one_color=written.is_one_color,
                peak_memory_bytes=mx.get_peak_memory(),
                plan=plan,
            )

    def _plan(
        self,
        latents: LatentInput | DecodeStream,
        plan: DecodePlan | None,
        memory_budget: str | int | None,
        **plan_options: Any,
    ) -> DecodePlan | None:
        """Return the plan, by default one for latents that are all available, and `None` for other inputs.

        A stream of frames gets the options that say what becomes of them.
        """
        if isinstance(latents, DecodeStream):
            latents.consumer.update(plan_options)
            if plan_options.get("joined"):
                latents.consumer["joined"] = latents.num_frames or False
        if plan is None and isinstance(latents, Latents):
            return self.make_plan(latents.shape, memory_budget=memory_budget, **plan_options)
        if memory_budget is not None:
            raise PlanError("a memory budget goes with whole latents, and replaces a plan; leave it out.")
        return plan

    def plan_for_consumer(self, shape: Sequence[int], **options: Any) -> DecodePlan:
        """Plan a decode for what becomes of its frames, as far as the consumer has said."""
        return self.make_plan(shape, **options, **self.consumer)

    def stream(self, latents: Any, plan: DecodePlan | None) -> DecodeStream:
        """Check the arguments of `VideoVAE.stream` and return a stream of chunks, which decodes lazily."""
        check_process()
        if isinstance(latents, DecodeStream):
            if plan is not None or self.options != _DEFAULTS:
                raise PlanError("a stream has its plan and its options already; give them where it is made.")
            return latents
        steps = self.options["steps"]
        if plan is not None and steps not in (None, plan.denoising_steps):
            raise PlanError(
                f"the plan was made for {plan.denoising_steps or 'no'} denoising steps, not {steps}; plan with "
                f"steps={steps}, or leave the steps to the plan."
            )
        if plan is not None and self.format is not None and plan.format not in (None, self.format):
            raise PlanError("the plan was made for frames with another bit depth; plan with the stream's bit depth.")
        checked_latents, keyframes = as_latents(latents), self.options["keyframes"]
        if keyframes is not None:
            keyframes = usable_keyframes(self.decoder, keyframes)
        pipeline = replace(self, options={**self.options, "keyframes": keyframes})
        if isinstance(checked_latents, Latents):
            chunks = pipeline._decode_array(checked_latents, plan)
        elif keyframes is not None:
            chunks = pipeline._decode_collected(checked_latents, plan)
        else:
            if plan is not None:
                _check_arriving(plan)
            chunks = pipeline._decode_arriving(checked_latents, plan)
        return DecodeStream(chunks, self.cancelled, self.bands, consumer=self.consumer)

    def _decode_array(self, latents: Latents, plan: DecodePlan | None) -> Generator[FrameChunk, None, None]:
        plan, shape = plan or self.plan_for_consumer(latents.shape), tuple(latents.shape)
        keyframes = self.options["keyframes"]
        if plan.whole_shape != shape:
            raise PlanError(f"the plan was made for latents of shape {tuple(plan.whole_shape)}; these are {shape}.")
        if plan.keyframes != (numbers := frame_numbers(keyframes)):
            expected, actual = (", ".join(map(str, frames)) or "no frame" for frames in (plan.keyframes, numbers))
            raise PlanError(
                f"the plan was made for keyframes at {expected}, and these are at {actual}; plan with the same."
            )
        if keyframes is not None:
            keyframes.check(shape)
            if padded := pad_as_noise(self.decoder.spec, latents, keyframes, self.options["noise"]):
                options: DecodeOptions = {**self.options, "keyframes": padded.keyframes}
                run = replace(self, options=options, format=self.format or plan.format)
                return padded.crop(run._decode_array(padded.latents, self.plan_for_consumer(padded.latents.shape)))
        interval = plan.excerpt.latents if plan.excerpt else None
        if not isinstance(latents, (mx.array, np.ndarray)):
            check_values(latents, interval)
        if self._is_first_rank:
            warn_of_unusual(sample_moments(latents), shape, self.decoder, latents, self.options["unnormalized"])
        return self._run(plan, partial(LatentSource, latents, frames=interval))

    def _decode_collected(self, parts: LatentParts, plan: DecodePlan | None) -> Generator[FrameChunk, None, None]:
        """Decode latents after all of them have arrived."""
        first, parts = peek(parts, "there are no latents to decode.")
        check_part(first, getattr(first, "shape", ()))
        arrays = []
        for part in parts:
            check_part(part, first.shape)
            arrays.append(to_mlx(part, "latents"))
        latents = mx.concatenate(arrays, axis=2)
        yield from self._decode_array(cast(Latents, as_latents(latents)), plan)

    def _decode_arriving(self, parts: LatentParts, plan: DecodePlan | None) -> Generator[FrameChunk, None, None]:
        first, parts = peek(parts, "there are no latents to decode.")
        check_part(first, getattr(first, "shape", ()))
        if plan is None:
            order = "time" if self.decoder.spec.takes_least_memory else "auto"
            plan = self.plan_for_consumer((*first.shape[:2], LONG_CLIP, *first.shape[3:]), order=order)
            _check_arriving(plan)
        del first  # its buffer is free when it is decoded
        spec = self.decoder.spec
        needs_all = spec.has_latent_noise or any(layer.noise_channels for layer in spec.layers)
        noise = self.options["noise"]
        if noise is not None and noise != "zeros" and needs_all:
            raise LatentsError('noise arrays need the whole latents; with an iterator use a seed or noise="zeros".')
        moments: list[np.ndarray] = []
        yield from self._run(plan, partial(LatentStreamSource, parts, plan.latent_shape, moments))
        if self._is_first_rank:
            warn_of_unusual(moments, plan.latent_shape, self.decoder, "latents", self.options["unnormalized"])

    @property
    def _is_first_rank(self) -> bool:
        """Flag: this is the first of the ranks, which warns."""
        return self.group is None or not self.group.rank()

    def _run(
        self, plan: DecodePlan, make_source: Callable[[LatentPreprocess, Interval | None], Source]
    ) -> Generator[FrameChunk, None, None]:
        """Start a decode. The chunks are computed as they are taken."""
        shape, options, keyframes = plan.whole_shape, self.options, self.options["keyframes"]
        decoder, spec = self.decoder, choose_variant(self.decoder.spec, plan.denoising_steps, plan.keyframes)
        first = plan.excerpt.latents.start if plan.excerpt else 0
        scale = decoder.spec.scale
        draws = draw(
            spec,
            shape,
            decoder.dtype,
            noise=options["noise"],
            seed=options["seed"],
            timestep=options["timestep"],
            noise_scale=options["noise_scale"],
            convention=options["like"],
            tiles=_tile_noise(spec, plan, scale.time * first),
        )
        preprocess = LatentPreprocess(decoder, draws, unnormalized=options["unnormalized"], first_frame=first)
        bands = make_bands(self.group, plan)
        if bands is not None:
            self.bands.append(bands)
        band = None if bands is None else plan.bands[bands.rank]
        source = make_source(preprocess, band)
        if keyframes is not None:
            planes = LatentPreprocess(decoder, draws, unnormalized=options["unnormalized"])
            source = KeyframeSource(source, LatentSource(keyframes.latents, planes, band))
        timesteps, maps = draws.timesteps(shape.batch), draws.maps
        if band is not None:
            columns = Interval(0, shape.width)
            maps = {name: mx.contiguous(crop_map(noise, shape[-2:], band, columns)) for name, noise in maps.items()}
        check = OutputCheck(
            decoder.spec.patch_size,
            may_be_flat=lambda: preprocess.may_be_flat()[
                plan.excerpt.output_range.as_slice if plan.excerpt else slice(None)
            ],
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
        return _decode_chunks(run, plan, check, bands, self.format or plan.format)


def _explain(decoder: Callable[[], Decoder | None], largest: Magnitude) -> str:
    """Explain why pixels are not finite. A chunk refers to this function, and keeps no weights alive by it."""
    if (network := decoder()) is None:
        return "their VAE is gone; decode again."
    return explain_not_finite(network, "decoder", largest.value())


def _tile_noise(spec: NetworkSpec, plan: DecodePlan, first_frame: int) -> dict[Grid, NoiseShapes]:
    """Return the noise shapes of tiles by their origins. Empty unless all layers that take noise run on tiles only."""
    if plan.layout is None or not plan.layout.start:
        return {}
    return {
        tile_origin(tile, first_frame): tile_spec(spec, plan.layout, tile).noise_shapes(tile.input_size(spec.keyframes))
        for tile in chain.from_iterable(plan.layout.groups())
    }


def _check_arriving(plan: DecodePlan) -> None:
    """Check that a plan can decode latents as they arrive; raise a `PlanError` otherwise."""
    if plan.excerpt is not None:
        raise PlanError("some frames are decoded from the whole latents; pass them as one array, or plan all frames.")
    if plan.order is not Order.TIME or (plan.layout is not None and not plan.layout.is_streamed):
        raise PlanError(
            f"an iterator of latents is decoded by time, and the plan needs all latents first ({plan.mode.value} by "
            f"{plan.order.value}); use mode exact with order time, tiles in space only, or a larger budget."
        )


def _decode_chunks(
    run: Run, plan: DecodePlan, check: OutputCheck, bands: RowBands | None, levels: FrameFormat | None
) -> Generator[FrameChunk, None, None]:
    """Yield every frame once, in order, as floats in the network's dtype or as levels.

    `bands` joins the bands of all ranks to full frames. The source knows the number of its frames at the end.
    """
    dtype = run.network.dtype if levels is None else mlx_dtype(levels)
    is_by_time, excerpt = plan.order is Order.TIME, plan.excerpt
    offset, start = excerpt.frames.start if excerpt else 0, 0

    def finish(frames: mx.array) -> mx.array:
        """Convert frames to the yielded dtype, and join the bands."""
        if levels is None:
            frames = frames.astype(dtype)
        elif frames.dtype != dtype:
            # Along rows and columns, pieces have all frames, and are already small.
            convert = to_format_in_parts if is_by_time else to_format
            frames = convert(frames, levels)
        return frames if bands is None else bands.gather(frames)

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
    expected, _, _ = run.network.spec.out_grid(run.source.grid)
    expected = excerpt.frames.length if excerpt else expected
    if start != expected:
        raise DecodeError(f"{start} frames came out of the network, and {expected} should have.")
    check.close()
    confirm_device()


def _buffered(
    run: Run, plan: DecodePlan, check: OutputCheck, finish: Callable[[mx.array], mx.array], dtype: mx.Dtype
) -> Iterator[mx.array]:
    """Yield the frames of a run along rows or columns. All frames are buffered on disk until the last is complete."""
    axis, start = plan.order.axis, 0
    shape = (plan.latent_shape.batch, *plan.video_grid, run.network.spec.out_channels)
    with FrameBuffer(shape, dtype) as buffer:
        for part in run.outputs():
            check.update(part, 0)
            buffer.write(finish(part), axis, start)
            start += part.shape[axis]
            del part
        yield from buffer.read()


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


def join_levels(chunks: Iterable[FrameChunk]) -> np.ndarray:
    """Return the frames of all chunks as uint8, (F, H, W, 3), or (B, F, H, W, 3) for several videos."""
    return np.concatenate([chunk.to_uint8() for chunk in chunks], axis=-4)


@dataclass(frozen=True)
class DecodeReport:
    """Report of `decode --json`, except the networks."""

    output: str  # the file, or the folder
    frames: int  # number of frames that were written
    width: int
    height: int
    fps: Fraction
    sample_rate: int | None  # of sound that was decoded with the video
    seconds: float  # from the first latents to the finished file
    first_frame_seconds: float
    one_color: bool  # whether every frame has only one color
    peak_memory_bytes: int  # `mx.get_peak_memory()`, counted since `mx.reset_peak_memory()`
    plan: DecodePlan | None  # None if latents arrived without a plan

    @property
    def keyframes(self) -> tuple[int, ...]:
        """Frame numbers of the keyframes that the network saw."""
        return self.plan.keyframes if self.plan else ()

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-serializable dictionary with the keys of `decode --json`."""
        plan = None if self.plan is None else self.plan.as_dict()
        return {**vars(self), "fps": float(self.fps), "keyframes": list(self.keyframes), "plan": plan}


class WriteResult(NamedTuple):
    """Counts and file names of a decode that was written."""

    frames: int
    first_frame_seconds: float  # from the start of the decode
    is_one_color: bool  # every frame has only one color
    new_names: dict[str, str]  # by the requested name, for files whose name another program used meanwhile


def write_files(
    chunks: Iterable[FrameChunk], files: Mapping[str, SinkOptions], start: float, **video: Any
) -> WriteResult:
    """Write chunks to files.

    `start` is the start time of the decode, by `time.perf_counter`. `video` are further arguments of `open_sink`.
    Without files, as on all ranks but the first, nothing is written.
    """
    num_frames, first_frame, is_one_color = 0, 0.0, True
    with ExitStack() as stack:  # closes a contact sheet after its video, so that only a complete video has one
        sinks, file_names = {}, {}
        for file, options in files.items():
            sink = stack.enter_context(open_sink(file, options=options, **video))
            sinks[sink], file_names[sink] = options.frames, (file, sink.name)
        for chunk in chunks:
            write_chunk(chunk, sinks)
            is_one_color = is_one_color and chunk.is_plain()
            first_frame = first_frame or time.perf_counter() - start
            num_frames += chunk.frames.shape[1]
    names = {file: sink.name for sink, (file, name) in file_names.items() if sink.name != name}
    return WriteResult(num_frames, first_frame, is_one_color, names)
