"""From what a user names to opened files: a path, a folder, or a repository on the hub."""

import os
from dataclasses import dataclass
from pathlib import Path

from ..errors import CheckpointError
from .files import Archive, open_archive
from .folder import AmbiguousFolder, choose_weights
from .hub import fetch, parse_reference
from .original import HALVES, half_names

# As deep as any known layout goes: vae/decoder/model.safetensors.
_PATTERNS = ("*.safetensors*", "*/*.safetensors*", "*/*/*.safetensors*")


@dataclass(frozen=True)
class Location:
    """Files by header, and the folders in which a configuration may lie beside them."""

    name: str
    archives: list[Archive]
    folders: list[Path]


def locate(source: str | os.PathLike) -> Location:
    """Open the headers of the files that hold the VAE.

    Raises:
        CheckpointError: no such file, folder or repository, or several files come into question.
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
        return [_the_one_with_a_vae(folder, error.candidates)]


def _the_one_with_a_vae(folder: Path, candidates: tuple[str, ...]) -> Archive:
    """Where names do not settle it, headers may."""
    found: dict[str, Archive] = {}
    failures: list[CheckpointError] = []
    for name in candidates:
        try:
            archive = open_archive(folder / name)
            if any(half_names(archive, half) for half in HALVES):
                found[name] = archive
        except CheckpointError as error:
            failures.append(error)
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        raise CheckpointError(f"{folder}: several files hold a VAE; name one of {', '.join(found)}.")
    if failures:
        raise failures[0]
    there = ", ".join(candidates) or "no safetensors file"
    raise CheckpointError(f"{folder}: expected a safetensors file with a video VAE and found {there}; name the file.")
