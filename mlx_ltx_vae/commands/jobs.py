"""Run of the items of `decode` and `encode`, one or many, by one process or several ranks."""

import argparse
import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import mlx.core as mx

from .. import AudioVAE, LatentUpsampler, VideoVAE
from ..distributed import Ranks, end_time_limit, join_ranks
from ..errors import ItemsError, OutputExists, describe_error, printable, telling_warnings
from ..files import check_distinct, check_replaceable, file_key, is_pipe, make_folder
from ..pipeline.progress import FrameBar
from ..planning.plan import Plan
from ..process import Cleanup
from ..units import format_bytes, format_rate, format_seconds
from .cli import launched_rank
from .items import (
    NAME,
    Item,
    Result,
    all_exist,
    are_many,
    check_outputs,
    existing_outputs_error,
    find_free_name,
    has_table,
    is_list,
    join_items,
    name_items,
    read_inputs,
    warn_of_free_names,
)
from .speeds import estimate_seconds, record_speed
from .terminal import ask_to_replace, is_in_terminal, print_report, print_traceback, write_line


class Job(ABC):
    """Job of a `decode` or `encode` command: the loop over its items, of which each rank runs some."""

    network: ClassVar[str]  # "decoder", "encoder" or "upsampler"
    label: ClassVar = "VAE"  # of the network in reports, in lower case its key

    # Set by `run`. Before a download the VAE may be one without files, or is not known.
    vae: VideoVAE | AudioVAE | LatentUpsampler
    has_vae = False
    ranks: Ranks
    _task: "Task | None" = None  # of a single item, which may be a pipe and is opened once

    def __init__(
        self, arguments: argparse.Namespace, sources: Sequence[str], pattern: str | None, *, is_film: bool = False
    ) -> None:
        """Make the job of complete arguments.

        `sources` are files, lists and tables, or with `is_film` the windows of one film. `pattern` names the outputs,
        by default if the arguments have no output.
        """
        self.arguments, self.sources, self.pattern, self.is_film = arguments, sources, pattern, is_film
        self.dtype = arguments.dtype
        self._existing: list[tuple[OutputExists, list[str]]] = []  # errors of items, and their outputs that exist
        self._replaced: set[str] = set()  # names of outputs that the user said to replace
        self._printed: set[tuple[str, str | None, str]] = set()  # errors of items of this run
        self._free_names: dict[str, str] = {}  # of outputs whose default names exist, by these

    @abstractmethod
    def open(self) -> VideoVAE | AudioVAE | LatentUpsampler:
        """Open the VAE of the job, or its upsampler."""

    @abstractmethod
    def make_task(self, item: Item) -> "Task":
        """Make the task of an item."""

    @property
    def is_many(self) -> bool:
        """Flag: there may be several items. Then an error of one item does not stop the others."""
        return are_many(self.sources) and not self.is_film

    @property
    def makes_folders(self) -> bool:
        """Flag: folders of outputs are made, also those that a pattern has the names of inputs in."""
        return self.is_many or NAME in (self.pattern or "")

    def may_replace(self, files: Iterable[str]) -> bool:
        """Return whether files of these names are replaced: with -y, or if the user has said so in a terminal.

        In a dry run they would be, but nothing is written.
        """
        return self.arguments.overwrite or self.arguments.dry_run or not self._replaced.isdisjoint(files)

    def confirm(self, existing: Sequence[str], num_outputs: int = 1) -> bool:
        """Return whether these of so many outputs are replaced: with -y, or if the user says so in a terminal."""
        if self.arguments.overwrite or self.arguments.dry_run:
            return True
        return launched_rank() is None and ask_to_replace(existing, num_outputs)

    @property
    def used(self) -> dict[str, str]:
        """Report of the network, empty if all inputs were skipped before it was known."""
        return self.vae.source.networks[self.network] if self.has_vae else {}

    def run(self) -> None:
        """Run all inputs, or plan them in a dry run, and report.

        Of many inputs, each rank runs some, the longest first, and writes their outputs to its disk. The first rank
        reports. The error of a single input is raised. If any of many inputs fails, an `ItemsError` is raised at the
        end.
        """
        arguments = self.arguments
        ranks = join_ranks(launched_rank(), arguments.distributed, arguments.rank_timeout, is_many=self.is_many)
        if ranks is None:
            return
        items, self.ranks, start = self.make_items(), ranks, time.perf_counter()
        self._printed.clear()
        results = ranks.together(lambda: self._prepare_without_download(items))
        if results is None or ranks.size > 1 or any(result.is_pending for result in results):
            self.vae, self.has_vae = ranks.together(self.open), True
            start = time.perf_counter()
            results = ranks.together(lambda: self._prepare(items))
        pending = [item.output for item, result in zip(items, results, strict=True) if result.is_pending]
        warn_of_free_names({name: new for name, new in self._free_names.items() if new in pending})
        if self.is_many:
            self._run_many(items, results, start)
            return
        (item,), (result,) = items, results
        self._report(item, self._run_item(item, result, None))

    def make_items(self) -> list[Item]:
        """Return the items with their outputs."""
        items = self.read_items()
        items = [join_items(items)] if self.is_film else items
        items = name_items(items, self.pattern, is_dry_run=self.arguments.dry_run)
        if self.arguments.output or self.arguments.overwrite or self.arguments.skip_existing:
            return items
        return [self._with_free_name(item) for item in items]

    def read_items(self) -> list[Item]:
        """Return the items before their outputs are named."""
        return read_inputs(self.sources, of_videos=self.network == "encoder")

    def _with_free_name(self, item: Item) -> Item:
        """Return the item with a default name of its output that no file has, unless a table states the name."""
        if item.output is None or has_table(self.sources):
            return item
        free_name = find_free_name(item.output)
        if free_name != item.output and file_key(item.output) != file_key(item.source):  # which -y would not replace
            self._free_names[item.output] = free_name
        return replace(item, output=free_name)

    def _prepare_without_download(self, items: Sequence[Item]) -> list[Result] | None:
        """Return what is known of all items before a model is downloaded.

        Returns `None` if none has to be, or if an input can be read only once.
        """
        sources = chain.from_iterable(item.windows or [item.source] for item in items)
        if not self.is_remote or any(source == "-" or is_pipe(source) for source in sources):
            return None
        with telling_warnings(lambda text: None):  # they come again
            if (vae := self.open_without_download()) is not None:
                self.vae, self.has_vae = vae, True
            results = self._prepare(items)
            if self._task is not None and results[0].is_pending:
                with self._task.open():
                    pass
        return results

    @property
    def is_remote(self) -> bool:
        """Flag: the hub is asked for a model."""
        return VideoVAE.is_remote(self.arguments.model) or AudioVAE.is_remote(self.arguments.audio_model)

    def open_without_download(self) -> VideoVAE | AudioVAE | None:
        """Return the VAE as `open`, but one of the table without its files if they would be downloaded.

        Returns `None` if nothing is known of it before. Tasks then check what needs no VAE.
        """
        return None

    def _prepare(self, items: Sequence[Item]) -> list[Result]:
        """Return what is known of all items before the first one runs."""
        results = []
        for item in items:
            try:
                task = self.make_task(item)
            except Exception as error:
                results.append(self._failed(Result(), error))
                continue
            self._check_not_inputs([item], [task.result])
            self._task = None if self.is_many else task
            results.append(self._check(task))
        check_outputs(items, results)
        self._check_not_inputs(items, results)
        if self._existing and launched_rank() is None and is_in_terminal():
            self._print_errors(zip(items, results, strict=True))  # before the question
        self._confirm_existing(results)
        return results

    def _print_errors(self, results: Iterable[tuple[Item, Result]]) -> None:
        """Print the errors of items, those that were not printed before."""
        for item, result in results:
            if result.error is not None and (error := (item.source, item.output, result.error)) not in self._printed:
                self._printed.add(error)
                self.print_result(item, result)

    def _check(self, task: "Task") -> Result:
        """Return what is known of an item before it runs, with the errors of its outputs and values.

        That outputs exist is no error yet: `_confirm_existing` tells of all.
        """
        try:
            try:
                task.check_outputs()
            except OutputExists as error:
                outputs = task.result.written
                self._replaced.update(outputs)  # or the command ends
                task.check_outputs()
                self._existing.append((error, list(filter(os.path.isfile, outputs)) or [error.path]))
            if not task.result.is_skipped:
                task.check_values()
        except Exception as error:
            return self._failed(task.result, error)
        return task.result

    def _confirm_existing(self, results: Sequence[Result]) -> None:
        """Ask once whether outputs that exist are replaced, and raise one `OutputExists` if they are not."""
        errors, self._existing = self._existing, []
        if not errors:
            return
        existing = list(chain.from_iterable(names for _, names in errors))
        num_outputs = sum(len(result.written) for result in results if result.is_pending)
        if not self.confirm(existing, num_outputs):
            raise existing_outputs_error(existing, num_outputs) if self.is_many else errors[0][0]

    def _check_not_inputs(self, items: Sequence[Item], results: Sequence[Result]) -> None:
        """Check that no output of the items is an input of any of them, or of the job."""
        inputs: list[str | os.PathLike] = [source.removeprefix("@") for source in self.sources if is_list(source)]
        inputs += [*(self.vae.source.files if self.has_vae else ()), *(item.source for item in items)]
        inputs += chain.from_iterable(result.inputs for result in results)
        check_distinct(chain.from_iterable(result.written for result in results), inputs)

    def _run_many(self, items: Sequence[Item], results: list[Result], start: float) -> None:
        """Run the items of this rank in order, with a line about each, and a summary of the items of all ranks."""
        indices = self._choose_items(items, results)
        pending = [results[index] for index in indices if results[index].is_pending]
        self._print_errors([(items[index], results[index]) for index in indices])
        if pending and not self.arguments.dry_run:
            self.vae.load()  # so that an error of the weights is not one of each item
        frames = [result.num_frames for result in pending]
        with self._progress_bar(None if None in frames else sum(number or 0 for number in frames)) as bar:
            for number, index in enumerate(indices, 1):
                label = f"{number} of {len(indices)} "
                if results[index].error is not None:
                    continue
                results[index] = self._run_item(items[index], results[index], bar, label=label)
                self.print_result(items[index], results[index])
        states = [(index, results[index].values, results[index].error, results[index].is_skipped) for index in indices]
        for index, values, error, is_skipped in chain(*self.ranks.gather(states)):
            results[index] = replace(results[index], values=values, error=error, is_skipped=is_skipped)
        peak = max((results[index].values.get("peak_memory_bytes", 0) for index in indices), default=0)
        peaks = self.ranks.gather(peak)
        if self.ranks.is_first:
            self.summarize(items, results, time.perf_counter() - start, peaks)

    def _choose_items(self, items: Sequence[Item], results: Sequence[Result]) -> list[int]:
        """Return the indices of the items that this rank runs."""
        ranks = self.ranks
        ranks.check_inputs([(item.source, item.output) for item in items])
        # The costs on the first rank count for all, since a file may be missing on another rank.
        costs = ranks.gather([result.cost if result.is_pending else 0 for result in results])[0]
        end_time_limit()
        return [index for index, rank in enumerate(ranks.deal(costs)) if rank == ranks.rank]

    def _run_item(self, item: Item, result: Result, bar: FrameBar | None, *, label: str = "") -> Result:
        """Run an item, or plan it in a dry run, unless it is skipped. Return its result, also of errors but Ctrl-C."""
        if not result.is_pending:
            return result
        mx.reset_peak_memory()  # each report states the peak of one item
        try:
            task = self._task or self.make_task(item)
            if task is not self._task:
                task.check_outputs()
            with ExitStack() as stack:
                stack.enter_context(task.open())
                if self.arguments.dry_run:
                    values, text = plan_report(task.plan, task.networks())
                    return replace(result, values=values, text=text)
                for output in task.result.written if self.makes_folders else ():
                    make_folder(output)
                if bar is None:
                    bar = stack.enter_context(self._progress_bar(task.result.num_frames))
                name = item.source if item.output == "-" else task.result.outputs[0]
                bar.start(Path(name).name, "reading weights", label=label, num_frames=task.result.num_frames)
                values, text = task.run(bar)
            return replace(result, outputs=task.result.outputs, values=values, text=text)
        except Exception as error:
            return self._failed(result, error)

    def _failed(self, result: Result, error: Exception) -> Result:
        """Return the result of one of many items with an error. Raise the error of a single item."""
        if not self.is_many:
            raise error
        if self.arguments.debug:
            print_traceback(error)
        return replace(result, error=describe_error(error))

    @contextmanager
    def _progress_bar(self, num_frames: int | None) -> Iterator[FrameBar]:
        """Yield a progress bar. It prints some lines if standard error is no terminal, and nothing with -q or --json.

        With --progress json it prints JSON objects. `num_frames` is the total, or `None` if it is unknown.
        """
        as_json = self.arguments.progress == "json"
        has_progress = as_json or not (self.arguments.quiet or self.arguments.json)
        has_bar = has_progress and not as_json and sys.stderr.isatty()
        with FrameBar(
            total=num_frames,
            disable=not has_bar,
            write=partial(write_line, file=sys.stderr) if has_progress else None,
            as_json=as_json,
        ) as bar:
            end_line = Cleanup(bar, os.write, sys.stderr.fileno(), b"\n") if has_bar else None
            yield bar
            if end_line is not None:
                end_line.cancel()

    def _report(self, item: Item, result: Result) -> None:
        """Print the report of a single item."""
        values = result.values or result.as_dict(item)
        self.end_progress(values)
        if self.arguments.json:
            print_report(json.dumps(values))
        elif result.is_skipped:
            self.print_result(item, result)
        elif self.arguments.dry_run:
            print_report(result.text)
        elif not self.arguments.quiet:
            print_report(result.text, file=sys.stderr if item.output == "-" else sys.stdout)

    def end_progress(self, report: Mapping[str, Any]) -> None:
        """Print the last object of --progress json, with the report."""
        if self.arguments.progress == "json":
            write_line(json.dumps({"phase": "done", "fraction": 1.0, "report": report}), sys.stderr)

    def print_result(self, item: Item, result: Result) -> None:
        """Print the result of an item in one line: an error on standard error, others unless -q or --json is set."""
        if result.error is not None:
            write_line(f"error: {result.describe(item)}", sys.stderr)
        elif not self.arguments.quiet and not self.arguments.json:
            write_line(result.describe(item), sys.stdout)

    def summarize(self, items: Sequence[Item], results: Sequence[Result], seconds: float, peaks: Sequence[int]) -> None:
        """Print the summary of many items, whose last line counts them, or the JSON object.

        `peaks` are the bytes of peak memory of each rank.
        """
        is_dry_run = self.arguments.dry_run
        reports = [result.values for result in results if result.values]
        failed = sum(bool(result.error) for result in results)
        counts = {
            "planned" if is_dry_run else "done": len(reports),
            "skipped": sum(result.is_skipped for result in results),
            "failed": failed,
        }
        values = [result.as_dict(item) for item, result in zip(items, results, strict=True)]
        summary: dict[str, Any] = {"items": values, **counts, self.label.lower(): self.used}
        lines = []
        if not is_dry_run:
            frames = sum(report["frames"] for report in reports)
            summary |= {"frames": frames, "seconds": seconds, "peak_memory_bytes": max(peaks)}
            if (size := self.ranks.size) > 1:
                summary |= {"ranks": size, "distributed": "batch", "peak_memory_bytes_per_rank": peaks}
            if reports:
                memory = ", ".join(map(format_bytes, peaks))
                lines += [f"Frames: {frames}, {format_rate(frames, seconds)}", f"Peak MLX memory: {memory}"]
        if reports:
            lines.append(f"{self.label}: {describe_networks({self.label: self.used})}")
        lines.append("Inputs: " + ", ".join(f"{count} {state}" for state, count in counts.items()))
        self.end_progress(summary)
        if self.arguments.json:
            print_report(json.dumps(summary))
        elif not self.arguments.quiet:
            print_report("\n".join(lines))
        if failed:
            raise ItemsError(f"{failed} of {len(items)} inputs failed.")


