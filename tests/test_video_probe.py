"""Arithmetic of videos: sizes that fit, rates, lengths of audio, and properties by what ffmpeg says."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_ltx_vae import Fit, ReaderError
from mlx_ltx_vae.video.audio import AudioTrack
from mlx_ltx_vae.video.ffmpeg import Description, Packet, parse_packets
from mlx_ltx_vae.video.probe import VideoInfo, parse_description
from mlx_ltx_vae.video.reader import RateConverter, fit_size

sides = st.integers(1, 5000)
sizes = st.tuples(sides, sides)


@given(source=sizes, multiple=st.sampled_from([1, 16, 32]), wanted=st.none() | sizes, fit=st.sampled_from(Fit))
def test_fitted_sizes_are_multiples_within_the_scaled_size(
    source: tuple, multiple: int, wanted: tuple | None, fit: Fit
) -> None:
    wanted = None if wanted is None else tuple(-(-side // multiple) * multiple for side in wanted)
    try:
        scaled, target = fit_size("clip", source, wanted, fit, multiple)
    except ReaderError:
        assert fit is not Fit.RESIZE
        assert fit is Fit.EXACT or (wanted is None and min(source) < multiple)
        assert source != wanted
        return
    assert all(side >= multiple and side % multiple == 0 for side in target)
    assert target == (wanted or target)
    assert all(whole >= part for whole, part in zip(scaled, target, strict=True))
    if fit is Fit.CROP:
        assert wanted is None or any(whole == part for whole, part in zip(scaled, target, strict=True))
        assert abs(scaled[0] * source[1] - scaled[1] * source[0]) <= max(source), "proportions are kept up to rounding"
    else:
        assert scaled == target
        assert fit is Fit.RESIZE or target == source


NAME = "clip.mkv"
COVER = "Video: mjpeg, yuvj420p(pc), 600x600, q=2-31, 90k tbr, 90k tbn (attached pic)"
VIDEO = "Video: h264 (High), yuv420p10le(tv, bt709), 96x64, q=2-31, {average}24 tbr, 1k tbn (default)"
OTHER = "Video: vp9, yuv420p(tv), 32x32, q=2-31, 5 fps, 5 tbr, 1k tbn"
FILTERED = """\
config in time_base: 1/1000, frame_rate: {nominal}
config out time_base: 0/0, frame_rate: 0/0
n:   0 pts:   1500 pts_time:1.5 fmt:yuv420p10le cl:left sar:1/1 s:64x96 i:P iskey:1 type:I
  side data - something of 8x8
