"""The benchmark's commands end to end, small; and what of it is arithmetic. No times are held to anything."""

import json
import sys
from dataclasses import asdict
from importlib.util import find_spec

import imageio.v3 as iio
import mlx.core as mx
import numpy as np
import pytest

from mlx_ltx_vae import demo
from mlx_ltx_vae.bench import measurements, others, processes
from mlx_ltx_vae.bench.__main__ import main
from mlx_ltx_vae.bench.case import Case, Task
from mlx_ltx_vae.bench.overlap import WaitingSink, least_seconds
from mlx_ltx_vae.bench.plot import highest, spread
from mlx_ltx_vae.bench.quality import difference
from mlx_ltx_vae.bench.roofline import Convolution, watched
from mlx_ltx_vae.bench.samples import MemorySamples
from mlx_ltx_vae.bench.tables import aligned, markdown
from mlx_ltx_vae.bench.with_diffusers import diffusers_config
from mlx_ltx_vae.checkpoint.diffusers import read_diffusers_config
from mlx_ltx_vae.latents import save_latents
from mlx_ltx_vae.models.video_vae.config import GENERATIONS, parse_vae_config
from test_checkpoint_diffusers import CONFIGS

TINY = ["--base-width", "8", "--size", "64x64", "--repeat", "1"]


@pytest.fixture
def bench(tmp_path, capsys):
    """`bench(*options)`: the report of a command that succeeds, and what it printed."""

    def run(*options, frames="9"):
        path = tmp_path / "report.json"
        assert main([*TINY, "--frames", frames, *options, "--json", str(path)]) == 0, capsys.readouterr().err
        report = json.loads(path.read_text())
        assert report["machine"]["mlx"] == mx.__version__
        return report["runs"], capsys.readouterr().out

    return run


@pytest.fixture
def small_demo(golden, tmp_path, monkeypatch):
    """A tiny VAE and latents in place of the demo's."""
    latents = tmp_path / "latents.safetensors"
    save_latents(latents, mx.random.normal((1, 8, 2, 2, 2), key=mx.random.key(1)))
    monkeypatch.setattr(demo, "VAE", golden("ltx2_3").checkpoint)
    monkeypatch.setattr(demo, "LATENTS", latents)


def test_decoding_is_measured_and_drawn(bench, tmp_path):
    picture = tmp_path / "decodes.png"
    runs, printed = bench("--plot", str(picture))
    assert [run["mode"] for run in runs] == ["exact", "single"]
    for run in runs:
        assert run["frames"] == 9
        assert 0 < run["first_frame_seconds"] <= run["seconds"]
        assert 0 < run["peak_bytes"] < run["total_peak_bytes"]
        times, active, peaks = zip(*run["samples"], strict=True)
        assert list(times) == sorted(times)
        assert max(active) <= max(peaks) == peaks[-1] == run["total_peak_bytes"]
    assert "single" in printed
    drawn = iio.imread(picture)
    assert drawn.shape[:2] == (630, 1500)
    assert len(np.unique(drawn[..., :3].reshape(-1, 3), axis=0)) > 10


def test_encoding_is_measured(bench):
    runs, printed = bench("--encode", "--tile", "64:32")
    assert [(run["task"], run["mode"], run["latent_frames"]) for run in runs] == [
        ("encode", "stream", 2),
        ("encode", "tiled", 2),
    ]
    assert printed.splitlines()[0].split()[:3] == ["mode", "tiles", "batch"]
    assert "Metal" not in printed


def test_batches_of_tiles_are_compared_and_metals_batch_of_one_is_named(bench):
    for what in (["--encode"], ["--modes", "tiled"]):
        runs, printed = bench(*what, "--tile", "64:32", "--tile-batch-size", "1", "2")
        assert [run["tile_batch_size"] for run in runs if run["mode"] == "tiled"] == [1, 2]
        assert "batch" in printed.splitlines()[0]
        assert ("Metal may have a faster convolution for a batch of one" in printed) == (what == ["--encode"])


def test_roofline_times_decodes_and_their_convolutions_and_counts_syncs(bench):
    runs, printed = bench("--roofline", "--modes", "exact", "rows", frames="25")
    assert [run["order"] for run in runs] == ["time", "rows"]
    for run in runs:
        assert len(run["seconds"]) == len(run["floor_seconds"]) == len(run["rest_seconds"]) == 1
        assert run["convolutions"] > 0 and run["gflop"] > 0
        assert run["rest_seconds"][0] > 0
        assert run["counts"]["readbacks"] == 2
    assert runs[0]["counts"]["arrays"] == 0
    assert "GFLOP/s" in printed


def test_overlap_is_measured_with_sinks_that_wait_and_with_ffmpeg(bench):
    (run,), printed = bench("--overlap", "--ffmpeg", frames="17")
    assert [(sink["sink"], sink["share"]) for sink in run["sinks"]] == [
        ("waits", 0.5),
        ("waits", 1.0),
        ("waits", 2.0),
        ("mp4", None),
    ]
    for sink in run["sinks"]:
        assert len(sink["alone_seconds"]) == len(sink["together_seconds"]) == len(sink["least_seconds"]) == 1
    assert run["latent_frames"] == 3 and len(run["decode_seconds"]) == 1
    assert "3 of 3" in printed


