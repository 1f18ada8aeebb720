"""The networks that stay loaded for the next run, bounded by their bytes, and where they come from."""

import os
import threading
import weakref
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx
import torch
from mlx.utils import tree_flatten

from mlx_ltx_vae import AudioVAE, CheckpointError, VideoVAE

Pair = VideoVAE | AudioVAE
FileState = tuple[int, int, int, int]


def file_state(path: str) -> FileState:
    """Return what changes when a file is replaced or written to."""
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class Source(Protocol):
    """A source of networks, which are loaded once for each key."""

    @property
    def key(self) -> Hashable: ...

    def load(self, kind: type[Pair], network: str, dtype: str | None) -> Pair:
        """Load the `encoder` or the `decoder`. On the MLX thread only."""


@dataclass(frozen=True)
class VAEFile:
    """A file of a VAE, which is read again if it was replaced."""

    path: str

    @property
    def key(self) -> Hashable:
        return self.path, file_state(self.path)

    def load(self, kind: type[Pair], network: str, dtype: str | None) -> Pair:
        options: dict[str, Any] = {"encoder": network == "encoder", "decoder": network == "decoder"}
        return kind.from_pretrained(self.path, dtype=dtype, **options)


class LoadedVAE:
    """A VAE that ComfyUI has loaded, in the dtype that it has there. `name` is the input's."""

    def __init__(self, name: str, vae: Any) -> None:
        self._name, self._module = name, vae.first_stage_model
        if self._module is None:
            raise CheckpointError(f"{name} has no network; connect the VAE of a checkpoint that has one.")
        self.key = weakref.ref(self._module)

    def load(self, kind: type[Pair], network: str, dtype: str | None) -> Pair:
        other = "encoder." if network == "decoder" else "decoder."
        weights, prefix = {}, "autoencoder."  # of a VAE of audio
        for name, tensor in self._module.state_dict().items():
            if not name.removeprefix(prefix).startswith(other):
                app_name = f"audio_vae.{name.removeprefix(prefix)}" if name.startswith(prefix) else name
                weights[app_name] = to_mlx(tensor)
        config = getattr(self._module, "config", None)  # from the file's metadata
        try:
            return kind.from_weights(weights, config if isinstance(config, dict) else None, dtype=dtype)
        except CheckpointError as error:
            what = "LTX audio VAE" if kind is AudioVAE else "LTX video VAE"
            reason = str(error).rstrip(".")
            raise CheckpointError(
                f"{self._name} is no {what} with a usable {network} ({reason}); connect the VAE of an LTX model."
            ) from error


def to_mlx(tensor: Any) -> mx.array:
    """Convert a tensor to an array of the same dtype."""
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:  # which numpy does not have
        return mx.array(tensor.view(torch.uint16).numpy()).view(mx.bfloat16)
    return mx.array(tensor.numpy())


class Networks:
    """Loaded networks, the one that was used last at the end. It always stays, however large."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._loaded: dict[Hashable, Pair] = {}

    def __bool__(self) -> bool:
        return bool(self._loaded)

    def load(self, kind: type[Pair], source: Source, network: str, dtype: str | None = None) -> Any:
        """Load the `encoder` or the `decoder` of a source, or return the one that is kept. On the MLX thread only."""
        key = kind, source.key, network, dtype
        with self._lock:
            for gone in [key for key in self._loaded if isinstance(key[1], weakref.ref) and key[1]() is None]:
                del self._loaded[gone]
            pair = self._loaded.pop(key, None)
        if pair is None:
            pair = source.load(kind, network, dtype)
        with self._lock:
            self._loaded[key] = pair
            while len(self._loaded) > 1 and sum(map(num_bytes, self._loaded.values())) > self.max_bytes:
                del self._loaded[next(iter(self._loaded))]
        return pair

    def free(self) -> None:
        """Forget all networks, on any thread. One that is used by a job stays until it ends."""
        with self._lock:
            self._loaded.clear()


def num_bytes(pair: Pair) -> int:
    loaded = pair.encoder, pair.decoder, getattr(pair, "vocoder", None)
    return sum(array.nbytes for network in loaded if network for _, array in tree_flatten(network.parameters()))
