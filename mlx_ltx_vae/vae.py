"""`VideoVAE` and `PreviewVAE`, the main classes of the public API, and what all VAEs have in common."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

import mlx.core as mx
import numpy as np

from .backend.device import check_process, this_machine
from .backend.machine import Machine
from .backend.mlx_utils import DtypeName, GivenDtype, dtype_name, parse_dtype
from .checkpoint import Arrays, Checkpoint, GivenConfig, open_checkpoint, open_weights
from .checkpoint.loading import LazyNetwork, load_network
from .errors import CheckpointError, LatentsError, PlanError, WriterError, warn
from .frame_format import FrameFormat, FrameOutput, FrameStep, frame_format
from .latents.keyframes import Keyframes, frame_numbers
from .latents.metadata import LatentSpace
from .model_table import Kind, list_names
from .models.base import NETWORKS, PICTURES, Config, Decoder, Encoder, Medium, Network, Statistics
from .options import (
    BitDepth,
    DecodeKeywords,
    DecodeOptions,
    EncodeKeywords,
    ExportKeywords,
    ModeName,
    OrderName,
    OutputOptions,
    PlanOptions,
    check_names,
)
from .pipeline.decode import DecodePipeline, DecodeStream, PushedDecode
from .pipeline.encode import EncodePipeline, EncodeStream, Frames
from .pipeline.export import Export, export_decode
from .pipeline.film import Film
from .pipeline.frames import OnFramesReady
from .pipeline.hdr_frames import HDR, choose_hdr
from .pipeline.output import DecodeOutput, DecodeReport
from .pipeline.progress import Progress
from .pipeline.run import arrays_released, join_parts
from .pipeline.sources import LatentInput, Latents
from .planning.exports import plan_export
from .planning.film import DEFAULT_CARRY
from .planning.plan import DecodePlan, EncodePlan, Plan
from .planning.planner import plan_decode, plan_encode
from .published import check_size, estimate
from .shapes import Size
from .tiling.config import TilingConfig
from .units import DEFAULT_FPS, Rate, expand_path, find_fps, format_bytes

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

ConfigT = TypeVar("ConfigT", bound=Config)
EncoderT = TypeVar("EncoderT", bound=Network)


class NetworkPair(Generic[ConfigT, EncoderT]):
    """Networks of a `VideoVAE` or an `AudioVAE`, and the statistics of their latents."""

    _NAMES: tuple[str, ...] = ("decoder", "encoder")  # in the order of `repr`
    _missing: Mapping[str, str] = {}  # the checkpoint's name, by each network that it lacks
    _generation: str | None = None  # of its latents, as `LatentSpace` names it

    def __init__(
        self,
        config: ConfigT,
        encoder: EncoderT | LazyNetwork[EncoderT] | None,
        decoder: Decoder | None,
        *,
        keeps_dtype: bool = False,
    ) -> None:
        network = decoder if decoder is not None else encoder
        if network is None:
            raise CheckpointError(f"{type(self).__name__} needs an encoder or a decoder.")
        self.config, self.decoder = config, decoder
        self._lazy_encoder = encoder
        all_statistics = [
            network.statistics for network in (decoder, encoder) if not isinstance(network, LazyNetwork | None)
        ]
        mx.eval(all_statistics)  # lazy arrays could be used in this thread only
        statistics: tuple[mx.array | None, mx.array | None] = all_statistics[0] or (None, None)
        self.mean, self.std = statistics
        self._keeps_dtype = keeps_dtype

    @property
    def encoder(self) -> EncoderT | None:
        """Encoder, or `None`. If a decoder was loaded with it, its weights are read at its first use."""
        encoder = self._lazy_encoder
        return encoder.get() if isinstance(encoder, LazyNetwork) else encoder

    @encoder.setter
    def encoder(self, encoder: EncoderT | None) -> None:
        self._lazy_encoder = encoder

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for `copy` and `pickle`, with all weights, since the file may be missing later."""
        return {**vars(self), "_lazy_encoder": self.encoder}

    @staticmethod
    def _open(
        source: str | os.PathLike | Checkpoint, dtype: GivenDtype, medium: Medium, *, encoder: bool, decoder: bool
    ) -> tuple[Checkpoint, DtypeName | None]:
        """Check this process, and return the opened checkpoint and the name of the dtype."""
        check_process()
        name = parse_dtype(dtype)
        if not isinstance(source, Checkpoint):
            source = open_checkpoint(source, encoder=encoder, decoder=decoder, medium=medium)
        return source, name

    def _note_checkpoint(self, checkpoint: Checkpoint, **requested: bool) -> "Self":
        """Record which of the requested networks the checkpoint lacks, for errors, and its latents' generation.

        Returns this VAE.
        """
        self._generation = next(iter(checkpoint.latents_taken), None)
        missing = {name for name, is_requested in requested.items() if is_requested} - checkpoint.networks.keys()
        self._missing = dict.fromkeys(missing, checkpoint.name)
        return self

    def _missing_error(self, network: str) -> CheckpointError:
        """Return the error for a use of a network that was not loaded."""
        name, problem = self._missing.get(network), f"this {type(self).__name__} has no {network}"
        if name is None:
            return CheckpointError(f"{problem}; load it with {network}=True.")
        return CheckpointError(f"{problem}, since {name} has none; load a file or folder that has one.")

    @property
    def latent_space(self) -> LatentSpace:
        """Generation and fingerprint of its latents, for `save_latents(space=)`."""
        has_statistics = self.mean is not None and self.std is not None
        fingerprint = Statistics(self.mean, self.std).fingerprint if has_statistics else None  # type: ignore[arg-type]
        return LatentSpace(self._generation, fingerprint)

    @property
    def dtype(self) -> mx.Dtype:
        """Compute dtype of the decoder, or of the encoder if no decoder is loaded."""
        return self._decoder.dtype if self.decoder is not None else self._encoder_for_plans.dtype

    def __repr__(self) -> str:
        networks = {name: network for name, network in self._networks.items() if network is not None}
        size = format_bytes(sum(map(num_bytes, networks.values())))
        loaded = f"{' + '.join(networks)}, {dtype_name(self.dtype)}, {size}"
        return f"{type(self).__name__}({self.config.generation}, {loaded})"

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if not name.startswith("_")]

    def _machine(self, dtype: mx.Dtype) -> Machine:
        return this_machine(dtype, self._weight_bytes(), keeps_dtype=self._keeps_dtype)

    def _weight_bytes(self, running: object = None) -> int:
        """Return the bytes of the weights that are in memory, including the `running` network's."""
        networks = (network for network in self._networks.values() if network is not None)
        return sum(num_bytes(network) for network in networks if network is running or not _is_waiting(network))

    @property
    def _networks(self) -> dict[str, Network | LazyNetwork[EncoderT] | None]:
        """Networks by name. The weights of the encoder may not have been read."""
        return {name: self._lazy_encoder if name == "encoder" else getattr(self, name) for name in self._NAMES}

    @property
    def _decoder(self) -> Decoder:
        if self.decoder is None:
            raise self._missing_error("decoder")
        return self.decoder

    @property
    def _encoder_for_plans(self) -> EncoderT | LazyNetwork[EncoderT]:
        """Encoder, perhaps without its weights, which plans do not need."""
        if self._lazy_encoder is None:
            raise self._missing_error("encoder")
        return self._lazy_encoder

    @property
    def _encoder(self) -> EncoderT:
        encoder = self._encoder_for_plans
        return encoder.get() if isinstance(encoder, LazyNetwork) else encoder


