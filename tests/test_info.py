"""`info`: its descriptions of checkpoints and latents are true, and it reads no more than it needs."""

import json
import math
import re
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from checkpoint_files import as_an_mlx_port_stores
from commands import info as main
from conftest import CONV_CASES, FIXTURES, active_memory
from latent_files import LatentSpace
from many_files import refused as refused_by
from mlx_ltx_vae import PlanError, VideoVAE, demo, save_latents
from mlx_ltx_vae.inspect import format_report, inspect
from mlx_ltx_vae.planning.clip import lookahead, receptive_field
from mlx_ltx_vae.streaming.context import StreamContext
from mlx_ltx_vae.streaming.driver import run_whole
from test_checkpoint_diffusers import write_folder
from vae_configs import GENERATIONS, decoder_spec, parse_vae_config
from video_files import noise, write

CHECKPOINT_KEYS = {
    "kind", "name", "generation", "class", "configuration", "latent_channels", "patch_size", "scale", "causal_decoder",
    "timestep_conditioning", "encoder", "decoder", "receptive_field", "lookahead", "file_bytes", "vae_bytes", "plans",
}  # fmt: skip
NETWORK_KEYS = {
    "in_channels", "out_channels", "causal", "padding", "widths", "blocks", "parameters", "dtypes", "bytes",
    "weight_layout",
}  # fmt: skip
BLOCK_KEYS = {"kind", "in_channels", "out_channels", "layers", "stride", "residual", "inject_noise"}
LATENTS_KEYS = {
    "kind", "name", "tensor", "stored_shape", "stored_dtype", "layout", "shape", "generation",
    "vae_fingerprint", "fps", "normalized", "stated", "frames_read", "statistics", "video", "keyframes", "audio",
    "notices",
}  # fmt: skip


@pytest.fixture
def info(capsys):
    """`info(file, ...)`: the object that `--json` prints."""

    def run(*arguments):
        assert main([*map(str, arguments), "--json"]) == 0
        captured = capsys.readouterr()
        assert captured.err == ""
        return json.loads(captured.out)

    return run


@pytest.fixture
def text(capsys):
    """`text(file, ...)`: what a person sees after the summary, which some files have."""

    def run(*arguments):
        assert main([str(argument) for argument in arguments]) == 0
        return re.sub(r"\A(?!kind: ).*\n\n", "", capsys.readouterr().out)

    return run


@pytest.fixture
def refused(capsys):
    """`refused(file, ...)`: the one error line."""

    return partial(refused_by, capsys, main=main)


# --- the receptive field --------------------------------------------------------------------------------------------


def affected_pixels(vae, grid, at):
    """Which pixels (F, H, W) depend on one latent cell: those that are NaN when it is."""
    latents = np.zeros((1, *grid, vae.config.latent_channels), np.float32)
    latents[0][at] = np.nan
    timesteps = mx.array([0.05]) if vae.config.timestep_conditioning else None
    noise_maps = {name: mx.zeros(shape) for name, shape in vae.decoder.spec.noise_shapes(grid).items()}
    context = StreamContext(timesteps=timesteps, noise_maps=noise_maps)
    pixels = run_whole(vae.decoder.stages(context), mx.array(latents))
    return np.isnan(np.array(pixels)).any(axis=(0, 4))


def count_around(affected, first, last):
    """How many positions before `first` and after `last` are affected, without a gap."""
    found = np.flatnonzero(affected)
    assert not affected[[0, -1]].any(), "the clip is too small to see where it ends"
    assert len(found) == found[-1] - found[0] + 1
    return int(first - found[0]), int(found[-1] - last)


@pytest.mark.quick(2)
@pytest.mark.parametrize("case", ["ltxv_0_9_0", "ltx2_3", "ltx2_3_causal", "ltx2_3_reflect", "conv_16x16x4"])
def test_the_receptive_field_is_what_one_latent_cell_changes(golden, case):
    vae = VideoVAE.from_pretrained(golden(case).checkpoint, encoder=False)
    field, scale = receptive_field(vae.decoder.spec), vae.config.scale
    # A latent frame is seen by later frames as far as these see back, and by earlier ones as far as they see ahead.
    at = 2 + math.ceil(field.frames_after)
    frames = affected_pixels(vae, (at + 3 + math.ceil(field.frames_before), 2, 2), (at, 0, 0)).any(axis=(1, 2))
    expected = (field.frames_after * scale.time, field.frames_before * scale.time)
    assert count_around(frames, scale.time * (at - 1) + 1, scale.time * at) == expected
    if field.cells is None:
        assert affected_pixels(vae, (1, 2, 9), (0, 0, 4)).all()
    else:
        at = 2 + math.ceil(field.cells)
        columns = affected_pixels(vae, (1, 2, 2 * at + 1), (0, 0, at)).any(axis=(0, 1))
        expected = (field.cells * scale.width,) * 2
        assert count_around(columns, scale.width * at, scale.width * (at + 1) - 1) == expected


