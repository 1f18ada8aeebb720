"""What a decode stops for: nothing but finished frames is read, and how often grows with neither clip nor tiles."""

import mlx.core as mx
import numpy as np
import pytest

from benchmarks.counts import Counts, count_chunks, counted
from benchmarks.measuring import Decode
from mlx_ltx_vae import VideoVAE
from mlx_ltx_vae.tiling import SpatialTilingConfig, TilingConfig, preset
from tolerances import skip_where_arrays_cannot_be_patched

FIELDS = ("readbacks", "arrays", "evaluations")
IN_SPACE = TilingConfig(SpatialTilingConfig(64, 32))
AGGRESSIVE = preset("aggressive", 64, 320, 97)  # 256 px sharing 64, and 4 latent frames sharing 1


@pytest.fixture(autouse=True)
def patchable_arrays():
    skip_where_arrays_cannot_be_patched()


def counts_of(vae, frames, width=2, **options):
    latents = mx.random.normal((1, vae.config.latent_channels, frames, 1, width), key=mx.random.key(0))
    plan = vae.plan(latents.shape, **options)
    return count_chunks(Decode(vae, latents, plan).run()), plan


def total(chunks):
    return np.array([[getattr(chunk, field) for field in FIELDS] for chunk in chunks]).sum(axis=0)


def test_everything_that_is_counted_is_counted_once():
    x = mx.array([1.0, 2.0])
    with counted() as counts:
        assert counts == Counts()
        x[0].item(), x.tolist(), float(x[0]), int(x[0]), bool(x[0]), np.asarray(x), np.array(x)
        assert counts == Counts(readbacks=7)
        mx.array([1]), mx.array(2.0), mx.array(np.zeros(3)), mx.array(val=1)
        assert counts == Counts(readbacks=7, arrays=4)
        mx.array(x), np.asarray([1]), np.array([1])
        assert counts == Counts(readbacks=7, arrays=4)
        mx.eval(x), mx.async_eval(x)
        assert counts == Counts(readbacks=7, arrays=4, evaluations=2)
        assert isinstance(mx.array([1]), mx.array)
        assert not isinstance(1, mx.array)


@pytest.mark.parametrize(
    ("name", "options", "lengths"),
    [
        ("small_ltx2_3", {}, (13, 14, 15)),
        pytest.param("ltxv_0_9_1", {}, (19, 20, 21), marks=pytest.mark.slow),
        pytest.param("ltx2_3", {"width": 3, "mode": "tiled", "tiling": IN_SPACE}, (15, 16, 17), marks=pytest.mark.slow),
        pytest.param(
            "ltx2_3", {"width": 10, "mode": "tiled", "tiling": AGGRESSIVE}, (7, 10, 13), marks=pytest.mark.slow
        ),
    ],
    ids=["exact", "exact with timesteps", "tiles in space", "tiles in space and time"],
)
def test_counts_per_chunk_do_not_depend_on_the_clips_length(golden, name, options, lengths):
    """As many latent frames more always count for as much more, and what is built is built before the first frame."""
    vae = VideoVAE.from_pretrained(golden(name).checkpoint, encoder=False)
    clips = [counts_of(vae, frames, **options)[0] for frames in lengths]
    first, second, third = map(total, clips)
    assert np.array_equal(third - second, second - first)
    for chunks in clips:
        # The frames and their flag. At the end, what the checks have found, and whether the device still computes.
        assert {(chunk.readbacks, chunk.arrays) for chunk in chunks[1:-1]} == {(2, 0)}
        assert chunks[0].readbacks == 2
        assert chunks[-1] == Counts(readbacks=2)


def test_tiles_read_and_build_nothing_more_and_each_evaluates_as_often(golden):
    vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint, encoder=False)
    two, three, four = (counts_of(vae, 4, width, mode="tiled", tiling=IN_SPACE) for width in (3, 4, 5))
    assert (two[1].calls, three[1].calls, four[1].calls) == (2, 3, 4)
    for few, more, most in zip(two[0][1:], three[0][1:], four[0][1:], strict=True):
        assert (few.readbacks, few.arrays) == (more.readbacks, more.arrays) == (most.readbacks, most.arrays)
        assert most.evaluations - more.evaluations == more.evaluations - few.evaluations


def test_a_read_between_two_chunks_would_be_seen(golden, monkeypatch):
    """The counts above can fail: a watch that waits for what it sees reads once more for every piece."""
    from mlx_ltx_vae.pipeline.output_check import OutputCheck

    update = OutputCheck.update
    monkeypatch.setattr(OutputCheck, "update", lambda self, *piece: update(self, *piece) or self.is_finite.item())
    vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint, encoder=False)
    chunks, _ = counts_of(vae, 3)
    assert {chunk.readbacks for chunk in chunks[1:-1]} == {3}
