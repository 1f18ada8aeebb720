"""What of a measurement may be published."""

import getpass
import platform
import re
from collections.abc import Mapping
from typing import Any

#: The width and height of measurements that can be compared.
SIZE = (768, 512)

# A path from the root, from the home folder, or of Windows. "GB/s" and "macOS/arm64" are none.
_PATH = re.compile(r"""(?<![\w.)\]])(?:~|[A-Za-z]:\\|/)[^\s'"`,;:()]+""")


def submission_name(machine: Mapping[str, Any], date: str) -> str:
    """The name of a document's file, such as apple-m3-max-2026-01-31.json."""
    processor = re.sub(r"[^a-z0-9]+", "-", machine["processor"].lower()).strip("-")
    return f"{processor}-{date}.json"


def is_virtual(machine: Mapping[str, Any]) -> bool:
    """Whether its GPU is a virtual machine's, such as "Apple Paravirtual device", whose times mean nothing."""
    return "virtual" in machine["processor"].lower()


def without_names(value: Any, key: str = "") -> Any:
    """A document without the checkpoint's name, and with paths hidden, and in errors the user's and the host's name."""
    if isinstance(value, Mapping):
        return {name: without_names(each, name) for name, each in value.items() if name not in ("model", "latents")}
    if isinstance(value, list):
        return [without_names(each, key) for each in value]
    if not isinstance(value, str):
        return value
    text = _PATH.sub("(a path)", value)
    host = platform.node()
    for name in (getpass.getuser(), host, host.split(".")[0]) if key == "error" else ():
        text = re.sub(rf"\b{re.escape(name)}\b", "(a name)", text) if name else text
    return text
