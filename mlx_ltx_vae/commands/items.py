"""The items that arguments name, as files, in lists (`@clips.txt`) and in tables (`clips.csv`), and their outputs."""

import csv
import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import chain, islice
from pathlib import Path
from typing import Any

from ..errors import ItemsError, LatentsError, one_line, quote
from ..files import InputFiles, file_key, read_small_file, writing_to
from ..shapes import Size
from ..units import find_fps, format_bytes, format_count

_PATH_COLUMNS = ("path", "media_path", "video", "video_path", "file", "file_name")  # as data sets name them
_MAX_LIST = 64_000_000  # bytes
_MAX_INPUTS = 1_000_000
_MAX_BATCH = 10_000
_NAME = "{name}"  # stands for the name of the input, in an output
_DESCRIPTORS = ("/dev/fd/", "/dev/stdin")  # of a shell's `@<(ls *.npy)`, whose names are relative to the working folder


@dataclass
class Item:
    """An input, its output, what a table says about it, and what becomes of it."""

    source: str
    name: str  # for its output, without an ending; of a list's file its path in the list's folder
    output: str | None = None  # as a table states it, then as `name_items` names it; None in a dry run without one
    folder: str = ""  # to which a table's output is relative, and in which those of lists and tables must be
    size: Size | None = None  # this, `max_frames` and `fps` are a table's
    max_frames: int | None = None
    fps: Fraction | None = None
    where: str | None = field(default=None, compare=False)  # the line of a list or table, for errors
    # Known when its task is made, as all below. Several for a batch.
    inputs: Sequence[str | os.PathLike] = ()  # all files that are read for it
    outputs: Sequence[str] = ()
    beside: Mapping[str, Sequence[str]] = field(default_factory=dict)  # what else is written for each, by its kind
    num_frames: int | None = None  # of this rank's outputs; None if it is not known yet
    cost: int = 0  # the work, relative to that of other items
    is_skipped: bool = False
    values: dict[str, Any] = field(default_factory=dict)  # its report, JSON-serializable, or its plan in a dry run
    text: str = ""  # the same as it is printed
    error: str | None = None

    @property
    def is_pending(self) -> bool:
        return not self.values and self.error is None and not self.is_skipped

    def rename(self, names: Mapping[str, str]) -> None:
        """Take over the names of outputs that have got others, since files had taken these by then."""
        self.outputs = [names.get(output, output) for output in self.outputs]
        self.beside = {kind: [names.get(name, name) for name in given] for kind, given in self.beside.items()}
        self.output = None if self.output is None else names.get(self.output, self.output)

    def as_dict(self) -> dict[str, Any]:
        """What became of it, JSON-serializable."""
        output = list(self.outputs) if len(self.outputs) > 1 else self.output
        state = {"skipped": True} if self.error is None else {"error": self.error}
        return {"source": self.source, "output": output, **(self.values or state)}

    def __str__(self) -> str:
        values, outputs = self.values, ", ".join(self.outputs)
        target = f" -> {outputs}" if outputs else ""
        if self.error is not None:
            return self.error if self.error.startswith(f"{one_line(self.source)}: ") else f"{self.source}: {self.error}"
        if self.is_skipped:
            return f"{self.source}: skipped, found {outputs}"
        plan = values["plan"]
        keyframes = f", {format_count(len(plan['keyframes']), 'keyframe')}" if plan.get("keyframes") else ""
        if "seconds" in values:
            frames = f"{format_count(values['frames'], 'frame')}{keyframes}"
            return f"{self.source}{target}: {frames}, {values['seconds']:.2f} s"
        how = plan["mode"] if plan["mode"] != "exact" else f"exact by {plan['order']}"
        frames = f"{format_count(plan['frames'], 'frame')} of {plan['width']}x{plan['height']}"
        return f"{self.source}{target}: {frames}{keyframes}, {how}, peak {format_bytes(plan['peak_bytes'])}"


def is_list(argument: str) -> bool:
    """Whether an argument names a list or a table rather than one input."""
    return argument.startswith("@") or has_table([argument])