def test_the_receptive_field_of_ltx_2_3_at_its_real_widths():
    config = parse_vae_config(GENERATIONS["LTX-2.3"], "")
    assert receptive_field(decoder_spec(config)) == (13.5, 13.5, 15.125)


# --- checkpoints ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CONV_CASES[::2] + ["pruna"])
def test_a_checkpoint_is_described_as_it_is(golden, info, case):
    path, manifest = golden(case).checkpoint, golden(case).manifest
    config = parse_vae_config(manifest["vae_config"], case)
    said = info(path)
    assert said.keys() == CHECKPOINT_KEYS | ({"work_relative_to_ltx_2_3"} if case == "pruna" else set())
    assert (said["kind"], said["name"], said["configuration"]) == ("checkpoint", path.name, "stated")
    assert (said["generation"], said["class"]) == (config.generation, "CausalVideoAutoencoder")
    assert (said["latent_channels"], said["patch_size"]) == (config.latent_channels, config.patch_size)
    assert said["scale"] == config.scale._asdict()
    assert said["causal_decoder"] is config.causal_decoder
    assert said["timestep_conditioning"] is config.timestep_conditioning
    assert said["receptive_field"] == receptive_field(decoder_spec(config))._asdict()
    assert said["lookahead"] == lookahead(decoder_spec(config))
    assert said["file_bytes"] == path.stat().st_size
    parameters = 0
    for name, network in (("encoder", config.encoder), ("decoder", config.decoder)):
        prefixes = (f"vae.{name}.", f"{name}.")
        sizes = [math.prod(shape) for key, shape in manifest["weights"].items() if key.startswith(prefixes)]
        if not sizes:
            assert said[name] is None
            continue
        assert said[name].keys() == NETWORK_KEYS
        assert said[name]["parameters"] == sum(sizes)
        assert said[name]["dtypes"] == {"float32": sum(sizes)}
        assert said[name]["bytes"] == 4 * sum(sizes)
        assert (said[name]["causal"], said[name]["padding"]) == (network.options.causal, network.options.padding.value)
        assert said[name]["weight_layout"] == "O, I, D, H, W"
        assert_blocks(said[name]["blocks"], manifest["vae_config"], name)
        parameters += sum(sizes)
    assert said["vae_bytes"] == 4 * parameters


def assert_blocks(blocks, raw_config, network):
    """They are those of the configuration, in the order of the data flow, with widths that match."""
    listed = raw_config.get(f"{network}_blocks", raw_config.get("blocks"))
    listed = listed if network == "encoder" else listed[::-1]
    for block, (name, options) in zip(blocks, listed, strict=True):
        assert block.keys() == BLOCK_KEYS
        assert block["stride"] == [1 + (word in name) for word in ("time", "space", "space")] or "all" in name
        if name == "res_x":
            assert block["layers"] == (options if isinstance(options, int) else options["num_layers"])
    for before, after in zip(blocks, blocks[1:], strict=False):
        assert before["out_channels"] == after["in_channels"]


@pytest.mark.quick(1)
@pytest.mark.parametrize("case", ["ltxv_0_9_1", "ltx2_3", "conv_16x16x4"])
def test_planned_videos_are_those_of_the_vae(golden, info, case):
    vae = VideoVAE.from_pretrained(golden(case).checkpoint, encoder=False)
    plans = info(golden(case).checkpoint)["plans"]
    assert [(plan["width"], plan["height"], plan["frames"]) for plan in plans] == [
        (768, 512, 121),
        (1280, 704, 121),
        (1920, 1088, 121),
    ]
    for plan in plans:
        try:
            single = vae.plan(plan["latent_shape"], mode="single").peak_bytes
        except PlanError:
            single = None
        assert plan == vae.plan(plan["latent_shape"]).as_dict() | {"single_pass_peak_bytes": single}


