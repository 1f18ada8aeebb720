"""The developers' measurements end to end, small; and their arithmetic. Nothing depends on how long a run takes."""

import json
import math
import os
import pprint
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec

import mlx.core as mx
import numpy as np
import pytest

from benchmarks import __main__ as command
from benchmarks import decoders, formulations, measuring, validation
from benchmarks.convolutions import Convolution, recorded
from benchmarks.fresh import run_fresh
from benchmarks.measuring import Case, Decode, Job, decode
from benchmarks.measuring import measure as measure_frames
from benchmarks.overlap import least_seconds
from benchmarks.pictures import find_crop
from mlx_ltx_vae import demo, save_latents
from mlx_ltx_vae.networks.convolution.conv3d import Conv3d
from mlx_ltx_vae.tiling import SpatialTilingConfig, TemporalTilingConfig, TilingConfig

TINY = ["--base-width", "8", "--size", "64x64"]


@pytest.fixture
def measure(tmp_path, capsys):
    """`measure(name, *options)`: the runs of a measurement that succeeds, and what it printed."""

    def run(*arguments):
        path = tmp_path / "report.json"
        assert command.main([*arguments, "--repeat", "1", "--save", str(path)]) == 0, capsys.readouterr().err
        captured = capsys.readouterr()
        return json.loads(path.read_text())["runs"], captured.out + captured.err

    return run


@pytest.fixture
def small_demo(golden, tmp_path, monkeypatch):
    """A tiny VAE and latents in place of the demo's."""
    latents = tmp_path / "latents.safetensors"
    save_latents(latents, mx.random.normal((1, 8, 2, 2, 2), key=mx.random.key(1)))
    monkeypatch.setattr(demo, "VAE", golden("ltx2_3").checkpoint)
    monkeypatch.setattr(demo, "LATENTS", latents)


@pytest.mark.slow
def test_roofline_times_decodes_and_their_convolutions_and_counts_synchronizations(measure):
    runs, printed = measure(
        "roofline", *TINY, "--mode", "exact", "--order", "time", "--order", "rows", "--num-frames", "25"
    )
    assert [run["order"] for run in runs] == ["time", "rows"]
    for run in runs:
        assert len(run["seconds"]) == len(run["floor_seconds"]) == 1
        assert run["convolutions"] > 0 and run["gflop"] > 0
        assert run["counts"]["readbacks"] == 2
    assert runs[0]["counts"]["arrays"] == 0
    assert "GFLOP/s" in printed


@pytest.mark.slow
def test_loading_is_measured_against_reading(measure):
    runs, printed = measure("loading", "--base-width", "8")
    assert [(run["task"], run["dtype"]) for run in runs] == [("read", None), ("load", None), ("load", "bfloat16")]
    assert all(run["seconds"] > 0 and run["processor_seconds"] > 0 for run in runs)
    reading, loading, cast = runs
    assert reading["weights_bytes"] - loading["weights_bytes"] == 2 * 128 * 4  # the statistics of the latents
    assert 2 * cast["weights_bytes"] == loading["weights_bytes"] < loading["peak_bytes"]
    assert "peak MB" in printed


@pytest.mark.slow
def test_overlap_is_measured_with_waiting_sinks_and_with_ffmpeg(measure):
    (run,), printed = measure("overlap", *TINY, "--ffmpeg", "--num-frames", "17")
    assert [sink["sink"] for sink in run["sinks"]] == ["waits 0.5", "waits 1.0", "waits 2.0", "mp4"]
    assert all(sink[name] > 0 for sink in run["sinks"] for name in ("decode", "alone", "together", "least"))
    assert run["latent_frames"] == 3
    assert "3 of 3" in printed


@pytest.mark.slow
def test_dtypes_are_timed_and_compared_with_float32_of_the_same_weights(measure):
    runs, printed = measure("precision", *TINY, "--num-frames", "9")
    assert [run["dtype"] for run in runs] == ["float32", "bfloat16", "float16"]
    _, bfloat16, float16 = runs
    assert 30 < bfloat16["psnr"] < float16["psnr"] < 90
    assert "| float32 " in printed


