"""Checkpoints on the Hugging Face hub, downloaded with `huggingface_hub` if it is installed."""

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import NamedTuple

from ..errors import CheckpointError
from .files import INDEX_SUFFIX, shard_names
from .names import CONFIG_NAMES, AmbiguousFolder, choose_weights

_REFERENCE = re.compile(r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(?:[:/](?P<inner>[^:]+))?")
_LISTING_TIMEOUT = 20.0  # seconds
_NAMED_CANDIDATES = 8


class HubReference(NamedTuple):
    """A repository `owner/name`, and the file or folder in it that was named, if any."""

    repo: str
    inner: str | None


def parse_reference(source: str) -> HubReference | None:
    """The meaning of "owner/name", "owner/name:file" or "owner/name/sub/file"; None for a path."""
    match = _REFERENCE.fullmatch(source)
    if match is None or Path(source.partition("/")[0]).is_dir():
        return None
    if match["inner"] is None and source.endswith((".safetensors", ".ckpt", ".pt", ".pth", ".gguf", ".json")):
        return None
    return HubReference(match["repo"], match["inner"])


def fetch(reference: HubReference) -> list[Path]:
    """The paths of the weight files of the VAE, downloaded or from the cache, with the configuration beside them."""
    try:
        import huggingface_hub
    except ImportError as error:
        raise CheckpointError(
            f"{reference.repo}: there is no such path, and downloading from the hub requires huggingface_hub; "
            "run `pip install 'mlx_ltx_vae[hub]'` or give a local file."
        ) from error
    names, snapshot = _list(huggingface_hub, reference.repo)

    def get(name: str) -> Path:
        if snapshot is not None:
            return snapshot / name
        try:
            return Path(huggingface_hub.hf_hub_download(reference.repo, name))
        except Exception as error:
            raise CheckpointError(
                f"{reference.repo}: cannot download {name} ({_reason(error)}); check the network, or log in with "
                "`hf auth login` if the repository is gated."
            ) from error

    chosen = _choose(reference, names)
    beside = {str(PurePosixPath(name).parent / config) for name in chosen for config in CONFIG_NAMES}
    for config in sorted(beside.intersection(names)):
        get(config)
    paths = []
    for name in chosen:
        paths.append(get(name))
        if name.endswith(INDEX_SUFFIX):
            for shard in shard_names(paths[-1]):
                get(str(PurePosixPath(name).parent / shard))
    return paths


def _choose(reference: HubReference, names: Sequence[str]) -> tuple[str, ...]:
    inner = reference.inner
    if inner is not None and inner in names:
        return (inner,)
    inside = f"{inner}/" if inner else ""
    candidates = [name.removeprefix(inside) for name in names if name.startswith(inside)]
    try:
        return tuple(inside + name for name in choose_weights(candidates))
    except AmbiguousFolder as error:
        shown = list(error.candidates or [name for name in names if name.endswith(".safetensors")])
        more = " ..." if len(shown) > _NAMED_CANDIDATES else ""
        listing = ", ".join(shown[:_NAMED_CANDIDATES]) + more or "no safetensors file at all"
        what = f"has no {inner}" if inner and not candidates else "has several files that may be the VAE, or none"
        raise CheckpointError(
            f"{reference.repo}: the repository {what}; name one as {reference.repo}:FILE out of {listing}."
        ) from error


def _list(huggingface_hub: ModuleType, repo: str) -> tuple[list[str], Path | None]:
    """The file names of a repository, and its folder in the cache if the hub cannot be reached."""
    try:
        siblings = huggingface_hub.HfApi().model_info(repo, timeout=_LISTING_TIMEOUT).siblings
        return [sibling.rfilename for sibling in siblings], None
    except Exception as error:  # no network, repository or access: the classes differ between releases
        try:
            snapshot = Path(huggingface_hub.snapshot_download(repo, local_files_only=True))
        except Exception:
            raise CheckpointError(
                f"{repo}: there is no such path, and the hub repository cannot be read ({_reason(error)}) and is not "
                "in the cache; check the name, log in with `hf auth login` if it is gated, or give a local file."
            ) from error
    return [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file()], snapshot


def _reason(error: Exception) -> str:
    first_line = str(error).partition("\n")[0].rstrip(".")
    return f"{type(error).__name__}: {first_line}"
