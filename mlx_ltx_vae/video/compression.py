"""Stills through one frame of H.264, as LTX's pipelines encode them: the models were trained on frames of videos."""

from contextlib import closing
from pathlib import Path

import numpy as np

from ..codec_table import MAX_STILL_CRF, STILL_CRF
from ..errors import ReaderError, quote
from ..files import temporary_folder
from .ffmpeg import FfmpegProcess
from .pictures import encode_png

# The reference's settings. It encodes in as many slices as there are processors, which is another picture on each
# machine: one thread makes one slice. The rate counts, since a frame that is shown for longer gets more bits.
_ENCODER = ("-c:v", "libx264", "-preset", "veryfast", "-threads", "1", "-f", "h264")
_RATE = "1"
_MAX_HEADERS = 2**16  # bytes; the rest of a frame takes less than its pixels: of noise at CRF 0.01 55 %
_CONVERSION = "scale=flags=bilinear,format="  # BT.601, limited range


def compress_still(frames: np.ndarray, crf: float = STILL_CRF) -> np.ndarray:
    """Compress pictures as H.264 and decompress them, each alone, as pipelines do before they encode a condition.

    Args:
        frames: uint8 RGB, (H, W, 3) or (n, H, W, 3). Of an odd side the last row or column is left out.
        crf: 0 to 51: 33 up to LTX-2.3, 18 from LTX-2.4 on. With 0, frames are returned as they are.

    Raises:
        ReaderError: for other frames, another CRF, and an ffmpeg that cannot encode H.264.
    """
    check_crf("the still", crf)
    if frames.dtype != np.uint8 or frames.ndim not in (3, 4) or frames.shape[-1] != 3 or min(frames.shape[-3:-1]) < 2:
        raise ReaderError(
            f"a still has the shape {frames.shape} in {frames.dtype}; expected uint8 (H, W, 3), of 2x2 pixels at least."
        )
    if crf == 0:
        return frames
    height, width = (side // 2 * 2 for side in frames.shape[-3:-1])
    cut = frames[..., :height, :width, :]
    compressed = [_compress(np.ascontiguousarray(picture), crf) for picture in cut.reshape(-1, height, width, 3)]
    return np.stack(compressed).reshape(cut.shape)


def check_crf(name: str, crf: float) -> None:
    """Raise a `ReaderError` unless this is the quality of H.264."""
    if isinstance(crf, bool) or not isinstance(crf, (int, float)) or not 0 <= crf <= MAX_STILL_CRF:
        raise ReaderError(f"{name}: expected a CRF from 0 (not compressed) to {MAX_STILL_CRF}, not {quote(str(crf))}.")


def _compress(frame: np.ndarray, crf: float) -> np.ndarray:
    height, width, _ = frame.shape
    raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-video_size", f"{width}x{height}", "-framerate", _RATE]
    with temporary_folder() as folder:
        source, encoded = folder / "still.rgb", folder / "still.h264"
        source.write_bytes(frame.tobytes())
        encoder = ["-vf", f"{_CONVERSION}yuv420p", *_ENCODER, "-crf", str(crf)]
        encoded.write_bytes(_run([*raw, "-i", f"file:{source}", *encoder], frame.nbytes + _MAX_HEADERS))
        decoder = ["-vf", f"{_CONVERSION}rgb24", "-f", "rawvideo"]
        content = _run(["-f", "h264", "-i", f"file:{encoded}", *decoder], frame.nbytes + 1)
    if len(content) != frame.nbytes:
        count = f"at least {len(content)}" if len(content) > frame.nbytes else len(content)
        expected = f"expected are the {frame.nbytes} of one frame of {width}x{height}"
        raise ReaderError(f"the still: ffmpeg returned {count} bytes; {expected}, so use the ffmpeg of imageio-ffmpeg.")
    return np.frombuffer(content, np.uint8).reshape(frame.shape)


def _run(arguments: list[str], max_bytes: int) -> bytes:
    """Return what ffmpeg writes, or the beginning of that."""
    with closing(FfmpegProcess("the still", arguments)) as reader:
        content = reader.read(max_bytes)
        code, reason = reader.wait() if len(content) < max_bytes else (0, "")
    if code:
        raise ReaderError(f"the still: ffmpeg failed: {reason}.")
    return content


def write_compressed(folder: Path, frames: np.ndarray, crf: float) -> Path:
    """Write the only one of `frames`, compressed, as a PNG file into a folder. More than 8 bits become 8."""
    levels = frames if frames.dtype == np.uint8 else np.rint(frames / 257).astype(np.uint8)
    path = folder / "still.png"
    path.write_bytes(encode_png(compress_still(levels[0], crf), {}))
    return path
