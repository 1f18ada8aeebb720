"""`mlx_ltx_vae run`: run a Python program in this process, with the decoders of apps that it imports replaced."""

import argparse
import atexit
import builtins
import importlib.util
import io
import os
import pkgutil
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any, NoReturn

from .. import LTXVAEError, integrations
from ..errors import describe_error, one_line
from ..files import explain_missing
from ..integrations.apps import APPS
from ..integrations.settings import counts, current, say
from ..startup import check_mlx, is_command, release_process
from ..units import format_count
from .cli import CommandParser, colored
from .launchers import find_here, is_here, requirement, strip_launcher

_SHEBANG_LINES = 3  # an interpreter with a long path is in a line after #!/bin/sh
_START_BYTES = 4096
_ARCHIVES = (".pyz", ".zip")
_NOUNS = ("decode", "encode")
#: Audit events of a program that starts another one, with the index of the words of its command line.
_START_EVENTS = {"subprocess.Popen": 1, "os.posix_spawn": 1, "os.spawn": 2, "os.system": 0}
_PYTHON_WORD = re.compile(r"(^|[\s/'\"])python[0-9.]*t?($|[\s'\"])")
#: Modules that are imported when `multiprocessing` starts a process which inherits nothing.
_SPAWNERS = ("multiprocessing.popen_spawn_posix", "multiprocessing.popen_forkserver")

#: Code of a main module, its file, and its spec, which scripts do not have.
Main = tuple[CodeType, str, ModuleSpec | None]


def run(parser: CommandParser, arguments: argparse.Namespace) -> int:
    """Run the command, and return the exit code of the program."""
    try:
        return run_program(arguments)
    except LTXVAEError as error:
        if arguments.debug:
            raise
        sys.stderr.write(colored(f"error: {describe_error(error)}\n", sys.stderr))
        return 1


def run_program(arguments: argparse.Namespace) -> int:
    """Run the program of a command line, and return its exit code. Exceptions of the program are raised."""
    argv, folder, load = find_program(arguments.program)
    code: object = None
    failure: Exception | None = None
    children: list[str] = []
    with ExitStack() as stack:
        installed = stack.enter_context(
            integrations.install(memory_budget=arguments.memory_budget, save_latents=arguments.save_latents)
        )
        stack.enter_context(_as_started(argv, folder))
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:  # so that unfinished files are removed
                signal.signal(number, _terminate)
        is_process = is_command()
        if is_process:  # threads of the program and its exit handlers still need the replaced decoders
            atexit.register(stack.pop_all().close)
            sys.addaudithook(partial(_note_child, children))
        release_process()
        main = load()
        try:
            _execute(*main)
        except SystemExit as exit_request:
            code = exit_request.code
        except Exception as error:
            if not is_process:
                raise
            _check_backend(error)
            failure, code = error, 1
        except BaseException:
            if is_process:  # Python prints and ends it as it does without this package
                sys.excepthook = partial(_print_error, sys.excepthook)
                _say_end(argv[0], installed, children)
            raise
        _say_end(argv[0], installed, children)
        if failure is not None:
            _print_error(sys.excepthook, type(failure), failure, None)
    if code is None or isinstance(code, int):
        return code or 0
    sys.stderr.write(f"{code}\n")
    return 1


def _check_backend(error: Exception) -> None:
    """Raise an `LTXVAEError` that says what to install if the program could not import MLX."""
    if isinstance(error, ImportError) and (error.name or "mlx").partition(".")[0] == "mlx":
        try:
            check_mlx()
        except ImportError as missing:
            raise LTXVAEError(str(missing)) from error


def _terminate(number: int, _: object) -> NoReturn:
    """End the program as a signal does, with its clean-up."""
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)


