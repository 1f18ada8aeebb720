"""All nodes of the pack."""

from comfy_api.latest import io

from .audio_nodes import LTXDecodeAudio, LTXEncodeAudio
from .image_nodes import LTXDecodeFrames, LTXDemoLatents, LTXEncode
from .options_node import LTXDecoderOptions
from .preview_nodes import LTXPreview, LTXSamplingPreview
from .video_nodes import LTXDecodeToVideo, LTXSaveVideo

NODES: list[type[io.ComfyNode]] = [
    LTXSaveVideo,
    LTXDecodeToVideo,
    LTXDecodeFrames,
    LTXDecoderOptions,
    LTXDecodeAudio,
    LTXEncode,
    LTXEncodeAudio,
    LTXPreview,
    LTXSamplingPreview,
    LTXDemoLatents,
]
