"""Plans and runs of audio: packed latents in, final samples out; and pieces of audio in, packed latents out."""

import math
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np

from ..backend.device import check_process, confirm_device
from ..backend.mlx_utils import count_nonfinite, to_mlx
from ..errors import DecodeError, LatentsError, PlanError
from ..networks.base import AudioEncoder, Decoder, Network
from ..networks.noise import LatentNoise, draw
from ..networks.specs import NetworkSpec
from ..options import PLAN_DEFAULTS, PlanOptions
from ..planning.film import FilmPart, fade_length
from ..planning.plan import DecodePlan, EncodePlan, Mode, Plan
from ..shapes import Interval
from ..streaming.context import Stage, StreamContext
from .encode import encoded
from .execution import ChunkStream, Execution, ExecutionState, join_parts, peek
from .film import Crossfade, count_from_film
from .sources import LatentRecord, Source, check_finite, latent_source, preprocess_latents


@dataclass(frozen=True)
class AudioChunk:
    """Samples of all batch items, (B, 2, n) float32 in [-1, 1]. The first is sample `start` of the audio."""

    start: int
    waveform: mx.array

    def __repr__(self) -> str:
        return f"AudioChunk(samples {self.start} to {self.start + self.waveform.shape[-1] - 1})"


class AudioStream(ChunkStream[AudioChunk]):
    """Chunks of one decode of audio, in order. `sample_rate` is theirs; `num_samples` is their total, if known."""

    def __init__(
        self,
        chunks: Generator[AudioChunk, None, None],
        state: ExecutionState,
        sample_rate: int,
        num_samples: int | None,
    ) -> None:
        super().__init__(chunks, state)
        self.sample_rate, self.num_samples = sample_rate, num_samples


class AudioNetwork(Decoder):
    """Audio decoder and its vocoder as one `Decoder`, of packed latents (B, C, T, 1, 1) to (B, T', 1, 1, 2)."""

    dtype = mx.float32  # of the vocoder

    def __init__(self, decoder: Decoder, vocoder: Network) -> None:
        super().__init__(join_specs(decoder.spec, vocoder.spec), decoder.statistics)
        self.decoder, self.vocoder = decoder, vocoder

    def prepare(self, latents: mx.array, noise: LatentNoise | None) -> mx.array:
        return self.decoder.prepare(latents, noise)

    def stages(self, context: StreamContext) -> list[Stage]:
        return [*self.decoder.stages(context), *self.vocoder.stages(context)]


def join_specs(decoder: NetworkSpec, vocoder: NetworkSpec) -> NetworkSpec:
    """Return the spec of an `AudioNetwork`."""
    return replace(decoder, layers=decoder.layers + vocoder.layers)


def every_chunk(make_plan: Callable[[PlanOptions], Plan]) -> list[Plan]:
    """Plan audio with all possible chunks, the fastest first."""
    plan = make_plan(PLAN_DEFAULTS)
    if plan.mode is not Mode.EXACT:
        return [plan]
    return [make_plan(PlanOptions(chunk=chunk)) for chunk in plan.clip.chunks]


def stream_audio(network: Decoder, plan: DecodePlan, latents: mx.array, *, unnormalized: bool) -> AudioStream:
    """Decode packed latents (B, C, T, 1, 1) lazily. Raises a `PlanError` if the plan was made for others."""
    check_process()
    if plan.whole_shape != latents.shape:
        (batch, _, length, *_), (latents_batch, _, latents_length, *_) = plan.whole_shape, latents.shape
        raise PlanError(
            f"the plan was made for {batch} x {length} audio latents; these are {latents_batch} x {latents_length}."
        )
    no_noise = draw(network.spec, plan.whole_shape, network.dtype)
    preprocess = preprocess_latents(network, no_noise, LatentRecord(), unnormalized=unnormalized)
    source = latent_source(latents, preprocess, frames=plan.excerpt.latents if plan.excerpt else None)
    run = Execution(network, plan, source)
    return AudioStream(_chunks(run, plan), run.state, plan.sample_rate, plan.num_samples)


def _chunks(run: Execution, plan: DecodePlan) -> Generator[AudioChunk, None, None]:
    """Yield every sample once, in order."""
    first = done = plan.excerpt.frames.start if plan.excerpt else 0

    def chunk(frames: mx.array) -> AudioChunk:
        nonlocal done
        samples = frames[:, :, 0, 0].transpose(0, 2, 1)
        start, done = done, done + samples.shape[2]
        mx.eval(samples)
        if bad := count_nonfinite(samples):
            raise DecodeError(
                f"{bad} of the samples {start} to {done} are NaN or infinite; check that the latents and the audio VAE "
                "belong together, or use dtype float32."
            )
        return AudioChunk(start, samples)

    yield from map(chunk, run.outputs())
    if done - first != plan.num_samples:
        raise DecodeError(f"{done - first} samples came out of the network, and {plan.num_samples} should have.")
    confirm_device()


