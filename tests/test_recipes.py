"""The command lines of the README and of docs/ are correct usage, of this package and of the apps that they start."""

import argparse
import re
import shlex
from pathlib import Path

import pytest

from mlx_ltx_vae.commands.parsers import PARSERS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "examples" / "comfyui" / "README.md"]
_COMMAND = r"(?:python -m mlx_ltx_vae\.|mlx_ltx_vae )(?=\w)"


def ltx_2_mlx_parser():
    """What `ltx-2-mlx generate` requires, by its command line of 0a1a751."""
    parser = argparse.ArgumentParser("ltx-2-mlx", exit_on_error=False)
    parser.add_argument("command", choices=["generate"])
    parser.add_argument("--prompt", "-p", required=True)
    parser.add_argument("--output", "-o", required=True)
    parser.add_argument("--frame-rate", type=float, required=True)
    parser.add_argument("--frames", "-f", type=int, required=True)  # by LTX-2.3, which has no head for durations
    pipeline = parser.add_mutually_exclusive_group(required=True)
    for name in ("--one-stage", "--two-stage", "--two-stages-hq", "--distilled"):
        pipeline.add_argument(name, action="store_true")
    return parser


def mlx_video_parser():
    """What `mlx_video.generate` requires, by its source of 9ddc440."""
    parser = argparse.ArgumentParser("mlx_video.generate", exit_on_error=False)
    parser.add_argument("--prompt", "-p", required=True)
    parser.add_argument("--output", "-o", default="output.mp4")
    return parser


APPS = {("ltx-2-mlx",): ltx_2_mlx_parser, ("-m", "mlx_video.generate"): mlx_video_parser}


def command_lines(page):
    """The commands of a page, in indented blocks and in code between backquotes, from the name of this package on."""
    text = re.sub(r"\\\n\s*", " ", page.read_text())
    text = re.sub(r"^```\w+\n.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    lines = re.findall(r"^    (.*)$", text, re.MULTILINE) + re.findall(r"`([^`\n]+)`", text)
    for line in lines:
        if match := re.search(rf"(?:^|\s){_COMMAND}(.*)$", line):
            yield line, shlex.split(re.split(r" \|(?: |$)| > ", match[1])[0])


RECIPES = [
    pytest.param(words, id=f"{page.name}: {line[:90]}")
    for page in PAGES
    for line, words in command_lines(page)
    if words[0] in PARSERS and words[1:] not in ([], ["--"])
]


def test_the_pages_have_recipes_of_every_command():
    assert {recipe.values[0][0] for recipe in RECIPES} == PARSERS.keys()
    assert len(RECIPES) > 60


@pytest.mark.parametrize("words", RECIPES)
def test_a_recipe_is_correct_usage(words):
    name, *arguments = words
    parsed = PARSERS[name]().parse_inputs(arguments)
    if name != "run" or parsed.program[0] == "PROGRAM":
        return
    for start, make_parser in APPS.items():
        if tuple(parsed.program[: len(start)]) == start:
            make_parser().parse_args(parsed.program[len(start) :])
            return
    assert parsed.program[0].endswith(".py")
