"""Runs `decode` or `encode`: one path for one input and for many, by one process or by several ranks."""

import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import mlx.core as mx

from ..backend.machine import Work
from ..backend.mlx_utils import DtypeName
from ..checkpoint import Checkpoint
from ..distributed import Ranks, join_ranks
from ..errors import ItemsError, LatentsError, describe_error, printable, warn
from ..files import check_absent
from ..latents import LatentsFile
from ..latents.keyframes import KEYFRAME_NAMES, KeyframesFile, open_keyframes
from ..models.base import Statistics
from ..models.specs import NetworkSpec
from ..pipeline.progress import FrameBar
from ..planning.plan import Plan
from ..process import Cleanup
from ..units import format_bytes, format_rate
from ..vae import VideoVAE
from .items import (
    Item,
    all_exist,
    are_many,
    check_not_inputs,
    check_outputs,
    list_files,
    make_folder,
    name_items,
    read_inputs,
)
from .running import print_report, print_traceback, write_line


@dataclass(frozen=True)
class Job:
    """What is wanted of `decode` and `encode` alike."""

    network: str  # "decoder" or "encoder"
    open: Callable[[], Checkpoint]  # what it runs
    sources: Sequence[str]  # files, lists and tables, as arguments name them
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

    @property
    def is_many(self) -> bool:
        """Whether there may be several items. An error of one then does not stop the others."""
        return are_many(self.sources)


class LazyVAE:
    """The network of a job, for the `ranks` that run each item together, with its weights once they are needed."""

    def __init__(self, job: Job, checkpoint: Checkpoint, ranks: Ranks) -> None:
        self.job, self.checkpoint, self.ranks = job, checkpoint, ranks
        self.machine = ranks.smallest(checkpoint.machine(job.network, job.dtype))
        self.plans: dict[Any, Any] = {}  # by what they depend on, for items that are alike
        self._loaded: VideoVAE | None = None

    @cached_property
    def used(self) -> dict[str, str]:
        """What reports say of the network."""
        return self.checkpoint.used(self.job.network)

    def load(self) -> VideoVAE:
        """The network with its weights, which are read once."""
        if self._loaded is None:
            chosen = {network: network == self.job.network for network in ("encoder", "decoder")}
            self._loaded = VideoVAE.from_pretrained(self.checkpoint, dtype=self.job.dtype, **chosen)
        return self._loaded

    @cached_property
    def statistics(self) -> Statistics | None:
        return self.checkpoint.read_statistics()


class Task(ABC):
    """An item on its way through a network. Making a task reads no more than a header, and completes the item."""

    plan: Plan  # from `open` on

    def __init__(self, vae: LazyVAE, item: Item) -> None:
        self._vae, self._item = vae, item

    def open(self) -> AbstractContextManager[object]:
        """Hold the input open, and plan, until the end of the block. Nothing is written."""
        return nullcontext()

    def describe(self) -> dict[str, Any]:
        """What is the same for all ranks that run the item together, by name: what headers state, and the plan."""
        return {"the plans": self.plan.as_dict()}

    def sample(self) -> dict[str, Any]:
        """As `describe`: the contents, or parts of them."""
        return {}

    def _name_outputs(self, outputs: list[str]) -> None:
        """Complete the item with its outputs, and find out whether to skip it; an error if they must not exist."""
        job, self._item.outputs = self._vae.job, outputs
        self._item.is_skipped = job.skip_existing and all_exist(outputs)
        for output in outputs if job.overwrite is False else ():
            check_absent(output)

    def networks(self) -> dict[str, dict[str, str]]:
        """What reports say of the networks, by their names in these."""
        return {"vae": self._vae.used}

    @abstractmethod
    def run(self, bar: FrameBar) -> None:
        """Run the item, and complete it with its report."""

    def _report(self, work: Work, sent_bytes: int, done: str, **values: Any) -> None:
        """Complete the item with its report. All ranks that have run it together call this.

        `sent_bytes` are this rank's. `done` says what was made. `values` are JSON-serializable and include the seconds,
        and of pictures the frames of all outputs.
        """
        ranks, outputs, others = self._vae.ranks, self._item.outputs, self._item.beside
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
    """What `Checkpoint.used` returned, as the end of a line: "vae.safetensors (LTX-2.3, convolutional decoder)"."""

    def describe(used: Mapping[str, str]) -> str:
        what = used["generation"] + (f", {used['decoder']} decoder" if "decoder" in used else "")
        return f"{Path(used['file']).name} ({what})" if "file" in used else what

    return printable(", ".join(map(describe, networks.values())))


