"""The pages of the repository: their links, their tables of options, and the length of the README."""

import re
from pathlib import Path

import option_tables
import pytest

from benchmarks.plan_table import plan_table

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "examples/*.md", "examples/*/*.md", "tests/fixtures/*.md")
    for path in ROOT.glob(pattern)
)
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s#]*)#?([^)\s]*)\)|(?:src|href)=\"(?!https?:)([^\"#]+)#?([^\"]*)\"")


def without_code(page: Path) -> str:
    return re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(
        r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE), re.M
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_inside_the_repository_lead_to_files_and_headings(page: Path) -> None:
    for match in LINK.finditer(without_code(page)):
        name, anchor = (match[1], match[2]) if match[3] is None else (match[3], match[4])
        target = (page.parent / name).resolve() if name else page
        assert target.exists() and target.is_relative_to(ROOT), match[0]
        if anchor:
            assert anchor in anchors(target), match[0]


def test_every_page_of_the_documentation_is_in_its_list() -> None:
    listed = set(re.findall(r"\]\(([^)#]+\.md)\)", (ROOT / "docs" / "README.md").read_text()))
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"} <= listed


def test_scripts_and_targets_that_pages_name_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        text = page.read_text()
        for name in re.findall(
            r"(?:python|sh|bash|`)\s?((?:examples|scripts|tests|benchmarks)/[\w./]+\.(?:py|sh))", text
        ):
            assert name == "tests/test_new.py" or (ROOT / name).is_file(), f"{page.name}: {name}"
        for name in re.findall(r"(?:^    |`|&& )make ([a-z]+)", text, re.MULTILINE):
            assert name in targets, f"{page.name}: make {name}"


def test_the_table_of_options_is_made_from_the_parsers() -> None:
    text = option_tables.PAGE.read_text(encoding="utf-8")
    assert option_tables.with_options(text) == text, "run python scripts/option_tables.py"
    rows = [cells_of(line) for line in text.splitlines() if line.startswith("| `")]
    assert ["`-m`, `--model`", "the latent upsampler", "upscale"] in rows
    assert ["`--crop`", "fill --size and crop the rest, or crop to a size that can be encoded", "encode"] in rows
    assert ["`--bit-depth`", "bits per channel", "decode"] in rows
    assert ["`--debug`", "show the traceback of an error", "all"] in rows
    assert {row[0] for row in rows} >= {"`--layout`", "`--picks`", "`--max-size`", "`--vae`", "`--for`"}


def test_the_page_of_options_says_only_what_the_help_of_a_command_does_not() -> None:
    """No cell is more than the first statement, which `-h` and completion show too."""
    for (names, statement), commands in option_tables.commands_by_option().items():
        assert " " in statement and not statement.startswith("for "), names  # such as "exact"
        assert commands, names


def test_the_table_of_models_is_made_from_their_names() -> None:
    text = option_tables.README.read_text(encoding="utf-8")
    assert option_tables.with_models(text) == text, "run python scripts/option_tables.py"
    rows = [cells_of(line) for line in text.splitlines() if line.startswith("| [")]
    assert ["[LTX-2](https://huggingface.co/Lightricks/LTX-2)", "`ltx-2`", "`ltx-2`"] in [row[:3] for row in rows]
    assert len(rows) >= 6


def test_the_tables_of_planned_peaks_are_what_is_planned() -> None:
    planned = {cells[0]: cells for cells in map(cells_of, plan_table().splitlines()[2:])}
    for name, columns in (("README.md", (0, 1, 2, 3, 5)), ("docs/planning.md", range(6))):
        rows = [cells_of(line) for line in re.findall(r"^\| \d+x\d+, \d+ frames .*$", (ROOT / name).read_text(), re.M)]
        assert len(rows) >= 3
        assert rows == [[planned[row[0]][column] for column in columns] for row in rows]


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 900
