"""VAEs that ComfyUI has loaded, in the nodes of examples/comfyui, with stand-ins for ComfyUI's modules."""

import re
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file

from comfyui_cases import LATENTS, frames_of, latent
from mlx_ltx_vae import AudioVAE, CheckpointError, VideoVAE

FILE = "vae/ltx/small.safetensors"


class Module:
    """What a VAE of ComfyUI has as `first_stage_model`. A VAE of audio has no `config`."""

    def __init__(self, comfy, file, config, names=("vae.", "")):
        self.tensors = {name.replace(*names, 1): comfy.torch.Tensor(array) for name, array in load_file(file).items()}
        if config is not None:
            self.config = config

    def state_dict(self):
        return self.tensors


def loaded(module):
    return SimpleNamespace(first_stage_model=module)


def test_a_vae_that_comfyui_has_loaded_is_used_without_its_file(comfy, execute, golden, vae, monkeypatch):
    case = golden("small_ltx2_3")
    module = Module(comfy, case.checkpoint, case.manifest["vae_config"])
    assert any(name.startswith("decoder.") for name in module.tensors)
    monkeypatch.setattr(VideoVAE, "from_pretrained", no_file(VideoVAE.from_pretrained))
    given = {"loaded_vae": loaded(module), "vae": "demo VAE"}
    found = execute("LTXDecodeFramesMLX", latent=latent(comfy), **given).array
    pixels = np.array(vae.decode(LATENTS))[0].transpose(1, 2, 3, 0)
    np.testing.assert_allclose(found, np.clip((pixels + 1) / 2, 0, 1), atol=1e-6)
    video = execute("LTXDecodeToVideoMLX", latent=latent(comfy), codec="ffv1", **given)
    np.testing.assert_array_equal(frames_of(video.get_stream_source()), vae.decode_uint8(LATENTS))
    (pair,) = comfy.host.networks._loaded.values()
    assert (pair.encoder, pair.dtype) == (None, mx.float32)
    clip = np.random.default_rng(1).random((9, 64, 96, 3)).astype(np.float32)
    encoded = execute("LTXEncodeMLX", frames=comfy.torch.Tensor(clip), **given)["samples"].array
    np.testing.assert_allclose(encoded, np.array(vae.encode((clip * 2 - 1).transpose(3, 0, 1, 2)[None])), atol=1e-5)
    assert len(comfy.host.networks._loaded) == 2
    for name, tensor in module.tensors.items():  # another one, in bfloat16
        bits = (tensor.array.view(np.uint32) >> 16).astype(np.uint16)
        module.tensors[name] = comfy.torch.Tensor(bits, comfy.torch.bfloat16)
    half = Module(comfy, case.checkpoint, case.manifest["vae_config"])
    half.tensors = module.tensors
    execute("LTXDecodeToVideoMLX", latent=latent(comfy), **given | {"loaded_vae": loaded(half)})
    *_, pair = comfy.host.networks._loaded.values()
    assert pair.dtype == mx.bfloat16
    del module, half, given
    execute("LTXDecodeToVideoMLX", latent=latent(comfy), vae=FILE)
    assert len(comfy.host.networks._loaded) == 1, "networks of a VAE that ComfyUI has dropped are kept"


def no_file(from_pretrained):
    def load(source, **options):
        assert not isinstance(source, str) or source.endswith(FILE), "a file is read"
        return from_pretrained(source, **options)

    return load


def test_a_vae_of_audio_that_comfyui_has_loaded_is_used(comfy, execute, audio_case):
    case = audio_case("ltx2")
    module = Module(comfy, case.checkpoint, None, ("audio_vae.", "autoencoder."))
    stored = np.random.default_rng(1).normal(size=(1, 8, 18, 16)).astype(np.float32)
    audio = execute("LTXDecodeAudioMLX", latent=latent(comfy, stored), audio_vae=FILE, loaded_audio_vae=loaded(module))
    expected = np.array(AudioVAE.from_pretrained(case.checkpoint).decode(stored))
    np.testing.assert_allclose(audio["waveform"].array, expected, atol=1e-5)


def test_a_vae_of_comfyui_that_is_none_of_ltx_is_refused(comfy, execute, audio_case, golden):
    case = golden("small_ltx2_3")
    other = Module(comfy, case.checkpoint, None)
    other.tensors = {"decoder.mid.block_1.weight": comfy.torch.Tensor(np.zeros((3, 3), np.float32))}
    video = Module(comfy, case.checkpoint, case.manifest["vae_config"])
    for module, text in (
        (other, "loaded_vae is no LTX video VAE with a usable decoder (weights: expected a video VAE"),
        (None, "loaded_vae has no network; connect"),
    ):
        with pytest.raises(CheckpointError, match=re.escape(text)):
            execute("LTXDecodeToVideoMLX", latent=latent(comfy), loaded_vae=loaded(module))
    audio = {"latent": latent(comfy, np.zeros((1, 8, 4, 16), np.float32)), "audio_vae": FILE}
    with pytest.raises(CheckpointError, match="loaded_audio_vae is no LTX audio VAE with a usable decoder"):
        execute("LTXDecodeAudioMLX", **audio, loaded_audio_vae=loaded(video))
