"""The networks that stay loaded for the next run, bounded by their bytes."""

import threading
from typing import Any

from mlx.utils import tree_flatten

from mlx_ltx_vae import AudioVAE, VideoVAE
from mlx_ltx_vae.files import FileState, file_state

Pair = VideoVAE | AudioVAE
Key = tuple[type[Pair], str, FileState, str, str | None]


class Networks:
    """Loaded networks, the one that was used last at the end. It always stays, however large."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._loaded: dict[Key, Pair] = {}

    def __bool__(self) -> bool:
        return bool(self._loaded)

    def load(self, kind: type[Pair], path: str, network: str, dtype: str | None = None) -> Any:
        """The `encoder` or the `decoder` of a file; it is read again if it was replaced. On the MLX thread only."""
        key = kind, path, file_state(path), network, dtype
        with self._lock:
            pair = self._loaded.pop(key, None)
        if pair is None:
            options: dict[str, Any] = {"encoder": network == "encoder", "decoder": network == "decoder"}
            options |= {} if dtype is None else {"dtype": dtype}
            pair = kind.from_pretrained(path, **options)
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
