"""Items of `decode` and `encode`, one or many, and their run by one process or several ranks."""

import csv
import io
import json
import os
import re
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar

import mlx.core as mx

from ..backend.machine import Machine, Work
from ..backend.mlx_utils import DtypeName
from ..checkpoint import Checkpoint
from ..distributed import Ranks, join_ranks
from ..errors import ItemsError, LatentsError, describe_error, one_line, printable, quote, warn
from ..files import InputFiles, check_replaceable, file_key, read_small_file, writing_to
from ..latents import LatentsFile, LatentsInfo
from ..latents.files import READERS
from ..latents.keyframes import NUMBER_NAMES, STILL_NAMES, KeyframesFile, open_keyframes
from ..models.base import Statistics
from ..models.specs import NetworkSpec
from ..pipeline.progress import FrameBar
from ..planning.film import DEFAULT_CARRY
from ..planning.plan import Plan
from ..process import Cleanup
from ..shapes import ScaleFactors, Size
from ..units import find_fps, format_bytes, format_count, format_rate
from ..vae import VideoVAE
from .running import print_report, print_traceback, write_line

_PATH_COLUMNS = ("path", "media_path", "video", "video_path", "file", "file_name")  # as data sets name them
_MAX_LIST = 64_000_000  # bytes
_MAX_INPUTS = 1_000_000
_MAX_BATCH = 10_000
_NAME = "{name}"  # in an output, replaced by the name of the input
_DESCRIPTORS = ("/dev/fd/", "/dev/stdin")  # for `@<(ls *.npy)`; its names are relative to the working folder


@dataclass
class Item:
    """Input with its output, its settings in a table, and its result."""

    source: str
    name: str  # for its output, without an ending; for an entry of a list, its path in the list's folder
    output: str | None = None  # as a table states it, then as `name_items` names it; `None` in a dry run without -o
    folder: str = ""  # a table's output is relative to it, and outputs of lists and tables must be in it
    size: Size | None = None  # this, `max_frames` and `fps` are the settings in a table
    max_frames: int | None = None
    fps: Fraction | None = None
    where: str | None = field(default=None, compare=False)  # the line of a list or table, for errors
    windows: Sequence[str] = ()  # the files of a film
    # From here on, known when the task of the item is made. A batch has several outputs.
    inputs: Sequence[str | os.PathLike] = ()  # all files that are read for it
    outputs: Sequence[str] = ()
    side_outputs: Mapping[str, Sequence[str]] = field(default_factory=dict)  # other files to write, by their kind
    num_frames: int | None = None  # of the outputs of this rank; `None` if it is not known yet
    cost: int = 0  # relative to other items
    is_skipped: bool = False
    values: dict[str, Any] = field(default_factory=dict)  # the report, or in a dry run the plan, JSON-serializable
    text: str = ""  # the same values as text
    error: str | None = None

    @property
    def is_pending(self) -> bool:
        return not self.values and self.error is None and not self.is_skipped

    def rename(self, names: Mapping[str, str]) -> None:
        """Replace names of outputs by new names, which they get if their files exist by the time they are written."""
        self.outputs = [names.get(output, output) for output in self.outputs]
        self.side_outputs = {
            kind: [names.get(name, name) for name in paths] for kind, paths in self.side_outputs.items()
        }
        self.output = None if self.output is None else names.get(self.output, self.output)

    def as_dict(self) -> dict[str, Any]:
        """Return the result of the item, JSON-serializable."""
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
        method = plan["mode"] if plan["mode"] != "exact" else f"exact by {plan['order']}"
        frames = f"{format_count(plan['frames'], 'frame')} of {plan['width']}x{plan['height']}"
        return f"{self.source}{target}: {frames}{keyframes}, {method}, peak {format_bytes(plan['peak_bytes'])}"


def is_list(argument: str) -> bool:
    """Return whether an argument names a list or a table rather than one input."""
    return argument.startswith("@") or has_table([argument])


