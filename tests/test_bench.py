"""The command `bench`, end to end and small. Nothing depends on how long a run takes."""

import json

import mlx.core as mx
import pytest

from commands import bench as main
from mlx_ltx_vae import LTXVAEError, VideoVAE
from mlx_ltx_vae.commands import bench_command
from mlx_ltx_vae.networks.families import published
from mlx_ltx_vae.planning.plan import Mode
from mlx_ltx_vae.tiling import TilingConfig, preset

TINY = ["--base-width", "8", "--size", "64x64", "--repeat", "1"]
MEASURED = {
    "dtype": "bfloat16",
    "planned_bytes": 3e6,
    "weights_bytes": 1e6,
    "num_outputs": 9,
    "first_frame_seconds": 0.5,
}


@pytest.fixture
def runs(monkeypatch):
    """Runs measure nothing; the list of their modes and orders."""
    ways = []

    def measure(vae, video, mode, order):
        ways.append((mode, order))
        assert (vae.encoder is None) == (mode != "encode") and (vae.decoder is None) == (mode == "encode")
        seconds, peak = float(len(ways)), len(ways) * 1e6
        return {"mode": mode, "order": "time", "seconds": seconds, "peak_memory_bytes": peak, **MEASURED}

    monkeypatch.setattr(bench_command, "_measure", measure)
    return ways


def test_decodes_and_an_encode_are_measured(capsys):
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


def test_the_peak_is_that_of_the_run_alone(capsys):
    mx.eval(mx.zeros(10_000_000))
    held = mx.get_active_memory()  # by other tests
    assert main([*TINY, "--num-frames", "9", "--mode", "exact", "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["peak_memory_bytes"] < held + 20_000_000


def test_the_table_says_what_was_measured_where_and_is_plain_text(runs, capsys):
    assert main([*TINY, "--num-frames", "9", "--repeat", "3", "--mode", "exact", "--mode", "encode"]) == 0
    title, what, _, *lines = capsys.readouterr().out.splitlines()
    assert f"MLX {mx.__version__}" in title
    assert what == "ltx-2.3 with random weights, 8 base channels, bfloat16, 9 frames of 64x64"
    assert lines == [
        "|                | order | seconds | first frame | peak MB | planned MB | weights MB |",
        "| -------------- | ----- | ------- | ----------- | ------- | ---------- | ---------- |",
        "| decode (exact) | time  | 2.00    | 0.50        | 3       | 3          | 1          |",
        "| encode         |       | 5.00    |             | 6       | 3          | 1          |",
        "",
        "Medians of 3 runs in turns. Peaks are of MLX's memory, weights included.",
    ]


def test_modes_and_orders_take_turns(runs, golden, capsys):
    model, options = str(golden("ltx2_3").checkpoint), ["--mode", "encode", "--mode", "exact", "--mode", "tiled"]
    options += ["--order", "rows", "--order", "time", "--num-frames", "17", "--size", "96x64"]
    assert main(["-m", model, "--dtype", "float32", "--repeat", "2", *options]) == 0
    assert runs == [("exact", "rows"), ("exact", "time"), ("tiled", "auto")] * 2 + [("encode", "auto")] * 2
    assert "ltx2_3.safetensors, bfloat16, 17 frames of 96x64" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("name", ["ltx-2.5-diffusion", "latent-rgb"])
def test_what_has_no_encoder_is_not_encoded(name, runs, capsys):
    assert main([*TINY, "--generation", name]) == 0
    assert runs == [("exact", "auto"), ("single", "auto")]
    with pytest.raises(SystemExit, match="2"):
        main([*TINY, "--generation", name, "--mode", "encode"])
    assert "has no encoder" in capsys.readouterr().err


def test_a_mode_that_fails_is_a_row_and_the_others_are_measured(monkeypatch, runs, capsys):
    measure = bench_command._measure

    def failing(vae, video, mode, order):
        if mode == "single":
            raise LTXVAEError("the single pass is too large.")
        return measure(vae, video, mode, order)

    monkeypatch.setattr(bench_command, "_measure", failing)
    assert main([*TINY, "--repeat", "2"]) == 1
    printed = capsys.readouterr()
    assert [mode for mode, _ in runs] == ["exact"] * 2 + ["encode"] * 2
    (row,) = (line for line in printed.out.splitlines() if line.startswith("| decode (single) "))
    assert "| failed " in row
    first = "the first, decode (single): the single pass is too large.\n"
    assert printed.err.endswith(f"error: 1 of 3 measurements failed; {first}")


def test_a_checkpoint_that_is_missing_is_an_error_of_one_line(capsys):
    assert main([*TINY, "-m", "missing.safetensors", "--mode", "exact"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "error: missing.safetensors: there is no such file or folder" in printed.err.splitlines()[-1]


SLOW = {"ltx-2.5", "ltx-2.5-diffusion"}  # the first has the layers of ltx-2.3


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.slow] * (each in SLOW)) for each in published()]
)
def test_every_published_vae_is_measured_without_a_checkpoint(name):
    vae = VideoVAE.with_random_weights(name, base_channels=8, encoder=False)
    run = bench_command._measure(vae, (9, 64, 64), "exact", "auto")
    per_frame = {"latent-rgb": 8}.get(name, 1)  # one picture of a latent frame
    assert run["num_outputs"] == 1 + 8 // per_frame
    assert run["dtype"] == published()[name].published_dtype
    assert 0 < run["weights_bytes"] < run["peak_memory_bytes"]


@pytest.mark.parametrize("name", published())
def test_every_published_vae_has_tiles_that_fit_it(name):
    vae = VideoVAE.with_random_weights(name, base_channels=8, encoder=False)
    shape = (1, vae.config.latent_channels, *vae.config.scale.latent_grid((9, 64, 64)))
    plan = vae.plan(shape, mode="tiled")
    expected = TilingConfig.default() if name != "ltx-2.5-diffusion" else preset("wide", 64, 64, 9)
    assert (plan.mode, plan.tiling) == (Mode.TILED, expected)


def test_random_weights_are_as_published_and_the_same_each_time():
    for name, channels in (("ltx-2.3", 1024), ("prunavaed", 2048), ("taehv", 256), ("ltx-2.5-diffusion", 2048)):
        spec = published()[name].spec(published()[name].published[name](128), "decoder")
        assert max(layer.in_channels for layer in spec.layers) == channels, name
    options = {"base_channels": 8, "dtype": "float32", "encoder": False}
    first, again = (VideoVAE.with_random_weights("ltx-2.5-diffusion", **options).decoder for _ in range(2))
    assert mx.array_equal(first.conv_out.weight, again.conv_out.weight)


def test_a_checkpoint_computes_in_its_own_dtype_and_random_weights_in_the_published_one(golden):
    checkpoint, narrow = golden("ltx2_3").checkpoint, {"base_channels": 8, "encoder": False}
    vaes = [
        VideoVAE.from_pretrained(checkpoint, encoder=False),
        VideoVAE.with_random_weights("ltx-2.3", **narrow),
        VideoVAE.with_random_weights("ltx-2.3", dtype="float16", **narrow),
    ]
    assert [vae.load().dtype for vae in vaes] == [mx.float32, mx.bfloat16, mx.float16]
    assert all(vae.encoder is None for vae in vaes)


@pytest.mark.parametrize("variable", ["MLX_RANK", "OMPI_COMM_WORLD_RANK"])
def test_several_ranks_are_refused(variable, monkeypatch, capsys):
    monkeypatch.setenv(variable, "0")
    with pytest.raises(SystemExit, match="2"):
        main(TINY)
    assert "start bench without a launcher" in capsys.readouterr().err
