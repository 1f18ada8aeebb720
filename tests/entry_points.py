"""The ways to start a command: what to write in front of its arguments."""

import sys
from pathlib import Path

BIN = Path(sys.executable).parent

#: Each takes the name of a command. `uvx`, `pipx` and zip applications run what is here as "scripts" or "function".
ENTRY_POINTS = {
    "module": lambda name: [sys.executable, "-m", f"mlx_ltx_vae.{name}"],
    "package": lambda name: [sys.executable, "-m", "mlx_ltx_vae", name],
    "script": lambda name: [str(BIN / f"mlx_ltx_vae.{name}")],
    "scripts": lambda name: [str(BIN / "mlx_ltx_vae"), name],
    "function": lambda name: [sys.executable, "-c", f"import sys, mlx_ltx_vae.{name} as m; sys.exit(m.main())"],
}
#: All but the first, which most tests use.
OTHERS = [name for name in ENTRY_POINTS if name != "module"]
