"""Tensor names as the original files have them, under every prefix that people put in front of them."""

import re
from typing import NamedTuple

from ..errors import CheckpointError
from .files import Archive

HALVES = ("encoder", "decoder")
BLOCK_STEMS = {"encoder": "down_blocks", "decoder": "up_blocks"}

# In front of a half's names: the original files, packs of MLX ports (the second for LTX-2.5), bare halves, and files
# that hold one half and nothing else.
_PREFIXES = ("vae.{half}.", "vae_{half}.", "vae_{half}_conv.", "{half}.", "")
_STATISTICS = ("per_channel_statistics.", "")
_MEAN_NAMES = ("mean_of_means", "mean", "latents_mean")
_STD_NAMES = ("std_of_means", "std", "latents_std")
# mlx-video's packs wrap each causal convolution once more.
_WRAPPED_CONV = re.compile(r"\b(conv_in|conv_out|conv1|conv2)\.conv\.conv\.")
_DIFFUSION_STEMS = ("det_stages.", "diff_blocks.")


class StatisticsNames(NamedTuple):
    """The full names of the mean-of-means and std-of-means."""

    mean: str
    std: str


def half_names(archive: Archive, half: str) -> dict[str, str]:
    """Name within the half -> full name, for all tensors of `half` ("encoder" or "decoder"); empty if it has none.

    Raises:
        CheckpointError: the half is the diffusion decoder of LTX-2.5.
    """
    for prefix in _half_prefixes(half):
        inside = {name.removeprefix(prefix): name for name in archive.tensors if name.startswith(prefix)}
        if half == "decoder" and any(name.startswith(_DIFFUSION_STEMS) for name in inside):
            raise CheckpointError(
                f"{archive.path}: this is the diffusion decoder of LTX-2.5 ({prefix}det_stages, ...), which is not "
                "supported yet; use the file of the convolutional decoder (its name ends in video-vae-conv)."
            )
        names = {_WRAPPED_CONV.sub(r"\1.conv.", name): full for name, full in inside.items()}
        kernel = names.get("conv_in.conv.weight")
        has_blocks = any(name.startswith(f"{BLOCK_STEMS[half]}.") for name in names)
        if kernel and has_blocks and len(archive.tensors[kernel].shape) == 5:
            return {name: full for name, full in names.items() if not _is_statistic(name)}
    return {}


def statistics_names(archive: Archive) -> StatisticsNames | None:
    """Where the statistics of the latents are, under any of their names; None if they are not both there."""
    prefixes = ["vae.", *_half_prefixes("decoder"), *_half_prefixes("encoder")]
    for prefix in prefixes:
        for stem in _STATISTICS:
            found = {
                _plain(name.removeprefix(prefix + stem)): name
                for name in archive.tensors
                if name.startswith(prefix + stem)
            }
            mean = next((found[name] for name in _MEAN_NAMES if name in found), None)
            std = next((found[name] for name in _STD_NAMES if name in found), None)
            if mean and std:
                return StatisticsNames(mean, std)
    return None


def _half_prefixes(half: str) -> list[str]:
    return [prefix.format(half=half) for prefix in _PREFIXES]


def _is_statistic(name: str) -> bool:
    return name.startswith("per_channel_statistics.") or _plain(name) in _MEAN_NAMES + _STD_NAMES


def _plain(name: str) -> str:
    """`mean-of-means`, `_mean_of_means` and `mean_of_means` are one name."""
    return name.lstrip("_").replace("-", "_")
