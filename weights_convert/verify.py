"""Whether one checkpoint holds the weights of another: tensor by tensor, and by what the two networks make of them."""

import math
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import mlx.core as mx
import numpy as np

from mlx_ltx_vae.errors import LTXVAEError
from mlx_ltx_vae.models.video_vae.config import VAEConfig
from mlx_ltx_vae.vae import VideoVAE

from .tensors import Progress, dtype_name, one_by_one, open_checkpoint, silent, take_tensors

#: The least PSNR, in dB, of a network's result in a type against its result in a finer one.
LEAST_PSNR = {mx.bfloat16: 25.0, mx.float16: 40.0}

_LATENT_GRID = (2, 2, 2)  # F', H', W': padding, causality and every upsampling are at work in it


class CheckpointsDiffer(LTXVAEError):
    """Two checkpoints that should hold the same weights and do not."""


@dataclass(frozen=True)
class Likeness:
    """How far one network's result is from the other's.

    Attributes:
        max_difference: the largest difference of two numbers.
        psnr: in dB, against the range of the first result; None where the two are identical.
    """

    max_difference: float
    psnr: float | None

    @classmethod
    def of(cls, reference: np.ndarray, found: np.ndarray) -> "Likeness":
        """Compare two arrays of one shape."""
        difference = found.astype(np.float64) - reference
        error = float((difference**2).mean())
        if error == 0:
            return cls(0.0, None)
        extent = float(np.ptp(reference))
        return cls(float(np.abs(difference).max()), 10 * math.log10(extent**2 / error))

    def __str__(self) -> str:
        if self.psnr is None:
            return "identical"
        return f"PSNR {self.psnr:.1f} dB, largest difference {self.max_difference:.2g}"


@dataclass(frozen=True)
class Verification:
    """Two checkpoints that hold the same weights.

    Attributes:
        tensors: how many were compared.
        cast: how many of them are casts; all others are equal bit for bit.
        decode: how far apart the two decode, None without decoders.
        encode: likewise for encoders.
        load_seconds: what loading took, for the one and the other.
    """

    tensors: int
    cast: int
    decode: Likeness | None
    encode: Likeness | None
    load_seconds: tuple[float, float]

    def as_dict(self) -> dict[str, Any]:
        """In JSON's terms."""
        return asdict(self)

    def __str__(self) -> str:
        """Of the comparison. How long loading took is not part of it."""
        parts = [f"{self.tensors - self.cast} of {self.tensors} tensors equal bit for bit"]
        if self.cast:
            parts.append(f"{self.cast} equal to the source's when cast")
        parts += [f"{name} {likeness}" for name in ("decode", "encode") if (likeness := getattr(self, name))]
        return "; ".join(parts)


@dataclass(frozen=True)
class _Comparison:
    """How many tensors were compared, and (from, to) of each that is a cast."""

    tensors: int
    casts: list[tuple[mx.Dtype, mx.Dtype]]


@dataclass(frozen=True)
class _Trial:
    """What a network made of random input, by "decode" and "encode", and how long it took to load."""

    results: Mapping[str, np.ndarray]
    load_seconds: float


