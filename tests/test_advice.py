"""What errors and warnings advise is done, and works: options and commands are taken from the messages themselves."""

import argparse
import ast
import re
import shlex
from collections.abc import Callable
from fractions import Fraction
from functools import partial, reduce
from pathlib import Path

import numpy as np
import pytest

import mlx_ltx_vae
from commands import PARSERS
from latent_files import rescue_latents
from mlx_ltx_vae import VideoWriter, demo, load_latents, save_latents
from test_usage import MAINS, NAMES, WRONG

Words = list[str]


def action_of(name: str, option: str) -> argparse.Action:
    return PARSERS[name]()._option_string_actions[option]


def add(name: str, words: Words, option: str, value: str | None = None) -> Words:
    """The command line with an option, whose value is the advised one, or one that fits."""
    action = action_of(name, option)
    if action.nargs == 0:
        return [*words, option]
    samples = {"N": "25", "RATE": "24", "FILE": "file.npz", "A:B": "0:9"}
    return [*leave_out(name, words, option), option, value or (action.choices or [samples.get(action.metavar, "x")])[0]]


def leave_out(name: str, words: Words, option: str) -> Words:
    """The command line without an option and its value, or without inputs."""
    kept, rest = [], list(words)
    while rest:
        is_option = rest[0].startswith("-")
        nargs = action_of(name, rest[0]).nargs if is_option else 0
        count = 2 if nargs is None else 1 + int(nargs)
        if rest[0] != option and (is_option or option.startswith("-")):
            kept += rest[:count]
        rest = rest[count:]
    return kept


def replace(words: Words, old: str, new: str) -> Words:
    return [part for word in words for part in (shlex.split(new) if word == old else [word])]


def output(name: str, words: Words, value: str) -> Words:
    return [*leave_out(name, words, "-o"), "-o", value]


def correct(name: str, words: Words, option: str, wrong: str, right: str) -> Words:
    return replace(words, wrong, right) if option in words else words


OPTION = r"--?[a-z][a-z-]*"
NAMED = rf"(?:LATENTS|SOURCE|{OPTION})"
#: What an advice looks like, and the command lines after it.
ADVICE: dict[str, Callable[..., list[Words]]] = {
    rf"add ({OPTION})(?: (acescct|exact))?": lambda name, words, *found: [add(name, words, *found)],
    rf"is for ({OPTION}); add it": lambda name, words, option: [add(name, words, option)],
    rf"leave out ({NAMED}(?:(?:, | and ){NAMED})*)": lambda name, words, names: [
        reduce(partial(leave_out, name), re.findall(NAMED, names), words)
    ],
    rf"did you mean ({OPTION}) (\w+)\?": lambda name, words, option, value: [
        add(name, leave_out(name, words, "--preset"), option, value)
    ],
    rf"unrecognized arguments: (\S+).*did you mean ({OPTION})\?": lambda name, words, *found: [replace(words, *found)],
    r"'([^']*)' (?:\(choose|is not supported).*did you mean (\w+)\?": lambda _, words, *found: [replace(words, *found)],
    r"use one of (\w+)": lambda name, words, codec: [add(name, words, "--codec", codec)],
    r"use (\.\w+) or (\.\w+)\.": lambda name, words, *endings: [output(name, words, f"out{each}") for each in endings],
    r"a name that ends in (\.\w+), or in (\.\w+)": lambda name, words, *endings: [
        output(name, words, f"out{each}") for each in endings
    ],
    r"name a folder(?: for them)?: (?:-o )?(\S+/)": lambda name, words, folder: [output(name, words, folder)],
    r"name a folder \((\S+)\) or a pattern \((\S+)\)": lambda name, words, *outputs: [
        output(name, words, each) for each in outputs
    ],
    r"write (\S+/) for .*, or (\S+)\.$": lambda name, words, *outputs: [output(name, words, each) for each in outputs],
    r"(\S+): \{\w*\} stands for nothing; write (\{name\})": lambda name, words, old, new: [
        replace(words, old, re.sub(r"\{\w*\}", new, old))
    ],
    r"error: (\S+): .*write (@\S+)\.": lambda _, words, *found: [replace(words, *found)],
    r"error: (\S+): .*add -o before it": lambda _, words, old: [replace(words, old, f"-o {old}")],
    rf"argument ({OPTION}): .*(?:such as|write it as|per second as) (\S*[^\s.,;])": lambda name, words, *found: [
        add(name, words, *found)
    ],
    r"leave out (\.\w+)\.": lambda name, words, ending: [output(name, words, words[-1].removesuffix(ending))],
    r"go(?:es)? with (--mode) (exact|tiled)": lambda name, words, *found: [add(name, words, *found)],
}