def test_the_text_is_the_json_line_by_line():
    report = {
        "kind": "checkpoint", "name": "a\x1b.b", "file_bytes": 2_420_000_000, "fps": 24000 / 1001, "seconds": 1 / 24,
        "normalized": None, "audio": None, "is_variable": True, "shape": [1, 128, 16],
        "scale": {"time": 8, "height": 32},
        "decoder": {"parameters": 1234567, "blocks": [{"kind": "up", "stride": [1, 2, 2]}, {"kind": "residual x"}]},
        "plans": [{"x" * 60: 1, "mode": "y" * 45}, {"mode": "exact"}], "metadata": {}, "notices": ["first", "second"],
    }  # fmt: skip
    assert format_report(report).splitlines() == [
        "kind: checkpoint", "name: a\\x1b.b", "file_bytes: 2.42 GB", "fps: 23.976", "seconds: 0.04",
        "normalized: not stated; assumed", "audio: none", "is_variable: yes", "shape: 1, 128, 16",
        "scale: time 8, height 32", "decoder:", "  parameters: 1,234,567", "  blocks:", "    kind        stride",
        "    up          1, 2, 2", "    residual x  none", "plans:", f"  {'x' * 60}  1{' ' * 46}none",
        f"  mode{' ' * 58}{'y' * 45}  exact", "metadata: none", "notices:", "  first", "  second",
    ]  # fmt: skip


@pytest.mark.quick(2)
@pytest.mark.parametrize("case", CONV_CASES[::3])
def test_a_report_fits_a_terminal(golden, info, text, case):
    path = golden(case).checkpoint
    shown = text(path)
    assert max(map(len, shown.splitlines())) <= 100
    assert shown == format_report(info(path)) + "\n"


def test_a_missing_network_is_stated(golden, text, info, tmp_path):
    tensors = load_file(golden("ltx2_3").checkpoint)
    path = tmp_path / "encoder.safetensors"
    save_file({name: array for name, array in tensors.items() if ".decoder." not in name}, path)
    assert "\ndecoder: none\nplans: none\n" in text(path)
    said = info(path)
    assert said["decoder"] is None
    assert said["plans"] == []
    assert said["vae_bytes"] == said["encoder"]["bytes"]


def test_the_configuration_of_an_mlx_pack_is_inferred(golden, info, tmp_path):
    packs: dict[str, dict[str, np.ndarray]] = {"vae_encoder": {}, "vae_decoder": {}}
    for name, array in load_file(golden("ltx2_3").checkpoint).items():
        pack = packs["vae_encoder" if ".encoder." in name else "vae_decoder"]
        pack[name.removeprefix("vae.")] = as_an_mlx_port_stores(name, array)
    for name, tensors in packs.items():
        save_file(tensors, tmp_path / f"{name}.safetensors")
    said = info(tmp_path)
    assert (said["generation"], said["configuration"]) == ("LTX-2.3", "inferred")
    assert {said[network]["weight_layout"] for network in ("encoder", "decoder")} == {"O, D, H, W, I"}
    assert said["file_bytes"] == sum(path.stat().st_size for path in tmp_path.iterdir())


def test_a_diffusers_folder_is_named_by_its_own_class(golden, info, tmp_path):
    write_folder(tmp_path, "ltx2_3", load_file(golden("ltx2_3").checkpoint))
    said, original = info(tmp_path), info(golden("ltx2_3").checkpoint)
    assert (said["name"], said["class"]) == (tmp_path.name, "AutoencoderKLLTX2Video")
    same = {"generation", "scale", "encoder", "decoder", "receptive_field", "vae_bytes"}
    assert {key: said[key] for key in same} == {key: original[key] for key in same}


def test_dtypes_are_counted(golden, info, tmp_path):
    tensors = mx.load(str(golden("ltx2_3").checkpoint))
    mixed = {name: array.astype(mx.bfloat16) if array.ndim == 5 else array for name, array in tensors.items()}
    kernels = sum(array.size for name, array in mixed.items() if ".decoder." in name and array.ndim == 5)
    path = tmp_path / "mixed.safetensors"
    mx.save_safetensors(str(path), mixed)
    said = info(path)["decoder"]
    assert said["dtypes"] == {"bfloat16": kernels, "float32": said["parameters"] - kernels}
    assert said["bytes"] == 2 * kernels + 4 * (said["parameters"] - kernels)


