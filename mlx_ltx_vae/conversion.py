"""Conversion of a checkpoint to a folder that MLX loads without changing a layout, and its verification."""

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import mlx.core as mx

from . import __version__
from .audio_vae import AudioVAE
from .backend.mlx_utils import count_nonfinite, disk_errors, dtype_name, max_difference, psnr, to_bool, to_float
from .checkpoint import VERSION_KEY, Checkpoint, open_checkpoint
from .checkpoint.weight_files import WEIGHT_LAYOUT_KEY, WeightLayout
from .errors import CheckpointError, CheckpointsDiffer, WriterError, printable, warn
from .files import check_file, expand_path, part_folder, writing_to
from .latents import LatentsWriter, open_latents
from .networks.base import AUDIO, AudioConfig
from .shapes import Grid, LatentShape, format_size
from .units import format_bytes
from .vae import VideoVAE

#: Function of tensor names and "convert" or "compare" that returns an iterable over the names.
Progress = Callable[[Sequence[str], str], Iterable[str]]

#: Tensors that are float32 for every requested dtype.
STATISTICS_TENSORS = ("per_channel_statistics.mean-of-means", "per_channel_statistics.std-of-means")

#: Lowest accepted PSNR in dB of a network in a dtype, against the same network in a wider dtype.
LEAST_PSNR = {mx.bfloat16: 25.0, mx.float16: 40.0}

_FILE_ENDINGS = (".safetensors", ".json", ".gguf", ".bin", ".pt", ".pth", ".ckpt", ".npz", ".npy")
_AUDIO_LATENTS, _AUDIO_SAMPLES, _AUDIO_RATE = 3, 4000, 16000
# F', H', W': the smallest grid on which padding, causality and all upsamplings have an effect.
_LATENT_GRID = (2, 2, 2)

_CARD = """\
---
library_name: mlx
tags: [mlx, {tag}, vae, ltx-video]
---

# LTX {kind} for MLX: {generation}

| | |
|---|---|
{facts}

Converted by `mlx_ltx_vae` and compared with the source:
{verification}.

## Use

```python
from mlx_ltx_vae import {class_name}

vae = {class_name}.from_pretrained("FOLDER")  # this folder, or its repository on the hub
{calls}
```

## License

The weights keep the license of their source. Lightricks publishes LTX weights under its own licenses; each release's is
in its repository at <https://huggingface.co/Lightricks>. If you publish this folder, name that license here and add its
text.
"""
_AUDIO_CALLS = {
    "decoder": "waveform = vae.decode(latents)  # (B, 8, T, 16) -> (B, 2, samples) at vae.sample_rate",
    "encoder": "latents = vae.encode(waveform, sample_rate)  # (B, 2, samples) -> (B, 8, T, 16)",
}
_CALLS = {
    "decoder": "pixels = vae.decode(latents)  # (B, C, F', H', W') -> (B, 3, F, H, W) in [-1, 1]",
    "encoder": "latents = vae.encode(pixels)  # (B, 3, F, H, W) in [-1, 1] -> (B, C, F', H', W')",
}


@dataclass(frozen=True)
class Comparison:
    """Difference between the results of two networks."""

    max_difference: float
    psnr: float | None  # in dB, against the range of the source's result; `None` means identical results

    @classmethod
    def of(cls, reference: mx.array, result: mx.array) -> "Comparison":
        difference = max_difference(reference, result)
        span = to_float(reference.max() - reference.min())
        return cls(difference, psnr(reference, result, span=span) if difference else None)

    def __str__(self) -> str:
        if self.psnr is None:
            return "identical"
        return f"PSNR {self.psnr:.1f} dB, largest difference {self.max_difference:.2g}"


