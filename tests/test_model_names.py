"""Short names of models: hub files, which are used from the cache without network, and errors that name what to do."""

import shutil
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest

from checkpoint_files import AUDIO, open_checkpoint
from mlx_ltx_vae import (
    AudioVAE,
    CheckpointError,
    PreviewVAE,
    VideoVAE,
    VideoWriter,
    convert,
    decode,
    encode,
    preview,
    save_latents,
)
from mlx_ltx_vae.checkpoint.locate import is_on_hub, parse_reference
from mlx_ltx_vae.errors import telling_notes
from mlx_ltx_vae.model_table import MODELS, Kind, latents_of, models_for, models_of

hub = pytest.importorskip("huggingface_hub")


def test_names_are_unique_and_plain():
    for kind in Kind:
        names = [name for model in MODELS if model.kind is kind for name in model.names]
        assert len(names) == len(set(names)) == len(models_of(kind))
    assert not models_of(Kind.VIDEO).keys() & models_of(Kind.PREVIEW).keys()  # both are named with -m
    for model in MODELS:
        assert parse_reference(model.source)[0] == model.source.partition(":")[0]
        for _, inner in map(parse_reference, model.sources):
            assert inner is None or inner.endswith(".safetensors")
        assert all(name == name.lower() and "/" not in name for name in model.names) and model.latents


def test_a_cached_model_is_opened_by_its_name_without_a_look_at_the_hub(golden, hub_cache, monkeypatch):
    hub_cache("ltx-2.3", golden("ltx2_3").checkpoint)

    class Api:
        def model_info(self, *arguments, **options):
            raise AssertionError("the hub was asked")

    monkeypatch.setattr(hub, "HfApi", Api)
    for name in ("ltx-2.3", "LTX-2.3"):
        checkpoint = open_checkpoint(name)
        assert checkpoint.name == "Kijai/LTX2.3_comfy:vae/LTX23_video_vae_bf16.safetensors"
        assert checkpoint.config.generation == "LTX-2.3"
    assert VideoVAE.from_pretrained("ltx-2.3", encoder=False).config.generation == "LTX-2.3"
    assert is_on_hub("ltx-2.3")


def test_a_diffusers_repository_is_opened_by_its_name(golden, audio_case, hub_cache):
    """The tensors of both fixtures tell what they are, so that no configuration is needed."""
    video, audio = golden("ltx2").checkpoint, audio_case("ltx2").checkpoint
    names = ("audio_vae/diffusion_pytorch_model.safetensors", "vocoder/diffusion_pytorch_model.safetensors")
    hub_cache("ltx-2", {"vae/diffusion_pytorch_model.safetensors": video, **dict.fromkeys(names, audio)})
    assert open_checkpoint("ltx-2").config.generation == "LTX-2"
    assert open_checkpoint("ltx-2", medium=AUDIO).config.generation == "LTX-2 audio"


@pytest.mark.parametrize("number", [0, 1])
def test_an_audio_model_has_the_names_of_its_releases(audio_case, hub_cache, number):
    hub_cache("ltx-2.3", audio_case("ltx2_3").checkpoint, is_audio=True, number=number)
    for name in ("ltx-2.3", "ltx-2.5"):
        assert AudioVAE.from_pretrained(name).config.generation == "LTX-2.3 audio"
    problem = r"its cache has no vae/LTX23_video_vae_bf16\.safetensors; check" if number == 0 else "is not in the cache"
    with pytest.raises(CheckpointError, match=problem):
        open_checkpoint("ltx-2.3")  # the video VAE is another file


def test_a_preview_model_is_opened_by_its_name(golden, hub_cache):
    hub_cache("taeltx-2.3", golden("taehv_ltx2").checkpoint)
    assert PreviewVAE.from_pretrained("taeltx-2.3").config.latent_channels == 128


