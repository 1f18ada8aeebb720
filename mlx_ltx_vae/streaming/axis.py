"""The axes along which a clip can be streamed, and a kernel's window along an axis. No MLX."""

import enum
from typing import NamedTuple


class Axis(enum.IntEnum):
    """The axes of (B, T, H, W, C) along which a clip can be streamed."""

    TIME = 1
    HEIGHT = 2
    WIDTH = 3

    grid: int  # the index of the axis in a grid (T, H, W); no property, since plans read it millions of times

    def __init__(self, value: int) -> None:
        self.grid = value - 1


class Border(enum.Enum):
    """How a window behaves at the two ends of the clip."""

    PAD = "pad"  # positions beyond the ends are padded
    SHIFT = "shift"  # the window moves inward, so that every output has `kernel` input positions


class WindowSpec(NamedTuple):
    """The input window of one output ("result") of a layer along one axis."""

    kernel: int = 1  # input positions per output
    stride: int = 1  # input positions from one output to the next
    before: int = 0  # padding before the first position, with `Border.PAD`
    after: int = 0  # padding after the last position, with `Border.PAD`
    border: Border = Border.PAD

    @property
    def cached(self) -> int:
        """Maximum number of positions that a stream caches between two steps."""
        return self.kernel if self.border is Border.SHIFT else self.kernel - 1

    @property
    def behind(self) -> int:
        """Positions before its own that an output depends on."""
        return self.kernel // 2 if self.border is Border.SHIFT else self.before

    @property
    def ahead(self) -> int:
        """Positions after its own that an output depends on."""
        return self.kernel - 1 - self.behind if self.border is Border.SHIFT else self.after

    def results(self, length: int) -> int:
        """The number of outputs for a clip of `length` positions, at least `kernel` with `Border.SHIFT`."""
        if self.border is Border.SHIFT:
            return length
        return (self.before + length + self.after - self.kernel) // self.stride + 1

    def ready(self, seen: int) -> int:
        """The number of outputs that are final when `seen` positions have arrived, and more may follow."""
        if self.border is Border.SHIFT:
            return 0 if seen < self.kernel else max(0, seen - self.ahead)
        return max(0, (seen + self.before - self.kernel) // self.stride + 1)

    def needed(self, results: int) -> int:
        """The number of input positions required to compute the first `results` outputs."""
        if self.border is Border.SHIFT:
            return max(self.kernel, results + self.ahead)
        return (results - 1) * self.stride + self.kernel - self.before
