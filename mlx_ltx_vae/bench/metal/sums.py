"""What the measured convolutions say about a whole clip, and about the package's rule. Part C. No MLX.

An entry is a measured convolution: the fields of a `ConvKind`, `runs` as `convolutions.convolution` returns them,
`rule` (for each dtype the form that the package chooses) and `operands` (the dtype in which the package's bfloat16
network takes them).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Entry = Mapping[str, Any]

#: Joined frames must be this much faster than `mx.conv3d`, as a share of its time.
JOINED_GAIN = 0.05
#: Differences of times below this share are no reason to change anything.
NOISE = 0.05
#: bfloat16 in Winograd kernels is too inaccurate beyond these multiples of the errors without.
MAX_RMS_RATIO, MAX_LARGEST_RATIO = 1.2, 2.0

BEST, RULE = "the best of each layer", "the package's rule"
#: The dtype of sums in which each convolution takes its operands as in the package's bfloat16 network.
NETWORK = "bfloat16 network"

_VARIANT = ","  # in the names of forms with variables


def find(entry: Entry, dtype: str, form: str) -> Mapping[str, Any] | None:
    """The run of a form in a dtype, or None if it was not measured or failed."""
    runs = (run for run in entry["runs"] if (run["dtype"], run["form"]) == (dtype, form))
    return next((run for run in runs if "error" not in run), None)


def forms_of(entries: Sequence[Entry]) -> list[str]:
    """The forms that were run, in order."""
    return list(dict.fromkeys(run["form"] for entry in entries for run in entry["runs"]))


def dtypes_of(entries: Sequence[Entry]) -> list[str]:
    """The dtypes that were run, in order."""
    return list(dict.fromkeys(run["dtype"] for entry in entries for run in entry["runs"]))


def times(entry: Entry, dtype: str, *, variants: bool = True) -> dict[str, float]:
    """Seconds of one call in each form.

    Args:
        variants: whether to include forms that differ from another only in variables of MLX.
    """
    found = ((form, find(entry, dtype, form)) for form in forms_of([entry]))
    return {form: run["seconds"] for form, run in found if run and (variants or _VARIANT not in form)}


def clip_sums(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Seconds that all convolutions of the clip take in each way: dtype, way (a form, `BEST` or `RULE`), seconds.

    A way that failed for one of them has no sum.
    """
    sums = []
    for dtype in dtypes_of(entries):
        for form in forms_of(entries):
            sums.append((dtype, form, _total(entries, [times(entry, dtype).get(form) for entry in entries])))
        best = [min(times(entry, dtype).values(), default=None) for entry in entries]
        sums.append((dtype, BEST, _total(entries, best)))
        sums.append((dtype, RULE, _total(entries, [_by_rule(entry, dtype) for entry in entries])))
    sums.append((NETWORK, RULE, _total(entries, [_by_rule(entry, entry["operands"]) for entry in entries])))
    return [{"dtype": dtype, "way": way, "seconds": seconds} for dtype, way, seconds in sums if seconds is not None]


def find_sum(sums: Iterable[Mapping[str, Any]], dtype: str, way: str) -> float | None:
    """The seconds of a sum, or None."""
    return next((each["seconds"] for each in sums if (each["dtype"], each["way"]) == (dtype, way)), None)


def _by_rule(entry: Entry, dtype: str) -> float | None:
    return times(entry, dtype).get(entry["rule"].get(dtype, ""))


def _total(entries: Sequence[Entry], seconds: Sequence[float | None]) -> float | None:
    known = [each for each in seconds if each is not None]
    if len(known) < len(entries):
        return None
    return sum(entry["calls"] * each for entry, each in zip(entries, known, strict=True))


def winograd_ratios(entries: Sequence[Entry]) -> tuple[float, float] | None:
    """How many times the rms and the largest error Winograd has in bfloat16, at worst; None if that is not known.

    Infinity where a result is not finite.
    """
    pairs = [(find(entry, "bfloat16", "joined"), find(entry, "bfloat16", "joined, no Winograd")) for entry in entries]
    ratios = [
        tuple(_ratio(with_it[name], without[name]) for name in ("rms", "largest"))
        for with_it, without in pairs
        if with_it and without
    ]
    if not ratios:
        return None
    return max(rms for rms, _ in ratios), max(largest for _, largest in ratios)


def _ratio(error: float | None, reference: float | None) -> float:
    if error is None or reference is None:
        return float("inf")
    return error / reference if reference else 1.0


def is_winograd_inaccurate(ratios: tuple[float, float]) -> bool:
    """Whether bfloat16 must stay out of Winograd kernels."""
    return ratios[0] > MAX_RMS_RATIO or ratios[1] > MAX_LARGEST_RATIO


def wanted_form(entry: Entry, dtype: str, *, avoids_winograd: bool) -> str | None:
    """The form that the measurements ask for: joined frames if they gain enough over conv3d, others if faster still.

    Args:
        avoids_winograd: whether forms that may use Winograd kernels are out of the question in this dtype.
    """
    known = times(entry, dtype, variants=False)
    if avoids_winograd:
        known = {form: each for form, each in known.items() if form not in ("conv3d", "joined")}
    if not known:
        return None
    best = "joined" if "joined" in known else next(iter(known))
    if {"joined", "conv3d"} <= set(known) and known["joined"] > (1 - JOINED_GAIN) * known["conv3d"]:
        best = "conv3d"
    others = [form for form in known if form not in ("joined", "conv3d") and known[form] < known[best]]
    return min(others, key=lambda form: known[form]) if others else best


def agrees(entry: Entry, dtype: str, wanted: str | None) -> bool | None:
    """Whether the package's rule takes the wanted form, or one as fast within noise; None if that is not known."""
    known = times(entry, dtype)
    chosen = entry["rule"].get(dtype)
    if wanted is None or chosen not in known:
        return None
    return chosen == wanted or known[chosen] <= (1 + NOISE) * known[wanted]


def describe(entry: Entry) -> str:
    """A convolution in a few characters, such as 512->512 96x64 x2 (channels, picture, frames)."""
    return f"{entry['in_channels']}->{entry['out_channels']} {entry['width']}x{entry['height']} x{entry['frames']}"