@dataclass(frozen=True)
class Verification:
    """Result of comparing two checkpoints that have the same weights."""

    tensors: int
    cast: int  # number of tensors that were cast; all others are equal bit for bit
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
    be identical; otherwise `LEAST_PSNR` applies. Both checkpoints must be opened with the same networks. Raises a
    `CheckpointsDiffer` for a difference. Other errors are of loading, or of a network that overflows in its dtype.
    """
    source_config = {"family": source.family, **vars(source.config)}
    for name, value in {"family": converted.family, **vars(converted.config)}.items():
        if name != "generation" and source_config.get(name) != value:
            raise CheckpointsDiffer(
                f"{converted.name}: its configuration differs from the source {source.name} in {name}."
            )
    num_tensors, casts = compare_tensors(source, converted, progress)
    (expected, source_seconds), (results, seconds) = _run(source), _run(converted)
    least = min((LEAST_PSNR[dtype] for cast in casts for dtype in cast if dtype in LEAST_PSNR), default=math.inf)
    comparisons = {name: Comparison.of(reference, results[name]) for name, reference in expected.items()}
    for name, comparison in comparisons.items():
        if comparison.psnr is not None and comparison.psnr < least:
            accepted = f"at least {least:.0f} dB" if casts else "identical results"
            raise CheckpointsDiffer(
                f"{converted.name}: it has the weights of the source {source.name}, but the results of {name} differ "
                f"({comparison}; expected {accepted}); report this as a bug."
            )
    decode, encode = comparisons.get("decode"), comparisons.get("encode")
    return Verification(num_tensors, len(casts), (source_seconds, seconds), decode, encode)


def compare_tensors(
    source: Checkpoint, converted: Checkpoint, progress: Progress | None = None
) -> tuple[int, list[tuple[mx.Dtype, mx.Dtype]]]:
    """Compare tensors one by one; return their number, and (source dtype, converted dtype) of each cast tensor.

    Raises a `CheckpointsDiffer` for a difference.
    """
    expected, tensors = read_all(source), read_all(converted)
    if unmatched := expected.keys() ^ tensors.keys():
        name = min(unmatched)
        lacks, has = f"lacks the tensor {name} of", f"has the tensor {name}, which is not in"
        raise CheckpointsDiffer(
            f"{converted.name}: it {lacks if name in expected else has} the source {source.name}; to compare one "
            "network, give --only."
        )
    names, casts = sorted(expected), []
    for name in one_by_one(names, "compare", progress):
        reference, array = expected.pop(name), tensors.pop(name)
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
    """Read every tensor by its full name ("decoder.conv_in.conv.weight") in the layout of MLX, lazily."""
    tensors = dict(zip(STATISTICS_TENSORS, checkpoint.read_statistics() or (), strict=False))
    for network, stored in checkpoint.networks.items():
        tensors |= {f"{network}.{name}": array for name, array in stored.read()}
    return tensors


def one_by_one(names: Sequence[str], description: str, progress: Progress | None) -> Iterator[str]:
    """Yield the names and clear MLX's buffer cache after each, so that it does not grow to the size of the VAE."""
    for name in progress(names, description) if progress else names:
        yield name
        mx.clear_cache()


def _run(checkpoint: Checkpoint) -> tuple[dict[str, mx.array], float]:
    """Return the outputs of the networks of a VAE for one random input, and the seconds of loading the VAE."""
    is_audio = checkpoint.medium is AUDIO
    start = time.perf_counter()
    vae: Any = (AudioVAE if is_audio else VideoVAE).from_pretrained(checkpoint).load()
    seconds = time.perf_counter() - start
    config = vae.config
    if is_audio:
        latent_shape, shape = [config.channels, _AUDIO_LATENTS, config.bins], [2, _AUDIO_SAMPLES]
    else:
        latent_shape, shape = [config.latent_channels, *_LATENT_GRID], [3, *config.scale.video_grid(_LATENT_GRID)]
    decode_key, encode_key = mx.random.split(mx.random.key(0))
    results = {}
    if vae.decoder is not None and (not is_audio or vae.vocoder is not None):
        results["decode"] = vae.decode(mx.random.normal([1, *latent_shape], key=decode_key))
    if vae.encoder is not None:
        results["encode"] = vae.encode(mx.random.uniform(-1, 1, [1, *shape], key=encode_key), *[_AUDIO_RATE] * is_audio)
    mx.eval(results)
    return results, seconds


@dataclass(frozen=True)
class WrittenWeights:
    """Content of `model.safetensors`: counts of tensors, parameters and bytes, and its dtypes, sorted."""

    tensors: int
    parameters: int
    bytes: int
    dtypes: tuple[str, ...]


