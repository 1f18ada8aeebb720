"""What options of HDR may be, by the names that users type."""

from typing import Literal

#: The curve of the codes: ACEScct, with the primaries of ACEScg, as LTX-2.5 has it; or ARRI LogC3 at EI 800, with those
#: of Rec.709, as the HDR LoRA of LTX-2.3 has it.
Transfer = Literal["acescct", "logc3"]
#: The signal of HDR latents in a video.
SignalName = Literal["hlg", "pq", "sdr"]
#: The space of HDR latents in EXR images.
ExrSpaceName = Literal["srgb", "acescg", "acescct"]
#: What the pixels of EXR images mean: light with the primaries of Rec.709 or of ACEScg, or the codes of ACEScct.
HDRInput = Literal["srgb_linear", "acescg", "acescct"]
