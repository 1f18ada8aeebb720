"""The benchmark command end to end, small; and its arithmetic. Nothing depends on how long a run takes."""

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict

import imageio.v3 as iio
import mlx.core as mx
import numpy as np
import pytest

from mlx_ltx_vae.backend.mlx_utils import max_difference, psnr
from mlx_ltx_vae.bench import command
from mlx_ltx_vae.bench.__main__ import main
from mlx_ltx_vae.bench.command import Job, format_psnr, table
from mlx_ltx_vae.bench.decoding import Case, Decode, compare, decode, footprint, load_vae, measure
from mlx_ltx_vae.models.families import published
from mlx_ltx_vae.planning.plan import Mode
from mlx_ltx_vae.tiling import TilingConfig, preset

TINY = ["--base-width", "8", "--size", "64x64", "--repeat", "1"]
MEASURED = {"seconds": 1.0, "peak_bytes": 1e6, "bytes_per_pixel": 100.0, "weights_bytes": 1e6}


@pytest.fixture
def bench(tmp_path, capsys):
    """`bench(*options)`: the report of a command that succeeds, and what it printed."""

    def run(*options, frames="9"):
        path = tmp_path / "report.json"
        assert main([*TINY, "--num-frames", frames, *options, "--save", str(path)]) == 0, capsys.readouterr().err
        report = json.loads(path.read_text())
        assert report["machine"]["mlx"] == mx.__version__
        return report["runs"], capsys.readouterr().out

    return run


def test_decoding_is_measured_and_drawn(bench, tmp_path):
    picture = tmp_path / "decodes.png"
    runs, printed = bench("--plot", str(picture))
    assert [(run["task"], run["mode"]) for run in runs] == [("decode", "single"), ("decode", "exact")]
    for run in runs:
        assert run["frames"] == 9
        assert 0 < run["first_frame_seconds"] <= run["seconds"]
        assert 0 < run["peak_bytes"] < run["total_peak_bytes"]
        times, active, footprints = zip(*run["samples"], strict=True)
        assert list(times) == sorted(times)
        assert 0 < max(active) <= run["total_peak_bytes"]
        assert max(footprints) == run["peak_footprint_bytes"] > run["start_footprint_bytes"]
    assert "single" in printed
    drawn = iio.imread(picture)
    assert drawn.shape[:2] == (630, 1500)
    assert len(np.unique(drawn[..., :3].reshape(-1, 3), axis=0)) > 10


def test_the_json_object_is_all_of_standard_output_and_the_same_is_saved(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(command, "run_fresh", lambda job: {"task": "decode", **asdict(job.case), **MEASURED})
    path = tmp_path / "report.json"
    arguments = ["--mode", "exact", "--order", "rows", "--order", "time", "--mode", "tiled", "--tile", "64:32"]
    assert main([*TINY, *arguments, "--num-frames", "9", "--num-frames", "17", "--json", "--save", str(path)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads(path.read_text())
    cases = [(9, "exact", "rows"), (9, "exact", "time"), (9, "tiled", "auto")]
    cases += [(17, mode, order) for _, mode, order in cases]
    assert [(run["frames"], run["mode"], run["order"]) for run in report["runs"]] == cases
    assert {run["tiles"] for run in report["runs"]} == {"64:32"}


SLOW = {"ltx-2.5", "ltx-2.5-diffusion"}  # the first has the layers of ltx-2.3


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.slow] * (each in SLOW)) for each in published()]
)
def test_every_published_vae_is_measured_without_a_checkpoint(name):
    run = decode(Case(generation=name, base_width=8, width=64, height=64, frames=9))
    per_frame = {"latent-rgb": 8}.get(name, 1)  # one picture of a latent frame
    assert run["frames"] == 1 + 8 // per_frame
    assert run["weights_bytes"] > 0 and 0 < run["peak_bytes"] < run["total_peak_bytes"]


@pytest.mark.parametrize("name", published())
def test_every_published_vae_has_tiles_that_fit_it(name):
    plan = Decode.from_case(Case(generation=name, base_width=8, width=64, height=64, frames=9, mode="tiled")).plan
    expected = TilingConfig.default() if name != "ltx-2.5-diffusion" else preset("wide", 64, 64, 9)
    assert (plan.mode, plan.tiling) == (Mode.TILED, expected)


@pytest.mark.parametrize("name", ["ltx-2.5-diffusion", "latent-rgb"])
def test_what_has_no_encoder_is_said_before_anything_is_measured(name, capsys):
    with pytest.raises(SystemExit, match="2"):
        main([*TINY, "--encode", "--generation", name])
    assert f"error: --encode: random weights of {name} have no encoder" in capsys.readouterr().err


def test_random_weights_are_as_wide_as_asked_and_the_same_each_time():
    for name, channels in (("ltx-2.3", 1024), ("prunavaed", 2048), ("taehv", 256), ("ltx-2.5-diffusion", 2048)):
        spec = published()[name].spec(published()[name].published[name](128), "decoder")
        assert max(layer.in_channels for layer in spec.layers) == channels, name
    first, again = (load_vae(Case(generation="ltx-2.5-diffusion", base_width=8)).decoder for _ in range(2))
    assert mx.array_equal(first.conv_out.weight, again.conv_out.weight)


