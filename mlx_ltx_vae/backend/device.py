"""The default device: its available memory, its errors, and MLX's and malloc's settings for a run."""

import ctypes
import os
import re
import shutil
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import mlx.core as mx

from ..errors import DeviceError, LatentsError, LTXVAEError
from ..files import explain_unwritable
from ..startup import was_forked
from .machine import Backend, Machine
from .mlx_utils import clear_streams_at_thread_end, refused_in_transformations, to_int

_WINOGRAD_BATCH = "MLX_CONV_WINOGRAD_TILE_BATCH"
_PROBE = 4096  # elements
_TEMPORARY_FOLDERS = ("TMPDIR", "TMP", "TEMP", "TEMPDIR")  # variables of the C++ library, in this order

_MMAP_MAX, _MMAP_THRESHOLD, _TRIM_THRESHOLD = -4, -3, -1  # parameters of mallopt, from glibc's malloc.h
_KEEPING = {_MMAP_MAX: 0, _TRIM_THRESHOLD: 2**31 - 1}
# The default count, and the thresholds that malloc itself chooses once large buffers have been freed.
_USUAL = {_MMAP_MAX: 65536, _MMAP_THRESHOLD: 32 * 2**20, _TRIM_THRESHOLD: 64 * 2**20}

#: Parts of error messages, and the messages that replace them.
_EXPLANATIONS = {
    # From macOS, passed on by MLX: "[METAL] Command buffer execution failed: ...".
    ("Impacting Interactivity", "Caused GPU Timeout Error"): "macOS stopped the GPU because one step kept the display "
    "waiting for too long; use mode exact with a smaller memory budget or chunk, or smaller tiles, let the display "
    "sleep, close other apps that use the GPU, or (reported to help before M5) set AGX_RELAX_CDM_CTXSTORE_TIMEOUT=1 in "
    "the environment.",
    # From macOS, from MLX's allocators for Metal and CUDA, and from CUDA: "cudaMallocAsync(...) failed: out of memory".
    (
        "Insufficient Memory",
        "[malloc] Unable to allocate",
        "greater than the maximum allowed buffer size",
        "failed: out of memory",
    ): "the device ran out of memory; use mode exact with a smaller memory budget or chunk, or smaller tiles, and "
    "close other apps.",
    # From the C++ library, where MLX compiles a kernel for the CPU.
    ("temp_directory_path", "cannot create directories"): "MLX keeps what it compiles for the CPU in the folder "
    "{folder}, which {unwritable}; set the environment variable TMPDIR to another one.",
    ("Failed to compile function",): "MLX could not compile a kernel for the CPU in the folder {folder}, which may be "
    "full, or have a folder mlx of another user; free space there, or set the environment variable TMPDIR to another "
    "one.",
    ("Could not load C++ shared library", "Failed to load compiled function"): "MLX could not load a kernel that it "
    "compiled for the CPU from the folder {folder}, which {unloadable}; set the environment variable TMPDIR to another "
    "one.",
    # From Python and from the C++ library.
    ("can't start new thread", "Resource temporarily unavailable"): "the system refuses another thread; raise the "
    "limit on processes (ulimit -u) or, if there is one, on memory (ulimit -v), or end other programs.",
}

_local = threading.local()
_malloc_lock = threading.Lock()
_num_keeping = 0


def check_process() -> None:
    """Check that this process was not forked after MLX was used, since evaluations never end there.

    Raises:
        DeviceError: if it was.
    """
    clear_streams_at_thread_end()
    if was_forked():
        raise DeviceError(
            "this process was forked from one that had used MLX, whose threads do not exist here; start it by spawn, "
            'for example with multiprocessing.get_context("spawn").'
        )


@contextmanager
def computing_for(target: Backend) -> Iterator[None]:
    """Let `backend` return another one in this thread's block, so that networks are loaded and exported for it."""
    _local.backend = target
    try:
        yield
    finally:
        _local.backend = None


def is_cpu() -> bool:
    """Return whether the default device is the CPU."""
    target = getattr(_local, "backend", None)
    return mx.default_device() == mx.Device(mx.cpu) if target is None else target is Backend.CPU


