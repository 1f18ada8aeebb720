"""`AudioVAE`, the class of the public API for sound."""

import math
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, chain, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

import mlx.core as mx
import numpy as np

from .backend.device import explained_device_errors
from .backend.machine import Machine
from .backend.mlx_utils import DtypeName, GivenDtype
from .checkpoint import Arrays, Checkpoint, GivenConfig, open_checkpoint, open_weights
from .checkpoint.loading import LazyNetwork, load_network
from .checkpoint.locate import is_on_hub
from .errors import CheckpointError, LatentsError, PlanError
from .models.base import SOUND, Decoder, Network, SoundConfig, SoundEncoder
from .models.specs import NetworkSpec
from .options import PLAN_DEFAULTS, ModeName, PlanOptions
from .pipeline.audio import (
    AudioStream,
    SoundNetwork,
    encode_sound,
    every_chunk,
    join_sound,
    pack_latents,
    plan_networks,
    plan_sound,
    stream_sound,
    unpack_latents,
)
from .pipeline.run import arrays_released, join_parts
from .planning.film import DEFAULT_CARRY, Part, sound_parts
from .planning.plan import DecodePlan, EncodePlan, Plan, check_plan
from .planning.planner import plan_encode
from .shapes import is_count
from .units import Rate, parse_fps
from .vae import NetworkPair, load_encoder
from .video.sound_files import SAMPLE_RATES

_PIECE = 2**15  # samples that are encoded at a time
_LONG = 60  # seconds; the memory of longer encodes grows only by their latents

if TYPE_CHECKING:
    from typing_extensions import Self


