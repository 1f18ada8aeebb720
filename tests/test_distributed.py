"""Several ranks on this machine, started by `mlx.launch`: one video in row bands gives what one process gives."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

import distributed_ranks
from audio_cases import random_latents
from entry_points import LAUNCHER_INPUT
from many_files import names, run
from mlx_ltx_vae import VideoReader, VideoVAE, load_latents, save_latents
from mlx_ltx_vae import decode as decode_command
from mlx_ltx_vae import encode as encode_command
from mlx_ltx_vae import info as info_command
from mlx_ltx_vae.checkpoint import open_checkpoint
from mlx_ltx_vae.files import SAMPLE_BYTES, sample_path
from mlx_ltx_vae.latents import open_latents
from test_decode_sound import LENGTH, expected_sound, latents_file
from test_video_sound import heard
from toy_networks import TOYS

HERE = Path(__file__).parent
#: Runs Python in a folder of the rank's own, named by its number, with more arguments for it alone.
AS_RANK = """
import json, os, sys
os.chdir(os.path.join(sys.argv[1], os.environ["MLX_RANK"]))
with open("process", "w") as file:
    file.write(str(os.getpid()))
more = json.load(open("arguments.json")) if os.path.exists("arguments.json") else []
os.execv(sys.executable, [sys.executable, *sys.argv[2:], *more])
"""
#: Ranks listen on ports from this on. With the ports of `mlx.launch` itself, two tests at once would share their ranks.
STARTING_PORT = 20_000 + 8 * (os.getpid() % 1000)
TOLERANCE = 1e-5  # of float32 on any number of ranks

#: On two ranks, of which the second has a band of one row. The toy has attention in whole frames.
FIRST_CASES = [
    ("decode_for_the_first", "small_ltx2_3", {"frames": 2, "height": 3}),
    ("decode_arriving", "small_ltx2_3", {"frames": 2, "height": 3}),
    ("decode_joined", "small_ltx2_3", {"frames": 3, "height": 3}),
    ("decode", "memory", {"width": 3}),
    ("encode_stream", "small_ltx2_3", {"frames": 2, "height": 3}),
]
#: On three ranks. These add every padding mode, causal and not, noise, and denoising.
CASES = [
    ("decode", "ltx2_3", {}),
    ("decode_for_the_first", "small_ltx2_3", {}),
    ("decode_arriving", "small_ltx2_3", {}),
    ("decode", "memory", {"width": 3}),
    ("encode_stream", "small_ltx2_3", {}),
    ("decode", "small_ltx2_3", {"height": 3, "frames": 2, "batch": 2}),
    ("decode", "conv_16x16x4", {}),
    ("decode", "ltx2_5_diffusion_gated", {"frames": 2, "height": 9, "width": 3}),
    ("decode_with_keyframes", "ltx2_5_keyframes_gated", {"frames": 2, "height": 7, "width": 2}),
    ("decode", "ltx2", {}),
    ("decode", "ltx2_3_reflect", {"height": 3}),
    ("decode", "ltx2_3_replicate", {}),
    ("decode", "ltx2_3_causal", {"height": 4}),
    ("decode", "ltxv_0_9_1", {}),
    ("decode", "taehv_ltx2", {"height": 3}),
    ("decode", "context", {"frames": 6, "height": 10, "width": 5}),
    ("encode", "ltx2_3", {}),
    ("encode", "ltxv_0_9_1", {"height": 3}),
    ("encode", "ltx2_3_reflect", {"height": 4}),
    ("encode", "conv_16x16x4", {}),
    ("encode", "taehv_ltx2", {"height": 3, "frames": 2}),
]


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


def source_of(name, golden):
    return name if name in TOYS else str(golden(name).checkpoint)


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.slow)])
def outcomes(request, golden, tmp_path_factory):
    """What the cases give on some ranks; one launch for all processes of pytest, since starting takes longest."""
    ranks, root = request.param, tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    folder, printed = root / f"ranks{ranks}", root / f"ranks{ranks}.txt"
    more = [(function, "small_ltx2_3", None) for function in ("errors", "batch")]
    opened = [(function, source_of(name, golden), shape) for function, name, shape in [*more, *cases_on(ranks)]]
    with (root / f"ranks{ranks}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not printed.exists():
            folder.mkdir()
            text = launch(ranks, HERE / "distributed_ranks.py", folder, json.dumps(opened))
            printed.write_text("".join(text))
    return ranks, folder, printed.read_text()


def cases_on(ranks):
    return FIRST_CASES if ranks == 2 else CASES


def test_bands_give_what_one_process_gives(outcomes, golden):
    ranks, folder, printed = outcomes
    for index, case in enumerate(cases_on(ranks)):
        assert (folder / f"{2 + index}.npz").exists(), printed
        check_bands(np.load(folder / f"{2 + index}.npz"), ranks, *case, golden)


def check_bands(outcome, ranks, function, name, shape, golden):
    case = f"{function} of {name}, {shape}"
    vae = distributed_ranks.open_vae(source_of(name, golden))
    expected, _ = getattr(distributed_ranks, function)(vae, **shape)
    assert (outcome["result"].shape, outcome["result"].dtype) == (expected.shape, expected.dtype), case
    assert np.abs(outcome["result"] - expected).max() < (1e-4 if name.startswith("ltx2_5_") else TOLERANCE), case
    if function != "decode_for_the_first":
        assert np.ptp(outcome["sums"]) == 0, f"{case}: all ranks get the same"
    if function in ("decode", "decode_arriving", "decode_joined"):
        assert (outcome["sent"] > 0).all() and len(outcome["sent"]) == ranks, case


def test_an_error_of_one_rank_is_raised_on_all(outcomes):
    ranks, folder, printed = outcomes
    assert (folder / "0.json").exists(), printed
    by_rank = json.loads((folder / "0.json").read_text())
    assert len(by_rank) == ranks
    for rank, seen in enumerate(by_rank):
        assert seen["fails"] == ["DistributedError", "rank 1: no such file"]
        assert (seen["works"], seen["same"]) == (99, None)
        assert seen["plans"][1].startswith("the plans differ between rank 0 and rank ")
        kind, text = seen["differ"]
        assert kind == "DistributedError"
        assert text.startswith("the latents differ between rank 0 and rank 1" if rank < 2 else "the latents differ")


def test_each_rank_decodes_and_writes_whole_videos_of_a_batch_and_exchanges_nothing_meanwhile(outcomes):
    ranks, folder, printed = outcomes
    assert (folder / "1.json").exists(), printed
    by_rank = json.loads((folder / "1.json").read_text())
    assert len(by_rank) == ranks
    for rank, seen in enumerate(by_rank):
        assert seen["codes"] == [0, 0]
        assert seen["outputs"] == [f"out-{video}.npy" for video in range(rank, 3, ranks)]
        assert seen["in_network"] == {}
        first, again = seen["steps"]
        assert first > 0 and again == 0, "what exists is skipped, also where each rank has its own"
    first, *others = by_rank
    report, skipped = first["reports"]
    expected = {"ranks": ranks, "distributed": "batch", "exchanged_bytes": 0, "frames": 27}
    assert expected.items() <= report.items()
    assert len(report["peak_memory_bytes_per_rank"]) == ranks
    assert len(report["output"]) == 3
    assert skipped["skipped"] is True
    assert all(seen["reports"] == [] for seen in others)


@pytest.fixture
def clip(golden, tmp_path):
    """A latent file with a batch of three videos, a file of one, and their checkpoint."""
    vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint, encoder=False)
    latents = distributed_ranks.latents_of(vae, frames=2, height=3, batch=3)
    save_latents(tmp_path / "batch.safetensors", latents)
    save_latents(tmp_path / "one.safetensors", latents[:1])
    return tmp_path, ["-m", golden("small_ltx2_3").checkpoint, "--json"]


@pytest.mark.slow
def test_the_command_decodes_one_video_in_bands_and_reports_all_ranks(clip):
    folder, options = clip
    assert run(decode_command.main, folder / "one.safetensors", "-o", folder / "alone.npy", *options) == 0
    command = ["-m", "mlx_ltx_vae.decode", folder / "one.safetensors", *options]
    out, err = launch(2, *command, "-o", folder / "rows.npy")
    report = json.loads(out)
    assert (report["ranks"], report["distributed"], err) == (2, "rows", "")
    assert len(report["peak_memory_bytes_per_rank"]) == 2
    assert [band["rows"] for band in report["plan"]["bands"]] == [[0, 2], [2, 3]]
    assert report["exchanged_bytes"] > 0
    alone, rows = np.load(folder / "alone.npy"), np.load(folder / "rows.npy")
    assert np.abs(alone.astype(int) - rows).max() <= 1
    assert names(folder) == ["alone.npy", "batch.safetensors", "one.safetensors", "rows.npy"]


@pytest.mark.slow
def test_a_rank_that_cannot_write_its_videos_of_a_batch_is_one_line(folders, clip):
    shutil.copy(clip[0] / "batch.safetensors", folders / "0" / "clip.safetensors")
    shutil.copy(clip[0] / "batch.safetensors", folders / "1" / "clip.safetensors")
    (folders / "1" / "arguments.json").write_text('["-o", "missing/out.mp4"]')
    out, err = launch_in_folders(folders, *DECODE)
    assert (out, err.count("error: ")) == ("", 1)
    assert "error: rank 1: missing/out-1.mp4: cannot be written" in err
    assert not list(folders.glob("*/*out*"))


@pytest.mark.slow
def test_inputs_are_dealt_to_ranks_and_reported_in_order(clip):
    folder, options = clip
    (folder / "bad.safetensors").write_bytes(b"no latents")
    names = ["one", "bad", "batch"]
    inputs = [folder / f"{name}.safetensors" for name in names]
    out, err = launch(2, "-m", "mlx_ltx_vae.decode", *inputs, *options, "-o", folder / "{name}.npy")
    report = json.loads(out)
    assert [Path(item["source"]).stem for item in report["items"]] == names
    assert (report["failed"], report["frames"]) == (1, 36)
    assert "1 of 3 inputs failed" in err
    assert {path.name for path in folder.glob("*.npy")} == {"one.npy", "batch-0.npy", "batch-1.npy", "batch-2.npy"}


@pytest.mark.slow
@pytest.mark.parametrize(("distributed", "bands"), [("off", []), ("rows", [[0, 2], [2, 3]])])
def test_the_first_rank_works_alone_or_prints_the_plan(clip, distributed, bands):
    folder, options = clip
    command = ["-m", "mlx_ltx_vae.decode", folder / "one.safetensors", *options, "--distributed", distributed]
    out, err = launch(2, *command, "--dry-run")
    assert [band["rows"] for band in json.loads(out)["plan"]["bands"]] == bands
    assert err == ""


@pytest.mark.slow
def test_a_video_is_encoded_in_bands(clip, golden):
    folder, options = clip
    decode = [folder / "one.safetensors", *options, "-o", folder / "clip.mkv", "--codec", "ffv1"]
    assert run(decode_command.main, *decode) == 0
    command = [folder / "clip.mkv", "-m", golden("small_ltx2_3").checkpoint, "--json", "-o"]
    assert run(encode_command.main, *command, folder / "alone.safetensors") == 0
    report = json.loads(launch(2, "-m", "mlx_ltx_vae.encode", *command, folder / "rows.safetensors")[0])
    assert (report["ranks"], report["distributed"]) == (2, "rows")
    alone, rows = (np.array(load_latents(folder / f"{name}.safetensors")[0]) for name in ("alone", "rows"))
    assert np.abs(alone - rows).max() < TOLERANCE
    with VideoReader(folder / "clip.mkv") as video:
        assert video.num_frames == report["frames"]


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "names"), [(1, ["a.mov"]), (2, ["a-0.mov", "a-1.mov"])])
def test_videos_have_their_sound_whatever_ranks_share(tmp_path, golden, audio_case, batch, names):
    """Bands of rows, of which the first rank adds the sound, and whole videos."""
    video, audio = golden("small_ltx2_3").checkpoint, random_latents(LENGTH, batch=batch)
    clip = latents_file(tmp_path / "clip.safetensors", video, audio, batch=batch)
    options = ["-m", video, "--audio-model", audio_case("ltx2").checkpoint, "--audio-codec", "pcm"]
    out, err = launch(2, "-m", "mlx_ltx_vae.decode", clip, *options, "-o", tmp_path / "a.mov", "--json")
    assert (json.loads(out)["ranks"], err) == (2, "")
    for index, name in enumerate(names):
        expected = expected_sound(audio_case("ltx2").checkpoint, audio[index : index + 1])
        assert np.abs(heard(tmp_path / name, 24000) - expected).max() < 1e-4


@pytest.mark.slow
def test_wrong_usage_and_errors_of_all_ranks_are_one_line(clip):
    folder, options = clip
    command = ["-m", "mlx_ltx_vae.decode", folder / "one.safetensors", *options, "-o", folder / "out.npy"]
    for extra, words in ((["--crf", "3"], "takes no crf"), (["--distributed", "batch"], "there is one; use rows")):
        out, err = launch(2, *command, *extra)
        assert out == ""
        assert err.count("error: ") == 1
        assert words in err
    assert not (folder / "out.npy").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("process", "number"), [(0, signal.SIGKILL), (1, signal.SIGTERM)])
def test_a_killed_rank_ends_the_others_and_leaves_no_output(golden, tmp_path, process, number):
    vae = VideoVAE.from_pretrained(golden("ltx2_3").checkpoint, encoder=False)
    save_latents(tmp_path / "long.safetensors", distributed_ranks.latents_of(vae, frames=400, height=4, width=4))

    def kill(launcher):
        """Kill a rank when the first frames have been written."""
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob(".out*")) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(1)
        os.kill(rank_processes(launcher.pid)[process], number)
        start.append(time.monotonic())

    start = []
    command = ["-m", "mlx_ltx_vae.decode", tmp_path / "long.safetensors", "-m", golden("ltx2_3").checkpoint]
    _, err = launch(2, *command, "-o", tmp_path / "out.mp4", timeout=60, change=kill)
    assert time.monotonic() - start[0] < 10
    assert not (tmp_path / "out.mp4").exists()
    assert err.count("error: ") <= 1  # of the first rank, if it is not the killed one
    assert "terminated" not in err
    if number == signal.SIGTERM:
        assert not list(tmp_path.glob(".out*"))


def rank_processes(launcher):
    """The processes of the ranks, from the system's table of processes."""
    table = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in table.splitlines()]
    children = [int(pid) for pid, parent, _ in rows if int(parent) == launcher]
    return sorted(children)


