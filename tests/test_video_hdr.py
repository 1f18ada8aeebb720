"""HDR videos, tone-mapped, against the formulas of ITU-R BT.2100 and ffmpeg's Möbius curve in float64."""

import warnings
from pathlib import Path

import numpy as np
import pytest

from hdr_formulas import REC709_TO_BT2020, pq
from mlx_ltx_vae import Fit, VideoReader
from test_video_colors import store, to_planes
from video_files import frame_times, run_ffmpeg

SIDE = 8  # pixels of a patch
HLG, PQ = "arib-std-b67", "smpte2084"
WHITE = 203  # cd/m2 of diffuse white
#: Of primaries: their matrix to BT.709's, and the luminance of red, green and blue.
BT2020 = np.linalg.inv(REC709_TO_BT2020), [0.2627, 0.6780, 0.0593]
P3 = (
    np.array([[1.2249402, -0.2249404, 0], [-0.0420569, 1.0420571, 0], [-0.0196376, -0.0786361, 1.0982735]]),
    [0.2289746, 0.6917385, 0.0792869],
)
BT709 = np.eye(3), [0.2126, 0.7152, 0.0722]


def colors() -> np.ndarray:
    """Signals (n, 3) in [0, 1]: primaries, secondaries and grays at several levels, and 64 at random."""
    corners = np.array([[r, g, b] for r in (0, 1) for g in (0, 1) for b in (0, 1)], float)
    levels = np.array([0.1, 0.38, 0.5, 0.58, 0.75, 0.9, 1])[:, None, None]
    return np.concatenate([(levels * corners).reshape(-1, 3), np.random.default_rng(0).uniform(0, 1, (64, 3))])


def hlg_light(signal: np.ndarray, luminance: list[float]) -> np.ndarray:
    """The light of a display of 1000 cd/m2 (BT.2100, table 5)."""
    bright = (np.exp((signal - 0.55991073) / 0.17883277) + 0.28466892) / 12
    scene = np.where(signal <= 0.5, signal**2 / 3, bright)
    return 1000 * scene * (scene @ luminance)[:, None] ** 0.2


def pq_light(signal: np.ndarray) -> np.ndarray:
    """The light in cd/m2 (BT.2100, table 4)."""
    power = signal ** (1 / 78.84375)
    return 10000 * (np.maximum(power - 0.8359375, 0) / (18.8515625 - 18.6875 * power)) ** (1 / 0.1593017578125)


def tone_map(light: np.ndarray, peak: float) -> np.ndarray:
    """Light in [0, 1] of light (n, 3) in cd/m2, by tonemap=mobius:param=0.5:desat=0: of the largest channel."""
    light, peak = light / WHITE, peak / WHITE
    a, b = -0.25 * (peak - 1) / (peak - 0.75), 0.25 / max(peak - 1, 1e-6)
    largest = np.maximum(light.max(-1, keepdims=True), 1e-9)
    curved = (b * b + b + 0.25) / (b - a) * (largest + a) / (largest + b)
    return np.clip(light * np.where(largest <= 0.5, largest, curved) / largest, 0, 1)


def bt1886(light: np.ndarray) -> np.ndarray:
    return light ** (1 / 2.4)


def srgb(light: np.ndarray) -> np.ndarray:
    return np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)


def store_patches(
    path: Path, signal: np.ndarray, transfer: str, primaries: str = "bt2020", matrix: str = "bt2020nc", bits: int = 16
) -> Path:
    """A lossless file with a patch for each color of a signal; RGB for the matrix "gbr"."""
    is_rgb = matrix == "gbr"
    planes = 65535 * signal.T[[1, 2, 0]] if is_rgb else to_planes(signal[None], matrix, bits, "tv")[:, 0]
    pixel_format = "gbrp16le" if is_rgb else "yuv444p" if bits == 8 else f"yuv444p{bits}le"
    tags = f"setparams=range={'pc' if is_rgb else 'tv'}:colorspace={matrix}"
    tags += f":color_primaries={primaries}:color_trc={transfer}"
    pictures = [plane[None].repeat(SIDE, 0).repeat(SIDE, 1) for plane in planes]
    return store(path, pictures, pixel_format, (SIDE * len(signal), SIDE), "-vf", tags)


