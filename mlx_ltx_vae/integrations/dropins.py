"""Drop-ins: functions with the names, arguments and results of the apps' functions.

Frames are decoded exactly, in constant memory, with no tiles and so no seams. The app's tiles are used only if no exact
decode fits the memory.

Every drop-in takes further keywords: `seed`, `keyframes`, `noise`, `keyframe_noise`, `frame_rate` (or `fps`) and
`output_dtype` have the same meaning as in the apps. Keywords that change no pixel, or are switched off, are
ignored. Any other keyword is a `PlanError`.

Exceptions of the app's callbacks reach the app. Exceptions of this package are `LTXVAEError`s; a `DeviceError` is also
a RuntimeError, and a `TilingError` also a ValueError.
"""

import logging
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import starmap
from typing import Any, TypeVar, cast

import mlx.core as mx
import mlx.nn as nn

from ..backend.mlx_utils import DTYPES, parse_dtype
from ..errors import PlanError, TilingError, quote, warn
from ..frame_format import RGB8, FrameFormat, FrameOutput, FrameStep
from ..options import MAX_SEED, DecodeKeywords
from ..pipeline.execution import arrays_released, join_parts
from ..pipeline.frames import FrameChunk, to_format_in_parts
from ..pipeline.progress import open_bar
from ..planning.plan import DecodePlan, Mode, Plan
from ..shapes import DEFAULT_SCALE
from ..tiling.blend import decode_tiles
from ..tiling.config import TilingConfig
from ..tiling.layout import TileLayout
from ..vae import VideoVAE
from .apps import HARMLESS, CallOptions
from .networks import app_noise, seeds_generator, vae_of
from .saving import AppDecode, app_decode, to_keyframes
from .settings import current

PlanT = TypeVar("PlanT", bound=Plan)

_log = logging.getLogger(__name__)

_AXES = 5  # of latents (B, C, F', H', W')

# Levels of Acelogic's LTX-2-MLX, which are rounded down.
_LEVELS = FrameOutput(RGB8, (FrameStep(lambda frames, _: mx.floor(mx.clip(frames, 0, 1) * 255) / 255),))
# What frames become in arrays whose values are smaller than the network's, or larger.
_CONVERTED = {mx.uint8: _LEVELS, mx.float32: FrameOutput(FrameFormat("rgbf32le"))}


def _read_options(function_name: str, options: dict[str, Any]) -> CallOptions:
    """Read the options in an app's keywords. Raises a `PlanError` for unknown ones that are not switched off."""
    options = {"frame_rate" if name == "fps" else name: value for name, value in options.items()}
    call_options = {name: options.pop(name) for name in CallOptions._fields if options.get(name) is not None}
    for name, value in options.items():
        is_off = value is None or (isinstance(value, (bool, int, float, str)) and not value)
        if name not in HARMLESS and not is_off:
            raise PlanError(
                f"{function_name} got {name}={quote(value, 40)}, which mlx_ltx_vae does not know and which may change "
                "the picture; leave it out, or run the app without mlx_ltx_vae."
            )
    return CallOptions(**call_options)


def _output_dtype(call_options: CallOptions, default: mx.Dtype) -> mx.Dtype:
    """Return the dtype of the result, which is `default` unless the call names another one."""
    name = parse_dtype(call_options.output_dtype)
    return default if name is None else DTYPES[name]


def decode_whole(
    self: nn.Module, latents: mx.array, *, timestep: mx.array | float | None = None, **options: Any
) -> mx.array:
    """Decode latents (B, C, F', H', W') to pixels (B, 3, F, H, W). Replaces the single pass of any app.

    The result has the latents' dtype. Further options as in `decode_tiled`.
    """
    return decode_tiled(self, latents, timestep=timestep, **options)


