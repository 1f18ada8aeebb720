"""LTX Decode Audio and LTX Encode Audio."""

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import torch
from comfy_api.latest import io

from mlx_ltx_vae import AudioVAE, LatentsError

from . import host
from .host import CATEGORY, FileNode, files_in, loaded_input, vae_source
from .latents import audio_latents, samples_of
from .networks import Source
from .worker import Job, Report, format_bytes

SECONDS_AT_ONCE = 1


def audio_vae_input(choices: list[str], tooltip: str, **more: Any) -> io.Combo.Input:
    return io.Combo.Input("audio_vae", options=[*choices, *files_in("vae", "checkpoints")], tooltip=tooltip, **more)


class LTXDecodeAudio(FileNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LTXDecodeAudioMLX",
            display_name="LTX Decode Audio (MLX)",
            category=CATEGORY,
            search_aliases=["audio vae decode", "latent to audio", "vocoder", "mlx"],
            description="Decodes the audio of LTX latents. LTX Save Video (MLX) does it by itself for its videos.",
            inputs=[
                io.Latent.Input("latent", tooltip="Of audio, or of video and audio."),
                audio_vae_input([], "An audio VAE, or a whole model that has one, such as LTX-2."),
                loaded_input("loaded_audio_vae"),
            ],
            outputs=[io.Audio.Output(tooltip="Stereo.")],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def execute(cls, latent: dict, audio_vae: str, loaded_audio_vae: Any = None) -> io.NodeOutput:
        latents = audio_latents(latent)
        if latents is None:
            raise LatentsError("these are latents of video alone; connect the audio's, or both.")
        source = vae_source("loaded_audio_vae", audio_vae, loaded_audio_vae)
        waveform, rate = host.run(decode_audio, source, latents, node_id=cls.hidden.unique_id)
        return io.NodeOutput({"waveform": torch.from_numpy(waveform), "sample_rate": rate})


def decode_audio(job: Job, source: Source, latents: np.ndarray) -> tuple[np.ndarray, int]:
    """Decode the waveform (B, 2, n) and its sample rate."""
    vae = host.networks.load(AudioVAE, source, "decoder")
    plan = vae.plan(latents.shape[2], batch=len(latents))
    stream = vae.stream(latents, plan)
    job.say(f"{plan.seconds:.1f} s of audio within {format_bytes(plan.peak_bytes)}")
    host.make_room(job, plan.peak_bytes)
    waveform = np.empty((len(latents), 2, plan.num_samples), np.float32)
    for chunk in job.chunks(stream):
        done = chunk.start + chunk.waveform.shape[2]
        waveform[:, :, chunk.start : done] = chunk.waveform
        job.reports.put(Report(done, plan.num_samples))
    return waveform, vae.sample_rate


class LTXEncodeAudio(FileNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LTXEncodeAudioMLX",
            display_name="LTX Encode Audio (MLX)",
            category=CATEGORY,
            search_aliases=["audio vae encode", "audio to latent", "mlx"],
            description="Encodes audio into LTX audio latents: 25 for each second, and one more. ComfyUI's own node "
            "makes up to 2 fewer: it resamples to 44.1 kHz and cuts to whole blocks of 4096 samples.",
            inputs=[
                io.Audio.Input("audio", tooltip="Mono or stereo, of any sample rate."),
                audio_vae_input([], "An audio VAE with an encoder, or a whole model that has one, such as LTX-2."),
                loaded_input("loaded_audio_vae"),
            ],
            outputs=[io.Latent.Output(tooltip="Audio alone; LTXVConcatAVLatent adds it to a video's latents.")],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def execute(cls, audio: dict, audio_vae: str, loaded_audio_vae: Any = None) -> io.NodeOutput:
        source = vae_source("loaded_audio_vae", audio_vae, loaded_audio_vae)
        arguments = samples_of(audio, max_channels=2), int(audio["sample_rate"])
        latents = host.run(encode_audio, source, *arguments, node_id=cls.hidden.unique_id)
        return io.NodeOutput({"samples": torch.from_numpy(latents), "type": "audio"})


def encode_audio(job: Job, source: Source, waveform: np.ndarray, rate: int) -> np.ndarray:
    """Latents (B, 8, T, 16) of a waveform (B, channels, n)."""
    vae = host.networks.load(AudioVAE, source, "encoder")
    plan = vae.plan_encode(waveform.shape[2] / rate, batch=len(waveform))
    host.make_room(job, plan.peak_bytes)

    def pieces() -> Iterator[np.ndarray]:
        total, step = waveform.shape[2], SECONDS_AT_ONCE * rate
        for start in range(0, total, step):
            job.check()
            yield waveform[:, :, start : start + step]
            job.reports.put(Report(min(start + step, total), total))

    return np.array(vae.encode(pieces(), rate, plan).astype(mx.float32))