def has_table(arguments: Sequence[str]) -> bool:
    """Whether arguments name a table, which may state outputs."""
    return any(argument.lower().endswith(".csv") for argument in arguments)


def read_inputs(arguments: Sequence[str], *, with_sizes: bool) -> list[Item]:
    """The inputs that arguments name, in order; `with_sizes` if width, height, frames and fps of tables are read."""
    items: list[Item] = []
    for argument in arguments:
        if is_list(argument):
            items += _read_list(argument.removeprefix("@"), with_sizes)
        else:
            items.append(Item(argument, _stem(argument)))
    return items


def _stem(source: str) -> str:
    name = Path(source).name
    return Path(source if name.strip(".") else os.path.realpath(source)).stem  # "." and ".." are no names


def _read_list(path: str, with_sizes: bool) -> list[Item]:
    read = _read_table(path, with_sizes) if has_table([path]) else _read_lines(path)
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


def _read_lines(path: str) -> Iterator[Item]:
    with _open_list(path) as lines:
        for number, line in enumerate(map(str.strip, lines), 1):
            if line and not line.startswith("#"):
                yield _listed(line, path, f"{path}, line {number}")


def _listed(line: str, path: str, where: str) -> Item:
    """The input that a line of a list names, relative to the list's folder."""
    _check_path(line, where)
    folder = "" if path.startswith(_DESCRIPTORS) else os.path.dirname(path)
    source = os.path.join(folder, line)
    inside = os.path.relpath(source, folder or ".")
    is_inside = inside.split(os.sep)[0] not in (os.pardir, os.curdir)
    name = os.path.splitext(inside)[0] if is_inside else _stem(source)
    return Item(source, name, folder=folder, where=where)


def _check_path(text: str, where: str) -> None:
    if text == "-" or "\0" in text:
        raise ItemsError(f"{where}: {quote(text)} is not the path of a file.")


def _read_table(path: str, with_sizes: bool) -> Iterator[Item]:
    with _open_list(path, newline="") as file:
        reader = csv.DictReader(file, restkey="")
        columns = {name.strip().lower(): name for name in reader.fieldnames or ()}
        paths = [name for name in _PATH_COLUMNS if name in columns]
        if len(paths) != 1:
            found = f"has the columns {' and '.join(paths)}" if paths else "has no column with paths"
            raise ItemsError(f"{path}: {found}; its first line must name one of {', '.join(_PATH_COLUMNS)}.")
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


def _with_sizes(listed: Item, row: dict[str, str], where: str) -> Item:
    width, height = (_whole(row, name, where) for name in ("width", "height"))
    if (width is None) != (height is None):
        raise ItemsError(f"{where}: states only one of width and height; state both or none.")
    size = (width, height) if width and height else None
    frames = [_whole(row, name, where) for name in ("frames", "num_frames")]
    fps = find_fps(where, row["fps"], ItemsError) if row.get("fps") else None
    return replace(listed, size=size, max_frames=frames[0] or frames[1], fps=fps)


def _whole(row: dict[str, str], name: str, where: str) -> int | None:
    """A whole number above 0, also with decimals that are 0, as programs write whole numbers that may be missing."""
    text = row.get(name)
    if not text:
        return None
    match = re.fullmatch(r"([0-9]{1,9})(\.0*)?", text)
    if not match or not int(match[1]):
        raise ItemsError(f"{where}: the {name} {quote(text)} is not a whole number of at least 1.")
    return int(match[1])


def are_many(arguments: Sequence[str]) -> bool:
    """Whether arguments name more than one input; a list always does, whatever its length."""
    return len(arguments) > 1 or any(map(is_list, arguments))


def find_pattern(arguments: Sequence[str], output: str | None, ending: str) -> str | None:
    """The output of each input, with `{name}` for the input's name. For many, `out/` is `out/{name}` and an ending."""
    if are_many(arguments) and ("-" in arguments or output == "-"):
        raise ItemsError("- is standard input or output, which takes one input; name files.")
    if output is None or _NAME in output or not are_many(arguments):
        return output
    if output.endswith(("/", os.sep)) or os.path.isdir(output):
        return os.path.join(output, _NAME + ending)
    raise ItemsError(
        f"{output}: is one output for several inputs; name a folder (out/) or a pattern (out/{_NAME}{ending})."
    )


