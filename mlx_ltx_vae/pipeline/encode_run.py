"""Executes an encode plan: frames in, normalized latents out."""

import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import mlx.core as mx

from ..backend.device import check_process, confirm_device, explained_device_errors
from ..backend.mlx_utils import to_bool
from ..errors import LatentsError, PlanError, TilingError
from ..models.base import Encoder
from ..planning.plan import EncodePlan
from ..streaming.context import StreamContext
from ..tiling.config import TilingConfig
from ..tiling.layout import check_batch_size
from .diagnosis import explain_not_finite
from .preprocess import ClipSource, Frames, FrameStreamSource, Preprocess, to_channels_last
from .rank_bands import make_bands
from .run import Run
from .sources import Source

if TYPE_CHECKING:
    from ..distributed.row_bands import RowBands


@dataclass(frozen=True)
class EncodeOptions:
    """The options of `VideoVAE.encode`, which documents them."""

    tiling: TilingConfig | None = None
    tile_batch_size: int = 1
    pad: bool = False


class EncodeStream(Iterator[mx.array]):
    """The latents of one encode, (B, C, n, H', W') each, in order along time.

    `bands`, which exchange data with other ranks, are empty without these, and before the first frames arrive.
    """

    def __init__(self, latents: Generator[mx.array, None, None], bands: "Sequence[RowBands]" = ()) -> None:
        self._latents = latents
        self._bands = bands

    @property
    def sent_bytes(self) -> int:
        """Bytes that this process has sent to other ranks so far."""
        return sum(bands.sent_bytes for bands in self._bands)

    def __next__(self) -> mx.array:
        return next(self._latents)

    def close(self) -> None:
        """End the encode and free its memory; later calls of `next` raise StopIteration."""
        self._latents.close()


@dataclass(frozen=True)
class EncodePipeline:
    """Starts encodes with one encoder, in this process or together with a group.

    `is_promoted` is whether the encoder is float16 as stored and computes in float32. `make_plan` is called with a
    frame shape and the options of a plan.
    """

    encoder: Encoder
    is_promoted: bool
    make_plan: Callable[..., EncodePlan]
    group: mx.distributed.Group | None = None

    def clip(self, pixels: Frames, plan: EncodePlan | None, options: EncodeOptions) -> Iterator[mx.array]:
        """The latents of a whole clip; see `VideoVAE.encode`."""
        preprocess = self._preprocess(plan, options)
        source = ClipSource(to_channels_last(pixels), preprocess)
        plan, bands = self._plan(source, plan, options, source.grid[0])
        return self._latents(source, plan, bands)

    def stream(self, frames: Iterable[Frames], plan: EncodePlan | None, options: EncodeOptions) -> EncodeStream:
        """The latents of frames as they arrive; see `VideoVAE.encode_stream`."""
        preprocess = self._preprocess(plan, options)
        tiles = options.tiling or (plan.tiling if plan is not None else None)
        if tiles is not None and tiles.temporal_config is not None:
            raise TilingError(
                "tiles in time take the whole clip as one array; leave out temporal_config, since a stream is exact in "
                "time and shorter tiles save no memory."
            )
        joined: list[RowBands] = []

        def latents() -> Generator[mx.array, None, None]:
            source = FrameStreamSource(map(to_channels_last, frames), preprocess)
            num_frames = plan.num_frames if plan is not None else source.grid[0]  # a stream may have any number
            chosen, bands = self._plan(source, plan, options, num_frames)
            joined.extend([] if bands is None else [bands])
            yield from self._latents(source, chosen, bands)

        return EncodeStream(latents(), joined)

    def _preprocess(self, plan: EncodePlan | None, options: EncodeOptions) -> Preprocess:
        """Check the options and return the preprocessing of the encoder's input."""
        check_process()
        check_batch_size(options.tile_batch_size)
        if plan is not None and (options.tiling is not None or options.tile_batch_size != 1):
            raise PlanError("the plan says how to tile; leave out tiling and tile_batch_size.")
        if self.is_promoted:
            warnings.warn(
                "float16 may overflow in the encoders of LTX, so this one computes in float32; bfloat16 takes half "
                "the memory.",
                stacklevel=4,
            )
        return Preprocess(self.encoder.spec.scale, self.encoder.dtype, options.pad)

    def _plan(
        self, source: ClipSource | FrameStreamSource, plan: EncodePlan | None, options: EncodeOptions, num_frames: int
    ) -> "tuple[EncodePlan, RowBands | None]":
        """The plan, which must be for these frames, and the bands of all ranks if there are several."""
        shape = (source.batch, 3, num_frames, *source.grid[1:])
        if plan is None:
            mode = "tiled" if options.tiling else "auto"
            plan = self.make_plan(shape, mode=mode, tiling=options.tiling, tile_batch_size=options.tile_batch_size)
        planned = (plan.latent_shape.batch, 3, *plan.video_grid)
        if planned != shape:
            raise PlanError(f"the plan was made for frames (B, 3, F, H, W) of {planned}; these are {shape}.")
        bands = make_bands(self.group, plan)
        if bands is not None:
            rows, scale = plan.bands[bands.rank], self.encoder.spec.scale.height
            source.take_rows(slice(rows.start * scale, rows.end * scale))
        return plan, bands

    def _latents(self, source: Source, plan: EncodePlan, bands: "RowBands | None") -> Iterator[mx.array]:
        """Yield normalized latents (B, C, n, H', W') in the encoder's dtype, evaluated, in order along time."""
        run = Run(self.encoder, plan, source, StreamContext(neighbors=bands))
        with explained_device_errors():
            for outputs in run.results():
                latents = self.encoder.to_latents(outputs if bands is None else bands.gather(outputs))
                if not to_bool(mx.isfinite(latents).all()):
                    reason = explain_not_finite(self.encoder, "encoder")
                    raise LatentsError(f"the encoded latents are not finite: {reason}")
                yield latents
            confirm_device()