def encode_audio(encoder: AudioEncoder, plan: EncodePlan, waveform: Iterable[np.ndarray], sample_rate: int) -> mx.array:
    """Encode to packed latents (B, C, T, 1, 1) a waveform in pieces (B, channels, n) float32."""
    check_process()
    scale = encoder.spec.scale.time
    spectrogram = Source(
        plan.batch, plan.video_grid, lambda _, chunk: encoder.prepare(waveform, sample_rate, chunk * scale)
    )
    run = Execution(encoder, plan, spectrogram)
    _, latents = peek(encoded(run, encoder), "the audio is too short for the network: a layer has no result.")
    return join_parts(latents, 2, None)


def pack_latents(latents: mx.array | np.ndarray, channels: int, bins: int) -> mx.array:
    """Pack to (B, C, T, 1, 1) audio latents (B, channels, T, bins) or (B, T, channels * bins), evaluated and finite."""
    if not isinstance(latents, (mx.array, np.ndarray)):
        raise LatentsError(f"audio latents are {type(latents).__name__}; expected an array (B, {channels}, T, {bins}).")
    shape, array = tuple(latents.shape), to_mlx(latents, "audio latents")
    is_packed = len(shape) == 3 and shape[2] == channels * bins
    if not is_packed and (len(shape) != 4 or (shape[1], shape[3]) != (channels, bins)):
        raise LatentsError(
            f"audio latents have the shape {shape}; this VAE decodes (B, {channels}, T, {bins}), or packed (B, T, "
            f"{channels * bins})."
        )
    if 0 in shape:
        raise LatentsError(f"audio latents have the shape {shape}, which is empty.")
    if not mx.issubdtype(array.dtype, mx.floating):
        raise LatentsError(f"audio latents are {latents.dtype}; expected float32, float16 or bfloat16.")
    array = array.transpose(0, 2, 1) if is_packed else array.transpose(0, 1, 3, 2).flatten(1, 2)
    packed = mx.contiguous(array.astype(mx.float32))[..., None, None]
    check_finite(packed)
    return packed


def unpack_latents(packed: mx.array, channels: int, bins: int) -> mx.array:
    """Unpack (B, C, T, 1, 1) to (B, channels, T, bins)."""
    batch, _, length, *_ = packed.shape
    return packed.reshape(batch, channels, bins, length).transpose(0, 1, 3, 2)


def join_audio(
    parts: Iterable[tuple[FilmPart, Callable[[tuple[int, int]], AudioStream]]],
    sample_rate: int,
    *,
    samples: tuple[int, int] | None = None,
    num_samples: int | None = None,
) -> AudioStream:
    """Decode the audio of windows one after the other, and join it with equal power.

    Args:
        parts: the part of each window, and a function that decodes samples of the window.
        samples: the first sample to decode, counted from the start of the film, and one more than the last. `None`
            means all.
        num_samples: the number of samples that are decoded, or `None` if it is unknown.
    """
    longest = fade_length(sample_rate)

    def decoded() -> Iterator[tuple[Interval, int, Generator[AudioChunk, None, None]]]:
        for part, decode in parts:
            if (window_samples := part.window_range(samples)) is not None:
                first_waiting = max(part.fade.end, part.frames.end - longest)
                yield part.fade, first_waiting, count_from_film([decode(window_samples)], part)

    joined: Crossfade[AudioChunk] = Crossfade(
        "waveform", 2, _equal_power, longest=longest, check=lambda chunk: mx.eval(chunk.waveform)
    )
    chunks = _fill_gaps(joined.join(decoded()), samples[0] if samples else 0)
    return AudioStream(chunks, ExecutionState(), sample_rate, num_samples)


def _fill_gaps(chunks: Generator[AudioChunk, None, None], start: int) -> Generator[AudioChunk, None, None]:
    """Yield chunks from the sample `start` on, with silence where a window has less audio than frames."""
    with closing(chunks):
        for chunk in chunks:
            if chunk.start > start:
                batch, channels, _ = chunk.waveform.shape
                yield AudioChunk(start, mx.zeros((batch, channels, chunk.start - start)))
            start = chunk.start + chunk.waveform.shape[2]
            yield chunk


def _equal_power(positions: mx.array, length: int) -> tuple[mx.array, mx.array]:
    angles = positions.astype(mx.float32) * (math.pi / 2 / max(1, length - 1))
    return mx.cos(angles), mx.sin(angles)
