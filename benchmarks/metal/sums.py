"""What the measured convolutions say about a whole clip, and about the package's rule. No MLX.

An entry is a convolution of the document: the fields of a `ConvKind`, `runs` as `kernels.convolution` returns them,
`rule` (for each dtype the form that the package chooses) and `operands` (the dtype in which the package's bfloat16
network takes them).
"""

from collections.abc import Mapping, Sequence
from typing import Any

Entry = Mapping[str, Any]

#: Joined frames must be this much faster than `mx.conv3d`, as a share of its time.
JOINED_GAIN = 0.05
#: Differences of times below this share are no reason to change anything.
NOISE = 0.05
#: bfloat16 in Winograd kernels is too inaccurate beyond these multiples of the errors without.
MAX_RMS_RATIO, MAX_LARGEST_RATIO = 1.2, 2.0

#: Joined frames, of which Winograd takes one at a time, as in the package's runs.
ONE_FRAME = "joined, tile batch 1"
BEST, RULE = "the best of each layer", "the package's rule"
#: The dtype of sums in which each convolution takes its operands as in the package's bfloat16 network.
NETWORK = "bfloat16 network"


def find(entry: Entry, dtype: str, form: str) -> Mapping[str, Any] | None:
    """The run of a form in a dtype, or None if it was not measured or failed."""
    runs = (run for run in entry["runs"] if (run["dtype"], run["form"]) == (dtype, form))
    return next((run for run in runs if "error" not in run), None)


def values_of(entries: Sequence[Entry], name: str) -> list[str]:
    """The dtypes, or the forms, that were run, in order."""
    return list(dict.fromkeys(run[name] for entry in entries for run in entry["runs"]))


def times(entry: Entry, dtype: str) -> dict[str, float]:
    """Seconds of one call in each form."""
    return {run["form"]: run["seconds"] for run in entry["runs"] if run["dtype"] == dtype and "error" not in run}


def package_times(entry: Entry, dtype: str) -> dict[str, float]:
    """As `times`, with joined frames as the package runs them: Winograd takes a frame at a time, if that was measured.

    Names with a comma, which differ from another only in variables of MLX, are left out.
    """
    known = times(entry, dtype)
    known |= {"joined": known[ONE_FRAME]} if ONE_FRAME in known else {}
    return {form: seconds for form, seconds in known.items() if "," not in form}


def clip_sums(entries: Sequence[Entry]) -> dict[tuple[str, str], float]:
    """Seconds that all convolutions of the clip take, by dtype and way: a form, `BEST` or `RULE`.

    A way that failed for one of them has no sum.
    """
    seconds: dict[tuple[str, str], list[float | None]] = {}
    for dtype in values_of(entries, "dtype"):
        known = [times(entry, dtype) for entry in entries]
        for form in values_of(entries, "form"):
            seconds[dtype, form] = [each.get(form) for each in known]
        seconds[dtype, BEST] = [min(each.values(), default=None) for each in known]
        seconds[dtype, RULE] = [_by_rule(entry, dtype) for entry in entries]
    seconds[NETWORK, RULE] = [_by_rule(entry, entry["operands"]) for entry in entries]
    calls = [entry["calls"] for entry in entries]
    return {
        key: sum(count * each for count, each in zip(calls, column, strict=True) if each is not None)
        for key, column in seconds.items()
        if column and None not in column
    }


def _by_rule(entry: Entry, dtype: str) -> float | None:
    return package_times(entry, dtype).get(entry["rule"].get(dtype, ""))


def winograd_ratios(entries: Sequence[Entry]) -> tuple[float, float] | None:
    """How many times the rms and the largest error Winograd has in bfloat16, at worst; None if that is not known.

    Infinity where a result is not finite.
    """
    pairs = [(find(entry, "bfloat16", "joined"), find(entry, "bfloat16", "joined, no Winograd")) for entry in entries]
    known = [(with_it, without) for with_it, without in pairs if with_it and without]
    if not known:
        return None
    rms, largest = (max(_ratio(one[name], other[name]) for one, other in known) for name in ("rms", "largest"))
    return rms, largest


def _ratio(error: float | None, reference: float | None) -> float:
    if error is None or reference is None:
        return float("inf")
    return error / reference if reference else 1.0


def is_winograd_inaccurate(entries: Sequence[Entry]) -> bool:
    """Whether bfloat16 must stay out of Winograd kernels."""
    rms, largest = winograd_ratios(entries) or (0, 0)
    return rms > MAX_RMS_RATIO or largest > MAX_LARGEST_RATIO


def wanted_form(entry: Entry, dtype: str, *, avoids_winograd: bool) -> str | None:
    """The form that the measurements ask for: joined frames if they gain enough over conv3d, others if faster still.

    Args:
        avoids_winograd: whether forms that may use Winograd kernels are out of the question in this dtype.
    """
    left_out = ("conv3d", "joined") if avoids_winograd else ()
    known = {form: each for form, each in package_times(entry, dtype).items() if form not in left_out}
    if not known:
        return None
    best = "joined" if "joined" in known else next(iter(known))
    if {"joined", "conv3d"} <= set(known) and known["joined"] > (1 - JOINED_GAIN) * known["conv3d"]:
        best = "conv3d"
    others = [form for form in known if form not in ("joined", "conv3d") and known[form] < known[best]]
    return min(others, key=lambda form: known[form]) if others else best


def agrees(entry: Entry, dtype: str, wanted: str | None) -> bool | None:
    """Whether the package's rule takes the wanted form, or one as fast within noise; None if that is not known."""
    known = package_times(entry, dtype)
    chosen = entry["rule"].get(dtype)
    if wanted is None or chosen not in known:
        return None
    return chosen == wanted or known[chosen] <= (1 + NOISE) * known[wanted]
