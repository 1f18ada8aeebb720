"""The files that have an audio VAE and a vocoder: what is found in them, and what is refused."""

import json
import re
from contextlib import nullcontext
from functools import cache

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from audio_cases import random_latents
from checkpoint_files import AUDIO, open_checkpoint
from commands import convert, info
from mlx_ltx_vae import AudioVAE, CheckpointError, VideoVAE
from network_runs import run_network
from tolerances import tolerance

LATENTS = random_latents(2)
_DIFFUSERS = {"conv_pre": "conv_in", "conv_post": "conv_out", "act_post": "act_out", "ups": "upsamplers"}
_DIFFUSERS |= {"resblocks": "resnets", "downsample.lowpass.filter": "downsample.filter"}


@pytest.fixture(params=["ltx2", "ltx2_3"])
def name(request):
    return request.param


@pytest.fixture
def tensors(audio_case, name):
    return load_file(audio_case(name).checkpoint)


@pytest.fixture
def config(audio_case, name):
    return audio_case(name).manifest["config"]


@pytest.fixture(scope="module")
def expected_of(audio_vae):
    return cache(lambda name: np.array(audio_vae(name).decode(LATENTS)))


@pytest.fixture
def expected(expected_of, name):
    return expected_of(name)


def save(tensors, path, config=None):
    path.parent.mkdir(exist_ok=True)
    arrays = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    save_file(arrays, path, metadata=None if config is None else {"config": json.dumps(config)})
    return path


def channels_last(array, name):
    """As MLX stores the weights of convolutions; those of transposed ones have output channels first."""
    if array.ndim < 3:
        return array
    return array.transpose(1, 2, 0) if re.search(r"\.ups\.\d+\.weight$", name) else np.moveaxis(array, 1, -1)


def check(source, expected):
    assert np.array_equal(AudioVAE.from_pretrained(source).decode(LATENTS), expected)


def diffusers_config(config):
    """The same configuration as diffusers' two files state it."""
    stated = config["audio_vae"]["model"]["params"]["ddconfig"]
    names = {"base_channels": "ch", "output_channels": "out_ch", "latent_channels": "z_channels"}
    same = ("ch_mult", "num_res_blocks", "resolution", "in_channels", "mel_bins", "norm_type", "causality_axis")
    vae = {"_class_name": "AutoencoderKLLTX2Audio", "attn_resolutions": None, "mid_block_add_attention": False}
    vae |= {name: stated[own] for name, own in names.items()} | {key: stated[key] for key in same}
    names = {"hidden_channels": "upsample_initial_channel", "upsample_factors": "upsample_rates"}
    names |= {"upsample_kernel_sizes": "upsample_kernel_sizes", "resnet_kernel_sizes": "resblock_kernel_sizes"}
    names |= {"resnet_dilations": "resblock_dilation_sizes"}
    if "bwe" not in config["vocoder"]:
        vocoder = {name: config["vocoder"][own] for name, own in names.items()}
        return vae, {"_class_name": "LTX2Vocoder", "output_sampling_rate": 24000, **vocoder}
    first, second = config["vocoder"]["vocoder"], config["vocoder"]["bwe"]
    vocoder = {name: first[own] for name, own in names.items()}
    vocoder |= {f"bwe_{name}": second[own] for name, own in names.items()}
    vocoder |= {"act_fn": "snakebeta", "final_act_fn": None, "final_bias": False, "bwe_final_bias": False}
    vocoder |= {"filter_length": 512, "hop_length": 80, "window_length": 512, "num_mel_channels": 64}
    return vae, {
        "_class_name": "LTX2VocoderWithBWE",
        "input_sampling_rate": 16000,
        "output_sampling_rate": 48000,
        **vocoder,
    }


@pytest.mark.slow
def test_only_the_tensors_of_audio_are_read_from_a_whole_models_file(golden, tensors, config, expected, tmp_path):
    video = golden("ltx2_3")
    metadata = {**config, "vae": video.manifest["vae_config"]}
    others = {"model.diffusion_model.blocks.0.weight": np.full((4, 4), np.nan, np.float32)}
    path = save({**others, **load_file(video.checkpoint), **tensors}, tmp_path / "model.safetensors", metadata)
    check(path, expected)
    check(tmp_path, expected)
    assert VideoVAE.from_pretrained(path).config == VideoVAE.from_pretrained(video.checkpoint).config


