"""`convert`: a checkpoint of any layout to a folder that appears only when it is whole and verified."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlx.core as mx

from mlx_ltx_vae.checkpoint.original import HALVES
from mlx_ltx_vae.checkpoint.weight_layout import LAYOUT_KEY, KernelLayout
from mlx_ltx_vae.errors import WriterError
from mlx_ltx_vae.part_file import writing_to

from .card import make_card
from .tensors import Progress, Written, open_checkpoint, silent, take_tensors, write_tensors
from .verify import Verification, verify


@dataclass(frozen=True)
class Conversion:
    """What was made, and of what.

    Attributes:
        source: the name of what was converted.
        output: the folder.
        generation: "LTX-2.3" and the like.
        halves: "encoder", "decoder" or both.
        written: what its file of tensors holds.
        verification: what came of holding it against the source.
    """

    source: str
    output: str
    generation: str
    halves: list[str]
    written: Written
    verification: Verification

    def as_dict(self) -> dict[str, Any]:
        """In JSON's terms."""
        return asdict(self)


def convert(
    source: str | os.PathLike,
    folder: str | os.PathLike,
    *,
    dtype: mx.Dtype | None = None,
    only: str | None = None,
    progress: Progress = silent,
) -> Conversion:
    """Make `folder` with `config.json`, `model.safetensors` and a model card `README.md`.

    The tensors go through memory one by one; the verification at the end holds one VAE at a time.

    Args:
        source: a file, a folder or a hub repository; of a file with everything only the VAE is read.
        folder: must not exist, or be empty. It gets its name when it is whole and verified; what fails before that
            leaves nothing behind.
        dtype: float32, bfloat16 or float16 for all but the statistics of the latents; None for each tensor's own.
        only: "encoder" or "decoder", to leave out the other half.
        progress: told of each tensor.

    Raises:
        CheckpointError: for a source that cannot be loaded.
        WriterError: for a folder that cannot be made.
        CheckpointsDiffer: if the result is not what the source is.
        DecodeError: if its decoder overflows in `dtype`, and LatentsError if its encoder does.
    """
    folder = Path(folder).expanduser().resolve()
    with _folder_in_the_making(folder) as part:
        checkpoint = open_checkpoint(source, only)
        name, config = checkpoint.name, checkpoint.config
        halves = [half for half in HALVES if getattr(checkpoint, half) is not None]
        metadata = {
            "format": "mlx",
            LAYOUT_KEY: KernelLayout.MLX.value,
            "config": json.dumps({"vae": checkpoint.raw_config}),
        }
        tensors = take_tensors(checkpoint)
        with writing_to(folder):
            (part / "config.json").write_text(json.dumps(checkpoint.raw_config, indent=2) + "\n", encoding="utf-8")
            written = write_tensors(part / "model.safetensors", tensors, dtype, metadata, progress)
        verification = verify(source, part, only=only, progress=progress)
        card = make_card(name, config, halves, written, verification)
        with writing_to(folder):
            (part / "README.md").write_text(card, encoding="utf-8")
    return Conversion(name, str(folder), config.generation, halves, written, verification)


@contextmanager
def _folder_in_the_making(folder: Path) -> Iterator[Path]:
    """An empty folder on the same disk, which becomes `folder` at the end and vanishes if there is no such end."""
    with writing_to(folder):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise WriterError(f"{folder}: it exists and is not an empty folder; remove it or name another.")
        workshop = TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.", suffix=".part")
    with workshop as place:
        part = Path(place) / folder.name
        part.mkdir()
        yield part
        with writing_to(folder):
            part.rename(folder)
