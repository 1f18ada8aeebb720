"""Find the configuration of a checkpoint: in the metadata of its files, or in a JSON file beside them."""

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
    """The first configuration of a whole VAE, in the vocabulary of the original or of diffusers, or None.

    The metadata is searched first, then `config.json` and `embedded_config.json` in `folders`. Configurations of
    anything else are skipped: a transformer, a single network in a port's own vocabulary, and, in JSON files, the
    diffusion decoder. (A pack may contain both decoders, and `find_network` has rejected the tensors of that one.)

    Raises:
        CheckpointError: the metadata entry or a file is not JSON.
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
                    f"{archive.path}: its metadata entry 'config' is not JSON ({error}); download the file again."
                ) from error


def _files_beside(folders: Sequence[Path]) -> Iterator[object]:
    for folder in folders:
        for name in CONFIG_NAMES:
            if (folder / name).is_file():
                yield read_json(folder / name)


def _vae_entry(content: object) -> dict[str, Any] | None:
    """The part that configures a whole VAE: the entry `vae`, the whole object, or None."""
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
