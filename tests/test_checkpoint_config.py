"""The configuration of a checkpoint: every key has a type and a range, and what gives a wrong picture is refused."""

import sys

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from checkpoint_files import rewritten
from commands import decode as main
from mlx_ltx_vae import CheckpointError, VideoVAE
from vae_configs import GENERATIONS, PaddingMode, parse_vae_config


def config_of(golden, **changes):
    return {**golden("ltx2_3").manifest["vae_config"], **changes}


def test_the_generation_decides_the_padding_that_a_configuration_does_not_name(golden, tmp_path):
    """ltx-video's own code writes 0.9.0 with a list per network, timestep_conditioning and no padding key."""

    def as_ltx_video_writes(tensors, config):
        blocks = config.pop("blocks")
        config |= {"encoder_blocks": blocks, "decoder_blocks": blocks, "timestep_conditioning": False}

    case = golden("ltxv_0_9_0")
    latents = mx.random.normal((1, 8, 2, 2, 3), key=mx.random.key(0))
    path = rewritten(golden, tmp_path, as_ltx_video_writes, "ltxv_0_9_0")
    results = [VideoVAE.from_pretrained(each, encoder=False).decode(latents) for each in (case.checkpoint, path)]
    assert mx.array_equal(*results)
    assert VideoVAE.from_pretrained(path).config.decoder.options.padding is PaddingMode.ZEROS


@pytest.mark.parametrize("name", GENERATIONS)
def test_only_ltx_2_reflects_without_a_padding_key(name):
    raw = {key: value for key, value in GENERATIONS[name].items() if key != "spatial_padding_mode"}
    expected = PaddingMode.ZEROS if "0.9" in name else PaddingMode.REFLECT
    assert parse_vae_config(raw, "file").decoder.options.padding is expected


def shortened(name):
    """A generation's lists with one layer per block, as no published VAE has them."""
    lists = {
        key: GENERATIONS[name].get(key) or GENERATIONS[name]["blocks"] for key in ("encoder_blocks", "decoder_blocks")
    }
    return {key: [(kind, 2 if kind == "res_x" else each) for kind, each in blocks] for key, blocks in lists.items()}


@pytest.mark.parametrize(("name", "padding"), [("LTX-Video 0.9.0", PaddingMode.ZEROS), ("LTX-2", PaddingMode.REFLECT)])
def test_the_padding_of_an_unknown_block_list_is_told_by_the_encoder_and_warned_about(name, padding):
    raw = shortened(name)
    with pytest.warns(UserWarning, match=rf"file: .* so {padding.value} is assumed; .*spatial_padding_mode") as caught:
        assert parse_vae_config(raw, "file").decoder.options.padding is padding
    assert len(caught) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"spatial_padding_mode": "reflect"},
        {"decoder_spatial_padding_mode": "zeros"},
        {"timestep_conditioning": True},
        {"decoder_blocks": GENERATIONS["LTX-2"]["decoder_blocks"]},
        {"decoder_blocks": None},
    ],
)
def test_padding_that_is_stated_or_follows_from_the_decoder_is_not_warned_about(change, recwarn):
    raw = {key: value for key, value in {**shortened("LTX-2"), **change}.items() if value}
    parse_vae_config(raw, "file")
    assert not recwarn.list


def test_an_unknown_decoder_in_a_file_is_warned_about_once(golden, tmp_path, recwarn):
    def forget_padding(tensors, config):
        del config["spatial_padding_mode"]

    VideoVAE.from_pretrained(rewritten(golden, tmp_path, forget_padding, "ltx2_3_causal"))
    assert [str(warning.message).partition(":")[0] for warning in recwarn.list] == ["changed.safetensors"]


@pytest.mark.parametrize("network", ["encoder", "decoder"])
def test_blocks_that_scale_without_end_are_refused(network):
    kind = "compress_time_res" if network == "encoder" else "compress_time"
    blocks = [(kind, {"multiplier": 1 if network == "decoder" else 2})]
    raw = {f"{network}_blocks": blocks * 6, "spatial_padding_mode": "zeros"}
    assert parse_vae_config(raw, "file").scale.time == 64
    with pytest.raises(CheckpointError, match=f"the blocks of its {network} scale by 128 x 1 x 1 .* at most 64"):
        parse_vae_config(raw | {f"{network}_blocks": blocks * 7}, "file")
    with pytest.raises(CheckpointError, match="at most 64 along each axis"):
        parse_vae_config(raw | {f"{network}_blocks": blocks * 20}, "file")


