"""Entries of text in videos and stills, such as ComfyUI's `prompt` and `workflow`."""

import math
import re
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ..errors import ReaderError, WriterError, quote, warn
from ..files import MAX_HEADER_BYTES, find_temporary_folder
from .ffmpeg import input_arguments, read_output
from .pictures import is_png, read_png_text

#: Stands in ffmpeg's arguments for what `metadata_file` yields: an argument has a limited length, and a value has not.
METADATA_INPUT = "pipe:metadata"
#: Bytes. A larger header leaves ffmpeg in parts, with a length of 0: an output that plays at once has no way back.
MAX_LIVE_METADATA = 20_000
_MAX_ARGUMENT = 20_000  # characters
_SHOWN = 6
# Keys that ffmpeg's containers drop or change: measured, by writing each and reading it back.
_OF_ALL = r"creation_time|encoder(-eng)?|company_name|product_(name|version)"
_MP4 = r"com\.apple\.quicktime\.artwork|compatible_brands|location|major_brand|minor_version"
_MATROSKA = r"duration|encoding_tool|lead_performer|part_number|stereo_mode"
# After a hyphen, Matroska takes them for languages, and rewrites some of them.
_LANGUAGES = "[a-z]{2}|bod|ces|cym|deu|ell|eus|fas|fra|hye|isl|kat|mkd|mri|msa|mya|nld|ron|slk|sqi|und|zho"
_KEPT_BY_MP4 = re.compile(rf"(?!({_OF_ALL}|{_MP4})\Z).+", re.DOTALL | re.IGNORECASE)
_KEPT_BY_MATROSKA = re.compile(rf"(?!({_OF_ALL}|{_MATROSKA}|.*-({_LANGUAGES}))\Z).{{1,255}}", re.DOTALL | re.IGNORECASE)
_OF_FFMPEG = {".mp4": _KEPT_BY_MP4, ".mov": _KEPT_BY_MP4, ".mkv": _KEPT_BY_MATROSKA, ".webm": _KEPT_BY_MATROSKA}
#: By ending, the keys of entries that come back from a file. Files with other endings have no entries.
_KEPT = {**_OF_FFMPEG, ".png": re.compile(r"(?! )[ -~]{1,79}(?<! )")}
_ESCAPED = re.compile(r"([=;#\[\\\n\r])")
#: Characters that are read of all entries of a file together; each entry also counts a fixed number.
MAX_TEXT, _ENTRY_COST = 2 * MAX_HEADER_BYTES, 100
# What ffmpeg says of a file with the entries: how a QuickTime file begins, and who wrote it.
_OF_CONTAINERS = ("major_brand", "minor_version", "compatible_brands")
_OWN_ENCODER = re.compile(r"Lav[cf]\d")


def parse_entry(text: str) -> tuple[str, str]:
    """Parse the key and the value of "KEY=VALUE". Raises a `ValueError` for anything else."""
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise ValueError(f"{quote(text)} is not KEY=VALUE")
    return key, value


def keep_metadata(
    name: str, ending: str, metadata: Mapping[str, object], *, is_live: bool = False, warns: bool = True
) -> dict[str, str]:
    """Return the entries that a file with this ending keeps as they are. Warns about the others, which are left out."""
    if not isinstance(metadata, Mapping):
        found_type = type(metadata).__name__
        raise WriterError(f'{name}: metadata is text by name, such as {{"comment": "take 3"}}, not {found_type}.')
    kept: dict[str, str] = {}
    stored_keys, room = set(), MAX_LIVE_METADATA if is_live else math.inf
    for key, value in ((str(key), str(value)) for key, value in metadata.items()):
        stored_key, size = _same_key(ending, key), len(value.encode(errors="replace"))
        if stored_key not in stored_keys and size <= room and _is_kept(ending, key, value):
            kept[key] = value
            stored_keys.add(stored_key)
            room -= size
    if warns and (left_out := [quote(key, 40) for key in map(str, metadata) if key not in kept]):
        names = ", ".join(left_out[:_SHOWN]) + ", ..." * (len(left_out) > _SHOWN)
        what = f"{ending} files" if ending != "-" else "raw frames"
        what = f"live videos (at most {MAX_LIVE_METADATA:,} bytes)" if is_live else what
        warn(f"{name}: is written without the metadata {names}, which {what} do not keep.")
    return kept


