"""The rules of the house: which room may import which, and what only certain files may do.

The map below is the design's table of rooms. A room is a file or folder of `mlx_ltx_vae`; a new one needs a place
in the map. Imports count wherever they stand: inside functions and under `TYPE_CHECKING` too.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "mlx_ltx_vae"
ROOT = Path(__file__).parent.parent

PARTS = {"config", "layers", "errors", "padding"}
GEOMETRY = {"tiling", "memory", "reach", "plan"}
NETWORKS = {"blocks", "decoder", "encoder", "diffusion_decoder"}
RUNNING = {"device", "loading", "noise", "stream", "frames", "intake", "spool", "execution", "encoding"}
LIBRARY = (
    {"errors", "padding", "config", "checkpoint", "layers", "vae", "media", "demo"} | GEOMETRY | NETWORKS | RUNNING
)
COMMANDS = {"cli", "decode", "encode", "info", "bench"}

MAY_IMPORT = {
    "errors": set(),
    "padding": set(),
    "config": {"errors", "padding"},
    "checkpoint": {"config", "errors"},
    "layers": {"errors", "padding"},
    "blocks": PARTS,
    "decoder": PARTS | {"blocks"},
    "encoder": PARTS | {"blocks"},
    "diffusion_decoder": PARTS | {"blocks"},
    "tiling": {"errors"},
    "memory": {"config", "padding"},
    "reach": {"config"},
    "plan": {"config", "padding", "memory", "reach", "tiling", "errors"},
    "device": {"memory"},
    "loading": {"checkpoint", "errors"},
    "noise": {"errors"},
    "stream": {"layers", "errors"},
    "frames": {"errors"},
    "intake": {"config", "errors"},
    "spool": {"errors"},
    "execution": PARTS | {"decoder", "plan", "stream", "frames", "spool", "tiling"},
    "encoding": PARTS | {"encoder", "intake", "stream", "tiling"},
    "vae": LIBRARY - {"vae", "media", "demo"},
    "media": {"errors"},
    "demo": {"errors"},
    "summary": {"config", "checkpoint", "media", "plan", "reach", "vae", "errors"},
    "distributed": LIBRARY,
    "__init__": LIBRARY | {"distributed"},
    "weights_convert": {"config", "checkpoint", "errors"},
} | {command: LIBRARY | COMMANDS | {"distributed", "__init__", "summary"} for command in COMMANDS}

FILES_MAY_IMPORT = {  # beyond their room
    "weights_convert/__main__.py": {"cli", "vae"},
    "weights_convert/card.py": {"__init__"},  # the version
    "weights_convert/convert.py": {"media"},  # how an OSError becomes a WriterError
    "weights_convert/tensors.py": {"media"},  # the header of a safetensors file
    "weights_convert/verify.py": {"vae"},
}
MAY_TALK = COMMANDS | {"weights_convert"}  # argparse, print, tqdm
WITHOUT_MLX = {"errors", "padding", "config", "memory", "reach", "plan", "tiling", "media"}
MLX_FILES = {f"{PACKAGE}/media/latents.py", f"{PACKAGE}/tiling/blend.py"}  # the only ones in these rooms
MAY_START_PROCESSES = (
    f"{PACKAGE}/bench/processes.py"  # measures in fresh processes; beside it, one file talks to ffmpeg
)


def room_of(path: str) -> str:
    """The room a file belongs to: the first name below the package."""
    top, *rest = path.removesuffix(".py").split("/")
    return rest[0] if top == PACKAGE else top


def imported_modules(path: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and absolute dotted name of everything a file imports, `from a import b` as `a.b`."""
    package = path.split("/")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) - node.level + 1] if node.level else []
            base = parents + (node.module.split(".") if node.module else [])
            for alias in node.names:
                yield node.lineno, ".".join([*base, alias.name])


