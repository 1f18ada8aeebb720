"""Executes an encode plan: checks and converts frames, cuts them into pieces, and yields normalized latents."""

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

import mlx.core as mx
import numpy as np

from ..backend.device import check_process, confirm_device, evaluate
from ..backend.mlx_utils import dtype_name, from_numpy, native_array, to_bool, to_list
from ..checkpoint.loading import NetworkHandle
from ..errors import LatentsError, PlanError, TilingError, option, warn
from ..networks.base import AudioEncoder, Encoder
from ..networks.specs import LONG_CLIP, NetworkSpec
from ..options import PLAN_DEFAULTS, PlanOptions, check_no_options
from ..planning.plan import EncodePlan, check_plan
from ..shapes import format_size
from ..streaming.context import StreamContext
from ..tiling.layout import TileBox
from ..units import format_count
from .execution import ChunkStream, Execution, ExecutionState, peek
from .frames import FrameChunk
from .output_check import explain_not_finite
from .sources import Source, crop_space

Frames = mx.array | np.ndarray

_PEAKS = {"uint8": 255, "uint16": 65535}
# Decoded pixels exceed [-1, 1] slightly. Values larger than this are assumed to be in 0 to 255.
_MAX_PIXEL = 16


def levels_to_pixels(levels: mx.array, dtype: mx.Dtype, peak: int = 255) -> mx.array:
    """Return levels from 0 to `peak` as pixels in [-1, 1]."""
    return (levels.astype(mx.float32) * (2 / peak) - 1).astype(dtype)


def to_channels_last(frames: Frames | FrameChunk) -> Frames:
    """Return levels (n, H, W, 3), floats (B, 3, n, H, W) in [-1, 1], or a chunk of a decode, as (B, n, H, W, 3)."""
    if isinstance(frames, FrameChunk):
        frames.check()
        return frames.frames
    frames = native_array(frames, "frames")
    shape = tuple(frames.shape)
    if isinstance(frames, mx.array):
        evaluate("frames", frames)
    dtype = dtype_name(frames.dtype)
    if dtype in _PEAKS:
        if frames.ndim == 4 and shape[-1] == 3:
            return frames[None]
    elif frames.ndim == 5 and shape[1] == 3 and "float" in dtype:
        return frames.transpose(0, 2, 3, 4, 1)
    raise LatentsError(
        f"frames have the shape {shape} and the type {dtype}; expected floats (B, 3, F, H, W) in "
        "[-1, 1], or uint8 or uint16 (F, H, W, 3)."
    )