@pytest.mark.quick(1)
def test_the_folders_of_diffusers(tensors, config, expected, tmp_path):
    """Their first waveform is clamped, although their configuration states no activation at its end."""
    vae = {
        name.removeprefix("audio_vae.").replace("per_channel_statistics.mean-of-means", "latents_mean")
        .replace("per_channel_statistics.std-of-means", "latents_std"): array
        for name, array in tensors.items()
        if name.startswith("audio_vae.")
    }  # fmt: skip
    vocoder = {}
    for name, array in tensors.items():
        if name.startswith("vocoder."):
            name = name.removeprefix("vocoder.")
            for own, other in _DIFFUSERS.items():
                name = re.sub(rf"\b{re.escape(own)}\b", other, name)
            vocoder[name] = array
    for part, arrays, stated in zip(("audio_vae", "vocoder"), (vae, vocoder), diffusers_config(config), strict=True):
        save(arrays, tmp_path / part / "diffusion_pytorch_model.safetensors")
        (tmp_path / part / "config.json").write_text(json.dumps(stated))
    check(tmp_path, expected)


@pytest.mark.quick(1)
@pytest.mark.parametrize("keeps_filters", [False, True])
def test_packs_of_mlx_ports_without_a_configuration(tensors, expected, tmp_path, keeps_filters):
    """Weights channels-last; filters and bases as well, or in torch's order; statistics by other names."""
    packed = {}
    for name, array in tensors.items():
        is_kept = keeps_filters and name.endswith(("filter", "basis"))
        name = name.replace("mean-of-means", "_mean_of_means").replace("std-of-means", "_std_of_means")
        packed[name] = array if is_kept else channels_last(array, name)
    for part in ("audio_vae", "vocoder"):
        arrays = {name: array for name, array in packed.items() if name.startswith(f"{part}.")}
        if part == "vocoder":  # the keys of a first generator one level up
            arrays = {name.replace("vocoder.vocoder.", "vocoder."): array for name, array in arrays.items()}
        save(arrays, tmp_path / f"{part}.safetensors")
    check(tmp_path, expected)
    assert open_checkpoint(tmp_path, medium=AUDIO).is_inferred


@pytest.mark.quick(1)
def test_folders_with_a_model_each(tensors, expected, tmp_path):
    for part in ("audio_vae", "vocoder"):
        arrays = {name.removeprefix(f"{part}."): each for name, each in tensors.items() if name.startswith(f"{part}.")}
        save(arrays, tmp_path / part / "model.safetensors")
    check(tmp_path, expected)


@pytest.mark.quick(1)
def test_a_folder_with_split_files_has_one_of_audio(golden, tensors, config, expected, tmp_path):
    save(load_file(golden("small_ltx2_3").checkpoint), tmp_path / "ltx-2.5-video-vae-conv-bf16.safetensors")
    save(tensors, tmp_path / "ltx-2.5-audio-vae-bf16.safetensors", config)
    check(tmp_path, expected)


@pytest.mark.quick(1)
def test_arrays_in_memory(tensors, config, expected):
    vae = AudioVAE.from_weights({name: mx.array(array) for name, array in tensors.items()}, config)
    assert np.array_equal(vae.decode(LATENTS), expected)


@pytest.mark.parametrize(
    "pattern",
    [
        "resblocks.1.convs2.2.bias",
        "act_post.downsample.lowpass.filter",
        "mel_basis",
        "up.1.upsample.conv.conv.weight",
    ],
)
def test_a_missing_tensor_is_named(audio_case, tmp_path, pattern):
    tensors = load_file(audio_case("ltx2_3").checkpoint)
    missing = next(name for name in tensors if name.endswith(pattern))
    path = save({name: each for name, each in tensors.items() if name != missing}, tmp_path / "a.safetensors",
                audio_case("ltx2_3").manifest["config"])  # fmt: skip
    with pytest.raises(CheckpointError, match=f"lacks tensor .*{re.escape(pattern)}"):
        AudioVAE.from_pretrained(path)