@pytest.fixture
def folders(clip, golden):
    """A folder for each of two ranks, with the same latents `clip.safetensors` and checkpoint `vae.safetensors`."""
    folder, _ = clip
    for rank in ("0", "1"):
        (folder / rank).mkdir()
        shutil.copy(folder / "one.safetensors", folder / rank / "clip.safetensors")
        shutil.copy(golden("ltx2_3").checkpoint, folder / rank / "vae.safetensors")
    return folder


def launch_in_folders(folders, *arguments, **options):
    return launch(2, "-c", AS_RANK, folders, *arguments, **options)


DECODE = ["-m", "mlx_ltx_vae.decode", "clip.safetensors", "-m", "vae.safetensors", "-o", "out.mp4"]


def with_changed_byte(path, offset):
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def first_data_byte(path):
    return 8 + int.from_bytes(path.read_bytes()[:8], "little")


@pytest.mark.slow
def test_other_latents_on_another_rank_are_an_error_before_the_decode(folders, golden):
    with_changed_byte(folders / "1" / "clip.safetensors", -2)
    out, err = launch_in_folders(folders, *DECODE)
    assert (out, err.count("error: ")) == ("", 1)
    assert "error: the values of the latents differ between rank 0 and rank 1; give all ranks the same files" in err
    assert not list(folders.glob("*/*out*"))


