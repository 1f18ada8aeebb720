"""The formulations of the 3x3x3 convolution, the rule that chooses one, and the operands' precision."""

import math
import os

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.measuring import Case, FixedRule, open_case
from checkpoint_files import open_checkpoint
from conftest import active_memory
from metal_emulation import EmulatedGPU, emulated, load_decoder
from mlx_ltx_vae import VideoVAE
from mlx_ltx_vae.backend import device
from mlx_ltx_vae.backend.machine import Backend
from mlx_ltx_vae.networks.convolution import conv3d, rules
from mlx_ltx_vae.networks.convolution.conv3d import (
    Conv3d,
    HalfScale,
    half_scale,
    lay_out,
    prepare,
    runs,
    scale_factors,
    scale_to_half,
)
from mlx_ltx_vae.networks.convolution.rules import (
    ConvShape,
    Formulation,
    KernelLayout,
    blocks,
    choose,
    scratch_bytes,
    winograd_elements,
)
from mlx_ltx_vae.networks.layers import (
    CausalConv3d,
    DepthToSpaceUpsample,
    Modulation,
    depth_to_space,
    depth_to_space_order,
    interleave,
    norm_bound,
    patch_order,
    patchify,
)
from mlx_ltx_vae.networks.specs import ConvSpec
from mlx_ltx_vae.networks.video_vae.config import decoder_spec, encoder_spec
from mlx_ltx_vae.streaming.context import StreamContext
from mlx_ltx_vae.streaming.driver import run_stream
from tolerances import tolerance

FORMULATIONS = list(Formulation)


def make_conv(channels=8, outputs=16, dtype=mx.float32, **options):
    mx.random.seed(0)
    conv = Conv3d(channels, outputs, **options)
    conv.bias = mx.random.normal((outputs,))
    conv.set_dtype(dtype)
    return conv


def noise(*shape, seed=1):
    return mx.random.normal(shape, key=mx.random.key(seed))


def expected_of(conv, x, padding, skip=None, stride=(1, 1, 1)):
    result = mx.conv3d(x, conv.weight, stride=stride, padding=padding) + conv.bias
    return result if skip is None else result + skip


def largest(one, other):
    assert one.shape == other.shape
    return mx.abs(one.astype(mx.float32) - other.astype(mx.float32)).max().item()


@pytest.mark.parametrize("formulation", FORMULATIONS)
@settings(max_examples=12)
@given(
    batch=st.integers(1, 2),
    grid=st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 7)),
    channels=st.tuples(st.sampled_from([1, 3, 16]), st.sampled_from([1, 5, 48])),
    padding=st.tuples(st.just(0), st.integers(0, 1), st.integers(0, 1)),
    has_skip=st.booleans(),
)
def test_formulations_agree(formulation, batch, grid, channels, padding, has_skip):
    time, height, width = grid
    conv = make_conv(*channels, rule=FixedRule(formulation))
    x = noise(batch, time + 2, height + 2 * (1 - padding[1]), width + 2 * (1 - padding[2]), channels[0])
    skip = noise(batch, *grid, channels[1], seed=2) if has_skip else None
    expected = expected_of(conv, x, padding, skip)
    assert largest(conv(x, padding, skip), expected) < tolerance(2e-5)
    conv.prepare()
    assert largest(conv(x, padding, skip), expected) < tolerance(2e-5)


def test_blocks_of_rows_change_nothing(monkeypatch):
    conv, x = make_conv(4, 6, rule=FixedRule(Formulation.TAPS)), noise(1, 4, 40, 48, 4)
    expected = expected_of(conv, x, (0, 1, 1))
    for size in (1, 3000, 10**9):
        monkeypatch.setattr(rules, "_BLOCK_BYTES", size)
        monkeypatch.setattr(rules, "_BLOCK_BYTES_TIMES_CHANNELS", 1)
        assert largest(conv(x, (0, 1, 1)), expected) < tolerance(2e-5)


