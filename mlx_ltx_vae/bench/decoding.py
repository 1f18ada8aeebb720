"""Cases that are measured, and one timed decode or encode of a case, in this process."""

import ctypes
import os
import resource
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ..backend.machine import Backend
from ..backend.mlx_utils import DTYPES, DtypeName, max_difference, named_parameters, psnr
from ..checkpoint import Checkpoint, open_checkpoint
from ..latents import load_latents
from ..models.base import NETWORKS, Family, Statistics
from ..models.convolution.prepared import prepare
from ..models.convolution.rules import ConvRule, ConvShape, Formulation
from ..pipeline.postprocess import FrameChunk
from ..planning.memory import cut
from ..planning.options import OrderName
from ..planning.plan import DecodePlan, Plan
from ..published import PublishedVAE
from ..tiling import SpatialTilingConfig, TemporalTilingConfig, TilingConfig, preset
from ..tiling.config import parse_tile
from ..vae import VideoVAE


@dataclass(frozen=True)
class FixedRule:
    """All convolutions without a stride have one formulation."""

    formulation: Formulation

    def __call__(self, shape: ConvShape, backend: Backend, *, allows_winograd: bool = True) -> Formulation:
        return Formulation.CONV3D if shape.is_strided else self.formulation


@dataclass(frozen=True)
class Case:
    """The video, the weights and the mode of a run. Plain values, which JSON can represent."""

    model: str | None = None  # a checkpoint; None for random weights
    latents: str | None = None  # a latent file, of this size and length; None for noise
    generation: str = "ltx-2.3"  # of random weights, a name of `PublishedVAE`
    base_width: int = 32  # of random weights; the published models have 128
    dtype: DtypeName | None = None  # None for the checkpoint's own, or float32 for random weights
    keeps_dtype: bool = False  # whether random weights compute in `dtype` although another is more accurate
    width: int = 256
    height: int = 256
    frames: int = 57
    mode: Any = "exact"  # of a decode; of an encode "stream" or "tiled"; of another program its name
    order: OrderName = "auto"
    chunk: int | None = None
    tiles: str | None = None  # a preset, or SIZE:OVERLAP in pixels, and after a comma in frames; None as planned
    tile_batch_size: int = 1
    memory_budget: str | int | None = None
    prefetch: int | None = None  # steps ahead; None as planned
    cache_limit: int | None = None  # bytes that MLX's buffer cache may have; None as planned
    formulation: str | None = None  # of all convolutions, a value of `Formulation`; None for the package's rule

    def make_tiling(self) -> TilingConfig | None:
        """The tiles that `tiles` names. A preset may depend on the size of the video."""
        if self.tiles is None:
            return None
        if self.tiles[:1].isdigit():
            pixels, _, frames = self.tiles.partition(",")
            temporal = TemporalTilingConfig(*parse_tile(frames)) if frames else None
            return TilingConfig(SpatialTilingConfig(*parse_tile(pixels)), temporal)
        return preset(self.tiles, self.height, self.width, self.frames) or TilingConfig()


def open_case(case: Case, network: str = "decoder") -> Checkpoint | PublishedVAE:
    """What has the configuration and the layers of a case: the headers of its checkpoint, or a published VAE."""
    if case.model is None:
        return PublishedVAE.find(case.generation, base_channels=case.base_width)
    encoder, decoder = (name == network for name in NETWORKS)
    return open_checkpoint(case.model, encoder=encoder, decoder=decoder)


def load_vae(case: Case, network: Literal["encoder", "decoder"] = "decoder") -> VideoVAE:
    """A VAE with one of its networks: the checkpoint's, or one with the same random weights in every process."""
    opened = open_case(case, network)
    made: dict[str, Any] = dict.fromkeys(NETWORKS)
    if isinstance(opened, Checkpoint):
        opened = replace(opened, family=_family(case, opened))
        return VideoVAE.from_pretrained(opened, dtype=case.dtype, **{name: name == network for name in made})
    made[network] = make_random_network(case, network)
    prepare(made[network], keeps_dtype=case.keeps_dtype)
    return VideoVAE(opened.config, **made, keeps_dtype=case.keeps_dtype)


def make_random_network(case: Case, network: str = "decoder") -> nn.Module:
    """The random network of a case, with its weights as a checkpoint stores them.

    Raises:
        CheckpointError: if the family has no such network.
    """
    vae = PublishedVAE.find(case.generation, base_channels=case.base_width)
    vae.spec(network)
    ones = mx.ones((vae.config.latent_channels,))
    mx.random.seed(0)
    module = _family(case, vae).make(vae.config, network, Statistics(0 * ones, ones))
    assert isinstance(module, nn.Module)
    module.set_dtype(DTYPES[case.dtype or "float32"])
    mx.eval(module.parameters())
    return module


def _family(case: Case, opened: Checkpoint | PublishedVAE) -> Family[Any]:
    if case.formulation is None:
        return opened.family
    return with_rule(opened.family, FixedRule(Formulation(case.formulation)))


def with_rule(family: Family[Any], rule: ConvRule) -> Family[Any]:
    """A family whose networks choose the formulations of their convolutions by another rule."""
    return replace(family, make=partial(cast(Any, family.make), rule=rule))


