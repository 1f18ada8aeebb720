"""What the machine offers: whose kernels run, how much memory there is, and the limit of MLX's buffer cache."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import mlx.core as mx

from .models.specs import Backend

_MEMINFO = Path("/proc/meminfo")


def is_cpu() -> bool:
    """Whether the default device is the CPU."""
    return mx.default_device() == mx.Device(mx.cpu)


def backend() -> Backend:
    """Whose kernels the default device runs."""
    return Backend.CPU if is_cpu() else Backend.GPU


def available_memory(own: int = 0) -> int:
    """Bytes to plan with: what the device has, less what other arrays of this process hold.

    Args:
        own: bytes that are in use and that the plan counts itself, such as loaded weights.
    """
    others = max(0, mx.get_active_memory() - own)
    if is_cpu():
        return _free_host_memory() + own
    info = mx.device_info()
    # CUDA reports what is free now, which excludes this process's arrays and its buffer cache.
    if "free_memory" in info:
        return int(info["free_memory"]) + mx.get_cache_memory() + own
    recommended = info.get("max_recommended_working_set_size") or info.get("total_memory")
    return max(0, int(recommended) - others) if recommended else _free_host_memory() + own


def is_memory_short() -> bool:
    """Whether arrays in use and MLX's buffer cache are together more than Metal recommends."""
    recommended = mx.device_info().get("max_recommended_working_set_size")
    return bool(recommended) and mx.get_active_memory() + mx.get_cache_memory() > int(recommended)


def _free_host_memory() -> int:
    if _MEMINFO.exists():
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class _CacheLimits:
    """The limits of all runs under way in this process: the smallest counts, and the last one restores the original."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._limits: list[int] = []
        self._original = 0

    def add(self, limit: int) -> None:
        with self._lock:
            self._limits.append(limit)
            previous = mx.set_cache_limit(min(self._limits))
            if len(self._limits) == 1:
                self._original = previous

    def remove(self, limit: int) -> None:
        with self._lock:
            self._limits.remove(limit)
            mx.set_cache_limit(min(self._limits, default=self._original))


_cache_limits = _CacheLimits()


@contextmanager
def limited_cache(limit: int) -> Iterator[None]:
    """Limit MLX's buffer cache to so many bytes while the block runs. It is emptied before and after."""
    mx.clear_cache()
    _cache_limits.add(limit)
    try:
        yield
    finally:
        _cache_limits.remove(limit)
        mx.clear_cache()