def test_a_basis_that_nothing_uses_may_be_missing(audio_case, audio_vae, tmp_path):
    tensors = load_file(audio_case("ltx2_3").checkpoint)
    kept = {name: array for name, array in tensors.items() if not name.endswith("inverse_basis")}
    assert len(kept) == len(tensors) - 1
    path = save(kept, tmp_path / "a.safetensors", audio_case("ltx2_3").manifest["config"])
    check(path, np.array(audio_vae("ltx2_3").decode(LATENTS)))


def test_a_tensor_that_does_not_belong_there_is_named(tensors, config, tmp_path):
    tensors["vocoder.bwe_generator.extra.weight" if "bwe" in config["vocoder"] else "vocoder.extra.weight"] = np.ones(
        3, np.float32
    )
    with pytest.raises(CheckpointError, match="its vocoder has the unexpected tensor"):
        AudioVAE.from_pretrained(save(tensors, tmp_path / "a.safetensors", config))


def test_other_files_are_refused(golden, tensors, config, tmp_path):
    with pytest.raises(CheckpointError, match=re.escape("expected an audio VAE (audio_vae.decoder.*, vocoder.* or")):
        AudioVAE.from_pretrained(golden("small_ltx2_3").checkpoint)
    only_vae = {name: array for name, array in tensors.items() if name.startswith("audio_vae.")}
    vae = AudioVAE.from_pretrained(save(only_vae, tmp_path / "a.safetensors", config))
    with pytest.raises(CheckpointError, match=r"this AudioVAE has no vocoder, since a\.safetensors has none; load a"):
        vae.decode(LATENTS)
    with pytest.raises(CheckpointError, match=r"has no encoder, since a\.safetensors has none; load a file or folder"):
        vae.encode(np.zeros((1, 2, 3200), np.float32), 16000)
    vae = AudioVAE.from_pretrained(tmp_path / "a.safetensors", encoder=False)
    with pytest.raises(CheckpointError, match="this AudioVAE has no encoder; load it with encoder=True"):
        vae.plan_encode(1.0)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("causality_axis", "width-compatibility", "expected 'height' or 'width' or 'none'"),
        ("norm_type", "layer", "expected 'pixel' or 'group'"),
        ("ch", 0, "expected a whole number from 1"),
        ("ch_mult", [1, "2"], "expected a list of whole numbers above 0"),
        ("attn_type", "linear", "only 'vanilla' is supported"),
    ],
)
def test_a_configuration_that_is_not_supported_is_refused(audio_case, tmp_path, key, value, message):
    case = audio_case("ltx2")
    config = json.loads(json.dumps(case.manifest["config"]))
    config["audio_vae"]["model"]["params"]["ddconfig"][key] = value
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(save(load_file(case.checkpoint), tmp_path / "a.safetensors", config), medium=AUDIO)


@pytest.mark.quick(1)
@pytest.mark.parametrize("stated", [None, True])
def test_the_end_of_a_generator_follows_from_its_place_and_not_from_the_configuration(audio_case, tmp_path, stated):
    """The reference never reads `apply_final_activation`: the first one is clamped, and the extension is not."""
    tensors = load_file(audio_case("ltx2_3").checkpoint)
    for name in ("vocoder.vocoder.conv_post.weight", "vocoder.bwe_generator.conv_post.weight"):
        tensors[name] *= 40
    config = json.loads(json.dumps(audio_case("ltx2_3").manifest["config"]))
    for generator in config["vocoder"].values():
        generator.pop("apply_final_activation", None)
        if stated is not None:
            generator["apply_final_activation"] = stated
    vocoder = AudioVAE.from_pretrained(save(tensors, tmp_path / "a.safetensors", config)).vocoder
    mel = mx.array(np.random.default_rng(0).normal(size=(1, 9, 1, 1, 128)).astype(np.float32))
    first, second = (np.array(run_network(each, mel)) for each in (vocoder.vocoder, vocoder.bwe_generator))
    assert np.abs(first).max() == 1
    assert np.abs(second).max() > 2


