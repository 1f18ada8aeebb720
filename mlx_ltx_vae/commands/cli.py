"""Parser of every command, and the types of arguments. This module imports no MLX."""

import argparse
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from copy import copy
from fractions import Fraction
from functools import partial
from typing import Any, NoReturn, TextIO, TypeVar

from .. import DistributedError, LTXVAEError, __version__, tiling
from ..backend.machine import OTHER_DTYPE_NAMES
from ..codec_table import ENCODER_PRESETS
from ..errors import excerpt, quote, speaking_of_options, suggest
from ..files import expand_path
from ..process import die_by_termination
from ..shapes import parse_grid, parse_size
from ..startup import import_command, is_command
from ..units import format_count, parse_bytes, parse_fps

Value = TypeVar("Value")

#: Names of arguments that are files or folders.
PATHS = ("LATENTS", "VIDEO", "FILE", "OUT", "VAE", "MODEL", "UPSAMPLER", "AUDIO", "FOLDER", "SOURCE")
_COLORS = {"error": "31", "warning": "33"}  # red and yellow, by the first word of a line
_HELP = {argparse.SUPPRESS: "help"}  # destination of -h where --help shows more
_COLOR_CHOICES = ("auto", "always", "never")
_color_choice = ContextVar("color", default="auto")
_RANGE = r"(-?[0-9]{1,9})?:(-?[0-9]{1,9})?"
_SECONDS = r"(-?[0-9]{0,9}\.?[0-9]{1,9})s"
_BOUND = r"(-?[0-9.]{1,19}s?)?"
# Environment variables with the rank, which `mlx.launch` sets for its backends, and launchers of MPI.
_RANK_VARIABLES = ("MLX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
BROKEN_PIPE = 128 + signal.SIGPIPE  # what a shell reports, if a reader such as `head` has read enough


class CommandParser(argparse.ArgumentParser):
    """Parser of every command, with `--version`. Wrong usage is two lines on standard error, and exit code 2.

    Attributes:
        commands: the parsers of the other commands, for errors that name the one that has an option.
    """

    commands: "Mapping[str, Callable[[], CommandParser]]" = {}

    def __init__(self, *, first: Collection[str] = (), examples: Collection[str] = (), **options: Any) -> None:
        """Make a parser whose `-h` shows only the options of the destinations `first`. Without any, it shows all.

        `examples` are arguments of the command.
        """
        if examples:
            options["epilog"] = "\n  ".join(["examples:", *(f"{options['prog']} {example}" for example in examples)])
        if os.path.basename(sys.argv[0]) == "mlx_ltx_vae":  # a script, whose Python may not be the user's
            options = {name: text.replace("python -m mlx_ltx_vae", "mlx_ltx_vae") for name, text in options.items()}
        options["formatter_class"] = partial(_HelpFormatter, width=min(shutil.get_terminal_size().columns, 80) - 2)
        super().__init__(allow_abbrev=False, add_help=False, **options)
        self.suggest_on_error = False  # as Python 3.15 does; `error` has its own suggestions
        # Matches arguments with a minus sign that are no options: numbers, and ranges such as `--frames -10:`.
        self._negative_number_matcher = re.compile(rf"-[0-9]*\.?[0-9]+$|{_BOUND}:{_BOUND}$")
        self._first = first
        if first:
            hidden: Any = {"nargs": 0, "dest": argparse.SUPPRESS, "default": argparse.SUPPRESS}
            self.add_argument("-h", action=_ShortHelp, help="show the most common options", **hidden)
        names = ["--help"] if first else ["-h", "--help"]
        self.add_argument(*names, action="help", help=f"show {'all options' if first else 'this help'}")
        self.add_argument("--version", action="version", version=f"mlx_ltx_vae {__version__}", help="show the version")

    def arrange(self, groups: Mapping[str, str]) -> None:
        """Show options in these groups, by what one does with them.

        `groups` has the destinations of options by the titles of groups, in order. Options that are in none are
        refused, so that a new one gets its place.
        """
        places = {dest: (title, index) for title, dests in groups.items() for index, dest in enumerate(dests.split())}
        titles, self._action_groups = list(groups), []
        ordered_actions = sorted(self._actions, key=lambda action: places[_HELP.get(action.dest, action.dest)][1])
        for title in titles:
            group = self.add_argument_group(title)
            group._group_actions += [
                action for action in ordered_actions if places[_HELP.get(action.dest, action.dest)][0] == title
            ]
        self._action_groups = [group for group in self._action_groups if group._group_actions]

    def format_short_help(self) -> str:
        """Format the help on one screen."""
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        formatter.start_section("most common options")
        for action in self._actions:
            if action.dest in self._first and action.help:
                brief = copy(action)
                brief.help = shorten(action.help)
                formatter.add_argument(brief)
        formatter.end_section()
        formatter.add_text(self.epilog)
        formatter.add_text(f'"{self.prog} --help" shows all options.')
        return formatter.format_help()

    def parse_inputs(self, argv: list[str] | None) -> argparse.Namespace:
        """Parse inputs before, between and after options. "--" ends the options: what follows are names of files."""
        _color_choice.set("auto")
        arguments = sys.argv[1:] if argv is None else argv
        if "--" in arguments:
            # argparse's intermixed parsing forgets the mark, and no name after a folder looks like an option.
            end = arguments.index("--")
            names = [f"./{name}" if name.startswith("-") and name != "-" else name for name in arguments[end + 1 :]]
            arguments = [*arguments[:end], *names]
        return self.parse_intermixed_args(arguments)

    def expand_paths(self, arguments: argparse.Namespace) -> None:
        """Replace "~" at the start of paths by the user's home, as shells do where it stands alone, not after "=".

        An empty input is wrong usage, such as that of a shell variable that is not set.
        """
        for action in self._actions:
            value = getattr(arguments, action.dest, None)
            if action.metavar not in PATHS or value is None:
                continue
            paths = []
            for text in value if isinstance(value, list) else [value]:
                if not text and not action.option_strings:
                    self.error(f"{action.metavar} is empty; name a file")
                mark = "@" if text.startswith("@") else ""
                paths.append(text and mark + expand_path(text.removeprefix(mark), LTXVAEError))
            setattr(arguments, action.dest, paths if isinstance(value, list) else paths[0])

    def refuse_others(self, arguments: argparse.Namespace, allowed: Collection[str], reason: str) -> None:
        """Refuse options of the command line whose destination is not in `allowed`."""
        for action in self._actions:
            value = getattr(arguments, action.dest, action.default)
            is_given = value != action.default and action.const in (None, value)  # two flags may have one destination
            if action.option_strings and action.dest not in allowed and is_given:
                self.error(f"{reason}; leave out {action.option_strings[0]}")

    def error(self, message: str) -> NoReturn:
        # All ranks have the same command line, so the first one reports the error.
        text = excerpt(message, 260) + self._suggestion(message)  # the message may quote a long argument
        if rank := rank_if_launched():
            leave_it_to_the_first_rank()
            text = f"rank {rank}: {text}"
        self.exit(2, f'{colored("error:", sys.stderr)} {text}\nrun "{self.prog} --help" for the options\n')

    def _suggestion(self, message: str) -> str:
        """Suggest an option or choice for a mistyped one in argparse's message."""
        if match := re.match(r"unrecognized arguments: (?:.*? )?(-[^\s=]+)", message):
            return self._describe_unknown(match[1])
        if match := re.match(r"argument (\S+): invalid choice: '([^']*)' \(choose from (.*)\)", message):
            option, word, choices = match.groups()
            if option == "--preset" and word in ENCODER_PRESETS:
                return f" (did you mean --encoder-preset {word}?)"
            return suggest(word, [choice.strip("'") for choice in choices.split(", ")], OTHER_DTYPE_NAMES)
        return ""

    def _describe_unknown(self, option: str) -> str:
        from .other_tools import find_other  # only errors need this table

        option_names = {
            name for action in self._actions if action.help != argparse.SUPPRESS for name in action.option_strings
        }
        if other := find_other(option, option_names):
            return f" ({other})"
        owners = [name for name, make in self.commands.items() if option in make()._option_string_actions]
        if not owners:
            return suggest(option, sorted(option_names))
        *first_owners, last = owners
        return f" (an option of {', '.join(first_owners)} and {last})" if first_owners else f" (an option of {last})"

    @contextmanager
    def wrong_usage(self) -> Iterator[None]:
        """Turn the package's errors in this block into wrong usage. Use it for checks of the command line alone."""
        try:
            with speaking_of_options():
                yield
        except LTXVAEError as error:
            self.error(str(error))
        except OSError as error:  # such as a name that is too long
            self.error(f"{error.filename}: {error.strerror}")

    def print_help(self, file: object = None, *, is_short: bool = False) -> None:
        # argparse ignores errors of standard output. They occur here if the help is longer than the buffer.
        if problem := finish_output(self.format_short_help() if is_short else self.format_help()):
            super().exit(*problem)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        # The version may not have been printed.
        if problem := finish_output():
            status, message = problem
        super().exit(status, message)


class _ShortHelp(argparse.Action):
    """Action of `-h`."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        assert isinstance(parser, CommandParser)
        parser.print_help(is_short=True)
        parser.exit()


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Formatter that keeps the lines of a text that has several, such as examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text if "\n" in text else argparse.HelpFormatter._fill_text.__get__(self)
        return fill(text, width, indent)


def shorten(text: str) -> str:
    """Return the first statement of an option's help."""
    return re.split(r"; |\. | \(|: ", text)[0]


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Add the option of every command."""
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    color = "errors and warnings in color: in a terminal without NO_COLOR (auto, the default), always, or never"
    parser.add_argument("--color", choices=_COLOR_CHOICES, action=_ColorAction, help=color)


class _ColorAction(argparse.Action):
    """Action of `--color`, which counts from here on."""

    def __call__(self, parser: argparse.ArgumentParser, *values: Any) -> None:
        _color_choice.set(values[1])


def colored(text: str, file: TextIO) -> str:
    """Return a line for a stream, with its first word in color if that is an error or a warning."""
    choice = _color_choice.get()
    is_plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb" or not file.isatty()
    word = text.partition(":")[0]
    if word not in _COLORS or choice == "never" or (choice == "auto" and is_plain):
        return text
    return f"\x1b[{_COLORS[word]}m{word}:\x1b[0m{text[len(word) + 1 :]}"


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of commands that write a file and report on it."""
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output, nothing else")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress and no report")
    add_common_options(parser)


