"""Signals at any moment: a command ends with the signal's exit code and at most one line, and leaves nothing."""

import os
import random
import signal
import struct
import subprocess
import sys
import time

import numpy as np
import pytest
from imageio_ffmpeg import get_ffmpeg_exe

from entry_points import BIN, ENTRY_POINTS, LAUNCHER_INPUT
from mlx_ltx_vae import VideoWriter, WriterError, demo
from signal_runs import SIGNALS, WORDS, Commands, running


@pytest.fixture(scope="module")
def commands(golden, tmp_path_factory):
    return Commands(tmp_path_factory.mktemp("commands"), golden("ltx2_3").checkpoint)


@pytest.fixture(scope="module")
def clip(golden, tmp_path_factory):
    """The arguments of a decode of 4,000 latent frames, which begins to write at once."""
    path = tmp_path_factory.mktemp("clip") / "clip.npy"
    np.save(path, np.random.default_rng(0).normal(size=(1, 8, 4000, 2, 2)).astype(np.float32))
    return [path, "-m", golden("small_ltx2_3").checkpoint]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("video", 12), ("rows", 4), ("stills", 4), ("encode", 4), ("convert", 4)])
def test_nothing_is_left_by_many_runs(commands, name, count):
    check_runs(commands, name, count)


def check_runs(commands, name, count):
    runs = commands.random_runs(name, count, list(SIGNALS), random.Random(count))
    problems = [(entry, number.name, round(when, 2), outcome.problem(number)) for entry, number, when, outcome in runs]
    assert [problem for problem in problems if problem[-1]] == []


def start(*arguments, entry="module", **options):
    command = [*ENTRY_POINTS[entry]("decode"), *map(str, arguments)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True, **options)


def wait_for_part(process, folder):
    """Wait until ffmpeg has begun to write."""
    while not any(path.stat().st_size for path in folder.iterdir()):
        assert process.poll() is None
        time.sleep(0.01)


#: Every way to start a command with one signal, so that all four signals come.
FIRST_SIGNALS = {
    "module": signal.SIGINT,
    "package": signal.SIGTERM,
    "script": signal.SIGHUP,
    "function": signal.SIGQUIT,
}


@pytest.mark.parametrize(
    ("entry", "number"),
    [
        pytest.param(entry, number, marks=[] if number == FIRST_SIGNALS[entry] else pytest.mark.slow)
        for entry in ENTRY_POINTS
        for number in SIGNALS
    ],
)
def test_a_signal_ends_the_command_its_ffmpeg_and_its_file(clip, tmp_path, entry, number):
    # FFV1 is written from the first frame on.
    process = start(*clip, "-o", tmp_path / "out.mkv", "--codec", "ffv1", "--contact-sheet", entry=entry)
    wait_for_part(process, tmp_path)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (128 + number, f"{WORDS[number]}\n")
    assert list(tmp_path.iterdir()) == []
    assert running(str(tmp_path)) == []


