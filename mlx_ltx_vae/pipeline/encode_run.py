"""Executes an encode plan: frames in, normalized latents out."""

import threading
import warnings
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TypedDict

import mlx.core as mx

from ..backend.device import check_process, confirm_device
from ..backend.mlx_utils import native_array, to_bool
from ..distributed import RowBands
from ..errors import LatentsError, PlanError, TilingError
from ..models.base import Encoder, SoundEncoder
from ..planning.plan import EncodePlan
from ..streaming.context import StreamContext
from ..tiling.config import TilingConfig
from ..tiling.layout import check_batch_size
from .chunk_stream import ChunkStream, check_cancelled
from .postprocess import explain_not_finite
from .preprocess import ClipSource, Frames, FrameStreamSource, Preprocess
from .run import Run, make_bands


class EncodeOptions(TypedDict, total=False):
    """The options of `VideoVAE.encode`, which documents them."""

    tiling: TilingConfig | None
    tile_batch_size: int
    pad: bool
    group: mx.distributed.Group | None


class EncodeStream(ChunkStream[mx.array]):
    """The latents of one encode, (B, C, n, H', W') each, in order along time."""


@dataclass(frozen=True)
class EncodePipeline:
    """Starts encodes with one encoder, in this process or together with a group. `VideoVAE.encode` has the options.

    `is_promoted` is whether the encoder is float16 as stored and computes in float32. `make_plan` is called with a
    frame shape and the options of a plan.
    """

    encoder: Encoder
    is_promoted: bool
    make_plan: Callable[..., EncodePlan]
    tiling: TilingConfig | None = None
    tile_batch_size: int = 1
    pad: bool = False
    group: mx.distributed.Group | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)
    bands: list[RowBands] = field(default_factory=list)  # those of the run, if it has any, once it is made

    def stream(self, frames: Frames | Iterable[Frames], plan: EncodePlan | None) -> EncodeStream:
        """Check the options, and return the latents of a whole clip, or of frames as they arrive."""
        check_process()
        check_batch_size(self.tile_batch_size)
        if hasattr(frames, "__array__"):  # of another library, too, which may be iterable
            frames = native_array(frames, "frames")
        if isinstance(frames, str) or not isinstance(frames, (Frames, Iterable)):
            raise LatentsError(
                f"frames are {type(frames).__name__}; expected an array or an iterator of them, which "
                "for a video file is VideoReader(path)."
            )
        if plan is not None and (self.tiling is not None or self.tile_batch_size != 1):
            raise PlanError("the plan says how to tile; leave out tiling and tile_batch_size.")
        if self.is_promoted:
            warnings.warn(
                "float16 may overflow in the encoders of LTX, so this one computes in float32; bfloat16 takes half "
                "the memory.",
                stacklevel=3,
            )
        tiles = self.tiling or (plan.tiling if plan is not None else None)
        if not isinstance(frames, Frames) and tiles is not None and tiles.temporal_config is not None:
            raise TilingError(
                "tiles in time take the whole clip as one array; leave out temporal_config, since a stream is exact in "
                "time and shorter tiles save no memory."
            )
        return EncodeStream(self._encode(frames, plan), self.cancelled, self.bands)

    def _encode(self, frames: Frames | Iterable[Frames], plan: EncodePlan | None) -> Generator[mx.array, None, None]:
        """Yield latents in the encoder's dtype, evaluated."""
        encoder, preprocess = self.encoder, Preprocess(self.encoder.spec, self.encoder.dtype, self.pad)
        source = (
            ClipSource(frames, preprocess)
            if isinstance(frames, Frames)
            else FrameStreamSource(frames, preprocess, plan)
        )
        shape = (source.batch, 3, *source.grid)
        if plan is None:
            mode = "tiled" if self.tiling else "auto"
            plan = self.make_plan(shape, mode=mode, tiling=self.tiling, tile_batch_size=self.tile_batch_size)
        planned = (plan.latent_shape.batch, 3, *plan.video_grid)
        if planned != shape:
            raise PlanError(f"the plan was made for frames (B, 3, F, H, W) of {planned}; these are {shape}.")
        bands = make_bands(self.group, plan)
        if bands is not None:
            self.bands.append(bands)
            rows, scale = plan.bands[bands.rank], encoder.spec.scale.height
            preprocess.rows = slice(rows.start * scale, rows.end * scale)
        run = Run(encoder, plan, source, StreamContext(neighbors=bands), partial(check_cancelled, self.cancelled))
        yield from encoded(run, encoder, bands)


def encoded(
    run: Run, encoder: Encoder | SoundEncoder, bands: RowBands | None = None
) -> Generator[mx.array, None, None]:
    """Yield the latents of a run in the encoder's dtype, evaluated; a `LatentsError` if they are not finite."""

    def to_latents(outputs: mx.array) -> mx.array:
        latents = encoder.to_latents(outputs if bands is None else bands.gather(outputs))
        if not to_bool(mx.isfinite(latents).all()):
            raise LatentsError(f"the encoded latents are not finite: {explain_not_finite(encoder, 'encoder')}")
        return latents

    yield from map(to_latents, run.results())
    confirm_device()
