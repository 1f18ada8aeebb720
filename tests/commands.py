"""The commands as functions: each takes its arguments, and returns the exit code."""

import json
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

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
    "report_of",
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
