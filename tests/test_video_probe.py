"""Pure functions of reading: sizes that fit, and properties parsed from ffmpeg's log."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_ltx_vae.errors import ReaderError
from mlx_ltx_vae.video import Fit
from mlx_ltx_vae.video.probe import parse_log
from mlx_ltx_vae.video.source import fit_size

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


LOG = """\
[info] Input #0, matroska,webm, from 'file:clip.mkv':
[info]   Duration: 01:02:03.50, start: 0.000000, bitrate: 79 kb/s
[info]   Stream #0:0: Video: mjpeg, yuvj420p(pc), 600x600, 90k tbr, 90k tbn (attached pic)
[info]   Stream #0:1(eng): Video: h264 (High), yuv420p10le(tv, bt709), 96x64, {average}{nominal} tbr, 1k tbn (default)
[info]   Stream #0:11: Video: vp9, 32x32, 5 fps, 5 tbr, 1k tbn
[info] Stream mapping:
[info]   Stream #0:1 -> #0:0 (h264 (native) -> wrapped_avframe (native))
[Parsed_showinfo_0 @ 0x7f] [info] config in time_base: 1/1000, frame_rate: {nominal}
[Parsed_showinfo_0 @ 0x7f] [info] config out time_base: 0/0, frame_rate: 0/0
[Parsed_showinfo_0 @ 0x7f] [info] n:   0 pts:      0 fmt:yuv420p10le cl:left sar:1/1 s:64x96 i:P iskey:1 type:I
[Parsed_showinfo_0 @ 0x7f] [info]   side data - something of 8x8
[Parsed_showinfo_0 @ 0x7f] [info] color_range:tv color_space:{matrix} color_primaries:unknown color_trc:unknown
"""


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
    info = parse_log(LOG.format(nominal=nominal, average=average, matrix="bt709"), "clip.mkv")
    assert (info.fps, info.size, info.frames.pixel_format) == (fps, (64, 96), "yuv420p10le")
    assert info.seconds == Fraction(7447, 2)
    assert (info.frames.matrix, info.frames.levels, info.frames.site) == ("bt709", "tv", "left")
    assert info.warnings("clip.mkv") == []


def test_logs_with_missing_properties_are_parsed_or_refused() -> None:
    log = LOG.format(nominal="24/1", average="24 fps, ", matrix="unknown")
    assert parse_log(log, "clip").frames.matrix == "unknown"
    assert parse_log(log.replace("Duration: 01:02:03.50", "Duration: N/A"), "clip").seconds is None
    assert parse_log(log.replace("color_space", "color"), "clip").frames.matrix == "unknown"
    with pytest.raises(ReaderError, match="clip: contains no frames"):
        parse_log(log.replace("n:   0", "n:   1"), "clip")
    with pytest.raises(ReaderError, match="clip: is a picture in several tiles"):
        parse_log(f"{log}[info]   Stream group #0:0[0x31]: Tile Grid: hevc (Main), yuv420p, 4032x3024", "clip")
    with pytest.raises(ReaderError, match="clip: a frame rate must be"):
        parse_log(LOG.format(nominal="90000/1", average="", matrix="bt709"), "clip")


@pytest.mark.parametrize(
    ("nominal", "average", "clock", "is_variable"),
    [("30/1", "29.87 fps, ", "30", False), ("40000/2803", "14.27 fps, ", "1k", True), ("1/0", "", "25", False)],
)
def test_rate_is_variable_if_the_clock_is_much_faster(
    nominal: str, average: str, clock: str, is_variable: bool
) -> None:
    log = LOG.format(nominal=nominal, average=average, matrix="bt709").replace(f"{nominal} tbr", f"{clock} tbr", 2)
    assert parse_log(log, "clip.mkv").is_variable == is_variable


@pytest.mark.parametrize(
    ("written", "instead", "words"),
    [
        ("bt709)", "bt709, top first)", "interlaced"),
        ("bt709)", "bt709, bottom coded first (swapped))", "interlaced"),
        ("i:P", "i:B", "interlaced"),
        ("color_trc:unknown", "color_trc:smpte2084", "HDR (PQ)"),
        ("color_trc:unknown", "color_trc:arib-std-b67", "HDR (HLG)"),
        ("color_primaries:unknown", "color_primaries:bt2020", "BT.2020 primaries"),
        ("vp9, 32x32", "vp9, yuv420p(tv, top first), 32x32", None),  # another stream
        ("mjpeg, yuvj420p(pc)", "mjpeg, yuvj420p(pc, top first)", None),
    ],
)
def test_what_is_read_as_it_is_is_one_warning(written: str, instead: str, words: str | None) -> None:
    log = LOG.format(nominal="24/1", average="24 fps, ", matrix="bt709")
    assert log.count(written) == 1
    found = parse_log(log.replace(written, instead), "clip.mkv").warnings("clip.mkv")
    assert [words in text for text in found] == ([] if words is None else [True])
