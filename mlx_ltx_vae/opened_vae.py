"""What `VideoVAE`, `AudioVAE` and `LatentUpsampler` have in common: networks that are opened, and read when used."""

import os
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import mlx.core as mx

from .backend.device import check_process, this_machine
from .backend.machine import Machine
from .backend.mlx_utils import DtypeName, GivenDtype, dtype_name, parse_dtype
from .checkpoint import Checkpoint, VAESource, open_checkpoint
from .checkpoint.loading import NetworkHandle, NetworkHeader
from .checkpoint.locate import is_remote
from .errors import CheckpointError
from .latents.metadata import LatentSpace
from .model_table import find_model
from .networks.base import NETWORKS, PICTURES, UPSAMPLERS, Config, Decoder, Medium, Network, Statistics
from .networks.specs import NetworkSpec
from .options import PlanOptions
from .planning.plan import DecodePlan, EncodePlan
from .planning.planner import plan_decode, plan_encode
from .published import PublishedVAE
from .units import format_bytes

if TYPE_CHECKING:
    from typing_extensions import Self

ConfigT = TypeVar("ConfigT", bound=Config)


class OpenedNetworks(Generic[ConfigT]):
    """Networks that were opened from the files of one model.

    Their layers, dtypes and statistics are known from the start. Weights are read when they are first used.
    """

    _NAMES: tuple[str, ...] = ("decoder", "encoder")  # in the order of `repr`
    _MEDIUM = PICTURES
    _requested: Collection[str] = ()  # networks that were requested, and may not be there
    #: Files that it was opened from, and what they state.
    source: VAESource = VAESource()

    def __init__(
        self, config: ConfigT, networks: Mapping[str, Network | NetworkHandle[Any] | None], *, keeps_dtype: bool = False
    ) -> None:
        self.config = config
        self._networks: dict[str, NetworkHandle[Any]] = {}
        for name in self._NAMES:
            self._set(name, networks.get(name))
        if self._networks.keys().isdisjoint((*NETWORKS, *UPSAMPLERS.networks)):
            raise CheckpointError(f"{type(self).__name__} needs an encoder or a decoder.")
        all_statistics = [handle.statistics for handle in self._networks.values() if handle.statistics is not None]
        mx.eval(all_statistics)  # lazy arrays could be used in this thread only
        statistics: tuple[mx.array | None, mx.array | None] = next(iter(all_statistics), (None, None))
        self.mean, self.std = statistics
        self._keeps_dtype = keeps_dtype

    @classmethod
    def is_remote(cls, source: str | None) -> bool:
        """Return whether the hub is asked for a source: for a name that is not in the cache, and for a hub id."""
        return is_remote(source, cls._MEDIUM)

    def load(self) -> "Self":
        """Read the weights of all networks that have not been used, and return this VAE.

        Raises:
            CheckpointError: if a tensor cannot be read, is not finite, or is zero, or if the file has changed.
        """
        for handle in self._networks.values():
            handle.get()
        return self

    @staticmethod
    def _open(
        source: str | os.PathLike | Checkpoint, dtype: GivenDtype, medium: Medium, *, encoder: bool, decoder: bool
    ) -> tuple[Checkpoint, DtypeName | None]:
        """Check this process, and return the opened checkpoint and the name of the dtype."""
        check_process()
        name = parse_dtype(dtype)
        if not isinstance(source, Checkpoint):
            source = open_checkpoint(source, encoder=encoder, decoder=decoder, medium=medium)
        return source, name

    def _note_source(self, source: VAESource, **requested: bool) -> "Self":
        """Record the source, and for errors the requested networks. Returns this VAE."""
        self.source, self._requested = source, [name for name, is_requested in requested.items() if is_requested]
        return self

    def _get(self, name: str) -> Any:
        """Return a network with its weights, or `None`."""
        handle = self._networks.get(name)
        return None if handle is None else handle.get()

    def _set(self, name: str, network: Network | NetworkHandle[Any] | None) -> None:
        """Replace a network, or remove it if it is `None`."""
        handle = NetworkHandle(network) if isinstance(network, Network) else network
        if handle is None:
            self._requested = [requested for requested in self._requested if requested != name]
        networks: dict[str, NetworkHandle[Any] | None] = {**self._networks, name: handle}
        self._networks = {name: handle for name, handle in networks.items() if handle is not None}

    def spec(self, network: str) -> NetworkSpec:
        """Return the layers of a network. Raises a `CheckpointError` if this VAE does not have it."""
        return self._network(network).spec

    def _network(self, name: str) -> NetworkHandle[Any]:
        """Return the handle of a network. Raises a `CheckpointError` if this VAE does not have it."""
        if name in self._networks:
            return self._networks[name]
        problem = f"this {type(self).__name__} has no {name}"
        if name not in self._requested:
            raise CheckpointError(f"{problem}; load it with {name}=True.")
        raise CheckpointError(f"{problem}, since {self.source.name} has none; load a file or folder that has one.")

    @property
    def dtype(self) -> mx.Dtype:
        """Compute dtype of the decoder, or of the encoder if there is no decoder."""
        return self._network("decoder" if "decoder" in self._networks else "encoder").dtype

    def __repr__(self) -> str:
        size = format_bytes(sum(handle.num_bytes for handle in self._networks.values()))
        networks = f"{' + '.join(self._networks)}, {dtype_name(self.dtype)}, {size}"
        return f"{type(self).__name__}({self.config.generation}, {networks})"

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if not name.startswith("_")]

    def _plan_decode(
        self, spec: NetworkSpec, dtype: mx.Dtype, shape: Sequence[int], options: PlanOptions, *running: str
    ) -> DecodePlan:
        """Plan the decode of latents of a shape by the `running` networks, which have these layers and dtype."""
        options = replace(options, weight_bytes=self._weight_bytes(*running))
        return plan_decode(spec, shape, self._machine(dtype), options)

    def _plan_encode(
        self, shape: Sequence[int], options: PlanOptions, *, pad: bool = False, running: Sequence[str] = ("encoder",)
    ) -> EncodePlan:
        """Plan the encode of frames, or of a spectrogram, of a shape, while the `running` networks are in memory."""
        encoder = self._network("encoder")
        options = replace(options, weight_bytes=self._weight_bytes(*running))
        return plan_encode(encoder.spec, shape, self._machine(encoder.dtype), options, pad=pad)

    def _machine(self, dtype: mx.Dtype) -> Machine:
        return this_machine(dtype, self._weight_bytes(), keeps_dtype=self._keeps_dtype)

    def _weight_bytes(self, *running: str) -> int:
        """Return the bytes of the weights that are in memory while the `running` networks run."""
        networks = self._networks.items()
        return sum(handle.num_bytes for name, handle in networks if name in running or handle.is_loaded)