@given(rows=st.integers(1, 300), row_bytes=st.integers(1, 10**8), channels=st.integers(1, 1024))
def test_blocks_cover_all_rows_once(rows, row_bytes, channels):
    parts = blocks(rows, row_bytes, channels)
    assert [row for start, end in parts for row in range(start, end)] == list(range(rows))
    heights = [end - start for start, end in parts]
    assert max(heights) - min(heights[:-1], default=max(heights)) == 0


def test_a_strided_convolution_and_fewer_outputs():
    conv = make_conv(8, 12, stride=(2, 2, 2), order=range(5))
    x = noise(1, 7, 8, 10, 8)
    expected = expected_of(conv, x, (0, 1, 1), stride=(2, 2, 2))[..., :5]
    for _ in range(2):
        assert largest(conv(x, (0, 1, 1)), expected) < tolerance(1e-5)
        conv.prepare()
    assert conv.weight.shape == (5, 3, 3, 3, 8)


@given(indices=st.lists(st.integers(0, 50)), longest=st.integers(1, 9))
def test_runs_are_the_indices_in_order(indices, longest):
    found = [list(range(51))[run] for run in runs(indices, longest)]
    assert [index for run in found for index in run] == indices
    assert all(1 <= len(run) <= longest for run in found)


@pytest.mark.quick(5)
@pytest.mark.parametrize("order", [None, range(33), depth_to_space_order(40, (2, 2, 2)), [7, 3, 3, 39]])
@pytest.mark.parametrize("layout", KernelLayout)
def test_one_copy_lays_out_a_weight_in_any_order(layout, order):
    """Also one whose axes have another order in memory, as a checkpoint's; and its memory is that of the result."""
    view = mx.moveaxis(noise(40, 256, 3, 3, 3), 1, -1)
    outputs = list(range(40) if order is None else order)
    expected = np.array(view)[outputs].transpose(["ODHWI".index(axis) for axis in layout.value])
    for weight in (view, mx.contiguous(view)):
        mx.eval(weight)
        held = active_memory()
        mx.reset_peak_memory()
        result = mx.contiguous(lay_out(weight, KernelLayout.STORED, layout, order))
        mx.eval(result)
        assert result.shape == expected.shape
        assert np.array_equal(np.array(result), expected)
        assert mx.get_peak_memory() - held <= result.nbytes + 2**14  # buffers are whole pages


def test_a_weight_that_is_laid_out_already_is_not_copied():
    conv = make_conv(64, 64, rule=FixedRule(Formulation.CONV3D))
    mx.eval(conv.parameters())
    held = active_memory()
    mx.reset_peak_memory()
    conv.prepare()
    assert mx.get_peak_memory() - held < 0.01 * conv.weight.nbytes


def test_a_network_that_changes_its_device_after_loading_still_computes(monkeypatch):
    conv, x = make_conv(), noise(1, 3, 8, 8, 8)
    expected = expected_of(conv, x, (0, 1, 1))
    conv.prepare()
    with emulated():
        assert largest(conv(x, (0, 1, 1)), expected) < 2e-5


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_on_a_cpu_half_precision_is_rounded_once(dtype):
    conv, x = make_conv(dtype=dtype), noise(1, 3, 9, 8, 8).astype(dtype)
    wide = make_conv()
    wide.weight, wide.bias = conv.weight.astype(mx.float32), conv.bias.astype(mx.float32)
    result, expected = conv(x, (0, 1, 1)), expected_of(wide, x.astype(mx.float32), (0, 1, 1))
    assert result.dtype == dtype
    assert largest(result, expected) < (0.02 if dtype == mx.bfloat16 else 0.002)


