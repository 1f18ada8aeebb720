"""The command `bench`, end to end and small. Nothing depends on how long a run takes."""

import json
import os
import pprint
from dataclasses import replace

import mlx.core as mx
import pytest

from mlx_ltx_vae.bench import main
from mlx_ltx_vae.commands import bench_command
from mlx_ltx_vae.commands.bench_command import (
    Case,
    measure,
    measure_case,
    noise_frames,
    noise_latents,
    random_network,
    run_fresh,
)
from mlx_ltx_vae.models.families import published
from mlx_ltx_vae.planning.plan import Mode
from mlx_ltx_vae.published import PublishedVAE
from mlx_ltx_vae.tiling import TilingConfig, preset
from mlx_ltx_vae.vae import VideoVAE

TINY = ["--base-width", "8", "--size", "64x64", "--repeat", "1"]
CASE = Case(None, "ltx-2.3", 8, None, width=64, height=64, frames=9, mode="exact", order="auto")
MEASURED = {
    "dtype": "bfloat16",
    "order": "time",
    "planned_bytes": 3e6,
    "weights_bytes": 1e6,
    "num_outputs": 9,
    "seconds": 1.5,
    "first_frame_seconds": 0.5,
    "peak_memory_bytes": 2e6,
}


@pytest.fixture
def in_process(monkeypatch):
    """Runs measure nothing; the list of their cases."""
    ran = []

    def run(function, case):
        assert function is measure_case
        ran.append(Case(**case))
        return {**MEASURED, "seconds": float(len(ran)), "peak_memory_bytes": len(ran) * 1e6}

    monkeypatch.setattr(bench_command, "run_fresh", run)
    return ran


def test_decodes_and_an_encode_are_measured_in_processes_of_their_own(capsys):
    assert main([*TINY, "--num-frames", "9", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    machine = document["machine"]
    assert (machine["mlx"], machine["device"]) == (mx.__version__, str(mx.default_device()))
    runs = {run["mode"]: run for run in document["runs"]}
    assert list(runs) == ["exact", "single", "encode"]
    assert [run["num_outputs"] for run in runs.values()] == [9, 9, 2]
    for run in runs.values():
        assert (run["dtype"], run["width"], run["height"], run["frames"]) == ("bfloat16", 64, 64, 9)
        assert 0 < run["first_frame_seconds"] <= run["seconds"]
        assert 0 < run["weights_bytes"] < run["peak_memory_bytes"]
        assert run["planned_bytes"] > run["weights_bytes"]
    assert runs["exact"]["order"] == "time"


def test_the_table_says_what_was_measured_where_and_is_plain_text(in_process, capsys):
    assert main([*TINY, "--num-frames", "9", "--repeat", "3", "--mode", "exact", "--mode", "encode"]) == 0
    assert [case.mode for case in in_process] == ["exact", "encode"] * 3  # in turns
    title, what, _, *lines = capsys.readouterr().out.splitlines()
    assert f"MLX {mx.__version__}" in title
    assert what == "ltx-2.3 with random weights, 8 base channels, bfloat16, 64x64"
    assert lines[:4] == [
        "|                | order | frames | seconds | first frame | peak MB | planned MB | weights MB | runs |",
        "|----------------|-------|--------|---------|-------------|---------|------------|------------|------|",
        "| decode (exact) | time  | 9      | 3.00    | 0.50        | 5       | 3          | 1          | 3    |",
        "| encode         |       | 9      | 4.00    |             | 6       | 3          | 1          | 3    |",
    ]


def test_every_length_in_every_mode_and_order_is_a_case(in_process, golden, capsys):
    model = str(golden("ltx2_3").checkpoint)
    given = ["--mode", "exact", "--order", "rows", "--order", "time", "--mode", "tiled", "--num-frames", "9"]
    assert (
        main(["-m", model, "--size", "96x64", "--dtype", "float32", *given, "--num-frames", "17", "--repeat", "1"]) == 0
    )
    modes = [("exact", "rows"), ("exact", "time"), ("tiled", "auto")]
    wanted = [(frames, *each) for frames in (9, 17) for each in modes]
    assert [(case.frames, case.mode, case.order) for case in in_process] == wanted
    assert "ltx2_3.safetensors, bfloat16, 96x64" in capsys.readouterr().out.splitlines()  # without its folder
    assert {(case.model, case.dtype, case.width, case.height) for case in in_process} == {(model, "float32", 96, 64)}


@pytest.mark.parametrize("name", ["ltx-2.5-diffusion", "latent-rgb"])
def test_what_has_no_encoder_is_not_encoded(name, in_process, capsys):
    assert main([*TINY, "--generation", name]) == 0
    assert [case.mode for case in in_process] == ["exact", "single"]
    with pytest.raises(SystemExit, match="2"):
        main([*TINY, "--generation", name, "--mode", "encode"])
    assert "has no encoder" in capsys.readouterr().err


def test_a_mode_that_fails_is_a_row_and_the_others_are_measured(monkeypatch, in_process, capsys):
    run = bench_command.run_fresh

    def failing(function, case):
        if case["mode"] == "single":
            raise bench_command.LTXVAEError("the single pass is too large.")
        return run(function, case)

    monkeypatch.setattr(bench_command, "run_fresh", failing)
    assert main([*TINY, "--repeat", "2"]) == 1
    printed = capsys.readouterr()
    assert [case.mode for case in in_process] == ["exact", "encode"] * 2
    (row,) = (line for line in printed.out.splitlines() if line.startswith("| decode (single) "))
    assert "| failed " in row
    first = "the first, decode (single) of 57 frames: the single pass is too large.\n"
    assert printed.err == f"error: 1 of 3 measurements failed; {first}"


def test_a_checkpoint_that_is_missing_is_an_error_of_one_line(capsys):
    assert main([*TINY, "-m", "missing.safetensors", "--mode", "exact"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    first = "the first, decode (exact) of 57 frames: missing.safetensors: there is no such file or folder"
    assert printed.err.startswith(f"error: 1 of 1 measurements failed; {first}")
    assert printed.err.count("\n") == 1


SLOW = {"ltx-2.5", "ltx-2.5-diffusion"}  # the first has the layers of ltx-2.3


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.slow] * (each in SLOW)) for each in published()]
)
def test_every_published_vae_is_measured_without_a_checkpoint(name):
    run = measure_case(vars(replace(CASE, generation=name)))
    per_frame = {"latent-rgb": 8}.get(name, 1)  # one picture of a latent frame
    assert run["num_outputs"] == 1 + 8 // per_frame
    assert run["dtype"] == published()[name].published_dtype
    assert 0 < run["weights_bytes"] < run["peak_memory_bytes"]


