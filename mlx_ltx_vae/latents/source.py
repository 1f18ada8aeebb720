"""Opens what a user names as latents: a file, a pipe, or standard input. Pickles are never read."""

import os
import shlex
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO

from ..errors import LatentsError, excerpt
from ..files.formats import START_BYTES, Format, find_format
from ..process.cleanup import temporary_folder
from .stored import OpenFile

_STANDARD_INPUT = "-"
_COPIED_AT_ONCE = 2**20  # bytes

# The first value in files of torch.save before PyTorch 1.6; later ones are zip files.
_OLD_TORCH = b"\x80\x02\x8a\nl\xfc\x9cF\xf9"
_MAX_SAFETENSORS_HEADER = 100_000_000  # bytes; the format's own limit
_PICKLE_ENDINGS = (".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".bin")

# Keeps what is no tensor (fps, sizes) as metadata, where `load_latents` finds it.
_CONVERT = (
    "import sys, torch; from safetensors.torch import save_file; "
    "d = torch.load(sys.argv[1], 'cpu', weights_only=True); d = d if isinstance(d, dict) else {'latents': d}; "
    "t = {k: v.contiguous() for k, v in d.items() if torch.is_tensor(v)}; "
    "save_file(t, sys.argv[2], {k: str(v) for k, v in d.items() if k not in t and v is not None})"
)


def source_name(path: str | os.PathLike) -> str:
    """The name of a source in errors."""
    return "standard input" if os.fspath(path) == _STANDARD_INPUT else os.fspath(path)


@contextmanager
def open_source(path: str | os.PathLike) -> Iterator[tuple[OpenFile, Path]]:
    """The open file, and a path at which it can be read until the end of the block.

    A pipe and standard input ("-") are copied to a temporary file. A folder, a device or a terminal is refused.
    """
    source, is_standard_input = source_name(path), os.fspath(path) == _STANDARD_INPUT
    with nullcontext(_standard_input()) if is_standard_input else _open(source) as stream:
        if not is_standard_input and stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            yield OpenFile(stream, source), Path(path)
            return
        with temporary_folder() as folder:
            path = folder / "latents"
            try:
                with path.open("wb") as copy:
                    start = stream.read(START_BYTES)
                    check_format(start, source)  # refuses an endless stream of something else
                    copy.write(start)
                    shutil.copyfileobj(stream, copy, _COPIED_AT_ONCE)
            except OSError as error:
                raise LatentsError(
                    f"{source}: cannot be copied to {folder.parent} ({error.strerror or error}); set TMPDIR to a "
                    "larger disk, or name a file."
                ) from error
            with path.open("rb") as file:
                yield OpenFile(file, source), path


def _standard_input() -> IO[bytes]:
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # None, replaced, or closed
        raise LatentsError("standard input is closed; pipe a latent file into it, or name one.") from None
    if stat.S_ISCHR(mode):
        raise LatentsError("standard input is a terminal or another device; pipe a latent file into it, or name one.")
    return sys.stdin.buffer


def _open(source: str) -> IO[bytes]:
    shown = excerpt(source, 200)
    try:
        mode = os.stat(source).st_mode  # before it is opened: opening a device may have effects
        if stat.S_ISDIR(mode):
            raise LatentsError(f"{source}: is a folder; name one latent file.")
        if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
            raise LatentsError(f"{source}: is a device or a socket; expected a latent file, or a pipe with one.")
        return open(source, "rb")
    except FileNotFoundError:
        raise LatentsError(f"{shown}: there is no such file.") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise LatentsError(f"{shown}: cannot be read ({reason}).") from error


def check_format(start: bytes, source: str) -> Format:
    """The format of a latent file that starts with these bytes. Raises a `LatentsError` for any that is not read."""
    found = find_format(start)
    if found is Format.SAFETENSORS and int.from_bytes(start[:8], "little") > _MAX_SAFETENSORS_HEADER:
        found = None  # another text
    if found in (Format.SAFETENSORS, Format.NPY, Format.ZIP):
        return found
    if not start:
        raise LatentsError(f"{source}: is empty; expected latents as safetensors, .npy or .npz.")
    if start.startswith(_OLD_TORCH):
        raise torch_error(source)
    if found is Format.PICKLE or source.lower().endswith(_PICKLE_ENDINGS):
        raise LatentsError(
            f"{source}: is a pickle, which could run any code when read; save the latents as safetensors, in the "
            "program that made them."
        )
    raise LatentsError(f"{source}: is neither safetensors nor .npy nor .npz; save the latents as one of them.")


def torch_error(source: str) -> LatentsError:
    """The error for a file of `torch.save`, with the command that converts it."""
    target = Path(source).with_suffix(".safetensors")
    if str(target) == source:
        target = target.with_stem(f"{target.stem}-converted")
    files = (source, target) if os.path.isfile(source) else ("clip.pt", "clip.safetensors")  # it may be a pipe
    names = " ".join(shlex.quote(str(name)) for name in files)
    return LatentsError(
        f"{source}: is a pickle of torch.save, which could run any code when read; convert it to safetensors: "
        f'python -c "{_CONVERT}" {names}'
    )
