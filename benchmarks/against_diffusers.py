"""LTX-2.5's diffusion decoder and audio against diffusers' classes on torch, which get the same weights and latents.

The weights are random, made by torch from a seed and written as diffusers writes its models, so that both programs read
what they read of a published model.
"""

import os
import resource
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from safetensors.numpy import load_file, save_file

from benchmarks.measuring import Case, Job, Run, format_ratios, median, table, timed
from mlx_ltx_vae.audio_vae import AudioVAE
from mlx_ltx_vae.backend.mlx_utils import max_difference, rms
from mlx_ltx_vae.units import MB
from mlx_ltx_vae.vae import VideoVAE

# One thread for each program; torch brings matrix products of its own.
_ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_TORCH = {**_ONE_THREAD, "LD_PRELOAD": ""}
_NUDGE = 0.02  # of all weights, since torch makes some zeros, which would hide an error
_GAIN = 3**0.5  # of matrices, whose variance torch makes a third of what keeps a signal's size
_PATCH = 4

# Channels of the published diffusion decoder.
_STAGES, _HEAD_DIM = (2048, 1024, 512, 512, 256), 64
# Windows of the context stages for a small picture: the published ones need 224x224 pixels, whose scores take diffusers
# 11 GB for each array and head.
_SMALL_WINDOWS = [[3, 3, 3]] * 4
_LATENT_GRID = (3, 3, 3)
_AUDIO_LATENTS = 125

Models = dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """Input that both programs decode.

    Attributes:
        make: makes torch's models by the names of their folders, for a divisor of the published widths.
        inputs: makes the arrays of ours by name.
        decode: decodes them with the models.
        load_own: returns what decodes them with this package, which reads the models' folder.
    """

    make: Callable[[int], Models]
    inputs: Callable[[], dict[str, np.ndarray]]
    decode: Callable[[Models, dict[str, np.ndarray]], Any]
    load_own: Callable[[Path], Callable[[dict[str, np.ndarray]], mx.array]]


