"""The formulas of HDR in float64, written a second time, and EXR files read by others than the package."""

import struct

import numpy as np

from video_files import run_ffmpeg

ACESCG_TO_REC709 = np.array([[1.70505, -0.62179, -0.08326], [-0.13026, 1.1408, -0.01055], [-0.024, -0.12897, 1.15297]])
REC709_TO_BT2020 = np.array(
    [[0.62740389, 0.32928304, 0.04331307], [0.06909729, 0.9195404, 0.01136232], [0.01639144, 0.08801331, 0.89559525]]
)
CHROMATICITIES = {  # of red, green, blue and white
    "sRGB": (0.64, 0.33, 0.30, 0.60, 0.15, 0.06, 0.3127, 0.3290),
    "ACEScg": (0.713, 0.293, 0.165, 0.830, 0.128, 0.044, 0.32168, 0.33767),
    "ACEScct": (0.713, 0.293, 0.165, 0.830, 0.128, 0.044, 0.32168, 0.33767),
    "ACES2065-1": (0.7347, 0.2653, 0, 1, 0.0001, -0.077, 0.32168, 0.33767),
    "Rec.2020": (0.708, 0.292, 0.17, 0.797, 0.131, 0.046, 0.3127, 0.329),
}


def decode_logc3(code):
    """Light, negative near black, of codes in [0, 1]."""
    bright = (10 ** ((code - 0.385537) / 0.247190) - 0.052272) / 5.555556
    return np.where(code >= 5.367655 * 0.010591 + 0.092809, bright, (code - 0.092809) / 5.367655)


def decode_acescct(code):
    """Light, negative near black, of codes in [0, 1]."""
    dark = (code - 0.0729055341958355) / 10.5402377416545
    return np.where(code > 0.155251141552511, 2 ** (17.52 * code - 9.72), dark)


def encode_acescct(light):
    """Codes in [0, 1]."""
    light = np.maximum(light, 0)
    bright = (np.log2(np.maximum(light, 2**-9)) + 9.72) / 17.52
    return np.clip(np.where(light > 2**-7, bright, 10.5402377416545 * light + 0.0729055341958355), 0, 1)


def to_rec709(codes, transfer):
    """Light with the primaries of Rec.709."""
    codes = np.clip(np.asarray(codes, np.float64), 0, 1)
    light = decode_logc3(codes) if transfer == "logc3" else decode_acescct(codes) @ ACESCG_TO_REC709.T
    return np.maximum(light, 0)


def hlg(light):
    """The HLG signal of light with the primaries of Rec.709."""
    light = np.maximum(light @ REC709_TO_BT2020.T, 0)
    white = (np.exp((0.75 - 0.55991073) / 0.17883277) + 0.28466892) / 12
    rolled = 1 - (1 - white) * np.exp(-white / (1 - white) * (light - 1))
    scene = np.where(light <= 1, light * white, rolled)
    bright = 0.17883277 * np.log(np.maximum(12 * scene - 0.28466892, 1e-9)) + 0.55991073
    return np.clip(np.where(scene <= 1 / 12, np.sqrt(3 * scene), bright), 0, 1)


def pq(light):
    """The PQ signal of light with the primaries of Rec.709, whose 1 has 203 cd/m2."""
    power = (np.clip(light @ REC709_TO_BT2020.T * 203, 0, 10000) / 10000) ** 0.1593017578125
    return ((0.8359375 + 18.8515625 * power) / (1 + 18.6875 * power)) ** 78.84375


def sdr(light, exposure=0):
    """The sRGB signal of light with the primaries of Rec.709, tone-mapped."""
    light = light * 2.0**exposure
    light = light / (1 + light)
    return np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)


def bt2020_planes(signal):
    """The 10-bit planes of a frame (H, W, 3): (H, W), and twice (H/2, W/2) with the mean of each 2x2 pixels."""
    luma = signal @ [0.2627, 0.6780, 0.0593]
    chroma = [(signal[..., 2] - luma) / 1.8814, (signal[..., 0] - luma) / 1.4746]
    height, width = luma.shape
    means = [plane.reshape(height // 2, 2, width // 2, 2).mean(axis=(1, 3)) for plane in chroma]
    return [np.round(plane) for plane in (64 + 876 * luma, *(512 + 896 * mean for mean in means))]


def write_exr(path, planes, *options, pixel_format="gbrpf32le"):
    """Write planes (n, c, height, width) float32 by ffmpeg, as images of a pattern such as a_%d.exr."""
    size = f"{planes.shape[3]}x{planes.shape[2]}"
    given = ["-f", "rawvideo", "-pix_fmt", pixel_format, "-s", size, "-i", "-"]
    run_ffmpeg(*given, *options, path, data=np.ascontiguousarray(planes, np.float32).tobytes())


def exr_attributes(path):
    """The attributes of an EXR file by name: type and bytes."""
    data, start, found = path.read_bytes(), 8, {}
    assert data[:4] == b"\x76\x2f\x31\x01"
    while data[start] != 0:
        name, kind = data[start:].split(b"\0", 2)[:2]
        start += len(name) + len(kind) + 2
        (length,) = struct.unpack_from("<i", data, start)
        found[name.decode()] = kind.decode(), data[start + 4 : start + 4 + length]
        start += 4 + length
    return found


def exr_pixels(path, width, height):
    """What ffmpeg reads of an EXR image, unconverted: (height, width, 3) float16."""
    data = run_ffmpeg("-i", path, "-f", "rawvideo", "-pix_fmt", "gbrpf16le", "-")
    return np.frombuffer(data, np.float16).reshape(3, height, width).transpose(1, 2, 0)[..., [2, 0, 1]]
