"""The program ComfyUI, started without a window for scripts/try_comfyui.py."""

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

START_SECONDS, RUN_SECONDS, SILENT_SECONDS = 180, 300, 30
CLIENT = "try-comfyui"
Nodes = dict[str, tuple[str, dict[str, Any]]]


class ComfyUI:
    """The program, with a folder of its own. A context manager that ends it."""

    def __init__(self, checkout: Path, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        port = self.address.partition(":")[2]
        options = ["--cpu", "--listen", "127.0.0.1", "--port", port, "--disable-auto-launch", "--disable-api-nodes"]
        options.append("--debug-hang")  # the log has all threads at Ctrl-C, and if it is aborted
        self._log = folder / f"log-{port}.txt"
        with self._log.open("w") as log:
            command = [sys.executable, "main.py", *options, "--base-directory", str(folder)]
            self.process = subprocess.Popen(command, cwd=checkout, stdout=log, stderr=log, start_new_session=True)
        self.wait_until(self._is_up, START_SECONDS)

    def __enter__(self) -> "ComfyUI":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def log(self) -> str:
        return self._log.read_text()

    def wait_until(self, is_so: Callable[[], bool], seconds: float = RUN_SECONDS) -> None:
        until = time.monotonic() + seconds
        while not is_so():
            if time.monotonic() > until or self.process.poll() is not None:
                self.process.kill()
                raise RuntimeError(f"ComfyUI has not come so far:\n{self.log[-2000:]}")
            time.sleep(0.02)

    def request(self, path: str, body: object = None) -> dict:
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(f"http://{self.address}{path}", data, timeout=60) as answer:
                return json.loads(answer.read() or "{}")
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{error.read().decode()}\n{self.log}") from error

    def post(self, nodes: Nodes) -> str:
        """Queue a workflow in API form. Returns the id of the prompt."""
        graph = {name: {"class_type": kind, "inputs": inputs} for name, (kind, inputs) in nodes.items()}
        extra = {"extra_pnginfo": {"workflow": {"nodes": sorted(graph)}}}
        return self.request("/prompt", {"prompt": graph, "extra_data": extra, "client_id": CLIENT})["prompt_id"]

    def wait(self, prompt: str) -> dict:
        """Wait for a prompt to end and return its history."""
        self.wait_until(lambda: prompt in self.request(f"/history/{prompt}"))
        return self.request(f"/history/{prompt}")[prompt]

    def run(self, nodes: Nodes) -> list[Path]:
        """Run a workflow and return the files that it saved."""
        history = self.wait(self.post(nodes))
        if history["status"]["status_str"] != "success":
            raise RuntimeError(f"the workflow failed: {history['status']}\n{self.log[-3000:]}")
        outputs = [item for output in history["outputs"].values() for items in output.values() for item in items]
        files = [item for item in outputs if isinstance(item, dict)]
        files = [file for file in files if file["type"] == "output"] or files  # and no previews of them
        return [self.folder / file["type"] / file["subfolder"] / file["filename"] for file in files]

    def wait_for_decode(self) -> None:
        """Wait until a decode has written a part of its video."""
        self.wait_until(lambda: any(file.stat().st_size for file in self.temporary(".*")))

    def temporary(self, pattern: str) -> list[Path]:
        """Files in ComfyUI's folder for temporary files."""
        return list((self.folder / "temp").glob(pattern))

    def press_ctrl_c(self) -> float:
        """Press Ctrl-C, check that the program ends well, and return the seconds that it took.

        Python frees torch and all else in some seconds of CPU time, which are many on a busy machine. It hangs if it
        takes no CPU time.
        """
        start, used = time.monotonic(), -1.0
        self.process.send_signal(signal.SIGINT)
        while (code := self._wait(SILENT_SECONDS)) is None:
            used, before = sum(psutil.Process(self.process.pid).cpu_times()[:2]), used
            if used - before < SILENT_SECONDS / 100 or time.monotonic() - start > RUN_SECONDS:
                self.process.send_signal(signal.SIGABRT)  # it logs where all threads are
        assert code == 0, f"exit code {code}:\n{self.log.partition('Extension modules')[0][-6000:]}"
        assert "Error" not in self.log.partition("Stopped server")[2], self.log[-3000:]
        return time.monotonic() - start

    def _wait(self, seconds: float) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(seconds)
        return None

    def _is_up(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(self.request("/system_stats"))
        return False
