"""The supported codecs and containers, and their ffmpeg arguments.

Color: frames are full-range RGB. All codecs but FFV1 store limited-range BT.709, converted with that matrix and
tagged with it. Without tags many players assume the BT.601 matrix for small frames.

Odd sizes: H.264 and HEVC with 4:2:0 chroma can neither code nor crop to an odd number of pixels, so odd sizes are
stored as 4:4:4. The size is exact, but many players (QuickTime, browsers, hardware decoders) support 4:2:0 only; the
VAE's own sizes are always even. ffmpeg's ProRes 4:2:2 encoder corrupts the last columns of an odd width, so odd sizes
use ProRes 4444. VP9 and AV1 round the chroma planes up and support odd sizes with 4:2:0.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from ..errors import WriterError, quote
from .ffmpeg import has_encoder
from .sink import SinkOptions

SCALER = "bicubic+accurate_rnd+full_chroma_int+full_chroma_inp"
_TO_BT709 = f"scale=in_range=pc:out_range=tv:out_color_matrix=bt709:flags={SCALER}"
# The tags must be set on the frames: "unknown" of the frames overrides output options such as -color_primaries.
_TAG_BT709 = "setparams=range=tv:colorspace=bt709:color_primaries=bt709:color_trc=bt709"
_TAG_RGB = "setparams=range=pc:color_primaries=bt709:color_trc=bt709"


@dataclass(frozen=True)
class Codec:
    """A codec and its ffmpeg settings.

    Attributes:
        endings: of the containers that support it.
        pixel_formats: by bit depth.
        odd_pixel_formats: for an odd width or height, if they differ.
        default_crf, max_crf: constant quality, 0 is the best; `default_crf` is None for a codec without it.
        live_options: make each frame come out as soon as it is in; by default encoders hold 20 to 50 back.
    """

    encoder: str
    endings: tuple[str, ...]
    pixel_formats: Mapping[int, str]
    odd_pixel_formats: Mapping[int, str] | None = None
    default_crf: int | None = None
    max_crf: int = 0
    options: tuple[str, ...] = ()
    live_options: tuple[str, ...] = ()

    def color_filter(self, size: tuple[int, int], bit_depth: int) -> str:
        """The ffmpeg filter that converts full-range RGB to the codec's pixel format and tags it."""
        is_odd = any(side % 2 for side in size)
        formats = self.odd_pixel_formats if is_odd and self.odd_pixel_formats else self.pixel_formats
        pixel_format = formats[bit_depth]
        if pixel_format.startswith("yuv"):
            return f"{_TO_BT709},format={pixel_format},{_TAG_BT709}"
        return f"format={pixel_format},{_TAG_RGB}"


_FORMATS = {".mp4": "mp4", ".mov": "mov", ".mkv": "matroska", ".webm": "webm"}
CONTAINER_ENDINGS = tuple(_FORMATS)
_FRAGMENTED_ENDINGS = (".mp4", ".mov")
_MPEG_ENDINGS = (".mp4", ".mov", ".mkv")
_WEB_ENDINGS = (".webm", ".mkv", ".mp4")
_YUV420 = {8: "yuv420p", 10: "yuv420p10le"}
_YUV444 = {8: "yuv444p", 10: "yuv444p10le"}
_QUIET_X265 = ("-x265-params", "log-level=error")
_NO_LOOKAHEAD = ("-tune", "zerolatency")
_VP9_SPEED = ("-b:v", "0", "-deadline", "good", "-cpu-used", "4", "-row-mt", "1")

