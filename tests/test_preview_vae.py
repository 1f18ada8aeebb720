"""The tiny autoencoders (TAEHV): golden data of their author's code, all modes, pushed latents, stills, names."""

import itertools
import json
import pickle
import zipfile

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from checkpoint_files import convert_checkpoint, open_checkpoint
from commands import decode, info
from examples.preview_while_denoising import DEMO_PREVIEW
from mlx_ltx_vae import CheckpointError, LatentsError, PreviewVAE, VideoVAE, demo, load_latents
from mlx_ltx_vae.backend.mlx_utils import psnr
from mlx_ltx_vae.networks.convolution.conv2d import Conv2d
from mlx_ltx_vae.networks.preview_vae.config import PreviewConfig
from mlx_ltx_vae.networks.preview_vae.networks import PreviewDecoder, PreviewEncoder
from mlx_ltx_vae.planning.clip import receptive_field
from mlx_ltx_vae.tiling import SpatialTilingConfig, TilingConfig
from tolerances import tolerance

CASES = ["taehv_ltx2", "taehv_ltx2_wide"]
CHANNELS = 6
STANDARD = PreviewConfig((16, 12, 8, 8), 8, None, CHANNELS)
WIDE = PreviewConfig((16, 8, 8, 4), None, 4, CHANNELS)
LIVELY = 2  # how much larger weights are than their usual start, so that pictures are not gray


def make(config):
    """A small one with random weights."""
    networks = [PreviewDecoder(config), PreviewEncoder(config) if config.encoder_width else None]
    for network in networks:
        for module in network.modules() if network else ():
            if isinstance(module, Conv2d):
                module.weight = module.weight * LIVELY
    return PreviewVAE(config, networks[1], networks[0])


@pytest.fixture(params=[STANDARD, WIDE], ids=["standard", "wide"])
def vae(request):
    return make(request.param)


def latents_of(frames=4, height=3, width=4, batch=1):
    return mx.random.normal((batch, CHANNELS, frames, height, width), key=mx.random.key(1))


def difference(one, other):
    assert one.shape == other.shape
    return mx.abs(one - other).max().item()


def compare_all(golden, name, dtype, modes):
    """Each check of a case: (its name, result in the network's range, expected)."""
    case = golden(name)
    vae = PreviewVAE.from_pretrained(case.checkpoint, dtype=dtype)
    for check, mode in itertools.product(case.manifest["checks"], modes):
        if mode != modes[0] and (check["op"] == "encode" or "time_upscale" in check):
            continue  # has no mode
        given = case.arrays[check["input"]]
        if check["op"] == "encode":
            result = vae.encode(given * 2 - 1)
        elif "time_upscale" in check:
            result = (vae.decode_stills(given, small=not any(check["space_upscale"])) + 1) / 2
        else:
            result = (vae.decode(given, vae.plan(given.shape, mode=mode)) + 1) / 2
        result = np.array(result.astype(mx.float32))
        assert list(result.shape) == check["full_shape"], check["name"]
        yield check["name"], case.select(result, check), case.arrays[check["expected"]]


@pytest.mark.golden
@pytest.mark.parametrize("name", CASES)
def test_float32_agrees_with_the_author_s_results(golden, name):
    for check, got, expected in compare_all(golden, name, "float32", ["single", "exact"]):
        limit = 1e-4 if check.startswith("encode") else 2e-5
        assert np.abs(got - expected).max() < tolerance(limit), check


@pytest.mark.golden
@pytest.mark.parametrize(("name", "dtype", "limit"), [(CASES[0], "bfloat16", 0.03), (CASES[1], "float16", 0.005)])
def test_half_precision_agrees_with_the_author_s_results(golden, name, dtype, limit, recwarn):
    for check, got, expected in compare_all(golden, name, dtype, ["exact"]):
        error = np.sqrt(np.mean((got - expected) ** 2) / np.mean(expected**2))
        assert error < limit, (check, error)
    assert not recwarn.list, "float16 is the precision of the published files"


