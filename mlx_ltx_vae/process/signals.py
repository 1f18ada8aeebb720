"""Signals that end a command: everything partial is removed first. Only commands install handlers."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from . import startup
from .cleanup import clean_up_for_good, uninterrupted

#: The signals that end a command, and what it then prints. Its exit code is 128 and the signal's number.
WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up", signal.SIGQUIT: "quit"}


def delay_signals(function: Callable[[], object]) -> None:
    """Call a function during which the C library ignores SIGINT and SIGQUIT, as it does in `system`, and lose none.

    Linux drops a signal that is ignored, but keeps one that is blocked, if no other thread takes it. So this is for the
    start of a command, whose signals wait until the function has returned.
    """
    if not startup.is_command():
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
    if not startup.is_command():
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
    if startup.is_command() and signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:
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
                    os.write(startup.STANDARD_ERROR, f"{WORDS[number]}\n".encode())
            # Not sys.exit: MLX, and Python's buffers, may be in the middle of anything.
            os._exit(128 + number)
