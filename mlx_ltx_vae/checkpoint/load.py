"""`load_network`: from an opened checkpoint to a network that has all of its weights and nothing else."""

from collections.abc import Callable, Mapping
from typing import TypeVar

import mlx.core as mx
import mlx.nn as nn

from ..errors import CheckpointError
from ..mlx_utils import named_parameters
from .open import Checkpoint
from .weight_layout import Shape

Network = TypeVar("Network", bound=nn.Module)


def load_network(
    checkpoint: Checkpoint, name: str, make: Callable[[], Network], dtype: mx.Dtype | None
) -> Network | None:
    """Build a network and load its weights strictly; None if the checkpoint does not have it.

    Args:
        checkpoint: from `open_checkpoint`.
        name: "encoder" or "decoder".
        make: builds the network.
        dtype: what to cast the weights to; None to keep the checkpoint's dtype.

    Raises:
        CheckpointError: a tensor is missing, unexpected, of another shape, or unreadable.
    """
    stored = checkpoint.networks.get(name)
    if stored is None:
        return None
    network = make()
    expected = {key: array.shape for key, array in named_parameters(network).items()}
    _check_names(checkpoint, name, expected)
    loaded = []
    for key, weight in stored.read():
        if weight.shape != expected[key]:
            raise CheckpointError(
                f"{checkpoint.name}: tensor {name}.{key} has the shape {weight.shape}, but the configuration expects "
                f"{expected[key]}; use the configuration that belongs to the file."
            )
        # Evaluated one by one, so that no more than one tensor exists in two layouts or two dtypes.
        weight = weight if dtype is None else weight.astype(dtype)
        try:
            mx.eval(weight)
        except RuntimeError as error:
            raise CheckpointError(f"{checkpoint.name}: tensor {name}.{key} cannot be read ({error}).") from error
        loaded.append((key, weight))
    network.load_weights(loaded)
    return network


def _check_names(checkpoint: Checkpoint, name: str, expected: Mapping[str, Shape]) -> None:
    found = checkpoint.networks[name].tensors
    for verb, names in (
        ("lacks", sorted(expected.keys() - found.keys())),
        ("has the unexpected", sorted(found.keys() - expected.keys())),
    ):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise CheckpointError(
                f"{checkpoint.name}: its {name} {verb} tensor {names[0]}{more}, so the file does not match its "
                "configuration; download both again from one release."
            )