@given(
    frames=st.integers(1, 64),
    rows=st.integers(1, 600),
    columns=st.integers(1, 1000),
    channels=st.sampled_from([16, 32, 128, 512]),
    backend=st.sampled_from(list(Backend)),
)
def test_the_choice_does_not_depend_on_the_number_of_frames(frames, rows, columns, channels, backend):
    one, many = (ConvShape((time, rows, columns), channels, channels) for time in (1, frames))
    assert choose(one, backend) is choose(many, backend)
    formulation = choose(many, backend)
    assert scratch_bytes(many, formulation, 4, on_cpu=backend is Backend.CPU) >= 4 * math.prod(many.grid) * channels


@pytest.mark.parametrize(
    ("grid", "route"), [((2, 34, 60), "winograd"), ((2, 34, 58), "winograd"), ((2, 30, 60), "direct")]
)
def test_zeros_around_frames_count_where_winograd_lacks_few_positions(grid, route):
    """Two frames of 1920x1088 have 4080 latent positions; MLX asks for 4096."""
    time, height, width = grid
    conv, x = make_conv(64, 96), noise(1, time + 2, height, width, 64)
    expected = expected_of(conv, x, (0, 1, 1))
    shape = ConvShape(grid, 64, 96)
    assert choose(shape, Backend.METAL) is Formulation.JOINED
    assert (winograd_elements(shape) > 0) is (route == "winograd")
    with emulated() as routes:
        conv.prepare()
        result = conv(x, (0, 1, 1))
        mx.eval(result)
    assert dict(routes) == {route: 1}
    assert largest(result, expected) < (1e-4 if route == "winograd" else 2e-5)


@pytest.mark.parametrize(
    ("size", "channels", "formulation"),
    [
        ((64, 96), (512, 512), Formulation.JOINED),
        ((32, 48), (512, 4096), Formulation.ROWS),  # 768x512
        ((68, 120), (512, 4096), Formulation.JOINED),  # 1920x1088, whose step takes as much anyway
        ((68, 120), (1024, 4096), Formulation.ROWS),
    ],
)
def test_winograd_is_not_taken_for_filters_that_take_more_than_all_else(size, channels, formulation):
    assert choose(ConvShape((4, *size), *channels), Backend.METAL) is formulation


def test_bfloat16_never_takes_winograd_and_cuda_takes_its_own_kernels():
    large = ConvShape((4, 128, 192), 128, 128)
    assert choose(large, Backend.METAL) is Formulation.JOINED
    assert choose(large, Backend.METAL, allows_winograd=False) is Formulation.ROWS
    assert choose(large._replace(out_channels=48), Backend.METAL) is Formulation.ROWS
    assert choose(large._replace(grid=(4, 16, 24)), Backend.METAL) is Formulation.ROWS
    assert choose(large, Backend.CUDA) is choose(large._replace(is_strided=True), Backend.CPU) is Formulation.CONV3D


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["ltx2_3", "ltxv_0_9_0"])
def test_the_rule_of_a_network_decides_for_its_modules_its_spec_and_its_plans(golden, name):
    checkpoint = golden(name).checkpoint
    ours = VideoVAE.from_pretrained(checkpoint, encoder=False)
    rule = FixedRule(Formulation.CONV3D)
    other = load_decoder(open_checkpoint(checkpoint, encoder=False), rule)
    assert other.decoder.spec == decoder_spec(ours.config, rule) != ours.decoder.spec
    assert hash(other.decoder.spec) == hash(decoder_spec(ours.config, FixedRule(Formulation.CONV3D)))
    convs = [each for each in other.decoder.modules() if isinstance(each, CausalConv3d)]
    assert {each.spec for each in convs} == {each for each in other.decoder.spec.layers if isinstance(each, ConvSpec)}
    assert all(each.conv.weight.shape[1:4] == (3, 3, 3) for each in convs), "as stored"
    latents = noise(1, ours.config.latent_channels, 3, 4, 6)
    plans = [vae.plan(latents.shape, mode="single") for vae in (ours, other)]
    assert plans[0].memory.work < plans[1].memory.work
    assert largest(other.decode(latents), ours.decode(latents)) < tolerance(1e-4)
    assert encoder_spec(ours.config, rule) != encoder_spec(ours.config)