def describe_blending(plan: Plan) -> str:
    """What the last line of a run says of a plan with tiles; nothing of exact ones."""
    return f"tiled (blended in {' and '.join(plan.blended)}), " if plan.blended else ""


def _first_last(names: Sequence[str]) -> str:
    return printable(" to ".join(dict.fromkeys([names[0], names[-1]])))


def _one_or_all(names: Sequence[str]) -> str | list[str]:
    return names[0] if len(names) == 1 else list(names)


def run_job(job: Job, make_task: Callable[[LazyVAE, Item], Task]) -> None:
    """Run all inputs of a job, or plan them in a dry run, and report.

    Several ranks run one input together. Of many, each takes whole ones, longest first, and writes them to its disk.
    The first rank reports. The error of the only input is raised, or an `ItemsError` at the end if any of many failed.
    """
    ranks = join_ranks(job.distributed, job.rank_timeout)
    if ranks is None:
        return
    is_encode = job.network == "encoder"
    listed = read_inputs(job.sources, with_sizes=is_encode)
    items = name_items(listed, job.pattern, is_dry_run=job.dry_run)
    checkpoint = ranks.together(job.open)
    ranks.check_same(lambda: {"the checkpoints": checkpoint.description})
    ranks.check_same(lambda: {"the weights": checkpoint.sample()})
    vae = LazyVAE(job, checkpoint, Ranks() if job.is_many else ranks)
    _Run(job, vae, partial(make_task, vae), ranks).run(items)