def test_precisions_are_timed_and_held_against_float32_of_the_same_weights(bench, small_demo):
    runs, printed = bench("--precision")
    decodes = [run["dtype"] for run in runs if run["task"] == "decode"]
    assert decodes == ["float32", "bfloat16", "float16"]
    psnr = {(run["dtype"], bool(run["model"])): run["psnr"] for run in runs if run["task"] == "precision"}
    assert len(psnr) == 4
    for weights in (True, False):
        assert 30 < psnr["bfloat16", weights] < psnr["float16", weights] < 90
    assert printed.startswith("| dtype |")
    assert printed.splitlines()[2].count("reference") == 2


def test_quality_of_every_mode_is_printed(bench, small_demo):
    (run,), printed = bench("--quality")
    assert [way["way"] for way in run["ways"] if way["psnr"] is None][:3] == [
        "exact, by time",
        "exact, by rows",
        "exact, by columns",
    ]
    assert "| exact, by rows | identical |" in printed


def test_plans_are_validated(bench, monkeypatch):
    case = Case(base_width=8, dtype="float32", width=64, height=64, frames=9)
    monkeypatch.setattr(measurements, "validation_cases", lambda: [case])
    (run,), printed = bench("--validate-plan")
    assert run["planned_bytes"] > 0
    assert "1 cases; planned / measured between" in printed


def test_against_holds_other_decoders_against_the_single_pass_and_lists_what_is_missing(bench, monkeypatch):
    monkeypatch.setitem(others.OTHERS, "diffusers", ("no_such_module",))
    monkeypatch.setitem(others.OTHERS, "mlx_video", ("no_such_module.of_ours",))
    runs, printed = bench("--against", "--tile", "64:32", "--size", "96x64")
    assert [run["mode"] for run in runs] == ["single", "exact", "tiled", "ports", "diffusers", "mlx_video"]
    single, exact, tiled, ports, *missing = runs
    assert {run["not_measured"] for run in missing} == {"not installed"}
    assert single["psnr"] is None and single["largest"] == 0
    assert exact["largest"] <= 1
    assert ports["frames"] == 9 and ports["peak_bytes"] > 0
    assert not any("samples" in run for run in runs), "they are kept for a plot alone"
    # Tiled in space alone, both blend the same pixels, which are not the single pass's.
    assert ports["largest"] == pytest.approx(tiled["largest"], abs=1)
    assert ports["largest"] > 1
    assert printed.count("not installed") == 2


def test_against_always_runs_the_single_pass_and_says_what_is_not_for_a_vae(bench, monkeypatch):
    monkeypatch.setitem(others.OTHERS, "diffusers", ())
    runs, _ = bench("--against", "diffusers", "--generation", "0.9.5")
    assert [run["mode"] for run in runs] == ["single", "diffusers"]
    assert "LTX-2" in runs[1]["not_measured"]


@pytest.mark.skipif(not others.is_installed("diffusers"), reason="torch and diffusers are not installed")
@pytest.mark.parametrize("generation", ["ltx-2", "ltx-2.3"])
def test_diffusers_decodes_our_weights_to_our_frames(bench, generation):
    runs, _ = bench("--against", "diffusers", "--generation", generation)
    assert runs[1]["largest"] <= 1


@pytest.mark.skipif(not others.is_installed("mlx_video"), reason="mlx_video is not installed")
def test_mlx_video_decodes_our_weights_to_our_frames(bench):
    runs, _ = bench("--against", "mlx_video")
    assert runs[1]["largest"] <= 1


@pytest.mark.parametrize("generation", ["LTX-2", "LTX-2.3"])
def test_diffusers_is_told_of_the_same_decoder(generation):
    config = parse_vae_config({**GENERATIONS[generation], "decoder_base_channels": 16}, generation)
    told = diffusers_config(config)
    published = CONFIGS[{"LTX-2": "ltx2", "LTX-2.3": "ltx2_3"}[generation]]
    encoder = {name: value for name, value in published.items() if not name.startswith(("decoder_", "upsample_"))}
    encoder["block_out_channels"] = [128 * multiple for multiple in encoder["block_out_channels"]]
    both = told | encoder
    read = read_diffusers_config(both, "diffusers").raw_config
    assert parse_vae_config(read, "diffusers").decoder == config.decoder
    assert {name: both[name] for name in ("latent_channels", "patch_size")} == {"latent_channels": 128, "patch_size": 4}


