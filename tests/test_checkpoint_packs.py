"""Packs of MLX ports, configurations beside files, and folders: all load like the original file."""

import json
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from checkpoint_files import (
    GENERATIONS,
    LAYOUTS,
    assert_same_checkpoint,
    assert_same_weights,
    convert_checkpoint,
    metadata,
    open_checkpoint,
    open_weights,
    read_statistics,
    read_weights,
    statistics_of,
    write_pack,
    write_shards,
)
from commands import report_of
from mlx_ltx_vae import CheckpointError

# --- packs of MLX ports ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "prefix", "names"),
    [
        ("vae_{}.safetensors", "vae_{}.", ("mean", "std")),
        ("vae_{}.safetensors", "vae.{}.", ("mean-of-means", "std-of-means")),
        ("vae_{}.safetensors", "{}.", ("_mean_of_means", "_std_of_means")),
        ("vae_{}.safetensors", "", ("_mean_of_means", "_std_of_means")),
        ("vae_{}_conv.safetensors", "vae_{}_conv.", ("mean", "std")),
        ("vae/{}/model.safetensors", "", ("mean", "std")),
    ],
)
@pytest.mark.parametrize("case", ["ltxv_0_9_1", "conv_16x16x4"])
def test_packs_with_a_file_per_network_load_like_the_original(golden, weights, tmp_path, case, pattern, prefix, names):
    write_pack(tmp_path, weights(case), pattern, prefix, names)
    (tmp_path / "embedded_config.json").write_text(metadata(golden, case)["config"])
    (tmp_path / "transformer.safetensors").write_bytes(b"never opened")
    assert_same_checkpoint(open_checkpoint(tmp_path), open_checkpoint(golden(case).checkpoint))


@pytest.mark.parametrize(("layout", "case"), list(zip(LAYOUTS, [*GENERATIONS, "conv_16x16x4"] * 2, strict=False)))
def test_every_layout_of_one_file_loads_like_the_original(golden, weights, tmp_path, layout, case):
    stored = dict(LAYOUTS[layout](name, array) for name, array in weights(case).items())
    stored["model.diffusion_model.blocks.0.weight"] = np.zeros(2, np.float32)
    save_file(stored, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(golden(case).manifest["vae_config"]))
    for source in (tmp_path, tmp_path / "model.safetensors"):
        assert_same_checkpoint(open_checkpoint(source), open_checkpoint(golden(case).checkpoint))


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("name", "version", "generation"),
    [
        ("ltx-2.5-video-vae-conv-bf16.safetensors", None, "LTX-2.5"),
        ("ltx-2.5-mlx-q4/vae.safetensors", None, "LTX-2.5"),
        ("ltx-2.3/vae.safetensors", "2.5.0", "LTX-2.5"),
        ("ltx-2.5/vae.safetensors", "2.3", "LTX-2.3"),
        ("vae.safetensors", None, "LTX-2.3"),
    ],
)
def test_the_convolutional_vae_of_ltx_2_5_is_called_so_where_its_name_is_known(
    golden, weights, tmp_path, name, version, generation
):
    """Its layers are LTX-2.3's, so that names and metadata alone tell."""
    path = tmp_path / "models" / name
    path.parent.mkdir(parents=True)
    save_file(weights("ltx2_3"), path, metadata(golden, "ltx2_3") | ({"model_version": version} if version else {}))
    found = open_checkpoint(path)
    assert found.config.generation == report_of(path)["generation"] == generation
    assert found.source.networks["decoder"]["generation"] == generation
    assert_same_checkpoint(found, open_checkpoint(golden("ltx2_3").checkpoint))
    converted = convert_checkpoint(found, tmp_path / "converted")
    assert converted.generation == open_checkpoint(tmp_path / "converted").config.generation == generation


def test_another_generation_keeps_its_name_in_a_folder_of_ltx_2_5(golden, tmp_path):
    path = tmp_path / "ltx-2.5" / "vae.safetensors"
    path.parent.mkdir()
    path.symlink_to(golden("ltx2").checkpoint)
    assert open_checkpoint(path).config.generation == "LTX-2"


def test_arrays_of_an_app_that_runs_in_a_folder_of_ltx_2_5_have_no_name(golden, weights, tmp_path, monkeypatch):
    (tmp_path / "ltx-2.5").mkdir()
    monkeypatch.chdir(tmp_path / "ltx-2.5")
    assert open_weights(weights("ltx2_3")).config.generation == "LTX-2.3"


