"""PrunaVAED in every layout that people have, alone and in a pack beside the whole decoder."""

import json

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import fast_checkpoint
from checkpoint_files import (
    as_an_mlx_port_stores,
    assert_same_weights,
    open_checkpoint,
    open_weights,
    read_statistics,
    read_weights,
)
from commands import convert, info
from conftest import FIXTURES
from mlx_ltx_vae import CheckpointError, VideoVAE
from tolerances import tolerance
from vae_configs import GENERATIONS, PaddingMode, decoder_spec, parse_vae_config

MANIFEST = json.loads((FIXTURES / "pruna.json").read_text())
LAYOUTS = ["original", "bare_decoder", "diffusers", "mlx", "mlx_flat"]
PACKED = "vae_decoder_pruna.safetensors"


def write(target, layout):
    """PrunaVAED in one of its layouts, a file or a folder."""
    fast_checkpoint.write_checkpoint(MANIFEST, target, layout)
    return target


@pytest.fixture(scope="module", params=LAYOUTS)
def layout(request, tmp_path_factory):
    is_folder = "file" in MANIFEST["layouts"][request.param]
    return write(tmp_path_factory.mktemp("pruna") / ("vae" if is_folder else "vae.safetensors"), request.param)


@pytest.fixture(scope="module")
def flat(tmp_path_factory):
    """The tensors of the layout without any configuration."""
    return load_file(write(tmp_path_factory.mktemp("flat"), "mlx_flat") / PACKED)


def assert_same(found, expected):
    """The networks that `found` has, and its statistics."""
    one, other = open_checkpoint(found), open_checkpoint(expected)
    assert one.config.generation == other.config.generation == "PrunaVAED"
    for network in one.networks:
        assert one.config.network(network) == other.config.network(network)
        assert_same_weights(read_weights(one, network), read_weights(other, network))
    assert_same_weights(read_statistics(one), read_statistics(other))


# --- layouts --------------------------------------------------------------------------------------------------------


@pytest.mark.quick(2)
def test_every_layout_has_the_same_networks(golden, layout):
    assert_same(layout, golden("pruna").checkpoint)


