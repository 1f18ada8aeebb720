"""The benchmark command on several ranks, small; and its arithmetic. Nothing depends on how long a run takes."""

import json
from types import SimpleNamespace

import pytest

from mlx_ltx_vae.bench import __main__ as command
from mlx_ltx_vae.bench.case import Case, load_config
from mlx_ltx_vae.bench.lockstep import find_recorded
from mlx_ltx_vae.bench.tables import rank_table, speed_ups
from mlx_ltx_vae.errors import LTXVAEError
from mlx_ltx_vae.models.video_vae.network_specs import decoder_spec
from mlx_ltx_vae.planning.planner import plan_decode
from test_distributed import launch

CASE = Case(base_width=8, width=64, height=96, frames=17)
OPTIONS = ["--base-width", "8", "--size", "64x96", "--frames", "17", "--repeat", "1"]


def test_ranks_decode_in_bands_and_the_first_reports_all(tmp_path):
    path = tmp_path / "report.json"
    printed, errors = launch(2, "-m", "mlx_ltx_vae.bench", *OPTIONS, "--json", path)
    assert path.exists(), errors
    report = json.loads(path.read_text())
    together, alone = report["runs"]
    assert (report["ranks"], report["distributed"], len(report["machines"])) == (2, "rows", 2)
    (speed_up,) = report["speed_ups"]
    assert (speed_up["frames"], speed_up["ranks"]) == (17, 2)
    assert speed_up["speed_up"] == pytest.approx(alone["seconds"] / together["seconds"])
    assert [(run["ranks"], run["rows"], run["frames"]) for run in (together, alone)] == [(2, [2, 1], 17), (1, [3], 17)]
    plan = plan_decode(decoder_spec(load_config(CASE)), (1, 128, 3, 3, 2), mode="exact", ranks=2)
    for sent, exchange in zip(together["sent_bytes_per_rank"], plan.exchanges, strict=True):
        assert exchange.sent_bytes <= sent < exchange.sent_bytes + 1000, "the flags of finite output are not planned"
    assert (together["exchanged_bytes"], alone["exchanged_bytes"]) == (sum(together["sent_bytes_per_rank"]), 0)
    for run in (together, alone):
        for without, total in zip(run["peak_bytes_per_rank"], run["peak_memory_bytes_per_rank"], strict=True):
            assert 0 < without < total - run["weights_bytes"] < run["planned_bytes"]
    assert max(together["peak_bytes_per_rank"]) < alone["peak_bytes_per_rank"][0]
    assert printed.count("| ranks ") == 1 and "speed-up" in printed
    assert "Ranks share a machine" in printed


@pytest.mark.slow
def test_one_rank_is_taken_from_a_file_or_left_out(tmp_path):
    path = tmp_path / "one.json"
    assert command.main([*OPTIONS, "--modes", "exact", "--json", str(path)]) == 0
    (one,) = json.loads(path.read_text())["runs"]
    bench = ["-m", "mlx_ltx_vae.bench", *OPTIONS, "--json", "-", "--one-rank"]
    report = json.loads(launch(2, *bench, path)[0])
    assert [(run["ranks"], run["seconds"] == one["seconds"]) for run in report["runs"]] == [(2, False), (1, True)]
    assert len(report["speed_ups"]) == 1
    report = json.loads(launch(2, *bench, "skip")[0])
    assert ([run["ranks"] for run in report["runs"]], report["speed_ups"]) == ([2], [])


@pytest.mark.slow
def test_a_video_with_fewer_rows_than_ranks_and_a_wrong_option_are_one_line():
    bench = ["-m", "mlx_ltx_vae.bench", *OPTIONS]
    for options, words in ((["--size", "64x32"], "ranks"), (["--encode"], "--encode goes with one process")):
        printed, errors = launch(2, *bench, *options)
        assert (printed, errors.count("error: ")) == ("", 1)
        assert words in errors


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ("--encode", "--encode"),
        ("--against", "--against"),
        ("--plot x.png", "--plot"),
        ("--tile 64:32", "--tile"),
        ("--tile-batch-size 1 2", "--tile-batch-size"),
        ("--modes exact single", "--modes exact single"),
        ("--modes rows", "--modes rows"),
    ],
)
def test_what_does_not_go_with_bands_is_wrong_usage(options, name, monkeypatch, capsys):
    monkeypatch.setattr(command, "join_ranks", lambda distributed: SimpleNamespace(size=2))
    with pytest.raises(SystemExit, match="2"):
        command.main([*OPTIONS, *options.split()])
    assert capsys.readouterr().err.startswith(f"error: {name} goes with one process; several ranks decode in bands")


def recorded(tmp_path, **changes):
    run = {"task": "decode", **vars(CASE), "order": "time", "seconds": 3.0, "peak_bytes": 5, "total_peak_bytes": 9}
    path = tmp_path / "one.json"
    path.write_text(json.dumps({"runs": [run, run | {"mode": "single"}, run | changes]}))
    return str(path)


def test_recorded_runs_are_the_exact_decodes_of_the_same_case(tmp_path):
    assert [run["peak_memory_bytes_per_rank"] for run in find_recorded(recorded(tmp_path), CASE)] == [[9], [9]]
    for changes in ({"frames": 9}, {"base_width": 16}, {"dtype": "bfloat16"}, {"task": "encode"}, {"ranks": 2}):
        assert len(find_recorded(recorded(tmp_path, **changes), CASE)) == 1, changes
    with pytest.raises(LTXVAEError, match=r"one\.json: has no exact decode by one rank of 9 frames of 64x96"):
        find_recorded(recorded(tmp_path), Case(base_width=8, width=64, height=96, frames=9))


@pytest.mark.parametrize("text", ["", "[]", '{"runs": [{}]}', '{"runs": 5}'])
def test_other_files_are_refused(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(LTXVAEError, match=r"x\.json: is not a file that the bench wrote"):
        find_recorded(str(tmp_path / "x.json"), CASE)
    with pytest.raises(LTXVAEError, match=r"none\.json: is not a file"):
        find_recorded(str(tmp_path / "none.json"), CASE)


def run_of(ranks, seconds, frames=17):
    return {
        "ranks": ranks, "frames": frames, "seconds": seconds, "first_frame_seconds": 1.0, "width": 64, "height": 96,
        "latent_frames": 2, "rows": [1] * ranks, "sent_bytes_per_rank": [3e6] * ranks,
        "peak_bytes_per_rank": [1e6 * (rank + 1) for rank in range(ranks)],
        "peak_memory_bytes_per_rank": [8e6] * ranks,
    }  # fmt: skip


def test_the_speed_up_is_the_ratio_of_medians_and_of_videos_of_one_length():
    results = [[run_of(2, seconds) for seconds in (1, 2, 9)], [run_of(1, 5)], [run_of(2, 1, frames=9)]]
    assert speed_ups(results) == {(17, 2): 2.5, (17, 1): 1.0}


def test_every_rank_has_a_row():
    lines = rank_table([[run_of(2, 2)], [run_of(1, 5)]]).splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:5]]
    assert rows[0] == ["2", "17", "2.00", "2.50", "8.50", "1.00", "0", "1", "1.0", "8.0", "1.50"]
    assert rows[1] == [*[""] * 6, "1", "1", "2.0", "8.0", "1.50"]
    assert rows[2] == ["1", "17", "5.00", "1.00", "3.40", "1.00", "0", "1", "1.0", "8.0", ""]