class VideoVAE(NetworkPair[Config, Encoder]):
    """LTX video VAE: decodes latents to pixels and encodes pixels to latents, exactly and in constant memory.

    `encoder` or `decoder` is `None` if it was not loaded. They are `mlx.nn.Module`s with the checkpoint's names, and
    can be called on whole clips. `mean` and `std` (C,) float32 are the latent statistics, or `None` for a VAE that has
    none.

    ```python
    vae = VideoVAE.from_pretrained("ltx-2.5-video-vae-conv-bf16.safetensors")
    for chunk in vae.stream(latents):
        show(chunk.to_uint8())
    ```
    """

    def __init__(
        self,
        config: Config,
        encoder: Encoder | LazyNetwork[Encoder] | None,
        decoder: Decoder | None,
        *,
        encoder_is_promoted: bool = False,
        keeps_dtype: bool = False,
    ) -> None:
        super().__init__(config, encoder, decoder, keeps_dtype=keeps_dtype)
        self._encoder_is_promoted = encoder_is_promoted

    @classmethod
    def from_pretrained(
        cls,
        source: str | os.PathLike | Checkpoint,
        *,
        dtype: GivenDtype = None,
        encoder: bool = True,
        decoder: bool = True,
    ) -> "Self":
        """Load a VAE.

        Args:
            source: a name such as "ltx-2.3" (see README.md), a file in any supported layout (only the VAE's tensors
                are read, even from a 40 GB file), a folder, "folder:file", a hub repository id, or an open checkpoint.
            dtype: "bfloat16" or `mx.bfloat16`. `None` means the checkpoint's dtype. On Apple GPUs, convolutions of a
                bfloat16 network take float16 where their range allows it, which is more accurate. If requested
                explicitly, bfloat16 is used throughout. A float16 encoder computes in float32, since float16 may
                overflow there, and warns when it is used.
            encoder, decoder: whether to load it. If both are loaded, the encoder's weights are read from the file when
                they are first used, and only its header is checked before.

        Raises:
            CheckpointError: if the source cannot be read, is not a VAE, is incomplete, or is not supported.
        """
        source, dtype = cls._open(source, dtype, PICTURES, encoder=encoder, decoder=decoder)
        encoder_dtype, decoder_dtype = (source.cast_dtype(name, dtype) for name in NETWORKS)
        loaded = load_network(source, "decoder", decoder_dtype) if decoder else None
        vae = cls(
            source.config,
            cast(Any, load_encoder(source, encoder_dtype, is_alone=loaded is None)) if encoder else None,
            cast(Decoder, loaded),
            encoder_is_promoted=encoder_dtype is mx.float32 and dtype != "float32",
            keeps_dtype=dtype is not None,
        )
        return vae._note_checkpoint(source, encoder=encoder, decoder=decoder)

    @classmethod
    def from_weights(cls, weights: Arrays, config: GivenConfig = None, *, dtype: GivenDtype = None) -> "Self":
        """Load a VAE from arrays in memory, with the checks and the `dtype` of `from_pretrained`.

        `weights` are arrays by name, with the names and layouts of any supported file. They must not be lazy arrays of
        another thread. `config` is a dict, as in a config.json, or a `VAEConfig`; `None` infers it for published
        generations.
        """
        return cls.from_pretrained(open_weights(weights, config), dtype=dtype)

    def plan(
        self,
        latent_shape: Sequence[int] | Film,
        *,
        memory_budget: str | int | None = None,
        mode: ModeName = "auto",
        order: OrderName = "auto",
        tiling: TilingConfig | None = None,
        tile_batch_size: int = 1,
        chunk: int | None = None,
        ranks: int = 1,
        bit_depth: BitDepth | None = None,
        outputs: Sequence[FrameOutput] = (),
        frames: tuple[int, int] | None = None,
        steps: int | None = None,
        keyframes: Keyframes | Sequence[int] | None = None,
        joined: bool | int = False,
        held_frames: int | None = None,
        sound: Sequence[Plan] = (),
    ) -> DecodePlan:
        """Plan the decode of latents of a given shape. Pure arithmetic; nothing is decoded.

        Args:
            latent_shape: (B, C, F', H', W'), or a `Film` whose windows are in a list, for the plan of all of them.
            memory_budget: upper bound for peak memory, including weights, MLX's buffer cache and the `joined` array:
                "8GB", "50%" of what is available, or bytes. `None` aims for half of what is available, or else for the
                minimum that works.
            mode: "auto" (exact if it fits), "exact", "single" or "tiled".
            order: "auto", "time", "rows" or "columns", for mode "exact".
            tiling: for mode "tiled"; default: the first preset that fits the VAE, such as `TilingConfig.default()`.
            tile_batch_size: maximum number of tiles of equal shape that are decoded together.
            chunk: latent frames (rows, columns) per piece. `None` chooses automatically.
            ranks: the number of processes that decode together, each a band of rows. The budget is for each process.
            steps: the number of denoising steps, for VAEs that denoise. `None` means the checkpoint's default.
            keyframes: the keyframes of the decode, or their frame numbers. VAEs that take none ignore them.
            bit_depth: 8 or 10, as in `stream`; or `outputs`, for `FrameChunk.to_frames`. Floats take more memory.
            frames: the first frame to decode, as it is in the whole clip, and one more than the last. `None` means all.
            joined: whether all frames become one array, as in `decode`, or with `bit_depth=8` in `decode_uint8`. Its
                memory is then included. For a window of a film, the number of frames of that array.
            held_frames: for a window of a film, the number of frames of another window that wait, see `stream_joined`.
            sound: possible plans of sound that is decoded meanwhile, the fastest first; `plan.sound` is the one to use.

        Raises:
            LatentsError: if the VAE cannot decode this shape.
            PlanError: if the options are invalid, or if no plan fits the budget (the message states the minimum).
        """
        options = PlanOptions(
            memory_budget=memory_budget,
            mode=mode,
            order=order,
            tiling=tiling,
            tile_batch_size=tile_batch_size,
            chunk=chunk,
            ranks=ranks,
            steps=steps,
            keyframes=frame_numbers(keyframes),
            frames=frames,
            outputs=tuple(outputs) if bit_depth is None else (FrameOutput(frame_format(bit_depth, PlanError)),),
            joined=joined,
            held_frames=held_frames,
            sound=sound,
        )
        if isinstance(latent_shape, Film):
            return latent_shape.plan(self.config.scale, self._decoder.spec, self._plan, options)
        return self._plan(latent_shape, options)

    def _plan(self, latent_shape: Sequence[int], options: PlanOptions) -> DecodePlan:
        decoder = self._decoder
        options = replace(options, weight_bytes=self._weight_bytes(decoder))
        return plan_decode(decoder.spec, latent_shape, self._machine(decoder.dtype), options)

    estimate = staticmethod(estimate)

    def plan_encode(
        self,
        frame_shape: Sequence[int],
        *,
        memory_budget: str | int | None = None,
        mode: ModeName = "auto",
        tiling: TilingConfig | None = None,
        tile_batch_size: int = 1,
        pad: bool = False,
        ranks: int = 1,
        joined: bool = False,
    ) -> EncodePlan:
        """Plan the encode of frames (B, 3, F, H, W), or (F, H, W, 3) as for uint8. Encodes stream along time.

        Arguments and errors are as in `plan`, and `pad` is as in `encode`. With `joined`, as in `encode`, the memory
        includes all latents, and floats (B, 3, F, H, W) as an MLX array in the encoder's dtype.
        """
        options = PlanOptions(
            memory_budget=memory_budget,
            mode=mode,
            tiling=tiling,
            tile_batch_size=tile_batch_size,
            ranks=ranks,
            joined=joined,
        )
        return self._plan_encode(frame_shape, options, pad)

    def _plan_encode(self, frame_shape: Sequence[int], options: PlanOptions, pad: bool = False) -> EncodePlan:
        encoder = self._encoder_for_plans
        options = replace(options, weight_bytes=self._weight_bytes(encoder))
        return plan_encode(encoder.spec, frame_shape, self._machine(encoder.dtype), options, pad=pad)

    def stream(
        self,
        latents: LatentInput | Film,
        plan: DecodePlan | None = None,
        *,
        bit_depth: BitDepth | None = None,
        group: mx.distributed.Group | None = None,
        **options: "Unpack[DecodeKeywords]",
    ) -> DecodeStream:
        """Yield frames as they are decoded, each once and in order.

        Closing or cancelling the stream frees its memory. Several streams of one VAE may run interleaved, or at once in
        several threads, and a stream that is made in one thread may run in another. When such a thread ends, its MLX
        streams are cleared.

        Args:
            latents: (B, C, F', H', W'), normalized; or an iterator of such arrays along time, of any F', which are
                decoded as they arrive; or a `Film`.
            plan: from `plan`. `None` means the default plan. With an iterator, its number of frames may differ, since
                memory does not depend on it.
            memory_budget, mode, order, tiling, tile_batch_size, chunk, steps, frames: as for `plan`, instead of a plan.
            timestep: 0 to 1 (default 0.05), for VAEs that take one.
            keyframes: stills that LTX-2.5's diffusion decoder sees in addition to the latents. Others ignore them, and
                warn.
            seed: 0 (the default) to 2^32 - 1, for VAEs that add noise: VAEs that take a timestep, and LTX-2.5's
                diffusion decoder.
            noise: the noise itself, as the network draws it, or "zeros"; in tiles also one array for each tile. For
                the diffusion decoder it is a picture (B, 3, T, H, W), or its patches (B, 48, T, H/4, W/4).
            noise_scale: the fraction of the latents that is replaced by noise (default 0.025).
            like: the convention that such VAEs follow: "ltx-video"; or "diffusers", where the default timestep is 0,
                the default noise scale the timestep, and the noise replaces a fraction of the denormalized latents.
            unnormalized: whether the latents are `latents * std + mean`, as diffusers' LTX-2 pipelines return them.
            bit_depth: 8 or 10 to get integer levels instead of floats, which take less disk space in orders rows and
                columns. `None` means the plan's, or floats without a plan.
            group: processes that decode together, from `mx.distributed.init()`. Each calls this with the same arguments
                and takes all chunks, which are whole frames on every rank.

        Raises:
            LatentsError: at once, if the network cannot take the latents or the noise, or values are not finite; later
                with an iterator.
            PlanError: at once, if the plan was made for another shape or other steps, or does not decode an iterator by
                time.
            DecodeError: while decoding, if the pixels are not finite, or are the same patch everywhere.
            DecodeCancelled: while decoding, if the stream's `cancel` was called.
            DeviceError: while decoding, if the device runs out of memory, or is stopped.
        """
        levels = None if bit_depth is None else frame_format(bit_depth, LatentsError)
        return self._decode_pipeline(options, levels, group).stream(latents, plan)

    def stream_joined(
        self,
        windows: Iterable[Any],
        *,
        carry: int = DEFAULT_CARRY,
        blend: int | None = None,
        group: mx.distributed.Group | None = None,
        **options: "Unpack[DecodeKeywords]",
    ) -> DecodeStream:
        """Yield the frames of a film from overlapping windows of latents, in memory that does not grow with the film.

        As `stream` with a `Film`, whose arguments `windows`, `carry` and `blend` are. The number of a window is mixed
        into the seed.

        ```python
        film = vae.stream_joined([load_latents(path)[0] for path in paths], carry=25)
        vae.decode_to_file(film, "film.mp4", fps=24)
        ```
        """
        return self.stream(Film(windows, carry=carry, blend=blend), group=group, **options)

    def _decode_pipeline(
        self,
        keywords: DecodeKeywords,
        levels: FrameFormat | None = None,
        group: mx.distributed.Group | None = None,
    ) -> DecodePipeline:
        check_names("a decode", keywords, DecodeKeywords)
        decode_names, values = {option.name for option in fields(DecodeOptions)}, cast(dict[str, Any], keywords)
        options = DecodeOptions(**{name: value for name, value in values.items() if name in decode_names})
        plan_options = {name: value for name, value in values.items() if name not in decode_names}
        ranks = 1 if group is None else group.size()
        return DecodePipeline(
            self._decoder,
            self.config,
            self._plan,
            options,
            PlanOptions(ranks=ranks, **plan_options),
            levels,
            group,
        )

    @overload
    def decode(
        self,
        latents: LatentInput | Film,
        plan: DecodePlan | None = None,
        *,
        progress: Progress = False,
        **options: "Unpack[DecodeKeywords]",
    ) -> mx.array: ...

    @overload
    def decode(
        self,
        latents: LatentInput | Film,
        plan: DecodePlan | None = None,
        *,
        on_frames_ready: OnFramesReady,
        progress: Progress = False,
        **options: "Unpack[DecodeKeywords]",
    ) -> None: ...

    def decode(
        self,
        latents: LatentInput | Film,
        plan: DecodePlan | None = None,
        *,
        on_frames_ready: OnFramesReady | None = None,
        progress: Progress = False,
        **options: "Unpack[DecodeKeywords]",
    ) -> mx.array | None:
        """Decode a whole clip to pixels (B, 3, F, H, W), approximately in [-1, 1]. Otherwise as `stream`.

        With `on_frames_ready` the result is `None`. It is called with (frames (B, 3, n, H, W), start index) as frames
        become final, each once and in order. An exception in it stops the decode and propagates to the caller.
        `progress` is True for a progress bar on standard error, or a function `(done, total)` of frames. NumPy has no
        bfloat16: `np.array(pixels.astype(mx.float32))`.
        """
        pipeline = self._decode_pipeline(options)
        return pipeline.decode(latents, plan, on_frames_ready=on_frames_ready, progress=progress)

    def decode_uint8(
        self, latents: LatentInput | Film, plan: DecodePlan | None = None, **options: "Unpack[DecodeKeywords]"
    ) -> np.ndarray:
        """Decode to uint8 (F, H, W, 3), or (B, F, H, W, 3) for several videos. As `stream`, without `bit_depth`.

        A memory budget includes the array, unless the latents come from an iterator.
        """
        return self._decode_pipeline(options).decode_uint8(latents, plan)

    def decode_to_file(
        self,
        latents: LatentInput | Film | DecodeStream,
        path: str | os.PathLike,
        plan: DecodePlan | None = None,
        *,
        fps: Rate = DEFAULT_FPS,
        progress: Progress = False,
        audio: str | os.PathLike | Iterable | None = None,
        codec: str | None = None,
        crf: int | None = None,
        bit_depth: BitDepth = 8,
        pix_fmt: str | None = None,
        metadata: Mapping[str, str] | None = None,
        shortest: bool = False,
        overwrite: bool | None = None,
        frame_steps: Sequence[FrameStep] = (),
        hdr: HDR = None,
        **options: "Unpack[DecodeKeywords]",
    ) -> DecodeReport:
        """Decode latents (B, C, F', H', W') to a file, which appears under its name when it is whole.

        Latents may be an iterator, as for `stream`, a `Film`, or a stream; a folder gets stills. A batch of several
        videos becomes `clip-0.mp4`, `clip-1.mp4` and so on. For options up to `overwrite` see `VideoWriter` (`None`
        replaces all but stills in a folder), for `hdr` (or a curve) `HDROptions`, for the others `stream`. `audio` may
        be an `AudioVAE.stream`. Errors: `WriterError`.
        """
        name = expand_path(path, WriterError)
        output_options = OutputOptions(
            audio=audio,
            codec=codec,
            crf=crf,
            overwrite=overwrite,
            shortest=shortest,
            metadata=metadata or {},
            pix_fmt=pix_fmt,
            frames=FrameOutput(frame_format(bit_depth, WriterError, name), tuple(frame_steps)),
        )
        output_options = choose_hdr(output_options, hdr, self._decoder.dtype)
        batch = latents.shape[0] if isinstance(latents, Latents) and len(latents.shape) == 5 else 1
        is_still = batch > 1 and cast(Latents, latents).shape[2] == 1
        output = DecodeOutput(name, output_options, find_fps(name, fps, WriterError), batch=batch, is_still=is_still)
        return self._decode_pipeline(options).decode_to_file(latents, plan, output, progress)

    def export(
        self,
        folder: str | os.PathLike,
        size: str | Size,
        *,
        memory_budget: str | int | None = None,
        weights: bool = True,
        **options: "Unpack[ExportKeywords]",
    ) -> Export:
        """Write decodes of this size as MLX functions, which programs in C++, Swift or Python run without this package.

        Any number of latent frames, by time: the frames are those of `decode`, in the memory of its stream. The folder
        is described in docs/export.md, and `examples/exported` has programs that run it. Other threads must not decode
        with this object meanwhile.

        Args:
            folder: must not exist, or be empty.
            size: "768x512", or (width, height).
            memory_budget: as in `plan`, without which each layer takes its usual number of frames at a time.
            weights: whether to write `weights.safetensors`, which is the same file for all sizes unless the VAE adds
                noise to its layers.
            seed, timestep, noise_scale, like: as in `stream`, fixed in the functions.

        Raises:
            LatentsError: if the VAE cannot decode this size.
            PlanError: if it cannot be decoded by time within the budget, or the decoder cannot be exported.
            WriterError: if the folder cannot be written.
        """
        check_names("an export", options, ExportKeywords)
        decoder = self._decoder
        plan = plan_export(
            decoder.spec, self.config.scale, self._machine(decoder.dtype), check_size(size), memory_budget
        )
        decode_options = DecodeOptions(**cast(dict[str, Any], options))
        return export_decode(decoder, plan, decode_options, folder, weights=weights, generation=self.config.generation)

    def encode(
        self, pixels: Frames | Iterable[Frames], plan: EncodePlan | None = None, **options: "Unpack[EncodeKeywords]"
    ) -> mx.array:
        """Encode frames to normalized latents (B, C, 1 + k, H/s, W/s): the mean of the distribution, without sampling.

        Args:
            pixels: (B, 3, F, H, W) in [-1, 1], or uint8 or uint16 (F, H, W, 3); or an iterator of such arrays in order.
                F should be 1 + t*k; H and W must be multiples of the spatial scale.
            plan: from `plan_encode`. `None` means the default plan, within the `memory_budget` if there is one.
            tiling: overlapping tiles, blended and so not exact; in time only for one array. `None` means whole frames.
            pad: whether to repeat the last frame up to 1 + t*k. Otherwise excess frames are dropped, with a warning.
            tile_batch_size, group: as for `plan` and `stream`. All ranks get the whole latents.

        Raises:
            LatentsError: if the network cannot take the frames.
            PlanError: if the plan was made for other frames.
            TilingError: if the tiles or the tile batch size are invalid.
        """
        # The number of frames of an iterator is unknown, and levels are not MLX arrays.
        pipeline = self._encode_pipeline(options, joined=isinstance(pixels, mx.array))
        with arrays_released(), pipeline.stream(pixels, plan) as stream:
            return join_parts(stream, 2, None)

    def encode_stream(
        self, frames: Frames | Iterable[Frames], plan: EncodePlan | None = None, **options: "Unpack[EncodeKeywords]"
    ) -> EncodeStream:
        """Yield latents (B, C, n, H/s, W/s) as they are encoded, in order, in memory that does not grow with the clip.

        Arguments are as in `encode`, with spatial tiles only. The plan may be for another number of frames.
        """
        return self._encode_pipeline(options).stream(frames, plan)

    def _encode_pipeline(self, options: EncodeKeywords, *, joined: bool = False) -> EncodePipeline:
        check_names("an encode", options, EncodeKeywords)
        group, tiling = options.get("group"), options.get("tiling")
        plan_options = PlanOptions(
            memory_budget=options.get("memory_budget"),
            mode="tiled" if tiling else "auto",
            tiling=tiling,
            tile_batch_size=options.get("tile_batch_size", 1),
            ranks=1 if group is None else group.size(),
            joined=joined,
        )
        make_plan, pad = self._plan_encode, options.get("pad", False)
        return EncodePipeline(self._encoder, self._encoder_is_promoted, make_plan, plan_options, pad, group)


