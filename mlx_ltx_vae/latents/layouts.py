"""Layouts of latent files for trainers, which read other tensors, metadata, containers and names of files.

Facts about the files that the trainers write themselves, one for each clip, by their sources of July and August 2026:

- ltx-trainer-mlx (in dgrauet/ltx-2-mlx, c2e0ea7): safetensors with `latents` (C, F', H', W') in float32, encoded in
  bfloat16; and one-element tensors `num_frames`, `height` and `width` (int32, of the latent grid) and `fps` (float32).
  `latent_0000.safetensors` belongs to `condition_0000.safetensors`: the number is the place of the video among all
  videos of its data set, ordered by their paths. Its `preprocess` keeps files that exist.
- ltx-trainer (in Lightricks/LTX-2, 639e2c9): files of `torch.save`, a dictionary with `latents` (C, F', H', W') in
  bfloat16, `num_frames`, `height` and `width` of the latent grid, and `fps`, which is 1 for images. A file has the name
  of its video, and ends in .pt.
- musubi-tuner (branch ltx-2 of AkaneTendo25/musubi-tuner): safetensors with `latents_FxHxW_DTYPE` (C, F', H', W'),
  bfloat16 by default, and metadata of the video. Its loader takes the size and the number of frames, which choose the
  batch, from the name of the file: `clip_00000-097_0768x0512_ltx2.safetensors` has the frames 0 to 96 of `clip`.

The trainers read audio latents from other files.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import IO

import mlx.core as mx

from ..backend.mlx_utils import dtype_name
from ..errors import ItemsError, WriterError, option
from ..shapes import DEFAULT_SCALE, Size, format_size
from ..units import format_count
from .containers import TensorBlocks, write_safetensors, write_torch
from .metadata import MUSUBI_ARCHITECTURE, LatentSpace

_IMAGE_FPS = 1.0  # of ltx-trainer
_NUMBERED = (".mp4", ".mov", ".avi", ".mkv", ".webm")  # by ltx-trainer-mlx
_MUSUBI_VERSION = "1.0.1"  # of the format
_MUSUBI_NAME = re.compile(r".+_[0-9]{5}-([0-9]{3,})_([0-9]{4,})x([0-9]{4,})_ltx2\.safetensors")


@dataclass(frozen=True)
class TrainerClip:
    """Latents of a clip, and what a trainer's file says of it.

    Attributes:
        latents: (C, F', H', W').
        num_frames, height, width: of the video, in frames and pixels.
        source_frames: frames that were encoded, before padding.
    """

    path: str
    latents: TensorBlocks
    num_frames: int
    height: int
    width: int
    source_frames: int
    fps: Fraction | None
    space: LatentSpace

    @property
    def grid(self) -> dict[str, int]:
        """Sizes of the latent grid, by the names that both trainers of LTX give them."""
        return dict(zip(("num_frames", "height", "width"), self.latents.shape[1:], strict=True))


@dataclass(frozen=True)
class Layout:
    """Layout of a trainer's files.

    Attributes:
        ending: of their names.
        write: writes a clip to an open file.
        dtype: of the stored latents. `None` means that of the encoder.
        numbers: endings of the videos of a data set, whose files are numbered; none if they have the videos' names.
        states_size: whether the names of files state size and frames.
    """

    name: str
    ending: str
    write: Callable[[IO[bytes], TrainerClip], None]
    dtype: mx.Dtype | None = None
    numbers: tuple[str, ...] = ()
    states_size: bool = False

    def file_ending(self, frames: slice | None, size: Size | None) -> str:
        """Return what follows the name of a video in the name of its file, if these frames are encoded at this size.

        Raises a `WriterError` if the layout needs size and frames and they are missing.
        """
        if not self.states_size:
            return self.ending
        bounds = () if frames is None else (frames.start, frames.stop)
        are_counted = frames is not None and all(isinstance(bound, int) and bound >= 0 for bound in bounds)
        if not are_counted or size is None:
            raise WriterError(
                f"{self.name} takes size and frames from the name of a file; add {option('size=', '--size WxH')} and "
                f"{option('frames=', '--frames N')}, counted from the first."
            )
        assert frames is not None
        count, (width, height) = frames.stop - frames.start, size
        if (count - 1) % DEFAULT_SCALE.time:
            whole_count = 1 + (count - 1) // DEFAULT_SCALE.time * DEFAULT_SCALE.time
            problem = f"{count} frames are not 1 + {DEFAULT_SCALE.time}*k, and the name of a file for {self.name}"
            raise WriterError(f"{problem} states their number; encode {whole_count}.")
        return f"_{frames.start:05d}-{count:03d}_{width:04d}x{height:04d}{self.ending}"

    def check_name(self, path: str) -> None:
        """Raise a `WriterError` for a name that the trainer does not take."""
        if not Path(path).name.endswith(self.ending):
            raise WriterError(f"{path}: {self.name} reads files whose names end in {self.ending}; use such a name.")
        if self.states_size and _MUSUBI_NAME.fullmatch(Path(path).name) is None:
            raise WriterError(
                f"{path}: {self.name} takes size and frames from the name, such as "
                f"clip_00000-097_0768x0512{self.ending}; name a folder, and the files in it get such names."
            )

    def number(self, videos: Sequence[str]) -> list[str]:
        """Return the name, without an ending, of the file of each video of a data set.

        Raises an `ItemsError` for a video that the trainer does not number.
        """
        for video in videos:
            if not video.lower().endswith(self.numbers):
                endings = ", ".join(self.numbers)
                raise ItemsError(
                    f"{video}: {self.name} numbers the videos of a folder that end in {endings}; convert this one, or "
                    "keep it elsewhere."
                )
        places = {path: place for place, path in enumerate(sorted(map(Path, videos)))}
        return [f"latent_{places[Path(video)]:04d}" for video in videos]


def _write_ltx_trainer_mlx(file: IO[bytes], clip: TrainerClip) -> None:
    tensors = [clip.latents]
    tensors += [TensorBlocks.of(name, mx.array([size], mx.int32)) for name, size in clip.grid.items()]
    if clip.fps is not None:
        tensors.append(TensorBlocks.of("fps", mx.array([float(clip.fps)], mx.float32)))
    write_safetensors(file, tensors, clip.space.entries)


def _write_ltx_trainer(file: IO[bytes], clip: TrainerClip) -> None:
    write_torch(file, clip.latents, {**clip.grid, "fps": _IMAGE_FPS if clip.fps is None else float(clip.fps)})


def _write_musubi_tuner(file: IO[bytes], clip: TrainerClip) -> None:
    name = _MUSUBI_NAME.fullmatch(Path(clip.path).name)
    frames, width, height = map(int, name.groups()) if name else (clip.source_frames, clip.width, clip.height)
    if (frames, width, height) != (clip.source_frames, clip.width, clip.height):
        clip_text = f"{format_count(clip.source_frames, 'frame')} of {format_size(clip.width, clip.height)}"
        raise WriterError(
            f"{clip.path}: the name states {frames} frames of {format_size(width, height)}, and the clip has "
            f"{clip_text}; leave it out, or encode all clips with fewer frames."
        )
    metadata = {
        "architecture": MUSUBI_ARCHITECTURE,
        "format_version": _MUSUBI_VERSION,
        "width": str(clip.width),
        "height": str(clip.height),
        "frame_count": str(clip.source_frames),
        **({} if clip.fps is None else {"target_fps": str(float(clip.fps))}),
        **clip.space.entries,
    }
    grid, latents = "x".join(map(str, clip.latents.shape[1:])), clip.latents
    write_safetensors(file, [latents._replace(name=f"latents_{grid}_{dtype_name(latents.dtype)}")], metadata)


#: By the names of the trainers, which are those of `LayoutName`.
LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout("ltx-trainer-mlx", ".safetensors", _write_ltx_trainer_mlx, mx.float32, _NUMBERED),
        Layout("ltx-trainer", ".pt", _write_ltx_trainer),
        Layout("musubi-tuner", "_ltx2.safetensors", _write_musubi_tuner, states_size=True),
    )
}
