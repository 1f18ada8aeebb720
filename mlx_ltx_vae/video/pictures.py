"""PNG and TIFF files of RGB frames with 8 or 16 bits, and the entries of text of any PNG.

Written here, since neither Pillow nor imageio writes 16 bits of color, and ffmpeg would be started for each file.
"""

import io
import struct
import warnings
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, ImageCms, TiffImagePlugin

from ..options import OutputOptions

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_RGB, _MINUS_ABOVE = 2, 2  # a color type; a filter, by which a row is stored as the difference to the one above
_BT2020, _TRANSFERS = 9, {"arib-std-b67": 18, "smpte2084": 16}  # by H.273
_COMPRESSION = 4  # of zlib; almost three times as fast as its default, and files are at most 5 % larger
_RGB_PIXELS, _DEFLATE, _HORIZONTAL_DIFFERENCES = 2, 8, 2  # in fields of a TIFF
_DOTS_PER_INCH = 72
_SAME_COLORS = 4  # of 255


def encode_png(frame: np.ndarray, metadata: Mapping[str, str], transfer: str = "bt709") -> bytes:
    """Return the file of a frame `(height, width, 3)`, uint8 or uint16. The metadata is what `keep_metadata` returns.

    HLG and PQ (`transfer`) are tagged, with the primaries of BT.2020; what has no tag is sRGB.
    """
    height, width, _ = frame.shape
    levels = frame.astype(frame.dtype.newbyteorder(">"), copy=False).view(np.uint8).reshape(height, -1)
    rows = np.full((height, 1 + levels.shape[1]), _MINUS_ABOVE, np.uint8)
    rows[0, 1:] = levels[0]
    np.subtract(levels[1:], levels[:-1], out=rows[1:, 1:])
    header = struct.pack(">IIBBBBB", width, height, 8 * frame.itemsize, _RGB, 0, 0, 0)
    texts = [_text_chunk(key.encode(), value) for key, value in metadata.items()]
    data = _chunk(b"IDAT", zlib.compress(rows.data, _COMPRESSION))
    code = _TRANSFERS.get(transfer)
    color = [] if code is None else [_chunk(b"cICP", bytes([_BT2020, code, 0, 1]))]  # RGB, full range
    return b"".join([_SIGNATURE, _chunk(b"IHDR", header), *color, *texts, data, _chunk(b"IEND", b"")])


def write_png(path: Path, frame: np.ndarray, options: OutputOptions) -> None:
    """Write a frame as a still."""
    path.write_bytes(encode_png(frame, options.metadata, options.format.transfer))


def _text_chunk(key: bytes, value: str) -> bytes:
    try:
        return _chunk(b"tEXt", key + b"\0" + value.encode("latin-1"))
    except UnicodeEncodeError:
        return _chunk(b"iTXt", key + bytes(5) + value.encode())  # not compressed, no language, no translated key


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(data, zlib.crc32(kind)))


def is_png(path: Path) -> bool:
    """Return whether a file begins as a PNG does; False if it cannot be read."""
    with suppress(OSError), path.open("rb") as file:
        return file.read(len(_SIGNATURE)) == _SIGNATURE
    return False


def read_picture(path: Path) -> tuple[int, str | None]:
    """Read the orientation by EXIF, 1 to 8, and the color profile of a PNG, JPEG, TIFF or WebP.

    The profile is the name of its ICC profile; "" for one that gives the colors of sRGB; `None` if it has none. Other
    and damaged files, which ffmpeg may be able to read, have 1 and `None`.
    """
    orientation = 1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # nothing is decompressed
            with Image.open(path, formats=("PNG", "JPEG", "TIFF", "WEBP")) as picture:
                if (exif := picture.getexif().get(ExifTags.Base.Orientation)) in range(1, 9):
                    orientation = exif
                return orientation, _name_profile(picture.info.get("icc_profile"))
    except Exception:  # of many types
        return orientation, None


def _name_profile(data: bytes | None) -> str | None:
    """Return the profile as in `read_picture`, by the colors that it gives a few levels."""
    if not data:
        return None
    profile = ImageCms.ImageCmsProfile(io.BytesIO(data))
    name = ImageCms.getProfileDescription(profile).strip() or "without a name"
    mode = {"RGB": "RGB", "GRAY": "L"}.get(profile.profile.xcolor_space.strip())
    if mode is None:
        return name
    levels = np.array([64, 128, 192, 255], np.uint8)  # darker ones also differ between sRGB and a gamma of 2.2
    colors = Image.fromarray(
        np.stack(np.meshgrid(*[levels] * 3), -1).reshape(-1, 4, 3) if mode == "RGB" else levels[None]
    )
    to_srgb = ImageCms.buildTransform(
        profile, ImageCms.createProfile("sRGB"), mode, "RGB", ImageCms.Intent.RELATIVE_COLORIMETRIC
    )
    converted = np.asarray(ImageCms.applyTransform(colors, to_srgb), np.int32)
    return name if np.abs(converted - np.asarray(colors.convert("RGB"))).max() > _SAME_COLORS else ""


def read_png_text(path: Path, max_bytes: int) -> Iterator[tuple[str, str]]:
    """Yield the entries of text of a PNG file, each up to `max_bytes`. Damaged text is shown as it is."""
    with path.open("rb") as file:
        file.seek(len(_SIGNATURE))
        while len(start := file.read(8)) == 8:
            length, kind = int.from_bytes(start[:4], "big"), start[4:]
            if kind not in (b"tEXt", b"zTXt", b"iTXt") or length > max_bytes:
                file.seek(length + 4, 1)
                continue
            key, _, text = file.read(length).partition(b"\0")
            file.seek(4, 1)
            is_compressed, encoding = kind == b"zTXt", "latin-1"
            if kind == b"iTXt":  # two flags, a language, a translated key
                is_compressed, encoding = text[:1] == b"\1", "utf-8"
                text = b"".join(text[2:].split(b"\0", 2)[2:])
            elif is_compressed:
                text = text[1:]
            if is_compressed:
                with suppress(zlib.error):
                    text = zlib.decompressobj().decompress(text, max_bytes)
            yield key.decode("latin-1"), text.decode(encoding, "replace")


def write_tiff(path: Path, frame: np.ndarray, _: OutputOptions) -> None:
    """Write a frame `(height, width, 3)`, uint8 or uint16, losslessly: its fields, and a strip of pixels."""
    height, width, channels = frame.shape
    differences = frame.astype(frame.dtype.newbyteorder("<"))  # of a pixel to the one on its left
    differences[:, 1:] -= frame[:, :-1]
    strip = zlib.compress(differences.tobytes(), _COMPRESSION)
    tag = ExifTags.Base
    fields = TiffImagePlugin.ImageFileDirectory_v2()  # Pillow itself writes no 16 bits of color
    fields[tag.ImageWidth], fields[tag.ImageLength] = width, height
    fields[tag.SamplesPerPixel], fields[tag.BitsPerSample] = channels, (8 * frame.itemsize,) * channels
    fields[tag.PhotometricInterpretation] = _RGB_PIXELS
    fields[tag.Compression], fields[tag.Predictor] = _DEFLATE, _HORIZONTAL_DIFFERENCES
    fields[tag.StripOffsets], fields[tag.StripByteCounts], fields[tag.RowsPerStrip] = 0, len(strip), height
    fields[tag.XResolution] = fields[tag.YResolution] = _DOTS_PER_INCH
    with path.open("wb") as file:
        fields.save(file)  # which adds their own length to the offset
        file.write(strip)
