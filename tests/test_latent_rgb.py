"""Linear projections from latents to small pictures: the arithmetic, the seams, and the one of the demo VAE."""

import json
import shutil
from fractions import Fraction

import mlx.core as mx
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from checkpoint_files import open_checkpoint
from commands import convert, decode, info
from mlx_ltx_vae import CheckpointError, LatentsError, ScaleFactors, VideoVAE, demo, load_latents, save_latents, tiling
from tolerances import tolerance
from video_files import psnr, read

CHANNELS = 5
STATED = {"scale": [4, 16, 16], "vae": "some VAE", "psnr": 21.5}


def weights(size, dtype=np.float32):
    generator = np.random.default_rng(size)
    shapes = {"decoder.to_rgb.weight": (3 * size**2, CHANNELS), "decoder.to_rgb.bias": (3 * size**2,)}
    return {name: (0.3 * generator.normal(size=shape)).astype(dtype) for name, shape in shapes.items()}


def write(path, size=2, stated=STATED, dtype=np.float32):
    metadata = None if stated is None else {"config": json.dumps({"latent_rgb": stated})}
    save_file(weights(size, dtype), path, metadata)
    return path


def projected(tensors, latents, size):
    """What the projection is, pixel by pixel: (B, 3, F, size*H, size*W)."""
    weight = tensors["decoder.to_rgb.weight"].reshape(size, size, 3, CHANNELS)
    bias = tensors["decoder.to_rgb.bias"].reshape(size, size, 3)
    batch, _, frames, rows, columns = latents.shape
    pixels = np.zeros((batch, 3, frames, rows * size, columns * size), np.float32)
    for row, column, color in np.ndindex(size, size, 3):
        values = np.tensordot(latents, weight[row, column, color], ([1], [0])) + bias[row, column, color]
        pixels[:, color, :, row::size, column::size] = values
    return pixels


@pytest.fixture(scope="module")
def latents():
    return np.random.default_rng(1).normal(size=(2, CHANNELS, 5, 3, 4)).astype(np.float32)


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "latent_rgb.safetensors")


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_a_cell_becomes_a_square_of_pixels(tmp_path, latents, size):
    vae = VideoVAE.from_pretrained(write(tmp_path / "a.safetensors", size), encoder=False)
    pixels = vae.decode(latents)
    expected = projected(weights(size), latents, size)
    assert pixels.shape == expected.shape == (2, 3, 5, 3 * size, 4 * size)
    assert np.abs(np.array(pixels) - expected).max() < tolerance(1e-5)
    assert mx.array_equal(vae.decoder(mx.array(latents)), pixels)


@pytest.mark.parametrize(("order", "chunk"), [("time", 1), ("time", 2), ("rows", 1), ("columns", 2)])
def test_a_stream_in_any_order_is_the_whole(path, latents, order, chunk):
    vae = VideoVAE.from_pretrained(path)
    plan = vae.plan(latents.shape, mode="exact", order=order, chunk=chunk)
    assert (*plan.video_grid, plan.lookahead) == (5, 6, 8, 1 if order == "time" else 5)
    chunks = list(vae.stream(latents, plan))
    assert len(chunks) > 1 or order != "time"
    streamed = mx.concatenate([chunk.pixels for chunk in chunks], axis=2)
    whole = vae.decode(latents, vae.plan(latents.shape, mode="single"))
    assert mx.abs(streamed - whole).max().item() < tolerance(1e-6)


def test_tiles_and_some_frames_are_those_of_the_whole(path, latents):
    vae = VideoVAE.from_pretrained(path)
    whole = vae.decode(latents)
    plan = vae.plan(latents.shape, mode="tiled", tiling=tiling.TilingConfig(tiling.SpatialTilingConfig(4, 2)))
    assert plan.calls > 1
    assert mx.abs(vae.decode(latents, plan) - whole).max().item() < tolerance(1e-5)
    some = vae.decode(latents, vae.plan(latents.shape, frames=(1, 4)))
    assert mx.abs(some - whole[:, :, 1:4]).max().item() < tolerance(1e-6)


def test_latents_are_projected_as_they_arrive(path, latents):
    vae = VideoVAE.from_pretrained(path)
    counts = []

    def arriving():
        for index in range(5):
            counts.append(index)
            yield mx.array(latents[:, :, index : index + 1])

    stream = vae.stream(arriving())
    first = next(stream)
    assert (first.start, counts) == (0, [0])  # nothing is waited for
    pixels = mx.concatenate([first.pixels, *(chunk.pixels for chunk in stream)], axis=2)
    assert mx.abs(pixels - vae.decode(latents)).max().item() < tolerance(1e-6)


def test_still_latents_may_repeat_a_patch(path):
    pixels = VideoVAE.from_pretrained(path).decode(mx.zeros((1, CHANNELS, 2, 3, 3)))
    assert mx.abs(pixels[..., :2, :2] - pixels[..., 2:4, 2:4]).max().item() == 0


