"""`AudioVAE`, the class of the public API for audio."""

import math
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import accumulate, chain, islice
from operator import attrgetter
from typing import TYPE_CHECKING, cast

import mlx.core as mx
import numpy as np

from .backend.device import explained_device_errors
from .backend.mlx_utils import DTYPES, GivenDtype, parse_dtype
from .checkpoint import Arrays, Checkpoint, GivenConfig, VAESource, open_weights
from .checkpoint.loading import NetworkHandle
from .checkpoint.locate import is_on_hub
from .errors import CheckpointError, LatentsError, PlanError
from .networks.base import AUDIO, AudioConfig, AudioEncoder, Decoder, Network
from .opened_vae import OpenedVAE, described_network
from .options import PLAN_DEFAULTS, ModeName, PlanOptions
from .pipeline.audio import (
    AudioNetwork,
    AudioStream,
    encode_audio,
    every_chunk,
    join_audio,
    join_specs,
    pack_latents,
    stream_audio,
    unpack_latents,
)
from .pipeline.execution import arrays_released, join_parts
from .planning.film import DEFAULT_CARRY, FilmPart, audio_parts
from .planning.plan import DecodePlan, EncodePlan, Plan, check_plan
from .published import PublishedVAE
from .shapes import is_count
from .units import Rate, parse_fps
from .video.audio import SAMPLE_RATES

_PIECE = 2**15  # samples that are encoded at a time
_LONG = 60  # seconds; the memory of longer encodes grows only by their latents

if TYPE_CHECKING:
    from typing_extensions import Self