def has_table(arguments: Sequence[str]) -> bool:
    """Return whether arguments name a table, which may state outputs."""
    return any(argument.lower().endswith(".csv") for argument in arguments)


def read_inputs(arguments: Sequence[str], *, with_sizes: bool) -> list[Item]:
    """Return the inputs that arguments name, in order. `with_sizes`: read width, height, frames and fps of tables."""
    items: list[Item] = []
    for argument in arguments:
        if is_list(argument):
            items += _read_list(argument.removeprefix("@"), with_sizes)
        else:
            items.append(Item(argument, _stem(argument)))
    return items


def join_items(items: Sequence[Item]) -> Item:
    """Return the item of a film. Its windows are the files of the items, and the latent files in folders among them."""
    for item in items:
        if item.output:
            raise ItemsError(f"{item.where}: states an output, and all windows have one; name it with -o alone.")
    windows = tuple(chain.from_iterable(_files_in(item.source) for item in items))
    return replace(items[0], where=None, folder="", windows=windows)


def agree_on_film(
    windows: Sequence[LatentsInfo], fps: Fraction | None, carry: int | None, scale: ScaleFactors
) -> tuple[Fraction | None, int]:
    """Return the frame rate and the carry of a film.

    Where `fps` or `carry` is `None`, the windows state it; a `LatentsError` is raised if they differ.
    """
    rates: dict[Fraction | None, str] = {}
    carries: dict[int, str] = {}
    for info in windows:
        rates.setdefault(info.fps, info.source)
        if info.carry is not None:
            carries.setdefault(info.carry, info.source)
    if len(rates) > 1 and fps is None:
        (rate, path), (other_rate, name), *_ = rates.items()
        raise LatentsError(
            f"{name}: states {other_rate or 'no'} frames per second, and {path} {rate or 'none'}; add --fps."
        )
    if carry is not None or not carries:
        return fps or windows[0].fps, DEFAULT_CARRY if carry is None else carry
    (carry, path), *other_carries = carries.items()
    if other_carries:
        other_carry, name = other_carries[0]
        raise LatentsError(f"{name}: states a carry of {other_carry} frames, and {path} of {carry}; add --carry.")
    if rule := scale.carry_rule(carry):
        raise LatentsError(f"{path}: states a carry of {carry}, and windows share {rule}; add --carry.")
    return fps or windows[0].fps, carry


def _files_in(source: str) -> Sequence[str]:
    """Return the source if it is a file, or the latent files in a folder, ordered by the numbers in their names."""
    if not os.path.isdir(source):
        return [source]
    endings = tuple(chain.from_iterable(reader.endings for reader in READERS))
    names = [name for name in os.listdir(source) if name.lower().endswith(endings) and not name.startswith(".")]
    if not names:
        raise ItemsError(f"{source}: this folder has no latent files ({', '.join(endings)}); name another one.")
    parts = {name: re.split(r"([0-9]+)", name) for name in names}
    order = {
        name: [int(part) if index % 2 else part for index, part in enumerate(split)] for name, split in parts.items()
    }
    return [os.path.join(source, name) for name in sorted(names, key=lambda name: (order[name], name))]


def _stem(source: str) -> str:
    name = Path(source).name
    return Path(source if name.strip(".") else os.path.realpath(source)).stem  # "." and ".." are no names


def _read_list(path: str, with_sizes: bool) -> list[Item]:
    entries = _read_table(path, with_sizes) if has_table([path]) else _read_lines(path)
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
    relative_path = _parse_path(line, where)
    folder = "" if path.startswith(_DESCRIPTORS) else os.path.dirname(path)
    source = os.path.join(folder, relative_path)
    path_in_folder = os.path.relpath(source, folder or ".")
    is_inside = path_in_folder.split(os.sep)[0] not in (os.pardir, os.curdir)
    name = os.path.splitext(path_in_folder)[0] if is_inside else _stem(source)
    return Item(source, name, folder=folder, where=where)


