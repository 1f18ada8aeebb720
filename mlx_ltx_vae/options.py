"""Options of plans, decodes and outputs as values: each has its name, type, default and check here. No MLX.

A public function lists the options that it takes, or takes them by the names in a `TypedDict` below. It makes one
object of them, which all further functions pass on.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

from .errors import PlanError, TilingError, WriterError, option, suggest
from .frame_format import FrameFormat, FrameOutput, frame_format
from .shapes import is_count
from .units import expand_path

if TYPE_CHECKING:
    import mlx.core as mx

    from .latents.keyframes import Keyframes
    from .models.noise import Noise
    from .planning.plan import Plan
    from .tiling.config import TilingConfig

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

#: Metadata of a field of `OutputOptions` that goes with videos only.
OF_VIDEOS = {"of_videos": True}


@dataclass(frozen=True)
class PlanOptions:
    """Options of a plan. `VideoVAE.plan` documents those that users choose.

    Attributes:
        keyframes: the frame numbers of the keyframes.
        frames: the first frame or sample to decode, and one more than the last. `None` means all.
        outputs: the formats that the consumer converts frames to; if empty, floats in the network's dtype.
        joined: whether all output becomes one array; of a window of a film, the number of frames of that array.
        held_frames: for a window of a film, the number of frames of the previous window that wait. It yields floats.
        sound: possible plans of the sound that is decoded meanwhile, the fastest first; the plan has one of them.
        holds_latents: whether all latents are in memory, rather than in a file that is read in parts.
        weight_bytes: bytes of the weights of all networks in memory. `None` counts only the network of the plan.

    Raises:
        PlanError: if a value is invalid, or if options contradict each other.
    """

    memory_budget: str | int | None = None
    mode: ModeName = "auto"
    order: OrderName = "auto"
    tiling: "TilingConfig | None" = None
    tile_batch_size: int = 1
    chunk: int | None = None
    ranks: int = 1
    steps: int | None = None
    keyframes: tuple[int, ...] = ()
    frames: tuple[int, int] | None = None
    outputs: tuple[FrameOutput, ...] = ()
    joined: bool | int = False
    held_frames: int | None = None
    sound: "Sequence[Plan]" = ()
    holds_latents: bool = True
    weight_bytes: int | None = None

    def __post_init__(self) -> None:
        for name, choices in (("mode", get_args(ModeName)), ("order", get_args(OrderName))):
            if (value := getattr(self, name)) not in choices:
                raise PlanError(f"{name} {value!r} is not known; expected {', '.join(choices)}.")
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
        if self.ranks > 1 and (self.mode not in ("auto", "exact") or not by_time):
            raise PlanError(f"{self.ranks} ranks decode bands of rows, which goes with mode exact and order time.")
        if not is_count(size := self.tile_batch_size, 1):
            raise TilingError(f"a tile batch size must be a whole number of at least 1, not {size!r}.")


@dataclass(frozen=True)
class DecodeOptions:
    """Options of a decode, which `VideoVAE.stream` documents."""

    timestep: float | None = None
    seed: int = 0
    noise: "Noise" = None
    noise_scale: float | None = None
    like: ConventionName = DEFAULT_CONVENTION
    unnormalized: bool = False
    keyframes: "Keyframes | None" = None


#: Default options, as default arguments.
PLAN_DEFAULTS, DECODE_DEFAULTS = PlanOptions(), DecodeOptions()


# Options of a plan that a decode or an encode adds itself, or that may be given with a plan if they agree.
_WITH_A_PLAN = ("ranks", "steps", "keyframes", "joined", "outputs")


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
    noise: "Noise"
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
    group: "mx.distributed.Group | None"


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

    audio: str | os.PathLike | Iterable[Any] | None = field(default=None, metadata=OF_VIDEOS)
    codec: str | None = field(default=None, metadata=OF_VIDEOS)
    crf: int | None = field(default=None, metadata=OF_VIDEOS)
    bit_depth: InitVar[int | None] = None
    fragmented: bool = False
    overwrite: bool | None = None
    shortest: bool = field(default=False, metadata=OF_VIDEOS)
    metadata: Mapping[str, str] = field(default_factory=dict)
    encoder_preset: str | None = field(default=None, metadata=OF_VIDEOS)
    pix_fmt: str | None = field(default=None, metadata=OF_VIDEOS)
    audio_codec: str | None = field(default=None, metadata=OF_VIDEOS)
    sample_rate: int | None = None
    contact_sheet: bool = False
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
