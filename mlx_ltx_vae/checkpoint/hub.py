"""Checkpoints on the Hugging Face hub. `huggingface_hub` is imported where it is needed, since that takes long."""

import glob
import os
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path, PurePosixPath

from ..errors import CheckpointError
from .files import shard_names
from .weight_files import CONFIG_NAMES, WeightFiles, choose_file, choose_weights, is_index, own_config_names

_REFERENCE = re.compile(r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(?::(?P<inner>[^:]+))?")
_FILE_ENDINGS = (".safetensors", ".json", ".ckpt", ".pt", ".pth", ".bin", ".pkl", ".gguf", ".npy", ".npz", ".latent")
_LISTING_TIMEOUT = 20.0  # seconds
_NAMED_CANDIDATES = 8


def parse_reference(source: str) -> tuple[str, str | None] | None:
    """The repository `owner/name` in "owner/name[:inner]", and the file or folder in it that is named, if any.

    None for what may be a path: it ends like a file, or begins with a folder.
    """
    match = _REFERENCE.fullmatch(source)
    if match is None or os.path.isdir(source.partition("/")[0]):
        return None
    if match["inner"] is None and source.lower().endswith(_FILE_ENDINGS):
        return None
    return match["repo"], match["inner"]


def fetch(repo: str, inner: str | None, *, is_audio: bool = False) -> list[list[Path]]:
    """The sets of weight files of the VAE, downloaded or from the cache, with the configuration beside them."""
    names, is_offline = _list_files(repo)
    download = partial(_download, repo, is_offline)
    chosen = _choose(repo, inner, names, is_audio=is_audio)
    files = [name for set_ in chosen for name in set_]
    configs = {name: (*own_config_names(name), *CONFIG_NAMES) for name in files}
    beside = {str(PurePosixPath(name).parent / config) for name in files for config in configs[name]}
    folder = download([*files, *sorted(beside.intersection(names))])
    for index in filter(is_index, files):
        parent = PurePosixPath(index).parent
        download([str(parent / shard) for shard in shard_names(folder / index)])
    return [[folder / name for name in set_] for set_ in chosen]


def _list_files(repo: str) -> tuple[list[str], bool]:
    """The file names of a repository, and whether they are those in the cache, since the hub cannot be reached."""
    import huggingface_hub as hub

    try:
        siblings = hub.HfApi().model_info(repo, timeout=_LISTING_TIMEOUT).siblings
        return [sibling.rfilename for sibling in siblings or ()], False
    except Exception as error:  # no network, repository or access: the classes differ between releases
        try:
            # No patterns match no files, so that a cache with some of the files is accepted.
            cached = Path(hub.snapshot_download(repo, allow_patterns=[], local_files_only=True))
        except Exception:
            raise CheckpointError(
                f"{repo}: there is no such path, and the hub repository cannot be read ({_reason(error)}) and is not "
                "in the cache; check the name, log in with `hf auth login` if it is gated, or give a local file."
            ) from error
    return [path.relative_to(cached).as_posix() for path in cached.rglob("*") if path.is_file()], True


def _download(repo: str, is_offline: bool, names: Sequence[str]) -> Path:
    """The folder of the snapshot, which then has these files."""
    patterns = [glob.escape(name) for name in names]
    import huggingface_hub as hub

    try:
        folder = Path(hub.snapshot_download(repo, allow_patterns=patterns, local_files_only=is_offline))
    except Exception as error:
        raise CheckpointError(
            f"{repo}: cannot download {list_some(names)} ({_reason(error)}); check the network, or log in with "
            "`hf auth login` if the repository is gated."
        ) from error
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise CheckpointError(
            f"{repo}: {list_some(missing)} cannot be downloaded, because the repository does not have it or the hub "
            "cannot be reached; check the network."
        )
    return folder


def _choose(repo: str, inner: str | None, names: Sequence[str], *, is_audio: bool) -> tuple[WeightFiles, ...]:
    if inner is not None and inner in names:
        return choose_file(names, inner)
    inside = f"{inner.rstrip('/')}/" if inner else ""
    candidates = [name.removeprefix(inside) for name in names if name.startswith(inside)]
    choices = choose_weights(candidates, is_audio=is_audio)
    if len(choices) == 1:
        return tuple(tuple(inside + name for name in files) for files in choices[0])
    firsts = [inside + choice[-1][0] for choice in choices]
    listing = list_some(firsts or [name for name in names if name.endswith(".safetensors")])
    what = f"has no {inner}" if inner and not candidates else "has several files that may be the VAE, or none"
    raise CheckpointError(
        f"{repo}: the repository {what}; name one as {repo}:FILE out of {listing or 'no safetensors file at all'}."
    )


def list_some(names: Sequence[str]) -> str:
    """The first names, for an error message."""
    return ", ".join(names[:_NAMED_CANDIDATES]) + (" ..." if len(names) > _NAMED_CANDIDATES else "")


def _reason(error: Exception) -> str:
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(error).__name__).lower()  # "read timeout", if it says nothing
    return str(error).strip().partition("\n")[0].rstrip(".") or words
