"""Frames of HDR: what the pixels of EXR images are for an encoder."""

from typing import Literal

import mlx.core as mx
import numpy as np

from .. import hdr

#: What the pixels of EXR images mean: light with the primaries of Rec.709 or of ACEScg, or the codes of ACEScct.
HDRInput = Literal["srgb_linear", "acescg", "acescct"]
_PRIMARIES: dict[str, hdr.Primaries] = {"srgb_linear": "rec709", "acescg": "acescg"}


def to_encoder_pixels(frames: np.ndarray, meaning: HDRInput) -> mx.array:
    """The pixels (1, 3, n, H, W) in [-1, 1] that LTX-2.5 encodes, of the frames (n, H, W, 3) of EXR images."""
    light = mx.array(frames)
    codes = mx.clip(light, 0, 1) if meaning == "acescct" else hdr.to_codes(light, "acescct", _PRIMARIES[meaning])
    return (2 * codes - 1)[None].transpose(0, 4, 1, 2, 3)
