"""A decode at real widths in which Metal computes convolutions by Winograd, with Winograd and without."""

import mlx.core as mx
import numpy as np
import pytest

import winograd_ltx2_3
from metal_emulation import EmulatedGPU, emulated, stored_in_bfloat16
from mlx_ltx_vae import VideoVAE
from mlx_ltx_vae.backend.machine import Backend, Machine
from mlx_ltx_vae.networks.specs import ConvSpec
from mlx_ltx_vae.options import PlanOptions
from mlx_ltx_vae.planning.planner import plan_decode
from tolerances import gpu_only, tolerance
from vae_configs import GENERATIONS, decoder_spec, parse_vae_config

NO_WINOGRAD = gpu_only("the CPU has no Winograd convolutions to switch off")


@pytest.mark.full_width
@pytest.mark.parametrize("winograd", ["1", pytest.param("0", marks=NO_WINOGRAD)])
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=gpu_only("takes a minute"))])
def test_published_widths_agree_with_the_cpu_on_latents_large_enough_for_winograd(golden, monkeypatch, dtype, winograd):
    monkeypatch.setenv("MLX_CONV_WINOGRAD", winograd)  # MLX reads it at every convolution
    vae = VideoVAE.from_pretrained(golden(winograd_ltx2_3.WEIGHTS).checkpoint, dtype=dtype, encoder=False)
    latents = winograd_ltx2_3.make_latents()
    plan = vae.plan(latents.shape, mode="exact", order="time")
    pixels = np.array(vae.decode(latents, plan).astype(mx.float32))
    positions, expected = winograd_ltx2_3.load_samples()
    assert pixels.shape == (1, 3, 9, 256, 384)
    got = pixels.ravel()[positions]
    if dtype == "float32":
        assert np.abs(got - expected).max() < tolerance(1e-4)
    else:
        # 1.2 times the error without Winograd, which is 0.015 in the emulation; Winograd in bfloat16 gives 0.022.
        assert np.sqrt(np.mean((got - expected) ** 2) / np.mean(expected**2)) < 0.018


@pytest.mark.full_width
def test_published_widths_stored_in_bfloat16_lose_little_in_the_emulation_of_metal(golden):
    """With bfloat16 operands the error is 0.0136."""
    latents = winograd_ltx2_3.make_latents()
    with emulated() as routes:
        checkpoint = stored_in_bfloat16(golden(winograd_ltx2_3.WEIGHTS).checkpoint)
        vae = VideoVAE.from_pretrained(checkpoint, encoder=False)
        plan = vae.plan(latents.shape, mode="exact", order="time")
        pixels = np.array(vae.decode(latents, plan).astype(mx.float32))
    positions, expected = winograd_ltx2_3.load_samples()
    got = pixels.ravel()[positions]
    assert routes["winograd"] > 0
    assert np.sqrt(np.mean((got - expected) ** 2) / np.mean(expected**2)) < 0.012


def test_the_case_reaches_winograd_on_metal_at_several_widths():
    spec = decoder_spec(parse_vae_config(GENERATIONS["LTX-2.3"], "LTX-2.3"))
    machine = Machine(Backend.METAL, itemsize=2, available=None)
    plan = plan_decode(spec, winograd_ltx2_3.SHAPE, machine, PlanOptions(mode="exact", order="time"))
    grid, widths = winograd_ltx2_3.SHAPE[2:], set()
    for (layer, (frames, height, width)), step in zip(spec.walk(grid), plan.steps, strict=True):
        if isinstance(layer, ConvSpec):
            frames_in = (min(frames, step), height, width, layer.in_channels)
            if EmulatedGPU().takes_winograd(frames_in, (layer.conv_channels, 3, 3, layer.in_channels)):
                widths.add(layer.in_channels)
    assert widths >= {128, 256}
