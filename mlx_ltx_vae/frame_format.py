"""Meaning of the numbers in frames: what plans, steps, conversions and sinks know of them."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import LTXVAEError, quote

if TYPE_CHECKING:
    import numpy as np

# Formats that only repack another one, which zscale has.
_REPACKED = {
    "nv12": "yuv420p", "nv21": "yuv420p", "p010le": "yuv420p10le", "nv16": "yuv422p", "nv20le": "yuv422p10le",
    "bgr0": "gbrp", "bgra": "gbrap", "rgb24": "gbrp", "rgb48le": "gbrp16le", "rgba64le": "gbrap16le",
}  # fmt: skip
_RGB = re.compile("[0ax]?(2?rgb|bgr)|gbr|pal8")  # how the names of pixel formats without a matrix start
# Of frames as arrays: the dtype, and the largest number, which is white.
_ARRAYS = {
    "rgb24": ("uint8", 255), "rgb48le": ("uint16", 65535), "rgbf16le": ("float16", 1), "rgbf32le": ("float32", 1)
}  # fmt: skip
HDR_TRANSFERS = {"smpte2084": "PQ", "arib-std-b67": "HLG"}


@dataclass(frozen=True)
class FrameFormat:
    """Meaning of the numbers in frames, by ffmpeg's names.

    Attributes:
        pixel_format: the components, their order, bits and subsampling. Of arrays (n, H, W, 3): "rgb24" (uint8),
            "rgb48le" (uint16), "rgbf16le" or "rgbf32le" (floats, with white at 1 and no limits).
        levels: "pc" if black and white are the least and the largest number; "tv" for 16 to 235 of 255.
        matrix: between RGB and luma and chroma; "gbr" for RGB.
        site: of a chroma sample among its luma samples: "left" (in the middle of the left ones), "topleft", "center".
    """

    pixel_format: str
    levels: str = "pc"
    matrix: str = "gbr"
    primaries: str = "bt709"
    transfer: str = "bt709"
    site: str = "left"

    @property
    def dtype(self) -> "np.dtype":
        """Dtype of frames as arrays."""
        import numpy as np  # which takes long, and --help needs none

        return np.dtype(_ARRAYS[self.pixel_format][0])

    @property
    def peak(self) -> int:
        """White, in frames as arrays."""
        return _ARRAYS[self.pixel_format][1]

    @property
    def is_float(self) -> bool:
        """Return whether frames as arrays are floats."""
        return self.dtype.kind == "f"

    @property
    def bit_depth(self) -> int:
        """Bit depth of a video with these frames."""
        return 8 if self.pixel_format == "rgb24" else 10

    @property
    def is_hdr(self) -> bool:
        """Return whether they are HLG or PQ."""
        return self.transfer in HDR_TRANSFERS

    @property
    def planar(self) -> str:
        """Pixel format with a plane for each component, which zscale takes."""
        return _REPACKED.get(self.pixel_format, self.pixel_format)

    @property
    def is_rgb(self) -> bool:
        return _RGB.match(self.pixel_format) is not None


#: Frames as arrays: full-range RGB.
RGB8, RGB16 = FrameFormat("rgb24"), FrameFormat("rgb48le")
#: By the bit depth that users choose. 10 bits come as 16, and use all of them.
_BY_DEPTH = {8: RGB8, 10: RGB16}


def frame_format(bit_depth: int, error: type[LTXVAEError], name: str | None = None) -> FrameFormat:
    """Return the format of frames with a bit depth that a user chose. Raises an `error`, about what has this name."""
    if bit_depth not in tuple(_BY_DEPTH):
        start = "" if name is None else f"{name}: "
        raise error(f"{start}a bit depth of {quote(bit_depth)} is not supported; use 8 or 10.")
    return _BY_DEPTH[bit_depth]


@dataclass(frozen=True)
class FrameStep:
    """Change of frames on the device, between the decoder and their conversion to a format.

    Attributes:
        apply: called with frames (n, H, W, 3), float32 RGB in which black is 0 and white is 1, with values outside
            where the decoder has them, and with the format that they are converted to. n is at most 8 for each video
            of a batch. Returns such frames.
        resize: returns the (width, height) of what `apply` returns, for the size of its argument.
        pixel_bytes: what `apply` takes at its peak for each pixel, beside the 12 bytes of its argument and as many of
            its result, which the plan counts with it. The default is for two more arrays of this size.
    """

    apply: Callable[[Any, FrameFormat], Any]
    pixel_bytes: int = 24
    resize: Callable[[tuple[int, int]], tuple[int, int]] = lambda size: size


@dataclass(frozen=True)
class FrameOutput:
    """Processing of a decoder's frames: the steps that change them, in order, and their format."""

    format: FrameFormat = RGB8
    steps: tuple[FrameStep, ...] = ()

    def resize(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the (width, height) of the frames that become of frames with a size."""
        for step in self.steps:
            size = step.resize(size)
        return size


def common_format(outputs: Iterable[FrameOutput]) -> FrameFormat | None:
    """Return the levels to which a decode can convert parts of frames as they come. `None` if outputs need floats."""
    distinct = set(outputs)
    if len(distinct) != 1:
        return None
    output = distinct.pop()
    return None if output.steps or output.format.is_float else output.format
