"""Exceptions of this package. A message is one sentence: the file or shape, what was expected, what to do."""

import logging
import os
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches

_SIMILARITY = 0.8  # of a mistyped word and its name: more than of two words that each mean something


class LTXVAEError(Exception):
    """Base class of all errors that this package raises."""


class CheckpointError(LTXVAEError):
    """Checkpoint that cannot be read, is incomplete, or is not supported."""


class CheckpointsDiffer(LTXVAEError):
    """Difference between two checkpoints that should have the same weights."""


class LatentsError(LTXVAEError):
    """Latents, noise or pixels with a shape, values or layout that the network cannot take."""


class PlanError(LTXVAEError):
    """Options or memory budget that cannot be met.

    `least_bytes` is the least memory budget that works, if a budget is too small.
    """

    def __init__(self, text: str, *, least_bytes: int | None = None) -> None:
        super().__init__(text)
        self.least_bytes = least_bytes


class DecodeError(LTXVAEError):
    """Network output that is not finite, is the same patch everywhere, or has the wrong number of frames."""


class DecodeCancelled(LTXVAEError):
    """Decode or encode that was cancelled by `cancel` of its stream."""


class DeviceError(LTXVAEError, RuntimeError):
    """Device that ran out of memory, or was stopped. Also a RuntimeError, like the error that MLX raises."""


class WriterError(LTXVAEError):
    """Frames that could not be written."""


class OutputExists(WriterError):
    """File that exists and is not to be replaced. `path` is its name."""

    def __init__(self, text: str, path: str) -> None:
        super().__init__(text)
        self.path = path


class OutputClosed(WriterError):
    """Standard output that no program reads any more."""


class ReaderError(LTXVAEError):
    """Video that could not be read."""


class DistributedError(LTXVAEError):
    """Processes that cannot work together: they cannot connect, have different inputs, or one has failed."""


class ItemsError(LTXVAEError):
    """List of inputs that cannot be read, in which two inputs have the same output, or in which some inputs failed."""


class TilingError(PlanError, ValueError):
    """Invalid tiles. Also a ValueError, because apps with their own decoder catch that."""


def describe_error(error: Exception) -> str:
    """Describe an error in one line, without the name of its class, which means nothing on a command line."""
    text = excerpt(error, 1000)  # the name of a file is the longest part
    if isinstance(error, LTXVAEError):
        return text
    if isinstance(error, Warning):
        return f"{text.rstrip('.')} (a warning, which -W or PYTHONWARNINGS makes an error)."
    if isinstance(error, MemoryError):
        return "the memory of this machine is exhausted; end other programs, or give a smaller --memory-budget."
    if isinstance(error, OSError):
        names = [os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, (str, bytes))]
        label = one_line(" and ".join(names)) if names else "a file"
        return f"{label}: cannot be read or written ({error.strerror or text or 'the system does not say why'})."
    return f"internal error: {text.rstrip('.') or 'no message'}; run again with --debug and report it."


def one_line(message: object) -> str:
    """Replace line breaks of a text by single spaces, and otherwise escape it as `printable`."""
    return printable(" ".join(str(message).split()))


def printable(text: str) -> str:
    """Escape the control characters in a name, or another line. A terminal would obey them, or print other text."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def excerpt(content: object, limit: int = 80, to_text: Callable[[object], str] = str) -> str:
    """Quote a file's content for a message: one line of at most `limit` characters, then "..." if there is more."""
    try:
        text = to_text(content)
    except (RecursionError, ValueError):  # nested too deeply, or a number of thousands of digits
        return "a value that is too large to show"
    line = one_line(text[: limit + 1])
    return line if len(line) <= limit and len(text) <= limit else f"{line[:limit]}..."


def quote(value: object, limit: int = 80) -> str:
    """Return an `excerpt` of the value's `repr`, with strings in quotes."""
    return excerpt(value, limit, repr)


def name_json(value: object) -> str:
    """Return the name of a JSON value's type."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


_SKIPPED_MODULES = (__package__, "contextlib", "functools")
_tell: ContextVar[Callable[[str], object] | None] = ContextVar("_tell", default=None)


@contextmanager
def telling_warnings(tell: Callable[[str], object]) -> Iterator[None]:
    """Call `tell(text)` for warnings of this package on this thread in the block, instead of Python's warnings."""
    token = _tell.set(tell)
    try:
        yield
    finally:
        _tell.reset(token)


def takes_options() -> bool:
    """Return whether messages may advise options: not in the call of an app, whose user cannot give them."""
    return _tell.get() is None


def warn(text: str) -> None:
    """Warn at the first line outside this package, as with `skip_file_prefixes` of Python 3.12."""
    if (tell := _tell.get()) is not None:
        tell(text)
        return
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _SKIPPED_MODULES:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)


_tell_note: ContextVar[Callable[[str], object] | None] = ContextVar("_tell_note", default=None)


@contextmanager
def telling_notes(tell: Callable[[str], object]) -> Iterator[None]:
    """Call `tell(text)` for notes of this package on this thread in the block."""
    token = _tell_note.set(tell)
    try:
        yield
    finally:
        _tell_note.reset(token)


def note(text: str) -> None:
    """Say what is done. Commands print it; in Python it is logged."""
    if (tell := _tell_note.get()) is not None:
        tell(text)
    else:
        logging.getLogger(__package__).info(text)


_name_option: Callable[[str, str], str] | None = None  # `None` means the arguments of Python


@contextmanager
def speaking_of_options(name: Callable[[str, str], str] = lambda argument, flag: flag) -> Iterator[None]:
    """Name options in messages by `name(argument, flag)` in the block. The default is the flags of a command."""
    global _name_option
    previous, _name_option = _name_option, name
    try:
        yield
    finally:
        _name_option = previous


def option(argument: str, flag: str) -> str:
    """Return the name of an option in a message: the argument in Python, the flag of a command, or an app's name."""
    return argument if _name_option is None else _name_option(argument, flag)


def suggest(word: str, names: Collection[str], other_names: Mapping[str, str] | None = None) -> str:
    """Suggest a name for a mistyped word, as a remark for a message, or "" if no name is like it.

    It is the only name that begins with the word, or one that is very similar: words that are less so mean something
    else. `other_names` maps names in other programs to names.
    """
    if other_names and word in other_names:
        return f" (did you mean {other_names[word]}?)"
    plain, plain_names = _plain(word), {_plain(name): name for name in names}
    matches = [name for name in plain_names if len(plain) > 2 and name.startswith(plain)]
    if len(matches) != 1:
        is_no = plain.startswith("no-")  # the opposite of the name without it
        matches = get_close_matches(
            plain, [name for name in plain_names if name.startswith("no-") is is_no], 1, _SIMILARITY
        )
    return f" (did you mean {plain_names[matches[0]]}?)" if matches else ""


def _plain(word: str) -> str:
    return word.lstrip("-").replace("_", "-").lower()
