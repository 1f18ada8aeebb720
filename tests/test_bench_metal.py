"""`bench --metal` on any device, tiny: what it measures, writes and prints. Nothing depends on how long a run takes."""

import ctypes
import json
import os
from collections import Counter
from dataclasses import asdict, replace

import mlx.core as mx
import numpy as np
import pytest

from benchmarks.convolutions import recorded
from benchmarks.metal.verdicts import list_verdicts
from mlx_ltx_vae.backend.device import backend
from mlx_ltx_vae.backend.machine import Backend
from mlx_ltx_vae.bench import command, decoding, metal_command, metal_tasks
from mlx_ltx_vae.bench.__main__ import main
from mlx_ltx_vae.bench.command import describe_machine
from mlx_ltx_vae.bench.decoding import Case, Decode, open_case
from mlx_ltx_vae.errors import LTXVAEError
from mlx_ltx_vae.models.conv_spec import Activation
from mlx_ltx_vae.models.convolution.conv3d import Conv3d
from mlx_ltx_vae.models.diffusion_decoder.neighborhood import BLOCKS

TINY = ["--metal", "--any-device", "--base-width", "8", "--size", "64x64", "--num-frames", "9"]


@pytest.fixture
def in_process(monkeypatch):
    """Jobs run in this process, with what goes through JSON gone through it; the list of those that ran."""
    ran, blocks = [], dict(BLOCKS)

    def run(job):
        ran.append(job)
        case, options = json.loads(json.dumps([asdict(job.case), dict(job.options)]))
        with monkeypatch.context() as patch:
            for name, value in job.variables.items():
                patch.setenv(name, value)
            measured = job.measure(Case(**case), **options)
        BLOCKS.update(blocks)
        return {**case, **json.loads(json.dumps(measured, allow_nan=False))}

    monkeypatch.setattr(metal_command, "run_fresh", run)
    return ran


