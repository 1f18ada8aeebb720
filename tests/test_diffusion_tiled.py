"""The tiled decode of the diffusion decoder against the reference, and what its tiles are made of."""

import json

import mlx.core as mx
import numpy as np
import pytest

from commands import decode as main
from conftest import FIXTURES, active_memory
from diffusion_cases import CASES, as_numpy, given_noise, patched
from mlx_ltx_vae import LatentsError
from mlx_ltx_vae.networks.diffusion_decoder.config import parse_decoder_config
from mlx_ltx_vae.networks.diffusion_decoder.specs import decoder_spec
from mlx_ltx_vae.networks.noise import draw
from mlx_ltx_vae.options import DecodeOptions, PlanOptions
from mlx_ltx_vae.planning.planner import plan_decode
from mlx_ltx_vae.shapes import LatentShape
from mlx_ltx_vae.tiling import SpatialTilingConfig, TemporalTilingConfig, TilingConfig, TilingError
from test_tiling_geometry import config_of
from tolerances import cpu_only, tolerance

PUBLISHED = "ltx2_5_diffusion_published"


@pytest.mark.parametrize(
    ("name", "check"),
    [(CASES[0], "tiled"), (CASES[0], "tiled_time"), pytest.param(CASES[1], "tiled", marks=pytest.mark.slow)],
)
def test_a_tiled_decode_agrees_with_the_reference_within_2e_4(golden, vaes, name, check):
    decode_and_compare(golden(name), vaes(name), check)


@pytest.mark.slow
@pytest.mark.parametrize("check", ["tiled_width", "tiled_time"])
def test_a_tiled_decode_of_the_published_geometry_agrees_with_the_reference(golden, vaes, check):
    decode_and_compare(golden(PUBLISHED), vaes(PUBLISHED), check)


def decode_and_compare(case, vae, name):
    check = case.check(name)
    latents = case.arrays[check["input"]]
    plan = vae.plan(latents.shape, mode="tiled", tiling=config_of(check["tiling"]))
    chunks = list(vae.stream(latents, plan, noise=given_noise(case, check)))
    assert [chunk.frames.shape[1] for chunk in chunks] == check["chunk_frames"]
    result = as_numpy(mx.concatenate([chunk.pixels for chunk in chunks], axis=2))
    assert list(result.shape) == check["full_shape"]
    assert np.abs(case.select(result, check) - case.arrays[check["expected"]]).max() < tolerance(2e-4)


def latents_of(*grid, batch=1):
    return mx.random.normal((batch, 8, *grid), key=mx.random.key(1))


@pytest.mark.quick(1)
@pytest.mark.parametrize(("name", "grid"), [(CASES[0], (3, 3, 4)), (CASES[1], (1, 2, 3))])
def test_one_tile_is_the_single_pass(vaes, name, grid):
    """Also of a clip that is smaller than the windows, which is padded and not split."""
    vae = vaes(name)
    latents = latents_of(*grid)
    tiling = TilingConfig(SpatialTilingConfig(512, 64), TemporalTilingConfig(64, 24))
    plan = vae.plan(latents.shape, mode="tiled", tiling=tiling)
    assert (plan.mode.value, plan.calls) == ("tiled", 1)
    single_plan = vae.plan(latents.shape, mode="single")
    tiled, single = (vae.decode(latents, each, seed=3) for each in (plan, single_plan))
    assert tiled.shape == single.shape
    assert mx.abs(tiled - single).max().item() < tolerance(1e-4)


#: Two tiles in time and two in width, of 3x3x3 latents.
TWO_BY_TWO = TilingConfig(temporal_config=TemporalTilingConfig(16, 8), width_config=SpatialTilingConfig(64, 32))


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("grid", "tiling", "count", "seed"),
    [
        ((3, 2, 1), TilingConfig.spatial_only(64, 32), 4, None),
        ((1, 1, 1), TWO_BY_TWO, 4, None),
        ((1, 1, 1), TWO_BY_TWO, 4, 3),
    ],
)
def test_a_clip_below_the_windows_is_padded_and_then_cut_into_tiles(vaes, grid, tiling, count, seed):
    """Its frames are those of the latents with repeated edges, with the noise of each tile or of a seed."""
    vae, latents = vaes(CASES[0]), np.array(latents_of(*grid))
    time, rows, columns = (3 - extent for extent in grid)
    top, left = rows // 2, columns // 2
    added = [(0, 0), (0, 0), (0, time), (top, rows - top), (left, columns - left)]
    by_hand = np.pad(latents, added, mode="edge")
    plan, padded_plan = (vae.plan(each.shape, mode="tiled", tiling=tiling) for each in (latents, by_hand))
    tiles = [tile for group in padded_plan.layout.groups() for tile in group]
    assert plan.calls == padded_plan.calls == len(tiles) == count
    drawn = np.random.default_rng(1)
    noise = [drawn.normal(size=(1, 3, *tile.output_size)).astype(np.float32) for tile in tiles]
    options = {"noise": noise} if seed is None else {"seed": seed}
    expected = vae.decode(by_hand, padded_plan, **options)[:, :, :, 32 * top :, 32 * left :]
    found = vae.decode(latents, plan, **options)
    frames, height, width = 8 * grid[0] - 7, 32 * grid[1], 32 * grid[2]
    assert found.shape == (1, 3, frames, height, width)
    assert mx.abs(found - expected[:, :, :frames, :height, :width]).max().item() < tolerance(2e-5)


