"""Runs a command for several inputs: one progress bar, a line per input, and a summary."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from ..distributed.ranks import Ranks
from ..errors import ItemsError, describe_error
from ..units import format_bytes, format_rate
from .cli import print_report, print_traceback, progress_bar, write_line
from .outputs import all_exist, check_outputs
from .results import Item, Result, Runner


def run_many(runner: Runner, items: Sequence[Item], arguments: argparse.Namespace, ranks: Ranks) -> None:
    """Run items in order, or plan them in a dry run. An error of one does not stop the others.

    Several ranks take whole items, longest first, and write what they make to their own disks. The first rank reports.

    Raises:
        ItemsError: at the end, if any failed; before anything runs, if two become the same output.
    """
    start = time.perf_counter()
    entries = ranks.together(lambda: measure(runner, items, arguments))
    ranks.check_same({"the inputs": [[item.source, item.output] for item in items]})
    # By what the first rank sees, so that all deal alike, also where a file is missing on one of them.
    costs = ranks.gather([entry.cost if isinstance(entry, Item) else 0 for entry in entries])[0]
    ranks.work_alone()
    dealt = ranks.deal(costs)
    own = [index for index, rank in enumerate(dealt) if rank == ranks.rank]
    if not arguments.dry_run and any(isinstance(entries[index], Item) for index in own):
        runner.load()
    done = _run_entries(runner, [entries[index] for index in own], arguments)
    results = _join(ranks, items, dict(zip(own, done, strict=True)))
    if ranks.is_first:
        summarize(results, time.perf_counter() - start, arguments)
    failed = sum(result.error is not None for result in results)
    if failed:
        raise ItemsError(f"{failed} of {len(results)} inputs failed.")


def measure(runner: Runner, items: Sequence[Item], arguments: argparse.Namespace) -> list[Item | Result]:
    """Each item with its outputs, number of frames and cost; or its result, if it failed at that, or is to be skipped.

    Raises:
        ItemsError: if two become the same output.
    """
    entries: list[Item | Result] = []
    for item in items:
        try:
            measured = runner.measure(item)
        except Exception as error:
            entries.append(_failed(item, error, arguments))
            continue
        is_skipped = arguments.skip_existing and all_exist(measured.outputs)
        entries.append(Result(measured, {}, is_skipped=True) if is_skipped else measured)
    check_outputs([entry.item if isinstance(entry, Result) else entry for entry in entries])
    return entries


def run_one(runner: Runner, item: Item, arguments: argparse.Namespace, advance: Callable[[int], object]) -> Result:
    """Run a measured item, or plan it in a dry run. An error becomes its result; Ctrl-C does not."""
    mx.reset_peak_memory()  # each report states that of its item
    try:
        if arguments.dry_run:
            plan = runner.plan(item)
            values = {"output": item.output, "plan": plan.as_dict()}
            return Result(item, values)
        return Result(item, runner.run(item, advance).as_dict())
    except Exception as error:
        return _failed(item, error, arguments)


def _join(ranks: Ranks, items: Sequence[Item], own: dict[int, Result]) -> list[Result]:
    """The results of all ranks, in the order of the items."""
    values: list[Any] = [[index, result.values, result.error, result.is_skipped] for index, result in own.items()]
    results = dict(own)
    for theirs in ranks.gather(values):
        for index, reported, error, is_skipped in theirs:
            results.setdefault(index, Result(items[index], reported, error=error, is_skipped=is_skipped))
    return [results[index] for index in range(len(items))]


def _failed(item: Item, error: Exception, arguments: argparse.Namespace) -> Result:
    if arguments.debug:
        print_traceback(error)
    return Result(item, {}, error=describe_error(error))


def _run_entries(runner: Runner, entries: Sequence[Item | Result], arguments: argparse.Namespace) -> list[Result]:
    """The results of all entries, in order. Each is shown when it is there."""
    frames = [entry.num_frames for entry in entries if isinstance(entry, Item)]
    total = None if None in frames else sum(number or 0 for number in frames)
    results = []
    with progress_bar(total, arguments) as bar:
        for number, entry in enumerate(entries, 1):
            bar.set_description_str(f"{number} of {len(entries)}")
            result = run_one(runner, entry, arguments, bar.update) if isinstance(entry, Item) else entry
            show(result, arguments)
            results.append(result)
    return results


def show(result: Result, arguments: argparse.Namespace) -> None:
    """Print the line of a result: an error always, on standard error; the others unless --quiet or --json is given."""
    if result.error is not None:
        write_line(f"error: {result}", sys.stderr)
    elif not arguments.quiet and not arguments.json:
        write_line(_planned(result) if "plan" in result.values and arguments.dry_run else str(result), sys.stdout)


def skip(item: Item, arguments: argparse.Namespace) -> bool:
    """Whether a single item's outputs exist, and are to be skipped. That is then printed."""
    if not arguments.skip_existing or not all_exist(item.outputs):
        return False
    result = Result(item, {}, is_skipped=True)
    if arguments.json:
        print_report(json.dumps(result.as_dict()))
    show(result, arguments)
    return True


def _planned(result: Result) -> str:
    plan, item = result.values["plan"], result.item
    target = f" -> {', '.join(item.outputs)}" if item.outputs else ""
    how = plan["mode"] if plan["mode"] != "exact" else f"exact by {plan['order']}"
    frames = f"{plan['frames']} frames of {plan['width']}x{plan['height']}"
    return f"{item.source}{target}: {frames}, {how}, peak {format_bytes(plan['peak_bytes'])}"


def summarize(results: Sequence[Result], seconds: float, arguments: argparse.Namespace) -> None:
    """Print the summary, or the JSON object."""
    skipped = sum(result.is_skipped for result in results)
    failed = sum(result.error is not None for result in results)
    done = [result.values for result in results if result.values]
    summary: dict[str, Any] = {
        "items": [result.as_dict() for result in results],
        "skipped": skipped,
        "failed": failed,
    }
    if not arguments.dry_run:
        summary["frames"] = sum(values["frames"] for values in done)
        summary["seconds"] = seconds
        summary["peak_memory_bytes"] = max((values["peak_memory_bytes"] for values in done), default=0)
    if arguments.json:
        print_report(json.dumps(summary))
    elif not arguments.quiet:
        print_report(
            f"Inputs: {len(done)} {'planned' if arguments.dry_run else 'done'}, {skipped} skipped, {failed} failed"
        )
        if done and not arguments.dry_run:
            print_report(f"Frames: {summary['frames']}, {format_rate(summary['frames'], seconds)}")
            print_report(f"Peak memory: {format_bytes(summary['peak_memory_bytes'])}")