def test_a_decoders_own_padding_key_comes_first(golden):
    raw = config_of(golden, spatial_padding_mode="zeros", decoder_spatial_padding_mode="replicate")
    config = parse_vae_config(raw, "file")
    assert config.decoder.options.padding is PaddingMode.REPLICATE
    assert config.encoder.options.padding is PaddingMode.ZEROS


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"causal_decoder": "false"}, "causal_decoder = 'false'; expected true or false"),
        ({"timestep_conditioning": 1}, "timestep_conditioning = 1; expected true or false"),
        ({"patch_size": 0}, "patch_size = 0; expected a whole number"),
        ({"patch_size": True}, "patch_size = True; expected a whole number"),
        ({"latent_channels": 4.5}, "latent_channels = 4.5"),
        ({"latent_channels": 10**30}, "latent_channels = 1000"),
        ({"decoder_base_channels": 10**5000}, "too large to show"),
        ({"decoder_blocks": None}, "decoder_blocks = None; expected a list"),
        ({"decoder_blocks": []}, "decoder_blocks = .*; expected a list"),
        ({"decoder_blocks": [["res_x", 1]] * 101}, "expected a list of 1 to 100 blocks"),
        ({"decoder_blocks": [["res_x"]]}, "each .name, options"),
        ({"decoder_blocks": [["res_x", {"num_layers": "5"}]]}, "num_layers = '5'; expected a whole number"),
        ({"decoder_blocks": [["compress_all", {"multiplier": 0}]]}, "multiplier = 0"),
        ({"decoder_blocks": [["compress_all", {"residual": "yes"}]]}, "residual = 'yes'; expected true or false"),
        ({"spatial_padding_mode": 3}, "spatial_padding_mode = 3; expected 'zeros' or 'reflect'"),
        ({"latent_log_var": ["uniform"]}, "latent_log_var = .*expected 'uniform' or 'per_channel'"),
        ({"scaling_factor": [1.0]}, "scaling_factor = .1.0"),
        ({"causal_encoder": False}, "causal_encoder = False; only True"),
        ({"x" * 500: 1}, "unknown key 'x"),
    ],
)
def test_a_key_of_another_type_or_out_of_range_is_refused_by_name(golden, change, words):
    with pytest.raises(CheckpointError, match=words) as caught:
        parse_vae_config(config_of(golden, **change), "file")
    assert len(str(caught.value)) < 400


def test_nesting_without_end_is_refused(golden, tmp_path):
    deep = []
    for _ in range(sys.getrecursionlimit() * 3):
        deep = [deep]
    with pytest.raises(CheckpointError, match="decoder_blocks"):
        parse_vae_config(config_of(golden, decoder_blocks=deep), "file")
    path = tmp_path / "deep.safetensors"
    text = "[" * 100_000 + "]" * 100_000
    save_file(load_file(golden("ltx2_3").checkpoint), path, metadata={"config": text})
    with pytest.raises(CheckpointError, match="'config' is not JSON"):
        VideoVAE.from_pretrained(path)


def test_keys_of_other_programs_that_change_nothing_are_accepted(golden, recwarn):
    extra = {"latents_mean": [0.0], "latents_std": [1.0], "ltx_variant": "13b", "condition_encoder_subdir": "x"}
    extra |= {"spatial_compression_ratio": 32, "double_z": True, "causal_encoder": True, "latent_log_var_value": 0.1}
    assert parse_vae_config(config_of(golden, **extra), "f") == parse_vae_config(config_of(golden), "f")
    assert not recwarn.list


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("vae.per_channel_statistics.std-of-means", 0.0, "std-of-means has values .* not above 0"),
        ("vae.per_channel_statistics.std-of-means", np.nan, "std-of-means has values that are NaN"),
        ("vae.per_channel_statistics.mean-of-means", np.inf, "mean-of-means has values that are NaN, infinite"),
        (
            "vae.decoder.conv_out.conv.weight",
            np.nan,
            r"decoder\.conv_out\.conv\.weight has \d+ of \d+ values",
        ),
        ("vae.decoder.up_blocks.0.res_blocks.0.conv1.conv.weight", 0.0, r"res_blocks\.0\.conv1\.conv\.weight is zero"),
        ("vae.encoder.conv_in.conv.bias", -np.inf, r"encoder\.conv_in\.conv\.bias has 8 of 8 values"),
    ],
)
def test_weights_and_statistics_that_no_training_makes_are_refused_by_name(golden, tmp_path, name, value, words):
    def fill(tensors, config):
        tensors[name] = np.full_like(tensors[name], value)

    with pytest.raises(CheckpointError, match=words):
        VideoVAE.from_pretrained(rewritten(golden, tmp_path, fill)).load()


@pytest.mark.parametrize("unnormalized", [False, True])
def test_decode_warns_about_latents_that_have_the_vaes_statistics(golden, tmp_path, capsys, unnormalized):
    """diffusers' LTX-2 pipelines return `latents * std + mean`, and nothing in the file says so."""

    def spread(tensors, config):
        statistics = np.random.default_rng(1)
        tensors["vae.per_channel_statistics.mean-of-means"] = statistics.normal(0, 0.5, 8).astype(np.float32)
        tensors["vae.per_channel_statistics.std-of-means"] = statistics.uniform(0.3, 2.5, 8).astype(np.float32)

    checkpoint = rewritten(golden, tmp_path, spread)
    vae = VideoVAE.from_pretrained(checkpoint, encoder=False)
    latents = mx.random.normal((1, 8, 3, 4, 4), key=mx.random.key(0))
    if unnormalized:
        latents = latents * vae.std.reshape(-1, 1, 1, 1) + vae.mean.reshape(-1, 1, 1, 1)
    path = tmp_path / "latents.npy"
    np.save(path, np.array(latents))
    command = [str(path), "-m", str(checkpoint), "-o", str(tmp_path / "out.npy"), "-q", "-y"]
    assert main(command) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("warning: ") and "--unnormalized" in line] == lines
    assert len(lines) == unnormalized
    if unnormalized:
        assert main([*command, "--unnormalized"]) == 0
        assert capsys.readouterr().err == ""