@pytest.mark.parametrize("name", published())
def test_every_published_vae_has_tiles_that_fit_it(name):
    vae = bench_command._load(replace(CASE, generation=name), "decoder")
    plan = vae.plan(noise_latents(vae, (9, 64, 64)).shape, mode="tiled")
    expected = TilingConfig.default() if name != "ltx-2.5-diffusion" else preset("wide", 64, 64, 9)
    assert (plan.mode, plan.tiling) == (Mode.TILED, expected)


def test_random_weights_are_as_published_and_the_same_each_time():
    for name, channels in (("ltx-2.3", 1024), ("prunavaed", 2048), ("taehv", 256), ("ltx-2.5-diffusion", 2048)):
        spec = published()[name].spec(published()[name].published[name](128), "decoder")
        assert max(layer.in_channels for layer in spec.layers) == channels, name
    narrow = PublishedVAE.find("ltx-2.5-diffusion", base_channels=8)
    first, again = (random_network(narrow, "decoder", "float32") for _ in range(2))
    assert mx.array_equal(first.conv_out.weight, again.conv_out.weight)


def test_a_checkpoint_computes_in_its_own_dtype_and_random_weights_in_the_published_one(golden):
    loaded = [replace(CASE, model=str(golden("ltx2_3").checkpoint)), CASE, replace(CASE, dtype="float16")]
    vaes = [bench_command._load(case, "decoder") for case in loaded]
    assert [vae.dtype for vae in vaes] == [mx.float32, mx.bfloat16, mx.float16]
    assert all(isinstance(vae, VideoVAE) and vae.encoder is None for vae in vaes[1:])


def test_noise_is_the_same_each_time_and_of_the_video():
    one, other = (list(noise_frames((17, 32, 64))) for _ in range(2))
    assert [frames.shape for frames in one] == [(8, 32, 64, 3), (8, 32, 64, 3), (1, 32, 64, 3)]
    assert all((first == second).all() for first, second in zip(one, other, strict=True))


def test_the_peak_is_that_of_the_run_alone():
    mx.eval(mx.zeros(10_000_000))

    def counts():
        array = mx.zeros(1_000_000)
        mx.eval(array)
        yield 2
        yield 3

    before = mx.get_active_memory()
    measured = measure(counts())
    assert measured["num_outputs"] == 5
    assert 4_000_000 <= measured["peak_memory_bytes"] - before < 5_000_000
    assert 0 < measured["first_frame_seconds"] <= measured["seconds"]


@pytest.mark.slow
def test_a_run_has_its_variables_and_only_its_result_on_standard_output():
    assert run_fresh(os.getenv, {"PROBE": "1"}, key="PROBE") == "1"
    assert "PROBE" not in os.environ
    assert run_fresh(os.getpid) != os.getpid()
    assert run_fresh(pprint.pprint, object="what another program prints") is None


@pytest.mark.parametrize("variable", ["MLX_RANK", "OMPI_COMM_WORLD_RANK"])
def test_several_ranks_are_refused(variable, monkeypatch, capsys):
    monkeypatch.setenv(variable, "0")
    with pytest.raises(SystemExit, match="2"):
        main(TINY)
    assert "start bench without a launcher" in capsys.readouterr().err
