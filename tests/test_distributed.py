"""Several ranks on this machine, started by `mlx.launch`: each runs some of the inputs, and the first one reports."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import distributed_ranks
from entry_points import LAUNCHER_INPUT
from many_files import names, run
from mlx_ltx_vae import VideoVAE, save_latents
from mlx_ltx_vae import decode as decode_command
from mlx_ltx_vae import encode as encode_command
from mlx_ltx_vae import info as info_command

HERE = Path(__file__).parent
#: Runs Python in a folder of the rank's own, named by its number, with more arguments for it alone.
AS_RANK = """
import json, os, sys
os.chdir(os.path.join(sys.argv[1], os.environ["MLX_RANK"]))
more = json.load(open("arguments.json")) if os.path.exists("arguments.json") else []
os.execv(sys.executable, [sys.executable, *sys.argv[2:], *more])
"""
#: Runs `decode` on ranks of which one, named first, stops before it opens the checkpoint.
STOPPED = """
import os, runpy, signal, sys
from mlx_ltx_vae.commands.decode_command import DecodeJob
if os.environ["MLX_RANK"] == sys.argv.pop(1):
    DecodeJob.open = lambda self: os.kill(os.getpid(), signal.SIGSTOP)
runpy.run_module("mlx_ltx_vae.decode", run_name="__main__")
"""
#: Ranks listen on ports from this on. With the ports of `mlx.launch` itself, two tests at once would share their ranks.
STARTING_PORT = 20_000 + 8 * (os.getpid() % 1000)


def launch(ranks, *arguments, timeout=300, change=None):
    """Run a Python script or module on some ranks.

    Args:
        change: called with the launcher while the ranks run.

    Returns:
        What they printed to standard output and to standard error.
    """
    command = [Path(sys.executable).with_name("mlx.launch"), "-n", str(ranks), "--backend", "ring"]
    with subprocess.Popen(
        [*command, "--starting-port", str(STARTING_PORT), "--", sys.executable, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": f"{HERE.parent}:{os.environ['PYTHONPATH']}"},
        cwd=HERE.parent,
    ) as launcher:
        os.write(launcher.stdin.fileno(), LAUNCHER_INPUT)
        if change is not None:
            change(launcher)
        try:
            launcher.wait(timeout)
        finally:
            launcher.kill()
        return launcher.stdout.read().decode(), launcher.stderr.read().decode()


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.slow)])
def results(request, golden, tmp_path_factory):
    """The results of each rank; one launch for all processes of pytest, since starting takes longest."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    path, printed = root / f"ranks{request.param}.json", root / f"ranks{request.param}.txt"
    with (root / f"ranks{request.param}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not printed.exists():
            script = HERE / "distributed_ranks.py"
            printed.write_text("".join(launch(request.param, script, path, golden("small_ltx2_3").checkpoint)))
    assert path.exists(), printed.read_text()
    by_rank = json.loads(path.read_text())
    assert len(by_rank) == request.param
    return by_rank


def test_an_error_of_one_rank_is_raised_on_all(results):
    for rank, result in enumerate(results):
        errors = result["errors"]
        assert errors["fails"] == ["DistributedError", "rank 1: no such file"]
        assert (errors["works"], errors["same"]) == (99, None)
        kind, text = errors["differ"]
        assert kind == "DistributedError"
        assert text.startswith(f"the inputs differ between rank 0 and rank {max(1, rank)}; give all ranks the same")


def test_each_rank_decodes_some_inputs_to_its_disk_and_exchanges_nothing_meanwhile(results):
    ranks = len(results)
    for rank, result in enumerate(results):
        inputs = result["inputs"]
        assert inputs["code"] == 0
        assert inputs["outputs"] == [f"{number}.npy" for number in range(rank, 3, ranks)]
        assert inputs["in_network"] == {}
    (report,), *others = (result["inputs"]["reports"] for result in results)
    assert {"ranks": ranks, "distributed": "batch", "frames": 27, "failed": 0}.items() <= report.items()
    peaks = report["peak_memory_bytes_per_rank"]
    assert len(peaks) == ranks and min(peaks) > 0 and max(peaks) == report["peak_memory_bytes"]
    assert [item["frames"] for item in report["items"]] == [9, 9, 9]
    assert others == [[]] * (ranks - 1)


@pytest.fixture
def clip(golden, tmp_path):
    """A latent file with a batch of three videos, a file of one, and their checkpoint."""
    vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint, encoder=False)
    latents = distributed_ranks.latents_of(vae, frames=2, height=3, batch=3)
    save_latents(tmp_path / "batch.safetensors", latents)
    save_latents(tmp_path / "one.safetensors", latents[:1])
    return tmp_path, ["-m", golden("small_ltx2_3").checkpoint, "--json"]


