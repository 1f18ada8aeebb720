"""Executes an audio plan: packed latents in, final samples out."""

import threading
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import cast

import mlx.core as mx
import numpy as np

from ..backend.device import check_process, confirm_device, freed_memory_kept, run_settings, step_settings
from ..backend.mlx_utils import count_nonfinite, evaluate, to_mlx
from ..errors import DecodeError, LatentsError, PlanError
from ..models.base import Decoder, Network, SoundEncoder
from ..planning.audio_plan import AudioPlan
from ..streaming.axis import Axis
from ..streaming.context import StreamContext
from ..streaming.driver import Chain, run, run_whole
from .chunk_stream import ChunkStream, check_cancelled, join_parts


@dataclass(frozen=True)
class AudioChunk:
    """Samples of all batch items, (B, 2, n) float32 in [-1, 1], of which the first is sample `start` of the sound."""

    start: int
    waveform: mx.array


class AudioStream(ChunkStream[AudioChunk]):
    """The chunks of one decode of sound, in order. `sample_rate` is theirs, and `num_samples` that of all together."""

    def __init__(self, chunks: Generator[AudioChunk, None, None], cancelled: threading.Event, plan: AudioPlan) -> None:
        super().__init__(chunks, cancelled)
        self.sample_rate, self.num_samples = plan.sample_rate, plan.num_samples


@dataclass(frozen=True)
class AudioRun:
    """The execution of one decode: packed latents (B, C, T, 1, 1) through a decoder and a vocoder."""

    decoder: Decoder
    vocoder: Network
    plan: AudioPlan
    latents: mx.array
    cancelled: threading.Event = field(default_factory=threading.Event)

    def stream(self) -> AudioStream:
        check_process()
        return AudioStream(self._chunks(), self.cancelled, self.plan)

    def _chunks(self) -> Generator[AudioChunk, None, None]:
        """Yield every sample once, in order."""
        done = 0

        def chunk(box: list[mx.array]) -> AudioChunk:
            nonlocal done
            samples = box.pop()[:, :, 0, 0].transpose(0, 2, 1)
            first, done = done, done + samples.shape[2]
            mx.eval(samples)
            if bad := count_nonfinite(samples):
                raise DecodeError(
                    f"{bad} of the samples {first} to {done} are NaN or infinite; check that the latents and the audio "
                    "VAE belong together, or use dtype float32."
                )
            return AudioChunk(first, samples)

        with run_settings():
            yield from map(chunk, self._boxes())
        if done != self.plan.num_samples:
            raise DecodeError(f"{done} samples came out of the network, and {self.plan.num_samples} should have.")
        confirm_device()

    def _boxes(self) -> Iterator[list[mx.array]]:
        """The results in lists of one. While the stream waits for its caller, malloc is as usual."""
        results = self._results()
        while True:
            with freed_memory_kept():
                box = [result for result in [next(results, None)] if result is not None]
            if not box:
                return
            yield box

    def _results(self) -> Iterator[mx.array]:
        stages = [*self.decoder.stages(StreamContext()), *self.vocoder.stages(StreamContext())]
        chain = Chain(Axis.TIME, stages, around_step=self._around_step)
        for start in range(0, self.plan.latents, self.plan.chunk):
            stop = min(start + self.plan.chunk, self.plan.latents)
            piece = self.decoder.prepare(self.latents[:, :, start:stop], None)
            box = [chain.push(piece, stop == self.plan.latents)]
            del piece
            if box[0] is not None:
                yield cast(mx.array, box.pop())

    @contextmanager
    def _around_step(self) -> Iterator[None]:
        check_cancelled(self.cancelled)
        with step_settings(self.plan.memory.buffer_cache):
            yield


def join_sound(stream: AudioStream) -> mx.array:
    """The samples of all chunks, (B, 2, n)."""
    return join_parts(map(attrgetter("waveform"), stream), 2, stream.num_samples)


def encode_pieces(encoder: SoundEncoder, pieces: Iterable[mx.array]) -> mx.array:
    """Packed latents (B, C, T, 1, 1) of a spectrogram in pieces along time, which take memory one after the other.

    An encoder that sees the whole clip takes it in a single pass.
    """
    stages = encoder.stages(StreamContext())
    with run_settings():
        if encoder.spec.unbounded_layer(Axis.TIME) is None:
            results = run(stages, pieces, axis=Axis.TIME)
        else:
            results = iter([run_whole(stages, mx.concatenate(list(pieces), axis=1))])
        parts = list(map(encoder.to_latents, results))
    if not parts:
        raise LatentsError("the sound is too short for the network: a layer has no result.")
    latents = mx.concatenate(parts, axis=2)
    mx.eval(latents)
    return latents


def pack_latents(latents: mx.array | np.ndarray, channels: int, bins: int) -> mx.array:
    """(B, C, T, 1, 1) from audio latents (B, channels, T, bins) or (B, T, channels * bins), evaluated and finite."""
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
    evaluate("audio latents", packed)
    if bad := count_nonfinite(packed):
        raise LatentsError(f"{bad} of {packed.size} values of the audio latents are NaN or infinite.")
    return packed


def unpack_latents(packed: mx.array, channels: int, bins: int) -> mx.array:
    """(B, C, T, 1, 1) to (B, channels, T, bins)."""
    batch, _, length, *_ = packed.shape
    return packed.reshape(batch, channels, bins, length).transpose(0, 1, 3, 2)


def check_plan(plan: AudioPlan, packed: mx.array) -> None:
    """Raise a `PlanError` if a plan was made for other latents."""
    if (plan.batch, plan.latents) != (packed.shape[0], packed.shape[2]):
        raise PlanError(
            f"the plan was made for {plan.batch} x {plan.latents} audio latents; these are {packed.shape[0]} x "
            f"{packed.shape[2]}."
        )
