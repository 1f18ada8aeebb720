"""The tensors of a checkpoint as a conversion writes and compares them."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import mlx.core as mx

from ..checkpoint import Checkpoint

#: Called with tensor names and what happens to them ("convert", "compare"); returns an iterable over the names.
Progress = Callable[[Sequence[str], str], Iterable[str]]

#: The statistics of the latents, which are float32 whatever dtype is asked for.
STATISTICS = ("per_channel_statistics.mean-of-means", "per_channel_statistics.std-of-means")


def read_all(checkpoint: Checkpoint) -> dict[str, mx.array]:
    """Every tensor by its full name ("decoder.conv_in.conv.weight") in the layout of MLX, lazy."""
    tensors = dict(zip(STATISTICS, checkpoint.read_statistics(), strict=True))
    for network, stored in checkpoint.networks.items():
        tensors |= {f"{network}.{name}": array for name, array in stored.read()}
    return tensors


def one_by_one(names: Sequence[str], description: str, progress: Progress | None) -> Iterator[str]:
    """The names in turn. MLX's buffer cache is cleared after each, so that it does not grow to the size of the VAE."""
    for name in progress(names, description) if progress else names:
        yield name
        mx.clear_cache()
