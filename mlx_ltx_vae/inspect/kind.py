"""Whether a file is a checkpoint or latents: its first bytes and the names in its header tell, not its own name."""

import os
from pathlib import Path

from ..checkpoint import read_headers
from ..checkpoint.files import INDEX_SUFFIX, Archive, open_archive
from ..checkpoint.original import HALVES, half_names
from ..errors import CheckpointError
from ..latents.layouts import Grid
from ..latents.load import KNOWN_NAMES
from .checkpoint import CheckpointSummary, summarise_checkpoint
from .latents import LatentsSummary, summarise_latents

_NUMPY_STARTS = (b"\x93NUMPY", b"PK")  # .npy, and .npz, which is a zip
_NAMED_TENSORS = 3


def summarise(
    source: str, *, vae: str | None = None, tensor: str | None = None, grid: Grid | None = None
) -> CheckpointSummary | LatentsSummary:
    """What a checkpoint or a latent file is.

    Args:
        source: whatever `load_checkpoint` or `load_latents` takes.
        vae: the checkpoint that latents are for, to be exact about scale and channels. For latents alone, as are
        tensor: which tensor of a file that has several, and
        grid: (F', H', W') where they are packed.

    Raises:
        CheckpointError: for a checkpoint as `load_checkpoint`; for what is neither; for a checkpoint with options of
            latents.
        LatentsError: for latents as `load_latents`.
    """
    path = Path(source).expanduser()
    if _holds_latents(path, tensor):
        return summarise_latents(os.fspath(path), None if vae is None else read_headers(vae), tensor=tensor, grid=grid)
    if (vae, tensor, grid) != (None, None, None):
        raise CheckpointError(f"{source}: this is a checkpoint, and a VAE, a tensor or a grid go with latents alone.")
    return summarise_checkpoint(read_headers(source))


def _holds_latents(path: Path, tensor: str | None) -> bool:
    """Whether to read a path as latents; else as a checkpoint, as which folders and names on the hub count too.

    Raises:
        CheckpointError: for a file that is neither.
    """
    if not path.is_file() or path.name.endswith(INDEX_SUFFIX):
        return False
    with path.open("rb") as file:
        if file.read(8).startswith(_NUMPY_STARTS):
            return True
    archive = open_archive(path)
    if any(half_names(archive, half) for half in HALVES):
        return False
    if tensor is None and not _may_be_latents(archive):
        raise CheckpointError(f"{path}: {_describe(archive)}")
    return True


def _may_be_latents(archive: Archive) -> bool:
    """A file of one tensor may call it what it likes."""
    return len(archive.tensors) == 1 or not archive.tensors.keys().isdisjoint(KNOWN_NAMES)


def _describe(archive: Archive) -> str:
    names = list(archive.tensors)
    shown = ", ".join(names[:_NAMED_TENSORS]) + (", ..." if len(names) > _NAMED_TENSORS else "")
    found = f"{len(names)} tensors ({shown})" if names else "no tensor"
    return (
        f"expected a video VAE (vae.encoder.*, vae.decoder.* or the like) or latents ({', '.join(KNOWN_NAMES[:3])} or "
        f"the like) and found {found}; choose one with --tensor if it holds latents."
    )