def test_a_width_that_no_network_can_have_is_an_error_of_one_line(capsys):
    assert main([*TINY, "--base-width", "40", "--generation", "ltx-2.5-diffusion"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "expected a multiple of 8 that divides each" in line


@pytest.mark.slow
def test_encoding_is_measured(bench):
    runs, printed = bench("--encode", "--tile", "64:32")
    assert [(run["task"], run["mode"], run["latent_frames"]) for run in runs] == [
        ("encode", "stream", 2),
        ("encode", "tiled", 2),
    ]
    assert printed.startswith("| mode ")
    assert "Metal" not in printed


@pytest.mark.slow
def test_tile_batch_sizes_are_compared_and_the_encoder_warns_of_metal(bench):
    for what in (["--encode"], ["--mode", "tiled"]):
        runs, printed = bench(*what, "--tile", "64:32", "--tile-batch-size", "1", "--tile-batch-size", "2")
        assert [run["tile_batch_size"] for run in runs if run["mode"] == "tiled"] == [1, 2]
        assert "batch" in printed.splitlines()[0]
        assert ("Metal may have a faster convolution for a batch of one" in printed) == (what == ["--encode"])


@pytest.mark.slow
def test_against_compares_the_frames_of_our_modes_with_the_single_pass(bench):
    (single, exact, tiled), printed = bench("--against", "--tile", "64:32", "--size", "96x64")
    assert [run["mode"] for run in (single, exact, tiled)] == ["single", "exact", "tiled"]
    assert "psnr" not in single
    assert exact["largest"] <= 1 < tiled["largest"]
    assert "| largest | PSNR " in printed.splitlines()[0]


def test_a_plot_without_matplotlib_names_the_extra_before_anything_runs(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main([*TINY, "--plot", str(tmp_path / "x.png")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and "mlx_ltx_vae[plot]" in line


def test_a_run_that_fails_says_why_in_one_line(capsys):
    assert main([*TINY, "--num-frames", "10"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: decode of 10 frames") and "1 + 8*k" in line


def test_a_case_survives_json():
    case = Case(frames=17, mode="tiled", tiles="256:64", memory_budget="8GB")
    assert Case(**json.loads(json.dumps(asdict(case)))) == case


def test_jobs_run_in_turns_and_those_that_need_one_run_once(monkeypatch):
    ran = []
    monkeypatch.setattr(command, "run_fresh", lambda job: ran.append(job) or {"run": len(ran)})
    short, long = Job(decode, Case(frames=9)), Job(decode, Case(frames=17))
    alone = Job(decode, Case(), once=True)
    runs = command.run_interleaved([short, alone, long], 2)
    assert ran == [short, alone, long, short, long]
    assert [[run["run"] for run in results] for results in runs] == [[1, 4], [2], [3, 5]]


def test_frames_are_saved_and_compared_with_saved_ones(tmp_path):
    def chunks(value: int) -> Iterator[np.ndarray]:
        yield from (np.full((frames, 4, 6, 3), value, np.uint8) for frames in (1, 2))

    path, case = str(tmp_path / "frames.npy"), Case(width=6, height=4)
    assert measure(chunks(100), case, save=path)["frames"] == 3
    assert np.load(path).shape == (3, 4, 6, 3)
    same, other = (measure(chunks(value), case, reference=path) for value in (100, 151))
    assert (same["psnr"], same["largest"]) == (None, 0)
    assert (other["psnr"], other["largest"]) == (pytest.approx(20 * math.log10(5)), 51)


def test_psnr_is_decibels_of_the_span():
    black = mx.zeros((2, 3))
    assert psnr(black, black) == math.inf
    assert psnr(black + 0.02, black) == pytest.approx(40, abs=1e-3)
    white = black.astype(mx.uint8) + 255
    assert psnr(white, black, span=255) == pytest.approx(0, abs=1e-6)
    assert max_difference(white, black) == 255


def test_equal_arrays_have_no_difference():
    black = mx.zeros((2, 3))
    assert compare(black, black) == {"psnr": None, "largest": 0}
    assert compare(black + 1e-6, black)["psnr"] == pytest.approx(126, abs=0.1)
    assert (format_psnr(None), format_psnr(59.06)) == ("identical", "59.1 dB")


def test_memory_is_sampled_until_the_end_of_the_run():
    held = []

    def chunks():
        held.append(mx.zeros(1000))
        mx.eval(held)
        yield np.zeros((1, 4, 6, 3), np.uint8)

    measured = measure(chunks(), Case(width=6, height=4), sampled=True)
    seconds, active, _ = measured["samples"][-1]
    assert measured["seconds"] <= seconds and 4000 <= active <= measured["total_peak_bytes"]
    assert measured["bytes_per_pixel"] == measured["peak_bytes"] / 24


def test_the_footprint_grows_with_memory_in_use():
    before, _ = footprint()
    held = bytearray(b"x" * 100_000_000)
    now, largest = footprint()
    assert before + 50_000_000 < now <= largest
    assert len(held) == 100_000_000


@pytest.mark.parametrize("variable", ["MLX_RANK", "OMPI_COMM_WORLD_RANK"])
def test_several_ranks_are_told_which_command_measures_them(variable, monkeypatch, capsys):
    monkeypatch.setenv(variable, "0")
    with pytest.raises(SystemExit, match="2"):
        main(TINY)
    assert "for several ranks see decode --json" in capsys.readouterr().err


def test_tables_are_padded_markdown_without_empty_columns():
    rows = [{"a": "long", "empty": "", "number": "1"}, {"a": "b", "empty": "", "number": "22"}]
    assert table(rows).splitlines() == [
        "| a    | number |",
        "|------|--------|",
        "| long | 1      |",
        "| b    | 22     |",
    ]