@pytest.mark.slow
def test_other_weights_or_videos_on_another_rank_are_an_error(folders):
    weights, video = folders / "1" / "vae.safetensors", folders / "1" / "clip.mkv"
    latents, checkpoint, output = (folders / "0" / name for name in ("clip.safetensors", weights.name, video.name))
    assert run(decode_command.main, latents, "-m", checkpoint, "-o", output, "--codec", "ffv1", "-q") == 0
    shutil.copy(folders / "0" / "clip.mkv", video)
    encode = ["-m", "mlx_ltx_vae.encode", "clip.mkv", "-m", "vae.safetensors", "-o", "out.safetensors"]
    with_changed_byte(video, -SAMPLE_BYTES // 2)
    _, err = launch_in_folders(folders, *encode)
    assert err.count("error: ") == 1 and "error: the contents of the videos differ between rank 0 and rank 1" in err
    with_changed_byte(weights, first_data_byte(weights))
    _, err = launch_in_folders(folders, *DECODE)
    assert err.count("error: ") == 1 and "error: the weights differ between rank 0 and rank 1" in err


def test_a_digest_of_latents_is_that_of_their_values_in_any_layout_and_of_all_of_them(tmp_path, monkeypatch):
    values = np.random.default_rng(0).normal(size=(1, 8, 5, 3, 4)).astype(np.float32)
    paths = [tmp_path / "a.npy", tmp_path / "packed.npz", tmp_path / "c.safetensors", tmp_path / "d.npy"]
    np.save(paths[0], values)
    np.savez_compressed(paths[1], latents=values.reshape(1, 8, -1).transpose(0, 2, 1))
    save_latents(paths[2], mx.array(values))
    values[0, 7, 4, 2, 3] += 1e-6
    np.save(paths[3], values)
    monkeypatch.setattr("mlx_ltx_vae.latents.files._BLOCK_BYTES", 800)  # two frames at a time
    digests = [open_latents(path, latent_channels=8, grid=(5, 3, 4)).digest() for path in paths]
    assert digests[0] == digests[1] == digests[2] != digests[3]


def test_a_sample_of_a_checkpoint_has_the_ends_of_each_tensor(golden, tmp_path):
    vae = tmp_path / "vae.safetensors"
    shutil.copy(golden("ltx2_3").checkpoint, vae)
    sample = open_checkpoint(vae).sample()
    assert sample == open_checkpoint(golden("ltx2_3").checkpoint).sample()
    for offset in (first_data_byte(vae), -1):
        with_changed_byte(vae, offset)
        assert open_checkpoint(vae).sample() != sample
        with_changed_byte(vae, offset)
    for network in ("encoder", "decoder"):
        assert open_checkpoint(vae, **{network: False}).sample() != sample


def test_a_sample_of_a_file_has_its_size_and_three_parts_and_that_of_a_folder_has_all_files(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(bytes(10 * SAMPLE_BYTES))
    sample = sample_path(path)
    assert sample_path(tmp_path / "missing") == []
    for offset, is_seen in ((0, True), (2 * SAMPLE_BYTES, False), (5 * SAMPLE_BYTES, True), (-1, True)):
        with_changed_byte(path, offset)
        assert (sample_path(path) != sample) is is_seen
        with_changed_byte(path, offset)
    shutil.copy(path, tmp_path / "b.png")
    assert [(name, size) for name, size, _ in sample_path(tmp_path)] == [
        (f"{name}.png", 10 * SAMPLE_BYTES) for name in "ab"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_stopped_rank_ends_all_with_one_line(folders, rank):
    vae = VideoVAE.from_pretrained(folders / "0" / "vae.safetensors", encoder=False)
    latents = distributed_ranks.latents_of(vae, frames=400, height=4, width=4)
    for each in ("0", "1"):
        save_latents(folders / each / "clip.safetensors", latents)

    def stop(launcher):
        deadline = time.monotonic() + 60
        while not list(folders.glob("0/.out*")):  # the ranks decode
            assert launcher.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(int((folders / rank / "process").read_text()), signal.SIGSTOP)

    out, err = launch_in_folders(folders, *DECODE, "--rank-timeout", "20", timeout=120, change=stop)
    name = "" if rank == "1" else "rank 1: "  # of the rank that is not stopped
    assert (out, err.count("error: ")) == ("", 1)
    assert f"error: {name}the ranks have exchanged nothing for 20 s; see that none is stopped, asleep" in err
    assert not list(folders.glob("*/*out*"))


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
    out, err = launch_in_folders(folders, *DECODE)
    assert (out, err.count("error: ")) == ("", 1)
    assert "error: rank 1: out.mp4: a crf of 300 is not between 0 and 51." in err


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
