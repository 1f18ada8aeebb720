"""What follows from the measurements for the package. No MLX.

A verdict is a dict: question, answer, agrees (True: the package does so already; False: it should change; None: this
measurement cannot tell) and change (what to edit, if `agrees` is False).
"""

from collections.abc import Callable, Mapping
from typing import Any

from ...planning.memory import COMFORTABLE_CACHE_BYTES
from ...units import GB
from .sums import (
    BEST,
    JOINED_GAIN,
    MAX_LARGEST_RATIO,
    MAX_RMS_RATIO,
    NOISE,
    RULE,
    Entry,
    agrees,
    describe,
    dtypes_of,
    find_sum,
    is_winograd_inaccurate,
    times,
    wanted_form,
    winograd_ratios,
)

Verdict = dict[str, Any]
Document = Mapping[str, Any]

#: float16 throughout is safe below this: it holds 65504, and Winograd's transforms may multiply a number by ten.
SAFE_HALF = 6000

AS_PLANNED, AGAIN = "as planned", "as planned, again"
EXACT, STRICT, NO_WINOGRAD_EXACT = "exact", "bfloat16 given", "exact, no Winograd"

_METAL = "metal"


def make_verdicts(document: Document) -> list[Verdict]:
    """All verdicts that a document of measurements allows."""
    questions: list[Callable[[Document], list[Verdict]]] = [
        _joined,
        _formulations,
        _tile_batch,
        _winograd,
        _elementwise,
        _steps,
        _caches,
        _memory,
        _accuracy,
        _range,
    ]
    return [verdict for question in questions for verdict in question(document)]


def text_of(verdict: Mapping[str, Any]) -> str:
    """A verdict in a line, such as "joined frames: 12 % faster than mx.conv3d: keep"."""
    end = {True: ": keep", False: f": {verdict['change']}", None: ""}[verdict["agrees"]]
    return f"{verdict['question']}: {verdict['answer']}{end}"


def _verdict(question: str, answer: str, agreed: bool | None, change: str) -> Verdict:
    return {"question": question, "answer": answer, "agrees": agreed, "change": change if agreed is False else None}


def _faster(seconds: float, reference: float) -> str:
    """A time against another in percent of the latter."""
    percent = round(100 * (1 - seconds / reference))
    return f"{abs(percent)} % {'faster' if percent >= 0 else 'slower'}"


def _joined(document: Document) -> list[Verdict]:
    """Joined frames against mx.conv3d, over the clip."""
    verdicts = []
    uses_joined = document["machine"]["backend"] == _METAL
    for dtype in dtypes_of(document["convolutions"]):
        before, joined = (find_sum(document["sums"], dtype, way) for way in ("conv3d", "joined"))
        if before and joined:
            is_better = joined <= (1 - JOINED_GAIN) * before
            change = "rules.py: take CONV3D in place of JOINED"
            answer = f"{_faster(joined, before)} than mx.conv3d"
            verdicts.append(_verdict(f"joined frames, {dtype}", answer, is_better if uses_joined else None, change))
    return verdicts


def avoids_winograd(document: Document, dtype: str) -> bool:
    """Whether the measurements keep a dtype out of Winograd kernels."""
    ratios = winograd_ratios(document["convolutions"])
    return dtype == "bfloat16" and ratios is not None and is_winograd_inaccurate(ratios)


def judge(document: Document, entry: Entry, dtype: str) -> tuple[str | None, bool | None]:
    """The form that the measurements want for a convolution, and whether the package's rule agrees."""
    wanted = wanted_form(entry, dtype, avoids_winograd=avoids_winograd(document, dtype))
    return wanted, agrees(entry, dtype, wanted)


def _formulations(document: Document) -> list[Verdict]:
    """The rule for each convolution, in the dtype in which the package takes its operands."""
    entries = document["convolutions"]
    judged = [(entry, entry["operands"], *judge(document, entry, entry["operands"])) for entry in entries]
    known = [each for each in judged if each[3] is not None]
    if not known:
        return []
    wrong = [each for each in known if not each[3]]
    changes = "; ".join(
        f"{wanted} for {describe(entry)} in {dtype} ({_gain(entry, dtype, wanted)})"
        for entry, dtype, wanted, _ in wrong
    )
    answer = f"fits {len(known) - len(wrong)} of {len(entries)} convolutions"
    verdicts = [_verdict("the rule", answer, not wrong, f"rules.py: {changes}")]
    for dtype in dtypes_of(entries):
        best, chosen = (find_sum(document["sums"], dtype, way) for way in (BEST, RULE))
        if best and chosen:
            answer = f"{chosen:.2f} s for the clip; the best form of each layer, however inaccurate, {best:.2f} s"
            verdicts.append(_verdict(f"the rule, {dtype}", answer, None, ""))
    return verdicts


