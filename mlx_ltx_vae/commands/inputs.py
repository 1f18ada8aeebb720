"""What the arguments of a command name: files, lists of files (`@clips.txt`), and tables (`clips.csv`)."""

import csv
import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import islice
from pathlib import Path

from ..errors import ItemsError, quote
from ..files.opening import read_small_file
from ..frame_rate import parse_fps
from ..shapes import Size

#: Columns with the path, as data sets name them.
PATH_COLUMNS = ("path", "media_path", "video", "video_path", "file", "file_name")
_FRAMES_COLUMNS = ("frames", "num_frames")
_STANDARD_INPUT = "-"
_MAX_LIST = 64_000_000  # bytes
_MAX_INPUTS = 1_000_000
_DESCRIPTORS = ("/dev/fd/", "/dev/stdin")  # of a shell's `@<(ls *.npy)`, whose names are relative to the working folder


@dataclass(frozen=True)
class Input:
    """An input before its output is known.

    Attributes:
        name: for its output, without an ending: of a list's file its path in the list's folder, otherwise the file's.
        output: of a table's column `output`.
        folder: the table's, to which `output` is relative if the command has no output.
        size, max_frames, fps: of a table, see `Item`.
        where: the line of the list or table, for errors; None for an argument of the command.
    """

    source: str
    name: str
    output: str | None = None
    folder: str = ""
    size: Size | None = None
    max_frames: int | None = None
    fps: Fraction | None = None
    where: str | None = field(default=None, compare=False)


def is_list(argument: str) -> bool:
    """Whether an argument names a list or a table rather than one input."""
    return argument.startswith("@") or argument.lower().endswith(".csv")


def read_inputs(arguments: Sequence[str], *, with_sizes: bool) -> list[Input]:
    """The inputs that arguments name, in order.

    Args:
        with_sizes: whether to read the columns width, height, frames and fps of tables, of which encodes make use.

    Raises:
        ItemsError: for a list or table that cannot be read, names no file, or has a value that is not a number.
    """
    inputs: list[Input] = []
    for argument in arguments:
        inputs += (
            _read_list(argument.removeprefix("@"), with_sizes)
            if is_list(argument)
            else [Input(argument, _stem(argument))]
        )
    return inputs


def _stem(source: str) -> str:
    name = Path(source).name
    return Path(source if name.strip(".") else os.path.realpath(source)).stem  # "." and ".." are no names


def _read_list(path: str, with_sizes: bool) -> list[Input]:
    read = _read_table(path, with_sizes) if path.lower().endswith(".csv") else _read_lines(path)
    found = list(islice(read, _MAX_INPUTS + 1))
    if not found:
        raise ItemsError(f"{path}: names no file; write one path a line.")
    if len(found) > _MAX_INPUTS:
        raise ItemsError(f"{path}: names more than {_MAX_INPUTS:,} files; split it.")
    return found


@contextmanager
def _open_list(path: str, newline: str | None = None) -> Iterator[io.TextIOWrapper]:
    """A list, which may be a pipe, as text."""
    try:
        yield io.TextIOWrapper(io.BytesIO(read_small_file(path, _MAX_LIST, pipes=True)), "utf-8-sig", newline=newline)
    except FileNotFoundError:
        raise ItemsError(f"{path}: there is no such list.") from None
    except OSError as error:
        raise ItemsError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ItemsError(f"{path}: cannot be read as a list in UTF-8 ({error}).") from error


def _read_lines(path: str) -> Iterator[Input]:
    with _open_list(path) as lines:
        for number, line in enumerate(map(str.strip, lines), 1):
            if line and not line.startswith("#"):
                yield _listed(line, path, f"{path}, line {number}")


def _listed(line: str, path: str, where: str) -> Input:
    """The input that a line of a list names, relative to the list's folder."""
    _check_path(line, where)
    folder = "" if path.startswith(_DESCRIPTORS) else os.path.dirname(path)
    source = os.path.join(folder, line)
    inside = os.path.relpath(source, folder or ".")
    is_inside = inside.split(os.sep)[0] not in (os.pardir, os.curdir)
    name = os.path.splitext(inside)[0] if is_inside else _stem(source)
    return Input(source, name, folder=folder, where=where)


def _check_path(text: str, where: str) -> None:
    if text == _STANDARD_INPUT or "\0" in text:
        raise ItemsError(f"{where}: {quote(text)} is not the path of a file.")


def _read_table(path: str, with_sizes: bool) -> Iterator[Input]:
    with _open_list(path, newline="") as file:
        reader = csv.DictReader(file, restkey="")
        columns = {name.strip().lower(): name for name in reader.fieldnames or ()}
        paths = [name for name in PATH_COLUMNS if name in columns]
        if len(paths) != 1:
            found = f"has the columns {' and '.join(paths)}" if paths else "has no column with paths"
            raise ItemsError(f"{path}: {found}; its first line must name one of {', '.join(PATH_COLUMNS)}.")
        for fields in reader:
            where = f"{path}, line {reader.line_num}"
            if "" in fields:
                raise ItemsError(
                    f"{where}: has more values than there are columns; put quotes around those with commas."
                )
            row = {name: (fields[column] or "").strip() for name, column in columns.items()}
            if not row[paths[0]]:
                raise ItemsError(f"{where}: has no {paths[0]}.")
            listed = replace(_listed(row[paths[0]], path, where), output=row.get("output") or None)
            _check_path(listed.output or "", where)
            yield _with_sizes(listed, row, where) if with_sizes else listed


def _with_sizes(listed: Input, row: dict[str, str], where: str) -> Input:
    width, height = (_whole(row, name, where) for name in ("width", "height"))
    if (width is None) != (height is None):
        raise ItemsError(f"{where}: states only one of width and height; state both or none.")
    frames = [_whole(row, name, where) for name in _FRAMES_COLUMNS]
    try:
        fps = parse_fps(row["fps"]) if row.get("fps") else None
    except ValueError as error:
        raise ItemsError(f"{where}: {error}") from error
    return replace(
        listed,
        size=None if width is None or height is None else (width, height),
        max_frames=next((number for number in frames if number is not None), None),
        fps=fps,
    )


def _whole(row: dict[str, str], name: str, where: str) -> int | None:
    """A whole number above 0, also with decimals that are 0, as programs write whole numbers that may be missing."""
    text = row.get(name)
    if not text:
        return None
    digits, _, decimals = text.partition(".")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10 and int(digits)) or decimals.strip("0"):
        raise ItemsError(f"{where}: the {name} {quote(text)} is not a whole number of at least 1.")
    return int(digits)
