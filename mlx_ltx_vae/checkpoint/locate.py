"""Find and open the files of a checkpoint: a file, a folder, or a hub repository."""

import os
from dataclasses import dataclass
from pathlib import Path

from ..errors import CheckpointError
from .files import Archive, open_archive
from .hub import fetch, parse_reference
from .names import NETWORKS, AmbiguousFolder, choose_weights, find_network

# The depth of the deepest published layout: vae/decoder/model.safetensors.
_PATTERNS = ("*.safetensors*", "*/*.safetensors*", "*/*/*.safetensors*")


@dataclass(frozen=True)
class Location:
    """Opened files, and the folders that may contain their configuration. `name` is for error messages."""

    name: str
    archives: list[Archive]
    folders: list[Path]


def locate(source: str | os.PathLike) -> Location:
    """Read the headers of the files that contain the VAE."""
    path = Path(source).expanduser()
    if path.is_dir():
        name, archives = path.resolve().name, _open_folder(path)
    elif path.exists():
        name, archives = path.name, [open_archive(path)]
    else:
        reference = parse_reference(source) if isinstance(source, str) else None
        if reference is None:
            raise CheckpointError(f"{path}: no such file or folder; check the path.")
        name, archives = str(source), [open_archive(found) for found in fetch(reference)]
    folders = [archive.path.parent for archive in archives] + ([path] if path.is_dir() else [])
    return Location(name, archives, list(dict.fromkeys(folders)))


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
    if len(found) > 1:
        raise CheckpointError(f"{folder}: several files contain a VAE; give one of {', '.join(found)}.")
    if found:
        return found.popitem()[1]
    if failures:
        raise failures[0]
    shown = ", ".join(candidates) or "no safetensors file"
    raise CheckpointError(f"{folder}: expected a safetensors file with a video VAE and found {shown}; give the file.")
