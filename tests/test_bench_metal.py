"""`bench --metal` on any device, tiny: what it measures, writes and prints. Nothing depends on how long a run takes."""

import ctypes
import json
import os
from collections import Counter
from dataclasses import asdict, replace

import mlx.core as mx
import pytest

from benchmarks.convolutions import recorded
from benchmarks.metal_emulation import emulated
from mlx_ltx_vae.backend.device import backend
from mlx_ltx_vae.backend.machine import Backend, Machine
from mlx_ltx_vae.bench import decoding, processes
from mlx_ltx_vae.bench.__main__ import main
from mlx_ltx_vae.bench.case import Case, Decode, load_config
from mlx_ltx_vae.bench.metal import attention, command, jobs, kernels
from mlx_ltx_vae.errors import LTXVAEError
from mlx_ltx_vae.models.convolution import module
from mlx_ltx_vae.models.convolution.precision import scale_factors
from mlx_ltx_vae.models.diffusion_decoder.neighborhood import BLOCKS
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
        with kernels.variables(job.variables):
            measured = job.measure(Case(**json.loads(json.dumps(asdict(job.case)))), **options)
        return json.loads(json.dumps(measured, allow_nan=False))

    monkeypatch.setattr(command, "run_fresh", run)
    return ran


@pytest.mark.slow
def test_all_parts_are_measured_printed_and_written(in_process, golden, tmp_path, capsys):
    model, path = str(golden("ltx2_3").checkpoint), tmp_path / "whole.json"
    assert main([*TINY, "-m", model, "--json", str(path)]) == 0, capsys.readouterr().err
    document = json.loads(path.read_text())
    assert (document["schema"], document["errors"], document["machine"]["mlx"]) == (1, [], mx.__version__)
    assert (document["case"]["weights"], document["case"]["model"], document["case"]["is_quick"]) == (
        "checkpoint",
        model,
        False,
    )
    for entry in document["convolutions"]:
        assert entry["calls"] * entry["frames"] >= document["plan"]["latent_shape"][2]
        assert set(entry["rule"]) == {"bfloat16", "float16"}
        for run in entry["runs"]:
            assert run["seconds"] > 0 and run["scratch_bytes"] > 0 and run["planned_scratch_bytes"] > 0
            assert run["rms"] < (0.1 if run["dtype"] == "bfloat16" else 0.01)
        assert {each["form"] for each in entry["runs"]} >= set(entry["rule"].values())
    assert all(run["gb_per_second"] > 0 for run in document["elementwise"])
    assert [run["size"] for run in document["attention"]] == list(attention.SIZES)
    assert [run["size"] for run in document["attention"] if run["is_ours"]] == [BLOCKS[backend()]]
    for run in document["attention"]:
        assert run["grid"] == [11, 16, 1] and run["seconds"] > 0 and run["scratch_bytes"] > 0
    names = [run["name"] for run in document["decodes"]]
    assert names[0] == "as planned" and names[-1] == "as planned, again"
    assert set(names) >= {"chunk 2", "chunk 4", "MLX's tile batch", "no Winograd", "float16", "cache 0.5 GB"}
    assert set(names) >= {"mx.conv3d", "2 steps ahead"} and len(names) == 15
    for run in document["decodes"]:
        assert run["frames"] == 9 and 0 < run["first_frame_seconds"] <= run["seconds"]
        assert run["total_peak_bytes"] > 0 and 0 < run["planned_bytes"] <= run["planned_total_bytes"]
        assert run["start_footprint_bytes"] > 0 and run["peak_footprint_bytes"] > 0
        assert "samples" not in run
    limits = {run["name"]: run["cache_limit"] for run in document["decodes"] if run["cache_limit"]}
    assert limits == {"cache 0.5 GB": 5e8, "cache 1 GB": 1e9, "cache 2 GB": 2e9, "cache 4 GB": 4e9}
    psnr = {run["name"]: run.get("psnr") for run in document["accuracy"]}
    assert 20 < psnr["bfloat16 given"] < psnr["float16"] < psnr["float32"]
    layers = {layer.name for layer in decoder_spec(load_config(Case(model=model))).layers if layer.name != "unpatchify"}
    assert {run["layer"] for run in document["ranges"]} == layers and len(document["ranges"]) == len(layers)
    assert all(0 < run["input"] < 1e3 and 0 < run["output"] < 1e3 for run in document["ranges"])
    printed = capsys.readouterr().out
    for title in ("convolutions", "elementwise", "attention", "decodes", "accuracy", "ranges"):
        assert f"\n\n{title}" in printed


