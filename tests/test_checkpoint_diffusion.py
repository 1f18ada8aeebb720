"""Checkpoints of the diffusion decoder: their layouts, what they must state, and conversion."""

import json
from copy import deepcopy

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from checkpoint_files import assert_same_weights, network_of, open_checkpoint, read_statistics, statistics_of
from checkpoint_files import write_pack as pack_of_networks
from commands import convert, decode, info
from diffusion_cases import CASES, as_numpy
from mlx_ltx_vae import AudioVAE, CheckpointError, VideoVAE, save_latents
from tolerances import tolerance

PLAIN, GATED = CASES
KEYFRAMES, PUBLISHED = "ltx2_5_keyframes", "ltx2_5_diffusion_published"
LATENTS = mx.random.normal((1, 8, 2, 3, 3), key=mx.random.key(7))


def write(case, path, change=None, tensors=None):
    config = deepcopy(case.manifest["vae_config"])
    if change:
        change(config)
    save_file(tensors or load_file(case.checkpoint), path, {"config": json.dumps({"vae": config})})
    return path


def write_pack(folder, case, suffix, *, states_config=True):
    """One VAE as packs of LTX-2.5 for MLX have it: a file per network."""
    metadata = {"config": json.dumps({"vae": case.manifest["vae_config"]})} if states_config else None
    file, names = f"vae_{{}}_{suffix}".rstrip("_"), ("mean", "std")
    pack_of_networks(folder, load_file(case.checkpoint), f"{file}.safetensors", f"{file}.", names, metadata)


def assert_reads_as_the_original(checkpoint, case, networks=("encoder", "decoder")):
    original = open_checkpoint(case.checkpoint)
    assert checkpoint.family is original.family
    assert list(checkpoint.networks) == list(networks)
    for network in networks:
        assert_same_weights(dict(checkpoint.networks[network].read()), dict(original.networks[network].read()))
    assert checkpoint.config.decoder == original.config.decoder
    assert_same_weights(read_statistics(checkpoint), read_statistics(original))


def decoded(source, **options):
    return VideoVAE.from_pretrained(source, **options).decode(LATENTS, steps=1)


@pytest.fixture(scope="module")
def expected(golden):
    return {name: decoded(golden(name).checkpoint) for name in CASES}


def test_a_pack_with_a_file_per_network_opens_as_the_original(golden, expected, tmp_path):
    write_pack(tmp_path, golden(PLAIN), "av")
    assert_reads_as_the_original(open_checkpoint(tmp_path), golden(PLAIN))
    decoder = tmp_path / "vae_decoder_av.safetensors"
    assert_reads_as_the_original(open_checkpoint(decoder), golden(PLAIN), ["decoder"])
    assert_reads_as_the_original(open_checkpoint(f"{tmp_path}:{decoder.name}"), golden(PLAIN))
    assert list(open_checkpoint(tmp_path / "vae_encoder_av.safetensors").networks) == ["encoder"]
    assert mx.abs(decoded(decoder) - expected[PLAIN]).max().item() < tolerance(1e-4)


def test_a_pack_without_metadata_is_that_of_the_published_decoder_with_its_tensors(golden, tmp_path, capsys):
    write_pack(tmp_path, golden(PUBLISHED), "av", states_config=False)
    for source in (tmp_path, tmp_path / "vae_decoder_av.safetensors"):
        with pytest.warns(UserWarning, match="its configuration is missing; it has the tensors of LTX-2.5"):
            found = open_checkpoint(source)
        assert_reads_as_the_original(found, golden(PUBLISHED), list(found.networks))
    assert len(found.networks) == 1
    assert info([str(source), "--json"]) == 0
    out, err = capsys.readouterr()
    said = json.loads(out)
    assert (said["generation"], said["configuration"], said["kind"]) == ("LTX-2.5 diffusion", "inferred", "checkpoint")
    assert err.startswith("warning: vae_decoder_av.safetensors: its configuration is missing")