def has_reference_blas() -> bool:
    """Return whether MLX computes on a CPU with the reference BLAS that its wheel for Linux links."""
    maps = Path("/proc/self/maps")
    if not is_cpu() or not maps.exists():
        return False
    return is_reference_blas({line.split()[-1] for line in maps.read_text().splitlines()})


def is_reference_blas(files: Iterable[str]) -> bool:
    """Return whether the reference is the only BLAS among the files of a process, apart from numpy's and scipy's."""
    names = ["/".join(name.split("/")[-2:]) for name in files]  # Debian's alternatives differ by their folders
    names = [name for name in names if not name.startswith(("numpy.libs/", "scipy.libs/"))]
    optimized = re.compile("openblas|mkl|blis|armpl|nvpl|atlas", re.IGNORECASE)
    return any(Path(name).name.startswith("libblas") for name in names) and not any(map(optimized.search, names))


def backend() -> Backend:
    """Return the backend of the default device."""
    target: Backend | None = getattr(_local, "backend", None)
    if target is not None:
        return target
    if is_cpu():
        return Backend.CPU
    return Backend.METAL if mx.metal.is_available() else Backend.CUDA


def confirm_device() -> None:
    """Wait for the device, and check the sum of a range: MLX may report a failure only at the next computation."""
    mx.synchronize()
    if to_int(mx.arange(_PROBE).sum()) != _PROBE * (_PROBE - 1) // 2:
        raise DeviceError("the device no longer computes correctly, so the result cannot be trusted; start again.")


@contextmanager
def explained_device_errors() -> Iterator[None]:
    """Raise a `DeviceError` for errors of MLX in this block that are about memory, time, threads, or kernels."""
    clear_streams_at_thread_end()
    try:
        with refused_in_transformations():
            yield
    except RuntimeError as error:
        for parts, explanation in _EXPLANATIONS.items():
            if any(part in str(error) for part in parts):
                # The folder for temporary files that the C++ library, and so MLX, uses. Python also looks elsewhere.
                folder = next((os.environ[name] for name in _TEMPORARY_FOLDERS if name in os.environ), "/tmp")
                noexec = getattr(os, "ST_NOEXEC", 0)  # not on macOS
                is_noexec = os.path.isdir(folder) and os.statvfs(folder).f_flag & noexec
                unloadable = "is mounted noexec" if is_noexec else "may have damaged files in its folder mlx"
                unwritable = explain_unwritable(folder)
                text = explanation.format(folder=folder or "''", unwritable=unwritable, unloadable=unloadable)
                raise DeviceError(text) from error
        raise


def evaluate(noun: str, *arrays: mx.array, error: type[LTXVAEError] = LatentsError) -> None:
    """Evaluate a caller's arrays. Raises `error` for arrays of other threads, since MLX's streams belong to threads."""
    try:
        with explained_device_errors():
            mx.eval(*arrays)
    except RuntimeError as problem:
        if "in current thread" not in str(problem):
            raise
        raise error(
            f"the {noun} are lazy arrays of another thread, and MLX cannot evaluate them in this one; call mx.eval on "
            "them where they are made."
        ) from problem


def this_machine(dtype: mx.Dtype, counted_bytes: int = 0, *, keeps_dtype: bool = False) -> Machine:
    """Return the default device, for a network of this dtype. Plans count `counted_bytes` of used memory themselves."""
    on_cpu = is_cpu()
    has_compiler = not on_cpu or shutil.which("g++") is not None
    return Machine(
        backend(),
        dtype.size,
        available_memory(counted_bytes),
        keeps_dtype,
        None if on_cpu else _device_info("max_buffer_length"),
        memory=total_memory(),
        compiles="MLX_DISABLE_COMPILE" not in os.environ and has_compiler,
    )