def test_quick_leaves_out_float16_and_most_decodes(in_process, capsys):
    assert main([*TINY, "--quick", "--forms", "conv3d", "joined", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {run["dtype"] for entry in document["convolutions"] for run in entry["runs"]} == {"bfloat16"}
    assert {run["form"] for entry in document["convolutions"] for run in entry["runs"]} == {"conv3d", "joined"}
    assert [run["name"] for run in document["decodes"]] == ["as planned", "mx.conv3d", "no Winograd", "1 step ahead"]
    assert [run["name"] for run in document["accuracy"]] == ["reference", "exact", "bfloat16 given"]


@pytest.mark.slow
def test_every_job_runs_in_a_fresh_process(capsys):
    assert main([*TINY, "--quick", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["errors"] == [] and len(document["ranges"]) > 10
    for run in document["decodes"]:
        assert run["start_footprint_bytes"] < run["peak_footprint_bytes"] <= run["lifetime_footprint_bytes"]


def test_what_fails_is_reported_and_the_rest_is_measured(in_process, monkeypatch, tmp_path, capsys):
    run, check = command.run_fresh, kernels._check

    def failing(job):
        if job.measure is decoding.decode and "warm_up" in job.options and job.case.formulation:
            raise LTXVAEError("out of memory")
        if job.measure.__name__ == "ranges":
            raise LTXVAEError("stopped")
        return run(job)

    def check_joined(call, reference):
        if call.func._rule.formulation.value == "joined":
            raise RuntimeError("no such kernel")
        return check(call, reference)

    monkeypatch.setattr(command, "run_fresh", failing)
    monkeypatch.setattr(kernels, "_check", check_joined)
    path = tmp_path / "whole.json"
    assert main([*TINY, "--quick", "--forms", "conv3d", "joined", "--json", str(path)]) == 1
    document, captured = json.loads(path.read_text()), capsys.readouterr()
    names = [each["name"] for each in document["errors"]]
    assert names[-2:] == ["mx.conv3d", "ranges"] and len(names) == len(document["convolutions"]) + 2
    assert all(name.endswith(", joined in bfloat16") for name in names[:-2])
    (line,) = captured.err.splitlines()
    assert line.startswith(f"error: {len(names)} of the measurements failed; the first: {names[0]}: ")
    lines = [line.replace(" ", "") for line in captured.out.splitlines()]
    assert any(line.startswith("|mx.conv3d|failed|") for line in lines), captured.out
    assert sum(line.endswith("|failed|") for line in lines) == len(document["convolutions"]) + 1
    assert document["ranges"] == [] and len(document["accuracy"]) == 3


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
    assert main([*TINY, "--json", "/nowhere/x.json"]) == 1
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
    calls = jobs.conv_calls(subject.vae.decoder.spec, subject.plan)
    assert Counter((shape.grid, shape.in_channels, shape.out_channels) for _, shape in calls) == seen


def test_kinds_count_every_frame_of_every_convolution():
    spec = decoder_spec(load_config(Case(base_width=8)))
    plan = plan_decode(spec, (1, 128, 16, 4, 6), Machine(Backend.METAL, 2, 10**11), mode="exact", order="time")
    kinds, calls = jobs.conv_kinds(spec, plan), jobs.conv_calls(spec, plan)
    assert sum(kind.calls * kind.frames for kind in kinds) == sum(shape.grid[0] for _, shape in calls)


@pytest.mark.parametrize(
    ("channels", "picture", "rule"),
    [
        ((512, 512), (64, 96), {"bfloat16": "rows", "float16": "joined"}),
        ((1024, 1024), (16, 24), {"bfloat16": "rows", "float16": "rows"}),
    ],
)
@pytest.mark.parametrize("is_normalized", [True, False])
def test_the_rule_of_an_entry_is_the_packages_for_this_device(channels, picture, rule, is_normalized, monkeypatch):
    kind = kernels.ConvKind(*channels, *picture, frames=2, calls=1, is_normalized=is_normalized)
    monkeypatch.setattr(jobs, "backend", lambda: Backend.METAL)
    monkeypatch.setattr(jobs, "conv_kinds", lambda spec, plan: [kind])
    task = next(jobs.make_tasks(Case(base_width=8, dtype="bfloat16"), [], "x.npy", is_quick=False))
    assert (task.known["rule"], task.known["operands"]) == (rule, "float16")


def test_an_input_without_a_norm_is_measured_with_its_scaling(monkeypatch):
    scaled = []
    monkeypatch.setattr(module, "scale_factors", lambda *given: scaled.append(given) or scale_factors(*given))
    kind = {"in_channels": 32, "out_channels": 32, "height": 8, "width": 8, "frames": 2, "calls": 1}
    bytes_planned = []
    for is_normalized in (True, False):
        with emulated():
            monkeypatch.setattr(kernels, "median_seconds", lambda *_: {})
            measured = kernels.convolution(
                Case(), kind=kind | {"is_normalized": is_normalized}, forms=["rows"], dtypes=["bfloat16", "float16"]
            )
        bytes_planned.append([run["planned_scratch_bytes"] for run in measured["runs"]])
        assert [run["rms"] < 3e-3 for run in measured["runs"]] == [True, True]
        assert bool(scaled) is not is_normalized
    assert bytes_planned[1][1] - bytes_planned[0][1] == 3 * 2 * 8 * 8 * 32 * 2
    assert bytes_planned[1][0] == bytes_planned[0][0]


def test_the_attention_is_measured_with_blocks_of_each_size(monkeypatch):
    seen, before = [], BLOCKS[backend()]

    def attend(queries, *_):
        seen.append(BLOCKS[backend()])
        return queries * 2

    monkeypatch.setattr(attention, "attend", attend)
    measured = attention.neighborhood(Case(width=64, height=64, frames=9), sizes=[3, 6])
    assert set(seen) == {3, 6} == {run["size"] for run in measured["runs"]}
    assert BLOCKS[backend()] == before


def test_another_prefetch_counts_its_memory_and_a_cache_limit_is_kept():
    case = Case(base_width=8, width=64, height=64, frames=17)
    plan = Decode.from_case(case).plan
    assert Decode.from_case(replace(case, prefetch=plan.prefetch)).plan.memory == plan.memory
    ahead = Decode.from_case(replace(case, prefetch=plan.prefetch + 1, cache_limit=1000)).plan
    assert ahead.memory.work > plan.memory.work and ahead.memory.buffer_cache == 1000
    assert (ahead.prefetch, ahead.memory.inputs) == (plan.prefetch + 1, plan.memory.inputs)


def test_a_case_with_a_formulation_is_loaded_planned_and_run_with_it():
    case = Case(base_width=8, width=64, height=64, frames=9)
    ours, other = (Decode.from_case(each) for each in (case, replace(case, formulation="conv3d")))
    assert ours.plan.memory.work < other.plan.memory.work
    assert mx.allclose(other.decode_pixels(), ours.decode_pixels(), atol=1e-3)


def test_variables_are_set_and_given_back(monkeypatch):
    (winograd,), (tile_batch,) = kernels.NO_WINOGRAD, kernels.ONE_FRAME
    monkeypatch.setenv(winograd, "0")
    monkeypatch.delenv(tile_batch, raising=False)
    with pytest.raises(ZeroDivisionError), kernels.variables(kernels.ONE_FRAME):
        assert os.environ[tile_batch] == "1" and winograd not in os.environ
        raise ZeroDivisionError
    assert os.environ[winograd] == "0" and tile_batch not in os.environ


def test_a_job_has_its_variables_in_its_process(monkeypatch):
    seen = {}

    def fake(command, env, **_):
        seen.update(env)
        raise ChildProcessError

    monkeypatch.setattr(processes.subprocess, "Popen", fake)
    with pytest.raises(ChildProcessError):
        processes.run_fresh(processes.Job(decoding.decode, Case(), variables={"MLX_ENABLE_TF32": "0", "PROBE": "1"}))
    assert (seen["MLX_ENABLE_TF32"], seen["PROBE"], seen["PATH"]) == ("0", "1", os.environ["PATH"])
    assert "PROBE" not in os.environ


def test_the_footprint_of_macos_is_read_from_the_words_of_apples_header(monkeypatch):
    def proc_pid_rusage(pid, flavor, words):
        assert (pid, flavor) == (os.getpid(), 4)
        words._obj[9], words._obj[30] = 123, 456
        return 0

    library = type("Library", (), {"proc_pid_rusage": staticmethod(proc_pid_rusage)})
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(decoding.sys, "platform", "darwin")
    assert decoding.footprint() == (123, 456)


def test_a_case_keeps_its_dtype_only_if_asked(monkeypatch):
    asked = []
    monkeypatch.setattr("mlx_ltx_vae.bench.case.prepare", lambda network, keeps_dtype: asked.append(keeps_dtype))
    case = Case(base_width=8, width=32, height=32, frames=9)
    for each in (case, replace(case, keeps_dtype=True)):
        Decode.from_case(each)
    assert asked == [False, True]
