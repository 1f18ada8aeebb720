"""Latent files for galleries, and what a page says of them, read from its text."""

import json
import re
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlx_ltx_vae import demo, load_latents
from mlx_ltx_vae.commands.gallery_page import GalleryClip, read_picks, write_page

__all__ = ["RGB", "read_cards", "read_picks", "save_clip", "write_cards"]

RGB = ["-m", str(demo.LATENT_RGB)]


def save_clip(path: Path, *, frames: int = 2, **metadata: str) -> Path:
    """Write a clip of `frames` latent frames, with metadata as other programs write it."""
    latents, _ = load_latents(demo.LATENTS)
    path.parent.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(path), {"latents": latents[:, :, :frames, :4, :6]}, {"fps": "24", **metadata})
    return path


def read_cards(page: Path) -> list[dict[str, Any]]:
    """The cards of a page, by a pattern of its lines."""
    pattern = r'<script type="application/json" class="clip">(.*)</script>'
    return [json.loads(text) for text in re.findall(pattern, page.read_text("ascii", "replace"))]


def write_cards(
    page: Path, cards: list[dict[str, Any]], *, is_watched: bool = True, marks: dict[str, Any] | None = None
) -> None:
    """Write a page of these cards, which `read_cards` has read from another, with the marks of a list."""
    clips = [GalleryClip(**{name: value for name, value in card.items() if name != "data"}) for card in cards]
    write_page(page, clips, is_watched=is_watched, is_complete=True, marks=marks or {})
