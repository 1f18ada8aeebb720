"""What a file is, as text or JSON: a checkpoint, latents, or a video. Its first bytes and tensor names decide."""

from pathlib import Path

from ..checkpoint import open_checkpoint
from ..checkpoint.files import Archive
from ..checkpoint.locate import locate, recognize
from ..checkpoint.weight_files import is_index
from ..errors import CheckpointError, LatentsError, ReaderError, excerpt
from ..files.formats import START_BYTES, Format, find_format
from ..latents import KNOWN_NAMES
from ..shapes import Grid
from ..video.codecs import CONTAINER_ENDINGS
from .checkpoint import CheckpointReport, inspect_checkpoint
from .latents import LatentsReport, inspect_latents
from .video import VideoReport, inspect_video

_NAMED_TENSORS = 3
_PICTURE_ENDINGS = (*CONTAINER_ENDINGS, ".gif", ".png", ".jpg", ".jpeg", ".webp")


def inspect(
    source: str, *, vae: str | None = None, tensor: str | None = None, grid: Grid | None = None
) -> CheckpointReport | LatentsReport | VideoReport:
    """Describe what `open_checkpoint`, `open_latents` or `VideoReader` (one file) accepts, with their errors.

    The options are those of latents, and an error for a checkpoint. `vae` is the checkpoint of latents, which states
    the scale and normalizes unnormalized latents, or of a video.
    """
    path = Path(source)
    file_format, is_file = _start_of(path)
    if is_file and file_format is None and (report := _inspect_video(path.expanduser(), vae)):
        if (tensor, grid) != (None, None):
            raise LatentsError(f"{source}: this is a video; a tensor and a grid are options of latents only.")
        return report
    location = None if file_format in (Format.NPY, Format.ZIP) else locate(source)
    path = path.expanduser()  # which `locate` has found to be possible
    is_single_file = path.is_file() and not is_index(path.name)
    if location is None or (is_single_file and _has_latents(location.archives[0], tensor)):
        return inspect_latents(path, None if vae is None else open_checkpoint(vae), tensor=tensor, grid=grid)
    if (vae, tensor, grid) != (None, None, None):
        raise CheckpointError(
            f"{source}: this is a checkpoint; a VAE, a tensor and a grid are options of latents only."
        )
    return inspect_checkpoint(open_checkpoint(location))


def _start_of(path: Path) -> tuple[Format | None, bool]:
    """The format by the first bytes, and whether there is a file that can be read; `locate` reports any other."""
    try:
        path = path.expanduser()
        if not path.is_file():
            return None, False
        with path.open("rb") as file:
            return find_format(file.read(START_BYTES)), True
    except (OSError, RuntimeError):
        return None, False


def _inspect_video(path: Path, vae: str | None) -> VideoReport | None:
    """None for a file that neither is a video nor is named as one."""
    try:
        return inspect_video(path, None if vae is None else open_checkpoint(vae))
    except ReaderError:
        if path.suffix.lower() in _PICTURE_ENDINGS:
            raise
        return None


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
