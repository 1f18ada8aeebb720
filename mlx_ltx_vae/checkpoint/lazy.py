"""A network whose weights are read when it is first used."""

import threading
from typing import Generic, TypeVar, cast

import mlx.core as mx

from ..backend.device import check_process
from ..backend.mlx_utils import DTYPES
from ..models.base import Network
from . import Checkpoint, check_headers, load_network

NetworkT = TypeVar("NetworkT", bound=Network)


class LazyNetwork(Generic[NetworkT]):
    """A network of a checkpoint in files, whose headers are checked at once, and whose weights are read once by `get`.

    `spec` and `dtype` are the network's. Any thread may call `get`, which raises what `load_network` raises.
    """

    def __init__(self, checkpoint: Checkpoint, name: str, dtype: mx.Dtype | None) -> None:
        check_headers(checkpoint, name)
        self.spec = checkpoint.spec(name)
        self.dtype = dtype or DTYPES[checkpoint.networks[name].dtype]
        self._arguments = checkpoint.of_network(name), name, dtype
        self._lock = threading.Lock()
        self.loaded: NetworkT | None = None

    def get(self) -> NetworkT:
        """The network, with its weights."""
        with self._lock:
            if self.loaded is None:
                check_process()
                loaded = cast(NetworkT, load_network(*self._arguments))
                mx.eval(loaded.statistics)  # lazy, they could be used in this thread only
                self.loaded = loaded
            return self.loaded
