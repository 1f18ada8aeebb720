"""The model card of a converted folder."""

from .. import __version__
from ..checkpoint.weight_layout import WeightLayout
from ..models.video_vae.config import NetworkConfig, VAEConfig
from ..shapes import format_size
from ..units import GB
from .result import Conversion

_CARD = """\
---
library_name: mlx
tags:
- mlx
- video
- vae
- ltx-video
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


def make_card(conversion: Conversion, config: VAEConfig) -> str:
    """The text of `README.md` for a verified conversion of a VAE with this configuration."""
    written = conversion.written
    configs = {"encoder": config.encoder, "decoder": config.decoder}
    time, height, width = config.scale
    facts = {
        "networks": " and ".join(conversion.networks),
        "latents": f"{config.latent_channels} channels; a cell is {time} frames of {format_size(width, height)}",
        **{f"{network} widths": _widths(configs[network]) for network in conversion.networks},
        "size": f"{written.bytes / GB:.3f} GB: {written.parameters:,} parameters in {written.tensors} tensors",
        "dtype": " and ".join(written.dtypes) + " (the statistics of the latents are always float32)",
        "weight layout": f"({WeightLayout.CHANNELS_LAST.value})",
        "source": f"`{conversion.source}`",
        "converter": f"mlx_ltx_vae {__version__}",
    }
    return _CARD.format(
        generation=conversion.generation,
        facts="\n".join(f"| {name} | {value} |" for name, value in facts.items()),
        verification=conversion.verification,
        calls="\n".join(_CALLS[network] for network in conversion.networks),
    )


def _widths(network: NetworkConfig) -> str:
    """The distinct widths along a network: "512 -> 256 -> 128 channels"."""
    widths = [network.first_width]
    widths += [block.out_channels for block in network.blocks if block.out_channels != block.in_channels]
    return " -> ".join(map(str, widths)) + " channels"
