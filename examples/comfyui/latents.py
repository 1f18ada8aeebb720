"""The arrays in ComfyUI's LATENT and AUDIO, with advice for arrays that cannot be used."""

import wave
from collections.abc import Iterator
from typing import Any

import numpy as np
from comfy_api.latest import io

from mlx_ltx_vae import AudioStream, LatentsError

MAX_CHANNELS = 8  # of audio in a video file


def latent_input() -> io.Latent.Input:
    return io.Latent.Input("latent", tooltip="Of video, or of video and audio.")


def parts_of(latent: dict) -> list[Any]:
    """Return the tensors of a LATENT: video and audio in this order, or one."""
    samples = latent["samples"]
    return list(samples.unbind()) if getattr(samples, "is_nested", False) else [samples]


def video_latents(latent: dict | list[dict]) -> np.ndarray | list[np.ndarray]:
    """Return the video's part of a LATENT, (1, C, F', H', W'), or of each in a list."""
    if isinstance(latent, list):
        return [video_latents(window) for window in latent]
    samples, *audio = parts_of(latent)
    if is_audio(samples):
        raise LatentsError("these are latents of audio alone; connect the video's, or both.")
    if samples.ndim != 5:
        raise LatentsError(f"video latents have 5 axes, and these have the shape {tuple(samples.shape)}.")
    if samples.shape[0] != 1:
        before = "separate video and audio with LTXVSeparateAVLatent, and " if audio else ""
        raise LatentsError(
            f"these are the latents of {samples.shape[0]} videos; {before}take one with LatentFromBatch."
        )
    return to_numpy(samples)


def audio_latents(latent: dict | list[dict]) -> np.ndarray | list[np.ndarray] | None:
    """Return the audio's part of a LATENT, (B, 8, T, 16), or of each in a list, or `None` if there is none."""
    if isinstance(latent, list):
        samples_of_windows = [audio_latents(window) for window in latent]
        if all(window is None for window in samples_of_windows):
            return None
        if any(window is None for window in samples_of_windows):
            raise LatentsError("some of these latents have audio, and others none; give windows that are alike.")
        return samples_of_windows
    samples = parts_of(latent)[-1]
    return to_numpy(samples) if is_audio(samples) else None


def is_audio(samples: Any) -> bool:
    """Return whether a tensor of a LATENT is of audio, (B, 8, T, 16)."""
    return samples.ndim == 4 and (samples.shape[1], samples.shape[3]) == (8, 16)


def check_videos(latents: list[dict]) -> None:
    """Raise a `LatentsError` unless all values of the videos' parts are finite."""
    for number, latent in enumerate(latents, 1):
        values = video_latents(latent)
        if num_invalid := values.size - np.isfinite(values).sum():
            raise LatentsError(
                f"LATENT {number} of the list: {num_invalid} of {values.size} latent values are NaN or infinite."
            )


def to_numpy(tensor: Any) -> np.ndarray:
    return tensor.detach().cpu().float().numpy()


def samples_of(audio: dict, max_channels: int = MAX_CHANNELS) -> np.ndarray:
    """Return the samples of an AUDIO, (B, channels, n) float32. Raises a `LatentsError` for anything but audio."""
    samples = to_numpy(audio["waveform"])
    _, channels, length = samples.shape
    if length == 0 or channels == 0:
        raise LatentsError("the AUDIO has no samples; disconnect it, or load audio.")
    if channels > max_channels:
        raise LatentsError(f"the AUDIO has {channels} channels, and at most {max_channels} are taken; mix it down.")
    if not np.isfinite(samples).all():
        raise LatentsError("the AUDIO has values that are NaN or infinite; check the node that makes it.")
    return samples


def write_audio(path: str, samples: np.ndarray, sample_rate: int, length: int) -> None:
    """Write audio (channels, n) as 32-bit PCM of this many samples: its end is cut, or silence follows it."""
    with wave.open(path, "wb") as file:
        levels = np.zeros((len(samples), length), "<i4")
        samples = samples[:, :length].astype(np.float64)
        levels[:, : samples.shape[1]] = np.clip(np.rint(samples * 2**31), -(2**31), 2**31 - 1)
        file.setparams((len(levels), 4, sample_rate, 0, "NONE", ""))
        file.writeframes(np.ascontiguousarray(levels.T))


class PaddedAudio:
    """A stream of audio, and silence after it up to this many samples."""

    def __init__(self, stream: AudioStream, length: int) -> None:
        self.sample_rate, self._stream, self._length = stream.sample_rate, stream, length

    def __iter__(self) -> Iterator[np.ndarray]:
        missing = self._length
        for chunk in self._stream:
            missing -= chunk.waveform.shape[2]
            yield np.array(chunk.waveform)
        yield np.zeros((2, max(0, missing)), np.float32)

    def close(self) -> None:
        self._stream.close()
