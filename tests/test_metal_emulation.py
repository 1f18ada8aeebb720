"""The emulation of Metal: its convolutions against MLX's own in float32, its routes, and whole decodes of the demo."""

from dataclasses import replace
from functools import cache

import mlx.core as mx
import pytest

from checkpoint_files import open_checkpoint
from metal_emulation import (
    EmulatedGPU,
    emulated,
    load_decoder,
    round_to_tf32,
    stored_in_bfloat16,
)
from mlx_ltx_vae import VideoVAE, demo, load_latents
from mlx_ltx_vae.backend import device
from mlx_ltx_vae.backend.machine import Backend
from mlx_ltx_vae.backend.mlx_utils import max_difference, psnr
from mlx_ltx_vae.networks import layers
from mlx_ltx_vae.networks.convolution.rules import Formulation
from mlx_ltx_vae.tiling import SpatialTilingConfig, TilingConfig
from winograd import winograd_conv2d

#: The demo VAE is narrow and its clip small. Winograd is taken as for a real video.
LIKE_REAL = EmulatedGPU(any_width=True, magnification=6)
#: The same, with every convolution as one call of mx.conv3d.
CONV3D = replace(LIKE_REAL, formulation=Formulation.CONV3D)
DTYPES = [mx.bfloat16, mx.float16, mx.float32]


@pytest.fixture(autouse=True, scope="module")
def on_the_cpu():
    default = mx.default_device()
    mx.set_default_device(mx.Device(mx.cpu))
    yield
    mx.set_default_device(default)


def operands(channels=64, out_channels=64, frames=1, size=(64, 64), batch=1):
    """Frames (B, T, H, W, C) as behind norm and SiLU, and weights (O, 3, 3, 3, C)."""
    x = mx.random.normal((batch, frames + 2, *size, channels), key=mx.random.key(1))
    w = mx.random.normal((out_channels, 3, 3, 3, channels), key=mx.random.key(2)) / (27 * channels) ** 0.5
    return x * mx.sigmoid(x), w


def error(result, expected):
    """Relative rms error."""
    difference = result.astype(mx.float32) - expected
    return (mx.square(difference).mean() / mx.square(expected).mean()).item() ** 0.5


def joined(x, w):
    """The taps in time along the channels: (T, H, W, 3C) and (O, 3, 3, 3C)."""
    frames = x.shape[1] - 2
    taps = [x[0, tap : tap + frames] for tap in range(3)]
    return mx.concatenate(taps, axis=-1), mx.concatenate([w[:, tap] for tap in range(3)], axis=-1)


@pytest.mark.parametrize("padding", [(0, 0), (1, 1), (1, 0)])
@pytest.mark.parametrize("size", [(6, 12), (7, 11), (3, 4), (20, 5)])
def test_winograd_in_float32_is_a_convolution(size, padding):
    x = mx.random.normal((2, *size, 5), key=mx.random.key(3))
    w = mx.random.normal((7, 3, 3, 5), key=mx.random.key(4))
    result, expected = winograd_conv2d(x, w, padding, mx.matmul), mx.conv2d(x, w, padding=padding)
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    assert error(result, expected) < 1e-5


@pytest.mark.parametrize(
    ("dtype", "winograd", "least", "most"),
    [
        (mx.bfloat16, False, 2.2e-3, 3.2e-3),
        (mx.bfloat16, True, 2.7e-2, 6e-2),
        (mx.float16, False, 3e-4, 5e-4),
        (mx.float16, True, 3.5e-3, 8e-3),
        (mx.float32, False, 0, 1e-6),
        (mx.float32, True, 5e-7, 1e-5),
    ],
)
def test_one_convolution_loses_as_much_as_on_metal(dtype, winograd, least, most):
    x, w = (each.astype(dtype) for each in operands())
    expected = mx.conv3d(x.astype(mx.float32), w.astype(mx.float32), padding=(0, 1, 1))
    with emulated(EmulatedGPU(winograd, any_width=True)) as routes:
        result = mx.conv3d(x, w, padding=(0, 1, 1))
        mx.eval(result)
    assert (result.shape, result.dtype) == (expected.shape, dtype)
    assert routes == {"winograd" if winograd else "direct": 3}
    assert least <= error(result, expected) < most


