"""What a conversion returns, and the model card that describes it."""

from dataclasses import dataclass

from .. import __version__
from ..checkpoint import Checkpoint
from ..checkpoint.stored_network import WeightLayout
from ..errors import printable
from ..shapes import format_size
from ..units import format_bytes
from .verify import Verification

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


def make_card(conversion: Conversion, checkpoint: Checkpoint) -> str:
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
