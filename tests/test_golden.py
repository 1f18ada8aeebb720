"""The networks against the reference implementation's results, through the public API."""

from contextlib import nullcontext

import mlx.core as mx
import numpy as np
import pytest

from conftest import CONV_CASES
from mlx_ltx_vae import VideoVAE
from tolerances import tolerance

FULL_WIDTH = [
    "full_width_ltx2_3_encoder",
    "full_width_ltx2",
    "full_width_ltxv_0_9_7",
    "full_width_pruna",
    "full_width_ltx2_3",  # last, for test_golden_winograd.py, which takes its checkpoint
]
MODES = ["single", "exact"]
pytestmark = pytest.mark.golden


def result_of(vae, case, check, mode):
    """What the public API makes of a check's input, (B, C, F, H, W) float32."""
    given = case.arrays[check["input"]]
    if check["op"] == "encode":
        too_many = (given.shape[2] - 1) % vae.config.time_scale
        with pytest.warns(UserWarning, match="left out") if too_many else nullcontext():
            result = vae.encode(given)
    else:
        options = {}
        if vae.config.timestep_conditioning:
            options = {"timestep": check["timestep"], "noise": case.noise(check)}
        result = vae.decode(given, vae.plan(given.shape, mode=mode), **options)
    return np.array(result.astype(mx.float32))


def compare_all(golden, name, dtype, mode):
    """Each check of a case, of decodes only if `mode` is a single pass: (its name, its stored result, expected)."""
    case = golden(name)
    vae = VideoVAE.from_pretrained(case.checkpoint, dtype=dtype)
    for check in case.manifest["checks"]:
        if check["op"] == "encode" and mode == "single":
            continue
        result = result_of(vae, case, check, mode)
        assert list(result.shape) == check["full_shape"], check["name"]
        yield check["name"], case.select(result, check), case.arrays[check["expected"]]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CONV_CASES)
def test_float32_agrees_with_the_reference_within_1e_4(golden, name, mode):
    for check, got, expected in compare_all(golden, name, "float32", mode):
        assert got.shape == expected.shape, check
        assert np.abs(got - expected).max() < tolerance(1e-4), check


@pytest.mark.parametrize("name", CONV_CASES)
def test_bfloat16_agrees_with_the_reference_within_3_percent_rms(golden, name):
    for check, got, expected in compare_all(golden, name, "bfloat16", "exact"):
        error = np.sqrt(np.mean((got - expected) ** 2) / np.mean(expected**2))
        assert error < 0.03, (check, error)


@pytest.mark.full_width
@pytest.mark.parametrize("name", FULL_WIDTH)
def test_published_widths_agree_with_the_reference_within_1e_4(golden, name):
    for check, got, expected in compare_all(golden, name, "float32", "exact"):
        assert np.abs(got - expected).max() < tolerance(1e-4), check