class PreviewVAE(VideoVAE):
    """Tiny autoencoder (TAEHV) for LTX latents: a hundredth of the VAE's work, with blurred pictures.

    It has all methods of a `VideoVAE`. Pixels are clamped to [-1, 1]. It is strictly causal: the first latent frame
    gives a frame, and each later one 8 frames, at once. For latents that come in order:

    ```python
    preview = PreviewVAE.from_pretrained("taeltx2_3.safetensors")
    for latents in model:  # (B, 128, n, H', W'), normalized
        show(preview.push(latents))  # (B, 3, 8n, H, W), 7 fewer for the first latents
    preview.flush()  # the next latents belong to another clip
    ```

    A model that denoises has an estimate of all latents after each step. Its stills are one picture for each latent
    frame, and take almost no time with `small=True`. As a film, it is shown until there is a better estimate:

    ```python
    def after_step(estimate):  # (B, 128, F', H', W')
        show_contact_sheet(preview.decode_stills(estimate, small=True))  # (B, 3, F', 4 * H', 4 * W')
        for frame in range(estimate.shape[2]):
            show(preview.push(estimate[:, :, frame : frame + 1]))
            if next_estimate_is_there():
                break
        preview.flush()
    ```

    One object pushes one clip at a time. `PreviewVAE(preview.config, None, preview.decoder)` is another one with the
    same weights, for a clip that is shown at the same time.
    """

    _pushed: PushedDecode | None = None

    @classmethod
    def from_pretrained(
        cls,
        source: str | os.PathLike | Checkpoint,
        *,
        dtype: GivenDtype = None,
        encoder: bool = True,
        decoder: bool = True,
    ) -> "Self":
        """Load a tiny autoencoder or a projection, as `VideoVAE.from_pretrained`. Warns for another VAE."""
        vae = super().from_pretrained(source, dtype=dtype, encoder=encoder, decoder=decoder)
        if decoder and vae._decoder.stills() is None:
            name = source.name if isinstance(source, Checkpoint) else source
            warn(f"{name}: {describe_whole_vae(vae.config)}.")
        return vae

    def push(self, latents: mx.array | np.ndarray) -> mx.array | None:
        """Decode the next latents (B, C, n, H', W') of the clip to the frames (B, 3, n', H, W) that are final.

        Returns `None` if there are none yet, which only happens with decoders that are not causal. After an error, the
        next latents belong to another clip. Raises the errors of `stream`.
        """
        pushed, self._pushed = self._pushed, None
        if pushed is None:
            pushed = PushedDecode(self._decoder.spec, self.stream)
        frames = pushed.push(latents)
        self._pushed = pushed
        return frames

    def flush(self) -> mx.array | None:
        """End the clip that is pushed. Returns the frames that were held back, or `None` for a causal decoder."""
        pushed, self._pushed = self._pushed, None
        return None if pushed is None else pushed.flush()

    def decode_stills(
        self, latents: mx.array | np.ndarray, *, small: bool = False, **options: "Unpack[DecodeKeywords]"
    ) -> mx.array:
        """Decode one picture (B, 3, F', H, W) for each latent frame, in an eighth of the time or less.

        A picture is the last frame of its latent frame. `small` pictures have 4x4 pixels per latent cell. A projection
        has only one size.
        """
        decoder = self._decoder.stills(small=small)
        if decoder is None:
            raise CheckpointError(
                f"this decoder ({self.config.generation}) makes no stills; load a tiny autoencoder: "
                f"{list_names([Kind.PREVIEW])}."
            )
        return cast(Any, VideoVAE(self.config, None, decoder).decode(latents, **options))


def describe_whole_vae(config: Config) -> str:
    """Describe a VAE that is no preview decoder, for a warning."""
    remark = f"is a whole VAE ({config.generation}), whose previews take as long as decodes"
    return f"{remark}; use a tiny autoencoder ({list_names([Kind.PREVIEW])}) or a projection"


def load_encoder(
    checkpoint: Checkpoint, dtype: mx.Dtype | None, *, is_alone: bool
) -> Network | LazyNetwork[Any] | None:
    """Return a checkpoint's encoder, or `None`. Its weights are read later if it is in files and not loaded alone."""
    if is_alone or checkpoint.is_in_memory or "encoder" not in checkpoint.networks:
        return load_network(checkpoint, "encoder", dtype)
    return LazyNetwork(checkpoint, "encoder", dtype)


def _is_waiting(network: Network | LazyNetwork[Any]) -> bool:
    """Return whether the weights of a network have not been read."""
    return isinstance(network, LazyNetwork) and network.loaded is None


def num_bytes(network: Network | LazyNetwork[Any]) -> int:
    """Return the size of a network's weights, read or not."""
    return network.spec.num_weights * network.dtype.size
