"""What every command has: parser, types of arguments, exit codes, one-line errors and warnings."""

import argparse
import atexit
import os
import re
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from fractions import Fraction
from functools import partial
from typing import Any, NoReturn, TextIO, TypeVar

from .. import __version__
from ..backend.machine import OTHER_DTYPE_NAMES, launched_rank
from ..codec_table import ENCODER_PRESETS
from ..errors import (
    DecodeError,
    DistributedError,
    LTXVAEError,
    OutputClosed,
    WriterError,
    describe_error,
    excerpt,
    one_line,
    printable,
    quote,
    speaking_of_options,
    suggest,
)
from ..process import delay_signals, die_by_termination, ended_by_signals
from ..shapes import parse_grid, parse_size
from ..startup import is_command
from ..tiling import SpatialTilingConfig, TemporalTilingConfig, parse_tile
from ..units import format_count, parse_bytes, parse_fps

Value = TypeVar("Value")

_RANGE = r"(-?[0-9]{1,9})?:(-?[0-9]{1,9})?"
#: Names that options have in other programs.
_OTHER_OPTIONS = {
    "-v": "--version", "--verbose": "--debug", "-r": "--fps", "-f": "--overwrite", "--force": "--overwrite",
    "--vae": "--model", "--checkpoint": "--model", "--model-path": "--model", "--tiling": "--preset",
    "-t": "--first-seconds",
}  # fmt: skip
_BROKEN_PIPE = 128 + signal.SIGPIPE  # what a shell reports, if a reader such as `head` has read enough


class CommandParser(argparse.ArgumentParser):
    """The parser of every command, with `--version`. Wrong usage is two lines on standard error, and exit code 2."""

    def __init__(self, *, first: Collection[str] = (), **options: Any) -> None:
        """Make a parser whose `-h` shows the options of the destinations `first` alone; all if there are none."""
        options = {name: _as_called(value) for name, value in options.items()}
        options["formatter_class"] = partial(_HelpFormatter, width=min(shutil.get_terminal_size().columns, 80) - 2)
        super().__init__(allow_abbrev=False, add_help=False, **options)
        # Of what begins with a minus sign and is no option: a number, and a range such as `--frames -10:`.
        self._negative_number_matcher = re.compile(rf"-[0-9]*\.?[0-9]+$|{_RANGE}$")
        self._first = first
        if first:
            hidden: Any = {"nargs": 0, "dest": argparse.SUPPRESS, "default": argparse.SUPPRESS}
            self.add_argument("-h", action=_ShortHelp, help="show the options that are needed most", **hidden)
        names = ["--help"] if first else ["-h", "--help"]
        self.add_argument(*names, action="help", help=f"show {'all options' if first else 'this help'}")
        self.add_argument("--version", action="version", version=f"mlx_ltx_vae {__version__}", help="show the version")

    def format_short_help(self) -> str:
        """As `format_help`, on one screen."""
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        formatter.start_section("options that are needed most")
        for action in self._actions:
            if action.dest in self._first and action.help:
                shown = copy(action)
                shown.help = shorten(action.help)
                formatter.add_argument(shown)
        formatter.end_section()
        formatter.add_text(self.epilog)
        formatter.add_text(f'"{self.prog} --help" shows all options.')
        return formatter.format_help()

    def parse_inputs(self, argv: list[str] | None) -> argparse.Namespace:
        """Parse inputs before, between and after options. "--" ends the options: what follows are names of files."""
        arguments = sys.argv[1:] if argv is None else argv
        if "--" in arguments:
            # argparse's intermixed parsing forgets the mark, and no name looks like an option behind a folder.
            end = arguments.index("--")
            names = [f"./{name}" if name.startswith("-") and name != "-" else name for name in arguments[end + 1 :]]
            arguments = [*arguments[:end], *names]
        return self.parse_intermixed_args(arguments)

    def refuse_others(self, arguments: argparse.Namespace, known: Collection[str], reason: str) -> None:
        """Refuse options that were given and whose destination is not known."""
        for action in self._actions:
            is_given = getattr(arguments, action.dest, action.default) != action.default
            if action.option_strings and action.dest not in known and is_given:
                self.error(f"{reason}; leave out {action.option_strings[0]}")

    def error(self, message: str) -> NoReturn:
        # Of several ranks with the same command line, the first says why.
        text = excerpt(message, 260) + self._suggestion(message)  # it quotes an argument of any length
        if rank := _rank():
            leave_it_to_the_first_rank()
            text = f"rank {rank}: {text}"
        self.exit(2, f'error: {text}\nrun "{self.prog} --help" for the options\n')

    def _suggestion(self, message: str) -> str:
        """What a mistyped option or choice in argparse's message should have been."""
        if match := re.match(r"unrecognized arguments: (-[^\s=]+)", message):
            shown = (action.option_strings for action in self._actions if action.help is not argparse.SUPPRESS)
            known = [name for names in shown for name in names]
            return suggest(match[1], known, {other: name for other, name in _OTHER_OPTIONS.items() if name in known})
        if match := re.match(r"argument (\S+): invalid choice: '([^']*)' \(choose from (.*)\)", message):
            option, word, choices = match.groups()
            if option == "--preset" and word in ENCODER_PRESETS:
                return f" (did you mean --encoder-preset {word}?)"
            return suggest(word, [choice.strip("'") for choice in choices.split(", ")], OTHER_DTYPE_NAMES)
        return ""

    @contextmanager
    def wrong_usage(self) -> Iterator[None]:
        """Turn the package's errors in this block into wrong usage: for what the command line alone determines."""
        try:
            with speaking_of_options():
                yield
        except LTXVAEError as error:
            self.error(str(error))
        except OSError as error:  # such as a name that is too long
            self.error(f"{error.filename}: {error.strerror}")

    def print_help(self, file: object = None, *, is_short: bool = False) -> None:
        # argparse passes over an error. A help that is longer than the buffer of standard output has it here.
        if problem := finish_output(self.format_short_help() if is_short else self.format_help()):
            super().exit(*problem)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        # With an error if the version could not be printed.
        if problem := finish_output():
            status, message = problem
        super().exit(status, message)


