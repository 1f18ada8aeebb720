"""Plans of published VAEs without weights, against those of checkpoints with their tensors."""

import json
import math

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import save_file

from checkpoint_files import AUDIO, open_checkpoint
from commands import decode, info
from conftest import FIXTURES
from mlx_ltx_vae import Keyframes, LatentsError, PlanError, VideoVAE
from mlx_ltx_vae.backend import device
from mlx_ltx_vae.backend.machine import Backend
from mlx_ltx_vae.model_table import Kind, models_of
from mlx_ltx_vae.networks.diffusion_decoder.config import ltx_2_5, raw_ltx_2_5
from mlx_ltx_vae.networks.diffusion_decoder.family import DIFFUSION_VAE
from mlx_ltx_vae.networks.families import published
from mlx_ltx_vae.published import PublishedVAE
from mlx_ltx_vae.tiling import TilingConfig

# The manifests of golden cases at the published widths, whose checkpoints the original code could read.
CASES = {
    "ltx-2.5": "full_width_ltx2_3",
    "ltx-2.3": "full_width_ltx2_3",
    "ltx-2": "full_width_ltx2",
    "0.9.5": "full_width_ltxv_0_9_7",
    "prunavaed": "full_width_pruna",
    "ltx-2.5-diffusion": None,
}
AUDIO_FIXTURES = {"ltx-2.5": "full_width_ltx2_3", "ltx-2.3": "full_width_ltx2_3", "ltx-2": "full_width_ltx2"}
VIDEO, GRID = (121, 704, 1280), (16, 22, 40)
SIZE = ["--size", "1280x704", "--frames", "121"]


def write_empty(path, shapes, metadata=None):
    """A file of bfloat16 tensors with these shapes, zeros that take no space on the disk but for deviations of 1."""
    header, end = {"__metadata__": metadata} if metadata else {}, 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
        for name, shape in shapes.items():
            if name.endswith("std-of-means"):
                file.seek(8 + len(text) + header[name]["data_offsets"][0])
                file.write(np.array(0x3F80, "<u2").tobytes() * math.prod(shape))  # 1 in bfloat16
    return path


@pytest.mark.parametrize("name", [name for kind in (Kind.VIDEO, Kind.PREVIEW) for name in models_of(kind)])
def test_every_model_with_a_short_name_is_planned_by_it(name, capsys):
    assert info([name, *SIZE]) == 0
    assert "peak " in capsys.readouterr().out


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """`checkpoint("ltx-2.3")`: a file with the tensors of this VAE."""

    def make(name):
        path = tmp_path_factory.mktemp("vae") / "vae.safetensors"
        if CASES[name] is None:
            shapes = {
                f"vae.decoder.{key}": shape for key, shape in DIFFUSION_VAE.spec(ltx_2_5(), "decoder").weights.items()
            }
            shapes |= {f"vae.per_channel_statistics.{key}-of-means": [128] for key in ("mean", "std")}
            return write_empty(path, shapes, {"config": json.dumps({"vae": raw_ltx_2_5(128)})})
        manifest = json.loads((FIXTURES / f"{CASES[name]}.json").read_text())
        config = {"vae": manifest["vae_config"]} if "vae_config" in manifest else None
        config = config or manifest["layouts"]["original"]["metadata"]["config"]
        return write_empty(path, manifest["weights"], {"config": json.dumps(config)})

    return make


@pytest.fixture(scope="module")
def audio(tmp_path_factory):
    """`audio("ltx-2")`: a file with the tensors of its audio VAE and vocoder."""

    def make(name):
        manifest = json.loads((FIXTURES / "audio" / f"{AUDIO_FIXTURES[name]}.json").read_text())
        path = tmp_path_factory.mktemp("audio") / "audio.safetensors"
        return write_empty(path, manifest["weights"], {"config": json.dumps(manifest["config"])})

    return make