class AudioVAE(OpenedVAE[AudioConfig]):
    """LTX audio VAE and its vocoder, which decode audio latents to audio and encode audio, exactly and in flat memory.

    `encoder`, `decoder` or `vocoder` is `None` if the checkpoint has none. `sample_rate` is the rate of decoded audio.

    ```python
    audio_vae = AudioVAE.from_pretrained("ltx-2.5-audio-vae-bf16.safetensors")
    for chunk in audio_vae.stream(latents):
        play(chunk.waveform)
    ```
    """

    _NAMES = ("decoder", "vocoder", "encoder")
    _MEDIUM = AUDIO

    def __init__(
        self,
        config: AudioConfig,
        encoder: AudioEncoder | NetworkHandle[AudioEncoder] | None,
        decoder: Decoder | NetworkHandle[Decoder] | None,
        vocoder: Network | NetworkHandle[Network] | None,
    ) -> None:
        super().__init__(config, {"encoder": encoder, "decoder": decoder, "vocoder": vocoder})
        self.sample_rate = config.sample_rate

    @property
    def encoder(self) -> AudioEncoder | None:
        """Encoder with its weights, or `None`."""
        return self._get("encoder")

    @property
    def vocoder(self) -> Network | None:
        """Vocoder with its weights, or `None`."""
        return self._get("vocoder")

    @classmethod
    def from_pretrained(
        cls,
        source: str | os.PathLike | Checkpoint,
        *,
        dtype: GivenDtype = None,
        encoder: bool = True,
        decoder: bool = True,
    ) -> "Self":
        """Open an audio VAE and its vocoder: read headers and statistics. Weights are read at their first use.

        Args:
            source: a name such as "ltx-2.3", a file in any supported layout (only the tensors of audio are read, even
                from a 40 GB file), a folder, a hub repository id, or a checkpoint that was opened for audio.
            dtype: dtype of the VAE. `None` means the dtype of the checkpoint. The vocoder computes in float32.
            encoder, decoder: whether to open it. The vocoder is opened with the decoder.

        Raises:
            CheckpointError: if the source cannot be read, is no audio VAE, is incomplete, or is not supported.
        """
        source, dtype = cls._open(source, dtype, AUDIO, encoder=encoder, decoder=decoder)
        dtypes = {name: source.cast_dtype(name, dtype) for name in ("encoder", "decoder")} | {"vocoder": mx.float32}
        requested = [name for name, is_requested in (("encoder", encoder), ("decoder", decoder)) if is_requested]
        if source.networks.keys().isdisjoint(requested):
            networks = " and no ".join(requested)
            raise CheckpointError(f"{source.name}: it has no {networks} of audio; give a file or folder that has one.")
        vae = cls(
            cast(AudioConfig, source.config),
            NetworkHandle[AudioEncoder].open(source, "encoder", dtypes["encoder"]) if encoder else None,
            NetworkHandle[Decoder].open(source, "decoder", dtypes["decoder"]) if decoder else None,
            NetworkHandle[Network].open(source, "vocoder", dtypes["vocoder"]) if decoder else None,
        )
        return vae._note_source(source.source, encoder=encoder, decoder=decoder, vocoder=decoder)

    @classmethod
    def published(cls, generation: str, *, dtype: GivenDtype = None) -> "Self":
        """Return the audio VAE of a published video VAE without its files: it plans, and its weights are an error.

        Raises:
            PlanError: if none is published.
        """
        published, requested = PublishedVAE.find_audio(generation), parse_dtype(dtype)
        stored = DTYPES[requested or published.family.published_dtype]
        vae = cls(
            cast(AudioConfig, published.config),
            described_network(published, "encoder", stored),
            described_network(published, "decoder", stored),
            described_network(published, "vocoder", mx.float32),
        )
        return vae._note_source(VAESource(published.name))

    def count_latents(self, seconds: Fraction) -> int:
        """Return the number of latents along time of audio of this length, at least one."""
        return max(1, round(seconds * Fraction(self.config.latents_per_second)))

    @staticmethod
    def can_load(path: str | os.PathLike) -> bool:
        """Return whether a file or folder has an audio VAE and a vocoder, by its headers alone."""
        return find_audio_decoder(None, os.fspath(path)) is not None

    @classmethod
    def from_weights(cls, weights: Arrays, config: GivenConfig = None, *, dtype: GivenDtype = None) -> "Self":
        """Load from arrays in memory, by the names of any supported file, with the checks of `from_pretrained`."""
        return cls.from_pretrained(open_weights(weights, config, medium=AUDIO), dtype=dtype)

    def plan(
        self,
        latents: int,
        *,
        batch: int = 1,
        memory_budget: str | int | None = None,
        mode: ModeName = "auto",
        chunk: int | None = None,
        samples: tuple[int, int] | None = None,
        joined: bool = False,
    ) -> DecodePlan:
        """Plan the decode of this many latents along time (25 per second). Pure arithmetic; nothing is decoded.

        Args:
            memory_budget, joined: as for `VideoVAE.plan`.
            mode: "auto", "exact" (streamed) or "single" (one pass, as networks with attention need).
            chunk: latents per piece. `None` chooses automatically.
            samples: the first sample to decode, counted in the complete audio, and one more than the last.
                `None` means all samples.

        Raises:
            PlanError: if the options are invalid, or if no plan fits the budget.
        """
        options = PlanOptions(memory_budget=memory_budget, mode=mode, chunk=chunk, frames=samples, joined=joined)
        return self.plan_with(latents, options, batch)

    def plans(self, latents: int) -> list[Plan]:
        """Plan the decode with each possible chunk, the fastest first, for `VideoVAE.plan(audio=...)`."""
        return every_chunk(partial(self.plan_with, latents))

    def plan_with(self, latents: int, options: PlanOptions, batch: int = 1) -> DecodePlan:
        """Plan the decode of this many latents with these options, as `plan`."""
        spec = join_specs(self.spec("decoder"), self.spec("vocoder"))
        if not (is_count(latents, 1) and is_count(batch, 1)):
            raise LatentsError(
                f"{batch!r} x {latents!r} audio latents cannot be decoded; give whole numbers from 1 on."
            )
        shape = (batch, spec.in_channels, latents, 1, 1)
        return self._plan_decode(spec, mx.float32, shape, options, "decoder", "vocoder")

    def stream(
        self, latents: mx.array | np.ndarray, plan: DecodePlan | None = None, *, unnormalized: bool = False
    ) -> AudioStream:
        """Yield the waveform as it is decoded: chunks with `start` and `waveform` (B, 2, n) float32, in order.

        Closing or cancelling the stream frees its memory.

        Args:
            latents: (B, 8, T, 16), or packed (B, T, 128).
            plan: from `plan`. `None` means the default.
            unnormalized: True if the latents are `latents * std + mean`, as diffusers' LTX-2 pipelines return them.

        Raises:
            LatentsError: at once, if the network cannot take the latents.
            PlanError: at once, if the plan was made for other latents.
            DecodeError: while decoding, if samples are not finite.
        """
        return self._stream(latents, plan, unnormalized)

    def stream_joined(
        self,
        windows: Iterable[mx.array | np.ndarray],
        frames: Iterable[int],
        *,
        fps: Rate,
        carry: int = DEFAULT_CARRY,
        unnormalized: bool = False,
    ) -> AudioStream:
        """Yield the audio of a film from the audio latents of its windows, see `VideoVAE.stream_joined`.

        The tails of windows are aligned, and a window fades in with equal power over the 40 ms before the samples that
        it adds. These are counted from the start of the film, so that audio and picture do not drift.

        Args:
            windows: audio latents as for `stream`; an iterator may still be generated.
            frames: the number of video frames of each window.
            fps: frames per second of the video.
            carry: the number of frames that windows share.
        """
        pending: deque[mx.array | np.ndarray] = deque()
        rate, config = self.sample_rate, self.config

        def lengths() -> Iterator[int]:
            for latents in windows:
                pending.append(latents)
                yield config.num_samples(pack_latents(latents, config.channels, config.bins).shape[2])

        def decode(latents: mx.array | np.ndarray, samples: tuple[int, int]) -> AudioStream:
            return self._stream(latents, None, unnormalized, PlanOptions(frames=samples))

        ends = accumulate(frames, lambda end, count: end + count - carry)
        parts: Iterable[FilmPart] = audio_parts(ends, lengths(), rate, parse_fps(fps))
        num_samples = None
        if isinstance(windows, Sequence):
            parts = list(parts)
            num_samples = parts[-1].frames.end if parts else 0
        return join_audio(((part, partial(decode, pending.popleft())) for part in parts), rate, num_samples=num_samples)

    def decode(
        self,
        latents: mx.array | np.ndarray,
        plan: DecodePlan | None = None,
        *,
        unnormalized: bool = False,
        memory_budget: str | int | None = None,
    ) -> mx.array:
        """Decode latents to one waveform (B, 2, samples) float32 in [-1, 1]; see `stream` for arguments and errors."""
        if memory_budget is not None and plan is not None:
            raise PlanError("a memory budget replaces a plan; leave one of them out.")
        options = PlanOptions(memory_budget=memory_budget, joined=True)
        with arrays_released(), self._stream(latents, plan, unnormalized, options) as stream:
            return join_parts(map(attrgetter("waveform"), stream), 2, stream.num_samples)

    def _stream(
        self,
        latents: mx.array | np.ndarray,
        plan: DecodePlan | None,
        unnormalized: bool,
        options: PlanOptions = PLAN_DEFAULTS,
    ) -> AudioStream:
        if plan is not None:
            check_plan(plan, DecodePlan)
        decoder, vocoder = self._network("decoder"), self._network("vocoder")
        packed = pack_latents(latents, self.config.channels, self.config.bins)
        plan = plan or self.plan_with(packed.shape[2], options, packed.shape[0])
        return stream_audio(AudioNetwork(decoder.get(), vocoder.get()), plan, packed, unnormalized=unnormalized)

    def encode(
        self,
        waveform: mx.array | np.ndarray | Iterable[mx.array | np.ndarray],
        sample_rate: int,
        plan: EncodePlan | None = None,
    ) -> mx.array:
        """Encode audio to normalized latents (B, 8, T, 16): the mean of the distribution, without sampling.

        Args:
            waveform: (B, 2, samples) or (2, samples) in [-1, 1], or (B, 1, samples) or (1, samples) for mono. Or an
                iterator of such pieces of one waveform, held one at a time.
            sample_rate: samples per second, 1000 to 768000.
            plan: from `plan_encode`, for the same batch. `None` means the default.

        Raises:
            LatentsError: for audio that it cannot take.
            PlanError: if the plan was made for another batch.
        """
        encoder = self._network("encoder")
        if not is_count(sample_rate) or sample_rate not in SAMPLE_RATES:
            limits = f"a whole number from {SAMPLE_RATES[0]} to {SAMPLE_RATES[-1]} a second"
            raise LatentsError(f"a sample rate of {sample_rate!r} is not possible; give {limits}.")
        if plan is not None:
            check_plan(plan, EncodePlan)
        first_pieces = list(islice(pieces := _read_pieces(waveform), 1))
        batch = len(first_pieces[0]) if first_pieces else 1
        length = waveform.shape[-1] if isinstance(waveform, (mx.array, np.ndarray)) else _LONG * sample_rate
        plan = plan or self.plan_encode(max(1, length) / sample_rate, batch=batch)
        if plan.batch != batch:
            raise PlanError(f"the plan was made for {plan.batch} clips of audio encoded at once; these are {batch}.")
        with arrays_released(), explained_device_errors():
            latents = encode_audio(encoder.get(), plan, chain(first_pieces, pieces), sample_rate)
            latents = unpack_latents(latents, self.config.channels, self.config.bins)
            mx.eval(latents)  # so that another thread can use them
        return latents

    def plan_encode(self, seconds: float, *, batch: int = 1, memory_budget: str | int | None = None) -> EncodePlan:
        """Plan the encode of this many seconds of audio. Pure arithmetic; a `LatentsError` if there are none.

        `memory_budget` and its error are as in `VideoVAE.plan`.
        """
        return self.plan_encode_with(seconds, PlanOptions(memory_budget=memory_budget), batch)

    def plan_encode_with(self, seconds: float, options: PlanOptions, batch: int = 1) -> EncodePlan:
        """Plan the encode of this many seconds of audio to one array with these options, as `plan_encode`."""
        spec = self.spec("encoder")
        if not 0 < seconds < math.inf or batch < 1:
            raise LatentsError(f"{batch} x {seconds} seconds of audio cannot be encoded; there must be some.")
        rules, scale = spec.clip, spec.scale.time
        frames = scale * math.ceil(seconds * rules.sample_rate / rules.hop / scale)
        return self._plan_encode((batch, spec.in_channels, frames, rules.bins, 1), replace(options, joined=True))