def write_real_widths(path):
    """LTX-2.3's VAE at its real widths beside 40 GB of transformer, headers only: the file is sparse.

    Returns the bytes of the VAE's networks.
    """
    manifests = [json.loads((FIXTURES / f"full_width_ltx2_3{suffix}.json").read_text()) for suffix in ("", "_encoder")]
    shapes = manifests[0]["weights"] | manifests[1]["weights"]
    header: dict[str, Any] = {"__metadata__": {"config": json.dumps({"vae": manifests[0]["vae_config"]})}}
    start = 0
    for name, shape in {**shapes, "model.diffusion_model.weight": [20_000, 1_000_000]}.items():
        stop = start + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, stop]}
        start = stop
    raw = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        file.truncate(8 + len(raw) + start)
    return sum(2 * math.prod(shape) for name, shape in shapes.items() if ".per_channel_statistics." not in name)


def test_only_the_headers_of_a_checkpoint_are_read(info, text, tmp_path, monkeypatch):
    path = tmp_path / "ltx-2.3-22b.safetensors"
    vae_bytes = write_real_widths(path)

    def refuse(*_arguments, **_options):
        raise AssertionError("a tensor was read")

    for reader in ("mlx.core.load", "numpy.fromfile", "numpy.memmap"):
        monkeypatch.setattr(reader, refuse)
    held = active_memory()
    mx.reset_peak_memory()
    said = info(path)
    assert mx.get_peak_memory() - held < 1e6
    assert said["generation"] == "LTX-2.3"
    assert said["file_bytes"] > 40e9
    assert said["vae_bytes"] == vae_bytes
    assert said["decoder"]["dtypes"] == {"bfloat16": said["decoder"]["parameters"]}
    shown = text(path)
    assert f"\nvae_bytes: {vae_bytes / 1e9:.2f} GB\n" in shown
    assert max(map(len, shown.splitlines())) <= 100


# --- latents --------------------------------------------------------------------------------------------------------


def test_the_demo_latents_are_described(info, text):
    said = info(demo.LATENTS)
    assert said.keys() == LATENTS_KEYS
    assert (said["kind"], said["tensor"], said["layout"]) == ("latents", "latents", "(B, C, F', H', W')")
    assert said["stored_shape"] == said["shape"] == [1, 64, 10, 8, 12]
    assert (said["stored_dtype"], said["fps"], said["normalized"]) == ("float32", 24.0, True)
    assert said["stated"] == {"frames": 73, "width": 384, "height": 256, "carry": None, "source_frames": None}
    assert said["video"] == {
        "frames": 73, "width": 384, "height": 256, "seconds": 73 / 24, "vae": None,
        "scale": {"time": 8, "height": 32, "width": 32},
    }  # fmt: skip
    assert said["statistics"]["channels_far_from_1"] == 0
    shown = text(demo.LATENTS)
    assert max(map(len, shown.splitlines())) <= 100
    assert "\n  seconds: 3.04\n" in shown
    assert "give -m VAE to be sure" in shown
    said = info(demo.LATENTS, "-m", demo.VAE)
    assert (said["video"]["vae"], said["notices"]) == (demo.VAE.name, [])


def test_padding_of_the_source_is_named_and_not_counted(info, tmp_path):
    latents, path = mx.random.normal((1, 64, 4, 2, 2), key=mx.random.key(0)), tmp_path / "clip.safetensors"
    for source_frames, frames in ((20, 20), (17, 25), (26, 25)):  # no padding: a shorter source, frames that were cut
        save_latents(path, latents, fps=25, num_frames=25, source_frames=source_frames)
        said = info(path)
        assert (said["stated"]["frames"], said["stated"]["source_frames"]) == (25, source_frames)
        assert (said["video"]["frames"], said["video"]["seconds"]) == (frames, frames / 25)
        notice = "the source has 20 frames; a decode leaves out 5 of padding"
        assert (notice in said["notices"]) is (source_frames == 20)


