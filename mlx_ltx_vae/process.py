"""Cleanup of what a process must not leave, and the signals that end a command.

Partial files, temporary folders, and programs that were started are each created and registered in one `uninterrupted`
block. A signal that ends a command waits for the end of such a block, removes what is registered, and lets no further
block begin. In other programs, it is removed when its owner is collected, at the latest when the interpreter exits. A
process that was forked has copies of all this, and removes nothing: it is its parent's.
"""

import os
import shutil
import signal
import sys
import tempfile
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
    """Return a block that no signal interrupts, if this process is a command. Blocks may be nested; keep them short."""
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

    A pipe ends for its reader when it is closed in all processes; a lock too.
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
        with suppress(OSError):  # of `close`, which `rmtree` does not ignore
            shutil.rmtree(path, ignore_errors=True)
        if not os.path.exists(path):
            return
    _warn_that_it_stays(path, "its folder may be read-only")


def _warn_that_it_stays(path: Path, reason: str) -> None:
    # An error would hide the one that made us remove the path.
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
    """Yield an empty folder in the folder for temporary files, until the end of the block."""
    with uninterrupted():
        folder = Path(tempfile.mkdtemp(prefix="mlx_ltx_vae-"))
        remove = Cleanup(None, remove_folder, folder)
    try:
        yield folder
    finally:
        remove()


#: The signals that end a command, and what it then prints. Its exit code is 128 and the signal's number.
WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up", signal.SIGQUIT: "quit"}


def delay_signals(function: Callable[[], object]) -> None:
    """Call a function during which the C library ignores SIGINT and SIGQUIT, as it does in `system`, and lose none.

    Linux drops a signal that is ignored, but keeps one that is blocked, if no other thread takes it. So this is for the
    start of a command, whose signals wait until the function has returned.
    """
    if not is_command():
        function()
        return
    handled = [number for number in WORDS if signal.getsignal(number) is not signal.SIG_IGN]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, handled)
    try:
        if sys.platform == "linux":
            # OpenBLAS starts threads when it is loaded. It ends them at a fork, until it next needs them.
            with suppress(BlockingIOError):  # at the limit on processes, which `system` reaches as well
                child = os.fork()
                if not child:
                    os._exit(0)
                os.waitpid(child, 0)
        # What waits already is dropped as soon as it is ignored. It ends the process now.
        if not signal.sigpending():
            function()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def ended_by_signals(is_silent: Callable[[signal.Signals], bool]) -> Iterator[None]:
    """Let signals end a command during the block, and ignore them afterwards, when only the exit is left to do.

    A thread of its own ends the process: the main thread may be in a long computation, in which Python calls no
    handler, or in one of the callbacks whose exceptions Python drops. A signal that was ignored before, as SIGHUP is
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
        # A handler, so that Python writes the signal's number to the pipe. It takes no lock (`Event.set` does): the
        # next signal may come while it runs.
        signal.signal(number, lambda number, _: received.append(number))
    try:
        yield
    finally:
        if received:  # an error may be its consequence, if it has ended a program that was started
            threading.Event().wait()  # until the thread has ended the process
        with uninterrupted():
            done.set()
            for number in handled:
                signal.signal(number, signal.SIG_IGN)


def die_by_termination() -> None:
    """Let SIGTERM end this process again, if it is a command that is done."""
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
            # Not sys.exit: MLX, and Python's buffers, may be in the middle of anything.
            os._exit(128 + number)