def count_weight_bytes(vae: VideoVAE) -> int:
    """Bytes of the weights of a VAE with one network."""
    return sum(array.nbytes for array in named_parameters(cast(nn.Module, vae.decoder or vae.encoder)).values())


def load_case_latents(case: Case, vae: VideoVAE) -> mx.array:
    """The latents (1, C, F', H', W') of a case: its file's, or noise, the same in every process."""
    if case.latents:
        return load_latents(case.latents)[0]
    grid = vae.config.scale.latent_grid((case.frames, case.height, case.width))
    latents = mx.random.normal((1, vae.config.latent_channels, *grid), key=mx.random.key(0))
    mx.eval(latents)
    return latents


@dataclass(frozen=True)
class Decode:
    """One decode of latents (1, C, F', H', W'), ready to run any number of times."""

    vae: VideoVAE
    latents: mx.array
    plan: DecodePlan

    @classmethod
    def from_case(cls, case: Case, vae: VideoVAE | None = None, **options: Any) -> "Decode":
        """Load the latents, and the VAE if none is given, and plan the decode; `options` are those of `VideoVAE.plan`.

        The memory of a plan is not that of another `prefetch`.
        """
        vae = vae or load_vae(case)
        latents = load_case_latents(case, vae)
        plan = vae.plan(
            latents.shape,
            memory_budget=case.memory_budget,
            mode=case.mode,
            order=case.order,
            tiling=case.make_tiling() if case.mode == "tiled" else None,
            tile_batch_size=case.tile_batch_size,
            chunk=case.chunk,
            **{"bit_depth": 8, **options},
        )
        if case.prefetch is not None:
            plan = replace(plan, prefetch=case.prefetch)
        if case.cache_limit is not None:
            plan = replace(plan, memory=replace(plan.memory, buffer_cache=case.cache_limit))
        return cls(vae, latents, plan)

    def run(self, *, in_float: bool = False) -> Iterator[np.ndarray]:
        """Decode. Yields frames (n, H, W, 3) uint8 on the host, as they become final, or float32 in about [-1, 1]."""
        plan = replace(self.plan, outputs=()) if in_float else self.plan
        return _frames_of(self.vae.stream(self.latents, plan, bit_depth=None if in_float else 8), in_float)


def _frames_of(stream: Iterator[FrameChunk], in_float: bool) -> Iterator[np.ndarray]:
    for chunk in stream:
        if in_float:
            chunk.check()
        frames = [np.array(chunk.frames[0].astype(mx.float32)) if in_float else chunk.to_uint8()]
        # A suspended generator must not hold what it has yielded.
        del chunk
        yield frames.pop()


_PART_FRAMES = 8
_WARM_UP_FRAMES = 3  # latent frames
_SAMPLE_SECONDS = 0.02

_STATM = Path("/proc/self/statm")
# <sys/resource.h>: `struct rusage_info_v4` is a UUID of two words and then words; later versions only append.
_RUSAGE_FLAVOR = 4
_RUSAGE_WORDS = 128  # more than any version has
_FOOTPRINT_WORD, _MAX_FOOTPRINT_WORD = 9, 30

Sample = tuple[float, int, int | None]


def decode(case: Case, *, warm_up: bool = False, in_float: bool = False, **options: Any) -> dict[str, Any]:
    """Decode, after a short clip with `warm_up`; to pixels in [-1, 1] with `in_float`, otherwise to levels of 8 bits.

    Options are those of `measure`. Returns what that and `describe` return, and start_footprint_bytes, before anything
    was loaded.
    """
    before, _ = footprint()
    subject = Decode.from_case(case)
    if warm_up:
        short = subject.latents[:, :, :_WARM_UP_FRAMES]
        short_plan = subject.vae.plan(short.shape, mode=case.mode, order=case.order, chunk=case.chunk)
        for _ in Decode(subject.vae, short, short_plan).run():
            pass
    measured = measure(subject.run(in_float=in_float), case, **options)
    planned = describe(subject.plan)
    if case.prefetch is not None:
        planned |= dict.fromkeys(("planned_bytes", "planned_total_bytes"))  # not planned for so many steps ahead
    return {**measured, **planned, "start_footprint_bytes": before}


def encode(case: Case, vae: VideoVAE | None = None) -> dict[str, Any]:
    """Encode uint8 noise: as a stream (mode "stream"), or the whole video in tiles (mode "tiled").

    `vae` is None for one with the case's encoder alone. Returns latent_frames, and as for a decode what was measured
    and planned, without frames and footprints.
    """
    vae = vae or load_vae(case, "encoder")
    vae.config.scale.latent_grid((case.frames, case.height, case.width))  # raises for frames that would be left out
    is_tiled = case.mode == "tiled"
    plan = vae.plan_encode(
        (case.frames, case.height, case.width, 3),
        memory_budget=case.memory_budget,
        mode="tiled" if is_tiled else "exact",
        tiling=case.make_tiling() if is_tiled else None,
        tile_batch_size=case.tile_batch_size,
    )
    clip = np.concatenate(list(_noise(case))) if is_tiled else None

    def latents() -> Iterator[np.ndarray]:
        parts: Iterable[mx.array] = vae.encode_stream(_noise(case), plan) if clip is None else [vae.encode(clip, plan)]
        for part in parts:
            yield np.array(part[0].astype(mx.float32)).swapaxes(0, 1)

    measured = measure(latents(), case)
    return {"latent_frames": measured.pop("frames"), **measured, **describe(plan)}