def _parse_path(text: str, where: str) -> str:
    """Return the path that a list or a table states, with `~` expanded."""
    if text == "-" or "\0" in text:
        raise ItemsError(f"{where}: {quote(text)} is not the path of a file.")
    return os.path.expanduser(text)


def _read_table(path: str, with_sizes: bool) -> Iterator[Item]:
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
            yield _add_sizes(item, row, where) if with_sizes else item


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
    """Return whether arguments name several inputs. A list counts as several, whatever its length."""
    return len(arguments) > 1 or any(map(is_list, arguments))


def find_pattern(arguments: Sequence[str], output: str | None, ending: str) -> str | None:
    """Return the pattern of outputs. For several inputs, `out/` becomes `out/{name}` with the ending."""
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
    """Return the items with their outputs. Only in a dry run may an item have no output.

    Outputs that a table states replace the pattern. They are relative to its folder, or without one to the table's.
    """
    items = [_add_output(item, pattern) for item in items]
    check_outputs(items)
    for item in items:
        if item.output is None and not is_dry_run:
            raise ItemsError(f"{item.source}: has no output; name a folder for it with -o.")
    return items


def _add_output(item: Item, pattern: str | None) -> Item:
    folder = item.folder if pattern is None else os.path.dirname(pattern.split(_NAME)[0])
    output = os.path.join(folder, item.output) if item.output else pattern and pattern.replace(_NAME, item.name)
    return replace(item, output=output, folder=folder)


def check_outputs(items: Sequence[Item]) -> None:
    """Check that outputs differ, and that outputs of lists and tables stay in their folder, also through links."""
    owners: dict[str, int] = {}
    folders = {folder: os.path.realpath(folder) for folder in {item.folder for item in items}}
    for index, item in enumerate(items):
        for output in [*item.outputs, *chain(*item.side_outputs.values())] or ([item.output] if item.output else []):
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


def check_not_inputs(items: Sequence[Item], other_inputs: Sequence[str | os.PathLike]) -> None:
    """Check that no output of complete items is an input of any of them, or one of `other_inputs`."""
    inputs = InputFiles(chain(other_inputs, *((item.source, *item.inputs) for item in items)))
    for output in chain.from_iterable((*item.outputs, *chain(*item.side_outputs.values())) for item in items):
        inputs.check_output(output)


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


def make_folder(output: str) -> None:
    """Make the folder of an output. Links are written through, also to a folder that is missing."""
    with writing_to(output):
        os.makedirs(os.path.realpath(Path(output).parent), exist_ok=True)


def name_outputs(output: str, batch: int, still: str | None = None) -> list[str]:
    """Return the outputs of a batch of videos: clip.mp4 -> clip-0.mp4; out/ -> out-0/; f/%05d.png -> f-0/%05d.png.

    `still` is the ending of stills, for a batch with one frame each: out/ -> out/00000.png; f/%05d.png -> f/00000.png.
    """
    if batch == 1:
        return [output]
    if batch > _MAX_BATCH:
        raise LatentsError(f"the file has {batch} videos, and at most {_MAX_BATCH} are decoded at once; split it.")
    if output == "-":
        raise LatentsError(f"the file has {batch} videos, and standard output takes one; name an output file.")
    path = Path(output)
    is_folder = output.endswith("/") or os.path.isdir(path)
    if not still and (path if is_folder else path.parent).name in ("", "..") and (is_folder or "%" in path.name):
        raise LatentsError(f"{output}: has no name for the folders of {batch} videos; name a folder, such as videos/.")
    if still:
        pattern = path / f"%05d{still}" if is_folder else path
        return [str(pattern.with_name(pattern.name % item)) for item in range(batch)]
    if is_folder:
        return [f"{path}-{item}/" for item in range(batch)]
    if "%" in path.name:
        return [str(path.parent.with_name(f"{path.parent.name}-{item}") / path.name) for item in range(batch)]
    return [str(path.with_name(f"{path.stem}-{item}{path.suffix}")) for item in range(batch)]