@pytest.mark.quick(1)
@pytest.mark.parametrize("options", [{"mode": "single"}, {"order": "time"}, {"mode": "tiled", "tiling": TWO_BY_TWO}])
def test_noise_may_be_the_picture_that_the_reference_draws(vaes, options):
    vae, latents = vaes(CASES[0]), latents_of(2, 3, 3)
    plan = vae.plan(latents.shape, **options)
    tiles = [] if plan.layout is None else [tile for group in plan.layout.groups() for tile in group]
    drawn = np.random.default_rng(1)
    pictures = [drawn.normal(size=(1, 3, *tile.output_size)).astype(np.float32) for tile in tiles]
    pictures = pictures or [drawn.normal(size=(1, 3, 17, 96, 96)).astype(np.float32)]
    expected = vae.decode(latents, plan, noise=list(map(patched, pictures)))
    assert mx.array_equal(vae.decode(latents, plan, noise=pictures), expected)


@pytest.mark.slow
def test_batches_of_tiles_and_chunks_give_the_same_frames(vaes):
    vae = vaes(CASES[0])
    latents = latents_of(3, 3, 3, batch=2)
    one_by_one = vae.plan(latents.shape, mode="tiled", tiling=TWO_BY_TWO)
    together = vae.plan(latents.shape, mode="tiled", tiling=TWO_BY_TWO, tile_batch_size=2, chunk=3)
    assert (one_by_one.calls, together.calls) == (4, 2)
    assert mx.abs(vae.decode(latents, one_by_one) - vae.decode(latents, together)).max().item() < tolerance(1e-4)


