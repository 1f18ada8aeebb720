"""The model card of a converted folder: what it holds, what it was made of, and how to use it. Nothing is claimed."""

from mlx_ltx_vae import __version__
from mlx_ltx_vae.checkpoint.weight_layout import KernelLayout
from mlx_ltx_vae.models.video_vae.config import NetworkConfig, VAEConfig

from .tensors import Written
from .verify import Verification

_LICENSES = "https://huggingface.co/Lightricks"

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

Converted by `weights_convert` of `mlx_ltx_vae`, which compared this folder with its source before it got its name:
{verification}.

The fingerprint is the SHA-256 of a list, sorted by tensor name, with a line `<SHA-256 of the tensor's bytes>  <name>`
for each tensor as it is named and laid out here and in the source's own dtype. It is the same for every file of these
weights, however that stores them.

## Use

```python
from mlx_ltx_vae import VideoVAE

vae = VideoVAE.from_pretrained("FOLDER")  # this folder, or its id on the hub
{calls}
```

## Licence

The weights keep the licence of their source, which a conversion does not change and this card cannot know. LTX weights
are under licences of Lightricks' own: each release's is in its repository at <{licenses}>. Whoever publishes this
folder names that licence here and adds its text.
"""
_CALLS = {
    "decoder": "pixels = vae.decode(latents)  # (B, C, F', H', W') -> (B, 3, F, H, W) in [-1, 1]",
    "encoder": "latents = vae.encode(pixels)  # (B, 3, F, H, W) in [-1, 1] -> (B, C, F', H', W')",
}


def make_card(source: str, config: VAEConfig, halves: list[str], written: Written, verification: Verification) -> str:
    """The text of `README.md`.

    Args:
        source: the name of what was converted.
        config: of the VAE.
        halves: "encoder", "decoder" or both, as they are in the folder.
        written: what its file of tensors holds.
        verification: what came of holding it against the source.
    """
    networks = {"encoder": config.encoder, "decoder": config.decoder}
    scale = config.scale
    facts = {
        "holds": " and ".join(halves),
        "latents": f"{config.latent_channels} channels; a cell is {scale.time} frames of {scale.width}x{scale.height}",
        **{f"{half} widths": _widths(networks[half]) for half in halves},
        "size": f"{written.bytes / 1e9:.3f} GB: {written.parameters:,} parameters in {written.tensors} tensors",
        "dtype": " and ".join(written.dtypes) + " (the statistics of the latents are always float32)",
        "kernels": f"({KernelLayout.MLX.value})",
        "source": f"`{source}`",
        "fingerprint": f"`{written.fingerprint}`",
        "converter": f"mlx_ltx_vae {__version__}",
    }
    return _CARD.format(
        generation=config.generation,
        facts="\n".join(f"| {name} | {value} |" for name, value in facts.items()),
        verification=verification,
        calls="\n".join(_CALLS[half] for half in halves),
        licenses=_LICENSES,
    )


def _widths(network: NetworkConfig) -> str:
    widths = [network.first_width, *(block.out_channels for block in network.blocks)]
    changes = [width for width, before in zip(widths, [None, *widths], strict=False) if width != before]
    return " -> ".join(map(str, changes)) + " channels"