def test_statistics_are_those_of_the_values(info, tmp_path):
    generator = np.random.default_rng(1)
    latents = (generator.normal(size=(2, 4, 3, 5, 6)) * [[[[[0.1]]], [[[1]]], [[[5]]], [[[2]]]]]).astype(np.float32)
    np.save(tmp_path / "clip.npy", latents)
    said = info(tmp_path / "clip.npy")["statistics"]
    means, stds = latents.mean(axis=(0, 2, 3, 4)), latents.std(axis=(0, 2, 3, 4))
    expected = {
        "mean": latents.mean(), "std": latents.std(), "min": latents.min(), "max": latents.max(),
        "lowest_channel_mean": means.min(), "highest_channel_mean": means.max(),
        "lowest_channel_std": stds.min(), "highest_channel_std": stds.max(), "channels_far_from_1": 2,
    }  # fmt: skip
    assert said == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_what_the_file_does_not_state_is_null(info, text, tmp_path):
    np.savez(tmp_path / "clip.npz", samples=np.ones((2, 8, 1, 2, 3), np.float16))
    said = info(tmp_path / "clip.npz")
    assert (said["tensor"], said["stored_dtype"]) == ("samples", "float16")
    assert (said["fps"], said["normalized"]) == (None, None)
    assert set(said["stated"].values()) == {None}
    assert (said["video"]["frames"], said["video"]["seconds"]) == (1, 1 / 24)
    assert "the file states no frame rate; the seconds are at 24 fps" in said["notices"]
    notice = "8 of 8 channels have a std far from 1: perhaps not normalized, or a plain, still clip"
    assert notice in said["notices"]
    assert f"\n  {notice}\n" in text(tmp_path / "clip.npz")


def test_a_vae_makes_scale_and_layout_exact(golden, info, tmp_path):
    path = tmp_path / "clip.safetensors"
    stored = mx.random.normal((3, 5, 7, 8), key=mx.random.key(0)).astype(mx.bfloat16)
    mx.save_safetensors(str(path), {"latent": stored}, {"fps": "29.97", "num_frames": "9"})
    vae = golden("conv_16x16x4").checkpoint
    said = info(path, "-m", vae)
    assert (said["stored_shape"], said["stored_dtype"]) == ([3, 5, 7, 8], "bfloat16")
    assert (said["layout"], said["shape"]) == ("(F', H', W', C)", [1, 8, 3, 5, 7])
    assert said["video"]["vae"] == vae.name
    assert (said["video"]["frames"], said["video"]["width"], said["video"]["height"]) == (9, 16 * 7, 16 * 5)
    assert said["video"]["seconds"] == pytest.approx(9 * 1001 / 30000)


def test_a_stated_size_that_is_wrong_is_shown(info, tmp_path):
    path = tmp_path / "clip.safetensors"
    save_latents(path, mx.zeros((1, 8, 2, 2, 2)), num_frames=5, height=32, width=32)  # 16x16x4, which it does not say
    assert "the file states 5 frames of 32x32" in info(path)["notices"]


def test_packed_latents_take_a_grid_and_a_file_of_several_a_name(info, refused, tmp_path):
    path = tmp_path / "several.safetensors"
    save_file({"a": np.ones((1, 12, 8), np.float32), "b": np.ones(3, np.float32)}, path)
    assert "found 2 tensors (a, b)" in refused(path)
    assert "give it as --grid FxHxW" in refused(path, "--tensor", "a")
    said = info(path, "--tensor", "a", "--grid", "3x2x2")
    assert (said["layout"], said["shape"]) == ("(B, tokens, C)", [1, 8, 3, 2, 2])


def test_unnormalised_latents_are_normalised_with_the_vae(golden, info, refused, tmp_path):
    checkpoint = golden("ltx2_3").checkpoint
    vae = VideoVAE.from_pretrained(checkpoint, encoder=False)
    latents = mx.random.normal((1, 8, 3, 4, 5), key=mx.random.key(3))
    path = tmp_path / "foreign.safetensors"
    stored = latents * vae.std.reshape(-1, 1, 1, 1) + vae.mean.reshape(-1, 1, 1, 1)
    mx.save_safetensors(str(path), {"latents": stored}, {"normalized": "false"})
    assert "unnormalized; give -m VAE" in refused(path)
    said = info(path, "-m", checkpoint)
    assert said["normalized"] is False
    assert said["statistics"]["std"] == pytest.approx(mx.std(latents).item(), rel=1e-4)
    assert any(f"after their normalization with {checkpoint.name}" in notice for notice in said["notices"])


# --- neither, and the command line ----------------------------------------------------------------------------------