def _make_diffusion_decoder(divisor: int) -> Models:
    from diffusers import LTX2VideoDiffusionDecoderModel

    model = LTX2VideoDiffusionDecoderModel(
        decoder_stage_channels=[channels // divisor for channels in _STAGES], decoder_stage_kernels=_SMALL_WINDOWS
    )
    return {"diffusion_decoder": model}


def _make_video_inputs() -> dict[str, np.ndarray]:
    """Latents, and the noise that torch's generator of seed 0 draws, on patches of pixels."""
    import torch

    time_extent, height, width = (8 * (_LATENT_GRID[0] - 1) + 1, *(32 * cells for cells in _LATENT_GRID[1:]))
    noise = torch.randn((1, 3, time_extent, height, width), generator=torch.Generator().manual_seed(0)).numpy()
    patches = noise.reshape(1, 3, time_extent, height // _PATCH, _PATCH, width // _PATCH, _PATCH)
    patches = patches.transpose(0, 1, 6, 4, 2, 3, 5).reshape(1, -1, time_extent, height // _PATCH, width // _PATCH)
    latents = np.random.default_rng(0).standard_normal((1, 128, *_LATENT_GRID), dtype=np.float32)
    return {"latents": latents, "noise": patches}


def _decode_video(models: Models, inputs: dict[str, np.ndarray]) -> Any:
    import torch

    generator = torch.Generator().manual_seed(0)
    latents = torch.from_numpy(inputs["latents"])
    return models["diffusion_decoder"].decode(latents, generator=generator, return_dict=False)[0]


def _load_video_vae(folder: Path) -> Callable[[dict[str, np.ndarray]], mx.array]:
    vae = VideoVAE.from_pretrained(folder).load()
    return lambda inputs: vae.decode(inputs["latents"], noise=[inputs["noise"]])


def _make_audio(divisor: int, *, is_extended: bool) -> Models:
    import torch
    from diffusers import AutoencoderKLLTX2Audio
    from diffusers.pipelines.ltx2.vocoder import LTX2Vocoder, LTX2VocoderWithBWE

    vae = AutoencoderKLLTX2Audio(base_channels=128 // divisor)
    # Of every packed channel, whatever the width.
    vae.latents_mean, vae.latents_std = torch.zeros(128), torch.ones(128)
    if not is_extended:
        return {"audio_vae": vae, "vocoder": LTX2Vocoder(hidden_channels=1024 // divisor)}
    widths = {"hidden_channels": 1536 // divisor, "bwe_hidden_channels": 512 // divisor}
    vocoder = LTX2VocoderWithBWE(**widths)
    for basis in (vocoder.mel_stft.mel_basis, vocoder.mel_stft.stft_fn.forward_basis):
        basis.copy_(torch.rand_like(basis) / basis.shape[-1])
    return {"audio_vae": vae, "vocoder": vocoder}


def _make_audio_latents() -> dict[str, np.ndarray]:
    return {"latents": np.random.default_rng(0).standard_normal((1, 8, _AUDIO_LATENTS, 16), dtype=np.float32)}


def _decode_audio(models: Models, inputs: dict[str, np.ndarray]) -> Any:
    import torch

    mel = models["audio_vae"].decode(torch.from_numpy(inputs["latents"]), return_dict=False)[0]
    return models["vocoder"](mel)


def _load_audio_vae(folder: Path) -> Callable[[dict[str, np.ndarray]], mx.array]:
    vae = AudioVAE.from_pretrained(folder, encoder=False).load()
    return lambda inputs: vae.decode(inputs["latents"])


SUBJECTS = {
    "diffusion": Subject(_make_diffusion_decoder, _make_video_inputs, _decode_video, _load_video_vae),
    "ltx-2-audio": Subject(
        partial(_make_audio, is_extended=False), _make_audio_latents, _decode_audio, _load_audio_vae
    ),
    "ltx-2.3-audio": Subject(
        partial(_make_audio, is_extended=True), _make_audio_latents, _decode_audio, _load_audio_vae
    ),
}


def _random_models(subject: str, divisor: int) -> Models:
    """torch's models, with the same random weights in every process."""
    import torch

    torch.manual_seed(0)
    models = SUBJECTS[subject].make(divisor)
    with torch.no_grad():
        for model in models.values():
            for weight in model.parameters():
                weight *= _GAIN if weight.ndim > 1 else 1
                weight += _NUDGE * torch.randn_like(weight)
    return {name: model.eval() for name, model in models.items()}


def write_models(_: Case, *, subject: str, divisor: int, folder: str) -> dict[str, Any]:
    """Write the models, and the inputs."""
    for name, model in _random_models(subject, divisor).items():
        model.save_pretrained(Path(folder, name))
    save_file(SUBJECTS[subject].inputs(), Path(folder, "inputs.safetensors"))
    return {}


def decode_own(_: Case, *, subject: str, folder: str) -> dict[str, Any]:
    """Decode twice with this package, and keep the result for the others."""
    decode = SUBJECTS[subject].load_own(Path(folder))

    def run(inputs: dict[str, np.ndarray]) -> np.ndarray:
        return np.array(decode(inputs))

    result, measured = _measure(run, folder, rounds=2)
    np.save(Path(folder, "own.npy"), result)
    return {"program": "here", "mlx_peak_bytes": mx.get_peak_memory(), **measured}


def decode_by_diffusers(
    _: Case, *, subject: str, divisor: int, folder: str, compiles: bool = False, clamps: bool = False
) -> dict[str, Any]:
    """Decode with diffusers, and compare the result with this package's.

    Args:
        compiles: True if torch compiles the attention, as diffusers leaves to its users; the first of two decodes does.
        clamps: True if the first of two waveforms is clamped, as the original does, and diffusers not.
    """
    import torch
    import torch.nn.attention.flex_attention as flex

    if compiles:
        flex.flex_attention = torch.compile(flex.flex_attention, dynamic=False)
    models = _random_models(subject, divisor)
    if clamps:
        models["vocoder"].vocoder.final_act_fn = "clamp"

    def run(inputs: dict[str, np.ndarray]) -> np.ndarray:
        with torch.inference_mode():
            return SUBJECTS[subject].decode(models, inputs).numpy()

    result, measured = _measure(run, folder, rounds=2 if compiles else 1)
    ours, theirs = mx.array(np.load(Path(folder, "own.npy"))), mx.array(result)
    name = "diffusers, compiled attention" if compiles else "diffusers, clamped" if clamps else "diffusers"
    size = rms(theirs - theirs.mean(axis=-1, keepdims=True))
    errors = {"rms": rms(ours - theirs) / size, "largest": max_difference(ours, theirs)}
    return {"program": name, **errors, **measured}


def _measure(
    run: Callable[[dict[str, np.ndarray]], np.ndarray], folder: str, *, rounds: int
) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the last result, the seconds that it took, and how far all of them raised the resident memory."""
    inputs = load_file(Path(folder, "inputs.safetensors"))
    before = _resident_bytes()
    mx.reset_peak_memory()
    for _ in range(rounds):
        result, seconds = timed(lambda: run(inputs))
    peak = _resident_bytes()
    return result, {**seconds, "peak_bytes": peak - before, "process_bytes": peak}


def _resident_bytes() -> int:
    """Return the most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def diffusers_jobs(subject: str, divisor: int, folder: str) -> list[Job]:
    """One that writes the models, to run first, then one of this package, of diffusers, and of diffusers changed."""
    subject_arguments = {"subject": subject, "folder": folder}
    size = {"divisor": divisor}
    case = Case(mode=subject)
    changed = {"diffusion": {"compiles": True}, "ltx-2.3-audio": {"clamps": True}}.get(subject)
    theirs = [{}] if changed is None else [{}, changed]
    return [
        Job(write_models, case, subject_arguments | size, once=True, variables=_TORCH),
        Job(decode_own, case, subject_arguments, variables=_ONE_THREAD),
        *(Job(decode_by_diffusers, case, subject_arguments | size | change, variables=_TORCH) for change in theirs),
    ]


def diffusers_table(divisor: int, results: Sequence[list[Run]]) -> str:
    """Ratios of this package's figures to diffusers' in the same turn."""
    _, ours, *programs = results
    rows = [_row(ours, ours), *(_row(runs, ours) for runs in programs)]
    versions = f"diffusers {version('diffusers')}, torch {version('torch')}, MLX {version('mlx')}"
    notes = [
        "Ratios are this package's figure to that program's run of the same turn: median (least to largest).",
        "peak MB: growth of the process's resident memory while it decodes, without the weights, the largest.",
        "rms: of the difference, relative to the result's deviation. largest: difference.",
        f"{ours[0]['mode']}, 1/{divisor} of the published widths, float32, one thread each, {len(ours)} fresh "
        f"processes in turns; {versions}; {os.cpu_count()} cores.",
    ]
    return table(rows, notes)


def _row(runs: list[Run], ours: list[Run]) -> dict[str, str]:
    def ratio(key: str) -> str:
        return "1" if runs is ours else format_ratios(key, ours, runs, ".3f")

    return {
        "program": runs[0]["program"],
        "seconds": f"{median(runs, 'seconds'):.2f}",
        "ours of it": ratio("seconds"),
        "processor seconds": f"{median(runs, 'processor_seconds'):.2f}",
        "ours of them": ratio("processor_seconds"),
        "peak MB": f"{max(run['peak_bytes'] for run in runs) / MB:.0f}",
        "ours of its peak": ratio("peak_bytes"),
        "rms": "" if runs is ours else f"{runs[0]['rms']:.1e}",
        "largest": "" if runs is ours else f"{runs[0]['largest']:.1e}",
    }
