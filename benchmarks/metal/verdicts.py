"""What follows from the measurements of a Mac for the package. No MLX."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.metal.sums import (
    BEST,
    JOINED_GAIN,
    MAX_LARGEST_RATIO,
    MAX_RMS_RATIO,
    NETWORK,
    NOISE,
    ONE_FRAME,
    RULE,
    agrees,
    clip_sums,
    is_winograd_inaccurate,
    package_times,
    values_of,
    wanted_form,
    winograd_ratios,
)
from mlx_ltx_vae.bench.metal.command import describe
from mlx_ltx_vae.bench.tables import table
from mlx_ltx_vae.planning.memory import COMFORTABLE_CACHE_BYTES
from mlx_ltx_vae.units import GB

Document = Mapping[str, Any]
Entries = Sequence[Mapping[str, Any]]

#: float16 throughout is safe below this: it holds 65504, and Winograd's transforms may multiply a number by ten.
SAFE_HALF = 6000

# The decodes whose answer is a change, and what to edit then.
_CHANGES = {
    "chunk 2": "planning/clip.py: chunks of 2 latent frames",
    "chunk 4": "planning/clip.py: chunks of 4 latent frames",
    "0 steps ahead": "planning/planner.py: no prefetch",
    "1 step ahead": "planning/planner.py: prefetch 1",
    "2 steps ahead": "planning/planner.py: prefetch 2",
    "mx.conv3d": "rules.py: CONV3D",
    "MLX's tile batch": "backend/device.py: leave MLX_CONV_WINOGRAD_TILE_BATCH unset",
    "no Winograd": "set MLX_CONV_WINOGRAD=0 on Metal",
    "float16": None,
    "bfloat16 given": None,
}


class Verdict(NamedTuple):
    """An answer.

    Attributes:
        agrees: whether the package does so already; None if this measurement cannot tell.
        change: what to edit if it should change.
    """

    question: str
    answer: str
    agrees: bool | None = None
    change: str = ""

    def __str__(self) -> str:
        end = {True: ": keep", False: f": {self.change}", None: ""}[self.agrees]
        return f"{self.question}: {self.answer}{end}"


def sums_and_verdicts(document: Document) -> str:
    """The seconds of all convolutions of the clip in each way, and all verdicts."""
    sums = clip_sums(convolutions_of(document))
    dtypes, ways = (list(dict.fromkeys(key[index] for key in sums)) for index in (0, 1))
    rows = [
        {"seconds of all convolutions": way}
        | {dtype: f"{sums[dtype, way]:.3f}" if (dtype, way) in sums else "" for dtype in dtypes}
        for way in ways
    ]
    parts = [table(rows, [f"{NETWORK}: operands in the dtypes that the package takes them in."])] if rows else []
    return "\n\n".join([*parts, list_verdicts(document)])


def list_verdicts(document: Document) -> str:
    """A line for each."""
    return "\n".join(f"- {verdict}" for verdict in make_verdicts(document))


def make_verdicts(document: Document) -> list[Verdict]:
    """All verdicts that a document of measurements allows."""
    entries, is_metal = convolutions_of(document), document["machine"]["backend"] == "metal"
    return [
        *_ways(entries, is_metal),
        *_rule(entries),
        *_winograd(entries, is_metal),
        *_elementwise(document["elementwise"]),
        *_attention(document.get("attention", ()), is_metal),
        *_decodes(document),
        *_caches(document),
        *_memory(document, is_metal),
        *_accuracy(document["accuracy"]),
        *_range(document),
    ]


def decodes_of(document: Document) -> dict[str, Mapping[str, Any]]:
    """The decodes that did not fail, by name."""
    return {run["name"]: run for run in document["decodes"] if "error" not in run}


def planned_seconds(document: Document) -> float | None:
    """Seconds of the decode as planned: the faster of its runs, since a machine that got hot would favor others."""
    found = [run["seconds"] for name, run in decodes_of(document).items() if name.startswith("as planned")]
    return min(found, default=None)


def convolutions_of(document: Document) -> Entries:
    """The convolutions of which any form was measured."""
    return [entry for entry in document["convolutions"] if "error" not in entry]


def _faster(seconds: float, reference: float) -> str:
    """A time against another in percent of the latter."""
    percent = round(100 * (1 - seconds / reference))
    return f"{abs(percent)} % {'faster' if percent >= 0 else 'slower'}"


def _ways(entries: Entries, is_metal: bool) -> Iterator[Verdict]:
    """Joined frames against mx.conv3d, and Winograd a frame at a time against several, over the clip."""
    sums = clip_sums(entries)
    for dtype in values_of(entries, "dtype"):
        conv3d, several, single = (sums.get((dtype, way)) for way in ("conv3d", "joined", ONE_FRAME))
        joined = single or several
        if conv3d and joined:
            agreed = joined <= (1 - JOINED_GAIN) * conv3d if is_metal else None
            answer = f"{_faster(joined, conv3d)} than mx.conv3d"
            yield Verdict(f"joined frames, {dtype}", answer, agreed, "rules.py: take CONV3D in place of JOINED")
        if several and single:
            agreed = single <= (1 + NOISE) * several if is_metal else None
            answer = f"{_faster(single, several)} than as many as MLX takes"
            change = "backend/device.py: leave MLX_CONV_WINOGRAD_TILE_BATCH unset"
            yield Verdict(f"Winograd a frame at a time, {dtype}", answer, agreed, change)


def _rule(entries: Entries) -> Iterator[Verdict]:
    """The rule for each convolution, in the dtype in which the package takes its operands."""
    is_inaccurate = is_winograd_inaccurate(entries)
    known, changes = 0, []
    for entry in entries:
        dtype = entry["operands"]
        wanted = wanted_form(entry, dtype, avoids_winograd=dtype == "bfloat16" and is_inaccurate)
        agreed = agrees(entry, dtype, wanted)
        known += agreed is not None
        if wanted and agreed is False:
            seconds, chosen = package_times(entry, dtype), entry["rule"][dtype]
            gain = f"{_faster(seconds[wanted], seconds[chosen])} than {chosen}"
            changes.append(f"{wanted} for {describe(entry)} in {dtype} ({gain})")
    if known:
        answer = f"fits {known - len(changes)} of {len(entries)} convolutions"
        yield Verdict("the rule", answer, not changes, f"rules.py: {'; '.join(changes)}")
    sums = clip_sums(entries)
    for dtype in values_of(entries, "dtype"):
        best, chosen = sums.get((dtype, BEST)), sums.get((dtype, RULE))
        if best and chosen:
            answer = f"{chosen:.2f} s for the clip; the best form of each layer, however inaccurate, {best:.2f} s"
            yield Verdict(f"the rule, {dtype}", answer)


def _winograd(entries: Entries, is_metal: bool) -> Iterator[Verdict]:
    """bfloat16 in Winograd kernels."""
    ratios = winograd_ratios(entries)
    if ratios is None:
        return
    is_inaccurate = is_winograd_inaccurate(entries)
    change = "precision.py: take operands in float16 here too"
    if is_metal:
        change = "precision.py: keep operands in bfloat16; rules.py: allow Winograd for them"
    answer = (
        f"{ratios[0]:.2g} times the rms and {ratios[1]:.2g} times the largest error of bfloat16 without "
        f"(limits {MAX_RMS_RATIO:g} and {MAX_LARGEST_RATIO:g}); "
    )
    answer += "operands in float16" if is_inaccurate else "accurate enough"
    yield Verdict("bfloat16 in Winograd", answer, is_inaccurate == is_metal, change)


def _elementwise(runs: Entries) -> Iterator[Verdict]:
    """Each operation of the package that has another way beside it."""
    for ours, other in zip(runs, runs[1:], strict=False):
        if ours["is_ours"] and not other["is_ours"]:
            answer = f"{_faster(ours['seconds'], other['seconds'])} than {other['operation']}"
            agreed = ours["seconds"] <= (1 + NOISE) * other["seconds"]
            change = f"models/layers: {other['operation']}, if it is as accurate"
            yield Verdict(f"{ours['operation']}, {ours['shape'][-1]} channels", answer, agreed, change)


def _attention(runs: Entries, is_metal: bool) -> Iterator[Verdict]:
    """The size of the diffusion decoder's blocks of queries."""
    ours = next((run for run in runs if run["is_ours"]), None)
    if ours is None:
        return
    best = min(runs, key=lambda run: run["seconds"])
    answer = f"{ours['size']} queries along each axis take {1e3 * ours['seconds']:.1f} ms"
    if best is not ours:
        answer += f", and {best['size']} are {_faster(best['seconds'], ours['seconds'])}"
    agreed = ours["seconds"] <= (1 + NOISE) * best["seconds"] if is_metal else None
    change = f"models/diffusion_decoder/neighborhood.py: blocks of {best['size']}, if their memory is worth it"
    yield Verdict("blocks of attention", answer, agreed, change)