def _print_error(
    hook: Callable[..., object], kind: type[BaseException], error: BaseException, _: TracebackType | None
) -> None:
    """Call an exception hook with an error of the program and those before it, without frames of this package."""
    errors: list[BaseException | None] = [error]
    cleaned_ids: set[int] = set()  # errors may be the context of each other
    while errors:
        earlier = errors.pop()
        if earlier is not None and id(earlier) not in cleaned_ids:
            cleaned_ids.add(id(earlier))
            errors += [earlier.__cause__, earlier.__context__]
            earlier.__traceback__ = _program_frames(earlier.__traceback__)
    hook(kind, error, error.__traceback__)


def _program_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback with the frames of the program only."""
    entries: list[TracebackType] = []
    is_ours = False
    while traceback is not None:
        package = traceback.tb_frame.f_globals.get("__name__", "").partition(".")[0]
        is_ours = package == __name__.partition(".")[0] or (is_ours and package in ("contextlib", "functools"))
        if traceback.tb_frame.f_code is _execute.__code__:
            entries = []  # what called the program
        elif not is_ours:
            entries.append(traceback)
        traceback = traceback.tb_next
    for entry in reversed(entries):
        traceback = TracebackType(traceback, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return traceback


def _note_child(children: list[str], event: str, arguments: tuple[Any, ...]) -> None:
    """Add the command line of the first Python process that the program starts, as a hook for Python's audit events."""
    if event not in _START_EVENTS or children:
        return
    words = str(arguments[_START_EVENTS[event]])  # an exception here would be one of the program
    if _PYTHON_WORD.search(words):
        children.append(words)


def _say_end(name: str, installed: integrations.Installed, children: list[str]) -> None:
    """Say what ran here, and what lies in the folder for latents, in a line."""
    folder = current().folder
    threads = [thread for thread in threading.enumerate() if not thread.daemon]
    if folder is not None and len(threads) == 1:  # others may decode the video of kept audio
        folder.close()
    text = _describe_run(one_line(name), installed)
    num_files = 0 if folder is None else folder.count_files()
    if num_files:
        text += f", with the latents in {folder} ({format_count(num_files, 'file')})"
    elif folder is not None:
        text += f"; no latents were saved in {folder}"
    if not num_files and not any(counts.values()) and (children or any(module in sys.modules for module in _SPAWNERS)):
        options = "" if folder is None else f"save_latents={str(folder)!r}"
        say(
            f"{one_line(name)} started Python processes, whose decoders are their own; start these with mlx_ltx_vae "
            f"run --, or begin them with: from mlx_ltx_vae import integrations; integrations.install({options})."
        )
    say(f"{text}.")


def _describe_run(name: str, installed: integrations.Installed) -> str:
    """Describe what ran here, without a full stop."""
    if not installed.replaced and not installed.moved:
        return f"{name} imported no decoder that is known ({', '.join(APPS)})"
    done = _join_counts({noun: counts[noun] for noun in _NOUNS})
    unfinished = _join_counts({noun: counts[f"begun {noun}"] - counts[noun] for noun in _NOUNS})
    if done:
        return f"{done} ran here" + (f", and {unfinished} did not end" if unfinished else "")
    if unfinished:
        return f"{unfinished} began here and did not end"
    return f"{name} decoded nothing here; its own decoder ran, if any did"


def _join_counts(numbers: dict[str, int]) -> str:
    return " and ".join(format_count(number, noun) for noun, number in numbers.items() if number > 0)


def find_program(words: list[str]) -> tuple[list[str], str, Callable[[], Main]]:
    """Return `sys.argv` of a program, the folder that comes first in its `sys.path`, and what finds its main module.

    Raises an `LTXVAEError` if the program is not Python.
    """
    name, *arguments = words = strip_launcher(words)
    if name == "-m":
        module, *arguments = arguments
        return [module, *arguments], os.getcwd(), partial(_load_module, module)
    path = Path(name)
    if not path.is_file() and not (path / "__main__.py").is_file():
        path = _find_command(name)
    _check_program(path, words)
    if path.is_dir() or path.suffix in _ARCHIVES:
        return [str(path), *arguments], str(path), partial(_load_archive, str(path))
    return [str(path), *arguments], os.path.dirname(os.path.realpath(path)), partial(_load_script, path)