def measure(
    chunks: Iterator[np.ndarray], case: Case, *, sampled: bool = False, save: str = "", reference: str = ""
) -> dict[str, Any]:
    """Run a decode or an encode.

    Args:
        chunks: yields frames (n, H, W, 3), or latents along the first axis; the work starts with the first `next`.
        sampled: whether to sample memory every 20 ms, and once at the end.
        save, reference: an `.npy` file to save the frames to, or whose frames these are compared with.

    Returns:
        frames, seconds, first_frame_seconds; between_bytes, held between two chunks: the caches; total_peak_bytes of
        MLX, peak_bytes without what was in use before, bytes_per_pixel of one frame; with `sampled` samples (seconds
        since the start, bytes in use, footprint) and the largest peak_footprint_bytes; with `reference` what `compare`
        returns.
    """
    held = mx.get_active_memory()
    mx.reset_peak_memory()
    arrivals, between, clip = [], [], []
    with _samples(sampled) as samples:
        start = time.perf_counter()
        for frames in chunks:
            arrivals.append((time.perf_counter() - start, len(frames)))
            if save or reference:
                clip.append(frames.copy())
            del frames
            between.append(mx.get_active_memory() - held)
        seconds = time.perf_counter() - start
    total = mx.get_peak_memory()
    measured: dict[str, Any] = {
        "frames": sum(count for _, count in arrivals),
        "seconds": seconds,
        "first_frame_seconds": arrivals[0][0],
        # In the middle of the clip, where no chunk is between two layers.
        "between_bytes": min(between[len(between) // 3 : 2 * len(between) // 3 + 1]),
        "peak_bytes": total - held,
        "bytes_per_pixel": (total - held) / (case.width * case.height),
        "total_peak_bytes": total,
    }
    if sampled:
        footprints = [size for *_, size in samples if size is not None]
        measured |= {"samples": samples, "peak_footprint_bytes": max(footprints, default=None)}
    if save:
        np.save(save, np.concatenate(clip))
    if reference:
        span = 255 if clip[0].dtype == np.uint8 else 2
        measured |= compare(mx.array(np.concatenate(clip)), mx.array(np.load(reference)), span=span)
    return measured


@contextmanager
def _samples(sampled: bool) -> Iterator[list[Sample]]:
    samples: list[Sample] = []
    start, done = time.perf_counter(), threading.Event()

    def sample() -> None:
        is_last = False
        while not is_last:
            is_last = done.wait(_SAMPLE_SECONDS)
            samples.append((time.perf_counter() - start, mx.get_active_memory(), footprint()[0]))

    thread = threading.Thread(target=sample, daemon=True)
    if sampled:
        thread.start()
    try:
        yield samples
    finally:
        done.set()
        if sampled:
            thread.join()


def footprint() -> tuple[int | None, int | None]:
    """Bytes of memory that this process takes of the machine, now and at most so far.

    On macOS this is the physical footprint that Activity Monitor shows, GPU buffers included; on Linux the resident
    memory. None where it is not known. The call of macOS follows Apple's headers and has not been run on a Mac yet.
    """
    if sys.platform != "darwin":
        now = int(_STATM.read_text().split()[1]) * resource.getpagesize() if _STATM.exists() else None
        return now, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    words = (ctypes.c_uint64 * _RUSAGE_WORDS)()
    try:
        failed = ctypes.CDLL(None).proc_pid_rusage(os.getpid(), _RUSAGE_FLAVOR, ctypes.byref(words))
    except (AttributeError, OSError):
        failed = True
    return (None, None) if failed else (words[_FOOTPRINT_WORD], words[_MAX_FOOTPRINT_WORD])


def describe(plan: Plan) -> dict[str, Any]:
    """What was planned, and the size of the weights."""
    return {
        "order": plan.order.value,
        "step": plan.step,
        "prefetch": plan.prefetch,
        "planned_bytes": plan.memory.active,
        "planned_total_bytes": plan.peak_bytes,
        "weights_bytes": plan.memory.weights,
    }


def _noise(case: Case) -> Iterator[np.ndarray]:
    """Frames (n, H, W, 3) uint8 of noise."""
    random = np.random.default_rng(0)
    for frames in cut(case.frames, _PART_FRAMES):
        yield random.integers(0, 256, (frames, case.height, case.width, 3), dtype=np.uint8)


def compare(one: mx.array, other: mx.array, *, span: float = 2.0) -> dict[str, Any]:
    """`psnr`, None for equal arrays, and `largest`, the largest difference, for JSON."""
    largest = max_difference(one, other)
    return {"psnr": None if largest == 0 else psnr(one, other, span=span), "largest": largest}
