"""`VideoVAE` and `PreviewVAE`, the main classes of the public API, and what all VAEs have in common."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import mlx.core as mx
import numpy as np

from .audio_vae import AudioVAE, check_decodes_audio
from .backend.function_file import find_reader
from .backend.machine import ReaderName
from .backend.mlx_utils import DTYPES, GivenDtype, parse_dtype
from .checkpoint import Arrays, Checkpoint, GivenConfig, VAESource, open_checkpoint, open_weights
from .checkpoint.loading import NetworkHandle, NetworkHeader
from .checkpoint.locate import is_on_hub
from .errors import (
    CheckpointError,
    LatentsError,
    LTXVAEError,
    PlanError,
    ReaderError,
    WriterError,
    quote,
    telling_warnings,
    warn,
)
from .files import expand_path
from .frame_format import FrameFormat, FrameOutput, FrameStep, frame_format
from .latents import LAYOUTS
from .latents.keyframes import Keyframes, check_keyframes, frame_numbers
from .model_table import Kind, list_names
from .networks.base import NETWORKS, PICTURES, Config, Decoder, Encoder, Statistics
from .networks.convolution.conv3d import prepare
from .networks.specs import NetworkSpec
from .opened_vae import OpenedVAE, described_network
from .options import (
    DECODE_DEFAULTS,
    PLAN_DEFAULTS,
    BitDepth,
    DecodeKeywords,
    DecodeOptions,
    EncodeKeywords,
    ExportKeywords,
    HDRInput,
    LayoutName,
    ModeName,
    OrderName,
    OutputOptions,
    PlanKeywords,
    PlanOptions,
    check_names,
)
from .pipeline.clip_audio import AudioSettings
from .pipeline.decode import DecodePipeline, DecodeStream, PushedDecode
from .pipeline.encode import EncodePipeline, EncodeStream, Frames
from .pipeline.execution import arrays_released, join_parts
from .pipeline.export import Export, export_network
from .pipeline.film import Film, plan_windows
from .pipeline.frames import FrameChunk, OnFramesReady
from .pipeline.hdr_frames import HDR, choose_hdr
from .pipeline.inputs import ClipInput, DecodeInput, LatentReader, MemoryInput
from .pipeline.latent_video import LatentVideo, is_latent_file
from .pipeline.output import DecodeReport
from .pipeline.prepare import DecodeSettings, PreparedDecode, prepare_decode
from .pipeline.prepare_encode import EncodeSettings, PreparedEncode, find_range
from .pipeline.progress import Progress
from .pipeline.sources import LatentInput
from .planning.film import DEFAULT_CARRY
from .planning.plan import DecodePlan, EncodePlan, Plan
from .planning.planner import plan_export
from .published import DecoderName, PublishedVAE
from .shapes import Grid, LatentShape, Size, check_size, is_count
from .tiling.config import TilingConfig
from .units import DEFAULT_FPS, Rate, find_fps, parse_bytes
from .video import Fit

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


class FileKeywords(DecodeKeywords, total=False):
    """Options of a decode to a file, see `VideoVAE.prepare`."""

    fps: Rate | None
    audio: str | os.PathLike | Iterable[Any] | AudioVAE | None
    codec: str | None
    crf: int | None
    bit_depth: BitDepth
    pix_fmt: str | None
    metadata: Mapping[str, str] | None
    shortest: bool
    overwrite: bool | None
    frame_steps: Sequence[FrameStep]
    hdr: HDR


class VideoVAE(OpenedVAE[Config]):
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
        encoder: Encoder | NetworkHandle[Encoder] | None,
        decoder: Decoder | NetworkHandle[Decoder] | None,
        *,
        encoder_is_promoted: bool = False,
        keeps_dtype: bool = False,
    ) -> None:
        super().__init__(config, {"encoder": encoder, "decoder": decoder}, keeps_dtype=keeps_dtype)
        self._encoder_is_promoted = encoder_is_promoted

    @property
    def encoder(self) -> Encoder | None:
        """Encoder with its weights, or `None`."""
        return self._get("encoder")

    @encoder.setter
    def encoder(self, encoder: Encoder | None) -> None:
        self._set("encoder", encoder)

    @classmethod
    def from_pretrained(
        cls,
        source: str | os.PathLike | Checkpoint,
        *,
        dtype: GivenDtype = None,
        encoder: bool = True,
        decoder: bool = True,
    ) -> "Self":
        """Open a VAE: read its headers, configuration and statistics. Weights are read at their first use.

        Args:
            source: a name such as "ltx-2.3" (see README.md), a file in any supported layout (only the VAE's tensors
                are read, even from a 40 GB file), a folder, "folder:file", a hub repository id, or an open checkpoint.
            dtype: "bfloat16" or `mx.bfloat16`. `None` means the checkpoint's dtype. On Apple GPUs, convolutions of a
                bfloat16 network take float16 where their range allows it, which is more accurate. If requested
                explicitly, bfloat16 is used throughout. A float16 encoder computes in float32, since float16 may
                overflow there, and warns when it is used.
            encoder, decoder: whether to open it.

        Raises:
            CheckpointError: if the source cannot be read, is not a VAE, is incomplete, or is not supported. Errors of
                weights are raised when they are read, by `load` at the latest.
        """
        source, dtype = cls._open(source, dtype, PICTURES, encoder=encoder, decoder=decoder)
        encoder_dtype, decoder_dtype = (source.cast_dtype(name, dtype) for name in NETWORKS)
        vae = cls(
            source.config,
            NetworkHandle[Encoder].open(source, "encoder", encoder_dtype) if encoder else None,
            NetworkHandle[Decoder].open(source, "decoder", decoder_dtype) if decoder else None,
            encoder_is_promoted=encoder_dtype is mx.float32 and dtype != "float32",
            keeps_dtype=dtype is not None,
        )
        return vae._note_source(source.source, encoder=encoder, decoder=decoder)

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
        bit_depth: BitDepth | None = None,
        outputs: Sequence[FrameOutput] = (),
        frames: tuple[int, int] | None = None,
        steps: int | None = None,
        keyframes: Keyframes | Sequence[int] | None = None,
        joined: bool | int = False,
        held_frames: int | None = None,
        audio: Sequence[Plan] = (),
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
            steps: the number of denoising steps, for VAEs that denoise. `None` means the checkpoint's default.
            keyframes: the keyframes of the decode, or their frame numbers. VAEs that take none ignore them.
            bit_depth: 8 or 10, as in `stream`; or `outputs`, for `FrameChunk.to_frames`. Floats take more memory.
            frames: the first frame to decode, as it is in the whole clip, and one more than the last. `None` means all.
            joined: whether all frames become one array, as in `decode`, or with `bit_depth=8` in `decode_uint8`. Its
                memory is then included. For a window of a film, the number of frames of that array.
            held_frames: for a window of a film, the number of frames of another window that wait, see `stream_joined`.
            audio: possible plans of audio that is decoded meanwhile, the fastest first; `plan.audio` is the one to use.

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
            steps=steps,
            keyframes=frame_numbers(keyframes),
            frames=frames,
            outputs=tuple(outputs) if bit_depth is None else (FrameOutput(frame_format(bit_depth, PlanError)),),
            joined=joined,
            held_frames=held_frames,
            audio=audio,
        )
        if isinstance(latent_shape, Film):
            return plan_windows(latent_shape, self.config.scale, self.spec("decoder"), self._plan, options)
        return self._plan(latent_shape, options)

    def _plan(self, latent_shape: Sequence[int], options: PlanOptions) -> DecodePlan:
        decoder = self._network("decoder")
        return self._plan_decode(decoder.spec, decoder.dtype, latent_shape, options, "decoder")

    @classmethod
    def published(cls, generation: str, decoder: DecoderName = "conv", *, dtype: GivenDtype = None) -> "Self":
        """Return a published VAE without its files: its plans are those of the file, and its weights are an error.

        Args:
            generation: "ltx-2.5", "ltx-2.3", "ltx-2", "0.9.0" to "0.9.8", "prunavaed", or "taeltx-2.3".
            decoder: "diffusion" for the other decoder of LTX-2.5.
            dtype: as for `from_pretrained`. `None` means the published file's.

        Raises:
            PlanError: if no such VAE is published.
        """
        published, requested = PublishedVAE.find(generation, decoder), parse_dtype(dtype)
        stored = DTYPES[requested or published.family.published_dtype]
        encoder, network = (described_network(published, name, stored) for name in NETWORKS)
        vae = cls(published.config, encoder, network, keeps_dtype=requested is not None)
        report = {"generation": published.config.generation}
        networks = {"encoder": report, "decoder": {**report, "decoder": published.family.decoder}}
        return vae._note_source(VAESource(published.name, networks=networks), encoder=True, decoder=True)

    @classmethod
    def with_random_weights(
        cls,
        generation: str,
        *,
        base_channels: int | None = None,
        dtype: GivenDtype = None,
        encoder: bool = True,
        decoder: bool = True,
    ) -> "Self":
        """Return a published VAE with random weights, the same each time, which take the time and memory of the file's.

        Arguments are as for `published` and `from_pretrained`. `base_channels` are the channels of the last layers,
        where they are not the published ones. Raises a `CheckpointError` for a network that the VAE does not have.
        """
        published, requested = PublishedVAE.find(generation, base_channels=base_channels), parse_dtype(dtype)
        stored = DTYPES[requested or published.family.published_dtype]
        ones = mx.ones((published.config.latent_channels,))
        statistics = Statistics(0 * ones, ones)

        def load(name: str) -> Any:
            network: Any = published.make(name, requested)
            prepare(network, keeps_dtype=requested is not None)
            return network

        networks = {
            name: NetworkHandle[Any](NetworkHeader(published.spec(name), stored, statistics), partial(load, name))
            for name, is_requested in (("encoder", encoder), ("decoder", decoder))
            if is_requested
        }
        return cls(
            published.config, networks.get("encoder"), networks.get("decoder"), keeps_dtype=requested is not None
        )

    @staticmethod
    def estimate(
        generation: str,
        *,
        frames: int,
        size: str | Size,
        dtype: GivenDtype = None,
        decoder: DecoderName = "conv",
        audio: bool = False,
        fps: Rate = DEFAULT_FPS,
        keyframes: Sequence[int] = (),
        joined: bool = False,
        **options: "Unpack[PlanKeywords]",
    ) -> DecodePlan:
        """Plan the decode of a video by a published VAE, without its weights: the plan is the one of the loaded VAE.

        It tells apps the memory of a decode before they load anything. `plan.peak_bytes` includes the weights.

        Args:
            generation, dtype, decoder: as for `published`.
            frames: 1 + 8*k.
            size: "1280x704", or (width, height), multiples of 32.
            keyframes: the frame numbers of keyframe planes.
            audio: also decode the audio of the video, which has `fps` frames per second.
            joined: as for `plan`, as are the further options: memory_budget, mode, order, tiling, chunk, steps.

        Raises:
            LatentsError: if the size or the number of frames is impossible.
            PlanError: if no such VAE is published, or as for `plan`.
        """
        width, height = check_size(size)
        if not is_count(frames, 1):
            raise LatentsError(f"frames is {quote(frames)}; expected a whole number such as 121.")
        vae = VideoVAE.published(generation, decoder, dtype=dtype)
        plan_options = PlanOptions(keyframes=frame_numbers(keyframes), joined=joined, **options)
        return vae.plan_video((frames, height, width), plan_options, fps=fps if audio else None)

    def plan_video(self, video: Grid, options: PlanOptions = PLAN_DEFAULTS, *, fps: Rate | None = None) -> DecodePlan:
        """Plan the decode of a video (F, H, W) of a published VAE. With `fps`, the plan covers its audio."""
        shape = LatentShape(1, self.config.latent_channels, *self.config.scale.latent_grid(video))
        audio: list[Plan] = []
        if fps is not None:
            audio_vae = AudioVAE.published(self.source.name, dtype=self.dtype if self._keeps_dtype else None)
            latents = audio_vae.count_latents(video[0] / find_fps("fps", fps, PlanError))
            audio = audio_vae.plans(latents)
        return self._plan(shape, replace(options, audio=audio))

    def plan_encode(
        self,
        frame_shape: Sequence[int],
        *,
        memory_budget: str | int | None = None,
        mode: ModeName = "auto",
        tiling: TilingConfig | None = None,
        tile_batch_size: int = 1,
        pad: bool = False,
        joined: bool = False,
    ) -> EncodePlan:
        """Plan the encode of frames (B, 3, F, H, W), or (F, H, W, 3) as for uint8. Encodes stream along time.

        Arguments and errors are as in `plan`, and `pad` is as in `encode`. With `joined`, as in `encode`, the memory
        includes all latents, and floats (B, 3, F, H, W) as an MLX array in the encoder's dtype.
        """
        options = PlanOptions(
            memory_budget=memory_budget, mode=mode, tiling=tiling, tile_batch_size=tile_batch_size, joined=joined
        )
        return self._plan_encode(frame_shape, options, pad=pad)

    def stream(
        self,
        latents: LatentInput | Film,
        plan: DecodePlan | None = None,
        *,
        bit_depth: BitDepth | None = None,
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
        return self._decode_pipeline(options, levels).stream(latents, plan)

    def stream_joined(
        self,
        windows: Iterable[Any],
        *,
        carry: int = DEFAULT_CARRY,
        blend: int | None = None,
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
        return self.stream(Film(windows, carry=carry, blend=blend), **options)

    def _decode_pipeline(self, keywords: DecodeKeywords, levels: FrameFormat | None = None) -> DecodePipeline:
        return replace(self._pipeline(*_split_keywords(keywords)), format=levels)

    def _pipeline(self, options: DecodeOptions, plan_options: PlanOptions) -> DecodePipeline:
        decoder = self._network("decoder")
        return DecodePipeline(decoder, self.config, self._plan, self.source, options, plan_options)

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

    def prepare(
        self,
        latents: LatentInput | Film | DecodeStream | str | os.PathLike,
        path: str | os.PathLike,
        plan: DecodePlan | None = None,
        *,
        fps: Rate | None = None,
        audio: "str | os.PathLike | Iterable | AudioVAE | None" = None,
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
    ) -> PreparedDecode:
        """Decide a decode to a file, and check all that can be checked before its weights are read.

        ```python
        decode = vae.prepare("clip.safetensors", "clip.mp4", audio=audio_vae, memory_budget="8GB")
        print(decode.plan, decode.outputs)
        report = decode.run(progress=True)
        ```

        Args:
            latents: (B, C, F', H', W'), an iterator of such arrays, as for `stream`, a `Film`, a `stream`, or a latent
                file, which may state the frame rate and have keyframes.
            path: the output; a folder gets stills. A batch of several videos becomes `clip-0.mp4`, `clip-1.mp4` etc.
            fps: `None` means what the file states, or 24.
            audio: as for `VideoWriter`; or an `AudioVAE.stream`, or the `AudioVAE` of the audio latents in the file.
            codec, crf, bit_depth, pix_fmt, metadata, shortest, frame_steps: as for `VideoWriter`.
            overwrite: whether existing files are replaced. `None` replaces all but stills in a folder.
            hdr: `HDROptions`, or a curve.
            memory_budget, mode, order, seed, noise, keyframes and so on: as for `stream`.

        Raises:
            LatentsError: if the latents or options cannot be decoded.
            PlanError: if no plan fits the budget, or the plan was made for other latents.
            WriterError: if a file cannot be written.
        """
        name = expand_path(path, WriterError)
        output = OutputOptions(
            audio=None if isinstance(audio, OpenedVAE) else audio,
            codec=codec,
            crf=crf,
            overwrite=overwrite,
            shortest=shortest,
            metadata=metadata or {},
            pix_fmt=pix_fmt,
            frames=FrameOutput(frame_format(bit_depth, WriterError, name), tuple(frame_steps)),
        )
        output = choose_hdr(output, hdr, self._network("decoder").dtype)
        rate = None if fps is None else find_fps(name, fps, WriterError)
        decode_options, plan_options = _split_keywords(options)
        settings = DecodeSettings(output, plan_options, decode_options, rate)
        decode_input: DecodeInput = MemoryInput(latents, decode_options.keyframes)
        unnormalized = decode_options.unnormalized or None
        if isinstance(audio, OpenedVAE):
            check_decodes_audio(audio)
            audio_settings = AudioSettings(lambda: audio, unnormalized=unnormalized, is_required=True)
            settings = replace(settings, audio=audio_settings)
        if isinstance(latents, (str, os.PathLike)):
            reader = replace(self.reader(), unnormalized=unnormalized)
            decode_input = ClipInput(reader, reader.open(os.fspath(latents)), decode_options.keyframes)
        elif settings.audio is not None:
            problem = "an AudioVAE decodes the audio latents of a file; pass audio_vae.stream(latents)"
            raise LatentsError(f"{name}: {problem}.")
        prepared = self.decide(decode_input, name, settings, plan)
        prepared.check_outputs()
        prepared.check_values()
        return prepared

    def decide(
        self, latents: DecodeInput, path: str, settings: DecodeSettings, plan: DecodePlan | None = None
    ) -> PreparedDecode:
        """Decide a decode, as `prepare`, without the checks of outputs and values."""
        return prepare_decode(self._pipeline(settings.options, settings.plan), latents, path, settings, plan)

    def reader(self) -> LatentReader:
        """Return what opens latent files for this VAE."""
        return LatentReader(self.config, self.spec("decoder"), self.statistics, self.source, self.latent_space)

    def decode_to_file(
        self,
        latents: LatentInput | Film | DecodeStream | str | os.PathLike,
        path: str | os.PathLike,
        plan: DecodePlan | None = None,
        *,
        progress: Progress = False,
        **options: "Unpack[FileKeywords]",
    ) -> DecodeReport:
        """Decode latents (B, C, F', H', W') to a file, which appears under its name when it is whole.

        It is `prepare(latents, path, plan, **options).run(progress)`, whose options and errors `prepare` and
        `PreparedDecode.run` describe.
        """
        return self.prepare(latents, path, plan, **options).run(progress)

    def export(
        self,
        folder: str | os.PathLike,
        size: str | Size,
        *,
        encoder: bool = False,
        reader: ReaderName = "mlx",
        memory_budget: str | int | None = None,
        shares_weights: bool = False,
        overwrite: bool = False,
        **options: "Unpack[ExportKeywords]",
    ) -> Export:
        """Write decodes of this size as MLX functions, which programs in C++, Swift or Python run without this package.

        Any number of latent frames, by time: the frames are those of `decode`, in the memory of its stream. The folder
        is described in docs/export.md, and `examples/exported` has programs that run it. Other threads must not decode
        with this object meanwhile.

        Args:
            folder: must not exist, or be empty, or with `overwrite` have nothing but an exported decode, which is
                replaced when the new one is complete.
            size: "768x512", or (width, height).
            encoder: whether to write encodes instead, which give the latents of `encode`.
            reader: what runs the functions: "mlx-swift", "mlx-c" or "mlx-rs", or "mlx" for the MLX that is installed
                here. It determines the format of the files, and the memory that is planned.
            memory_budget: as in `plan`, without which each layer takes its usual number of frames at a time.
            shares_weights: whether `weights.safetensors` is in the folder above, for exports of other sizes in other
                folders there. An export whose weights differ has its own: maps of noise belong to a size.
            seed, timestep, noise_scale, like: as in `stream`, fixed in the functions.

        Raises:
            LatentsError: if the VAE cannot decode this size.
            PlanError: if it cannot be decoded by time within the budget, or the decoder cannot be exported.
            WriterError: if the folder cannot be written.
        """
        check_names("an export", options, ExportKeywords)
        network: NetworkHandle[Any] = self._network("encoder" if encoder else "decoder")
        plan = self.plan_export(size, encoder=encoder, reader=reader, memory_budget=memory_budget)
        decode_options = DecodeOptions(**cast(dict[str, Any], options))
        return export_network(
            network.get(),
            plan,
            decode_options,
            folder,
            shares_weights=shares_weights,
            generation=self.config.generation,
            reader=find_reader(reader),
            overwrite=overwrite,
        )

    def plan_export(
        self,
        size: str | Size,
        *,
        encoder: bool = False,
        reader: ReaderName = "mlx",
        memory_budget: str | int | None = None,
    ) -> Plan:
        """Return the plan of an export. Arguments and errors are those of `export`."""
        network: NetworkHandle[Any] = self._network("encoder" if encoder else "decoder")
        machine = replace(self._machine(network.dtype), bounds_winograd=find_reader(reader).bounds_winograd)
        return plan_export(network.spec, self.config.scale, machine, check_size(size), memory_budget, encoder=encoder)

    def encode(
        self,
        pixels: Frames | Iterable[Frames | FrameChunk],
        plan: EncodePlan | None = None,
        **options: "Unpack[EncodeKeywords]",
    ) -> mx.array:
        """Encode frames to normalized latents (B, C, 1 + k, H/s, W/s): the mean of the distribution, without sampling.

        Args:
            pixels: (B, 3, F, H, W) in [-1, 1], or uint8 or uint16 (F, H, W, 3); or an iterator of such arrays in order,
                or of the chunks of a decode, such as `vae.stream(latents, frames=(96, 121))`.
                F should be 1 + t*k; H and W must be multiples of the spatial scale.
            plan: from `plan_encode`. `None` means the default plan, within the `memory_budget` if there is one.
            tiling: overlapping tiles, blended and so not exact; in time only for one array. `None` means whole frames.
            pad: whether to repeat the last frame up to 1 + t*k. Otherwise excess frames are dropped, with a warning.
            tile_batch_size: as for `plan`.

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
        self,
        frames: Frames | Iterable[Frames | FrameChunk],
        plan: EncodePlan | None = None,
        **options: "Unpack[EncodeKeywords]",
    ) -> EncodeStream:
        """Yield latents (B, C, n, H/s, W/s) as they are encoded, in order, in memory that does not grow with the clip.

        Arguments are as in `encode`, with spatial tiles only. The plan may be for another number of frames.
        """
        return self._encode_pipeline(options).stream(frames, plan)

    def prepare_encode(
        self,
        video: str | os.PathLike,
        path: str | os.PathLike,
        *,
        fps: Rate | None = None,
        frames: tuple[int, int] | None = None,
        size: "str | Size | None" = None,
        fit: Fit | None = None,
        matrix: str | None = None,
        as_stored: bool = False,
        compress: float | Literal["auto"] | None = None,
        hdr: HDRInput | None = None,
        audio: AudioVAE | None = None,
        windows: int | None = None,
        carry: int | None = None,
        layout: LayoutName | None = None,
        overwrite: bool = True,
        **options: "Unpack[EncodeKeywords]",
    ) -> PreparedEncode:
        """Decide the encode of a video to a latent file, and check all that can be checked before weights are read.

        ```python
        with vae.prepare_encode("clip.mp4", "clip.safetensors", size=(768, 512), pad=True) as encode:
            print(encode.plan)
            report = encode.run(progress=True)
        ```

        Args:
            video: a video, an image, or a folder or pattern of images, as `VideoReader` takes them, as are fps, size,
                fit, matrix and as_stored. Or a latent file, whose frames are decoded in memory.
            frames: the first frame to encode, and one more than the last. `None` means all.
            compress: the CRF at which a single image goes through H.264, as pipelines do with it; "auto" is theirs.
            hdr: what the pixels of EXR images are.
            audio: encodes the audio of the video, too.
            windows: frames of each of several windows, which are files in the folder `path`; they share `carry` frames.
            layout: the trainer that reads the file, which `decode` and `load_latents` read back unless it is a pickle.
            overwrite: whether a file of this name is replaced.

        Raises:
            ReaderError: if the video cannot be read, or not at this size.
            LatentsError: if the size is no width and height.
            PlanError: if no plan fits the budget, or for windows that the VAE cannot encode, or impossible arguments.
            WriterError: if the file cannot be written.
        """
        name, pad = expand_path(path, WriterError), options.pop("pad", False)
        check_names("an encode", options, EncodeKeywords)
        if layout is not None and layout not in LAYOUTS:
            raise PlanError(f"layout {quote(layout)} is not known; expected {', '.join(LAYOUTS)}.")
        if audio is not None and not isinstance(audio, AudioVAE):
            raise PlanError(f"audio is {quote(audio)}; expected an AudioVAE, which AudioVAE.from_pretrained opens.")
        settings = EncodeSettings(
            self._encode_options(options),
            pad,
            windows,
            carry,
            None if size is None else check_size(size),
            fit,
            None if fps is None else find_fps(name, fps, WriterError),
            matrix,
            as_stored,
            find_range(frames),
            compress=compress,
            hdr=hdr,
            audio=audio,
            layout=None if layout is None else LAYOUTS[layout],
            overwrite=overwrite,
        )
        settings.check(self.spec("encoder").scale)
        settings.check_output(name)
        return self.decide_encode(video, name, settings)

    def decide_encode(self, video: str | os.PathLike, path: str | None, settings: EncodeSettings) -> PreparedEncode:
        """Decide an encode, as `prepare_encode`, or only plan it if there is no path."""
        has_latents = is_latent_file(expand_path(video, ReaderError))
        running = ("encoder", "decoder") if has_latents else ("encoder",)
        make_plan = partial(self._plan_encode, pad=settings.pad, running=running)
        pipeline = EncodePipeline(
            self._network("encoder"), self._encoder_is_promoted, make_plan, PLAN_DEFAULTS, settings.pad
        )
        open_latents = partial(self._open_video_of_latents, video) if has_latents else None
        return PreparedEncode(pipeline, self.source, self.latent_space, video, path, settings, open_latents)

    def _open_video_of_latents(
        self, path: str | os.PathLike, *, frames: slice | None, memory_budget: str | int | None
    ) -> LatentVideo:
        """Open a latent file as the video of an encode."""
        decoder, name = self._network("decoder"), expand_path(path, ReaderError)
        available = self._machine(decoder.dtype).available or 0
        budget = None if memory_budget is None else parse_bytes(memory_budget, available)
        pipeline = self._pipeline(DECODE_DEFAULTS, PLAN_DEFAULTS)
        return LatentVideo(pipeline, self.reader(), name, frames=frames, memory_budget=budget)

    def _encode_options(self, options: EncodeKeywords) -> PlanOptions:
        tiling = options.get("tiling")
        return PlanOptions(
            memory_budget=options.get("memory_budget"),
            mode="tiled" if tiling else "auto",
            tiling=tiling,
            tile_batch_size=options.get("tile_batch_size", 1),
        )

    def _encode_pipeline(self, options: EncodeKeywords, *, joined: bool = False) -> EncodePipeline:
        check_names("an encode", options, EncodeKeywords)
        plan_options = replace(self._encode_options(options), joined=joined)
        make_plan, pad = self._plan_encode, options.get("pad", False)
        return EncodePipeline(self._network("encoder"), self._encoder_is_promoted, make_plan, plan_options, pad)


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
    _stills: tuple[Config, NetworkSpec] | None = None  # of the decoder of one picture for each latent frame

    @classmethod
    def from_pretrained(
        cls,
        source: str | os.PathLike | Checkpoint,
        *,
        dtype: GivenDtype = None,
        encoder: bool = True,
        decoder: bool = True,
    ) -> "Self":
        """Open a tiny autoencoder or a projection, as `VideoVAE.from_pretrained`. Warns for another VAE."""
        checkpoint, _ = cls._open(source, dtype, PICTURES, encoder=encoder, decoder=decoder)
        if decoder and checkpoint.statistics is not None:
            warn(f"{checkpoint.name}: {describe_whole_vae(checkpoint.config)}.")
        vae = super().from_pretrained(checkpoint, dtype=dtype, encoder=encoder, decoder=decoder)
        vae.source = replace(vae.source, kind=Kind.PREVIEW)
        if (stills := checkpoint.family.stills) is not None:
            config = stills(checkpoint.config)
            vae._stills = config, checkpoint.family.spec(config, "decoder")
        return vae

    def for_stills(self, *, small: bool = False) -> VideoVAE:
        """Return the VAE of one picture for each latent frame, as `decode_stills` makes them.

        Returns this one if its decoder makes none.
        """
        handle, config = self._network("decoder"), self.config
        stills: Decoder | NetworkHandle[Decoder] | None = None
        if self._stills is not None and not small and not handle.is_loaded:
            config, spec = self._stills
            stills = NetworkHandle(NetworkHeader(spec, handle.dtype, None), lambda: handle.get().stills())
        elif handle.spec.scale.time == 1:
            stills = handle
        elif self.mean is None:
            stills = handle.get().stills(small=small)
        if stills is None:
            return self
        vae = VideoVAE(config, None, stills)
        vae.source = self.source
        return vae

    @staticmethod
    def can_load(path: str | os.PathLike) -> bool:
        """Return whether a file or folder has a decoder of previews, by its headers alone."""
        if is_on_hub(os.fspath(path)):  # finding out would need a download
            return False
        try:
            with telling_warnings(lambda text: None):
                checkpoint = open_checkpoint(path, encoder=False)
                return checkpoint.family.stills is not None or checkpoint.spec("decoder").scale.time == 1
        except (LTXVAEError, OSError):
            return False

    def push(self, latents: mx.array | np.ndarray) -> mx.array | None:
        """Decode the next latents (B, C, n, H', W') of the clip to the frames (B, 3, n', H, W) that are final.

        Returns `None` if there are none yet, which only happens with decoders that are not causal. After an error, the
        next latents belong to another clip. Raises the errors of `stream`.
        """
        pushed, self._pushed = self._pushed, None
        if pushed is None:
            pushed = PushedDecode(self.spec("decoder"), self.stream)
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
        vae = self.for_stills(small=small)
        if vae is self:
            raise CheckpointError(
                f"this decoder ({self.config.generation}) makes no stills; load a tiny autoencoder: "
                f"{list_names([Kind.PREVIEW])}."
            )
        return vae.decode(latents, **options)


def describe_whole_vae(config: Config) -> str:
    """Describe a VAE that is no preview decoder, for a warning."""
    remark = f"is a whole VAE ({config.generation}), whose previews take as long as decodes"
    return f"{remark}; use a tiny autoencoder ({list_names([Kind.PREVIEW])}) or a projection"


def _split_keywords(keywords: DecodeKeywords) -> tuple[DecodeOptions, PlanOptions]:
    """Return the options of a decode and of its plan; raise a `TypeError` for others."""
    check_names("a decode", keywords, DecodeKeywords)
    if (keyframes := keywords.get("keyframes")) is not None:
        check_keyframes(keyframes)
    decode_names, values = {option.name for option in fields(DecodeOptions)}, cast(dict[str, Any], keywords)
    options = DecodeOptions(**{name: value for name, value in values.items() if name in decode_names})
    return options, PlanOptions(**{name: value for name, value in values.items() if name not in decode_names})