@pytest.mark.parametrize("stride", [(2, 2, 2), (1, 2, 2), (2, 1, 1), (1, 4, 4)])
def test_reordered_channels_are_rearranged_as_before(stride):
    x = noise(1, 2, 3, 4, 3 * math.prod(stride))
    order = mx.array(depth_to_space_order(x.shape[-1], stride))
    assert mx.array_equal(interleave(mx.take(x, order, axis=-1), stride), depth_to_space(x, stride))
    pixels, order = noise(1, 2, 8, 12, 3), mx.array(patch_order(48, 4))
    assert mx.array_equal(interleave(mx.take(patchify(pixels, 4), order, axis=-1), (1, 4, 4)), pixels)


def loaded_on_metal(dtype=None):
    conv = make_conv(32, 32, mx.bfloat16)
    with emulated():
        conv.prepare(keeps_dtype=dtype is not None)
    return conv


def test_operands_are_float16_on_metal_unless_a_dtype_is_given():
    conv = loaded_on_metal()
    dtypes = conv.weight.dtype, conv.dtype, conv.operands(lambda: math.sqrt(32))
    assert dtypes == (mx.float16, mx.bfloat16, mx.float16)
    assert conv.operands(lambda: 1e6) == mx.bfloat16, "scaled by the convolution"
    assert loaded_on_metal("bfloat16").weight.dtype == mx.bfloat16
    on_cpu = make_conv(32, 32, mx.bfloat16)
    on_cpu.prepare()
    assert on_cpu.weight.dtype == mx.bfloat16


LARGE = EmulatedGPU(any_width=True, magnification=10**6)


@pytest.mark.parametrize("gpu", [LARGE, EmulatedGPU()], ids=["Winograd", "products"])
@pytest.mark.parametrize(
    ("size", "weights"),
    [(0.0, 1.0), (1e-6, 1.0), (3e4, 1.0), (1e-30, 2**-12), (1e-30, 2**20), (1e30, 2**-12), (1e30, 2**20)],
)
def test_inputs_and_weights_of_any_size_keep_the_accuracy_of_float16(gpu, weights, size):
    """A bfloat16 convolution has an error of 2.5e-3, by Winograd 2.7e-2 and more."""
    conv = make_conv(32, 32, mx.bfloat16, rule=gpu.choose)
    conv.weight, conv.bias = weights * conv.weight, mx.zeros_like(conv.bias)
    x = (size * noise(2, 4, 8, 8, 32)).astype(mx.bfloat16)
    unit = 1 / (size or 1) / weights
    expected = unit * mx.conv3d(x.astype(mx.float32), conv.weight.astype(mx.float32), padding=(0, 1, 1))
    with emulated(gpu) as routes:
        conv.prepare()
        result = conv(x, (0, 1, 1))
        mx.eval(result)
    assert (result.shape, result.dtype, conv.weight.dtype) == (expected.shape, mx.bfloat16, mx.float16)
    assert bool(routes["winograd"]) is (gpu is LARGE)
    difference, power = mx.square(unit * result.astype(mx.float32) - expected).mean(), mx.square(expected).mean()
    assert difference.item() ** 0.5 <= (8.5e-3 if gpu is LARGE else 2e-3) * power.item() ** 0.5
    on_cpu = conv(x, (0, 1, 1))
    assert largest(unit * on_cpu.astype(mx.float32), expected) < 0.02, "the weight that was scaled, on a CPU"


