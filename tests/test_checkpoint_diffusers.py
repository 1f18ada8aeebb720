"""diffusers folders. The tables below give the name of each original block in that library, version by version."""

import json
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from checkpoint_files import GENERATIONS as NAMES
from checkpoint_files import assert_same_checkpoint, open_checkpoint
from mlx_ltx_vae import CheckpointError, VideoVAE
from vae_configs import GENERATIONS, PaddingMode, parse_vae_config, read_diffusers_config

Weights = dict[str, np.ndarray]

# Original block number -> diffusers prefix.
DOWN_0_9_0 = [
    "down_blocks.0", "down_blocks.0.downsamplers.0", "down_blocks.0.conv_out",
    "down_blocks.1", "down_blocks.1.downsamplers.0", "down_blocks.1.conv_out",
    "down_blocks.2", "down_blocks.2.downsamplers.0", "down_blocks.3", "mid_block",
]  # fmt: skip
DOWN_0_9_5 = [
    "down_blocks.0", "down_blocks.0.downsamplers.0", "down_blocks.1", "down_blocks.1.downsamplers.0",
    "down_blocks.2", "down_blocks.2.downsamplers.0", "down_blocks.3", "down_blocks.3.downsamplers.0", "mid_block",
]  # fmt: skip
UP_0_9_0 = [
    "mid_block", "up_blocks.0", "up_blocks.1.upsamplers.0", "up_blocks.1", "up_blocks.2.conv_in",
    "up_blocks.2.upsamplers.0", "up_blocks.2", "up_blocks.3.conv_in", "up_blocks.3.upsamplers.0", "up_blocks.3",
]  # fmt: skip
UP_0_9_1 = [
    "mid_block", "up_blocks.0.upsamplers.0", "up_blocks.0", "up_blocks.1.upsamplers.0", "up_blocks.1",
    "up_blocks.2.upsamplers.0", "up_blocks.2",
]  # fmt: skip
UP_2_3 = [*UP_0_9_1, "up_blocks.3.upsamplers.0", "up_blocks.3"]
BLOCKS = {
    "ltxv_0_9_0": (DOWN_0_9_0, UP_0_9_0),
    "ltxv_0_9_1": (DOWN_0_9_0, UP_0_9_1),
    "ltxv_0_9_5": (DOWN_0_9_5, UP_0_9_1),
    "ltx2": (DOWN_0_9_5, UP_0_9_1),
    "ltx2_3": (DOWN_0_9_5, UP_2_3),
}

COMMON = {
    "in_channels": 3, "out_channels": 3, "patch_size": 4, "patch_size_t": 1, "resnet_norm_eps": 1e-6,
    "scaling_factor": 1.0, "encoder_causal": True, "decoder_causal": False,
    "_diffusers_version": "0.36.0",
}  # fmt: skip
RATIOS = {"spatial_compression_ratio": 32, "temporal_compression_ratio": 8}
ENCODER_0_9_0 = {
    "block_out_channels": [1, 2, 4, 4],
    "down_block_types": ["LTXVideoDownBlock3D"] * 4,
    "layers_per_block": [4, 3, 3, 3, 4],
    "spatio_temporal_scaling": [True, True, True, False],
    "downsample_type": ["conv"] * 4,
}
ENCODER_0_9_5 = {
    "block_out_channels": [1, 2, 4, 8, 16],
    "down_block_types": ["LTXVideo095DownBlock3D"] * 4,
    "layers_per_block": [4, 6, 6, 2, 2],
    "spatio_temporal_scaling": [True] * 4,
    "downsample_type": ["spatial", "temporal", "spatiotemporal", "spatiotemporal"],
}
DECODER_0_9_5 = {
    "decoder_block_out_channels": [2, 4, 8],
    "decoder_layers_per_block": [5, 5, 5, 5],
    "decoder_spatio_temporal_scaling": [True] * 3,
    "decoder_inject_noise": [False] * 4,
    "upsample_residual": [True] * 3,
    "upsample_factor": [2, 2, 2],
}
LTX_2 = {
    "_class_name": "AutoencoderKLLTX2Video",
    "block_out_channels": [2, 4, 8, 16],
    "down_block_types": ["LTX2VideoDownBlock3D"] * 4,
    "encoder_spatial_padding_mode": "zeros",
    "timestep_conditioning": False,
} | RATIOS
# config.json of each version; widths in multiples of the base width.
CONFIGS: dict[str, dict[str, Any]] = {
    "ltxv_0_9_0": COMMON | ENCODER_0_9_0 | {
        "_class_name": "AutoencoderKLLTXVideo",
        "decoder_block_out_channels": [1, 2, 4, 4],
        "decoder_layers_per_block": [4, 3, 3, 3, 4],
        "decoder_spatio_temporal_scaling": [True, True, True, False],
        "decoder_inject_noise": [False] * 5,
        "upsample_residual": [False] * 4,
        "upsample_factor": [1] * 4,
        "timestep_conditioning": False,
    },
    "ltxv_0_9_1": COMMON | ENCODER_0_9_0 | DECODER_0_9_5 | {
        "_class_name": "AutoencoderKLLTXVideo",
        "decoder_layers_per_block": [5, 6, 7, 8],
        "decoder_inject_noise": [True, True, True, False],
        "timestep_conditioning": True,
    },
    "ltxv_0_9_5": COMMON | ENCODER_0_9_5 | DECODER_0_9_5 | RATIOS | {
        "_class_name": "AutoencoderKLLTXVideo",
        "timestep_conditioning": True,
    },
    "ltx2": COMMON | ENCODER_0_9_5 | DECODER_0_9_5 | LTX_2 | {
        "upsample_type": ["spatiotemporal"] * 3,
        "decoder_spatial_padding_mode": "reflect",
    },
    "ltx2_3": COMMON | ENCODER_0_9_5 | LTX_2 | {
        "block_out_channels": [2, 4, 8, 8],
        "layers_per_block": [4, 6, 4, 2, 2],
        "decoder_block_out_channels": [2, 4, 4, 8],
        "decoder_layers_per_block": [4, 6, 4, 2, 2],
        "decoder_spatio_temporal_scaling": [True] * 4,
        "decoder_inject_noise": [False] * 5,
        "upsample_type": ["spatiotemporal", "spatiotemporal", "temporal", "spatial"],
        "upsample_residual": [False] * 4,
        "upsample_factor": [2, 2, 1, 2],
        "decoder_spatial_padding_mode": "zeros",
    },
}  # fmt: skip


