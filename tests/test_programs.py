"""The programs that a command and the makefile use: which ffmpeg, and what is installed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "with_openblas.sh"


@pytest.mark.parametrize(
    ("program", "reason"),
    [("/nowhere/ffmpeg", "No such file or directory"), (__file__, "Permission denied"), ("true", "is another program")],
)
@pytest.mark.parametrize("command", ["decode --demo -o out.mp4", "encode clip.mp4 --demo -o out.safetensors"])
def test_a_wrong_ffmpeg_is_named_with_the_variable_that_chose_it(tmp_path, command, program, reason):
    program = shutil.which(program) or program
    (tmp_path / "clip.mp4").write_bytes(b"a video")
    name, *arguments = command.split()
    done = subprocess.run(
        [sys.executable, "-m", f"mlx_ltx_vae.{name}", *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"IMAGEIO_FFMPEG_EXE": program},
        check=False,
    )
    expected = f"error: ffmpeg cannot be started ({program}: {reason}); correct or unset IMAGEIO_FFMPEG_EXE.\n"
    assert (done.returncode, done.stderr) == (1, expected)
    assert [path.name for path in tmp_path.iterdir()] == ["clip.mp4"]


@pytest.mark.parametrize("option", ["--install", ""])
def test_what_is_installed_as_root_is_said_before_and_can_be_left_out(tmp_path, option):
    """On a Linux machine without OpenBLAS, imitated by programs of these names."""
    log = tmp_path / "log"
    programs = {
        "uname": 'case $1 in -s) echo Linux;; *) echo "no such machine";; esac',
        "id": "echo 0",
        "ldconfig": "true",
        "timeout": 'shift; "$@"',
        "apt-get": f'echo apt-get >> "{log}"',
    }
    for name, line in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    done = subprocess.run(
        ["sh", SCRIPT, *option.split(), "cat", log],  # the command sees what was run before it
        capture_output=True,
        text=True,
        env=environment | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        check=False,
    )
    if option:
        assert done.stdout == "apt-get\napt-get\n"
        first, *_ = done.stderr.splitlines()
        assert first.startswith("Installing libopenblas0-pthread on this system with apt-get: ")
        assert "INSTALL=" in first
    else:
        assert not log.exists()
        assert "Installing" not in done.stderr