@pytest.fixture(scope="module")
def latents(tmp_path_factory):
    """Latents of `VIDEO`, and of 126 / 25 s of audio."""
    path = tmp_path_factory.mktemp("latents") / "clip.safetensors"
    arrays = {"latents": np.zeros((1, 128, *GRID), np.float32), "audio_latents": np.zeros((1, 8, 126, 16), np.float32)}
    save_file(arrays, path, {"fps": "24"})
    return path


@pytest.fixture
def dry_run(capsys):
    def run(*arguments, command=decode):
        options = ["--dry-run"] if command is decode else []
        assert command([*map(str, arguments), *options, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


@pytest.fixture(params=[Backend.CPU, Backend.METAL])
def backend(request, monkeypatch):
    monkeypatch.setattr(device, "backend", lambda: request.param)
    monkeypatch.setattr(device, "available_memory", lambda counted_bytes=0: 2**36)


@pytest.mark.parametrize("name", CASES)
def test_a_published_vae_has_the_configuration_and_the_tensors_of_its_file(checkpoint, name):
    found = open_checkpoint(checkpoint(name), encoder=False)
    family = published()[name]
    assert found.family is family
    config = family.published[name]()
    assert found.spec("decoder").weights == family.spec(config, "decoder").weights
    layers = {"LTX-2.5": "LTX-2.3"}  # the layers do not tell these two apart, and nothing in this file does
    assert found.config.generation == layers.get(config.generation, config.generation)


@pytest.mark.parametrize("name", AUDIO_FIXTURES)
def test_a_published_audio_vae_is_that_of_its_file(audio, name):
    assert published(AUDIO)[name].published[name]() == open_checkpoint(audio(name), medium=AUDIO).config


DRY_RUNS = [
    "--memory-budget 20GB",
    "--memory-budget 10GB --dtype bfloat16 --order rows",
    "--memory-budget 20GB --dtype float32 --mode tiled",
]


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("name", "options", "backend"),  # every pair of them
    [
        (name, options, (Backend.CPU, Backend.METAL)[(row + column) % 2])
        for row, name in enumerate(name for name in CASES if name != "ltx-2.5")
        for column, options in enumerate(DRY_RUNS)
    ],
    indirect=["backend"],
)
def test_a_plan_without_files_is_that_of_a_decode_of_files(checkpoint, latents, dry_run, backend, name, options):
    expected = dry_run(latents, "-m", checkpoint(name), *options.split())
    del expected["vae"]["file"]
    found = dry_run(name, *SIZE, *options.split(), command=info)
    assert found.pop("kind") == "plan" and found == expected


def test_audio_takes_what_it_takes_with_files(checkpoint, audio, latents, dry_run):
    name = "ltx-2.5"
    options = ["--memory-budget", "20GB", "--fps", "24"]
    expected = dry_run(latents, "-m", checkpoint(name), "--audio-model", audio(name), *options)
    plan = VideoVAE.estimate(name, frames=121, size=(1280, 704), audio=True, memory_budget="20GB")
    assert plan.audio.as_dict() == expected["audio"]
    assert plan.memory.audio == expected["plan"]["audio_bytes"]


def test_an_estimate_is_the_plan_of_the_vae_that_is_loaded(golden, monkeypatch, backend):
    """Of a narrow one, which is quick to load."""
    family = published()["ltx-2.3"]
    narrow = open_checkpoint(golden("small_ltx2_3").checkpoint).config
    monkeypatch.setitem(family.published, "ltx-2.3", lambda: narrow)
    shape = (1, narrow.latent_channels, *GRID)
    for dtype, order in ((None, "auto"), ("bfloat16", "time"), ("float16", "rows"), ("float32", "columns")):
        vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint, dtype=dtype or "float32", encoder=False)
        given = {"order": order, "memory_budget": "8GB"}
        found = VideoVAE.estimate("ltx-2.3", frames=121, size="1280x704", dtype=dtype or mx.float32, **given)
        assert found == vae.plan(shape, **given)


def test_generations_have_the_names_of_all_releases_and_those_of_info():
    names = {"0.9.8": "0.9.5", "0.9.6": "0.9.5", "LTX-Video 0.9.1": "0.9.1", "LTX-2.5 diffusion": "ltx-2.5-diffusion"}
    assert [PublishedVAE.find(name).name for name in names] == list(names.values())


