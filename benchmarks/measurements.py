"""The tables of the README and of docs/performance.md, from the measurements of Macs in docs/measurements/."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlx_ltx_vae.bench.metal.submission import SCHEMA
from mlx_ltx_vae.bench.metal.sums import BEST, NETWORK, RULE, find_sum
from mlx_ltx_vae.bench.metal.verdicts import AS_PLANNED, planned_seconds, text_of
from mlx_ltx_vae.bench.tables import table
from mlx_ltx_vae.errors import LTXVAEError
from mlx_ltx_vae.files.atomic import PartFile
from mlx_ltx_vae.units import GB

ROOT = Path(__file__).parents[1]
NOTHING_YET = "No Mac has been measured yet."

_BEGIN, _END = "<!-- measurements -->", "<!-- end of measurements -->"
_SIZE = (768, 512)

Documents = Sequence[Mapping[str, Any]]


def read_measurements(folder: Path) -> list[dict[str, Any]]:
    """The documents of a folder, by chip and date.

    Raises:
        LTXVAEError: for a file that is not a whole measurement of a Mac by this version of the bench.
    """
    documents = [_read(path) for path in sorted(folder.glob("*.json"))]
    return sorted(documents, key=lambda document: (document["machine"]["chip"], document["date"]))


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        schema, backend, case = document["schema"], document["machine"]["backend"], document["case"]
        is_whole = not case["is_quick"] and (case["width"], case["height"]) == _SIZE
    except (ValueError, KeyError, TypeError) as error:
        raise LTXVAEError(f"{path}: is not a file that bench --metal --submit wrote ({error}).") from error
    if schema != SCHEMA:
        raise LTXVAEError(f"{path}: has the schema {schema}; this version reads {SCHEMA}.")
    if backend != "metal":
        raise LTXVAEError(f"{path}: was measured on {backend}, not on Apple's GPU.")
    if not is_whole:
        raise LTXVAEError(f"{path}: is not a whole measurement of {_SIZE[0]}x{_SIZE[1]}; run it without --quick.")
    return document


def readme_table(documents: Documents) -> str:
    """A row for each Mac: the decode as planned."""
    rows = []
    for document in documents:
        run = _as_planned(document)
        seconds = planned_seconds(document)
        rows.append(
            {
                **_machine(document),
                "weights": document["case"]["weights"],
                "frames": str(document["case"]["frames"]),
                "seconds": "" if seconds is None else f"{seconds:.2f}",
                "first frame": f"{run['first_frame_seconds']:.2f}" if run else "",
                "MLX's peak": f"{run['total_peak_bytes'] / GB:.2f} GB" if run else "",
                "footprint": _gigabytes(run, "peak_footprint_bytes"),
                "planned": _gigabytes(run, "planned_total_bytes"),
            }
        )
    return table(rows) if rows else NOTHING_YET


def performance_tables(documents: Documents) -> str:
    """The sums of all convolutions in each formulation, and the verdicts of each Mac."""
    if not documents:
        return NOTHING_YET
    ways = ["conv3d", "joined", "joined, tile batch 1", "joined, no Winograd", "rows", BEST, RULE]
    rows = []
    for document in documents:
        sums = [(way, find_sum(document["sums"], "float16", way)) for way in ways]
        sums.append((f"{RULE}, {NETWORK}", find_sum(document["sums"], NETWORK, RULE)))
        rows.append(
            {
                **_machine(document),
                "frames": str(document["case"]["frames"]),
                **{way: "" if seconds is None else f"{seconds:.2f}" for way, seconds in sums},
            }
        )
    note = "Seconds of all convolutions of a decode of 768x512, in float16 but for the last column."
    verdicts = [
        "\n".join([f"{_title(document)}:", "", *(f"- {text_of(verdict)}" for verdict in document["verdicts"])])
        for document in documents
    ]
    return "\n\n".join([table(rows, [note]), *verdicts])


def _as_planned(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    runs = (run for run in document["decodes"] if run["name"] == AS_PLANNED and "error" not in run)
    return next(runs, None)


def _gigabytes(run: Mapping[str, Any] | None, name: str) -> str:
    return f"{run[name] / GB:.2f} GB" if run and run[name] is not None else ""


def _machine(document: Mapping[str, Any]) -> dict[str, str]:
    machine = document["machine"]
    return {
        "chip": machine["chip"],
        "memory": f"{machine['memory_bytes'] / 2**30:.0f} GB",
        "system": f"{machine['system']}, MLX {machine['mlx']}",
        "date": document["date"],
    }


def _title(document: Mapping[str, Any]) -> str:
    machine = _machine(document)
    return f"{machine['chip']}, {machine['memory']}, {machine['system']}, {machine['date']}"


#: The pages with a section of measurements, and what makes it.
PAGES: dict[str, Callable[[Documents], str]] = {"README.md": readme_table, "docs/performance.md": performance_tables}


def with_section(page: str, text: str) -> str:
    """A page with the text between its markers.

    Raises:
        LTXVAEError: if it does not have both markers, once.
    """
    if page.count(_BEGIN) != 1 or page.count(_END) != 1 or page.index(_BEGIN) > page.index(_END):
        raise LTXVAEError(f"a page has no section between {_BEGIN} and {_END}, or several.")
    start, end = page.index(_BEGIN) + len(_BEGIN), page.index(_END)
    return f"{page[:start]}\n\n{text}\n\n{page[end:]}"


def write_pages(root: Path = ROOT) -> list[str]:
    """Write the sections of all pages anew; returns the names of those that changed."""
    documents = read_measurements(root / "docs" / "measurements")
    changed = []
    for name, make in PAGES.items():
        path = root / name
        before = path.read_text(encoding="utf-8")
        after = with_section(before, make(documents))
        if after != before:
            file = PartFile(path)
            file.path.write_text(after, encoding="utf-8")
            file.complete()
            changed.append(name)
    return changed
