"""Plans that blend tiles say so, and what a machine cannot have is an error that says what helps."""

import json
import warnings

import mlx.core as mx
import numpy as np
import pytest

from commands import decode, encode
from mlx_ltx_vae import PlanError, VideoVAE, VideoWriter, save_latents
from mlx_ltx_vae.backend.machine import Backend, Machine
from mlx_ltx_vae.integrations import decode_tiled
from mlx_ltx_vae.options import PlanOptions
from mlx_ltx_vae.planning.planner import _Planner, plan_decode
from mlx_ltx_vae.tiling import SpatialTilingConfig, TemporalTilingConfig, TilingConfig
from vae_configs import GENERATIONS, decoder_spec, parse_vae_config

GB = 10**9
SPEC = decoder_spec(parse_vae_config(GENERATIONS["LTX-2.3"], "LTX-2.3"))
MACHINE = Machine(Backend.METAL, 2, available=10 * GB, memory=16 * GB)
SAID = r"tiles are blended, which changes the result and may show seams, since an exact plan "


def test_a_plan_with_tiles_that_nobody_asked_for_is_a_warning(golden):
    spec, shape = (
        VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint, encoder=False).decoder.spec,
        (1, 8, 2, 12, 12),
    )
    least = plan_decode(
        spec, shape, Machine(Backend.METAL, 4, available=2, memory=GB), PlanOptions(mode="exact")
    ).memory.active
    machine = Machine(Backend.METAL, 4, memory=GB)
    with pytest.warns(
        UserWarning, match=rf"^9 frames of 384x384: {SAID}takes at least [0-9.]+ MB; give a larger"
    ) as warned:
        plan = plan_decode(spec, shape, machine, PlanOptions(memory_budget=least - 1))
    assert (plan.mode.value, plan.blended, len(warned)) == ("tiled", ("space",), 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plan_decode(spec, shape, machine, PlanOptions(memory_budget=least)).blended == ()
        plan_decode(spec, shape, machine, PlanOptions(mode="tiled", tiling=plan.tiling))


@pytest.mark.parametrize(
    ("tiling", "blended", "mode"),
    [
        (TilingConfig(SpatialTilingConfig(2048, 64)), (), "one tile, so the single pass's result, streamed 1 latent"),
        (TilingConfig(SpatialTilingConfig(512, 64)), ("space",), "blended in space, so not exact; exact in time"),
        (TilingConfig(None, TemporalTilingConfig(64, 24)), ("time",), "blended in time, so not exact\n"),
        (TilingConfig.default(), ("space", "time"), "blended in space and time, so not exact\n"),
    ],
)
def test_a_plan_of_tiles_says_where_it_blends(tiling, blended, mode):
    plan = plan_decode(SPEC, (1, 128, 16, 34, 60), options=PlanOptions(mode="tiled", tiling=tiling))
    assert plan.blended == blended
    assert f"mode     tiled: {mode}" in str(plan)


@pytest.mark.parametrize(
    ("frames", "side", "options", "advice"),
    [
        (20, 100, {"joined": True, "order": "columns"}, "write a file, or take the frames from stream, instead of one"),
        (4, 200, {"order": "time"}, "use order columns in mode exact, or use a smaller size or fewer frames"),
        (8, 300, {}, "use a smaller size or fewer frames"),
    ],
)
def test_a_plan_for_more_than_the_machine_has_is_an_error_that_says_what_helps(frames, side, options, advice):
    shape = (1, 128, frames, side, 2 * side)
    said = rf"^\d+ frames of .* the least plan takes [0-9.]+ GB \(.*\), and this machine has 16\.00 GB for it; {advice}"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(PlanError, match=said):
            plan_decode(SPEC, shape, MACHINE, PlanOptions(**options))
    plan = plan_decode(SPEC, shape, MACHINE, PlanOptions(memory_budget="200GB", **options))  # whoever knows better
    assert plan.memory.active > 16 * GB


def test_the_least_plan_takes_no_more_buffer_cache_than_the_machine_has():
    """Half of what is available is too little, and all of it is enough without the cache."""
    plan = plan_decode(SPEC, (1, 128, 10, 100, 200), MACHINE, PlanOptions(joined=True))
    assert 16 * GB / 1.4 < plan.memory.active < plan.peak_bytes == 16 * GB


@pytest.fixture
def no_exact_plans(monkeypatch):
    monkeypatch.setattr(_Planner, "_exact", lambda *_: iter(()))


def test_commands_say_once_that_they_blend(golden, no_exact_plans, tmp_path, capsys):
    checkpoint, latents, video = golden("small_ltx2_3").checkpoint, tmp_path / "clip.safetensors", tmp_path / "in.mkv"
    save_latents(latents, mx.random.normal((1, 8, 1, 8, 8), key=mx.random.key(0)))
    with VideoWriter(video, fps=24, size=(256, 256), codec="ffv1") as writer:
        writer.write(np.random.default_rng(0).integers(0, 256, (1, 256, 256, 3), np.uint8))
    for command, source, output in ((decode, latents, "out.mkv"), (encode, video, "out.safetensors")):
        arguments = [str(source), "-m", str(checkpoint), "-y", "-o", str(tmp_path / output)]
        assert command(arguments) == 0
        shown = capsys.readouterr()
        assert shown.err.count("tiles are blended") == 1
        assert shown.err.startswith("warning: 1 frame of 256x256: tiles are blended, ")
        assert ", tiled (blended in space), in " in shown.out.splitlines()[-1]
        assert command([*arguments, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["plan"]["mode"] == "tiled"


def test_decodes_of_apps_say_once_that_they_blend(golden, no_exact_plans, tmp_path, monkeypatch):
    vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint, encoder=False)
    monkeypatch.setattr("mlx_ltx_vae.integrations.dropins.vae_of", lambda decoder: vae)
    latents = mx.random.normal((1, 8, 1, 8, 8), key=mx.random.key(0))
    for run in (
        lambda: vae.decode(latents),
        lambda: list(vae.stream(latents)),
        lambda: vae.decode_uint8(latents),
        lambda: vae.decode_to_file(latents, tmp_path / "out.png"),
        lambda: decode_tiled(None, latents, TilingConfig(SpatialTilingConfig(128, 64))),
    ):
        with pytest.warns(UserWarning, match=SAID) as warned:
            run()
        assert len(warned) == 1