def test_a_name_on_the_disk_wins(golden, hub_cache, tmp_path):
    hub_cache("ltx-2.3", golden("ltx2_3").checkpoint)
    shutil.copy(golden("ltx2").checkpoint, tmp_path / "ltx-2.3")
    assert open_checkpoint("ltx-2.3").config.generation == "LTX-2"
    assert not is_on_hub("ltx-2.3")


def test_a_gated_model_says_how_to_get_it(hub_cache):
    file = r"Kijai/LTX2\.3_comfy:vae/LTX23_video_vae_bf16\.safetensors"
    problem = rf"^ltx-2\.5: the hub cannot be read \(.*\), and {file} is not in the cache; check the network, or give"
    with pytest.raises(CheckpointError, match=problem):
        open_checkpoint("ltx-2.5")  # the file of ltx-2.3, which is not gated
    with pytest.raises(CheckpointError) as error:
        open_checkpoint("ltx-2.5-diffusion")
    assert str(error.value).startswith("ltx-2.5-diffusion: the hub cannot be read")
    assert "accept its license at https://huggingface.co/Lightricks/LTX-2.5, then log in with `hf auth login`" in str(
        error.value
    )


@pytest.mark.parametrize(
    ("source", "hint"),
    [("ltx-2.4", "did you mean ltx-2"), ("ltx2.3", "did you mean ltx-2.3"), ("vae", "give one of ltx-2.3, ltx-2.5,")],
)
def test_an_unknown_name_lists_the_names(hub_cache, source, hint):
    with pytest.raises(CheckpointError, match="no such file or folder") as error:
        open_checkpoint(source)
    assert hint in str(error.value)
    with pytest.raises(CheckpointError) as error:
        open_checkpoint("taeltx-2.3", medium=AUDIO)
    assert str(error.value).endswith("give one of ltx-2.3, ltx-2.5, ltx-2.")


