"""Shards, indexes and diffusers' variants: what belongs together is loaded together, never a part of it silently."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from checkpoint_files import assert_same_checkpoint, metadata, open_checkpoint, write_shards
from mlx_ltx_vae import CheckpointError, VideoVAE
from test_checkpoint_diffusers import diffusers_config, to_diffusers

# How libraries name the shards of a set and their index. diffusers inserts a variant before the last ending.
NAMINGS = {
    "plain": ("diffusion_pytorch_model-0000{}-of-00002.safetensors", "diffusion_pytorch_model.safetensors.index.json"),
    "variant": (
        "diffusion_pytorch_model.bf16-0000{}-of-00002.safetensors",
        "diffusion_pytorch_model.safetensors.index.bf16.json",
    ),
    "variant at the end": (
        "diffusion_pytorch_model-0000{}-of-00002.bf16.safetensors",
        "diffusion_pytorch_model.safetensors.index.bf16.json",
    ),
    "variant in the stem": (
        "diffusion_pytorch_model.bf16-0000{}-of-00002.safetensors",
        "diffusion_pytorch_model.bf16.safetensors.index.json",
    ),
    "transformers": ("model.fp16-0000{}-of-00002.safetensors", "model.safetensors.index.fp16.json"),
    "another name": ("LTX2_video_vae-0000{}-of-00002.safetensors", "LTX2_video_vae.safetensors.index.json"),
}


def write_diffusers_shards(golden, folder, shard, index):
    shards = write_shards(folder, to_diffusers("ltx2", load_file(golden("ltx2").checkpoint)), shard, index)
    (folder / "config.json").write_text(json.dumps(diffusers_config("ltx2", 8, 8)))
    return shards


@pytest.mark.parametrize(("with_index", "inside"), [(True, ""), (False, "vae")], ids=["index", "no index"])
@pytest.mark.parametrize("naming", NAMINGS)
def test_shards_of_every_naming_load_like_one_file(golden, tmp_path, naming, with_index, inside):
    shard, index = NAMINGS[naming]
    write_diffusers_shards(golden, tmp_path / inside, shard, index if with_index else None)
    assert_same_checkpoint(open_checkpoint(tmp_path), open_checkpoint(golden("ltx2").checkpoint))


@pytest.mark.parametrize("naming", NAMINGS)
def test_an_index_or_any_shard_can_be_given_for_the_whole_set(golden, tmp_path, naming):
    shard, index = NAMINGS[naming]
    shards = write_diffusers_shards(golden, tmp_path, shard, index)
    expected = open_checkpoint(golden("ltx2").checkpoint)
    for path in (tmp_path / index, *shards):
        assert_same_checkpoint(open_checkpoint(path), expected)


@pytest.mark.parametrize("naming", NAMINGS)
@pytest.mark.parametrize("lost", [1, 2])
def test_a_missing_shard_is_an_error_without_an_index_too(golden, tmp_path, naming, lost):
    shards = write_diffusers_shards(golden, tmp_path, NAMINGS[naming][0], None)
    shards[lost - 1].unlink()
    for source in (tmp_path, shards[2 - lost]):
        with pytest.raises(CheckpointError, match=rf"its shard 0000{lost} of 00002 is missing; download all 2"):
            open_checkpoint(source)


def test_shards_of_two_sets_are_an_error(golden, tmp_path):
    shards = write_diffusers_shards(golden, tmp_path, NAMINGS["plain"][0], None)
    shards[0].rename(tmp_path / "diffusion_pytorch_model-00001-of-00003.safetensors")
    with pytest.raises(CheckpointError, match=r"shards are of several sets .*00001-of-00003.*give the index"):
        open_checkpoint(tmp_path)


def test_the_plain_files_are_preferred_to_variants(golden, tmp_path):
    """As in diffusers, where `variant` must be given to get another."""
    write_diffusers_shards(golden, tmp_path, *NAMINGS["variant"])
    tensors = to_diffusers("ltx2", load_file(golden("ltx2").checkpoint))
    doubled = {name: 2 * array if "conv_in" in name else array for name, array in tensors.items()}
    save_file(doubled, tmp_path / "diffusion_pytorch_model.safetensors")
    loaded = VideoVAE.from_pretrained(tmp_path)
    bias = doubled["decoder.conv_in.conv.bias"]
    assert np.array_equal(np.array(loaded.decoder.conv_in.conv.bias), bias)
    index = tmp_path / NAMINGS["variant"][1]
    assert np.array_equal(np.array(VideoVAE.from_pretrained(index).decoder.conv_in.conv.bias), bias / 2)


def test_two_variants_without_a_plain_file_are_an_error_that_names_them(golden, tmp_path):
    write_diffusers_shards(golden, tmp_path, *NAMINGS["variant"])
    tensors = to_diffusers("ltx2", load_file(golden("ltx2").checkpoint))
    save_file(tensors, tmp_path / "diffusion_pytorch_model.fp16.safetensors")
    with pytest.raises(CheckpointError, match=r"give one of .*model\.fp16\.safetensors, .*index\.bf16\.json"):
        open_checkpoint(tmp_path)


def test_one_variant_alone_is_found(golden, tmp_path):
    tensors = to_diffusers("ltx2", load_file(golden("ltx2").checkpoint))
    (tmp_path / "vae").mkdir()
    save_file(tensors, tmp_path / "vae" / "diffusion_pytorch_model.bf16.safetensors")
    (tmp_path / "vae" / "config.json").write_text(json.dumps(diffusers_config("ltx2", 8, 8)))
    (tmp_path / "transformer").mkdir()
    (tmp_path / "transformer" / "diffusion_pytorch_model.bf16.safetensors").write_bytes(b"never opened")
    assert_same_checkpoint(open_checkpoint(tmp_path), open_checkpoint(golden("ltx2").checkpoint))


def test_shards_that_are_not_named_like_their_index_are_no_other_candidates(golden, tmp_path):
    write_shards(tmp_path, load_file(golden("ltx2").checkpoint), "part{}.safetensors", "all.safetensors.index.json")
    save_file({"lora.weight": np.zeros(2, np.float32)}, tmp_path / "lora.safetensors")
    assert_same_checkpoint(open_checkpoint(tmp_path), open_checkpoint(golden("ltx2").checkpoint))


def test_a_version_number_is_no_variant(golden, tmp_path):
    for name in ("ltx-video-2b-v0.9.safetensors", "ltx-video-2b-v0.9.5.safetensors"):
        save_file(load_file(golden("ltx2_3").checkpoint), tmp_path / name, metadata(golden, "ltx2_3"))
    with pytest.raises(CheckpointError, match=r"give one of ltx-video-2b-v0\.9\.5\.safetensors, ltx-video-2b-v0\.9\.s"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "shard", ["../outside.safetensors", "sub/../../outside.safetensors", "ABSOLUTE", "..", "", "."]
)
def test_an_index_that_leaves_its_folder_is_an_error(golden, tmp_path, shard):
    outside = tmp_path / "outside.safetensors"
    outside.write_bytes(golden("ltx2_3").checkpoint.read_bytes())
    folder = tmp_path / "vae"
    folder.mkdir()
    shard = str(outside) if shard == "ABSOLUTE" else shard
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"vae.x": shard}}))
    with pytest.raises(CheckpointError, match="which is not in its folder; download the index again"):
        open_checkpoint(folder)


def test_a_shard_may_be_a_link(golden, tmp_path):
    """The hub's cache has links to files elsewhere."""
    blob = tmp_path / "blobs" / "0123"
    blob.parent.mkdir()
    blob.write_bytes(golden("ltx2_3").checkpoint.read_bytes())
    folder = tmp_path / "snapshot"
    folder.mkdir()
    (folder / "model-00001-of-00001.safetensors").symlink_to(blob)
    index = {"weight_map": {"vae.x": "model-00001-of-00001.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert_same_checkpoint(open_checkpoint(folder), open_checkpoint(golden("ltx2_3").checkpoint))


@pytest.mark.parametrize("shard", ["a\0b.safetensors", "x" * 5000, "config.json"])
def test_a_shard_name_that_no_file_has_is_an_error(golden, tmp_path, shard):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"vae.x": shard}}))
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json: .*(missing|cannot)"):
        open_checkpoint(tmp_path)
