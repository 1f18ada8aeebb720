"""Entries of text in videos and stills, such as ComfyUI's `prompt` and `workflow`."""

import re
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import numpy as np

from ..errors import ReaderError, WriterError, option, quote, warn
from ..process import temporary_folder
from .ffmpeg import FfmpegEncoder, input_arguments, read_output
from .pictures import is_png, read_png_text

#: Stands in ffmpeg's arguments for what `metadata_file` yields: an argument has a limited length, and a value has not.
METADATA_INPUT = "pipe:metadata"
#: Bytes. A larger header leaves ffmpeg in parts, with a length of 0: an output that plays at once has no way back.
MAX_LIVE_METADATA = 20_000
_MAX_KEY = 79  # characters, of PNG
_KEY = re.compile(rf"(?! )[ -<>-~]{{1,{_MAX_KEY}}}(?<! )")
_ESCAPED = re.compile(r"([=;#\[\\\n\r])")
#: What is read of all entries of a file, in characters, of which each entry takes some for itself.
MAX_TEXT, _ENTRY_COST = 2**25, 100
# What ffmpeg says of a file with the entries: how a QuickTime file begins, and who wrote it.
_OF_CONTAINERS = ("major_brand", "minor_version", "compatible_brands")
_OWN_ENCODER = re.compile(r"Lav[cf]\d")


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
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise WriterError(
                f"{name}: metadata is text by name, not {quote(value)} by {quote(key)}; convert it to str."
            )
        if not _KEY.fullmatch(key):
            raise WriterError(
                f"{name}: cannot have metadata named {quote(key)}; use 1 to {_MAX_KEY} ASCII characters other than =."
            )
        if "\0" in value or value.encode(errors="replace").decode() != value:
            raise WriterError(f"{name}: the metadata {key} has a NUL or is not Unicode text; remove what is not text.")
    if max_bytes is not None and metadata_bytes(metadata) > max_bytes:
        way = option("fragmented=True", "--live")
        raise WriterError(f"{name}: a live video takes {max_bytes:,} bytes of metadata; leave some out, or {way}.")


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
    """The entries of a video or an image, without those of ffmpeg itself.

    Keys in .mkv and .webm are in capitals, and without spaces. A warning if there is more text than is read.
    """
    if is_png(path):
        found = read_png_text(path, MAX_TEXT)
    else:
        found = _parse(read_output([*input_arguments(path), "-f", "ffmetadata"], MAX_TEXT, name=str(path)))
    entries = {}
    try:
        for key, value in _limited(found):
            if key not in _OF_CONTAINERS and not (key.lower() == "encoder" and _OWN_ENCODER.match(value)):
                entries[key] = value
    except _TooMuchText:
        warn(f"{path}: has more than {MAX_TEXT >> 20} MB of text; not all of it is shown.")
    return entries


def check_kept(name: str, ending: str, container: Sequence[str], metadata: Mapping[str, str]) -> None:
    """Raise a `WriterError` for entries that ffmpeg does not write into a container, or changes.

    They depend on the container, on ffmpeg's version and on the values, so a video of one frame is written and read.
    """
    lost = _find_lost(ending, tuple(container), tuple(metadata.items()))
    if lost is not None:
        key, reason = lost
        raise WriterError(f"{name}: cannot have the metadata {quote(key)} as it is, since {reason}; rename it.")


@lru_cache(maxsize=32)  # the same are checked with the arguments of a command, and again with each output
def _find_lost(ending: str, container: tuple[str, ...], entries: tuple[tuple[str, str], ...]) -> tuple[str, str] | None:
    """The first entry that does not come back, and why."""
    is_matroska = ending in (".mkv", ".webm")
    try:
        found = _write_and_read(ending, container, dict(entries))
    except WriterError as error:
        if len(entries) == 1:
            return entries[0][0], str(error).rstrip(".")
        half = len(entries) // 2  # one of them is at fault
        return _find_lost(ending, container, entries[:half]) or _find_lost(ending, container, entries[half:])
    if is_matroska:  # the keys of a few become lower case
        found = {_in_matroska(key): value for key, value in found.items()}
    for key, value in entries:
        stored = found.get(_in_matroska(key) if is_matroska else key)
        if stored != value:
            return key, f"{ending} " + ("drops it" if stored is None else f"makes it {quote(stored, 40)}")
    return None


def _write_and_read(ending: str, container: Sequence[str], metadata: Mapping[str, str]) -> dict[str, str]:
    with temporary_folder() as folder, metadata_file(metadata) as (file,):
        path = folder / f"video{ending}"
        video = ["-f", "rawvideo", "-pixel_format", "gray", "-video_size", "16x16", "-i", "pipe:0"]
        codec = ["-map", "0:v:0", "-c:v", "libvpx-vp9" if ending == ".webm" else "mpeg4", "-map_metadata", "1"]
        inputs = [*video, "-f", "ffmetadata", "-i", f"pipe:{file}"]
        arguments = [*inputs, *codec, *metadata_arguments(metadata), *container]
        encoder = FfmpegEncoder("metadata", arguments, f"file:{path}", [file])
        try:
            encoder.write(np.zeros(256, np.uint8))
            encoder.finish()
        except WriterError:
            encoder.close()
            raise
        return read_metadata(path)


def _in_matroska(key: str) -> str:
    return key.upper().replace(" ", "_")


def check_text(path: Path) -> None:
    """Raise a `ReaderError` for a PNG file with more text than is read, which ffmpeg would decompress."""
    try:
        deque(_limited(read_png_text(path, MAX_TEXT) if is_png(path) else ()), maxlen=0)
    except _TooMuchText:
        megabytes = MAX_TEXT >> 20
        raise ReaderError(f"{path}: has more than {megabytes} MB of compressed text; save it without.") from None


class _TooMuchText(Exception):
    """A file has more text than is read."""


def _limited(entries: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    room = MAX_TEXT
    for key, value in entries:
        room -= len(key) + len(value) + _ENTRY_COST
        if room < 0:
            raise _TooMuchText
        yield key, value


def _parse(text: str) -> Iterator[tuple[str, str]]:
    """The entries in ffmpeg's format, up to a line [STREAM] or [CHAPTER], after which they are of these."""
    start = text.find("\n") + 1  # after ;FFMETADATA1
    while (end := _find(text, "\n", start, len(text))) >= 0 and (equals := _find(text, "=", start, end)) >= 0:
        yield _unescape(text[start:equals]), _unescape(text[equals + 1 : end])
        start = end + 1
    if end < 0 and start < len(text):  # ffmpeg ends every line
        raise _TooMuchText


def _find(text: str, letter: str, start: int, end: int) -> int:
    """Where a letter is that is not escaped; -1 if nowhere."""
    place = text.find(letter, start, end)
    while place >= 0:
        first = place
        while first > start and text[first - 1] == "\\":
            first -= 1
        if (place - first) % 2 == 0:
            return place
        place = text.find(letter, place + 1, end)
    return -1


def metadata_arguments(metadata: Mapping[str, str]) -> list[str]:
    """The entries that ffmpeg's format cannot have: it joins a value that ends in a backslash with the next line."""
    return [word for key, value in metadata.items() if value.endswith("\\") for word in ("-metadata", f"{key}={value}")]


def _escape(text: str) -> str:
    return _ESCAPED.sub(r"\\\1", text)


def _unescape(text: str) -> str:
    return text.replace("\\\\", "\0").replace("\\", "").replace("\0", "\\")  # no text has a NUL