@dataclass(eq=False)
class Job(ABC):
    """Job of a `decode` or `encode` command, and its run by all ranks. Subclasses add settings.

    `ranks` are the ranks that run an item together. Of many items, each rank runs some alone.
    """

    network: ClassVar[str]  # "decoder" or "encoder"

    model: str  # see `open_checkpoint`
    sources: Sequence[str]  # files, lists and tables, as arguments name them
    join: bool  # whether they are the windows of one film
    pattern: str | None  # see `find_pattern`
    dtype: DtypeName | None
    distributed: str
    rank_timeout: int
    dry_run: bool
    skip_existing: bool
    overwrite: bool | None  # `None` means the rule of each kind of output
    json: bool
    quiet: bool
    debug: bool
    # Set by `run`.
    checkpoint: Checkpoint = field(init=False)
    machine: Machine = field(init=False)
    ranks: Ranks = field(init=False)
    plans: dict[Any, Any] = field(init=False, default_factory=dict)  # by the values on which they depend
    _all_ranks: Ranks = field(init=False)
    _loaded: VideoVAE | None = field(init=False, default=None)
    _task: "Task | None" = field(init=False, default=None)  # of a single item, which may be a pipe and is opened once

    @abstractmethod
    def open(self) -> Checkpoint:
        """Open the checkpoint of the job."""

    @abstractmethod
    def make_task(self, item: Item) -> "Task":
        """Make the task of an item."""

    @property
    def is_many(self) -> bool:
        """Flag: there may be several items. Then an error of one item does not stop the others."""
        return are_many(self.sources) and not self.join

    @cached_property
    def used(self) -> dict[str, str]:
        """Report of the network."""
        return self.checkpoint.used(self.network)

    def load(self) -> VideoVAE:
        """Load the network. Its weights are read once."""
        if self._loaded is None:
            networks = {network: network == self.network for network in ("encoder", "decoder")}
            self._loaded = VideoVAE.from_pretrained(self.checkpoint, dtype=self.dtype, **networks)
        return self._loaded

    @cached_property
    def statistics(self) -> Statistics | None:
        return self.checkpoint.read_statistics()

    def run(self) -> None:
        """Run all inputs, or plan them in a dry run, and report.

        Several ranks run a single input together. Of many inputs, each rank runs some alone, the longest first, and
        writes their outputs to its disk. The first rank reports. The error of a single input is raised. If any of many
        inputs fails, an `ItemsError` is raised at the end.
        """
        ranks = join_ranks(self.distributed, self.rank_timeout)
        if ranks is None:
            return
        items = read_inputs(self.sources, with_sizes=self.network == "encoder")
        items = [join_items(items)] if self.join else items
        items = name_items(items, self.pattern, is_dry_run=self.dry_run)
        self.checkpoint = ranks.together(self.open)
        ranks.check_same(lambda: {"the checkpoints": self.checkpoint.description})
        ranks.check_same(lambda: {"the weights": self.checkpoint.sample()})
        self.ranks, self._all_ranks = Ranks() if self.is_many else ranks, ranks
        self.machine = self.ranks.smallest(self.checkpoint.machine(self.network, self.dtype))
        self._run_items(items)

    def _run_items(self, items: Sequence[Item]) -> None:
        start = time.perf_counter()
        self._all_ranks.together(lambda: self._prepare_items(items))
        if not self.is_many:
            (item,) = items
            item.is_skipped = all(self._all_ranks.gather(item.is_skipped))
            self._run_item(item, None)
            if self._all_ranks.is_first:
                self._report(item)
            return
        indices = self._choose_items(items)
        if not self.dry_run and any(items[index].is_pending for index in indices):
            self.load()  # so that an error of the weights is not one of each item
        self._run_many([items[index] for index in indices])
        self._join(items, indices)
        if self._all_ranks.is_first:
            self._summarize(items, time.perf_counter() - start)

    def _prepare_items(self, items: Sequence[Item]) -> None:
        for item in items:
            try:
                task = self.make_task(item)
                self._task = None if self.is_many else task
                if not item.is_skipped:
                    task.check_values()
            except Exception as error:
                self._fail(item, error)
        check_outputs(items)
        lists = [source.removeprefix("@") for source in self.sources if is_list(source)]
        check_not_inputs(items, [*lists, *self.checkpoint.files])

    def _choose_items(self, items: Sequence[Item]) -> list[int]:
        """Return the indices of the items that this rank runs."""
        ranks = self._all_ranks
        ranks.check_same(lambda: {"the inputs": [[item.source, item.output] for item in items]})
        # The costs on the first rank count for all, since a file may be missing on another rank.
        costs = ranks.gather([item.cost if item.is_pending else 0 for item in items])[0]
        ranks.work_alone()
        return [index for index, rank in enumerate(ranks.deal(costs)) if rank == ranks.rank]

    def _run_many(self, items: Sequence[Item]) -> None:
        """Run items in order, and print a line about each item."""
        frames = [item.num_frames for item in items if item.is_pending]
        with self._progress_bar(None if None in frames else sum(number or 0 for number in frames)) as bar:
            for number, item in enumerate(items, 1):
                self._run_item(item, bar, label=f"{number} of {len(items)} ")
                self._print_result(item)

    def _run_item(self, item: Item, bar: FrameBar | None, *, label: str = "") -> None:
        """Run an item, or plan it in a dry run, unless it is skipped. Errors are stored in it, except Ctrl-C."""
        if not item.is_pending:
            return
        mx.reset_peak_memory()  # each report states the peak of one item
        ranks = self.ranks
        try:
            task = self._task or self.make_task(item)
            with ExitStack() as stack:
                ranks.together(lambda: stack.enter_context(task.open()))
                ranks.check_same(task.describe)
                if self.dry_run:
                    item.values, item.text = plan_report(task.plan, task.networks())
                    return
                ranks.check_same(task.sample)
                for output in chain(item.outputs, *item.side_outputs.values()) if self.is_many else ():
                    make_folder(output)
                if bar is None:
                    bar = stack.enter_context(self._progress_bar(item.num_frames))
                bar.start(
                    Path(item.source if item.output == "-" else item.outputs[0]).name, "reading weights", label=label
                )
                task.run(bar)
        except Exception as error:
            self._fail(item, error)

    def _fail(self, item: Item, error: Exception) -> None:
        """Store the error of one of many items. Raise the error of a single item."""
        if not self.is_many:
            raise error
        if self.debug:
            print_traceback(error)
        item.error = describe_error(error)

    def _join(self, items: Sequence[Item], indices: Sequence[int]) -> None:
        """Store the results of the items that other ranks have run."""
        names = ("values", "error", "is_skipped")
        reports = [(index, {name: getattr(items[index], name) for name in names}) for index in indices]
        for index, states in chain(*self._all_ranks.gather(reports)):
            vars(items[index]).update(states)

    @contextmanager
    def _progress_bar(self, num_frames: int | None) -> Iterator[FrameBar]:
        """Yield a progress bar. It prints some lines if standard error is no terminal, and nothing with -q or --json.

        `num_frames` is the total, or `None` if it is unknown.
        """
        has_progress = not (self.quiet or self.json)
        has_bar = has_progress and sys.stderr.isatty()
        write = partial(write_line, file=sys.stderr) if has_progress else None
        with FrameBar(total=num_frames, disable=not has_bar, write=write, dynamic_ncols=True, miniters=1) as bar:
            end_line = Cleanup(bar, os.write, sys.stderr.fileno(), b"\n") if has_bar else None
            yield bar
            if end_line is not None:
                end_line.cancel()

    def _report(self, item: Item) -> None:
        """Print the report of a single item."""
        if self.json:
            print_report(json.dumps(item.values or item.as_dict()))
        elif item.is_skipped:
            self._print_result(item)
        elif self.dry_run:
            print_report(item.text)
        elif not self.quiet:
            print_report(item.text, file=sys.stderr if item.output == "-" else sys.stdout)

    def _print_result(self, item: Item) -> None:
        """Print the result of an item in one line: an error on standard error, others unless -q or --json is set."""
        if item.error is not None:
            write_line(f"error: {item}", sys.stderr)
        elif not self.quiet and not self.json:
            write_line(str(item), sys.stdout)

    def _summarize(self, items: Sequence[Item], seconds: float) -> None:
        """Print the summary of many items, or the JSON object."""
        reports = [item.values for item in items if item.values]
        skipped, failed = sum(item.is_skipped for item in items), sum(item.error is not None for item in items)
        summary = {"items": [item.as_dict() for item in items], "skipped": skipped, "failed": failed}
        summary["vae"] = self.used
        lines = [f"Inputs: {len(reports)} {'planned' if self.dry_run else 'done'}, {skipped} skipped, {failed} failed"]
        if not self.dry_run:
            frames = sum(values["frames"] for values in reports)
            peak = max((values["peak_memory_bytes"] for values in reports), default=0)
            summary |= {"frames": frames, "seconds": seconds, "peak_memory_bytes": peak}
            if reports:
                lines += [f"Frames: {frames}, {format_rate(frames, seconds)}", f"Peak MLX memory: {format_bytes(peak)}"]
        if reports:
            lines.append(f"VAE: {describe_networks({'vae': self.used})}")
        if self.json:
            print_report(json.dumps(summary))
        elif not self.quiet:
            print_report("\n".join(lines))
        if failed:
            raise ItemsError(f"{failed} of {len(items)} inputs failed.")