def _as_called(text: str) -> str:
    """A text with the commands as they were called: by a console script, they are not modules of the user's Python."""
    script = os.path.basename(sys.argv[0])
    if not script.startswith("mlx_ltx_vae"):
        return text
    text = text.replace("python -m mlx_ltx_vae.", "mlx_ltx_vae " if script == "mlx_ltx_vae" else "mlx_ltx_vae.")
    return text.replace("python -m mlx_ltx_vae", "mlx_ltx_vae")


class _ShortHelp(argparse.Action):
    """The action of `-h`."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        assert isinstance(parser, CommandParser)
        parser.print_help(is_short=True)
        parser.exit()


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the lines of a text that has several, such as examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text if "\n" in text else argparse.HelpFormatter._fill_text.__get__(self)
        return fill(text, width, indent)


def shorten(text: str) -> str:
    """The first statement of an option's help."""
    return re.split(r"; |\. | \(|: ", text)[0]


def examples(*lines: str) -> str:
    """The epilog of a command's help."""
    return "\n  ".join(["examples:", *lines])


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Add the option of every command."""
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of commands that write a file and report on it."""
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output, nothing else")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress and no report")
    add_common_options(parser)


def run_command(
    command: Callable[[argparse.Namespace], None], arguments: argparse.Namespace, *, computes: bool = False
) -> int:
    """Run a command, which `computes` if it runs a network in this process, and return its exit code.

    0: done. 1: failed, with one line on standard error. 130, 143, 129, 131: ended by SIGINT, SIGTERM, SIGHUP, SIGQUIT.
    (`CommandParser` exits with 2.) Each warning is one line on standard error.
    """
    import mlx.core as mx  # only now, since a parser needs none of it

    # MLX asks for this before Python shuts down; some versions are reported to abort at exit (134) without it.
    atexit.unregister(mx.clear_streams)
    atexit.register(mx.clear_streams)
    code = _run(command, arguments, computes)
    if (problem := finish_output()) and code == 0:
        code, message = problem
        _print_error(message)
    return code


def _run(command: Callable[[argparse.Namespace], None], arguments: argparse.Namespace, computes: bool) -> int:
    from ..backend.device import compiler_search, explained_device_errors, is_cpu

    try:
        if computes and is_cpu():
            delay_signals(compiler_search())
        # After the block signals are ignored, so that an error is the only line.
        with explained_device_errors(), ended_by_signals(_is_silent), warnings.catch_warnings(), speaking_of_options():
            warnings.showwarning = _show_warning
            command(arguments)
    except KeyboardInterrupt:  # where another program calls the command's function
        _print_error("interrupted\n")
        return 130
    except (BrokenPipeError, OutputClosed):  # of standard output: those of ffmpeg have become errors that name the file
        return _BROKEN_PIPE
    except Exception as error:  # every failure becomes one line and an exit code
        if arguments.debug:
            print_traceback(error)
        _print_error(f"error: {_describe_for_rank(error)}\n")
        return 1
    return 0


def _print_error(text: str) -> None:
    with suppress(OSError):  # nobody can be told then, but by the exit code
        sys.stderr.write(text)
        sys.stderr.flush()


def finish_output(text: str = "") -> tuple[int, str] | None:
    """Write what standard output holds back and a text; if that fails, the code, and the error unless nobody reads."""
    try:
        if sys.stdout is not None:
            sys.stdout.write(text)
            sys.stdout.flush()
    except OSError as error:
        if is_command():  # Python writes the rest when it exits, which would be one more error
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return _BROKEN_PIPE, ""
        return 1, f"error: {_describe_output_error(error)}\n"
    return None


def _describe_output_error(error: OSError) -> str:
    return f"standard output: cannot be written ({error.strerror or error})."