def _load_module(name: str) -> Main:
    """Return the main module that `python -m NAME` runs."""
    try:
        spec = None if name.startswith(".") else importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):  # a module that the package imports
            raise
        spec = None
    return _load_spec(
        spec,
        f"{name}: is no module of {sys.executable}, or a package without a program; install it in this environment, or "
        "name another module.",
    )


def _load_archive(path: str) -> Main:
    """Return the main module of a folder or a zip file."""
    finder: Any = pkgutil.get_importer(path)
    return _load_spec(finder and finder.find_spec("__main__"), f"{path}: has no __main__.py; give another program.")


def _load_spec(spec: ModuleSpec | None, problem: str) -> Main:
    loader: Any = spec and spec.loader
    code = loader.get_code(spec.name) if spec is not None and hasattr(loader, "get_code") else None
    if spec is None or code is None:
        raise LTXVAEError(problem)
    return code, str(spec.origin), spec


def _load_script(path: Path) -> Main:
    file = os.path.abspath(path)
    with io.open_code(file) as source:
        return compile(source.read(), file, "exec", dont_inherit=True), file, None


def _execute(code: CodeType, file: str, spec: ModuleSpec | None) -> None:
    """Run a program as the module `__main__`."""
    module = ModuleType("__main__")
    vars(module).update(__file__=file, __spec__=spec, __builtins__=builtins)
    if spec is not None:
        vars(module).update(__package__=spec.parent, __loader__=spec.loader)
        sys.argv[0] = sys.argv[0] if spec.name == "__main__" else file
    sys.modules["__main__"] = module
    exec(code, vars(module))


def _find_command(name: str) -> Path:
    """Find an installed command."""
    command_path = find_here(name)
    if command_path is None:
        if name.endswith(".py") or os.sep in name:
            raise LTXVAEError(f"{name}: {explain_missing(name, 'script')}")
        source = requirement()
        line = f"uv run --with {source} mlx_ltx_vae run -- {name} ..."
        raise LTXVAEError(
            f"{name}: is neither a script nor a command of this Python environment; this package must be in the "
            f"environment of the app: start it there with {line}, or after pip install {source}."
        )
    return Path(command_path)


def _check_program(path: Path, words: list[str]) -> None:
    """Raise a `LTXVAEError` for a program in another language, or a command of another Python environment."""
    if path.is_dir() or path.suffix in (".py", *_ARCHIVES):
        return
    try:
        with path.open("rb") as file:
            first_lines = b"\n".join(file.read(_START_BYTES).split(b"\n")[:_SHEBANG_LINES])
    except OSError as error:
        raise LTXVAEError(f"{path}: cannot be read ({error.strerror}); give another program.") from error
    if b"\0" in first_lines or (first_lines.startswith(b"#!") and b"python" not in first_lines):
        line = one_line(f"{words[0]} ... mlx_ltx_vae run -- PROGRAM")
        front = f", or write it in front: {line}" if len(words) > 1 else ""
        raise LTXVAEError(
            f"{path}: is not a Python program; give the script or the module that it starts: run -- -m MODULE{front}."
        )
    interpreter = re.search(rb"(/\S*?)/python[0-9.]*\b", first_lines)
    folder = interpreter and os.fsdecode(interpreter[1])
    if folder and not is_here(folder):
        raise LTXVAEError(
            f"{path}: belongs to another Python environment ({folder}); install mlx_ltx_vae there, and run "
            f"{folder}/python -m mlx_ltx_vae run -- {words[0]}."
        )


@contextmanager
def _as_started(argv: list[str], folder: str) -> Iterator[None]:
    """Set `sys.argv` and `sys.path` as Python does for a program, and restore them and `__main__` at the end."""
    previous_argv, path, main = sys.argv, list(sys.path), sys.modules["__main__"]
    sys.argv = list(argv)  # a program may change it
    if not getattr(sys.flags, "safe_path", False):  # else Python adds no folder
        sys.path[0:1] = [folder]
    try:
        yield
    finally:
        sys.argv, sys.path[:], sys.modules["__main__"] = previous_argv, path, main
