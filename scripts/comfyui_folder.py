"""The folders of ComfyUI for scripts/try_comfyui.py, with models and inputs."""

import json
import shutil
import sys
import wave
from pathlib import Path

import mlx.core as mx
import numpy as np
from safetensors.numpy import load_file, save_file

from mlx_ltx_vae import demo, load_latents
from mlx_ltx_vae.backend.mlx_utils import named_parameters
from mlx_ltx_vae.networks.preview_vae.config import PreviewConfig
from mlx_ltx_vae.networks.preview_vae.networks import PreviewDecoder

FIXTURES = Path(__file__).parents[1] / "tests" / "fixtures"
AUDIO_FIXTURES = FIXTURES / "audio"
sys.path += [str(FIXTURES), str(AUDIO_FIXTURES)]
import synthetic_audio_checkpoint  # noqa: E402  (scripts beside the golden data)

import synthetic_checkpoint  # noqa: E402

PACK = Path(__file__).parents[1] / "examples" / "comfyui"
AUDIO_VAE = "vae/audio.safetensors"
#: What the workflow from a prompt to a video names. Empty files, which the page only lists.
NAMED = (
    "checkpoints/ltx-2.3-22b-dev-fp8.safetensors",
    "loras/ltx-2.3-22b-distilled-lora-384.safetensors",
    "text_encoders/gemma_3_12B_it_fp4_mixed.safetensors",
)


def make_folder(folder: Path) -> None:
    """Make the folders of ComfyUI, with the pack, the demo VAE and inputs."""
    for name in ("custom_nodes", "models/vae", "models/vae_approx", "input", "output", "user"):
        (folder / name).mkdir(parents=True)
    (folder / "custom_nodes" / "ltx_mlx").symlink_to(PACK)
    shutil.copy(Path(__file__).with_name("comfyui_trial_nodes.py"), folder / "custom_nodes")
    shutil.copy(demo.VAE, folder / "models" / "vae" / "demo.safetensors")
    shutil.copy(demo.LATENT_RGB, folder / "models" / "vae_approx" / "rgb.safetensors")
    make_models(folder / "models" / "vae")
    for name in NAMED:
        (folder / "models" / name).parent.mkdir(exist_ok=True)
        (folder / "models" / name).touch()
    latents = np.array(load_latents(demo.LATENTS)[0].astype(mx.float32))
    inputs = {"clip": latents, "long": np.tile(latents, (1, 1, 60, 1, 1)), "two": np.tile(latents, (2, 1, 1, 1, 1))}
    inputs["ComfyUI_00001_"] = latents  # which a workflow names
    inputs["narrow"] = np.random.default_rng(1).normal(size=(1, 128, 3, 2, 3)).astype(np.float32)
    inputs["audio"] = np.random.default_rng(0).normal(size=(1, 8, 76, 16)).astype(np.float32)  # 3 s, as the clip
    for name, array in inputs.items():
        tensors = {"latent_tensor": array, "latent_format_version_0": np.zeros(0, np.float32)}
        save_file(tensors, folder / "input" / f"{name}.latent")
    with wave.open(str(folder / "input" / "tone.wav"), "wb") as tone:
        tone.setparams((1, 2, 16000, 0, "NONE", ""))
        tone.writeframes((np.sin(np.arange(80000) / 5) * 9000).astype("<i2").tobytes())  # 5 s


def make_models(folder: Path) -> None:
    """Make an audio VAE with an encoder, and a tiny decoder of 128 channels, with random weights."""
    manifests = [json.loads((AUDIO_FIXTURES / f"{name}.json").read_text()) for name in ("encoder", "ltx2")]
    tensors: dict[str, np.ndarray] = {}
    for manifest in manifests:
        part = folder / "part.safetensors"
        synthetic_audio_checkpoint.write_checkpoint(manifest, part)
        tensors |= load_file(part)
        part.unlink()
    config = manifests[0]["config"] | manifests[1]["config"]
    for place in (folder, folder.parent / "checkpoints"):  # the loader of ComfyUI looks in the second
        place.mkdir(exist_ok=True)
        save_file(tensors, place / "audio.safetensors", metadata={"config": json.dumps(config)})
    manifest, narrow = narrow_manifest(), folder / "narrow.safetensors"
    synthetic_checkpoint.write_checkpoint(manifest, narrow)
    tensors = {name.removeprefix("vae."): array for name, array in load_file(narrow).items()}  # as VAELoader takes them
    save_file(tensors, narrow, metadata={"config": json.dumps({"vae": manifest["vae_config"]})})
    tiny = PreviewDecoder(PreviewConfig((16, 16, 8, 8), encoder_width=None))
    arrays = {f"decoder.{name}": array for name, array in named_parameters(tiny).items()}
    for file in (folder / "tiny.safetensors", folder.parent / "vae_approx" / "taeltx2_3.safetensors"):
        mx.save_safetensors(str(file), arrays)


def narrow_manifest() -> dict:
    """Return the manifest of a narrow VAE of LTX-2.3 with the 128 latent channels that ComfyUI expects."""
    manifest = json.loads((FIXTURES / "ltx2_3.json").read_text())
    channels = manifest["vae_config"]["latent_channels"]
    manifest["vae_config"]["latent_channels"] = 128
    del manifest["fingerprint"]
    changed = {channels: 128, channels + 1: 129}  # and a variance
    for name, shape in manifest["weights"].items():
        if "per_channel_statistics" in name or name.startswith("vae.encoder.conv_out"):
            shape[0] = changed[shape[0]]
    manifest["weights"]["vae.decoder.conv_in.conv.weight"][1] = 128
    return manifest
