"""The items of `decode` and `encode`, and their run: one path for one and for many, by one process or several ranks."""

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
_NAME = "{name}"  # stands for the name of the input, in an output
_DESCRIPTORS = ("/dev/fd/", "/dev/stdin")  # of a shell's `@<(ls *.npy)`, whose names are relative to the working folder


@dataclass
class Item:
    """An input, its output, what a table says about it, and what becomes of it."""

    source: str
    name: str  # for its output, without an ending; of a list's file its path in the list's folder
    output: str | None = None  # as a table states it, then as `name_items` names it; None in a dry run without one
    folder: str = ""  # a table's output is relative to it, and outputs of lists and tables must be in it
    size: Size | None = None  # this, `max_frames` and `fps` are a table's
    max_frames: int | None = None
    fps: Fraction | None = None
    where: str | None = field(default=None, compare=False)  # the line of a list or table, for errors
    windows: Sequence[str] = ()  # the files of a film
    # Known when its task is made, as all below. Several for a batch.
    inputs: Sequence[str | os.PathLike] = ()  # all files that are read for it
    outputs: Sequence[str] = ()
    beside: Mapping[str, Sequence[str]] = field(default_factory=dict)  # what else is written for each, by its kind
    num_frames: int | None = None  # of this rank's outputs; None if it is not known yet
    cost: int = 0  # the work, relative to other items
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
        """The item's result, JSON-serializable."""
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
    """Return whether an argument names a list or a table rather than one input."""
    return argument.startswith("@") or has_table([argument])


def has_table(arguments: Sequence[str]) -> bool:
    """Return whether arguments name a table, which may state outputs."""
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


def join_items(items: Sequence[Item]) -> Item:
    """The item of a film, whose windows are the given files, and the latent files in the given folders."""
    for item in items:
        if item.output:
            raise ItemsError(f"{item.where}: states an output, and all windows have one; name it with -o alone.")
    windows = tuple(chain.from_iterable(_files_in(item.source) for item in items))
    return replace(items[0], where=None, folder="", windows=windows)


def agree_on_film(
    windows: Sequence[LatentsInfo], fps: Fraction | None, carry: int | None, scale: ScaleFactors
) -> tuple[Fraction | None, int]:
    """Return the frame rate and the carry of a film: the given ones, or what its windows state.

    Raises a `LatentsError` for windows that differ in what is not given.
    """
    rates: dict[Fraction | None, str] = {}
    carries: dict[int, str] = {}
    for info in windows:
        rates.setdefault(info.fps, info.source)
        if info.carry is not None:
            carries.setdefault(info.carry, info.source)
    if len(rates) > 1 and fps is None:
        (rate, path), (other, name), *_ = rates.items()
        raise LatentsError(f"{name}: states {other or 'no'} frames per second, and {path} {rate or 'none'}; add --fps.")
    if carry is not None or not carries:
        return fps or windows[0].fps, DEFAULT_CARRY if carry is None else carry
    (carry, path), *others = carries.items()
    if others:
        raise LatentsError(
            f"{others[0][1]}: states a carry of {others[0][0]} frames, and {path} of {carry}; add --carry."
        )
    if rule := scale.carry_rule(carry):
        raise LatentsError(f"{path}: states a carry of {carry}, and windows share {rule}; add --carry.")
    return fps or windows[0].fps, carry


def _files_in(source: str) -> Sequence[str]:
    """A file, or the latent files in a folder, in the order of the numbers in their names."""
    if not os.path.isdir(source):
        return [source]
    endings = tuple(chain.from_iterable(reader.endings for reader in READERS))
    found = [name for name in os.listdir(source) if name.lower().endswith(endings) and not name.startswith(".")]
    if not found:
        raise ItemsError(f"{source}: this folder has no latent files ({', '.join(endings)}); name another one.")
    parts = {name: re.split(r"([0-9]+)", name) for name in found}
    order = {
        name: [int(part) if index % 2 else part for index, part in enumerate(split)] for name, split in parts.items()
    }
    return [os.path.join(source, name) for name in sorted(found, key=lambda name: (order[name], name))]


def _stem(source: str) -> str:
    name = Path(source).name
    return Path(source if name.strip(".") else os.path.realpath(source)).stem  # "." and ".." are no names


def _read_list(path: str, with_sizes: bool) -> list[Item]:
    read = _read_table(path, with_sizes) if has_table([path]) else _read_lines(path)
    found = list(islice(read, _MAX_INPUTS + 1))
    if not found:
        raise ItemsError(f"{path}: names no file; write one path per line.")
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
                    f"{where}: has more values than there are columns; put quotes around values with commas."
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
    """Return whether arguments name more than one input; a list always does, whatever its length."""
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
    """Check that outputs differ, and that outputs of lists and tables stay in their folder, also through links."""
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


