"""A document of measurements as it may be published: without paths, and without names of the user or the host."""

import copy
import getpass
import platform
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...errors import LTXVAEError

#: Changes when fields of the document change their meaning or disappear.
SCHEMA = 1

# A path from the root, from the home folder, or of Windows. "GB/s" and "macOS/arm64" are none.
_PATH = re.compile(r"""(?<![\w.)\]])(?:~|[A-Za-z]:\\|/)[^\s'"`,;:()]+""")
_HIDDEN_PATH, _HIDDEN_NAME = "(a path)", "(a name)"


def submission(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document without the checkpoint's name, and with paths and names in errors hidden.

    Raises:
        LTXVAEError: if a path or a name is left, naming the field.
    """
    public = copy.deepcopy(dict(document))
    public["case"].pop("model", None)
    for where, text in list(_strings(public)):
        if where[-1] in ("error", "warning"):
            _replace(public, where, _hide(text))
    for where, text in _strings(public):
        if _PATH.search(text) or (where[-1] == "error" and any(_names(text))):
            name = ".".join(map(str, where))
            raise LTXVAEError(f"the measurements contain a path or a name in {name}: {text!r}; nothing was written.")
    return public


def submission_path(given: Path, chip: str, day: str) -> Path:
    """The file to write: as given, or in a given folder `<chip>-<date>.json`."""
    name = re.sub(r"[^a-z0-9]+", "-", chip.lower()).strip("-")
    return given / f"{name}-{day}.json" if given.is_dir() else given


def _hide(text: str) -> str:
    text = _PATH.sub(_HIDDEN_PATH, text)
    for name in _names(text):
        text = re.sub(rf"\b{re.escape(name)}\b", _HIDDEN_NAME, text)
    return text


def _names(text: str) -> Iterator[str]:
    """The names of the user and of the host that a text contains as words."""
    host = platform.node()
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a process without a user
        user = ""
    for name in dict.fromkeys((user, host, host.split(".")[0])):
        if name and re.search(rf"\b{re.escape(name)}\b", text):
            yield name


def _strings(value: Any, where: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Every string in a document, and where it is; keys are strings too."""
    if isinstance(value, str):
        yield where, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield (*where, "key"), str(key)
            yield from _strings(each, (*where, str(key)))
    elif isinstance(value, (list, tuple)):
        for index, each in enumerate(value):
            yield from _strings(each, (*where, index))


def _replace(document: Any, where: tuple[str | int, ...], text: str) -> None:
    for step in where[:-1]:
        document = document[step]
    document[where[-1]] = text