class AudioVAE(NetworkPair[SoundConfig, SoundEncoder]):
    """LTX audio VAE and its vocoder, which decode audio latents to sound and encode sound, exactly and in flat memory.

    `encoder`, `decoder` or `vocoder` is `None` if the checkpoint has none. `sample_rate` is the rate of decoded sound.

    ```python
    audio_vae = AudioVAE.from_pretrained("ltx-2.5-audio-vae-bf16.safetensors")
    for chunk in audio_vae.stream(latents):
        play(chunk.waveform)
    ```
    """

    _NAMES = ("decoder", "vocoder", "encoder")

    def __init__(
        self,
        config: SoundConfig,
        encoder: SoundEncoder | LazyNetwork[SoundEncoder] | None,
        decoder: Decoder | None,
        vocoder: Network | None,
    ) -> None:
        super().__init__(config, encoder, decoder)
        self.vocoder, self.sample_rate = vocoder, config.sample_rate

    @classmethod
    def from_pretrained(
        cls,
        source: str | os.PathLike | Checkpoint,
        *,
        dtype: GivenDtype = None,
        encoder: bool = True,
        decoder: bool = True,
    ) -> "Self":
        """Load an audio VAE and its vocoder.

        Args:
            source: a name such as "ltx-2.3", a file in any supported layout (only the tensors of sound are read, even
                from a 40 GB file), a folder, a hub repository id, or a checkpoint that was opened for sound.
            dtype: dtype of the VAE. `None` means the dtype of the checkpoint. The vocoder computes in float32.
            encoder, decoder: whether to load it. The vocoder is loaded with the decoder.

        Raises:
            CheckpointError: if the source cannot be read, is no audio VAE, is incomplete, or is not supported.
        """
        source, dtype = cls._open(source, dtype, SOUND, encoder=encoder, decoder=decoder)
        dtypes = {name: source.cast_dtype(name, dtype) for name in ("encoder", "decoder")} | {"vocoder": mx.float32}
        networks = {name: load_network(source, name, dtypes[name]) for name in ("decoder", "vocoder") if decoder}
        is_alone = all(network is None for network in networks.values())
        vae = cls(
            cast(SoundConfig, source.config),
            cast(Any, load_encoder(source, dtypes["encoder"], is_alone=is_alone)) if encoder else None,
            cast("Decoder | None", networks.get("decoder")),
            networks.get("vocoder"),
        )
        return vae._note_checkpoint(source, encoder=encoder, decoder=decoder, vocoder=decoder)

    @staticmethod
    def can_load(path: str | os.PathLike) -> bool:
        """Return whether a file or folder has an audio VAE and a vocoder, by its headers alone."""
        return find_sound_decoder(None, os.fspath(path)) is not None

    @classmethod
    def from_weights(cls, weights: Arrays, config: GivenConfig = None, *, dtype: GivenDtype = None) -> "Self":
        """Load from arrays in memory, by the names of any supported file, with the checks of `from_pretrained`."""
        return cls.from_pretrained(open_weights(weights, config, medium=SOUND), dtype=dtype)

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
            samples: the first sample to decode, counted in the complete sound, and one more than the last.
                `None` means all samples.

        Raises:
            PlanError: if the options are invalid, or if no plan fits the budget.
        """
        options = PlanOptions(
            memory_budget=memory_budget,
            mode=mode,
            chunk=chunk,
            frames=samples,
            joined=joined,
        )
        return self._plan(latents, batch, options)

    def plans(self, latents: int) -> list[Plan]:
        """Plan the decode with each possible chunk, the fastest first, for `VideoVAE.plan(sound=...)`."""
        return every_chunk(partial(self._plan, latents, 1))

    def _plan(self, latents: int, batch: int, options: PlanOptions) -> DecodePlan:
        options = replace(options, weight_bytes=self._weight_bytes())
        return plan_sound(self._network.spec, latents, self._machine(mx.float32), options, batch=batch)

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
        """Yield the sound of a film from the audio latents of its windows, see `VideoVAE.stream_joined`.

        The tails of windows are aligned, and a window fades in with equal power over the 40 ms before the samples that
        it adds. These are counted from the start of the film, so that sound and picture do not drift.

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
        parts: Iterable[Part] = sound_parts(ends, lengths(), rate, parse_fps(fps))
        num_samples = None
        if isinstance(windows, Sequence):
            parts = list(parts)
            num_samples = parts[-1].frames.end if parts else 0
        return join_sound(((part, partial(decode, pending.popleft())) for part in parts), rate, num_samples=num_samples)

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
        network, packed = self._network, pack_latents(latents, self.config.channels, self.config.bins)
        plan = plan or self._plan(packed.shape[2], packed.shape[0], options)
        return stream_sound(network, plan, packed, unnormalized=unnormalized)

    def encode(
        self,
        waveform: mx.array | np.ndarray | Iterable[mx.array | np.ndarray],
        sample_rate: int,
        plan: EncodePlan | None = None,
    ) -> mx.array:
        """Encode sound to normalized latents (B, 8, T, 16): the mean of the distribution, without sampling.

        Args:
            waveform: (B, 2, samples) or (2, samples) in [-1, 1], or (B, 1, samples) or (1, samples) for mono. Or an
                iterator of such pieces of one waveform, held one at a time.
            sample_rate: samples per second, 1000 to 768000.
            plan: from `plan_encode`, for the same batch. `None` means the default.

        Raises:
            LatentsError: for sound that it cannot take.
            PlanError: if the plan was made for another batch.
        """
        encoder = self._encoder
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
            raise PlanError(f"the plan was made for {plan.batch} sounds encoded at once; these are {batch}.")
        with arrays_released(), explained_device_errors():
            latents = encode_sound(encoder, plan, chain(first_pieces, pieces), sample_rate)
            latents = unpack_latents(latents, self.config.channels, self.config.bins)
            mx.eval(latents)  # so that another thread can use them
        return latents

    def plan_encode(self, seconds: float, *, batch: int = 1, memory_budget: str | int | None = None) -> EncodePlan:
        """Plan the encode of this many seconds of sound. Pure arithmetic; a `LatentsError` if there are none.

        `memory_budget` and its error are as in `VideoVAE.plan`.
        """
        encoder = self._encoder_for_plans
        options = PlanOptions(memory_budget=memory_budget, weight_bytes=self._weight_bytes(encoder))
        return plan_sound_encode(encoder.spec, seconds, self._machine(encoder.dtype), options, batch=batch)

    @property
    def _network(self) -> SoundNetwork:
        decoder = self._decoder
        if self.vocoder is None:
            raise self._missing_error("vocoder")
        return SoundNetwork(decoder, self.vocoder)


