"""One run, in a process that should be fresh."""

from dataclasses import asdict
from typing import Any

from .case import Case, Task
from .decoding import decode
from .encoding import encode
from .others import decode_otherwise
from .overlap import overlap
from .precision import precision
from .quality import quality
from .roofline import roofline

_TASKS = {
    Task.DECODE: decode,
    Task.ENCODE: encode,
    Task.AGAINST: decode_otherwise,
    Task.OVERLAP: overlap,
    Task.PRECISION: precision,
    Task.QUALITY: quality,
    Task.ROOFLINE: roofline,
}


def measure(case: Case) -> dict[str, Any]:
    """Run a case in this process.

    Returns:
        The case, and what was measured; see the function of its task.
    """
    return {**asdict(case), **_TASKS[case.task](case)}
