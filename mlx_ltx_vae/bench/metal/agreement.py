"""Whether the memory that decodes took is what was planned for them."""

from collections.abc import Iterator, Mapping
from typing import Any

from ...backend.machine import Backend
from ...units import format_bytes

Run = Mapping[str, Any]


def planned_runs(document: Mapping[str, Any]) -> list[Run]:
    """The decodes that have a plan and did not fail."""
    runs = [*document["decodes"], *document["accuracy"]]
    return [run for run in runs if run.get("planned_bytes") is not None and "error" not in run]


def peak_share(run: Run) -> float:
    """MLX's peak, as a share of the planned one."""
    return run["total_peak_bytes"] / run["planned_bytes"]


def footprint_share(run: Run) -> float | None:
    """What the machine lost, as a share of the plan with its buffer cache; None if it is not known."""
    taken = run["peak_footprint_bytes"], run["start_footprint_bytes"]
    return None if None in taken else (taken[0] - taken[1]) / run["planned_total_bytes"]


def compare_with_plan(document: Mapping[str, Any]) -> dict[str, Any]:
    """Compare the decodes of a document with their plans. The footprint counts on Apple's GPUs alone.

    Returns:
        modes: for each way to decode, of the decode that is nearest to its plan or furthest beyond it, planned_bytes,
        measured_bytes and what the first is of the second, planned_per_measured; and the same of footprints, null where
        they are not known. agrees: whether none takes more than planned; null if nothing was measured. verdict: the
        same in a sentence.
    """
    has_footprint = document["machine"]["backend"] == Backend.METAL.value
    by_mode: dict[str, list[Run]] = {}
    for run in planned_runs(document):
        how = f" by {run['order']}" if run["mode"] == "exact" else ""
        by_mode.setdefault(run["mode"] + how, []).append(run)
    modes = [{"mode": mode, "decodes": len(runs), **_worst(runs, has_footprint)} for mode, runs in by_mode.items()]
    beyond = list(_beyond(planned_runs(document), has_footprint))
    agrees = not beyond if modes else None
    return {"modes": modes, "agrees": agrees, "verdict": _verdict(modes, beyond)}


def _worst(runs: list[Run], has_footprint: bool) -> dict[str, Any]:
    run = max(runs, key=peak_share)
    values = {
        "planned_bytes": run["planned_bytes"],
        "measured_bytes": run["total_peak_bytes"],
        "planned_per_measured": round(1 / peak_share(run), 3),
    }
    known = [each for each in runs if has_footprint and (footprint_share(each) or 0) > 0]
    footprints: dict[str, Any] = dict.fromkeys(
        ("planned_footprint_bytes", "measured_footprint_bytes", "planned_per_measured_footprint")
    )
    if known:
        run = max(known, key=lambda each: footprint_share(each) or 0)
        taken = run["peak_footprint_bytes"] - run["start_footprint_bytes"]
        footprints = dict(zip(footprints, (run["planned_total_bytes"], taken, None), strict=True))
        footprints["planned_per_measured_footprint"] = round(run["planned_total_bytes"] / taken, 3)
    return values | footprints


def _beyond(runs: list[Run], has_footprint: bool) -> Iterator[str]:
    """What took more than planned."""
    for run in runs:
        which = f"the decode {run['name']!r} ({run['mode']})"
        if peak_share(run) > 1:
            measured, planned = format_bytes(run["total_peak_bytes"]), format_bytes(run["planned_bytes"])
            yield f"{which} took {measured} of MLX's memory, and {planned} were planned"
        share = footprint_share(run) if has_footprint else None
        if share is not None and share > 1:
            yield f"the footprint of {which} was {share:.2f} of the planned one"


def _verdict(modes: list[dict[str, Any]], beyond: list[str]) -> str:
    if not modes:
        return "No decode was measured that has a plan."
    if beyond:
        more = f", and {len(beyond) - 1} more" if len(beyond) > 1 else ""
        return f"This machine does not agree with the plan: {beyond[0]}{more}."
    shares = ", ".join(f"{mode['planned_per_measured']:.2f} {mode['mode']}" for mode in modes)
    return f"This machine agrees with the plan: planned memory is at least {shares} times the measured one."