@pytest.mark.parametrize("stated", [False, True])
def test_the_one_generator_of_ltx_2_ends_with_tanh_whatever_its_configuration_says(audio_case, tmp_path, stated):
    case = audio_case("ltx2")
    config = json.loads(json.dumps(case.manifest["config"]))
    config["vocoder"]["apply_final_activation"] = stated
    loaded = AudioVAE.from_pretrained(save(load_file(case.checkpoint), tmp_path / "a.safetensors", config))
    check = next(check for check in case.checks("decode") if check["input"] == "latents_t1")
    assert case.compare(np.array(loaded.decode(case.arrays["latents_t1"])), check) < tolerance(1e-4)


def test_an_activation_behind_the_extension_is_refused(audio_case, tmp_path):
    """diffusers could have one; the reference has none."""
    case = audio_case("ltx2_3")
    vae, vocoder = diffusers_config(case.manifest["config"])
    path = save(load_file(case.checkpoint), tmp_path / "a.safetensors")
    for end, message in ((None, None), ("tanh", "bwe_final_act_fn = 'tanh'; only None is supported")):
        (tmp_path / "config.json").write_text(json.dumps({"audio_vae": None, **vocoder, "bwe_final_act_fn": end}))
        with pytest.raises(CheckpointError, match=message) if message else nullcontext():
            open_checkpoint(path, medium=AUDIO)


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["ltx2", "ltx2_3", "encoder"])
def test_without_a_configuration_a_tensor_that_is_missing_or_flat_is_an_error_that_names_the_file(
    audio_case, tmp_path, name
):
    tensors = load_file(audio_case(name).checkpoint)
    for each in (key for key in tensors if re.search(r"^(?!.*[1-9]\.).*(?<!conv_pre)\.weight$", key)):
        for changed in ({key: array for key, array in tensors.items() if key != each},
                        {**tensors, each: np.zeros(3, np.float32)}):  # fmt: skip
            path = save(changed, tmp_path / "a.safetensors")
            with pytest.raises(CheckpointError, match=r"a\.safetensors"):
                AudioVAE.from_pretrained(path)


def test_info_describes_audio(audio_case, golden, tmp_path, capsys):
    path = audio_case("ltx2_3").checkpoint
    assert info([str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["kind"], report["sample_rate"], report["encoder"]) == ("audio checkpoint", 48000, None)
    assert (report["generation"], report["configuration"]) == ("LTX-2.3 audio", "stated")
    assert [(plan["num_samples"], plan["lookahead"]) for plan in report["plans"]][1] == (20 * 48000 - 1440, 14)
    assert report["vocoder"]["parameters"] == sum(
        array.size for name, array in load_file(path).items() if name.startswith("vocoder.") and "inverse" not in name
    )
    both = save({**load_file(golden("ltx2_3").checkpoint), **load_file(path)}, tmp_path / "model.safetensors")
    assert info([str(both), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["generation"], report["audio"]["generation"]) == ("LTX-2.3", "LTX-2.3 audio")
    assert report["audio"]["configuration"] == "inferred"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_a_converted_folder_has_the_same_audio(audio_case, audio_vae, tmp_path, capsys, dtype):
    case = audio_case("ltx2_3")
    folder = tmp_path / "converted"
    assert convert([str(case.checkpoint), "-o", str(folder), *(["--dtype", dtype] if dtype else [])]) == 0
    assert "equal bit for bit" in capsys.readouterr().out
    converted = AudioVAE.from_pretrained(folder)
    assert converted.config == audio_vae("ltx2_3").config
    found, expected = (np.array(vae.decode(LATENTS)) for vae in (converted, audio_vae("ltx2_3")))
    assert np.abs(found - expected).max() < (0.2 if dtype else 1e-7)
    assert "AudioVAE.from_pretrained" in (folder / "README.md").read_text()
