"""What can go wrong, as one family of exceptions.

Every message is one sentence: the file or shape at fault, what was expected, what to do.
"""


class LTXVAEError(Exception):
    """Base of every error this package raises on purpose."""


class CheckpointError(LTXVAEError):
    """A checkpoint that cannot be read, is incomplete, or is of a kind that is not supported."""


class CheckpointsDiffer(LTXVAEError):
    """Two checkpoints that should have the same weights do not."""


class LatentsError(LTXVAEError):
    """Latents, noise or pixels whose shape, values or layout the network cannot take."""


class PlanError(LTXVAEError):
    """A way to decode that was asked for and cannot be had."""


class DecodeError(LTXVAEError):
    """The network ran, and what came out is not a picture (not finite, or one flat colour)."""


class WriterError(LTXVAEError):
    """Frames that could not be written."""


class ReaderError(LTXVAEError):
    """A video that could not be read."""


class TilingError(PlanError, ValueError):
    """Tiles that are not possible. Also a ValueError, which is what apps with their own decoder catch."""