def test_the_content_of_a_file_decides_and_not_its_name(golden, info, tmp_path):
    vae, latents = tmp_path / "latents.latent", tmp_path / "vae.safetensors"
    vae.write_bytes(golden("ltx2_3").checkpoint.read_bytes())
    latents.write_bytes(demo.LATENTS.read_bytes())
    assert info(vae)["kind"] == "checkpoint"
    assert info(latents)["kind"] == "latents"


def test_a_file_that_is_neither_is_refused_in_one_sentence(golden, refused, tmp_path):
    lora = tmp_path / "lora.safetensors"
    save_file({f"lora.{index}.weight": np.ones((2, 2), np.float32) for index in range(4)}, lora)
    found = "found 4 tensors (lora.0.weight, lora.1.weight, lora.2.weight, ...)"
    assert found in refused(lora)
    empty = tmp_path / "empty.safetensors"
    save_file({}, empty)
    assert "found no tensor" in refused(empty)
    bias = tmp_path / "bias.safetensors"
    save_file({"bias": np.ones(3, np.float32)}, bias)
    assert "(3,)" in refused(bias)
    pointer = tmp_path / "pointer.safetensors"
    pointer.write_text("version https://git-lfs.github.com/spec/v1\n")
    assert "git lfs pull" in refused(pointer)
    prose = tmp_path / "notes.txt"
    prose.write_text("neither this nor that")
    assert "not a safetensors file" in refused(prose)
    assert "no such file" in refused(tmp_path / "missing.safetensors")
    folder = tmp_path / "empty"
    folder.mkdir()
    assert "no safetensors file" in refused(folder)
    quantized = tmp_path / "quantized.safetensors"
    tensors = load_file(golden("ltx2_3").checkpoint)
    save_file(tensors | {"vae.decoder.conv_in.conv.bias": np.ones(64, np.uint8)}, quantized)
    assert "stored as uint8" in refused(quantized)


def test_latents_that_are_not_finite_are_refused_with_their_number(refused, tmp_path):
    latents = np.zeros((1, 8, 2, 2, 2), np.float32)
    latents[0, 3, 1, 0, 1] = np.nan
    np.save(tmp_path / "nan.npy", latents)
    assert "1 of 32 values in [0:1, 0:8, 1:2, 0:2, 0:2] are not finite" in refused(tmp_path / "nan.npy")


def test_options_of_latents_are_refused_with_a_checkpoint(golden, audio_case, refused):
    path, audio = golden("ltx2_3").checkpoint, audio_case("ltx2").checkpoint
    for options in (["-m", path], ["--tensor", "latents"], ["--grid", "3x2x2"], ["--audio-model", audio]):
        assert "options of latents only" in refused(path, *options)
    assert "which takes no such options" in refused(audio, "--audio-model", audio)
    assert "has no decoder and no vocoder" in refused(demo.LATENTS, "--audio-model", audio_case("encoder").checkpoint)


# --- audio latents --------------------------------------------------------------------------------------------------

AUDIO_KEYS = {
    "kind", "name", "tensor", "stored_shape", "stored_dtype", "layout", "batch", "latents", "normalized", "statistics",
    "audio", "notices",
}  # fmt: skip


def write_clip(path, audio, name="final_audio_latent", **metadata):
    """25 frames of a video, with audio latents."""
    save_file({"final_video_latent": np.ones((1, 8, 4, 2, 2), np.float32), name: audio}, path, metadata=metadata)
    return path


def test_audio_latents_beside_those_of_a_video_are_described(audio_case, info, text, tmp_path):
    audio = np.random.default_rng(0).normal(size=(1, 8, 26, 16)).astype(np.float16)
    path = write_clip(tmp_path / "clip.safetensors", audio, fps="24", normalized="true")
    said = info(path)["audio"]
    assert said.keys() == AUDIO_KEYS
    assert (said["kind"], said["tensor"], said["stored_shape"]) == (
        "audio latents",
        "final_audio_latent",
        [1, 8, 26, 16],
    )
    assert (said["stored_dtype"], said["layout"], said["batch"]) == ("float16", "(B, 8, T, 16)", 1)
    assert (said["latents"], said["normalized"]) == (26, True)
    expected = {"mean": audio.mean(), "std": audio.std(), "min": audio.min(), "max": audio.max()}
    assert said["statistics"] == pytest.approx({key: float(value) for key, value in expected.items()}, rel=1e-2)
    assert said["audio"] == {"seconds": 1.01, "samples": None, "sample_rate": None, "vae": None}
    assert "\naudio:\n  kind: audio latents\n" in text(path)
    model = audio_case("ltx2").checkpoint
    said = info(path, "--audio-model", model)["audio"]["audio"]
    assert said == {"seconds": 1.01, "samples": 24240, "sample_rate": 24000, "vae": model.name}


