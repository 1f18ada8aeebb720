"""What a process must not leave behind: partial files, temporary folders, and programs that it has started.

Each is created and registered in one `uninterrupted` block. A signal that ends a command (see `signals`) waits for the
end of such a block, removes what is registered, and lets no further block begin. In other programs, it is removed when
its owner is collected, at the latest when the interpreter exits.

A process that was forked has copies of all this, and removes nothing: it is its parent's.
"""

import os
import shutil
import signal
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess

_REMOVAL_ATTEMPTS = 100

_lock = threading.RLock()
_pending: list["Cleanup"] = []
_closed_in_children: "weakref.WeakSet[IO[bytes]]" = weakref.WeakSet()


def uninterrupted() -> AbstractContextManager[object]:
    """A block that a signal does not interrupt, if this process is a command. Blocks may be nested; keep them short."""
    return _lock


class Cleanup:
    """Calls a function once: when called itself, or when its owner, to which the function must not refer, is collected.

    At the latest it does so at the end of the process, as for an owner of None.
    """

    def __init__(self, owner: object | None, function: Callable[..., object], *arguments: Any) -> None:
        with _lock:
            _pending[:] = [cleanup for cleanup in _pending if cleanup._finalizer.alive]
            owner = Cleanup if owner is None else owner
            self._finalizer: weakref.finalize = weakref.finalize(owner, _call, function, arguments)
            _pending.append(self)

    def __call__(self) -> None:
        with _lock:
            self._finalizer()

    def cancel(self) -> None:
        self._finalizer.detach()


def close_in_children(file: IO[bytes]) -> None:
    """Close an unbuffered file, such as a pipe or one that is locked, in processes that are forked from this one.

    A pipe ends for its reader when it is closed in all processes, and so does a lock.
    """
    _closed_in_children.add(file)


def _leave_to_parent() -> None:
    global _lock
    _lock = threading.RLock()  # another thread of the parent may have held it
    while _pending:
        _pending.pop().cancel()
    for file in list(_closed_in_children):
        file.close()


os.register_at_fork(after_in_child=_leave_to_parent)


def _call(function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    with _lock:
        function(*arguments)


def clean_up_for_good() -> None:
    """Call all functions, the last registered first. Other threads then wait for the end of the process."""
    _lock.acquire()
    while _pending:
        with suppress(Exception):  # the others are called all the same
            _pending.pop()()


def remove_file(path: Path) -> None:
    """Remove a file, if there is one. One that stays, as in a folder made read-only since, is a warning."""
    try:
        with suppress(FileNotFoundError, NotADirectoryError):
            path.unlink()
    except OSError as error:
        _warn_that_it_stays(path, error.strerror or str(error))


def remove_folder(path: Path) -> None:
    """Remove a folder with all it contains, also if a thread still writes files into it. Else a warning."""
    for _ in range(_REMOVAL_ATTEMPTS):
        shutil.rmtree(path, ignore_errors=True)
        if not os.path.exists(path):
            return
    _warn_that_it_stays(path, "its folder may be read-only")


def _warn_that_it_stays(path: Path, reason: str) -> None:
    # An error would hide the one because of which the path is removed.
    warnings.warn(f"{path}: cannot be removed ({reason}); remove it.", stacklevel=2)


def kill_program(program: "subprocess.Popen[bytes]") -> None:
    """End a program of this process at once, and wait for its end, after which it creates no more files."""
    # Not by its `kill` and `wait`, which wait for each other where a thread waits for the program already.
    if program.returncode is None:
        with suppress(ProcessLookupError, ChildProcessError):  # it has ended
            os.kill(program.pid, signal.SIGKILL)
            program.returncode = os.waitstatus_to_exitcode(os.waitpid(program.pid, 0)[1])


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """An empty folder in the folder for temporary files, until the end of the block."""
    with uninterrupted():
        folder = Path(tempfile.mkdtemp(prefix="mlx_ltx_vae-"))
        remove = Cleanup(None, remove_folder, folder)
    try:
        yield folder
    finally:
        remove()