def finish_output(text: str = "") -> tuple[int, str] | None:
    """Write a text and flush standard output. On failure, return the exit code and the error ("" if a pipe broke)."""
    try:
        if sys.stdout is not None:
            sys.stdout.write(text)
            sys.stdout.flush()
    except OSError as error:
        if is_command():  # Python flushes it again at exit, which would print another error
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return BROKEN_PIPE, ""
        return 1, f"error: {describe_output_error(error)}\n"
    return None


def describe_output_error(error: OSError) -> str:
    """Describe why standard output cannot be written."""
    return f"standard output: cannot be written ({error.strerror or error})."


def launched_rank() -> int | None:
    """Return the rank of this process, or `None` if no launcher has started it."""
    name = next((name for name in _RANK_VARIABLES if name in os.environ), None)
    if name is None:
        return None
    text = os.environ[name]
    if not re.fullmatch("[0-9]{1,9}", text):
        raise DistributedError(
            f"{name} is {quote(text)}, which is not the number of a rank; unset it, or use mlx.launch."
        )
    return int(text)


def rank_if_launched() -> int | None:
    """Return `launched_rank`, or `None` if it is not a number, which is an error later, when ranks are joined."""
    with suppress(DistributedError):
        return launched_rank()
    return None


def leave_it_to_the_first_rank() -> None:
    """Wait for the first rank to report an error that all ranks have. The launcher ends this process meanwhile."""
    die_by_termination()
    time.sleep(10)  # longer than the difference between the starts of ranks


