"""The programs that a command and the makefile use: which ffmpeg, and what is installed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mlx_ltx_vae import demo
from mlx_ltx_vae.backend.device import is_reference_blas
from mlx_ltx_vae.errors import ReaderError, WriterError
from mlx_ltx_vae.video import VideoReader, VideoWriter, compress_still
from mlx_ltx_vae.video.audio import AudioReader
from mlx_ltx_vae.video.ffmpeg import listing
from tolerances import cpu_only

SCRIPT = Path(__file__).parent.parent / "scripts" / "with_openblas.sh"


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("command", "program", "reason"),
    [
        ("decode --demo -o out.mp4", "/nowhere/ffmpeg", "No such file or directory"),
        ("decode --demo -o out.mp4", "true", "is another program"),
        ("encode clip.mp4 --demo -o out.safetensors", __file__, "Permission denied"),
    ],
)
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


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("5.1.9-0+deb12u1 Copyright (c) 2000-2026 the FFmpeg developers", "5.1.9-0+deb12u1"),
        ("n6.1.2 Copyright (c) 2000-2024 the FFmpeg developers", "n6.1.2"),
        ("N-109468-gd39b34123d Copyright (c) 2000-2022 the FFmpeg developers", "N-109468-gd39b34123d"),
    ],
)
def test_an_ffmpeg_that_is_too_old_is_named_instead_of_the_file(tmp_path, monkeypatch, version, name):
    program = tmp_path / "ffmpeg"
    program.write_text(f"#!/bin/sh\necho 'ffmpeg version {version}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(program))
    (tmp_path / "clip.mp4").write_bytes(b"a video")
    tries = [
        lambda: VideoReader(tmp_path / "clip.mp4"),
        lambda: AudioReader(tmp_path / "clip.mp4"),
        lambda: VideoWriter(tmp_path / "out.mp4", size=(64, 64), fps=24),
        lambda: compress_still(np.zeros((32, 32, 3), np.uint8)),
    ]
    listing.cache_clear()  # of the ffmpeg that other tests use
    for start in tries:
        with pytest.raises((ReaderError, WriterError)) as error:
            start()
        expected = f"{program}: is ffmpeg {name}, and at least 7.0 is needed; correct or unset IMAGEIO_FFMPEG_EXE."
        assert str(error.value) == expected
    listing.cache_clear()
    assert sorted(os.listdir(tmp_path)) == ["clip.mp4", "ffmpeg"]


@pytest.mark.parametrize(
    "version", ["7.0.2-static Copyright (c) 2000-2024", "n10.1 Copyright (c) 2000-2027", "N-1-g1 (c) 2000-2026", "git"]
)
def test_an_ffmpeg_that_is_new_enough_or_states_no_number_is_tried(tmp_path, monkeypatch, version):
    program = tmp_path / "ffmpeg"
    program.write_text(f'#!/bin/sh\n[ "$1" = -version ] && echo "ffmpeg version {version}" && exit\nexit 3\n')
    program.chmod(0o755)
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(program))
    with pytest.raises(ReaderError, match="the still: ffmpeg failed: it returned 3"):
        compress_still(np.zeros((32, 32, 3), np.uint8))


@cpu_only("GPU backends keep no kernels in files")
@pytest.mark.skipif(not shutil.which("g++"), reason="without a compiler MLX compiles nothing")
@pytest.mark.parametrize("folder", ["", "/nowhere"])
def test_a_missing_folder_for_temporary_files_is_named_with_its_variable(tmp_path, folder):
    done = decode_demo(tmp_path, env=os.environ | {"TMPDIR": folder})
    assert f" the folder {folder or repr(folder)}, which is missing; set the environment variable TMPDIR" in done.stderr


@pytest.mark.parametrize("number", [6, 10])
def test_a_limit_on_open_files_is_named(tmp_path, number):
    limit = ["sh", "-c", 'ulimit -n "$0" && exec "$@"', str(number)]
    command = [*limit, sys.executable, "-m", "mlx_ltx_vae.decode", "--demo", "-o", "out.mp4"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    # The shell by which MLX looks for its compiler may say that it cannot start.
    errors = [line for line in done.stderr.splitlines() if not line.startswith("sh: ")]
    assert (done.returncode, len(errors)) == (1, 1), done.stderr
    assert re.match(r"error: .*(Too many open files|limit of open files)", errors[0])
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(not shutil.which("prlimit") or not shutil.which("setpriv"), reason="needs both programs of Linux")
def test_a_limit_on_processes_is_named(tmp_path):
    # Root has no limit unless it becomes another user, who here reads the same files.
    keep = "-all,+dac_override,+dac_read_search"
    user = ["setpriv", "--reuid", "54321", "--clear-groups", "--inh-caps", keep, "--ambient-caps", keep]
    done = decode_demo(tmp_path, *(user if os.getuid() == 0 else []), "prlimit", "--nproc=1")
    assert "the system refuses another thread; raise the limit on processes (ulimit -u)" in done.stderr


def decode_demo(folder, *prefix, **options):
    """The command, which must fail with one line and leave nothing."""
    command = [*prefix, sys.executable, "-m", "mlx_ltx_vae.decode", "--demo", "-o", "out.npy"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False, **options)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert list(folder.iterdir()) == []
    return done


@cpu_only("another backend computes without a BLAS")
@pytest.mark.skipif(sys.platform != "linux", reason="on macOS MLX links Apple's BLAS")
def test_a_missing_openblas_is_said_once(tmp_path):
    environment = {key: value for key, value in os.environ.items() if key not in ("LD_PRELOAD", "PYTHONWARNINGS")}
    np.save(tmp_path / "clip.npy", np.random.default_rng(0).normal(size=(1, 64, 1, 2, 2)))
    model = ["clip.npy", "-m", str(demo.VAE)]
    command = [sys.executable, "-m", "mlx_ltx_vae.decode", *model, "-y", "-o", "out.npy", "-q"]
    for changed, expected in ((environment, 1), (environment | {"LD_PRELOAD": os.environ.get("LD_PRELOAD", "")}, 0)):
        if expected or "openblas" in changed["LD_PRELOAD"]:
            done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=changed, check=True)
            lines = done.stderr.splitlines()
            assert len(lines) == expected
            assert all(line.startswith("warning: MLX computes with the reference BLAS") for line in lines)
            assert "libopenblas0-pthread" in done.stderr or not expected


@pytest.mark.parametrize(
    ("files", "is_slow"),
    [
        (["venv/mlx_cpu.libs/libblas-bd8a282c.so.3.10.0", "venv/mlx/lib/libmlx.so"], True),
        (["venv/mlx_cpu.libs/libblas-bd8a282c.so.3.10.0", "venv/numpy.libs/libscipy_openblas64_-ff651d7f.so"], True),
        (["venv/mlx_cpu.libs/libblas-bd8a282c.so.3.10.0", "/usr/lib/openblas-pthread/libopenblasp-r0.3.21.so"], False),
        (["venv/mlx_cpu.libs/libblas-bd8a282c.so.3.10.0", "venv/lib/libmkl_rt.so.2"], False),
        (["/usr/lib/openblas-pthread/libblas.so.3"], False),  # Debian's alternative, for an MLX from source
        (["/usr/lib/libblas/libblas.so.3.10"], True),
        (["venv/mlx/lib/libmlx.so"], False),
    ],
)
def test_the_reference_blas_is_known_by_the_files_of_the_process(files, is_slow):
    assert is_reference_blas(files) is is_slow


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


def test_a_new_command_is_a_function_a_parser_and_two_entries(tmp_path):
    package = tmp_path / "mlx_ltx_vae"
    shutil.copytree(
        SCRIPT.parents[1] / "mlx_ltx_vae", package, ignore=shutil.ignore_patterns("__pycache__", "*.safetensors")
    )
    (package / "commands" / "shout_command.py").write_text(
        "from .terminal import print_report, run_command\n"
        "def run(parser, arguments):\n"
        "    return run_command(lambda options: print_report(options.text.upper()), arguments)\n"
    )
    with (package / "commands" / "parsers.py").open("a") as parsers:
        parsers.write(
            "def shout_parser():\n"
            "    parser = CommandParser(prog='shout', usage='shout TEXT')\n"
            "    parser.add_argument('text')\n"
            "    add_common_options(parser)\n"
            "    return parser\n"
            "PARSERS['shout'] = shout_parser\n"
        )
    table = package / "commands" / "__init__.py"
    table.write_text(table.read_text().replace("COMMANDS = {", 'COMMANDS = {\n    "shout": "text in capitals",'))
    line = [sys.executable, "-m", "mlx_ltx_vae", "shout", "a"]
    said = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
    assert (said.returncode, said.stdout, said.stderr) == (0, "A\n", "")
    said = subprocess.run([sys.executable, "-m", "mlx_ltx_vae"], cwd=tmp_path, capture_output=True, text=True)
    assert re.search(r"shout +text in capitals\n", said.stdout)
