"""Runs commands, sends them signals at given times, and finds what they leave behind.

    python tests/signal_runs.py 200

prints what became of 200 runs of every command, with signals at random times.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np

from entry_points import ENTRY_POINTS
from mlx_ltx_vae import VideoWriter, save_latents

sys.path.insert(0, str(Path(__file__).parent / "fixtures"))
from synthetic_checkpoint import write_checkpoint  # noqa: E402  (a script beside the golden data)

#: Before Python has run a line of the package, Ctrl-C is Python's. On Linux signals also wait for that (`is_pythons`).
PYTHON_STARTS = 0.08  # seconds, on a busy machine

SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGQUIT: 131}
WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up", signal.SIGQUIT: "quit"}


@dataclass(frozen=True)
class Outcome:
    """What became of a run.

    Attributes:
        leftovers: partial files, files in the temporary folder, and processes that still run.
        outputs: the names of whole outputs.
        has_heard: whether a signal came that the command did not ignore, as it does when it is done.
    """

    returncode: int
    stderr: str
    leftovers: tuple[str, ...]
    outputs: tuple[str, ...]
    has_heard: bool

    def problem(self, sent: signal.Signals) -> str | None:
        """What is wrong with it, after that signal; None if nothing is."""
        if self.leftovers:
            return f"left {', '.join(self.leftovers)}"
        if self.returncode == 0:
            if self.has_heard:
                return "lost: exit 0"
            return None if self.outputs and not self.stderr else "exit 0 without an output, or with an error"
        if self.returncode < 0 and self.outputs:
            return f"died by the signal and left {', '.join(self.outputs)}"
        expected = {-sent: "", SIGNALS[sent]: f"{WORDS[sent]}\n"}
        if self.returncode not in expected:
            return f"exit {self.returncode}: {self.stderr[-300:]}"
        return None if self.stderr == expected[self.returncode] else f"printed {self.stderr[-300:]!r}"


class Commands:
    """Commands that take about a second, by name, and the files that they need."""

    def __init__(self, folder: Path, checkpoint: Path) -> None:
        self._folder = folder
        self._latents = folder / "latents.safetensors"
        self._checkpoint = checkpoint
        self._kernels = folder / "mlx"
        self._kernels.mkdir()
        rng = np.random.default_rng(0)
        save_latents(self._latents, mx.array(rng.normal(size=(1, 8, 10, 3, 3)).astype(np.float32)), fps=24)
        self._video = folder / "video.mkv"
        with VideoWriter(self._video, size=(96, 96), fps=24, codec="ffv1") as video:
            video.write(rng.integers(0, 256, (65, 96, 96, 3), np.uint8))
        self.run("video", [])  # compiles MLX's kernels, which later runs find

    def command(self, name: str, out: Path, entry: str = "module") -> list[str]:
        """A command that writes into the folder `out`, as `subprocess` takes it."""
        decode = ["decode", self._latents, "-m", self._checkpoint, "-q", "-o"]
        words = {
            "video": [*decode, out / "whole.mp4"],
            "rows": [*decode, out / "whole.npy", "--order", "rows"],
            "stills": [*decode, f"{out}/whole/"],
            "encode": ["encode", self._video, "-m", self._checkpoint, "-q", "-o",
                       out / "whole.safetensors"],
            "convert": ["convert", self._checkpoint, "-q", "-o", out / "whole"],
        }[name]  # fmt: skip
        return [*ENTRY_POINTS[entry](words[0]), *map(str, words[1:])]

    def run(
        self, name: str, sent: Sequence[tuple[float, signal.Signals]], *, entry: str = "module"
    ) -> tuple[Outcome, float]:
        """Run a command and send its process group signals at these seconds after its start, as a terminal does.

        Returns:
            The outcome, and the seconds that it took.
        """
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            out, temporary = Path(folder) / "out", Path(folder) / "tmp"
            out.mkdir()
            temporary.mkdir()
            (temporary / "mlx").symlink_to(self._kernels)  # what MLX compiles for the CPU, which it keeps
            start = time.monotonic()
            process = subprocess.Popen(
                self.command(name, out, entry),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                env=os.environ | {"TMPDIR": str(temporary)},
                start_new_session=True,
            )
            has_heard = False
            for seconds, number in sent:
                time.sleep(max(0, start + seconds - time.monotonic()))
                while is_pythons(process.pid):
                    time.sleep(0.001)
                if process.poll() is None:
                    os.killpg(process.pid, number)
                    has_heard |= hears(process.pid, number)
            _, stderr = process.communicate(timeout=60)
            end = time.monotonic()
            names = sorted(path.name for path in out.iterdir())
            partial = [name for name in names if not name.startswith("whole")]
            temporaries = [path.name for path in temporary.iterdir() if path.name != "mlx"]
            left = [*partial, *sorted(temporaries), *running(folder)]
            outputs = tuple(name for name in names if name not in partial)
            return Outcome(process.returncode, stderr, tuple(left), outputs, has_heard), end - start

    def random_runs(
        self, name: str, count: int, numbers: Sequence[signal.Signals], rng: random.Random
    ) -> Iterator[tuple[str, signal.Signals, float, Outcome]]:
        """Run a command many times, with one, two or ten signals of a kind, the first at any time in its run.

        Yields:
            The entry point, the signal, when it came as a share of a whole run, and the outcome.
        """
        _, whole = self.run(name, [])
        before = time.perf_counter()
        subprocess.run([sys.executable, "-c", ""], check=True)  # which takes longer on a busy machine
        starts = max(PYTHON_STARTS, time.perf_counter() - before)
        for index in range(count):
            first = rng.uniform(starts, 1.05 * whole)
            repeats = rng.choice([1, 1, 2, 10])
            number = numbers[index % len(numbers)]
            sent = [(first, number)]
            for _ in range(repeats - 1):
                sent.append((sent[-1][0] + rng.choice([0, 0.005, 0.03]), number))
            entry = rng.choice(list(ENTRY_POINTS))
            outcome, _ = self.run(name, sent, entry=entry)
            yield entry, number, first / whole, outcome


def _signal_sets(pid: int) -> dict[str, int]:
    """What a process ignores ("Ign"), blocks ("Blk") and handles ("Cgt"), bit by bit; {} on macOS, or after its end."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return {}
    is_over = re.search(r"^State:\t[ZX]", status, re.MULTILINE)
    sets = re.findall(r"^Sig(Ign|Blk|Cgt):\t(\w+)", status, re.MULTILINE)
    return {} if is_over else {name: int(mask, 16) << 1 for name, mask in sets}  # bit n for signal n


