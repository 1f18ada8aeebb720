"""Configuration of a latent upsampler, and the specs of its layers. No MLX."""

import math
from dataclasses import dataclass, replace

from ...backend.machine import FLOAT32_BYTES
from ...shapes import DEFAULT_SCALE, Scaled, ScaleFactors, WindowSpec
from ..preview_vae.config import FrameLayerSpec
from ..specs import ConvSpec, LayerSpec, NetworkSpec, PaddingMode, Step, Stride

#: Groups of channels that a norm divides.
GROUPS = 32
_ONE, _THREE = WindowSpec(), WindowSpec(3, 1, 1, 1)
_BLUR = 5  # taps along rows and columns


@dataclass(frozen=True)
class UpsamplerConfig(Scaled):
    """Configuration of a latent upsampler.

    Attributes:
        mid_channels: channels between the first and the last convolution.
        num_blocks: residual blocks before the upsampling, and as many after it.
        dims: 3, or 2 if each frame is computed alone.
        up: positions along time, rows and columns that the upsampling makes of each.
        blur_stride: rows and columns of these, of which one is kept; `None` if there is no blur.
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
        """Name with its factors: "latent upsampler x2", "latent upsampler x1.5", "latent upsampler, time x2"."""
        factor = self.up[1] / (self.blur_stride or 1)
        return "latent upsampler" + f" x{factor:g}" * (factor != 1) + ", time x2" * (self.up[0] > 1)


@dataclass(frozen=True)
class GroupNormSpec(LayerSpec):
    """Group norm and SiLU, in a residual block, whose input waits meanwhile or is added between the two."""

    skip_channels: int = 0
    adds_skip: bool = False

    def work_bytes(self, step: Step) -> int:
        """Return the bytes of the input, the skip connection and the result, and of four arrays in float32."""
        arrays = (2 + (self.skip_channels > 0)) * step.machine.itemsize + 4 * FLOAT32_BYTES
        return math.prod(step.grid) * self.in_channels * arrays


@dataclass(frozen=True)
class BlurSpec(LayerSpec):
    """Blur of each channel of single frames, in float32."""

    def work_bytes(self, step: Step) -> int:
        """Return the bytes of the layer in its dtype, and again in float32."""
        return super().work_bytes(step) * (step.machine.itemsize + FLOAT32_BYTES) // step.machine.itemsize


def upsampler_spec(config: UpsamplerConfig) -> NetworkSpec:
    """Return the layers from latents (B, T, H, W, C) as the VAE makes them, not normalized, to more of these.

    Its norms see the whole clip, or whole frames, so it takes a clip in one piece.
    """
    channels, mid, dims = config.latent_channels, config.mid_channels, config.dims
    layers = [_conv("initial_conv", channels, mid, dims), _norm("initial_norm", mid)]
    layers += _blocks("res_blocks", config)
    if config.blur_stride is None:
        layers.append(_conv("upsampler.0", mid, mid, 3 if config.up[0] > 1 else 2, config.up))
    else:
        window = WindowSpec(_BLUR, config.blur_stride, _BLUR // 2, _BLUR // 2)
        down, kernel = (1, config.blur_stride, config.blur_stride), ("upsampler.blur_down.kernel", (1, 1, _BLUR, _BLUR))
        layers.append(_conv("upsampler.conv", mid, mid, 2, config.up))
        layers.append(
            BlurSpec("upsampler.blur_down", mid, mid, down=down, windows=(_ONE, window, window), weights=(kernel,))
        )
    layers += [*_blocks("post_upsample_res_blocks", config), _conv("final_conv", mid, channels, dims)]
    return NetworkSpec(tuple(layers), stream_axes=())


def _blocks(name: str, config: UpsamplerConfig) -> list[LayerSpec]:
    """Return the layers of the residual blocks of one stage: convolution, norm, convolution, norm with the skip."""
    channels, layers = config.mid_channels, list[LayerSpec]()
    for block in (f"{name}.{index}" for index in range(config.num_blocks)):
        layers += [
            _conv(f"{block}.conv1", channels, channels, config.dims),
            _norm(f"{block}.norm1", channels, channels),
        ]
        layers.append(_conv(f"{block}.conv2", channels, channels, config.dims, skip_channels=channels))
        layers.append(replace(_norm(f"{block}.norm2", channels, channels), adds_skip=True))
    return layers


def _norm(name: str, channels: int, skip_channels: int = 0) -> GroupNormSpec:
    weights = ((f"{name}.weight", (channels,)), (f"{name}.bias", (channels,)))
    return GroupNormSpec(name, channels, channels, weights=weights, skip_channels=skip_channels)


def _conv(
    name: str, in_channels: int, out_channels: int, dims: int, up: Stride = (1, 1, 1), skip_channels: int = 0
) -> LayerSpec:
    """Return a convolution, of frames alone if `dims` is 2, whose channels are shuffled into `up` positions.

    Of frames that it doubles, the first is dropped.
    """
    channels = math.prod(up) * out_channels
    weights = ((f"{name}.weight", (channels, *[3] * dims, in_channels)), (f"{name}.bias", (channels,)))
    if dims == 2:
        frames = (_ONE, _THREE, _THREE)
        return FrameLayerSpec(
            name, in_channels, out_channels, up, windows=frames, weights=weights, skip_channels=skip_channels
        )
    return ConvSpec(
        name,
        in_channels,
        out_channels,
        up,
        trim=up[0] - 1,
        windows=(_THREE, _THREE, _THREE),
        time_padding=PaddingMode.ZEROS,
        weights=weights,
        conv_channels=channels,
        skip_channels=skip_channels,
    )
