"""Write the tables of options in docs/options.md and of models in README.md: python scripts/option_tables.py

They are made from the parsers of the commands, and from `model_table`.
The tables of a command lie between `<!-- options: decode -->` and `<!-- end -->`, one for each group of options.
Options that are the same as in `decode` are only named.
"""

import argparse
import re
from pathlib import Path

from mlx_ltx_vae.commands.parsers import PARSERS
from mlx_ltx_vae.model_table import MODELS, Kind, models_of

README = Path(__file__).parents[1] / "README.md"
PAGE = Path(__file__).parents[1] / "docs" / "options.md"
_TABLES = re.compile(r"(<!-- options: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_MODELS = re.compile(r"^\| model \| `-m` \|.*(?:\n\|.*)*", re.MULTILINE)
_EVERYWHERE = ("help", "version", argparse.SUPPRESS)  # destinations
_HEAD = "| option | value | default | what it does |\n|---|---|---|---|\n"

Row = tuple[str, str, str, str]  # option, value, default, what it does


def _row(parser: argparse.ArgumentParser, action: argparse.Action) -> Row:
    about = " ".join(parser._get_formatter()._expand_help(action).split())
    default = ""
    if match := re.fullmatch(r"(.*?),? ?\(default: (.{1,60})\)", about):
        about, default = match.groups()
    elif match := re.search(r"(\S+) \(default\)", about):
        default = match[1]
    metavar = " ".join(action.metavar) if isinstance(action.metavar, tuple) else action.metavar or ""
    if not action.option_strings:
        return f"`{metavar}`", "", default, about
    value = "" if action.nargs == 0 else metavar or ", ".join(map(str, action.choices or ()))
    return ", ".join(f"`{name}`" for name in action.option_strings), value, default, about


def rows(command: str) -> dict[str, list[Row]]:
    """Return the rows of a command's options, all but `--help` and `--version`, by the titles of their groups."""
    parser = PARSERS[command]()
    rows_by_title = {}
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if action.dest not in _EVERYWHERE]
        if actions:
            title = "" if group.title in ("options", "optional arguments", "positional arguments") else str(group.title)
            rows_by_title.setdefault(title, []).extend(_row(parser, action) for action in actions)
    return rows_by_title


def tables(command: str) -> str:
    """Markdown tables of the options of a command."""
    alike = {row for group_rows in rows("decode").values() for row in group_rows} if command != "decode" else set()
    groups = rows(command)
    parts = []
    if names := [row[0].split(", ")[-1] for group_rows in groups.values() for row in group_rows if row in alike]:
        parts.append(f"As in `decode`: {', '.join(names)}.")
    for title, group_rows in groups.items():
        new_rows = [row for row in group_rows if row not in alike]
        if new_rows:
            lines = (f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |" for row in new_rows)
            parts.append((f"*{title}*\n\n" if title else "") + _HEAD + "\n".join(lines))
    return "\n\n".join(parts)


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


def with_tables(text: str) -> str:
    """Return a page with its tables made anew."""
    return _TABLES.sub(lambda match: f"{match[1]}\n{tables(match[2])}\n\n{match[3]}", text)


if __name__ == "__main__":
    for page, make in ((PAGE, with_tables), (README, with_models)):
        page.write_text(make(page.read_text(encoding="utf-8")), encoding="utf-8")
