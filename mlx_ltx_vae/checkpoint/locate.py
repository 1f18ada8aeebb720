"""Find and open the files of a checkpoint: a file, a folder, or a hub repository."""

import os
from dataclasses import dataclass
from pathlib import Path

from ..errors import CheckpointError
from .files import Archive, open_archive
from .folder import AmbiguousFolder, choose_weights
from .hub import fetch, parse_reference
from .original import NETWORKS, find_network

# The depth of the deepest published layout: vae/decoder/model.safetensors.
_PATTERNS = ("*.safetensors*", "*/*.safetensors*", "*/*/*.safetensors*")


@dataclass(frozen=True)
class Location:
    """Opened files, and the folders that may contain their configuration. `name` is for error messages."""

    name: str
    archives: list[Archive]
    folders: list[Path]


def locate(source: str | os.PathLike) -> Location:
    """Read the headers of the files that contain the VAE.

    Raises:
        CheckpointError: the file, folder or repository does not exist, or several files may contain the VAE.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        archives = _open_folder(path)
        return Location(path.resolve().name, archives, [*_parents(archives), path])
    if path.exists():
        archives = [open_archive(path)]
        return Location(path.name, archives, _parents(archives))
    reference = parse_reference(source) if isinstance(source, str) else None
    if reference is None:
        raise CheckpointError(f"{path}: no such file or folder; check the path.")
    archives = [open_archive(found) for found in fetch(reference)]
    return Location(str(source), archives, _parents(archives))


def _parents(archives: list[Archive]) -> list[Path]:
    return list(dict.fromkeys(archive.path.parent for archive in archives))


def _open_folder(folder: Path) -> list[Archive]:
    names = sorted(found.relative_to(folder).as_posix() for pattern in _PATTERNS for found in folder.glob(pattern))
    try:
        return [open_archive(folder / name) for name in choose_weights(names)]
    except AmbiguousFolder as error:
        return [_find_vae(folder, error.candidates)]


def _find_vae(folder: Path, candidates: tuple[str, ...]) -> Archive:
    """The one file among `candidates` whose header has a video VAE."""
    found: dict[str, Archive] = {}
    failures: list[CheckpointError] = []
    for name in candidates:
        try:
            archive = open_archive(folder / name)
            if any(find_network(archive, network) for network in NETWORKS):
                found[name] = archive
        except CheckpointError as error:
            failures.append(error)
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        raise CheckpointError(f"{folder}: several files contain a VAE; give one of {', '.join(found)}.")
    if failures:
        raise failures[0]
    shown = ", ".join(candidates) or "no safetensors file"
    raise CheckpointError(f"{folder}: expected a safetensors file with a video VAE and found {shown}; give the file.")