def decode_latent(
    latent: mx.array,
    decoder: nn.Module,
    timestep: mx.array | float | None = None,
    temporal_chunk_size: int = 7,
    temporal_overlap: int = 2,
    **options: Any,
) -> mx.array:
    """Decode latents (1, C, F', H', W') or (C, F', H', W') to uint8 (F, H, W, 3), as Acelogic's LTX-2-MLX does.

    The app's chunks along time have no effect.
    """
    latents = latent if latent.ndim == _AXES else latent[None]
    call_options = _read_options("decode_latent", options)
    plan, chunks = _start(decoder, latents, None, timestep, call_options, array_dtype=mx.uint8)

    def level_chunks() -> Iterator[mx.array]:
        for chunk in chunks:
            chunk.check()
            yield to_format_in_parts(chunk.frames, _LEVELS.format, _LEVELS.steps)[0]

    with arrays_released(), closing(chunks):
        return join_parts(level_chunks(), 0, plan.num_frames)


def decode_tiled(
    self: nn.Module,
    sample: mx.array,
    tiling_config: Any = None,
    tiling_mode: str = "auto",
    causal: bool | None = False,
    timestep: mx.array | float | None = None,
    debug: bool = False,
    on_frames_ready: Callable[[mx.array, int], object] | None = None,
    **options: Any,
) -> mx.array:
    """Decode latents (B, C, F', H', W') to pixels (B, 3, F, H, W), as mlx-video and mlx-video-with-audio do.

    `on_frames_ready` is called with (frames (B, 3, n, H, W), start index) as frames become final, each once and in
    order, also if the clip needs no tiles. Frames have the latents' dtype. `tiling_mode` and `debug` have no effect.

    Raises:
        PlanError: if `causal` is true and the decoder is not causal, which no app requests.
    """
    if causal and not getattr(self, "causal", getattr(self, "_causal", False)):
        raise PlanError("causal=True is not supported: a decoder pads along time as it was trained; leave it out.")
    call_options = _read_options("decode", options)
    dtype = _output_dtype(call_options, sample.dtype)
    plan, chunks = _start(self, sample, tiling_config, timestep, call_options, array_dtype=dtype)

    def frame_chunks() -> Iterator[mx.array]:
        for chunk in chunks:
            frames = _pixels(chunk).astype(dtype)
            if on_frames_ready is not None:
                on_frames_ready(frames, chunk.start)
            yield frames

    with arrays_released(), closing(chunks):
        return join_parts(frame_chunks(), 2, plan.num_frames)


def tiled_decode(self: nn.Module, latent: mx.array, tiling_config: Any = None, **options: Any) -> Iterator[mx.array]:
    """Yield pixels (B, 3, n, H, W) of latents (B, C, F', H', W') in order, in the latents' dtype, as ltx-2-mlx does."""
    call_options = _read_options("tiled_decode", options)
    _, chunks = _start(self, latent, tiling_config, None, call_options)
    dtype = _output_dtype(call_options, latent.dtype)
    with arrays_released(), closing(chunks):
        yield from (_pixels(chunk).astype(dtype) for chunk in chunks)


def decode_and_stream(
    self: nn.Module,
    latent: mx.array,
    output_path: str,
    frame_rate: float = 24.0,
    audio_path: str | None = None,
    **options: Any,
) -> None:
    """Decode latents (1, C, F', H', W') into a video file, with audio if `audio_path` is set, as ltx-2-mlx does.

    A failure of ffmpeg is a `WriterError`, and leaves no file. `VideoWriter` says which ffmpeg is used.
    """
    call_options = _read_options("decode_and_stream", {**options, "frame_rate": options.get("fps", frame_rate)})
    vae = _prepare(self, latent, call_options)
    decode_options = _decode_options(vae, self, latent, None, call_options)
    vae.decode_to_file(
        latent,
        output_path,
        _within_budget(partial(vae.plan, latent.shape, keyframes=decode_options.get("keyframes"), bit_depth=8)),
        fps=cast(float, call_options.frame_rate),
        audio=audio_path,
        codec="h264",
        crf=18,
        **decode_options,
    )


def stream_wrapped(self: Any, video_latent: mx.array, output_path: str, **options: Any) -> str:
    """Run `decode_and_stream` for the object in which ltx-2-mlx keeps a diffusion decoder, and return the path."""
    decode_and_stream(self._decoder, video_latent, output_path, **options)
    return output_path