def test_of_a_pack_with_both_vaes_the_convolutional_one_is_used_and_said(golden, tmp_path):
    write_pack(tmp_path, golden("ltx2_3"), "conv")
    write_pack(tmp_path, golden(PLAIN), "av")
    words = r"vae_decoder_conv\.safetensors is used, .* not vae_decoder_av\.safetensors, .* give its file"
    with pytest.warns(UserWarning, match=words):
        found = open_checkpoint(tmp_path)
    assert_reads_as_the_original(found, golden("ltx2_3"))
    assert_reads_as_the_original(open_checkpoint(f"{tmp_path}:vae_decoder_av.safetensors"), golden(PLAIN))


def test_of_a_pack_whose_names_do_not_say_which_decoder_is_convolutional_one_is_to_be_named(golden, tmp_path):
    write_pack(tmp_path, golden(PLAIN), "av")
    write_pack(tmp_path, golden("ltx2_3"), "")
    with pytest.raises(CheckpointError, match=r"give one of vae_decoder\.safetensors, vae_decoder_av\.safetensors, as"):
        open_checkpoint(tmp_path)
    assert_reads_as_the_original(open_checkpoint(f"{tmp_path}:vae_decoder.safetensors"), golden("ltx2_3"))
    assert_reads_as_the_original(open_checkpoint(f"{tmp_path}:vae_decoder_av.safetensors"), golden(PLAIN))


def as_swift_apps_store(case, embedder="t_embedder.timestep_embedder.linear", attention="attn.to_"):
    """The decoder and its statistics, as in `mlx-community/ltx-2.5-mlx`: a matrix each for queries, keys and values."""
    tensors = load_file(case.checkpoint)
    stored = {}
    for name, array in network_of(tensors, "decoder").items():
        name = name.replace("t_embedder.mlp.0", f"{embedder}1").replace("t_embedder.mlp.2", f"{embedder}2")
        if "attn.qkv." in name:
            parts = zip("qkv", np.split(array, 3), strict=True)
            stored |= {name.replace("attn.qkv.", f"{attention}{each}."): part for each, part in parts}
        else:
            stored[name] = array
    statistics = zip(("mean", "std"), statistics_of(tensors), strict=True)
    return stored | {f"per_channel_statistics.{name}": array for name, array in statistics}


def write_swift_pack(folder, case, *, states_config=True):
    config = {"config": json.dumps({"vae": case.manifest["vae_config"]})} if states_config else {}
    stored = {f"vae_diffusion_decoder.{name}": array for name, array in as_swift_apps_store(case).items()}
    save_file(stored, folder / "vae_diffusion_decoder.safetensors", {"format": "mlx", **config})
    return folder / "vae_diffusion_decoder.safetensors"


def test_the_diffusion_decoder_of_swift_apps_opens_alone_without_a_configuration(golden, expected, tmp_path):
    stated = write_swift_pack(tmp_path, golden(PLAIN))
    assert mx.abs(decoded(stated) - expected[PLAIN]).max().item() < tolerance(1e-4)
    path = write_swift_pack(tmp_path, golden(PUBLISHED), states_config=False)
    for source in (path, tmp_path):
        with pytest.warns(UserWarning, match="it has the tensors of LTX-2.5"):
            found = open_checkpoint(source)
        assert (found.family.name, list(found.networks)) == ("diffusion_decoder", ["decoder"])
        assert found.config.generation == "LTX-2.5 diffusion"
        assert_same_weights(read_statistics(found), read_statistics(open_checkpoint(golden(PUBLISHED).checkpoint)))


