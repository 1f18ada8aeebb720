"""The names of latent statistics in published checkpoints."""

from collections.abc import Iterable, Sequence

from .base import Shapes

#: Where they are, behind the prefix of a network or a VAE.
STATISTICS_PREFIXES = ("per_channel_statistics.", "")


def find_statistics(
    shapes: Shapes, prefixes: Iterable[str], mean_names: Sequence[str], std_names: Sequence[str]
) -> tuple[str, str] | None:
    """The tensors of the mean and the standard deviation, under the first prefix that has both."""
    for prefix in (prefix + stem for prefix in prefixes for stem in STATISTICS_PREFIXES):
        found = {plain_name(name.removeprefix(prefix)): name for name in shapes if name.startswith(prefix)}
        mean, std = (next((found[name] for name in names if name in found), None) for names in (mean_names, std_names))
        if mean is not None and std is not None:
            return mean, std
    return None


def plain_name(name: str) -> str:
    """One spelling for `mean-of-means`, `_mean_of_means` and `mean_of_means`."""
    return name.lstrip("_").replace("-", "_")