def test_an_estimate_for_keyframes_and_steps_is_the_plan_of_the_vae_that_is_loaded(golden, monkeypatch, backend):
    vae = VideoVAE.from_pretrained(golden("ltx2_5_diffusion").checkpoint, dtype="float32")
    monkeypatch.setitem(DIFFUSION_VAE.published, "ltx-2.5-diffusion", lambda: vae.config)
    frames, channels = [0, 16], vae.config.latent_channels
    options = {"mode": "tiled", "tiling": TilingConfig.default(), "memory_budget": "8GB", "steps": 2}
    found = VideoVAE.estimate(
        "ltx-2.5", decoder="diffusion", dtype="float32", frames=25, size=(768, 512), keyframes=frames, **options
    )
    keyframes = Keyframes(mx.zeros((1, channels, 2, 16, 24)), frames)
    assert found == vae.plan((1, channels, 4, 16, 24), keyframes=keyframes, **options)
    assert (found.keyframes, found.denoising_steps) == ((0, 16), 2)


def test_an_estimate_has_the_decoder_and_the_dtype_that_are_asked_for():
    given = {"frames": 121, "size": "1280x704", "memory_budget": "40GB"}
    conv, diffusion = (VideoVAE.estimate("ltx-2.5", decoder=name, **given) for name in ("conv", "diffusion"))
    assert (conv.denoising_steps, diffusion.denoising_steps) == (None, 1)
    assert conv.latent_shape == diffusion.latent_shape == (1, 128, *GRID)
    wide = VideoVAE.estimate("LTX-2.5", dtype="float32", **given)
    assert wide.memory.weights == 2 * conv.memory.weights > 1.6e9
    joined = VideoVAE.estimate("ltx-2.5", joined=True, **given)
    assert joined.memory.result == 2 * 3 * math.prod(VIDEO)


@pytest.mark.parametrize(
    ("error", "words", "given"),
    [
        (PlanError, "no published VAE is named 'ltx2.3' .did you mean ltx-2.3", {"generation": "ltx2.3"}),
        (PlanError, "no published VAE is named 'ltx-2.3-diffusion'", {"decoder": "diffusion"}),
        (PlanError, "the decoder 'tiny' is not known; expected conv or diffusion", {"decoder": "tiny"}),
        (PlanError, "0.9.5 has no audio; choose one of ltx-2,", {"generation": "0.9.5", "audio": True}),
        (PlanError, "the least that works is", {"memory_budget": "1GB"}),
        (LatentsError, "8 frames of 1280x704 do not fit the latent grid", {"frames": 8}),
        (LatentsError, "'720p' is not a width and a height such as 768x512", {"size": "720p"}),
        (LatentsError, "size is .1280.; expected a width and a height, such as 768x512", {"size": [1280]}),
        (LatentsError, "size is .1280.0, 704.; expected", {"size": (1280.0, 704)}),
        (LatentsError, "frames is '121'; expected a whole number", {"frames": "121"}),
        (LatentsError, "keyframes need one frame number from 0", {"keyframes": [-1]}),
        (LatentsError, "keyframes have the type int; expected Keyframes", {"keyframes": 5}),
        (PlanError, "the generation is None; expected one of 0.9.0, ", {"generation": None}),
    ],
)
def test_what_cannot_be_planned_is_an_error_that_says_why(error, words, given):
    with pytest.raises(error, match=words):
        VideoVAE.estimate(**{"generation": "ltx-2.3", "frames": 121, "size": "1280x704", **given})


def test_the_plan_is_printed_with_the_vae(capsys):
    assert info(["ltx-2.3", "0.9.8", *SIZE, "--memory-budget", "20GB"]) == 0
    first, second = capsys.readouterr().out.split("\n\n")
    assert "video    121 frames of 1280x704\n" in first and " GB (weights 0.81, " in first
    assert first.endswith("VAE      LTX-2.3, convolutional decoder")
    assert second.endswith("VAE      LTX-Video 0.9.5, convolutional decoder\n")
