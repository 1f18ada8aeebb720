"""The exceptions of this package. A message is one sentence: the file or shape, what was expected, what to do."""

import os
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar


class LTXVAEError(Exception):
    """Base class of all errors that this package raises."""


class CheckpointError(LTXVAEError):
    """A checkpoint cannot be read, is incomplete, or is not supported."""


class CheckpointsDiffer(LTXVAEError):
    """Two checkpoints that should have the same weights differ."""


class LatentsError(LTXVAEError):
    """Latents, noise or pixels have a shape, values or layout that the network cannot take."""


class PlanError(LTXVAEError):
    """The requested options or memory budget cannot be met."""


class DecodeError(LTXVAEError):
    """The network's output is not finite, is the same patch everywhere, or has the wrong number of frames."""


class DecodeCancelled(LTXVAEError):
    """A decode or an encode was cancelled by `cancel` of its stream."""


class DeviceError(LTXVAEError, RuntimeError):
    """The device ran out of memory, or was stopped. Also a RuntimeError, which is what MLX raises."""


class WriterError(LTXVAEError):
    """Frames could not be written."""


class OutputClosed(WriterError):
    """Nobody reads standard output any more."""


class ReaderError(LTXVAEError):
    """A video could not be read."""


class DistributedError(LTXVAEError):
    """Several processes cannot work together: they cannot connect, differ in what they work on, or one has failed."""


class ItemsError(LTXVAEError):
    """A list of inputs cannot be read, two of them have the same output, or some of them failed."""


class TilingError(PlanError, ValueError):
    """Invalid tiles. Also a ValueError, because apps with their own decoder catch that."""


def describe_error(error: Exception) -> str:
    """Describe an error in one line, without the name of its class, which means nothing on a command line."""
    text = excerpt(error, 1000)  # the longest part is the name of a file
    if isinstance(error, LTXVAEError):
        return text
    if isinstance(error, Warning):
        return f"{text.rstrip('.')} (a warning, which -W or PYTHONWARNINGS makes an error)."
    if isinstance(error, MemoryError):
        return "the memory of this machine is exhausted; end other programs, or give a smaller --memory-budget."
    if isinstance(error, OSError):
        names = [os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, (str, bytes))]
        what = one_line(" and ".join(names)) if names else "a file"
        return f"{what}: cannot be read or written ({error.strerror or text or 'the system does not say why'})."
    return f"internal error: {text.rstrip('.') or 'no message'}; run again with --debug and report it."


def one_line(message: object) -> str:
    """A text with single spaces instead of line breaks, and otherwise as `printable`."""
    return printable(" ".join(str(message).split()))


def printable(text: str) -> str:
    """A name, or another line, with control characters escaped: a terminal obeys them, or shows other text."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def excerpt(content: object, limit: int = 80, to_text: Callable[[object], str] = str) -> str:
    """Quote of a file's content for a message: one line of at most `limit` characters, then "..." if there is more."""
    try:
        text = to_text(content)
    except (RecursionError, ValueError):  # nested too deeply, or a number of thousands of digits
        return "a value that is too large to show"
    line = one_line(text[: limit + 1])
    return line if len(line) <= limit and len(text) <= limit else f"{line[:limit]}..."


def quote(value: object, limit: int = 80) -> str:
    """`excerpt` of the value's `repr`: strings in quotes."""
    return excerpt(value, limit, repr)


def name_json(value: object) -> str:
    """The name of a JSON value's type."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


_PASSED_OVER = (__package__, "contextlib", "functools")
_tell: ContextVar[Callable[[str], object] | None] = ContextVar("_tell", default=None)


@contextmanager
def telling_warnings(tell: Callable[[str], object]) -> Iterator[None]:
    """Within the block, warnings of this package on this thread are calls `tell(text)`, and not Python's."""
    token = _tell.set(tell)
    try:
        yield
    finally:
        _tell.reset(token)


def warn(text: str) -> None:
    """Warn at the caller's line: the first outside this package, as by `skip_file_prefixes` of Python 3.12."""
    if (tell := _tell.get()) is not None:
        tell(text)
        return
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _PASSED_OVER:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)


_name_option: Callable[[str, str], str] | None = None  # arguments of Python


@contextmanager
def speaking_of_options(name: Callable[[str, str], str] = lambda argument, flag: flag) -> Iterator[None]:
    """Within the block, messages name options by `name(argument, flag)`, the flags of a command by default."""
    global _name_option
    before, _name_option = _name_option, name
    try:
        yield
    finally:
        _name_option = before


def option(argument: str, flag: str) -> str:
    """The name of an option in a message: the argument in Python, the flag of a command, or an app's own name."""
    return argument if _name_option is None else _name_option(argument, flag)


def suggest(word: str, known: Collection[str], other_names: Mapping[str, str] | None = None) -> str:
    """Suggest what a mistyped word should have been, as a remark for a message; "" if nothing known is like it.

    That is the only name that begins with the word, or one that differs from it by a typing error, or by two if it is
    long: words that are only alike mean something else. `other_names` are names that something known has elsewhere.
    """
    if other_names and word in other_names:
        return f" (did you mean {other_names[word]}?)"
    plain = _plain(word)
    found = [name for name in known if len(plain) > 2 and _plain(name).startswith(plain)]
    if len(found) != 1:
        edits = {name: _count_edits(plain, _plain(name)) for name in known}
        limit = 0 if len(plain) < 4 else 1 if len(plain) < 6 else 2
        found = sorted((name for name in edits if edits[name] <= limit), key=edits.__getitem__)
    return f" (did you mean {found[0]}?)" if found else ""


def _plain(word: str) -> str:
    return word.lstrip("-").replace("_", "-").lower()


def _count_edits(word: str, name: str) -> int:
    """The letters to insert, delete, replace, or exchange with the next one."""
    if abs(len(word) - len(name)) > 2:  # a word may be of any length
        return 3
    before: list[int] = []
    last = list(range(len(name) + 1))
    for row, letter in enumerate(word, 1):
        counts = [row]
        for column, other in enumerate(name, 1):
            counts.append(min(last[column] + 1, counts[-1] + 1, last[column - 1] + (letter != other)))
            if row > 1 and column > 1 and letter == name[column - 2] and word[row - 2] == other:
                counts[-1] = min(counts[-1], before[column - 2] + 1)
        before, last = last, counts
    return last[-1]
