"""Chromium without a window, driven over its DevTools pipe: no package is needed, and no port is opened."""

import base64
import json
import os
import select
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from browser_page import SECONDS, BrowserPage

PROGRAM = shutil.which("chromium") or shutil.which("google-chrome")
_KEY_CODES = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "End": 35, "Home": 36}
_KEY_CODES |= {"Enter": 13, "Escape": 27, " ": 32}


class Page(BrowserPage):
    """Page in the browser.

    Attributes:
        requests: addresses of everything that the page has asked for, without the data in it.
        problems: uncaught errors, messages of the console that are errors, and refusals of the security policy.
    """

    def __init__(self, commands: int, replies: int) -> None:
        self._commands, self._replies, self._numbers, self._rest = commands, replies, count(1), b""
        self.requests, self.problems = list[str](), list[str]()
        self._session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: object) -> dict[str, Any]:
        """Call a method of the DevTools protocol, and return its result."""
        message = {"id": next(self._numbers), "method": method, "params": params}
        message |= {} if self._session is None else {"sessionId": self._session}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._read()
            if reply.get("id") == message["id"]:
                assert "error" not in reply, f"{method}: {reply.get('error')}"
                return reply["result"]

    def _read(self) -> dict[str, Any]:
        """Return the next message, with what it tells noted."""
        while b"\0" not in self._rest:
            is_ready, *_ = select.select([self._replies], [], [], SECONDS)
            content = os.read(self._replies, 2**16) if is_ready else b""
            assert content, "Chromium has ended, or does not answer"
            self._rest += content
        text, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(text)
        params = message.get("params", {})
        if message.get("method") == "Network.requestWillBeSent":
            address = params["request"]["url"]
            self.requests += [] if address.startswith(("data:", "blob:")) else [address]
        elif message.get("method") == "Runtime.exceptionThrown":
            self.problems.append(params["exceptionDetails"]["exception"].get("description", str(params)))
        elif message.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(params["entry"]["text"])
        return message

    def open(self, path: Path, *, width: int = 1200, height: int = 800, scheme: str = "light") -> None:
        """Open a file in a window of a size, in a light or a dark color scheme."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait("document.readyState === 'complete' && location.protocol === 'file:'")

    def eval(self, expression: str) -> Any:
        """Return the JSON-serializable value of an expression."""
        result = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, userGesture=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def press(self, *keys: str) -> None:
        """Press keys, one after another."""
        for key in keys:
            text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
            code = _KEY_CODES.get(key, ord(key[0].upper()))
            self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=text, windowsVirtualKeyCode=code)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def click(self, selector: str, index: int = 0) -> None:
        """Click in the middle of an element that a selector finds, with the mouse."""
        element = f"document.querySelectorAll({json.dumps(selector)})[{index}]"
        box = self.eval(f"{element}.scrollIntoView({{block: 'nearest'}}), {element}.getBoundingClientRect().toJSON()")
        place = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
        for event in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=event, button="left", clickCount=1, **place)

    def screenshot(self) -> bytes:
        """Return a picture of the window as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot")["data"])


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """Yield a page of a browser with a profile in a folder, in which downloads are saved."""
    (their_commands, commands), (replies, their_replies) = os.pipe(), os.pipe()
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--remote-debugging-pipe",
        f"--user-data-dir={folder}/profile",
    ]
    options += ["--no-first-run", "--disable-background-networking", "--disable-component-update", "about:blank"]
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}

    # A shell gives the pipes the numbers that Chromium expects.
    script = f'exec "$0" "$@" 3<&{their_commands} 4>&{their_replies}'
    command = ["bash", "-c", script, str(PROGRAM), *options]
    process = subprocess.Popen(
        command, pass_fds=(their_commands, their_replies), stderr=subprocess.DEVNULL, env=environment
    )
    os.close(their_commands)
    os.close(their_replies)
    try:
        page = Page(commands, replies)
        page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
        yield page
        page.call("Browser.close")
    finally:
        os.close(commands)
        os.close(replies)
        process.kill()
        process.wait()
