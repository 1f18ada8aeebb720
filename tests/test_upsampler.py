"""`LatentUpsampler` and the command `upscale`: what they compute, the files that they open, plans, errors, metadata."""

import json
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from safetensors import safe_open

from commands import decode, info, mlx_ltx_vae
from latent_files import LatentSpace, LatentsWriter
from mlx_ltx_vae import (
    CheckpointError,
    Keyframes,
    LatentsError,
    LatentUpsampler,
    PlanError,
    VideoVAE,
    demo,
    load_audio_latents,
    load_keyframes,
    load_latents,
    save_latents,
)
from tolerances import cpu_only, tolerance
from upsampler_cases import CASES, compute, golden_case, make_config, make_weights, write

CONFIGS = {
    "frames alone": make_config(dims=2),
    "frames alone, x1.5": make_config(dims=2, scale=1.5),
    "both": make_config(time=True),
    "both, where the resampler is not used": make_config(time=True, scale=1.5),
    "time alone": make_config(space=False, time=True, blocks=2),
    "x1.5": make_config(64, scale=1.5),
    "x0.75": make_config(scale=0.75),
    "x4": make_config(scale=4.0),
    "wide": make_config(96, channels=16, blocks=3),
}
CHANNELS = 64  # of the demo's latents


def numbers(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def upscale(upsampler, latents, mean=0.3, std=1.7):
    channels = latents.shape[1]
    statistics = tuple(mx.full((channels,), value) for value in (mean, std))
    return np.array(upsampler.upscale(mx.array(latents), statistics=statistics))


def expect(config, weights, latents, mean=0.3, std=1.7):
    return (compute(config, weights, latents * std + mean) - mean) / std


def open_upsampler(path, config, seed=0):
    return LatentUpsampler.from_pretrained(write(path, make_weights(config, seed), config))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Upsamplers of the demo's latents, by what they do."""
    folder = tmp_path_factory.mktemp("models")
    configs = {"x2": make_config(channels=CHANNELS), "time": make_config(channels=CHANNELS, space=False, time=True)}
    return {
        name: str(write(folder / f"{name}.safetensors", make_weights(config), config))
        for name, config in configs.items()
    }


@pytest.fixture
def clip(tmp_path, monkeypatch):
    """The start of the demo's latents in the working folder, as a file that states its VAE."""
    monkeypatch.chdir(tmp_path)
    latents = load_latents(demo.LATENTS)[0][:, :, :3, :4, :5]
    space = VideoVAE.from_pretrained(demo.VAE).latent_space
    save_latents("clip.safetensors", latents, fps=24, source_frames=14, space=space)
    return latents


def run(*arguments):
    return mlx_ltx_vae(["upscale", *map(str, arguments)])


@pytest.mark.golden
@pytest.mark.parametrize("name", CASES)
def test_upsamplers_agree_with_the_reference(name, tmp_path):
    path, arrays, _ = golden_case(name, tmp_path)
    mean, std = mx.array(arrays["mean"]), mx.array(arrays["std"])
    result = LatentUpsampler.from_pretrained(path).upscale(mx.array(arrays["latents"]), statistics=(mean, std))
    assert (result.shape, result.dtype) == (arrays["expected"].shape, mx.float32)
    assert np.abs(np.array(result) - arrays["expected"]).max() < tolerance(2e-5)


@pytest.mark.parametrize("name", CASES)
def test_the_formula_of_the_tests_agrees_with_the_reference(name, tmp_path):
    path, arrays, config = golden_case(name, tmp_path)
    with safe_open(path, "numpy") as file:
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    mean, std = (arrays[name].reshape(-1, 1, 1, 1) for name in ("mean", "std"))
    assert np.abs(expect(config, weights, arrays["latents"], mean, std) - arrays["expected"]).max() < 1e-5


@pytest.mark.parametrize("name", CONFIGS)
def test_other_configurations_compute_the_formula(name, tmp_path):
    config = CONFIGS[name]
    latents = numbers((2, config["in_channels"], 3, 5, 4))
    result = upscale(open_upsampler(tmp_path / "up.safetensors", config), latents)
    expected = expect(config, make_weights(config), latents)
    assert result.shape == expected.shape
    assert np.abs(result - expected).max() < tolerance(2e-5)


@pytest.mark.parametrize("name", ["x1.5", "time alone", "frames alone"])
def test_other_sizes_and_single_frames_compute_the_formula(name, tmp_path):
    config, weights = CONFIGS[name], make_weights(CONFIGS[name])
    upsampler = open_upsampler(tmp_path / "up.safetensors", config)
    for grid in ((1, 1, 1), (1, 3, 2), (6, 1, 7), (2, 20, 17)):
        latents = numbers((1, 8, *grid))
        result, expected = upscale(upsampler, latents), expect(config, weights, latents)
        assert result.shape == expected.shape
        assert np.abs(result - expected).max() < tolerance(2e-5)


def test_the_items_of_a_batch_do_not_see_each_other(tmp_path):
    upsampler, latents = open_upsampler(tmp_path / "up.safetensors", make_config()), numbers((3, 8, 2, 3, 4))
    together = upscale(upsampler, latents)
    alone = np.concatenate([upscale(upsampler, latents[item : item + 1]) for item in range(3)])
    assert together.shape == alone.shape
    assert np.abs(together - alone).max() < tolerance(2e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_sums_in_float32(dtype, tmp_path):
    config, latents = make_config(64, blocks=2), numbers((1, 8, 4, 8, 8))
    path = write(tmp_path / "up.safetensors", make_weights(config), config)
    upsampler = LatentUpsampler.from_pretrained(path, dtype=dtype)
    kept = {"bfloat16": mx.bfloat16, "float16": mx.float32}[dtype]  # as in other networks, float16 may overflow
    statistics = (mx.zeros(8), mx.ones(8))
    result = upsampler.upscale(mx.array(latents), statistics=statistics)
    assert (upsampler.dtype, result.dtype) == (kept, kept)
    expected = expect(config, make_weights(config), latents, 0, 1)
    error = np.abs(np.array(result.astype(mx.float32)) - expected)
    assert error.max() / np.abs(expected).max() < 0.05


@pytest.mark.parametrize("name", ["x1.5", "both", "frames alone", "wide"])
def test_a_folder_of_diffusers_is_the_same_network(name, tmp_path):
    config, weights = CONFIGS[name], make_weights(CONFIGS[name])
    single = open_upsampler(tmp_path / "up.safetensors", config)
    stated = {key: value for key, value in config.items() if key not in ("spatial_scale", "rational_resampler")}
    for version, options in enumerate(
        (
            {"rational_spatial_scale": config["spatial_scale"] if config["rational_resampler"] else None},
            {"rational_spatial_scale": config["spatial_scale"], "use_rational_resampler": config["rational_resampler"]},
        )
    ):
        folder = tmp_path / f"pipeline{version}" / "latent_upsampler"
        (folder.parent / "vae").mkdir(parents=True)
        folder.mkdir()
        (folder.parent / "vae" / "diffusion_pytorch_model.safetensors").symlink_to(demo.VAE)
        write(folder / "diffusion_pytorch_model.safetensors", weights)
        model = {"_class_name": "LTX2LatentUpsamplerModel", "_diffusers_version": "0.42.1", **options}
        (folder / "config.json").write_text(json.dumps({**stated, **model}))
        for source in (folder, folder.parent):  # the upsampler, and a pipeline with one
            other = LatentUpsampler.from_pretrained(source)
            assert other.config == single.config
        latents = numbers((1, config["in_channels"], 2, 3, 4))
        assert np.array_equal(upscale(other, latents), upscale(single, latents))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_file_without_a_configuration_is_opened_where_its_tensors_tell_it(name, tmp_path):
    config = CONFIGS[name]
    path = write(tmp_path / "up.safetensors", make_weights(config))
    if config["spatial_scale"] in (1.5, 0.75) and not config["temporal_upsample"]:
        with pytest.raises(CheckpointError, match=r"up\.safetensors: .* states no spatial_scale, .* may be of several"):
            LatentUpsampler.from_pretrained(path)
    else:
        stated = open_upsampler(tmp_path / "stated.safetensors", config).config
        assert LatentUpsampler.from_pretrained(path).config == stated


@pytest.mark.parametrize("dims", [2, 3])
def test_dims_may_be_a_float_as_a_scale_may_be_whole(dims, tmp_path):
    config = make_config(dims=dims, scale=1.5)
    path = write(tmp_path / "up.safetensors", make_weights(config), config | {"dims": float(dims)})
    latents = numbers((1, 8, 2, 3, 4))
    expected = upscale(open_upsampler(tmp_path / "stated.safetensors", config), latents)
    assert np.array_equal(upscale(LatentUpsampler.from_pretrained(path), latents), expected)


def test_several_upsamplers_in_a_folder_are_an_error_that_lists_them(tmp_path):
    for name in ("a", "b"):
        open_upsampler(tmp_path / f"{name}.safetensors", make_config())
    with pytest.raises(
        CheckpointError, match=r"several files contain a latent upsampler; give one of a\.safetensors, b"
    ):
        LatentUpsampler.from_pretrained(tmp_path)


def test_weights_of_mlx_and_names_with_a_prefix_are_read(tmp_path):
    config, latents = CONFIGS["x1.5"], numbers((1, 8, 2, 3, 4))
    weights = make_weights(config)
    last = {
        name: np.moveaxis(array, 1, -1) if array.shape[2:] in ((3, 3), (3, 3, 3)) else array
        for name, array in weights.items()
    }
    expected = upscale(open_upsampler(tmp_path / "first.safetensors", config), latents)
    for number, tensors in enumerate((last, {f"model.{name}": array for name, array in weights.items()})):
        path = write(
            tmp_path / f"{number}.safetensors", {k: np.ascontiguousarray(v) for k, v in tensors.items()}, config
        )
        assert np.array_equal(upscale(LatentUpsampler.from_pretrained(path), latents), expected)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"num_blocks_per_stage": 2}, r"lacks tensor post_upsample_res_blocks\.1"),
        ({"mid_channels": 48}, "has mid_channels = 48, and its norms need a multiple of 32"),
        ({"dims": 2}, "has the shape"),
        ({"dims": 2, "temporal_upsample": True}, "upsamples time with dims = 2"),
        ({"spatial_upsample": False}, "upsamples neither space nor time"),
        ({"temporal_upsample": True}, "has the shape"),
        ({"rational_resampler": True}, r"lacks tensor upsampler\.(blur_down\.kernel|conv)"),
        ({"spatial_scale": 3.0}, "has spatial_scale = 3.0; expected 0.75 or 1.5 or 2.0 or 4.0"),
        ({"attention": True}, "has the unknown key 'attention'"),
        ({"in_channels": 16}, "has the shape"),
    ],
)
def test_a_configuration_that_its_tensors_contradict_is_refused(changes, problem, tmp_path):
    config = make_config()
    path = write(tmp_path / "up.safetensors", make_weights(config), config | changes)
    with pytest.raises(CheckpointError, match=problem) as caught:
        LatentUpsampler.from_pretrained(path)
    assert str(caught.value).startswith("up.safetensors: ")


