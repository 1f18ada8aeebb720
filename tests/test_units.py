"""Sizes as users read and write them."""

import pytest

from mlx_ltx_vae import PlanError
from mlx_ltx_vae.units import format_bytes, parse_bytes

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
