"""MLX's errors about the device, in one sentence that says what to do."""

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import DeviceError

#: Parts of messages, and what is said in their place.
_EXPLANATIONS = {
    # Of macOS, which MLX passes on: "[METAL] Command buffer execution failed: ...".
    ("Impacting Interactivity", "Caused GPU Timeout Error"): "macOS stopped the GPU because one step kept the display "
    "waiting for too long; use mode exact with a smaller memory budget or chunk, or smaller tiles, let the display "
    "sleep, close other apps that use the GPU, or (reported to help before M5) set AGX_RELAX_CDM_CTXSTORE_TIMEOUT=1 in "
    "the environment.",
    # Of macOS, of MLX's allocators for Metal and CUDA, and of CUDA: "cudaMallocAsync(...) failed: out of memory".
    (
        "Insufficient Memory",
        "[malloc] Unable to allocate",
        "greater than the maximum allowed buffer size",
        "failed: out of memory",
    ): "the device ran out of memory; use mode exact with a smaller memory budget or chunk, or smaller tiles, and "
    "close other apps.",
    # Of the C++ library, where MLX compiles a kernel for the CPU.
    ("temp_directory_path", "cannot create directories"): "MLX keeps what it compiles for the CPU in the folder that "
    "the environment variable TMPDIR names, which is missing or read-only; set TMPDIR to another one, or unset it.",
    # Of Python and of the C++ library.
    ("can't start new thread", "Resource temporarily unavailable"): "the system refuses another thread; raise the "
    "limit on processes (ulimit -u), or end other programs.",
}


@contextmanager
def explained_device_errors() -> Iterator[None]:
    """Raise a `DeviceError` for errors of MLX in this block that are about memory, time, threads, or TMPDIR."""
    try:
        yield
    except RuntimeError as error:
        for parts, explanation in _EXPLANATIONS.items():
            if any(part in str(error) for part in parts):
                raise DeviceError(explanation) from error
        raise
