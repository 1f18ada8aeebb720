"""Speeds of earlier runs on this machine, kept in the cache folder of the user, for the times that plans state."""

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ..planning.plan import Plan

_LEAST_SECONDS = 2.0  # shorter runs say little: they include what is done once
_MAX_ENTRIES = 200


def record_speed(plan: Plan, used: Mapping[str, str], seconds: float) -> None:
    """Keep the speed of a run, unless it was short. `used` is the network as reports name it."""
    if seconds < _LEAST_SECONDS or not plan.multiply_adds:
        return
    speeds, key = _read(), _key(plan, used)
    speeds.pop(key, None)
    speeds[key] = plan.multiply_adds / seconds
    text = json.dumps(dict(list(speeds.items())[-_MAX_ENTRIES:]), indent=1)
    with suppress(OSError, RuntimeError):  # a folder that is missing or cannot be written costs only the estimate
        path = _path()
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}")
        part.write_text(text)
        part.replace(path)


def estimate_seconds(plan: Plan, used: Mapping[str, str]) -> float | None:
    """Return how long a run takes by the last one of its kind on this machine, or `None` if there was none."""
    speed = _read().get(_key(plan, used))
    return plan.multiply_adds / speed if speed and plan.multiply_adds else None


def _key(plan: Plan, used: Mapping[str, str]) -> str:
    network = f"{used['generation']} {used.get('decoder', 'encoder')}"
    bits, backend = 8 * plan.machine.itemsize, plan.machine.backend.value
    return f"{network}, {bits} bits, {backend}, {plan.mode.value} by {plan.order.value}"


def _path() -> Path:
    home = Path("~").expanduser()
    default = home / "Library" / "Caches" if sys.platform == "darwin" else home / ".cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or default) / "mlx_ltx_vae" / "speeds.json"


def _read() -> dict[str, float]:
    """Return the speeds in multiply-adds per second; none if the file is missing or damaged."""
    with suppress(OSError, ValueError, RuntimeError):  # the last one without a home folder
        speeds = json.loads(_path().read_text())
        if isinstance(speeds, dict):
            return {key: speed for key, speed in speeds.items() if isinstance(speed, (int, float)) and speed > 0}
    return {}
