"""The code of docs/integrations.md, run with stand-ins for what each program hands over."""

import json
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import save_file

from audio_cases import random_latents
from latent_files import open_latents
from mlx_ltx_vae import AudioVAE, VideoReader, VideoVAE, load_latents, tiling
from mlx_ltx_vae import decode as decode_command
from test_video_audio_track import heard

PAGE = Path(__file__).parents[1] / "docs" / "integrations.md"


class Tensor:
    """What the programs do with a torch tensor, on numpy."""

    def __init__(self, array):
        self.array = np.asarray(array)

    def float(self):
        return Tensor(self.array.astype(np.float32))

    def bfloat16(self):
        return self

    def cpu(self):
        return self

    def contiguous(self):
        return self

    def numpy(self):
        return self.array


@pytest.fixture
def torch(monkeypatch):
    """A module `torch` with files in memory, and the part of safetensors that needs it."""
    files = {}
    module = ModuleType("torch")
    module.from_numpy = Tensor
    module.save = lambda value, target: files.__setitem__(str(target), value)
    module.load = lambda source, weights_only: files[str(source)] if weights_only else None
    saving = ModuleType("safetensors.torch")
    saving.save_file = lambda tensors, target, metadata: save_file(
        {name: tensor.array for name, tensor in tensors.items()}, target, metadata
    )
    monkeypatch.setitem(sys.modules, "torch", module)
    monkeypatch.setitem(sys.modules, "safetensors.torch", saving)
    return module


def section(title):
    """The names that the Python blocks of a section define."""
    text = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.DOTALL | re.MULTILINE).group(1)
    names = {}
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, title, "exec"), names)  # the blocks are ours
    return names


@pytest.fixture
def checkpoint(golden):
    return golden("small_ltx2_3").checkpoint


@pytest.fixture
def vae(checkpoint):
    return VideoVAE.from_pretrained(checkpoint, encoder=False)


@pytest.fixture
def latents(vae):
    return mx.random.normal((1, vae.config.latent_channels, 2, 2, 3), key=mx.random.key(0))


def unnormalized(vae, latents):
    return latents * vae.std.reshape(-1, 1, 1, 1) + vae.mean.reshape(-1, 1, 1, 1)


def assert_levels(frames, expected):
    assert (frames.shape, frames.dtype) == (expected.shape, np.uint8)
    assert np.abs(frames.astype(int) - expected).max() <= 1


def frames_of(video):
    with VideoReader(video) as reader:
        return np.concatenate(list(reader))


def test_mlx_video_keeps_its_decoder_and_uses_the_result_of_the_tiler(vae):
    """As its command does: the video is evaluated and squeezed also where frames were streamed to a callback."""
    latents = mx.random.normal((1, vae.config.latent_channels, 2, 9, 17), key=mx.random.key(0))
    streamed = []
    video = tiling.decode_with_tiling(
        decoder_fn=vae.decoder,
        latents=latents,
        tiling_config=tiling.preset("aggressive", 288, 544, 9),
        spatial_scale=32,
        temporal_scale=8,
        causal=False,
        timestep=None,
        chunked_conv=True,
        on_frames_ready=lambda frames, start: streamed.append(frames),
    )
    mx.eval(video)
    assert mx.squeeze(video, axis=0).shape == (3, 9, 288, 544)
    assert mx.array_equal(mx.concatenate(streamed, axis=2), video)


def test_mlx_video_may_keep_its_own_class_of_tiling_configurations(vae):
    """Its command makes one, and its dataclasses have no height_config and width_config."""
    theirs = SimpleNamespace(
        spatial_config=SimpleNamespace(tile_size_in_pixels=256, tile_overlap_in_pixels=64),
        temporal_config=SimpleNamespace(tile_size_in_frames=32, tile_overlap_in_frames=8),
    )
    ours = tiling.preset("aggressive", 64, 320, 9)
    latents = mx.random.normal((1, vae.config.latent_channels, 5, 2, 10), key=mx.random.key(0))
    assert mx.array_equal(
        tiling.decode_with_tiling(vae.decoder, latents, theirs), tiling.decode_with_tiling(vae.decoder, latents, ours)
    )
    plans = [vae.plan(latents.shape, mode="tiled", tiling=tiles) for tiles in (theirs, ours)]
    assert plans[0].tiling == plans[1].tiling and plans[0].layout == plans[1].layout
    in_space = SimpleNamespace(spatial_config=None, temporal_config=None)
    assert mx.array_equal(tiling.decode_with_tiling(vae.decoder, latents, in_space), vae.decoder(latents))
    for wrong in ({"spatial_config": None}, SimpleNamespace(spatial_config=512, temporal_config=None)):
        with pytest.raises(tiling.TilingError, match="expected a TilingConfig, or an object with its attributes"):
            tiling.decode_with_tiling(vae.decoder, latents, wrong)