@pytest.mark.slow
def test_a_signal_ends_a_command_that_a_launcher_has_started(clip, tmp_path):
    launcher = [str(BIN / "mlx.launch"), "-n", "1", "--backend", "ring", "--"]
    arguments = [*map(str, clip), "-o", str(tmp_path / "out.mkv"), "--codec", "ffv1"]
    process = subprocess.Popen(
        [*launcher, *ENTRY_POINTS["script"]("decode"), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    os.write(process.stdin.fileno(), LAUNCHER_INPUT)
    wait_for_part(process, tmp_path)
    table = subprocess.run(["ps", "-wweo", "pid=,args="], capture_output=True, text=True, check=True).stdout
    (rank,) = [
        int(line.split()[0])
        for line in table.splitlines()
        if f"mlx_ltx_vae decode {' '.join(arguments)}" in line and "mlx.launch" not in line
    ]
    os.kill(rank, signal.SIGTERM)
    printed, _ = process.communicate(timeout=60)
    assert "Traceback" not in printed
    assert list(tmp_path.iterdir()) == []
    assert running(str(tmp_path)) == []


@pytest.mark.slow
def test_ffmpeg_ends_with_a_command_that_is_killed_and_the_next_one_removes_what_it_left(commands, tmp_path):
    audio, out = tmp_path / "audio.wav", tmp_path / "out"
    with audio.open("wb") as file:  # a day of silence, whose encode takes minutes
        size = 24 * 3600 * 16000
        layout = struct.pack("<IHHIIHH", 16, 1, 1, 8000, 16000, 2, 16)
        file.write(b"RIFF" + struct.pack("<I", size + 36) + b"WAVEfmt " + layout + b"data" + struct.pack("<I", size))
        file.truncate(size + file.tell())
    out.mkdir()
    arguments = [*commands.command("video", out)[3:-1], out / "whole.mkv", "--codec", "ffv1"]
    process = start(*arguments, "--audio", audio)
    wait_for_part(process, out)
    process.kill()
    process.wait()
    left = [*out.iterdir()]
    deadline = time.monotonic() + 30
    while running(str(out)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert left == [*out.iterdir()]
    subprocess.run([sys.executable, "-m", "mlx_ltx_vae.decode", *map(str, arguments)], check=True)
    assert [path.name for path in out.iterdir()] == ["whole.mkv"]


def test_a_signal_that_comes_while_another_is_handled_waits_for_what_is_uninterrupted():
    code = """
import os, subprocess, sys
from mlx_ltx_vae import process as own, startup
startup.prepare_process()
sender = "import os, sys\\nfor _ in range(200000): os.kill(int(sys.argv[1]), 15)"
with own.ended_by_signals(lambda number: True), own.uninterrupted():
    process = subprocess.Popen([sys.executable, "-c", sender, str(os.getpid())])
    while process.poll() is None:
        pass
    print("uninterrupted", flush=True)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout) == (128 + signal.SIGTERM, "uninterrupted\n")


@pytest.mark.slow
def test_a_command_under_nohup_survives_the_end_of_its_terminal(commands, tmp_path):
    process = subprocess.Popen(
        commands.command("video", tmp_path),
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),  # as nohup does
    )
    while process.poll() is None:
        process.send_signal(signal.SIGHUP)
        time.sleep(0.02)
    assert process.returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["whole.mp4"]


def test_a_program_that_uses_the_package_keeps_its_handlers(tmp_path):
    """Also one that calls a command's function, which raises no signal's default action."""
    code = """
import signal
before = [signal.getsignal(number) for number in signal.valid_signals()]
from mlx_ltx_vae.decode import main
assert main(["--demo", "--dry-run", "-q"]) == 0
assert before == [signal.getsignal(number) for number in signal.valid_signals()]
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("entry", [*ENTRY_POINTS, "weights_convert"])
def test_an_interrupt_during_the_imports_prints_nothing(tmp_path, entry):
    if entry == "weights_convert":
        command = [sys.executable, "-m", "weights_convert", str(demo.VAE), "-o", str(tmp_path / "vae")]
    else:
        command = [*ENTRY_POINTS[entry]("decode"), "--demo"]
    # Python prints each import when it is done, so that the signal comes when those that take long begin.
    environment = os.environ | {"PYTHONPROFILEIMPORTTIME": "1"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment)
    while process.stderr.readline().split("|")[-1].strip() != "mlx":
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert [line for line in errors.splitlines() if not line.startswith("import")] == []
    assert list(tmp_path.iterdir()) == []


def ignore_ends_of_programs():
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


@pytest.mark.parametrize("code", [0, 7])
def test_a_command_that_is_started_with_sigchld_ignored_knows_whether_ffmpeg_fails(clip, tmp_path, code):
    program = tmp_path / "ffmpeg"
    program.write_text(f'#!/bin/sh\n{get_ffmpeg_exe()} "$@"\nexit {code}\n')
    program.chmod(0o755)
    environment = os.environ | {"IMAGEIO_FFMPEG_EXE": str(program)}
    output = tmp_path / "out.mkv"
    process = start(*clip, "--frames", "0:9", "-q", "-o", output, preexec_fn=ignore_ends_of_programs, env=environment)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, output.exists()) == ((1, False) if code else (0, True)), errors
    assert (f"{output}: ffmpeg failed" in errors) == bool(code)


def test_a_program_of_run_finds_sigchld_ignored_as_it_was(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import signal; print(signal.getsignal(signal.SIGCHLD).name)")
    command = [sys.executable, "-m", "mlx_ltx_vae", "run", "--", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=ignore_ends_of_programs, check=False)
    assert done.stdout == "SIG_IGN\n", done.stderr


def test_a_program_that_ignores_sigchld_is_told_so_before_ffmpeg_starts(tmp_path, monkeypatch):
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(WriterError, match="ignores SIGCHLD, .* let it call signal.signal"):
            VideoWriter(tmp_path / "a.mkv", size=(32, 32), fps=24)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert list(tmp_path.iterdir()) == []