def _whole_number(least: int, unit: str = "", *, max_digits: int = 18) -> Callable[[str], int]:
    """Return the argparse type of whole numbers from `least` on."""

    def parse(text: str) -> int:
        if not re.fullmatch(rf"[0-9]{{1,{max_digits}}}", text) or int(text) < least:
            raise argparse.ArgumentTypeError(f"{quote(text)} is not a whole number of at least {least}{unit}")
        return int(text)

    return parse


# The types of --chunk 2, --blend 0, and --max-size 512, which is at least the pixels of a latent cell.
positive, count, preview_size = _whole_number(1), _whole_number(0), _whole_number(16, " pixels", max_digits=6)


def frame_range(text: str) -> slice:
    """Parse `--frames 24:48` as a Python slice: either end may be left out, or count from the end (-10:).

    `--frames 24` means the first 24.
    """
    if text.isdecimal():
        return slice(0, positive(text))
    if match := re.fullmatch(_RANGE, text):
        first, end = (None if number is None else int(number) for number in match.groups())
        if end is None or (first or 0) < end or (first or 0) >= 0 > end:
            return slice(first or 0, end)
        raise argparse.ArgumentTypeError(f"{text} has no frame; the second number is one more than the last frame")
    hint = "such as 24:48 for the frames 24 to 47"
    if re.fullmatch(r"-[0-9]{1,9}", text):
        hint = f"such as {text}: for the last {format_count(int(text[1:]), 'frame').removeprefix('1 ')}"
    raise argparse.ArgumentTypeError(f"{quote(text)} is not a range of frames; write A:B, {hint}")