def name_items(items: Sequence[Item], pattern: str | None, *, is_dry_run: bool) -> list[Item]:
    """The items with their outputs, without which they may be in a dry run.

    Outputs that a table states replace the pattern. They are relative to its folder, or to the table's without one.
    """
    items = [_with_output(item, pattern) for item in items]
    check_outputs(items)
    for item in items:
        if item.output is None and not is_dry_run:
            raise ItemsError(f"{item.source}: has no output; name a folder for it with -o.")
    return items


def _with_output(item: Item, pattern: str | None) -> Item:
    folder = item.folder if pattern is None else os.path.dirname(pattern.split(_NAME)[0])
    output = os.path.join(folder, item.output) if item.output else pattern and pattern.replace(_NAME, item.name)
    return replace(item, output=output, folder=folder)


def check_outputs(items: Sequence[Item]) -> None:
    """Check that outputs differ, and that those of lists and tables stay in their folder, also through links."""
    owners: dict[str, int] = {}
    folders = {folder: os.path.realpath(folder) for folder in {item.folder for item in items}}
    for index, item in enumerate(items):
        for output in [*item.outputs, *chain(*item.beside.values())] or ([item.output] if item.output else []):
            owner = owners.setdefault(file_key(output), index)
            if owner != index:
                raise ItemsError(
                    f"{items[owner].source} and {item.source} would both be written to {output}; rename one, or name "
                    "them in a list (@clips.txt), which keeps their folders."
                )
            folder = folders[item.folder]
            if item.where and os.path.commonpath([folder, os.path.realpath(output)]) != folder:
                raise ItemsError(
                    f"{item.where}: its output {quote(output)} is not inside the folder {item.folder or os.curdir}; "
                    "name a file in that folder, or another folder with -o."
                )


def check_not_inputs(items: Sequence[Item], others: Sequence[str | os.PathLike]) -> None:
    """Check that no output of complete items is a file that is read: for any of them, or one of the others."""
    inputs = InputFiles(chain(others, *((item.source, *item.inputs) for item in items)))
    for output in chain.from_iterable((*item.outputs, *chain(*item.beside.values())) for item in items):
        inputs.check_output(output)


def list_files(arguments: Sequence[str]) -> list[str]:
    """The lists and tables among the arguments."""
    return [argument.removeprefix("@") for argument in arguments if is_list(argument)]


def all_exist(outputs: Sequence[str]) -> bool:
    """Whether an item's outputs are there: files, or folders of stills that are not empty. False for no outputs."""
    return bool(outputs) and all(map(_exists, outputs))


def _exists(output: str) -> bool:
    path = output
    if "%" in os.path.basename(output) and not os.path.exists(output):
        path = os.path.dirname(output) or os.curdir
    with suppress(OSError):  # a folder that cannot be read, which is an error where it is written
        return output != "-" and (bool(os.listdir(path)) if os.path.isdir(path) else os.path.exists(path))
    return False


def make_folder(output: str) -> None:
    """Make the folder of an output."""
    with writing_to(output):
        Path(output).parent.mkdir(parents=True, exist_ok=True)


def name_outputs(output: str, batch: int) -> list[str]:
    """The output of each video of a batch: clip.mp4 -> clip-0.mp4; out/ -> out-0/; f/%05d.png -> f-0/%05d.png."""
    if batch == 1:
        return [output]
    if batch > _MAX_BATCH:
        raise LatentsError(f"the file has {batch} videos, and at most {_MAX_BATCH} are decoded at once; split it.")
    if output == "-":
        raise LatentsError(f"the file has {batch} videos, and standard output takes one; name an output file.")
    path = Path(output)
    if output.endswith("/") or os.path.isdir(path):
        return [f"{path}-{item}/" for item in range(batch)]
    if "%" in path.name:
        return [str(path.parent.with_name(f"{path.parent.name}-{item}") / path.name) for item in range(batch)]
    return [str(path.with_name(f"{path.stem}-{item}{path.suffix}")) for item in range(batch)]
