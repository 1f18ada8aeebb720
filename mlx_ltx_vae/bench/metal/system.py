"""What the operating system and MLX say about the machine and this process: chip, footprint, thermal state, variables.

The calls of macOS follow Apple's headers and have not been run on a Mac yet. Where one does not answer, its value is
None, and the measurements go on.
"""

import ctypes
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx

from ...backend.device import backend
from ..sampling import sampled

#: Variables that MLX reads: at every convolution, but for the last, which it reads once in a process.
WINOGRAD, TILE_BATCH, TF32 = "MLX_CONV_WINOGRAD", "MLX_CONV_WINOGRAD_TILE_BATCH", "MLX_ENABLE_TF32"

_STATUS = Path("/proc/self/status")

# <sys/resource.h>: `struct rusage_info_v4` is a UUID of two words and then words; later versions only append.
_RUSAGE_FLAVOR = 4
_RUSAGE_WORDS = 128  # more than any version has
_FOOTPRINT_WORD, _MAX_FOOTPRINT_WORD = 9, 30

# NSProcessInfoThermalState.
_THERMAL_STATES = ("nominal", "fair", "serious", "critical")
_OBJC, _FOUNDATION = "/usr/lib/libobjc.A.dylib", "/System/Library/Frameworks/Foundation.framework/Foundation"


@contextmanager
def variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables inside the block. Those of MLX's convolutions that are not given are unset."""
    names = {WINOGRAD, TILE_BATCH, *values}
    before = {name: os.environ.get(name) for name in names}
    try:
        for name in names:
            _set(name, values.get(name))
        yield
    finally:
        for name, value in before.items():
            _set(name, value)


def _set(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def footprint() -> dict[str, int | None]:
    """Bytes of memory that this process takes of the machine.

    Returns:
        footprint_bytes, now, and lifetime_footprint_bytes, the largest so far. On macOS this is the physical footprint
        that Activity Monitor shows, GPU buffers included; on Linux the resident memory; None where neither is known.
    """
    now, largest = _footprint_of_macos() if sys.platform == "darwin" else _resident_memory()
    return {"footprint_bytes": now, "lifetime_footprint_bytes": largest}


def sampled_footprint() -> AbstractContextManager[list[int | None]]:
    """Sample the footprint in bytes every 20 ms while the block runs, and once at its end.

    The largest footprint so far would include what loading took.
    """
    return sampled(lambda: footprint()["footprint_bytes"])


def _footprint_of_macos() -> tuple[int | None, int | None]:
    words = (ctypes.c_uint64 * _RUSAGE_WORDS)()
    try:
        failed = ctypes.CDLL(None).proc_pid_rusage(os.getpid(), _RUSAGE_FLAVOR, ctypes.byref(words))
    except (AttributeError, OSError):
        return None, None
    return (None, None) if failed else (words[_FOOTPRINT_WORD], words[_MAX_FOOTPRINT_WORD])


def _resident_memory() -> tuple[int | None, int | None]:
    if not _STATUS.exists():
        return None, None
    fields = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines() if ":" in line)
    now, largest = (int(fields[name].split()[0]) * 1024 if name in fields else None for name in ("VmRSS", "VmHWM"))
    return now, largest


def thermal_state() -> str | None:
    """Whether macOS slows the machine because it is hot: nominal, fair, serious or critical; None elsewhere."""
    if sys.platform != "darwin":
        return None
    try:
        ctypes.CDLL(_FOUNDATION)
        objc = ctypes.CDLL(_OBJC)
        pointer = ctypes.c_void_p
        find_class = ctypes.CFUNCTYPE(pointer, ctypes.c_char_p)(("objc_getClass", objc))
        find_method = ctypes.CFUNCTYPE(pointer, ctypes.c_char_p)(("sel_registerName", objc))
        get_object = ctypes.CFUNCTYPE(pointer, pointer, pointer)(("objc_msgSend", objc))
        get_number = ctypes.CFUNCTYPE(ctypes.c_long, pointer, pointer)(("objc_msgSend", objc))
        info = find_class(b"NSProcessInfo")
        process = get_object(info, find_method(b"processInfo")) if info else None
        state = get_number(process, find_method(b"thermalState")) if process else -1
    except (AttributeError, OSError):
        return None
    return _THERMAL_STATES[state] if 0 <= state < len(_THERMAL_STATES) else None


def describe_mac() -> dict[str, Any]:
    """What a measurement ran on, without names of users, hosts or files.

    Returns:
        chip, architecture (of the GPU), memory_bytes, working_set_bytes (which Metal recommends), system, mlx, python,
        cores, backend, device, tf32 (the variable, or None for MLX's default), openblas (preloaded, on Linux), thermal.
    """
    info = mx.device_info()
    release = platform.mac_ver()[0]
    return {
        "chip": str(info.get("device_name") or platform.processor() or platform.machine()),
        "architecture": str(info.get("architecture") or platform.machine()),
        "memory_bytes": info.get("memory_size") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "working_set_bytes": info.get("max_recommended_working_set_size"),
        "system": f"macOS {release}" if release else platform.system(),
        "mlx": version("mlx"),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "backend": backend().value,
        "device": str(mx.default_device()),
        "tf32": os.environ.get(TF32),
        "openblas": "openblas" in os.environ.get("LD_PRELOAD", ""),
        "thermal": thermal_state(),
    }