class OpenedVAE(OpenedNetworks[ConfigT]):
    """Networks of a `VideoVAE` or an `AudioVAE`, and the statistics of their latents."""

    @classmethod
    @abstractmethod
    def from_pretrained(cls, *arguments: Any, **options: Any) -> "Self":
        """Open the networks of a source."""

    @classmethod
    @abstractmethod
    def published(cls, *arguments: Any, **options: Any) -> "Self":
        """Return a published VAE without its files."""

    @classmethod
    def before_download(
        cls, source: str, *, dtype: GivenDtype = None, encoder: bool = True, decoder: bool = True
    ) -> "Self | None":
        """Return what is known of a source that is not downloaded, as far as plans and checks of inputs need it.

        A name of the table that is not in the cache is a published VAE with 0 and 1 as its statistics, and a hub id is
        `None`. Other sources are opened, as by `from_pretrained`.
        """
        if not cls.is_remote(source):
            return cls.from_pretrained(source, dtype=dtype, encoder=encoder, decoder=decoder)
        model = find_model(source, cls._MEDIUM.kinds)
        if model is None:
            return None
        vae = cls.published(model.name, dtype=dtype)
        ones = mx.ones((vae.config.latent_channels,))
        vae.mean, vae.std = 0 * ones, ones
        return vae

    @property
    def decoder(self) -> Decoder | None:
        """Decoder with its weights, or `None`."""
        return self._get("decoder")

    @decoder.setter
    def decoder(self, decoder: Decoder | None) -> None:
        self._set("decoder", decoder)

    @property
    def latent_space(self) -> LatentSpace:
        """Generation and fingerprint of its latents, for `save_latents(space=)`."""
        statistics = self.statistics
        generation = next(iter(self.source.generations), None)
        return LatentSpace(generation, None if statistics is None else statistics.fingerprint)

    def describe_mismatch(self, latents: LatentSpace) -> str | None:
        """Say that latents belong to another VAE, as the end of a sentence about them. Returns `None` if they fit."""
        return self.source.describe_mismatch(latents, self.latent_space)

    @property
    def statistics(self) -> Statistics | None:
        """Mean and standard deviation of its latents, or `None` for a VAE that has none."""
        return None if self.mean is None or self.std is None else Statistics(self.mean, self.std)


def described_network(vae: PublishedVAE | Checkpoint, network: str, dtype: mx.Dtype) -> NetworkHandle[Any] | None:
    """Return a network for plans alone, whose weights are an error; `None` if the VAE does not have it."""

    def load() -> Network:
        raise CheckpointError(f"{vae.name}: this VAE was made without files; from_pretrained opens its weights.")

    try:
        spec = vae.spec(network)
    except CheckpointError:  # the configuration does not describe it
        return None
    return NetworkHandle(NetworkHeader(spec, dtype, None), load)