def check_decodes_audio(vae: AudioVAE) -> None:
    """Raise a `CheckpointError` unless an audio VAE has its decoder and its vocoder."""
    if missing := " and no ".join(sorted({"decoder", "vocoder"} - vae._networks.keys())):
        raise CheckpointError(f"{vae.source.name}: has no {missing}; give a file or folder with audio VAE and vocoder.")


def find_audio_decoder(model: str | None, vae: str | None, dtype: GivenDtype = None) -> AudioVAE | None:
    """Open an audio VAE and its vocoder: of `model`, or without it of the pictures' checkpoint `vae`.

    Returns `None` if `vae` has no such networks. Raises a `CheckpointError` if `model` cannot be opened or lacks one.
    """
    # The checkpoint of the pictures may be on the hub, and finding out would need a download.
    if model is None and (vae is None or is_on_hub(vae)):
        return None
    try:
        audio_vae = AudioVAE.from_pretrained(model or vae or "", dtype=dtype, encoder=False)
        check_decodes_audio(audio_vae)
    except CheckpointError:
        if model is not None:
            raise
        return None
    return audio_vae


def _read_pieces(waveform: object) -> Iterator[np.ndarray]:
    """Yield waveforms (B, 2, n), float32 and finite, from the forms that `encode` takes."""
    if not isinstance(waveform, (mx.array, np.ndarray, Iterable)) or isinstance(waveform, (str, bytes)):
        raise LatentsError(f"audio is {type(waveform).__name__}; expected an array (B, 2, samples), or an iterator.")
    first_shape: tuple[int, ...] | None = None
    for piece in [waveform] if isinstance(waveform, (mx.array, np.ndarray)) else waveform:
        samples = _as_samples(piece)
        first_shape = first_shape or samples.shape
        if samples.shape[:2] != first_shape[:2]:
            raise LatentsError(f"a piece of the audio has the shape {samples.shape}, and the first one {first_shape}.")
        for start in range(0, samples.shape[2], _PIECE):
            part = samples[:, :, start : start + _PIECE]
            if not np.isfinite(part).all():
                raise LatentsError("the audio has values that are NaN or infinite.")
            yield np.repeat(part, 2, axis=1) if part.shape[1] == 1 else part


def _as_samples(piece: object) -> np.ndarray:
    """Convert a waveform to (B, 1 or 2, n) float32."""
    if not isinstance(piece, (mx.array, np.ndarray)):
        raise LatentsError(f"a piece of the audio is {type(piece).__name__}; expected an array (B, 2, samples).")
    is_float = mx.issubdtype(piece.dtype, mx.floating) if isinstance(piece, mx.array) else piece.dtype.kind == "f"
    if not is_float:
        raise LatentsError(
            f"the audio is {piece.dtype}; expected floating-point values in [-1, 1], so divide samples of 16 bits by "
            "32768."
        )
    samples = np.asarray(piece.astype(mx.float32) if isinstance(piece, mx.array) else piece, np.float32)
    samples = samples[None] if samples.ndim == 2 else samples
    if samples.ndim != 3 or samples.shape[1] not in (1, 2) or 0 in samples.shape[:2]:
        raise LatentsError(f"the audio has the shape {tuple(piece.shape)}; expected (B, 2, samples).")
    return samples
