"""Entries of text in videos and stills, such as ComfyUI's `prompt` and `workflow`."""

import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ..errors import WriterError, quote
from .ffmpeg import read_ffmetadata
from .png import read_png_text

#: Stands in ffmpeg's arguments for what `metadata_file` yields: an argument has a limited length, and a value has not.
METADATA_INPUT = "pipe:metadata"
#: Bytes. A larger header leaves ffmpeg in parts, with a length of 0: an output that plays at once has no way back.
MAX_LIVE_METADATA = 20_000
_MAX_KEY = 79  # characters, of PNG
_KEY = re.compile(rf"(?! )[ -<>-~]{{1,{_MAX_KEY}}}(?<! )")
_ESCAPED = re.compile(r"([=;#\[\\\n\r])")
_LINE = re.compile(r"((?:[^\\=\n]|\\.)*)=((?:[^\\\n]|\\.)*)\n", re.DOTALL)


def parse_entry(text: str) -> tuple[str, str]:
    """The key and the value of "KEY=VALUE". Raises a `ValueError` for anything else."""
    key, separator, value = text.partition("=")
    if not separator or not _KEY.fullmatch(key):
        raise ValueError(f"{quote(text)} is not KEY=VALUE, with 1 to {_MAX_KEY} ASCII characters as the key")
    return key, value


def metadata_bytes(metadata: Mapping[str, str]) -> int:
    """The length of all values."""
    return sum(len(value.encode(errors="replace")) for value in metadata.values())


def check_metadata(name: str, metadata: Mapping[str, str], max_bytes: int | None = None) -> None:
    """Raise a `WriterError` for entries that not all formats can have, and for more than `max_bytes`."""
    if max_bytes is not None and metadata_bytes(metadata) > max_bytes:
        raise WriterError(f"{name}: a live video takes {max_bytes:,} bytes of metadata; leave some out, or --live.")
    for key, value in metadata.items():
        if not _KEY.fullmatch(key):
            raise WriterError(
                f"{name}: cannot have metadata named {quote(key)}; use 1 to {_MAX_KEY} ASCII characters other than =."
            )
        if "\0" in value or not _is_unicode(value):
            raise WriterError(f"{name}: the metadata {key} has a NUL or is not Unicode text; remove what is not text.")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@contextmanager
def metadata_file(metadata: Mapping[str, str]) -> Iterator[list[int]]:
    """The number of an open, nameless file with the entries, in ffmpeg's format. No file without entries."""
    if not metadata:
        yield []
        return
    with tempfile.TemporaryFile(prefix="mlx_ltx_vae-") as file:
        lines = [f"{_escape(key)}={_escape(value)}" for key, value in metadata.items() if not value.endswith("\\")]
        file.write("\n".join([";FFMETADATA1", *lines, ""]).encode())
        file.seek(0)
        yield [file.fileno()]


def read_metadata(path: Path) -> dict[str, str]:
    """The entries of a video or an image. Keys in .mkv and .webm are in capitals, and without spaces."""
    entries = read_png_text(path)
    if entries is not None:
        return entries
    entries, text = {}, read_ffmetadata(path)
    start = text.find("\n") + 1  # after ;FFMETADATA1
    while line := _LINE.match(text, start):  # up to a line [STREAM] or [CHAPTER], after which entries are of these
        entries[_unescape(line[1])] = _unescape(line[2])
        start = line.end()
    return entries


def metadata_arguments(metadata: Mapping[str, str]) -> list[str]:
    """The entries that ffmpeg's format cannot have: it joins a value that ends in a backslash with the next line."""
    return [word for key, value in metadata.items() if value.endswith("\\") for word in ("-metadata", f"{key}={value}")]


def _escape(text: str) -> str:
    return _ESCAPED.sub(r"\\\1", text)


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)
