"""Table of apps: their functions that have a drop-in here, and the names of the parameters of these functions."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import LTXVAEError, suggest


@dataclass(frozen=True)
class Entry:
    """Function of an app and the name of its drop-in in `dropins`.

    Attributes:
        path: "Class.method", or "function", in the module.
        dropin: the name of a function that is called in its place, or of a context manager around its calls. "" leaves
            it as it is, and only saves its latents.
        parameters: the names of all parameters in all versions that were read, without `self`.
        is_around: whether the drop-in is a context manager.
        is_optional: other versions of the module do not have it, or other apps with a module of this name.
    """

    module: str
    path: str
    dropin: str
    parameters: tuple[str, ...]
    is_around: bool = False
    is_optional: bool = False

    @property
    def owner(self) -> str:
        """Name of the class, or "" for a function of the module."""
        return self.path.rpartition(".")[0]

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def is_encode(self) -> bool:
        return self.dropin.startswith("encode")

    @property
    def is_decode(self) -> bool:
        return not self.is_encode and self.dropin != "with_audio_kept"


@dataclass(frozen=True)
class NetworkNotes:
    """What an app's network does not state, or states otherwise than checkpoints do.

    Attributes:
        names: regular expressions of parts of its tensors' names, and what checkpoints have in their place.
        untimed: regular expression of the names that change nothing where it has no timestep embedder.
        padding: of its convolutions along height and width, which have no attribute that says it.
        seeds_generator: it draws noise with MLX's global generator, which it seeds, in the dtype of its activations.
    """

    names: tuple[tuple[str, str], ...] = ()
    untimed: str = ""
    padding: str | None = None
    seeds_generator: bool = False


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
HARMLESS |= {"verbose", "show_progress", "audio_path", "chunk_size", "tile_batch_size", "spatial_tiles"}

_VIDEO_VAE = "ltx_core_mlx.model.video_vae.video_vae"
_DIFFUSION = "ltx_core_mlx.model.video_vae.diffusion_decoder.decoder"
_BLOCKS = "ltx_pipelines_mlx.utils.blocks"
_MLX_VIDEO_DIFFUSION = "mlx_video.models.ltx_2.diffusion_vae.decoder"
_SIMPLE = "LTX_2_MLX.model.video_vae.simple_decoder"
_TILING = "LTX_2_MLX.model.video_vae.tiling"
_STREAM = ("latent", "video_latent", "output_path", "frame_rate", "fps", "audio_path", "seed", "keyframes")
_FRAMES = ("latent", "seed", "keyframes")
_TILED = ("sample", "tiling_config", "tiling_mode", "causal", "timestep", "debug", "on_frames_ready")
_WHOLE = ("sample", "causal", "timestep", "debug", "chunked_conv")
_LTX_2_MLX = ("latent", "timestep", "show_progress", "causal")
_TILES = ("latent", "decoder_fn", "tiling_config", "timestep", "show_progress")
_CHUNKS = ("latent", "decoder", "timestep", "key", "temporal_chunk_size", "temporal_overlap")


def _mlx_video(module: str) -> tuple[Entry, ...]:
    """Return the entries of mlx-video's decoder, which mlx-video-with-audio has in another module."""
    return (
        Entry(module, "LTX2VideoDecoder.__call__", "decode_whole", _WHOLE),
        Entry(module, "LTX2VideoDecoder.decode_tiled", "decode_tiled", _TILED),
    )


#: Entries of each app, by its repository.
APPS: dict[str, tuple[Entry, ...]] = {
    "dgrauet/ltx-2-mlx": (
        Entry(_VIDEO_VAE, "VideoDecoder.decode", "decode_whole", ("latent", "_materialize_stages")),
        Entry(_VIDEO_VAE, "VideoDecoder.tiled_decode", "tiled_decode", ("latent", "tiling_config")),
        Entry(_VIDEO_VAE, "VideoDecoder.decode_and_stream", "decode_and_stream", _STREAM),
        Entry(_VIDEO_VAE, "VideoEncoder.encode", "encode_whole", ("pixels",)),
        Entry(_VIDEO_VAE, "VideoEncoder.tiled_encode", "encode_whole", ("video", "tiling_config")),
        Entry(
            _DIFFUSION,
            "NADiffusionDecoder.decode",
            "decode_whole",
            ("latent", "noise", "seed", "tap", "keyframes", "keyframe_noise"),
        ),
        Entry(
            _DIFFUSION,
            "NADiffusionDecoder.tiled_decode",
            "tiled_decode",
            ("latent", "tiling", "seed", "allow_small_overlap", "keyframes"),
        ),
        Entry(_BLOCKS, "_DiffusionVideoDecoder.decode_and_stream", "stream_wrapped", _STREAM, is_optional=True),
        Entry(_BLOCKS, "VideoDecoder.decode_and_stream", "without_estimate", _STREAM, is_around=True),
        Entry(_BLOCKS, "VideoDecoder.iter_frames", "", _FRAMES, is_around=True, is_optional=True),
        Entry(_BLOCKS, "VideoDecoder.decode_single_frame", "", _FRAMES, is_around=True, is_optional=True),
        Entry(_BLOCKS, "AudioDecoder.__call__", "with_audio_kept", ("audio_latent",), is_around=True),
    ),
    "Blaizzy/mlx-video": (
        *_mlx_video("mlx_video.models.ltx_2.video_vae.decoder"),
        Entry(
            _MLX_VIDEO_DIFFUSION, "DiffusionVideoDecoder.__call__", "decode_float", ("latent", "seed", "spatial_tiles")
        ),
    ),
    "james-see/mlx-video-with-audio": _mlx_video("mlx_video.models.ltx.video_vae.decoder"),
    "dmlsrc/LTX-2-MLX": (
        Entry(
            "LTX_2_MLX.model.video_vae.native_decoder", "NativeConv3dVideoDecoder.__call__", "decode_whole", _LTX_2_MLX
        ),
        Entry(_TILING, "decode_streaming", "decode_streaming", _TILES, is_optional=True),
    ),
    "Acelogic/LTX-2-MLX": (
        Entry(_SIMPLE, "SimpleVideoDecoder.__call__", "decode_float", _LTX_2_MLX),
        Entry(_SIMPLE, "decode_latent", "decode_latent", _CHUNKS),
        Entry(_TILING, "decode_tiled", "decode_streaming", (*_TILES, "key"), is_optional=True),
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
    ),
    f"{_MLX_VIDEO_DIFFUSION}:DiffusionVideoDecoder": NetworkNotes(
        names=((r"^(mean|std)_of_means$", r"per_channel_statistics.\1-of-means"),), seeds_generator=True
    ),
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
