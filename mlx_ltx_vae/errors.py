"""The exceptions of this package.

Every message is one sentence: the file or shape at fault, what was expected, what to do.
"""


class LTXVAEError(Exception):
    """Base class of all errors that this package raises."""


class CheckpointError(LTXVAEError):
    """A checkpoint cannot be read, is incomplete, or is not supported."""


class CheckpointsDiffer(LTXVAEError):
    """Two checkpoints that should have the same weights differ."""


class LatentsError(LTXVAEError):
    """Latents, noise or pixels have a shape, values or layout that the network cannot take."""


class PlanError(LTXVAEError):
    """The requested options or memory budget cannot be met."""


class DecodeError(LTXVAEError):
    """The network's output is not finite, is the same patch everywhere, or has the wrong number of frames."""


class DecodeCancelled(LTXVAEError):
    """The decode was cancelled by `cancel` of its stream."""


class DeviceError(LTXVAEError, RuntimeError):
    """The device ran out of memory, or was stopped. Also a RuntimeError, which is what MLX raises."""


class WriterError(LTXVAEError):
    """Frames could not be written."""


class ReaderError(LTXVAEError):
    """A video could not be read."""


class DistributedError(LTXVAEError):
    """Several processes cannot work together: they cannot connect, differ in what they work on, or one has failed."""


class ItemsError(LTXVAEError):
    """A list of inputs cannot be read, two of them have the same output, or some of them failed."""


class TilingError(PlanError, ValueError):
    """Invalid tiles. Also a ValueError, because apps with their own decoder catch that."""


def describe_error(error: Exception) -> str:
    """An error in one line, with the class name of errors that are not this package's own."""
    text = one_line(error)
    return text if isinstance(error, LTXVAEError) else f"{type(error).__name__}: {text}".rstrip(": ")


def one_line(message: object) -> str:
    """A text with single spaces instead of line breaks."""
    return " ".join(str(message).split())
