"""The containers and codecs of videos and audio, a table entry each, of which errors and ffmpeg's arguments are made.

Plain data: `--help`, which names the codecs, reads it without numpy or ffmpeg. Which metadata a container keeps is in
`video/metadata.py`.

Color: frames are full-range RGB. All codecs but FFV1 store limited range, by default BT.709, see `file_format`, and say
so: without tags many players assume the BT.601 matrix for small frames. HDR is an HEVC master by default.

Odd sizes: H.264 and HEVC with 4:2:0 chroma can neither code nor crop to an odd number of pixels, so odd sizes are
stored as 4:4:4. The size is exact, but many players (QuickTime, browsers, hardware decoders) support 4:2:0 only; the
VAE's own sizes are always even. ffmpeg's ProRes 4:2:2 encoder corrupts the last columns of an odd width, so odd sizes
use ProRes 4444. VP9 and AV1 round the chroma planes up and support odd sizes with 4:2:0.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial


@dataclass(frozen=True)
class Container:
    """Container of ffmpeg, with its default codecs."""

    format: str
    codec: str = "h264"
    hdr_codec: str = "hevc"
    audio_codec: str = "aac"


#: The containers of videos, by ending.
CONTAINERS = {
    ".mp4": Container("mp4"),
    ".mov": Container("mov"),
    ".mkv": Container("matroska"),
    ".webm": Container("webm", "vp9", "vp9", "opus"),
}


@dataclass(frozen=True)
class Codec:
    """Codec of ffmpeg."""

    encoder: str
    endings: tuple[str, ...]  # of the containers that support it
    pixel_formats: Mapping[int, str]  # the defaults, by bit depth
    odd_pixel_formats: Mapping[int, str] | None = None  # for an odd width or height, if they differ; {} for none
    more_pixel_formats: tuple[str, ...] = ()  # that users may choose
    about: str = ""  # for help
    other_names: tuple[str, ...] = ()
    crf: tuple[int, int] | None = None  # the default constant quality, and the worst; 0 is the best
    hdr_crf: int | None = None  # the default for HDR, if it is another one
    has_presets: bool = False
    has_gops: bool = True  # not every frame is a keyframe
    min_size: tuple[int, int] = (1, 1)  # pixels; measured with every write outside the encoder's memory made an error
    max_fps: int | None = None
    is_mac_only: bool = False
    tag: str | None = None  # in mp4 and mov, instead of ffmpeg's own
    options: tuple[str, ...] = ()
    live_options: tuple[str, ...] = ()  # encoders otherwise hold 20 to 50 frames back


_MPEG_ENDINGS = (".mp4", ".mov", ".mkv")
_WEB_ENDINGS = (".webm", ".mkv", ".mp4")
_YUV420 = {8: "yuv420p", 10: "yuv420p10le"}
_YUV444 = {8: "yuv444p", 10: "yuv444p10le"}
_YUV422P10, _YUV444P10 = dict.fromkeys((8, 10), "yuv422p10le"), dict.fromkeys((8, 10), "yuv444p10le")
_YUV = ("yuv422p", "yuv444p", "yuv422p10le", "yuv444p10le")
_DEEP_YUV = ("yuv420p12le", "yuv422p12le", "yuv444p12le")
_QUICKTIME_TAG = "hvc1"  # QuickTime does not play ffmpeg's default, hev1

_MPEG = partial(
    Codec,
    endings=_MPEG_ENDINGS,
    pixel_formats=_YUV420,
    odd_pixel_formats=_YUV444,
    has_presets=True,
    live_options=("-tune", "zerolatency"),  # no lookahead
)
_PRORES = partial(
    Codec,
    "prores_ks",
    (".mov", ".mkv"),
    has_gops=False,
    options=("-vendor", "apl0"),  # editors on macOS expect Apple's vendor id
)
# The hardware of a Mac.
_TOOLBOX = partial(
    Codec,
    endings=_MPEG_ENDINGS,
    odd_pixel_formats={},
    is_mac_only=True,
    options=("-q:v", "65"),  # a quality of 100 is the best
    live_options=("-realtime", "1"),
)

#: The default qualities are visually lossless.
CODECS: dict[str, Codec] = {
    "h264": _MPEG("libx264", more_pixel_formats=(*_YUV, "yuvj420p", "nv12"), crf=(18, 51)),
    "hevc": _MPEG(
        "libx265",
        more_pixel_formats=(*_YUV, *_DEEP_YUV, "gbrp", "gbrp10le"),
        about="also called h265",
        other_names=("h265",),
        crf=(20, 51),
        hdr_crf=12,
        min_size=(49, 16),  # its lookahead takes blocks of 16 pixels by fours, and refuses less than 16 lines
        tag=_QUICKTIME_TAG,
        options=("-x265-params", "log-level=error"),
    ),
    # Stored as ProRes 422 HQ, and 4:4:4 as ProRes 4444.
    "prores": _PRORES(_YUV422P10, _YUV444P10, about="422 HQ"),
    "prores4444": _PRORES(_YUV444P10, about="4:4:4", other_names=("prores_4444",)),
    # Lossless RGB. A bit depth of 10 comes as 16-bit RGB, and all 16 bits are stored.
    "ffv1": Codec(
        "ffv1",
        (".mkv",),
        {8: "bgr0", 10: "gbrp16le"},
        more_pixel_formats=("gbrp10le", "gbrp12le", "yuv420p", "yuv420p10le", *_YUV, *_DEEP_YUV, "yuv444p16le"),
        about="lossless",
        has_gops=False,
        min_size=(2, 1),
        options=("-level", "3", "-g", "1", "-slicecrc", "1"),
    ),
    "vp9": Codec(
        "libvpx-vp9",
        _WEB_ENDINGS,
        _YUV420,
        more_pixel_formats=(*_YUV, "gbrp", "gbrp10le"),
        crf=(24, 63),
        options=("-b:v", "0", "-deadline", "good", "-cpu-used", "4", "-row-mt", "1"),
        live_options=("-lag-in-frames", "0"),
    ),
    "av1": Codec(
        "libsvtav1",
        _WEB_ENDINGS,
        _YUV420,
        crf=(24, 63),
        min_size=(64, 64),
        max_fps=240,
        options=("-preset", "8"),
        live_options=("-svtav1-params", "pred-struct=1"),
    ),
    "h264_videotoolbox": _TOOLBOX("h264_videotoolbox", pixel_formats={8: "yuv420p"}, more_pixel_formats=("nv12",)),
    "hevc_videotoolbox": _TOOLBOX(
        "hevc_videotoolbox",
        pixel_formats={8: "yuv420p", 10: "p010le"},
        more_pixel_formats=("nv12",),
        tag=_QUICKTIME_TAG,
    ),
}
ENCODER_PRESETS = ("ultrafast", "superfast", "veryfast", "faster", "fast", "medium", "slow", "slower", "veryslow")


@dataclass(frozen=True)
class AudioCodec:
    """Audio codec of ffmpeg."""

    encoder: str
    endings: tuple[str, ...]  # of the containers that support it
    kilobits: int | None = None  # per second and channel; None if it is lossless
    wide_encoder: str | None = None  # for samples of more than 16 bits, if that is another one
    layouts: tuple[str, ...] = ()  # of channels that the encoder stores; all if there are none
    max_channels: int | None = 8


#: AAC has as many bits as ffmpeg's own encoder needs for audio that begins at once, and for drums: see docs/audio.md.
#: The layouts were measured: a tone in each channel comes back in the same one, and in no other.
AUDIO_CODECS: dict[str, AudioCodec] = {
    "aac": AudioCodec(
        "aac",
        (".mp4", ".mov", ".mkv"),
        160,
        layouts=("mono", "stereo", "2.1", "3.0", "3.0(back)", "3.1", "4.0", "quad", "4.1", "5.0", "5.1", "hexagonal")
        + ("6.1(back)", "7.0", "7.1", "7.1(wide)", "octagonal"),
    ),
    "pcm": AudioCodec("pcm_s16le", (".mov", ".mkv"), wide_encoder="pcm_s24le", max_channels=None),
    "flac": AudioCodec("flac", (".mp4", ".mkv")),
    "alac": AudioCodec(
        "alac",
        (".mp4", ".mov", ".mkv"),
        layouts=("mono", "stereo", "3.0", "4.0", "5.0", "5.1", "6.1(back)", "7.1(wide)"),
    ),
    # ffmpeg permutes the channels of 5.0 and 6.1, which every decoder then plays at other places.
    "opus": AudioCodec("libopus", (".webm", ".mkv"), 80, layouts=("mono", "stereo", "3.0", "quad", "5.1", "7.1")),
}

#: The CRF of one frame of H.264 through which pipelines send stills before they encode them: up to LTX-2.3, and then.
STILL_CRF, LATER_STILL_CRF = 33, 18
MAX_STILL_CRF = 51