@pytest.mark.parametrize("groups", [1, 2])
def test_products_give_what_mlx_s_convolution_gives(groups):
    conv = Conv2d((8, 3, 3, 6 // groups), groups=groups)
    conv.bias = mx.random.normal((8,))
    stored, x = conv.weight, mx.random.normal((2, 3, 40, 7, 6))
    conv.prepare()
    expected = mx.conv2d(x.flatten(0, 1), stored, padding=1, groups=groups) + conv.bias
    assert difference(conv(x, (1, 1)).flatten(0, 1), expected) < tolerance(1e-5)


def test_an_upsampled_convolution_gives_what_one_of_repeated_positions_gives():
    conv = Conv2d((8, 3, 3, 6), has_bias=False, is_upsampled=True)
    stored, x = conv.weight, mx.random.normal((2, 3, 5, 7, 6))
    conv.prepare()
    repeated = mx.repeat(mx.repeat(x.flatten(0, 1), 2, axis=1), 2, axis=2)
    assert difference(conv(x, (1, 1)).flatten(0, 1), mx.conv2d(repeated, stored, padding=1)) < tolerance(1e-5)
    plain = mx.conv2d(x.flatten(0, 1), stored, padding=1)
    assert difference(conv(x, (1, 1), upsamples=False).flatten(0, 1), plain) < tolerance(1e-5)


@pytest.mark.quick(3)
@pytest.mark.parametrize(("order", "chunk"), [("time", 1), ("time", 3), ("rows", 1), ("columns", 1)])
def test_it_streams_exactly_in_every_order(vae, order, chunk):
    latents = latents_of(batch=2)
    single = vae.decode(latents, vae.plan(latents.shape, mode="single"))
    plan = vae.plan(latents.shape, mode="exact", order=order, chunk=chunk)
    assert difference(vae.decode(latents, plan), single) < tolerance(1e-5)
    assert single.shape == (2, 3, 25, 96, 128)
    assert plan.lookahead == (1 if order == "time" else 4)
    assert mx.std(single).item() > 0.06
    assert -1 <= single.min().item() < single.max().item() <= 1


@pytest.mark.quick(4)
@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("order", ["time", "rows", "columns"])
def test_stills_are_the_same_in_every_order(vae, small, order):
    latents = latents_of()
    stills = VideoVAE(vae.config, None, vae.decoder.stills(small=small))
    plan = stills.plan(latents.shape, mode="exact", order=order, chunk=2)
    expected = vae.decode_stills(latents, small=small)
    assert expected.shape == ((1, 3, 4, 12, 16) if small else (1, 3, 4, 96, 128))
    assert difference(stills.decode(latents, plan), expected) < tolerance(1e-5)
    assert difference(vae.decoder.stills(small=small)(latents), expected) < tolerance(1e-5)


@pytest.mark.quick(1)
def test_tiles_that_see_enough_are_exact(vae):
    latents = latents_of(frames=2, height=2, width=45)
    cells = receptive_field(vae.decoder.spec).cells
    assert cells == (17.75 if vae.config.group_width is None else 12.5)
    tiling = TilingConfig(height_config=SpatialTilingConfig(64, 0), width_config=SpatialTilingConfig(40 * 32, 36 * 32))
    plan = vae.plan(latents.shape, mode="tiled", tiling=tiling)
    tiled, single = vae.decode(latents, plan), vae.decode(latents)
    assert plan.calls == 3
    middle = slice(int(np.ceil(cells)) * 32, 22 * 32)  # of the first tile: where it is blended with none, and sees all
    assert difference(tiled[..., : 2 * 32], single[..., : 2 * 32]) < tolerance(1e-5)
    assert difference(tiled[..., middle], single[..., middle]) < 0.5


def test_a_pixel_sees_no_further_than_its_receptive_field_says(vae):
    latents = latents_of(frames=1, height=1, width=40)
    before = vae.decode(latents)
    latents[..., 20] += 1
    changed = mx.abs(vae.decode(latents) - before).max(axis=(0, 1, 2, 3)) > 0
    columns = np.flatnonzero(np.array(changed))
    reach = receptive_field(vae.decoder.spec).cells * 32
    assert 20 * 32 - reach <= columns[0] < 20 * 32 and 21 * 32 <= columns[-1] < 21 * 32 + reach
    assert columns[0] < 20 * 32 - reach + 64  # and about as far


@pytest.mark.quick(1)
def test_memory_does_not_grow_with_the_clip(vae):
    peaks = []
    for frames in (8, 24):
        mx.synchronize()
        mx.reset_peak_memory()
        for chunk in vae.stream(latents_of(1) for _ in range(frames)):
            mx.eval(chunk.frames)
            del chunk
        peaks.append(mx.get_peak_memory())
    # Frames that stayed would double the peak. The CPU backend may free the last step's arrays late.
    assert peaks[1] < 1.5 * peaks[0]


@pytest.mark.quick(1)
def test_pushed_latents_give_their_frames_at_once(vae):
    latents = latents_of()
    expected = vae.decode(latents)
    for sizes in ([1, 1, 1, 1], [3, 1], [4]):  # clip after clip on one object
        parts = mx.split(latents, np.cumsum(sizes)[:-1].tolist(), axis=2)
        frames = [vae.push(np.array(part)) for part in parts]
        assert [each.shape[2] for each in frames] == [8 * size - 7 * (index == 0) for index, size in enumerate(sizes)]
        assert difference(mx.concatenate(frames, axis=2), expected) < tolerance(1e-5)
        assert vae.flush() is None
    assert vae.flush() is None


def test_a_clip_that_is_left_or_refused_does_not_touch_the_next(vae):
    latents = latents_of()
    expected = vae.decode(latents[:, :, :1])
    vae.push(latents[:, :, 2:])
    vae.flush()
    assert difference(vae.push(latents[:, :, :1]), expected) < tolerance(1e-5)
    with pytest.raises(LatentsError, match="only the frames may differ"):
        vae.push(latents_of(height=2))
    assert difference(vae.push(latents[:, :, :1]), expected) < tolerance(1e-5)
    other = PreviewVAE(vae.config, None, vae.decoder)
    assert difference(other.push(latents[:, :, :1]), expected) < tolerance(1e-5)
    for wrong in (latents[0], latents[:, :, :0], "clip.safetensors"):
        with pytest.raises(LatentsError, match="pushed latents are .*; expected an array"):
            vae.push(wrong)


def test_a_decoder_that_looks_ahead_holds_frames_back_until_the_end(golden):
    with pytest.warns(UserWarning, match=r"small_ltx2_3\.safetensors: is a whole VAE \(custom\), whose previews take"):
        vae = PreviewVAE.from_pretrained(golden("small_ltx2_3").checkpoint, dtype="float32")
    latents = mx.random.normal((1, vae.config.latent_channels, 18, 1, 1), key=mx.random.key(1))
    given = [vae.push(latents[:, :, frame : frame + 1]) for frame in range(18)]
    early = [each for each in given if each is not None]
    assert given[0] is None and early
    frames = mx.concatenate([*early, vae.flush()], axis=2)
    assert difference(frames, vae.decode(latents)) < tolerance(1e-5)
    with pytest.raises(CheckpointError, match=r"this decoder \(custom\) makes no stills; load a tiny autoencoder"):
        vae.decode_stills(latents)


@pytest.mark.parametrize("small", [False, True])
def test_stills_of_a_projection_are_its_pictures(recwarn, small):
    vae, latents = PreviewVAE.from_pretrained(demo.LATENT_RGB), load_latents(demo.LATENTS)[0][:, :, :3]
    weights = mx.load(str(demo.LATENT_RGB))
    weight, bias = weights["decoder.to_rgb.weight"].astype(mx.float32), weights["decoder.to_rgb.bias"]
    size = round((len(bias) / 3) ** 0.5)
    colors = (latents.astype(mx.float32).moveaxis(1, 4) @ weight.T + bias).reshape(*latents.shape[2:], size, size, 3)
    expected = colors.transpose(5, 0, 1, 3, 2, 4).reshape(1, 3, 3, latents.shape[3] * size, latents.shape[4] * size)
    assert difference(vae.decode_stills(latents, small=small), expected) < 1e-2
    assert not recwarn.list


def test_a_file_is_known_to_make_previews_before_it_is_loaded(golden, tmp_path, recwarn):
    (tmp_path / "damaged.safetensors").write_bytes(b"\1")
    previews = [demo.LATENT_RGB, golden("taehv_ltx2").checkpoint]
    others = [demo.VAE, golden("small_ltx2_3").checkpoint, tmp_path / "damaged.safetensors", tmp_path / "missing"]
    assert [PreviewVAE.can_load(path) for path in previews + others] == [True] * 2 + [False] * 4
    assert not PreviewVAE.can_load("taeltx-2.3")  # of the hub
    assert not recwarn.list


@pytest.mark.quick(2)
@pytest.mark.parametrize("frames", [1, 8, 9, 12, 17])
def test_frames_are_completed_by_the_last_one_and_encoded_alike_in_pieces(frames):
    vae = make(STANDARD)
    pixels = mx.random.uniform(-1, 1, (1, 3, frames, 64, 32), key=mx.random.key(2))
    missing = -frames % 8
    whole = mx.concatenate([pixels] + [pixels[:, :, -1:]] * missing, axis=2)
    expected = vae.encoder(whole)
    assert expected.shape == (1, CHANNELS, -(-frames // 8), 2, 1)
    assert difference(vae.encode(pixels), expected) < tolerance(1e-5)
    pieces = (pixels[:, :, frame : frame + 1] for frame in range(frames))
    assert difference(vae.encode(pieces), expected) < tolerance(1e-5)
    padded = vae.encode(pixels, pad=True)
    assert padded.shape[2] == 1 + -(-(frames - 1) // 8)


@pytest.fixture(scope="module")
def tensors(golden):
    return load_file(golden("taehv_ltx2").checkpoint)


@pytest.mark.parametrize(
    ("name", "generation", "model"),
    [
        ("taeltx2_3.safetensors", "taeltx2_3", "LTX-2.3, by the file's name"),
        ("taeltx_2.safetensors", "taeltx_2", "LTX-2, by the file's name"),
        ("mine.safetensors", "taeltx_2 or taeltx2_3", "LTX-2 or LTX-2.3: their files have equal shapes and differ by"),
    ],
)
def test_info_says_that_the_name_tells_the_model(tensors, tmp_path, capsys, name, generation, model):
    path = tmp_path / name
    save_file({key: array.astype(np.float16) for key, array in tensors.items()}, path)
    assert info([str(path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["generation"], said["lookahead"], said["latent_channels"]) == (generation, 1, 128)
    assert said["receptive_field"] == {"frames_before": 5.25, "frames_after": 0, "cells": 17.75}
    assert said["decoder"]["widths"] == [256, 128, 64, 64] and said["encoder"]["widths"] == [64]
    assert said["decoder"]["parameters"] + said["encoder"]["parameters"] == 11_759_728
    assert said["model"].startswith(model)


def test_a_wide_one_is_told_by_its_shapes(golden):
    assert open_checkpoint(golden("taehv_ltx2_wide").checkpoint).config.generation == "taeltx2_3_wide"


def test_the_commands_take_it_and_a_conversion_keeps_its_name(tensors, tmp_path):
    model, clip, out = (str(tmp_path / name) for name in ("taeltx_2.safetensors", "c.safetensors", "c.npy"))
    save_file(tensors, model)
    vae = PreviewVAE.from_pretrained(model)
    latents = vae.encode(np.random.default_rng(0).integers(0, 255, (12, 32, 64, 3), np.uint8))
    assert latents.shape[2] == 2
    mx.save_safetensors(clip, {"latents": latents})
    convert_checkpoint(open_checkpoint(model), tmp_path / "converted")
    assert open_checkpoint(tmp_path / "converted").config.generation == "taeltx_2"
    assert decode([clip, "-m", str(tmp_path / "converted"), "-o", out, "-q"]) == 0
    assert np.array_equal(np.load(out), vae.decode_uint8(latents)) and np.load(out).shape == (9, 32, 64, 3)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"decoder.1.weight": (256, 16, 3, 3)}, "its decoder .* with 16 latent channels and 48 values per patch"),
        ({"encoder.17.weight": (48, 64, 3, 3)}, "its encoder .* with 48 latent channels and 48 values per patch"),
    ],
)
def test_those_of_other_models_are_refused_by_shape(tensors, tmp_path, changes, text):
    path = tmp_path / "taew2_2.safetensors"
    save_file({**tensors, **{name: np.ones(shape, np.float32) for name, shape in changes.items()}}, path)
    with pytest.raises(CheckpointError, match=rf"taew2_2\.safetensors: {text}, and LTX's has 128 and 48; use"):
        PreviewVAE.from_pretrained(path)


@pytest.mark.parametrize(
    ("stated", "text"),
    [
        ({"latent_channels": "128"}, "latent_channels = '128'; expected a whole number from 1 to 4096; use the config"),
        ({"generation": 3}, "generation = 3; expected a string"),
        ({"patch_size": 8}, "the unknown key 'patch_size' = 8, which could change the result"),
    ],
)
def test_a_configuration_that_is_not_known_is_refused(tensors, tmp_path, stated, text):
    path = tmp_path / "tae.safetensors"
    save_file(tensors, path, {"config": json.dumps({"_class_name": "TAEHV", **stated})})
    with pytest.raises(CheckpointError, match=rf"^tae\.safetensors: its configuration has {text}"):
        PreviewVAE.from_pretrained(path)


@pytest.mark.parametrize("is_zip", [False, True])
def test_a_pickle_is_refused_with_the_lines_that_convert_it(tmp_path, is_zip):
    path = tmp_path / "taeltx2_3.pth"
    if is_zip:
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("archive/data.pkl", pickle.dumps({}))
    else:
        path.write_bytes(pickle.dumps({}))
    with pytest.raises(CheckpointError) as caught:
        PreviewVAE.from_pretrained(path)
    target = path.with_suffix(".safetensors")
    assert "torch.load(sys.argv[1], 'cpu', weights_only=True); " in str(caught.value)
    assert str(caught.value).endswith(f" {path} {target}")


def test_the_demo_s_preview_looks_like_the_demo():
    latents = load_latents(demo.LATENTS)[0][..., :6]
    given, other = latents[:, :, :3], latents[:, :, -3:]
    full, preview = VideoVAE.from_pretrained(demo.VAE, encoder=False), PreviewVAE.from_pretrained(DEMO_PREVIEW)
    assert repr(preview) == "PreviewVAE(demo, decoder, float16, 1.3 MB)"
    decoded, quick = full.decode(given), preview.decode(given)
    assert psnr(quick, decoded) > 20
    assert psnr(preview.decode(other), decoded) < 18, "another part of the clip is another picture"
    stills = preview.decode_stills(given)
    assert psnr(stills, decoded[:, :, ::8]) > 17, "a still stands for the last frame of its latent frame"
