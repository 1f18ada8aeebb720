"""LTX Decoder Options: what most decodes leave as it is."""

from dataclasses import dataclass, field
from typing import Any

from comfy_api.latest import io

from mlx_ltx_vae import Keyframes, LatentsError

from .host import CATEGORY
from .latents import video_latents

Options = io.Custom("LTX_DECODER_OPTIONS_MLX")
#: No curve of HDR.
NO_HDR = "no"
#: Choices of `audio_length`.
FIT, REFUSE = "fit", "refuse"
#: Choices of `convention`, which is the option `like` of a decode.
CONVENTIONS = ["ltx-video", "diffusers"]
MAX_SEED = 2**32 - 1
#: Stands for the default of a number that need not be given.
DEFAULT = -1.0


@dataclass(frozen=True)
class DecoderOptions:
    """`stream` are options of `VideoVAE.stream`, and `hdr` is the curve of HDR latents."""

    stream: dict = field(default_factory=dict)
    hdr: str | None = None
    refuses_length: bool = False  # of audio that is not as long as the video

    def check_keyframes(self, num_frames: int) -> None:
        """Raise a `LatentsError` for keyframes after the end of a video."""
        keyframes = self.stream.get("keyframes")
        if keyframes is not None and max(keyframes.frames) >= num_frames:
            last = f"and the last frame of the video is {num_frames - 1}"
            raise LatentsError(f"keyframe_frames has {max(keyframes.frames)}, {last}; write frames of the video.")


def options_input() -> io.Input:
    tooltip = "LTX Decoder Options (MLX): noise of the decoder, keyframes, HDR, and audio of another length."
    return Options.Input("options", optional=True, tooltip=tooltip)


class LTXDecoderOptions(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        default_help = "-1: as its convention has it. For the VAEs of LTX-Video 0.9.1 to 0.9.8."
        share = {"default": DEFAULT, "min": DEFAULT, "max": 1.0, "step": 0.005}
        return io.Schema(
            node_id="LTXDecoderOptionsMLX",
            display_name="LTX Decoder Options (MLX)",
            category=CATEGORY,
            search_aliases=["decoder noise", "decode timestep", "keyframes", "hdr", "mlx"],
            description="Options of a decode that most clips do not need, for LTX Save Video (MLX) and its siblings.",
            inputs=[
                io.Int.Input(  # not `seed`, to which the page adds a control that changes it after each run
                    "decoder_seed",
                    default=0,
                    min=0,
                    max=MAX_SEED,
                    tooltip="Of the noise of LTX-Video 0.9.1 to 0.9.8, and of LTX-2.5's diffusion decoder. Others take "
                    "0.",
                ),
                io.Float.Input("timestep", tooltip=f"Of the decoder. {default_help}", **share),
                io.Float.Input(
                    "noise_scale", tooltip=f"The share of the latents that noise replaces. {default_help}", **share
                ),
                io.Combo.Input(
                    "convention",
                    options=CONVENTIONS,
                    default="ltx-video",
                    tooltip="Whose defaults these VAEs follow: ltx-video has timestep 0.05, and noise scale 0.025.",
                ),
                io.Latent.Input(
                    "keyframes",
                    optional=True,
                    tooltip="Stills for LTX-2.5's diffusion decoder, each encoded alone, one after another along "
                    "time. Other decoders ignore them.",
                ),
                io.String.Input(
                    "keyframe_frames",
                    default="",
                    tooltip="The frame of each of the keyframes in the video, such as 24, 48, 72.",
                ),
                io.Combo.Input(
                    "hdr",
                    options=[NO_HDR, "acescct", "logc3"],
                    default=NO_HDR,
                    tooltip="The latents are HDR: acescct for LTX-2.5, logc3 for LTX-2.3's HDR LoRA. "
                    "The file is an HLG master; mp4, hevc is what players expect.",
                ),
                io.Combo.Input(
                    "audio_length",
                    options=[FIT, REFUSE],
                    default=FIT,
                    tooltip="Audio that is longer or shorter than the video. fit: cut at the end of the video, or "
                    "silent up to there. refuse: an error before the decode.",
                ),
            ],
            outputs=[Options.Output(display_name="options", tooltip="For the decode nodes of this pack.")],
        )

    @classmethod
    def execute(
        cls,
        decoder_seed: int,
        timestep: float,
        noise_scale: float,
        convention: str,
        keyframe_frames: str,
        hdr: str,
        audio_length: str,
        keyframes: dict | None = None,
    ) -> io.NodeOutput:
        noise_options = {"timestep": timestep, "noise_scale": noise_scale}
        stream: dict[str, Any] = {name: value for name, value in noise_options.items() if value >= 0}
        if keyframes is not None:
            stream["keyframes"] = Keyframes(video_latents(keyframes), frame_numbers(keyframe_frames))
        stream |= {"seed": decoder_seed, "like": convention}
        return io.NodeOutput(DecoderOptions(stream, None if hdr == NO_HDR else hdr, audio_length == REFUSE))


def frame_numbers(text: str) -> list[int]:
    """Return the whole numbers in a text such as "24, 48, 72"."""
    try:
        return [int(word) for word in text.replace(",", " ").split()]
    except ValueError:
        raise LatentsError(f"keyframe_frames is {text[:80]!r}; write frame numbers such as 24, 48, 72.") from None
