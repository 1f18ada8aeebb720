"""One thing to measure, small enough to be handed to another process as JSON."""

import enum
import re
from dataclasses import dataclass
from typing import Any

from ..errors import LTXVAEError
from ..models.video_vae.config import GENERATIONS, VAEConfig
from ..tiling import SpatialTilingConfig, TilingConfig, preset

#: What a generation is called on the command line, and its name in `GENERATIONS`.
GENERATION_NAMES = {name.split()[-1].lower(): name for name in GENERATIONS}


class Task(str, enum.Enum):
    """What is done in a fresh process."""

    DECODE = "decode"
    ENCODE = "encode"
    AGAINST = "against"  # a decode by other code than ours
    OVERLAP = "overlap"
    PRECISION = "precision"
    QUALITY = "quality"
    ROOFLINE = "roofline"

    @property
    def once(self) -> bool:
        """Whether one process measures all there is: it repeats by itself, or what it finds is the same every time."""
        return self in (Task.OVERLAP, Task.PRECISION, Task.QUALITY, Task.ROOFLINE)


@dataclass(frozen=True)
class Case:
    """One run.

    Attributes:
        task: what to do.
        model: a checkpoint, or None for random weights.
        latents: a file of latents, which say the size and length; None for noise.
        generation: of random weights, a key of `GENERATION_NAMES`.
        base_width: of random weights, the base channels; 128 is real.
        dtype: to compute in; None for the checkpoint's own, or float32.
        width: in pixels.
        height: in pixels.
        frames: of the clip.
        mode: of a decode; of an encode "stream" or "tiled"; of other code its name.
        order: of a decode.
        chunk: of a decode.
        tiles: a preset's name, or SIZE:OVERLAP in pixels.
        tile_batch_size: tiles of equal shape that go together.
        memory_budget: of a decode.
        rounds: how often a task that repeats by itself does so.
        ffmpeg: whether an overlap is measured with ffmpeg too.
        sampled: whether a decode keeps samples of its memory.
        keep: where a decode saves its frames as `.npy`, or None.
    """

    task: Task = Task.DECODE
    model: str | None = None
    latents: str | None = None
    generation: str = "ltx-2.3"
    base_width: int = 32
    dtype: str | None = None
    width: int = 256
    height: int = 256
    frames: int = 57
    mode: str = "exact"
    order: str = "auto"
    chunk: int | None = None
    tiles: str = "default"
    tile_batch_size: int = 1
    memory_budget: str | None = None
    rounds: int = 3
    ffmpeg: bool = False
    sampled: bool = False
    keep: str | None = None

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Case":
        """The case that `dataclasses.asdict` made these of."""
        return cls(**{**fields, "task": Task(fields.get("task", Task.DECODE))})

    @property
    def tiling(self) -> TilingConfig | None:
        """The tiles, where the mode has any."""
        if self.mode != "tiled":
            return None
        match = re.fullmatch(r"(\d+):(\d+)", self.tiles)
        if match:
            return TilingConfig(SpatialTilingConfig(int(match[1]), int(match[2])))
        return preset(self.tiles, self.height, self.width, self.frames)


def latent_grid(config: VAEConfig, frames: int, height: int, width: int) -> tuple[int, int, int]:
    """The latent grid (F', H', W') of a video.

    Raises:
        LTXVAEError: for a length or a size that no latents decode to.
    """
    scale = config.scale
    if (frames - 1) % scale.time or width % scale.width or height % scale.height:
        raise LTXVAEError(
            f"{frames} frames of {width}x{height} cannot be had: frames are 1 + {scale.time}*k, sides multiples of "
            f"{scale.width}."
        )
    return 1 + (frames - 1) // scale.time, height // scale.height, width // scale.width