def test_of_a_pack_of_swift_apps_the_convolutional_decoder_is_used_and_the_other_is_named(golden, tmp_path):
    pack_of_networks(tmp_path, load_file(golden("ltx2_3").checkpoint), "vae_{}.safetensors", "vae_{}.", ("mean", "std"))
    path = write_swift_pack(tmp_path, golden(PUBLISHED), states_config=False)
    of_one_release = zip(("mean", "std"), statistics_of(load_file(golden("ltx2_3").checkpoint)), strict=True)
    save_file(
        load_file(path) | {f"{path.stem}.per_channel_statistics.{name}": array for name, array in of_one_release}, path
    )
    words = r"vae_decoder\.safetensors is used, .* not vae_diffusion_decoder\.safetensors, .* give its file"
    with pytest.warns(UserWarning, match=words):
        found = open_checkpoint(tmp_path)
    assert_reads_as_the_original(found, golden("ltx2_3"))
    encoder = dict(open_checkpoint(golden("ltx2_3").checkpoint).networks["encoder"].read())
    for source, left_out in ((f"{tmp_path}:{path.name}", None), (tmp_path, "vae_decoder.safetensors")):
        if left_out:  # without the convolutional decoder there is no choice
            (tmp_path / left_out).unlink()
        with pytest.warns(UserWarning, match="it has the tensors of LTX-2.5"):
            named = open_checkpoint(source)
        assert (named.family.name, list(named.networks)) == ("diffusion_decoder", ["encoder", "decoder"])
        assert_same_weights(dict(named.networks["encoder"].read()), encoder)


def test_statistics_that_only_the_encoder_of_a_pack_has_are_found_by_the_name_of_the_folder(golden, tmp_path):
    pack_of_networks(tmp_path, load_file(golden(PLAIN).checkpoint), "vae_{}.safetensors", "vae_{}.", ("mean", "std"))
    path = write_swift_pack(tmp_path, golden(PLAIN))
    stored = {name: array for name, array in load_file(path).items() if "per_channel_statistics" not in name}
    write(golden(PLAIN), path, tensors=stored)
    with pytest.raises(CheckpointError, match=r"statistics of the latents .* are missing; .* of a pack FOLDER:FILE"):
        open_checkpoint(path)
    assert_same_weights(
        read_statistics(open_checkpoint(f"{tmp_path}:{path.name}")),
        read_statistics(open_checkpoint(golden(PLAIN).checkpoint)),
    )


@pytest.mark.parametrize("attention", ["attn.qkv.to_", "attn.to_"])
@pytest.mark.parametrize("embedder", ["t_embedder.timestep_embedder.linear_", "t_embedder.linear_"])
def test_names_of_another_port_without_a_prefix_are_those_of_a_diffusion_decoder(
    golden, expected, tmp_path, attention, embedder
):
    """Three matrices for queries, keys and values, and no `type_emb`."""
    stored = as_swift_apps_store(golden(PLAIN), embedder, attention)
    stored.pop("type_emb", None)
    for name in ("mean", "std"):
        stored[f"per_channel_statistics.{name}_of_means"] = stored.pop(f"per_channel_statistics.{name}")
    path = write(golden(PLAIN), tmp_path / "decoder.safetensors", tensors=stored)
    assert open_checkpoint(path).family.name == "diffusion_decoder"
    if (attention, embedder) == ("attn.qkv.to_", "t_embedder.timestep_embedder.linear_"):
        assert mx.abs(decoded(path) - expected[PLAIN]).max().item() < tolerance(1e-4)
    with pytest.raises(CheckpointError, match="expected an audio VAE"):  # its `conv_in` is no vocoder's
        AudioVAE.from_pretrained(path, encoder=False)