def _decodes(document: Document) -> Iterator[Verdict]:
    """Chunks, steps ahead and variables in whole decodes."""
    reference, runs = planned_seconds(document), decodes_of(document)
    for name, change in _CHANGES.items():
        if reference is not None and name in runs:
            run = runs[name]
            peak = run["total_peak_bytes"] / runs.get("as planned", run)["total_peak_bytes"]
            answer = f"{_faster(run['seconds'], reference)} than as planned, {peak:.2f} of its peak"
            agreed = run["seconds"] > (1 - NOISE) * reference if change else None
            yield Verdict(f"decode with {name}", answer, agreed, change or "")


def _caches(document: Document) -> Iterator[Verdict]:
    """The smallest limit of the buffer cache that costs no time."""
    limited = {
        run["cache_limit"]: run["seconds"]
        for run in decodes_of(document).values()
        if run.get("cache_limit") is not None
    }
    if not limited:
        return
    fastest = min(limited.values())
    slow = [limit for limit, seconds in limited.items() if seconds > (1 + NOISE) * fastest]
    enough = min((limit for limit in limited if limit > max(slow, default=0)), default=max(limited))
    slowest = max(limited.values()) / fastest
    answer = f"{enough / GB:g} GB is enough; the slowest limit takes {slowest:.2f} times as long"
    change = f"planning/memory.py: COMFORTABLE_CACHE_BYTES = {enough:,}".replace(",", "_")
    # A step of the series of limits is as near as this tells.
    yield Verdict("cache limits", answer, enough <= COMFORTABLE_CACHE_BYTES <= 4 * enough, change)


