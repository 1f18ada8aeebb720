"""Hub repositories: files are chosen by name alone, cached files need no network, and nothing else is downloaded."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import fast_checkpoint
from checkpoint_files import AUDIO, open_checkpoint, statistics_of, write_pack
from mlx_ltx_vae import CheckpointError
from mlx_ltx_vae.checkpoint.weight_files import choose_file, choose_weights

LTX_VIDEO = [
    "README.md",
    "ltx-video-2b-v0.9.safetensors",
    "ltxv-13b-0.9.7-dev.safetensors",
    "model_index.json",
    "transformer/diffusion_pytorch_model-00001-of-00002.safetensors",
    "transformer/diffusion_pytorch_model.safetensors.index.json",
    "vae/config.json",
    "vae/diffusion_pytorch_model.safetensors",
]
LTX_2_5 = [
    "diffusion_models/ltx-2.5-22b-dev-transformer-bf16.safetensors",
    "vae/ltx-2.5-audio-vae-bf16.safetensors",
    "vae/ltx-2.5-video-vae-bf16.safetensors",
    "vae/ltx-2.5-video-vae-conv-bf16.safetensors",
]
MLX_PACK = [
    "audio_vae.safetensors",
    "config.json",
    "connector.safetensors",
    "embedded_config.json",
    "spatial_upscaler_x2_v1_0.safetensors",
    "transformer-dev.safetensors",
    "vae_decoder.safetensors",
    "vae_encoder.safetensors",
    "vocoder.safetensors",
]


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (LTX_VIDEO, ["vae/diffusion_pytorch_model.safetensors"]),
        (LTX_2_5, ["vae/ltx-2.5-video-vae-conv-bf16.safetensors"]),
        (MLX_PACK, ["vae_encoder.safetensors", "vae_decoder.safetensors"]),
        (
            ["vae_decoder_av.safetensors", "vae_decoder_conv.safetensors", "vae_encoder_conv.safetensors"],
            ["vae_encoder_conv.safetensors", "vae_decoder_conv.safetensors"],
        ),
        (
            ["audio_vae/decoder/model.safetensors", "vae/decoder/model.safetensors", "vae/encoder/model.safetensors"],
            ["vae/encoder/model.safetensors", "vae/decoder/model.safetensors"],
        ),
        (
            ["diffusion_pytorch_model.safetensors.index.json", "diffusion_pytorch_model-00001-of-00002.safetensors"],
            ["diffusion_pytorch_model.safetensors.index.json"],
        ),
        (["ltx-2.safetensors", "LTX2_video_vae_bf16.safetensors"], ["LTX2_video_vae_bf16.safetensors"]),
        (["config.json", "model.safetensors", "other.safetensors"], ["model.safetensors"]),
        (["ltx-2-19b-dev.safetensors", "LICENSE"], ["ltx-2-19b-dev.safetensors"]),
    ],
)
def test_files_of_the_vae_alone_are_preferred_to_files_of_the_whole_model(names, chosen):
    (choice,) = choose_weights(names)
    assert [name for files in choice for name in files] == chosen


PRUNED_DECODER = "vae_decoder_pruna.safetensors"


@pytest.mark.parametrize(
    ("names", "choices"),
    [
        (
            ["vae_decoder.safetensors", PRUNED_DECODER, "vae_encoder.safetensors"],
            [["vae_encoder.safetensors", "vae_decoder.safetensors"], ["vae_encoder.safetensors", PRUNED_DECODER]],
        ),
        ([PRUNED_DECODER, "vae_encoder.safetensors"], [["vae_encoder.safetensors", PRUNED_DECODER]]),
        (["vae/ltx-2.3_vae.safetensors", "vae/pruna_ltx2.3_vae_comfy_bf16.safetensors"], None),
        (["vae_decoder.safetensors", "pruna_audio_vae.safetensors"], [["vae_decoder.safetensors"]]),
    ],
)
def test_a_pruned_decoder_of_a_pack_is_another_choice(names, choices):
    found = [[name for files in choice for name in files] for choice in choose_weights(names)]
    assert found == (choices or [[name] for name in names])
    for choice in found:
        assert [name for files in choose_file(names, choice[-1]) for name in files] == choice


MISTYPED = [
    "./foo", "../foo/bar", "foo.safetensors", "/a/b", "~/x", "~/x/y", "a/b/c", "dir/file.safetensors", "dir/FILE.CKPT",
    "dir/latents.npy", "a/b/", "/a", "a//b", "here/missing", "here/missing:x", "owner/name:",
]  # fmt: skip


@pytest.mark.parametrize("source", MISTYPED)
def test_a_mistyped_path_is_never_looked_up_on_the_hub(tmp_path, monkeypatch, source):
    hub = pytest.importorskip("huggingface_hub")

    def ask(*arguments, **options):
        raise AssertionError("the hub was asked")

    for name in ("HfApi", "snapshot_download", "hf_hub_download"):
        monkeypatch.setattr(hub, name, ask)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="no such file or folder"):
        open_checkpoint(source)
    with pytest.raises(CheckpointError, match=r"no such file or folder; check the path"):
        open_checkpoint(Path("owner/name"))  # a Path is never a repository


# --- the cache ------------------------------------------------------------------------------------------------------


@pytest.fixture
def cached(golden, tmp_path, monkeypatch):
    """`cached(names)`: a cache with a snapshot of owner/name with these files, and no network."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    def make(names):
        repository = tmp_path / "models--owner--name"
        snapshot = repository / "snapshots" / ("0" * 40)
        for name in names:
            (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(golden("ltx2_3").checkpoint, snapshot / name)
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text("0" * 40)
        return snapshot

    return make


def test_a_cached_repository_loads_without_network(cached):
    cached(["vae/ltx-video-vae.safetensors", "ltx-2.3.safetensors"])
    loaded = open_checkpoint("owner/name")
    assert loaded.name == "owner/name"
    assert loaded.config.generation == "LTX-2.3"


def test_a_file_or_a_folder_of_a_repository_can_be_given(cached):
    snapshot = cached(["a.safetensors", "b.safetensors", "two/model.safetensors"])
    (snapshot / "a.safetensors").write_bytes(b"never opened")
    for inner in ("b.safetensors", "two"):
        assert open_checkpoint(f"owner/name:{inner}").config.generation == "LTX-2.3"
    with pytest.raises(CheckpointError, match=r"its cache has no c\.safetensors; .* out of a\.safetensors, b"):
        open_checkpoint("owner/name:c.safetensors")


def test_an_ambiguous_repository_lists_its_candidates(cached):
    cached(["a.safetensors", "b.safetensors"])
    with pytest.raises(CheckpointError, match=r"owner/name:FILE out of a\.safetensors, b\.safetensors\."):
        open_checkpoint("owner/name")


def test_a_repository_that_is_neither_reachable_nor_cached_is_an_error(cached):
    cached(["a.safetensors"])
    for source in ("owner/other", "owner/other:a.safetensors"):
        with pytest.raises(
            CheckpointError, match=f"^{source}: there is no such path, the hub cannot be read .* not in"
        ):
            open_checkpoint(source)


# --- the network ----------------------------------------------------------------------------------------------------


@pytest.fixture
def serve(golden, tmp_path, monkeypatch):
    """`serve(names, contents)`: owner/name on the hub has copies of LTX-2.3, and `contents` (bytes or JSON) by path.

    Returns the list of downloads, which grows. `serve.folder` is the repository.
    """
    hub, remote, cache = pytest.importorskip("huggingface_hub"), tmp_path / "remote", tmp_path / "cache"
    remote.mkdir()

    def make(names=(), contents=()):
        for name, content in (dict.fromkeys(names, golden("ltx2_3").checkpoint.read_bytes()) | dict(contents)).items():
            (remote / name).parent.mkdir(parents=True, exist_ok=True)
            (remote / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        present, fetched = [path.relative_to(remote).as_posix() for path in sorted(remote.rglob("*.*"))], []

        class Api:
            def model_info(self, repo, timeout, files_metadata):
                assert timeout > 0 and files_metadata
                siblings = [SimpleNamespace(rfilename=name, size=(remote / name).stat().st_size) for name in present]
                return SimpleNamespace(siblings=siblings, card_data=SimpleNamespace(license="mit"), gated=False)

        def snapshot_download(repo, *, allow_patterns, local_files_only):
            assert not local_files_only
            for name in hub.utils.filter_repo_objects(present, allow_patterns=allow_patterns):
                fetched.append(name)
                (cache / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(remote / name, cache / name)
            return str(cache)

        monkeypatch.setattr(hub, "HfApi", Api)
        monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
        return fetched

    make.folder = remote
    return make


def test_only_the_vae_and_its_configuration_are_downloaded(serve):
    configs = [name for name in MLX_PACK if name.endswith(".json")]
    fetched = serve([name for name in MLX_PACK if name not in configs], dict.fromkeys(configs, {}))
    open_checkpoint("owner/name")
    assert sorted(fetched) == [*configs, "vae_decoder.safetensors", "vae_encoder.safetensors"]


@pytest.mark.parametrize("named", ["audio_vae", "vocoder"])
def test_a_file_of_audio_is_downloaded_with_the_one_that_belongs_to_it(audio_case, serve, named):
    files = ["audio_vae.safetensors", "vocoder.safetensors"]
    fetched = serve(contents=dict.fromkeys(files, audio_case("ltx2").checkpoint.read_bytes()))
    open_checkpoint(f"owner/name:{named}.safetensors", medium=AUDIO)
    assert sorted(fetched) == files


VARIANT = "vae/diffusion_pytorch_model.bf16.safetensors"


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["vae/diffusion_pytorch_model.safetensors", VARIANT], slice(0, 1)),
        (["ltx/transformer-00001-of-00009.safetensors", VARIANT], slice(1, 2)),
        (["vae/model.bf16-00001-of-00002.safetensors", "vae/model.bf16-00002-of-00002.safetensors"], slice(0, 2)),
        (["a[1]_vae.safetensors", "a1_vae_audio.safetensors"], slice(0, 1)),
    ],
)
def test_only_one_variant_is_downloaded(serve, names, chosen):
    fetched = serve(names)
    assert open_checkpoint("owner/name").config.generation == "LTX-2.3"
    assert sorted(fetched) == names[chosen]


