"""From a checkpoint's weights to a network that has all of them and nothing else."""

from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from ..errors import CheckpointError
from . import Checkpoint


def load_half(
    checkpoint: Checkpoint, name: str, make: Callable[[], nn.Module], dtype: mx.Dtype | None
) -> nn.Module | None:
    """One network with the checkpoint's weights, every one accounted for; None where the checkpoint has none.

    Args:
        checkpoint: from `load_checkpoint`. Its weights are consumed.
        name: "encoder" or "decoder".
        make: builds the network.
        dtype: what to compute in, or None for the checkpoint's own.

    Raises:
        CheckpointError: for tensors that are missing, unexpected, of another shape or unreadable.
    """
    weights = getattr(checkpoint, name)
    if weights is None:
        return None
    network = make()
    expected = dict(tree_flatten(network.parameters()))
    for kind, names in (
        ("lacks", sorted(expected.keys() - weights.keys())),
        ("has the unexpected", sorted(weights.keys() - expected.keys())),
    ):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise CheckpointError(
                f"{checkpoint.name}: its {name} {kind} tensor {names[0]}{more}, so file and configuration do not "
                "belong together; get the file again, or the configuration that goes with it."
            )
    for key, weight in weights.items():
        if weight.shape != expected[key].shape:
            raise CheckpointError(
                f"{checkpoint.name}: tensor {name}.{key} has the shape {weight.shape} and its configuration wants "
                f"{expected[key].shape}; get the configuration that goes with the file."
            )
    del expected
    loaded = []
    for key in list(weights):
        # Popped and evaluated one by one, so that no more than one tensor is held twice while its layout changes.
        weight = weights.pop(key)
        weight = weight if dtype is None else weight.astype(dtype)
        try:
            mx.eval(weight)
        except RuntimeError as error:
            raise CheckpointError(f"{checkpoint.name}: tensor {name}.{key} could not be read: {error}") from error
        loaded.append((key, weight))
    network.load_weights(loaded)
    return network
