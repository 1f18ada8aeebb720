"""The arrays in ComfyUI's LATENT and AUDIO, with advice for arrays that cannot be used."""

import wave
from typing import Any

import numpy as np
from comfy_api.latest import io

from mlx_ltx_vae import Keyframes, LatentsError
from mlx_ltx_vae.errors import quote
from mlx_ltx_vae.latents import looks_like_audio
from mlx_ltx_vae.models.noise import CONVENTIONS, DEFAULT_CONVENTION, MAX_SEED

MAX_CHANNELS = 8  # of a sound in a video file


def latent_input() -> io.Latent.Input:
    return io.Latent.Input("latent", tooltip="Of video, or of video and audio.")


def parts_of(latent: dict) -> list[Any]:
    """The tensors of a LATENT: video and audio in this order, or one."""
    samples = latent["samples"]
    return list(samples.unbind()) if getattr(samples, "is_nested", False) else [samples]


def video_latents(latent: dict) -> np.ndarray:
    """The video's part of a LATENT, (1, C, F', H', W')."""
    samples, *sound = parts_of(latent)
    if looks_like_audio(samples.shape, None):
        raise LatentsError("these are latents of audio alone; connect the video's, or both.")
    if samples.ndim != 5:
        raise LatentsError(f"video latents have 5 axes, and these have the shape {tuple(samples.shape)}.")
    if samples.shape[0] != 1:
        before = "separate video and audio with LTXVSeparateAVLatent, and " if sound else ""
        raise LatentsError(
            f"these are the latents of {samples.shape[0]} videos; {before}take one with LatentFromBatch."
        )
    return to_numpy(samples)


def audio_latents(latent: dict) -> np.ndarray | None:
    """The audio's part of a LATENT, (B, 8, T, 16); None if it has none."""
    samples = parts_of(latent)[-1]
    return to_numpy(samples) if looks_like_audio(samples.shape, None) else None


def to_numpy(tensor: Any) -> np.ndarray:
    return tensor.detach().cpu().float().numpy()


def check_sound(audio: dict, max_channels: int = MAX_CHANNELS) -> None:
    """Raise a `LatentsError` for an AUDIO that has no samples, or too many channels."""
    _, channels, samples = audio["waveform"].shape
    if samples == 0 or channels == 0:
        raise LatentsError("the AUDIO has no samples; disconnect it, or load a sound.")
    if channels > max_channels:
        raise LatentsError(f"the AUDIO has {channels} channels, and at most {max_channels} are taken; mix it down.")


def write_sound(path: str, audio: dict) -> None:
    """Write the first item of a batch of AUDIO as 32-bit PCM."""
    with wave.open(path, "wb") as file:
        samples = audio["waveform"][0].detach().cpu().double().numpy()  # (channels, samples)
        levels = np.clip(np.rint(samples * 2**31), -(2**31), 2**31 - 1).astype("<i4")
        file.setparams((len(levels), 4, int(audio["sample_rate"]), 0, "NONE", ""))
        file.writeframes(np.ascontiguousarray(levels.T))


#: Stands for the default of a number that need not be given.
DEFAULT = -1.0


def stream_inputs() -> list[io.Input]:
    """Inputs with names of arguments of `stream_options`."""
    own = "-1: as its convention has it. For the VAEs of LTX-Video 0.9.1 to 0.9.8."
    more: dict[str, Any] = {"optional": True, "advanced": True}
    share = {"default": DEFAULT, "min": DEFAULT, "max": 1.0, "step": 0.005, **more}
    return [
        io.Int.Input(  # not `seed`, to which the page adds a control that changes it after each run
            "decoder_seed",
            display_name="seed",
            default=0,
            min=0,
            max=MAX_SEED,
            tooltip="Of the noise of LTX-Video 0.9.1 to 0.9.8, and of LTX-2.5's diffusion decoder. Others take 0.",
            **more,
        ),
        io.Float.Input("timestep", tooltip=f"Of the decoder. {own}", **share),
        io.Float.Input("noise_scale", tooltip=f"The share of the latents that noise replaces. {own}", **share),
        io.Combo.Input(
            "convention",
            options=list(CONVENTIONS),
            default=DEFAULT_CONVENTION,
            tooltip="Whose defaults these VAEs follow: ltx-video has timestep 0.05, and noise scale 0.025.",
            **more,
        ),
    ]


def keyframe_inputs() -> list[io.Input]:
    """Inputs that `stream_inputs` returns. They come last: saved workflows have the values of widgets in order."""
    return [
        io.Latent.Input(
            "keyframes",
            optional=True,
            tooltip="Stills for LTX-2.5's diffusion decoder, each encoded alone, one after another along time. "
            "Other decoders ignore them.",
        ),
        io.String.Input(
            "keyframe_frames",
            default="",
            optional=True,
            advanced=True,
            tooltip="The frame of each of the keyframes in the video, such as 24, 48, 72.",
        ),
    ]


def stream_options(
    decoder_seed: int = 0,
    timestep: float = DEFAULT,
    noise_scale: float = DEFAULT,
    convention: str = DEFAULT_CONVENTION,
    keyframes: dict | None = None,
    keyframe_frames: str = "",
) -> dict[str, Any]:
    """The options of `VideoVAE.stream`."""
    given = {"timestep": timestep, "noise_scale": noise_scale}
    options = {name: value for name, value in given.items() if value >= 0}
    if keyframes is not None:
        options["keyframes"] = Keyframes(video_latents(keyframes), frame_numbers(keyframe_frames))
    return {"seed": decoder_seed, "like": convention, **options}


def frame_numbers(text: str) -> list[int]:
    """The whole numbers in a text such as "24, 48, 72"."""
    try:
        return [int(word) for word in text.replace(",", " ").split()]
    except ValueError:
        raise LatentsError(f"keyframe_frames is {quote(text)}; write frame numbers such as 24, 48, 72.") from None
