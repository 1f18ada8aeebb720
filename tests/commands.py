"""The commands as functions: each takes its arguments, and returns the exit code."""

import json
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import pytest

from mlx_ltx_vae import commands
from mlx_ltx_vae.__main__ import main as mlx_ltx_vae
from mlx_ltx_vae.bench import main as bench
from mlx_ltx_vae.commands import COMMANDS
from mlx_ltx_vae.commands.parsers import PARSERS
from mlx_ltx_vae.convert import main as convert
from mlx_ltx_vae.decode import main as decode
from mlx_ltx_vae.encode import main as encode
from mlx_ltx_vae.info import main as info
from mlx_ltx_vae.preview import main as preview

__all__ = [
    "COMMANDS", "PARSERS", "bench", "convert", "decode", "encode", "help_of", "info", "mlx_ltx_vae", "preview",
    "report_of", "values_of",
]  # fmt: skip


def report_of(*arguments: object) -> dict[str, Any]:
    """What `info --json` prints of a file, in a test of something else."""
    with redirect_stdout(StringIO()) as out:
        assert info([*map(str, arguments), "--json"]) == 0
    return json.loads(out.getvalue())


def help_of(command: str) -> str:
    """The help of a command."""
    with redirect_stdout(StringIO()) as out:
        try:
            mlx_ltx_vae([command, "--help"])
        except SystemExit as ended:
            assert ended.code == 0
    return out.getvalue()


def values_of(monkeypatch: pytest.MonkeyPatch, command: str, arguments: list[str]) -> list[Any]:
    """The values of all options and inputs with which a command would run."""
    parsed: list[Any] = []
    monkeypatch.setattr(commands, "import_command", lambda _: lambda _, given: parsed.append(given) or 0)
    assert mlx_ltx_vae([command, *arguments]) == 0
    return list(vars(parsed[0]).values())
