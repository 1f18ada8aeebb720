"""Options of plans, decodes and outputs as values: each has its name, type, default, help and check here. No MLX.

A public function lists the options that it takes, or takes them by the names in a `TypedDict` below. It makes one
object of them, which all further functions pass on. The options of the commands are made from the same fields.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

from .codec_table import AUDIO_CODECS, CODECS, ENCODER_PRESETS
from .errors import PlanError, TilingError, WriterError, option, suggest
from .files import expand_path
from .frame_format import FrameFormat, FrameOutput, frame_format
from .shapes import is_count

if TYPE_CHECKING:
    from .latents.keyframes import Keyframes
    from .tiling.config import TilingConfig

#: Noise from callers: arrays in the order in which the network draws them, or "zeros". `None` draws it from a seed.
Noise = Sequence[Any] | Literal["zeros"] | None

#: What the options `mode`, `order`, `bit_depth` and `like` accept.
ModeName = Literal["auto", "exact", "single", "tiled"]
OrderName = Literal["auto", "time", "rows", "columns"]
BitDepth = Literal[8, 10]
ConventionName = Literal["ltx-video", "diffusers"]

DEFAULT_CONVENTION: ConventionName = "ltx-video"

#: Curve of HDR codes: ACEScct, with the primaries of ACEScg, for LTX-2.5; or ARRI LogC3 at EI 800, with the primaries
#: of Rec.709, for the HDR LoRA of LTX-2.3.
Transfer = Literal["acescct", "logc3"]
#: Signal of HDR latents in a video.
SignalName = Literal["hlg", "pq", "sdr"]
#: Color space of HDR latents in EXR images.
ExrSpaceName = Literal["srgb", "acescg", "acescct"]
#: Content of the pixels of EXR images: light with the primaries of Rec.709 or of ACEScg, or the codes of ACEScct.
HDRInput = Literal["srgb_linear", "acescg", "acescct"]
#: Trainer that reads the latent files of an encode.
LayoutName = Literal["ltx-trainer-mlx", "ltx-trainer", "musubi-tuner"]

#: The names that options of the commands accept.
CHOICES: dict[str, tuple[Any, ...]] = {
    "mode": get_args(ModeName),
    "order": get_args(OrderName),
    "bit_depth": get_args(BitDepth),
    "hdr": get_args(Transfer),
    "hdr_output": get_args(SignalName),
    "exr_space": get_args(ExrSpaceName),
    "hdr_input": get_args(HDRInput),
    "layout": get_args(LayoutName),
}

#: The largest seed. Seeds begin at 0, and each makes different noise.
MAX_SEED = 2**32 - 1


def option_field(
    default: Any,
    help: str,
    *,
    flag: str | None = None,
    metavar: str | None = None,
    choices: Sequence[Any] | None = None,
    of_videos: bool = False,
) -> Any:
    """Return a field of a dataclass that is an option of the commands, too.

    Args:
        default: of the field and of the option.
        help: what `--help` says, where "%%" stands for a percent sign.
        flag: as it is typed. `None` means "--" and the name of the field.
        metavar: stands for the argument in the help. An option that is on or off, or has choices, needs none.
        choices: the arguments that it accepts. `None` means any.
        of_videos: whether only videos take it.
    """
    metadata = {"help": help, "flag": flag, "metavar": metavar, "choices": choices, "of_videos": of_videos}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class PlanOptions:
    """Options of a plan. `VideoVAE.plan` documents those that users choose.

    Attributes:
        keyframes: the frame numbers of the keyframes.
        frames: the first frame or sample to decode, and one more than the last. `None` means all.
        outputs: the formats that the consumer converts frames to; if empty, floats in the network's dtype.
        joined: whether all output becomes one array; of a window of a film, the number of frames of that array.
        held_frames: for a window of a film, the number of frames of the previous window that wait. It yields floats.
        audio: possible plans of the audio that is decoded meanwhile, the fastest first; the plan has one of them.
        holds_latents: whether all latents are in memory, rather than in a file that is read in parts.
        weight_bytes: bytes of the weights of all networks in memory. `None` counts only the network of the plan.
        input_bytes: bytes that take part in making the input, and are in memory meanwhile.

    Raises:
        PlanError: if a value is invalid, or if options contradict each other.
    """

    memory_budget: str | int | None = option_field(
        None,
        """the most memory to use, weights and MLX's buffer cache included: 8GB, 500MB, or 50%% of the available memory;
        refuses what does not fit (default: 50%%, or more if nothing fits in that)""",
        metavar="SIZE",
    )
    mode: ModeName = option_field(
        "auto",
        """how the clip is divided. exact: in pieces, with the frames of a single pass up to rounding. single: the whole
        clip at once, in memory that grows with it. tiled: in overlapping tiles that are blended, so not exact. auto
        (default): exact, and tiles only if nothing exact fits the memory budget""",
        choices=CHOICES["mode"],
    )
    order: OrderName = option_field(
        "auto",
        """direction in which the exact mode goes through the clip. In float32 the frames are the same; in half
        precision they round differently. Memory differs, and when the first frame is written. time: one latent frame
        after another; frames are written early, and memory grows with the size of a frame. rows, columns: strips of all
        frames, from top to bottom or from left to right; less memory for a short clip of large frames, but all frames
        are written at the end. auto (default): the first of the three that fits the memory budget""",
        choices=CHOICES["order"],
    )
    tiling: "TilingConfig | None" = None
    tile_batch_size: int = option_field(1, "tiles that run together (default: 1)", metavar="N")
    chunk: int | None = option_field(
        None,
        """latent frames, rows or columns that the exact mode decodes at a time; with the same frames up to rounding.
        A larger N takes more memory, and may be faster (default: 1 or 2, by device and memory)""",
        metavar="N",
    )
    steps: int | None = option_field(
        None, "denoising steps, for the diffusion decoder of LTX-2.5 (default: the checkpoint's own)", metavar="N"
    )
    keyframes: tuple[int, ...] = ()
    frames: tuple[int, int] | None = None
    outputs: tuple[FrameOutput, ...] = ()
    joined: bool | int = False
    held_frames: int | None = None
    audio: Sequence[Any] = ()  # of `Plan`, which is made of these options
    holds_latents: bool = True
    weight_bytes: int | None = None
    input_bytes: int = 0

    def __post_init__(self) -> None:
        for item in fields(self):
            value, choices = getattr(self, item.name), item.metadata.get("choices")
            if choices and value not in choices:
                raise PlanError(f"{item.name} {value!r} is not known; expected {', '.join(choices)}.")
        chunk, by_time = self.chunk, self.order in ("auto", "time")
        if chunk is not None and not is_count(chunk, 1):
            raise PlanError(f"a chunk must be a whole number of positions, at least 1, not {chunk!r}.")
        if self.tiling is not None and self.mode != "tiled":
            raise PlanError('tiling goes with mode "tiled"; the other modes blend nothing.')
        if self.mode == "single" and (chunk is not None or not by_time):
            rule = option("a chunk and an order go with mode exact", "--chunk and --order go with --mode exact")
            raise PlanError(f"{rule}; a single pass has one chunk.")
        if self.mode == "tiled" and not by_time:
            rule = option("an order goes with mode exact", "--order goes with --mode exact")
            raise PlanError(f"tiles are streamed in time; {rule}.")
        if not is_count(size := self.tile_batch_size, 1):
            raise TilingError(f"a tile batch size must be a whole number of at least 1, not {size!r}.")


@dataclass(frozen=True)
class DecodeOptions:
    """Options of a decode, which `VideoVAE.stream` documents."""

    timestep: float | None = option_field(
        None, "the noise level of the latents, 0 to 1, for VAEs 0.9.1 to 0.9.8 (default: 0.05)", metavar="T"
    )
    seed: int = option_field(
        0, f"the seed of the noise, 0 to {MAX_SEED}, for VAEs that add noise (default: 0)", metavar="N"
    )
    noise: Noise = None
    noise_scale: float | None = option_field(
        None,
        "the share of the latents that is replaced by noise, 0 to 1, for VAEs 0.9.1 to 0.9.8 (default: 0.025)",
        metavar="S",
    )
    like: ConventionName = option_field(
        DEFAULT_CONVENTION,
        """follow the noise of this pipeline, for VAEs 0.9.1 to 0.9.8. ltx-video (default): the values above.
        diffusers: timestep 0 and no noise by default, and noise is mixed into denormalized latents""",
        flag="--convention",
        choices=get_args(ConventionName),
    )
    unnormalized: bool = False
    keyframes: "Keyframes | None" = None


#: Default options, as default arguments.
PLAN_DEFAULTS, DECODE_DEFAULTS = PlanOptions(), DecodeOptions()


# Options of a plan that a decode or an encode adds itself, or that may be given with a plan if they agree.
_WITH_A_PLAN = ("steps", "keyframes", "joined", "outputs")


def check_no_options(options: PlanOptions) -> None:
    """Raise a `PlanError` if options were given beside a plan, which has its own."""
    names = [
        option.name
        for option in fields(PlanOptions)
        if option.name not in _WITH_A_PLAN and getattr(options, option.name) != getattr(PLAN_DEFAULTS, option.name)
    ]
    if options.tiling is not None:
        names.remove("mode")
    if names:
        raise PlanError(f"the plan has its {' and '.join(names)} already; leave that out, or the plan.")


class PlanKeywords(TypedDict, total=False):
    """Options of `VideoVAE.plan` that `VideoVAE.estimate` takes too, and a decode instead of a plan."""

    memory_budget: str | int | None
    mode: ModeName
    order: OrderName
    tiling: "TilingConfig | None"
    tile_batch_size: int
    chunk: int | None
    steps: int | None


class DecodeKeywords(PlanKeywords, total=False):
    """Options of a decode: the fields of `DecodeOptions`, and those of its plan."""

    timestep: float | None
    seed: int
    noise: Noise
    noise_scale: float | None
    like: ConventionName
    unnormalized: bool
    keyframes: "Keyframes | None"
    frames: tuple[int, int] | None


class ExportKeywords(TypedDict, total=False):
    """Options of a decode that are fixed in an export."""

    timestep: float | None
    seed: int
    noise_scale: float | None
    like: ConventionName


def check_names(noun: str, names: Iterable[str], keywords: type) -> None:
    """Raise a `TypeError` for names that are not in a `TypedDict` of options of `noun`."""
    option_names = list(keywords.__annotations__)
    for name in names:
        if name not in option_names:
            raise TypeError(f"{noun} has no option {name!r}{suggest(name, option_names)}")


class EncodeKeywords(TypedDict, total=False):
    """Options of an encode, which `VideoVAE.encode` documents."""

    memory_budget: str | int | None
    tiling: "TilingConfig | None"
    tile_batch_size: int
    pad: bool


# Of the help.
_MAC_CODECS = ", ".join(name for name, codec in CODECS.items() if codec.is_mac_only)
_OTHER_CODECS = ", ".join(name for name, codec in CODECS.items() if not codec.is_mac_only)
_ABOUT_CODECS = ", ".join(f"{name} is {codec.about}" for name, codec in CODECS.items() if codec.about)
_CRFS = {name: codec.crf for name, codec in CODECS.items() if codec.crf is not None}
_LARGEST_CRFS = ", ".join(f"{largest} for {name}" for name, (_, largest) in _CRFS.items())
_DEFAULT_CRFS = ", ".join(f"{name} {default}" for name, (default, _) in _CRFS.items())
_PRESET_CODECS = " and ".join(name for name, codec in CODECS.items() if codec.has_presets)
_AUDIO_CODECS = ", ".join(f"{name} ({', '.join(codec.endings)})" for name, codec in AUDIO_CODECS.items())


@dataclass(frozen=True)
class OutputOptions:
    """Options of an output, see `VideoWriter`. Most of them are for videos only.

    Attributes:
        bit_depth: 8 or 10, instead of `frames`.
        overwrite: whether files of the same names are replaced; `None` means all but numbered stills in a folder.
        frames: what frames are written.
        contact_sheet: whether a contact sheet is written, beside the output or as the output.
        exr: of HDR latents, the frames of EXR images.
        exr_folder: a folder for EXR images beside the output; "{name}" stands for the output's name.
        sheet_frames: of HDR latents, the frames of contact sheets.
    """

    audio: str | os.PathLike | Iterable[Any] | None = option_field(
        None,
        "add this audio file instead of decoded audio, in full length even if the video is shorter",
        metavar="FILE",
        of_videos=True,
    )
    codec: str | None = option_field(
        None,
        f"{_OTHER_CODECS}, and on a Mac {_MAC_CODECS}; {_ABOUT_CODECS} (default: h264, or vp9 for .webm)",
        metavar="NAME",
        of_videos=True,
    )
    crf: int | None = option_field(
        None,
        f"constant quality, 0 is best; the maximum is {_LARGEST_CRFS} (default: {_DEFAULT_CRFS})",
        metavar="N",
        of_videos=True,
    )
    bit_depth: InitVar[int | None] = None
    fragmented: bool = option_field(
        False, "with -o -, an mp4 on standard output that plays while it grows, instead of raw frames", flag="--live"
    )
    overwrite: bool | None = None
    shortest: bool = option_field(
        False, "cut longer audio at the end of the video; all frames are kept", of_videos=True
    )
    metadata: Mapping[str, str] = field(default_factory=dict)
    encoder_preset: str | None = option_field(
        None,
        f"the speed of {_PRESET_CODECS}: {ENCODER_PRESETS[0]} to {ENCODER_PRESETS[-1]}; slower ones make smaller files "
        "(default: medium)",
        metavar="NAME",
        of_videos=True,
    )
    pix_fmt: str | None = option_field(
        None,
        "a pixel format of the codec, such as yuv444p (default: 4:2:0, 4:2:2 for prores, RGB for ffv1)",
        metavar="FORMAT",
        of_videos=True,
    )
    audio_codec: str | None = option_field(
        None,
        f"the codec of the audio: {_AUDIO_CODECS} (default: aac, or opus for .webm)",
        metavar="NAME",
        of_videos=True,
    )
    sample_rate: int | None = None
    contact_sheet: bool = option_field(
        False,
        """also write one picture of up to 16 frames with their times: clip.png beside clip.mp4, frames.png beside
        frames/; with -o clip.png only this picture""",
    )
    frames: FrameOutput = FrameOutput()
    exr: FrameOutput | None = None
    exr_folder: str | None = None
    sheet_frames: FrameOutput | None = None

    def __post_init__(self, bit_depth: int | None) -> None:
        if bit_depth is not None:
            object.__setattr__(self, "frames", FrameOutput(frame_format(bit_depth, WriterError)))
        if isinstance(self.audio, (str, os.PathLike)):
            object.__setattr__(self, "audio", expand_path(self.audio, WriterError))

    @property
    def format(self) -> FrameFormat:
        """Format of the frames that sinks take."""
        return self.frames.format


#: Default options of an output, as a default argument.
OUTPUT_DEFAULTS = OutputOptions()