def test_a_checkpoint_of_both_describes_both(golden, audio_case, info, tmp_path):
    config = audio_case("ltx2").manifest["config"] | {"vae": golden("ltx2_3").manifest["vae_config"]}
    both = tmp_path / "model.safetensors"
    tensors = {**load_file(golden("ltx2_3").checkpoint), **load_file(audio_case("ltx2").checkpoint)}
    save_file(tensors, both, metadata={"config": json.dumps(config)})
    path = write_clip(tmp_path / "clip.safetensors", np.ones((1, 8, 26, 16), np.float32))
    said = info(path, "-m", both)
    assert said["video"]["vae"] == said["audio"]["audio"]["vae"] == "model.safetensors"
    assert info(path, "-m", golden("ltx2_3").checkpoint)["audio"]["audio"]["vae"] is None


def test_audio_that_does_not_fit_its_video_is_shown(info, tmp_path):
    path = write_clip(tmp_path / "clip.safetensors", np.ones((1, 8, 40, 16), np.float32), fps="25")
    notice = "the audio ends 0.57 s after the video; a decode fills or cuts at most 0.06 s"
    assert notice in info(path)["audio"]["notices"]


@pytest.mark.parametrize(
    ("name", "shape", "layout"),
    [
        ("latents", (8, 26, 16), "(8, T, 16)"),
        ("audio_latents", (1, 26, 128), "(B, T, 128)"),
        ("anything", (2, 8, 26, 16), "(B, 8, T, 16)"),
    ],
)
def test_audio_latents_alone_are_described(info, tmp_path, name, shape, layout):
    audio = np.ones(shape, np.float32)
    save_file({name: audio}, tmp_path / "a.safetensors", metadata={"normalized": "false"})
    said = info(tmp_path / "a.safetensors")
    assert said.keys() == AUDIO_KEYS
    assert (said["tensor"], said["layout"], said["latents"]) == (name, layout, 26)
    assert (said["normalized"], said["batch"]) == (False, shape[0] if len(shape) == 4 else 1)
    assert said["audio"]["seconds"] == 1.01
    if name != "audio_latents":
        np.save(tmp_path / "a.npy", audio)
        assert info(tmp_path / "a.npy")["layout"] == layout


def test_audio_latents_of_a_trainer_are_described_without_their_padding(info, tmp_path):
    path, audio = tmp_path / "clip.safetensors", np.ones((8, 26, 16), np.float32)
    save_file({"audio_latents_26x16x8_float32": audio, "audio_lengths_int32": np.array(20, np.int32)}, path)
    with pytest.warns(UserWarning, match="which leaves out 6 audio latents of padding"):
        assert inspect(str(path))["latents"] == 20
    save_file({"a": audio[None], "latents": np.ones((1, 8, 4, 2, 2), np.float32)}, path)
    assert info(path, "--audio-tensor", "a")["audio"]["tensor"] == "a"


def test_audio_latents_that_cannot_be_read(refused, tmp_path, capsys):
    """Of another shape, they are a warning beside a video; values that are not finite are an error."""
    path = write_clip(tmp_path / "clip.safetensors", np.ones((2, 24000), np.float32), "audio_samples")
    assert main([str(path)]) == 0
    captured = capsys.readouterr()
    assert "\naudio: none\n" in captured.out
    assert "audio latents 'audio_samples' have the shape (2, 24000); expected (B, 8, T, 16)" in captured.err
    broken = np.ones((1, 8, 26, 16), np.float32)
    broken[0, 3, 25, 7] = np.nan
    said = refused(write_clip(tmp_path / "clip.safetensors", broken))
    assert "audio latents 'final_audio_latent': 1 of 3328 values are not finite" in said
    assert "the first at (b, c, t, f) = (0, 3, 25, 7)" in said
    assert "has no vocoder" not in said


