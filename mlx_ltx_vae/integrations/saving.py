"""Folder in which the latents that an app decodes are saved."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from functools import partial
from itertools import count
from pathlib import Path

import mlx.core as mx

from ..errors import WriterError, describe_error, warn
from ..files import writing_to
from ..latents.keyframes import Keyframes
from ..latents.metadata import LatentSpace
from ..latents.writer import NO_SPACE, save_latents, save_sound_latents
from ..shapes import ScaleFactors
from ..units import expand_path


class LatentsFolder:
    """Folder with a latent file for each decode, named by date and number. No file is replaced.

    Sound is kept for the video that is decoded next, and is written with it. A still is kept too, since it may be a
    preview of the next video, and is written only if none follows. What cannot be written is a warning, and the decode
    continues.
    """

    def __init__(self, folder: str | os.PathLike) -> None:
        self._folder = Path(expand_path(folder, WriterError)).absolute()  # the app may change its working folder
        self._sound: mx.array | None = None
        self._still: Callable[[], None] | None = None
        self._last: tuple[mx.array | None, Path | None] = (None, None)
        with writing_to(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        if not os.access(self._folder, os.W_OK):
            raise WriterError(f"{folder}: latents cannot be saved there (the folder is read-only); choose another one.")

    def __str__(self) -> str:
        return str(self._folder)

    def hold_sound(self, latents: mx.array) -> None:
        """Keep audio latents (B, 8, T, 16) for the next video."""
        self.close()
        self._sound = latents

    def save(
        self,
        latents: mx.array,
        scale: ScaleFactors,
        fps: float | None = None,
        keyframes: Keyframes | None = None,
        space: LatentSpace = NO_SPACE,
    ) -> None:
        """Write normalized latents (B, C, F', H', W'), with the kept sound. A still is kept until the next call."""
        save = partial(self._save, latents, scale, fps, keyframes, space)
        if latents.shape[2] == 1:
            self._still = partial(save, None)
            return
        sound, self._sound, self._still = self._sound, None, None
        save(sound)

    def _save(
        self,
        latents: mx.array,
        scale: ScaleFactors,
        fps: float | None,
        keyframes: Keyframes | None,
        space: LatentSpace,
        sound: mx.array | None,
    ) -> None:
        frames, height, width = scale.video_grid(latents.shape[2:])
        path = self._next_path()
        with _warned("the latents are"):
            save_latents(
                path,
                latents,
                fps=fps,
                num_frames=frames,
                height=height,
                width=width,
                audio=sound,
                keyframes=keyframes,
                space=space,
                overwrite=False,
            )
            self._last = latents, path

    def path_of(self, latents: mx.array) -> Path | None:
        """Return the file of these latents if they were saved last."""
        last_latents, path = self._last
        return path if last_latents is latents else None

    def close(self) -> None:
        """Write kept sound and a kept still that no video followed."""
        sound, still, self._sound, self._still = self._sound, self._still, None, None
        if still is not None:
            still()
        if sound is not None:
            with _warned("the audio latents are"):
                save_sound_latents(self._next_path(), sound)

    def _next_path(self) -> Path:
        """Return the first unused path of today."""
        names = (self._folder / f"{date.today():%Y-%m-%d}-{number:03}.safetensors" for number in count(1))
        return next(path for path in names if not path.exists())


@contextmanager
def _warned(subject: str) -> Iterator[None]:
    """Turn an error of saving into a warning, since the generation goes on."""
    try:
        yield
    except Exception as error:
        warn(f"{subject} not saved: {describe_error(error)}")
