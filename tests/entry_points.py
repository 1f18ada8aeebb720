"""The ways to start `decode` and other commands: what to write in front of its arguments."""

import sys
from pathlib import Path

BIN = Path(sys.executable).parent

#: Each takes the name of a command. `uvx`, `pipx` and zip applications run what is here as "script" or "function".
ENTRY_POINTS = {
    "module": lambda name: [sys.executable, "-m", f"mlx_ltx_vae.{name}"],
    "package": lambda name: [sys.executable, "-m", "mlx_ltx_vae", name],
    "script": lambda name: [str(BIN / "mlx_ltx_vae"), name],
    "function": lambda name: [sys.executable, "-c", f"import sys, mlx_ltx_vae.{name} as m; sys.exit(m.main())"],
}

#: What to write to the standard input of `mlx.launch`, which must then stay open: it fills the pipes to the ranks. The
#: launcher takes a core for each rank that could be written to, and one for reading its own input when that has ended.
LAUNCHER_INPUT = bytes(2**16)
