"""The simulation of row bands: bounds that hold for any assumed speeds, and that the documentation shows it."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import scaling
from benchmarks.scaling import LINKS, Link, simulate
from test_exchange import DECODER, clip_of

DOCUMENT = Path(__file__).parent.parent / "docs/scaling.md"
FREE = Link("free", float("inf"), 0.0)


@pytest.fixture(scope="module")
def runs():
    return {ranks: simulate(clip_of(DECODER, (5, 16, 24)), ranks, 25) for ranks in (1, 2, 3, 5, 16)}


def test_without_communication_the_largest_band_limits_the_speed_up(runs):
    for ranks, run in runs.items():
        assert sum(run.bands) == 16 and max(run.bands) - min(run.bands) <= 1
        assert run.speed_up(FREE) == run.overlapped(FREE) == pytest.approx(16 / max(run.bands))
        assert run.speed_up(FREE) <= ranks
        assert run.share(FREE) == 0


def test_overlap_never_costs_and_slower_links_never_help(runs):
    for ranks, run in runs.items():
        for link in LINKS:
            assert run.speed_up(link) <= run.overlapped(link) <= ranks
            slower = (replace(link, bandwidth=link.bandwidth / 2), replace(link, latency=2 * link.latency))
            assert all(run.speed_up(other) < run.speed_up(link) or ranks == 1 for other in slower)


def test_one_rank_sends_nothing_and_holds_most(runs):
    assert all(runs[1].speed_up(link) == 1 for link in LINKS)
    memory = [run.memory for run in runs.values()]
    assert memory == sorted(memory, reverse=True)
    assert memory[0] / 2 < memory[1] < memory[0]


def test_faster_machines_gain_less_from_the_same_link():
    clip = clip_of(DECODER, (5, 16, 24))
    slow, fast = (simulate(clip, 2, tflops).speed_up(LINKS[2]) for tflops in (5, 50))
    assert fast < slow < 2


@pytest.mark.slow
def test_the_documentation_shows_the_simulated_speed_ups():
    """They change if the network's specs, the plans or the assumptions do."""
    text = DOCUMENT.read_text()
    for width, height in ((768, 512), (1920, 1088), (3840, 2176)):
        clip = clip_of(DECODER, (16, height // 32, width // 32))
        two, four = (simulate(clip, ranks, scaling.DEFAULT_TFLOPS) for ranks in (2, 4))
        cells = [f"{two.speed_up(link):.2f}, {four.speed_up(link):.2f}" for link in LINKS]
        assert f"| {width}x{height} | {' | '.join(cells)} |" in text


def test_mlx_reads_the_hostfile_of_the_documentation(tmp_path):
    hostfile = pytest.importorskip("mlx._distributed_utils.common").Hostfile
    (example,) = re.findall(r"```json\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    path = tmp_path / "hosts.json"
    path.write_text(example)
    hosts = hostfile.from_file(path).hosts
    assert [(host.ssh_hostname, host.ips) for host in hosts] == [
        ("mac-1.local", ["192.168.0.1"]),
        ("mac-2.local", ["192.168.0.2"]),
    ]


def test_speed_and_length_are_options(capsys, monkeypatch):
    monkeypatch.setattr(scaling, "_VIDEOS", ((32, 512),))
    printed = []
    for tflops in ("25", "50"):
        assert command.main(["scaling", "--tflops", tflops, "--num-frames", "1"]) == 0
        printed.append(capsys.readouterr().out)
    assert "50 TFLOP/s per machine, 1 frame" in printed[1]
    assert printed[0].replace("25 TFLOP", "50 TFLOP") != printed[1]