class Task(ABC):
    """Run of an item. Making a task reads no more than headers, and completes the item."""

    plan: Plan  # set by `open` at the latest

    def __init__(self, job: Job, item: Item) -> None:
        self._job, self._item = job, item

    @abstractmethod
    def check_values(self) -> None:
        """Read all latents that are decoded, and raise a `LatentsError` for values that are not finite."""

    def open(self) -> AbstractContextManager[object]:
        """Open the input for a block, and plan. Nothing is written."""
        return nullcontext()

    def describe(self) -> dict[str, Any]:
        """Return the headers and the plan by name, which must be the same on all ranks that run the item together."""
        return {"the plans": self.plan.as_dict()}

    def sample(self) -> dict[str, Any]:
        """Return the contents of the input, or parts of them, in the form of `describe`."""
        return {}

    def _name_outputs(self, outputs: list[str]) -> None:
        """Set the outputs of the item, and find out whether to skip it. Outputs that must not exist are an error."""
        job, self._item.outputs = self._job, outputs
        self._item.is_skipped = job.skip_existing and all_exist(outputs)
        for output in outputs if not self._item.is_skipped else ():
            check_replaceable(output, overwrite=job.overwrite is not False)

    def networks(self) -> dict[str, dict[str, str]]:
        """Return the reports of the networks, by their names in reports."""
        return {"vae": self._job.used}

    @abstractmethod
    def run(self, bar: FrameBar) -> None:
        """Run the item, and set its report."""

    def _report(self, work: Work, sent_bytes: int, summary: str, **values: Any) -> None:
        """Set the report of the item. All ranks that have run it together call this.

        `sent_bytes` is the number for this rank. `summary` describes the output. `values` are JSON-serializable and
        include the seconds, and for pictures the number of frames of all outputs.
        """
        ranks, outputs, side_outputs = self._job.ranks, self._item.outputs, self._item.side_outputs
        sent_by_rank, peaks = zip(*ranks.gather([sent_bytes, mx.get_peak_memory()]), strict=True)
        name = _first_last(outputs) if outputs != ["-"] else "standard output"
        networks = self.networks()
        peak = f"peak MLX memory {', '.join(map(format_bytes, peaks))}"
        lines = [f"{name}: {summary}; {peak}; {describe_networks(networks)}"]
        for kind, names in side_outputs.items():
            lines[0] += f"; {kind.replace('_', ' ')} {_first_last(names)}" if names != outputs else ""
        values |= {
            "peak_memory_bytes": peaks[0],
            "plan": self.plan.as_dict(),
            **networks,
            "output": _one_or_all(outputs),
        }
        values |= {kind: _one_or_all(names) for kind, names in side_outputs.items()}
        if ranks.group is not None:
            values |= {
                "ranks": ranks.size,
                "distributed": work.value,
                "exchanged_bytes": sum(sent_by_rank),
                "peak_memory_bytes_per_rank": list(peaks),
            }
            shared = "bands of rows" if work is Work.ROWS else "whole videos"
            lines.append(f"Ranks: {ranks.size}, each {shared}; {format_bytes(sum(sent_by_rank))} exchanged")
        self._item.values, self._item.text = values, "\n".join(lines)


