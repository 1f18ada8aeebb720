"""What follows from the measurements of a Mac for the package."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mlx_ltx_vae.bench.command import table
from mlx_ltx_vae.bench.metal_command import footprint_share, peak_share, planned_runs
from mlx_ltx_vae.bench.metal_tasks import AS_PLANNED, RULE
from mlx_ltx_vae.planning.memory import COMFORTABLE_CACHE_BYTES
from mlx_ltx_vae.units import GB

Document = Mapping[str, Any]
Entries = Sequence[Mapping[str, Any]]

#: Differences of times below this share are no reason to change anything.
NOISE = 0.05
#: bfloat16 in Winograd kernels is too inaccurate beyond these multiples of the errors without.
MAX_RMS_RATIO, MAX_LARGEST_RATIO = 1.2, 2.0
BEST = "the best of each layer"
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
    rows = [{"convolutions": way, "seconds": f"{total:.3f}"} for way, total in clip_sums(document).items()]
    return "\n\n".join([*([table(rows)] if rows else []), list_verdicts(document)])


def list_verdicts(document: Document) -> str:
    """A line for each."""
    return "\n".join(f"- {verdict}" for verdict in make_verdicts(document))


def make_verdicts(document: Document) -> list[Verdict]:
    """All verdicts that a document of measurements allows."""
    is_metal = document["machine"]["backend"] == "metal"
    return [
        *_ways(document, is_metal),
        *_rule(document),
        *_attention(document["attention"], is_metal),
        *_decodes(document),
        *_caches(document),
        *_memory(document, is_metal),
        *_accuracy(document["accuracy"], is_metal),
        *_range(document),
    ]


def decodes_of(document: Document) -> dict[str, Mapping[str, Any]]:
    """The decodes that did not fail, by name."""
    return {run["name"]: run for run in document["decodes"] if "error" not in run}


def planned_seconds(document: Document) -> float | None:
    """Seconds of the decode as planned: the faster of its runs, since a machine that got hot would favor others."""
    found = [run["seconds"] for name, run in decodes_of(document).items() if name.startswith(AS_PLANNED)]
    return min(found, default=None)


def convolutions_of(document: Document) -> dict[str, Entries]:
    """The convolutions, by the way in which they were computed."""
    return {entry["name"]: entry["runs"] for entry in document["convolutions"] if "error" not in entry}


def clip_sums(document: Document) -> dict[str, float]:
    """Seconds that all convolutions of the clip take in each way, and in the best formulation of each layer."""
    forms = convolutions_of(document)
    sums = {form: sum(run["seconds"] for run in runs) for form, runs in forms.items()}
    return sums | ({BEST: sum(best for _, best, _ in _by_layer(document))} if forms else {})


def _by_layer(document: Document) -> Iterator[tuple[str, float, Mapping[str, Any]]]:
    """The fastest formulation of each convolution, its seconds, and the run by the rule."""
    forms = convolutions_of(document)
    own = {form: runs for form, runs in forms.items() if "," not in form}  # others differ in variables of MLX
    for index, ruled in enumerate(forms.get(RULE, ())):
        seconds = {form: runs[index]["seconds"] for form, runs in own.items()}
        best = min(seconds, key=lambda form: seconds[form])
        yield best, seconds[best], ruled


def _faster(seconds: float, reference: float) -> str:
    """A time against another in percent of the latter."""
    percent = round(100 * (1 - seconds / reference))
    return f"{abs(percent)} % {'faster' if percent >= 0 else 'slower'}"


def _ways(document: Document, is_metal: bool) -> Iterator[Verdict]:
    """Joined frames against mx.conv3d, and Winograd a frame at a time against several, over the clip."""
    names = "joined", "conv3d", "pairs", "joined, MLX's tile batch"
    joined, conv3d, pairs, several = map(clip_sums(document).get, names)
    if joined and conv3d:
        agreed = joined <= (1 - NOISE) * conv3d if is_metal else None
        answer = f"{_faster(joined, conv3d)} than mx.conv3d"
        yield Verdict("joined frames", answer, agreed, "rules.py: take CONV3D in place of JOINED")
    if joined and pairs:
        agreed = joined <= (1 + NOISE) * pairs if is_metal else None
        answer = f"{_faster(joined, pairs)} than by Winograd in time too"
        yield Verdict("frames one by one", answer, agreed, "rules.py: take PAIRS in place of JOINED")
    if joined and several:
        agreed = joined <= (1 + NOISE) * several if is_metal else None
        answer = f"{_faster(joined, several)} than as many as MLX takes"
        change = "backend/device.py: leave MLX_CONV_WINOGRAD_TILE_BATCH unset"
        yield Verdict("Winograd a frame at a time", answer, agreed, change)


def _rule(document: Document) -> Iterator[Verdict]:
    """The rule for each convolution."""
    layers = list(_by_layer(document))
    changes = [
        f"{best} for {run['layer']} ({_faster(seconds, run['seconds'])} than {run['rule']})"
        for best, seconds, run in layers
        if run["seconds"] > (1 + NOISE) * seconds
    ]
    if layers:
        answer = f"fits {len(layers) - len(changes)} of {len(layers)} convolutions"
        yield Verdict("the rule", answer, not changes, f"rules.py: {'; '.join(changes)}")


def _attention(runs: Entries, is_metal: bool) -> Iterator[Verdict]:
    """The size of the diffusion decoder's blocks of queries."""
    runs = [run for run in runs if "error" not in run]
    ours = next((run for run in runs if run["is_ours"]), None)
    if ours is None:
        return
    best = min(runs, key=lambda run: run["seconds"])
    answer = f"decodes with {ours['size']} queries along each axis take {ours['seconds']:.2f} s"
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
            peak = run["total_peak_bytes"] / runs.get(AS_PLANNED, run)["total_peak_bytes"]
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
    """MLX's peak and the footprint against the plan, over all decodes that have one."""
    runs = planned_runs(document)
    peak = max(map(peak_share, runs), default=None)
    if peak is not None:
        change = "models/convolution/rules.py: scratch_bytes"
        yield Verdict("MLX's peak", f"{peak:.2f} of the plan at most", peak <= 1, change)
    taken = [share for share in map(footprint_share, runs) if share is not None]
    if taken and is_metal:
        answer = f"{max(taken):.2f} of the plan with its buffer cache at most"
        yield Verdict("the footprint", answer, max(taken) <= 1, "planning/memory.py: _CACHE_SHARE")


