"""What a file is, as text or JSON. Its first bytes and tensor names decide whether it is a checkpoint or latents."""

from pathlib import Path

from ..checkpoint import open_checkpoint
from ..checkpoint.files import Archive
from ..checkpoint.locate import locate, recognize
from ..checkpoint.weight_files import is_index
from ..errors import CheckpointError, excerpt
from ..files.formats import START_BYTES, Format, find_format
from ..latents import KNOWN_NAMES
from ..shapes import Grid
from .checkpoint import CheckpointReport, inspect_checkpoint
from .latents import LatentsReport, inspect_latents

_NAMED_TENSORS = 3


def inspect(
    source: str, *, vae: str | None = None, tensor: str | None = None, grid: Grid | None = None
) -> CheckpointReport | LatentsReport:
    """Describe what `open_checkpoint` or `open_latents` accepts, with their errors.

    The options are those of latents, and an error for a checkpoint. `vae` is the checkpoint of latents, which states
    the scale and normalizes unnormalized latents.
    """
    path = Path(source)
    location = None if _is_numpy_file(path) else locate(source)
    path = path.expanduser()  # which `locate` has found to be possible
    is_single_file = path.is_file() and not is_index(path.name)
    if location is None or (is_single_file and _has_latents(location.archives[0], tensor)):
        return inspect_latents(path, None if vae is None else open_checkpoint(vae), tensor=tensor, grid=grid)
    if (vae, tensor, grid) != (None, None, None):
        raise CheckpointError(
            f"{source}: this is a checkpoint; a VAE, a tensor and a grid are options of latents only."
        )
    return inspect_checkpoint(open_checkpoint(location))


def _is_numpy_file(path: Path) -> bool:
    try:
        path = path.expanduser()
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return find_format(file.read(START_BYTES)) in (Format.NPY, Format.ZIP)
    except (OSError, RuntimeError):  # no file that can be read, which `locate` reports
        return False


def _has_latents(archive: Archive, tensor: str | None) -> bool:
    """Whether to read a safetensors file as latents. Raises `CheckpointError` if it has neither these nor a network."""
    if any(found.networks or found.unsupported for found in recognize([archive])[1]):
        return False
    is_known = len(archive.tensors) == 1 or not archive.tensors.keys().isdisjoint(KNOWN_NAMES)
    if tensor is None and not is_known:
        names = list(archive.tensors)
        shown = excerpt(", ".join(names[:_NAMED_TENSORS])) + (", ..." if len(names) > _NAMED_TENSORS else "")
        found = f"{len(names)} tensors ({shown})" if names else "no tensor"
        raise CheckpointError(
            f"{archive.path}: expected a video VAE (vae.encoder.*, vae.decoder.* or the like) or latents "
            f"({', '.join(KNOWN_NAMES[:3])} or the like) and found {found}; if one of them is latents, name it with "
            "--tensor."
        )
    return True
