"""Load the networks of a checkpoint, strictly: at once, or when they are first used."""

import math
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Generic, TypeVar, cast

import mlx.core as mx
import mlx.nn as nn

from ..backend.device import check_process, explained_device_errors, give_back_cache
from ..backend.mlx_utils import DTYPES, count_nonfinite, kept_random_state, to_bool, to_float
from ..errors import CheckpointError
from ..models.base import Network
from ..models.convolution.conv3d import prepared_modules
from . import Checkpoint
from .files import StoredNetwork

NetworkT = TypeVar("NetworkT", bound=Network)


class LazyNetwork(Generic[NetworkT]):
    """Network of a checkpoint in files, whose weights are read once by `get`.

    `spec` and `dtype` are the network's. Any thread may call `get`, which raises the errors of `load_network`.
    """

    def __init__(self, checkpoint: Checkpoint, name: str, dtype: mx.Dtype | None) -> None:
        self.spec = checkpoint.spec(name)
        self.dtype = dtype or DTYPES[checkpoint.networks[name].dtype]
        self._arguments = checkpoint.of_network(name), name, dtype
        self._lock = threading.Lock()
        self.loaded: NetworkT | None = None

    def get(self) -> NetworkT:
        """Return the network, with its weights."""
        with self._lock:
            if self.loaded is None:
                check_process()
                loaded = cast(NetworkT, load_network(*self._arguments))
                mx.eval(loaded.statistics)  # a lazy array can be used in its own thread only
                self.loaded = loaded
            return self.loaded


@explained_device_errors()
def load_network(checkpoint: Checkpoint, name: str, dtype: mx.Dtype | None) -> Network | None:
    """Make a network and load its weights, cast to `dtype` unless it is `None`.

    Returns `None` if the checkpoint does not have the network. Weights are laid out for the default device; without a
    `dtype`, they may get a more accurate one of the same size. Raises a `CheckpointError` for a tensor that is
    unreadable, not finite, or zero, and for a file that has changed since its header was read.
    """
    stored = checkpoint.networks.get(name)
    if stored is None:
        return None
    statistics = checkpoint.read_statistics()
    with kept_random_state():
        network = checkpoint.family.make(checkpoint.config, name, statistics)
    assert isinstance(network, nn.Module)
    prepared = prepared_modules(network)
    missing = Counter(path for key in stored.expected for path in _modules_above(key) if path in prepared)
    for key, weight in _largest_first(stored).read(dtype):
        # Evaluated one by one, so that no more than one tensor exists in two dtypes.
        weight = weight if dtype is None else weight.astype(dtype)
        module = prepared.get(_owner(key))
        if module is None:
            weight = mx.contiguous(weight)
        checkpoint.evaluate(f"tensor {name}.{key}", weight)
        if problem := _problem(weight):
            is_half = dtype is not None and dtype == mx.float16
            remedy = "use bfloat16 or float32" if is_half else "download the file again"
            raise CheckpointError(f"{checkpoint.name}: tensor {name}.{key} {problem}; {remedy}.")
        network.load_weights([(key, weight)], strict=False)
        del weight
        for path in filter(prepared.__contains__, _modules_above(key)):
            missing[path] -= 1
            if not missing[path]:
                prepared[path].prepare(keeps_dtype=dtype is not None)
    checkpoint.check_unchanged()
    give_back_cache()
    return network


def _largest_first(stored: StoredNetwork) -> StoredNetwork:
    """Return a network with its tensors ordered by module, the largest module first.

    Near the end of the load, memory has no room for two layouts of a large module.
    """
    sizes: Counter[str] = Counter()
    for key, info in stored.tensors.items():
        sizes[_owner(key)] += math.prod(info.shape)
    ordered = sorted(stored.tensors.items(), key=lambda item: (-sizes[_owner(item[0])], item[0]))
    return replace(stored, tensors=dict(ordered))


def _owner(key: str) -> str:
    """Return the path of the module that has a parameter."""
    return key.rpartition(".")[0]


def _modules_above(key: str) -> Iterator[str]:
    """Yield the paths of the modules that contain a parameter, the innermost first."""
    while key := _owner(key):
        yield key


def _problem(weight: mx.array) -> str | None:
    """Describe a property of a weight that no trained weight has. Returns `None` if nothing is wrong with it."""
    total = to_float(weight.sum())
    if total and math.isfinite(total):  # all values are finite and one is not 0: one pass, so that loading stays fast
        return None
    if count := count_nonfinite(weight):
        return f"has {count} of {weight.size} values that are NaN or infinite"
    if weight.ndim > 2 and not to_bool(weight.any()):
        return "is zero everywhere"
    return None