def test_the_package_of_the_same_name_is_not_taken_for_mlx_video(tmp_path, monkeypatch):
    if find_spec("mlx_video"):
        pytest.skip("mlx_video is installed")
    (tmp_path / "mlx_video").mkdir()
    (tmp_path / "mlx_video" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert not others.is_installed("mlx_video")
    sys.modules.pop("mlx_video", None)


def test_the_plan_table_needs_no_measurement(capsys, monkeypatch):
    monkeypatch.setattr("mlx_ltx_vae.bench.plans._SIZES", ((768, 512),))
    assert main(["--plan-table"]) == 0
    assert capsys.readouterr().out.startswith("| video | 4 GB |")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--roofline", "--overlap"], "not allowed with"),
        (["--ffmpeg"], "goes with --overlap"),
        (["--plan-table", "--json", "-"], "measures nothing"),
        (["--roofline", "--plot", "x.png"], "--plot draws decodes"),
        (["--frames", "9", "17", "--plot", "x.png"], "one length"),
        (["--frames", "9", "17", "--against"], "one length"),
        (["--against", "exact", "torch"], "invalid choice"),
        (["--size", "64"], "width and a height"),
    ],
)
def test_wrong_usage_is_refused_before_anything_runs(options, complaint, capsys):
    with pytest.raises(SystemExit) as caught:
        main(options)
    assert caught.value.code == 2
    assert complaint in capsys.readouterr().err


def test_a_plot_without_matplotlib_names_the_extra_before_anything_runs(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main([*TINY, "--plot", str(tmp_path / "x.png")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and "mlx_ltx_vae[plot]" in line


def test_a_run_that_fails_says_why_in_one_line(capsys):
    assert main([*TINY, "--frames", "10"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: decode of 10 frames") and "1 + 8*k" in line


def test_a_case_survives_the_way_to_another_process():
    case = Case(task=Task.OVERLAP, frames=17, ffmpeg=True, keep="x.npy")
    arrived = Case.from_dict(json.loads(json.dumps(asdict(case))))
    assert arrived == case
    assert isinstance(arrived.task, Task)


def test_cases_run_in_turns_and_those_that_repeat_by_themselves_once(monkeypatch):
    monkeypatch.setattr(processes, "run_fresh", lambda case: ran.append(case) or {"run": len(ran)})
    ran = []
    short, long, alone = Case(frames=9), Case(frames=17), Case(task=Task.ROOFLINE)
    runs = processes.run_interleaved([short, alone, long], 2)
    assert ran == [short, alone, long, short, long]
    assert [[run["run"] for run in results] for results in runs] == [[1, 4], [2], [3, 5]]


def test_a_sink_cannot_be_done_before_its_frames_have_come():
    arrivals = [(1.0, 2), (1.5, 2), (4.0, 1)]
    assert least_seconds(arrivals, 0.0) == 4.0
    assert least_seconds(arrivals, 0.5) == 4.5  # idle before the last
    assert least_seconds(arrivals, 2.0) == 1.0 + 5 * 2.0  # never idle once it has begun


def test_a_sink_that_waits_takes_every_frame(monkeypatch):
    waited = []
    monkeypatch.setattr("mlx_ltx_vae.bench.overlap.time.sleep", waited.append)
    with WaitingSink((4, 2), 0.5) as sink:
        for count in (1, 3):
            sink.write(np.zeros((count, 2, 4, 3), np.uint8))
    assert waited == [0.5, 1.5]
    assert sink.frames_written == 4


def test_convolutions_are_recorded_with_what_they_compute():
    frames, weight = mx.zeros((1, 4, 6, 5, 8)), mx.zeros((16, 3, 3, 3, 8))
    seen: list[Convolution] = []
    with watched(seen.append):
        mx.conv3d(frames, weight, padding=(0, 1, 1))
    assert [each.results for each in seen] == [(1, 2, 6, 5, 16)]
    assert seen[0].operations == 2 * (2 * 6 * 5 * 16) * (27 * 8)


def test_differences_are_decibels_of_the_span():
    black = mx.zeros((2, 3))
    assert difference(black, black).psnr is None
    assert difference(black + 0.02, black).psnr == pytest.approx(40, abs=1e-3)
    assert difference(black.astype(mx.uint8) + 255, black, span=255, rounding=0.5).psnr == pytest.approx(0, abs=1e-6)


def test_samples_stay_few_however_many_are_taken():
    with MemorySamples() as samples:
        for _ in range(5000):
            samples.take()
    assert 1000 <= len(samples.samples) <= 2000
    times = [seconds for seconds, *_ in samples.samples]
    assert times == sorted(times)
    assert times[0] < times[-1] / 10  # of the whole run


def test_a_curve_is_the_highest_of_every_step_and_labels_keep_their_distance():
    seconds, values = highest([(0.1, 5, 0), (0.4, 9, 0), (0.6, 1, 0), (2.0, 7, 0)], 2)
    assert (seconds, values) == ([0.5, 1.5], [9, 7])
    assert spread([0.0, 0.01, 0.5], 0.1) == [0.0, 0.1, 0.5]


def test_tables_line_up():
    assert aligned(["a", "number"], [["long", "1"], ["b", "22"]], words=1) == (
        "a     number\nlong       1\nb         22"
    )
    assert markdown(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