def is_pythons(pid: int) -> bool:
    """Whether Ctrl-C is Python's, which then prints a traceback: the package has not prepared the process yet."""
    handled = _signal_sets(pid).get("Cgt", 0)
    return bool(handled >> signal.SIGINT & 1 and not handled >> signal.SIGTERM & 1)


def hears(pid: int, number: int) -> bool:
    """Whether a signal ends a process. One that is blocked waits; the C library ignores some meanwhile."""
    sets = _signal_sets(pid)
    return bool(sets and (~sets["Ign"] | sets["Blk"]) >> number & 1)


def running(words: str) -> list[str]:
    """The processes with these words in their command lines."""
    # -ww: ps may otherwise cut lines to 80 columns.
    table = subprocess.run(["ps", "-wweo", "stat=,args="], capture_output=True, text=True, check=True).stdout
    return [line for line in table.splitlines() if words in line and not line.startswith("Z")]


def main() -> None:
    """Print what became of many runs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int)
    parser.add_argument("names", nargs="*", default=["video", "rows", "stills", "encode", "convert"])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGQUIT):  # what a shell starts in the background ignores them
        signal.signal(number, signal.SIG_DFL)
    fixtures = Path(__file__).parent / "fixtures"
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "vae.safetensors"
        write_checkpoint(json.loads((fixtures / "ltx2_3.json").read_text()), checkpoint)
        commands = Commands(Path(folder), checkpoint)
        for name in options.names:
            codes: Counter[int] = Counter()
            problems: Counter[str] = Counter()
            rng = random.Random(options.seed)
            for entry, number, when, outcome in commands.random_runs(name, options.count, list(SIGNALS), rng):
                codes[outcome.returncode] += 1
                if problem := outcome.problem(number):
                    problems["leftovers" if outcome.leftovers else "exit code or text"] += 1
                    print(f"  {name} ({entry}), {number.name} at {when:.2f}: {problem}", flush=True)
            print(f"{name}: {options.count} runs, exit codes {dict(codes)}, problems {dict(problems)}", flush=True)


if __name__ == "__main__":
    main()