@contextmanager
def without_estimate(app_call: partial) -> Iterator[None]:
    """Silence messages about the tiles of the app's decode while the `decode_and_stream` of an app's block runs.

    The block drops keyframes where its decoder takes none. Its message about that is silenced too, so this warns.
    """
    block = app_call.args[0]
    if app_call.keywords.get("keyframes") is not None and getattr(block, "video_decoder", "") == "conv":
        warn("the conv decoder takes no keyframes, and the app leaves them out; use the diffusion decoder.")
    was_verbose, block.verbose = getattr(block, "verbose", False), False
    try:
        yield
    finally:
        block.verbose = was_verbose


def decode_streaming(
    latent: mx.array,
    decoder_fn: nn.Module | Callable[..., mx.array],
    tiling_config: Any = None,
    timestep: float | None = 0.05,
    show_progress: bool = True,
    **options: Any,
) -> Iterator[mx.array]:
    """Yield pixels (B, 3, n, H, W) of latents (B, C, F', H', W') in order, as LTX-2-MLX does.

    `show_progress` shows a bar on standard error. If `decoder_fn` is a function, it is called with the latents of each
    of the app's tiles, as `decoder_fn(latents, timestep=timestep, show_progress=False)`.
    """
    call_options = _read_options("decode_streaming", options)
    chunks: Iterable[FrameChunk]
    if isinstance(decoder_fn, nn.Module):
        plan, chunks = _start(decoder_fn, latent, tiling_config, timestep, call_options)
        num_frames = plan.num_frames
    else:
        _save(latent, None, call_options)
        num_frames, height, width = DEFAULT_SCALE.video_grid(latent.shape[2:])
        tiling = TilingConfig.of(tiling_config or TilingConfig.auto(height, width, num_frames) or TilingConfig())
        decode_tile = partial(decoder_fn, timestep=timestep, show_progress=False)
        chunks = starmap(
            FrameChunk, decode_tiles(decode_tile, latent, TileLayout.make(tiling, latent.shape[2:], DEFAULT_SCALE))
        )
    with open_bar(show_progress, num_frames) as bar:
        yield from map(_pixels, bar.follow(chunks))  # `map` holds no chunk while it waits


def encode_whole(self: nn.Module, pixels: mx.array, *_: Any, **options: Any) -> mx.array:
    """Encode pixels (B, 3, F, H, W) in [-1, 1] to normalized latents (B, C, F', H', W'), as ltx-2-mlx does.

    The result has the dtype to which MLX promotes pixels and weights.
    """
    call_options = _read_options("encode", options)
    vae = vae_of(self, pixels.dtype)
    plan = _within_budget(partial(vae.plan_encode, pixels.shape, joined=True))
    _log.info("%s", plan)
    promoted = mx.result_type(pixels, mx.zeros((), vae.dtype))
    return vae.encode(pixels, plan).astype(_output_dtype(call_options, promoted))


@contextmanager
def with_audio_kept(app_call: partial) -> Iterator[None]:
    """Keep the audio latents (B, 8, T, 16) that the `AudioDecoder` block of ltx-2-mlx gets for the file of the video.

    The app decodes the audio, which differs from the reference in the first 60 ms and the last 20 ms.
    """
    values = (*app_call.args, *app_call.keywords.values())
    latents = next((value for value in values if isinstance(value, mx.array)), None)
    if (folder := current().folder) is not None and latents is not None:
        folder.hold_audio(latents)
    yield


def _start(
    decoder: nn.Module,
    latents: mx.array,
    tiling_config: Any,
    timestep: mx.array | float | None,
    call_options: CallOptions,
    *,
    array_dtype: mx.Dtype | None = None,
) -> tuple[DecodePlan, Generator[FrameChunk, None, None]]:
    """Start a decode by an exact plan. If none fits, use the app's tiles, or other tiles if they do not fit the VAE.

    `array_dtype` is the dtype of the one array that all frames become, if they do.
    """
    vae = _prepare(decoder, latents, call_options)
    options = _decode_options(vae, decoder, latents, timestep, call_options)
    make_plan = partial(
        vae.plan,
        latents.shape,
        keyframes=options.get("keyframes"),
        outputs=[_CONVERTED[array_dtype]] if array_dtype in _CONVERTED and array_dtype != vae.dtype else [],
        joined=array_dtype is not None,
    )
    plan = _within_budget(make_plan)
    if plan.mode is Mode.TILED and hasattr(tiling_config, "spatial_config"):  # not the diffusion decoder's
        with suppress(TilingError):  # some VAEs need wider overlaps than apps have
            plan = _within_budget(partial(make_plan, mode="tiled", tiling=TilingConfig.of(tiling_config)))
    _log.info("%s", plan)
    return plan, cast(Any, vae.stream(latents, plan, **options))


