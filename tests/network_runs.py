"""Networks of VAEs, run alone: on whole arrays `(B, T, H, W, C)`, and on those that come in pieces along time."""

from collections.abc import Iterable

import mlx.core as mx

from mlx_ltx_vae.networks.base import Decoder
from mlx_ltx_vae.streaming.context import StreamContext
from mlx_ltx_vae.streaming.driver import run_stream, run_whole

__all__ = ["StreamContext", "run_network", "run_pieces", "run_whole"]


def run_network(network: Decoder, x: mx.array, **context: object) -> mx.array:
    """What a network makes of a whole array."""
    return run_whole(network.stages(StreamContext(**context)), x)


def run_pieces(network: Decoder, pieces: Iterable[mx.array]) -> list[mx.array]:
    """What it makes of pieces, in pieces."""
    return list(run_stream(network.stages(StreamContext()), pieces))