def test_taps_joined_along_channels_are_rounded_once():
    x, w = (each.astype(mx.bfloat16) for each in operands())
    expected = mx.conv3d(x.astype(mx.float32), w.astype(mx.float32), padding=(0, 1, 1))[0]
    with emulated(EmulatedGPU(winograd=False)) as routes:
        result = mx.conv2d(*joined(x, w), padding=1)
        mx.eval(result)
    assert routes == {"direct": 1}
    assert 1.5e-3 < error(result, expected) < 1.9e-3


def test_tf32_rounds_the_products_of_winograd_and_no_direct_convolution():
    x, w = operands()
    expected = mx.conv3d(x, w, padding=(0, 1, 1))
    errors = []
    for winograd in (True, False):
        with emulated(EmulatedGPU(winograd, any_width=True, tf32=True)):
            errors.append(error(mx.conv3d(x, w, padding=(0, 1, 1)), expected))
    assert 1e-3 < errors[0] < 6e-3
    assert errors[1] < 1e-6


@pytest.mark.parametrize(
    ("channels", "out_channels", "grid", "taken"),
    [
        (128, 128, (1, 64, 64), True),
        (128, 128, (4, 32, 32), True),
        (128, 128, (1, 64, 63), False),  # positions
        (128, 96, (1, 64, 64), False),  # sum of channels
        (256, 48, (1, 64, 64), False),  # a multiple of 32
        (3 * 64, 64, (1, 64, 64), True),  # joined taps of 64 channels
    ],
)
def test_the_route_follows_channels_and_positions(channels, out_channels, grid, taken):
    assert EmulatedGPU().takes_winograd((*grid, channels), (out_channels, 3, 3, channels)) is taken


@pytest.mark.parametrize(
    ("batch", "channels", "options", "route"),
    [
        (1, 16, {"padding": (0, 1, 1)}, {"direct": 3}),
        (1, 24, {"padding": (0, 1, 1)}, {"volume": 1}),
        (2, 16, {"padding": (0, 1, 1)}, {"volume": 1}),
        (1, 16, {"padding": 1}, {"volume": 1}),
        (1, 16, {"stride": (2, 1, 1)}, {"volume": 1}),
        (1, 16, {"stride": (1, 2, 2)}, {"direct": 3}),
    ],
)
def test_3d_convolutions_are_split_only_where_metal_splits_them(batch, channels, options, route):
    x, w = operands(channels, 16, frames=3, size=(8, 8), batch=batch)
    expected = mx.conv3d(x, w, **options)
    with emulated() as routes:
        result = mx.conv3d(x, w, **options)
        mx.eval(result)
    assert routes == route
    assert result.shape == expected.shape
    assert error(result, expected) < 1e-6


def test_the_variable_that_switches_winograd_off_is_obeyed(monkeypatch):
    x, w = operands(128, 128)
    for value, route in (("0", "direct"), ("1", "winograd")):
        monkeypatch.setenv("MLX_CONV_WINOGRAD", value)
        with emulated() as routes:
            mx.conv3d(x, w, padding=(0, 1, 1))
        assert set(routes) == {route}


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_sum_in_float32_and_round_once(dtype):
    one, other, c = (
        mx.random.normal(shape, key=mx.random.key(5)).astype(dtype) for shape in ((40, 300), (300, 20), (40, 20))
    )
    product = mx.matmul(one.astype(mx.float32), other.astype(mx.float32))
    with emulated() as routes:
        results = [mx.matmul(one, other), one @ other, mx.addmm(c, one, other)]
        mx.eval(results)
    expected = [product.astype(dtype), product.astype(dtype), (c.astype(mx.float32) + product).astype(dtype)]
    assert routes == {"product": 3}
    assert all(
        result.dtype == dtype and mx.array_equal(result, each) for result, each in zip(results, expected, strict=True)
    )


def test_tf32_has_ten_bits_of_mantissa():
    x = mx.array([1.0, 1 + 2.0**-10, 1 + 2.0**-11, 1 + 2.0**-12, -(1 + 2.0**-11), 3e38, 0.0])
    expected = mx.array([1.0, 1 + 2.0**-10, 1 + 2.0**-10, 1.0, -(1 + 2.0**-10), 3e38, 0.0])
    assert mx.allclose(round_to_tf32(x), expected, rtol=2.0**-11, atol=0)
    assert mx.array_equal(round_to_tf32(x)[:5], expected[:5])


