"""Find and open the files of a checkpoint: a file, a folder, or a hub repository."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import CheckpointError
from ..models import families
from ..models.base import Family, Found
from .files import Archive, open_archive
from .hub import fetch, parse_reference
from .weight_files import WeightFiles, choose_weights, is_index, shards_beside

# The depth of the deepest published layout: vae/decoder/model.safetensors.
_PATTERNS = ("*.safetensors*", "*/*.safetensors*", "*/*/*.safetensors*")


class Location(NamedTuple):
    """Opened files, and the folders that may contain their configuration. `name` is for error messages."""

    name: str
    archives: list[Archive]
    folders: list[Path]


def locate(source: str | os.PathLike) -> Location:
    """Read the headers of the files that contain the VAE."""
    try:
        path = Path(source).expanduser()
        is_folder, exists = path.is_dir(), path.exists()
    except (OSError, RuntimeError) as error:  # a name that is too long, or the home of an unknown user
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(f"{str(source)[:200]}: cannot be a path ({reason}); check it.") from error
    if is_folder:
        name, archives = path.resolve().name, _open_folder(path)
    elif exists:
        name, archives = path.name, [_open_file(path)]
    else:
        reference = parse_reference(source) if isinstance(source, str) else None
        if reference is None:
            hint = " (a file on the hub is owner/name:FILE)" if path.parts[2:] and not path.is_absolute() else ""
            raise CheckpointError(f"{path}: no such file or folder{hint}; check the path.")
        name, archives = str(source), [open_archive(*paths) for paths in fetch(*reference)]
    folders = [archive.path.parent for archive in archives] + ([path] if is_folder else [])
    return Location(name, archives, list(dict.fromkeys(folders)))


def recognize(archives: Sequence[Archive]) -> tuple[Family[Any], list[Found]]:
    """The family of which the archives have the most networks, and what it finds in each; the first among equals."""
    shapes = [{name: info.shape for name, info in archive.tensors.items()} for archive in archives]
    results = [(family, [family.find(each) for each in shapes]) for family in families.FAMILIES]
    return max(results, key=lambda result: _count(result[1]))


def _count(found: Sequence[Found]) -> tuple[int, int]:
    """The number of networks, then that of unsupported ones."""
    return len({name for part in found for name in part.networks}), sum(len(part.unsupported) for part in found)


def _open_file(path: Path) -> Archive:
    """A file or an index; for a shard, the whole set."""
    shards = shards_beside(path.name, (found.name for found in path.parent.glob("*.safetensors")))
    return open_archive(*(path.parent / name for name in shards or (path.name,)))


def _open_folder(folder: Path) -> list[Archive]:
    names = sorted(found.relative_to(folder).as_posix() for pattern in _PATTERNS for found in folder.glob(pattern))
    choices = choose_weights(names)
    if len(choices) == 1:
        return [open_archive(*(folder / name for name in files)) for files in choices[0]]
    return [_find_vae(folder, [files for (files,) in choices])]


def _find_vae(folder: Path, candidates: Sequence[WeightFiles]) -> Archive:
    """The one set among `candidates` whose headers have a video VAE. Shards that an index names are not candidates."""
    found: dict[str, Archive] = {}
    failures: list[CheckpointError] = []
    in_indexes: set[Path] = set()
    for files in sorted(candidates, key=lambda files: not is_index(files[0])):
        paths = [folder / name for name in files]
        if in_indexes.issuperset(paths):
            continue
        try:
            archive = open_archive(*paths)
            if is_index(files[0]):
                in_indexes.update(info.path for info in archive.tensors.values())
            if any(part.networks for part in recognize([archive])[1]):
                found[files[0]] = archive
        except CheckpointError as error:
            failures.append(error)
    if len(found) > 1:
        raise CheckpointError(f"{folder}: several files contain a VAE; give one of {', '.join(sorted(found))}.")
    if found:
        return found.popitem()[1]
    if failures:
        raise failures[0]
    shown = ", ".join(files[0] for files in candidates) or "no safetensors file"
    raise CheckpointError(f"{folder}: expected a safetensors file with a video VAE and found {shown}; give the file.")
