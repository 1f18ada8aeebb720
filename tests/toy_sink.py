"""A sink that a test adds to the table: stills in the format PPM, with 8 or 16 bits."""

from pathlib import Path

import numpy as np

from mlx_ltx_vae.video import OutputOptions
from mlx_ltx_vae.video.sink_table import stills_kind


def write_ppm(path: Path, frame: np.ndarray, options: OutputOptions) -> None:
    height, width, _ = frame.shape
    levels = frame.astype(frame.dtype.newbyteorder(">"))
    path.write_bytes(f"P6 {width} {height} {options.format.peak}\n".encode() + levels.tobytes())


PPM = stills_kind((".ppm",), write_ppm)