@dataclass(frozen=True)
class Conversion:
    """Finished conversion of the checkpoint `source` to the folder `output`."""

    source: str
    output: str
    generation: str
    networks: tuple[str, ...]
    written: WrittenWeights
    verification: Verification


def convert_checkpoint(
    checkpoint: Checkpoint,
    folder: str | os.PathLike,
    *,
    dtype: mx.Dtype | None = None,
    progress: Progress | None = None,
) -> Conversion:
    """Write `config.json`, `model.safetensors` and a model card `README.md`, and verify them with one VAE in memory.

    Args:
        checkpoint: the source; the networks with which it was opened are converted.
        folder: must not exist, or be empty. It appears when it is complete and verified; a failure leaves nothing.
        dtype: for everything but the statistics of the latents. `None` keeps each tensor's dtype.

    Raises a `WriterError` for a folder that cannot be written, and the errors of `verify_conversion`.
    """
    check_folder_name(folder)
    folder = Path(expand_path(folder, WriterError)).resolve()
    with part_folder(folder) as output:
        part = output.path
        with writing_to(folder):
            (part / "config.json").write_text(json.dumps(checkpoint.raw_config, indent=2) + "\n", encoding="utf-8")
            written = write_weights(checkpoint, part / "model.safetensors", dtype, progress)
        verification = verify_conversion(checkpoint, open_checkpoint(part, medium=checkpoint.medium), progress=progress)
        generation, networks = checkpoint.config.generation, tuple(checkpoint.networks)
        conversion = Conversion(checkpoint.name, str(folder), generation, networks, written, verification)
        with writing_to(folder):
            (part / "README.md").write_text(_make_card(conversion, checkpoint), encoding="utf-8")
    return replace(conversion, output=str(output.target))


def open_networks(source: str | os.PathLike, only: str | None = None) -> Checkpoint:
    """Open the networks of a source that are converted or verified.

    They are the encoder and the decoder, or the networks of audio if the source has nothing else. `only` names one of
    the two, or "audio".
    """
    if only == "audio":
        return open_checkpoint(source, medium=AUDIO)
    try:
        return open_checkpoint(source, encoder=only != "decoder", decoder=only != "encoder")
    except CheckpointError:
        if only is not None or not os.path.exists(source):
            raise
        with suppress(CheckpointError):
            return open_checkpoint(source, medium=AUDIO)
        raise


def convert_latents(
    source: str | os.PathLike,
    output: str,
    *,
    model: str | None = None,
    tensor: str | None = None,
    grid: Grid | None = None,
    unnormalized: bool | None = None,
    dtype: mx.Dtype | None = None,
    overwrite: bool = False,
) -> tuple[str, LatentShape, mx.Dtype]:
    """Write the latents of a file for ComfyUI, some frames at a time.

    `model` is the VAE whose statistics normalize unnormalized latents. Returns the name of the file, which is another
    one if a program has taken it meanwhile, its shape and its dtype. Raises the errors of `open_latents` and of
    `LatentsWriter`.
    """
    check_file(Path(output), overwrite=overwrite)
    channels, scale, statistics = None, None, None
    if model is not None:
        checkpoint = open_checkpoint(model)
        channels, scale = checkpoint.config.latent_channels, checkpoint.config.scale
        statistics = checkpoint.read_statistics()
    file = open_latents(source, latent_channels=channels, tensor=tensor, grid=grid, scale=scale)
    latents, info = file.map(statistics=statistics, unnormalized=unnormalized), file.info
    parts = ["audio"] * (file.find_audio() is not None) + ["keyframes"] * file.has_keyframes
    if parts:
        warn(f"{info.source}: ComfyUI reads no {' and no '.join(parts)} from {output}; they are left out.")
    dtype = dtype or latents.dtype
    with LatentsWriter(output, overwrite=overwrite) as writer:
        for frame in range(file.shape.frames):
            writer.write(latents[:, :, frame : frame + 1].astype(dtype))
        sizes = {name: getattr(info, name) for name in ("num_frames", "height", "width", "source_frames", "carry")}
        new_path = writer.complete(fps=info.fps, sizes=sizes, space=info.space)
    return str(new_path or output), file.shape, dtype


