"""Find and open the files of a checkpoint: a file, a folder, or a repository of the Hugging Face hub, also by its name.

`huggingface_hub` is imported where it is needed, since the import is slow.
"""

import glob
import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from ..errors import CheckpointError, excerpt, note, option, suggest
from ..files import MAX_HEADER_BYTES, expand_path, explain_missing, read_small_file
from ..model_table import HUB, PublishedModel, find_model, list_names
from ..networks import families
from ..networks.base import AUDIO, MEDIA, PICTURES, UPSAMPLERS, Family, Medium, NetworkTensors
from ..units import format_bytes
from .weight_files import (
    CONFIG_NAMES,
    Archive,
    WeightFiles,
    choose_file,
    choose_weights,
    file_config_names,
    is_index,
    list_weights,
    open_archive,
    prefer_convolutional,
    shard_names,
    shards_of_set,
)

# The depth of the deepest published layout: vae/decoder/model.safetensors.
_PATTERNS = ("*.safetensors*", "*/*.safetensors*", "*/*/*.safetensors*")
_NAMED_CANDIDATES = 8

_REFERENCE = re.compile(r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(?::(?P<inner>[^:]+))?")
# The address of a repository, or of a file or folder in it, in a browser; or "hf://owner/name/file".
_ADDRESS = re.compile(
    r"(?:hf://|(?:https?://)?(?:huggingface\.co|hf\.co)/)([^/]+/[^/?#]+)"
    r"(?:/(?:blob|resolve|tree)/[^/]+(?=[/?#]|$))?(?:/([^?#]+?))?/?(?:[?#].*)?"
)
_FILE_ENDINGS = (".safetensors", ".json", ".ckpt", ".pt", ".pth", ".bin", ".pkl", ".gguf", ".npy", ".npz", ".latent")
#: Files of an exported decode or encode, beside its functions.
EXPORT_FILES = ("decode.json", "encode.json", "weights.safetensors")
_LONGEST_NAME = 40  # characters of a mistyped short name
_LISTING_TIMEOUT = 20.0  # seconds


class Location(NamedTuple):
    """Opened files, and possible files of their configuration, the most specific first.

    `name` is for errors, and `short_name` is that of a published model, if the source was one. `is_file` is False for a
    folder. The archives of a file's partners in a pack come before its own.
    """

    name: str
    archives: list[Archive]
    config_files: list[Path]
    short_name: str = ""
    is_file: bool = True


def locate(source: str | os.PathLike, medium: Medium = PICTURES) -> Location:
    """Read the headers of the files that contain the VAE of pictures or of audio.

    `source` is a file, a folder, "folder:file" for one of the VAEs in it, a short name in `model_table`, or
    "owner/name" or "owner/name:file" on the hub. A `source` that exists as a path is a path, also with colons.
    """
    path = Path(expand_path(source, CheckpointError))
    is_folder, exists, short_name = os.path.isdir(path), os.path.exists(path), ""
    is_file = not is_folder
    if (export := read_export(path if exists else Path(*_split(path) or [path]))) is not None:
        raise CheckpointError(f"{path}: is an {export['kind']}, which is no VAE; give the VAE that was exported.")
    if is_folder:
        name, archives = path.resolve().name, _open_folder(path, medium)
    elif exists:  # a file or an index; for a shard, the whole set
        shards = shards_of_set(path.name, (file.name for file in path.parent.glob("*.safetensors")))
        name, archives = path.name, _open(path.parent, [shards or (path.name,)])
    elif folder_and_name := _split(path):
        is_folder, (path, file_name) = True, folder_and_name
        name, archives = f"{path.resolve().name}:{file_name}", _open_named(path, file_name, medium)
    elif isinstance(source, str) and (model := find_model(source, medium.kinds)):
        short_name, (name, folder, sets) = source, _fetch_model(model, source, medium)
        archives = _open(folder, sets)
        is_file = any(archive.path.match(name.partition(":")[2] or "/") for archive in archives)
    else:
        name = str(source)
        if medium is not UPSAMPLERS and find_model(name, UPSAMPLERS.kinds):
            raise upsampler_error(name, medium)
        reference = parse_reference(name) if isinstance(source, str) else None
        if reference is None:
            hint = " (a file on the hub is owner/name:FILE)" if path.parts[2:] and not path.is_absolute() else ""
            is_address = "://" in str(source)  # a `Path` makes "//" one "/"
            hint = " (it is an address; download it first)" if is_address else hint
            if isinstance(source, str) and (address := _ADDRESS.fullmatch(source)):
                hint = f" (did you mean {':'.join(filter(None, address.groups()))}?)"
            reason = explain_missing(path, "file or folder").rstrip(".")
            remedy = "check the path"
            is_word = path.parts == (str(source),) and len(str(source)) <= _LONGEST_NAME
            if not hint and is_word and not path.suffix[1:2].isalpha():  # perhaps a name
                names = list_names(medium.kinds)
                hint, remedy = suggest(str(source), names.split(", ")), f"check the path, or give one of {names}"
            raise CheckpointError(f"{excerpt(source if is_address else path, 200)}: {reason}{hint}; {remedy}.")
        repo, inner = reference
        archives = _open(*_fetch_files(_list_files(name), inner, medium))
        is_file = inner is not None and any(archive.path.match(inner) for archive in archives)
    if any("fingerprint" in archive.metadata for archive in archives):  # those that exports of several sizes share
        raise CheckpointError(f"{name}: has the weights of an export, which is no VAE; give the VAE that was exported.")
    files = [archive.path for archive in archives]
    config_files = [file.with_name(config) for file in files for config in file_config_names(file.name)]
    folders = dict.fromkeys([file.parent for file in files] + ([path] if is_folder else []))
    config_files += [folder / config for folder in folders for config in CONFIG_NAMES]
    return Location(name, archives, config_files, short_name, is_file)


def read_export(path: Path) -> dict[str, Any] | None:
    """Return the description of an exported decode or encode, whose folder or file the path is, and its `kind`.

    `None` for other paths.
    """
    folder = path.parent if path.name in EXPORT_FILES else path
    for name in EXPORT_FILES[:2]:
        with suppress(OSError, ValueError, RecursionError, AttributeError):  # the last of JSON that is no object
            content = json.loads(read_small_file(folder / name, MAX_HEADER_BYTES))
            if {"format", "fingerprint", "calls"} <= content.keys():
                return content | {"kind": f"exported {Path(name).stem}"}
    return None


def recognize(
    archives: Sequence[Archive], medium: Medium = PICTURES, requested: Collection[str] = ()
) -> tuple[Family[Any], list[NetworkTensors]]:
    """Return the family with the most of the `requested` networks in the archives, and its networks in each archive.

    Among equals, it is the first family that finds any network. An encoder alone may belong to several families. By
    default all networks of the medium are requested.
    """
    archive_shapes = [{name: info.shape for name, info in archive.tensors.items()} for archive in archives]
    networks, results = set(requested or medium.networks), []
    for family in (family for family in families.FAMILIES if family.medium is medium):
        parts = [family.find(shapes) for shapes in archive_shapes]
        names = {name for part in parts for name in part.networks}
        if networks <= names:  # no other family has more
            return family, parts
        rank = len(networks & names), bool(names)
        results.append((rank, family, parts))
    _, family, parts = max(results, key=lambda result: result[0])
    return family, parts


def has_networks(archives: Sequence[Archive], medium: Medium = PICTURES) -> bool:
    """Return whether a network of the medium is in the archives."""
    return any(part.networks for part in recognize(archives, medium)[1])


def upsampler_error(name: str, medium: Medium) -> CheckpointError:
    """Return the error for a latent upsampler instead of a VAE."""
    way = option("LatentUpsampler.from_pretrained opens it", "the command upscale takes it, before decode")
    return CheckpointError(f"{name}: is a latent upsampler, and not {medium.noun}; {way}.")


def list_some(names: Sequence[str]) -> str:
    """List the first names in one text, for an error message."""
    return ", ".join(names[:_NAMED_CANDIDATES]) + (" ..." if len(names) > _NAMED_CANDIDATES else "")


def _open(folder: Path, sets: Sequence[WeightFiles]) -> list[Archive]:
    return [open_archive(*(folder / name for name in files)) for files in sets]


def _split(path: Path) -> tuple[Path, str] | None:
    """Split "folder:name" into the folder and the name in it. Returns `None` if there is no such folder."""
    *heads, tail = str(path).split(":")
    while heads:
        folder = Path(":".join(heads))
        if tail and os.path.isdir(folder):
            return folder, tail
        tail = f"{heads.pop()}:{tail}"
    return None


def _names_in(folder: Path) -> list[str]:
    try:  # `glob` skips folders that cannot be read
        os.listdir(folder)
        os.stat(folder / os.pardir)
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be read ({error.strerror}); check its permissions.") from error
    return sorted(path.relative_to(folder).as_posix() for pattern in _PATTERNS for path in folder.glob(pattern))


def _of_medium(names: list[str], medium: Medium) -> list[str]:
    """Return the names of files in a folder without those beside the upsampler of a pipeline, if one is wanted."""
    return (medium is UPSAMPLERS and [name for name in names if name.startswith("latent_upsampler/")]) or names


def _open_named(folder: Path, file: str, medium: Medium) -> list[Archive]:
    """Open a file of a folder. In a pack with a file per network, also open its partners (see `choose_file`)."""
    names = _names_in(folder)
    if not os.path.isfile(folder / file):
        listing = list_some(names) or "no safetensors file at all"
        raise CheckpointError(f"{folder}: has no file {excerpt(file)}; name one as {folder}:FILE out of {listing}.")
    return _open(folder, choose_file(names, file, is_audio=medium is AUDIO))


def _open_folder(folder: Path, medium: Medium) -> list[Archive]:
    """Open the one choice in a folder whose last set has a VAE by its headers. Shards of an index are no choices."""
    choices = list_weights(_of_medium(_names_in(folder), medium), is_audio=medium is AUDIO)
    if len(choices) == 1:
        return _open(folder, choices[0])
    archives_by_name: dict[str, list[Archive]] = {}
    failures: list[CheckpointError] = []
    in_indexes: set[Path] = set()
    for choice in sorted(choices, key=lambda choice: not is_index(choice[-1][0])):
        if in_indexes.issuperset((folder / name).absolute() for name in choice[-1]):
            continue
        try:
            archives = _open(folder, choice)
            if is_index(choice[-1][0]):
                in_indexes.update(info.path for info in archives[-1].tensors.values())
            if has_networks(archives[-1:], medium):
                archives_by_name[choice[-1][0]] = archives
        except CheckpointError as error:
            failures.append(error)
    names = sorted(archives_by_name)
    if medium is PICTURES:
        names = prefer_convolutional(names)
    if len(names) > 1:
        listing = list_some(names)
        noun = "a VAE" if medium is PICTURES else medium.noun
        raise CheckpointError(f"{folder}: several files contain {noun}; give one of {listing}, as {folder}:FILE.")
    if names:
        return archives_by_name[names[0]]
    if failures:
        raise failures[0]
    listing = ", ".join(choice[-1][0] for choice in choices) or "no safetensors file"
    raise CheckpointError(
        f"{folder}: expected a safetensors file with {medium.noun} and found {listing}; give the file."
    )


def parse_reference(source: str) -> tuple[str, str | None] | None:
    """Parse "owner/name[:inner]" to the repository `owner/name` and the file or folder in it, if any.

    Returns `None` for a possible path, which ends like a file or begins with a folder.
    """
    match = _REFERENCE.fullmatch(source)
    if match is None or os.path.isdir(source.partition("/")[0]):
        return None
    if match["inner"] is None and source.lower().endswith(_FILE_ENDINGS):
        return None
    return match["repo"], match["inner"]


def is_on_hub(source: str) -> bool:
    """Return whether a source is a short name or a repository of the hub, and no path."""
    is_path = os.path.exists(source) or _split(Path(source)) is not None
    return not is_path and (find_model(source) or parse_reference(source)) is not None


def is_remote(source: str | None, medium: Medium = PICTURES) -> bool:
    """Return whether the hub is asked for a source: for a short name that is not in the cache, and for a hub id."""
    if source is None or os.path.exists(source) or _split(Path(source)) is not None:
        return False
    model = find_model(source, medium.kinds)
    return parse_reference(source) is not None if model is None else not is_cached(model)


def is_cached(model: PublishedModel) -> bool:
    """Return whether the files of a model are in the cache of the hub."""
    return _find_cached(model, MEDIA[model.kind]) is not None


def _fetch_model(model: PublishedModel, name: str, medium: Medium) -> tuple[str, Path, tuple[WeightFiles, ...]]:
    """Return the source, the folder and the sets of a model's files, which are downloaded if none are in the cache.

    If they are, the hub is not asked. `name` is for errors.
    """
    if cached := _find_cached(model, medium):
        return cached
    _, inner = _split_source(model.source)
    return model.source, *_fetch_files(_list_files(model.source, model, name), inner, medium)


def _find_cached(model: PublishedModel, medium: Medium) -> tuple[str, Path, tuple[WeightFiles, ...]] | None:
    """Return the source of a model whose files are in the cache, their folder and sets. `None` if there is none."""
    for source in model.sources:
        repo, inner = _split_source(source)
        with suppress(Exception):  # huggingface_hub's classes differ between releases
            return source, *_fetch_files(_list_cached(repo, "it was not asked"), inner, medium)
    return None


def _split_source(source: str) -> tuple[str, str | None]:
    repo, _, inner = source.partition(":")
    return repo, inner or None


class _Listing(NamedTuple):
    """Files of a repository on the hub, or in the cache.

    Attributes:
        sizes: the bytes of each file by name. `None` means that they are not stated.
        problem: why the hub cannot be read, if these are the files in the cache.
        license: as its page states it.
    """

    repo: str
    sizes: Mapping[str, int | None]
    problem: str | None = None
    license: str | None = None
    is_gated: bool = False


def _fetch_files(listing: _Listing, inner: str | None, medium: Medium) -> tuple[Path, tuple[WeightFiles, ...]]:
    names = list(listing.sizes)
    if inner is None:
        listing = listing._replace(sizes={name: listing.sizes[name] for name in _of_medium(names, medium)})
    sets = _choose(listing, inner, is_audio=medium is AUDIO)
    files = [PurePosixPath(name) for files in sets for name in files]
    configs = {str(file.with_name(name)) for file in files for name in (*file_config_names(file.name), *CONFIG_NAMES)}
    folder = _download(listing, [*map(str, files), *sorted(configs.intersection(names))])
    for index in files:
        if is_index(index.name):
            _download(listing, [str(index.with_name(shard)) for shard in shard_names(folder / index)])
    return folder, sets


def _list_files(source: str, model: PublishedModel | None = None, name: str = "") -> _Listing:
    """List the files of the repository of a source, or those in the cache if the hub is unreachable.

    `model` is the one of the table that is wanted, if any, and `name` is its name in errors.
    """
    import huggingface_hub as hub

    repo, _ = _split_source(source)
    try:
        info = hub.HfApi().model_info(repo, timeout=_LISTING_TIMEOUT, files_metadata=True)
    except Exception as error:  # no network, repository or access: the classes differ between releases
        try:
            return _list_cached(repo, _reason(error))
        except Exception:
            problem = f"the hub cannot be read ({_reason(error)})"
            if model is None:
                problem = f"there is no such path, {problem}, and it is not in the cache"
                remedy = "check the name, log in with `hf auth login` if it is gated, or give a local file"
                raise CheckpointError(f"{source}: {problem}; {remedy}.") from error
            problem += f", and {source} is not in the cache"
            gate = f" (it is gated: {_login(repo)})" if model.is_gated else ""
            raise CheckpointError(f"{name}: {problem}; check the network{gate}, or give a file.") from error
    sizes = {sibling.rfilename: getattr(sibling, "size", None) for sibling in info.siblings or ()}
    card = getattr(info, "card_data", None)
    license_name = None if model is None else model.license
    license_name = license_name or getattr(card, "license_name", None) or getattr(card, "license", None)
    return _Listing(repo, sizes, None, license_name, bool(getattr(info, "gated", False)))


def _list_cached(repo: str, problem: str) -> _Listing:
    """List the files of a repository in the cache. Raises an error of huggingface_hub if there are none."""
    import huggingface_hub as hub

    # An empty list of patterns matches no files, so that a cache with some of the files is accepted.
    cached = Path(hub.snapshot_download(repo, allow_patterns=[], local_files_only=True))
    names = [path.relative_to(cached).as_posix() for path in cached.rglob("*") if path.is_file()]
    return _Listing(repo, dict.fromkeys(names), problem)


def _download(listing: _Listing, names: Sequence[str]) -> Path:
    """Download these files and return the folder of the snapshot. A note says what is downloaded."""
    import huggingface_hub as hub
    from huggingface_hub.errors import GatedRepoError

    repo, is_offline = listing.repo, listing.problem is not None
    patterns = [glob.escape(name) for name in names]
    if not is_offline:
        _note_download(listing, names)
    try:
        folder = Path(hub.snapshot_download(repo, allow_patterns=patterns, local_files_only=is_offline))
    except Exception as error:
        remedy = "check the network, or log in with `hf auth login` if the repository is gated"
        if listing.is_gated or isinstance(error, GatedRepoError):
            remedy = _login(repo)
        raise CheckpointError(f"{repo}: cannot download {list_some(names)} ({_reason(error)}); {remedy}.") from error
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise CheckpointError(
            f"{repo}: {list_some(missing)} cannot be downloaded, because the repository does not have it or the hub "
            "cannot be reached; check the network."
        )
    return folder


def _login(repo: str) -> str:
    """Say how to get access to a gated repository."""
    return f"accept its license at {HUB}/{repo}, then log in with `hf auth login`"


def _note_download(listing: _Listing, names: Sequence[str]) -> None:
    """Say which files are not in the cache, with their size and license."""
    import huggingface_hub as hub

    new_names = [name for name in names if not isinstance(hub.try_to_load_from_cache(listing.repo, name), str)]
    sizes = [listing.sizes.get(name) for name in new_names]
    size = [format_bytes(sum(filter(None, sizes)))] if any(sizes) else []
    terms = ", ".join([*size, *([f"license {listing.license}"] if listing.license else [])])
    if new_names:
        note(f"{listing.repo}: downloads {list_some(new_names)}{f' ({terms})' if terms else ''}")


def _choose(listing: _Listing, inner: str | None, *, is_audio: bool) -> tuple[WeightFiles, ...]:
    repo, names = listing.repo, list(listing.sizes)
    if inner is not None and inner in names:
        return choose_file(names, inner, is_audio=is_audio)
    inside = f"{inner.rstrip('/')}/" if inner else ""
    candidates = [name.removeprefix(inside) for name in names if name.startswith(inside)]
    choices = choose_weights(candidates, is_audio=is_audio)
    if len(choices) == 1:
        return tuple(tuple(inside + name for name in files) for files in choices[0])
    choice_names = [inside + choice[-1][0] for choice in choices]
    files = list_some(choice_names or [name for name in names if name.endswith(".safetensors")])
    problem = f"has no {inner}" if inner and not candidates else "has several files that may be the VAE, or none"
    place, remedy = "the repository", ""
    if listing.problem is not None:
        place, remedy = f"the hub cannot be read ({listing.problem}), and its cache", "check the network, or "
    raise CheckpointError(
        f"{repo}: {place} {problem}; {remedy}name one as {repo}:FILE out of {files or 'no safetensors file at all'}."
    )


def _reason(error: Exception) -> str:
    class_name = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(error).__name__).lower()  # such as "read timeout"
    return str(error).strip().partition("\n")[0].rstrip(".") or class_name