def _memory(document: Document, is_metal: bool) -> Iterator[Verdict]:
    """MLX's peak and the footprint against the plan, over all decodes."""
    runs = decodes_of(document).values()
    peak = max((run["total_peak_bytes"] / run["planned_bytes"] for run in runs), default=None)
    if peak is not None:
        change = "models/convolution/rules.py: scratch_bytes"
        yield Verdict("MLX's peak", f"{peak:.2f} of the plan at most", peak <= 1, change)
    taken = [
        (run["peak_footprint_bytes"] - run["start_footprint_bytes"]) / run["planned_total_bytes"]
        for run in runs
        if None not in (run["peak_footprint_bytes"], run["start_footprint_bytes"])
    ]
    if taken and is_metal:
        answer = f"{max(taken):.2f} of the plan with its buffer cache at most"
        yield Verdict("the footprint", answer, max(taken) <= 1, "planning/memory.py: _CACHE_SHARE")


def _accuracy(entries: Entries) -> Iterator[Verdict]:
    """The decode as planned against bfloat16 operands without Winograd."""
    runs = {run["name"]: run for run in entries if run.get("psnr") is not None}
    ours, direct = runs.get("exact"), runs.get("bfloat16 given")
    if not ours or not direct:
        return
    rms, largest = 10 ** ((direct["psnr"] - ours["psnr"]) / 20), ours["largest"] / direct["largest"]
    agreed = rms <= MAX_RMS_RATIO and largest <= MAX_LARGEST_RATIO
    answer = f"{rms:.2f} times the rms and {largest:.2f} times the largest error of bfloat16 operands without Winograd"
    change = "precision.py: operands in bfloat16, without Winograd"
    yield Verdict("the decode's accuracy", answer, agreed, change)


def _range(document: Document) -> Iterator[Verdict]:
    """Whether a decoder in float16 may overflow."""
    sizes = [(run[name], run["layer"]) for run in document["ranges"] for name in ("input", "output")]
    if any(size is None for size, _ in sizes):
        yield Verdict("the largest number", "not finite", False, "find the layer in the JSON")
    elif sizes:
        size, layer = max(sizes)
        safe = f"float16 throughout is {'safe' if size < SAFE_HALF else f'not safe (limit {SAFE_HALF})'}"
        if document["case"]["weights"] != "checkpoint":
            safe = "of random weights, which says nothing about a model's; measure with -m"
        yield Verdict("the largest number", f"{size:.4g} at {layer}: {safe}")