@pytest.mark.slow
def test_quality_of_every_mode_and_dtype_is_printed(measure, small_demo):
    runs, printed = measure("quality")
    single, *exact = runs[:4]
    assert (single["mode"], "psnr" in single) == ("single", False)
    assert all(run["mode"] == "exact" and run["largest"] < 2e-5 for run in exact)
    assert [run["tiles"] for run in runs[4:7]] == ["default", "aggressive", "spatial_only"]
    psnr = {run["dtype"]: run["psnr"] for run in runs[7:]}
    assert 30 < psnr["bfloat16"] < psnr["float16"] < 90
    lines = [line.replace(" ", "") for line in printed.splitlines()]
    assert sum(line.startswith("|exact,by") and "|identical|" in line for line in lines) == 3, printed


@pytest.mark.slow
def test_plans_are_validated(measure, monkeypatch):
    case = Case(base_width=8, dtype="float32", width=64, height=64, frames=9)
    monkeypatch.setattr(validation, "validation_cases", lambda: [case])
    monkeypatch.setattr(validation, "loop_cases", lambda: [case])
    monkeypatch.setattr(validation, "encode_cases", lambda: [replace(case, mode="stream")])
    runs, printed = measure("validate-plan")
    assert [run["task"] for run in runs] == ["stream", "readme_loop", "readme_frames", "readme_decode", "readme_encode"]
    assert all(run["planned_bytes"] > 0 and run["total_peak_bytes"] > 0 for run in runs)
    assert "5 cases; planned / measured between" in printed


@pytest.mark.slow
def test_formulations_are_measured_in_turns_with_plain_mlx(measure, monkeypatch):
    monkeypatch.setattr(formulations, "_DECODES", ((8, 64, 64, 9),))
    monkeypatch.setattr(formulations, "_ENCODE", (8, 64, 96, 9))
    monkeypatch.setattr(formulations, "_GROWING", ((64, 64),))
    runs, printed = measure("formulations")
    plain, ours, plain_encode, our_encode, growing = runs
    assert (plain["formulation"], ours["formulation"]) == ("conv3d", None)
    assert (plain_encode["task"], our_encode["task"], growing["task"]) == ("encode", "encode", "decode")
    assert plain["peak_bytes"] > ours["peak_bytes"]
    assert "| 64x96 " in printed and "per pixel and frame" in printed


@pytest.mark.slow
def test_faster_decoders_are_measured_in_turns_with_the_full_one(measure):
    runs, printed = measure("decoders", *TINY, "--num-frames", "9")
    cases = [("ltx-2.3", 8), ("prunavaed", 4), ("taehv", 8), ("taehv-wide", 8)]
    assert [(run["generation"], run["base_width"]) for run in runs] == cases
    assert max(run["weights_bytes"] for run in runs[1:]) < runs[0]["weights_bytes"]
    assert not any("psnr" in run for run in runs), "random weights make no pictures"
    assert "| pruna " in printed and "| taehv-wide " in printed and "Random weights" in printed


@pytest.mark.slow
def test_trained_decoders_are_compared_with_the_full_one(measure, golden, tmp_path):
    latents, other = tmp_path / "clip.safetensors", golden("pruna").checkpoint
    save_latents(latents, mx.random.normal((1, 8, 2, 2, 3), key=mx.random.key(1)))
    full = ["-m", str(golden("ltx2_3").checkpoint), "--latents", str(latents)]
    runs, printed = measure("decoders", *full, "--decoder", "pruna", str(other))
    assert [run["model"] for run in runs] == [full[1], str(other)]
    assert (runs[1]["frames"], runs[1]["width"], runs[1]["height"]) == (9, 96, 64)
    assert 3 < runs[1]["psnr"] < 20, "they have different random weights"
    assert f"{runs[1]['psnr']:.1f} dB" in printed


def test_trained_decoders_need_latents_and_a_known_name(capsys):
    assert command.main(["decoders", "-m", "vae.safetensors"]) == 1
    assert "takes -m and --latents together" in capsys.readouterr().err
    assert command.main(["decoders", "-m", "a.st", "--latents", "b.npy", "--decoder", "x", "c.safetensors"]) == 1
    assert "the faster decoder 'x' is not known; known are pruna, taehv, taehv-wide." in capsys.readouterr().err


