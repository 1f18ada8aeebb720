"""The measurements as text: a table for each question, with its verdicts. No MLX."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...units import GB, MB
from ..tables import format_psnr, table
from .sums import NETWORK, describe, dtypes_of, find, forms_of
from .verdicts import Document, judge, planned_seconds, text_of

Rows = Sequence[Mapping[str, str]]


def full_report(document: Document) -> str:
    """All parts, and at the end the verdicts."""
    parts = [
        ("A. The machine", _machine(document)),
        ("B. Each convolution: ms of a call (TFLOP/s)", _times(document)),
        ("B. Its rms error, relative, against float32 without Winograd", _errors(document)),
        ("B. Its scratch memory with the result, MB", _scratch(document)),
        (f"C. All convolutions of the clip, seconds ({_clip(document)})", _sums(document)),
        ("D. Between the convolutions, bfloat16", _elementwise(document)),
        (f"E. Whole decodes ({_clip(document)}); GB", _decodes(document)),
        ("F. Accuracy of pixels in [-1, 1], against float32 without Winograd", _accuracy(document)),
        ("G. The largest numbers at the convolutions", _ranges(document)),
        ("Verdicts", "\n".join(f"- {text_of(verdict)}" for verdict in document["verdicts"])),
    ]
    return "\n\n".join(f"{title}\n\n{text}" for title, text in parts if text)


def _clip(document: Document) -> str:
    case = document["case"]
    return f"{case['frames']} frames of {case['width']}x{case['height']}"


def _machine(document: Document) -> str:
    machine = document["machine"]
    memory, working_set = (
        f"{machine[name] / GB:.1f} GB" if machine[name] else "" for name in ("memory_bytes", "working_set_bytes")
    )
    rows = {
        "chip": f"{machine['chip']} ({machine['architecture']})",
        "memory": memory,
        "Metal's working set": working_set,
        "system": machine["system"],
        "MLX": machine["mlx"],
        "Python": machine["python"],
        "device": f"{machine['device']}, {machine['backend']}",
        "TF32": {None: "MLX's default", "0": "off"}.get(machine["tf32"], "on"),
        "thermal state": machine["thermal"],
        "weights": document["case"]["weights"],
    }
    return table([{"what": name, "value": value} for name, value in rows.items() if value])


def _rows_of(document: Document, cell: Any) -> list[dict[str, str]]:
    """A row for each convolution and dtype, with `cell(entry, dtype, form)` for each form."""
    entries = document["convolutions"]
    latent_frames = document["case"]["latent_frames"]
    return [
        {
            "convolution": describe(entry),
            "per latent frame": f"{entry['calls'] / latent_frames:.2f}",
            "dtype": dtype,
            **{form: cell(entry, dtype, form) for form in forms_of(entries)},
        }
        for entry in entries
        for dtype in dtypes_of(entries)
    ]


def _times(document: Document) -> str:
    def cell(entry: Mapping[str, Any], dtype: str, form: str) -> str:
        run = find(entry, dtype, form)
        return f"{1e3 * run['seconds']:.2f} ({run['tflops']:.2f})" if run else "failed"

    rows = _rows_of(document, cell)
    pairs = [(entry, dtype) for entry in document["convolutions"] for dtype in dtypes_of(document["convolutions"])]
    for row, (entry, dtype) in zip(rows, pairs, strict=True):
        row["rule"] = entry["rule"][dtype]
        row["verdict"] = _verdict_of(document, entry, dtype) if dtype == entry["operands"] else ""
    notes = ["verdict: on the dtype in which the package takes the operands."]
    return table(rows, notes) if rows else ""


def _verdict_of(document: Document, entry: Mapping[str, Any], dtype: str) -> str:
    wanted, agreed = judge(document, entry, dtype)
    return {True: "keep", False: f"rules.py: {wanted}", None: ""}[agreed]


def _errors(document: Document) -> str:
    def cell(entry: Mapping[str, Any], dtype: str, form: str) -> str:
        run = find(entry, dtype, form)
        if not run:
            return "failed"
        return "not finite" if run["rms"] is None else f"{run['rms']:.1e}"

    rows = _rows_of(document, cell)
    return table(rows) if rows else ""


def _scratch(document: Document) -> str:
    def cell(entry: Mapping[str, Any], dtype: str, form: str) -> str:
        run = find(entry, dtype, form)
        return f"{run['scratch_bytes'] / MB:.1f} of {run['planned_scratch_bytes'] / MB:.1f}" if run else "failed"

    rows = _rows_of(document, cell)
    return table(rows, ["measured of planned."]) if rows else ""


def _sums(document: Document) -> str:
    sums = document["sums"]
    ways = list(dict.fromkeys(each["way"] for each in sums))
    dtypes = list(dict.fromkeys(each["dtype"] for each in sums))
    found = {(each["dtype"], each["way"]): each["seconds"] for each in sums}
    rows = [
        {"way": way, **{dtype: f"{found[dtype, way]:.3f}" if (dtype, way) in found else "" for dtype in dtypes}}
        for way in ways
    ]
    notes = [f"{NETWORK}: operands in the dtypes that the package takes them in."]
    return table(rows, notes) if rows else ""


def _elementwise(document: Document) -> str:
    rows = [
        {
            "shape": "x".join(map(str, run["shape"])),
            "operation": run["operation"],
            "in the package": "yes" if run["is_ours"] else "no",
            "ms": f"{1e3 * run['seconds']:.3f}",
            "GB/s": f"{run['gb_per_second']:.1f}",
        }
        for run in document["elementwise"]
    ]
    return table(rows, ["GB/s of what must be read and written. Caches may hold the smaller shapes."]) if rows else ""


def _decodes(document: Document) -> str:
    reference = planned_seconds(document)
    rows = [_decode_row(run, reference) for run in document["decodes"]]
    notes = [
        "Each in a fresh process, after a short decode. ratio: to the faster run as planned.",
        "peak: MLX's, and what was planned. footprint: the process's largest in the decode, with Python; in all: the "
        "plan with MLX's buffer cache.",
    ]
    return table(rows, notes) if rows else ""


def _decode_row(run: Mapping[str, Any], reference: float | None) -> dict[str, str]:
    columns = ("seconds", "ratio", "frames/s", "first", "peak", "planned", "footprint", "in all", "thermal")
    if "error" in run:
        return {"decode": run["name"], **dict.fromkeys(columns, ""), "seconds": "failed"}
    in_gb = (
        f"{run[name] / GB:.2f}" if run[name] is not None else ""
        for name in ("total_peak_bytes", "planned_bytes", "peak_footprint_bytes", "planned_total_bytes")
    )
    values = (
        f"{run['seconds']:.2f}",
        f"{run['seconds'] / reference:.2f}" if reference else "",
        f"{run['frames'] / run['seconds']:.1f}",
        f"{run['first_frame_seconds']:.2f}",
        *in_gb,
        run["thermal"] or "",
    )
    return {"decode": run["name"], **dict(zip(columns, values, strict=True))}


def _accuracy(document: Document) -> str:
    rows = []
    for run in document["accuracy"]:
        values = {"PSNR": "failed", "rms": "", "largest": ""}
        if "error" not in run and run["rms"] is None:
            values["PSNR"] = "not finite"
        elif "error" not in run:
            values = {"PSNR": format_psnr(run["psnr"]), "rms": f"{run['rms']:.1e}", "largest": f"{run['largest']:.3f}"}
        rows.append({"decode": run["name"], **values})
    return table(rows) if rows else ""


def _ranges(document: Document) -> str:
    """The layers with the largest numbers, and how many there are in all."""
    runs = document["ranges"]
    if not runs:
        return ""

    def size(run: Mapping[str, Any]) -> float:
        return max(float("inf") if run[name] is None else run[name] for name in ("input", "output"))

    rows = [
        {
            "layer": run["layer"],
            "channels": "->".join(map(str, run["channels"])),
            "behind a norm": "yes" if run["is_normalized"] else "no",
            **{name: "not finite" if run[name] is None else f"{run[name]:.4g}" for name in ("input", "output")},
        }
        for run in sorted(runs, key=size, reverse=True)[:8]
    ]
    return table(rows, [f"The largest 8 of {len(runs)} convolutions; all are in the JSON."])
