"""Docstrings, comments, messages and pages are plain English, without the patterns that read as if translated."""

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("mlx_ltx_vae", "weights_convert", "benchmarks", "examples", "scripts")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
PAGES = ("", "docs/", "examples/", "examples/comfyui/", "examples/comfyui/web/docs/")
OPENINGS = re.compile(r"(That|Those|What|Whether|As|Of|Who|Which|Where|So)\b")
PATTERNS = re.compile(r"\b(that of|those of|of which|in place of|so many|so does|behind)\b", re.IGNORECASE)


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    found = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                line = (ast.get_docstring(node) or "").partition("\n")[0]
                if OPENINGS.match(line):
                    found.append(f"{path.relative_to(ROOT)}: {line}")
    assert not found, "\n".join(found)


def prose_of_code(path: Path) -> Iterator[tuple[int, str]]:
    """The line and the text of each comment, docstring and message."""
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type in kinds:
                yield token.start[0], token.string


def test_no_text_of_the_code_reads_as_if_translated() -> None:
    found = []
    for path in SOURCES:
        for line, text in prose_of_code(path):
            for match in PATTERNS.finditer(" ".join(text.replace("#", " ").split())):
                found.append(f"{path.relative_to(ROOT)}:{line}: {match[0]}")
    assert not found, "\n".join(found)


def test_no_page_reads_as_if_translated() -> None:
    found = []
    for page in (page for folder in PAGES for page in ROOT.glob(f"{folder}*.md")):
        text = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        found += [f"{page.relative_to(ROOT)}: {match[0]}" for match in PATTERNS.finditer(" ".join(text.split()))]
    assert not found, "\n".join(found)
