"""Options of the installed drop-ins, and what they have done in this process. Without MLX, until latents are saved."""

import sys
from collections import Counter
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from ..errors import one_line


@dataclass(eq=False)
class Settings:
    """Options of one `install`: those that it was given, and otherwise those of the installation before it."""

    memory_budget: str | int | None = None
    folder: Any = None  # a `LatentsFolder`, whose module imports MLX, or `None`


_stack = [Settings()]

#: Number of decodes and encodes that went through, by "decode" and "encode", and that have begun, by "begun decode".
counts: Counter[str] = Counter()

#: Whether an app's own function is running in the place of a drop-in that failed.
is_rescued: ContextVar[bool] = ContextVar("is_rescued", default=False)


def current() -> Settings:
    """Return the options of the last installation."""
    return _stack[-1]


def push(memory_budget: str | int | None, folder: Any) -> Settings:
    """Begin an installation with these options. `None` keeps what the installation before it has."""
    before = current()
    settings = Settings(before.memory_budget if memory_budget is None else memory_budget, folder or before.folder)
    _stack.append(settings)
    return settings


def pop(settings: Settings) -> None:
    """End an installation. The folder that it opened gets the audio that no video followed."""
    if settings in _stack:
        _stack.remove(settings)
    if settings.folder is not None and all(other.folder is not settings.folder for other in _stack):
        settings.folder.close()


def say(text: str) -> None:
    """Write a line on standard error."""
    with suppress(OSError):
        sys.stderr.write(f"mlx_ltx_vae: {one_line(text)}\n")
