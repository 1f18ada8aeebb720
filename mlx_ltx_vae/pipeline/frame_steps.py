"""The table of steps between a decoder and its outputs that options of `decode` choose."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..video.frame_format import FrameStep


@dataclass(frozen=True)
class StepOption:
    """An option of `decode` that adds a step. A new one is a file with its step and an entry in `STEP_OPTIONS`.

    Attributes:
        name: such as "--grain".
        make: the step of an argument; raises a `ValueError` or a `WriterError` that says what it may be.
        metavar, help: of argparse.
    """

    name: str
    make: "Callable[[str], FrameStep]"
    metavar: str
    help: str


#: In the order in which the steps run.
STEP_OPTIONS: tuple[StepOption, ...] = ()
