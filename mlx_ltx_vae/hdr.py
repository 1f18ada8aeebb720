"""High dynamic range: curves from decoded pixels to linear light, and from light to the signals in video files.

Latents of HDR models decode to codes of a logarithmic curve, not to colors of a display. `to_linear` converts them:

    linear = to_linear((frames + 1) / 2, "acescct")  # decoded frames (n, H, W, 3) in [-1, 1]
    signal = to_hlg(linear)

Linear 1.0 is diffuse white. All functions take floats (..., 3) of MLX or numpy, and return MLX arrays in float32.
"""

import math
from typing import Any, Literal, get_args

import mlx.core as mx
import numpy as np

from .backend.mlx_utils import dtype_name, to_mlx
from .errors import LatentsError, quote, suggest
from .options import Transfer

#: Primaries of linear light.
Primaries = Literal["rec709", "acescg"]

_CURVE_PRIMARIES: dict[str, str] = {"acescct": "acescg", "logc3": "rec709"}
_ACESCG_TO_REC709 = np.array([[1.70505, -0.62179, -0.08326], [-0.13026, 1.1408, -0.01055], [-0.024, -0.12897, 1.15297]])
_MATRICES = {
    ("acescg", "rec709"): _ACESCG_TO_REC709,
    ("rec709", "acescg"): np.linalg.inv(_ACESCG_TO_REC709),
    ("rec709", "bt2020"): np.array(
        [
            [0.62740389, 0.32928304, 0.04331307],
            [0.06909729, 0.9195404, 0.01136232],
            [0.01639144, 0.08801331, 0.89559525],
        ]
    ),
}

_LOGC3_A, _LOGC3_B, _LOGC3_C, _LOGC3_D = 5.555556, 0.052272, 0.247190, 0.385537
_LOGC3_E, _LOGC3_F, _LOGC3_CUT = 5.367655, 0.092809, 0.010591
_ACESCCT_A, _ACESCCT_B, _ACESCCT_BREAK = 10.5402377416545, 0.0729055341958355, 0.155251141552511

_HLG_A, _HLG_B, _HLG_C = 0.17883277, 0.28466892, 0.55991073
_HLG_WHITE = 0.75  # the signal of diffuse white
_HLG_WHITE_X = (math.exp((_HLG_WHITE - _HLG_C) / _HLG_A) + _HLG_B) / 12
_HLG_ROLL_OFF = _HLG_WHITE_X / (1 - _HLG_WHITE_X)  # so that the slope is the same on both sides of diffuse white

_MOST_LIGHT = 1e30  # a sum of such values is finite, so that infinite light is white, and not NaN

_PQ_WHITE, _PQ_PEAK = 203, 10000  # cd/m2
_PQ_M1, _PQ_M2 = 2610 / 16384, 2523 / 32
_PQ_C1, _PQ_C2, _PQ_C3 = 3424 / 4096, 2413 / 128, 2392 / 128


def to_linear(codes: mx.array | np.ndarray, transfer: Transfer, primaries: Primaries = "rec709") -> mx.array:
    """Convert codes (..., 3), clamped to [0, 1], to linear light, which is not negative. Diffuse white is 1.

    Raises:
        LatentsError: for another shape, and for unknown names.
    """
    _check_names(transfer, primaries)
    codes = mx.clip(_colors(codes, "codes"), 0, 1)
    return _convert(_DECODERS[transfer](codes), _CURVE_PRIMARIES[transfer], primaries)


def to_codes(linear: mx.array | np.ndarray, transfer: Transfer, primaries: Primaries = "rec709") -> mx.array:
    """Convert linear light (..., 3) with some primaries to codes in [0, 1]: the inverse of `to_linear`.

    Light is clamped to the range of the curve: from 0 to 222 for ACEScct, or to 55 for LogC3.

    Raises:
        LatentsError: for another shape, and for unknown names.
    """
    _check_names(transfer, primaries)
    light = _convert(_colors(linear, "light"), primaries, _CURVE_PRIMARIES[transfer])
    return mx.clip(_ENCODERS[transfer](light), 0, 1)


