"""Drop-ins for MLX apps: functions with the names, arguments and results of the apps' own.

| app | instead of |
|---|---|
| mlx-video, mlx-video-with-audio | `LTX2VideoDecoder.decode_tiled` |
| dgrauet/ltx-2-mlx | `VideoDecoder.decode_and_stream` |
| dmlsrc/LTX-2-MLX | `decode_streaming` |

```python
from mlx_ltx_vae.integrations import decode_tiled, decode_whole

LTX2VideoDecoder.decode_tiled = decode_tiled  # the app's class, and all its callers
LTX2VideoDecoder.__call__ = decode_whole
```

Frames are decoded exactly, in constant memory, with no tiles and so no seams. The app's tiles are used only if no exact
decode fits half of the available memory.

The weights are the app's own, once in memory: where `decode_whole` takes the place of the app's single pass, the arrays
of a decoder move into its `VideoVAE` at the first decode. The statistics of the latents, which apps read, stay. Where
`decode_whole` does not, the decoder keeps a copy of its own.

Exceptions of the app's callbacks reach the app. This package's own are `LTXVAEError`s; a `DeviceError` is also
a RuntimeError, and a `TilingError` also a ValueError.
"""

import logging
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import starmap
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map_with_path

from .backend.mlx_utils import named_parameters
from .checkpoint import open_weights
from .errors import CheckpointError, PlanError, TilingError, quote
from .models.video_vae.config import CLASS_NAME
from .pipeline.decode import DecodeOptions
from .pipeline.frames import FrameChunk, OnFramesReady
from .pipeline.progress import show_progress as with_progress
from .pipeline.run import arrays_released
from .planning.plan import DecodePlan, Mode
from .shapes import DEFAULT_SCALE
from .tiling.blend import decode_tiles
from .tiling.config import TilingConfig
from .tiling.layout import TileLayout
from .vae import VideoVAE

_log = logging.getLogger(__name__)

_ATTRIBUTE = "_mlx_ltx_vae"  # of the app's decoder; neither an array nor a module, so no parameter of it

#: What that attribute is: the arrays of the decoder, what else it states, and its `VideoVAE`.
_Known = tuple[dict[str, mx.array], dict[str, Any] | None, VideoVAE | None]

# Names in apps of the ways in which their convolutions pad along height and width. LTX-2-MLX has two ways to pad
# with zeros.
_PADDING = {"zeros": "zeros", "manual": "zeros", "conv": "zeros", "reflect": "reflect"}


def vae_of(decoder: nn.Module) -> VideoVAE:
    """The `VideoVAE` with the weights of an app's decoder, made once for as long as nobody gives the decoder others.

    The configuration is inferred from the names and shapes of the weights, which must be a published generation's. The
    padding is that which the decoder's convolutions state, if they do.

    Raises:
        CheckpointError: if the weights are not, or are damaged, or if the padding is not known. The decoder keeps its
            arrays.
    """
    weights, config = named_parameters(decoder), _stated_config(decoder)
    known, stated, vae = cast(_Known, getattr(decoder, _ATTRIBUTE, ({}, None, None)))
    is_known = known.keys() == weights.keys() and all(known[name] is weights[name] for name in weights)
    if vae is not None and is_known and stated == config:
        return vae
    checkpoint = open_weights(weights, config)
    vae = VideoVAE.from_pretrained(checkpoint)
    if decode_whole in (type(decoder).__call__, getattr(type(decoder), "decode", None)):
        moved = {info.name for network in checkpoint.networks.values() for info in network.tensors.values()}
        blank = partial(_without_memory, moved=moved)
        decoder.update(tree_map_with_path(blank, decoder.parameters()))
        weights = named_parameters(decoder)
    setattr(decoder, _ATTRIBUTE, (weights, config, vae))
    return vae


def _stated_config(decoder: nn.Module) -> dict[str, Any] | None:
    """Configuration that an app's decoder states beside its weights, in the checkpoints' terms; None if it has none."""
    modes = {getattr(module, "spatial_padding_mode", None) for module in decoder.modules()} - {None}
    named = {str(getattr(mode, "value", mode)) for mode in modes}
    padding = {_PADDING.get(name) for name in named}
    if None in padding or len(padding) > 1:
        raise CheckpointError(
            f"weights: the app's decoder pads with {' and '.join(map(quote, sorted(named)))}; expected zeros or "
            "reflect in all of its convolutions."
        )
    config: dict[str, Any] = {"spatial_padding_mode": padding.pop()} if padding else {}
    if getattr(decoder, "causal", getattr(decoder, "_causal", False)):
        config["causal_decoder"] = True
    return {"_class_name": CLASS_NAME, **config} if config else None


def decode_whole(
    self: nn.Module, latents: mx.array, *, timestep: mx.array | float | None = None, **options: Any
) -> mx.array:
    """Decode latents (B, C, F', H', W') to pixels (B, 3, F, H, W), instead of any app's single pass.

    The result has the latents' dtype. `options` are the app's; they have no effect, except that `causal` is refused as
    in `decode_tiled`.
    """
    return decode_tiled(self, latents, causal=bool(options.get("causal")), timestep=timestep)