color_range:tv color_space:{matrix} color_primaries:unknown color_trc:unknown
"""


def parse(
    nominal: str = "24/1",
    average: str = "24 fps, ",
    matrix: str = "bt709",
    *,
    change: tuple[str, str] = ("", ""),
    **options: Any,
) -> VideoInfo:
    lines = [COVER, VIDEO.format(average=average), OTHER]
    filtered = FILTERED.format(nominal=nominal, matrix=matrix).splitlines()
    streams = [[line.replace(*change) if change[0] else line] for line in lines]
    filtered = [line.replace(*change) if change[0] else line for line in filtered]
    found = {"demuxer": "matroska,webm", "streams": streams, "filtered": filtered, "output": ""} | options
    return parse_description(NAME, Description(**found), (1, None), is_still=False, seconds=Fraction(3))


@pytest.mark.parametrize(
    ("nominal", "average", "fps"),
    [
        ("24000/1001", "23.98 fps, ", Fraction(24000, 1001)),
        ("19001/317", "59.94 fps, ", Fraction(60000, 1001)),  # as Matroska stores it, in milliseconds
        ("30/1", "29.87 fps, ", Fraction(30)),  # from a phone
        ("30/1", "", Fraction(30)),
        ("1000/1", "24.50 fps, ", Fraction(49, 2)),  # the clock of a screen recording
        ("60000/1001", "29.97 fps, ", Fraction(30000, 1001)),  # the field rate
        ("25/1", "60k fps, ", Fraction(25)),  # the clock of DV
        ("0/0", "12 fps, ", Fraction(12)),
        ("1/0", "", None),
    ],
)
def test_rate_is_the_nominal_rate_unless_only_the_average_is_plausible(
    nominal: str, average: str, fps: Fraction | None
) -> None:
    info = parse(nominal, average)
    assert (info.fps, info.size, info.frames.pixel_format) == (fps, (64, 96), "yuv420p10le")
    assert (info.start, info.seconds, info.codec) == (Fraction(3, 2), 3, "h264")
    assert (info.frames.matrix, info.frames.levels, info.frames.site) == ("bt709", "tv", "left")
    assert info.warnings(NAME) == info.changes() == []


def test_missing_properties_are_unknown_or_refused() -> None:
    assert parse(matrix="unknown").frames.matrix == "unknown"
    assert parse(change=("color_space", "color")).frames.matrix == "unknown"
    assert parse(change=("pts:   1500", "pts: NOPTS")).start == 0
    with pytest.raises(ReaderError, match=f"{NAME}: contains no frames"):
        parse(filtered=[])
    with pytest.raises(ReaderError, match=f"{NAME}: is text"):
        parse(demuxer="tty")
    with pytest.raises(ReaderError, match=f"{NAME}: is a picture in several tiles"):
        parse(change=("1k tbn (default)", "1k tbn (default) (dependent)"))
    assert parse("90000/1", "").fps is None  # the clock


@pytest.mark.parametrize(
    ("written", "instead", "is_reported"),
    [
        ("bt709)", "bt709, top first)", True),
        ("bt709)", "bt709, bottom coded first (swapped))", True),
        ("vp9, yuv420p(tv)", "vp9, yuv420p(tv, top first)", False),  # another stream
        ("mjpeg, yuvj420p(pc)", "mjpeg, yuvj420p(pc, top first)", False),
    ],
)
def test_fields_are_reported_of_the_stream_that_is_read(written: str, instead: str, is_reported: bool) -> None:
    assert parse(change=(written, instead)).changes() == ["deinterlaced"] * is_reported


def test_lines_that_are_no_packets_are_passed_over() -> None:
    lines = [
        "some words",
        "#software: Lavf",
        "#tb 0: 1/10",
        "#tb 0: 1/0",
        "",
        "0, 1, 2",
        "0, a, 2, 1, 9, 0x1",
        "#tb 0: x",
    ]
    packet = "0,          3,          4,        1,     9, 0x00f50002, S=1,        4, 0x1"
    untimed = f"0,          0, {-(2**63)},        1,     9, 0x00f50002, F=0x0"
    left_out = "0,         -2,         -1,        1,     9, 0x00f50002, F=0x5"
    assert parse_packets("\n".join([*lines, packet, untimed, left_out, packet[:11]])) == [
        Packet(Fraction(-1, 10), Fraction(1, 10), is_shown=False),
        Packet(Fraction(0), Fraction(1, 10), is_shown=True),
        Packet(Fraction(4, 10), Fraction(1, 10), is_shown=True),
    ]


def frames_at(times: list[float], fps: object, source: object = None, *, is_variable: bool = False) -> list[int]:
    """The indices of the frames that a conversion of frames at the given times returns."""
    rate = RateConverter(Fraction(fps), source and Fraction(source), is_variable=is_variable)
    counts = [rate.add(Fraction(time)) for time in times][1:] + [rate.end()]
    return [n for n, count in enumerate(counts) for _ in range(count)]


def test_jitter_of_a_constant_rate_loses_nothing() -> None:
    times = [n / 30 + jitter for n, jitter in enumerate(np.random.default_rng(0).uniform(-0.008, 0.008, 200))]
    assert frames_at(times, 30, 30) == list(range(200))
    assert frames_at(times, 15, 30) == list(range(0, 200, 2))


def test_pauses_are_filled_and_times_that_go_back_follow() -> None:
    assert frames_at([0, 1, 4, 5], 1, 1) == [0, 1, 1, 1, 2, 3]
    assert frames_at([0, 1, 1, 2, 3], 1, 1) == [0, 1, 2, 3, 4]
    assert frames_at([0, 1, 2, 0, 1, 2], 1, 1) == list(range(6))
    assert frames_at([7], 24, 60) == frames_at([7], 24) == [0]


def test_frames_that_come_faster_than_the_rate_are_kept_at_a_higher_one() -> None:
    times = [n / 30 for n in range(30)] + [1 + n / 240 for n in range(80)]
    assert len(set(frames_at(times, 30, 30))) < 110
    assert set(frames_at(times, 240, 30)) == set(frames_at(times, 240, 70, is_variable=True)) == set(range(110))


def test_there_is_no_drift_over_ten_minutes():
    """At 23.976 frames and 48000 samples per second, after each frame and in the end."""
    fps, rate = Fraction(24000, 1001), 48000
    num_frames = round(600 * fps)
    total = round(num_frames * rate / fps)
    samples = np.zeros((2, 48000), np.float32)
    count = -(-total // 48000)
    track = AudioTrack("a", (samples for _ in range(count)), rate, fps, None, cuts=True)
    given = 0
    for frames in range(100, num_frames, 100):
        given += sum(map(len, track.until(frames)))
        assert abs(given - frames * rate / fps) <= 0.5
    assert given + sum(map(len, track.finish(num_frames))) == total