# --- where the configuration is -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "files",
    [
        {"config.json": "entry"},
        {"config.json": "whole"},
        {"config.json": "transformer", "embedded_config.json": "whole"},
        {"config.json": "one network", "embedded_config.json": "whole"},
        {"config.json": "diffusion", "embedded_config.json": "whole"},
    ],
)
def test_the_configuration_of_the_vae_is_found_beside_the_file(golden, weights, tmp_path, files):
    config = golden("conv_16x16x4").manifest["vae_config"]
    contents: dict[str, Any] = {
        "whole": {"vae": config, "transformer": {"num_layers": 48}},
        "entry": config,
        "transformer": {"_class_name": "LTXVideoTransformer3DModel", "num_layers": 48},
        "one network": {"encoder_blocks": config["encoder_blocks"], "patch_size": 4},
        "diffusion": {"vae": {"_class_name": "CausalDiffusionVAE", "decoder": {"stage_channels": [8]}}},
    }
    save_file(weights("conv_16x16x4"), tmp_path / "vae.safetensors")
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(contents[content]))
    expected = open_checkpoint(golden("conv_16x16x4").checkpoint)
    assert_same_checkpoint(open_checkpoint(tmp_path / "vae.safetensors"), expected)


def write_part(tensors, path, *left_out):
    """A file without configuration, and without the tensors of some networks."""
    left_out = tuple(f"vae.{network}." for network in left_out)
    save_file({name: array for name, array in tensors.items() if not name.startswith(left_out)}, path)
    return path


@pytest.mark.parametrize(("name", "generation"), GENERATIONS.items())
def test_a_published_generation_is_inferred_from_its_tensors(golden, weights, tmp_path, name, generation):
    loaded = open_checkpoint(write_part(weights(name), tmp_path / "vae.safetensors"))
    assert loaded.is_inferred
    assert loaded.config.generation == generation
    assert_same_checkpoint(loaded, open_checkpoint(golden(name).checkpoint))
    assert json.loads(json.dumps(loaded.raw_config)) == loaded.raw_config
    for network in ("encoder", "decoder"):  # the whole file decides
        asked = {each: each == network for each in ("encoder", "decoder")}
        alone = open_checkpoint(tmp_path / "vae.safetensors", **asked)
        assert (list(alone.networks), alone.config) == ([network], loaded.config)
    decoder = write_part(weights(name), tmp_path / "decoder.safetensors", "encoder")
    assert open_checkpoint(decoder).config.generation == generation


def test_an_encoder_alone_is_inferred_if_no_other_generation_has_it(golden, weights, tmp_path):
    encoder = write_part(weights("ltx2_3"), tmp_path / "vae.safetensors", "decoder")
    assert open_checkpoint(encoder).config == open_checkpoint(golden("ltx2_3").checkpoint).config
    encoder = write_part(weights("ltx2"), tmp_path / "vae.safetensors", "decoder")
    with pytest.raises(CheckpointError, match=r"match LTX-Video 0\.9\.5 and LTX-2; add one as the metadata"):
        open_checkpoint(encoder)
    with pytest.raises(CheckpointError, match="no configuration, .* match no published generation; add one"):
        open_checkpoint(write_part(weights("conv_16x16x4"), tmp_path / "vae.safetensors"))


# --- half a configuration -------------------------------------------------------------------------------------------


