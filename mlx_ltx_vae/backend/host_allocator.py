"""How glibc's malloc, from which MLX's CPU backend takes its memory, treats large buffers during a run: it keeps them.

By default it takes each buffer above 32 MB from the kernel, and returns it. The kernel clears every page of the next
one, which takes a tenth to a quarter of the time of a decode of large frames (docs/performance.md).
"""

import ctypes
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

# Parameters of mallopt, from glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
_UNLIMITED = 2**31 - 1
# The values that malloc itself raises its thresholds to once large buffers have been freed, and the default count.
_LARGEST_MMAP_THRESHOLD = 32 * 2**20
_LARGEST_TRIM_THRESHOLD = 2 * _LARGEST_MMAP_THRESHOLD
_DEFAULT_MMAP_MAX = 65536

_lock = threading.Lock()
_num_blocks = 0


@cache
def _glibc() -> ctypes.CDLL | None:
    """The C library if it is glibc."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Let malloc keep freed memory until the end of the last such block, if the C library is glibc."""
    global _num_blocks
    libc = _glibc()
    if libc is None:
        yield
        return
    with _lock:
        _num_blocks += 1
        libc.mallopt(_MMAP_MAX, 0)
        libc.mallopt(_TRIM_THRESHOLD, _UNLIMITED)
    try:
        yield
    finally:
        with _lock:
            _num_blocks -= 1
            if _num_blocks == 0:
                libc.mallopt(_MMAP_MAX, _DEFAULT_MMAP_MAX)
                libc.mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
                libc.mallopt(_TRIM_THRESHOLD, _LARGEST_TRIM_THRESHOLD)
                libc.malloc_trim(0)