def find_sound_decoder(model: str | None, vae: str | None) -> Checkpoint | None:
    """Open the checkpoint of an audio VAE and its vocoder: `model`, or without it the pictures' checkpoint `vae`.

    Returns `None` if `vae` has no such networks. Raises a `CheckpointError` if `model` cannot be opened or lacks one.
    """
    # The checkpoint of the pictures may be on the hub, and finding out would need a download.
    if model is None and (vae is None or is_on_hub(vae)):
        return None
    try:
        checkpoint = open_checkpoint(model or vae or "", encoder=False, medium=SOUND)
        if missing := " and no ".join(sorted({"decoder", "vocoder"} - checkpoint.networks.keys())):
            raise CheckpointError(
                f"{checkpoint.name}: has no {missing}; give a file or folder with audio VAE and vocoder."
            )
    except CheckpointError:
        if model is not None:
            raise
        return None
    return checkpoint


def plan_sound_encode(
    spec: NetworkSpec,
    seconds: float,
    machine: Machine,
    options: PlanOptions = PLAN_DEFAULTS,
    *,
    batch: int = 1,
) -> EncodePlan:
    """Plan the encode of this many seconds of sound to one array."""
    rules = spec.clip
    if not 0 < seconds < math.inf or batch < 1:
        raise LatentsError(f"{batch} x {seconds} seconds of sound cannot be encoded; there must be some.")
    frames = spec.scale.time * math.ceil(seconds * rules.sample_rate / rules.hop / spec.scale.time)
    shape = (batch, spec.in_channels, frames, rules.bins, 1)
    return plan_encode(spec, shape, machine, replace(options, joined=True))


def plan_checkpoint(
    checkpoint: Checkpoint,
    latents: int,
    machine: Machine | None = None,
    dtype: DtypeName | None = None,
    options: PlanOptions = PLAN_DEFAULTS,
) -> DecodePlan:
    """Plan a decode by networks that are not loaded."""
    decoder, vocoder = (checkpoint.spec(name) for name in ("decoder", "vocoder"))
    dtype = dtype or cast(DtypeName, checkpoint.networks["decoder"].dtype)
    return plan_networks(decoder, vocoder, latents, machine, dtype, options)


def _read_pieces(waveform: object) -> Iterator[np.ndarray]:
    """Yield waveforms (B, 2, n), float32 and finite, from the forms that `encode` takes."""
    if not isinstance(waveform, (mx.array, np.ndarray, Iterable)) or isinstance(waveform, (str, bytes)):
        raise LatentsError(f"sound is {type(waveform).__name__}; expected an array (B, 2, samples), or an iterator.")
    first_shape: tuple[int, ...] | None = None
    for piece in [waveform] if isinstance(waveform, (mx.array, np.ndarray)) else waveform:
        samples = _as_samples(piece)
        first_shape = first_shape or samples.shape
        if samples.shape[:2] != first_shape[:2]:
            raise LatentsError(f"a piece of the sound has the shape {samples.shape}, and the first one {first_shape}.")
        for start in range(0, samples.shape[2], _PIECE):
            part = samples[:, :, start : start + _PIECE]
            if not np.isfinite(part).all():
                raise LatentsError("the sound has values that are NaN or infinite.")
            yield np.repeat(part, 2, axis=1) if part.shape[1] == 1 else part


def _as_samples(piece: object) -> np.ndarray:
    """Convert a waveform to (B, 1 or 2, n) float32."""
    if not isinstance(piece, (mx.array, np.ndarray)):
        raise LatentsError(f"a piece of the sound is {type(piece).__name__}; expected an array (B, 2, samples).")
    is_float = mx.issubdtype(piece.dtype, mx.floating) if isinstance(piece, mx.array) else piece.dtype.kind == "f"
    if not is_float:
        raise LatentsError(
            f"the sound is {piece.dtype}; expected floating-point values in [-1, 1], so divide samples of 16 bits by "
            "32768."
        )
    samples = np.asarray(piece.astype(mx.float32) if isinstance(piece, mx.array) else piece, np.float32)
    samples = samples[None] if samples.ndim == 2 else samples
    if samples.ndim != 3 or samples.shape[1] not in (1, 2) or 0 in samples.shape[:2]:
        raise LatentsError(f"the sound has the shape {tuple(piece.shape)}; expected (B, 2, samples).")
    return samples