def _is_silent(number: signal.Signals) -> bool:
    """Whether others report the end by a signal: of several ranks, the launcher ends all when one has failed."""
    rank = _rank()
    return rank is not None and (rank > 0 or number is not signal.SIGINT)


def _rank() -> int | None:
    """As `launched_rank`; None also if it is not a number, which is an error where ranks are joined."""
    with suppress(DistributedError):
        return launched_rank()
    return None


def leave_it_to_the_first_rank() -> None:
    """Let the first rank report an error that it has, too: the launcher then ends this process before this returns."""
    die_by_termination()
    time.sleep(10)  # more than the ranks start one after the other


def _describe_for_rank(error: Exception) -> str:
    """An error in one line. If it may be for the first rank to report, this returns only if that rank does not."""
    from ..distributed import end_time_limit, is_lost_peer

    rank = _rank()
    if rank is None:
        return describe_error(error)
    end_time_limit()
    is_lost = is_lost_peer(error)
    text = "another rank has ended before the work was done." if is_lost else describe_error(error)
    if rank == 0:
        return text
    if is_lost or isinstance(error, (DecodeError, DistributedError)):  # all ranks raise it, or another one caused it
        leave_it_to_the_first_rank()
    return f"rank {rank}: {text}"


def print_report(report: object, file: TextIO | None = None) -> None:
    """Print a text of several lines, each `printable`. Names in it must be so before: they may have line breaks."""
    print(_escape_lines(report), file=file)


def print_traceback(error: Exception) -> None:
    """As Python does, `printable`."""
    _print_error(_escape_lines("".join(traceback.format_exception(error))))


def _escape_lines(text: object) -> str:
    return "\n".join(map(printable, str(text).split("\n")))


def write_line(text: str, file: TextIO) -> None:
    """Print a line at once, `printable`, also into a file, and keep a progress bar intact."""
    from tqdm import tqdm

    try:
        tqdm.write(printable(text), file=file)
        file.flush()
    except OSError as error:
        if file is sys.stderr:
            return
        if isinstance(error, BrokenPipeError):
            raise
        raise WriterError(_describe_output_error(error)) from error


def positive(text: str) -> int:
    """The type of `--chunk 2`: a whole number above 0."""
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{quote(text)} is not a whole number of at least 1")
    return int(text)


def frame_range(text: str) -> slice:
    """The type of `--frames 24:48`, as Python slices: either end may be left out, or count from the end (-10:)."""
    if match := re.fullmatch(_RANGE, text):
        first, end = (None if number is None else int(number) for number in match.groups())
        if end is None or (first or 0) < end or (first or 0) >= 0 > end:
            return slice(first or 0, end)
        raise argparse.ArgumentTypeError(f"{text} has no frame; the second number is one more than the last frame")
    hint = "such as 24:48 for the frames 24 to 47"
    if re.fullmatch(r"-[0-9]{1,9}", text):
        hint = f"such as {text}: for the last {format_count(int(text[1:]), 'frame').removeprefix('1 ')}"
    if re.fullmatch(r"[0-9]{1,9}", text):
        some = format_count(int(text), "frame").removeprefix("1 ")
        hint = f"such as :{text} for the first {some}, or {text}:{int(text) + 1} for frame {text} alone"
    raise argparse.ArgumentTypeError(f"{quote(text)} is not a range of frames; write A:B, {hint}")


def format_range(frames: slice) -> str:
    """A `frame_range` as it is typed."""
    return f"{frames.start}:{'' if frames.stop is None else frames.stop}"


def duration(text: str) -> Fraction:
    """The type of `--first-seconds 2.5`: a number above 0."""
    if re.fullmatch(r"[0-9]{0,9}\.?[0-9]{1,9}", text) and Fraction(text) > 0:
        return Fraction(text)
    raise argparse.ArgumentTypeError(f"{quote(text)} is not a number of seconds above 0, such as 2 or 0.5")


def share(text: str) -> float:
    """The type of `--timestep 0.05`: a number from 0 to 1."""
    with suppress(ValueError):
        if 0 <= (value := float(text)) <= 1:
            return value
    raise argparse.ArgumentTypeError(f"{quote(text)} is not a number from 0 to 1")


def argument_type(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """An argparse type that shows the message of `parse`'s error, which argparse would replace."""

    def convert(text: str) -> Value:
        try:
            return parse(text)
        except (ValueError, LTXVAEError) as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert


# The types of --size 768x512, --fps 23.976, --grid 16x22x40 (F', H', W'), --tile 512:64, --tile-frames 64:24 and
# --memory-budget 8GB.
frame_size = argument_type(parse_size)
frame_rate = argument_type(parse_fps)
grid = argument_type(parse_grid)
tile = argument_type(lambda text: SpatialTilingConfig(*parse_tile(text)))
tile_frames = argument_type(lambda text: TemporalTilingConfig(*parse_tile(text)))
# Only checked, since a percentage depends on the machine.
memory_budget = argument_type(lambda text: (parse_bytes(text, available=1), text)[1])


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    write_line(f"warning: {one_line(message)}", sys.stderr)
