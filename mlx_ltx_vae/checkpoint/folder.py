"""Choose the files of the video VAE in a folder or a hub repository by their names alone."""

from collections.abc import Sequence
from pathlib import PurePosixPath

from .files import INDEX_SUFFIX
from .original import NETWORKS

CONFIG_NAMES = ("config.json", "embedded_config.json")


class AmbiguousFolder(Exception):
    """Several files may contain the VAE: `candidates`, which is empty if there is no weight file at all."""

    def __init__(self, candidates: Sequence[str]) -> None:
        super().__init__(", ".join(candidates))
        self.candidates = tuple(candidates)


def choose_weights(names: Sequence[str]) -> tuple[str, ...]:
    """The files to open out of `names` (relative, with "/"): one file, one index of shards, or one file per network.

    Files of the VAE alone are preferred to files of the whole model, so that 40 GB are not downloaded for 2 GB.

    Raises:
        AmbiguousFolder: the names do not decide it.
    """
    present = set(names)
    for folder in ("", "vae/"):
        if f"{folder}diffusion_pytorch_model{INDEX_SUFFIX}" in present:
            return (f"{folder}diffusion_pytorch_model{INDEX_SUFFIX}",)
        if f"{folder}diffusion_pytorch_model.safetensors" in present:
            return (f"{folder}diffusion_pytorch_model.safetensors",)
        for pattern in ("vae_{}_conv.safetensors", "vae_{}.safetensors", "{}/model.safetensors"):
            files = [folder + pattern.format(network) for network in NETWORKS]
            if present.intersection(files):
                return tuple(name for name in files if name in present)
    weights = [name for name in names if name.endswith(".safetensors")]
    vae_files = [name for name in weights if _names_a_video_vae(name)]
    convolutional = [name for name in vae_files if "conv" in _stem(name)]
    for candidates in (convolutional, vae_files):
        if candidates:
            return _only(candidates)
    for name in (f"model{INDEX_SUFFIX}", "model.safetensors"):
        if name in present:
            return (name,)
    return _only(weights)


def _only(candidates: Sequence[str]) -> tuple[str, ...]:
    if len(candidates) != 1:
        raise AmbiguousFolder(sorted(candidates))
    return (candidates[0],)


def _names_a_video_vae(name: str) -> bool:
    stem = _stem(name)
    return "vae" in stem and "audio" not in stem


def _stem(name: str) -> str:
    return PurePosixPath(name).stem.lower()
