"""The golden cases of audio, their checkpoints, and what the tests do with them."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from safetensors.numpy import load_file

from conftest import FIXTURES

AUDIO = FIXTURES / "audio"
sys.path.insert(0, str(AUDIO))

import synthetic_audio_checkpoint  # noqa: E402  (a script beside the golden data, not a package)

#: The cases with a vocoder: the published releases at small widths, and options of the second.
VOCODER_CASES = ["ltx2", "ltx2_3", "ltx2_3_options"]
VAE_CASES = ["vae_attention", "vae_group", "vae_width"]


@dataclass(frozen=True)
class AudioCase:
    """What goes in, what must come out, and the checkpoint that does it."""

    manifest: dict[str, Any]
    checkpoint: Path
    arrays: dict[str, np.ndarray]

    def checks(self, *ops: str) -> list[dict[str, Any]]:
        return [check for check in self.manifest["checks"] if check["op"] in ops]

    def compare(self, result: np.ndarray, check: dict[str, Any]) -> float:
        """The largest difference of a whole result from the stored part of what is expected, once the shapes agree."""
        assert list(result.shape) == check["full_shape"], check["expected"]
        selected, expected = synthetic_audio_checkpoint.select(result, check), self.arrays[check["expected"]]
        assert selected.shape == expected.shape
        assert selected.dtype == expected.dtype
        return float(np.abs(selected - expected).max())


def make_case(name: str, folder: Path) -> AudioCase:
    manifest = json.loads((AUDIO / f"{name}.json").read_text())
    path = folder / f"{name}.safetensors"
    synthetic_audio_checkpoint.write_checkpoint(manifest, path)
    arrays = load_file(AUDIO / f"{name}.safetensors") | synthetic_audio_checkpoint.make_inputs(manifest)
    return AudioCase(manifest, path, arrays)


def random_latents(length: int, batch: int = 1, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(batch, 8, length, 16)).astype(np.float32)


def to_frames(mel: np.ndarray) -> mx.array:
    """A spectrogram (B, 2, T, bins) as a vocoder takes it."""
    batch, _, length, _ = mel.shape
    return mx.array(mel.transpose(0, 2, 1, 3).reshape(batch, length, 1, 1, -1))


def from_frames(frames: mx.array) -> np.ndarray:
    """The inverse of `to_frames`."""
    batch, length, *_ = frames.shape
    return np.array(frames).reshape(batch, length, 2, -1).transpose(0, 2, 1, 3)


def to_samples(frames: mx.array) -> np.ndarray:
    """(B, n, 1, 1, 2) to (B, 2, n)."""
    return np.array(frames)[:, :, 0, 0].transpose(0, 2, 1)
