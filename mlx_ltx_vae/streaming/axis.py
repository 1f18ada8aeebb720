"""The axes along which a clip can be streamed, and what a kernel sees along one of them. No MLX."""

import enum
from typing import NamedTuple


class Axis(enum.IntEnum):
    """The axes of (B, T, H, W, C) along which a clip can be streamed."""

    TIME = 1
    HEIGHT = 2
    WIDTH = 3

    @property
    def grid(self) -> int:
        """Its index in a grid (T, H, W)."""
        return self.value - 1


class Border(enum.Enum):
    """What a window does at the two ends of the clip."""

    PAD = "pad"  # positions beyond the ends are padded
    SHIFT = "shift"  # the window moves inwards, so that every result sees `kernel` positions


class WindowSpec(NamedTuple):
    """What one result of a layer sees along one axis.

    Attributes:
        kernel: positions that one result sees.
        stride: positions from one result to the next.
        before: padding in front of the first position, with `Border.PAD`.
        after: padding behind the last position, with `Border.PAD`.
        border: what happens at the ends of the clip.
    """

    kernel: int = 1
    stride: int = 1
    before: int = 0
    after: int = 0
    border: Border = Border.PAD

    @property
    def cached(self) -> int:
        """Positions that a stream keeps between two steps, at most."""
        return self.kernel if self.border is Border.SHIFT else self.kernel - 1

    @property
    def behind(self) -> int:
        """Positions that a result sees before its own."""
        return self.kernel // 2 if self.border is Border.SHIFT else self.before

    @property
    def ahead(self) -> int:
        """Positions that a result sees after its own."""
        return self.kernel - 1 - self.behind if self.border is Border.SHIFT else self.after

    def results(self, length: int) -> int:
        """How many results a clip of `length` positions has."""
        if self.border is Border.SHIFT:
            return length
        return (self.before + length + self.after - self.kernel) // self.stride + 1

    def needed(self, results: int) -> int:
        """How many positions must have come before the first `results` results can be computed."""
        if self.border is Border.SHIFT:
            return max(self.kernel, results + self.ahead)
        return (results - 1) * self.stride + self.kernel - self.before
