"""Exact in any order: by rows or columns the result is the single pass's too, and nothing stays on disk."""

import shutil
import tempfile

import mlx.core as mx
import numpy as np
import pytest

from mlx_ltx_vae import PlanError, VideoVAE
from tolerances import tolerance

TOLERANCE = tolerance(2e-5)


@pytest.fixture
def buffer_folder(tmp_path, monkeypatch):
    """Where frames wait during a test; must be empty after it."""
    folder = tmp_path / "buffer"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


def latents_of(frames=2, height=3, width=4, batch=1):
    return mx.random.normal((batch, 8, frames, height, width), key=mx.random.key(2))


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("name", "bands"),
    [
        *(
            (name, [("rows", 1), ("columns", 1)])
            for name in ("ltxv_0_9_1", "ltxv_0_9_5", "ltx2", "ltx2_3_causal", "ltx2_3_replicate", "pruna")
        ),
        ("ltx2_3", [("rows", 1), ("rows", 2), ("columns", 1), ("columns", 2), ("columns", 3)]),
    ],
)
def test_rows_and_columns_equal_the_single_pass_for_every_band(golden, name, bands, buffer_folder):
    vae = VideoVAE.from_pretrained(golden(name).checkpoint, encoder=False)
    latents = latents_of(2, 2, 3)
    single = vae.decode(latents, vae.plan(latents.shape, mode="single"))
    for order, chunk in bands:
        result = vae.decode(latents, vae.plan(latents.shape, order=order, chunk=chunk))
        assert result.shape == single.shape
        assert result.dtype == single.dtype
        assert mx.abs(result - single).max().item() < TOLERANCE, (order, chunk)


def test_frames_come_in_order_once_in_the_depth_that_was_asked_for(golden, buffer_folder):
    vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint, encoder=False)
    latents = latents_of(3)
    whole = np.concatenate([chunk.to_uint8() for chunk in vae.stream(latents)])
    plan = vae.plan(latents.shape, order="rows")
    start = 0
    for chunk in vae.stream(latents, plan, bit_depth=8):
        assert chunk.start == start
        frames = chunk.to_uint8()
        assert frames.dtype == np.uint8
        assert np.abs(frames.astype(int) - whole[start : start + len(frames)]).max() <= 1
        start += len(frames)
        assert mx.abs((chunk.pixels[0].transpose(1, 2, 3, 0) + 1) * 127.5 - mx.array(frames)).max().item() < 1e-3
        assert np.array_equal(chunk.to_uint16(), frames.astype(np.uint16) * 257)
    assert start == len(whole)
    deep = next(vae.stream(latents, plan, bit_depth=10)).to_uint16()
    assert np.abs(deep / 65535 - whole[: len(deep)] / 255).max() < 1 / 255


def test_batches_and_bfloat16_go_by_rows_too(golden, buffer_folder):
    vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint, encoder=False, dtype="bfloat16")
    latents = latents_of(batch=2)
    result = vae.decode(latents, vae.plan(latents.shape, order="rows"))
    assert result.dtype == mx.bfloat16
    assert result.shape == (2, 3, 9, 96, 128)


def test_the_file_has_no_name_so_that_nothing_stays_even_of_a_killed_process(golden, buffer_folder):
    vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint, encoder=False)
    latents = latents_of()
    stream = vae.stream(latents, vae.plan(latents.shape, order="columns"))
    next(stream)
    assert list(buffer_folder.iterdir()) == []
    stream.close()


def test_a_buffer_folder_that_is_removed_meanwhile_does_not_matter(golden, tmp_path, monkeypatch):
    vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint, encoder=False)
    latents, folder = latents_of(), tmp_path / "buffer"
    plan = vae.plan(latents.shape, order="rows")
    expected = vae.decode(latents, plan)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    disk_usage = shutil.disk_usage

    def remove_folder(descriptor):
        folder.rmdir()
        return disk_usage(descriptor)

    monkeypatch.setattr(shutil, "disk_usage", remove_folder)
    folder.mkdir()
    assert mx.array_equal(vae.decode(latents, plan), expected)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("is_there", "words"),
    [(False, "No such file or directory"), (True, "Not a directory"), (None, "No usable temporary directory found")],
)
def test_a_missing_buffer_folder_is_one_sentence(golden, tmp_path, monkeypatch, is_there, words):
    vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint, encoder=False)
    folder = tmp_path / "buffer"
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    if is_there:
        folder.touch()
    elif is_there is None:  # what Python finds in a container without /tmp
        monkeypatch.setattr(tempfile, "tempdir", None)
        monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(folder)])
    with pytest.raises(PlanError, match=rf"keeps 1.3 MB of frames in .*{words}.*; set TMPDIR to "):
        vae.decode(latents_of(), vae.plan(latents_of().shape, order="rows"))


def test_a_full_disk_is_said_before_anything_is_decoded(golden, buffer_folder, monkeypatch):
    vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint, encoder=False)
    usage = shutil.disk_usage(buffer_folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(
        PlanError, match=r"keeps 1.3 MB of frames in .*, which cannot hold them \(1 kB left\); set TMPDIR"
    ):
        vae.decode(latents_of(), vae.plan(latents_of().shape, order="rows"))


def test_networks_that_cannot_be_cut_say_so(golden):
    attention = VideoVAE.from_pretrained(golden("conv_16x16x4").checkpoint, encoder=False)
    with pytest.raises(PlanError, match="sees whole frames"):
        attention.plan((1, 8, 2, 3, 4), order="rows")