def test_ratios_are_those_of_runs_of_the_same_turn():
    run = {"frames": 9, "width": 64, "height": 64, "model": None, "base_width": 8, "weights_bytes": 1e6}
    full = [{**run, "seconds": seconds, "first_frame_seconds": 1, "peak_bytes": 4e6} for seconds in (10, 20, 30)]
    fast = [{**run, "seconds": seconds, "first_frame_seconds": 1, "peak_bytes": 3e6} for seconds in (6, 8, 9)]
    row = decoders.decoder_table(["full", "fast"], [full, fast]).splitlines()[3]
    assert "| fast    | 0.40 (0.30 to 0.60) | 8.00    | 1.00        | 0.75 | 3.0     |" in row


@pytest.mark.slow
def test_against_compares_modes_and_tiles_of_ports_with_the_single_pass(measure):
    runs, printed = measure("against", *TINY, "--num-frames", "9", "--tile", "64:32", "--size", "96x64")
    single, exact, tiled, ports = runs
    assert [run["mode"] for run in runs] == ["single", "exact", "tiled", "ports"]
    assert "psnr" not in single
    assert exact["largest"] <= 1
    assert ports["frames"] == 9 and ports["peak_bytes"] > 0
    # Both blend the same pixels of tiles in space; these differ from the single pass.
    assert ports["largest"] == pytest.approx(tiled["largest"], abs=1)
    assert ports["largest"] > 1
    assert "as MLX ports do" in printed


def test_the_plan_table_needs_no_measurement(capsys, monkeypatch):
    monkeypatch.setattr("benchmarks.plan_table._VIDEOS", ((768, 512, 9),))
    assert command.main(["plan-table"]) == 0
    assert capsys.readouterr().out.startswith("| video ")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "MEASUREMENT"),
        (["roofline", "--plot", "x.png"], "unrecognized arguments"),
    ],
)
def test_wrong_usage_is_refused_before_anything_runs(arguments, complaint, capsys):
    with pytest.raises(SystemExit) as caught:
        command.main(arguments)
    assert caught.value.code == 2
    assert complaint in capsys.readouterr().err


def test_a_sink_cannot_be_done_before_its_frames_have_come():
    arrivals = [(1.0, 2), (1.5, 2), (4.0, 1)]
    assert least_seconds(arrivals, 0.0) == 4.0
    assert least_seconds(arrivals, 0.5) == 4.5  # idle before the last chunk
    assert least_seconds(arrivals, 2.0) == 1.0 + 5 * 2.0  # never idle after the first chunk


def test_convolutions_are_recorded_with_what_they_compute():
    conv = Conv3d(8, 16)
    seen: list[Convolution] = []
    with recorded(seen.append):
        conv(mx.zeros((1, 4, 6, 5, 8)), (0, 1, 1))
    conv(mx.zeros((1, 4, 6, 5, 8)), (0, 1, 1))
    assert [each.output_shape for each in seen] == [(1, 2, 6, 5, 16)]
    assert seen[0].operations == 2 * (2 * 6 * 5 * 16) * (27 * 8)


@pytest.mark.slow
def test_audio_tracks_share_is_of_audio_and_pictures_at_the_same_fraction_of_their_widths(measure):
    runs, printed = measure("audio-share", "--divisor", "8")
    assert [run["task"] for run in runs] == ["decode_audio", "decode_pictures"]
    assert all(run["base_width"] == 16 and run["processor_seconds"] > 0 for run in runs)
    audio, pictures = (run["processor_seconds"] for run in runs)
    assert f"{audio / (audio + pictures):.1%}" in printed


@pytest.mark.slow
@pytest.mark.skipif(not all(map(find_spec, ("torch", "diffusers"))), reason="needs torch and diffusers")
@pytest.mark.parametrize("subject", ["ltx-2-audio", "ltx-2.3-audio"])
def test_audio_is_that_of_diffusers(measure, subject):
    runs, printed = measure("diffusers", subject, "--divisor", "8")
    as_it_is, *clamped = runs[2:]
    assert [run["task"] for run in runs[:2]] == ["write_models", "decode_own"]
    assert runs[-1]["rms"] < 1e-3
    assert bool(clamped) == (as_it_is["largest"] > 1) == (subject == "ltx-2.3-audio")
    assert ("diffusers, clamped" in printed) == bool(clamped)


