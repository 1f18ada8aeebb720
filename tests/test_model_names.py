"""Short names of models: hub files, which are used from the cache without network, and errors that name what to do."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from mlx_ltx_vae import AudioVAE, PreviewVAE, VideoVAE, VideoWriter, decode, encode
from mlx_ltx_vae.checkpoint import open_checkpoint
from mlx_ltx_vae.checkpoint.locate import is_on_hub, parse_reference
from mlx_ltx_vae.errors import CheckpointError, telling_notes
from mlx_ltx_vae.model_table import MODELS, Kind, latents_of, models_for, models_of
from mlx_ltx_vae.models.base import SOUND

hub = pytest.importorskip("huggingface_hub")


def test_names_are_unique_and_plain():
    for kind in Kind:
        names = [model.name for model in MODELS if model.kind is kind]
        assert len(names) == len(set(names)) == len(models_of(kind))
    assert not models_of(Kind.VIDEO).keys() & models_of(Kind.PREVIEW).keys()  # both are named with -m
    for model in MODELS:
        repo, inner = parse_reference(model.source)
        assert repo == model.repository and (inner is None or inner.endswith(".safetensors"))
        assert model.name == model.name.lower() and "/" not in model.name and model.latents


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
    video, sound = golden("ltx2").checkpoint, audio_case("ltx2").checkpoint
    names = ("audio_vae/diffusion_pytorch_model.safetensors", "vocoder/diffusion_pytorch_model.safetensors")
    hub_cache("ltx-2", {"vae/diffusion_pytorch_model.safetensors": video, **dict.fromkeys(names, sound)})
    assert open_checkpoint("ltx-2").config.generation == "LTX-2"
    assert open_checkpoint("ltx-2", medium=SOUND).config.generation == "LTX-2 audio"


def test_an_audio_model_has_the_name_of_its_release(audio_case, hub_cache):
    hub_cache("ltx-2.3", audio_case("ltx2_3").checkpoint, is_sound=True)
    assert AudioVAE.from_pretrained("ltx-2.3").config.generation == "LTX-2.3 audio"
    with pytest.raises(CheckpointError, match=r"its cache has no vae/LTX23_video_vae_bf16\.safetensors; check"):
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
    with pytest.raises(CheckpointError) as error:
        open_checkpoint("ltx-2.5")
    assert str(error.value).startswith("ltx-2.5: the hub repository cannot be read")
    assert "accept its license at https://huggingface.co/Lightricks/LTX-2.5, then log in with `hf auth login`" in str(
        error.value
    )


@pytest.mark.parametrize(
    ("source", "hint"),
    [("ltx-2.4", "did you mean ltx-2"), ("ltx2.3", "did you mean ltx-2.3"), ("vae", "give one of ltx-2.5, ltx-2.5-d")],
)
def test_an_unknown_name_lists_the_names(hub_cache, source, hint):
    with pytest.raises(CheckpointError, match="no such file or folder") as error:
        open_checkpoint(source)
    assert hint in str(error.value)
    with pytest.raises(CheckpointError) as error:
        open_checkpoint("taeltx-2.3", medium=SOUND)
    assert str(error.value).endswith("give one of ltx-2.5, ltx-2.3, ltx-2.")


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
            name = "vae/ltx-2.5-video-vae-conv-bf16.safetensors"
            return SimpleNamespace(siblings=[SimpleNamespace(rfilename=name)], gated="auto")

    def snapshot_download(repo, **options):
        raise ConnectionError("401")

    monkeypatch.setattr(hub, "HfApi", Api)
    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    with pytest.raises(CheckpointError, match=r"\(401\); accept its license at https://huggingface.co/Lightricks"):
        open_checkpoint("ltx-2.5")


def test_latents_belong_to_models():
    assert [model.name for model in models_for("LTX-2.3", Kind.VIDEO)] == ["ltx-2.3", "prunavaed"]
    assert [model.name for model in models_for("LTX-2.5", Kind.PREVIEW)] == ["taeltx-2.3"]
    assert [model.name for model in models_for("LTX-2", Kind.SOUND)] == ["ltx-2"]
    assert models_for(None, Kind.VIDEO) == []
    assert latents_of("PrunaVAED") == ("LTX-2.3",) and latents_of("LTX-2") == ("LTX-2",)
    assert latents_of("LTX-2.3") == () and latents_of("LTX-2.3", (2, 5)) == ("LTX-2.5",)  # two releases, equal layers
    assert latents_of("custom") == ()


# --- MLX_LTX_VAE_MODEL ------------------------------------------------------------------------------------------------


def test_the_environment_names_the_model_of_decode_and_encode(golden, hub_cache, monkeypatch, tmp_path, capsys):
    hub_cache("ltx-2.3", golden("small_ltx2_3").checkpoint)
    frames = np.random.default_rng(0).integers(0, 256, (9, 64, 64, 3), np.uint8)
    with VideoWriter("clip.mp4", size=(64, 64), fps=24) as out:
        out.write(frames)
    monkeypatch.setenv("MLX_LTX_VAE_MODEL", "ltx-2.3")
    assert encode.main(["clip.mp4", "-o", "clip.safetensors"]) == 0
    out, err = capsys.readouterr()
    assert err.splitlines()[0] == "-m ltx-2.3, of the environment variable MLX_LTX_VAE_MODEL"
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
    assert "give one of ltx-2.5, ltx-2.5-diffusion, ltx-2.3," in capsys.readouterr().err