@pytest.mark.slow
@pytest.mark.parametrize("distributed", ["auto", "off"])
def test_the_first_rank_runs_a_single_input_alone(clip, distributed):
    folder, options = clip
    assert run(decode_command.main, folder / "batch.safetensors", "-o", folder / "alone.npy", *options) == 0
    options = [*options, "--distributed", distributed]
    out, err = launch(2, "-m", "mlx_ltx_vae.decode", folder / "batch.safetensors", "-o", folder / "two.npy", *options)
    report = json.loads(out)
    assert report["output"] == [str(folder / f"two-{number}.npy") for number in range(3)]
    assert "ranks" not in report and "exchanged_bytes" not in report
    warning = "there is one input, so only the first of 2 ranks works; give several inputs, or decode a part"
    assert err.count("\n") == (distributed == "auto")
    assert err.startswith(f"warning: {warning}" if distributed == "auto" else "")
    for number in range(3):
        assert np.array_equal(np.load(folder / f"two-{number}.npy"), np.load(folder / f"alone-{number}.npy"))
    assert len(names(folder)) == 8


@pytest.mark.slow
def test_inputs_are_dealt_to_ranks_and_reported_in_order(clip):
    folder, options = clip
    (folder / "bad.safetensors").write_bytes(b"no latents")
    names = ["one", "bad", "batch"]
    inputs = [folder / f"{name}.safetensors" for name in names]
    out, err = launch(2, "-m", "mlx_ltx_vae.decode", *inputs, *options, "-o", folder / "{name}.npy")
    report = json.loads(out)
    assert [Path(item["source"]).stem for item in report["items"]] == names
    assert (report["failed"], report["frames"], report["ranks"]) == (1, 36, 2)
    assert "1 of 3 inputs failed" in err
    assert {path.name for path in folder.glob("*.npy")} == {"one.npy", "batch-0.npy", "batch-1.npy", "batch-2.npy"}


@pytest.mark.slow
def test_wrong_usage_and_errors_of_all_ranks_are_one_line(clip):
    folder, options = clip
    command = ["-m", "mlx_ltx_vae.decode", folder / "one.safetensors", *options, "-o", folder / "out.npy"]
    for extra, words in (
        (["--crf", "3"], "takes no crf"),
        (["--distributed", "batch"], "--distributed batch shares several inputs, and there is one; give several"),
    ):
        out, err = launch(2, *command, *extra)
        assert out == ""
        assert err.count("error: ") == 1
        assert words in err
    assert not (folder / "out.npy").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("process", "number"), [(0, signal.SIGKILL), (1, signal.SIGTERM)])