def follow(name: str, words: Words, message: str) -> list[Words]:
    """The command lines that a message advises."""
    for pattern, advised in ADVICE.items():
        if match := re.search(pattern, message):
            return advised(name, words, *match.groups())
    return []


ADVISING = [
    (name, arguments) for main, arguments, _ in WRONG if (name := NAMES.get(main)) and "unrecognized" not in arguments
]


def run(name: str, words: Words) -> int:
    try:
        return MAINS[name](words)
    except SystemExit as end:
        return end.code


def test_what_errors_of_usage_advise_is_no_wrong_usage(capsys, tmp_path, monkeypatch):
    """Following the advice of each leads to a file that is missing, or to another advice that does."""
    monkeypatch.chdir(tmp_path)
    for module in ("decode", "encode", "info", "convert", "bench"):
        monkeypatch.setattr(f"mlx_ltx_vae.commands.{module}_command.run_command", lambda *_, **__: 0)
    num_followed = 0
    for name, arguments in ADVISING:
        lines = [shlex.split(arguments)]
        for _ in range(3):
            words = lines.pop(0)
            assert run(name, words) == 2
            error = capsys.readouterr().err.splitlines()[0]
            advised = follow(name, words, error)
            num_followed += len(advised)
            lines += [each for each in advised if run(name, each) == 2]
            after = capsys.readouterr().err
            assert error not in after, f"{name} {shlex.join(words)}: {error}"
            if not lines:
                break
        assert not lines, f"{name} {arguments}: {error}"
    assert num_followed > 60


