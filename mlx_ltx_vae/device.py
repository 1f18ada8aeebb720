"""The default device, its available memory, and MLX's settings for a run."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import mlx.core as mx

from .host_allocator import keep_freed_memory, return_freed_memory
from .machine import Backend, Machine

_MEMINFO = Path("/proc/meminfo")
_WINOGRAD_BATCH = "MLX_CONV_WINOGRAD_TILE_BATCH"


def is_cpu() -> bool:
    """Whether the default device is the CPU."""
    return mx.default_device() == mx.Device(mx.cpu)


def backend() -> Backend:
    """The backend of the default device."""
    if is_cpu():
        return Backend.CPU
    return Backend.METAL if mx.metal.is_available() else Backend.CUDA


def compiler_search() -> Callable[[], object]:
    """A function that makes MLX's CPU backend look for its compiler, once, by `system("g++ --version")`."""
    return partial(mx.compile(mx.abs), mx.array(0.0))  # traced, and never evaluated


def this_machine(dtype: mx.Dtype, own: int = 0, *, keeps_dtype: bool = False) -> Machine:
    """The default device, for a network that computes in `dtype`.

    Args:
        dtype: the network's compute dtype.
        own: bytes already in use that a plan counts itself, such as loaded weights.
        keeps_dtype: see `Machine`.
    """
    return Machine(backend(), dtype.size, available_memory(own), keeps_dtype)


def available_memory(own: int = 0) -> int:
    """Bytes available to a plan: the device's memory minus that of this process's other arrays.

    Args:
        own: see `this_machine`.
    """
    free = None if is_cpu() else _device_info("free_memory")
    if free is not None:  # CUDA: excludes this process's arrays and buffer cache
        return free + mx.get_cache_memory() + own
    total = None if is_cpu() else _device_info("max_recommended_working_set_size") or _device_info("total_memory")
    if total is not None:
        return max(0, total - max(0, mx.get_active_memory() - own))
    return _free_host_memory() + own


def is_memory_short() -> bool:
    """Whether active memory plus MLX's buffer cache exceeds the working set that Metal recommends."""
    recommended = _device_info("max_recommended_working_set_size")
    return recommended is not None and mx.get_active_memory() + mx.get_cache_memory() > recommended


def _device_info(key: str) -> int | None:
    value = mx.device_info().get(key)
    return None if value is None else int(value)


def _free_host_memory() -> int:
    if _MEMINFO.exists():
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class _Runs:
    """The settings of MLX for all active runs. The last run to end restores the original ones.

    The buffer cache has the smallest of the runs' limits. On Metal, `MLX_CONV_WINOGRAD_TILE_BATCH` makes Winograd
    convolutions work on one frame at a time, which bounds their scratch memory; MLX reads it at every convolution. On a
    CPU the C library keeps freed memory.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._limits: list[int] = []
        self._original = 0
        self._sets_variable = False

    def add(self, limit: int) -> None:
        with self._lock:
            self._limits.append(limit)
            previous = mx.set_cache_limit(min(self._limits))
            if len(self._limits) == 1:
                self._original = previous
                self._sets_variable = backend() is Backend.METAL and _WINOGRAD_BATCH not in os.environ
                if self._sets_variable:
                    os.environ[_WINOGRAD_BATCH] = "1"
                if is_cpu():
                    keep_freed_memory()

    def remove(self, limit: int) -> None:
        with self._lock:
            self._limits.remove(limit)
            mx.set_cache_limit(min(self._limits, default=self._original))
            if self._limits:
                return
            if self._sets_variable:
                os.environ.pop(_WINOGRAD_BATCH, None)
            if is_cpu():
                return_freed_memory()


_runs = _Runs()


@contextmanager
def run_settings(cache_limit: int) -> Iterator[None]:
    """MLX's settings for a run, inside the block.

    Its buffer cache has at most `cache_limit` bytes, and is cleared before and after. Metal's Winograd convolutions
    take one frame at a time. On a CPU with glibc, freed memory is kept until the end (see `host_allocator`).
    """
    mx.clear_cache()
    _runs.add(cache_limit)
    try:
        yield
    finally:
        _runs.remove(cache_limit)
        mx.clear_cache()