def test_the_crop_of_a_picture_is_where_two_clips_differ_most():
    reference = np.full((3, 40, 48, 3), 100, np.uint8)
    frames = reference.copy()
    frames[1, 16:24, 32:40] = 0  # 64 pixels, darker by 100
    frames[2, :16, :16] = 130  # 256 pixels, but brighter by 30
    frame, rows, columns = find_crop(frames, reference, size=(8, 8))
    assert (frame, rows, columns) == (1, slice(16, 24), slice(32, 40))


def test_tiles_of_a_case_may_be_cut_in_time_too():
    tiling = Case(tiles="256:32,16").make_tiling()
    assert tiling == TilingConfig(SpatialTilingConfig(256, 32), TemporalTilingConfig(16, 0))
    assert Case(tiles="256:32").make_tiling() == TilingConfig(SpatialTilingConfig(256, 32))


def test_jobs_run_in_turns_and_those_that_need_one_run_once(monkeypatch):
    ran = []
    monkeypatch.setattr(measuring, "run_job", lambda job: ran.append(job) or {"run": len(ran)})
    short, long = Job(decode, Case(frames=9)), Job(decode, Case(frames=17))
    alone = Job(decode, Case(), once=True)
    runs = measuring.run_interleaved([short, alone, long], 2)
    assert ran == [short, alone, long, short, long]
    assert [[run["run"] for run in results] for results in runs] == [[1, 4], [2], [3, 5]]


def test_a_run_that_fails_says_why_in_one_line(capsys):
    assert command.main(["precision", *TINY, "--num-frames", "10"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: decode of 10 frames") and "1 + 8*k" in line


def test_results_that_cannot_be_stored_are_an_error_before_anything_runs(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(measuring, "run_job", lambda job: pytest.fail("it runs"))
    assert command.main(["precision", *TINY, "--save", str(tmp_path / "missing" / "out.json")]) == 1
    assert "out.json: cannot be written" in capsys.readouterr().err


def test_frames_are_saved_and_compared_with_saved_ones(tmp_path):
    def chunks(value: int) -> Iterator[np.ndarray]:
        yield from (np.full((frames, 4, 6, 3), value, np.uint8) for frames in (1, 2))

    path, case = str(tmp_path / "frames.npy"), Case(width=6, height=4)
    measured = measure_frames(chunks(100), case, save=path)
    assert (measured["frames"], measured["bytes_per_pixel"]) == (3, measured["peak_bytes"] / 24)
    assert np.load(path).shape == (3, 4, 6, 3)
    same, other = (measure_frames(chunks(value), case, reference=path) for value in (100, 151))
    assert (same["psnr"], same["largest"]) == (None, 0)
    assert (other["psnr"], other["largest"]) == (pytest.approx(20 * math.log10(5)), 51)


def test_a_case_with_a_formulation_is_loaded_planned_and_run_with_it():
    case = Case(base_width=8, width=64, height=64, frames=9)
    ours, other = (Decode.from_case(each) for each in (case, replace(case, formulation="conv3d")))
    assert ours.plan.memory.work < other.plan.memory.work
    plans = [replace(each.plan, outputs=()) for each in (ours, other)]  # of floats
    decoded = (each.vae.decode(each.latents, plan) for each, plan in zip((ours, other), plans, strict=True))
    assert mx.allclose(*decoded, atol=1e-3)


def test_noise_is_the_same_each_time_and_of_the_video():
    one, other = (list(measuring.noise_frames((17, 32, 64))) for _ in range(2))
    assert [frames.shape for frames in one] == [(8, 32, 64, 3), (8, 32, 64, 3), (1, 32, 64, 3)]
    assert all((first == second).all() for first, second in zip(one, other, strict=True))


@pytest.mark.slow
def test_a_run_has_its_variables_and_only_its_result_on_standard_output():
    assert run_fresh(os.getenv, {"PROBE": "1"}, key="PROBE") == "1"
    assert "PROBE" not in os.environ
    assert run_fresh(os.getpid) != os.getpid()
    assert run_fresh(pprint.pprint, object="what another program prints") is None
