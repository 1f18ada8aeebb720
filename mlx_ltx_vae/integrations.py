"""Drop-ins for MLX apps: functions with the names, arguments and results of the apps' own.

| app | in place of |
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
of a decoder move into its `VideoVAE` at the first decode. Where it does not, the decoder keeps a copy of its own.

Exceptions of the app's callbacks reach the app. This package's own are `LTXVAEError`s, of which a `DeviceError` is also
a RuntimeError and a `TilingError` also a ValueError.
"""

import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map

from .backend.mlx_utils import named_parameters
from .errors import PlanError, TilingError
from .pipeline.chunk_stream import arrays_released
from .pipeline.postprocess import FrameChunk, OnFramesReady
from .pipeline.progress import show_progress as with_progress
from .planning.plan import DecodePlan, Mode
from .tiling.config import TilingConfig
from .vae import VideoVAE

_log = logging.getLogger(__name__)

_ATTRIBUTE = "_mlx_ltx_vae"  # of the app's decoder; neither an array nor a module, so no parameter of it


def vae_of(decoder: nn.Module) -> VideoVAE:
    """The `VideoVAE` with the weights of an app's decoder, made once for as long as nobody gives the decoder others.

    The configuration is inferred from the names and shapes of the weights, which must be a published generation's.

    Raises:
        CheckpointError: if they are not, or are damaged. The decoder keeps its arrays.
    """
    weights = named_parameters(decoder)
    known, vae = cast(tuple[dict[str, mx.array], VideoVAE | None], getattr(decoder, _ATTRIBUTE, ({}, None)))
    if vae is not None and known.keys() == weights.keys() and all(known[name] is weights[name] for name in weights):
        return vae
    vae = VideoVAE.from_weights(weights)
    if decode_whole in (type(decoder).__call__, getattr(type(decoder), "decode", None)):
        decoder.update(tree_map(_without_memory, decoder.parameters()))
        weights = named_parameters(decoder)
    setattr(decoder, _ATTRIBUTE, (weights, vae))
    return vae


def decode_whole(
    self: nn.Module, latents: mx.array, *, timestep: mx.array | float | None = None, **options: Any
) -> mx.array:
    """Decode latents (B, C, F', H', W') to pixels (B, 3, F, H, W), in place of any app's single pass.

    `options` are the app's; they have no effect, except that `causal` is refused as in `decode_tiled`.
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
    order, also if the clip needs no tiles. `tiling_mode` and `debug` have no effect.

    Raises:
        PlanError: if `causal` is true, which the app never asks for.
    """
    if causal:
        raise PlanError("causal=True is not supported: a decoder pads along time as it was trained; leave it out.")
    vae = vae_of(self)
    plan = _plan(vae, sample, tiling_config)
    with arrays_released(), vae.stream(sample, plan, timestep=_timestep(vae, timestep)) as stream:
        return _take_all(stream, on_frames_ready)


def decode_and_stream(
    self: nn.Module, latent: mx.array, output_path: str, *, frame_rate: float, audio_path: str | None = None
) -> None:
    """Decode latents (1, C, F', H', W') into a video file, with sound if there is a file of it, as ltx-2-mlx does.

    The app's environment variable `LTX2_VAE_DECODE_BUDGET_GB`, if it is set, is the decode's memory budget, in GiB. A
    failure of ffmpeg is a `WriterError`, and leaves no file. The ffmpeg is that of `VideoWriter`.
    """
    given = os.environ.get("LTX2_VAE_DECODE_BUDGET_GB")
    budget = None if given is None else int(float(given) * 1024**3)
    vae_of(self).decode_to_file(
        latent, output_path, fps=frame_rate, audio=audio_path, codec="h264", crf=18, memory_budget=budget
    )


def decode_streaming(
    latent: mx.array,
    decoder_fn: nn.Module,
    tiling_config: Any = None,
    timestep: float | None = 0.05,
    show_progress: bool = True,
) -> Iterator[mx.array]:
    """Yield pixels (B, 3, n, H, W) of latents (B, C, F', H', W') in order, as LTX-2-MLX does.

    `show_progress` is for a bar on standard error.
    """
    vae = vae_of(decoder_fn)
    plan = _plan(vae, latent, tiling_config)
    chunks = vae.stream(latent, plan, timestep=_timestep(vae, timestep))
    yield from map(_pixels, with_progress(chunks, show_progress, plan.num_frames))  # map holds no chunk while it waits


def _plan(vae: VideoVAE, latents: mx.array, tiling_config: Any) -> DecodePlan:
    """An exact plan; if none fits, the app's tiles, or others if those do not fit the VAE."""
    tiling = None if tiling_config is None else TilingConfig.of(tiling_config)
    plan = vae.plan(latents.shape)
    if plan.mode is Mode.TILED and tiling is not None:
        with suppress(TilingError):  # some VAEs need wider overlaps than apps have
            plan = vae.plan(latents.shape, mode="tiled", tiling=tiling)
    _log.info("%s", plan)
    return plan


def _timestep(vae: VideoVAE, timestep: mx.array | float | None) -> float | None:
    """The timestep for a VAE that takes one. The apps pass one to any VAE."""
    takes_one = vae.decoder is not None and vae.decoder.spec.has_timestep
    return None if timestep is None or not takes_one else float(timestep)


def _take_all(chunks: Iterable[FrameChunk], on_frames_ready: OnFramesReady | None) -> mx.array:
    """The pixels (B, 3, F, H, W) of all chunks, which are handed over one by one too."""
    frames = []
    for chunk in chunks:
        frames.append(_pixels(chunk))
        if on_frames_ready is not None:
            on_frames_ready(frames[-1], chunk.start)
    return mx.concatenate(frames, axis=2)


def _pixels(chunk: FrameChunk) -> mx.array:
    chunk.check()
    return chunk.pixels


def _without_memory(array: mx.array) -> mx.array:
    """An array of the same shape and dtype, so that the decoder can load other weights; one number in memory."""
    return mx.broadcast_to(mx.array(math.nan, array.dtype), array.shape)