def read(path: Path, **options: object) -> np.ndarray:
    """The frames of a video, for 255 levels."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with VideoReader(path, **{"multiple": 1, **options}) as video:
            frames = np.concatenate(list(video))
    assert frames.dtype == video.dtype == np.uint16
    return frames / 257


def patches(path: Path) -> np.ndarray:
    """The middle of each patch of the first frame."""
    return read(path)[0, SIDE // 2, SIDE // 2 :: SIDE]


@pytest.mark.parametrize("transfer", [HLG, PQ])
@pytest.mark.parametrize(
    ("primaries", "matrix", "conversion"),
    [
        ("bt2020", "bt2020nc", BT2020),
        ("unknown", "bt2020nc", BT2020),
        ("smpte432", "bt2020nc", P3),
        ("bt709", "bt709", BT709),
    ],
)
def test_colors_are_those_of_the_formulas(
    tmp_path: Path, transfer: str, primaries: str, matrix: str, conversion
) -> None:  # noqa: ANN001
    to_bt709, luminance = conversion
    path = store_patches(tmp_path / "a.mkv", colors(), transfer, primaries, matrix)
    light = hlg_light(colors(), luminance) if transfer == HLG else pq_light(colors())
    expected = bt1886(tone_map(light @ to_bt709.T, 1000 if transfer == HLG else 10000))
    assert np.abs(patches(path) - 255 * expected).max() < 0.1


def test_white_and_the_gray_card_are_where_standard_video_has_them(tmp_path: Path) -> None:
    """Diffuse white is 0.75 of HLG; below half of it, light stays as it is."""
    levels = np.array([0.38, 0.75, 1.0])[:, None].repeat(3, 1)
    assert patches(store_patches(tmp_path / "hlg.mkv", levels, HLG))[:, 1] == pytest.approx([109, 228, 255], abs=0.5)
    levels = pq(np.array([26, 101, 203, 1000])[:, None].repeat(3, 1) / 203)
    expected = [255 * (26 / 203) ** (1 / 2.4), 255 * (101 / 203) ** (1 / 2.4), 226, 250]
    assert patches(store_patches(tmp_path / "pq.mkv", levels, PQ))[:, 1] == pytest.approx(expected, abs=0.5)


DISPLAY = "master-display=G(13250,34500)B(7500,3000)R(34000,16000)WP(15635,16450)L({}0000,50)"


@pytest.mark.parametrize(
    ("stated", "peak"),
    [
        ([], 10000),
        (["max-cll=1500,400"], 1500),
        (["max-cll=1500,400", DISPLAY.format(4000)], 1500),
        ([DISPLAY.format(4000)], 4000),  # x265 then states a MaxCLL of 0, which is unknown
        (["max-cll=150,100"], 203),
    ],
    ids=["nothing", "content", "content-and-display", "display", "darker-than-white"],
)
def test_the_peak_of_pq_is_the_one_that_its_metadata_states(tmp_path: Path, stated: list[str], peak: int) -> None:
    signal = np.array([300, 508, 600, 700, 800, 876])[:, None].repeat(3, 1) / 876  # whole codes of 10 bits
    path = store_patches(tmp_path / "a.mkv", signal, PQ, bits=10)
    options = ":".join(["log-level=none", "lossless=1", *stated])
    run_ffmpeg("-i", path, "-vf", "pad=64:64", "-c:v", "libx265", "-x265-params", options, tmp_path / "a.mp4")
    expected = 255 * bt1886(tone_map(pq_light(signal), peak))
    assert np.abs(patches(tmp_path / "a.mp4")[: len(signal)] - expected).max() < 0.1


def test_the_peak_of_pq_is_also_read_from_the_container(tmp_path: Path) -> None:
    path = store_patches(tmp_path / "a.mkv", np.full((12, 3), 0.6), PQ)
    run_ffmpeg("-content_light", "1500,400", "-i", path, "-c:v", "ffv1", tmp_path / "b.mkv")
    light = tone_map(pq_light(np.full((1, 3), 0.6)), 1500)
    assert np.abs(read(tmp_path / "b.mkv") - 255 * bt1886(light)).max() < 0.1
    assert np.abs(read(path) - 255 * bt1886(light)).max() > 1


def test_stills_get_the_curve_of_srgb(tmp_path: Path) -> None:
    path = store_patches(tmp_path / "a.mkv", colors(), HLG, matrix="gbr")
    to_bt709, luminance = BT2020
    light = tone_map(hlg_light(colors(), luminance) @ to_bt709.T, 1000)
    assert np.abs(patches(path) - 255 * srgb(light)).max() < 0.1


def test_frames_of_8_bits_are_mapped_at_16(tmp_path: Path) -> None:
    path = store_patches(tmp_path / "a.mkv", np.full((12, 3), 0.75), HLG, bits=8)
    assert np.abs(read(path) - 228).max() < 2


def test_frames_are_mapped_once_however_they_are_returned(tmp_path: Path) -> None:
    """Scaled, cropped, repeated, and from a later one on."""
    signal = np.linspace(0.1, 0.9, 24)[:, None].repeat(3, 1)
    still, path = store_patches(tmp_path / "still.mkv", signal, HLG), tmp_path / "a.mkv"
    run_ffmpeg("-i", still, "-vf", "loop=9:1", "-c:v", "ffv1", path)
    (expected,) = read(still)
    size = expected.shape[1], expected.shape[0]
    fps = 1 / (frame_times(path)[1] - frame_times(path)[0])
    assert np.array_equal(read(path), expected[None].repeat(10, 0))
    assert np.array_equal(read(path, fps=2 * fps, first_frame=3), expected[None].repeat(17, 0))
    wide = read(path, size=(size[0] * 2, size[1] * 2), fit=Fit.RESIZE)
    assert np.abs(wide[:, SIDE, SIDE :: 2 * SIDE] - expected[SIDE // 2, SIDE // 2 :: SIDE]).max() < 1