@dataclass
class Preprocess:
    """Conversion of frames to the input of an encoder.

    With `pad`, the last frame is repeated until the clip fills its last latent frame. Otherwise excess frames at the
    end are dropped, with a warning, unless the network takes any number.
    """

    spec: NetworkSpec
    dtype: mx.Dtype
    pad: bool
    _least: float = 0.0  # of all floats so far, if there are any

    def check_size(self, frames: Frames) -> None:
        """Raise a `LatentsError` with the nearest valid size unless frames (B, n, H, W, 3) are whole latent cells."""
        _, _, height, width, _ = frames.shape
        if 0 in frames.shape:
            raise LatentsError(f"frames (B, F, H, W, 3) have the shape {tuple(frames.shape)}, which is empty.")
        scale = self.spec.scale
        if height % scale.height or width % scale.width:
            size = [max(1, round(side / cell)) * cell for side, cell in ((width, scale.width), (height, scale.height))]
            raise LatentsError(
                f"frames are {format_size(width, height)}; both sides must be multiples of {scale.height}, and the "
                f"nearest such size is {format_size(*size)}."
            )

    def pieces(self, frames: Iterable[Frames], chunk: int) -> Iterator[mx.array]:
        """Yield frames (B, n, H, W, 3) in the encoder's dtype: 1 + `chunk` frames, then `chunk` frames at a time."""
        waiting: list[mx.array] = []
        count, piece_length = 0, 1 + chunk
        self._least = math.inf
        for part in self._parts(frames, chunk):
            waiting.append(part)
            count += part.shape[1]
            del part
            if sum(array.shape[1] for array in waiting) >= piece_length:  # `if` is enough: no part is longer
                yield self._to_pixels(_take_first(waiting, piece_length))
                piece_length = chunk
        usable = self.spec.usable_frames(count, pad=self.pad)
        piece = mx.concatenate(waiting, axis=1)
        if usable > count:
            piece = mx.concatenate([piece] + [piece[:, -1:]] * (usable - count), axis=1)
        elif usable < count:
            left_out = "the last is" if count - usable == 1 else f"the last {count - usable} are"
            warn(
                f"{count} frames are not 1 + {self.spec.scale.time}*k; {left_out} left out "
                f"({option('pad=True', '--pad')} repeats the last frame instead)."
            )
            piece = piece[:, : usable - count]
        if piece.shape[1]:
            yield self._to_pixels(piece)
        if 0 <= self._least < math.inf:
            warn(
                "no value of the frames is below 0, and a picture's are in [-1, 1]; if these are in [0, 1], pass "
                "2 * frames - 1."
            )

    def _parts(self, clip: Iterable[Frames], chunk: int) -> Iterator[mx.array]:
        """Yield the frames as MLX arrays of at most `chunk` frames, so that a long array is not in memory twice."""
        first_kind = None
        for frames in clip:
            kind = (frames.shape[0], *frames.shape[2:], dtype_name(frames.dtype))
            first_kind = first_kind or kind
            if kind != first_kind:
                raise LatentsError(
                    f"frames (batch, height, width, 3, type) {kind} follow frames of {first_kind}; all must be alike."
                )
            for start in range(0, frames.shape[1], chunk):
                part = frames[:, start : start + chunk]
                yield part if isinstance(part, mx.array) else from_numpy(part)

    def _to_pixels(self, frames: mx.array) -> mx.array:
        if peak := _PEAKS.get(dtype_name(frames.dtype)):
            return levels_to_pixels(frames, self.dtype, peak)
        least, largest = to_list(mx.stack([frames.min(), mx.abs(frames).max()]))  # NaN if any value is NaN
        self._least = min(self._least, least)
        if not largest < float("inf"):
            raise LatentsError("frames contain NaN or infinite values.")
        if largest > _MAX_PIXEL:
            raise LatentsError(
                f"frames reach {largest:g}; expected [-1, 1]: divide by 127.5 and subtract 1, or pass uint8."
            )
        return frames.astype(self.dtype)


def frame_source(frames: Iterable[Frames | FrameChunk], preprocess: Preprocess, plan: EncodePlan | None) -> Source:
    """Return an iterator of frames as the input of an encoder. Only a few frames are in memory at a time.

    `grid` has the frame size and the plan's number of frames. Without a plan, it has the frames of a long clip: even
    longer clips take no more memory.
    """
    first, parts = peek(map(to_channels_last, frames), "there are no frames to encode.")
    preprocess.check_size(first)
    num_frames = 1 + LONG_CLIP * preprocess.spec.scale.time if plan is None else plan.num_frames
    batch, _, height, width, _ = first.shape
    return Source(batch, (num_frames, height, width), lambda _, chunk: preprocess.pieces(parts, chunk))


def clip_source(clip: Frames, preprocess: Preprocess) -> Source:
    """Return a clip in one array as the input of an encoder. `grid` is (F, H, W) after padding or dropping frames."""
    frames = to_channels_last(clip)
    preprocess.check_size(frames)
    batch, length, height, width, _ = frames.shape

    def crops(boxes: Sequence[TileBox], chunk: int) -> Iterator[mx.array]:
        """Cut tiles of the same time interval. The last one may extend beyond the clip and is padded."""
        time = range(boxes[0][0].start, min(boxes[0][0].end, length))
        return preprocess.pieces((crop_space(frames[:, frame : frame + 1], boxes) for frame in time), chunk)

    grid = (preprocess.spec.usable_frames(length, pad=preprocess.pad), height, width)
    return Source(batch, grid, lambda _, chunk: preprocess.pieces([frames], chunk), crops)


def cut_windows(
    frames: Iterable[np.ndarray], size: int, carry: int, *, least: int
) -> Generator[Iterator[np.ndarray], None, None]:
    """Yield the frames of each window of a video, one by one. A window must be exhausted before the next is taken.

    A window has `size` frames, and the first `carry` of them repeat the last frames of the previous window. The last
    window may be shorter. Fewer than `least` new frames make no window and are dropped, with a warning.
    """
    single_frames = (part[index : index + 1] for part in frames for index in range(len(part)))
    shared_frames: deque[np.ndarray] = deque(maxlen=carry)

    def window(first_frames: list[np.ndarray]) -> Iterator[np.ndarray]:
        for frame in chain(first_frames, islice(single_frames, size - len(first_frames))):
            shared_frames.append(frame)
            yield frame

    new_frames = list(islice(single_frames, 1))  # without any, the encode of the first window is an error
    while True:
        yield window([*shared_frames, *new_frames])
        new_frames = list(islice(single_frames, least))
        if len(new_frames) == least:
            continue
        if new_frames:
            remedy = option("pad=True", "--pad")
            problem = f"the end ({format_count(len(new_frames), 'frame')}) makes no latent frame, and is left out"
            warn(f"{problem}; {remedy} repeats the last frame.")
        return


