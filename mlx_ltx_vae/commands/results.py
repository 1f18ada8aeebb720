"""One input of `decode` or `encode`, and what became of it."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

from ..errors import one_line
from ..planning.plan import DecodePlan, EncodePlan
from ..shapes import Size


@dataclass(frozen=True)
class Item:
    """An input, its output, and what a table says about it.

    Attributes:
        output: None if there is none, in a dry run.
        where: the line of the list or table that names it; None for an argument of the command.
        folder: where all its outputs must be, after links are resolved, if it has a `where`.
        size: (width, height) to encode at.
        max_frames: to encode.
        fps: to encode at.
        outputs: the files that it becomes, several for a batch. Filled in by `Runner.measure`, as all below.
        num_frames: of all its outputs; None if that is known only when all of them are read.
        cost: the work, relative to that of other items: the latents' number of values; the video's number of pixels if
            a table states it, else its bytes on disk.
    """

    source: str
    output: str | None
    size: Size | None = None
    max_frames: int | None = None
    fps: Fraction | None = None
    where: str | None = None
    folder: str = ""
    outputs: tuple[str, ...] = ()
    num_frames: int | None = None
    cost: int = 0


@dataclass(frozen=True)
class Result:
    """What became of an item.

    Attributes:
        values: of its report, JSON-serializable; empty if it was skipped or failed.
        error: one line; None if it did not fail.
    """

    item: Item
    values: dict[str, Any]
    error: str | None = None
    is_skipped: bool = False

    def as_dict(self) -> dict[str, Any]:
        """A JSON-serializable dict: `source`, and the values of the report, or `output` and `error` or `skipped`."""
        if self.error is None and not self.is_skipped:
            return {"source": self.item.source, **self.values}
        outputs = self.item.outputs
        output = list(outputs) if len(outputs) > 1 else self.item.output
        reason = {"skipped": True} if self.error is None else {"error": self.error}
        return {"source": self.item.source, "output": output, **reason}

    def __str__(self) -> str:
        source = self.item.source
        if self.error is not None:
            return self.error if self.error.startswith(f"{one_line(source)}: ") else f"{source}: {self.error}"
        if self.is_skipped:
            return f"{source}: skipped, found {', '.join(self.item.outputs)}"
        return f"{source}: {self.values['frames']} frames, {self.values['seconds']:.2f} s"


class Report(Protocol):
    """The report of a run."""

    def as_dict(self) -> dict[str, Any]:
        """A JSON-serializable dict with at least `frames`, `seconds`, `peak_memory_bytes` and `output`."""


class Runner(Protocol):
    """Runs items with one network, which is loaded once."""

    def measure(self, item: Item) -> Item:
        """The item with its outputs, number of frames and cost. Raises what makes it impossible to run, if cheap."""

    def plan(self, item: Item) -> DecodePlan | EncodePlan:
        """How the item would be run. Nothing is written."""

    def load(self) -> None:
        """Read the weights, once."""

    def run(self, item: Item, advance: Callable[[int], object]) -> Report:
        """Run one item. `advance(n)` is called whenever n more frames are done."""
