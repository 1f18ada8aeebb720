"""Why a network's output cannot be used: asked once it is known that it cannot, so it may take its time."""

import mlx.core as mx
import mlx.nn as nn

from ..backend.mlx_utils import count_nonfinite, dtype_name, named_parameters
from ..models.base import Network

#: Latents of a model, normalized, stay below a tenth of this.
_PLAUSIBLE = 1e3


def find_cause(network: Network, name: str, largest: float | None = None) -> str | None:
    """What explains a useless output of a network: its weights or its latents; None if neither does.

    Args:
        name: "encoder" or "decoder".
        largest: the largest magnitude of the latents, normalized.
    """
    parameters = named_parameters(network) if isinstance(network, nn.Module) else {}
    for key, weight in parameters.items():
        if count := count_nonfinite(weight):
            return f"NaN weights in {name}.{key} ({count} of {weight.size}); load the checkpoint again."
    if largest is not None and largest > _PLAUSIBLE:
        return (
            f"the latents reach {largest:.3g}, and those of a model stay below {_PLAUSIBLE / 10:g} when they are "
            "normalized; check the program that made them."
        )
    return None


def explain_not_finite(network: Network, name: str, largest: float | None = None) -> str:
    """Why a network's output is not finite, and what to do. Arguments as for `find_cause`."""
    if cause := find_cause(network, name, largest):
        return cause
    if network.dtype == mx.float32:
        return f"the {name} overflowed in float32, which no trained weights do; download the checkpoint again."
    return f"the {name} overflowed in {dtype_name(network.dtype)}; try dtype float32."
