"""Sizes and frame rates as users read and write them."""

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_ltx_vae import PlanError
from mlx_ltx_vae.latents.metadata import parse_grid
from mlx_ltx_vae.units import format_bytes, parse_bytes, parse_fps

GB = 10**9


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8GB", 8 * GB),
        ("8 gb", 8 * GB),
        ("1.5 GiB", 3 * 2**29),
        ("500MB", 5 * 10**8),
        ("50%", 10 * GB),
        (123, 123),
        ("8G", 8 * GB),
    ],
)
def test_budgets_are_read_as_people_write_them(text, expected):
    assert parse_bytes(text, 20 * GB) == expected


@pytest.mark.parametrize("text", ["", "lots", "-3GB", "0", "8 elephants", "GB", "1e9e9", "123", True])
def test_other_budgets_are_refused(text):
    with pytest.raises(PlanError, match="such as 8GB"):
        parse_bytes(text, GB)


def test_a_number_without_a_unit_says_that_it_needs_one():
    with pytest.raises(PlanError, match="a memory budget needs a unit, such as 8GB, 500MB or 50%; '8' has none"):
        parse_bytes("8", GB)


@pytest.mark.parametrize(
    ("count", "expected"), [(2.424e9, "2.42 GB"), (8.142e8, "814.2 MB"), (5.64e6, "5.6 MB"), (812_000, "812 kB")]
)
def test_bytes_are_shown_in_a_fitting_unit(count, expected):
    assert format_bytes(count) == expected


NTSC = [Fraction(base * 1000, 1001) for base in (24, 30, 48, 60, 120, 240)]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("24", Fraction(24)),
        (25, Fraction(25)),
        (12.5, Fraction(25, 2)),
        ("23.976", Fraction(24000, 1001)),
        (23.976, Fraction(24000, 1001)),
        (np.float32(23.976), Fraction(24000, 1001)),
        (Decimal("29.97"), Fraction(30000, 1001)),
        ("23.98", Fraction(24000, 1001)),
        ("59.94", Fraction(60000, 1001)),
        ("30000/1001", Fraction(30000, 1001)),
        ("2997/100", Fraction(2997, 100)),
        (" 50. ", Fraction(50)),
    ],
)
def test_common_spellings_are_exact_rates(written: object, meant: Fraction) -> None:
    assert parse_fps(written) == meant


@given(st.sampled_from(NTSC), st.integers(2, 15))
def test_ntsc_rates_survive_rounding_to_two_or_more_decimals(rate: Fraction, decimals: int) -> None:
    assert parse_fps(f"{float(rate):.{decimals}f}") == rate


@given(st.fractions(min_value=Fraction(1, 1000), max_value=1000, max_denominator=100_000))
def test_fractions_and_ratios_are_not_rounded(rate: Fraction) -> None:
    assert parse_fps(rate) == rate
    assert parse_fps(f"{rate.numerator}/{rate.denominator}") == rate
    assert parse_fps(parse_fps(rate)) == rate


@given(st.decimals(min_value="0.01", max_value=1000, places=3))
def test_decimals_are_changed_by_no_more_than_ntsc_rounding(rate: Decimal) -> None:
    assert abs(parse_fps(str(rate)) - Fraction(rate)) <= Fraction(1, 100)


@pytest.mark.parametrize(
    "wrong",
    ["", "fast", "0", 0, -24, "-24", "24/0", "0/5", "nan", float("nan"), float("inf"), 1001, 1e300, "1e999999999",
     "9" * 5000, True, None, "24 fps", "24/1/2", Fraction(1, 10**12)],
)  # fmt: skip
def test_invalid_rates_are_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="frame rate"):
        parse_fps(wrong)


@given(st.text(max_size=12) | st.floats() | st.integers())
def test_any_input_gives_a_positive_rate_or_a_value_error(anything: object) -> None:
    try:
        rate = parse_fps(anything)
    except ValueError:
        return
    assert 0 < rate <= 1000


@pytest.mark.parametrize("text", ["", "3x4", "3x4x5x6", "0x4x5", "3x-4x5", "3.0x4x5"])
def test_text_is_a_grid_or_a_value_error(text: str) -> None:
    assert parse_grid(" 16x22x40 ") == (16, 22, 40)
    with pytest.raises(ValueError, match=r"write F'xH'xW'"):
        parse_grid(text)
