"""Which formats of latent files are read, and what is said about pickles, which never are."""

import os
import shlex
from pathlib import Path

from ..errors import LatentsError
from ..files.formats import Format, find_format

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
