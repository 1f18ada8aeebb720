"""Latent files state the generation and the fingerprint of their VAE, and a decode by another VAE warns."""

import hashlib
import shutil
import struct
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from safetensors import safe_open

from checkpoint_files import open_checkpoint
from latent_files import LatentSpace
from mlx_ltx_vae import VideoVAE, VideoWriter, convert, decode, encode, load_latents, preview, save_latents


def metadata_of(path):
    with safe_open(str(path), "np") as file:
        return file.metadata()


def expected_fingerprint(mean, std):
    """Round to bfloat16 by the bits of float32, to nearest and ties to even."""
    digest = hashlib.sha256()
    for value in [*mean, *std]:
        (bits,) = struct.unpack("<I", struct.pack("<f", value))
        digest.update(struct.pack("<H", (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16))
    return digest.hexdigest()[:16]


@pytest.fixture
def clip(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with VideoWriter("clip.mp4", size=(64, 64), fps=24) as out:
        out.write(np.random.default_rng(0).integers(0, 256, (9, 64, 64, 3), np.uint8))
    return "clip.mp4"


def test_encode_states_the_vae(golden, clip, tmp_path, capsys):
    vae = shutil.copy(golden("ltx2_3").checkpoint, tmp_path / "LTX23_video_vae.safetensors")
    assert encode.main([clip, "-m", str(vae), "-o", "a.safetensors"]) == 0
    statistics = open_checkpoint(vae).read_statistics()
    fingerprint = expected_fingerprint(*(np.array(values) for values in statistics))
    assert metadata_of("a.safetensors").items() >= {"generation": "LTX-2.3", "vae_fingerprint": fingerprint}.items()
    assert load_latents("a.safetensors")[1].space == LatentSpace("LTX-2.3", fingerprint)
    capsys.readouterr()
    assert decode.main(["a.safetensors", "-m", str(vae), "-o", "a.npy"]) == 0
    assert capsys.readouterr().err == ""


def test_layers_that_two_releases_share_tell_their_one_latent_space(golden, tmp_path):
    names = {"vae": "LTX-2.3", "ltx-2.5-vae": "LTX-2.5", "LTX23": "LTX-2.3", "ltx-2-19b": "LTX-2.3"}
    for name, generation in {**names, "ltx3.1": "LTX-3.1"}.items():
        copy = shutil.copy(golden("ltx2_3").checkpoint, tmp_path / f"{name}.safetensors")
        assert open_checkpoint(copy).latent_space.generation == generation
    assert open_checkpoint(golden("ltx2").checkpoint).latent_space.generation == "LTX-2"
    assert open_checkpoint(golden("pruna").checkpoint).latent_space.generation == "LTX-2.3"


def test_a_conversion_keeps_the_release_that_its_source_states(golden, tmp_path, capsys):
    named = shutil.copy(golden("ltx2_3").checkpoint, tmp_path / "ltx-2.5-video-vae-conv-bf16.safetensors")
    assert convert.main([str(named), "-o", str(tmp_path / "vae")]) == 0
    assert "encoder and decoder (LTX-2.5), " in capsys.readouterr().out
    source, converted = open_checkpoint(named), open_checkpoint(tmp_path / "vae")
    assert converted.latent_space == source.latent_space
    assert converted.source.networks["decoder"]["generation"] == source.config.generation == "LTX-2.5"


def test_python_states_the_vae_that_it_is_given(golden, tmp_path):
    vae = VideoVAE.from_pretrained(golden("ltx2").checkpoint, decoder=False)
    shape = (1, vae.config.latent_channels, 2, 2, 2)
    save_latents(tmp_path / "a.safetensors", mx.zeros(shape), space=vae.latent_space)
    save_latents(tmp_path / "b.safetensors", mx.zeros(shape))
    assert vae.latent_space == open_checkpoint(golden("ltx2").checkpoint).latent_space
    assert load_latents(tmp_path / "a.safetensors")[1].space == vae.latent_space
    assert "generation" not in metadata_of(tmp_path / "b.safetensors")


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("space", "warning"),
    [
        (LatentSpace("LTX-2.3", "0" * 16), "its latents are of LTX-2.3, and {vae} is for LTX-2, so the frames will be"),
        (LatentSpace("LTX-2.3", None), "decode them with -m ltx-2.3."),
        (LatentSpace(None, "0" * 16), "its latents are of a VAE with other statistics than {vae}"),
        (LatentSpace("LTX-2", "0" * 16), None),  # two decoders of one release may have other statistics
        (LatentSpace("LTX-2.3", "own"), None),
        (LatentSpace(), None),
    ],
)
def test_a_decode_by_another_vae_warns(golden, tmp_path, capsys, space, warning):
    vae = open_checkpoint(golden("ltx2").checkpoint)
    own = vae.latent_space.fingerprint
    path, fingerprint = tmp_path / "clip.safetensors", own if space.fingerprint == "own" else space.fingerprint
    latents = mx.random.normal((1, vae.config.latent_channels, 2, 2, 2), key=mx.random.key(0))
    save_latents(path, latents, space=LatentSpace(space.generation, fingerprint))
    assert decode.main([str(path), "-m", str(golden("ltx2").checkpoint), "-o", str(tmp_path / "a.npy")]) == 0
    lines = capsys.readouterr().err.splitlines()
    if warning is None:
        assert lines == []
    else:
        assert len(lines) == 1 and lines[0].startswith(f"warning: {path}: its latents are ")
        assert warning.format(vae=vae.name) in lines[0]


@pytest.mark.parametrize("case", ["ltx2_3", "pruna", "ltx2_5_diffusion"])
def test_latents_of_two_releases_fit_the_vaes_of_both_unless_the_statistics_differ(golden, tmp_path, capsys, case):
    names = ["ltx-2.3.safetensors", "ltx-2.5.safetensors", "vae.safetensors"]
    vaes = [shutil.copy(golden(case).checkpoint, tmp_path / name) for name in names]
    own = open_checkpoint(vaes[0]).latent_space.fingerprint
    for vae in map(VideoVAE.from_pretrained, vaes):
        for generation in ("LTX-2.3", "LTX-2.5"):
            assert vae.describe_mismatch(LatentSpace(generation, None)) is None
            assert vae.describe_mismatch(LatentSpace(generation, own)) is None
            problem = vae.describe_mismatch(LatentSpace(generation, "0" * 16))
            assert problem == f"of a VAE with other statistics than {vae.source.name}"
        assert vae.describe_mismatch(LatentSpace("LTX-2", None)).startswith("of LTX-2, and ")
    channels = open_checkpoint(vaes[0]).config.latent_channels
    for vae, generation in zip(vaes, ("LTX-2.5", "LTX-2.3", "LTX-2.5"), strict=True):
        latents = mx.random.normal((1, channels, 2, 2, 2), key=mx.random.key(0))
        save_latents(tmp_path / "clip.safetensors", latents, space=LatentSpace(generation), overwrite=True)
        command = [str(tmp_path / "clip.safetensors"), "-m", str(vae), "-o", str(tmp_path / "a.npy"), "-y"]
        assert decode.main(command) == 0 and capsys.readouterr().err == ""
    other_space = LatentSpace("LTX-2.5", "0" * 16)
    save_latents(tmp_path / "clip.safetensors", latents, space=other_space, overwrite=True)
    assert decode.main(command) == 0
    problem = f"of a VAE with other statistics than {Path(vae).name}, so the frames will be wrong"
    assert f"{problem}; decode them with the VAE that they were made for." in capsys.readouterr().err


def test_a_preview_decoder_takes_two_generations(golden, tmp_path, capsys):
    tiny = shutil.copy(golden("taehv_ltx2").checkpoint, tmp_path / "taeltx2_3.safetensors")
    latents = mx.random.normal((1, 128, 2, 2, 2), key=mx.random.key(0))
    for generation, warns in (("LTX-2.5", False), ("LTX-2.3", False), ("LTX-2", True)):
        path = tmp_path / f"{generation}.safetensors"
        save_latents(path, latents, space=LatentSpace(generation, "0" * 16))
        assert preview.main([str(path), "-m", str(tiny), "-o", str(tmp_path / f"{generation}.npy")]) == 0
        err = capsys.readouterr().err
        assert ("is for LTX-2.3 and LTX-2.5, so the frames will be wrong" in err) is warns


def test_an_error_of_channels_names_the_generation(golden, tmp_path, capsys):
    path = tmp_path / "a.safetensors"
    save_latents(path, mx.zeros((1, 3, 2, 2, 2)))
    assert decode.main([str(path), "-m", str(golden("ltx2").checkpoint), "-o", str(tmp_path / "a.npy")]) == 1
    assert "(1, 3, 2, 2, 2) have 3 channels where LTX-2 has 8." in capsys.readouterr().err


def test_metadata_of_other_programs_is_no_error(tmp_path):
    np.savez(tmp_path / "a.npz", latents=np.zeros((1, 4, 1, 2, 2), np.float32), generation="LTX-2.5")
    np.savez(tmp_path / "b.npz", latents=np.zeros((1, 4, 1, 2, 2), np.float32), generation="third", vae_fingerprint="x")
    assert load_latents(tmp_path / "a.npz")[1].space == LatentSpace("LTX-2.5", None)
    assert load_latents(tmp_path / "b.npz")[1].space == LatentSpace()


# --- the model of the latents, without -m ---------------------------------------------------------------------------


@pytest.fixture
def latents_of(golden, hub_cache, monkeypatch):
    """`latents_of(name, space)`: a latent file for the layers of LTX-2.3."""
    monkeypatch.delenv("MLX_LTX_VAE_MODEL", raising=False)
    channels = open_checkpoint(golden("ltx2_3").checkpoint).config.latent_channels

    def make(name, space):
        save_latents(name, mx.random.normal((1, channels, 2, 2, 2), key=mx.random.key(0)), space=space)
        return name

    return make


def test_latents_choose_their_model_from_the_cache(golden, hub_cache, latents_of, capsys):
    hub_cache("ltx-2", {"vae/diffusion_pytorch_model.safetensors": golden("ltx2").checkpoint})
    hub_cache("ltx-2.3", golden("ltx2_3").checkpoint)
    latents_of("a.safetensors", LatentSpace("LTX-2.3"))
    assert decode.main(["a.safetensors", "-o", "a.npy"]) == 0
    out, err = capsys.readouterr()
    assert err == "-m ltx-2.3, for the latents of a.safetensors\n"
    assert "LTX23_video_vae_bf16.safetensors (LTX-2.3, convolutional decoder)" in out
    assert decode.main(["a.safetensors", "-o", "b.npy", "-m", str(golden("ltx2_3").checkpoint), "-q"]) == 0
    assert np.array_equal(np.load("a.npy"), np.load("b.npy"))


def test_a_fingerprint_alone_chooses_the_model(golden, hub_cache, latents_of, capsys):
    """As in the files of `run`, since an app's network does not tell its release."""
    hub_cache("ltx-2", {"vae/diffusion_pytorch_model.safetensors": golden("ltx2").checkpoint})
    hub_cache("ltx-2.3", golden("ltx2_3").checkpoint)
    fingerprint = open_checkpoint(golden("ltx2_3").checkpoint).latent_space.fingerprint
    latents_of("a.safetensors", LatentSpace(None, fingerprint))
    assert decode.main(["a.safetensors", "-o", "a.npy"]) == 0
    assert capsys.readouterr().err == "-m ltx-2.3, for the latents of a.safetensors\n"


@pytest.mark.parametrize(
    ("space", "error"),
    [
        (LatentSpace(), "-m VAE is missing, the checkpoint to decode with: give one of ltx-2.3"),
        (LatentSpace(None, "0" * 16), "-m VAE is missing, the checkpoint to decode with"),
        (
            LatentSpace("LTX-2.5"),
            "-m is missing, and a.safetensors is of LTX-2.5: give -m ltx-2.3 (1.5 GB, license LTX-2 Community), which",
        ),
    ],
)
def test_latents_whose_model_is_not_cached_name_it(latents_of, capsys, space, error):
    latents_of("a.safetensors", space)
    with pytest.raises(SystemExit) as ended:
        decode.main(["a.safetensors", "-o", "a.npy"])
    assert ended.value.code == 2 and capsys.readouterr().err.startswith(f"error: {error}")


def test_latents_of_two_models_are_not_decoded_by_one(golden, hub_cache, latents_of, capsys):
    hub_cache("ltx-2.3", golden("ltx2_3").checkpoint)
    Path("clips").mkdir()
    latents_of("clips/a.safetensors", LatentSpace("LTX-2.3"))
    latents_of("clips/b.safetensors", LatentSpace("LTX-2"))
    with pytest.raises(SystemExit):
        decode.main(["clips", "-o", "out/"])
    assert (
        "clips/a.safetensors is of LTX-2.3, clips/b.safetensors of LTX-2; decode them apart" in capsys.readouterr().err
    )
    Path("clips/b.safetensors").unlink()
    latents_of("clips/c.safetensors", LatentSpace("LTX-2.5"))
    assert decode.main(["clips", "-o", "{name}.npy"]) == 0
    assert "warning" not in capsys.readouterr().err
    assert np.array_equal(np.load("a.npy"), np.load("c.npy"))


@pytest.mark.parametrize("number", [0, 1])
def test_any_source_of_a_model_in_the_cache_serves_both_releases(golden, hub_cache, latents_of, capsys, number):
    hub_cache("ltx-2.3", golden("ltx2_3").checkpoint, number=number)
    for generation in ("LTX-2.3", "LTX-2.5"):
        latents_of(f"{generation}.safetensors", LatentSpace(generation))
        assert decode.main([f"{generation}.safetensors", "-o", f"{generation}.npy"]) == 0
        assert capsys.readouterr().err == f"-m ltx-2.3, for the latents of {generation}.safetensors\n"
    for name, generation in (("ltx-2.3", "LTX-2.3"), ("ltx-2.5", "LTX-2.5")):
        assert decode.main(["LTX-2.5.safetensors", "-m", name, "-o", f"{name}.npy"]) == 0
        out, err = capsys.readouterr()
        file = ("LTX23_video_vae_bf16", "ltx-2.5-video-vae-conv-bf16")[number]
        assert err == "" and f"{file}.safetensors ({generation}, convolutional decoder)" in out
        assert np.array_equal(np.load(f"{name}.npy"), np.load("LTX-2.3.npy"))


@pytest.mark.parametrize("generation", ["LTX-2.3", "LTX-2.5"])
def test_latents_choose_their_preview_and_their_audio_model(
    golden, audio_case, hub_cache, latents_of, capsys, generation
):
    hub_cache("taeltx-2.3", golden("taehv_ltx2").checkpoint)
    hub_cache("ltx-2.3", audio_case("ltx2_3").checkpoint, is_audio=True)
    video, audio = (mx.random.normal(shape, key=mx.random.key(0)) for shape in ((1, 128, 2, 2, 2), (1, 8, 9, 16)))
    save_latents("a.safetensors", video, audio=audio, fps=24, space=LatentSpace(generation))
    assert preview.main(["a.safetensors", "-o", "a.npy"]) == 0
    assert capsys.readouterr().err == "-m taeltx-2.3, for the latents of a.safetensors\n"
    assert decode.main(["a.safetensors", "-o", "a.wav"]) == 0
    assert capsys.readouterr().err == "--audio-model ltx-2.3, for the latents of a.safetensors\n"
    assert Path("a.wav").stat().st_size > 1000
