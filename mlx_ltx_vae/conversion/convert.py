"""`convert_checkpoint`: write a checkpoint to a folder that appears only when it is complete and verified."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from .. import __version__
from ..backend.dtypes import dtype_name
from ..backend.mlx_utils import count_nonfinite
from ..checkpoint import Checkpoint, open_checkpoint
from ..checkpoint.stored_network import LAYOUT_KEY, WeightLayout
from ..errors import CheckpointError, printable
from ..files.atomic import part_folder, writing_to
from ..shapes import format_size
from ..units import format_bytes
from .verify import STATISTICS, Progress, Verification, one_by_one, read_all, verify_conversion

_CARD = """\
---
library_name: mlx
tags: [mlx, video, vae, ltx-video]
---

# LTX video VAE for MLX: {generation}

| | |
|---|---|
{facts}

Converted by `mlx_ltx_vae` and compared with the source:
{verification}.

## Use

```python
from mlx_ltx_vae import VideoVAE

vae = VideoVAE.from_pretrained("FOLDER")  # this folder, or its repository on the hub
{calls}
```

## License

The weights keep the license of their source. Lightricks publishes LTX weights under its own licenses; each release's is
in its repository at <https://huggingface.co/Lightricks>. If you publish this folder, name that license here and add its
text.
"""
_CALLS = {
    "decoder": "pixels = vae.decode(latents)  # (B, C, F', H', W') -> (B, 3, F, H, W) in [-1, 1]",
    "encoder": "latents = vae.encode(pixels)  # (B, 3, F, H, W) in [-1, 1] -> (B, C, F', H', W')",
}


@dataclass(frozen=True)
class Written:
    """The content of `model.safetensors`: counts of tensors, parameters and bytes, and its dtypes, sorted."""

    tensors: int
    parameters: int
    bytes: int
    dtypes: tuple[str, ...]


@dataclass(frozen=True)
class Conversion:
    """A finished conversion of the checkpoint `source` to the folder `output`."""

    source: str
    output: str
    generation: str
    networks: tuple[str, ...]
    written: Written
    verification: Verification


def convert_checkpoint(
    checkpoint: Checkpoint,
    folder: str | os.PathLike,
    *,
    dtype: mx.Dtype | None = None,
    progress: Progress | None = None,
) -> Conversion:
    """Write `config.json`, `model.safetensors` and a model card `README.md`, and verify them.

    One VAE is in memory at a time: the written one, then, for the verification, the source and the result in turn.

    Args:
        checkpoint: the source; the networks with which it was opened are converted.
        folder: must not exist, or be empty. It appears when it is complete and verified; a failure leaves nothing.
        dtype: for everything but the statistics of the latents; None to keep each tensor's dtype.

    Raises:
        WriterError: the folder cannot be written.
        LTXVAEError: the source cannot be loaded, or the verification failed; see `verify_conversion`.
    """
    folder = Path(folder).expanduser().resolve()
    with part_folder(folder) as part:
        with writing_to(folder):
            (part / "config.json").write_text(json.dumps(checkpoint.raw_config, indent=2) + "\n", encoding="utf-8")
            written = write_weights(checkpoint, part / "model.safetensors", dtype, progress)
        verification = verify_conversion(checkpoint, open_checkpoint(part), progress=progress)
        generation, networks = checkpoint.config.generation, tuple(checkpoint.networks)
        conversion = Conversion(checkpoint.name, str(folder), generation, networks, written, verification)
        with writing_to(folder):
            (part / "README.md").write_text(_make_card(conversion, checkpoint), encoding="utf-8")
    return conversion


def write_weights(
    checkpoint: Checkpoint, path: Path, dtype: mx.Dtype | None = None, progress: Progress | None = None
) -> Written:
    """Write all tensors of a checkpoint to a safetensors file. All of them are in memory when it is written."""
    tensors = read_all(checkpoint)
    for name in one_by_one(sorted(tensors), "convert", progress):
        if dtype is not None and name not in STATISTICS:
            tensors[name] = tensors[name].astype(dtype)
        # Evaluated one by one, so that no more than one tensor exists in two layouts or two dtypes.
        mx.eval(tensors[name])
        if dtype is not None and count_nonfinite(tensors[name]):
            raise CheckpointError(
                f"{checkpoint.name}: tensor {name} has values that are not finite in {dtype_name(dtype)}; use bfloat16 "
                "or float32."
            )
    metadata = {
        "format": "mlx",
        LAYOUT_KEY: WeightLayout.CHANNELS_LAST.value,
        "config": json.dumps({"vae": checkpoint.raw_config}),
    }
    try:
        mx.save_safetensors(str(path), tensors, metadata)
    except RuntimeError as error:
        raise OSError(f"{str(error).rstrip('.')}; check the free disk space") from error
    return Written(
        tensors=len(tensors),
        parameters=sum(array.size for array in tensors.values()),
        bytes=sum(array.nbytes for array in tensors.values()),
        dtypes=tuple(sorted({dtype_name(array.dtype) for array in tensors.values()})),
    )


def _make_card(conversion: Conversion, checkpoint: Checkpoint) -> str:
    """The text of `README.md` for a verified conversion of a checkpoint."""
    written, config = conversion.written, checkpoint.config
    time, height, width = config.scale
    description, widths = checkpoint.family.describe(config), {}
    for name in conversion.networks:
        (_, _, first_width), *layers = description.networks[name].layers
        changes = [after for _, before, after in layers[:-1] if after != before]
        widths[f"{name} widths"] = f"{' -> '.join(map(str, [first_width, *changes]))} channels"
    statistics = " (the statistics of the latents are always float32)" if checkpoint.statistics else ""
    facts = {
        "networks": " and ".join(conversion.networks),
        "latents": f"{config.latent_channels} channels; a cell is {time} frames of {format_size(width, height)}",
        **widths,
        "size": f"{format_bytes(written.bytes)}: {written.parameters:,} parameters in {written.tensors} tensors",
        "dtype": " and ".join(written.dtypes) + statistics,
        "weight layout": f"({WeightLayout.CHANNELS_LAST.value})",
        "source": f"`{printable(conversion.source)}`",
        "converter": f"mlx_ltx_vae {__version__}",
    }
    return _CARD.format(
        generation=conversion.generation,
        facts="\n".join(f"| {name} | {value} |" for name, value in facts.items()),
        verification=conversion.verification,
        calls="\n".join(_CALLS[network] for network in conversion.networks),
    )
