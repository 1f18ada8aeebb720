"""`VideoVAE`: what a user holds."""

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from .checkpoint import load_checkpoint
from .checkpoint.network_weights import load_half
from .device import available_memory, backend
from .errors import CheckpointError, LatentsError, PlanError
from .models.video_vae.config import VAEConfig
from .models.video_vae.decoder import Decoder
from .models.video_vae.encoder import Encoder
from .models.video_vae.noise import Noise, draw
from .pipeline.decode import Job, execute
from .pipeline.encode import EncodeJob
from .pipeline.postprocess import FrameChunk, Watch
from .pipeline.preprocess import Frames, channels_last
from .planning.plan import DecodePlan, Machine, check_latent_shape, make_layout, make_plan, parse_budget
from .tiling import TilingConfig, check_batch_size

DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}

#: Of the normalised latent, how much is replaced by noise before a decode with timestep conditioning.
NOISE_SCALE = 0.025
#: The timestep of a decode with timestep conditioning, unless another is given.
DEFAULT_TIMESTEP = 0.05


class VideoVAE:
    """An LTX video VAE: latents to pixels, exactly and in flat memory, and pixels to latents.

    Attributes:
        config: what the checkpoint says it is.
        encoder: the network, or None where it was not loaded.
        decoder: the network, or None where it was not loaded.
        mean: (C,) float32, the latents' mean per channel.
        std: (C,) float32, their standard deviation.
        dtype: what the decoder computes in (the encoder, where there is no decoder).

    ```python
    vae = VideoVAE.from_pretrained("ltx-2.5-video-vae-conv-bf16.safetensors")
    for chunk in vae.stream(latents):
        show(chunk.to_uint8())
    ```
    """

    def __init__(
        self,
        config: VAEConfig,
        encoder: Encoder | None,
        decoder: Decoder | None,
        mean: mx.array,
        std: mx.array,
        *,
        encoder_is_promoted: bool = False,
    ) -> None:
        self.config = config
        self.encoder = encoder
        self.decoder = decoder
        self.mean = mean.astype(mx.float32)
        self.std = std.astype(mx.float32)
        half = decoder if decoder is not None else encoder
        if half is None:
            raise CheckpointError("a VideoVAE needs an encoder or a decoder.")
        self.dtype: mx.Dtype = half.conv_in.conv.weight.dtype
        self._encoder_is_promoted = encoder_is_promoted

    @classmethod
    def from_pretrained(
        cls, source: str | os.PathLike, *, dtype: str | None = None, encoder: bool = True, decoder: bool = True
    ) -> "VideoVAE":
        """Load a VAE.

        Args:
            source: a file (of any layout people have, also one of 40 GB: only the VAE's tensors are read), a folder,
                or a hub repository id.
            dtype: "float32", "bfloat16" or "float16"; None for the checkpoint's own. An encoder that would be float16
                computes in float32, as float16 may overflow there, and says so when it is used.
            encoder: whether to load the encoder.
            decoder: whether to load the decoder.

        Raises:
            CheckpointError: for what cannot be read, is not a VAE, is incomplete, or is not known.
        """
        if dtype is not None and dtype not in DTYPES:
            raise CheckpointError(f"dtype {dtype!r} is not known; there are {', '.join(DTYPES)}.")
        checkpoint = load_checkpoint(source, encoder=encoder, decoder=decoder)
        config = checkpoint.config
        target = None if dtype is None else DTYPES[dtype]
        halves = {
            "encoder": lambda: Encoder(config.encoder, config.patch_size),
            "decoder": lambda: Decoder(config.decoder, config.patch_size),
        }
        promoted = _is_float16(checkpoint.encoder, target)
        targets = {"encoder": mx.float32 if promoted else target, "decoder": target}
        built = {name: load_half(checkpoint, name, make, targets[name]) for name, make in halves.items()}
        mean, std = checkpoint.mean, checkpoint.std
        return cls(config, built["encoder"], built["decoder"], mean, std, encoder_is_promoted=promoted)

    def plan(
        self,
        latent_shape: Sequence[int],
        *,
        memory_budget: str | int | None = None,
        mode: str = "auto",
        order: str = "auto",
        tiling: TilingConfig | None = None,
        tile_batch_size: int = 1,
        chunk: int | None = None,
    ) -> DecodePlan:
        """How latents of a shape would be decoded. Pure arithmetic; nothing is decoded.

        Args:
            latent_shape: (B, C, F', H', W').
            memory_budget: "8GB", "50%" of what there is, or bytes: what the peak must stay below, weights included.
                None aims at half of what there is, and takes the least that works where that is not enough.
            mode: "auto" (exact wherever that fits), "exact", "single" or "tiled".
            order: "auto", "time", "rows" or "columns", for the exact mode.
            tiling: the tiles, for mode "tiled" (by default `TilingConfig.default()`).
            tile_batch_size: how many tiles of equal shape are decoded together, at most.
            chunk: latent frames (rows, columns) at a time; None to choose.

        Raises:
            LatentsError: for a shape that the VAE cannot decode.
            PlanError: for a wish that cannot be had; a budget that nothing meets is told with the least that works.
        """
        options = {"mode": mode, "order": order, "chunk": chunk, "tiling": tiling, "tile_batch_size": tile_batch_size}
        return plan_here(self.config, latent_shape, self.dtype, memory_budget=memory_budget, **options)

    def stream(
        self,
        latents: mx.array | np.ndarray,
        plan: DecodePlan | None = None,
        *,
        timestep: float | None = None,
        seed: int = 0,
        noise: Noise = None,
        bit_depth: int | None = None,
    ) -> Iterator[FrameChunk]:
        """Decode, handing frames over as they are finished: each once, in order.

        Closing the iterator frees everything; several streams of one VAE may run interleaved.

        Args:
            latents: (B, C, F', H', W'), normalised.
            plan: from `plan`; None for the default.
            timestep: the decode timestep of VAEs that take one (0.05 by default).
            seed: of the noise that such VAEs add.
            noise: that noise itself, in the order of the network's draws, or "zeros".
            bit_depth: 8 or 10 where the chunks are only asked for `to_uint8` or `to_uint16`. Decoding by rows or
                columns then keeps no more than that of the frames that wait on disk.

        Raises:
            LatentsError: at once, for latents or noise that the network cannot take.
            PlanError: at once, for a plan made for another shape.
            DecodeError: while decoding, for pixels that cannot be a picture.
        """
        if self.decoder is None:
            raise CheckpointError("this VideoVAE was loaded without a decoder; load it with decoder=True.")
        latents = _as_mlx(latents)
        shape = check_latent_shape(self.config, latents.shape)
        plan = self.plan(shape) if plan is None else plan
        if plan.latent_shape != shape:
            raise PlanError(f"the plan was made for latents of the shape {plan.latent_shape}, and these have {shape}.")
        if bit_depth not in (None, 8, 10):
            raise LatentsError(f"a bit depth is 8 or 10, and not {bit_depth!r}.")
        may_be_flat = _check_values(latents)
        timesteps = self._timesteps(timestep, shape[0])
        prepared, fields = self._prepare(latents, timesteps is not None, seed, noise)
        watch = Watch(self.config.patch_size, may_be_flat=may_be_flat)
        layout = None if plan.tiling is None else make_layout(self.config, shape, plan.tiling)
        return execute(Job(self.decoder, prepared, watch, timesteps, fields), plan, layout, bit_depth)

    def decode(
        self,
        latents: mx.array | np.ndarray,
        plan: DecodePlan | None = None,
        *,
        timestep: float | None = None,
        seed: int = 0,
        noise: Noise = None,
        on_frames_ready: Callable[[mx.array, int], None] | None = None,
    ) -> mx.array | None:
        """Decode all of it.

        Args:
            latents: as `stream` takes them, and likewise plan, timestep, seed and noise.
            on_frames_ready: called with (frames (B, 3, n, H, W), start index) as frames become final, each once and
                in order. An exception in it stops the decode and reaches the caller.

        Returns:
            Pixels (B, 3, F, H, W) in about [-1, 1]; None with `on_frames_ready`, which has had them.

        Raises:
            As `stream`.
        """
        chunks = self.stream(latents, plan, timestep=timestep, seed=seed, noise=noise)
        if on_frames_ready is None:
            return mx.concatenate([chunk.frames for chunk in chunks], axis=1).transpose(0, 4, 1, 2, 3)
        for chunk in chunks:
            chunk.check()
            on_frames_ready(chunk.pixels, chunk.start)
        return None

    def encode(
        self,
        pixels: Frames | Iterable[Frames],
        *,
        tiling: TilingConfig | None = None,
        tile_batch_size: int = 1,
        pad: bool = False,
    ) -> mx.array:
        """Encode frames to normalised latents: the means, nothing is sampled.

        Args:
            pixels: (B, 3, F, H, W) in [-1, 1], or uint8 or uint16 (F, H, W, 3); or an iterator of such arrays, the
                clip's frames in order, of which only a few are then in memory at a time. F should be 1 + t*k; H and W
                are multiples of the spatial scale.
            tiling: encode in overlapping tiles and blend the latents, which is not exact. None for whole frames. Tiles
                cut in time want the whole clip as one array.
            tile_batch_size: how many tiles of equal shape are encoded together, at most.
            pad: whether the last frame is repeated up to 1 + t*k frames. Without it what is over at the end is left
                out, with a warning.

        Returns:
            (B, C, 1 + k, H/s, W/s) in the encoder's dtype.

        Raises:
            LatentsError: for frames that the network cannot take.
            TilingError: for tiles or a batch of them that cannot be.
        """
        if not isinstance(pixels, (mx.array, np.ndarray)):
            options = {"tiling": tiling, "tile_batch_size": tile_batch_size, "pad": pad}
            return mx.concatenate(list(self.encode_stream(pixels, **options)), axis=2)
        job = self._encode_job(tiling, tile_batch_size, pad)
        clip = channels_last(pixels)
        means = job.stream([clip]) if tiling is None else job.encode_tiles(clip)
        return mx.concatenate([self._normalise(part) for part in means], axis=2)

    def encode_stream(
        self,
        frames: Iterable[Frames],
        *,
        tiling: TilingConfig | None = None,
        tile_batch_size: int = 1,
        pad: bool = False,
    ) -> Iterator[mx.array]:
        """Encode, handing latents over as they are finished: an hour of video in the memory of seconds.

        Args:
            frames: arrays of a clip's frames in order, each as `encode` takes it.
            tiling: see `encode`; in space alone.
            tile_batch_size: see `encode`.
            pad: see `encode`.

        Returns:
            An iterator of normalised latents (B, C, n, H/s, W/s) in order along time.

        Raises:
            LatentsError: for frames that the network cannot take, when it comes to them.
            TilingError: at once, for tiles or a batch of them that cannot be.
        """
        means = self._encode_job(tiling, tile_batch_size, pad).stream(map(channels_last, frames))
        return map(self._normalise, means)

    def _encode_job(self, tiling: TilingConfig | None, tile_batch_size: int, pad: bool) -> EncodeJob:
        check_batch_size(tile_batch_size)
        if self.encoder is None:
            raise CheckpointError("this VideoVAE was loaded without an encoder; load it with encoder=True.")
        if self._encoder_is_promoted:
            warnings.warn(
                "float16 may overflow in the encoders of LTX, so this one computes in float32; bfloat16 takes half.",
                stacklevel=3,
            )
        channels = self.config.latent_channels
        return EncodeJob(self.encoder, channels, self.config.scale, pad, tiling, tile_batch_size)

    def _normalise(self, means: mx.array) -> mx.array:
        """Means (B, T, H, W, C) to normalised latents (B, C, T, H, W), evaluated."""
        latents = (means.astype(mx.float32) - self.mean) / self.std
        latents = latents.astype(self.encoder.conv_in.conv.weight.dtype).transpose(0, 4, 1, 2, 3)
        if not mx.isfinite(latents).all().item():
            raise LatentsError("the encoded latents are not finite: the network overflowed; try dtype float32.")
        return latents

    def _timesteps(self, timestep: float | None, batch: int) -> mx.array | None:
        if not self.config.timestep_conditioning:
            if timestep is not None:
                raise LatentsError("this VAE takes no timestep: only those of 0.9.1 to 0.9.8 do.")
            return None
        value = DEFAULT_TIMESTEP if timestep is None else float(timestep)
        if not 0 <= value <= 1:
            raise LatentsError(f"a decode timestep lies between 0 and 1, and {timestep} does not.")
        return mx.full((batch,), value, dtype=mx.float32)

    def _prepare(
        self, latents: mx.array, conditioned: bool, seed: int, noise: Noise
    ) -> tuple[mx.array, list[mx.array]]:
        """What enters the network: latents mixed with noise, un-normalised, (B, T, H, W, C); and the noise fields."""
        latents = latents.astype(mx.float32)
        fields: list[mx.array] = []
        if conditioned:
            shapes = self.decoder.field_shapes(*latents.shape[3:])
            draws = draw(noise, seed, latents.shape, shapes, self.dtype)
            fields = draws.fields
            latents = (1 - NOISE_SCALE) * latents
            if draws.latents is not None:
                latents = latents + NOISE_SCALE * draws.latents
        elif noise is not None and not isinstance(noise, str) and len(noise):
            raise LatentsError(f"{len(noise)} noise arrays were given and this VAE draws none.")
        latents = latents.transpose(0, 2, 3, 4, 1) * self.std + self.mean
        return latents.astype(self.dtype), fields


