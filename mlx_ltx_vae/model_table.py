"""Table of published models by short name: where they are on the hub, and whose latents they take. No MLX.

The table of models in README.md, the help of `-m`, and errors are made from it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

HUB = "https://huggingface.co"


class Kind(Enum):
    """What a model is for."""

    VIDEO = "video"
    PREVIEW = "preview"
    AUDIO = "audio"
    UPSAMPLER = "upsampler"


@dataclass(frozen=True)
class PublishedModel:
    """Published model with a short name.

    Attributes:
        names: what is typed, the usual one first. A video VAE and an audio VAE of one release have the same names.
        title: its name in tables.
        sources: "owner/name" or "owner/name:file" on the hub, with the same values. The first one is downloaded, unless
            another one is in the cache.
        size: of the download, such as "1.5 GB". `None` if it is not known.
        latents: generations whose latents it takes, the first one its own, as `info` names them.
        is_gated: the download needs a login, and the license accepted on the model's page.
    """

    kind: Kind
    names: tuple[str, ...]
    title: str
    sources: tuple[str, ...]
    size: str | None
    license: str
    latents: tuple[str, ...]
    is_gated: bool = False

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def source(self) -> str:
        return self.sources[0]

    @property
    def page(self) -> str:
        """Address of the model's page, where a gated model's license is accepted."""
        return f"{HUB}/{self.source.partition(':')[0]}"

    @property
    def terms(self) -> str:
        """Size, license and gate, for a message."""
        gate = ", gated" if self.is_gated else ""
        return f"{self.size + ', ' if self.size else ''}license {self.license}{gate}"


_LTX_2_LICENSE, _LTX_VIDEO_LICENSE = "LTX-2 Community", "LTX-Video"
_LTX_2_5, _LTX_2_3, _LTX_VIDEO = "Lightricks/LTX-2.5:vae", "Kijai/LTX2.3_comfy:vae", "Lightricks/LTX-Video"

# LTX-2.5 has LTX-2.3's encoder, statistics, convolutional decoder and audio VAE, byte for byte (Lightricks/LTX-2#275,
# dgrauet/ltx-2-mlx#139). Only its diffusion decoder is new, for the same latents.
_BOTH_NAMES, _SHARED_LATENTS = ("ltx-2.3", "ltx-2.5"), ("LTX-2.3", "LTX-2.5")


# Latent upsamplers by short names, with their files in Lightricks' repositories. The names of the files are from public
# pages: none was seen.
_UPSAMPLERS = {
    "ltx-2.3-upscaler-x2": "LTX-2.3:ltx-2.3-spatial-upscaler-x2-1.1",
    "ltx-2.3-upscaler-x1.5": "LTX-2.3:ltx-2.3-spatial-upscaler-x1.5-1.0",
    "ltx-2.3-upscaler-temporal-x2": "LTX-2.3:ltx-2.3-temporal-upscaler-x2-1.0",
    "ltx-2-upscaler-x2": "LTX-2:ltx-2-spatial-upscaler-x2-1.0",
    "ltx-2-upscaler-temporal-x2": "LTX-2:ltx-2-temporal-upscaler-x2-1.0",
    "ltx-video-0.9.8-upscaler-x2": "LTX-Video:ltxv-spatial-upscaler-0.9.8",
    "ltx-video-0.9.8-upscaler-temporal-x2": "LTX-Video:ltxv-temporal-upscaler-0.9.8",
    "ltx-video-0.9.7-upscaler-x2": "LTX-Video:ltxv-spatial-upscaler-0.9.7",
    "ltx-video-0.9.7-upscaler-temporal-x2": "LTX-Video:ltxv-temporal-upscaler-0.9.7",
}
_RELEASES = {
    "LTX-2.3": (_LTX_2_LICENSE, _SHARED_LATENTS),
    "LTX-2": (_LTX_2_LICENSE, ("LTX-2",)),
    "LTX-Video": (_LTX_VIDEO_LICENSE, ("LTX-Video 0.9.5",)),
}

#: The preferred model of a generation comes before others of its kind.
MODELS = (
    PublishedModel(
        Kind.VIDEO,
        _BOTH_NAMES,
        "LTX-2.3 and LTX-2.5",
        (f"{_LTX_2_3}/LTX23_video_vae_bf16.safetensors", f"{_LTX_2_5}/ltx-2.5-video-vae-conv-bf16.safetensors"),
        "1.5 GB",
        _LTX_2_LICENSE,
        _SHARED_LATENTS,
    ),
    PublishedModel(
        Kind.VIDEO,
        ("ltx-2.5-diffusion",),
        "LTX-2.5, diffusion",
        (f"{_LTX_2_5}/ltx-2.5-video-vae-bf16.safetensors",),
        "1.5 GB",
        _LTX_2_LICENSE,
        _SHARED_LATENTS,
        is_gated=True,
    ),
    PublishedModel(
        Kind.VIDEO, ("prunavaed",), "LTX-2.3, pruned", ("PrunaAI/PrunaVAED",), "1.3 GB", _LTX_2_LICENSE, _SHARED_LATENTS
    ),
    PublishedModel(Kind.VIDEO, ("ltx-2",), "LTX-2", ("Lightricks/LTX-2",), "2.4 GB", _LTX_2_LICENSE, ("LTX-2",)),
    PublishedModel(
        Kind.VIDEO,
        ("ltx-video-0.9.5",),
        "LTX-Video 0.9.5-0.9.8",
        (f"{_LTX_VIDEO}:ltx-video-2b-v0.9.5.safetensors",),
        "6.3 GB",
        _LTX_VIDEO_LICENSE,
        ("LTX-Video 0.9.5",),
    ),
    PublishedModel(
        Kind.VIDEO,
        ("ltx-video-0.9.1",),
        "LTX-Video 0.9.1",
        (f"{_LTX_VIDEO}:ltx-video-2b-v0.9.1.safetensors",),
        "5.7 GB",
        _LTX_VIDEO_LICENSE,
        ("LTX-Video 0.9.1",),
    ),
    PublishedModel(
        Kind.PREVIEW,
        ("taeltx-2.3",),
        "previews",
        (f"{_LTX_2_3}/taeltx2_3.safetensors",),
        "24 MB",
        "MIT",
        _SHARED_LATENTS,
    ),
    PublishedModel(
        Kind.AUDIO,
        _BOTH_NAMES,
        "LTX-2.3 and LTX-2.5",
        (f"{_LTX_2_3}/LTX23_audio_vae_bf16.safetensors", f"{_LTX_2_5}/ltx-2.5-audio-vae-bf16.safetensors"),
        "0.4 GB",
        _LTX_2_LICENSE,
        _SHARED_LATENTS,
    ),
    PublishedModel(Kind.AUDIO, ("ltx-2",), "LTX-2", ("Lightricks/LTX-2",), None, _LTX_2_LICENSE, ("LTX-2",)),
    *(
        PublishedModel(
            Kind.UPSAMPLER, (name,), name, (f"Lightricks/{file}.safetensors",), None, *_RELEASES[file.partition(":")[0]]
        )
        for name, file in _UPSAMPLERS.items()
    ),
)

# The generations whose latents a VAE takes, for those that take others than those that `info` calls them by.
_LATENTS = {
    **dict.fromkeys(("LTX-2.3", "PrunaVAED", "taeltx2_3", "taeltx2_3_wide"), _SHARED_LATENTS),
    **dict.fromkeys(("LTX-2.5", "LTX-2.5 diffusion"), _SHARED_LATENTS[::-1]),
    "taeltx_2": ("LTX-2",),
}


def models_of(kind: Kind) -> dict[str, PublishedModel]:
    """Return the models of a kind by each of their names."""
    return {name: model for model in MODELS if model.kind is kind for name in model.names}


def find_model(name: str, kinds: Iterable[Kind] = (Kind.VIDEO, Kind.PREVIEW)) -> PublishedModel | None:
    """Return the model of one of the kinds with this short name, in any case, or `None` if there is none."""
    return next((model for kind in kinds if (model := models_of(kind).get(name.lower()))), None)


def models_for(latents: str | None, kind: Kind) -> list[PublishedModel]:
    """Return the models of a kind that take the latents of a generation, the preferred one first."""
    return [model for model in MODELS if model.kind is kind and latents in model.latents]


def latents_of(generation: str, version: tuple[int, int] | None = None) -> tuple[str, ...]:
    """Return the generations whose latents a VAE takes, its own first. There are none if that is not known.

    `generation` is the one with the VAE's layers, and `version` is stated by its file or a name.
    """
    if generation in _SHARED_LATENTS and version is not None:  # perhaps a later release with the same layers
        generation = f"LTX-{version[0]}.{version[1]}"
    return _LATENTS.get(generation, (generation,) if generation.startswith("LTX") else ())


def list_names(kinds: Iterable[Kind]) -> str:
    """List the short names of models, for help and errors."""
    return ", ".join(name for model in MODELS if model.kind in kinds for name in model.names)
