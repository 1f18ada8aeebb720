"""What a VAE is loaded into: its encoder and its decoder, of which one may be missing."""

import os
from typing import Generic, TypeVar

import mlx.core as mx

from .backend.device import check_process, this_machine
from .backend.machine import Machine
from .backend.mlx_utils import DTYPES, dtype_name
from .checkpoint import Checkpoint, open_checkpoint
from .errors import CheckpointError
from .models.base import Config, Decoder, Medium, Network
from .units import format_bytes

ConfigT = TypeVar("ConfigT", bound=Config)
EncoderT = TypeVar("EncoderT", bound=Network)


class NetworkPair(Generic[ConfigT, EncoderT]):
    """The networks of a `VideoVAE` or an `AudioVAE`, and the statistics of their latents."""

    _NAMES: tuple[str, ...] = ("decoder", "encoder")  # in the order of a representation

    def __init__(
        self, config: ConfigT, encoder: EncoderT | None, decoder: Decoder | None, *, keeps_dtype: bool = False
    ) -> None:
        networks = [network for network in (decoder, encoder) if network is not None]
        if not networks:
            raise CheckpointError(f"{type(self).__name__} needs an encoder or a decoder.")
        self.config, self.encoder, self.decoder = config, encoder, decoder
        mx.eval([network.statistics for network in networks])  # lazy, they could be used in this thread only
        statistics: tuple[mx.array | None, mx.array | None] = networks[0].statistics or (None, None)
        self.mean, self.std = statistics
        self._keeps_dtype = keeps_dtype

    @staticmethod
    def _open(
        source: str | os.PathLike | Checkpoint, dtype: str | None, medium: Medium, *, encoder: bool, decoder: bool
    ) -> Checkpoint:
        """The checkpoint to load, if it is not open yet, in this process and in this dtype."""
        check_process()
        if dtype is not None and dtype not in DTYPES:
            raise CheckpointError(f"dtype {dtype!r} is not known; expected {', '.join(DTYPES)}.")
        if isinstance(source, Checkpoint):
            return source
        return open_checkpoint(source, encoder=encoder, decoder=decoder, medium=medium)

    @property
    def dtype(self) -> mx.Dtype:
        """The compute dtype of the decoder, or of the encoder if no decoder is loaded."""
        return self._decoder.dtype if self.decoder is not None else self._encoder.dtype

    def __repr__(self) -> str:
        networks = {name: each for name in self._NAMES if (each := getattr(self, name)) is not None}
        size = format_bytes(sum(each.spec.num_weights * each.dtype.size for each in networks.values()))
        loaded = f"{' + '.join(networks)}, {dtype_name(self.dtype)}, {size}"
        return f"{type(self).__name__}({self.config.generation}, {loaded})"

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if not name.startswith("_")]

    def _machine(self, network: Network) -> Machine:
        loaded = network.spec.num_weights * network.dtype.size  # which plans count
        return this_machine(network.dtype, loaded, keeps_dtype=self._keeps_dtype)

    @property
    def _decoder(self) -> Decoder:
        if self.decoder is None:
            raise CheckpointError(
                f"this {type(self).__name__} was loaded without a decoder; load it with decoder=True."
            )
        return self.decoder

    @property
    def _encoder(self) -> EncoderT:
        if self.encoder is None:
            raise CheckpointError(
                f"this {type(self).__name__} was loaded without an encoder; load it with encoder=True."
            )
        return self.encoder