@pytest.fixture
def inputs(hub_cache, tmp_path):
    """A folder with inputs of ltx-2.3 and outputs, and a hub that cannot be reached."""
    latents = mx.random.normal((1, 128, 2, 2, 2), key=mx.random.key(0))
    save_latents("clip.safetensors", latents)
    np.save("five.npy", np.array(latents[:, :5]))
    np.save("nan.npy", np.where(np.arange(2) == 0, np.nan, np.array(latents)))
    for name in ("out.mp4", "o/clip.mp4", "x.safetensors", "clip.latent"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    for name, channels, value in (("odd", 7, 0.0), ("voice", 8, np.inf), ("song", 8, 0.0)):
        audio_latents = mx.full((1, channels, 9, 16), value)
        mx.save_safetensors(f"{name}.safetensors", {"latents": latents, "audio_latents": audio_latents})
    with VideoWriter("film.mp4", size=(64, 64), fps=24) as writer:
        writer.write(np.zeros((9, 64, 64, 3), np.uint8))


@pytest.mark.parametrize("model", ["ltx-2.3", "ltx-2.5-diffusion", "prunavaed", "ltx-2"])
@pytest.mark.parametrize(
    ("main", "arguments", "error"),
    [
        (decode.main, "no.npy", "no.npy: there is no such file"),
        (decode.main, "clip.safetensors -o out.mp4", "out.mp4: already exists"),
        (decode.main, "clip.safetensors -o no/a.mp4", "no/a.mp4: cannot be written"),
        (decode.main, "clip.safetensors -o a.mp4 --memory-budget 1MB", "is too small"),
        (decode.main, "clip.safetensors -o a.mp4 --frames 99:", "none of 99:"),
        (decode.main, "five.npy", "have 5 channels where"),
        (decode.main, "nan.npy", "values are not finite"),
        (decode.main, "--join clip.safetensors no.npy -o a.mp4 --carry 1", "no.npy: there is no such file"),
        (decode.main, "no.npy five.npy -o o/", "2 of 2 inputs failed"),
        (decode.main, "odd.safetensors -o a.mp4 --audio-model ltx-2.3", "'audio_latents' have the shape"),
        (decode.main, "clip.safetensors -o a.mp4 --audio-model ltx-2.3", "has no audio latents"),
        (decode.main, "voice.safetensors -o a.mp4 --audio-model ltx-2.3", "values are not finite"),
        (decode.main, "voice.safetensors -o a.wav --audio-model ltx-2.3", "values are not finite"),
        (decode.main, "clip.safetensors -o a.wav --audio-model ltx-2.3", "has no audio latents"),
        (preview.main, "no.npy", "no.npy: there is no such file"),
    ],
)
def test_nothing_is_downloaded_for_a_decode_that_cannot_succeed(inputs, capsys, model, main, arguments, error):
    assert main([*arguments.split(), "-m", model]) == 1
    printed = capsys.readouterr().err
    assert error in printed and "hub" not in printed


@pytest.mark.parametrize("model", ["owner/name:vae.safetensors"])
@pytest.mark.parametrize(
    ("main", "arguments", "error"),
    [
        (decode.main, "no.npy", "no.npy: there is no such file"),
        (decode.main, "clip.safetensors -o out.mp4", "out.mp4: already exists"),
        (decode.main, "clip.safetensors nan.npy -o o/", "o/clip.mp4: already exists; add -y to replace it, or -n"),
        (decode.main, "clip.safetensors -o no/a.mp4", "no/a.mp4: cannot be written"),
        (decode.main, "nan.npy", "values are not finite"),
        (decode.main, "x.safetensors", "x.safetensors: "),
        (decode.main, "--join clip.safetensors no.npy -o a.mp4 --carry 1", "no.npy: there is no such file"),
        (decode.main, "no.npy nan.npy -o o/", "2 of 2 inputs failed"),
        (preview.main, "nan.npy -o a.png", "values are not finite"),
        (preview.main, "clip.safetensors -o out.mp4", "out.mp4: already exists"),
        (encode.main, "no.mp4", "no.mp4: there is no such file"),
        (encode.main, "out.mp4", "out.mp4: "),
        (encode.main, "film.mp4 -o x.safetensors", "x.safetensors: already exists"),
        (convert.main, "no.npy -o a.latent --unnormalized", "no.npy: there is no such file"),
        (convert.main, "clip.safetensors -o clip.latent", "clip.latent: already exists"),
    ],
)
def test_nothing_is_downloaded_from_a_hub_id_for_a_run_that_cannot_succeed(
    inputs, capsys, model, main, arguments, error
):
    try:
        code = main([*arguments.split(), "-m", model])
    except SystemExit as end:
        code = end.code
    assert code in (1, 2)
    printed = capsys.readouterr().err
    assert error in printed and "hub" not in printed


def test_a_folder_is_checked_before_a_conversion_downloads(inputs, capsys):
    assert convert.main(["owner/name", "-o", "o"]) == 1
    assert "o: already exists and is not an empty folder" in capsys.readouterr().err
    assert convert.main(["owner/name", "-o", "no/such"]) == 1
    assert "no/such: cannot be written (the folder " in capsys.readouterr().err


def test_an_audio_model_is_downloaded_when_all_else_is_checked(inputs, golden, capsys):
    """Of a video VAE that is there, and of one that is not."""
    vae = str(golden("ltx2_3").checkpoint)
    channels = open_checkpoint(vae).config.latent_channels
    np.save("small.npy", np.zeros((1, channels, 2, 2, 2), np.float32))
    for audio_model in ("ltx-2.3", "owner/audio"):
        for arguments in ("small.npy -o out.mp4", "small.npy -o a.mp4 --memory-budget 1MB", "no.npy"):
            assert decode.main([*arguments.split(), "-m", vae, "--audio-model", audio_model]) == 1
            assert "hub" not in capsys.readouterr().err
        assert encode.main(["film.mp4", "-o", "x.safetensors", "-m", vae, "--audio-model", audio_model]) == 1
        assert "x.safetensors: already exists" in capsys.readouterr().err
        assert encode.main(["film.mp4", "-o", "y.safetensors", "-m", vae, "--audio-model", audio_model]) == 1
        assert f"{audio_model}: " in capsys.readouterr().err
    for source, problem in (
        ("voice", "not finite"),
        ("clip", "has no audio latents"),
        ("song", "owner/audio: there is"),
    ):
        command = [f"{source}.safetensors", "-o", "a.wav", "--audio-model", "owner/audio"]
        assert decode.main(command) == 1
        assert problem in capsys.readouterr().err
    assert decode.main(["clip.safetensors", "-o", "o/", "-n", "-m", "owner/name"]) == 0
    assert "skipped, found o/clip.mp4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("no.mp4", "no.mp4: there is no such file"),
        ("film.mp4 -o x.safetensors", "x.safetensors: already exists"),
        ("x.safetensors -o y.safetensors", "x.safetensors: "),
        ("film.mp4 --size 63x64", "multiples of 32"),
        ("film.mp4 --memory-budget 1MB", "is too small"),
        ("no.mp4 none.mp4 -o o/", "2 of 2 inputs failed"),
    ],
)
def test_nothing_is_downloaded_for_an_encode_that_cannot_succeed(inputs, capsys, arguments, error):
    assert encode.main([*arguments.split(), "-m", "ltx-2.3"]) in (1, 2)
    printed = capsys.readouterr().err
    assert error in printed and "hub" not in printed


