"""What the machine offers: whose convolutions run, and how much memory there is."""

import os
from pathlib import Path

import mlx.core as mx

from .planning.memory import Backend

_MEMINFO = Path("/proc/meminfo")


def backend() -> Backend:
    """Whose convolutions the default device runs."""
    return Backend.CPU if mx.default_device() == mx.Device(mx.cpu) else Backend.GPU


def available_memory() -> int:
    """Bytes to plan with: what Metal recommends, else what the machine has free, else what it has."""
    recommended = mx.device_info().get("max_recommended_working_set_size")
    if recommended:
        return int(recommended)
    if _MEMINFO.exists():
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