@pytest.mark.slow
def test_the_noise_of_a_seed_is_that_of_the_whole_clip(vaes):
    """It may be passed in one array for the clip, and in one for each tile, as the reference draws it."""
    vae, spec = vaes(CASES[0]), vaes(CASES[0]).decoder.spec
    latents = latents_of(3, 3, 3)
    plan = vae.plan(latents.shape, mode="tiled", tiling=TWO_BY_TWO)
    (volume,) = draw(spec, LatentShape(*latents.shape), mx.float32, DecodeOptions(seed=5)).volumes.values()
    whole = volume(((0, 0, 0),), (0, 0, 0), (17, 24, 24))
    tiles = [
        whole[:, time.start : time.end, :, columns.start // 4 : columns.end // 4]
        for group in plan.layout.groups()
        for time, _, columns in (tile.pixels for tile in group)
    ]
    assert len(tiles) == 4
    frames = vae.decode(latents, plan, seed=5)
    for arrays in ([whole], tiles):
        noise = [array.transpose(0, 4, 1, 2, 3) for array in arrays]
        assert mx.abs(vae.decode(latents, plan, noise=noise) - frames).max().item() < tolerance(1e-5)
    with pytest.raises(LatentsError, match=r"noise array 3 .*; the network expects"):
        vae.decode(latents, plan, noise=[*noise[:3], noise[0]])


@pytest.mark.slow
def test_a_part_of_a_clip_in_tiles_is_that_of_the_whole(vaes):
    vae = vaes(CASES[1])
    latents = latents_of(16, 3, 4)
    options = {"mode": "tiled", "tiling": TilingConfig(width_config=SpatialTilingConfig(96, 32)), "steps": 1}
    whole = vae.decode(latents, vae.plan(latents.shape, **options))
    plan = vae.plan(latents.shape, frames=(60, 70), **options)
    assert plan.excerpt.latents.start > 0
    assert mx.abs(vae.decode(latents, plan) - whole[:, :, 60:70]).max().item() < tolerance(1e-4)
    with pytest.raises(TilingError, match="use tiles in space only"):
        vae.plan(latents.shape, frames=(60, 70), mode="tiled", tiling=TWO_BY_TWO)


def test_frames_that_are_final_leave_before_later_latents_are_read(vaes):
    vae = vaes(CASES[0])
    latents = latents_of(12, 3, 3)
    plan = vae.plan(latents.shape, mode="tiled", tiling=TilingConfig.temporal_only(24, 8))
    assert plan.first_output_work < 0.3
    read = []

    class Latents:
        shape = latents.shape

        def __getitem__(self, index):
            read.append(index[2].stop)
            return latents[index]

    stream = vae.stream(Latents(), plan)
    read.clear()  # a sample of the values
    chunk = next(stream)
    assert chunk.frames.shape[1] == 15
    assert max(read) == plan.lookahead < 12


def published_plan(grid, **options):
    widths = {"stage_channels": [2048, 1024, 512, 512, 256], "head_dim": 64}
    raw = json.loads((FIXTURES / f"{PUBLISHED}.json").read_text())["vae_config"]["decoder"] | widths
    config = parse_decoder_config(raw, "x0", "file", is_fused=True, has_gates=False)
    return plan_decode(decoder_spec(config), (1, 8, *grid), options=PlanOptions(**options))


@pytest.mark.parametrize(
    ("tiling", "words"),
    [
        (TilingConfig.default(), "overlap of 24 frames .* at least 160 pixels and 40 frames; use 80:40 frames, "),
        (TilingConfig.spatial_only(), "overlap of 64 pixels .* use 512:160 pixels, the preset wide, or mode exact"),
        (TilingConfig.spatial_only(44, 0), "a tile of 44 pixels .* multiple of 8 pixels and at least 48; use 48"),
        (TilingConfig.temporal_only(81, 40), "a tile of 81 frames .* multiple of 2 frames and at least 12; use 80 or"),
        (TilingConfig.temporal_only(80, 41), "overlap of 41 frames .* use 40 or 42"),
    ],
)
def test_tiles_that_share_too_little_are_refused_with_sizes_and_presets_that_fit(tiling, words):
    with pytest.raises(TilingError, match=words) as caught:
        published_plan((16, 16, 24), mode="tiled", tiling=tiling)
    assert str(caught.value).count(".") == 1


def test_tiles_are_those_of_the_first_preset_that_fits():
    plan = published_plan((16, 16, 24), mode="tiled")
    assert plan.tiling == TilingConfig.wide()
    assert [
        [each[:2] for each in axis.latent] for axis in (plan.layout.time, plan.layout.height, plan.layout.width)
    ] == [
        [(0, 48), (28, 69)],  # with what 2 repeated latent frames become
        [(0, 64)],
        [(0, 64), (44, 96)],
    ]


def test_tiles_are_taken_if_nothing_exact_fits_and_say_so():
    exact = published_plan((40, 60, 60))
    tiled = published_plan((40, 60, 60), memory_budget=exact.memory.active * 2 // 3)
    assert (exact.mode.value, tiled.mode.value) == ("exact", "tiled")
    assert tiled.memory.total <= exact.memory.active * 2 // 3
    assert "blended in space and time, so not exact" in str(tiled)


def test_the_command_decodes_in_tiles_says_so_and_refuses_narrow_overlaps(golden, vaes, tmp_path, capsys):
    latents, path, checkpoint = latents_of(3, 3, 3), tmp_path / "clip.npy", str(golden(CASES[0]).checkpoint)
    np.save(path, np.array(latents))
    out = tmp_path / "out.npy"
    arguments = [str(path), "-m", checkpoint, "-o", str(out), "--seed", "5"]
    tiles = ["--tile", "96:32", "--tile-frames", "16:8"]
    assert main([*arguments, *tiles, "--dry-run", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)["plan"]
    assert (planned["mode"], planned["calls"]) == ("tiled", 2)
    assert main([*arguments, *tiles, "-q"]) == 0
    tiling = TilingConfig(SpatialTilingConfig(96, 32), TemporalTilingConfig(16, 8))
    plan = vaes(CASES[0]).plan(latents.shape, mode="tiled", tiling=tiling, bit_depth=8)
    expected = np.concatenate([chunk.to_uint8() for chunk in vaes(CASES[0]).stream(latents, plan, seed=5, bit_depth=8)])
    assert np.abs(np.load(out).astype(int) - expected).max() <= 1
    assert main([*arguments, "--tile", "96:8", "--dry-run"]) == 1
    assert "a tile overlap of 8 pixels does not fit this VAE" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tiling", "dtype", "tile_batch_size", "bit_depth"),
    [
        (TilingConfig.spatial_only(96, 32), "float32", 3, 8),
        (TilingConfig.temporal_only(24, 8), "bfloat16", 3, None),
        (TilingConfig(SpatialTilingConfig(128, 32), TemporalTilingConfig(24, 8)), "float32", 1, None),
    ],
)
@cpu_only("plans for a GPU count a step ahead, which may not overlap")
def test_its_planned_peak_holds(vaes, tiling, tile_batch_size, bit_depth, dtype):
    """For a consumer that holds the chunk before."""
    vae, latents = vaes(CASES[0], dtype), latents_of(9, 4, 6)
    options = {"tile_batch_size": tile_batch_size, "bit_depth": bit_depth}
    plan = vae.plan(latents.shape, mode="tiled", tiling=tiling, **options)
    mx.eval(latents, vae.decoder.parameters())
    held = active_memory() - vae.decoder.spec.num_weights * vae.decoder.dtype.size - latents.nbytes
    mx.reset_peak_memory()
    before = None
    for chunk in vae.stream(latents, plan, bit_depth=bit_depth):
        mx.eval(chunk.frames)
        before = chunk
        del chunk
    assert before is not None
    assert 1.0 <= plan.memory.active / (mx.get_peak_memory() - held) <= 1.5
