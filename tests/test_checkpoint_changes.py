"""Checkpoint files that change between their header and their last tensor are refused, never mixed."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from checkpoint_files import assert_same_checkpoint, metadata, open_checkpoint, write_shards
from mlx_ltx_vae import CheckpointError, VideoVAE
from mlx_ltx_vae.checkpoint import tensors, weight_files
from mlx_ltx_vae.conversion import compare_tensors

CASE = "ltx2_3_causal"


def write_file(folder, tensors, header):
    save_file(tensors, folder / "vae.safetensors", header)
    return folder / "vae.safetensors"


def write_linked(folder, tensors, header):
    """As in the hub's cache: the name is a link to a file that is named after its content."""
    blob = folder / "blob"
    save_file(tensors, blob, header)
    (folder / "diffusion_pytorch_model.safetensors").symlink_to(blob)
    return folder


def write_sharded(folder, tensors, header):
    write_shards(folder, tensors, header=header)
    return folder


@pytest.mark.parametrize("write", [write_file, write_linked, write_sharded])
def test_a_checkpoint_that_is_replaced_by_one_of_equal_shapes_is_noticed(golden, weights, tmp_path, write):
    folder, tensors = tmp_path / "vae", weights(CASE)
    folder.mkdir()
    opened = open_checkpoint(write(folder, tensors, metadata(golden, CASE)))
    folder.rename(tmp_path / "before")
    folder.mkdir()
    write(folder, {name: 1.5 * array for name, array in tensors.items()}, metadata(golden, CASE))
    for use in (
        lambda checkpoint: VideoVAE.from_pretrained(checkpoint).load(),
        lambda checkpoint: checkpoint.read_statistics(),
    ):
        with pytest.raises(
            CheckpointError, match=r"safetensors: the file has (changed|been moved or removed) since it was opened"
        ) as caught:
            use(opened)
        assert str(caught.value).count(str(tmp_path)) == 1


def overwrite(path):
    with path.open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"....")


def replace(path):
    shutil.copyfile(path, path.with_name("other"))
    path.with_name("other").replace(path)


@pytest.mark.parametrize("change", [overwrite, replace, Path.unlink, lambda path: os.truncate(path, 20_000)])
@pytest.mark.parametrize("moment", ["after the header", "after MLX's header", "after some tensors"])
def test_a_checkpoint_that_changes_at_any_moment_is_one_sentence(golden, tmp_path, monkeypatch, change, moment):
    path = tmp_path / "vae.safetensors"
    shutil.copyfile(golden(CASE).checkpoint, path)
    os.utime(path, ns=(0, 0))  # before any tick of the clock in which the test runs
    opened = open_checkpoint(path)
    calls = iter(range(10_000))

    def then_change(function, count):
        def changing(*arguments):
            result = function(*arguments)
            if next(calls) == count:
                change(path)
            return result

        return changing

    if moment == "after the header":
        change(path)
    elif moment == "after MLX's header":
        monkeypatch.setattr(tensors, "load_safetensors", then_change(tensors.load_safetensors, 0))
    else:
        monkeypatch.setattr(weight_files.StoredNetwork, "sanitize", then_change(weight_files.StoredNetwork.sanitize, 5))
    with pytest.raises(
        CheckpointError,
        match=r"vae\.safetensors: the file has (changed|been moved or removed) since it was opened; open it again",
    ):
        VideoVAE.from_pretrained(opened).load()


def test_a_comparison_of_checkpoints_notices_a_change_too(golden, tmp_path):
    first, second = tmp_path / "first.safetensors", tmp_path / "second.safetensors"
    for path in (first, second):
        shutil.copyfile(golden(CASE).checkpoint, path)
    opened = open_checkpoint(first), open_checkpoint(second)

    def change_at_the_end(names, _description):
        replace(second)
        return names

    with pytest.raises(CheckpointError, match=r"second\.safetensors: the file has changed"):
        compare_tensors(*opened, change_at_the_end)


def test_tied_tensors_are_read_under_all_their_names(golden, tmp_path):
    """`safetensors.torch.save_model` stores one of them and names the others in the metadata."""
    tensors = load_file(golden(CASE).checkpoint)
    kept, dropped = (f"vae.decoder.up_blocks.0.res_blocks.0.conv{index}.conv.weight" for index in (1, 2))
    tensors[dropped] = tensors[kept].copy()
    expected = write_file(tmp_path, tensors, metadata(golden, CASE))
    del tensors[dropped]
    save_file(tensors, tmp_path / "tied.safetensors", metadata(golden, CASE) | {dropped: kept, "format": "pt"})
    assert_same_checkpoint(open_checkpoint(tmp_path / "tied.safetensors"), open_checkpoint(expected))
    VideoVAE.from_pretrained(tmp_path / "tied.safetensors")


@pytest.mark.parametrize(("name", "is_conditioned"), [("ltxv_0_9_1", True), ("ltxv_0_9_5", True), ("ltx2", False)])
def test_the_tensors_say_what_a_configuration_does_not_about_the_timestep(
    golden, weights, tmp_path, name, is_conditioned
):
    """ltx-core reads a missing key as true, diffusers as false."""
    config = {key: value for key, value in golden(name).manifest["vae_config"].items() if "timestep" not in key}
    path = write_file(tmp_path, weights(name), {"config": json.dumps({"vae": config})})
    opened = open_checkpoint(path)
    assert opened.config == open_checkpoint(golden(name).checkpoint).config
    assert opened.config.timestep_conditioning is is_conditioned
    decoder = VideoVAE.from_pretrained(path, encoder=False).decoder
    assert decoder.spec.has_timestep is is_conditioned


@pytest.mark.parametrize(
    ("dtype", "words"),
    [
        ("F64", r"stored as float64, .*; cast it to float32 in the program that wrote it\.$"),
        ("F8_E4M3", r"stored as F8_E4M3, .*not quantized, also not by scaled fp8; .* vae of Lightricks/LTX-2\.$"),
    ],
)
def test_the_advice_fits_the_type_that_is_not_supported(golden, weights, tmp_path, dtype, words):
    name = "vae.decoder.conv_out.conv.bias"
    tensors = weights(CASE) | {name: np.zeros(48, np.float64 if dtype == "F64" else np.uint8)}
    path = write_file(tmp_path, tensors, metadata(golden, CASE))
    content = path.read_bytes().replace(b'"dtype":"U8"', b'"dtype":"' + dtype.encode() + b'"')
    length = int.from_bytes(path.read_bytes()[:8], "little") + len(content) - path.stat().st_size
    path.write_bytes(length.to_bytes(8, "little") + content[8:])
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(path)