def all_exist(outputs: Sequence[str]) -> bool:
    """True if an item's outputs are there: files, or folders of stills that are not empty. False for no outputs."""
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


def name_outputs(output: str, batch: int, still: str | None = None) -> list[str]:
    """The output of each video of a batch: clip.mp4 -> clip-0.mp4; out/ -> out-0/; f/%05d.png -> f-0/%05d.png.

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
    """Job of a `decode` or `encode` command, which adds its own settings, and its run by all ranks.

    `ranks` are the ranks that run an item together: this one alone if there are many items, which all ranks share.
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
    overwrite: bool | None  # None for the rule of each kind of output
    json: bool
    quiet: bool
    debug: bool
    # From `run` on.
    checkpoint: Checkpoint = field(init=False)
    machine: Machine = field(init=False)
    ranks: Ranks = field(init=False)
    plans: dict[Any, Any] = field(init=False, default_factory=dict)  # by what they depend on, for items that are alike
    _all_ranks: Ranks = field(init=False)
    _loaded: VideoVAE | None = field(init=False, default=None)
    _task: "Task | None" = field(init=False, default=None)  # of the only item, which may be a pipe and is opened once

    @abstractmethod
    def open(self) -> Checkpoint:
        """Open the checkpoint that it runs."""

    @abstractmethod
    def make_task(self, item: Item) -> "Task":
        """The run of an item."""

    @property
    def is_many(self) -> bool:
        """True if there may be several items. An error of one then does not stop the others."""
        return are_many(self.sources) and not self.join

    @cached_property
    def used(self) -> dict[str, str]:
        """Report of the network."""
        return self.checkpoint.used(self.network)

    def load(self) -> VideoVAE:
        """The network with its weights, which are read once."""
        if self._loaded is None:
            chosen = {network: network == self.network for network in ("encoder", "decoder")}
            self._loaded = VideoVAE.from_pretrained(self.checkpoint, dtype=self.dtype, **chosen)
        return self._loaded

    @cached_property
    def statistics(self) -> Statistics | None:
        return self.checkpoint.read_statistics()

    def run(self) -> None:
        """Run all inputs, or plan them in a dry run, and report.

        Several ranks run one input together. Of many, each takes whole ones, longest first, and writes them to its
        disk. The first rank reports. The error of the only input is raised, or an `ItemsError` at the end if any of
        many failed.
        """
        ranks = join_ranks(self.distributed, self.rank_timeout)
        if ranks is None:
            return
        listed = read_inputs(self.sources, with_sizes=self.network == "encoder")
        listed = [join_items(listed)] if self.join else listed
        items = name_items(listed, self.pattern, is_dry_run=self.dry_run)
        self.checkpoint = ranks.together(self.open)
        ranks.check_same(lambda: {"the checkpoints": self.checkpoint.description})
        ranks.check_same(lambda: {"the weights": self.checkpoint.sample()})
        self.ranks, self._all_ranks = Ranks() if self.is_many else ranks, ranks
        self.machine = self.ranks.smallest(self.checkpoint.machine(self.network, self.dtype))
        self._run_items(items)

    def _run_items(self, items: Sequence[Item]) -> None:
        start = time.perf_counter()
        self._all_ranks.together(lambda: self._measure(items))
        if not self.is_many:
            (item,) = items
            item.is_skipped = all(self._all_ranks.gather(item.is_skipped))
            self._run_item(item, None)
            if self._all_ranks.is_first:
                self._report(item)
            return
        own = self._deal(items)
        if not self.dry_run and any(items[index].is_pending for index in own):
            self.load()  # so that an error of the weights is not one of each item
        self._run_many([items[index] for index in own])
        self._join(items, own)
        if self._all_ranks.is_first:
            self._summarize(items, time.perf_counter() - start)

    def _measure(self, items: Sequence[Item]) -> None:
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

    def _deal(self, items: Sequence[Item]) -> list[int]:
        """The indices of the items that this rank takes."""
        ranks = self._all_ranks
        ranks.check_same(lambda: {"the inputs": [[item.source, item.output] for item in items]})
        # By what the first rank sees, so that all deal alike, also where a file is missing on one of them.
        costs = ranks.gather([item.cost if item.is_pending else 0 for item in items])[0]
        ranks.work_alone()
        return [index for index, rank in enumerate(ranks.deal(costs)) if rank == ranks.rank]

    def _run_many(self, items: Sequence[Item]) -> None:
        """Run items in order, and print a line for each."""
        frames = [item.num_frames for item in items if item.is_pending]
        with self._progress_bar(None if None in frames else sum(number or 0 for number in frames)) as bar:
            for number, item in enumerate(items, 1):
                self._run_item(item, bar, label=f"{number} of {len(items)} ")
                self._show(item)

    def _run_item(self, item: Item, bar: FrameBar | None, *, label: str = "") -> None:
        """Run an item, or plan it in a dry run, unless it is skipped. An error becomes its own; Ctrl-C does not."""
        if not item.is_pending:
            return
        mx.reset_peak_memory()  # each report states its item's
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
                for output in chain(item.outputs, *item.beside.values()) if self.is_many else ():
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
        """Note the error of an item. A single item's error is raised as it is."""
        if not self.is_many:
            raise error
        if self.debug:
            print_traceback(error)
        item.error = describe_error(error)

    def _join(self, items: Sequence[Item], own: Sequence[int]) -> None:
        """Note what other ranks report of their items."""
        names = ("values", "error", "is_skipped")
        reports = [(index, {name: getattr(items[index], name) for name in names}) for index in own]
        for index, states in chain(*self._all_ranks.gather(reports)):
            vars(items[index]).update(states)

    @contextmanager
    def _progress_bar(self, num_frames: int | None) -> Iterator[FrameBar]:
        """A progress bar, or lines now and then if standard error is no terminal; nothing if no report is wanted.

        `num_frames` is the total; None if it is unknown.
        """
        is_wanted = not (self.quiet or self.json)
        is_shown = is_wanted and sys.stderr.isatty()
        write = partial(write_line, file=sys.stderr) if is_wanted else None
        with FrameBar(total=num_frames, disable=not is_shown, write=write, dynamic_ncols=True, miniters=1) as bar:
            end_line = Cleanup(bar, os.write, sys.stderr.fileno(), b"\n") if is_shown else None
            yield bar
            if end_line is not None:
                end_line.cancel()

    def _report(self, item: Item) -> None:
        """Print what became of the only item."""
        if self.json:
            print_report(json.dumps(item.values or item.as_dict()))
        elif item.is_skipped:
            self._show(item)
        elif self.dry_run:
            print_report(item.text)
        elif not self.quiet:
            print_report(item.text, file=sys.stderr if item.output == "-" else sys.stdout)

    def _show(self, item: Item) -> None:
        """Print the line of an item: an error always, on standard error; the others unless only JSON is wanted."""
        if item.error is not None:
            write_line(f"error: {item}", sys.stderr)
        elif not self.quiet and not self.json:
            write_line(str(item), sys.stdout)

    def _summarize(self, items: Sequence[Item], seconds: float) -> None:
        """Print the summary of many items, or the JSON object."""
        done = [item.values for item in items if item.values]
        skipped, failed = sum(item.is_skipped for item in items), sum(item.error is not None for item in items)
        summary = {"items": [item.as_dict() for item in items], "skipped": skipped, "failed": failed}
        summary["vae"] = self.used
        lines = [f"Inputs: {len(done)} {'planned' if self.dry_run else 'done'}, {skipped} skipped, {failed} failed"]
        if not self.dry_run:
            frames = sum(values["frames"] for values in done)
            peak = max((values["peak_memory_bytes"] for values in done), default=0)
            summary |= {"frames": frames, "seconds": seconds, "peak_memory_bytes": peak}
            if done:
                lines += [f"Frames: {frames}, {format_rate(frames, seconds)}", f"Peak MLX memory: {format_bytes(peak)}"]
        if done:
            lines.append(f"VAE: {describe_networks({'vae': self.used})}")
        if self.json:
            print_report(json.dumps(summary))
        elif not self.quiet:
            print_report("\n".join(lines))
        if failed:
            raise ItemsError(f"{failed} of {len(items)} inputs failed.")