def test_damaged_files_and_other_networks_are_refused(tmp_path, golden):
    weights = make_weights(make_config())
    first = weights.pop("initial_conv.weight")
    for tensors in ({}, {"initial_conv.weight": first[:, 0, 0]}, {"initial_conv.weight": first[:, :0]}):
        path = write(tmp_path / "up.safetensors", weights | tensors)
        with pytest.raises(
            CheckpointError, match=r"its initial_conv\.weight or upsampler\.0\.weight is missing or empty"
        ):
            LatentUpsampler.from_pretrained(path)
    with pytest.raises(CheckpointError, match=r"expected a latent upsampler .* found .*; give the file of a latent up"):
        LatentUpsampler.from_pretrained(golden("ltx2_3").checkpoint)
    with pytest.raises(CheckpointError, match="give one of ltx-2.3-upscaler-x2, "):
        LatentUpsampler.from_pretrained("ltx-2.4-upscaler")


def test_an_upsampler_instead_of_a_vae_is_refused_with_the_command_that_takes_it(models, clip, capsys):
    for model in (models["x2"], "ltx-2.3-upscaler-x2"):
        with pytest.raises(
            CheckpointError, match=r"is a latent upsampler, and not a video VAE; LatentUpsampler\.from_pre"
        ):
            VideoVAE.from_pretrained(model)
        assert decode(["clip.safetensors", "-m", model, "-o", "clip.mp4"]) == 1
        assert "is a latent upsampler, and not a video VAE; the command upscale takes it" in capsys.readouterr().err
        assert info([model]) == 1
        assert "is a latent upsampler, and not a video VAE; the command upscale takes it" in capsys.readouterr().err