def to_diffusers(case, tensors):
    """The decoder as diffusers stores it: other names, and a matrix for each of queries, keys and values."""
    stored = {
        "latents_mean": tensors["vae.per_channel_statistics.mean-of-means"],
        "latents_std": tensors["vae.per_channel_statistics.std-of-means"],
    }
    names = {"t_embedder.mlp.0": "t_embedder.timestep_embedder.linear_1", "attn.q_norm": "attn.norm_q"}
    names |= {"t_embedder.mlp.2": "t_embedder.timestep_embedder.linear_2", "attn.k_norm": "attn.norm_k"}
    names |= {"attn.proj": "attn.to_out.0"}
    for name, array in tensors.items():
        if not name.startswith("vae.decoder."):
            continue
        name = name.removeprefix("vae.")
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        if ".attn.qkv." in name:
            parts = np.split(array, 3)
            stored |= {name.replace("qkv", f"to_{each}"): part for each, part in zip("qkv", parts, strict=True)}
        else:
            stored[name] = array
    decoder = case.manifest["vae_config"]["decoder"]
    config = {
        "_class_name": "LTX2VideoDiffusionDecoderModel",
        "_diffusers_version": "0.42.0",
        "latent_channels": decoder["in_channels"],
        "out_channels": 3,
        "patch_size": 4,
        "scaling_factor": 1.0,
        "spatial_compression_ratio": 32,
        "temporal_compression_ratio": 8,
        "decoder_head_dim": decoder["head_dim"],
        "decoder_stage_channels": decoder["stage_channels"],
        "decoder_stage_depths": decoder["stage_depths"],
        "decoder_stage_kernels": decoder["stage_kernels"][:4],
        "decoder_stage5_kernel": decoder["stage5_kernel"],
        "decoder_upsample_strides": [stride for stride, _ in decoder["upsamples"]],
        "decoder_upsample_channel_reductions": [reduction for _, reduction in decoder["upsamples"]],
        "decoder_t_emb_dim": decoder["t_emb_dim"],
        "decoder_timestep_scale_multiplier": decoder["timestep_scale_multiplier"],
        "decoder_model_output_type": "x0",
        "decoder_num_inference_steps": 1,
    }
    return stored, config


@pytest.mark.slow
def test_a_folder_of_diffusers_decodes_alike(golden, expected, tmp_path):
    stored, config = to_diffusers(golden(PLAIN), load_file(golden(PLAIN).checkpoint))
    folder = tmp_path / "diffusion_decoder"
    folder.mkdir()
    save_file(stored, folder / "diffusion_pytorch_model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    assert mx.abs(decoded(folder) - expected[PLAIN]).max().item() < tolerance(1e-4)
    assert convert([str(folder), "-o", str(tmp_path / "mlx"), "-q"]) == 0
    assert mx.abs(decoded(tmp_path / "mlx") - expected[PLAIN]).max().item() < tolerance(1e-4)
    config.pop("decoder_num_inference_steps")
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"config\.json has no decoder_num_inference_steps"):
        open_checkpoint(folder)


def test_what_no_decode_reads_is_left_out(golden):
    names = open_checkpoint(golden(GATED).checkpoint).networks["decoder"].tensors
    assert not [name for name in names if "coarse" in name]
    assert len([name for name in names if name.endswith(".gate_msa")]) == 2


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_gates_are_multiplied_into_the_matrices_once_loaded(golden, tmp_path, dtype):
    """Whatever the order of the tensors; a conversion has the original ones."""
    tensors = load_file(golden(GATED).checkpoint)
    block = VideoVAE.from_pretrained(golden(GATED).checkpoint, dtype=dtype).decoder.diff_blocks[1]
    assert not [name for name in block if name.startswith("gate_")]
    matrices = {"attn.proj": ("gate_msa", block.attn.proj), "mlp.w_down": ("gate_mlp", block.mlp.w_down)}
    for path, (gate, linear) in (matrices | {"context_proj": ("gate_ctx", block.context_proj)}).items():
        scale = tensors[f"vae.decoder.diff_blocks.1.{gate}"]
        expected = tensors[f"vae.decoder.diff_blocks.1.{path}.weight"] * scale[:, None]
        assert np.abs(scale - 1).max() > 0.01
        near = 2**-6 if dtype == "bfloat16" else 1e-6
        np.testing.assert_allclose(as_numpy(linear.weight), expected, rtol=near, atol=1e-7)
        if "bias" in linear:
            bias = tensors[f"vae.decoder.diff_blocks.1.{path}.bias"] * scale
            np.testing.assert_allclose(as_numpy(linear.bias), bias, rtol=near, atol=1e-7)
    if dtype == "bfloat16":
        return
    assert convert([str(golden(GATED).checkpoint), "-o", str(tmp_path / "mlx"), "-q"]) == 0
    converted = dict(open_checkpoint(tmp_path / "mlx").networks["decoder"].read())
    for name in ("gate_msa", "attn.proj.weight", "mlp.w_down.weight", "context_proj.bias"):
        original = tensors[f"vae.decoder.diff_blocks.1.{name}"]
        assert np.array_equal(as_numpy(converted[f"diff_blocks.1.{name}"]), original)


