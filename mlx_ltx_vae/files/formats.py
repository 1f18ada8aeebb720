"""The formats of files that users pass, told by their first bytes and not by their names."""

from enum import Enum

START_BYTES = 32  # that `find_format` needs, if the file has them


class Format(Enum):
    """What a file of the format starts with. A safetensors file starts with the length of its header."""

    SAFETENSORS = b"{"
    NPY = b"\x93NUMPY"
    ZIP = b"PK"  # also .npz, and what torch.save writes
    PICKLE = b"\x80"
    GIT_LFS = b"version https://git-lfs"
    GGUF = b"GGUF"
    WEB_PAGE = b"<"


def find_format(start: bytes) -> Format | None:
    """The format of a file that starts with these bytes; None if it is another one."""
    # The length may begin as any other format does, but a header follows it.
    if start[8:9] == Format.SAFETENSORS.value:
        return Format.SAFETENSORS
    others = [known for known in Format if known is not Format.SAFETENSORS]
    return next((known for known in others if start.lstrip().startswith(known.value)), None)