class Task(ABC):
    """An item on its way through a network. Making a task reads no more than headers, and completes the item."""

    plan: Plan  # from `open` on

    def __init__(self, job: Job, item: Item) -> None:
        self._job, self._item = job, item

    @abstractmethod
    def check_values(self) -> None:
        """Read all latents that are decoded, and raise a `LatentsError` for values that are not finite."""

    def open(self) -> AbstractContextManager[object]:
        """Hold the input open, and plan, until the end of the block. Nothing is written."""
        return nullcontext()

    def describe(self) -> dict[str, Any]:
        """Values that are the same for all ranks that run the item together, by name: headers' and the plan."""
        return {"the plans": self.plan.as_dict()}

    def sample(self) -> dict[str, Any]:
        """The contents, or parts of them, in the form of `describe`."""
        return {}

    def _name_outputs(self, outputs: list[str]) -> None:
        """Complete the item with its outputs, and find out whether to skip it; an error if they must not exist."""
        job, self._item.outputs = self._job, outputs
        self._item.is_skipped = job.skip_existing and all_exist(outputs)
        for output in outputs if not self._item.is_skipped else ():
            check_replaceable(output, overwrite=job.overwrite is not False)

    def networks(self) -> dict[str, dict[str, str]]:
        """Reports of the networks, by their names in reports."""
        return {"vae": self._job.used}

    @abstractmethod
    def run(self, bar: FrameBar) -> None:
        """Run the item, and complete it with its report."""

    def _report(self, work: Work, sent_bytes: int, done: str, **values: Any) -> None:
        """Complete the item with its report. All ranks that have run it together call this.

        `sent_bytes` are this rank's. `done` says what was made. `values` are JSON-serializable and include the seconds,
        and of pictures the frames of all outputs.
        """
        ranks, outputs, others = self._job.ranks, self._item.outputs, self._item.beside
        sent, peaks = zip(*ranks.gather([sent_bytes, mx.get_peak_memory()]), strict=True)
        name = _first_last(outputs) if outputs != ["-"] else "standard output"
        networks = self.networks()
        peak = f"peak MLX memory {', '.join(map(format_bytes, peaks))}"
        lines = [f"{name}: {done}; {peak}; {describe_networks(networks)}"]
        for kind, names in others.items():
            lines[0] += f"; {kind.replace('_', ' ')} {_first_last(names)}" if names != outputs else ""
        values |= {
            "peak_memory_bytes": peaks[0],
            "plan": self.plan.as_dict(),
            **networks,
            "output": _one_or_all(outputs),
        }
        values |= {kind: _one_or_all(names) for kind, names in others.items()}
        if ranks.group is not None:
            values |= {
                "ranks": ranks.size,
                "distributed": work.value,
                "exchanged_bytes": sum(sent),
                "peak_memory_bytes_per_rank": list(peaks),
            }
            shared = "bands of rows" if work is Work.ROWS else "whole videos"
            lines.append(f"Ranks: {ranks.size}, each {shared}; {format_bytes(sum(sent))} exchanged")
        self._item.values, self._item.text = values, "\n".join(lines)


