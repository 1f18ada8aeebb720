"""Configuration of a latent upsampler, and the specs of its layers. No MLX."""

import math
from dataclasses import dataclass, replace

from ...backend.machine import FLOAT32_BYTES
from ...shapes import DEFAULT_SCALE, ClipRules, Scaled, ScaleFactors, WindowSpec
from ..preview_vae.config import FrameLayerSpec
from ..specs import ConvSpec, LayerSpec, NetworkSpec, PaddingMode, Step, Stride

#: Groups of channels that a norm divides.
GROUPS = 32
_ONE, _THREE = WindowSpec(), WindowSpec(3, 1, 1, 1)


@dataclass(frozen=True)
class UpsamplerConfig(Scaled):
    """Configuration of a latent upsampler.

    Attributes:
        mid_channels: channels between the first and the last convolution.
        num_blocks: residual blocks before the upsampling, and as many after it.
        dims: 3, or 2 if each frame is computed alone.
        up: positions along time, rows and columns that the upsampling makes of each.
        blur_stride: one of so many of these rows and columns is kept; `None` without a blur.
    """

    latent_channels: int
    mid_channels: int
    num_blocks: int
    dims: int
    up: Stride
    blur_stride: int | None = None

    @property
    def scale(self) -> ScaleFactors:
        return DEFAULT_SCALE

    @property
    def generation(self) -> str:
        factor = self.up[1] / (self.blur_stride or 1)
        return "latent upsampler" + f" x{factor:g}" * (factor != 1) + ", time x2" * (self.up[0] > 1)


@dataclass(frozen=True)
class GroupNormSpec(LayerSpec):
    """Group norm and SiLU, in a residual block, whose input waits meanwhile or is added between the two."""

    skip_channels: int = 0
    adds_skip: bool = False

    def work_bytes(self, step: Step) -> int:
        """Return the bytes of input, skip connection and result, and of arrays in float32, as many as were measured."""
        itemsize = step.machine.itemsize
        wide_bytes = (4 if itemsize == FLOAT32_BYTES else 6) * FLOAT32_BYTES
        return math.prod(step.grid) * (self.in_channels * (2 * itemsize + wide_bytes) + self.skip_channels * itemsize)


def upsampler_spec(config: UpsamplerConfig) -> NetworkSpec:
    """Return the layers, which take a clip in one piece, since norms see all of it, or whole frames if `dims` is 2."""
    mid, dims, stride = config.mid_channels, config.dims, config.blur_stride
    layers: list[LayerSpec] = [_conv("initial_conv", config.latent_channels, mid, dims), _norm("initial_norm", mid)]
    layers += _blocks("res_blocks", config)
    layers.append(_conv("upsampler.conv" if stride else "upsampler.0", mid, mid, 2 + (config.up[0] > 1), config.up))
    if stride:
        window, kernel = WindowSpec(5, stride, 2, 2), ("upsampler.blur_down.kernel", (1, 1, 5, 5))
        windows, down = (_ONE, window, window), (1, stride, stride)
        layers.append(LayerSpec("upsampler.blur_down", mid, mid, down=down, windows=windows, weights=(kernel,)))
    layers += _blocks("post_upsample_res_blocks", config)
    layers.append(_conv("final_conv", mid, config.latent_channels, dims))
    return NetworkSpec(tuple(layers), stream_axes=(), clip=ClipRules(cell=config.scale))


def _blocks(stage: str, config: UpsamplerConfig) -> list[LayerSpec]:
    layers, channels = list[LayerSpec](), config.mid_channels
    for name in (f"{stage}.{index}" for index in range(config.num_blocks)):
        layers += [_conv(f"{name}.conv1", channels, channels, config.dims), _norm(f"{name}.norm1", channels, channels)]
        layers.append(_conv(f"{name}.conv2", channels, channels, config.dims, skip_channels=channels))
        layers.append(replace(_norm(f"{name}.norm2", channels, channels), adds_skip=True))
    return layers


def _norm(name: str, channels: int, skip_channels: int = 0) -> GroupNormSpec:
    weights = ((f"{name}.weight", (channels,)), (f"{name}.bias", (channels,)))
    return GroupNormSpec(name, channels, channels, weights=weights, skip_channels=skip_channels)


def _conv(
    name: str, inputs: int, outputs: int, dims: int, up: Stride = (1, 1, 1), skip_channels: int = 0
) -> FrameLayerSpec | ConvSpec:
    """Return a convolution whose channels become `up` positions. Of doubled frames, the first is dropped."""
    channels, windows = math.prod(up) * outputs, (_ONE if dims == 2 else _THREE, _THREE, _THREE)
    weights = ((f"{name}.weight", (channels, *[3] * dims, inputs)), (f"{name}.bias", (channels,)))
    if dims == 2:
        return FrameLayerSpec(name, inputs, outputs, up, windows=windows, weights=weights, skip_channels=skip_channels)
    conv = ConvSpec(name, inputs, outputs, up, trim=up[0] - 1, windows=windows, weights=weights)
    return replace(conv, time_padding=PaddingMode.ZEROS, conv_channels=channels, skip_channels=skip_channels)
