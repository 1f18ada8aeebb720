"""Launchers in front of a program: `python`, `uv run` and `uvx`, which would start it in a process without drop-ins."""

import importlib.metadata
import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from urllib.parse import unquote, urlparse

from .. import LTXVAEError
from ..errors import one_line

_COMMAND = "mlx_ltx_vae run --"
_PYTHON = re.compile(r"python3?(\.[0-9]+)?t?")
#: Options with a value, of which the next word is a part.
_PYTHON_VALUES = {"-X", "-W", "--check-hash-based-pycs"}
_UV_VALUES = {
    "--with", "--with-editable", "--with-requirements", "-w", "--from", "--extra", "--group", "--no-group",
    "--only-group", "--env-file", "--project", "--directory", "-p", "--python", "--package", "--index",
    "--default-index", "-i", "--index-url", "--extra-index-url", "-f", "--find-links", "-c", "--constraints",
    "--overrides", "--resolution", "--prerelease", "--exclude-newer", "--link-mode", "--cache-dir", "--config-file",
}  # fmt: skip
_UV_LAUNCHERS = {("uv", "run"): False, ("uv", "tool", "run"): True, ("uvx",): True}


def find_here(name: str) -> str | None:
    """Return the path of an installed command, first of this Python environment, which may not be on the PATH."""
    folder = os.path.dirname(sys.executable)
    return shutil.which(name, path=os.pathsep.join([folder, os.environ.get("PATH", os.defpath)]))


def is_here(folder: str | os.PathLike) -> bool:
    """Return whether a folder is the one of this environment's programs."""
    return os.path.realpath(folder) == os.path.realpath(os.path.dirname(sys.executable))


def strip_launcher(words: list[str]) -> list[str]:
    """Return the words of a command line from the program on that a launcher would start in this environment.

    They are unchanged without a launcher. Raises an `LTXVAEError` with the command line that works for a launcher with
    options, and for a program of another environment.
    """
    name = Path(words[0]).name
    if _PYTHON.fullmatch(name):
        return _strip_python(words)
    for launcher, is_tool in _UV_LAUNCHERS.items():
        if (name, *words[1 : len(launcher)]) == launcher:
            return _strip_uv(words[: len(launcher)], words[len(launcher) :], is_tool=is_tool)
    return words


def _strip_python(words: list[str]) -> list[str]:
    options, program = _split(words[1:], _PYTHON_VALUES)
    if program[:1] in ([], ["-"], ["-c"]):
        raise LTXVAEError(f"{words[0]}: starts no script and no module; give one: {_COMMAND} {words[0]} generate.py.")
    interpreter = find_here(words[0])
    if interpreter is None:
        return words
    folder = os.path.dirname(os.path.abspath(interpreter))
    if is_here(folder) and not options:
        return program
    reason = "Python's own options come before the package"
    if not is_here(folder):
        reason = f"belongs to another Python environment ({folder}); install mlx_ltx_vae there"
    raise LTXVAEError(f"{words[0]}: {reason}; run {_line([words[0], *options, '-m'], program)}.")


def _strip_uv(launcher: list[str], rest: list[str], *, is_tool: bool) -> list[str]:
    options, program = _split(rest, _UV_VALUES)
    if not program:
        raise LTXVAEError(f"{' '.join(launcher)}: starts no program; give one: {_COMMAND} ltx-2-mlx generate ....")
    if program[0] == "--module":
        program = ["-m", *program[1:]]
    command = [program[0].partition("@")[0], *program[1:]] if is_tool else program
    if not options and (is_tool or _is_project_here()):
        if command[0] == "-m" or Path(command[0]).is_file():
            return command
        path = find_here(command[0])
        if path is not None and is_here(os.path.dirname(path)):
            return strip_launcher(command)
    source = ["--from", program[0]] if is_tool and "--from" not in options else []
    line = _line([*launcher, *options, *source, "--with", requirement()], command)
    raise LTXVAEError(f"{' '.join(launcher)}: starts {one_line(program[0])} in an environment of its own; run {line}.")


def _split(words: list[str], with_value: set[str]) -> tuple[list[str], list[str]]:
    """Return the options of a launcher, and the words after them."""
    count = 0
    while count < len(words) and words[count].startswith("-"):
        if words[count] in ("-", "--", "-c", "-m", "--module") and not (words[count] == "-c" and "-c" in with_value):
            break
        count += 2 if words[count] in with_value else 1
    program = words[count:]
    return words[:count], program[1:] if program[:1] == ["--"] else program


def _line(launcher: list[str], program: list[str]) -> str:
    """Return the command line with the launcher in front of this package."""
    return one_line(f"{shlex.join(launcher)} {_COMMAND} {shlex.join(program)}")


def _is_project_here() -> bool:
    """Return whether `uv run` would use this environment here, or has made no other one yet."""
    folders = [Path.cwd(), *Path.cwd().parents]
    project = next((folder for folder in folders if (folder / "pyproject.toml").is_file()), None)
    environment = None if project is None else project / os.environ.get("UV_PROJECT_ENVIRONMENT", ".venv")
    return environment is None or not environment.is_dir() or environment.resolve() == Path(sys.prefix).resolve()


def requirement() -> str:
    """Return what installs this package again: its folder or address, if it was not installed by its name."""
    try:
        text = importlib.metadata.distribution(__name__.partition(".")[0]).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:  # it is used as it lies in a clone
        return str(Path(__file__).parents[2])
    source = json.loads(text or "{}")
    address = urlparse(source.get("url", ""))
    if address.scheme == "file":
        return unquote(address.path)
    vcs = source.get("vcs_info", {}).get("vcs")
    return f"{vcs}+{address.geturl()}" if vcs else address.geturl() or __name__.partition(".")[0]
