"""The configuration of a projection, which states what its tensors do not. No MLX."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import CheckpointError, quote
from ...shapes import DEFAULT_SCALE, Scaled, ScaleFactors

_MAX_FACTOR = 1024


@dataclass(frozen=True)
class LatentRGBConfig(Scaled):
    """A linear projection from a latent cell to a square of pixels.

    Attributes:
        patch_size: pixels per latent cell along each side of a picture.
        cell: pixels of the video per latent cell. There is one picture for every `cell.time` frames.
        vae: the VAE to whose decodes it was fitted.
        psnr: in dB, of pictures that it was not fitted to, against that decode at their size.
    """

    latent_channels: int
    patch_size: int
    cell: ScaleFactors = DEFAULT_SCALE
    vae: str | None = None
    psnr: float | None = None
    generation: str = "latent_rgb"

    @property
    def scale(self) -> ScaleFactors:
        return self.cell


def parse_config(raw: Mapping[str, Any], latent_channels: int, patch_size: int, source: str) -> LatentRGBConfig:
    """The configuration from the JSON object of a checkpoint and the sizes of its tensors."""
    checks = {
        "scale": (_is_scale, f"three whole numbers from 1 to {_MAX_FACTOR}"),
        "vae": (lambda value: isinstance(value, str), "a string"),
        "psnr": (_is_number, "a number"),
    }
    for key, value in raw.items():
        if key not in checks:
            raise CheckpointError(f"{source}: its configuration has the unknown key {quote(key, 40)}; remove it.")
        is_valid, expected = checks[key]
        if not is_valid(value):
            raise CheckpointError(f"{source}: its configuration has {key} = {quote(value)}; expected {expected}.")
    cell = ScaleFactors(*raw.get("scale", DEFAULT_SCALE))
    return LatentRGBConfig(latent_channels, patch_size, cell, raw.get("vae"), raw.get("psnr"))


def _is_scale(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 3 and all(map(_is_factor, value))


def _is_factor(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MAX_FACTOR


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < float("inf")