def to_hlg(linear: mx.array | np.ndarray) -> mx.array:
    """Convert linear Rec.709 light (..., 3) to the HLG signal in [0, 1], with the primaries of BT.2020.

    Diffuse white is at 0.75. Brighter light rolls off towards 1.
    """
    light = _to_bt2020(linear)
    rolled = 1 - (1 - _HLG_WHITE_X) * mx.exp(-_HLG_ROLL_OFF * (light - 1))
    scene = mx.where(light <= 1, light * _HLG_WHITE_X, rolled)
    bright = _HLG_A * mx.log(12 * scene - _HLG_B) + _HLG_C
    return mx.clip(mx.where(scene <= 1 / 12, mx.sqrt(3 * scene), bright), 0, 1)


def to_pq(linear: mx.array | np.ndarray) -> mx.array:
    """Convert linear Rec.709 light (..., 3) to the PQ signal in [0, 1], with the primaries of BT.2020.

    Diffuse white is at 203 cd/m2, as in BT.2408. Light above 10,000 cd/m2 is clamped.
    """
    light = mx.clip(_to_bt2020(linear) * (_PQ_WHITE / _PQ_PEAK), 0, 1) ** _PQ_M1
    return ((_PQ_C1 + _PQ_C2 * light) / (1 + _PQ_C3 * light)) ** _PQ_M2


def to_sdr(linear: mx.array | np.ndarray, exposure: float = 0) -> mx.array:
    """Convert linear Rec.709 light (..., 3) to an sRGB signal in [0, 1].

    Each channel is tone-mapped by Reinhard's x / (1 + x). `exposure` is in stops: one more doubles the light.
    """
    light = mx.maximum(_colors(linear, "light"), 0) * 2.0**exposure
    light = light / (1 + light)
    return mx.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)


def _decode_logc3(codes: mx.array) -> mx.array:
    bright = (10.0 ** ((codes - _LOGC3_D) / _LOGC3_C) - _LOGC3_B) / _LOGC3_A
    return mx.where(codes >= _LOGC3_E * _LOGC3_CUT + _LOGC3_F, bright, (codes - _LOGC3_F) / _LOGC3_E)


def _encode_logc3(light: mx.array) -> mx.array:
    bright = _LOGC3_C * mx.log10(_LOGC3_A * light + _LOGC3_B) + _LOGC3_D
    return mx.where(light >= _LOGC3_CUT, bright, _LOGC3_E * light + _LOGC3_F)


def _decode_acescct(codes: mx.array) -> mx.array:
    bright = 2.0 ** (17.52 * codes - 9.72)
    return mx.where(codes > _ACESCCT_BREAK, bright, (codes - _ACESCCT_B) / _ACESCCT_A)


def _encode_acescct(light: mx.array) -> mx.array:
    bright = (mx.log2(light) + 9.72) / 17.52
    return mx.where(light > 2**-7, bright, _ACESCCT_A * light + _ACESCCT_B)


_DECODERS = {"logc3": _decode_logc3, "acescct": _decode_acescct}
_ENCODERS = {"logc3": _encode_logc3, "acescct": _encode_acescct}


def _to_bt2020(linear: mx.array | np.ndarray) -> mx.array:
    return _convert(_colors(linear, "light"), "rec709", "bt2020")


def _convert(light: mx.array, source: str, target: str) -> mx.array:
    """Convert light to other primaries. Negative results, which are outside these primaries, are clamped to 0."""
    if source != target:
        # No matrix product: a GPU may round its factors to TF32.
        columns = mx.array(_MATRICES[source, target].T.astype(np.float32))
        light = light[..., :1] * columns[0] + light[..., 1:2] * columns[1] + light[..., 2:] * columns[2]
    return mx.maximum(light, 0)


def _colors(values: Any, label: str) -> mx.array:
    array = to_mlx(values, label)
    if array.ndim < 1 or array.shape[-1] != 3 or not mx.issubdtype(array.dtype, mx.floating):
        raise LatentsError(
            f"the {label} are {dtype_name(array.dtype)} {array.shape}; expected floats (..., 3), RGB last."
        )
    return mx.clip(array.astype(mx.float32), -_MOST_LIGHT, _MOST_LIGHT)


def _check_names(transfer: str, primaries: str) -> None:
    for noun, name, names in (
        ("curve", transfer, get_args(Transfer)),
        ("set of primaries", primaries, get_args(Primaries)),
    ):
        if name not in names:
            hint = suggest(name, names) if isinstance(name, str) else ""
            raise LatentsError(f"the {noun} {quote(name)} is not known{hint}; use {' or '.join(names)}.")
