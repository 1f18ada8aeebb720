"""Files in docs/measurements/, and the tables of the README and of docs/performance.md that are made from them."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.metal.verdicts import BEST, clip_sums, decodes_of, list_verdicts, planned_seconds
from mlx_ltx_vae.bench.command import table
from mlx_ltx_vae.bench.metal_command import (
    SCHEMA,
    compare_with_plan,
    is_virtual,
    submission_name,
    without_names,
)
from mlx_ltx_vae.bench.metal_tasks import GPU_FORMS
from mlx_ltx_vae.bench.parsers import METAL_SIZE
from mlx_ltx_vae.errors import LTXVAEError
from mlx_ltx_vae.files import PartFile
from mlx_ltx_vae.units import GB, format_count

ROOT = Path(__file__).parents[2]
NOTHING_YET = "No Mac has been measured yet."

_BEGIN, _END = "<!-- measurements -->", "<!-- end of measurements -->"

Documents = Sequence[Mapping[str, Any]]


def read_document(path: Path) -> dict[str, Any]:
    """A file that `bench --metal --save` wrote.

    Raises:
        LTXVAEError: for any other file.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
        schema, *_ = document["schema"], document["machine"]["backend"], document["case"]["is_quick"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LTXVAEError(f"{path}: is not a file that bench --metal --save wrote ({error}).") from error
    if schema != SCHEMA:
        raise LTXVAEError(f"{path}: has the schema {schema}; this version reads {SCHEMA}.")
    return document


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def submit(document: Mapping[str, Any]) -> list[str]:
    """Write a document without paths and names to docs/measurements/, and the pages anew; returns what was written.

    Raises:
        LTXVAEError: if it is not a whole measurement of a Mac.
    """
    path = ROOT / "docs" / "measurements" / submission_name(document["machine"], document["date"])
    _check_whole(path, document)
    _write(path, json.dumps(without_names(document), indent=1, allow_nan=False) + "\n")
    return [str(path.relative_to(ROOT)), *write_pages(ROOT)]


def read_measurements(folder: Path) -> list[dict[str, Any]]:
    """The documents of a folder, by chip and date.

    Raises:
        LTXVAEError: for a file that is not a whole measurement of a Mac by this version of the bench.
    """
    documents = []
    for path in sorted(folder.glob("*.json")):
        documents.append(read_document(path))
        _check_whole(path, documents[-1])
    return sorted(documents, key=lambda document: (document["machine"]["processor"], document["date"]))


def check_submission(path: Path) -> None:
    """Raise `LTXVAEError` unless a file is a measurement that can be published, under its own name and as written."""
    document = read_document(path)
    _check_whole(path, document)
    try:
        expected, written = submission_name(document["machine"], document["date"]), without_names(document)
        list_verdicts(document)
        readme_table([document])
        agrees = document["plan"] == without_names(compare_with_plan(document))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LTXVAEError(f"{path}: lacks what bench --metal --submit writes ({error!r}); run it again.") from error
    if not agrees:
        raise LTXVAEError(f"{path}: its plan is not that of its decodes; a file is not edited by hand.")
    if path.name != expected:
        raise LTXVAEError(f"{path}: has the name of another machine or day; expected {expected}.")
    if written != document:
        raise LTXVAEError(f"{path}: has paths or names; write it with bench --metal --submit.")


def check_files(paths: Sequence[Path]) -> str:
    """Check files that are in docs/measurements/ with `check_submission`; returns what to print.

    Raises:
        LTXVAEError: also for a file that is neither a page nor JSON.
    """
    for path in paths:
        if path.suffix == ".json":
            check_submission(path)
        elif path.name != "README.md":
            raise LTXVAEError(f"{path}: is no measurement; only JSON files of bench --metal --submit belong there.")
    count = sum(path.suffix == ".json" for path in paths)
    return f"{format_count(count, 'measurement')}, as submitted"


def _check_whole(name: object, document: Mapping[str, Any]) -> None:
    """Raise `LTXVAEError` unless a document is a whole measurement of a Mac."""
    case, backend = document["case"], document["machine"]["backend"]
    if is_virtual(document["machine"]) or document.get("is_virtual"):
        raise LTXVAEError(f"{name}: was measured on a virtual machine, whose times mean nothing.")
    if backend != "metal":
        raise LTXVAEError(f"{name}: was measured on {backend}, not on Apple's GPU.")
    if case["is_quick"] or (case["width"], case["height"]) != METAL_SIZE:
        raise LTXVAEError(
            f"{name}: is not a whole measurement of {METAL_SIZE[0]}x{METAL_SIZE[1]}; run it without --quick."
        )


def readme_table(documents: Documents) -> str:
    """A row for each Mac: the decode as planned."""
    rows = []
    for document in documents:
        run = decodes_of(document).get("as planned", {})
        rows.append(
            {
                **_machine(document),
                "weights": document["case"]["weights"],
                "frames": str(document["case"]["frames"]),
                "seconds": _number(planned_seconds(document)),
                "first frame": _number(run.get("first_frame_seconds")),
                "MLX's peak": _number(run.get("total_peak_bytes"), GB, " GB"),
                "footprint": _number(run.get("peak_footprint_bytes"), GB, " GB"),
                "planned": _number(run.get("planned_total_bytes"), GB, " GB"),
            }
        )
    return table(rows) if rows else NOTHING_YET


def performance_tables(documents: Documents) -> str:
    """The sums of all convolutions in each formulation, and the verdicts of each Mac."""
    if not documents:
        return NOTHING_YET
    rows = []
    for document in documents:
        sums = clip_sums(document)
        seconds = {way: _number(sums.get(way)) for way in (*GPU_FORMS, BEST)}
        rows.append({**_machine(document), "frames": str(document["case"]["frames"]), **seconds})
    note = "Seconds of all convolutions of a decode of 768x512."
    verdicts = [f"{', '.join(_machine(document).values())}:\n\n{list_verdicts(document)}" for document in documents]
    return "\n\n".join([table(rows, [note]), *verdicts])


def _number(value: float | None, unit: float = 1, name: str = "") -> str:
    return "" if value is None else f"{value / unit:.2f}{name}"


def _machine(document: Mapping[str, Any]) -> dict[str, str]:
    machine = document["machine"]
    return {
        "chip": machine["processor"],
        "memory": f"{machine['memory_bytes'] / 2**30:.0f} GB",
        "system": f"{machine['platform']}, MLX {machine['mlx']}",
        "date": document["date"],
    }


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


def write_pages(root: Path) -> list[str]:
    """Write the sections of all pages anew; returns the names of those that changed."""
    documents = read_measurements(root / "docs" / "measurements")
    changed = []
    for name, make in PAGES.items():
        before = (root / name).read_text(encoding="utf-8")
        after = with_section(before, make(documents))
        if after != before:
            _write(root / name, after)
            changed.append(name)
    return changed


def _write(path: Path, text: str) -> None:
    file = PartFile(path)
    file.path.write_text(text, encoding="utf-8")
    file.complete()