def write_half(golden, tensors, path, case, network, where):
    """A file whose configuration lists the blocks of one network, in its metadata or beside it."""
    other = {"encoder": "decoder", "decoder": "encoder"}[network]
    config = {key: value for key, value in golden(case).manifest["vae_config"].items() if key != f"{other}_blocks"}
    if "blocks" in config:
        config[f"{network}_blocks"] = config.pop("blocks")
    save_file(tensors, path, {"config": json.dumps({"vae": config})} if where == "metadata" else None)
    if where == "file":
        (path.parent / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(("network", "where"), [("encoder", "metadata"), ("decoder", "file")])
@pytest.mark.parametrize("case", GENERATIONS)
def test_the_network_that_a_configuration_does_not_list_is_inferred(golden, weights, tmp_path, case, network, where):
    write_half(golden, weights(case), tmp_path / "vae.safetensors", case, network, where)
    loaded = open_checkpoint(tmp_path / "vae.safetensors")
    assert not loaded.is_inferred
    assert_same_checkpoint(loaded, open_checkpoint(golden(case).checkpoint))


@pytest.mark.parametrize(("network", "other"), [("encoder", "decoder"), ("decoder", "encoder")])
def test_a_listed_network_alone_needs_no_other(golden, weights, tmp_path, network, other):
    """No published generation has these blocks, so the other network is not known."""
    keep = (f"vae.{network}.", "vae.per_channel")
    tensors = {name: array for name, array in weights("conv_16x16x4").items() if name.startswith(keep)}
    write_half(golden, tensors, tmp_path / "vae.safetensors", "conv_16x16x4", network, "metadata")
    loaded, expected = open_checkpoint(tmp_path / "vae.safetensors"), open_checkpoint(golden("conv_16x16x4").checkpoint)
    assert list(loaded.networks) == [network]
    assert loaded.config.network(network) == expected.config.network(network)
    assert loaded.config.scale == expected.config.scale
    assert_same_weights(read_weights(loaded, network), read_weights(expected, network))
    report = report_of(tmp_path / "vae.safetensors")
    assert report[network]["parameters"] > 0
    assert (report["receptive_field"] is None) == (network == "encoder")
    with pytest.raises(CheckpointError, match="the configuration has no"):
        loaded.config.network(other)
    write_half(golden, weights("conv_16x16x4"), tmp_path / "vae.safetensors", "conv_16x16x4", network, "metadata")
    words = f"its configuration lists no {other}_blocks, and its tensors match no published generation"
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(tmp_path / "vae.safetensors")


def test_the_configuration_of_an_encoder_in_a_pack_is_used(golden, weights, tmp_path):
    """mlx-video writes one per network: the encoder's in the original's vocabulary, the decoder's in its own."""
    write_pack(tmp_path, weights("ltx2_3"), "vae/{}/model.safetensors", "", ("mean", "std"))
    config = golden("ltx2_3").manifest["vae_config"]
    encoder = {"convolution_dimensions": 3, "in_channels": 3, "out_channels": 8, "patch_size": 4}
    encoder |= {"encoder_blocks": config["encoder_blocks"], "encoder_spatial_padding_mode": "zeros"}
    decoder = {"decoder_blocks": [["res", 64, 4], ["d2s", 64, 2, [2, 2, 2], False]], "timestep_conditioning": False}
    (tmp_path / "vae" / "encoder" / "config.json").write_text(json.dumps(encoder))
    (tmp_path / "vae" / "decoder" / "config.json").write_text(json.dumps(decoder))
    expected = open_checkpoint(golden("ltx2_3").checkpoint)
    assert_same_checkpoint(open_checkpoint(tmp_path), expected)
    encoder["encoder_blocks"] = [["res_x", {"num_layers": 4}], *config["encoder_blocks"]]
    (tmp_path / "vae" / "encoder" / "config.json").write_text(json.dumps(encoder))
    with pytest.raises(CheckpointError, match=r"its encoder lacks tensor"):
        open_checkpoint(tmp_path)


# --- statistics -----------------------------------------------------------------------------------------------------


def write_other_statistics(path, of_tensors, offset):
    """Add a number to the means in a file of a pack, and return all of its statistics."""
    stored = load_file(path)
    (mean,) = (name for name in stored if name.endswith("statistics.mean"))
    stored[mean] = (stored[mean].astype(np.float32) + offset).astype(stored[mean].dtype)
    save_file(stored, path)
    return {"mean": stored[mean].reshape(-1), "std": statistics_of(of_tensors)[1].reshape(-1)}


def test_the_statistics_of_the_named_file_count_and_other_ones_in_its_pack_are_an_error(golden, weights, tmp_path):
    """Statistics of another release shift every color, without another sign."""
    tensors = weights("ltx2_3")
    write_pack(tmp_path, tensors, "vae_{}.safetensors", "vae_{}.", ("mean", "std"))
    (tmp_path / "embedded_config.json").write_text(metadata(golden, "ltx2_3")["config"])
    encoder, decoder = tmp_path / "vae_encoder.safetensors", tmp_path / "vae_decoder.safetensors"
    expected = write_other_statistics(decoder, tensors, 0.5)
    for source in (f"{tmp_path}:{decoder.name}", decoder):
        found = open_checkpoint(source, encoder=False)
        for name, array in read_statistics(found).items():
            np.testing.assert_array_equal(np.array(array), expected[name].astype(np.float32))
    words = f"{encoder} and {decoder}: have different statistics of the latents, .*; use the encoder and the decoder of"
    for source, networks in ((tmp_path, {"encoder": False}), (tmp_path, {}), (f"{tmp_path}:{decoder.name}", {})):
        with pytest.raises(CheckpointError, match=words):
            open_checkpoint(source, **networks)


def test_statistics_that_were_rounded_differently_are_the_same(golden, weights, tmp_path):
    write_pack(tmp_path, weights("ltx2_3"), "vae_{}.safetensors", "vae_{}.", ("mean", "std"))
    (tmp_path / "embedded_config.json").write_text(metadata(golden, "ltx2_3")["config"])
    path = tmp_path / "vae_encoder.safetensors"
    stored = load_file(path)
    names = [name for name in stored if "statistics" in name]
    save_file(stored | {name: stored[name].astype(np.float16) for name in names}, path)
    assert open_checkpoint(tmp_path).statistics[0].path.name == "vae_decoder.safetensors"


@pytest.mark.parametrize(
    ("name", "array", "words"),
    [
        ("std-of-means", None, "statistics of the latents .* are missing"),
        ("std-of-means", np.ones(4, np.float32), "8 and 4 values, but its latents have 8 channels"),
        ("mean-of-means", np.zeros(8, np.uint8), "mean-of-means is stored as uint8"),
    ],
)
def test_statistics_that_no_vae_has_are_an_error(golden, weights, tmp_path, name, array, words):
    tensors = weights("ltx2_3") | {f"vae.per_channel_statistics.{name}": array}
    stored = {name: array for name, array in tensors.items() if array is not None}
    save_file(stored, tmp_path / "vae.safetensors", metadata(golden, "ltx2_3"))
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(tmp_path / "vae.safetensors")


# --- folders --------------------------------------------------------------------------------------------------------


def test_the_one_file_with_a_vae_is_found_by_its_header(golden, tmp_path):
    (tmp_path / "ltx-2.3.safetensors").write_bytes(golden("ltx2_3").checkpoint.read_bytes())
    save_file({"lora.weight": np.zeros(2, np.float32)}, tmp_path / "lora.safetensors")
    assert open_checkpoint(tmp_path).config.generation == "LTX-2.3"


@pytest.mark.parametrize(
    "names",
    [
        ["a", "b"], ["a", "my-vae"], ["a", "vae"], ["model", "ltx_vae"], ["a", "model"], ["a-conv-vae", "b"],
        ["a", "deep/er/x_vae"], ["a", "deep/er/b"], ["a_vae", "er/vae/diffusion_pytorch_model"],
        ["ltx-2", "ltx-2.3"], ["models/vae/ltx-2.3-video-vae", "models/vae/old"],
    ],
)  # fmt: skip
def test_several_files_with_a_vae_are_an_error_that_lists_them_whatever_their_names(golden, tmp_path, names):
    for name in names:
        (tmp_path / f"{name}.safetensors").parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.safetensors").symlink_to(golden("ltx2_3").checkpoint)
    save_file({"vae.lora": np.zeros(2, np.float32)}, tmp_path / "vae-lora.safetensors")
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(tmp_path)
    listing = ", ".join(sorted(f"{name}.safetensors" for name in names))
    assert f"several files contain a VAE; give one of {listing}, as {tmp_path}:FILE." in str(caught.value)
    for name in names:
        assert open_checkpoint(f"{tmp_path}:{name}.safetensors").config.generation == "LTX-2.3"


@pytest.mark.parametrize("name", ["a-vae", "whole", "deep/er/x", "model.fp16"])
def test_the_one_vae_is_found_whatever_the_others_are_called(golden, tmp_path, name):
    (tmp_path / f"{name}.safetensors").parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / f"{name}.safetensors").symlink_to(golden("ltx2_3").checkpoint)
    save_file({"lora.weight": np.zeros(2, np.float32)}, tmp_path / "vae.safetensors")
    save_file({"lora.weight": np.zeros(2, np.float32)}, tmp_path / "model.safetensors")
    if name == "model.fp16":
        (tmp_path / "model.safetensors").unlink()
    assert open_checkpoint(tmp_path).config.generation == "LTX-2.3"


def test_a_missing_shard_is_named(golden, weights, tmp_path):
    write_shards(tmp_path, weights("ltx2_3"), header=metadata(golden, "ltx2_3"))
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"its shard model-00002-of-00002\.safetensors is missing"):
        open_checkpoint(tmp_path)
