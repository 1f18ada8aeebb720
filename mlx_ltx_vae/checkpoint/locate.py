"""Find and open the files of a checkpoint: a file, a folder, or a hub repository."""

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import CheckpointError, check_is_path, excerpt
from ..files import expand_home, explain_missing
from ..models.base import PICTURES, SOUND, Family, Found, Medium
from ..models.families import families_of
from .files import Archive, open_archive
from .hub import fetch, list_some, parse_reference
from .weight_files import (
    CONFIG_NAMES,
    WeightFiles,
    choose_file,
    is_index,
    list_weights,
    own_config_names,
    prefer_convolutional,
    shards_beside,
)

# The depth of the deepest published layout: vae/decoder/model.safetensors.
_PATTERNS = ("*.safetensors*", "*/*.safetensors*", "*/*/*.safetensors*")


class Location(NamedTuple):
    """Opened files, and where their configuration may be, the most specific first. `name` is for error messages."""

    name: str
    archives: list[Archive]
    config_files: list[Path]


def locate(source: str | os.PathLike, medium: Medium = PICTURES) -> Location:
    """Read the headers of the files that contain the VAE of pictures or of sound.

    `source` is a file, a folder, "folder:file" for one of the VAEs in it, or "owner/name" or "owner/name:file" on the
    hub. What exists as a path is a path, colons included.
    """
    check_is_path(source, CheckpointError)
    path = expand_home(source)
    is_folder, exists = os.path.isdir(path), os.path.exists(path)
    if is_folder:
        name, archives = path.resolve().name, _open_folder(path, medium)
    elif exists:
        name, archives = path.name, [_open_file(path)]
    elif named := _split(path):
        is_folder, (path, file) = True, named
        name, archives = f"{path.resolve().name}:{file}", _open_named(path, file, medium)
    else:
        reference = parse_reference(source) if isinstance(source, str) else None
        if reference is None:
            hint = " (a file on the hub is owner/name:FILE)" if path.parts[2:] and not path.is_absolute() else ""
            found = explain_missing(path, "file or folder").rstrip(".")
            raise CheckpointError(f"{excerpt(path, 200)}: {found}{hint}; check the path.")
        name, archives = str(source), [open_archive(*paths) for paths in fetch(*reference, is_audio=medium is SOUND)]
    files = [archive.path for archive in archives]
    own = [file.with_name(config) for file in files for config in own_config_names(file.name)]
    folders = dict.fromkeys([file.parent for file in files] + ([path] if is_folder else []))
    return Location(name, archives, own + [folder / config for folder in folders for config in CONFIG_NAMES])


def recognize(
    archives: Sequence[Archive], medium: Medium = PICTURES, wanted: Collection[str] = ()
) -> tuple[Family[Any], list[Found]]:
    """The family of which the archives have the most of the `wanted` networks, and what it finds in each archive.

    Among equals, the first that finds any network. An encoder alone may be that of several families. By default all
    networks of the medium are wanted.
    """
    shapes = [{name: info.shape for name, info in archive.tensors.items()} for archive in archives]
    results = [(family, [family.find(each) for each in shapes]) for family in families_of(medium)]

    def rank(result: tuple[Family[Any], list[Found]]) -> tuple[int, bool]:
        names = {name for part in result[1] for name in part.networks}
        return len(names.intersection(wanted or medium.networks)), bool(names)

    return max(results, key=rank)


def _open_file(path: Path) -> Archive:
    """A file or an index; for a shard, the whole set."""
    shards = shards_beside(path.name, (found.name for found in path.parent.glob("*.safetensors")))
    return open_archive(*(path.parent / name for name in shards or (path.name,)))


def _split(path: Path) -> tuple[Path, str] | None:
    """The folder and the name in it of "folder:name"; None if there is no such folder."""
    *heads, tail = str(path).split(":")
    while heads:
        folder = Path(":".join(heads))
        if tail and os.path.isdir(folder):
            return folder, tail
        tail = f"{heads.pop()}:{tail}"
    return None


def _open_named(folder: Path, file: str, medium: Medium) -> list[Archive]:
    """A file of a folder; of a pack with a file per network, also those that belong to it (see `choose_file`)."""
    names = _names_in(folder)
    if not os.path.isfile(folder / file):
        listing = list_some(names) or "no safetensors file at all"
        raise CheckpointError(f"{folder}: has no file {excerpt(file)}; name one as {folder}:FILE out of {listing}.")
    return _open(folder, choose_file(names, file, is_audio=medium is SOUND))


def _names_in(folder: Path) -> list[str]:
    try:  # `glob` passes over what cannot be read
        os.listdir(folder)
        os.stat(folder / os.pardir)
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be read ({error.strerror}); check its permissions.") from error
    return sorted(found.relative_to(folder).as_posix() for pattern in _PATTERNS for found in folder.glob(pattern))


def _open_folder(folder: Path, medium: Medium) -> list[Archive]:
    choices = list_weights(_names_in(folder), is_audio=medium is SOUND)
    return _open(folder, choices[0]) if len(choices) == 1 else _find_vae(folder, choices, medium)


def _open(folder: Path, sets: Sequence[WeightFiles]) -> list[Archive]:
    return [open_archive(*(folder / name for name in files)) for files in sets]


def _find_vae(folder: Path, choices: Sequence[tuple[WeightFiles, ...]], medium: Medium) -> list[Archive]:
    """The one choice whose last set has a VAE by its headers. Shards that an index names are not choices."""
    found: dict[str, list[Archive]] = {}
    failures: list[CheckpointError] = []
    in_indexes: set[Path] = set()
    for choice in sorted(choices, key=lambda choice: not is_index(choice[-1][0])):
        if in_indexes.issuperset(folder / name for name in choice[-1]):
            continue
        try:
            archives = _open(folder, choice)
            if is_index(choice[-1][0]):
                in_indexes.update(info.path for info in archives[-1].tensors.values())
            if any(part.networks for part in recognize(archives[-1:], medium)[1]):
                found[choice[-1][0]] = archives
        except CheckpointError as error:
            failures.append(error)
    names = prefer_convolutional(sorted(found)) if medium is PICTURES else sorted(found)
    if len(names) > 1:
        listing = list_some(names)
        raise CheckpointError(f"{folder}: several files contain a VAE; give one of {listing}, as {folder}:FILE.")
    if names:
        return found[names[0]]
    if failures:
        raise failures[0]
    shown = ", ".join(choice[-1][0] for choice in choices) or "no safetensors file"
    raise CheckpointError(f"{folder}: expected a safetensors file with {medium.noun} and found {shown}; give the file.")