def test_a_model_is_downloaded_when_all_else_is_checked(inputs, tmp_path, capsys):
    audio = "song.safetensors -o a.mp4 --audio-model ltx-2.3"
    for main, arguments in ((decode.main, "clip.safetensors"), (decode.main, audio), (encode.main, "film.mp4 -y")):
        assert main([*arguments.split(), "-m", "ltx-2"]) == 1
        assert "ltx-2: the hub cannot be read" in capsys.readouterr().err
    assert decode.main(["clip.safetensors", "-o", "o/", "-n", "-m", "ltx-2"]) == 0
    assert "skipped, found o/clip.mp4" in capsys.readouterr().out
    assert not (tmp_path / "a.mp4").exists()


def test_the_first_download_says_its_size_and_license(golden, hub_cache, monkeypatch, tmp_path):
    source, notes = golden("ltx2_3").checkpoint, []

    class Api:
        def model_info(self, repo, *, timeout, files_metadata):
            siblings = [SimpleNamespace(rfilename="vae/LTX23_video_vae_bf16.safetensors", size=1_453_000_000)]
            return SimpleNamespace(siblings=siblings, card_data=None, gated=False)

    def snapshot_download(repo, *, allow_patterns, local_files_only):
        if local_files_only:
            raise FileNotFoundError("not cached")
        (tmp_path / "vae").mkdir()
        shutil.copy(source, tmp_path / "vae" / "LTX23_video_vae_bf16.safetensors")
        return str(tmp_path)

    monkeypatch.setattr(hub, "HfApi", Api)
    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    with telling_notes(notes.append):
        open_checkpoint("ltx-2.3")
    assert notes == [
        "Kijai/LTX2.3_comfy: downloads vae/LTX23_video_vae_bf16.safetensors (1.45 GB, license LTX-2 Community)"
    ]


def test_a_refused_download_of_a_gated_repository_says_what_to_do(hub_cache, monkeypatch):
    class Api:
        def model_info(self, repo, **options):
            name = "vae/ltx-2.5-video-vae-bf16.safetensors"
            return SimpleNamespace(siblings=[SimpleNamespace(rfilename=name)], gated="auto")

    def snapshot_download(repo, **options):
        raise ConnectionError("401")

    monkeypatch.setattr(hub, "HfApi", Api)
    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    with pytest.raises(CheckpointError, match=r"\(401\); accept its license at https://huggingface.co/Lightricks"):
        open_checkpoint("ltx-2.5-diffusion")


