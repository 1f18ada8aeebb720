"""Functions that run in processes of their own, so that none uses compiled kernels or buffers of another run.

Such a process runs this module as a program.
"""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from typing import Any, cast

from mlx_ltx_vae.commands.terminal import print_report
from mlx_ltx_vae.errors import LTXVAEError, describe_error
from mlx_ltx_vae.process import Cleanup, kill_program, uninterrupted


def run_fresh(
    function: Callable[..., Any], variables: Mapping[str, str] | None = None, **arguments: Any
) -> dict[str, Any]:
    """Call a function of a module in a process of its own. Arguments and result are values that JSON can represent.

    Args:
        variables: added to the environment of the process.

    Raises:
        LTXVAEError: if it fails, with the last line of its output.
    """
    call = {"module": function.__module__, "function": function.__name__, "arguments": arguments}
    command = [sys.executable, "-m", __name__, json.dumps(call)]
    with uninterrupted():
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | dict(variables or {}),
        )
        end = Cleanup(None, kill_program, process)
    try:
        stdout, stderr = process.communicate()
    finally:
        end()
    if process.returncode:
        last_line = (stderr.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        raise LTXVAEError(last_line)
    return cast(dict[str, Any], json.loads(stdout))


def _answer(call: str) -> None:
    """Call the function that `run_fresh` names, and print its result."""
    request = json.loads(call)
    function = getattr(importlib.import_module(request["module"]), request["function"])
    with redirect_stdout(sys.stderr):  # standard output is for the result alone
        result = function(**request["arguments"])
    print_report(json.dumps(result))


if __name__ == "__main__":
    try:
        _answer(sys.argv[1])
    except Exception as error:
        sys.exit(describe_error(error))
