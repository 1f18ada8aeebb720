"""A family of networks that the package has never seen, for `test_families.py`.

Its decoder has 2-D and 1-D convolutions, and neither statistics nor a configuration file.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mlx_ltx_vae import CheckpointError, ScaleFactors
from mlx_ltx_vae.networks.base import CheckpointParts, Configuration, Decoder, Family, NetworkTensors
from mlx_ltx_vae.networks.specs import LayerSpec, NetworkSpec, Shapes
from mlx_ltx_vae.shapes import Axis, WindowSpec
from mlx_ltx_vae.streaming.context import Stage, StreamContext, pointwise
from mlx_ltx_vae.streaming.window import Window

PATCH = 4
MARK = "echo.weight"  # by whose shape it is recognized: three taps along time


@dataclass(frozen=True)
class ToyConfig:
    latent_channels: int
    width: int
    generation: str = "toy"
    scale: ScaleFactors = ScaleFactors(1, PATCH, PATCH)
    time_scale: int = 1
    spatial_scale: int = PATCH


class ToyDecoder(Decoder):
    """Every position with its neighbors in the frame, then with the two frames before, then to a patch of pixels."""

    def __init__(self, config: ToyConfig) -> None:
        super().__init__(spec(config, "decoder"))
        self.mix = nn.Conv2d(config.latent_channels, config.width, 3, padding=1)
        self.echo = nn.Conv1d(config.width, config.width, 3, bias=False)
        self.color = nn.Conv2d(config.width, 3 * PATCH**2, 1, bias=False)

    def stages(self, context: StreamContext) -> list[Stage]:
        window = Window(context.axis, self.spec.layers[1].window(context.axis))

        def echo(x: mx.array | None, last: bool) -> mx.array | None:
            view = window.push(x, last)
            if view is None:
                return None
            batch, _, rows, columns, channels = view.frames.shape
            frames = mx.pad(view.frames, [(0, 0), (view.before, 0), (0, 0), (0, 0), (0, 0)])
            lines = frames.transpose(0, 2, 3, 1, 4).reshape(batch * rows * columns, -1, channels)
            return self.echo(lines).reshape(batch, rows, columns, -1, channels).transpose(0, 3, 1, 2, 4)

        return [pointwise(self._mix), Stage(echo, window), pointwise(self._color), pointwise(_shuffle)]

    def _mix(self, x: mx.array) -> mx.array:
        return mx.maximum(self.mix(x.flatten(0, 1)), 0).reshape(*x.shape[:4], -1)

    def _color(self, x: mx.array) -> mx.array:
        return self.color(x.flatten(0, 1)).reshape(*x.shape[:4], -1)


def _shuffle(x: mx.array) -> mx.array:
    batch, frames, rows, columns, _ = x.shape
    x = x.reshape(batch, frames, rows, columns, 3, PATCH, PATCH).transpose(0, 1, 2, 5, 3, 6, 4)
    return x.reshape(batch, frames, rows * PATCH, columns * PATCH, 3)


def decode(weights: Mapping[str, np.ndarray], latents: np.ndarray) -> np.ndarray:
    """What the decoder computes, tap by tap, of weights that are stored channels-first: (B, 3, F, H, W)."""
    rows, columns = latents.shape[3:]
    padded = np.pad(latents, [(0, 0)] * 3 + [(1, 1), (1, 1)])
    x = weights["mix.bias"].reshape(-1, 1, 1, 1)
    for i, j in np.ndindex(3, 3):
        x = x + np.einsum(
            "oi,bithw->bothw", weights["mix.weight"][:, :, i, j], padded[..., i : i + rows, j : j + columns]
        )
    past = np.pad(np.maximum(x, 0), [(0, 0), (0, 0), (2, 0), (0, 0), (0, 0)])
    frames = latents.shape[2]
    x = sum(np.einsum("oi,bithw->bothw", weights[MARK][:, :, i], past[:, :, i : i + frames]) for i in range(3))
    x = np.einsum("oi,bithw->bothw", weights["color.weight"][:, :, 0, 0], x)
    x = x.reshape(len(x), 3, PATCH, PATCH, frames, rows, columns).transpose(0, 1, 4, 5, 2, 6, 3)
    return x.reshape(len(x), 3, frames, rows * PATCH, columns * PATCH)


def find(shapes: Shapes) -> NetworkTensors:
    names = {name.removeprefix("decoder."): name for name in shapes if name.startswith("decoder.")}
    is_toy = MARK in names and len(shapes[names[MARK]]) == 3
    return NetworkTensors({"decoder": names} if is_toy else {})


def configure(stated: Mapping[str, Any] | ToyConfig | None, stored: CheckpointParts) -> Configuration[ToyConfig]:
    width, *_, latent_channels = stored.networks["decoder"]["mix.weight"]
    return Configuration(ToyConfig(latent_channels, width), {})


def spec(config: ToyConfig, network: str) -> NetworkSpec:
    if network != "decoder":
        raise CheckpointError(f"the toy has no {network}.")
    channels, width, colors = config.latent_channels, config.width, 3 * PATCH**2
    alone, around, past = WindowSpec(), WindowSpec(3, 1, 1, 1), WindowSpec(3, 1, 2, 0)
    mix = (("mix.weight", (width, 3, 3, channels)), ("mix.bias", (width,)))
    layers = (
        LayerSpec("mix", channels, width, windows=(alone, around, around), weights=mix),
        LayerSpec("echo", width, width, windows=(past, alone, alone), weights=((MARK, (width, 3, width)),)),
        LayerSpec("color", width, colors, weights=(("color.weight", (colors, 1, 1, width)),)),
        LayerSpec("shuffle", colors, 3, up=(1, PATCH, PATCH)),
    )
    return NetworkSpec(layers, stream_axes=(Axis.TIME,))


TOY = Family(
    name="toy",
    decoder="toy",
    kernels=((3, 3), (1, 1), (3,)),
    has_statistics=False,
    config_type=ToyConfig,
    find=find,
    choose_config=lambda contents: None,
    configure=configure,
    spec=spec,
    make=lambda config, network, statistics: ToyDecoder(config),
    describe=lambda config: {"decoder": {"widths": [config.width]}},
)