def plan_report(plan: Plan, networks: Mapping[str, Mapping[str, str]]) -> tuple[dict[str, Any], str]:
    """The report of a plan and the networks that it is of, JSON-serializable and as text."""
    sound = plan.sound
    values = {"plan": plan.as_dict(), **networks} | ({"audio": sound.as_dict()} if sound else {})
    return values, f"{plan}\nVAE      {describe_networks(networks)}" + (f"\n\n{sound}" if sound else "")


def describe_networks(networks: Mapping[str, Mapping[str, str]]) -> str:
    """The result of `Checkpoint.used` as the end of a line: "vae.safetensors (LTX-2.3, convolutional decoder)"."""

    def describe(used: Mapping[str, str]) -> str:
        what = used["generation"] + (f", {used['decoder']} decoder" if "decoder" in used else "")
        return f"{Path(used['file']).name} ({what})" if "file" in used else what

    return printable(", ".join(map(describe, networks.values())))


def describe_blending(plan: Plan) -> str:
    """Remark about a plan with tiles for the last line of a run; "" for exact plans."""
    return f"tiled (blended in {' and '.join(plan.blended)}), " if plan.blended else ""


def _first_last(names: Sequence[str]) -> str:
    return printable(" to ".join(dict.fromkeys([names[0], names[-1]])))


def _one_or_all(names: Sequence[str]) -> str | list[str]:
    return names[0] if len(names) == 1 else list(names)


def find_keyframes(
    given: str | None, clip: LatentsFile, decoder: NetworkSpec, *, is_dry_run: bool
) -> KeyframesFile | None:
    """The keyframes of a file that is given, or those in the latent file; None if there are none.

    Warns if the decoder takes none, or does not tag them, which a decode says itself. Raises a `LatentsError` for bad
    ones.
    """
    source = given or clip.info.source
    if given is None and not clip.has_keyframes:
        return None
    if decoder.keyframe_warning and (is_dry_run or decoder.variant is None):
        warn(f"{source}: {decoder.keyframe_warning}")
    if decoder.variant is None:
        return None
    if given is None:
        return clip.find_keyframes()
    file = open_keyframes(given, clip.info.num_frames)
    if file is None:
        names = f"{STILL_NAMES[0]} and {NUMBER_NAMES[0]}"
        raise LatentsError(f"{given}: has no keyframes in the video; name a file with the tensors {names}.")
    file.check(clip.shape)
    if clip.has_keyframes:
        warn(f"{clip.info.source}: its keyframes are not used, since --keyframes names others.")
    return file