@dataclass
class _Run:
    """One run of a job by all ranks."""

    _job: Job
    _vae: LazyVAE
    _make_task: Callable[[Item], Task]
    _ranks: Ranks
    _task: Task | None = None  # of the only item, which may be a pipe and is opened once

    def run(self, items: Sequence[Item]) -> None:
        start = time.perf_counter()
        self._ranks.together(lambda: self._measure(items))
        if not self._job.is_many:
            (item,) = items
            item.is_skipped = all(self._ranks.gather(item.is_skipped))
            self._run_item(item, None)
            if self._ranks.is_first:
                self._report(item)
            return
        own = self._deal(items)
        if not self._job.dry_run and any(items[index].is_pending for index in own):
            self._vae.load()  # so that an error of the weights is not one of each item
        self._run_many([items[index] for index in own])
        self._join(items, own)
        if self._ranks.is_first:
            self._summarize(items, time.perf_counter() - start)

    def _measure(self, items: Sequence[Item]) -> None:
        for item in items:
            try:
                task = self._make_task(item)
                self._task = None if self._job.is_many else task
            except Exception as error:
                self._fail(item, error)
        check_outputs(items)
        check_not_inputs(items, [*list_files(self._job.sources), *self._vae.checkpoint.files])

    def _deal(self, items: Sequence[Item]) -> list[int]:
        """The indices of the items that this rank takes."""
        ranks = self._ranks
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
        mx.reset_peak_memory()  # each report states that of its item
        ranks = self._vae.ranks
        try:
            task = self._task or self._make_task(item)
            with ExitStack() as stack:
                ranks.together(lambda: stack.enter_context(task.open()))
                ranks.check_same(task.describe)
                if self._job.dry_run:
                    item.values, item.text = plan_report(task.plan, task.networks())
                    return
                ranks.check_same(task.sample)
                for output in chain(item.outputs, *item.beside.values()) if self._job.is_many else ():
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
        """Note the error of an item. That of the only one is raised as it is."""
        if not self._job.is_many:
            raise error
        if self._job.debug:
            print_traceback(error)
        item.error = describe_error(error)

    def _join(self, items: Sequence[Item], own: Sequence[int]) -> None:
        """Note what other ranks report of their items."""
        names = ("values", "error", "is_skipped")
        reports = [(index, {name: getattr(items[index], name) for name in names}) for index in own]
        for index, states in chain(*self._ranks.gather(reports)):
            vars(items[index]).update(states)

    @contextmanager
    def _progress_bar(self, num_frames: int | None) -> Iterator[FrameBar]:
        """A progress bar, or lines now and then if standard error is no terminal; nothing if no report is wanted.

        `num_frames` is the total; None if it is unknown.
        """
        is_wanted = not (self._job.quiet or self._job.json)
        is_shown = is_wanted and sys.stderr.isatty()
        write = partial(write_line, file=sys.stderr) if is_wanted else None
        with FrameBar(total=num_frames, disable=not is_shown, write=write, dynamic_ncols=True, miniters=1) as bar:
            end_line = Cleanup(bar, os.write, sys.stderr.fileno(), b"\n") if is_shown else None
            yield bar
            if end_line is not None:
                end_line.cancel()

    def _report(self, item: Item) -> None:
        """Print what became of the only item."""
        if self._job.json:
            print_report(json.dumps(item.values or item.as_dict()))
        elif item.is_skipped:
            self._show(item)
        elif self._job.dry_run:
            print_report(item.text)
        elif not self._job.quiet:
            print_report(item.text, file=sys.stderr if item.output == "-" else sys.stdout)

    def _show(self, item: Item) -> None:
        """Print the line of an item: an error always, on standard error; the others unless only JSON is wanted."""
        if item.error is not None:
            write_line(f"error: {item}", sys.stderr)
        elif not self._job.quiet and not self._job.json:
            write_line(str(item), sys.stdout)

    def _summarize(self, items: Sequence[Item], seconds: float) -> None:
        """Print the summary of many items, or the JSON object."""
        job = self._job
        done = [item.values for item in items if item.values]
        skipped, failed = sum(item.is_skipped for item in items), sum(item.error is not None for item in items)
        summary = {"items": [item.as_dict() for item in items], "skipped": skipped, "failed": failed}
        summary["vae"] = self._vae.used
        lines = [f"Inputs: {len(done)} {'planned' if job.dry_run else 'done'}, {skipped} skipped, {failed} failed"]
        if not job.dry_run:
            frames = sum(values["frames"] for values in done)
            peak = max((values["peak_memory_bytes"] for values in done), default=0)
            summary |= {"frames": frames, "seconds": seconds, "peak_memory_bytes": peak}
            if done:
                lines += [f"Frames: {frames}, {format_rate(frames, seconds)}", f"Peak MLX memory: {format_bytes(peak)}"]
        if done:
            lines.append(f"VAE: {describe_networks({'vae': self._vae.used})}")
        if job.json:
            print_report(json.dumps(summary))
        elif not job.quiet:
            print_report("\n".join(lines))
        if failed:
            raise ItemsError(f"{failed} of {len(items)} inputs failed.")


def check_keyframes_option(given: str | None, sources: Sequence[str]) -> None:
    """Refuse a file of keyframes for several inputs, as arguments name them."""
    if given and are_many(sources):
        raise ItemsError("--keyframes goes with one input; decode each on its own, or store them in its latent file")


def find_keyframes(given: str | None, clip: LatentsFile, decoder: NetworkSpec) -> KeyframesFile | None:
    """The keyframes of a file that is given, or those in the latent file; None if there are none.

    A warning if the decoder takes none. A `LatentsError` for bad ones.
    """
    source = given or clip.info.source
    if given is None and not clip.has_keyframes:
        return None
    if decoder.variant is None:
        text = "its keyframes are ignored, as this VAE takes none; the diffusion decoder of LTX-2.5 does."
        warn(f"{source}: {text}")
        return None
    if given is None:
        return clip.find_keyframes()
    file = open_keyframes(given)
    if file is None:
        raise LatentsError(f"{given}: has no keyframes; name a file with the tensors {' and '.join(KEYFRAME_NAMES)}.")
    file.check(clip.shape)
    return file