def check_folder_name(folder: str | os.PathLike) -> None:
    """Check that a name is not a file's, unless it ends in "/"; raise a `WriterError` otherwise."""
    name = os.fspath(folder)
    if name.lower().endswith(_FILE_ENDINGS) and not os.path.isdir(name):
        raise WriterError(f"{name}: is the name of a file, and the output is a folder; leave out {Path(name).suffix}.")


def write_weights(
    checkpoint: Checkpoint, path: Path, dtype: mx.Dtype | None, progress: Progress | None
) -> WrittenWeights:
    """Read all tensors of a checkpoint into memory, and write them to a safetensors file."""
    tensors = read_all(checkpoint)
    for name in one_by_one(sorted(tensors), "convert", progress):
        array = tensors[name] if dtype is None or name in STATISTICS_TENSORS else tensors[name].astype(dtype)
        # Evaluated one by one, so that no more than one tensor exists in two layouts or two dtypes.
        tensors[name] = mx.contiguous(array)
        mx.eval(tensors[name])
        del array
        if dtype is not None and count_nonfinite(tensors[name]):
            raise CheckpointError(
                f"{checkpoint.name}: tensor {name} has values that are not finite in {dtype_name(dtype)}; use bfloat16 "
                "or float32."
            )
    config = json.dumps({"vae": checkpoint.raw_config})
    metadata = {"format": "mlx", WEIGHT_LAYOUT_KEY: WeightLayout.CHANNELS_LAST.value, "config": config}
    if (version := checkpoint.stated_version) is not None:  # its name states it, and the folder has another one
        metadata[VERSION_KEY] = ".".join(map(str, version))
    with disk_errors():
        mx.save_safetensors(str(path), tensors, metadata)
    return WrittenWeights(
        tensors=len(tensors),
        parameters=sum(array.size for array in tensors.values()),
        bytes=sum(array.nbytes for array in tensors.values()),
        dtypes=tuple(sorted({dtype_name(array.dtype) for array in tensors.values()})),
    )


def _make_card(conversion: Conversion, checkpoint: Checkpoint) -> str:
    written, config = conversion.written, checkpoint.config
    is_audio = checkpoint.medium is AUDIO
    calls = _AUDIO_CALLS if is_audio else _CALLS
    description = checkpoint.family.describe(config)
    widths = {name: description.get(name, {}).get("widths") for name in conversion.networks}
    width_facts = {f"{name} widths": f"{' -> '.join(map(str, w))} channels" for name, w in widths.items() if w}
    statistics = " (the statistics of the latents are always float32)" if checkpoint.statistics else ""
    facts = {
        "networks": " and ".join(conversion.networks),
        "latents": _describe_latents(checkpoint),
        **width_facts,
        "size": f"{format_bytes(written.bytes)}: {written.parameters:,} parameters in {written.tensors} tensors",
        "dtype": " and ".join(written.dtypes) + statistics,
        "weight layout": f"({WeightLayout.CHANNELS_LAST.value})",
        "source": f"`{printable(conversion.source)}`",
        "converter": f"mlx_ltx_vae {__version__}",
    }
    return _CARD.format(
        generation=conversion.generation,
        kind="audio VAE and vocoder" if is_audio else "video VAE",
        tag="audio" if is_audio else "video",
        class_name="AudioVAE" if is_audio else "VideoVAE",
        facts="\n".join(f"| {name} | {value} |" for name, value in facts.items()),
        verification=conversion.verification,
        calls="\n".join(calls[network] for network in conversion.networks if network in calls),
    )


def _describe_latents(checkpoint: Checkpoint) -> str:
    config = checkpoint.config
    if checkpoint.medium is AUDIO:
        audio = cast(AudioConfig, config)
        return f"{audio.channels} channels of {audio.bins} bins, {audio.latents_per_second:g} per second"
    time, height, width = config.scale
    return f"{config.latent_channels} channels; a cell is {time} frames of {format_size(width, height)}"