@pytest.mark.parametrize(
    ("changes", "words"),  # of the decoder's entry; of the whole for "/key"
    [
        ({"default_num_inference_steps": None}, "no default_num_inference_steps, without"),
        ({"/model_output_type": None}, r"model_output_type = None; expected 'x0' or 'v'"),
        ({"/model_output_type": "eps"}, "model_output_type = 'eps'; expected"),
        ({"timestep_scale_multiplier": None}, "no timestep_scale_multiplier"),
        ({"head_dim": None}, "no head_dim"),
        ({"head_dim": 48}, "head_dim = 48 for widths"),
        ({"rope_base": 500}, "unknown key 'rope_base' = 500, .*; update mlx_ltx_vae"),
        ({"/refiner": 2}, "unknown key 'refiner' = 2, .*; update mlx_ltx_vae, or remove the key"),
        ({"resampler_kind": "conv"}, "resampler_kind = 'conv'; only 'linear'"),
        ({"stage_depths": [2, 1]}, "5 stage_channels, 2 stage_depths"),
        ({"stage_channels": [128, 64, 32, 32, 32]}, "upsample 3 .* makes 16 chan"),
        ({"stage5_kernel": [3, 0, 3]}, r"stage5_kernel = \[3, 0, 3\]; expected"),
        ({"in_channels": 16}, "latents of 8 channels and its decoder takes 16"),
        ({"/decoder": None}, "its configuration is missing, without which it decodes to static"),
        ({"stage_depths": [2, 1, 2, 1, 1]}, "has the unexpected tensor diff_blocks"),
        ({"stage_depths": [2, 2, 2, 1, 2]}, "lacks tensor det_stages.1.1"),
    ],
)
def test_a_configuration_that_would_give_static_is_refused(golden, tmp_path, changes, words):
    def change(config):
        for key, value in changes.items():
            part = config if key.startswith("/") else config["decoder"]
            part.pop(key.strip("/"), None)
            if value is not None:
                part[key.strip("/")] = value

    path = write(golden(PLAIN), tmp_path / "vae.safetensors", change)
    with pytest.raises(CheckpointError, match=rf"^vae\.safetensors: .*{words}"):
        VideoVAE.from_pretrained(path)


def test_the_encoder_loads_alone_as_that_of_the_conv_vae(golden):
    case = golden(GATED)
    check = case.check("encode")
    assert open_checkpoint(case.checkpoint).family.name == "diffusion_decoder"
    assert open_checkpoint(case.checkpoint, decoder=False).family.name == "video_vae"
    vae = VideoVAE.from_pretrained(case.checkpoint, decoder=False)
    assert (vae.decoder, vae.config.decoder, vae.config.scale) == (None, None, (8, 32, 32))
    latents = as_numpy(vae.encode(case.arrays[check["input"]]))
    assert np.abs(case.select(latents, check) - case.arrays[check["expected"]]).max() < tolerance(1e-4)