# --- of runs --------------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A folder with latents of 1 and 9 frames of 64x64, in several kinds of files, outputs that exist, and a video."""
    monkeypatch.chdir(tmp_path)
    latents, _ = load_latents(demo.LATENTS)
    latents = latents[:, :, :2, :2, :2]
    save_latents("clip.safetensors", latents, fps=24)
    save_latents("still.safetensors", latents[:, :, :1], fps=24)
    save_latents("slow.safetensors", latents, fps=12)
    np.savez("two.npz", first=np.array(latents), second=np.array(latents))
    for folder in ("a", "b"):
        Path(folder).mkdir()
        save_latents(f"{folder}/clip.safetensors", latents)
    save_latents("window.safetensors", latents, fps=24, carry=1)
    for name in ("out.mp4", "clip.mp4", "o/clip.mp4", "o/still.mp4", "old.latent"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(b"kept")
    with VideoWriter("film.mkv", size=(72, 64), fps=24) as writer:
        writer.write(np.zeros((9, 64, 72, 3), np.uint8))
    return tmp_path


#: What messages of runs advise, and the command lines after it.
RUN_ADVICE: dict[str, Callable[..., list[Words]]] = {
    r"add (-y) to replace (?:it|them)(?:, or (-\w) to skip)?": lambda name, words, *options: [
        [*words, option] for option in options if option
    ],
    r"(-y) replaces": lambda name, words, option: [[*words, option]],
    r"add (--fps)\.": lambda name, words, option: [add(name, words, option)],
    r"the least that works is (\S+ [GM]B)": lambda name, words, size: [add(name, words, "--memory-budget", size)],
    r"choose frames within (\S+)\.": lambda name, words, frames: [add(name, words, "--frames", frames)],
    r"\((\w+), (\w+)\); choose one with --tensor": lambda name, words, *tensors: [
        [*add(name, words, "--tensor", tensor), "-y"] for tensor in tensors
    ],
    r"resize it to (\S+) \((--\w+)\), crop it to \S+ \((--\w+)\), or choose a size \((--\w+) WxH\)": (
        lambda name, words, size, *options: [[*add(name, words, option, size), "-y", "--pad"] for option in options]
    ),
    r"(\S+) and (\S+) would both .* in a table \((\S+), with the columns (\w+) and (\w+)\)": (
        lambda name, words, *found: [use_table(name, words, *found)]
    ),
    **ADVICE,
}


def use_table(name: str, words: Words, first: str, second: str, table: str, *columns: str) -> Words:
    Path(table).write_text(f"{','.join(columns)}\n{first},first.mp4\n{second},second.mp4\n")
    return [table, *(word for word in words if word not in (first, second))]


RUNS = [
    ("decode", "clip.safetensors -o out.mp4"),
    ("decode", "clip.safetensors"),
    ("decode", "clip.safetensors still.safetensors -o o/"),
    ("decode", "clip.safetensors -o a.mp4 --memory-budget 1MB"),
    ("decode", "clip.safetensors -o a.mp4 --frames 99:"),
    ("decode", "clip.safetensors slow.safetensors --join --carry 1 -o a.mp4"),
    ("decode", "two.npz -o a.mp4"),
    ("decode", "a/clip.safetensors b/clip.safetensors -o new/"),
    ("decode", "clip.safetensors -o a.mp4 --unnormalized"),
    ("decode", "window.safetensors clip.safetensors --join --carry 2 -o a.mp4"),
    ("convert", "clip.safetensors -o old.latent"),
    ("encode", "film.mkv -o a.safetensors"),
]


@pytest.mark.parametrize(("name", "arguments"), RUNS)
def test_what_messages_of_runs_advise_works(files, capsys, name, arguments):
    words = [*arguments.split(), "-m", str(demo.VAE)]
    run(name, words)
    (message, *_) = capsys.readouterr().err.splitlines()
    advised = []
    for pattern, lines in RUN_ADVICE.items():
        if match := re.search(pattern, message):
            advised = lines(name, words, *match.groups())
            break
    assert advised, message
    for line in advised:
        assert run(name, [*line, "-q"]) == 0, f"{message} -> {shlex.join(line)}: {capsys.readouterr().err}"
        assert message not in capsys.readouterr().err


def test_the_command_for_latents_of_a_failed_decode_decodes_them(files, capsys):
    latents, _ = load_latents("still.safetensors")
    message = rescue_latents(latents, "failed.mp4", Fraction(24), None)
    (line,) = re.findall(r"mlx_ltx_vae decode (\S+ -m VAE -o \S+\.mp4)", message)
    assert run("decode", [*line.replace("VAE", str(demo.VAE)).split(), "-q", "-y"]) == 0


# --- of all messages ------------------------------------------------------------------------------------------------

#: Modules with options of other programs.
OTHER_PROGRAMS = ("launchers.py", "other_tools.py", "ffmpeg.py", "codecs.py", "compression.py", "probe.py", "reader.py")
OTHER_OPTIONS = {"--help", "--completion", "--with"}  # the last one of uv


def texts_of(module: ast.Module) -> list[str]:
    """The texts in a module, except its docstrings."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(module)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and isinstance(node.body[0], ast.Expr)
    }
    constants = (node for node in ast.walk(module) if isinstance(node, ast.Constant) and id(node) not in docstrings)
    return [constant.value for constant in constants if isinstance(constant.value, str)]


def test_options_and_commands_that_a_text_of_the_package_names_exist():
    folder = Path(mlx_ltx_vae.__file__).parent
    parsers = {name: make() for name, make in PARSERS.items()}
    options = {option for parser in parsers.values() for option in parser._option_string_actions} | OTHER_OPTIONS
    command = rf"mlx_ltx_vae ({'|'.join(parsers.keys() - {'run'})}) ([^|;)]+)"
    num_options, commands = 0, []
    for path in sorted(folder.rglob("*.py")):
        if path.name in OTHER_PROGRAMS:
            continue
        for text in texts_of(ast.parse(path.read_text("utf-8"))):
            named = re.findall(r"(?<![\w-])--[a-z][a-z-]+", f" {text}".partition(" -- ")[0])  # the rest is of a program
            assert options.issuperset(named), f"{path}: {text}"
            num_options += len(named)
            commands += re.findall(command, text)
    examples = [line for parser in parsers.values() for line in (parser.epilog or "").splitlines()]
    commands += [found for line in examples for found in re.findall(command, line)]
    assert num_options > 200
    assert len(commands) > 20
    for name, line in commands:
        words = [re.sub(r"[{}%()]", "", word) or "clip" for word in shlex.split(line.split("\n")[0], posix=False)]
        parsers[name].parse_inputs(words)
