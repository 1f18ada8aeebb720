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

from mlx_ltx_vae.bench import processes
from mlx_ltx_vae.bench.__main__ import main
from mlx_ltx_vae.bench.case import Case
from mlx_ltx_vae.bench.decoding import compare, decode, footprint, measure
from mlx_ltx_vae.bench.plot import upper_envelope
from mlx_ltx_vae.bench.processes import Job
from mlx_ltx_vae.bench.tables import format_psnr, table
from mlx_ltx_vae.metrics import max_difference, psnr

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


def test_decoding_is_measured_and_drawn(bench, tmp_path):
    picture = tmp_path / "decodes.png"
    runs, printed = bench("--plot", str(picture))
    assert [(run["task"], run["mode"]) for run in runs] == [("decode", "single"), ("decode", "exact")]
    for run in runs:
        assert run["frames"] == 9
        assert 0 < run["first_frame_seconds"] <= run["seconds"]
        assert 0 < run["peak_bytes"] < run["total_peak_bytes"]
        times, active, peaks, footprints = zip(*run["samples"], strict=True)
        assert list(times) == sorted(times)
        assert max(active) <= max(peaks) == peaks[-1] == run["total_peak_bytes"]
        assert max(footprints) == run["peak_footprint_bytes"] > run["start_footprint_bytes"]
    assert "single" in printed
    drawn = iio.imread(picture)
    assert drawn.shape[:2] == (630, 1500)
    assert len(np.unique(drawn[..., :3].reshape(-1, 3), axis=0)) > 10


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
    for what in (["--encode"], ["--modes", "tiled"]):
        runs, printed = bench(*what, "--tile", "64:32", "--tile-batch-size", "1", "2")
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
    assert main([*TINY, "--frames", "10"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: decode of 10 frames") and "1 + 8*k" in line


def test_a_case_survives_json():
    case = Case(frames=17, mode="tiled", tiles="256:64", memory_budget="8GB")
    assert Case(**json.loads(json.dumps(asdict(case)))) == case


def test_jobs_run_in_turns_and_those_that_need_one_run_once(monkeypatch):
    ran = []
    monkeypatch.setattr(processes, "run_fresh", lambda job: ran.append(job) or {"run": len(ran)})
    short, long = Job(decode, Case(frames=9)), Job(decode, Case(frames=17))
    alone = Job(decode, Case(), once=True)
    runs = processes.run_interleaved([short, alone, long], 2)
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


def test_differences_up_to_rounding_are_none():
    black = mx.zeros((2, 3))
    assert compare(black + 1e-6, black, rounding=2e-5)["psnr"] is None
    assert compare(black + 1e-6, black)["psnr"] == pytest.approx(126, abs=0.1)
    assert (format_psnr(None), format_psnr(59.06)) == ("identical", "59.1 dB")


def test_memory_is_sampled_until_the_end_of_the_run():
    held = []

    def chunks():
        held.append(mx.zeros(1000))
        mx.eval(held)
        yield np.zeros((1, 4, 6, 3), np.uint8)

    measured = measure(chunks(), Case(width=6, height=4), sampled=True)
    seconds, active, peak, _ = measured["samples"][-1]
    assert measured["seconds"] <= seconds and 4000 <= active <= peak == measured["total_peak_bytes"]
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


def test_a_curve_is_the_largest_value_of_every_step():
    seconds, values = upper_envelope([(0.1, 5, 0, 0), (0.4, 9, 0, 0), (0.6, 1, 0, 0), (2.0, 7, 0, 0)], 2)
    assert (seconds, values) == ([0.5, 1.5], [9, 7])


def test_tables_are_padded_markdown_without_empty_columns():
    rows = [{"a": "long", "empty": "", "number": "1"}, {"a": "b", "empty": "", "number": "22"}]
    assert table(rows).splitlines() == [
        "| a    | number |",
        "|------|--------|",
        "| long | 1      |",
        "| b    | 22     |",
    ]
