"""Helpers of the tests of many inputs."""

from pathlib import Path

from commands import decode
from mlx_ltx_vae import demo

VAE = ["-m", str(demo.VAE)]


def names(folder) -> list[str]:
    """The files in a folder and the folders in it."""
    folder = Path(folder)
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def run(main, *arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def refused(capsys, *arguments, main=decode) -> str:
    """The one error line of a command that must fail with 1."""
    assert run(main, *arguments) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("error: ")
    return line


def failed(capsys, *arguments, main=decode) -> str:
    """The one error line of a command that must fail before anything is written."""
    before = names(".")
    line = refused(capsys, *arguments, main=main)
    assert names(".") == before
    return line