def plan_report(plan: Plan, networks: Mapping[str, Mapping[str, str]]) -> tuple[dict[str, Any], str]:
    """Return the report of a plan and its networks, JSON-serializable and as text."""
    sound = plan.sound
    values = {"plan": plan.as_dict(), **networks} | ({"audio": sound.as_dict()} if sound else {})
    return values, f"{plan}\nVAE      {describe_networks(networks)}" + (f"\n\n{sound}" if sound else "")


def describe_networks(networks: Mapping[str, Mapping[str, str]]) -> str:
    """Describe results of `Checkpoint.used` to end a line: "vae.safetensors (LTX-2.3, convolutional decoder)"."""

    def describe(used: Mapping[str, str]) -> str:
        network = used["generation"] + (f", {used['decoder']} decoder" if "decoder" in used else "")
        return f"{Path(used['file']).name} ({network})" if "file" in used else network

    return printable(", ".join(map(describe, networks.values())))


def describe_blending(plan: Plan) -> str:
    """Describe the tiles of a plan for the last line of a run. Exact plans have an empty description."""
    return f"tiled (blended in {' and '.join(plan.blended)}), " if plan.blended else ""


def _first_last(names: Sequence[str]) -> str:
    return printable(" to ".join(dict.fromkeys([names[0], names[-1]])))


def _one_or_all(names: Sequence[str]) -> str | list[str]:
    return names[0] if len(names) == 1 else list(names)


def find_keyframes(
    path: str | None, clip: LatentsFile, decoder: NetworkSpec, *, is_dry_run: bool
) -> KeyframesFile | None:
    """Return the keyframes in the file `path`, or without it in the latent file, or `None` if there are none.

    Warns if the decoder takes none, or does not tag them. The second warning is for dry runs, since a decode warns
    itself. Raises a `LatentsError` for invalid keyframes.
    """
    source = path or clip.info.source
    if path is None and not clip.has_keyframes:
        return None
    if decoder.keyframe_warning and (is_dry_run or decoder.variant is None):
        warn(f"{source}: {decoder.keyframe_warning}")
    if decoder.variant is None:
        return None
    if path is None:
        return clip.find_keyframes()
    file = open_keyframes(path, clip.info.num_frames)
    if file is None:
        names = f"{STILL_NAMES[0]} and {NUMBER_NAMES[0]}"
        raise LatentsError(f"{path}: has no keyframes in the video; name a file with the tensors {names}.")
    file.check(clip.shape)
    if clip.has_keyframes:
        warn(f"{clip.info.source}: its keyframes are not used, since --keyframes names others.")
    return file