def _gain(entry: Entry, dtype: str, wanted: str | None) -> str:
    known = times(entry, dtype)
    chosen = entry["rule"][dtype]
    return f"{_faster(known[wanted or chosen], known[chosen])} than {chosen}"


def _tile_batch(document: Document) -> list[Verdict]:
    """Winograd a frame at a time, over the clip."""
    verdicts = []
    for dtype in dtypes_of(document["convolutions"]):
        before, after = (find_sum(document["sums"], dtype, way) for way in ("joined", "joined, tile batch 1"))
        if before and after:
            agreed = None if document["machine"]["backend"] != _METAL else after > (1 - NOISE) * before
            change = "set MLX_CONV_WINOGRAD_TILE_BATCH=1 on Metal"
            verdicts.append(_verdict(f"Winograd a frame at a time, {dtype}", _faster(after, before), agreed, change))
    return verdicts


def _winograd(document: Document) -> list[Verdict]:
    """bfloat16 in Winograd kernels."""
    ratios = winograd_ratios(document["convolutions"])
    if ratios is None:
        return []
    on_metal = document["machine"]["backend"] == _METAL
    is_inaccurate = is_winograd_inaccurate(ratios)
    answer = (
        f"{ratios[0]:.2g} times the rms and {ratios[1]:.2g} times the largest error of bfloat16 without "
        f"(limits {MAX_RMS_RATIO:g} and {MAX_LARGEST_RATIO:g}); "
    )
    answer += "normalized operands in float16, others without Winograd" if is_inaccurate else "accurate enough"
    if on_metal:
        change = "precision.py: keep operands in bfloat16; rules.py: allow Winograd for them"
    else:
        change = "precision.py: take normalized operands in float16 here too"
    return [_verdict("bfloat16 in Winograd", answer, is_inaccurate == on_metal, change)]


def _elementwise(document: Document) -> list[Verdict]:
    """Each operation of the package that has another way beside it."""
    runs = document["elementwise"]
    verdicts = []
    for ours, other in zip(runs, runs[1:], strict=False):
        if ours["is_ours"] and not other["is_ours"]:
            answer = f"{_faster(ours['seconds'], other['seconds'])} than {other['operation']}"
            agreed = ours["seconds"] <= (1 + NOISE) * other["seconds"]
            name = f"{ours['operation']}, {ours['shape'][-1]} channels"
            change = f"models/layers: {other['operation']}, if it is as accurate"
            verdicts.append(_verdict(name, answer, agreed, change))
    return verdicts


def _decodes(document: Document) -> dict[str, Mapping[str, Any]]:
    return {run["name"]: run for run in document["decodes"] if "error" not in run}


def planned_seconds(document: Document) -> float | None:
    """Seconds of the decode as planned: the faster of its runs, since a machine that got hot would favor others."""
    found = [run["seconds"] for name, run in _decodes(document).items() if name in (AS_PLANNED, AGAIN)]
    return min(found, default=None)


def _steps(document: Document) -> list[Verdict]:
    """Chunks, steps ahead and variables in whole decodes."""
    reference = planned_seconds(document)
    if reference is None:
        return []
    changes = {
        "chunk 2": "planning/clip.py: chunks of 2 latent frames",
        "chunk 4": "planning/clip.py: chunks of 4 latent frames",
        "0 steps ahead": "planning/planner.py: no prefetch",
        "1 step ahead": "planning/planner.py: prefetch 1",
        "2 steps ahead": "planning/planner.py: prefetch 2",
        "mx.conv3d": "rules.py: CONV3D",
        "tile batch 1": "set MLX_CONV_WINOGRAD_TILE_BATCH=1 on Metal",
        "no Winograd": "set MLX_CONV_WINOGRAD=0 on Metal",
        "float16": "",
        "bfloat16 given": "",
    }
    verdicts = []
    for name, run in _decodes(document).items():
        if name in changes:
            peak = run["total_peak_bytes"] / _decodes(document).get(AS_PLANNED, run)["total_peak_bytes"]
            answer = f"{_faster(run['seconds'], reference)} than as planned, {peak:.2f} of its peak"
            agreed = run["seconds"] > (1 - NOISE) * reference if changes[name] else None
            verdicts.append(_verdict(f"decode with {name}", answer, agreed, changes[name]))
    return verdicts