def test_a_checkpoint_states_what_its_tensors_do_not(tmp_path, path):
    checkpoint = open_checkpoint(path)
    config = checkpoint.config
    assert (config.latent_channels, config.patch_size, config.vae, config.psnr) == (CHANNELS, 2, "some VAE", 21.5)
    assert (config.scale, config.time_scale, config.spatial_scale) == (ScaleFactors(4, 16, 16), 4, 16)
    assert checkpoint.spec("decoder").scale == ScaleFactors(1, 2, 2)
    assert checkpoint.raw_config == {"latent_rgb": STATED}
    bare = open_checkpoint(write(tmp_path / "bare.safetensors", 4, None))
    assert bare.is_inferred
    assert (bare.config.patch_size, bare.config.scale, bare.config.vae) == (4, ScaleFactors(8, 32, 32), None)
    with pytest.raises(CheckpointError, match="it has no encoder"):
        open_checkpoint(path, decoder=False)
    with pytest.raises(CheckpointError, match="has no encoder"):
        checkpoint.spec("encoder")


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ({"scale": [8, 32]}, "has scale = [8, 32]; expected three whole numbers"),
        ({"scale": [8, 32, 0]}, "expected three whole numbers"),
        ({"vae": 3}, "has vae = 3; expected a string"),
        ({"psnr": "good"}, "has psnr = 'good'; expected a number"),
        ({"psnr": float("nan")}, "expected a number"),
        ({"size": 3}, "has the unknown key 'size'"),
    ],
)
def test_a_configuration_that_is_not_known_is_refused(tmp_path, stated, said):
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(write(tmp_path / "a.safetensors", 2, stated))
    assert str(error.value).startswith("a.safetensors: its configuration ")
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("name", "array", "said"),
    [
        ("weight", np.ones((7, CHANNELS)), r"decoder\.to_rgb\.weight has the shape \(7, 5\); expected \(3\*p\*p, chan"),
        ("weight", np.ones((12,)), "expected"),
        ("weight", np.ones((0, CHANNELS)), "expected|empty|zero"),
        ("bias", np.ones((3,)), r"tensor decoder\.to_rgb\.bias has the shape"),
    ],
)
def test_damaged_tensors_are_refused(tmp_path, name, array, said):
    tensors = {**weights(2), f"decoder.to_rgb.{name}": array.astype(np.float32)}
    save_file(tensors, tmp_path / "a.safetensors")
    with pytest.raises(CheckpointError, match=said):
        VideoVAE.from_pretrained(tmp_path / "a.safetensors")


def test_latents_of_another_vae_are_refused(path):
    with pytest.raises(LatentsError, match="with 6 channels; this VAE decodes 5"):
        VideoVAE.from_pretrained(path).decode(mx.zeros((1, 6, 2, 2, 2)))


def test_a_video_of_it_takes_as_long_as_the_video(path, latents, tmp_path, capsys):
    clip, out = tmp_path / "clip.safetensors", tmp_path / "out.mkv"
    save_latents(clip, mx.array(latents[:1]), fps="24000/1001", num_frames=17, height=48, width=64)
    command = [str(clip), "-m", str(path), "-o", str(out), "--codec", "ffv1", "--json", "-y"]
    assert decode(command) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["frames"], report["width"], report["height"]) == (5, 8, 6)
    assert report["fps"] == float(Fraction(24000, 1001) * 5 / 17)
    assert np.array_equal(read(out, multiple=1), VideoVAE.from_pretrained(path).decode_uint8(latents[:1]))
    assert decode([*command, "--fps", "30", "--frames", "0.5s"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["fps"], report["frames"]) == (30 * 5 / 17, 5)


def test_info_says_what_it_is_and_conversion_keeps_it(path, latents, tmp_path, capsys):
    assert info([str(path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    named = [said[name] for name in ("generation", "patch_size", "fitted_to", "psnr")]
    assert named == ["latent_rgb", 2, "some VAE", 21.5]
    assert said["scale"] == {"time": 4, "height": 16, "width": 16}
    assert (said["plans"][0]["frames"], said["plans"][0]["width"]) == (31, 96)  # of 121 frames, 768 pixels wide
    assert convert([str(path), "-o", str(tmp_path / "converted"), "-q"]) == 0
    converted = open_checkpoint(tmp_path / "converted")
    assert converted.config == open_checkpoint(path).config
    assert mx.array_equal(*(VideoVAE.from_pretrained(source).decode(latents) for source in (converted, path)))


def test_the_files_of_both_kinds_are_not_confused(golden, path, tmp_path):
    conv, folder = golden("ltx2_3").checkpoint, tmp_path / "both"
    assert open_checkpoint(conv).family.name == "video_vae"
    folder.mkdir()
    shutil.copy(path, folder / "a.safetensors")
    shutil.copy(conv, folder / "b.safetensors")
    with pytest.raises(CheckpointError, match=r"several files contain a VAE; give one of a\.safetensors, b\.safe"):
        open_checkpoint(folder)
    both = tmp_path / "both.safetensors"  # the tensors of a whole VAE are more
    save_file({**load_file(conv), **weights(2)}, both, {"config": safe_open(conv, "np").metadata()["config"]})
    assert open_checkpoint(both).family.name == "video_vae"


@pytest.mark.slow
def test_the_projection_of_the_demo_vae_has_the_quality_that_it_states():
    """On a part of the demo clip, which it was not fitted to."""
    projection, vae = VideoVAE.from_pretrained(demo.LATENT_RGB), VideoVAE.from_pretrained(demo.VAE, encoder=False)
    assert (projection.config.patch_size, projection.config.vae) == (8, "the demo VAE")
    assert projection.config.scale == vae.config.scale
    assert demo.LATENT_RGB.stat().st_size < 30_000
    latents = load_latents(demo.LATENTS)[0][:, :, :4]
    frames = np.array(vae.decode(latents)[:, :, ::8].astype(mx.float32))
    squares = frames.reshape(1, 3, 4, 64, 4, 96, 4).mean((4, 6))

    def pictures(latents):
        return np.clip(np.array(projection.decode(latents).astype(mx.float32)), -1, 1)

    qualities = [psnr(pictures(latents)[:, :, index], squares[:, :, index], 2) for index in range(4)]
    assert abs(np.mean(qualities) - projection.config.psnr) < 2
    other = mx.random.permutation(latents, axis=1)
    assert psnr(pictures(other), squares, 2) < 15
