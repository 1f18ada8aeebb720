"""Folder in which the latents that an app decodes are saved."""

import os
from datetime import date
from itertools import count
from pathlib import Path

import mlx.core as mx

from ..errors import LTXVAEError, WriterError, warn
from ..files import writing_to
from ..latents.keyframes import Keyframes
from ..latents.writer import save_latents, save_sound_latents
from ..shapes import ScaleFactors
from ..units import expand_path


class LatentsFolder:
    """Folder with a latent file for each decode, named by date and number. No file is replaced.

    Sound is kept for the video that is decoded next, and is written with it. A file that cannot be written is a
    warning, and the decode continues.
    """

    def __init__(self, folder: str | os.PathLike) -> None:
        self._folder = Path(expand_path(folder, WriterError))
        self._sound: mx.array | None = None
        with writing_to(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        if not os.access(self._folder, os.W_OK):
            raise WriterError(f"{folder}: latents cannot be saved there (the folder is read-only); choose another one.")

    def hold_sound(self, latents: mx.array) -> None:
        """Keep audio latents (B, 8, T, 16) for the next video."""
        self.close()
        self._sound = latents

    def save(
        self, latents: mx.array, scale: ScaleFactors, fps: float | None = None, keyframes: Keyframes | None = None
    ) -> None:
        """Write normalized latents (B, C, F', H', W'), with the kept sound unless the latents are a still."""
        sound = None
        if latents.shape[2] > 1:
            sound, self._sound = self._sound, None
        frames, height, width = scale.video_grid(latents.shape[2:])
        try:
            save_latents(
                self._next_path(),
                latents,
                fps=fps,
                num_frames=frames,
                height=height,
                width=width,
                audio=sound,
                keyframes=keyframes,
                overwrite=False,
            )
        except LTXVAEError as error:
            warn(f"the latents are not saved: {error}")

    def close(self) -> None:
        """Write kept sound that no video followed."""
        sound, self._sound = self._sound, None
        if sound is not None:
            try:
                save_sound_latents(self._next_path(), sound)
            except LTXVAEError as error:
                warn(f"the audio latents are not saved: {error}")

    def _next_path(self) -> Path:
        """Return the first unused path of today."""
        names = (self._folder / f"{date.today():%Y-%m-%d}-{number:03}.safetensors" for number in count(1))
        return next(path for path in names if not path.exists())