def _caches(document: Document) -> list[Verdict]:
    """The smallest limit of the buffer cache that costs no time."""
    limited = {
        run["cache_limit"]: run["seconds"] for run in _decodes(document).values() if run.get("cache_limit") is not None
    }
    if not limited:
        return []
    fastest = min(limited.values())
    slow = [limit for limit, seconds in limited.items() if seconds > (1 + NOISE) * fastest]
    enough = min((limit for limit in limited if limit > max(slow, default=0)), default=max(limited))
    slowest = max(limited.values()) / fastest
    answer = f"{enough / GB:g} GB is enough; the slowest limit takes {slowest:.2f} times as long"
    change = f"planning/memory.py: COMFORTABLE_CACHE_BYTES = {enough:,}".replace(",", "_")
    # A step of the series of limits is as near as this tells.
    return [_verdict("cache limits", answer, enough <= COMFORTABLE_CACHE_BYTES <= 4 * enough, change)]


def _memory(document: Document) -> list[Verdict]:
    """MLX's peak and the footprint against the plan, over all decodes."""
    runs = [run for run in _decodes(document).values() if "planned_bytes" in run]
    if not runs:
        return []
    peak = max(run["total_peak_bytes"] / run["planned_bytes"] for run in runs)
    verdicts = [
        _verdict(
            "MLX's peak", f"{peak:.2f} of the plan at most", peak <= 1, "models/convolution/rules.py: scratch_bytes"
        )
    ]
    taken = [
        (run["peak_footprint_bytes"] - run["start_footprint_bytes"]) / run["planned_total_bytes"]
        for run in runs
        if run["peak_footprint_bytes"] is not None and run["start_footprint_bytes"] is not None
    ]
    if taken and document["machine"]["backend"] == _METAL:
        answer = f"{max(taken):.2f} of the plan with its buffer cache at most"
        change = "planning/memory.py: _CACHE_SHARE"
        verdicts.append(_verdict("the footprint", answer, max(taken) <= 1, change))
    return verdicts


def _accuracy(document: Document) -> list[Verdict]:
    """The decode as planned against bfloat16 operands without Winograd."""
    runs = {run["name"]: run for run in document["accuracy"] if run.get("rms") is not None}
    if EXACT not in runs or STRICT not in runs:
        return []
    ours, direct = runs[EXACT], runs[STRICT]
    if not direct["rms"] or not direct["largest"]:
        return []
    rms, largest = (ours[name] / direct[name] for name in ("rms", "largest"))
    agreed = rms <= MAX_RMS_RATIO and largest <= MAX_LARGEST_RATIO
    answer = f"{rms:.2f} times the rms and {largest:.2f} times the largest error of bfloat16 operands without Winograd"
    return [_verdict("the decode's accuracy", answer, agreed, "precision.py: operands in bfloat16, without Winograd")]


def _range(document: Document) -> list[Verdict]:
    """Whether a decoder in float16 may overflow."""
    runs = document["ranges"]
    if not runs:
        return []
    sizes = [run[name] for run in runs for name in ("input", "output")]
    if None in sizes:
        return [_verdict("the largest number", "not finite", False, "find the layer in the JSON")]
    largest = max(runs, key=lambda run: max(run["input"], run["output"]))
    size = max(largest["input"], largest["output"])
    safe = "float16 throughout is safe" if size < SAFE_HALF else f"float16 throughout is not safe (limit {SAFE_HALF})"
    if document["case"]["weights"] != "checkpoint":
        safe = "of random weights, which says nothing about a model's; measure with -m"
    return [_verdict("the largest number", f"{size:.4g} at {largest['layer']}: {safe}", None, "")]