def imported_room(module: str) -> str | None:
    """The room of ours that a dotted name leads to; `__init__` for what the package itself exports."""
    top, *rest = module.split(".")
    if top != PACKAGE:
        return top if top in MAY_IMPORT else None
    return rest[0] if rest and (rest[0] in MAY_IMPORT or len(rest) > 1) else "__init__"


def import_violations(path: str, tree: ast.AST) -> Iterator[str]:
    """Imports that walk against the way, or bring a library to a room that must not know it."""
    room = room_of(path)
    allowed = MAY_IMPORT[room] | FILES_MAY_IMPORT.get(path, set())
    for line, module in imported_modules(path, tree):
        target = imported_room(module)
        if target and target != room and target not in allowed:
            yield f"{path}:{line}: {room} must not import {target}"
        library = module.split(".")[0]
        if library == "mlx" and room in WITHOUT_MLX and path not in MLX_FILES:
            yield f"{path}:{line}: must not import mlx"
        if library in {"argparse", "tqdm"} and room not in MAY_TALK:
            yield f"{path}:{line}: {library} belongs to the command-line modules"


def habit_violations(path: str, tree: ast.AST) -> Iterator[str]:
    """Calls of print outside the command line, and exceptions that vanish."""
    for node in ast.walk(tree):
        where = f"{path}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.ExceptHandler) and all(is_nothing(statement) for statement in node.body):
            yield f"{where}: an exception is swallowed"
        if not isinstance(node, ast.Call):
            continue
        function = ast.unparse(node.func)
        arguments = {ast.unparse(argument) for argument in node.args}
        if function == "print" and room_of(path) not in MAY_TALK:
            yield f"{where}: print belongs to the command-line modules"
        if function in {"suppress", "contextlib.suppress"} and arguments & {"Exception", "BaseException"}:
            yield f"{where}: every exception is swallowed"


def is_nothing(statement: ast.stmt) -> bool:
    """Whether a statement is `pass` or `...`."""
    ellipsis = isinstance(statement, ast.Expr) and getattr(statement.value, "value", None) is ...
    return ellipsis or isinstance(statement, ast.Pass)


def violations(path: str, source: str) -> list[str]:
    """Every rule that one file breaks, by itself."""
    if room_of(path) not in MAY_IMPORT:
        return [f"{path}: {room_of(path)} has no place in the map of rooms"]
    tree = ast.parse(source)
    return [*import_violations(path, tree), *habit_violations(path, tree)]


def starts_processes(path: str, source: str) -> bool:
    """Whether a file imports subprocess."""
    return any(module.split(".")[0] == "subprocess" for _, module in imported_modules(path, ast.parse(source)))


def source_files() -> list[str]:
    """The files of our packages, relative to the repository."""
    return sorted(
        path.relative_to(ROOT).as_posix()
        for package in (PACKAGE, "weights_convert")
        for path in (ROOT / package).rglob("*.py")
    )


@pytest.mark.parametrize("path", source_files())
def test_file_keeps_the_rules(path):
    assert violations(path, (ROOT / path).read_text(encoding="utf-8")) == []


def test_subprocess_is_imported_in_exactly_one_file_beside_the_benchmark():
    files = [path for path in source_files() if path.startswith(f"{PACKAGE}/") and path != MAY_START_PROCESSES]
    assert len([path for path in files if starts_processes(path, (ROOT / path).read_text(encoding="utf-8"))]) == 1


def test_every_room_in_the_map_leads_only_to_rooms_before_it():
    """The map itself walks one way: no room can be reached from a room that it may import."""
    for start in MAY_IMPORT.keys() - COMMANDS:
        seen, ahead = set(), set(MAY_IMPORT[start])
        while ahead:
            room = ahead.pop()
            seen.add(room)
            ahead |= MAY_IMPORT[room] - seen
        assert start not in seen


