"""Closed, full and ended standard streams, and terminals of any kind: one line at most, and never a traceback."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from commands import COMMANDS, help_of
from entry_points import ENTRY_POINTS

NAME = "vä漢é"
ENCODINGS = [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}]
FULL = Path("/dev/full")
UNWRITABLE = "error: standard output: cannot be written"


@pytest.fixture
def files(golden, tmp_path):
    """The arguments of a small decode without its output, in a folder of its own."""
    np.save(tmp_path / "latents.npy", np.random.default_rng(0).normal(size=(1, 8, 1, 2, 2)).astype(np.float32))
    (tmp_path / f"{NAME}.safetensors").symlink_to(golden("small_ltx2_3").checkpoint)
    return ["latents.npy", "-m", f"{NAME}.safetensors"]


@pytest.fixture
def shell(tmp_path, files):
    """`shell("decode {} -o out.mp4 2>&-", ...)`: its exit code, standard output and standard error."""

    def run(line, entry="module", **environment):
        command, _, rest = line.partition(" ")
        words = f"{shlex.join(ENTRY_POINTS[entry](command))} " + rest.format(" ".join(files))
        done = subprocess.run(
            ["sh", "-c", words],
            capture_output=True,
            text=True,
            errors="replace",
            cwd=tmp_path,
            env=os.environ | environment,
            check=False,
        )
        assert "Traceback" not in done.stderr + done.stdout
        assert "Exception ignored" not in done.stderr
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.mark.quick(1)
@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_closed_and_full_standard_streams_of_every_entry_point(shell, entry):
    """A closed standard error takes what is printed, and standard output that cannot be written is one line."""
    assert shell("info latents.npy 2>&- <&-", entry)[0] == 0
    output, reason = (FULL, "No space left on device") if FULL.exists() else ("&-", "Bad file descriptor")
    assert shell(f"info latents.npy --json >{output}", entry)[::2] == (1, f"{UNWRITABLE} ({reason}).\n")


def test_closed_standard_error_and_input_do_not_matter(shell, tmp_path):
    code, out, _ = shell("decode {} -o out.mp4 2>&- <&-")
    assert code == 0
    assert out.startswith("out.mp4: 1 frame of ")
    assert (tmp_path / "out.mp4").stat().st_size
    assert shell("decode missing.npy {} -o out/ 2>&-")[0] == 1


@pytest.mark.quick(1)
@pytest.mark.parametrize("line", ["decode {} -o -", "decode --help"])
def test_closed_or_full_standard_output_is_one_line(shell, line):
    assert shell(f"{line} >&-")[::2] == (1, f"{UNWRITABLE} (Bad file descriptor).\n")
    if FULL.exists():
        assert shell(f"{line} >{FULL}")[::2] == (1, f"{UNWRITABLE} (No space left on device).\n")


@pytest.mark.parametrize("arguments", [["info", "latents.npy"], ["decode", "--help"]])
def test_a_reader_that_has_read_enough_ends_a_command_quietly(files, tmp_path, arguments):
    """As `head` does. The exit code is that of programs that end by the pipe."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", f"mlx_ltx_vae.{arguments[0]}", *arguments[1:]]
    done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, text=True, cwd=tmp_path, check=False)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.slow
@pytest.mark.skipif(not FULL.exists(), reason="the system has no /dev/full")
def test_full_standard_error_and_output_of_many_inputs(shell, tmp_path):
    """The line of the first input cannot be printed, which ends the command."""
    (tmp_path / "second.npy").symlink_to(tmp_path / "latents.npy")
    code, _, errors = shell(f"decode {{}} second.npy -o out/ >{FULL}")
    assert (code, errors) == (1, f"{UNWRITABLE} (No space left on device).\n")
    assert (tmp_path / "out" / "latents.mp4").exists()
    assert shell(f"decode missing.npy {{}} -o out/ 2>{FULL}")[0] == 1
    assert shell(f"decode --unknown 2>{FULL}")[0] == 2


@pytest.mark.quick(1)
@pytest.mark.parametrize("environment", ENCODINGS, ids=lambda values: "-".join(values.values()))
def test_names_are_printed_and_written_in_any_encoding(shell, tmp_path, environment):
    code, out, _ = shell("decode {} -o '漢.mp4' --json", **environment)
    assert (code, os.fsencode(json.loads(out)["output"])) == (0, "漢.mp4".encode())
    code, out, errors = shell("decode {} nothing漢.npy -o 'videos漢/'", **environment)
    assert code == 1
    assert "latents.npy -> " in out and ": 1 frame, " in out and ".safetensors (custom, " in out
    assert len(errors.splitlines()) == 2
    assert (tmp_path / "videos漢" / "latents.mp4").exists()


@pytest.mark.parametrize("columns", ["0", "1", "7"])
def test_help_fits_any_terminal(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    for command in COMMANDS:
        assert "--help" in help_of(command)