def time_range(text: str) -> slice:
    """Parse `--frames 24:48`, or `--frames 1s:2.5s` as a slice in which seconds are fractions. 2s is the first two."""
    bounds = text.split(":") if ":" in text else ["0", text]
    matches = [re.fullmatch(_SECONDS, bound) for bound in bounds]
    if len(bounds) != 2 or not any(matches):
        return frame_range(text)
    values = [Fraction(match[1]) if match else bound for match, bound in zip(matches, bounds, strict=True)]
    first, end = (value if isinstance(value, Fraction) else _frame_number(value, text) for value in values)
    are_alike = (first or 0) >= 0 and (end is None or end >= 0) and all(matches)
    if end is not None and (end == 0 or (are_alike and (first or 0) >= end)):
        raise argparse.ArgumentTypeError(f"{text} has no frame; the second time is the end of the last frame")
    return slice(first or 0, end)


def _frame_number(text: str, range_text: str) -> int | None:
    """Parse an end of a range that is no time: a frame, or nothing."""
    if not re.fullmatch(r"(-?[0-9]{1,9})?", text):
        problem = f"{quote(range_text)} is not a range of frames; write A:B, such as 24:48, or 1s:2.5s in seconds"
        raise argparse.ArgumentTypeError(problem)
    return int(text) if text else None


def share(text: str) -> float:
    """Parse `--timestep 0.05`: a number from 0 to 1."""
    with suppress(ValueError):
        if 0 <= (value := float(text)) <= 1:
            return value
    raise argparse.ArgumentTypeError(f"{quote(text)} is not a number from 0 to 1")


def argument_type(parse: Callable[[str], Value] | str) -> Callable[[str], Value]:
    """Return an argparse type that shows the message of `parse`'s error, which argparse would replace.

    Pass a function that takes long to import as "module:name".
    """

    def convert(text: str) -> Value:
        function: Callable[[str], Value] = import_command(parse) if isinstance(parse, str) else parse
        try:
            return function(text)
        except (ValueError, LTXVAEError) as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert


# The types of --size 768x512, --fps 23.976, --grid 16x22x40 (F', H', W'), --tile 512:64, --tile-frames 64:24 and
# --memory-budget 8GB.
frame_size = argument_type(parse_size)
frame_rate = argument_type(parse_fps)
grid = argument_type(parse_grid)
tile = argument_type(lambda text: tiling.SpatialTilingConfig(*tiling.parse_tile(text)))
tile_frames = argument_type(lambda text: tiling.TemporalTilingConfig(*tiling.parse_tile(text)))
# Only checked, since a percentage depends on the machine.
memory_budget = argument_type(lambda text: (parse_bytes(text, available=1), text)[1])