def diffusers_config(name, base, latent_channels):
    config = dict(CONFIGS[name], latent_channels=latent_channels)
    for key in ("block_out_channels", "decoder_block_out_channels"):
        config[key] = [base * multiple for multiple in config[key]]
    return config


def diffusers_name(case, name):
    """The diffusers name of a tensor of the original file; None for tensors that the converters drop."""
    name = name.removeprefix("vae.")
    statistics = {
        "per_channel_statistics.mean-of-means": "latents_mean",
        "per_channel_statistics.std-of-means": "latents_std",
    }
    if name.startswith("per_channel_statistics."):
        return statistics.get(name)
    network, stem, *rest = name.split(".")
    if stem in ("down_blocks", "up_blocks"):
        prefix = BLOCKS[case][stem == "up_blocks"][int(rest[0])]
        name = ".".join([network, prefix, *rest[1:]])
    name = name.replace("res_blocks", "resnets").replace("norm3.norm", "norm3")
    name = name.replace("conv_shortcut", "conv_shortcut.conv")
    return name.replace("last_time_embedder", "time_embedder").replace("last_scale_shift_table", "scale_shift_table")


def to_diffusers(case, tensors):
    renamed = {diffusers_name(case, name): array for name, array in tensors.items()}
    return {name: array for name, array in renamed.items() if name is not None}