class Task:
    """Run of an item. Making a task reads no more than headers.

    Attributes:
        plan: set by `open` at the latest.
        result: what is known of the item. `open` may add the number of frames, and `run` may replace names.
        overwrite: whether files of the names of outputs are replaced.
    """

    plan: Plan
    result = Result()
    overwrite = False

    def __init__(self, job: Job, item: Item) -> None:
        self._job, self._item = job, item

    def check_values(self) -> None:
        """Read all latents that are decoded, if they are, and raise a `LatentsError` for values that are not finite."""

    def open(self) -> AbstractContextManager[object]:
        """Open the input for a block, and plan. Nothing is written."""
        return nullcontext()

    def networks(self) -> dict[str, dict[str, str]]:
        """Return the reports of the networks, by their names in reports."""
        return {self._job.label.lower(): self._job.used}

    def run(self, bar: FrameBar) -> tuple[dict[str, Any], str]:
        """Run the item, and return its report, JSON-serializable and as text."""
        raise AssertionError("the VAE is opened before it runs")

    def check_outputs(self) -> None:
        """Find out whether to skip the item. Raise the errors of writing, also of outputs that must not exist."""
        outputs = self.missing_outputs
        self.result = replace(self.result, is_skipped=bool(self.result.outputs) and not outputs)
        self.overwrite = self._job.may_replace(outputs)
        for output in outputs:
            check_replaceable(output, overwrite=self.overwrite)

    @property
    def missing_outputs(self) -> list[str]:
        """Outputs that are written: with --skip-existing, those that do not exist."""
        skips = self._job.arguments.skip_existing
        return [output for output in self.result.written if not (skips and all_exist([output]))]

    def _report(self, summary: str, values: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
        """Return the report of the item.

        `summary` describes the output. `values` have all its keys but those of the networks and the files. They include
        the seconds, and for pictures the number of frames of all outputs.
        """
        outputs, extras, peak = self.result.outputs, self.result.extras, values["peak_memory_bytes"]
        name = _first_last(outputs) if outputs != ["-"] else "standard output"
        networks = self.networks()
        text = f"{name}: {summary}; peak MLX memory {format_bytes(peak)}; {describe_networks(networks)}"
        for kind, names in extras.items():
            text += f"; {kind.replace('_', ' ')} {_first_last(names)}" if names != outputs else ""
        record_speed(self.plan, next(iter(networks.values())), values["seconds"] / max(1, len(outputs)))
        report = {
            **values,
            **networks,
            "output": _one_or_all(outputs),
            **{kind: _one_or_all(names) for kind, names in extras.items()},
        }
        return report, text


def plan_report(plan: Plan, networks: Mapping[str, Mapping[str, str]]) -> tuple[dict[str, Any], str]:
    """Return the report of a plan and its networks, JSON-serializable and as text."""
    audio, seconds = plan.audio, estimate_seconds(plan, next(iter(networks.values())))
    values = {"plan": plan.as_dict(), "estimated_seconds": seconds, **networks}
    values |= {"audio": audio.as_dict()} if audio else {}
    time = "" if seconds is None else f"\ntime     about {format_seconds(seconds)} on this machine, by earlier runs"
    label = "VAE" if next(iter(networks)).endswith("vae") else "networks"
    text = f"{plan}{time}\n{label:<8} {describe_networks(networks)}"
    return values, text + (f"\n\n{audio}" if audio else "")


def describe_networks(networks: Mapping[str, Mapping[str, str]]) -> str:
    """Describe reports of networks to end a line: "vae.safetensors (LTX-2.3, convolutional decoder)"."""

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
