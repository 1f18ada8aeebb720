"""Tone mapping of HDR frames to BT.709.

ffmpeg's zscale is not used for HLG: it applies the display's gamma to each channel, and its `agamma=0`, which should
apply it to luminance, is wrong by up to 58 of 255 levels in the ffmpeg 7.0.2 of imageio-ffmpeg.
"""

import numpy as np

from ..frame_format import RGB16, FrameFormat

_WHITE = 203  # cd/m2 of diffuse white, by ITU-R BT.2408
_PQ_PEAK, _HLG_PEAK, _HLG_GAMMA = 10_000, 1000, 1.2  # of a display, by ITU-R BT.2100
_KNEE = 0.5  # of diffuse white; darker light stays as it is
_LEAST_LIGHT = 1e-30  # which has a logarithm
_PIXELS_AT_ONCE = 1 << 14  # whose light fits in a processor's cache

_WHITE_POINT = (0.3127, 0.3290)
# x and y of red, green and blue.
_BT2020 = (0.708, 0.292, 0.170, 0.797, 0.131, 0.046)
_BT709 = (0.64, 0.33, 0.30, 0.60, 0.15, 0.06)
_PRIMARIES = {"bt709": _BT709, "smpte432": (0.680, 0.320, 0.265, 0.690, 0.150, 0.060)}  # of all others BT.2020


class ToneMap:
    """Conversion of frames with an HDR signal to BT.709, as `docs/usage.md` states it.

    The signal becomes the light of BT.2100's display. In BT.709's primaries, each pixel is scaled so that its largest
    channel follows a Möbius curve: up to half of diffuse white as it is, then a hyperbola that reaches 1 at the peak.

    Args:
        source: the format in the file. Stills in RGB get the transfer function of sRGB, and others that of BT.1886.
        peak: the brightest light of PQ in cd/m2, or `None` for the most that PQ has. HLG has 1,000.
    """

    def __init__(self, source: FrameFormat, peak: float | None) -> None:
        self._is_hlg = source.transfer == "arib-std-b67"
        self._encode = _encode_srgb if source.is_rgb else _encode_bt1886
        signal = np.arange(RGB16.peak + 1) / RGB16.peak
        self._light = (_decode_hlg(signal) if self._is_hlg else _decode_pq(signal)).astype(np.float32)
        to_xyz = _to_xyz(_PRIMARIES.get(source.primaries, _BT2020))
        self._luminance = to_xyz[1].astype(np.float32)
        self._to_bt709 = (np.linalg.inv(_to_xyz(_BT709)) @ to_xyz).T.astype(np.float32)
        peak = _HLG_PEAK if self._is_hlg else min(max(peak or _PQ_PEAK, _WHITE), _PQ_PEAK)
        self._bend = 1 / (1 - _KNEE) - 1 / (peak / _WHITE - _KNEE)

    def apply(self, frames: np.ndarray) -> np.ndarray:
        """Return frames (n, height, width, 3), uint16 over the full range, as new ones."""
        mapped = np.empty(frames.shape, frames.dtype)
        pixels, mapped_pixels = frames.reshape(-1, 3), mapped.reshape(-1, 3)
        for start in range(0, len(pixels), _PIXELS_AT_ONCE):
            part = slice(start, start + _PIXELS_AT_ONCE)
            light = self._light[pixels[part]]
            if self._is_hlg:
                light *= (light @ self._luminance)[:, None] ** (_HLG_GAMMA - 1) * (_HLG_PEAK / _WHITE)
            light = self._compress(light @ self._to_bt709).clip(_LEAST_LIGHT, 1)
            mapped_pixels[part] = np.rint(self._encode(light) * RGB16.peak)
        return mapped

    def _compress(self, light: np.ndarray) -> np.ndarray:
        red, green, blue = light.T
        largest = np.maximum(np.maximum(red, green), blue)[:, None]  # `max` along so short an axis is slow
        excess = np.maximum(largest - _KNEE, 0)  # which becomes excess / (1 + bend * excess)
        return light * (1 - self._bend * excess**2 / ((1 + self._bend * excess) * np.maximum(largest, _KNEE)))


def _to_xyz(primaries: tuple[float, ...]) -> np.ndarray:
    """Return the matrix from RGB with these primaries to XYZ."""
    points = np.array([*primaries, *_WHITE_POINT]).reshape(4, 2)
    xyz = np.column_stack([points, 1 - points.sum(axis=1)]).T
    return xyz[:, :3] * np.linalg.solve(xyz[:, :3], xyz[:, 3] / xyz[1, 3])


def _decode_hlg(signal: np.ndarray) -> np.ndarray:
    """Return the light of the scene in [0, 1]."""
    return np.where(signal <= 0.5, signal**2 / 3, (np.exp((signal - 0.55991073) / 0.17883277) + 0.28466892) / 12)


def _decode_pq(signal: np.ndarray) -> np.ndarray:
    """Return light of which diffuse white has 1."""
    power = signal ** (32 / 2523)
    light = np.maximum(power - 3424 / 4096, 0) / (2413 / 128 - 2392 / 128 * power)
    return _PQ_PEAK / _WHITE * light ** (16384 / 2610)


def _encode_bt1886(light: np.ndarray) -> np.ndarray:
    return np.exp(np.log(light) / 2.4)  # four times as fast as a power


def _encode_srgb(light: np.ndarray) -> np.ndarray:
    return np.where(light <= 0.0031308, 12.92 * light, 1.055 * _encode_bt1886(light) - 0.055)