def _within_budget(make_plan: Callable[..., PlanT]) -> PlanT:
    """Make a plan within the budget of `install`, or else of the app's environment variable, in GiB.

    With a warning the least plan if nothing fits, or the default one.
    """
    budget = current().memory_budget
    if budget is None and (gibibytes := os.environ.get("LTX2_VAE_DECODE_BUDGET_GB")) is not None:
        budget = f"{gibibytes}GiB"
    try:
        return make_plan(memory_budget=budget)
    except PlanError as error:
        if budget is None:
            raise
        warn(f"{str(error).rstrip('.')}; {'this' if error.least_bytes else 'the default budget'} is taken.")
        return make_plan(memory_budget=error.least_bytes)


def _prepare(decoder: nn.Module, latents: mx.array, call_options: CallOptions) -> VideoVAE:
    """Return the VAE of a decoder, and save the latents if a folder is set, also if there is an error."""
    vae = None
    try:
        vae = vae_of(decoder)
    finally:
        _save(latents, vae, call_options)
    return vae


def _save(latents: mx.array, vae: VideoVAE | None, call_options: CallOptions) -> None:
    """Save latents of a VAE if a folder is set. `None` means that the VAE is not known."""
    decode = app_decode.get()  # `None` if an app calls the drop-in by its name
    if decode is None and latents.ndim == _AXES:
        decode = AppDecode(latents, call_options._asdict())
    if decode is not None:
        decode.save(vae)


def _decode_options(
    vae: VideoVAE, decoder: nn.Module, latents: mx.array, timestep: mx.array | float | None, call_options: CallOptions
) -> DecodeKeywords:
    """Return the options of a decode: a timestep, noise or keyframes only for a VAE that takes them.

    The apps pass a timestep and a seed to any VAE.
    """
    assert vae.decoder is not None
    spec, options = vae.decoder.spec, DecodeKeywords(keyframes=to_keyframes(call_options._asdict()))
    if spec.has_timestep:
        if timestep is None:
            timestep = getattr(decoder, "decode_timestep", None)
        options["timestep"] = None if timestep is None else float(timestep)
        options["noise_scale"] = getattr(decoder, "decode_noise_scale", None)
    if spec.has_latent_noise:
        options["seed"] = call_options.seed & MAX_SEED
    elif any(layer.noise_channels for layer in spec.layers):
        if not seeds_generator(decoder):
            warn(
                "the diffusion decoder sees the whole width, as the reference's whole mode does, and ltx-2-mlx four "
                "slabs of it, so pixels near the left and right edges differ from the app's own."
            )
        planes = 0 if options["keyframes"] is None else len(options["keyframes"].frames)
        seeded_maps = app_noise(decoder, spec, latents, planes, call_options.seed)
        noise_maps = (call_options.noise, call_options.keyframe_noise)
        options["noise"] = [
            seeded if noise is None else noise for seeded, noise in zip(seeded_maps, noise_maps, strict=False)
        ]
    return options


def _pixels(chunk: FrameChunk) -> mx.array:
    chunk.check()
    return chunk.pixels


#: Drop-ins by their names in the table of apps.
DROPINS: dict[str, Callable[..., Any]] = {
    dropin.__name__: dropin
    for dropin in (
        decode_whole,
        decode_latent,
        decode_tiled,
        tiled_decode,
        decode_and_stream,
        stream_wrapped,
        without_estimate,
        decode_streaming,
        encode_whole,
        with_audio_kept,
    )
}
DROPINS["decode_float"] = partial(decode_whole, output_dtype="float32")  # as Acelogic's LTX-2-MLX does
