"""`bench --metal` on any device, tiny: what it measures, writes and prints. Nothing depends on how long a run takes."""

import ctypes
import json
import os
from collections import Counter
from dataclasses import asdict, replace

import mlx.core as mx
import pytest

from benchmarks.convolutions import recorded
from mlx_ltx_vae.backend.machine import Backend, Machine
from mlx_ltx_vae.bench import processes
from mlx_ltx_vae.bench.__main__ import main
from mlx_ltx_vae.bench.case import Case, Decode, load_config
from mlx_ltx_vae.bench.metal import command, system
from mlx_ltx_vae.bench.metal.decodes import change_plan
from mlx_ltx_vae.bench.metal.workload import conv_calls, conv_kinds
from mlx_ltx_vae.errors import LTXVAEError
from mlx_ltx_vae.models.specs import ConvSpec
from mlx_ltx_vae.models.video_vae.network_specs import decoder_spec
from mlx_ltx_vae.planning.planner import plan_decode

TINY = ["--metal", "--any-device", "--base-width", "8", "--size", "64x64", "--frames", "9"]


@pytest.fixture
def in_process(monkeypatch):
    """Jobs run in this process, with what goes through JSON gone through it; the list of those that ran."""
    ran = []

    def run(job):
        ran.append(job)
        options = json.loads(json.dumps(dict(job.options)))
        with system.variables(job.variables):
            measured = job.measure(Case(**json.loads(json.dumps(asdict(job.case)))), **options)
        return {"task": job.measure.__name__, **asdict(job.case), **json.loads(json.dumps(measured, allow_nan=False))}

    monkeypatch.setattr(command, "run_fresh", run)
    return ran


def test_all_parts_are_measured_printed_and_written(in_process, golden, tmp_path, capsys):
    model = str(golden("ltx2_3").checkpoint)
    whole, public = tmp_path / "whole.json", tmp_path / "public.json"
    assert main([*TINY, "-m", model, "--json", str(whole), "--submit", str(public)]) == 0, capsys.readouterr().err
    document, submitted = json.loads(whole.read_text()), json.loads(public.read_text())
    assert document["case"].pop("model") == model
    assert submitted == document
    assert document["schema"] == 1 and document["errors"] == []
    assert document["machine"]["mlx"] == mx.__version__
    latent_frames = document["plan"]["latent_shape"][2]
    for entry in document["convolutions"]:
        assert entry["calls"] * entry["frames"] >= latent_frames
        assert set(entry["rule"]) == {"bfloat16", "float16"}
        for run in entry["runs"]:
            assert run["seconds"] > 0 and run["scratch_bytes"] > 0 and run["planned_scratch_bytes"] > 0
            assert run["rms"] < (0.1 if run["dtype"] == "bfloat16" else 0.01)
        assert {each["form"] for each in entry["runs"]} >= set(entry["rule"].values())
    assert {each["way"] for each in document["sums"]} >= {"conv3d", "joined", "rows", "the package's rule"}
    assert all(run["gb_per_second"] > 0 for run in document["elementwise"])
    names = [run["name"] for run in document["decodes"]]
    assert names[0] == "as planned" and names[-1] == "as planned, again"
    assert set(names) >= {
        "chunk 2",
        "chunk 4",
        "tile batch 1",
        "no Winograd",
        "float16",
        "cache 0.5 GB",
        "2 steps ahead",
    }
    for run in document["decodes"]:
        assert run["frames"] == 9 and 0 < run["first_frame_seconds"] <= run["seconds"]
        assert run["total_peak_bytes"] > 0 and 0 < run["planned_bytes"] <= run["planned_total_bytes"]
    psnr = {run["name"]: run["psnr"] for run in document["accuracy"]}
    assert 20 < psnr["bfloat16 given"] < psnr["float16"] < psnr["float32"]
    assert [run["layer"] for run in document["ranges"]][0] == "conv_in"
    printed = capsys.readouterr().out
    for title in (
        "A. The machine",
        "B. Each conv",
        "C. All conv",
        "D. Between",
        "E. Whole",
        "F. Acc",
        "G. The",
        "Verdicts",
    ):
        assert title in printed


