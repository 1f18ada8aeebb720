"""Table of apps: their functions that have a drop-in here, and the names of the parameters of these functions."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import LTXVAEError, suggest


@dataclass(frozen=True)
class Entry:
    """Function of an app and the name of its drop-in in `dropins`.

    Attributes:
        owner: the name of the class in the module, or "" for a function of the module.
        parameters: the names of all parameters in all versions that were read, without `self`.
        is_around: the drop-in is a context manager, which is entered with the call of the app's function.
        is_optional: other versions of the module do not have it, or other apps with a module of this name.
    """

    module: str
    owner: str
    name: str
    dropin: str
    parameters: tuple[str, ...]
    is_around: bool = False
    is_optional: bool = False

    @property
    def path(self) -> str:
        """Name in the module: "Class.method", or "function"."""
        return f"{self.owner}.{self.name}" if self.owner else self.name

    @property
    def is_encode(self) -> bool:
        return self.dropin.startswith("encode")


@dataclass(frozen=True)
class NetworkNotes:
    """What an app's network does not state, or states otherwise than checkpoints do.

    Attributes:
        names: regular expressions of parts of its tensors' names, and what checkpoints have in their place.
        untimed: regular expression of the names that change nothing where it has no timestep embedder.
        padding: of its convolutions along height and width, which have no attribute that says it.
    """

    names: tuple[tuple[str, str], ...] = ()
    untimed: str = ""
    padding: str | None = None


def _entries(
    module: str,
    owner: str,
    functions: dict[str, tuple[str, str]],
    *,
    is_around: bool = False,
    is_optional: bool = False,
) -> tuple[Entry, ...]:
    """Make the entries of one class, or of a module, from {name: (drop-in, parameters)}."""
    return tuple(
        Entry(module, owner, name, dropin, tuple(parameters.split()), is_around, is_optional)
        for name, (dropin, parameters) in functions.items()
    )


class CallOptions(NamedTuple):
    """Keywords that every drop-in takes, with the meaning that they have in the apps; `fps` is `frame_rate`."""

    seed: int = 0
    keyframes: Any = None  # the app's type, or `Keyframes`
    noise: Any = None
    keyframe_noise: Any = None
    frame_rate: float | None = None
    output_dtype: Any = None


#: Keywords of apps that change no pixel here: they set how a decode is cut into pieces, and what is printed.
HARMLESS = {"tiling_config", "tiling_mode", "allow_small_overlap", "chunked_conv", "_materialize_stages", "debug"}
HARMLESS |= {"verbose", "show_progress", "audio_path", "chunk_size", "tile_batch_size"}

_STREAM = "latent video_latent output_path frame_rate fps audio_path seed keyframes"
_TILED = "sample tiling_config tiling_mode causal timestep debug on_frames_ready"
_WHOLE = "sample causal timestep debug chunked_conv"
_LTX_CORE = "ltx_core_mlx.model"
_BLOCKS = "ltx_pipelines_mlx.utils.blocks"
_SIMPLE = "LTX_2_MLX.model.video_vae.simple_decoder"
_VIDEO_DECODER = {"__call__": ("decode_whole", _WHOLE), "decode_tiled": ("decode_tiled", _TILED)}

#: Entries of each app, by its repository.
APPS: dict[str, tuple[Entry, ...]] = {
    "dgrauet/ltx-2-mlx": (
        *_entries(
            f"{_LTX_CORE}.video_vae.video_vae",
            "VideoDecoder",
            {
                "decode": ("decode_whole", "latent _materialize_stages"),
                "tiled_decode": ("tiled_decode", "latent tiling_config"),
                "decode_and_stream": ("decode_and_stream", _STREAM),
            },
        ),
        *_entries(
            f"{_LTX_CORE}.video_vae.video_vae",
            "VideoEncoder",
            {"encode": ("encode_whole", "pixels"), "tiled_encode": ("encode_whole", "video tiling_config")},
        ),
        *_entries(
            f"{_LTX_CORE}.video_vae.diffusion_decoder.decoder",
            "NADiffusionDecoder",
            {
                "decode": ("decode_whole", "latent noise seed tap keyframes keyframe_noise"),
                "tiled_decode": ("tiled_decode", "latent tiling seed allow_small_overlap keyframes"),
            },
        ),
        *_entries(
            _BLOCKS, "_DiffusionVideoDecoder", {"decode_and_stream": ("stream_wrapped", _STREAM)}, is_optional=True
        ),
        *_entries(_BLOCKS, "VideoDecoder", {"decode_and_stream": ("without_estimate", _STREAM)}, is_around=True),
        *_entries(_BLOCKS, "AudioDecoder", {"__call__": ("with_sound_kept", "audio_latent")}, is_around=True),
        *_entries(
            "ltx_pipelines_mlx.utils.hdr_media",
            "",
            {"encode_hdr_outputs": ("with_output", "chunks output_path fps exr_color_space")},
            is_around=True,
            is_optional=True,
        ),
    ),
    "Blaizzy/mlx-video": _entries("mlx_video.models.ltx_2.video_vae.decoder", "LTX2VideoDecoder", _VIDEO_DECODER),
    "james-see/mlx-video-with-audio": _entries(
        "mlx_video.models.ltx.video_vae.decoder", "LTX2VideoDecoder", _VIDEO_DECODER
    ),
    "dmlsrc/LTX-2-MLX": (
        *_entries(
            "LTX_2_MLX.model.video_vae.native_decoder",
            "NativeConv3dVideoDecoder",
            {"__call__": ("decode_whole", "latent timestep show_progress causal")},
        ),
        *_entries(
            "LTX_2_MLX.model.video_vae.tiling",
            "",
            {"decode_streaming": ("decode_streaming", "latent decoder_fn tiling_config timestep show_progress")},
            is_optional=True,
        ),
    ),
    "Acelogic/LTX-2-MLX": (
        *_entries(
            _SIMPLE, "SimpleVideoDecoder", {"__call__": ("decode_float", "latent timestep show_progress causal")}
        ),
        *_entries(
            _SIMPLE,
            "",
            {"decode_latent": ("decode_latent", "latent decoder timestep key temporal_chunk_size temporal_overlap")},
        ),
        *_entries(
            "LTX_2_MLX.model.video_vae.tiling",
            "",
            {"decode_tiled": ("decode_streaming", "latent decoder_fn tiling_config timestep show_progress key")},
            is_optional=True,
        ),
    ),
}

#: Notes on networks, by "module:class".
NETWORKS = {
    f"{_SIMPLE}:SimpleVideoDecoder": NetworkNotes(
        names=(
            (r"(^|\.)(conv|conv_in|conv_out|conv1|conv2)\.(weight|bias)$", r"\1\2.conv.\3"),
            (r"time_embedder\.linear", "time_embedder.timestep_embedder.linear"),
        ),
        untimed=r"scale_shift_table$|^timestep_scale_multiplier$",
        padding="reflect",
    )
}


def apps_of(apps: tuple[str, ...]) -> dict[str, list[str]]:
    """Return {module: apps} for the modules of some apps, or of all. Raises a `LTXVAEError` for an unknown app."""
    modules: dict[str, list[str]] = {}
    for app in apps or APPS:
        if app not in APPS:
            raise LTXVAEError(f"{app!r} is not a known app{suggest(app, APPS)}; expected {' or '.join(APPS)}.")
        for module in dict.fromkeys(entry.module for entry in APPS[app]):
            modules.setdefault(module, []).append(app)
    return modules