def test_the_package_believes_to_be_on_a_gpu_inside_and_everything_is_given_back():
    names = ("conv2d", "conv3d", "matmul", "addmm")
    before = [getattr(mx, name) for name in names], mx.array.__matmul__, mx.default_device(), device.is_cpu()
    with pytest.raises(ZeroDivisionError), emulated():
        assert device.this_machine(mx.bfloat16).backend is Backend.METAL
        assert not layers.is_cpu()
        raise ZeroDivisionError
    assert before == ([getattr(mx, name) for name in names], mx.array.__matmul__, mx.default_device(), device.is_cpu())
    assert layers.is_cpu is device.is_cpu


@pytest.fixture(scope="module")
def demo_latents():
    """The start of the demo clip, 25 frames of 384x256."""
    return load_latents(demo.LATENTS)[0][:, :, :4]


@pytest.fixture(scope="module")
def in_float32(demo_latents):
    """`in_float32(mode)`: the pixels of a decode in float32 on the CPU."""
    vae = VideoVAE.from_pretrained(demo.VAE, dtype="float32", encoder=False)
    return cache(lambda mode: decode(vae, demo_latents, mode))


def decode(vae, latents, mode):
    """Pixels in float32, clipped to [-1, 1], by a mode or by rows."""
    order = {"mode": "exact", "order": "rows"} if mode == "rows" else {"mode": mode}
    tiling = TilingConfig(SpatialTilingConfig(192, 64)) if mode == "tiled" else None
    pixels = mx.clip(vae.decode(latents, vae.plan(latents.shape, tiling=tiling, **order)).astype(mx.float32), -1, 1)
    mx.eval(pixels)
    return pixels


def decode_emulated(latents, dtype, gpu=LIKE_REAL, mode="exact"):
    """As `decode`, and the share of convolutions and products that took Winograd; None for weights in bfloat16."""
    with emulated(gpu) as routes:
        # Loaded inside, since weights are laid out for the device.
        checkpoint = open_checkpoint(demo.VAE, encoder=False) if dtype else stored_in_bfloat16(demo.VAE)
        vae = load_decoder(checkpoint, gpu.choose, dtype)
        routes.clear()  # of products that bound the weights
        pixels = decode(vae, latents, mode)
    return pixels, routes["winograd"] / sum(routes.values())


@pytest.mark.slow
def test_decodes_of_the_demo_lose_what_an_independent_emulation_says(demo_latents, in_float32):
    """By mx.conv3d, with bias and skip rounded one by one; in dB, against float32."""
    ways = {
        "bfloat16": ("bfloat16", {}, 46.02),
        "no Winograd": ("bfloat16", {"winograd": False}, 47.69),
        "TF32 products": ("float32", {"tf32": True}, 71.34),
    }
    reference, largest, shares = in_float32("exact"), {}, {}
    for name, (dtype, changes, expected) in ways.items():
        pixels, shares[name] = decode_emulated(demo_latents, dtype, replace(CONV3D, **changes))
        assert psnr(pixels, reference) == pytest.approx(expected, abs=0.5), name
        largest[name] = max_difference(pixels, reference)
    assert shares["no Winograd"] == 0 and shares["bfloat16"] > 0.5
    # Largest differences depend on single pixels; those of Winograd in bfloat16 are a multiple of the others.
    assert largest["bfloat16"] > 2 * largest["no Winograd"]
    assert psnr(decode_emulated(demo_latents, "float32", CONV3D)[0], reference) > 120
    exact, single = (decode_emulated(demo_latents, "bfloat16", CONV3D, mode)[0] for mode in ("exact", "single"))
    assert psnr(single, exact) == pytest.approx(44.12, abs=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["exact", "single", "rows", "tiled"])
def test_the_default_precision_is_at_least_as_good_as_bfloat16_without_winograd(demo_latents, in_float32, mode):
    """What docs/performance.md says of the package's default, in every mode."""
    pixels, share = decode_emulated(demo_latents, None, mode=mode)
    reference = in_float32("tiled" if mode == "tiled" else "exact")
    assert share > 0.05, "the decode reaches the route that is inaccurate in bfloat16"
    assert psnr(pixels, reference) >= 49 and max_difference(pixels, reference) <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "changes", "expected"),
    [("bfloat16", {}, 48.3), ("float16", {}, 64.0), ("float32", {"tf32": True}, 69.5), ("float32", {}, 128.4)],
)
def test_every_other_precision_loses_what_the_documentation_says(demo_latents, in_float32, dtype, changes, expected):
    """The other rows of the table in docs/performance.md."""
    pixels, _ = decode_emulated(demo_latents, dtype, replace(LIKE_REAL, **changes))
    assert psnr(pixels, in_float32("exact")) == pytest.approx(expected, abs=1)
