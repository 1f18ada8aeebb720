"""The content light level of PQ, which ffmpeg takes as an option of its input."""

from ..errors import WriterError
from .ffmpeg import listing
from .frame_format import FrameFormat

_OPTION = "-content_light"
# The brightest pixel, and the brightest frame on average, in cd/m2. The frames are not known when the file is begun, so
# these are the most that PQ has, and what masters commonly state.
_LEVELS = "10000,400"


def content_light_arguments(frames: FrameFormat) -> list[str]:
    """ffmpeg's arguments before the input of frames."""
    return [_OPTION, _LEVELS] if frames.transfer == "smpte2084" else []


def check_content_light(frames: FrameFormat) -> None:
    """Raise a `WriterError` if this ffmpeg cannot state the content light level that frames need."""
    if content_light_arguments(frames) and all(
        not row[:1] or not row[0].startswith(_OPTION) for row in listing("-h", "long", error=WriterError)
    ):
        raise WriterError(
            "this ffmpeg cannot state the light level of PQ (it has no -content_light); use the one of imageio-ffmpeg "
            "(unset IMAGEIO_FFMPEG_EXE)."
        )