def verify(
    source: str | os.PathLike,
    converted: str | os.PathLike,
    *,
    only: str | None = None,
    progress: Progress = silent,
) -> Verification:
    """Hold `converted` against `source`: each tensor must equal the source's, or the source's cast to its dtype.

    Then both decode (and encode) the same random input, one after the other: identically where no tensor was cast.

    Args:
        source: a file, a folder or a hub repository.
        converted: likewise.
        only: "encoder" or "decoder", to leave out the other half; None for all that `source` holds.
        progress: told of each tensor.

    Raises:
        CheckpointsDiffer: naming the first tensor that differs, or how far the results are apart.
        CheckpointError: for what cannot be loaded.
        DecodeError: if a decoder overflows in its dtype, and LatentsError if an encoder does.
    """
    comparison = compare_tensors(source, converted, only, progress)
    first, second = _try(source, only), _try(converted, only)
    likenesses = {name: Likeness.of(result, second.results[name]) for name, result in first.results.items()}
    involved = {dtype for cast in comparison.casts for dtype in cast}
    least = min((LEAST_PSNR[dtype] for dtype in involved & LEAST_PSNR.keys()), default=math.inf)
    for name, likeness in likenesses.items():
        if likeness.psnr is not None and likeness.psnr < least:
            wanted = f"at least {least:.0f} dB are expected" if comparison.casts else "they should be identical"
            raise CheckpointsDiffer(
                f"{converted}: it has the weights of {source}, and yet the two {name} differently ({likeness}; "
                f"{wanted})."
            )
    return Verification(
        tensors=comparison.tensors,
        cast=len(comparison.casts),
        decode=likenesses.get("decode"),
        encode=likenesses.get("encode"),
        load_seconds=(first.load_seconds, second.load_seconds),
    )


def compare_tensors(
    source: str | os.PathLike, converted: str | os.PathLike, only: str | None, progress: Progress
) -> _Comparison:
    """The first half of `verify`: configurations, names, shapes and bits, with one tensor of each in memory."""
    first, second = (open_checkpoint(path, only) for path in (source, converted))
    field = _first_difference(first.config, second.config)
    if field:
        raise CheckpointsDiffer(f"{converted}: its configuration differs from that of {source} in {field}.")
    ours, theirs = take_tensors(first), take_tensors(second)
    for names, holder, other in (
        (ours.keys() - theirs.keys(), source, converted),
        (theirs.keys() - ours.keys(), converted, source),
    ):
        if names:
            raise CheckpointsDiffer(
                f"{other}: it lacks the tensor {min(names)} of {holder}; to compare one half alone, give --only."
            )
    names = sorted(ours)
    casts = []
    for name in one_by_one(names, "compare", progress):
        reference, found = ours.pop(name), theirs.pop(name)
        kinds = (reference.dtype, found.dtype)
        if not _same_bits(reference.astype(found.dtype), found):
            relation = "is not" if kinds[0] == kinds[1] else f"is {dtype_name(kinds[1])} and not the cast of"
            raise CheckpointsDiffer(f"{converted}: tensor {name} {relation} that of {source} ({dtype_name(kinds[0])}).")
        if kinds[0] != kinds[1]:
            casts.append(kinds)
    return _Comparison(len(names), casts)


def _first_difference(first: VAEConfig, second: VAEConfig) -> str | None:
    """The name of the first field in which two configurations differ."""
    names = (field.name for field in fields(first))
    return next((name for name in names if getattr(first, name) != getattr(second, name)), None)


def _same_bits(first: mx.array, second: mx.array) -> bool:
    """Whether two arrays of one dtype are the same, shape, NaN and the sign of zero included."""
    bits = {2: mx.uint16, 4: mx.uint32}[first.dtype.size]
    return mx.array_equal(first.view(bits), second.view(bits)).item()


def _try(source: str | os.PathLike, only: str | None) -> _Trial:
    """Load a VAE, run it on the same random input as every other, and let it go."""
    start = time.perf_counter()
    vae = VideoVAE.from_pretrained(source, encoder=only != "decoder", decoder=only != "encoder")
    seconds = time.perf_counter() - start
    keys = mx.random.split(mx.random.key(0))
    scale = vae.config.scale
    time_cells, rows, columns = _LATENT_GRID
    results = {}
    if vae.decoder is not None:
        latents = mx.random.normal((1, vae.config.latent_channels, *_LATENT_GRID), key=keys[0])
        results["decode"] = vae.decode(latents)
    if vae.encoder is not None:
        grid = (vae.config.num_frames(time_cells), rows * scale.height, columns * scale.width)
        results["encode"] = vae.encode(mx.random.uniform(-1, 1, (1, 3, *grid), key=keys[1]))
    return _Trial({name: np.array(result.astype(mx.float32)) for name, result in results.items()}, seconds)
