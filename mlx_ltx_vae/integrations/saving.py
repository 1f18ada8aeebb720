"""Decodes of apps, and the files in which their latents are saved, each decode once."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from datetime import date
from fractions import Fraction
from inspect import CO_OPTIMIZED
from itertools import count
from pathlib import Path
from threading import RLock
from types import FrameType
from typing import Any, TypeVar

import mlx.core as mx

from ..errors import LTXVAEError, PlanError, WriterError, describe_error, warn
from ..files import expand_path, writing_to
from ..latents.keyframes import Keyframes
from ..latents.writer import NO_SPACE, rescue_latents, save_audio_latents, save_latents
from ..shapes import DEFAULT_SCALE
from ..units import parse_fps
from ..vae import VideoVAE
from .settings import current, say

ValueT = TypeVar("ValueT")

_AXES = 5  # of latents (B, C, F', H', W')
_REFERENCES = 3  # to a copy that only its frame, one variable here and `getrefcount` have
_names_lock = RLock()  # which a signal handler may take again
_reserved_paths: set[Path] = set()  # of files that threads are writing


class AppDecode:
    """Decode of an app: its latents, and what is known of their video.

    Apps often hand latents alone to their decoder, so the rate and the file are searched in the functions that called
    it.

    Attributes:
        latents: normalized (B, C, F', H', W').
        audio: audio latents (B, 8, T, 16) that the file contains too.
        path: the file of the latents in the folder for all decodes; `None` if they are not there yet.
        has_warned: flag: a line has said why they are not there.
    """

    def __init__(self, latents: mx.array, values: Mapping[str, Any]) -> None:
        """Begin the decode of latents (B, C, F', H', W'), or of one video without B; `values` are all arguments."""
        self.latents = latents if latents.ndim == _AXES else latents[None]
        self.audio: mx.array | None = None
        self.path: Path | None = None
        self.has_warned = False
        self._missing: list[str] = []
        self._keyframes: Keyframes | None = None
        try:
            self._keyframes = to_keyframes(values)
        except Exception:  # their kind is not known, which may be why the decode fails
            self._missing.append("the keyframes")
        self._frame_rate = _find_value(values, ("frame_rate", "fps"), _to_rate)
        self._output_path = _find_value(values, ("output_path",), _to_path)
        if self._frame_rate is None and not self.is_still:
            self._missing.append("the frame rate, which the app does not state (give --fps to decode)")
        self._folder = current().folder
        self._scale, self._space = DEFAULT_SCALE, NO_SPACE
        self._is_saved = self._knows_vae = False
        self._statement = ""

    @property
    def is_still(self) -> bool:
        return self.latents.shape[2] == 1

    def save(self, vae: VideoVAE | None = None) -> None:
        """Save the latents if a folder is set. A later call with the `vae` of the latents adds it to the file."""
        if self._folder is None or (self._is_saved and (vae is None or self._knows_vae)):
            return
        self._is_saved = True
        if vae is not None:
            self._knows_vae, self._scale, self._space = True, vae.config.scale, vae.latent_space
        self._folder.save(self)

    def rescue(self) -> str:
        """Save the latents if they are not, also without a folder, and return a statement of where they are.

        It is empty if they cannot be saved and a line has said so.
        """
        if self._folder is not None and self.path is None:
            self._folder.write(self)
        if self.path is not None:
            return f"its latents are in {self.path}"
        if not self._statement:
            text = rescue_latents(self.latents, self._output_path, self._frame_rate, self._keyframes)
            is_saved = " are in " in text
            self._statement = text + (self._describe_missing() if is_saved else "")
            if self.has_warned and not is_saved:
                self._statement = ""
        return self._statement

    def write(self, path: Path) -> None:
        """Write the latents with what is known of them to a new file, or again to the one that they are in."""
        frames, height, width = self._scale.video_grid(self.latents.shape[2:])
        options: dict[str, Any] = {"num_frames": frames, "height": height, "width": width, "space": self._space}
        options |= {"fps": self._frame_rate, "overwrite": self.path is not None}
        parts: dict[str, Any] = {"audio": self.audio, "keyframes": self._keyframes}
        is_first = self.path is None
        try:
            self.path = save_latents(path, self.latents, **options, **parts)
        except WriterError:
            raise
        except Exception as error:  # of parts that the file cannot hold
            names = [name for name, part in parts.items() if part is not None]
            if not names:
                raise
            self.path = save_latents(path, self.latents, **options)
            self._missing.append(f"{' and '.join(names)} ({describe_error(error).rstrip('.')})")
            self.audio = self._keyframes = None
        if is_first and self._missing:
            say(f"{self.path}: holds the latents{self._describe_missing()}.")

    def _describe_missing(self) -> str:
        return f", without {', and without '.join(self._missing)}" if self._missing else ""


#: Decode that the functions which are called now are part of.
app_decode: ContextVar[AppDecode | None] = ContextVar("app_decode", default=None)


@contextmanager
def part_of(decode: AppDecode | None) -> Iterator[None]:
    """Make what is called in the block a part of a decode, unless it is part of another one."""
    token = app_decode.set(app_decode.get() or decode)
    try:
        yield
    finally:
        app_decode.reset(token)


class LatentsFolder:
    """Folder with a latent file for each decode, named by date and number. No file is replaced.

    Audio is kept for the video that is decoded next, and is written with it. A still is kept too, since it may be a
    preview of the next video, and is written only if none follows. What cannot be written is a warning, and the decode
    continues.
    """

    def __init__(self, folder: str | os.PathLike) -> None:
        self._folder = Path(expand_path(folder, WriterError)).absolute()  # the app may change its working folder
        self._audio: mx.array | None = None
        self._still: AppDecode | None = None
        with writing_to(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        self._earlier_files = self._list_files()
        if not os.access(self._folder, os.W_OK):
            raise WriterError(f"{folder}: latents cannot be saved there (the folder is read-only); choose another one.")

    def __str__(self) -> str:
        return str(self._folder)

    def count_files(self) -> int:
        """Return the number of latent files that have been added, also by other processes, and are there."""
        return len(self._list_files() - self._earlier_files)

    def _list_files(self) -> set[Path]:
        return set(self._folder.glob("*.safetensors"))

    def hold_audio(self, latents: mx.array) -> None:
        """Keep audio latents (B, 8, T, 16) for the next video."""
        self.close()
        self._audio = latents

    def save(self, decode: AppDecode) -> None:
        """Write the latents of a decode, with the kept audio. A still is kept until the next call."""
        if decode.is_still and decode.path is None:
            self._still = decode
            return
        self.write(decode)

    def write(self, decode: AppDecode) -> None:
        """Write the latents of a decode."""
        if decode.path is None and not decode.is_still:
            decode.audio, self._audio = decode.audio if self._audio is None else self._audio, None
            self._still = None
        elif decode is self._still:
            self._still = None
        try:
            with nullcontext(decode.path) if decode.path else self._reserve_path() as path:
                decode.write(path)
            if decode.has_warned:
                decode.has_warned = False
                say(f"{decode.path}: holds the latents, which a later attempt saved.")
        except Exception as error:  # each function of a call may try again
            if not decode.has_warned:
                decode.has_warned = True
                warn(f"the latents are not saved: {describe_error(error)}")

    def close(self) -> None:
        """Write kept audio and a kept still that no video followed."""
        if self._still is not None:
            self.write(self._still)
        audio, self._audio = self._audio, None
        if audio is not None:
            try:
                with self._reserve_path() as path:
                    save_audio_latents(path, audio)
                say(f"{path}: holds the audio alone; no function that is known here got the latents of its video.")
            except Exception as error:
                warn(f"the audio latents are not saved: {describe_error(error)}")

    @contextmanager
    def _reserve_path(self) -> Iterator[Path]:
        """Yield the first unused path of today, which no other thread gets in the block."""
        paths = (self._folder / f"{date.today():%Y-%m-%d}-{number:03}.safetensors" for number in count(1))
        with _names_lock:
            path = next(path for path in paths if path not in _reserved_paths and not path.exists())
            _reserved_paths.add(path)
        try:
            yield path
        finally:
            _reserved_paths.discard(path)


def to_keyframes(values: Mapping[str, Any]) -> Keyframes | None:
    """Return the keyframes in the arguments of an app's function, `None` without any.

    ltx-2-mlx has an object with `latents` (B, C, P, H', W') and `pixel_frame_indices` from the first frame on, and
    mlx-video has two arguments.
    """
    keyframes, latents = values.get("keyframes"), values.get("keyframe_latents")
    if latents is not None:
        return Keyframes(latents, list(values["keyframe_positions"]))
    if keyframes is None or isinstance(keyframes, Keyframes):
        return keyframes
    if getattr(keyframes, "clip_start_frame", 0):
        raise PlanError("keyframes of a clip that begins in the middle of a video are not supported; decode it whole.")
    return Keyframes(keyframes.latents, list(keyframes.pixel_frame_indices))


def _to_rate(value: Any) -> Fraction | None:
    """Return a frame rate, or `None` if the value is none."""
    try:
        return None if value is None or isinstance(value, (bool, mx.array)) else parse_fps(value)
    except Exception:  # of an object of the app
        return None


def _to_path(value: Any) -> str | None:
    """Return the path of a file, or `None` if the value is none."""
    try:
        return expand_path(value, WriterError) or None
    except LTXVAEError:
        return None


def _find_value(
    values: Mapping[str, Any], names: Sequence[str], convert: Callable[[Any], ValueT | None]
) -> ValueT | None:
    """Return the converted argument with one of these names, or a variable of the nearest function that called.

    Functions of this package do not count.
    """
    value = next(filter(None, (convert(values.get(name)) for name in names)), None)
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and value is None:
        if frame.f_globals.get("__name__", "").partition(".")[0] != __name__.partition(".")[0]:
            value = next(filter(None, map(convert, _read_variables(frame, names))), None)
        frame = frame.f_back
    return value


def _read_variables(frame: FrameType, names: Sequence[str]) -> list[Any]:
    """Return the values of a frame's variables with these names."""
    code = frame.f_code
    is_function = code.co_flags & CO_OPTIMIZED
    if is_function and not set(names) & {*code.co_varnames, *code.co_cellvars, *code.co_freevars}:
        return []
    variables = frame.f_locals
    values = [variables[name] for name in names if name in variables]
    # Before Python 3.13 a copy, which would keep all arrays of the function until it ends.
    if is_function and isinstance(variables, dict) and sys.getrefcount(variables) <= _REFERENCES:
        variables.clear()
    return values