@pytest.mark.parametrize(
    ("path", "source", "complaint"),
    [
        ("layers/conv.py", "from ..config import VAEConfig", "layers must not import config"),
        ("layers/conv.py", "def f():\n    from mlx_ltx_vae.stream import rechunk", ":2: layers must not import stream"),
        ("config.py", "from . import checkpoint", "config must not import checkpoint"),
        ("config.py", "from mlx_ltx_vae import checkpoint", "config must not import checkpoint"),
        ("config.py", "import mlx_ltx_vae.vae", "config must not import vae"),
        ("stream.py", "from . import VideoVAE", "stream must not import __init__"),
        ("decoder.py", "import mlx_ltx_vae", "decoder must not import __init__"),
        ("vae.py", "from .media.writer import VideoWriter", "vae must not import media"),
        ("vae.py", "from .decode import main", "vae must not import decode"),
        ("vae.py", "from .nowhere import thing", "vae must not import nowhere"),
        ("vae.py", "from weights_convert import convert", "vae must not import weights_convert"),
        ("__init__.py", "from .decode import main", "__init__ must not import decode"),
        ("attic.py", "", "attic has no place"),
        ("plan.py", "import mlx.core as mx", "must not import mlx"),
        ("tiling/ramps.py", "from mlx import core", "must not import mlx"),
        ("media/writer.py", "import mlx.core as mx", "must not import mlx"),
        ("vae.py", "from argparse import ArgumentParser", "argparse belongs"),
        ("media/writer.py", "from tqdm.auto import tqdm", "tqdm belongs"),
        ("vae.py", "print('decoded')", "print belongs"),
        ("decode.py", "try:\n    f()\nexcept OSError:\n    pass", ":3: an exception is swallowed"),
        ("decode.py", "try:\n    f()\nexcept:\n    ...", "an exception is swallowed"),
        ("decode.py", "with suppress(Exception):\n    f()", "every exception is swallowed"),
    ],
)
def test_checker_notices(path, source, complaint):
    assert len(found := violations(f"{PACKAGE}/{path}", source)) == 1
    assert complaint in found[0]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("config.py", "import enum\nfrom .errors import CheckpointError"),
        ("layers/resnet.py", "import mlx.nn as nn\nfrom .conv import Conv\nfrom . import norm\nfrom .. import errors"),
        ("media/latents.py", "import mlx.core as mx"),
        ("vae.py", "from .config import VAEConfig\nfrom . import plan, stream\nfrom mlx_ltx_vae.checkpoint import x"),
        ("decode.py", "import argparse\nfrom . import VideoVAE, media\nfrom tqdm import tqdm\nprint('done')"),
        ("vae.py", "try:\n    f()\nexcept OSError as error:\n    raise LTXVAEError from error"),
        ("vae.py", "with suppress(FileNotFoundError):\n    f()"),
    ],
)
def test_checker_accepts_what_the_rules_allow(path, source):
    assert violations(f"{PACKAGE}/{path}", source) == []


def test_checker_holds_the_converter_to_files_and_lets_its_verification_run_networks():
    network = "from mlx_ltx_vae.vae import VideoVAE"
    assert violations("weights_convert/tensors.py", "from mlx_ltx_vae.checkpoint import load_checkpoint") == []
    assert violations("weights_convert/verify.py", f"{network}\nfrom mlx_ltx_vae.config import VAEConfig") == []
    assert violations("weights_convert/tensors.py", network) == [
        "weights_convert/tensors.py:1: weights_convert must not import vae"
    ]
    assert violations("weights_convert/verify.py", "from mlx_ltx_vae.cli import run_command") == [
        "weights_convert/verify.py:1: weights_convert must not import cli"
    ]


def test_checker_finds_subprocess_however_it_is_imported():
    assert starts_processes(f"{PACKAGE}/media/writer.py", "import subprocess")
    assert starts_processes(f"{PACKAGE}/media/writer.py", "def f():\n    from subprocess import Popen")
    assert not starts_processes(f"{PACKAGE}/media/writer.py", "import threading")
