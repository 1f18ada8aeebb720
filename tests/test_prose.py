"""Names say what they hold, and docstrings begin with what a function does."""

import ast
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "mlx_ltx_vae"

#: Names of variables and parameters that say what happened to a value, or nothing, instead of what it holds.
VAGUE = {"each", "own", "given", "found", "known", "others", "stated", "wanted", "made", "seen", "whole", "shown"}
MOST_VAGUE_NAMES = 10
MOST_ARTICLES = 10


def count_words() -> tuple[Counter[str], Counter[str]]:
    """Count the vague names of variables and parameters, and the first words of functions' docstrings."""
    names: Counter[str] = Counter()
    first_words: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names[node.id] += 1
            elif isinstance(node, ast.arg):
                names[node.arg] += 1
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (text := ast.get_docstring(node)):
                first_words[text.split()[0]] += 1
    return Counter({name: names[name] for name in VAGUE}), first_words


def test_variables_are_named_by_what_they_hold():
    names, _ = count_words()
    assert names.total() <= MOST_VAGUE_NAMES, names


def test_docstrings_of_functions_begin_with_a_verb():
    _, first_words = count_words()
    articles = Counter({word: first_words[word] for word in ("The", "A", "An")})
    assert articles.total() <= MOST_ARTICLES, articles
