"""Cleanup of partial files, temporary folders and started programs, and the signals that end a command.

Each of these is created and registered in one `uninterrupted` block. A signal that ends a command waits for the end of
such a block, removes everything that is registered, and lets no further block begin. In other programs, it is removed
when its owner is collected, at the latest when the interpreter exits. A forked process removes nothing, since the files
belong to its parent.
"""

import os
import shutil
import signal
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from .startup import STANDARD_ERROR, is_command

if TYPE_CHECKING:
    import subprocess

_REMOVAL_ATTEMPTS = 100

_lock = threading.RLock()
_pending: list["Cleanup"] = []
_closed_in_children: "weakref.WeakSet[IO[bytes]]" = weakref.WeakSet()


def uninterrupted() -> AbstractContextManager[object]:
    """Return a context that no signal interrupts if this process is a command. It may be nested; keep it short."""
    return _lock


class Cleanup:
    """Cleanup that calls a function once: when it is called, or when its owner is collected.

    The function must not refer to the owner. It is called at the end of the process at the latest. An owner of `None`
    is never collected before.
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
    """Close an unbuffered file, such as a pipe, in processes that are forked from this one.

    A pipe ends for its reader when all processes have closed the file.
    """
    _closed_in_children.add(file)


def _leave_to_parent() -> None:
    global _lock
    _lock = threading.RLock()  # another thread of the parent may hold it
    while _pending:
        _pending.pop().cancel()
    for file in list(_closed_in_children):
        file.close()


os.register_at_fork(after_in_child=_leave_to_parent)


def _call(function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    with _lock:
        function(*arguments)


def clean_up_for_good() -> None:
    """Call all registered functions, the last one first. Other threads then wait for the end of the process."""
    _lock.acquire()
    while _pending:
        with suppress(Exception):  # an error of one function must not prevent the next
            _pending.pop()()


def remove_file(path: Path) -> None:
    """Remove a file if it exists. Warn if it cannot be removed, for example from a read-only folder."""
    try:
        with suppress(FileNotFoundError, NotADirectoryError):
            path.unlink()
    except OSError as error:
        _warn_that_it_stays(path, error.strerror or str(error))


def remove_folder(path: Path) -> None:
    """Remove a folder and its contents, even while a thread writes files into it. Warn if it cannot be removed."""
    for _ in range(_REMOVAL_ATTEMPTS):
        with suppress(OSError):  # of `close`, which `rmtree` does not ignore
            shutil.rmtree(path, ignore_errors=True)
        if not os.path.exists(path):
            return
    _warn_that_it_stays(path, "its folder may be read-only")


def _warn_that_it_stays(path: Path, reason: str) -> None:
    # An exception would hide the error that led to the removal.
    warnings.warn(f"{path}: cannot be removed ({reason}); remove it.", stacklevel=2)


def kill_program(program: "subprocess.Popen[bytes]") -> None:
    """Kill a program that this process has started, and wait for its end, after which it creates no more files."""
    # `kill` and `wait` of the program may deadlock if another thread waits for it.
    if program.returncode is None:
        with suppress(ProcessLookupError, ChildProcessError):  # it has ended
            os.kill(program.pid, signal.SIGKILL)
            program.returncode = os.waitstatus_to_exitcode(os.waitpid(program.pid, 0)[1])


#: Signals that end a command, with the word that it prints. Its exit code is 128 and the signal's number.
WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up", signal.SIGQUIT: "quit"}


@contextmanager
def ended_by_signals(is_silent: Callable[[signal.Signals], bool]) -> Iterator[None]:
    """Let signals end a command during the block, and ignore them afterward, when only the exit remains.

    A separate thread ends the process, since the main thread may be in a long computation, in which Python calls no
    handler, or in a callback whose exceptions Python drops. A signal that was ignored before, as SIGHUP is
    under nohup, stays ignored.
    """
    if not is_command():
        yield
        return
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    done = threading.Event()
    threading.Thread(target=_wait, args=(read_end, is_silent, done), name="signals", daemon=True).start()
    handled = [number for number in WORDS if signal.getsignal(number) is not signal.SIG_IGN]
    received: list[int] = []
    for number in handled:
        # With a handler, Python writes the signal's number to the pipe. The handler takes no lock (`Event.set` would),
        # since another signal may interrupt it.
        signal.signal(number, lambda number, _: received.append(number))
    try:
        yield
    finally:
        if received:  # the signal may have ended a program, and so caused an error
            threading.Event().wait()  # until the thread ends the process
        with uninterrupted():
            done.set()
            for number in handled:
                signal.signal(number, signal.SIG_IGN)


def die_by_termination() -> None:
    """Let SIGTERM end this process again, if it is a command that has ended."""
    if is_command() and signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _wait(read_end: int, is_silent: Callable[[signal.Signals], bool], done: threading.Event) -> None:
    while data := os.read(read_end, 1):
        if data[0] not in WORDS:  # a signal that something else handles
            continue
        with uninterrupted():
            if done.is_set():
                continue
            number = signal.Signals(data[0])
            clean_up_for_good()
            if not is_silent(number):
                with suppress(OSError):  # the terminal may be gone
                    os.write(STANDARD_ERROR, f"{WORDS[number]}\n".encode())
            # `sys.exit` is not safe, since MLX and Python's buffers may be in any state.
            os._exit(128 + number)