def test_quick_leaves_out_float16_and_most_decodes(in_process, tmp_path, capsys):
    assert main([*TINY, "--quick", "--forms", "conv3d", "joined", "--submit", f"{tmp_path}/"]) == 0
    (path,) = tmp_path.iterdir()
    document = json.loads(path.read_text())
    assert path.name.endswith(f"-{document['date']}.json")
    assert {run["dtype"] for entry in document["convolutions"] for run in entry["runs"]} == {"bfloat16"}
    assert {run["form"] for entry in document["convolutions"] for run in entry["runs"]} == {"conv3d", "joined"}
    assert len(document["decodes"]) == 4 and len(document["accuracy"]) == 2
    assert "joined frames, bfloat16: " in capsys.readouterr().out


@pytest.mark.slow
def test_every_job_runs_in_a_fresh_process(tmp_path, capsys):
    assert main([*TINY, "--quick", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["errors"] == [] and len(document["ranges"]) > 10


def test_what_fails_is_reported_and_the_rest_is_measured(in_process, monkeypatch, tmp_path, capsys):
    run = command.run_fresh

    def failing(job):
        if job.measure.__name__ == "timed_decode" and job.case.dtype == "bfloat16" and job.case.formulation:
            raise LTXVAEError(f"out of memory in {tmp_path}/x.py")
        if job.measure.__name__ == "ranges":
            raise LTXVAEError("stopped")
        return run(job)

    monkeypatch.setattr(command, "run_fresh", failing)
    path = tmp_path / "public.json"
    assert main([*TINY, "--quick", "--forms", "conv3d", "--submit", str(path)]) == 1
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith("error: 2 of the measurements failed; the first: mx.conv3d: out of memory")
    assert "| mx.conv3d" in captured.out and "failed" in captured.out
    document = json.loads(path.read_text())
    assert [each["name"] for each in document["errors"]] == ["mx.conv3d", "ranges"]
    assert str(tmp_path) not in path.read_text()
    assert document["ranges"] == [] and len(document["accuracy"]) == 2


def test_without_apples_gpu_it_says_so_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(command, "backend", lambda: Backend.CUDA)
    with pytest.raises(SystemExit) as caught:
        main(["--metal"])
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--metal needs Apple's GPU" in line


def test_the_help_of_the_measurement_fits_80_columns_and_its_examples_are_correct_usage(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as caught:
        main(["--metal", "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert caught.value.code == 0 and max(map(len, lines)) <= 80
    monkeypatch.setattr(command, "run_command", lambda measure, options, **_: 0)
    for line in lines[lines.index("examples:") + 1 :]:
        assert main([*line.split()[3:], "--any-device"]) == 0


@pytest.mark.parametrize(("arguments", "complaint"), [("--encode", "--encode"), ("--repeat 3", "--repeat 3")])
def test_options_of_other_measurements_are_refused(arguments, complaint, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--metal", *arguments.split()])
    assert caught.value.code == 2
    assert f"unrecognized arguments: {complaint}" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(in_process, capsys):
    assert main([*TINY, "--submit", "/nowhere/x.json"]) == 1
    assert "/nowhere/x.json: cannot be written" in capsys.readouterr().err
    assert in_process == []


@pytest.mark.parametrize("frames", [9, 49])
@pytest.mark.parametrize("chunk", [1, 2])
def test_the_convolutions_of_a_plan_are_those_of_its_decode(frames, chunk):
    subject = Decode.from_case(Case(base_width=8, width=64, height=32, frames=frames, order="time", chunk=chunk))
    seen = Counter()
    with recorded(lambda each: seen.update([(each.output_shape[1:4], each.input_shape[-1], each.output_shape[-1])])):
        for _ in subject.run():
            pass
    calls = conv_calls(decoder_spec(subject.vae.config), subject.plan)
    assert Counter((shape.grid, shape.in_channels, shape.out_channels) for _, shape in calls) == seen


def test_kinds_count_every_frame_of_every_convolution():
    spec = decoder_spec(load_config(Case(base_width=8)))
    plan = plan_decode(spec, (1, 128, 16, 4, 6), Machine(Backend.METAL, 2, 10**11), mode="exact", order="time")
    kinds, calls = conv_kinds(spec, plan), conv_calls(spec, plan)
    assert sum(kind.calls * kind.frames for kind in kinds) == sum(shape.grid[0] for _, shape in calls)
    assert sum(kind.layers for kind in kinds) == sum(isinstance(layer, ConvSpec) for layer in spec.layers)


def test_a_plan_with_another_prefetch_counts_its_memory():
    case = Case(base_width=8, width=64, height=64, frames=17)
    measurement = command.Measurement(case, Backend.CPU, ())
    spec, plan = decoder_spec(load_config(case)), measurement.plan()
    assert change_plan(plan, spec, plan.prefetch, None).memory == plan.memory
    ahead = change_plan(plan, spec, plan.prefetch + 1, 1000)
    assert ahead.memory.work > plan.memory.work and ahead.memory.buffer_cache == 1000
    assert (ahead.prefetch, ahead.memory.inputs) == (plan.prefetch + 1, plan.memory.inputs)


def test_a_case_with_a_formulation_is_loaded_planned_and_run_with_it():
    case = Case(base_width=8, width=64, height=64, frames=9)
    ours, other = (Decode.from_case(each) for each in (case, replace(case, formulation="conv3d")))
    assert ours.plan.memory.work < other.plan.memory.work
    assert mx.allclose(other.decode_pixels(), ours.decode_pixels(), atol=1e-3)


def test_variables_are_set_and_given_back(monkeypatch):
    monkeypatch.setenv(system.WINOGRAD, "0")
    monkeypatch.delenv(system.TILE_BATCH, raising=False)
    with pytest.raises(ZeroDivisionError), system.variables({system.TILE_BATCH: "1"}):
        assert os.environ[system.TILE_BATCH] == "1" and system.WINOGRAD not in os.environ
        raise ZeroDivisionError
    assert os.environ[system.WINOGRAD] == "0" and system.TILE_BATCH not in os.environ


def test_a_job_has_its_variables_in_its_process(monkeypatch):
    seen = {}

    def fake(command, env, **_):
        seen.update(env)
        raise ChildProcessError

    monkeypatch.setattr(processes.subprocess, "Popen", fake)
    with pytest.raises(ChildProcessError):
        processes.run_fresh(processes.Job(change_plan, Case(), variables={"MLX_ENABLE_TF32": "0", "PROBE": "1"}))
    assert (seen["MLX_ENABLE_TF32"], seen["PROBE"], seen["PATH"]) == ("0", "1", os.environ["PATH"])
    assert "PROBE" not in os.environ


def test_the_footprint_grows_with_memory_in_use():
    before = system.footprint()
    held = bytearray(b"x" * 50_000_000)
    after = system.footprint()
    assert after["lifetime_footprint_bytes"] >= after["footprint_bytes"] > before["footprint_bytes"]
    assert len(held) == 50_000_000


def test_the_sampled_footprint_is_that_of_the_block():
    before = bytearray(b"x" * 200_000_000)
    del before
    with system.sampled_footprint() as samples:
        pass
    assert 0 < max(samples) < system.footprint()["lifetime_footprint_bytes"] - 100_000_000


def test_the_footprint_of_macos_is_read_from_the_words_of_apples_header(monkeypatch):
    def proc_pid_rusage(pid, flavor, words):
        assert (pid, flavor) == (os.getpid(), 4)
        words._obj[9], words._obj[30] = 123, 456
        return 0

    library = type("Library", (), {"proc_pid_rusage": staticmethod(proc_pid_rusage)})
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(system.sys, "platform", "darwin")
    assert system.footprint() == {"footprint_bytes": 123, "lifetime_footprint_bytes": 456}


def test_a_case_keeps_its_dtype_only_if_asked(monkeypatch):
    asked = []
    monkeypatch.setattr("mlx_ltx_vae.bench.case.prepare", lambda network, keeps_dtype: asked.append(keeps_dtype))
    case = Case(base_width=8, width=32, height=32, frames=9)
    for each in (case, replace(case, keeps_dtype=True)):
        Decode.from_case(each)
    assert asked == [False, True]
