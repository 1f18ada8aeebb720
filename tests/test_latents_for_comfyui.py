"""Latents that ComfyUI's nodes load: `.latent` files by `encode` and `convert`, read by LoadLatent's own arithmetic.

ComfyUI's VAE normalizes latents of LTX by the checkpoint's statistics, and its `latent_formats.LTXV` has the scale 1,
so the values of a LATENT are those of this package.
"""

import json
import os
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file

from commands import convert, decode, encode
from mlx_ltx_vae import Keyframes, LatentsError, VideoVAE, WriterError, demo, load_latents, save_latents

LATENTS = mx.random.normal((2, 8, 3, 4, 5), key=mx.random.key(0))


def load_latent(path):
    """As the node does: float32, rescaled unless the file has the mark of the format."""
    assert os.fspath(path).endswith(".latent")  # the node lists no others
    tensors = load_file(path)
    multiplier = 1.0 if "latent_format_version_0" in tensors else 1.0 / 0.18215
    return tensors["latent_tensor"].astype(np.float32) * multiplier


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    path = tmp_path_factory.mktemp("video") / "clip.mp4"
    assert decode(["--demo", "--frames", "0:9", "-o", str(path), "-q"]) == 0
    return path


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16])
def test_load_latent_reads_the_saved_values(tmp_path, dtype):
    path = tmp_path / "clip.latent"
    save_latents(path, LATENTS.astype(dtype), fps=24, num_frames=17)
    values = load_latent(path)
    assert (values.shape, values.dtype) == (LATENTS.shape, np.float32)
    np.testing.assert_array_equal(values, np.array(LATENTS.astype(dtype)).astype(np.float32))
    shapes = {name: array.shape for name, array in load_file(path).items()}
    assert shapes == {"latent_tensor": LATENTS.shape, "latent_format_version_0": (0,)}
    latents, info = load_latents(path)
    assert mx.array_equal(latents, LATENTS.astype(dtype))
    assert (info.tensor, info.fps, info.num_frames) == ("latent_tensor", 24, 17)


def test_audio_and_keyframes_which_load_latent_does_not_read_are_refused(tmp_path):
    keyframes = Keyframes(LATENTS[:, :, :1], [0])
    for options in ({"audio": mx.zeros((2, 8, 5, 16))}, {"keyframes": keyframes}):
        with pytest.raises(WriterError, match=r"clip\.latent: ComfyUI reads no audio and no keyframes from it"):
            save_latents(tmp_path / "clip.latent", LATENTS, **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_encode_writes_what_load_latent_reads(clip, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for output in ("clip.safetensors", "clip.latent", "folder/{name}-latents.latent"):
        assert encode([str(clip), "--demo", "-o", output, "-q"]) == 0
    assert convert(["clip.safetensors", "-o", "converted.latent", "-q"]) == 0
    assert Path("converted.latent").read_bytes() == Path("clip.latent").read_bytes()  # also what the metadata states
    expected = np.array(load_latents("clip.safetensors")[0].astype(mx.float32))
    for path in ("clip.latent", "folder/clip-latents.latent"):
        tensors = mx.load(path, format="safetensors")
        assert "latent_format_version_0" in tensors
        np.testing.assert_array_equal(np.array(tensors["latent_tensor"].astype(mx.float32)), expected)
    assert decode(["clip.latent", "-m", str(demo.VAE), "-o", "back.mp4", "-q"]) == 0
    before = os.stat("clip.latent")
    assert encode([str(clip), "--demo", "-o", "clip.latent", "-q"]) == 1
    assert "clip.latent: already exists; choose another name, or add -y" in capsys.readouterr().err
    assert os.stat("clip.latent").st_mtime_ns == before.st_mtime_ns
    with pytest.raises(SystemExit, match="2"):
        encode([str(clip), "--demo", "--audio-model", "audio", "-o", "other.latent"])
    assert "ComfyUI reads no audio from it" in capsys.readouterr().err


def test_convert_makes_it_of_saved_latents(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    audio = mx.random.normal((2, 8, 5, 16), key=mx.random.key(1))
    save_latents("clip.safetensors", LATENTS, fps=25, audio=audio)
    np.save("clip.npy", np.array(LATENTS))
    mx.save_safetensors("packed.safetensors", {"latents": LATENTS.transpose(0, 2, 3, 4, 1).reshape(2, -1, 8)})
    for source, options in (("clip.safetensors", []), ("clip.npy", []), ("packed.safetensors", ["--grid", "3x4x5"])):
        assert convert([source, "-o", f"{source}.latent", "--json", *options]) == 0
        out, err = capsys.readouterr()
        report = json.loads(out)
        assert (report["output"], report["latent_shape"]) == (f"{source}.latent", [2, 8, 3, 4, 5])
        assert ("no audio" in err) == (source == "clip.safetensors")
        np.testing.assert_array_equal(load_latent(f"{source}.latent"), np.array(LATENTS))
    assert load_latents("clip.safetensors.latent")[1].fps == 25
    assert convert(["clip.npy", "-o", "half.latent", "--dtype", "float16", "-q"]) == 0
    assert load_file("half.latent")["latent_tensor"].dtype == np.float16


def test_convert_normalizes_unnormalized_latents(golden, tmp_path):
    source = golden("ltx2_3").checkpoint
    vae = VideoVAE.from_pretrained(source, encoder=False)
    mean, std = (np.array(array).reshape(1, -1, 1, 1, 1) for array in (vae.mean, vae.std))
    np.save(tmp_path / "clip.npy", np.array(LATENTS) * std + mean)
    output = tmp_path / "clip.latent"
    assert convert([str(tmp_path / "clip.npy"), "-o", str(output), "-m", str(source), "--unnormalized", "-q"]) == 0
    np.testing.assert_allclose(load_latent(output), np.array(LATENTS), atol=1e-5)


def test_convert_replaces_no_file_without_y_and_never_its_input(tmp_path, capsys):
    source, output = tmp_path / "clip.latent", tmp_path / "other.latent"
    save_latents(source, LATENTS)
    output.write_bytes(b"mine")
    assert convert([str(source), "-o", str(output)]) == 1
    assert "already exists" in capsys.readouterr().err
    assert output.read_bytes() == b"mine"
    assert convert([str(source), "-o", str(output), "-y", "-q"]) == 0
    np.testing.assert_array_equal(load_latent(output), np.array(LATENTS))
    assert convert([str(source), "-o", str(source), "-y"]) == 1
    assert "is one of the inputs" in capsys.readouterr().err
    for options in (["--only", "decoder", "-o", "x.latent"], ["-o", "folder", "-m", "vae"], ["-o", "folder", "-y"]):
        with pytest.raises(SystemExit, match="2"):
            convert([str(source), *options])


def test_a_checkpoint_is_no_source_of_latents(golden, tmp_path, capsys):
    assert convert([str(golden("ltx2_3").checkpoint), "-o", str(tmp_path / "x.latent")]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert not list(tmp_path.glob("*.latent"))


def test_values_that_are_not_finite_are_refused(tmp_path, capsys):
    with pytest.raises(LatentsError, match="not finite"):
        save_latents(tmp_path / "clip.latent", LATENTS * float("nan"))