def _accuracy(entries: Entries, is_metal: bool) -> Iterator[Verdict]:
    """Decodes as planned, and with bfloat16 in Winograd kernels, against bfloat16 operands without Winograd."""
    runs = {run["name"]: run for run in entries if run.get("psnr") is not None}
    direct = runs.get("bfloat16 given")
    for name, question, is_wanted, change in (
        ("exact", "the decode's accuracy", True, "precision.py: operands in bfloat16, without Winograd"),
        ("bfloat16 in Winograd", "bfloat16 in Winograd", not is_metal, "rules.py: allow Winograd for bfloat16"),
    ):
        if direct and name in runs:
            rms = 10 ** ((direct["psnr"] - runs[name]["psnr"]) / 20)
            largest = runs[name]["largest"] / direct["largest"]
            is_accurate = rms <= MAX_RMS_RATIO and largest <= MAX_LARGEST_RATIO
            answer = f"{rms:.2f} times the rms and {largest:.2f} times the largest error of bfloat16 without"
            yield Verdict(question, answer, is_accurate is is_wanted, change)


def _range(document: Document) -> Iterator[Verdict]:
    """Whether a decoder in float16 may overflow."""
    runs = convolutions_of(document).get(RULE, ())
    sizes = [(run[name], run["layer"]) for run in runs for name in ("input", "output")]
    if any(size is None for size, _ in sizes):
        yield Verdict("the largest number", "not finite", False, "find the layer in the JSON")
    elif sizes:
        size, layer = max(sizes)
        safe = f"float16 throughout is {'safe' if size < SAFE_HALF else f'not safe (limit {SAFE_HALF})'}"
        if document["case"]["weights"] != "checkpoint":
            safe = "of random weights, which says nothing about a model's; measure with -m"
        yield Verdict("the largest number", f"{size:.4g} at {layer}: {safe}")