def test_a_video_under_another_name_is_found_beside_audio_latents(info, tmp_path):
    tensors = {"my_video": np.ones((1, 8, 4, 2, 2), np.float32), "audio_latents": np.ones((1, 8, 26, 16), np.float32)}
    save_file(tensors, tmp_path / "a.safetensors")
    said = info(tmp_path / "a.safetensors")
    assert (said["tensor"], said["audio"]["tensor"]) == ("my_video", "audio_latents")


# --- keyframes ------------------------------------------------------------------------------------------------------

STILLS = np.ones((2, 8, 3, 2, 2), np.float16)


@pytest.mark.parametrize("ending", ["safetensors", "npz"])
def test_keyframes_beside_latents_and_alone_are_described(info, text, tmp_path, ending):
    keyframes = {"keyframe_latents": STILLS, "keyframe_frame_indices": np.array([24, 8, 8])}
    for name, tensors in {"clip": {"video": np.ones((2, 8, 4, 2, 2), np.float32)}, "keys": {}}.items():
        path, tensors = tmp_path / f"{name}.{ending}", tensors | keyframes
        np.savez(path, **tensors) if ending == "npz" else save_file(tensors, path, {"normalized": "true"})
    normalized = None if ending == "npz" else True
    expected = {"kind": "keyframes", "frames": [24, 8, 8], "shape": [2, 8, 3, 2, 2], "stored_dtype": "float16"}
    for said in (info(tmp_path / f"clip.{ending}")["keyframes"], info(tmp_path / f"keys.{ending}")):
        assert {**expected, "normalized": normalized} == {key: said[key] for key in said if key != "name"}
    assert "\nkeyframes:\n  kind: keyframes\n" in text(tmp_path / f"clip.{ending}")
    assert text(tmp_path / f"keys.{ending}") == (
        f"kind: keyframes\nname: {tmp_path}/keys.{ending}\nframes: 24, 8, 8\nshape: 2, 8, 3, 2, 2\n"
        f"stored_dtype: float16\nnormalized: {'yes' if normalized else 'not stated; assumed'}\n"
    )


def test_bad_keyframes_are_a_warning_beside_latents_and_an_error_alone(refused, tmp_path, capsys):
    bad = {"keyframe_latents": STILLS, "keyframe_frame_indices": np.array([1, 2])}
    save_file({"latents": np.ones((2, 8, 4, 2, 2), np.float32), **bad}, tmp_path / "clip.safetensors")
    assert main([str(tmp_path / "clip.safetensors")]) == 0
    captured = capsys.readouterr()
    assert "clip.safetensors: keyframe_frame_indices has the shape (2,) in int64; expected (3,)" in captured.err
    assert "\nkeyframes: none\n" in captured.out
    save_file(bad, tmp_path / "keys.safetensors")
    assert "keys.safetensors: keyframe_frame_indices has the shape (2,) in int64" in refused(
        tmp_path / "keys.safetensors"
    )


def test_the_first_line_says_what_a_file_is(golden, audio_case, tmp_path, capsys):
    def first_line(path):
        assert main([str(path)]) == 0
        return capsys.readouterr().out.splitlines()[0]

    assert first_line(golden("ltx2_3").checkpoint) == "a VAE, LTX-2.3: encoder and decoder in float32, 11.4 MB"
    latents = mx.zeros((1, 128, 3, 2, 3)) + 0.5
    save_latents(tmp_path / "clip.safetensors", latents, fps=24, audio=mx.ones((1, 8, 9, 16)))
    expected = "latents of 17 frames of 96x64, 24 fps, with audio; for a VAE with 128 channels"
    assert first_line(tmp_path / "clip.safetensors") == expected
    save_latents(tmp_path / "clip.safetensors", latents, fps=24, space=LatentSpace("LTX-2.3", "0" * 16))
    expected = "latents of LTX-2.3, 17 frames of 96x64, 24 fps; fits ltx-2.3 and ltx-2.5-diffusion and prunavaed"
    assert first_line(tmp_path / "clip.safetensors") == expected
    for name, frames, size, end in (("a", 9, (96, 64), "encodes as it is"),
                                    ("b", 12, (100, 64), "encodes as 9 frames of 96x64 with --resize")):  # fmt: skip
        write(tmp_path / f"{name}.mkv", noise(frames, size), codec="ffv1")
        text = f"a video of {frames} frames of {size[0]}x{size[1]}, 24 fps; {end}"
        assert first_line(tmp_path / f"{name}.mkv") == text