def decode_tiled(
    self: nn.Module,
    sample: mx.array,
    tiling_config: Any = None,
    tiling_mode: str = "auto",
    causal: bool = False,
    timestep: mx.array | float | None = None,
    debug: bool = False,
    on_frames_ready: Callable[[mx.array, int], object] | None = None,
) -> mx.array:
    """Decode latents (B, C, F', H', W') to pixels (B, 3, F, H, W), as mlx-video and mlx-video-with-audio do.

    `on_frames_ready` is called with (frames (B, 3, n, H, W), start index) as frames become final, each once and in
    order, also if the clip needs no tiles. Frames have the latents' dtype. `tiling_mode` and `debug` have no effect.

    Raises:
        PlanError: if `causal` is true, which the app never asks for.
    """
    if causal:
        raise PlanError("causal=True is not supported: a decoder pads along time as it was trained; leave it out.")
    vae = vae_of(self)
    plan = _plan(vae, sample, tiling_config)
    with arrays_released(), vae.stream(sample, plan, **_conditioning(vae, self, timestep)) as stream:
        return _take_all(stream, on_frames_ready, sample.dtype)


def decode_and_stream(
    self: nn.Module, latent: mx.array, output_path: str, *, frame_rate: float, audio_path: str | None = None
) -> None:
    """Decode latents (1, C, F', H', W') into a video file, with sound if there is a file of it, as ltx-2-mlx does.

    The app's environment variable `LTX2_VAE_DECODE_BUDGET_GB`, if it is set, is the decode's memory budget, in GiB. A
    failure of ffmpeg is a `WriterError`, and leaves no file. The ffmpeg is `VideoWriter`'s.
    """
    given = os.environ.get("LTX2_VAE_DECODE_BUDGET_GB")
    budget = None if given is None else int(float(given) * 1024**3)
    vae_of(self).decode_to_file(
        latent, output_path, fps=frame_rate, audio=audio_path, codec="h264", crf=18, memory_budget=budget
    )


def decode_streaming(
    latent: mx.array,
    decoder_fn: nn.Module | Callable[..., mx.array],
    tiling_config: Any = None,
    timestep: float | None = 0.05,
    show_progress: bool = True,
) -> Iterator[mx.array]:
    """Yield pixels (B, 3, n, H, W) of latents (B, C, F', H', W') in order, as LTX-2-MLX does.

    `show_progress` is for a bar on standard error. A function instead of a decoder is called with the latents of each
    of the app's tiles, as `decoder_fn(latents, timestep=timestep, show_progress=False)`.
    """
    chunks: Iterable[FrameChunk]
    if isinstance(decoder_fn, nn.Module):
        vae = vae_of(decoder_fn)
        plan = _plan(vae, latent, tiling_config)
        chunks = vae.stream(latent, plan, **_conditioning(vae, decoder_fn, timestep))
        num_frames = plan.num_frames
    else:
        num_frames, height, width = DEFAULT_SCALE.video_grid(latent.shape[2:])
        tiling = TilingConfig.of(tiling_config or TilingConfig.auto(height, width, num_frames) or TilingConfig())
        decode = partial(decoder_fn, timestep=timestep, show_progress=False)
        chunks = starmap(
            FrameChunk, decode_tiles(decode, latent, TileLayout.make(tiling, latent.shape[2:], DEFAULT_SCALE))
        )
    yield from map(_pixels, with_progress(chunks, show_progress, num_frames))  # map holds no chunk while it waits


def _plan(vae: VideoVAE, latents: mx.array, tiling_config: Any) -> DecodePlan:
    """An exact plan; if none fits, the app's tiles, or others if those do not fit the VAE."""
    tiling = None if tiling_config is None else TilingConfig.of(tiling_config)
    plan = vae.plan(latents.shape)
    if plan.mode is Mode.TILED and tiling is not None:
        with suppress(TilingError):  # some VAEs need wider overlaps than apps have
            plan = vae.plan(latents.shape, mode="tiled", tiling=tiling)
    _log.info("%s", plan)
    return plan


def _conditioning(vae: VideoVAE, decoder: nn.Module, timestep: mx.array | float | None) -> DecodeOptions:
    """The timestep and the share of noise for a VAE that takes them. The apps pass a timestep to any VAE."""
    if vae.decoder is None or not vae.decoder.spec.has_timestep:
        return DecodeOptions()
    given = getattr(decoder, "decode_timestep", None) if timestep is None else timestep
    scale = getattr(decoder, "decode_noise_scale", None)
    return DecodeOptions(timestep=None if given is None else float(given), noise_scale=scale)


def _take_all(chunks: Iterable[FrameChunk], on_frames_ready: OnFramesReady | None, dtype: mx.Dtype) -> mx.array:
    """The pixels (B, 3, F, H, W) of all chunks, which are handed over one by one too."""
    frames = []
    for chunk in chunks:
        frames.append(_pixels(chunk).astype(dtype))
        if on_frames_ready is not None:
            on_frames_ready(frames[-1], chunk.start)
    return mx.concatenate(frames, axis=2)


def _pixels(chunk: FrameChunk) -> mx.array:
    chunk.check()
    return chunk.pixels


def _without_memory(name: str, array: mx.array, moved: Collection[str]) -> mx.array:
    """For an array that has moved, another of its shape and dtype, which loads other weights; one number in memory."""
    return mx.broadcast_to(mx.array(math.nan, array.dtype), array.shape) if name in moved else array
