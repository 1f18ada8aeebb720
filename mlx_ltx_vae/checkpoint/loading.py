"""Load the networks of a checkpoint, strictly, when they are first used."""

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

import mlx.core as mx
import mlx.nn as nn

from ..backend.device import check_process, explained_device_errors, give_back_cache
from ..backend.mlx_utils import count_nonfinite, kept_random_state, to_bool, to_float
from ..errors import CheckpointError
from ..networks.base import Network, Statistics
from ..networks.convolution.conv3d import prepared_modules
from ..networks.specs import NetworkSpec
from . import Checkpoint
from .weight_files import StoredNetwork

if TYPE_CHECKING:
    from typing_extensions import Self

NetworkT = TypeVar("NetworkT", bound=Network)


class NetworkHeader(NamedTuple):
    """Properties of a network that are known before its weights are read."""

    spec: NetworkSpec
    dtype: mx.Dtype
    statistics: Statistics | None


class NetworkHandle(Generic[NetworkT]):
    """Network of an opened VAE. Its weights are read once, by the first `get`, which any thread may call."""

    def __init__(self, network: NetworkT | NetworkHeader, load: Callable[[], NetworkT] | None = None) -> None:
        """Make the handle of a network, or of one that `load` returns."""
        self._network, self._load = network, load
        self._lock = threading.Lock()

    @classmethod
    def open(cls, checkpoint: Checkpoint, name: str, dtype: mx.Dtype | None) -> "Self | None":
        """Return a network of a checkpoint, or `None` if the checkpoint does not have it.

        `dtype` and errors of `get` are as for `load_network`. Arrays in memory become the network at once.
        """
        if name not in checkpoint.networks:
            return None
        # It keeps the headers of this network alone.
        part = replace(checkpoint, archives=(), networks={name: checkpoint.networks[name]})
        load = partial(load_network, part, name, dtype)
        if checkpoint.is_in_memory:
            return cls(cast(Any, load()))
        header = NetworkHeader(checkpoint.spec(name), dtype or checkpoint.dtype(name), checkpoint.read_statistics())
        return cls(header, cast(Any, load))

    @property
    def spec(self) -> NetworkSpec:
        return self._network.spec

    @property
    def dtype(self) -> mx.Dtype:
        return self._network.dtype

    @property
    def statistics(self) -> Statistics | None:
        return self._network.statistics

    @property
    def is_loaded(self) -> bool:
        """Flag: the weights are in memory."""
        return self._load is None

    @property
    def num_bytes(self) -> int:
        """Size of the weights, read or not."""
        return self.spec.num_weights * self.dtype.size

    def get(self) -> NetworkT:
        """Return the network, with its weights."""
        with self._lock:
            if self._load is not None:
                check_process()
                network = self._load()
                mx.eval(network.statistics)  # a lazy array can be used in its own thread only
                self._network, self._load = network, None
            return cast(NetworkT, self._network)

    def __getstate__(self) -> NetworkT:
        """Return the network with its weights, for `copy` and `pickle`, since the file may be missing later."""
        return self.get()

    def __setstate__(self, network: NetworkT) -> None:
        self._network, self._load, self._lock = network, None, threading.Lock()


@explained_device_errors()
def load_network(checkpoint: Checkpoint, name: str, dtype: mx.Dtype | None) -> Network:
    """Make a network of a checkpoint and load its weights, cast to `dtype` unless it is `None`.

    Weights are laid out for the default device; without a `dtype`, they may get a more accurate one of the same size.
    Raises a `CheckpointError` for a tensor that is unreadable, not finite, or zero, and for a file that has changed
    since its header was read.
    """
    stored = checkpoint.networks[name]
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
