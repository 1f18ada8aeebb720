"""Firefox without a window, driven by its Marionette protocol: no package is needed. The port is for this machine only.

FIREFOX names the program, if it is not in the path.
"""

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from browser_page import SECONDS, BrowserPage

PROGRAM = os.environ.get("FIREFOX") or shutil.which("firefox") or shutil.which("firefox-esr")
_KEYS = {"ArrowLeft": "\ue012", "ArrowUp": "\ue013", "ArrowRight": "\ue014", "ArrowDown": "\ue015", "End": "\ue010"}
_KEYS |= {"Home": "\ue011", "Enter": "\ue007", "Escape": "\ue00c"}
_PREFERENCES = {
    "marionette.port": 0,  # a free one, which Firefox writes to its profile
    "browser.shell.checkDefaultBrowser": False,
    "browser.startup.page": 0,
    "datareporting.policy.dataSubmissionEnabled": False,
    "toolkit.telemetry.enabled": False,
    "app.update.auto": False,
    "browser.download.folderList": 2,
    "browser.download.useDownloadDir": True,
}


class Page(BrowserPage):
    """Page in the browser."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._numbers = connection, count(1)
        self._read()  # what it says first
        self.call("WebDriver:NewSession", capabilities={"alwaysMatch": {"acceptInsecureCerts": False}})

    def call(self, command: str, **params: object) -> Any:
        """Call a command, and return its result."""
        number = next(self._numbers)
        text = json.dumps([0, number, command, params])
        self._connection.sendall(f"{len(text.encode())}:{text}".encode())
        kind, answered, error, result = self._read()
        assert (kind, answered, error) == (1, number, None), f"{command}: {error}"
        return result

    def _read(self) -> Any:
        digits = b""
        while not digits.endswith(b":"):
            digits += self._receive(1)
        length, content = int(digits[:-1]), b""
        while len(content) < length:
            content += self._receive(length - len(content))
        return json.loads(content)

    def _receive(self, size: int) -> bytes:
        content = self._connection.recv(size)
        assert content, "Firefox has ended"
        return content

    def open(self, path: Path, *, width: int = 1200, height: int = 800) -> None:
        """Open a file in a window of a size."""
        self.call("WebDriver:SetWindowRect", width=width, height=height)
        self.call("WebDriver:Navigate", url=path.resolve().as_uri())

    def eval(self, expression: str) -> Any:
        """Return the JSON-serializable value of an expression."""
        return self.call("WebDriver:ExecuteScript", script=f"return {expression}", args=[])["value"]

    def press(self, *keys: str) -> None:
        """Press keys, one after another."""
        for key in keys:
            actions = [{"type": kind, "value": _KEYS.get(key, key)} for kind in ("keyDown", "keyUp")]
            self.call("WebDriver:PerformActions", actions=[{"type": "key", "id": "keys", "actions": actions}])


@contextmanager
def browser(folder: Path, downloads: Path) -> Iterator[Page]:
    """Yield a page of a browser with a profile in a folder, which saves downloads in another."""
    profile = folder / "firefox"
    profile.mkdir()
    preferences = {**_PREFERENCES, "browser.download.dir": str(downloads)}
    lines = (f"user_pref({json.dumps(name)}, {json.dumps(value)});\n" for name, value in preferences.items())
    (profile / "user.js").write_text("".join(lines))
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    command = [str(PROGRAM), "--headless", "--no-remote", "--marionette", "--profile", str(profile)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    try:
        port_file, end = profile / "MarionetteActivePort", time.monotonic() + SECONDS
        while not port_file.exists() or not port_file.read_text():
            assert process.poll() is None and time.monotonic() < end, "Firefox does not start"
            time.sleep(0.1)
        with socket.create_connection(("127.0.0.1", int(port_file.read_text())), SECONDS) as connection:
            yield Page(connection)
    finally:
        process.kill()
        process.wait()