def test_a_published_upsampler_is_opened_by_its_name(hub_cache, models):
    hub_cache("ltx-2.3-upscaler-x2", models["x2"])
    upsampler = LatentUpsampler.from_pretrained("LTX-2.3-upscaler-x2")
    assert upsampler.config.generation == "latent upsampler x2"
    assert repr(upsampler) == "LatentUpsampler(latent upsampler x2, upsampler, float32, 1.0 MB)"


def test_statistics_are_those_of_a_vae_or_a_pair_and_never_a_guess(models, clip):
    vae, upsampler = VideoVAE.from_pretrained(demo.VAE), LatentUpsampler.from_pretrained(models["x2"])
    expected = upsampler.upscale(clip, statistics=(vae.mean, vae.std))
    assert mx.array_equal(upsampler.upscale(clip, statistics=vae), expected)
    assert not mx.allclose(upsampler.upscale(clip, statistics=(mx.zeros(64), mx.ones(64))), expected, atol=1e-2)
    for missing in (None, (None, None), upsampler, (vae.mean,)):
        with pytest.raises(LatentsError, match="needs the statistics of the latents' VAE; give statistics=vae, or"):
            upsampler.upscale(clip, statistics=missing)
    with pytest.raises(LatentsError, match=r"takes latents of 64 channels, .* have the shapes \(8,\) and \(8,\)"):
        upsampler.upscale(clip, statistics=(mx.zeros(8), mx.ones(8)))


