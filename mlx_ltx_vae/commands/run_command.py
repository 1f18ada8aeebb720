"""`mlx_ltx_vae run`: runs a Python program in this process, with the decoders of apps that it imports replaced."""

import argparse
import importlib.util
import os
import re
import runpy
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ..errors import LTXVAEError, describe_error, one_line
from ..integrations import install
from ..integrations.apps import APPS
from ..startup import release_process
from .cli import CommandParser

_SHEBANG_LINES = 3  # an interpreter with a long path follows a line of /bin/sh
_BEGINNING = 4096


class Program(NamedTuple):
    """A program to run: `run` starts it, with the `folder` first in `sys.path` and `name` as `sys.argv[0]`."""

    name: str
    folder: str
    run: Callable[[], object]


def run(parser: CommandParser, arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code, which is the program's."""
    try:
        return run_program(arguments)
    except LTXVAEError as error:
        if arguments.debug:
            raise
        sys.stderr.write(f"error: {describe_error(error)}\n")
        return 1


def run_program(arguments: argparse.Namespace) -> int:
    """Run the program of a command line. An exception of the program is the caller's."""
    program, others = find_program(arguments.program)
    with install(memory_budget=arguments.memory_budget, save_latents=arguments.save_latents) as installed:
        release_process()
        try:
            with _as_started(program, others):
                program.run()
            code: object = None
        except SystemExit as ended:
            code = ended.code
        if not installed.replaced and not installed.moved:
            known = ", ".join(APPS)
            name = one_line(program.name)
            sys.stderr.write(f"mlx_ltx_vae: {name} imported no decoder that is known ({known}).\n")
    if code is None or isinstance(code, int):
        return code or 0
    sys.stderr.write(f"{code}\n")
    return 1


def find_program(words: list[str]) -> tuple[Program, list[str]]:
    """The program that a command line begins with, and its arguments. A `LTXVAEError` for what is no Python program."""
    name, *arguments = words
    if name == "-m":
        module, *arguments = arguments
        return Program(module, os.getcwd(), partial(_run_module, module)), arguments
    path = Path(name)
    if not path.is_file() and not (path / "__main__.py").is_file():
        path = _find_command(name)
    _check_is_python(path)
    is_folder = path.is_dir() or path.suffix in (".pyz", ".zip")
    folder = str(path if is_folder else Path(os.path.realpath(path)).parent)
    return Program(str(path), folder, partial(runpy.run_path, str(path), run_name="__main__")), arguments


def _run_module(name: str) -> object:
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise LTXVAEError(f"{name}: is no module of {sys.executable}; install it in this environment.")
    return runpy.run_module(name, run_name="__main__", alter_sys=True)


def _find_command(name: str) -> Path:
    """An installed command: of this Python environment first, which need not be on the PATH."""
    beside = os.path.dirname(sys.executable)
    found = shutil.which(name, path=os.pathsep.join([beside, os.environ.get("PATH", os.defpath)]))
    if found is None:
        raise LTXVAEError(
            f"{name}: is neither a script nor a command on the PATH; give the path of a script, -m MODULE, or the name "
            "of an installed command."
        )
    own = re.search(rb"(/\S*?)/python[0-9.]*\b", _first_lines(Path(found)))
    folder = own and os.fsdecode(own[1])
    if folder and os.path.realpath(folder) != os.path.realpath(beside):
        raise LTXVAEError(
            f"{found}: belongs to another Python environment ({folder}); install mlx_ltx_vae there, and run "
            f"{folder}/python -m mlx_ltx_vae run -- {name}."
        )
    return Path(found)


def _check_is_python(path: Path) -> None:
    """Raise a `LTXVAEError` for a program in another language."""
    if path.is_dir() or path.suffix in (".py", ".pyz", ".zip"):
        return
    beginning = _first_lines(path)
    if b"\0" in beginning or (beginning.startswith(b"#!") and b"python" not in beginning):
        raise LTXVAEError(
            f"{path}: is not a Python program; give the script or the module that it starts: run -- -m MODULE."
        )


def _first_lines(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return b"\n".join(file.read(_BEGINNING).split(b"\n")[:_SHEBANG_LINES])
    except OSError as error:
        raise LTXVAEError(f"{path}: cannot be read ({error.strerror}); give another program.") from error


@contextmanager
def _as_started(program: Program, arguments: list[str]) -> Iterator[None]:
    """Let `sys.argv` and `sys.path` be as Python sets them for a program, and give back what they were."""
    argv, path = sys.argv, list(sys.path)
    sys.argv = [program.name, *arguments]
    if not getattr(sys.flags, "safe_path", False):  # else Python adds no folder
        sys.path[0:1] = [program.folder]
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path
