"""`verify_conversion`: compare two checkpoints tensor by tensor, and by what their networks return."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import mlx.core as mx

from ..backend.dtypes import dtype_name
from ..backend.mlx_utils import to_bool, to_float
from ..checkpoint import Checkpoint
from ..errors import CheckpointsDiffer
from ..metrics import max_difference, psnr
from ..vae import VideoVAE

#: Called with tensor names and what happens to them ("convert", "compare"); returns an iterable over the names.
Progress = Callable[[Sequence[str], str], Iterable[str]]

#: The statistics of the latents, which are float32 whatever dtype is asked for.
STATISTICS = ("per_channel_statistics.mean-of-means", "per_channel_statistics.std-of-means")

#: The lowest PSNR in dB that is accepted for a network in a dtype, against the same network in a wider one.
LEAST_PSNR = {mx.bfloat16: 25.0, mx.float16: 40.0}

_LATENT_GRID = (2, 2, 2)  # F', H', W': the smallest in which padding, causality and every upsampling have an effect


@dataclass(frozen=True)
class Comparison:
    """How far the result of one network is from that of the other."""

    max_difference: float
    psnr: float | None  # in dB, against the range of the source's result; None if the results are identical

    @classmethod
    def of(cls, reference: mx.array, found: mx.array) -> "Comparison":
        difference = max_difference(reference, found)
        span = to_float(reference.max() - reference.min())
        return cls(difference, psnr(reference, found, span=span) if difference else None)

    def __str__(self) -> str:
        if self.psnr is None:
            return "identical"
        return f"PSNR {self.psnr:.1f} dB, largest difference {self.max_difference:.2g}"


@dataclass(frozen=True)
class Verification:
    """The result of comparing two checkpoints that have the same weights."""

    tensors: int
    cast: int  # how many of them were cast; the others are equal bit for bit
    load_seconds: tuple[float, float]  # of the source and the conversion
    decode: Comparison | None = None
    encode: Comparison | None = None

    def __str__(self) -> str:
        parts = [f"{self.tensors - self.cast} of {self.tensors} tensors equal bit for bit"]
        if self.cast:
            parts.append(f"{self.cast} equal to the source's when cast")
        parts += [f"{name} {result}" for name, result in (("decode", self.decode), ("encode", self.encode)) if result]
        return "; ".join(parts)


def verify_conversion(source: Checkpoint, converted: Checkpoint, *, progress: Progress | None = None) -> Verification:
    """Check that each tensor of `converted` equals the source's, or the source's cast to its dtype.

    Then both VAEs decode and encode the same random input, one after the other. If no tensor was cast, the results must
    be identical; otherwise `LEAST_PSNR` applies. Both checkpoints must be opened with the same networks.

    Raises:
        CheckpointsDiffer: names the first tensor that differs, or says how far the results differ.
        CheckpointError: a checkpoint cannot be loaded.
        DecodeError: a decoder overflows in its dtype.
        LatentsError: an encoder overflows in its dtype.
    """
    stated = {"family": source.family, **vars(source.config)}
    for name, value in {"family": converted.family, **vars(converted.config)}.items():
        if stated.get(name) != value:
            raise CheckpointsDiffer(
                f"{converted.name}: its configuration differs from that of the source {source.name} in {name}."
            )
    num_tensors, casts = compare_tensors(source, converted, progress)
    (expected, source_seconds), (found, seconds) = _run(source), _run(converted)
    comparisons = {name: Comparison.of(result, found[name]) for name, result in expected.items()}
    least = min((LEAST_PSNR[dtype] for cast in casts for dtype in cast if dtype in LEAST_PSNR), default=math.inf)
    for name, comparison in comparisons.items():
        if comparison.psnr is not None and comparison.psnr < least:
            accepted = f"at least {least:.0f} dB" if casts else "identical results"
            raise CheckpointsDiffer(
                f"{converted.name}: it has the weights of the source {source.name}, but the results of {name} differ "
                f"({comparison}; expected {accepted}); report this as a bug."
            )
    return Verification(num_tensors, len(casts), (source_seconds, seconds), **comparisons)


def compare_tensors(
    source: Checkpoint, converted: Checkpoint, progress: Progress | None = None
) -> tuple[int, list[tuple[mx.Dtype, mx.Dtype]]]:
    """Compare names, shapes and bits, with one tensor of each checkpoint in memory.

    Returns the number of tensors, and (source dtype, converted dtype) of each tensor that was cast.
    """
    expected, found = read_all(source), read_all(converted)
    if unmatched := expected.keys() ^ found.keys():
        name = min(unmatched)
        lacks, has = f"lacks the tensor {name} of", f"has the tensor {name}, which is not in"
        raise CheckpointsDiffer(
            f"{converted.name}: it {lacks if name in expected else has} the source {source.name}; to compare one "
            "network, give --only."
        )
    names, casts = sorted(expected), []
    for name in one_by_one(names, "compare", progress):
        reference, array = expected.pop(name), found.pop(name)
        is_cast = reference.dtype != array.dtype
        bits = {2: mx.uint16, 4: mx.uint32}[array.dtype.size]  # also of NaN and of the sign of zero
        if not to_bool(mx.array_equal(reference.astype(array.dtype).view(bits), array.view(bits))):
            relation = f"is not the source's cast to {dtype_name(array.dtype)}" if is_cast else "is not the source's"
            raise CheckpointsDiffer(
                f"{converted.name}: tensor {name} {relation} ({source.name}, {dtype_name(reference.dtype)})."
            )
        if is_cast:
            casts.append((reference.dtype, array.dtype))
    source.check_unchanged()
    converted.check_unchanged()
    return len(names), casts


def read_all(checkpoint: Checkpoint) -> dict[str, mx.array]:
    """Every tensor by its full name ("decoder.conv_in.conv.weight") in the layout of MLX, lazy."""
    tensors = dict(zip(STATISTICS, checkpoint.read_statistics() or (), strict=False))
    for network, stored in checkpoint.networks.items():
        tensors |= {f"{network}.{name}": array for name, array in stored.read()}
    return tensors


def one_by_one(names: Sequence[str], description: str, progress: Progress | None) -> Iterator[str]:
    """The names in turn. MLX's buffer cache is cleared after each, so that it does not grow to the size of the VAE."""
    for name in progress(names, description) if progress else names:
        yield name
        mx.clear_cache()


def _run(checkpoint: Checkpoint) -> tuple[dict[str, mx.array], float]:
    """What the networks of a VAE return for one random input, and the seconds to load them."""
    start = time.perf_counter()
    vae = VideoVAE.from_pretrained(checkpoint)
    seconds = time.perf_counter() - start
    keys = mx.random.split(mx.random.key(0))
    results = {}
    if vae.decoder is not None:
        latents = mx.random.normal((1, vae.config.latent_channels, *_LATENT_GRID), key=keys[0])
        results["decode"] = mx.concatenate([chunk.pixels for chunk in vae.stream(latents)], axis=2)
    if vae.encoder is not None:
        grid = vae.config.scale.video_grid(_LATENT_GRID)
        results["encode"] = vae.encode(mx.random.uniform(-1, 1, (1, 3, *grid), key=keys[1]))
    mx.eval(results)
    return results, seconds