def test_latents_that_do_not_fit_are_refused(models, clip):
    vae, upsampler = VideoVAE.from_pretrained(demo.VAE), LatentUpsampler.from_pretrained(models["x2"])
    with pytest.raises(LatentsError, match="with 8 channels; this upsampler takes 64"):
        upsampler.upscale(clip[:, :8], statistics=vae)
    with pytest.raises(LatentsError, match="expected five axes"):
        upsampler.plan(clip.shape[1:])
    with pytest.raises(LatentsError, match=r"the latents: 1 of \d+ values are not finite"):
        upsampler.upscale(mx.where(mx.arange(clip.size).reshape(clip.shape) == 3, mx.nan, clip), statistics=vae)
    with pytest.raises(PlanError, match=r"was made for latents \(1, 64, 2, 4, 5\); these are \(1, 64, 3, 4, 5\)"):
        upsampler.upscale(clip, statistics=vae, plan=upsampler.plan((1, 64, 2, 4, 5)))
    for order in ("time", "rows"):
        plan = vae.plan(clip.shape, mode="exact", order=order)
        with pytest.raises(PlanError, match=r"the plan is exact, of a decode; give one of LatentUpsampler\.plan"):
            upsampler.upscale(clip, statistics=vae, plan=plan)


def test_a_plan_is_one_pass_and_states_the_longest_clip_that_fits(models):
    upsampler = LatentUpsampler.from_pretrained(models["x2"])
    plan = upsampler.plan((1, 64, 60, 20, 20))
    assert (plan.mode.value, plan.num_frames, plan.frame_size) == ("single", 473, (1280, 1280))
    with pytest.raises(
        PlanError, match=r"is too small for 473 frames .*; before it is upscaled, the longest clip that"
    ) as caught:
        upsampler.plan((1, 64, 60, 20, 20), memory_budget=plan.peak_bytes // 3)
    frames = 1 + (int(str(caught.value).split()[-2]) - 1) // 8
    assert upsampler.plan((1, 64, frames, 20, 20), memory_budget=plan.peak_bytes // 3).mode.value == "single"
    with pytest.raises(PlanError):
        upsampler.plan((1, 64, frames + 1, 20, 20), memory_budget=plan.peak_bytes // 3)
    with pytest.raises(PlanError, match=r"too small for 473 frames of 1280x1280; the least .* \(single by time\)\.$"):
        upsampler.plan((1, 64, 60, 20, 20), memory_budget="1MB")  # not even one frame fits


PEAK = """
import sys, mlx.core as mx
from mlx_ltx_vae import LatentUpsampler
path, dtype, *shape = sys.argv[1:]
upsampler, latents = LatentUpsampler.from_pretrained(path, dtype=dtype), mx.random.normal(list(map(int, shape)))
mx.eval(latents)
plan = upsampler.plan(latents.shape)
upsampler.upscale(latents, statistics=(mx.zeros(latents.shape[1]), mx.ones(latents.shape[1])), plan=plan)
print(plan.peak_bytes / mx.get_peak_memory())
"""


@cpu_only("plans of GPUs include their buffer cache")
@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("name", "dtype", "shape"),
    [
        ("both", "bfloat16", (1, 8, 4, 16, 16)),
        ("wide", "float32", (1, 8, 1, 2, 3)),  # the peak is that of the load
        *[
            (name, dtype, (1, 8, 6, 24, 32))
            for name in ("both", "x4", "x0.75", "frames alone")
            for dtype in ("float32", "bfloat16")
        ],
        *[(name, "bfloat16", (2, 8, 3, 40, 24)) for name in ("time alone", "x1.5", "frames alone, x1.5")],
    ],
)
def test_the_planned_peak_is_1_to_1_5_times_the_measured_one(name, dtype, shape, tmp_path):
    config = CONFIGS[name] | {"mid_channels": 96, "in_channels": 8}
    path = write(tmp_path / "up.safetensors", make_weights(config), config)
    words = [sys.executable, "-c", PEAK, str(path), dtype, *map(str, shape)]
    assert 1.0 <= float(subprocess.run(words, capture_output=True, text=True, check=True).stdout) <= 1.5


def test_upscale_then_decode_with_the_metadata_of_the_file(models, clip, capsys):
    assert run("clip.safetensors", "-m", models["x2"], "--vae", demo.VAE, "-o", "clip-x2.safetensors", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["frames"], report["width"], report["height"], report["fps"]) == (17, 320, 256, 24)
    assert report["upsampler"]["generation"] == "latent upsampler x2" and report["vae"]["file"] == str(demo.VAE)
    latents, info = load_latents("clip-x2.safetensors")
    vae, upsampler = VideoVAE.from_pretrained(demo.VAE), LatentUpsampler.from_pretrained(models["x2"])
    assert mx.array_equal(latents, upsampler.upscale(clip, statistics=vae))
    assert (info.fps, info.num_frames, info.height, info.width, info.source_frames) == (24, 17, 256, 320, 14)
    assert info.space == vae.latent_space
    assert decode(["clip-x2.safetensors", "-m", str(demo.VAE), "-o", "clip.mp4", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["frames"], report["width"], report["height"]) == (14, 320, 256)


def test_time_doubles_the_rate_and_what_counts_frames(models, clip, capsys):
    space, keyframes = LatentSpace("LTX-2.3", "0" * 16), Keyframes(clip[:, :, :2], [3, 16])
    audio = mx.array(numbers((1, 8, 17, 16)))
    with LatentsWriter("clip.safetensors") as writer:
        writer.write(clip)
        sizes = {"num_frames": 17, "source_frames": 15, "carry": 9}
        workflow = {"prompt": '{"1": 2}', "workflow": "{}"}
        writer.complete(fps="24000/1001", sizes=sizes, audio=audio, keyframes=keyframes, space=space, workflow=workflow)
    assert run("clip.safetensors", "-m", models["time"], "--vae", demo.VAE, "-o", "long.safetensors", "-q") == 0
    assert "so the result will be wrong; give their VAE with --vae" in capsys.readouterr().err
    latents, info = load_latents("long.safetensors")
    assert latents.shape == (1, 64, 5, 4, 5)
    assert (info.fps * 1001, info.num_frames, info.source_frames, info.carry) == (48000, 33, 29, 17)
    assert info.workflow == workflow and info.space == space
    assert mx.array_equal(load_audio_latents("long.safetensors"), audio)
    stills = load_keyframes("long.safetensors")
    assert stills.frames == (6, 32) and mx.array_equal(stills.latents, keyframes.latents)


@pytest.mark.parametrize(("source", "expected"), [(10, 26), (17, 33)])
def test_a_decode_leaves_out_no_more_than_a_part_of_the_last_latent_frame(source, expected, models, clip):
    save_latents("clip.safetensors", clip, source_frames=source)
    assert run("clip.safetensors", "-m", models["time"], "--vae", demo.VAE, "-o", "long.safetensors", "-q") == 0
    assert load_latents("long.safetensors")[1].source_frames == expected


def test_keyframes_of_another_size_and_what_a_file_cannot_hold_are_left_out_with_a_line(models, clip, capsys):
    audio = mx.array(numbers((1, 8, 17, 16)))
    save_latents("clip.safetensors", clip, audio=audio, keyframes=Keyframes(clip[:, :, :1], [8]))
    words = "clip.safetensors", "-m", models["x2"], "--vae", demo.VAE
    assert run(*words, "-o", "big.safetensors") == 0
    assert capsys.readouterr().err.count("warning: clip.safetensors: its keyframes are left out, since they have") == 1
    assert mx.array_equal(load_audio_latents("big.safetensors"), audio)
    assert load_keyframes("big.safetensors") is None
    assert run(*words, "-o", "big.latent") == 0
    assert "its audio latents are left out, since a .latent file has none" in capsys.readouterr().err
    save_latents("unknown.safetensors", clip, audio=audio)
    assert run("unknown.safetensors", *words[1:], "-o", "u.safetensors", "--unnormalized") == 1
    assert "its metadata says that these latents are normalized" in capsys.readouterr().err


def test_the_vae_is_the_one_that_the_latents_state(models, clip, hub_cache, capsys):
    hub_cache("ltx-2.3", demo.VAE)
    save_latents("clip.safetensors", clip, space=LatentSpace("LTX-2.3"))
    assert run("clip.safetensors", "-m", models["x2"]) == 0
    assert "--vae ltx-2.3, for the latents of clip.safetensors" in capsys.readouterr().err
    expected = LatentUpsampler.from_pretrained(models["x2"]).upscale(
        clip, statistics=VideoVAE.from_pretrained(demo.VAE)
    )
    assert mx.array_equal(load_latents("clip-upscaled.safetensors")[0], expected)


def test_without_a_vae_the_command_says_which_one_to_give(models, clip, capsys, monkeypatch):
    save_latents("stated.safetensors", clip, space=LatentSpace("LTX-2"))
    for name, problem in (
        ("clip.safetensors", "--vae VAE is missing, the VAE of the latents: give one of ltx-2.3"),
        ("stated.safetensors", "--vae is missing, and stated.safetensors is of LTX-2: give --vae ltx-2 (2.4 GB"),
    ):
        monkeypatch.setattr("mlx_ltx_vae.checkpoint.checkpoint.is_cached", lambda model: False)
        with pytest.raises(SystemExit) as caught:
            run(name, "-m", models["x2"])
        assert caught.value.code == 2 and problem in capsys.readouterr().err
    assert run("clip.safetensors", "-m", models["x2"], "--vae", demo.LATENT_RGB, "--dry-run") == 1
    assert "x2.safetensors: needs the statistics of the latents' VAE; give --vae VAE" in capsys.readouterr().err
    assert run("clip.safetensors", "-m", demo.VAE, "--vae", demo.VAE, "-o", "a.safetensors") == 1
    assert "vae.safetensors: expected a latent upsampler" in capsys.readouterr().err
    # No model is fetched for a missing clip.
    monkeypatch.setattr(sys.modules["mlx_ltx_vae.checkpoint.locate"], "_fetch_model", None)
    assert run("missing.safetensors", "-m", "ltx-2.3-upscaler-x2", "--vae", "ltx-2.3", "-o", "a.safetensors") == 1
    assert "missing.safetensors: " in capsys.readouterr().err
    assert (
        run("clip.safetensors", "-m", "ltx-2.3-upscaler-x2", "--vae", "novae.safetensors", "-o", "a.safetensors") == 1
    )
    assert "novae.safetensors: there is no such file" in capsys.readouterr().err
    assert run("clip.safetensors", "-m", "ltx-2.3", "--vae", demo.VAE, "-o", "a.safetensors") == 1
    assert "give one of ltx-2.3-upscaler-x2" in capsys.readouterr().err
    for model, vae in (("ltx-2.3-upscaler-x2", "missing.safetensors"), ("missing.safetensors", "ltx-2.3")):
        assert run("clip.safetensors", "-m", model, "--vae", vae, "-o", "a.safetensors") == 1
        assert "missing.safetensors: there is no such file" in capsys.readouterr().err


def test_several_files_a_folder_skips_and_a_plan(models, clip, capsys):
    save_latents("other.safetensors", mx.concatenate([clip, clip]))
    words = "-m", models["x2"], "--vae", demo.VAE
    assert run("clip.safetensors", "other.safetensors", *words, "-o", "big/") == 0
    assert load_latents("big/other.safetensors")[0].shape == (2, 64, 3, 8, 10)
    assert "Upsampler: x2.safetensors (latent upsampler x2)" in capsys.readouterr().out
    Path("picks.txt").write_text("other.safetensors\n")
    assert run("clip.safetensors", "--list", "picks.txt", *words, "-o", "big/", "-n", "--json") == 0
    assert json.loads(capsys.readouterr().out)["skipped"] == 2
    assert run(".", *words, "-o", "big/", "-n", "--json") == 0
    assert json.loads(capsys.readouterr().out)["skipped"] == 2
    assert run("clip.safetensors", *words, "-o", "big/") == 1
    assert "big/clip.safetensors: already exists" in capsys.readouterr().err
    assert run("clip.safetensors", *words, "-o", "plan.safetensors", "--dry-run") == 0
    assert (
        capsys.readouterr().out.splitlines()[-1]
        == "networks x2.safetensors (latent upsampler x2), vae.safetensors (custom)"
    )
    lines = []
    vae, upsampler = VideoVAE.from_pretrained(demo.VAE), LatentUpsampler.from_pretrained(models["x2"])
    upsampler.upscale(clip, statistics=vae, progress=lambda done, total: lines.append((done, total)))
    assert lines == [(17, 17)]
