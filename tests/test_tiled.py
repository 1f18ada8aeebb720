"""Tiled decodes through `VideoVAE`: the reference's tiling, and tiles that are exact in time."""

import mlx.core as mx
import numpy as np
import pytest

from mlx_ltx_vae import PlanError, VideoVAE
from mlx_ltx_vae.pipeline.execution import Execution
from mlx_ltx_vae.pipeline.sources import latent_source
from mlx_ltx_vae.shapes import Interval
from mlx_ltx_vae.streaming.context import StreamContext
from mlx_ltx_vae.tiling import SpatialTilingConfig, TemporalTilingConfig, TilingConfig
from mlx_ltx_vae.tiling.layout import Tile
from tolerances import tolerance


@pytest.fixture(scope="module")
def vae(golden):
    return VideoVAE.from_pretrained(golden("ltx2_3_tiled").checkpoint, encoder=False)


def tiling_of(check):
    """The manifest's tiling as a `TilingConfig`."""
    sizes = {axis: (entry["tile_size"], entry["overlap"]) for axis, entry in check["tiling"].items()}
    return TilingConfig(
        temporal_config=TemporalTilingConfig(*sizes["frames"]) if "frames" in sizes else None,
        height_config=SpatialTilingConfig(*sizes["height"]) if "height" in sizes else None,
        width_config=SpatialTilingConfig(*sizes["width"]) if "width" in sizes else None,
    )


@pytest.mark.parametrize("name", ["tiled_all", "tiled_time", "tiled_space", "tiled_overlap_over_half"])
def test_tiled_decode_agrees_with_the_reference_within_1e_4(golden, vae, name):
    case = golden("ltx2_3_tiled")
    check = case.check(name)
    latents = case.arrays[check["input"]]
    plan = vae.plan(latents.shape, mode="tiled", tiling=tiling_of(check))
    result = np.array(vae.decode(latents, plan))
    assert list(result.shape) == check["full_shape"]
    assert np.abs(case.select(result, check) - case.arrays[check["expected"]]).max() < tolerance(1e-4)


def test_frames_leave_as_soon_as_no_later_tile_reaches_them(golden, vae):
    case = golden("ltx2_3_tiled")
    check = case.check("tiled_overlap_over_half")
    latents = case.arrays[check["input"]]
    chunks = list(vae.stream(latents, vae.plan(latents.shape, mode="tiled", tiling=tiling_of(check))))
    assert [chunk.frames.shape[1] for chunk in chunks] == [length for length in check["chunk_frames"] if length]


def test_spatial_tiles_are_exact_in_time(vae):
    """However the clip is chunked the result is the same, and away from the seams it is the single pass's."""
    latents = mx.random.normal((1, 8, 5, 3, 5), key=mx.random.key(5))
    tiling = TilingConfig(SpatialTilingConfig(96, 32))
    whole = vae.decode(latents, vae.plan(latents.shape, mode="tiled", tiling=tiling, chunk=5))
    for chunk in (1, 2):
        plan = vae.plan(latents.shape, mode="tiled", tiling=tiling, chunk=chunk)
        assert mx.abs(vae.decode(latents, plan) - whole).max().item() < tolerance(2e-5)
    one_tile = TilingConfig(SpatialTilingConfig(256, 64))
    plan = vae.plan(latents.shape, mode="tiled", tiling=one_tile)
    assert plan.calls == 1
    assert mx.abs(vae.decode(latents, plan) - vae.decode(latents)).max().item() < tolerance(2e-5)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("case", "size"), [("ltx2_3_tiled", 100), ("ltxv_0_9_1", 2)])  # with a timestep and noise
def test_tiles_decoded_in_batches_give_what_tiles_one_by_one_give(golden, case, size):
    """4x7 cells in tiles of 3x3 and 2x3: two shapes, three of each, so that batches are not full."""
    vae = VideoVAE.from_pretrained(golden(case).checkpoint, encoder=False)
    latents = mx.random.normal((1, 8, 2, 4, 7), key=mx.random.key(5))
    options = {"mode": "tiled", "tiling": TilingConfig(SpatialTilingConfig(96, 32))}
    one_by_one = vae.plan(latents.shape, **options)
    together = vae.plan(latents.shape, **options, tile_batch_size=size)
    assert (one_by_one.calls, together.calls) == (6, 4 if size == 2 else 2)
    difference = vae.decode(latents, together) - vae.decode(latents, one_by_one)
    assert mx.abs(difference).max().item() < tolerance(2e-5)


def test_a_tile_gets_its_own_part_of_the_latents_and_of_the_pictures_noise(golden):
    vae = VideoVAE.from_pretrained(golden("small_ltxv_0_9_1").checkpoint, encoder=False)
    latents = mx.random.normal((1, 3, 4, 6, 8), key=mx.random.key(5))
    shapes = vae.decoder.spec.noise_shapes((3, 4, 6))
    maps = {
        name: mx.random.normal(shape, key=mx.random.key(index)) for index, (name, shape) in enumerate(shapes.items())
    }
    tile = Tile(
        (Interval(1, 3), Interval(1, 4), Interval(2, 6)), (Interval(0, 9), Interval(32, 128), Interval(64, 192))
    )
    source = latent_source(latents.transpose(0, 4, 1, 2, 3), lambda part, box: part.transpose(0, 2, 3, 4, 1))
    (pieces,) = source.tile_pieces([[tile.latent]], chunk=1)
    assert mx.array_equal(mx.concatenate(list(pieces), axis=1), latents[:, 1:3, 1:4, 2:6])
    run = Execution(vae.decoder, vae.plan((1, 8, 3, 4, 6)), source, StreamContext(noise_maps=maps))
    cropped = run._crop_context([tile]).noise_maps
    assert cropped.keys() == maps.keys()
    for name, (height, width) in shapes.items():
        cell = height // 4
        assert width // 6 == cell
        assert mx.array_equal(cropped[name][0], maps[name][cell : 4 * cell, 2 * cell : 6 * cell])


def test_the_plan_counts_calls_and_redundant_work(vae):
    plan = vae.plan((1, 8, 16, 16, 24), mode="tiled", tiling=TilingConfig.default())
    assert plan.calls == 3 * 1 * 2
    decoded = (8 + 9 + 7) * 16 * (16 + 10)  # latent frames x rows x columns of all tiles
    assert plan.redundant_work == pytest.approx(decoded / (16 * 16 * 24) - 1)
    assert "blended in space and time" in str(plan)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tiling": TilingConfig.default()}, "goes with mode"),
        ({"mode": "tiled", "order": "rows"}, "streamed in time"),
        ({"mode": "single", "tiling": TilingConfig.default()}, "goes with mode"),
    ],
)
def test_wishes_that_contradict_each_other_are_refused(vae, options, words):
    with pytest.raises(PlanError, match=words):
        vae.plan((1, 8, 2, 2, 3), **options)
