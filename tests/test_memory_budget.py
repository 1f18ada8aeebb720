"""A budget bounds what the process takes: arrays in use and MLX's buffer cache, on the device that computes."""

import re
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from mlx_ltx_vae import PlanError, VideoVAE
from mlx_ltx_vae.backend import device
from mlx_ltx_vae.backend.device import available_memory, step_settings
from mlx_ltx_vae.backend.machine import Backend, Machine
from mlx_ltx_vae.options import PlanOptions
from mlx_ltx_vae.planning.memory import is_cache_tight
from mlx_ltx_vae.planning.planner import plan_decode, plan_encode
from mlx_ltx_vae.tiling import SpatialTilingConfig, TilingConfig
from vae_configs import GENERATIONS, decoder_spec, encoder_spec, parse_vae_config

GB = 10**9
CONFIG = parse_vae_config(GENERATIONS["LTX-2.3"], "LTX-2.3")
GPU = Machine(Backend.METAL, 2)
LATENTS = (1, 128, 9, 12, 16)


@pytest.fixture
def vae(golden):
    return VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint)


def latents_of(frames=4, height=2, width=3):
    return mx.random.normal((1, 8, frames, height, width), key=mx.random.key(4))


def cache_limit():
    """What MLX's cache limit is now."""
    limit = mx.set_cache_limit(0)
    mx.set_cache_limit(limit)
    return limit


def limited_plan(vae):
    plan = vae.plan(latents_of(6).shape)
    return replace(plan, memory=replace(plan.memory, buffer_cache=123_000))


@pytest.fixture
def limits(monkeypatch):
    """MLX's cache limit at each evaluation, appended as they come. It is limited as on a GPU."""
    monkeypatch.setattr(device, "is_cpu", lambda: False)
    seen = []

    def recording(function):
        def call(*arguments):
            seen.append(cache_limit())
            return function(*arguments)

        return call

    for name in ("eval", "async_eval"):
        monkeypatch.setattr(mx, name, recording(getattr(mx, name)))
    return seen


def test_the_buffer_cache_is_limited_while_a_step_runs_and_only_then(vae, limits):
    before = cache_limit()
    stream = vae.stream(latents_of(6), limited_plan(vae))
    assert 123_000 not in limits
    next(stream)
    assert 123_000 in limits and cache_limit() == before, "a stream that waits leaves the process its limit"
    mx.set_cache_limit(7_000_000)
    next(stream)
    assert cache_limit() == 7_000_000
    stream.close()
    assert cache_limit() == 7_000_000, "what the app sets meanwhile stays"
    mx.set_cache_limit(before)

    def fail(frames, start):
        assert cache_limit() == before
        raise ValueError("the sink is full")

    with pytest.raises(ValueError, match="the sink is full"):
        vae.decode(latents_of(6), limited_plan(vae), on_frames_ready=fail)
    assert cache_limit() == before


def test_latents_that_arrive_are_made_with_the_limit_of_their_app(vae, limits):
    before, seen = cache_limit(), []

    def parts():
        for index in range(3):
            seen.append(cache_limit())
            yield latents_of(6)[:, :, 2 * index : 2 * index + 2]

    list(vae.stream(parts(), limited_plan(vae)))
    assert set(seen) == {before} and 123_000 in limits


def test_a_limit_of_the_app_that_is_lower_than_the_planned_one_stays(vae, limits):
    before = mx.set_cache_limit(1_000)
    vae.decode(latents_of(6), limited_plan(vae))
    assert set(limits) == {1_000} and mx.set_cache_limit(before) == 1_000


def test_of_two_steps_at_once_the_smaller_limit_counts_and_what_is_set_meanwhile_stays(limits):
    before = cache_limit()
    with step_settings(2_000_000):
        with step_settings(1_000_000):
            assert cache_limit() == 1_000_000
        assert cache_limit() == 2_000_000
    assert cache_limit() == before
    with step_settings(2_000_000):
        mx.set_cache_limit(3_000_000)
        with step_settings(1_000_000):
            assert cache_limit() == 1_000_000
    assert mx.set_cache_limit(before) == 3_000_000