@settings(max_examples=30)
@given(
    exponents=st.lists(st.integers(-60, 60), min_size=3, max_size=7),
    longest=st.floats(32, 60000),
    seed=st.integers(0, 100),
)
def test_factors_are_powers_of_two_that_depend_on_what_an_output_frame_sees(exponents, longest, seed):
    sizes = 2.0 ** mx.array(exponents).astype(mx.float32)
    x = (noise(2, len(exponents), 3, 4, 8, seed=seed) * sizes[None, :, None, None, None]).astype(mx.bfloat16)
    scale = HalfScale(mx.array([4.0]), mx.array([0.25]), longest)
    factors, inverses = scale_factors(x, scale)
    assert factors.shape == inverses.shape == (2, len(exponents) - 2, 1, 1, 1)
    assert mx.array_equal(factors * inverses, mx.full(factors.shape, 0.25))
    assert set(np.frexp(np.array(factors))[0].flatten()) == {0.5}
    lengths = mx.sqrt(mx.square(x.astype(mx.float32)).sum(axis=-1)).max(axis=(2, 3))
    for frame in range(len(exponents) - 2):
        seen = lengths[:, frame : frame + 3].max(axis=1) * factors[:, frame].flatten()
        assert (seen <= longest).all().item() and (seen >= longest / 2**8).all().item()
        alone, _ = scale_factors(x[:, frame : frame + 3], scale)
        assert mx.array_equal(alone[:, 0], factors[:, frame])


@pytest.mark.parametrize("gpu", [LARGE, EmulatedGPU()], ids=["Winograd", "products"])
@pytest.mark.parametrize(("factor", "limit"), [(2.0**-4, 0), (2.0**-8, 5e-4)])
def test_a_power_of_two_changes_no_bit_unless_values_leave_the_range(monkeypatch, gpu, factor, limit):
    """So the size of the rows or columns that come together with others does not show in these."""
    conv, x = make_conv(32, 32, mx.bfloat16, rule=gpu.choose), noise(1, 5, 12, 12, 32).astype(mx.bfloat16)
    with emulated(gpu):
        conv.prepare()
        expected = conv(x, (0, 1, 1)).astype(mx.float32)
        factors, inverses = scale_factors(x, conv._scale)
        monkeypatch.setattr(conv3d, "scale_factors", lambda *_: (factor * factors, inverses / factor))
        result = conv(x, (0, 1, 1)).astype(mx.float32)
        mx.eval(expected, result)
    difference, power = mx.square(result - expected).mean(), mx.square(expected).mean()
    assert difference.item() ** 0.5 <= limit * power.item() ** 0.5


@pytest.mark.slow
def test_a_stream_of_an_upsampling_layer_by_time_is_the_same_however_it_is_cut():
    config = open_case(Case(base_width=16)).config
    spec = next(layer for layer in decoder_spec(config, LARGE.choose).layers if layer.up == (2, 2, 2))
    assert isinstance(spec, ConvSpec)
    layer = DepthToSpaceUpsample(spec)
    layer.set_dtype(mx.bfloat16)
    # With one factor for all of its frames, the first ones would vanish beside the last.
    sizes = mx.array([1, 1, 1, 1, 1e8, 1e8])[None, :, None, None, None]
    x = (sizes * noise(1, 6, 12, 12, spec.in_channels)).astype(mx.bfloat16)
    with emulated(LARGE) as routes:
        prepare(layer, keeps_dtype=False)
        results = []
        for cuts in ([6], [1] * 6, [2, 4], [5, 1]):
            pieces = iter(mx.split(x, np.cumsum(cuts)[:-1].tolist(), axis=1))
            decoded = mx.concatenate(list(run_stream(layer.stages(StreamContext()), pieces)), axis=1)
            results.append(decoded.astype(mx.float32))
            mx.eval(results)
    assert routes["winograd"] > 4
    for result in results[1:]:
        differences, power = (mx.square(each).mean(axis=(0, 2, 3, 4)) for each in (result - results[0], results[0]))
        # Of products of another size, whose sums are rounded in another order.
        assert (differences < 5e-4**2 * power).all().item()


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), channels=st.sampled_from([32, 64]), scale=st.sampled_from([0.01, 1.0, 30.0]))
def test_nothing_overflows_within_the_half_range(seed, channels, scale):
    """The worst input of one output: every position along the tap's own weight, as long as is allowed."""
    weight = scale * noise(32, 3, 3, 3, channels, seed=seed)
    factor, _, length = half_scale(weight)
    weight = scale_to_half(weight, factor).astype(mx.float32)
    taps = weight[seed % 32]
    unit = taps / mx.sqrt(mx.square(taps).sum(axis=-1, keepdims=True))
    x = (length * mx.tile(unit, (1, 4, 4, 1)))[None].astype(mx.float16)
    with emulated(EmulatedGPU(any_width=True, magnification=10**6)) as routes:
        joined = mx.concatenate([x[0, tap : tap + 1] for tap in range(3)], axis=-1)
        kernel = weight.astype(mx.float16).transpose(0, 2, 3, 1, 4).reshape(32, 3, 3, -1)
        results = [mx.conv2d(joined, kernel, padding=1), mx.conv3d(x, weight.astype(mx.float16), padding=(0, 1, 1))]
        assert routes["winograd"] == 4
    assert all(mx.isfinite(result).all().item() for result in results)