@pytest.mark.slow
def test_all_parts_are_measured_printed_and_written(in_process, golden, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(metal_tasks, "BLOCK_SIZES", (BLOCKS[backend()],))
    model, path = str(golden("ltx2_3").checkpoint), tmp_path / "whole.json"
    assert main([*TINY, "-m", model, "--save", str(path)]) == 0, capsys.readouterr().err
    document = json.loads(path.read_text())
    assert (document["schema"], document["errors"], document["machine"]["mlx"]) == (2, [], mx.__version__)
    assert (document["case"]["weights"], document["case"]["model"], document["case"]["is_quick"]) == (
        "checkpoint",
        model,
        False,
    )
    layers = {layer.name for layer in open_case(Case(model=model)).spec("decoder").layers if layer.name != "unpatchify"}
    assert [entry["name"] for entry in document["convolutions"]] == list(metal_tasks.FORMS)
    for entry in document["convolutions"]:
        assert {run["layer"] for run in entry["runs"]} == layers and len(entry["runs"]) == len(layers)
        assert all(run["seconds"] > 0 and run["calls"] > 0 for run in entry["runs"])
        assert all(0 < run["input"] < 1e3 and 0 < run["output"] < 1e3 for run in entry["runs"])
    names = [run["name"] for run in document["decodes"]]
    assert names[0] == "as planned" and names[-1] == "as planned, again"
    assert set(names) >= {"chunk 2", "chunk 4", "MLX's tile batch", "no Winograd", "float16", "cache 0.5 GB"}
    assert set(names) >= {"mx.conv3d", "2 steps ahead"} and len(names) == 18
    for run in document["decodes"]:
        assert run["frames"] == 9 and 0 < run["first_frame_seconds"] <= run["seconds"]
        assert run["total_peak_bytes"] > 0 and ("ahead" in run["name"]) == (run["planned_bytes"] is None)
        assert run["start_footprint_bytes"] > 0 and run["peak_footprint_bytes"] > 0
        assert "samples" not in run
    limits = {run["name"]: run["cache_limit"] for run in document["decodes"] if run["cache_limit"]}
    assert limits == {"cache 0.5 GB": 5e8, "cache 1 GB": 1e9, "cache 2 GB": 2e9, "cache 4 GB": 4e9}
    psnr = {run["name"]: run.get("psnr") for run in document["accuracy"]}
    assert 20 < psnr["bfloat16 given"] < psnr["float16"] and psnr["reference"] is psnr["float32"] is None
    (attention,) = document["attention"]
    assert (attention["generation"], attention["is_ours"]) == ("ltx-2.5-diffusion", True)
    printed = capsys.readouterr().out
    assert printed.endswith(f"\n\n{document['plan']['verdict']}\n")
    assert {each["mode"] for each in document["plan"]["modes"]} == {"exact by time", "exact by rows", "single", "tiled"}
    for title in ("| convolution ", "| as planned ", "| reference ", "| blocks of 4 "):
        assert f"\n{title}" in printed


def test_quick_leaves_out_most_decodes(in_process, capsys):
    assert main([*TINY, "--quick", "--forms", "conv3d", "the package's rule", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in document["convolutions"]] == ["conv3d", "the package's rule"]
    names = [run["name"] for run in document["decodes"]]
    assert names == ["as planned", "mx.conv3d", "no Winograd", "0 steps ahead", "1 step ahead"]
    assert [run["name"] for run in document["accuracy"]] == ["reference", "exact", "bfloat16 given"]
    assert document["attention"] == []
    assert [each["mode"] for each in document["plan"]["modes"]] == ["exact by time"]
    assert document["plan"]["modes"][0]["decodes"] == 6 and document["is_virtual"] is False
    document["machine"]["backend"] = "metal"  # where footprints count, of the runs that have them
    for run in (run for run in document["decodes"] if "peak_footprint_bytes" in run):
        run["peak_footprint_bytes"] = run["start_footprint_bytes"] + 1000  # a process that has memory left takes none
    assert metal_command.compare_with_plan(document)["modes"][0]["measured_footprint_bytes"] == 1000
    assert "the footprint" in list_verdicts(document)


@pytest.mark.slow
def test_every_job_runs_in_a_fresh_process(capsys):
    assert main([*TINY, "--quick", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["errors"] == [] and len(document["convolutions"][0]["runs"]) > 10
    for run in document["decodes"]:
        assert run["start_footprint_bytes"] < run["peak_footprint_bytes"]


def test_what_fails_is_reported_and_the_rest_is_measured(in_process, monkeypatch, tmp_path, capsys):
    run = metal_command.run_fresh

    def failing(job):
        if job.case.formulation == "conv3d":
            raise LTXVAEError("out of memory")
        return run(job)

    monkeypatch.setattr(metal_command, "run_fresh", failing)
    path = tmp_path / "whole.json"
    assert main([*TINY, "--quick", "--forms", "conv3d", "joined", "--save", str(path)]) == 1
    document, captured = json.loads(path.read_text()), capsys.readouterr()
    names = [each["name"] for each in document["errors"]]
    assert names == ["conv3d", "mx.conv3d"]
    assert captured.err == "error: 2 of the measurements failed; the first: conv3d: out of memory\n"
    header, *lines = (line.replace(" ", "") for line in captured.out.splitlines() if line.startswith("| "))
    assert header.endswith("|rule|joined|")
    (failed,) = (line for line in lines if line.startswith("|mx.conv3d|"))
    assert "|failed|" in failed and len(document["accuracy"]) == 3


def test_the_diffusion_decoder_is_measured_with_blocks_of_each_size(monkeypatch):
    every = metal_tasks.make_tasks(Case(model="vae.safetensors"), [], "x.npy", is_quick=False)
    monkeypatch.setattr(metal_tasks, "open_case", lambda case: open_case(Case()))
    attention = [task for task in every if task.part == "attention"]
    assert [task.known["is_ours"] for task in attention].count(True) == 1
    monkeypatch.setitem(BLOCKS, backend(), BLOCKS[backend()])
    monkeypatch.setattr(metal_tasks, "decode", lambda case, **_: {"size": BLOCKS[backend()], "model": case.model})
    for task in attention:
        measured = task.job.measure(task.job.case, **task.job.options)
        assert measured == {"size": task.known["size"], "model": None}


def test_networks_without_convolutions_have_no_formulations():
    parts = {}
    for name in ("ltx-2.3", "taehv"):
        every = metal_tasks.make_tasks(Case(generation=name), list(metal_tasks.FORMS), "x.npy", is_quick=False)
        parts[name] = Counter(task.part for task in every)
    assert parts["ltx-2.3"] - parts["taehv"] == {"convolutions": len(metal_tasks.FORMS), "decodes": 1, "accuracy": 1}


def test_a_whole_measurement_is_written_for_the_project(monkeypatch, tmp_path, capsys):
    """Under the name of the chip and the date, without paths."""
    monkeypatch.chdir(tmp_path)
    machine = describe_machine() | {"processor": "Apple M9 Max", "backend": "metal", "preload": "/usr/lib/x.so"}
    monkeypatch.setattr(metal_command, "describe_machine", lambda: machine)
    monkeypatch.setattr(metal_command, "make_tasks", lambda *_, **__: [])
    assert main(["--metal", "--any-device", "--submit", "--json"]) == 0
    captured = capsys.readouterr()
    (path,) = tmp_path.iterdir()
    document = json.loads(captured.out)
    assert path.name == f"apple-m9-max-{document['date']}.json"
    assert captured.err.startswith(f"{path.name}: see docs/measurements/README.md")
    submitted = json.loads(path.read_text())
    assert submitted["machine"] == machine | {"preload": "(a path)"}
    assert "model" not in submitted["case"] and submitted["case"]["width"] == 768


@pytest.mark.parametrize("option", ["--quick", "--size 64x64"])
def test_only_whole_measurements_are_for_the_project(option, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--metal", "--any-device", "--submit", *option.split()])
    assert caught.value.code == 2
    assert "--submit is of whole measurements of 768x512" in capsys.readouterr().err


def test_without_apples_gpu_it_says_so_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(metal_command, "backend", lambda: Backend.CUDA)
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
    monkeypatch.setattr(metal_command, "run_command", lambda measure, options, **_: 0)
    for line in lines[lines.index("examples:") + 1 :]:
        assert main([*line.split()[3:], "--any-device"]) == 0


@pytest.mark.parametrize(("arguments", "complaint"), [("--encode", "--encode"), ("--repeat 3", "--repeat 3")])
def test_options_of_other_measurements_are_refused(arguments, complaint, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--metal", *arguments.split()])
    assert caught.value.code == 2
    assert f"unrecognized arguments: {complaint}" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(in_process, capsys):
    assert main([*TINY, "--save", "/nowhere/x.json"]) == 1
    assert "/nowhere/x.json: cannot be written" in capsys.readouterr().err
    assert in_process == []


def test_every_call_of_every_convolution_is_timed(monkeypatch):
    seen = Counter()
    case = Case(base_width=8, width=64, height=32, frames=17, order="time")
    subject = Decode.from_case(case)
    with recorded(lambda each: seen.update([(each.input_shape[-1], each.output_shape[-1])])):
        for _ in subject.run():
            pass
    runs = metal_tasks.convolutions(case)["runs"]
    calls = Counter()
    for run in runs:
        calls[run["in_channels"], run["out_channels"]] += run["calls"]
    assert calls == seen
    layers = open_case(case).spec("decoder").layers[:-1]
    assert Counter(run["layer"] for run in runs) == Counter(layer.name for layer in layers)
    normalized = {layer.name for layer in layers if layer.activation is not Activation.NONE}
    assert {run["layer"] for run in runs if run["is_normalized"]} == normalized


def test_the_range_of_a_convolution_is_that_of_its_operands():
    conv = Conv3d(4, 6)
    timed = metal_tasks._TimedConv(conv)
    clips = [mx.random.normal((1, 3, 5, 4, 4), key=mx.random.key(seed)) for seed in range(3)]
    outputs = [np.array(timed(clip, (0, 1, 1))) for clip in clips]
    for clip, output in zip(clips, outputs, strict=True):
        assert np.array_equal(output, np.array(conv(clip, (0, 1, 1))))
    measured = timed.measured()
    assert (measured["grid"], measured["calls"]) == ([1, 5, 4], 3)
    assert measured["input"] == max(np.abs(np.array(clip)).max() for clip in clips)
    assert measured["output"] == max(np.abs(output).max() for output in outputs)
    timed(clips[0] / 0, (0, 1, 1))
    assert timed.measured()["input"] is timed.measured()["output"] is None
    json.dumps(measured, allow_nan=False)


def test_another_prefetch_has_no_planned_memory_and_a_cache_limit_is_kept():
    case = Case(base_width=8, width=64, height=64, frames=9)
    plan = Decode.from_case(case).plan
    ahead = Decode.from_case(replace(case, prefetch=plan.prefetch + 1, cache_limit=1000)).plan
    assert (ahead.prefetch, ahead.memory.buffer_cache) == (plan.prefetch + 1, 1000)
    assert decoding.decode(replace(case, prefetch=1))["planned_bytes"] is None
    assert decoding.decode(case)["planned_bytes"] == plan.memory.active


def test_a_case_with_a_formulation_is_loaded_planned_and_run_with_it():
    case = Case(base_width=8, width=64, height=64, frames=9)
    ours, other = (Decode.from_case(each) for each in (case, replace(case, formulation="conv3d")))
    assert ours.plan.memory.work < other.plan.memory.work
    plans = [replace(each.plan, outputs=()) for each in (ours, other)]  # of floats
    decoded = (each.vae.decode(each.latents, plan) for each, plan in zip((ours, other), plans, strict=True))
    assert mx.allclose(*decoded, atol=1e-3)


def test_a_job_has_its_variables_in_its_process(monkeypatch):
    seen = {}

    def fake(command, env, **_):
        seen.update(env)
        raise ChildProcessError

    monkeypatch.setattr(command.subprocess, "Popen", fake)
    with pytest.raises(ChildProcessError):
        command.run_fresh(command.Job(decoding.decode, Case(), variables={"MLX_ENABLE_TF32": "0", "PROBE": "1"}))
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
    monkeypatch.setattr("mlx_ltx_vae.bench.decoding.prepare", lambda network, keeps_dtype: asked.append(keeps_dtype))
    case = Case(base_width=8, width=32, height=32, frames=9)
    for each in (case, replace(case, keeps_dtype=True)):
        Decode.from_case(each)
    assert asked == [False, True]