def _take_first(parts: list[mx.array], count: int) -> mx.array:
    """Return the first `count` frames of some parts, and remove them from the list."""
    joined = mx.concatenate(parts, axis=1)
    parts[:] = [joined[:, count:]]
    mx.async_eval(parts)  # another thread may take the next piece
    return joined[:, :count]


class EncodeStream(ChunkStream[mx.array]):
    """Latents of one encode, arrays (B, C, n, H', W') in order along time."""


@dataclass(frozen=True)
class EncodePipeline:
    """Encoder and options of encodes.

    `is_promoted` is True if the encoder is stored in float16 and computes in float32. `make_plan` is called with a
    frame shape.
    """

    encoder: NetworkHandle[Encoder]
    is_promoted: bool
    make_plan: Callable[[Sequence[int], PlanOptions], EncodePlan]
    plan_options: PlanOptions = PLAN_DEFAULTS
    pad: bool = False
    state: ExecutionState = field(default_factory=ExecutionState)

    def stream(self, frames: Frames | Iterable[Frames | FrameChunk], plan: EncodePlan | None) -> EncodeStream:
        """Check the options, and return the latents of a clip in one array, or of frames as they arrive."""
        check_process()
        if hasattr(frames, "__array__"):  # also arrays of other libraries, which may be iterable
            frames = native_array(frames, "frames")
        if isinstance(frames, str) or not isinstance(frames, (Frames, Iterable)):
            raise LatentsError(
                f"frames are {type(frames).__name__}; expected an array or an iterator of them, which "
                "for a video file is VideoReader(path)."
            )
        if plan is not None:
            check_plan(plan, EncodePlan)
            check_no_options(self.plan_options)
        if self.is_promoted:
            warn(
                "float16 may overflow in the encoders of LTX, so this one computes in float32; bfloat16 takes half "
                "the memory."
            )
        tiles = self.plan_options.tiling or (plan.tiling if plan is not None else None)
        if not isinstance(frames, Frames) and tiles is not None and tiles.temporal_config is not None:
            raise TilingError(
                "tiles in time take the whole clip as one array; leave out temporal_config, since a stream is exact in "
                "time and shorter tiles save no memory."
            )
        return EncodeStream(self._encode(frames, plan), self.state)

    def _encode(
        self, frames: Frames | Iterable[Frames | FrameChunk], plan: EncodePlan | None
    ) -> Generator[mx.array, None, None]:
        """Yield latents in the encoder's dtype, evaluated."""
        preprocess = Preprocess(self.encoder.spec, self.encoder.dtype, self.pad)
        if isinstance(frames, Frames):
            source = clip_source(frames, preprocess)
        else:
            source = frame_source(frames, preprocess, plan)
        shape = (source.batch, 3, *source.grid)
        if plan is None:
            plan = self.make_plan(shape, self.plan_options)
        plan_shape = (plan.latent_shape.batch, 3, *plan.video_grid)
        if plan_shape != shape:
            raise PlanError(f"the plan was made for frames (B, 3, F, H, W) of {plan_shape}; these are {shape}.")
        self.state.work = plan.multiply_adds
        encoder = self.encoder.get()
        run = Execution(encoder, plan, source, StreamContext(), self.state)
        yield from encoded(run, encoder)


def encoded(run: Execution, encoder: Encoder | AudioEncoder) -> Generator[mx.array, None, None]:
    """Yield the latents of a run in the encoder's dtype, evaluated; raise a `LatentsError` if they are not finite."""

    def to_latents(outputs: mx.array) -> mx.array:
        latents = encoder.to_latents(outputs)
        if not to_bool(mx.isfinite(latents).all()):
            raise LatentsError(f"the encoded latents are not finite: {explain_not_finite(encoder, 'encoder')}")
        return latents

    yield from map(to_latents, run.outputs())
    confirm_device()