def test_two_variants_on_the_hub_are_named_and_neither_is_downloaded(serve):
    fetched = serve([f"diffusion_pytorch_model.{variant}.safetensors" for variant in ("bf16", "fp16")])
    listing = r"owner/name:FILE out of diffusion_pytorch_model\.bf16\.safetensors, diffusion_pytorch_model\.fp16"
    with pytest.raises(CheckpointError, match=listing):
        open_checkpoint("owner/name")
    assert fetched == []
    assert open_checkpoint("owner/name:diffusion_pytorch_model.fp16.safetensors").name.endswith("fp16.safetensors")
    assert fetched == ["diffusion_pytorch_model.fp16.safetensors"]


def test_a_decoder_of_a_pack_is_downloaded_with_its_own_configuration(golden, serve):
    fast_checkpoint.write_checkpoint(golden("pruna").manifest, serve.folder, "mlx")
    fetched = serve(["vae_decoder.safetensors"])
    with pytest.raises(CheckpointError, match=r"out of vae_decoder\.safetensors, vae_decoder_pruna\.safetensors\."):
        open_checkpoint("owner/name")
    assert open_checkpoint("owner/name:vae_decoder_pruna.safetensors").config.generation == "PrunaVAED"
    assert fetched == ["vae_decoder_pruna.safetensors", "vae_decoder_pruna_config.json"]


