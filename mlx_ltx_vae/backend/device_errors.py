"""MLX's errors about the device, in one sentence that says what to do."""

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import DeviceError

# Parts of the messages of macOS, which MLX passes on: "[METAL] Command buffer execution failed: ...".
_TOO_LONG = ("Impacting Interactivity", "Caused GPU Timeout Error")
# Of macOS, of MLX's allocators for Metal and CUDA, and of CUDA: "cudaMallocAsync(...) failed: out of memory".
_TOO_LARGE = (
    "Insufficient Memory",
    "[malloc] Unable to allocate",
    "greater than the maximum allowed buffer size",
    "failed: out of memory",
)
# Of the C++ library, where MLX compiles a kernel for the CPU.
_NO_FOLDER = ("temp_directory_path", "cannot create directories")
# Of Python and of the C++ library.
_NO_THREAD = ("can't start new thread", "Resource temporarily unavailable")

_EXPLANATIONS = {
    _TOO_LONG: "macOS stopped the GPU because one step kept the display waiting for too long; use mode exact with a "
    "smaller memory budget or chunk, or smaller tiles, let the display sleep, close other apps that use the GPU, or "
    "(reported to help before M5) set AGX_RELAX_CDM_CTXSTORE_TIMEOUT=1 in the environment.",
    _TOO_LARGE: "the device ran out of memory; use mode exact with a smaller memory budget or chunk, or smaller tiles, "
    "and close other apps.",
    _NO_FOLDER: "MLX keeps what it compiles for the CPU in the folder that the environment variable TMPDIR names, "
    "which is missing or read-only; set TMPDIR to another one, or unset it.",
    _NO_THREAD: "the system refuses another thread; raise the limit on processes (ulimit -u), or end other programs.",
}


@contextmanager
def explained_device_errors() -> Iterator[None]:
    """Explain errors of MLX in this block that are about memory, time, threads, or TMPDIR.

    Raises:
        DeviceError: in place of such an error, which is its `__cause__`. Other errors pass.
    """
    try:
        yield
    except RuntimeError as error:
        explanation = _explain(str(error))
        if explanation is None:
            raise
        raise DeviceError(explanation) from error


def _explain(message: str) -> str | None:
    return next((text for parts, text in _EXPLANATIONS.items() if any(part in message for part in parts)), None)
