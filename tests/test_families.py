"""A family of networks is an entry in one table: opening, planning, decoding, `info` and conversion follow."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import toy_family
from checkpoint_files import convert_checkpoint, named_parameters, open_checkpoint
from commands import convert, decode, info
from mlx_ltx_vae import CheckpointError, LatentsError, VideoVAE, save_latents
from mlx_ltx_vae.checkpoint.locate import recognize
from mlx_ltx_vae.checkpoint.weight_files import open_archive
from mlx_ltx_vae.conversion import verify_conversion
from mlx_ltx_vae.errors import CheckpointsDiffer
from mlx_ltx_vae.networks import families
from mlx_ltx_vae.networks.audio.config import AudioVAEConfig, Norm
from mlx_ltx_vae.networks.audio.family import AUDIO_VAE
from mlx_ltx_vae.networks.base import NetworkTensors, Statistics
from mlx_ltx_vae.networks.families import published
from mlx_ltx_vae.networks.video_vae.family import CONV_VAE
from toy_family import TOY

CHANNELS, WIDTH = 3, 8  # as many channels as taps, so that a shape alone does not say which are which
SHAPES = {
    "mix.weight": (WIDTH, CHANNELS, 3, 3),
    "mix.bias": (WIDTH, 1, 1),
    "echo.weight": (WIDTH, WIDTH, 3),
    "color.weight": (3 * toy_family.PATCH**2, WIDTH, 1, 1),
}


@pytest.fixture(autouse=True)
def table(monkeypatch):
    monkeypatch.setattr(families, "FAMILIES", (*families.FAMILIES, TOY))


@pytest.fixture(scope="module")
def weights():
    """By their own names, stored channels-first, the bias with more axes than it needs."""
    generator = np.random.default_rng(0)
    return {name: (0.3 * generator.normal(size=shape)).astype(np.float32) for name, shape in SHAPES.items()}


@pytest.fixture(scope="module")
def latents():
    return np.random.default_rng(1).normal(size=(1, CHANNELS, 5, 4, 6)).astype(np.float32)


def write(path, weights, **others):
    save_file({**{f"decoder.{name}": np.ascontiguousarray(array) for name, array in weights.items()}, **others}, path)
    return path


@pytest.fixture
def path(weights, tmp_path):
    return write(tmp_path / "toy.safetensors", weights)


def channels_last(weights):
    return {name: np.moveaxis(array, 1, -1) if array.ndim > 2 else array for name, array in weights.items()}


def without_ones(weights):
    return {name: array.squeeze() for name, array in weights.items()}


AUDIO = AudioVAEConfig(8, 32, (1, 2), 1, norm=Norm.GROUP, attention_levels=frozenset({1}), has_mid_attention=True)


@pytest.mark.parametrize("network", ["encoder", "decoder"])
@pytest.mark.parametrize("name", [*published(), "audio"])
def test_a_module_has_the_weights_that_its_spec_lists(name, network):
    family, config = (AUDIO_VAE, AUDIO) if name == "audio" else (published()[name], None)
    config = config or family.published[name](16)
    try:
        spec = family.spec(config, network)
    except CheckpointError:  # of families with a decoder alone
        return
    made = family.make(config, network, Statistics(mx.zeros(config.latent_channels), mx.ones(config.latent_channels)))
    assert {path: array.shape for path, array in named_parameters(made).items()} == spec.weights


@pytest.mark.parametrize("store", [dict, channels_last, without_ones])
def test_weights_in_every_layout_decode_to_what_their_taps_say(weights, latents, tmp_path, store):
    vae = VideoVAE.from_pretrained(write(tmp_path / "toy.safetensors", store(weights)), encoder=False)
    pixels = np.array(vae.decode(latents))
    expected = toy_family.decode(weights, latents)
    assert pixels.shape == expected.shape == (1, 3, 5, 16, 24)
    assert np.abs(pixels - expected).max() < 1e-5


def test_a_checkpoint_says_what_its_family_says(path):
    checkpoint = open_checkpoint(path)
    assert (checkpoint.family, checkpoint.config, checkpoint.raw_config) == (TOY, toy_family.ToyConfig(3, 8), {})
    assert checkpoint.is_inferred
    assert checkpoint.spec("decoder") == toy_family.spec(checkpoint.config, "decoder")
    assert checkpoint.networks.keys() == {"decoder"}
    assert checkpoint.networks["decoder"].dtype == "float32"
    assert checkpoint.statistics is checkpoint.read_statistics() is None
    with pytest.raises(CheckpointError, match=r"toy\.safetensors: it has no encoder"):
        open_checkpoint(path, decoder=False)


def test_families_do_not_take_each_others_checkpoints(golden, path, weights, monkeypatch):
    assert open_checkpoint(golden("ltx2_3").checkpoint).family is CONV_VAE
    # Statistics of other networks are not its own.
    mean = np.zeros(CHANNELS, np.float32)
    both = write(path, weights, **{"vae.per_channel_statistics.mean": mean, "vae.per_channel_statistics.std": mean})
    assert open_checkpoint(both).statistics is None
    monkeypatch.setattr(families, "FAMILIES", tuple(reversed(families.FAMILIES)))
    assert open_checkpoint(golden("ltx2_3").checkpoint).family is CONV_VAE
    assert open_checkpoint(path).family is TOY


def test_a_family_may_have_the_encoder_of_another(golden, weights, tmp_path, monkeypatch):
    def find(shapes):
        encoder = {name: names for name, names in CONV_VAE.find(shapes).networks.items() if name == "encoder"}
        return NetworkTensors({**encoder, **TOY.find(shapes).networks})

    mixed = replace(TOY, find=find)
    monkeypatch.setattr(families, "FAMILIES", (CONV_VAE, mixed))
    conv = load_file(golden("ltx2_3").checkpoint)
    encoder = {name: array for name, array in conv.items() if ".encoder." in name}
    for name, tensors, expected in (("conv", {}, CONV_VAE), ("encoder", encoder, CONV_VAE), ("mixed", encoder, mixed)):
        own = weights if name == "mixed" else {}
        path = write(tmp_path / f"{name}.safetensors", own, **(tensors or conv))
        family, (found,) = recognize([open_archive(path)])
        assert family is expected, name
    assert found.networks.keys() == {"encoder", "decoder"}


def test_plans_stream_in_pieces(path, latents):
    vae = VideoVAE.from_pretrained(path)
    assert (vae.encoder, vae.mean, vae.std) == (None, None, None)
    plan = vae.plan(latents.shape, mode="exact", chunk=2)
    assert (plan.num_frames, plan.height, plan.width, plan.lookahead) == (5, 16, 24, 1)
    chunks = list(vae.stream(latents, plan))
    assert len(chunks) > 1
    pixels = mx.concatenate([chunk.pixels for chunk in chunks], axis=2)
    assert mx.abs(pixels - vae.decode(latents, vae.plan(latents.shape, mode="single"))).max().item() < 1e-5


def test_info_describes_it(path, capsys):
    assert info([str(path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["kind"], said["generation"], said["configuration"]) == ("checkpoint", "toy", "inferred")
    assert (said["latent_channels"], said["scale"]) == (3, {"time": 1, "height": 4, "width": 4})
    parameters = 9 * 8 * 3 + 8 + 3 * 8 * 8 + 48 * 8
    assert said["decoder"] == {
        "widths": [8], "parameters": parameters, "dtypes": {"float32": parameters}, "bytes": 4 * parameters,
        "weight_layout": "O, I, D, H, W",
    }  # fmt: skip
    assert (said["encoder"], said["lookahead"]) == (None, 1)
    assert said["plans"][0]["frames"] == 121


def test_it_is_converted_and_verified(golden, path, latents, tmp_path, capsys):
    folder = tmp_path / "converted"
    conversion = convert_checkpoint(open_checkpoint(path), folder)
    assert (conversion.networks, conversion.written.tensors) == (("decoder",), 4)
    assert {name: array.shape for name, array in load_file(folder / "model.safetensors").items()} == {
        f"decoder.{name}": shape for name, shape in open_checkpoint(path).spec("decoder").weights.items()
    }
    assert "| decoder widths | 8 channels |" in (folder / "README.md").read_text()
    assert "statistics" not in (folder / "README.md").read_text()
    clip, out = tmp_path / "clip.safetensors", tmp_path / "clip.npy"
    save_latents(clip, mx.array(latents), fps=24)
    assert decode([str(clip), "-m", str(folder), "-o", str(out), "-q"]) == 0
    assert np.array_equal(np.load(out), VideoVAE.from_pretrained(path).decode_uint8(latents))
    assert convert(["--verify", str(path), str(folder)]) == 0
    assert "4 of 4 tensors equal bit for bit; decode identical" in capsys.readouterr().out
    conv = open_checkpoint(golden("ltx2_3").checkpoint, encoder=False)
    with pytest.raises(CheckpointsDiffer, match="differs from the source .* in family"):
        verify_conversion(conv, open_checkpoint(path))


@pytest.mark.parametrize(
    ("name", "shape", "found", "expected"),
    [
        ("mix.bias", (9,), (9,), (8,)),
        ("echo.weight", (8, 9, 3), (8, 3, 9), (8, 3, 8)),
        ("color.weight", (48, 8, 1, 2), (48, 8, 1, 2), (48, 1, 1, 8)),
    ],
)
def test_a_wrong_shape_is_refused(weights, tmp_path, name, shape, found, expected):
    path = write(tmp_path / "toy.safetensors", {**weights, name: np.ones(shape, np.float32)})
    with pytest.raises(CheckpointError) as caught:
        VideoVAE.from_pretrained(path)
    assert str(caught.value) == (
        f"toy.safetensors: tensor decoder.{name} has the shape {found}, but the configuration expects {expected}; use "
        "the configuration that belongs to the file."
    )


def test_unnormalized_latents_are_refused(path, latents, tmp_path, capsys):
    with pytest.raises(LatentsError, match="unnormalized, and this VAE has no statistics to normalize them; give"):
        VideoVAE.from_pretrained(path).stream(latents, unnormalized=True)
    stated, unstated = tmp_path / "stated.safetensors", tmp_path / "unstated.npy"
    mx.save_safetensors(str(stated), {"latents": mx.array(latents)}, {"normalized": "false"})
    np.save(unstated, latents)
    for clip, options in ((stated, []), (unstated, ["--unnormalized"])):
        command = [str(clip), "-m", str(path), "-o", str(tmp_path / "clip.npy"), *options]
        for more in ([], ["--dry-run"]):
            assert decode([*command, *more]) == 1
            error = capsys.readouterr().err
            assert error.count("\n") == 1
            assert "are unnormalized, and toy.safetensors has no statistics to normalize them; give" in error
    assert info([str(stated), "-m", str(path)]) == 1
    assert "these latents are unnormalized; give -m VAE" in capsys.readouterr().err


def run(folder, *command):
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_a_new_family_is_a_folder_and_an_entry_in_the_table(path, tmp_path):
    """Nothing else changes: the package knows it, and the contracts about imports hold for it."""
    pytest.importorskip("importlinter")
    root, copy = Path(__file__).parents[1], tmp_path / "copy"
    for name in ("benchmarks", "mlx_ltx_vae", "weights_convert"):
        shutil.copytree(root / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "assets"))
    shutil.copy(root / "pyproject.toml", copy)
    networks = copy / "mlx_ltx_vae" / "networks"
    (networks / "toy").mkdir()
    (networks / "toy" / "__init__.py").touch()
    shutil.copy(toy_family.__file__, networks / "toy" / "family.py")
    table = (networks / "families.py").read_text()
    table = table.replace("\nfrom .video_vae", "\nfrom .toy.family import TOY\nfrom .video_vae").replace(
        "UPSAMPLER)", "UPSAMPLER, TOY)"
    )
    (networks / "families.py").write_text(table)

    said = run(copy, "-m", "mlx_ltx_vae.info", str(path), "--json")
    assert json.loads(said.stdout)["generation"] == "toy", said.stderr
    lint = ("-c", "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())")
    checked = run(copy, *lint)
    assert checked.returncode == 0, checked.stdout
    with (copy / "mlx_ltx_vae" / "checkpoint" / "locate.py").open("a") as file:
        file.write("\nfrom ..networks.toy.family import TOY\n")
    checked = run(copy, *lint)
    assert checked.returncode == 1
    assert "Networks are known by their families only BROKEN" in checked.stdout