def test_the_statistics_of_the_named_file_of_a_repository_count(golden, serve, tmp_path):
    tensors = load_file(golden("ltx2_3").checkpoint)
    write_pack(tmp_path, tensors, "vae_{}.safetensors", "vae_{}.", ("mean", "std"))
    path = tmp_path / "vae_encoder.safetensors"
    save_file({name: array * (2 if name.endswith(".std") else 1) for name, array in load_file(path).items()}, path)
    serve((), {path.name: path.read_bytes() for path in tmp_path.glob("vae_*")})
    found = open_checkpoint("owner/name:vae_decoder.safetensors", encoder=False)
    np.testing.assert_array_equal(np.array(found.read_statistics().std), statistics_of(tensors)[1].astype(np.float32))
    with pytest.raises(CheckpointError, match="have different statistics"):
        open_checkpoint("owner/name", encoder=False)


INDEX = "vae/diffusion_pytorch_model.safetensors.index.json"


def test_an_index_on_the_hub_cannot_name_files_outside_its_folder(serve):
    fetched = serve(["secret.safetensors"], {INDEX: {"weight_map": {"x": "../secret.safetensors"}}})
    with pytest.raises(CheckpointError, match="not in its folder"):
        open_checkpoint("owner/name")
    assert fetched == [INDEX]


def test_a_shard_that_the_repository_lacks_is_an_error(serve):
    shards = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    serve(shards[:1], {"model.safetensors.index.json": {"weight_map": dict(zip("ab", shards, strict=True))}})
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002\.safetensors cannot be downloaded"):
        open_checkpoint("owner/name")


def test_a_cache_with_some_files_of_a_repository_needs_no_network(serve, monkeypatch):
    """Newer huggingface_hub refuse a snapshot that lacks files that match the patterns."""
    hub = pytest.importorskip("huggingface_hub")
    serve(["model.safetensors"])

    class Api:
        def model_info(self, repo, **options):
            raise ConnectionError("no network")

    def snapshot_download(repo, *, allow_patterns=None, local_files_only):
        assert local_files_only
        names = ["transformer.safetensors", "model.safetensors"]
        for name in hub.utils.filter_repo_objects(names, allow_patterns=allow_patterns):
            if not (serve.folder / name).is_file():
                raise OSError(f"the cached snapshot is incomplete: {name}")
        return str(serve.folder)

    monkeypatch.setattr(hub, "HfApi", Api)
    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    assert open_checkpoint("owner/name").config.generation == "LTX-2.3"


def test_the_shards_of_an_index_are_downloaded(serve):
    index = {"weight_map": {"vae.decoder.conv_in.conv.weight": "shard.safetensors"}}
    fetched = serve(["vae/shard.safetensors"], {INDEX: index})
    assert open_checkpoint("owner/name").config.generation == "LTX-2.3"
    assert fetched == [INDEX, "vae/shard.safetensors"]


def test_a_download_that_fails_is_a_checkpoint_error(serve, monkeypatch):
    serve(["model.safetensors"])

    def snapshot_download(repo, **options):
        raise ConnectionError("connection lost\nand more")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    with pytest.raises(CheckpointError, match=r"cannot download model\.safetensors \(connection lost\)"):
        open_checkpoint("owner/name")