def keeps_metadata(ending: str) -> bool:
    """Return whether a file with this ending has entries at all."""
    return ending in _KEPT


def _is_kept(ending: str, key: str, value: str) -> bool:
    pattern, text = _KEPT.get(ending), key + value
    if pattern is None or "\0" in text or text.encode(errors="replace").decode() != text:  # half of a surrogate pair
        return False
    is_argument = value.endswith("\\") and ending in _OF_FFMPEG  # see `metadata_arguments`
    return pattern.fullmatch(key) is not None and not (is_argument and ("=" in key or len(value) > _MAX_ARGUMENT))


def _same_key(ending: str, key: str) -> str:
    """Return one text for all keys that a container does not tell apart."""
    if ending not in _OF_FFMPEG:
        return key
    return key.upper().replace(" ", "_") if ending in (".mkv", ".webm") else key.upper()


@contextmanager
def metadata_file(metadata: Mapping[str, str]) -> Iterator[int]:
    """Yield the number of an open, nameless file with the entries, in ffmpeg's format."""
    with tempfile.TemporaryFile(prefix="mlx_ltx_vae-", dir=find_temporary_folder()) as file:
        lines = [f"{_escape(key)}={_escape(value)}" for key, value in metadata.items() if not value.endswith("\\")]
        file.write("\n".join([";FFMETADATA1", *lines, ""]).encode())
        file.seek(0)
        yield file.fileno()


def read_metadata(path: Path) -> dict[str, str]:
    """Read the entries of a video or an image, without ffmpeg's own.

    Keys in .mkv and .webm are in capitals, and without spaces. Warns if there is more text than is read.
    """
    if is_png(path):
        pairs = read_png_text(path, MAX_TEXT)
    else:
        pairs = _parse(read_output([*input_arguments(path), "-f", "ffmetadata"], MAX_TEXT, name=str(path)))
    entries = {}
    try:
        for key, value in _limited(pairs):
            if key not in _OF_CONTAINERS and not (key.lower() == "encoder" and _OWN_ENCODER.match(value)):
                entries[key] = value
    except _TooMuchText:
        warn(f"{path}: has more than {MAX_TEXT >> 20} MB of text; not all of it is shown.")
    return entries


def check_text(path: Path) -> None:
    """Raise a `ReaderError` for a PNG file with more text than is read, which ffmpeg would decompress."""
    try:
        deque(_limited(read_png_text(path, MAX_TEXT) if is_png(path) else ()), maxlen=0)
    except _TooMuchText:
        megabytes = MAX_TEXT >> 20
        raise ReaderError(f"{path}: has more than {megabytes} MB of compressed text; save it without.") from None


class _TooMuchText(Exception):
    """Signal that a file has more text than is read."""


def _limited(entries: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    room = MAX_TEXT
    for key, value in entries:
        room -= len(key) + len(value) + _ENTRY_COST
        if room < 0:
            raise _TooMuchText
        yield key, value


def _parse(text: str) -> Iterator[tuple[str, str]]:
    """Yield the entries in ffmpeg's format, up to a line [STREAM] or [CHAPTER], after which they are of these."""
    start = text.find("\n") + 1  # after ;FFMETADATA1
    while (end := _find(text, "\n", start, len(text))) >= 0 and (equals := _find(text, "=", start, end)) >= 0:
        yield _unescape(text[start:equals]), _unescape(text[equals + 1 : end])
        start = end + 1
    if end < 0 and start < len(text):  # ffmpeg ends every line
        raise _TooMuchText


def _find(text: str, letter: str, start: int, end: int) -> int:
    """Return the index of a letter that is not escaped; -1 if there is none."""
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
    """Return the entries that ffmpeg's format cannot hold: a backslash at the end of a value joins the next line."""
    return [word for key, value in metadata.items() if value.endswith("\\") for word in ("-metadata", f"{key}={value}")]


def _escape(text: str) -> str:
    return _ESCAPED.sub(r"\\\1", text)


def _unescape(text: str) -> str:
    return text.replace("\\\\", "\0").replace("\\", "").replace("\0", "\\")  # no text has a NUL