def test_the_buffer_cache_is_emptied_before_and_after(vae, monkeypatch):
    vae.load()  # which clears the cache too
    calls = []
    monkeypatch.setattr(device, "is_cpu", lambda: False)
    monkeypatch.setattr(mx, "clear_cache", lambda: calls.append("clear"))
    stream = vae.stream(latents_of())
    next(stream)
    assert calls == ["clear"]
    list(stream)
    assert calls == ["clear", "clear"]
    calls.clear()
    list(vae.encode_stream([mx.zeros((1, 3, 9, 64, 64))]))
    assert calls == ["clear", "clear"]


def test_the_cpus_cache_is_left_alone_beside_other_threads(vae, monkeypatch):
    """To set its limit waits for the streams of all threads, which never ends if one of them ends meanwhile."""
    monkeypatch.setattr(device.threading, "active_count", lambda: 2)
    calls = []
    for name in ("set_cache_limit", "clear_cache"):
        monkeypatch.setattr(mx, name, lambda *_, name=name: calls.append(name))
    monkeypatch.setattr(device, "is_cpu", lambda: True)
    vae.decode(latents_of())
    vae.encode(mx.zeros((1, 3, 9, 64, 64)))
    assert calls == []


def test_a_budget_bounds_arrays_in_use_and_the_cache_together():
    spec = decoder_spec(CONFIG)
    free = plan_decode(spec, LATENTS, GPU)
    assert free.memory.buffer_cache == pytest.approx(0.45 * free.memory.active, rel=1e-6)
    assert free.peak_bytes == free.memory.active + free.memory.buffer_cache
    least = plan_decode(spec, LATENTS, replace(GPU, available=1)).memory.active
    for budget in (free.peak_bytes, free.memory.active + 10**8, least + 10**7):
        plan = plan_decode(spec, LATENTS, GPU, PlanOptions(memory_budget=budget))
        assert plan.peak_bytes <= budget
    assert not is_cache_tight(free.memory, free.machine.backend)
    assert is_cache_tight(plan.memory, plan.machine.backend)
    assert "slower" in str(plan) and "slower" not in str(free)
    with pytest.raises(PlanError, match="least that works"):
        plan_decode(spec, LATENTS, GPU, PlanOptions(memory_budget=least // 2))
    with pytest.raises(PlanError, match=r'^a memory budget of 8 bytes \(write "8GB" for gigabytes\) is too small'):
        plan_decode(spec, LATENTS, GPU, PlanOptions(memory_budget=8))


def test_a_faster_step_that_leaves_no_room_for_the_cache_gives_way_to_a_smaller_one():
    spec = decoder_spec(CONFIG)
    fast = plan_decode(spec, LATENTS, GPU)
    plan = plan_decode(spec, LATENTS, GPU, PlanOptions(memory_budget=fast.memory.active + 10**8))
    assert (plan.step, plan.prefetch) != (fast.step, fast.prefetch)
    assert not is_cache_tight(plan.memory, plan.machine.backend)


@pytest.mark.parametrize("machine", [GPU, Machine()])
@pytest.mark.parametrize("latents", [LATENTS, (1, 128, 16, 68, 120), (2, 128, 4, 2, 2)])
def test_the_parts_that_are_shown_add_up_to_the_total(machine, latents):
    for plan in (
        plan_decode(decoder_spec(CONFIG), latents, machine),
        plan_encode(encoder_spec(CONFIG), (2, 3, 25, 32 * latents[3], 32 * latents[4]), machine),
    ):
        total, parts = re.search(r"peak +([0-9.]+) [GM]B \((.*)\)", str(plan)).groups()
        digits = len(total.partition(".")[2])
        assert round(sum(float(part.split()[-1]) for part in parts.split(", ")), digits) == float(total)
        assert ("buffer cache" in parts) == (machine is GPU)


def test_cuda_memory_is_the_devices_and_not_the_hosts(monkeypatch):
    monkeypatch.setattr(device, "is_cpu", lambda: False)
    monkeypatch.setattr(mx, "set_memory_limit", lambda _: 100 * GB)
    monkeypatch.setattr(mx, "device_info", lambda: {"free_memory": 10 * GB, "total_memory": 80 * GB})
    monkeypatch.setattr(mx, "get_cache_memory", lambda: GB)
    assert device.available_memory() == 11 * GB
    assert device.available_memory(counted_bytes=2 * GB) == 13 * GB
    monkeypatch.setattr(mx, "device_info", lambda: {"total_memory": 80 * GB})
    monkeypatch.setattr(mx, "get_active_memory", lambda: 5 * GB)
    assert device.available_memory() == 75 * GB


def test_what_other_arrays_hold_is_not_available(monkeypatch):
    monkeypatch.setattr(device, "is_cpu", lambda: False)
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    monkeypatch.setattr(mx, "set_memory_limit", lambda _: 100 * GB)
    info = {"max_recommended_working_set_size": 30 * GB, "max_buffer_length": 3_760_000_000}
    monkeypatch.setattr(mx, "device_info", lambda: info)
    monkeypatch.setattr(mx, "get_active_memory", lambda: 22 * GB)
    assert device.available_memory() == 8 * GB
    assert device.available_memory(counted_bytes=2 * GB) == 10 * GB, "the plan counts its own weights"
    machine = device.this_machine(mx.bfloat16)
    assert (machine.backend, machine.itemsize, machine.available) == (Backend.METAL, 2, 8 * GB)
    assert machine.largest_buffer == 3_760_000_000
    shape = (1, 128, 16, 22, 40)
    assert plan_decode(decoder_spec(CONFIG), shape, machine).peak_bytes <= 4 * GB
    assert plan_decode(decoder_spec(CONFIG), shape, machine, PlanOptions(memory_budget="95%")).peak_bytes > 4 * GB


PLANS = {
    "time": {},
    "rows": {"order": "rows"},
    "single": {"mode": "single"},
    "tiled": {"mode": "tiled", "tiling": TilingConfig(SpatialTilingConfig(64, 32))},
    "tiled in time": {"mode": "tiled", "tiling": TilingConfig.aggressive()},
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", PLANS)
def test_a_chunk_means_the_same_whatever_the_plan(vae, name):
    latents = latents_of(2, 2, 3)
    plan = vae.plan(latents.shape, **PLANS[name])
    floats = mx.concatenate([chunk.pixels for chunk in vae.stream(latents, plan)], axis=2)
    depths = [(None, mx.float32, 1e-6), (8, mx.uint8, 1 / 127.5), (10, mx.uint16, 1 / 32767.5)]
    for bit_depth, dtype, rounding in depths:
        chunks = list(vae.stream(latents, plan, bit_depth=bit_depth))
        assert {chunk.frames.dtype for chunk in chunks} == {dtype}
        pixels = mx.concatenate([chunk.pixels for chunk in chunks], axis=2)
        assert pixels.shape == floats.shape == (1, 3, 9, 64, 96)
        assert pixels.dtype == mx.float32
        expected = mx.clip(floats, -1, 1) if bit_depth else floats
        assert mx.abs(pixels - expected).max().item() <= 0.51 * rounding
        coarse = np.concatenate([chunk.to_uint8() for chunk in chunks])
        fine = np.concatenate([chunk.to_uint16() for chunk in chunks])
        assert (coarse.dtype, fine.dtype, coarse.shape) == (np.uint8, np.uint16, (9, 64, 96, 3))
        assert np.abs(fine.astype(float) / 257 - coarse).max() <= 0.51


def test_the_limit_of_the_app_is_that_of_plans():
    limit = mx.set_memory_limit(10**8)
    try:
        assert available_memory() <= 10**8
        assert available_memory(10**6) <= 10**8 + 10**6
    finally:
        assert mx.set_memory_limit(limit) == 10**8
    assert available_memory() > 10**8
