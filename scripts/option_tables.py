"""Write the table of options in docs/options.md and of models in README.md: python scripts/option_tables.py

They are made from the parsers of the commands, and from `model_table`.
"""

import argparse
import re
from pathlib import Path

from mlx_ltx_vae.commands.cli import shorten
from mlx_ltx_vae.commands.parsers import PARSERS
from mlx_ltx_vae.model_table import MODELS, Kind, models_of

README = Path(__file__).parents[1] / "README.md"
PAGE = Path(__file__).parents[1] / "docs" / "options.md"
_OPTIONS = re.compile(r"^\| option \| what it does \|.*(?:\n\|.*)*", re.MULTILINE)
_MODELS = re.compile(r"^\| model \| `-m` \|.*(?:\n\|.*)*", re.MULTILINE)
_EVERYWHERE = ("help", "version", argparse.SUPPRESS)  # destinations
_HEAD = "| option | what it does | commands |\n|---|---|---|\n"


def _cells(action: argparse.Action) -> tuple[str, str]:
    """Return the names of an option, and the first statement of its help."""
    statement = shorten(" ".join((action.help or "").split()).replace("%%", "%"))
    return ", ".join(f"`{name}`" for name in action.option_strings), statement


def commands_by_option() -> dict[tuple[str, str], list[str]]:
    """Return the commands that have an option, by its names and the first statement of its help.

    The options are in alphabetical order, without `--help` and `--version`.
    """
    commands: dict[tuple[str, str], list[str]] = {}
    for command, make_parser in PARSERS.items():
        for action in make_parser()._actions:
            if action.option_strings and action.dest not in _EVERYWHERE:
                commands.setdefault(_cells(action), []).append(command)
    return dict(sorted(commands.items(), key=lambda item: item[0][0].split("--")[-1]))


def options() -> str:
    """Return the Markdown table of the options of all commands."""
    rows = []
    for cells, commands in commands_by_option().items():
        names = "all" if len(commands) == len(PARSERS) else ", ".join(commands)
        rows.append(f"| {' | '.join((*cells, names))} |")
    return _HEAD + "\n".join(rows)


def models() -> str:
    """Return the Markdown table of models: video VAEs with the audio VAE of the same name, and previews."""
    head = "| model | `-m` | `--audio-model` | size, license |\n|---|---|---|---|\n"
    rows = []
    audio_tracks = models_of(Kind.AUDIO)
    for model in MODELS:
        if model.kind in (Kind.VIDEO, Kind.PREVIEW):
            audio_names = [name for name in model.names if name in audio_tracks]
            video, audio = (" or ".join(f"`{name}`" for name in names) for names in (model.names, audio_names))
            terms = f"{model.size}, {model.license}{', gated' if model.is_gated else ''}"
            rows.append((f"[{model.title}]({model.page})", video, audio, terms))
    return head + "\n".join(f"| {' | '.join(row)} |" for row in rows)


def with_models(text: str) -> str:
    """Return the README with its table of models made anew."""
    return _MODELS.sub(lambda _: models(), text)


def with_options(text: str) -> str:
    """Return docs/options.md with its table made anew."""
    return _OPTIONS.sub(lambda _: options(), text)


if __name__ == "__main__":
    for page, make in ((PAGE, with_options), (README, with_models)):
        page.write_text(make(page.read_text(encoding="utf-8")), encoding="utf-8")