def test_the_bound_of_a_modulated_norm_holds():
    scale, shift = noise(1, 1, 1, 1, 16), noise(1, 1, 1, 1, 16, seed=2)
    bound = norm_bound(16, Modulation(shift, scale))
    x = noise(1, 1, 20, 20, 16, seed=3)
    x = x * mx.rsqrt(mx.square(x).mean(axis=-1, keepdims=True))
    lengths = mx.sqrt(mx.square(x * (1 + scale) + shift).sum(axis=-1))
    assert norm_bound(16, None) == 4 < lengths.max().item() <= bound


def test_winograd_takes_one_frame_at_a_time_during_a_run_on_metal_only(golden, monkeypatch):
    name = "MLX_CONV_WINOGRAD_TILE_BATCH"
    monkeypatch.delenv(name, raising=False)
    vae = VideoVAE.from_pretrained(golden("ltx2_3").checkpoint, encoder=False)
    latents = noise(1, vae.config.latent_channels, 3, 2, 2)

    def during(step):
        run, values, before = getattr(mx, step), [], os.environ.get(name)

        def recording(*arrays):
            values.append(os.environ.get(name))
            run(*arrays)

        with monkeypatch.context() as patched:
            patched.setattr(mx, step, recording)
            assert all(os.environ.get(name) == before for _ in vae.stream(latents)), "not while the stream waits"
        return set(values)

    assert during("eval") == {None}
    with emulated():
        assert device.backend() is Backend.METAL
        assert "1" in during("async_eval") and name not in os.environ
        monkeypatch.setenv(name, "3")
        assert during("async_eval") == {"3"}, "the user's own value stays"


WINOGRAD = EmulatedGPU(any_width=True, magnification=100)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("name", "gpu", "limit"),
    [("ltx2_3", WINOGRAD, 2e-4), ("ltx2", WINOGRAD, 2e-4), ("ltxv_0_9_5", EmulatedGPU(), 2e-5)],
)
def test_what_runs_on_metal_gives_the_same_video(golden, name, gpu, limit):
    """Joined frames and rows, interleaved channels and the rest of the GPU's path, in float32; then with Winograd."""
    checkpoint = golden(name).checkpoint
    on_cpu = VideoVAE.from_pretrained(checkpoint, encoder=False)
    latents = noise(1, on_cpu.config.latent_channels, 2, 3, 4)
    expected = np.array(on_cpu.decode(latents))
    with emulated(gpu) as routes:
        vae = load_decoder(open_checkpoint(checkpoint, encoder=False), gpu.choose)
        result = np.array(vae.decode(latents))
    assert routes["product"] > 10
    assert np.abs(result - expected).max() < limit
