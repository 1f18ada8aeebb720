"""Pair of a VAE's encoder and decoder. One may be missing."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import mlx.core as mx

from .backend.device import check_process, this_machine
from .backend.machine import Machine
from .backend.mlx_utils import DtypeName, GivenDtype, dtype_name, parse_dtype
from .checkpoint import Checkpoint, open_checkpoint
from .checkpoint.loading import LazyNetwork, load_network
from .errors import CheckpointError
from .models.base import Config, Decoder, Medium, Network
from .units import format_bytes

if TYPE_CHECKING:
    from typing_extensions import Self

ConfigT = TypeVar("ConfigT", bound=Config)
EncoderT = TypeVar("EncoderT", bound=Network)


class NetworkPair(Generic[ConfigT, EncoderT]):
    """The networks of a `VideoVAE` or an `AudioVAE`, and the statistics of their latents."""

    _NAMES: tuple[str, ...] = ("decoder", "encoder")  # in the order of a representation
    _missing: Mapping[str, str] = {}  # the checkpoint of each network that it should have had

    def __init__(
        self,
        config: ConfigT,
        encoder: EncoderT | LazyNetwork[EncoderT] | None,
        decoder: Decoder | None,
        *,
        keeps_dtype: bool = False,
    ) -> None:
        first = decoder if decoder is not None else encoder
        if first is None:
            raise CheckpointError(f"{type(self).__name__} needs an encoder or a decoder.")
        self.config, self.decoder = config, decoder
        self._own_encoder = encoder
        given = [network.statistics for network in (decoder, encoder) if not isinstance(network, LazyNetwork | None)]
        mx.eval(given)  # lazy, they could be used in this thread only
        statistics: tuple[mx.array | None, mx.array | None] = given[0] or (None, None)
        self.mean, self.std = statistics
        self._keeps_dtype = keeps_dtype

    @property
    def encoder(self) -> EncoderT | None:
        """The encoder, whose weights are read at its first use if a decoder was loaded with it; None without one."""
        own = self._own_encoder
        return own.get() if isinstance(own, LazyNetwork) else own

    @encoder.setter
    def encoder(self, encoder: EncoderT | None) -> None:
        self._own_encoder = encoder

    def __getstate__(self) -> dict[str, Any]:
        """State for `copy` and `pickle`: with all weights, since the file may not be there where they are needed."""
        return {**vars(self), "_own_encoder": self.encoder}

    @staticmethod
    def _open(
        source: str | os.PathLike | Checkpoint, dtype: GivenDtype, medium: Medium, *, encoder: bool, decoder: bool
    ) -> tuple[Checkpoint, DtypeName | None]:
        """The checkpoint to load, if it is not open yet, in this process, and the name of the dtype."""
        check_process()
        name = parse_dtype(dtype)
        if not isinstance(source, Checkpoint):
            source = open_checkpoint(source, encoder=encoder, decoder=decoder, medium=medium)
        return source, name

    def _note_missing(self, checkpoint: Checkpoint, **wanted: bool) -> "Self":
        """Keep in mind, for errors, which of the wanted networks the checkpoint does not have. Returns this VAE."""
        missing = {name for name, is_wanted in wanted.items() if is_wanted} - checkpoint.networks.keys()
        self._missing = dict.fromkeys(missing, checkpoint.name)
        return self

    def _lacks(self, network: str) -> CheckpointError:
        """The error where a network is needed that is not there."""
        name, what = self._missing.get(network), f"this {type(self).__name__} has no {network}"
        if name is None:
            return CheckpointError(f"{what}; load it with {network}=True.")
        return CheckpointError(f"{what}, since {name} has none; load a file or folder that has one.")

    @property
    def dtype(self) -> mx.Dtype:
        """The compute dtype of the decoder, or of the encoder if no decoder is loaded."""
        return self._decoder.dtype if self.decoder is not None else self._known_encoder.dtype

    def __repr__(self) -> str:
        networks = {name: each for name, each in self._known.items() if each is not None}
        size = format_bytes(sum(map(num_bytes, networks.values())))
        loaded = f"{' + '.join(networks)}, {dtype_name(self.dtype)}, {size}"
        return f"{type(self).__name__}({self.config.generation}, {loaded})"

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if not name.startswith("_")]

    def _machine(self, dtype: mx.Dtype) -> Machine:
        return this_machine(dtype, self._weight_bytes(), keeps_dtype=self._keeps_dtype)

    def _weight_bytes(self, running: object = None) -> int:
        """Bytes of the weights that are in memory, including a network that runs."""
        known = (each for each in self._known.values() if each is not None)
        return sum(num_bytes(each) for each in known if each is running or not _is_waiting(each))

    @property
    def _known(self) -> dict[str, Network | LazyNetwork[EncoderT] | None]:
        """The networks by name, with an encoder whose weights have not been read."""
        return {name: self._own_encoder if name == "encoder" else getattr(self, name) for name in self._NAMES}

    @property
    def _decoder(self) -> Decoder:
        if self.decoder is None:
            raise self._lacks("decoder")
        return self.decoder

    @property
    def _known_encoder(self) -> EncoderT | LazyNetwork[EncoderT]:
        """The encoder. Plans need none of its weights."""
        if self._own_encoder is None:
            raise self._lacks("encoder")
        return self._own_encoder

    @property
    def _encoder(self) -> EncoderT:
        known = self._known_encoder
        return known.get() if isinstance(known, LazyNetwork) else known


def load_encoder(
    checkpoint: Checkpoint, dtype: mx.Dtype | None, *, is_alone: bool
) -> Network | LazyNetwork[Any] | None:
    """The encoder of a checkpoint in files without its weights, unless it is loaded alone; None if it has none."""
    if is_alone or checkpoint.is_in_memory or "encoder" not in checkpoint.networks:
        return load_network(checkpoint, "encoder", dtype)
    return LazyNetwork(checkpoint, "encoder", dtype)


def _is_waiting(network: Network | LazyNetwork[Any]) -> bool:
    """Return whether the weights of a network have not been read."""
    return isinstance(network, LazyNetwork) and network.loaded is None


def num_bytes(network: Network | LazyNetwork[Any]) -> int:
    """The size of a network's weights, read or not."""
    return network.spec.num_weights * network.dtype.size
