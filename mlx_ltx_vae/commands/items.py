"""Items of a command, the inputs with their outputs: from arguments, lists, tables and folders."""

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

from ..errors import ItemsError, OutputExists, one_line, quote, warn
from ..files import explain_missing, file_key, is_pipe, numbered_names, read_small_file
from ..latents.formats import READERS
from ..shapes import Size
from ..units import find_fps, format_bytes, format_count
from ..video import frame_endings
from ..video.reader import IMAGE_ENDINGS

#: In an output, replaced by the name of the input.
NAME = "{name}"

_PATH_COLUMNS = ("path", "media_path", "video", "video_path", "file", "file_name")  # as data sets name them
_MAX_LIST = 64_000_000  # bytes
_MAX_INPUTS = 1_000_000
_MAX_WORDS = 8  # of a name with spaces
_PIPE_NAME = "clip"  # the name of standard input
_VIDEO_ENDINGS = (".mp4", ".mov", ".m4v", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts", ".mts", ".wmv", ".gif")
_DESCRIPTORS = ("/dev/fd/", "/dev/stdin")  # for `@<(ls *.npy)`; its names are relative to the working folder


@dataclass(frozen=True)
class Item:
    """Input with its output, and its settings in a table.

    Attributes:
        name: for its output, without folders and ending.
        output: as a table states it, then as `name_items` names it; `None` in a dry run without -o.
        folder: a table's output is relative to it, and outputs of lists and tables must be in it.
        size, max_frames, fps: settings in a table.
        where: the line of a list or table, for errors.
        windows: the files of a film.
    """

    source: str
    name: str
    output: str | None = None
    folder: str = ""
    size: Size | None = None
    max_frames: int | None = None
    fps: Fraction | None = None
    where: str | None = field(default=None, compare=False)
    windows: Sequence[str] = ()


@dataclass(frozen=True)
class Result:
    """Files of an item, which are known when its task is made, and what has become of it.

    Attributes:
        inputs: all files that are read, besides the item's source.
        outputs: several for a batch of videos.
        extras: further files that are written, by their kind.
        num_frames: of the outputs; `None` if it is not known yet.
        cost: relative to other items.
        values: the report, or in a dry run the plan, JSON-serializable.
        text: the same values as text.
    """

    inputs: Sequence[str | os.PathLike] = ()
    outputs: Sequence[str] = ()
    extras: Mapping[str, Sequence[str]] = field(default_factory=dict)
    num_frames: int | None = None
    cost: int = 0
    is_skipped: bool = False
    values: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    error: str | None = None

    @property
    def written(self) -> list[str]:
        """All files that are written."""
        return [*self.outputs, *chain(*self.extras.values())]

    @property
    def is_pending(self) -> bool:
        return not self.values and self.error is None and not self.is_skipped

    def as_dict(self, item: Item) -> dict[str, Any]:
        """Return the result of an item, JSON-serializable."""
        outputs = self.outputs
        output = list(outputs) if len(outputs) > 1 else outputs[0] if outputs else item.output
        state = {"skipped": True} if self.error is None else {"error": self.error}
        return {"source": item.source, "output": output, **(self.values or state)}

    def describe(self, item: Item) -> str:
        """Return the result of an item in one line."""
        source, values, outputs = item.source, self.values, ", ".join(self.outputs)
        target = f" -> {outputs}" if outputs else ""
        if self.error is not None:
            return self.error if self.error.startswith(f"{one_line(source)}: ") else f"{source}: {self.error}"
        if self.is_skipped:
            return f"{source}: skipped, found {outputs}"
        plan = values["plan"]
        keyframes = f", {format_count(len(plan['keyframes']), 'keyframe')}" if plan.get("keyframes") else ""
        if "seconds" in values:
            frames = f"{format_count(values['frames'], 'frame')}{keyframes}"
            return f"{source}{target}: {frames}, {values['seconds']:.2f} s"
        method = plan["mode"] if plan["mode"] != "exact" else f"exact by {plan['order']}"
        frames = f"{format_count(plan['frames'], 'frame')} of {plan['width']}x{plan['height']}"
        return f"{source}{target}: {frames}{keyframes}, {method}, peak {format_bytes(plan['peak_bytes'])}"


def mark_folders(arguments: Sequence[str], *, of_videos: bool) -> list[str]:
    """Return the arguments with an "@" before folders of inputs, which are lists of their files.

    Of videos, a folder of images is one input, and a folder of latent files alone is a list of them.
    """
    marked_arguments = []
    for argument in arguments:
        is_list = os.path.isdir(argument)
        if is_list and of_videos and not _names_in(argument, _VIDEO_ENDINGS):
            is_list = not _names_in(argument, IMAGE_ENDINGS) and bool(_names_in(argument, _latent_endings()))
        marked_arguments.append(f"@{argument}" if is_list else argument)
    return marked_arguments


def is_list(argument: str) -> bool:
    """Return whether an argument names a list, a folder of inputs or a table rather than one input."""
    return argument.startswith("@") or has_table([argument])


def has_table(arguments: Sequence[str]) -> bool:
    """Return whether arguments name a table, which may state outputs."""
    return any(argument.lower().endswith(".csv") for argument in arguments)


def read_inputs(arguments: Sequence[str], *, of_videos: bool) -> list[Item]:
    """Return the inputs that arguments name, in order.

    `of_videos`: they are videos, of which tables state width, height, frames and fps, rather than latent files.
    """
    items: list[Item] = []
    for argument in arguments:
        if is_list(argument):
            items += _read_list(argument.removeprefix("@"), of_videos)
        else:
            items.append(Item(argument, _PIPE_NAME if argument == "-" else _stem(argument)))
    return items


def join_items(items: Sequence[Item]) -> Item:
    """Return the item of a film. Its windows are the files of the items, and the latent files in folders among them."""
    for item in items:
        if item.output:
            raise ItemsError(f"{item.where}: states an output, and all windows have one; name it with -o alone.")
    windows = chain.from_iterable(
        files_in(item.source, of_videos=False) if os.path.isdir(item.source) else [item.source] for item in items
    )
    return replace(items[0], where=None, folder="", windows=tuple(windows))


def files_in(folder: str, *, of_videos: bool) -> list[str]:
    """Return the latent files, or the videos if there are any, in a folder, ordered by the numbers in their names."""
    endings = _latent_endings()
    if of_videos and (_names_in(folder, _VIDEO_ENDINGS) or not _names_in(folder, endings)):
        endings = _VIDEO_ENDINGS
    paths = [os.path.join(folder, name) for name in _names_in(folder, endings)]
    pipes = list(filter(is_pipe, paths))  # which may never end
    for path in pipes:
        warn(f"{path}: is a named pipe, and is left out of the files in its folder; name it to read it.")
    if len(paths) == len(pipes):
        noun = "videos" if endings is _VIDEO_ENDINGS else "latent files"
        raise ItemsError(f"{folder}: this folder has no {noun} ({', '.join(endings)}); name another one.")
    return [path for path in paths if path not in pipes]


def _latent_endings() -> tuple[str, ...]:
    return tuple(chain.from_iterable(reader.endings for reader in READERS))


def _names_in(folder: str, endings: tuple[str, ...]) -> list[str]:
    """Return the names of the files in a folder that have one of the endings, 2 before 10."""
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise ItemsError(f"{folder}: cannot be read ({error.strerror or error}).") from error
    names = [name for name in names if name.lower().endswith(endings) and not name.startswith(".")]
    parts = {name: re.split(r"([0-9]+)", os.path.splitext(name)[0]) for name in names}
    order = {
        name: [int(part) if index % 2 else part for index, part in enumerate(split)] for name, split in parts.items()
    }
    return sorted(names, key=lambda name: (order[name], name))


def _stem(source: str) -> str:
    name = Path(source).name
    return Path(source if name.strip(".") else os.path.realpath(source)).stem  # "." and ".." are no names


def _read_list(path: str, of_videos: bool) -> list[Item]:
    if os.path.isdir(path):
        return [Item(file, _stem(file)) for file in files_in(path, of_videos=of_videos)]
    entries = _read_table(path, of_videos) if has_table([path]) else _read_lines(path)
    items = list(islice(entries, _MAX_INPUTS + 1))
    if not items:
        raise ItemsError(f"{path}: names no file; write one path per line.")
    if len(items) > _MAX_INPUTS:
        raise ItemsError(f"{path}: names more than {_MAX_INPUTS:,} files; split it.")
    return items


@contextmanager
def _open_list(path: str, newline: str | None = None) -> Iterator[io.TextIOWrapper]:
    """Yield the text of a list, which may be a pipe."""
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
                yield _parse_item(line, path, f"{path}, line {number}")


def _parse_item(line: str, path: str, where: str) -> Item:
    """Return the input that a line of a list names. Its path is relative to the folder of the list."""
    folder = "" if path.startswith(_DESCRIPTORS) else os.path.dirname(path)
    source = os.path.join(folder, _parse_path(line, where))
    return Item(source, _stem(source), folder=folder, where=where)


def _parse_path(text: str, where: str) -> str:
    """Return the path that a list or a table states, with `~` expanded."""
    if text == "-" or "\0" in text:
        raise ItemsError(f"{where}: {quote(text)} is not the path of a file.")
    return os.path.expanduser(text)


def _read_table(path: str, of_videos: bool) -> Iterator[Item]:
    with _open_list(path, newline="") as file:
        reader = csv.DictReader(file, restkey="")
        columns = {name.strip().lower(): name for name in reader.fieldnames or ()}
        paths = [name for name in _PATH_COLUMNS if name in columns]
        if len(paths) != 1:
            problem = f"has the columns {' and '.join(paths)}" if paths else "has no column with paths"
            raise ItemsError(f"{path}: {problem}; its first line must name one of {', '.join(_PATH_COLUMNS)}.")
        for fields in reader:
            where = f"{path}, line {reader.line_num}"
            if "" in fields:
                raise ItemsError(
                    f"{where}: has more values than there are columns; put quotes around values with commas."
                )
            row = {name: (fields[column] or "").strip() for name, column in columns.items()}
            if not row[paths[0]]:
                raise ItemsError(f"{where}: has no {paths[0]}.")
            output = _parse_path(row.get("output") or "", where) or None
            item = replace(_parse_item(row[paths[0]], path, where), output=output)
            yield _add_sizes(item, row, where) if of_videos else item


def _add_sizes(item: Item, row: dict[str, str], where: str) -> Item:
    width, height = (_parse_count(row, name, where) for name in ("width", "height"))
    if (width is None) != (height is None):
        raise ItemsError(f"{where}: states only one of width and height; state both or none.")
    size = (width, height) if width and height else None
    frames = [_parse_count(row, name, where) for name in ("frames", "num_frames")]
    fps = find_fps(where, row["fps"], ItemsError) if row.get("fps") else None
    return replace(item, size=size, max_frames=frames[0] or frames[1], fps=fps)


def _parse_count(row: dict[str, str], name: str, where: str) -> int | None:
    """Return a whole number above 0, or `None` if the row has none. Decimals (of columns with gaps) must be 0."""
    text = row.get(name)
    if not text:
        return None
    match = re.fullmatch(r"([0-9]{1,9})(\.0*)?", text)
    if not match or not int(match[1]):
        raise ItemsError(f"{where}: the {name} {quote(text)} is not a whole number of at least 1.")
    return int(match[1])


def are_many(arguments: Sequence[str]) -> bool:
    """Return whether arguments name several inputs. A list or a folder counts as several, whatever its length."""
    return len(arguments) > 1 or any(map(is_list, arguments))


def check_inputs(arguments: Sequence[str], output: str | None, ending: str) -> None:
    """Check that the last argument is no output without -o, and that none is a list without @, or a part of a name.

    Names with spaces are split unless they are quoted. `ending` is that of outputs without a name.
    """
    if output is None and len(arguments) > 1 and _is_like_output(arguments[-1], ending):
        raise ItemsError(f"{arguments[-1]}: there is no such file; if it is the output, add -o before it.")
    for start, argument in enumerate(arguments):
        if argument.lower().endswith(".txt") and not argument.startswith("@"):
            raise ItemsError(f"{argument}: is no input; if it is a list of inputs, write @{argument}.")
        if not is_list(argument) and not os.path.lexists(argument):
            names = (" ".join(arguments[start:end]) for end in range(start + 2, start + 2 + _MAX_WORDS))
            if name := next(filter(os.path.lexists, names), None):
                raise ItemsError(
                    f"{argument}: {explain_missing(argument, 'file').rstrip('.')}; write '{name}', in quotes."
                )


def find_pattern(arguments: Sequence[str], output: str | None, ending: str, default: str | None = None) -> str | None:
    """Return the pattern of outputs. A folder, `out/`, becomes `out/{name}` with the ending.

    Without an output it is the default, unless a table may state the outputs.
    """
    if are_many(arguments) and ("-" in arguments or output == "-"):
        raise ItemsError("- is standard input or output, which takes one input; name files.")
    if output is None:
        return None if has_table(arguments) else default
    if output == "-":
        return output
    for placeholder in re.findall(r"\{\w*\}", os.path.basename(output)):
        if placeholder != NAME:
            raise ItemsError(f"{output}: {placeholder} stands for nothing; write {NAME}, or %05d to number stills.")
    if names_folder(output):
        return os.path.join(output, NAME + ending)
    if NAME in output or not are_many(arguments):
        return output
    for argument in arguments:
        if not is_list(argument) and not os.path.lexists(argument) and "%" not in argument:
            raise ItemsError(f"{argument}: {explain_missing(argument, 'file or folder')}")
    raise ItemsError(
        f"{output}: is one output for several inputs; name a folder (out/) or a pattern (out/{NAME}{ending})."
    )


def names_folder(output: str) -> bool:
    """Return whether -o is a folder for files that are named after the inputs, rather than a file or a pattern."""
    return output.endswith(("/", os.sep)) or os.path.isdir(output)


def _is_like_output(argument: str, ending: str) -> bool:
    """Return whether an argument that is no file ends like an output, whose default has an `ending`."""
    inputs, outputs = _latent_endings(), (*frame_endings(), ".html")
    if ending == ".safetensors":
        inputs, outputs = outputs, inputs
    name = argument.lower()
    return name.endswith(outputs) and not name.endswith(inputs) and not os.path.lexists(argument)


def find_free_name(output: str) -> str:
    """Return a default name, or if it exists the name with the next free number."""
    path, is_folder = Path(output), output.endswith("/")
    names = numbered_names(path, is_folder=is_folder)
    free_path = next(candidate for candidate in chain([path], names) if not os.path.lexists(candidate))
    if free_path == path:
        return output
    return os.path.join(free_path, "") if is_folder else str(free_path)


def warn_of_free_names(free_names: Mapping[str, str]) -> None:
    """Warn, once, of outputs that have the next free number, {default name: its free name}."""
    if not free_names:
        return
    (name, free_name), count = next(iter(free_names.items())), len(free_names) - 1
    if count:
        more = f"{name} and {format_count(count, 'more output')} already exist"
        warn(f"{more}, so new ones get the next free number, such as {free_name}; -y replaces them.")
    else:
        warn(f"{name}: already exists, so the output is {free_name}; -y replaces it.")


def existing_outputs_error(names: Sequence[str], num_outputs: int) -> OutputExists:
    """Return the error of outputs of many inputs that exist, of `num_outputs` in all."""
    more = f", and {len(names) - 1} more of {num_outputs} outputs" if len(names) > 1 else ""
    them = "them" if more else "it"
    text = f"{names[0]}: already exists{more}; add -y to replace {them}, or -n to skip {them}."
    return OutputExists(text, names[0])


def name_items(items: Sequence[Item], pattern: str | None, *, is_dry_run: bool) -> list[Item]:
    """Return the items with their outputs. Only in a dry run may an item have no output.

    Outputs that a table states replace the pattern. They are relative to its folder, or without one to the table's.
    """
    named_items = []
    for item in items:
        folder = item.folder if pattern is None else os.path.dirname(pattern.split(NAME)[0])
        output = os.path.join(folder, item.output) if item.output else pattern and pattern.replace(NAME, item.name)
        named_items.append(replace(item, output=output, folder=folder))
    check_outputs(named_items, [Result()] * len(items))
    for item in named_items:
        if item.output is None and not is_dry_run:
            raise ItemsError(f"{item.source}: has no output; name a folder for it with -o.")
    return named_items


def check_outputs(items: Sequence[Item], results: Sequence[Result]) -> None:
    """Check that outputs differ, and that outputs of lists and tables stay in their folder, also through links."""
    owners: dict[str, int] = {}
    folders = {folder: os.path.realpath(folder) for folder in {item.folder for item in items}}
    for index, (item, result) in enumerate(zip(items, results, strict=True)):
        for output in result.written or ([item.output] if item.output else []):
            owner = owners.setdefault(file_key(output), index)
            if owner != index:
                if os.path.realpath(items[owner].source) == os.path.realpath(item.source):
                    raise ItemsError(f"{item.source}: is among the inputs twice; leave one out.")
                raise ItemsError(
                    f"{items[owner].source} and {item.source} would both be written to {output}; rename one, or give "
                    "each an output in a table (clips.csv, with the columns path and output)."
                )
            folder = folders[item.folder]
            if item.where and os.path.commonpath([folder, os.path.realpath(output)]) != folder:
                raise ItemsError(
                    f"{item.where}: its output {quote(output)} is not inside the folder {item.folder or os.curdir}; "
                    "name a file in that folder, or another folder with -o."
                )


def all_exist(outputs: Sequence[str]) -> bool:
    """Return whether an item has outputs, and all of them exist. Folders of stills must not be empty."""
    return bool(outputs) and all(map(_exists, outputs))


def _exists(output: str) -> bool:
    path = output
    if "%" in os.path.basename(output) and not os.path.exists(output):
        path = os.path.dirname(output) or os.curdir
    with suppress(OSError):  # a folder that cannot be read, which is an error where it is written
        return output != "-" and (bool(os.listdir(path)) if os.path.isdir(path) else os.path.exists(path))
    return False