def test_a_killed_rank_ends_the_others_and_leaves_no_output(golden, tmp_path, process, number):
    vae = VideoVAE.from_pretrained(golden("ltx2_3").checkpoint, encoder=False)
    clips = [tmp_path / f"{name}.safetensors" for name in "ab"]
    for path in clips:
        save_latents(path, distributed_ranks.latents_of(vae, frames=400, height=4, width=4))

    def kill(launcher):
        """Kill a rank when both have written frames."""
        deadline = time.monotonic() + 60
        while len(list(tmp_path.glob(".[ab]*"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(1)
        os.kill(rank_processes(launcher.pid)[process], number)
        start.append(time.monotonic())

    start = []
    command = ["-m", "mlx_ltx_vae.decode", *clips, "-m", golden("ltx2_3").checkpoint]
    _, err = launch(2, *command, "-o", tmp_path / "{name}.mp4", timeout=60, change=kill)
    assert time.monotonic() - start[0] < 10
    assert not any((tmp_path / f"{name}.mp4").exists() for name in "ab")
    assert err.count("error: ") <= 1  # of the first rank, if it is not the killed one
    assert "terminated" not in err
    if number == signal.SIGTERM:
        assert not list(tmp_path.glob(".[ab]*"))


def rank_processes(launcher):
    """The processes of the ranks, from the system's table of processes."""
    table = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in table.splitlines()]
    children = [int(pid) for pid, parent, _ in rows if int(parent) == launcher]
    return sorted(children)


@pytest.fixture
def folders(clip, golden):
    """A folder for each of two ranks, with the same latents in two files, and the checkpoint `vae.safetensors`."""
    folder, _ = clip
    for rank in ("0", "1"):
        (folder / rank).mkdir()
        for name in ("a", "b"):
            shutil.copy(folder / "one.safetensors", folder / rank / f"{name}.safetensors")
        shutil.copy(golden("ltx2_3").checkpoint, folder / rank / "vae.safetensors")
    return folder


def launch_in_folders(folders, *arguments, **options):
    return launch(2, "-c", AS_RANK, folders, *arguments, **options)


DECODE = ["a.safetensors", "b.safetensors", "-m", "vae.safetensors", "-o", "{name}.mp4"]


@pytest.mark.slow
def test_other_outputs_on_another_rank_are_an_error_before_the_decode(folders):
    (folders / "1" / "arguments.json").write_text('["-o", "c-{name}.mp4"]')
    out, err = launch_in_folders(folders, "-m", "mlx_ltx_vae.decode", *DECODE)
    assert (out, err.count("error: ")) == ("", 1)
    assert "error: the inputs differ between rank 0 and rank 1; give all ranks the same files" in err
    assert not list(folders.glob("*/*.mp4"))


@pytest.mark.slow
@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_stopped_rank_ends_all_with_one_line(folders, rank):
    command = ["-c", STOPPED, rank, *DECODE, "--rank-timeout", "5"]
    out, err = launch_in_folders(folders, *command, timeout=120)
    name = "" if rank == "1" else "rank 1: "  # of the rank that is not stopped
    assert (out, err.count("error: ")) == ("", 1)
    assert f"error: {name}the ranks have exchanged nothing for 5 s; see that none is stopped, asleep" in err
    assert not list(folders.glob("*/*.mp4"))


@pytest.mark.parametrize(("rank", "name"), [(0, ""), pytest.param(1, "rank 1: ", marks=pytest.mark.slow)])
def test_a_time_limit_cleans_up_and_ends_the_other_processes_of_the_launcher(tmp_path, rank, name):
    script = """
import signal, subprocess, sys, threading
from mlx_ltx_vae.process import Cleanup
from mlx_ltx_vae.distributed import restart_time_limit, set_time_limit
peer = subprocess.Popen([sys.executable, "-c", "print('ready', flush=True); import time; time.sleep(60)"], stdout=-1)
peer.stdout.readline()
peer.send_signal(signal.SIGSTOP)
Cleanup(None, open(sys.argv[2], "w").close)
Cleanup(None, lambda: print("cleaned up", flush=True))
set_time_limit(0.2, int(sys.argv[1]), [1, peer.pid])
restart_time_limit()
threading.Thread(target=peer.wait).start()
threading.Event().wait()
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(rank), str(tmp_path / "file")],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=HERE.parent,
        start_new_session=True,
    )
    assert (done.returncode, done.stdout) == (1, "cleaned up\n")
    assert done.stderr.startswith(f"error: {name}the ranks have exchanged nothing for 0.2 s; ")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_rank_says_what_is_wrong_with_its_command_line_alone(folders):
    (folders / "1" / "arguments.json").write_text('["--crf", "300"]')
    out, err = launch_in_folders(folders, "-m", "mlx_ltx_vae.decode", *DECODE)
    assert (out, err.count("error: ")) == ("", 1)
    assert "error: rank 1: {name}.mp4: a crf of 300 is not between 0 and 51." in err


@pytest.mark.parametrize("variable", ["MLX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"])
@pytest.mark.parametrize("text", ["", "-1", "\u0661", "1" * 5000])
def test_a_rank_that_is_no_number_is_one_line(monkeypatch, capsys, tmp_path, variable, text):
    monkeypatch.setenv(variable, text)
    for command, output in ((decode_command, "a.mp4"), (encode_command, "a.safetensors")):
        assert command.main(["missing", "-m", "vae.safetensors", "-o", str(tmp_path / output)]) == 1
        err = capsys.readouterr().err
        assert err.startswith(f"error: {variable} is '{text[:70]}") and err.count("\n") == 1
    assert info_command.main([str(tmp_path / "missing")]) == 1
    assert capsys.readouterr().err.startswith(f"error: {tmp_path}")
    with pytest.raises(SystemExit, match="2"):
        decode_command.main(["--crf", "300"])
    assert capsys.readouterr().err.startswith("error: LATENTS is missing")