def test_every_layout_is_named_with_its_share_of_the_work(layout, capsys):
    assert info([str(layout), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    # Fewer channels: conv_in and conv_out, which are not pruned, are a larger part than at the published widths.
    assert said["generation"] == "PrunaVAED" and 0.45 <= said["work_relative_to_ltx_2_3"] <= 0.46


def test_the_published_widths_are_345_million_values_and_45_percent_of_the_work(golden, capsys):
    spec = decoder_spec(parse_vae_config(GENERATIONS["PrunaVAED"], ""))
    published = json.loads((FIXTURES / "full_width_pruna.json").read_text())["weights"]
    convolutions = {name: shape for name, shape in published.items() if name.startswith("decoder.")}
    assert spec.num_weights == sum(int(np.prod(shape)) for shape in convolutions.values()) == 345_006_256
    whole = decoder_spec(parse_vae_config(GENERATIONS["LTX-2.3"], ""))
    assert spec.multiply_adds((16, 16, 24)) / whole.multiply_adds((16, 16, 24)) == pytest.approx(0.45, abs=0.005)


@pytest.mark.quick(1)
@pytest.mark.parametrize("layout", ["original", "mlx"], indirect=True)
def test_a_layout_is_converted_and_verified(golden, layout, tmp_path, capsys):
    folder = tmp_path / "converted"
    assert convert([str(layout), "-o", str(folder), "--only", "decoder"]) == 0
    assert "decoder (PrunaVAED), 102 tensors in float32" in capsys.readouterr().out
    assert_same(folder, golden("pruna").checkpoint)
    assert convert(["--verify", str(layout), str(folder), "--only", "decoder"]) == 0
    assert "102 of 102 tensors equal bit for bit; decode identical" in capsys.readouterr().out


# --- what the tensors say -------------------------------------------------------------------------------------------


def renamed(tensors, names):
    """With other prefixes, and without those that become empty."""
    result = {}
    for name, array in tensors.items():
        prefix = next((prefix for prefix in names if name.startswith(prefix)), "")
        if names.get(prefix, "kept"):
            result[names.get(prefix, "") + name.removeprefix(prefix)] = array
    return result


def test_a_projection_may_be_the_last_layer_of_a_residual_block(golden, flat, tmp_path):
    """Where the file of ComfyUI has it is not known. Its shortcut may be named as in diffusers."""
    places = {"3.conv_in.": "2.res_blocks.2.", "5.conv_in.": "4.res_blocks.4."}
    stem = "vae_decoder.up_blocks."
    stored = renamed(flat, {stem + old: stem + new for old, new in places.items()})
    wrapped = {name.replace("conv_shortcut.", "conv_shortcut.conv."): array for name, array in stored.items()}
    save_file(wrapped, tmp_path / "vae.safetensors")
    assert_same(tmp_path / "vae.safetensors", golden("pruna").checkpoint)


def test_another_pruning_of_the_same_network_is_read_too(flat, tmp_path):
    """One projection and two layers less: no published list has this structure."""
    stem = "vae_decoder.up_blocks."
    shorter = renamed(flat, {f"{stem}8.res_blocks.3.": "", f"{stem}6.res_blocks.5.": ""})
    for name in [name for name in shorter if name.startswith(f"{stem}5.conv_in.")]:
        del shorter[name]
    for name, array in shorter.items():  # up_blocks.5 and what follows takes the 48 channels of up_blocks.4
        if name == f"{stem}5.conv.conv.weight":
            shorter[name] = np.concatenate([array, array[..., :16]], axis=-1)
    save_file(shorter, tmp_path / "vae.safetensors")
    vae = VideoVAE.from_pretrained(tmp_path / "vae.safetensors")
    blocks = [(block.in_channels, block.num_layers) for block in vae.config.decoder.blocks]
    assert blocks == [(128, 2), (128, 1), (64, 2), (64, 1), (48, 1), (48, 4), (48, 1), (16, 5), (16, 1), (8, 3)]
    assert (vae.config.generation, vae.config.decoder.options.padding) == ("custom", PaddingMode.ZEROS)
    assert vae.decode(mx.zeros((1, 8, 2, 2, 2))).shape == (1, 3, 9, 64, 64)


@pytest.mark.parametrize(
    "names",
    [
        {"vae_decoder.up_blocks.6.res_blocks.2.": ""},
        {"vae_decoder.up_blocks.8.": "vae_decoder.up_blocks.9."},
        {"vae_decoder.up_blocks.2.": "vae_decoder.up_blocks.2.attentions."},
    ],
)
def test_a_gap_or_an_unknown_part_is_an_error(flat, names):
    with pytest.raises(CheckpointError, match="its tensors match no published generation"):
        open_weights(renamed(flat, names))
    # The last upsampler doubles time too; what such a network pads with is not known.
    last = "vae_decoder.up_blocks.7.conv.conv.weight"
    with pytest.raises(CheckpointError, match="its tensors match no published generation"):
        open_weights({**flat, last: np.concatenate([flat[last], flat[last]])})


def test_padding_that_is_not_stated_is_zeros(golden, weights, recwarn):
    config = {key: value for key, value in golden("pruna").manifest["vae_config"].items() if "padding" not in key}
    assert open_weights(weights("pruna"), config).config.decoder.options.padding is PaddingMode.ZEROS
    stated = {**config, "spatial_padding_mode": "replicate"}
    assert open_weights(weights("pruna"), stated).config.decoder.options.padding is PaddingMode.REPLICATE
    assert not recwarn.list


@pytest.mark.parametrize("key", ["decoder_spatial_padding_mode", "decoder_causal"])
def test_the_configuration_beside_the_file_is_respected(tmp_path, key):
    write(tmp_path, "mlx")
    path = tmp_path / "vae_decoder_pruna_config.json"
    changed = {"decoder_spatial_padding_mode": "replicate", "decoder_causal": True}[key]
    path.write_text(json.dumps({**json.loads(path.read_text()), key: changed}))
    config = open_checkpoint(tmp_path).config
    assert (config.decoder.options.padding is PaddingMode.REPLICATE) == ("padding" in key)
    assert config.causal_decoder == (key == "decoder_causal")


# --- packs ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def pack(golden, weights, tmp_path):
    """`pack(layout)`: a pack of LTX-2.3 with the whole decoder, its configuration, and PrunaVAED beside it."""

    def make(layout, stem="vae_{}"):
        folder = write(tmp_path / "pack", layout)
        whole = {name.removeprefix("vae."): array for name, array in weights("ltx2_3").items()}
        pruned = weights("pruna")
        whole |= {name: array for name, array in pruned.items() if name.startswith("per_channel")}
        for network, tensors in (("encoder", pruned), ("decoder", whole)):
            own = {name: array for name, array in tensors.items() if name.startswith((f"{network}.", "per_channel"))}
            stored = {f"vae_{name}": as_an_mlx_port_stores(name, array) for name, array in own.items()}
            prefix = f"vae_{network}.per_channel_statistics."
            stored = {
                name.replace("vae_per_channel_statistics.", prefix).replace("-of-means", ""): array
                for name, array in stored.items()
            }
            save_file(stored, folder / f"{stem.format(network)}.safetensors")
        (folder / "embedded_config.json").write_text(json.dumps({"vae": golden("ltx2_3").manifest["vae_config"]}))
        return folder

    return make


@pytest.mark.quick(2)
@pytest.mark.parametrize("stem", ["vae_{}", "vae_{}_conv"])
@pytest.mark.parametrize("layout_name", ["mlx", "mlx_flat"])
def test_a_pack_with_both_decoders_is_ambiguous_and_a_file_of_it_can_be_named(golden, pack, layout_name, stem):
    folder, whole = pack(layout_name, stem), f"{stem.format('decoder')}.safetensors"
    with pytest.raises(CheckpointError, match=rf"give one of {whole}, {PACKED}, as {folder}:FILE\.") as caught:
        open_checkpoint(folder)
    assert str(caught.value).startswith(f"{folder}: several files contain a VAE")
    assert_same(f"{folder}:{PACKED}", golden("pruna").checkpoint)
    chosen = VideoVAE.from_pretrained(f"{folder}:{PACKED}")
    case = golden("pruna")
    check = case.check("encode")
    latents = np.array(chosen.encode(mx.array(case.arrays[check["input"]])))
    assert np.abs(case.select(latents, check) - case.arrays[check["expected"]]).max() < tolerance(1e-4)
    stock = open_checkpoint(f"{folder}:{whole}")
    assert (stock.config.generation, list(stock.networks)) == ("LTX-2.3", ["encoder", "decoder"])


def test_a_pack_with_the_pruned_decoder_alone_needs_no_choice(golden, pack):
    folder = pack("mlx_flat")
    (folder / "vae_decoder.safetensors").unlink()
    assert list(open_checkpoint(folder).networks) == ["encoder", "decoder"]
    assert_same(folder, golden("pruna").checkpoint)


def test_the_whole_decoder_of_another_generation_beside_it_is_an_error(pack, golden):
    folder = pack("mlx_flat")
    (folder / "embedded_config.json").write_text(json.dumps({"vae": golden("ltx2").manifest["vae_config"]}))
    with pytest.raises(CheckpointError, match="does not match its configuration|belongs to the file"):
        open_checkpoint(f"{folder}:{PACKED}")


def test_a_file_that_a_folder_lacks_is_an_error_that_lists_those_that_it_has(pack):
    folder = pack("mlx")
    listing = (
        rf"has no file x\.safetensors; name one as {folder}:FILE out of vae_decoder\.safetensors, {PACKED}, vae_enc"
    )
    with pytest.raises(CheckpointError, match=listing):
        open_checkpoint(f"{folder}:x.safetensors")


def test_paths_with_colons_are_paths(tmp_path):
    (tmp_path / "a").mkdir()
    both = write(tmp_path / "a:b.safetensors", "original")
    write(tmp_path / "a" / "b.safetensors", "bare_decoder")
    folder = write(tmp_path / "a:b", "mlx")
    (folder / "c:d.safetensors").write_bytes(both.read_bytes())
    assert list(open_checkpoint(both).networks) == ["encoder", "decoder"]
    assert list(open_checkpoint(f"{folder}:{PACKED}").networks) == ["decoder"]
    assert list(open_checkpoint(f"{folder}:c:d.safetensors").networks) == ["encoder", "decoder"]
    both.unlink()
    assert list(open_checkpoint(both).networks) == ["decoder"]  # now a/b.safetensors


# --- the command ----------------------------------------------------------------------------------------------------
