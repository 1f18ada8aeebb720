"""Drop-ins: functions with the names, arguments and results of the apps' own.

Frames are decoded exactly, in constant memory, with no tiles and so no seams. The app's tiles are used only if no exact
decode fits the memory.

Every drop-in takes further keywords: `seed`, `keyframes`, `noise`, `keyframe_noise`, `frame_rate` (or `fps`) and
`output_dtype` mean here what they mean in the apps. Keywords that change no pixel, or are switched off, are
ignored. Anything else is a `PlanError`.

Exceptions of the app's callbacks reach the app. This package's own are `LTXVAEError`s; a `DeviceError` is also
a RuntimeError, and a `TilingError` also a ValueError.
"""

import logging
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import starmap
from typing import Any, NamedTuple, cast

import mlx.core as mx
import mlx.nn as nn

from ..backend.mlx_utils import DTYPES, parse_dtype
from ..errors import PlanError, TilingError, quote, warn
from ..latents.keyframes import Keyframes
from ..models.specs import MAX_SEED
from ..pipeline.decode import DecodeOptions
from ..pipeline.frames import FrameChunk
from ..pipeline.progress import show_progress as with_progress
from ..pipeline.run import arrays_released, join_parts
from ..planning.plan import DecodePlan, Mode
from ..shapes import DEFAULT_SCALE, ScaleFactors
from ..tiling.blend import decode_tiles
from ..tiling.config import TilingConfig
from ..tiling.layout import TileLayout
from ..vae import VideoVAE
from .networks import app_noise, single_pass, vae_of
from .saving import LatentsFolder

_log = logging.getLogger(__name__)

# Options of apps that change no pixel here: how they cut a decode into pieces, and what they print.
_HARMLESS = {"tiling_config", "tiling_mode", "allow_small_overlap", "chunked_conv", "_materialize_stages", "debug"}
_HARMLESS |= {"verbose", "show_progress", "audio_path", "chunk_size", "tile_batch_size"}
_AXES = 5  # of latents (B, C, F', H', W')


@dataclass
class _Settings:
    memory_budget: str | int | None = None
    folder: LatentsFolder | None = None


_settings = _Settings()


def set_options(memory_budget: str | int | None, folder: str | os.PathLike | None) -> None:
    """Set the memory budget of all drop-ins and the folder of their latent files; None for the default, or no files."""
    if _settings.folder is not None:
        _settings.folder.close()
    _settings.memory_budget = memory_budget
    _settings.folder = None if folder is None else LatentsFolder(folder)


class _Asked(NamedTuple):
    """The keywords of a call besides the drop-in's own."""

    seed: int = 0
    keyframes: Any = None  # as the app has them, or `Keyframes`
    noise: Any = None
    keyframe_noise: Any = None
    frame_rate: float | None = None
    output_dtype: Any = None

    def dtype(self, own: mx.Dtype) -> mx.Dtype:
        """The dtype of the result, which is `own` unless another one is asked for."""
        name = parse_dtype(self.output_dtype)
        return own if name is None else DTYPES[name]


def _read_options(what: str, options: dict[str, Any]) -> _Asked:
    """The options that an app's keywords ask for. Raises a `PlanError` for unknown ones that are not switched off."""
    options = {"frame_rate" if name == "fps" else name: value for name, value in options.items()}
    asked = {name: options.pop(name) for name in _Asked._fields if options.get(name) is not None}
    for name, value in options.items():
        is_off = value is None or (isinstance(value, (bool, int, float, str)) and not value)
        if name not in _HARMLESS and name not in _Asked._fields and not is_off:
            raise PlanError(
                f"{what} got {name}={quote(value, 40)}, which mlx_ltx_vae does not know and which may change the "
                "picture; leave it out, or run the app without mlx_ltx_vae."
            )
    return _Asked(**asked)