def test_latents_of_diffusers_decode_in_memory(checkpoint, vae, latents):
    output = SimpleNamespace(frames=Tensor(unnormalized(vae, latents)))
    frames = section("diffusers")["decode_ltx2"](output, checkpoint)
    assert_levels(frames, vae.decode_uint8(latents))


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("pipeline", "kind"),
    [
        ("LTXPipeline", "packed"),
        ("LTXImageToVideoPipeline", "packed"),
        ("LTXConditionPipeline", "normalized"),
        ("LTXLatentUpsamplePipeline", "normalized"),
        ("LTX2Pipeline", "unnormalized"),
        ("LTX2LatentUpsamplePipeline", "unnormalized"),
    ],
)
def test_latents_of_diffusers_decode_from_a_file(checkpoint, vae, latents, tmp_path, pipeline, kind):
    kinds = {
        "packed": np.array(latents).reshape(1, 8, -1).transpose(0, 2, 1),
        "normalized": np.array(latents),
        "unnormalized": unnormalized(vae, latents),
    }
    output, pipe = SimpleNamespace(frames=Tensor(kinds[kind])), type(pipeline, (), {})()
    sizes = (9, 64, 96, 25, "LTX-2.3")
    command = section("diffusers")["save_for_decode"](pipe, output, str(tmp_path / "clip.npz"), *sizes)
    assert open_latents(tmp_path / "clip.npz", grid=(2, 2, 3)).info.space == ("LTX-2.3", None)
    words = shlex.split(command.replace("-m VAE", f"-m {checkpoint}").replace("clip.mp4", str(tmp_path / "out.npy")))
    assert words[:3] == ["python", "-m", "mlx_ltx_vae.decode"]
    assert decode_command.main([*words[3:], "-q"]) == 0
    assert_levels(np.load(tmp_path / "out.npy"), vae.decode_uint8(latents))


def test_the_audio_and_the_rate_of_diffusers_are_in_the_video(checkpoint, vae, latents, audio_case, tmp_path, capsys):
    audio_vae = AudioVAE.from_pretrained(audio_case("ltx2").checkpoint)
    audio = random_latents(9)
    mean, std = (np.array(array) for array in (audio_vae.mean, audio_vae.std))
    packed = audio.transpose(0, 2, 1, 3).reshape(1, 9, -1) * std + mean  # as its pipelines denormalize it
    denormalized = packed.reshape(1, 9, 8, 16).transpose(0, 2, 1, 3)
    output = SimpleNamespace(frames=Tensor(unnormalized(vae, latents)), audio=Tensor(denormalized))
    pipe = type("LTX2Pipeline", (), {})()
    command = section("diffusers")["save_for_decode"](pipe, output, str(tmp_path / "clip.npz"), 9, 64, 96, 25)
    words = shlex.split(command.replace("-m VAE", f"-m {checkpoint} --audio-model {audio_case('ltx2').checkpoint}"))
    assert decode_command.main([*words[3:-1], str(tmp_path / "clip.mov"), "--audio-codec", "pcm", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fps"] == 25
    expected = np.array(audio_vae.decode(mx.array(audio)))[0]
    assert np.abs(heard(tmp_path / "clip.mov", 24000)[:, : expected.shape[1]] - expected).max() < 1e-4


def test_keyframes_of_diffusers_are_saved_and_the_padding_of_its_latents_is_not_decoded(golden, tmp_path, capsys):
    stills, frames = np.ones((1, 8, 2, 2, 3)), np.ones((1, 8, 3, 2, 3))
    output = SimpleNamespace(frames=Tensor(frames), keyframes=Tensor(stills), keyframe_positions=[4, 16])
    pipe = type("LTX2DFRPipeline", (), {})()
    command = section("diffusers")["save_for_decode"](pipe, output, str(tmp_path / "clip.npz"), 9, 64, 96, 25)
    words = command.replace("-m VAE", f"-m {golden('ltx2_5_keyframes').checkpoint} --dry-run --json").split()
    assert decode_command.main(words[3:]) == 0
    out, err = capsys.readouterr()
    plan = json.loads(out)["plan"]
    assert (plan["frames"], plan["keyframes"]) == (9, [4])
    assert err.count("\n") == 2


def test_files_of_trainers_become_latents(vae, latents, torch, tmp_path):
    names = section("LTX trainers")
    stored = {"latents": Tensor(latents[0]), "num_frames": 2, "height": 2, "width": 3, "fps": 25.0}
    torch.save(stored, tmp_path / "clip.pt")
    names["to_safetensors"](tmp_path / "clip.pt", tmp_path / "clip.safetensors")
    read, info = load_latents(tmp_path / "clip.safetensors", latent_channels=8)
    assert mx.array_equal(read, latents)
    assert info.fps == 25
