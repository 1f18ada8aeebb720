"""The curves and signals of HDR: against the reference's numbers, and against the standards' formulas in float64."""

import json

import mlx.core as mx
import numpy as np
import pytest

from conftest import FIXTURES
from hdr_formulas import bt2020_planes, decode_acescct, decode_logc3, hlg, pq, sdr
from mlx_ltx_vae import LatentsError, hdr
from tolerances import ROUNDINGS, assert_same_bits

GOLDEN = json.loads((FIXTURES / "hdr" / "hdr.json").read_text())
OWN_PRIMARIES = {"acescct": "acescg", "logc3": "rec709"}
CLOSE = {"rtol": 1e-5 * ROUNDINGS, "atol": 1e-8 * ROUNDINGS}
RAMP = np.linspace(0, 1, 4001)
LIGHT = np.concatenate([[0], np.geomspace(1e-5, 100, 2000)])


def gray(values):
    """Values (n,) as float32 (n, 3)."""
    return np.repeat(np.asarray(values, np.float32)[:, None], 3, axis=1)


def numbers(array):
    assert isinstance(array, mx.array) and array.dtype == mx.float32
    return np.array(array)


@pytest.mark.parametrize("transfer", OWN_PRIMARIES)
def test_curves_are_those_of_the_reference(transfer):
    curve, primaries = GOLDEN["curves"][transfer], OWN_PRIMARIES[transfer]
    linear = numbers(hdr.to_linear(gray(curve["code"]), transfer, primaries))
    np.testing.assert_allclose(linear, gray(np.maximum(curve["linear"], 0)), **CLOSE)
    codes = numbers(hdr.to_codes(gray(curve["from_linear"]), transfer, primaries))
    np.testing.assert_allclose(codes, gray(curve["to_code"]), **CLOSE)


@pytest.mark.parametrize(("transfer", "decode"), [("logc3", decode_logc3), ("acescct", decode_acescct)])
def test_curves_are_their_formulas_everywhere_and_undo_each_other(transfer, decode):
    light = np.maximum(decode(RAMP), 0)
    linear = hdr.to_linear(gray(RAMP), transfer, OWN_PRIMARIES[transfer])
    np.testing.assert_allclose(numbers(linear)[:, 1], light, rtol=CLOSE["rtol"], atol=2e-8)  # rounded codes near black
    codes = numbers(hdr.to_codes(linear, transfer, OWN_PRIMARIES[transfer]))[light > 0]
    np.testing.assert_allclose(codes, gray(RAMP[light > 0]), rtol=0, atol=2e-6 * ROUNDINGS)


@pytest.mark.parametrize("case", GOLDEN["colors"], ids=lambda case: f"{case['transfer']}-{case['out_primaries']}")
@pytest.mark.parametrize("make", [mx.array, np.array], ids=["mlx", "numpy-float64"])
def test_colors_are_those_of_the_reference(case, make):
    linear = numbers(hdr.to_linear(make(case["working_rgb"]), case["transfer"], case["out_primaries"]))
    expected = np.array(case["linear_rgb"], np.float32)
    np.testing.assert_allclose(linear, expected, **CLOSE)
    given = np.array(case["working_rgb"])
    reversible = (expected > 0).all(axis=-1) & (given > 0.1).all(axis=-1)  # not clamped on the way
    codes = numbers(hdr.to_codes(linear, case["transfer"], case["out_primaries"]))
    assert reversible.sum() > 5
    np.testing.assert_allclose(codes[reversible], given[reversible], rtol=0, atol=2e-6 * ROUNDINGS)


def test_hlg_is_that_of_the_reference_and_its_formula():
    signal = numbers(hdr.to_hlg(np.array(GOLDEN["hlg"]["linear_rec709_rgb"])))
    np.testing.assert_allclose(signal, GOLDEN["hlg"]["signal_rgb"], **CLOSE)
    np.testing.assert_allclose(numbers(hdr.to_hlg(gray(LIGHT))), hlg(gray(LIGHT).astype(np.float64)), **CLOSE)
    assert numbers(hdr.to_hlg(mx.ones(3))) == pytest.approx(0.75, abs=1e-6)


def test_hlg_planes_are_those_of_the_reference():
    frame = GOLDEN["hlg"]["frame"]
    signal = numbers(hdr.to_hlg(np.array(frame["linear_rec709"]))).astype(np.float64)
    for name, plane in zip("yuv", bt2020_planes(signal), strict=True):
        np.testing.assert_array_equal(plane, frame[name])


def test_pq_is_its_formula_with_diffuse_white_at_203_cd():
    colors = np.stack([LIGHT, LIGHT[::-1], np.full_like(LIGHT, 0.5)], axis=-1)
    signal = numbers(hdr.to_pq(colors.astype(np.float32)))
    np.testing.assert_allclose(signal, pq(colors), rtol=3e-5 * ROUNDINGS, atol=0)  # of 16 bits: two
    assert numbers(hdr.to_pq(mx.ones(3))) == pytest.approx(0.5807, abs=1e-4)  # BT.2408: 58 %


@pytest.mark.parametrize("exposure", [-1.5, 0, 2])
def test_sdr_is_reinhard_after_exposure_with_the_transfer_function_of_srgb(exposure):
    expected = sdr(LIGHT, exposure)
    np.testing.assert_allclose(numbers(hdr.to_sdr(gray(LIGHT), exposure)), gray(expected), rtol=2e-6 * ROUNDINGS)


@pytest.mark.parametrize("convert", [hdr.to_hlg, hdr.to_pq, hdr.to_sdr])
def test_signals_rise_with_light_and_stay_in_range(convert):
    ramp = numbers(convert(gray(np.concatenate([[-1], LIGHT, [65504]]))))
    assert ramp.min() >= 0 and ramp.max() <= 1
    assert (np.diff(ramp[:, 1]) >= 0).all()


def test_infinite_light_is_white_and_the_order_of_an_array_in_memory_does_not_count():
    bright = np.full(3, np.inf, np.float32)
    for white in (hdr.to_hlg(bright), hdr.to_pq(bright), hdr.to_sdr(bright), hdr.to_codes(bright, "logc3", "acescg")):
        np.testing.assert_allclose(numbers(white), 1, **CLOSE)
    colors = np.random.default_rng(0).uniform(size=(4, 5, 3))
    for given in (colors[..., ::-1], colors[::-1], colors.transpose(1, 0, 2)):  # the first as OpenCV's BGR becomes RGB
        assert_same_bits(hdr.to_hlg(given), hdr.to_hlg(given.copy()))


def test_signals_do_not_depend_on_the_shape_of_the_array():
    light = mx.exp(mx.random.uniform(-6, 4, (64, 37, 3), key=mx.random.key(0)))
    for convert in (hdr.to_hlg, hdr.to_pq, hdr.to_sdr):
        rows = mx.concatenate([convert(light[row : row + 1]) for row in range(64)])
        assert_same_bits(rows, convert(light))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((mx.zeros((4, 4)), "logc3"), r"the codes are float32 \(4, 4\); expected floats \(..., 3\)"),
        ((np.zeros((4, 3), np.uint8), "logc3"), "expected floats"),
        ((mx.zeros(3), "logc4"), r"the curve 'logc4' is not known \(did you mean logc3\?\); use acescct or logc3"),
        ((mx.zeros(3), "logc3", "bt2020"), "the set of primaries 'bt2020' is not known; use rec709 or acescg"),
    ],
)
def test_other_arrays_and_names_are_refused(arguments, message):
    with pytest.raises(LatentsError, match=message):
        hdr.to_linear(*arguments)