def test_of_two_files_in_a_folder_the_convolutional_one_is_used_and_said(golden, tmp_path):
    names = {"ltx-2.5-video-vae-conv-bf16": "ltx2_3", "ltx-2.5-video-vae-bf16": PLAIN}
    for name, case in names.items():
        (tmp_path / f"{name}.safetensors").symlink_to(golden(case).checkpoint)
    with pytest.warns(
        UserWarning, match=r"vae-conv-bf16\.safetensors is used, .*vae-bf16\.safetensors, .*give its file"
    ):
        assert open_checkpoint(tmp_path).family.name == "video_vae"
    assert open_checkpoint(tmp_path / "ltx-2.5-video-vae-bf16.safetensors").family.name == "diffusion_decoder"


@pytest.mark.quick(1)
@pytest.mark.parametrize("only", ["encoder", "decoder", None])
def test_a_conversion_is_verified_and_decodes_alike(golden, expected, tmp_path, only):
    arguments = [str(golden(GATED).checkpoint), "-o", str(tmp_path / "mlx"), "-q"]
    assert convert([*arguments, *(["--only", only] if only else [])]) == 0
    if only == "encoder":
        assert VideoVAE.from_pretrained(tmp_path / "mlx").decoder is None
    elif only == "decoder":
        assert VideoVAE.from_pretrained(tmp_path / "mlx").encoder is None
    else:
        assert mx.array_equal(decoded(tmp_path / "mlx"), expected[GATED])


def test_info_describes_it(golden, capsys):
    assert info([str(golden(GATED).checkpoint), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    named = [said[name] for name in ("generation", "class", "denoising_steps")]
    assert named == ["LTX-2.5 diffusion", "CausalDiffusionVAE", 2]
    assert said["decoder"]["stages"][-1] == {
        "channels": 64, "depth": 2, "kernel": [5, 3, 5], "up": [1, 1, 1], "out_channels": 48,
    }  # fmt: skip
    assert (said["decoder"]["type_embedding"], said["decoder"]["prediction"]) == (False, "v")
    assert said["plans"][0]["denoising_steps"] == 2 and said["encoder"]["parameters"] > 0


def test_the_embedding_of_keyframes_is_read_kept_by_a_conversion_and_named_by_info(golden, tmp_path, capsys):
    original = load_file(golden(KEYFRAMES).checkpoint)
    expected, folder, converted = original["vae.decoder.type_emb"], tmp_path / "diffusers", tmp_path / "mlx"
    stored, config = to_diffusers(golden(KEYFRAMES), original)
    folder.mkdir()
    save_file(stored, folder / "diffusion_pytorch_model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config | {"decoder_keyframe_type_embedding": True}))
    assert convert([str(folder), "-o", str(converted), "-q"]) == 0
    for source in (golden(KEYFRAMES).checkpoint, folder, converted):
        found = dict(open_checkpoint(source).networks["decoder"].read())["type_emb"]
        assert np.array_equal(as_numpy(found), expected)
    assert info([str(converted), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["decoder"]["type_embedding"] is True


def test_the_command_takes_steps_and_a_seed(golden, tmp_path, capsys):
    latents = tmp_path / "clip.safetensors"
    save_latents(latents, LATENTS)
    frames = []
    for options in ([], ["--seed", "1"], ["--steps", "2", "--dry-run"]):
        output = tmp_path / f"{len(frames)}.npy"
        command = [str(latents), "-m", str(golden(GATED).checkpoint), "-o", str(output), "--steps", "1", *options]
        assert decode([*command, "--json"]) == 0
        plan = json.loads(capsys.readouterr().out)["plan"]
        assert plan["denoising_steps"] == (2 if "--dry-run" in options else 1)
        frames += [np.load(output).astype(int)] if output.exists() else []
    assert frames[0].shape == (9, 96, 96, 3)
    assert (frames[0] != frames[1]).mean() > 0.1
    for option, words in (("--steps", "takes no denoising steps"), ("--seed", "takes no seed; VAEs")):
        assert decode([str(latents), "-m", str(golden("ltx2_3_causal").checkpoint), "--dry-run", option, "2"]) == 1
        assert words in capsys.readouterr().err
