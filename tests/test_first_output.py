"""When the first frame comes: what a plan says, against the convolutions that a decode runs until then."""

import mlx.core as mx
import pytest

from benchmarks.convolutions import recorded
from mlx_ltx_vae import VideoVAE, tiling


def count_until_first(results):
    """The share of all operations of convolutions that is done when the first result comes."""
    operations = []
    with recorded(lambda convolution: operations.append(convolution.operations)):
        next(results)
        first = sum(operations)
        for _ in results:
            pass
    return first / sum(operations)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("name", "frames", "options"),
    [
        *((name, 16, {}) for name in ("ltxv_0_9_1", "ltx2_3", "ltx2_3_causal")),
        ("ltx2_3", 5, {}),
        ("ltx2_3", 16, {"chunk": 4}),
        ("ltx2_3_causal", 1, {}),
    ],
)
def test_the_first_frame_comes_after_the_share_of_the_work_that_the_plan_states(golden, name, frames, options):
    vae = VideoVAE.from_pretrained(golden(name).checkpoint, encoder=False)
    latents = mx.random.normal((1, 8, frames, 2, 2), key=mx.random.key(0))
    plan = vae.plan(latents.shape, mode="exact", order="time", **options)
    assert 0 < plan.first_output_work <= 1
    assert plan.first_output_work == pytest.approx(count_until_first(vae.stream(latents, plan)), abs=0.05)


def test_the_first_latents_come_after_the_share_of_the_work_that_the_plan_states(golden):
    vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint, decoder=False)
    plan = vae.plan_encode((1, 3, 65, 64, 64))
    pieces = iter([mx.zeros((1, 3, 1, 64, 64))] * 65)
    assert plan.first_output_work == pytest.approx(count_until_first(vae.encode_stream(pieces, plan)), abs=0.05)


def test_tiles_in_time_show_frames_after_their_first_row_of_tiles(golden):
    vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint, encoder=False)
    latents = mx.random.normal((1, 8, 12, 4, 2), key=mx.random.key(0))
    tiles = tiling.TilingConfig(tiling.SpatialTilingConfig(64, 0), tiling.TemporalTilingConfig(32, 8))
    plan = vae.plan(latents.shape, mode="tiled", tiling=tiles)
    assert plan.first_output_work == pytest.approx(count_until_first(vae.stream(latents, plan)), abs=0.05)
    assert "first    frame after about " in str(plan)


@pytest.mark.parametrize(("options", "words"), [({"mode": "single"}, "end"), ({"order": "rows"}, "end: frames wait")])
def test_a_single_pass_and_rows_show_no_frame_before_the_end(golden, options, words):
    vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint, encoder=False)
    plan = vae.plan((1, 8, 16, 2, 2), **options)
    assert plan.first_output_work == 1
    assert f"first    frame at the {words}" in str(plan)