def test_latents_belong_to_models():
    for generation in ("LTX-2.3", "LTX-2.5"):  # one latent space
        names = [model.name for model in models_for(generation, Kind.VIDEO)]
        assert names == ["ltx-2.3", "ltx-2.5-diffusion", "prunavaed"]
        assert [model.names for model in models_for(generation, Kind.AUDIO)] == [("ltx-2.3", "ltx-2.5")]
    assert [model.name for model in models_for("LTX-2.5", Kind.PREVIEW)] == ["taeltx-2.3"]
    assert [model.name for model in models_for("LTX-2", Kind.AUDIO)] == ["ltx-2"]
    assert models_for(None, Kind.VIDEO) == []
    assert latents_of("PrunaVAED") == latents_of("LTX-2.3") == ("LTX-2.3", "LTX-2.5")
    assert latents_of("LTX-2.3", (2, 5)) == latents_of("LTX-2.5 diffusion") == ("LTX-2.5", "LTX-2.3")
    assert latents_of("LTX-2") == ("LTX-2",)
    assert latents_of("LTX-2.3", (2, 6)) == ("LTX-2.6",)  # a later release may have equal layers and other latents
    assert latents_of("custom") == ()


def test_a_preview_by_a_whole_vae_names_a_smaller_model(golden, tmp_path, capsys):
    vae, path = golden("small_ltx2_3").checkpoint, tmp_path / "a.safetensors"
    channels = open_checkpoint(vae).config.latent_channels
    save_latents(path, mx.random.normal((1, channels, 2, 2, 2), key=mx.random.key(0)))
    assert preview.main([str(path), "-m", str(vae), "-o", str(tmp_path / "a.npy")]) == 0
    remark = (
        f"{vae.name}: is a whole VAE (custom), whose previews take as long as decodes; use a tiny autoencoder (taeltx"
    )
    assert capsys.readouterr().err.startswith(f"warning: {remark}-2.3) or a projection.")


# --- MLX_LTX_VAE_MODEL ------------------------------------------------------------------------------------------------


def test_the_environment_names_the_model_of_decode_and_encode(golden, hub_cache, monkeypatch, tmp_path, capsys):
    hub_cache("ltx-2.3", golden("small_ltx2_3").checkpoint)
    frames = np.random.default_rng(0).integers(0, 256, (9, 64, 64, 3), np.uint8)
    with VideoWriter("clip.mp4", size=(64, 64), fps=24) as out:
        out.write(frames)
    monkeypatch.setenv("MLX_LTX_VAE_MODEL", "ltx-2.3")
    assert encode.main(["clip.mp4", "-o", "clip.safetensors"]) == 0
    out, err = capsys.readouterr()
    assert err.splitlines()[0] == "-m ltx-2.3, from MLX_LTX_VAE_MODEL"
    assert "LTX23_video_vae_bf16.safetensors (custom" in out
    assert decode.main(["clip.safetensors", "-o", "a.npy", "-q"]) == 0
    assert capsys.readouterr() == ("", "")
    # An option is preferred, and the demo has its own.
    assert decode.main(["clip.safetensors", "-o", "b.npy", "-m", "missing"]) == 1
    assert "missing: there is no such file or folder" in capsys.readouterr().err
    assert decode.main(["--demo", "--dry-run"]) == 0
    assert "MLX_LTX_VAE_MODEL" not in capsys.readouterr().err


def test_without_a_model_the_names_are_listed(monkeypatch, hub_cache, capsys):
    monkeypatch.delenv("MLX_LTX_VAE_MODEL", raising=False)
    with pytest.raises(SystemExit) as ended:
        encode.main(["clip.mp4"])
    assert ended.value.code == 2
    assert "give one of ltx-2.3, ltx-2.5, ltx-2.5-diffusion," in capsys.readouterr().err