#: The default qualities are visually lossless.
CODECS: dict[str, Codec] = {
    "h264": Codec("libx264", _MPEG_ENDINGS, _YUV420, _YUV444, default_crf=18, max_crf=51, live_options=_NO_LOOKAHEAD),
    "hevc": Codec(
        "libx265",
        _MPEG_ENDINGS,
        _YUV420,
        _YUV444,
        default_crf=20,
        max_crf=51,
        options=_QUIET_X265,
        live_options=_NO_LOOKAHEAD,
    ),
    "prores": Codec(
        "prores_ks",
        (".mov", ".mkv"),
        {8: "yuv422p10le", 10: "yuv422p10le"},  # stored as ProRes 422 HQ, and 4:4:4 as ProRes 4444
        {8: "yuv444p10le", 10: "yuv444p10le"},
        options=("-vendor", "apl0"),  # editors on macOS expect Apple's vendor id
    ),
    # Lossless RGB. A bit depth of 10 comes as 16-bit RGB, and all 16 bits are stored.
    "ffv1": Codec("ffv1", (".mkv",), {8: "bgr0", 10: "gbrp16le"}, options=("-level", "3", "-g", "1", "-slicecrc", "1")),
    "vp9": Codec(
        "libvpx-vp9",
        _WEB_ENDINGS,
        _YUV420,
        default_crf=24,
        max_crf=63,
        options=_VP9_SPEED,
        live_options=("-lag-in-frames", "0"),
    ),
    "av1": Codec(
        "libsvtav1",
        _WEB_ENDINGS,
        _YUV420,
        default_crf=24,
        max_crf=63,
        options=("-preset", "8"),
        live_options=("-svtav1-params", "pred-struct=1"),  # low delay
    ),
}
_OTHER_NAMES = {"h265": "hevc"}


def find_codec(name: str, ending: str, options: SinkOptions) -> Codec:
    """The codec that the options name, in any case, or the default for a file that ends in `ending`.

    Raises:
        WriterError: for a codec that is unknown or not supported by the container, a crf out of range (ffmpeg would
            silently change it), and a fragmented container that cannot be.
    """
    if options.fragmented:
        check_fragmented(name, ending)
    key = (options.codec or ("vp9" if ending == ".webm" else "h264")).lower()
    key = _OTHER_NAMES.get(key, key)
    if key not in CODECS:
        raise WriterError(f"{name}: the codec {quote(options.codec)} is not supported; use one of {', '.join(CODECS)}.")
    codec, crf = CODECS[key], options.crf
    if ending not in codec.endings:
        raise WriterError(f"{name}: {key} is not supported in {ending}; use {' or '.join(codec.endings)}.")
    if crf is not None and codec.default_crf is None:
        raise WriterError(f"{name}: {codec.encoder} has no crf; leave it out.")
    if crf is not None and not 0 <= crf <= codec.max_crf:
        raise WriterError(f"{name}: a crf of {crf} is not between 0 and {codec.max_crf}.")
    return codec


def check_encoder(name: str, codec: Codec) -> None:
    """Raise a `WriterError` if this build of ffmpeg lacks the codec's encoder."""
    if not has_encoder(codec.encoder):
        key = next(key for key, known in CODECS.items() if known is codec)
        raise WriterError(f"{name}: this ffmpeg was built without {codec.encoder}, which {key} needs.")


def check_fragmented(name: str, ending: str) -> None:
    """Raise a `WriterError` if a file with this ending cannot be fragmented."""
    if ending not in _FRAGMENTED_ENDINGS:
        raise WriterError(f"{name}: cannot be played while it grows; only {' and '.join(_FRAGMENTED_ENDINGS)} can.")


def quality_arguments(codec: Codec, crf: int | None) -> list[str]:
    """`-crf`, with the default if it is None."""
    return [] if codec.default_crf is None else ["-crf", str(codec.default_crf if crf is None else crf)]


def live_arguments(codec: Codec, fps: Fraction) -> list[str]:
    """A short delay, and a key frame every second, to which a player can jump."""
    return [*codec.live_options, "-g", str(max(1, round(fps)))]


def container_arguments(ending: str, codec: Codec, *, fragmented: bool) -> list[str]:
    """The container format and its options."""
    arguments = ["-f", _FORMATS[ending]]
    if fragmented:
        # Fragments of half a second, and each leaves ffmpeg at once. The header (moov) is written with the first one
        # (delay_moov), when ffmpeg knows the delay of the audio encoder, which would otherwise shift the video.
        flags = "+empty_moov+default_base_moof+frag_keyframe+delay_moov"
        arguments += ["-movflags", flags, "-frag_duration", "500000", "-flush_packets", "1"]
    elif ending in (".mp4", ".mov"):
        arguments += ["-movflags", "+faststart"]  # the index first, so that playback starts before the download ends
    if ending in (".mp4", ".mov") and codec.encoder == "libx265":
        arguments += ["-tag:v", "hvc1"]  # QuickTime does not play ffmpeg's default, hev1
    return arguments
