"""What a command shows on a terminal."""

import fcntl
import os
import struct
import subprocess
import sys
import termios
from contextlib import suppress


def run_on_terminal(
    columns: int, *command: object, typed: str | None = None, shows_output: bool = False
) -> tuple[int, str, str]:
    """Run a module whose standard error is a terminal of so many columns: its exit code, its output, what is shown.

    With text that is `typed`, standard input is the terminal too, and standard output if the terminal `shows_output`.
    """
    terminal, end = os.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    arguments = [sys.executable, "-m", *map(str, command)]
    stdin = None if typed is None else end
    stdout = end if shows_output else subprocess.PIPE
    with subprocess.Popen(arguments, stdin=stdin, stdout=stdout, stderr=end, text=True) as process:
        os.close(end)
        os.write(terminal, (typed or "").encode())
        shown = b""
        with suppress(OSError):  # how Linux reports the end of a terminal
            while data := os.read(terminal, 4096):
                shown += data
        os.close(terminal)
        out, _ = process.communicate()
    return process.returncode, out or "", shown.decode()