def _as_mlx(array: mx.array | np.ndarray) -> mx.array:
    """The array itself where it is MLX's already: `mx.array` of one is a copy."""
    return array if isinstance(array, mx.array) else mx.array(array)


def plan_here(
    config: VAEConfig, latent_shape: Sequence[int], dtype: mx.Dtype, *, memory_budget: str | int | None, **options: Any
) -> DecodePlan:
    """`make_plan` for this machine: its backend, and its memory as what a budget is a part of.

    Args:
        config: of the VAE.
        latent_shape: (B, C, F', H', W').
        dtype: what the network computes in.
        memory_budget: as `VideoVAE.plan` takes it.
        options: for `make_plan`.
    """
    available = available_memory()
    return make_plan(
        config,
        latent_shape,
        memory_budget=available // 2 if memory_budget is None else parse_budget(memory_budget, available),
        must_fit=memory_budget is not None,
        machine=Machine(backend(), dtype.size),
        **options,
    )


def _is_float16(weights: Mapping[str, mx.array] | None, target: mx.Dtype | None) -> bool:
    """Whether weights, where there are any, would be float16: as `target` says, or by themselves."""
    if not weights:
        return False
    dtypes = {weight.dtype for weight in weights.values()} if target is None else {target}
    return mx.float16 in dtypes


def _check_values(latents: mx.array) -> bool:
    """Refuse latents that are not finite; say whether all their cells are alike, so that flat frames may be right."""
    if not mx.isfinite(latents).all().item():
        count = latents.size - int(mx.isfinite(latents).sum().item())
        raise LatentsError(f"{count} of {latents.size} latent values are NaN or infinite, which no decode can mend.")
    return bool((latents == latents[:, :, :1, :1, :1]).all().item())