@single_pass
def decode_whole(
    self: nn.Module, latents: mx.array, *, timestep: mx.array | float | None = None, **options: Any
) -> mx.array:
    """Decode latents (B, C, F', H', W') to pixels (B, 3, F, H, W), instead of any app's single pass.

    The result has the latents' dtype. Further options as in `decode_tiled`.
    """
    return decode_tiled(self, latents, timestep=timestep, **options)


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
        PlanError: if `causal` is true and the decoder is not, which the app never asks for.
    """
    _check_causal(self, causal)
    asked = _read_options("decode", options)
    decode = _start(self, sample, tiling_config, timestep, asked, joined=True)
    dtype = asked.dtype(sample.dtype)

    def taken() -> Iterator[mx.array]:
        for chunk in decode.chunks:
            frames = _pixels(chunk).astype(dtype)
            if on_frames_ready is not None:
                on_frames_ready(frames, chunk.start)
            yield frames

    with arrays_released(), closing(decode.chunks):
        return join_parts(taken(), 2, decode.plan.num_frames)


def tiled_decode(self: nn.Module, latent: mx.array, tiling_config: Any = None, **options: Any) -> Iterator[mx.array]:
    """Yield pixels (B, 3, n, H, W) of latents (B, C, F', H', W') in order, in the latents' dtype, as ltx-2-mlx does."""
    asked = _read_options("tiled_decode", options)
    decode, dtype = _start(self, latent, tiling_config, None, asked), asked.dtype(latent.dtype)
    with arrays_released(), closing(decode.chunks):
        yield from (_pixels(chunk).astype(dtype) for chunk in decode.chunks)


def decode_and_stream(
    self: nn.Module,
    latent: mx.array,
    output_path: str,
    frame_rate: float = 24.0,
    audio_path: str | None = None,
    **options: Any,
) -> None:
    """Decode latents (1, C, F', H', W') into a video file, with sound if there is a file of it, as ltx-2-mlx does.

    A failure of ffmpeg is a `WriterError`, and leaves no file. The ffmpeg is `VideoWriter`'s.
    """
    asked = _read_options("decode_and_stream", {**options, "frame_rate": options.get("fps", frame_rate)})
    vae = _prepare(self, latent, asked)
    vae.decode_to_file(
        latent,
        output_path,
        fps=cast(float, asked.frame_rate),
        audio=audio_path,
        codec="h264",
        crf=18,
        memory_budget=_budget(),
        **_decode_options(vae, self, latent, None, asked),
    )


def stream_wrapped(self: Any, video_latent: mx.array, output_path: str, **options: Any) -> str:
    """`decode_and_stream` for the object in which ltx-2-mlx keeps a diffusion decoder. Returns the path."""
    decode_and_stream(self._decoder, video_latent, output_path, **options)
    return output_path


def without_estimate(own: Callable[..., Any], self: Any, *arguments: Any, **options: Any) -> Any:
    """Call the `decode_and_stream` of an app's block without what it prints of the tiles of its own decode.

    The block drops keyframes where its decoder takes none, and prints that too, so this warns.
    """
    if options.get("keyframes") is not None and getattr(self, "video_decoder", "") == "conv":
        warn("the conv decoder takes no keyframes, and the app leaves them out; use the diffusion decoder.")
    was_verbose, self.verbose = getattr(self, "verbose", False), False
    try:
        return own(self, *arguments, **options)
    finally:
        self.verbose = was_verbose


def decode_streaming(
    latent: mx.array,
    decoder_fn: nn.Module | Callable[..., mx.array],
    tiling_config: Any = None,
    timestep: float | None = 0.05,
    show_progress: bool = True,
    **options: Any,
) -> Iterator[mx.array]:
    """Yield pixels (B, 3, n, H, W) of latents (B, C, F', H', W') in order, as LTX-2-MLX does.

    `show_progress` is for a bar on standard error. A function instead of a decoder is called with the latents of each
    of the app's tiles, as `decoder_fn(latents, timestep=timestep, show_progress=False)`.
    """
    asked = _read_options("decode_streaming", options)
    chunks: Iterable[FrameChunk]
    if isinstance(decoder_fn, nn.Module):
        decode = _start(decoder_fn, latent, tiling_config, timestep, asked)
        chunks, num_frames = decode.chunks, decode.plan.num_frames
    else:
        _save(latent, DEFAULT_SCALE, asked)
        num_frames, height, width = DEFAULT_SCALE.video_grid(latent.shape[2:])
        tiling = TilingConfig.of(tiling_config or TilingConfig.auto(height, width, num_frames) or TilingConfig())
        decode_tile = partial(decoder_fn, timestep=timestep, show_progress=False)
        chunks = starmap(
            FrameChunk, decode_tiles(decode_tile, latent, TileLayout.make(tiling, latent.shape[2:], DEFAULT_SCALE))
        )
    yield from map(_pixels, with_progress(chunks, show_progress, num_frames))  # map holds no chunk while it waits


@single_pass
def encode_whole(self: nn.Module, pixels: mx.array, *_: Any, **options: Any) -> mx.array:
    """Encode pixels (B, 3, F, H, W) in [-1, 1] to normalized latents (B, C, F', H', W'), as ltx-2-mlx does.

    The result has the dtype that MLX gives to pixels and weights together.
    """
    asked = _read_options("encode", options)
    vae = vae_of(self, pixels.dtype)
    plan = vae.plan_encode(pixels.shape, memory_budget=_budget(), joined=True)
    _log.info("%s", plan)
    return vae.encode(pixels, plan).astype(asked.dtype(mx.result_type(pixels, mx.zeros((), vae.dtype))))


def with_sound_kept(own: Callable[..., mx.array], self: Any, *arguments: Any, **options: Any) -> mx.array:
    """Call the `AudioDecoder` block of ltx-2-mlx, and keep the audio latents (B, 8, T, 16) for the file of the video.

    Its sound stays the app's own, which differs from the reference in the first 60 ms and the last 20.
    """
    if _settings.folder is not None:
        _settings.folder.hold_sound(next(iter((*arguments, *options.values()))))
    return own(self, *arguments, **options)


class _Decode(NamedTuple):
    plan: DecodePlan
    chunks: Generator[FrameChunk, None, None]


def _start(
    decoder: nn.Module,
    latents: mx.array,
    tiling_config: Any,
    timestep: mx.array | float | None,
    asked: _Asked,
    *,
    joined: bool = False,
) -> _Decode:
    """Start a decode by an exact plan; if none fits, by the app's tiles, or by others if those do not fit the VAE."""
    vae = _prepare(decoder, latents, asked)
    options = _decode_options(vae, decoder, latents, timestep, asked)
    planned: dict[str, Any] = {"memory_budget": _budget(), "keyframes": options.get("keyframes"), "joined": joined}
    plan = vae.plan(latents.shape, **planned)
    if plan.mode is Mode.TILED and hasattr(tiling_config, "spatial_config"):  # not the diffusion decoder's
        with suppress(TilingError):  # some VAEs need wider overlaps than apps have
            plan = vae.plan(latents.shape, mode="tiled", tiling=TilingConfig.of(tiling_config), **planned)
    _log.info("%s", plan)
    return _Decode(plan, cast(Any, vae.stream(latents, plan, **options)))


def _prepare(decoder: nn.Module, latents: mx.array, asked: _Asked) -> VideoVAE:
    """The VAE of a decoder. The latents are saved if that is wanted, also where there is an error."""
    vae = None
    try:
        vae = vae_of(decoder)
    finally:
        _save(latents, DEFAULT_SCALE if vae is None else vae.config.scale, asked)
    return vae


def _save(latents: mx.array, scale: ScaleFactors, asked: _Asked) -> None:
    """Save latents, if that is wanted."""
    if _settings.folder is not None and latents.ndim == _AXES:
        _settings.folder.save(latents, scale, asked.frame_rate, _keyframes(asked.keyframes))


def _decode_options(
    vae: VideoVAE, decoder: nn.Module, latents: mx.array, timestep: mx.array | float | None, asked: _Asked
) -> DecodeOptions:
    """The options of a decode: a timestep, noise or keyframes only for a VAE that takes them.

    The apps pass a timestep and a seed to any VAE.
    """
    assert vae.decoder is not None
    spec, options = vae.decoder.spec, DecodeOptions(keyframes=_keyframes(asked.keyframes))
    if spec.has_timestep:
        given = getattr(decoder, "decode_timestep", None) if timestep is None else timestep
        options["timestep"] = None if given is None else float(given)
        options["noise_scale"] = getattr(decoder, "decode_noise_scale", None)
    if spec.has_latent_noise:
        options["seed"] = asked.seed & MAX_SEED
    elif any(layer.noise_channels for layer in spec.layers):
        warn(
            "the diffusion decoder sees the whole width, as the reference's whole mode does, and ltx-2-mlx four slabs "
            "of it, so pixels near the left and right edges differ from the app's own."
        )
        planes = 0 if options["keyframes"] is None else len(options["keyframes"].frames)
        drawn = app_noise(decoder, spec, latents.shape, planes, asked.seed)
        given_noise = (asked.noise, asked.keyframe_noise)
        options["noise"] = [own if given is None else given for own, given in zip(drawn, given_noise, strict=False)]
    return options


def _keyframes(given: Any) -> Keyframes | None:
    """Keyframes of an app: `latents` (B, C, P, H', W') and `pixel_frame_indices`, counted from the first frame."""
    if given is None or isinstance(given, Keyframes):
        return given
    if getattr(given, "clip_start_frame", 0):
        raise PlanError("keyframes of a clip that begins in the middle of a video are not supported; decode it whole.")
    return Keyframes(given.latents, list(given.pixel_frame_indices))


def _check_causal(decoder: nn.Module, causal: bool | None) -> None:
    if causal and not getattr(decoder, "causal", getattr(decoder, "_causal", False)):
        raise PlanError("causal=True is not supported: a decoder pads along time as it was trained; leave it out.")


def _budget() -> str | int | None:
    """The memory budget: `install`'s, or else the app's own variable, in GiB."""
    given = os.environ.get("LTX2_VAE_DECODE_BUDGET_GB")
    if _settings.memory_budget is not None or given is None:
        return _settings.memory_budget
    return f"{given}GiB"


def _pixels(chunk: FrameChunk) -> mx.array:
    chunk.check()
    return chunk.pixels


#: The drop-ins by the names that the table of apps has.
DROPINS: dict[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (
        decode_whole,
        decode_tiled,
        tiled_decode,
        decode_and_stream,
        stream_wrapped,
        without_estimate,
        decode_streaming,
        encode_whole,
        with_sound_kept,
    )
}
