"""TIFF files of RGB frames with 8 or 16 bits.

Written here, as PNG: Pillow writes no 16 bits of color, and ffmpeg would be started for each file.
"""

import struct
import zlib
from pathlib import Path

import numpy as np

from .sink import SinkOptions

_SHORT, _LONG, _RATIONAL = 3, 4, 5  # types of fields
_FORMATS = {_SHORT: "H", _LONG: "I", _RATIONAL: "I"}
_COMPRESSION = 4  # of zlib, see `encode_png`
_RGB, _DEFLATE, _INCHES, _HORIZONTAL_DIFFERENCES = 2, 8, 2, 2
_DOTS_PER_INCH = 72


def write_tiff(path: Path, frame: np.ndarray, _: SinkOptions) -> None:
    """Write a frame `(height, width, 3)`, uint8 or uint16, losslessly compressed."""
    path.write_bytes(encode_tiff(frame))


def encode_tiff(frame: np.ndarray) -> bytes:
    """The file of a frame: a header, the pixels in one strip, and the fields that describe them."""
    height, width, channels = frame.shape
    differences = frame.astype(frame.dtype.newbyteorder("<"))  # of a pixel to the one on its left
    differences[:, 1:] -= frame[:, :-1]
    strip = zlib.compress(differences.tobytes(), _COMPRESSION)
    strip += bytes(len(strip) % 2)  # what follows begins at an even place
    start = 8
    fields = {
        256: (_LONG, [width]),
        257: (_LONG, [height]),
        258: (_SHORT, [8 * frame.itemsize] * channels),
        259: (_SHORT, [_DEFLATE]),
        262: (_SHORT, [_RGB]),
        273: (_LONG, [start]),
        277: (_SHORT, [channels]),
        278: (_LONG, [height]),  # rows of the strip
        279: (_LONG, [len(strip)]),
        282: (_RATIONAL, [_DOTS_PER_INCH, 1]),
        283: (_RATIONAL, [_DOTS_PER_INCH, 1]),
        296: (_SHORT, [_INCHES]),
        317: (_SHORT, [_HORIZONTAL_DIFFERENCES]),
    }
    directory = start + len(strip)
    values = directory + 2 + 12 * len(fields) + 4  # those that are longer than the four bytes of a field
    entries, beyond = b"", b""
    for tag, (kind, numbers) in fields.items():
        value = struct.pack(f"<{len(numbers)}{_FORMATS[kind]}", *numbers)
        count = len(numbers) // 2 if kind == _RATIONAL else len(numbers)
        if len(value) > 4:
            value, beyond = struct.pack("<I", values + len(beyond)), beyond + value
        entries += struct.pack("<HHI4s", tag, kind, count, value)
    header = struct.pack("<2sHI", b"II", 42, directory)
    return b"".join([header, strip, struct.pack("<H", len(fields)), entries, bytes(4), beyond])
