"""Grid arithmetic: latent and video shapes, scale factors, axes, and windows along an axis. No MLX."""

import enum
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeGuard

from .errors import LatentsError, quote

Grid = tuple[int, int, int]  # extents along time, height and width, of latents or of a video
Size = tuple[int, int]  # width and height of a frame, in pixels
Shape = tuple[int, ...]

#: Largest number of pixels of a frame in ffmpeg, about 16,000 x 16,000, including pixels that it adds to the sides.
MAX_PIXELS = 2**28
_ADDED_TO_SIDES = 128
_GRID = re.compile(r"([1-9]\d{0,8})x([1-9]\d{0,8})x([1-9]\d{0,8})")


def is_count(value: object, least: int = 0) -> TypeGuard[int]:
    """Return whether a caller's value is a whole number of at least `least`; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


class Interval(NamedTuple):
    """Range of positions on one axis, with the lengths of the ramps at its ends."""

    start: int
    end: int  # one past the last position
    left_ramp: int = 0  # positions at the start over which the interval fades in
    right_ramp: int = 0

    @property
    def length(self) -> int:
        return self.end - self.start

    @property
    def as_slice(self) -> slice:
        return slice(self.start, self.end)


def sampled_frames(num_frames: int, max_frames: int = 8) -> list[int]:
    """Return the numbers of at most `max_frames` latent frames, spread over a clip."""
    count = min(num_frames, max_frames)
    return [(2 * i + 1) * num_frames // (2 * count) for i in range(count)]


class ScaleFactors(NamedTuple):
    """Pixels per latent cell along each axis. The first latent frame corresponds to a single video frame."""

    time: int
    height: int
    width: int

    def video_grid(self, latent_grid: Sequence[int]) -> Grid:
        """Return (F, H, W) of the video that latents of grid (F', H', W') decode to."""
        frames, height, width = latent_grid
        return 1 + self.time * (frames - 1), self.height * height, self.width * width

    def latent_grid(self, video_grid: Sequence[int]) -> Grid:
        """Return (F', H', W') of the latents of a video (F, H, W). Raises a `LatentsError` if it has partial cells."""
        frames, height, width = video_grid
        if frames < 1 or (frames - 1) % self.time or height % self.height or width % self.width:
            video = f"{frames} frame{' of' if frames == 1 else 's of'} {width}x{height}"
            raise LatentsError(
                f"{video} {'does' if frames == 1 else 'do'} not fit the latent grid; frames must be 1 + {self.time}*k, "
                f"width a multiple of {self.width} and height a multiple of {self.height}."
            )
        return 1 + (frames - 1) // self.time, height // self.height, width // self.width

    def usable_frames(self, num_frames: int, *, pad: bool) -> int:
        """Round `num_frames` to the form 1 + time * k: down, or up with `pad`."""
        steps = -(-(num_frames - 1) // self.time) if pad else (num_frames - 1) // self.time
        return 1 + self.time * steps

    def carry_rule(self, carry: Any) -> str | None:
        """Return "1 + 8*k frames, or 0 for none" if windows of a film cannot share `carry` frames, else `None`."""
        if is_count(carry) and (carry == 0 or (carry - 1) % self.time == 0):
            return None
        return f"1 + {self.time}*k frames, or 0 for none"

    def covering_latent_grid(self, video_grid: Sequence[int]) -> Grid:
        """Return (F', H', W') of the smallest latents whose video covers (F, H, W)."""
        frames, height, width = video_grid
        return 1 + -(-(frames - 1) // self.time), -(-height // self.height), -(-width // self.width)


class Scaled(ABC):
    """Configuration whose latents have a scale."""

    @property
    @abstractmethod
    def scale(self) -> ScaleFactors: ...

    @property
    def time_scale(self) -> int:
        """Video frames per latent frame, except that the first latent frame is one video frame."""
        return self.scale.time

    @property
    def spatial_scale(self) -> int:
        """Pixels per latent cell along each side."""
        return self.scale.height


class ClipRules(NamedTuple):
    """Rules for a network's clip along time: its unit, its lengths, and its pieces.

    `hop`, `bins` and `frame_bytes` belong to encoders of audio, which take the frames of a spectrogram.
    """

    unit: Literal["frame", "sample"] = "frame"
    chunks: tuple[int, ...] = ()  # possible numbers of latents per piece, the fastest first; () means any
    flushes_with_last: bool = False  # each layer takes a piece in one step, and is flushed with the last piece
    held_copies: int = 1  # of a caller's latents; latents of audio are held as passed and as packed
    lengths: tuple[int, int] | None = None  # outputs of the first and of each later latent; `None`: as the layers
    sample_rate: int = 0  # of the decoded waveform, or of the waveform of the spectrogram
    hop: int = 1  # samples per frame
    bins: int = 1  # frequencies
    frame_bytes: int = 0  # of memory that is needed to make a frame, per batch item
    cell: ScaleFactors | None = None  # of outputs that are latents again; `None` for frames or samples

    @property
    def whole(self) -> str:
        """Name of all the units together."""
        return "video" if self.unit == "frame" else "audio"


class TileRules(NamedTuple):
    """Position where a network is cut into tiles, and their least sizes, in cells of the grid that is cut.

    The layers before index `start` run once, on the whole clip; the layers from there on run on tiles of
    their results. With 0, tiles are crops of the latents, and the network runs on each as on a separate clip.
    """

    start: int = 0
    size: Grid = (2, 2, 2)  # of the smallest tile
    overlap: Grid = (0, 0, 0)  # that tiles share at least


#: Factors of every published checkpoint except the 16x16x4 variant.
DEFAULT_SCALE = ScaleFactors(8, 32, 32)


class LatentShape(NamedTuple):
    """Shape of latents at the API: (B, C, F', H', W')."""

    batch: int
    channels: int
    frames: int
    height: int
    width: int

    @property
    def grid(self) -> Grid:
        return self.frames, self.height, self.width


def is_possible_size(size: Size) -> bool:
    """Return whether ffmpeg can have frames of this size."""
    width, height = size
    return (width + _ADDED_TO_SIDES) * (height + _ADDED_TO_SIDES) < MAX_PIXELS


def fit_within(size: Size, max_size: int) -> Size:
    """Return the size of frames, scaled down and even, whose longer side has at most `max_size` pixels (2 or more)."""
    scale = max_size / max(size)
    if scale >= 1:
        return size
    width, height = (max(2, min(max_size // 2, round(side * scale / 2)) * 2) for side in size)
    return width, height


def parse_size(text: str) -> Size:
    """Parse "768x512" to (width, height). Raises a `LatentsError` for other text and for too many pixels."""
    match = re.fullmatch(r"([0-9]{1,9})x([0-9]{1,9})", text)
    if not match or not int(match[1]) or not int(match[2]):
        raise LatentsError(f"{quote(text)} is not a width and a height such as 768x512")
    size = int(match[1]), int(match[2])
    if not is_possible_size(size):
        raise LatentsError(f"{text} is larger than any video; frames have at most {MAX_PIXELS:,} pixels")
    return size


def check_size(size: "str | Size") -> "Size":
    """Return a caller's size as (width, height). Raises a `LatentsError` for anything but two whole numbers above 0."""
    if isinstance(size, str):
        return parse_size(size)
    if not isinstance(size, Sequence) or len(size) != 2 or not all(is_count(side) for side in size):
        raise LatentsError(f"size is {quote(size)}; expected a width and a height, such as 768x512.")
    return parse_size(format_size(*size))


def format_size(width: int, height: int) -> str:
    """Return the frame size as users write it: 768x512."""
    return f"{width}x{height}"


def parse_grid(text: str) -> Grid:
    """Parse "16x22x40" to (F', H', W'). Raises a `ValueError` for anything but three whole numbers above 0."""
    match = _GRID.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{quote(text)} is not a latent grid; write F'xH'xW', such as 16x22x40.")
    return int(match[1]), int(match[2]), int(match[3])


class Axis(enum.IntEnum):
    """Axes of (B, T, H, W, C) along which a clip can be streamed."""

    TIME = 1
    HEIGHT = 2
    WIDTH = 3

    grid: int  # index of the axis in a grid (T, H, W); no property, since plans read it millions of times

    def __init__(self, value: int) -> None:
        self.grid = value - 1


class WindowSpec(NamedTuple):
    """Input window of one output ("result") of a layer along one axis.

    At the two ends of the clip, positions beyond it are padded. A window that shifts moves inward there instead, so
    that every output has `kernel` input positions.
    """

    kernel: int = 1  # input positions per output
    stride: int = 1  # input positions from one output to the next
    before: int = 0  # padding before the first position
    after: int = 0  # padding after the last position
    shifts: bool = False

    @property
    def cached(self) -> int:
        """Maximum number of positions that a stream caches between two steps."""
        return self.kernel if self.shifts else self.kernel - 1

    @property
    def behind(self) -> int:
        """Number of positions that an output depends on before its position."""
        return self.kernel // 2 if self.shifts else self.before

    @property
    def ahead(self) -> int:
        """Number of positions that an output depends on after its position."""
        return self.kernel - 1 - self.behind if self.shifts else self.after

    def num_outputs(self, length: int) -> int:
        """Return the number of outputs for a clip of `length` positions, at least `kernel` if the window shifts."""
        if self.shifts:
            return length
        return (self.before + length + self.after - self.kernel) // self.stride + 1

    def ready(self, num_inputs: int) -> int:
        """Return the number of outputs that are final after `num_inputs` positions, if more may follow."""
        if self.shifts:
            return 0 if num_inputs < self.kernel else max(0, num_inputs - self.ahead)
        return max(0, (num_inputs + self.before - self.kernel) // self.stride + 1)

    def needed(self, num_outputs: int) -> int:
        """Return the number of input positions required to compute the first `num_outputs` outputs."""
        if self.shifts:
            return max(self.kernel, num_outputs + self.ahead)
        return (num_outputs - 1) * self.stride + self.kernel - self.before
