"""Where a checkpoint says what it is: the metadata of its files, or a JSON file beside them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from .diffusers import is_diffusers_config
from .files import Archive, read_json
from .folder import CONFIG_NAMES

_DIFFUSION_CLASS = "CausalDiffusionVAE"
_CLASSES = ("CausalVideoAutoencoder", _DIFFUSION_CLASS)


def find_config(archives: Sequence[Archive], folders: Sequence[Path]) -> dict[str, Any] | None:
    """The first configuration of a whole VAE, in the original vocabulary or in diffusers', or None.

    Metadata comes first, then `config.json` and `embedded_config.json` in `folders`. What configures something else
    is passed by: a transformer, one half in a port's own vocabulary, the diffusion decoder that shares a pack with
    the convolutional one (whose own tensors would have told by now).

    Raises:
        CheckpointError: the metadata entry or a file is no JSON.
    """
    for content in _metadata(archives):
        entry = _vae_entry(content)
        if entry is not None:
            return entry
    for content in _files_beside(folders):
        entry = _vae_entry(content)
        if entry is not None and entry.get("_class_name") != _DIFFUSION_CLASS:
            return entry
    return None


def _metadata(archives: Sequence[Archive]) -> Iterator[object]:
    for archive in archives:
        if "config" in archive.metadata:
            try:
                yield json.loads(archive.metadata["config"])
            except (TypeError, ValueError) as error:
                raise CheckpointError(
                    f"{archive.path}: its metadata entry 'config' is no JSON ({error}); download the file again."
                ) from error


def _files_beside(folders: Sequence[Path]) -> Iterator[object]:
    for folder in folders:
        for name in CONFIG_NAMES:
            if (folder / name).is_file():
                yield read_json(folder / name)


def _vae_entry(content: object) -> dict[str, Any] | None:
    """The part that configures a whole VAE: the entry `vae`, or everything."""
    for raw in (content.get("vae"), content) if isinstance(content, Mapping) else ():
        if isinstance(raw, Mapping) and _configures_a_vae(raw):
            return dict(raw)
    return None


def _configures_a_vae(raw: Mapping[str, Any]) -> bool:
    return (
        "blocks" in raw
        or {"encoder_blocks", "decoder_blocks"} <= raw.keys()
        or raw.get("_class_name") in _CLASSES
        or is_diffusers_config(raw)
    )