def available_memory(counted_bytes: int = 0) -> int:
    """Return the bytes available to a plan: the device's memory, or `mx.set_memory_limit`, minus this process's arrays.

    `counted_bytes` of these arrays are part of the plan, and so are available to it.
    """
    limit = mx.set_memory_limit(total_memory())  # which has no function to ask for it
    mx.set_memory_limit(limit)
    active_bytes = mx.get_active_memory()
    within_limit = max(0, limit - active_bytes) + counted_bytes
    if is_cpu():
        meminfo = Path("/proc/meminfo")
        lines = meminfo.read_text().splitlines() if meminfo.exists() else []
        available = (int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
        free = next(available, total_memory()) + counted_bytes
    elif (device_free := _device_info("free_memory")) is not None:  # CUDA: excludes this process's arrays and its cache
        free = device_free + mx.get_cache_memory() + counted_bytes
    else:
        free = max(0, total_memory() - max(0, active_bytes - counted_bytes))
    return min(within_limit, free)


def total_memory() -> int:
    """Return the bytes of the device's memory. On Metal it is the recommended working set."""
    total = None if is_cpu() else _device_info("max_recommended_working_set_size") or _device_info("total_memory")
    return total or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def is_memory_short() -> bool:
    """Return whether active memory plus MLX's buffer cache exceeds the working set that Metal recommends."""
    recommended = _device_info("max_recommended_working_set_size")
    return recommended is not None and mx.get_active_memory() + mx.get_cache_memory() > recommended


def _device_info(key: str) -> int | None:
    value = mx.device_info().get(key)
    return None if value is None else int(value)


class _Steps:
    """MLX's settings while steps of any runs are computed. Settings that the app changes meanwhile stay.

    The buffer cache has the smallest of the runs' limits and the app's. On Metal, `MLX_CONV_WINOGRAD_TILE_BATCH`, which
    MLX reads at every convolution, makes Winograd work on one frame at a time, which bounds its scratch memory.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._limits: list[int] = []
        self._app_limit = 0
        self._current_limit: int | None = None
        self._sets_variable = False

    @contextmanager
    def settings(self, cache_limit: int) -> Iterator[None]:
        """Apply the settings during one step. While a run waits for its caller, the app's settings apply."""
        with self._lock:
            self._limits.append(cache_limit)
            self._set_limit()
            if len(self._limits) == 1:
                self._sets_variable = backend() is Backend.METAL and _WINOGRAD_BATCH not in os.environ
                if self._sets_variable:
                    os.environ[_WINOGRAD_BATCH] = "1"
        try:
            yield
        finally:
            with self._lock:
                self._limits.remove(cache_limit)
                self._set_limit()
                if self._sets_variable and not self._limits:
                    os.environ.pop(_WINOGRAD_BATCH, None)

    def _set_limit(self) -> None:
        if is_cpu():  # setting it waits for the streams of all threads, and never returns if a thread ends meanwhile
            return
        # MLX returns the current limit only when a limit is set.
        previous = mx.set_cache_limit(min(self._limits) if self._current_limit is None else self._current_limit)
        if previous != self._current_limit:  # at the first step, or since the app has set another one
            self._app_limit = previous
        self._current_limit = min([*self._limits, self._app_limit])
        mx.set_cache_limit(self._current_limit)
        if not self._limits:
            self._current_limit = None


step_settings = _Steps().settings


@cache
def _glibc() -> ctypes.CDLL | None:
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Let malloc, which MLX's CPU backend uses, keep freed memory during the block.

    Otherwise the kernel clears every page of the next buffer above 32 MB, which takes a tenth to a quarter of a decode.
    Memory that is allocated after the block is returned to the kernel as usual. `run_settings` returns the kept memory.
    """
    global _num_keeping
    libc = _glibc() if is_cpu() else None
    if libc is None:
        yield
        return
    with _malloc_lock:
        _num_keeping += 1
        for parameter, value in _KEEPING.items():
            libc.mallopt(parameter, value)
    try:
        yield
    finally:
        with _malloc_lock:
            _num_keeping -= 1
            if _num_keeping == 0:
                for parameter, value in _USUAL.items():
                    libc.mallopt(parameter, value)


@contextmanager
def run_settings() -> Iterator[None]:
    """Clear MLX's buffer cache before and after a run, and on a CPU return the memory that malloc kept."""
    if not is_cpu():
        mx.clear_cache()
    try:
        yield
    finally:
        give_back_cache()


def give_back_cache() -> None:
    """Clear MLX's buffer cache, and on a CPU return the memory that malloc kept to the system.

    A CPU's cache of at most 32 MB stays if there are other threads: clearing it waits for the streams of all threads,
    and never returns if a thread ends meanwhile.
    """
    if not is_cpu():
        mx.clear_cache()
        return
    if threading.active_count() == 1:
        mx.clear_cache()
    if libc := _glibc():
        libc.malloc_trim(0)