def write_folder(folder, case, tensors, **changes):
    folder.mkdir(parents=True, exist_ok=True)
    save_file(to_diffusers(case, tensors), folder / "diffusion_pytorch_model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(diffusers_config(case, 8, 8) | changes))


@pytest.mark.parametrize("case", CONFIGS)
def test_a_diffusers_folder_loads_like_the_original_file(
    golden,
    tmp_path,
    case,
):
    write_folder(tmp_path, case, load_file(golden(case).checkpoint))
    loaded = open_checkpoint(tmp_path)
    assert loaded.config.generation == NAMES[case]
    assert_same_checkpoint(loaded, open_checkpoint(golden(case).checkpoint))
    assert parse_vae_config(loaded.raw_config, "") == loaded.config


@pytest.mark.parametrize("case", CONFIGS)
def test_the_published_config_json_describes_the_published_network(case):
    translated = read_diffusers_config(diffusers_config(case, 128, 128), "config.json").raw_config
    assert parse_vae_config(translated, "") == parse_vae_config(GENERATIONS[NAMES[case]], "")


def test_keys_missing_from_an_early_config_json_have_the_defaults_of_its_class():
    early = {
        "_class_name": "AutoencoderKLLTXVideo", "_diffusers_version": "0.32.0.dev0", "in_channels": 3,
        "out_channels": 3, "latent_channels": 128, "block_out_channels": [128, 256, 512, 512],
        "layers_per_block": [4, 3, 3, 3, 4], "spatio_temporal_scaling": [True, True, True, False], "patch_size": 4,
        "patch_size_t": 1, "resnet_norm_eps": 1e-6, "scaling_factor": 1.0, "encoder_causal": True,
        "decoder_causal": False,
    }  # fmt: skip
    translated = read_diffusers_config(early, "config.json").raw_config
    assert parse_vae_config(translated, "") == parse_vae_config(GENERATIONS["LTX-Video 0.9.0"], "")


@pytest.mark.parametrize(
    ("encoder", "decoder", "causal"),
    [
        ("zeros", "zeros", True),
        ("zeros", "replicate", False),
        ("reflect", "zeros", False),
        ("replicate", "reflect", True),
    ],
)
def test_padding_of_each_network_and_causality_are_kept(encoder, decoder, causal):
    raw = diffusers_config("ltx2_3", 8, 8) | {
        "encoder_spatial_padding_mode": encoder,
        "decoder_spatial_padding_mode": decoder,
        "decoder_causal": causal,
    }
    config = parse_vae_config(read_diffusers_config(raw, "").raw_config, "")
    padding = [network.options.padding for network in (config.encoder, config.decoder)]
    assert padding == [PaddingMode(encoder), PaddingMode(decoder)]
    assert config.causal_decoder is causal


def test_ltx_2_with_a_timestep_keeps_its_padding(golden, tmp_path):
    """Weights of 0.9.5 in LTX-2's class, whose decoder pads by reflection, also with a timestep."""
    case = golden("ltxv_0_9_5")
    write_folder(tmp_path, "ltx2", load_file(case.checkpoint), timestep_conditioning=True)
    raw = case.manifest["vae_config"] | {"decoder_spatial_padding_mode": "reflect"}
    weights = {name: mx.array(array) for name, array in load_file(case.checkpoint).items()}
    latents = mx.random.normal((1, 8, 2, 2, 3), key=mx.random.key(0))
    found, expected, zeros = (
        vae.decode(latents, noise="zeros")
        for vae in (
            VideoVAE.from_pretrained(tmp_path, encoder=False),
            VideoVAE.from_weights(weights, raw),
            VideoVAE.from_pretrained(case.checkpoint, encoder=False),
        )
    )
    assert mx.array_equal(found, expected)
    assert mx.abs(found - zeros).max().item() > 0.1


def test_the_vae_in_a_pipeline_folder_is_found(golden, tmp_path):
    write_folder(tmp_path / "vae", "ltx2", load_file(golden("ltx2").checkpoint))
    (tmp_path / "model_index.json").write_text('{"vae": ["diffusers", "AutoencoderKLLTX2Video"]}')
    (tmp_path / "transformer").mkdir()
    (tmp_path / "transformer" / "diffusion_pytorch_model.safetensors").write_bytes(b"never opened")
    assert_same_checkpoint(open_checkpoint(tmp_path), open_checkpoint(golden("ltx2").checkpoint))


def test_diffusers_names_without_their_config_are_an_error(golden, tmp_path):
    write_folder(tmp_path, "ltx2", load_file(golden("ltx2").checkpoint))
    (tmp_path / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"names of the diffusers library, so the config\.json of that library"):
        open_checkpoint(tmp_path)


def test_a_tensor_outside_the_configured_blocks_is_an_error(golden, tmp_path):
    write_folder(tmp_path, "ltx2_3", load_file(golden("ltx2_3").checkpoint))
    (tmp_path / "config.json").write_text(json.dumps(diffusers_config("ltx2", 8, 8)))
    with pytest.raises(CheckpointError, match=r"tensor decoder\.up_blocks\.3\..* belongs to no block"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"_class_name": "AutoencoderKLWan"}, "its class AutoencoderKLWan is not supported; use an Autoenc"),
        ({"_class_name": "LTX2VideoDiffusionDecoderModel"}, "describes a diffusion decoder .* convolutional VAE; use"),
        ({"use_attention": True}, "unknown key 'use_attention' = True, .*; update mlx_ltx_vae, or remove the key"),
        ({"patch_size_t": 2}, "patch_size_t = 2; only 1"),
        ({"layers_per_block": [4]}, "do not describe one network"),
        ({"block_out_channels": [None, 24, 32, 64]}, "do not describe one network; use the config"),
        ({"upsample_type": None}, "do not describe one network; use the config"),
        ({"block_out_channels": [16, 24, 32, 64]}, "24 channels are not a multiple of 16"),
    ],
)
def test_an_unsupported_config_json_is_an_error(change, message):
    with pytest.raises(CheckpointError, match=rf"^the vae: .*{message}"):
        read_diffusers_config(diffusers_config("ltx2_3", 8, 8) | change, "the vae")
