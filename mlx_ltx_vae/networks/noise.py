"""Noise that a decoder takes, drawn from a seed or passed by the caller.

Noise does not depend on the length of a clip or on how it is cut. Every latent frame of a batch item and every noise
map has its own random key, made from the seed and its index. `NoiseVolume` computes each value from the seed and its
position.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from itertools import count
from typing import Any, NamedTuple, cast

import mlx.core as mx
import numpy as np

from ..backend.device import evaluate
from ..backend.mlx_utils import to_mlx
from ..errors import LatentsError, quote
from ..options import DECODE_DEFAULTS, MAX_SEED, ConventionName, DecodeOptions
from ..shapes import Grid, LatentShape, Shape
from .layers import patchify
from .specs import PLANES, NetworkSpec, Rate

#: The shape of each layer's noise by the name of the layer, as `NetworkSpec.noise_shapes` returns it.
NoiseShapes = Mapping[str, Shape]

#: Slices of the time, height and width of latents.
LatentBox = tuple[slice, slice, slice]


class Convention(NamedTuple):
    """Defaults of a pipeline for VAEs that take a timestep and noise. A noise scale of `None` is the timestep."""

    timestep: float
    noise_scale: float | None
    is_late: bool


#: The conventions by name: Lightricks' own pipelines, the default, and diffusers.
CONVENTIONS: dict[ConventionName, Convention] = {
    "ltx-video": Convention(timestep=0.05, noise_scale=0.025, is_late=False),
    "diffusers": Convention(timestep=0.0, noise_scale=None, is_late=True),
}

_VIDEO_ORIGIN = (0, 0, 0)  # where the noise of the whole video begins
_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)  # of Threefry's rounds
_PARITY = 0x1BD11BDA
_MIX = ((16, 0x85EBCA6B), (13, 0xC2B2AE35))  # shifts and factors of the finalizer of MurmurHash3
_GOLDEN_RATIO = 0x9E3779B9
_WINDOW = 0x85EBCA6B  # step between windows; unlike the step between batch items, so that all noise differs
_MAPS = 2**31  # smaller indices belong to latent frames, and indices from here on to noise maps
_ITEM = 2**20  # maximum number of latent frames per batch item


class LatentNoise(NamedTuple):
    """Noise in latents: `(1 - scale) * latents + scale * values`. `None` means zeros.

    With `is_late`, it is mixed into denormalized latents.
    """

    values: mx.array | None
    scale: float
    is_late: bool = False

    def mix(self, latents: mx.array) -> mx.array:
        latents = (1 - self.scale) * latents
        return latents if self.values is None else latents + self.scale * self.values


@dataclass(frozen=True)
class KeyedNoise:
    """Noise `mx.random.normal(shape, dtype, key=key)` of a picture (B, 3, T, H, W), computed in parts.

    It replaces an array, which would take as much memory as the video. It is sliced like the volume (B, T, H, W, C) of
    its patches.
    """

    key: mx.array
    shape: Shape
    dtype: mx.Dtype = mx.float32
    patch_size: int = 1

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def part(self, time: slice, rows: slice, columns: slice) -> mx.array:
        """Return the noise (B, T, H, W, 3) of a part of the picture, as float32."""
        size = math.prod(self.shape)
        axes = (slice(0, self.shape[0]), slice(0, self.shape[1]), time, rows, columns)
        dtype = mx.uint32 if size < 2**32 else mx.int64
        index, stride = mx.zeros((1,) * self.ndim, dtype), size
        for axis, (span, length) in enumerate(zip(axes, self.shape, strict=True)):
            stride //= length
            offsets = mx.arange(*span.indices(length)[:2], dtype=dtype) * stride
            index = index + offsets.reshape([-1 if i == axis else 1 for i in range(self.ndim)])
        half = size // 2  # Threefry makes two numbers of two counters, which are half of the size apart
        middle = half + size % 2
        is_second = index >= middle
        x0 = mx.where(is_second, index - middle, index)
        x1 = mx.where(index < half, x0 + middle, mx.where(is_second, index, 0))
        key = self.key.astype(mx.uint32)
        scale = mx.array(math.sqrt(2), self.dtype)
        values = _keyed_normal(key[0], key[1], x0.astype(mx.uint32), x1.astype(mx.uint32), is_second, scale)
        return values.transpose(0, 2, 3, 4, 1)

    def __getitem__(self, box: tuple[slice, slice, slice, slice]) -> mx.array:
        _, time, *extents = box
        rows, columns = (slice(extent.start * self.patch_size, extent.stop * self.patch_size) for extent in extents)
        return patchify(self.part(time, rows, columns), self.patch_size)


@dataclass(frozen=True)
class NoiseVolume:
    """Standard normal noise for each position of a layer's output, for `StreamContext.draw_noise`, drawn in parts."""

    seed: int | None  # `None` means zeros
    batch: int
    channels: int
    rate: Rate  # positions of the layer's output per frame, row and column of the video
    # Noise from the caller, (B, T, H, W, C), by its origin: of the whole video, or of each tile. If there is none, the
    # noise is computed.
    values: Mapping[Grid, mx.array | KeyedNoise] = field(default_factory=dict)

    def __call__(self, origins: Sequence[Grid], start: Grid, size: Grid, planes: Sequence[int] = ()) -> mx.array:
        """Return the noise of `size` positions from `start` on, or of these keyframe `planes` instead of frames."""
        parts = []
        for origin in origins:
            values, begins = self.values.get(origin), list(start)
            if values is None:
                begins = [begin + int(o * rate) for begin, o, rate in zip(start, origin, self.rate, strict=True)]
                values = self.values.get(_VIDEO_ORIGIN)
            box = [slice(begin, begin + count) for begin, count in zip(begins, size, strict=True)]
            has_tiles = len(self.values) > 1  # the values of a tile have only the tile's planes
            if planes and not has_tiles:
                box[0] = slice(0, max(planes) + 1)
            part = self._compute(box) if values is None else values[:, box[0], box[1], box[2]]
            parts.append(part[:, mx.array(tuple(planes))] if planes and not has_tiles else part)
        return parts[0] if len(parts) == 1 else mx.concatenate(parts)

    def _compute(self, box: Sequence[slice]) -> mx.array:
        axes = [slice(0, self.batch), *box, slice(0, self.channels)]
        if self.seed is None:
            return mx.zeros([axis.stop - axis.start for axis in axes])
        bits = mx.array(self.seed & MAX_SEED, dtype=mx.uint32)
        for axis, span in enumerate(axes):
            shape = [-1 if i == axis else 1 for i in range(len(axes))]
            bits = _mix(bits + mx.arange(span.start, span.stop, dtype=mx.uint32).reshape(shape) * _GOLDEN_RATIO)
        return _normal(bits)


@partial(mx.compile, shapeless=True)
def _mix(bits: mx.array) -> mx.array:
    for shift, factor in _MIX:
        bits = (bits ^ (bits >> shift)) * mx.array(factor, dtype=mx.uint32)
    return bits ^ (bits >> 16)


def _normal(bits: mx.array) -> mx.array:
    """Return a normally distributed float32 for each random uint32, by the Box-Muller transform."""
    radius = (bits.astype(mx.float32) + 1) * 2.0**-32
    angle = _mix(bits + _GOLDEN_RATIO).astype(mx.float32) * (2 * math.pi * 2.0**-32)
    return mx.sqrt(-2 * mx.log(mx.minimum(radius, 1))) * mx.cos(angle)


@partial(mx.compile, shapeless=True)
def _keyed_normal(
    key0: mx.array, key1: mx.array, x0: mx.array, x1: mx.array, is_second: mx.array, scale: mx.array
) -> mx.array:
    """Return the normal noise of MLX's generator, Threefry-2x32, in the dtype of `scale`, for pairs of counters."""
    keys = (key0, key1, key0 ^ key1 ^ mx.array(_PARITY, dtype=mx.uint32))
    x0, x1 = x0 + keys[0], x1 + keys[1]
    for group in range(5):
        for i in range(4):
            rotation = _ROTATIONS[4 * (group % 2) + i]
            x0 = x0 + x1
            x1 = ((x1 << rotation) | (x1 >> (32 - rotation))) ^ x0
        x0, x1 = x0 + keys[(group + 1) % 3], x1 + keys[(group + 2) % 3] + (group + 1)
    bits = mx.where(is_second, x1, x0).astype(mx.float32)
    low, below_1 = float(np.nextafter(np.float32(-1), np.float32(0))), float(np.nextafter(np.float32(1), np.float32(0)))
    values = mx.erfinv(mx.minimum(bits / (2**32 - 1), below_1) * (1 - low) + low)
    return (scale * values.astype(scale.dtype)).astype(mx.float32)


@dataclass(frozen=True)
class Draws:
    """Noise and timestep of one decode."""

    timestep: float | None  # 0 to 1; `None` if the network takes none
    scale: float | None  # the fraction of the latents that noise replaces; `None` if the network takes no such noise
    is_late: bool
    maps: Mapping[str, mx.array]  # by the name of the layer that adds them, as volumes
    volumes: Mapping[str, NoiseVolume]
    latents: Callable[[LatentBox], mx.array] | None  # draws the noise of a part of the latents; `None` means zeros

    def timesteps(self, batch: int) -> mx.array | None:
        return None if self.timestep is None else mx.full((batch,), self.timestep, dtype=mx.float32)

    def crop(self, box: LatentBox) -> LatentNoise | None:
        if self.scale is None:
            return None
        return LatentNoise(None if self.latents is None else self.latents(box), self.scale, self.is_late)


def draw(
    spec: NetworkSpec,
    shape: LatentShape,
    dtype: mx.Dtype,
    options: DecodeOptions = DECODE_DEFAULTS,
    *,
    tiles: Mapping[Grid, NoiseShapes] | None = None,
) -> Draws:
    """Draw the noise of one decode, or check the noise that the caller passed.

    `options.noise` is "zeros" or the arrays themselves: the latent noise (B, C, F', H', W') if the network takes it,
    then maps (H, W) and volumes (B, C, T, H, W) in the order of the layers. A volume of patches may be a picture
    (B, 3, T, H, W) instead. `None` draws it from the seed; such noise does not depend on the number of frames. Maps
    have the `dtype`.
    `tiles` are the shapes of each tile's noise by the tile's origin in the video. With them, volumes may be passed per
    tile instead, in the order of the tiles.
    """
    noise, seed, convention = options.noise, options.seed, options.like
    if convention not in CONVENTIONS:
        raise LatentsError(f"{convention!r} is not a known convention; expected {' or '.join(CONVENTIONS)}.")
    defaults = CONVENTIONS[convention]
    if check_seed(seed):  # any network takes the default
        check_takes_seed(spec)
    timestep, scale = _choose_mix(spec, options, defaults)
    shapes = spec.noise_shapes(shape.grid)
    volumes = {
        name: NoiseVolume(None, shape.batch, size[-1], _rate(spec, name))
        for name, size in shapes.items()
        if len(size) > 2
    }
    maps = {name: mx.zeros(size) for name, size in shapes.items() if name not in volumes}
    latents: Callable[[LatentBox], mx.array] | None = None
    if noise is None:
        keys = (mx.array(np.array([seed, index], np.uint32)) for index in count(_MAPS))
        maps = {name: mx.random.normal(zeros.shape, key=next(keys)) for name, zeros in maps.items()}
        volumes = {name: replace(volume, seed=seed + i) for i, (name, volume) in enumerate(volumes.items())}
        latents = partial(_draw_latents, seed, shape)
    elif isinstance(noise, Sequence) and not isinstance(noise, str):
        layer_shapes = _expected_shapes(shapes, tiles or {}, len(noise) - spec.has_latent_noise)
        latent_noise, layer_noise = _read_arrays(spec, shape, layer_shapes, cast(Sequence[Any], noise))
        latents = None if latent_noise is None else lambda box: latent_noise[:, :, box[0], box[1], box[2]]
        maps = {name: cast(mx.array, layer_noise[name][_VIDEO_ORIGIN]) for name in maps}
        volumes = {name: replace(volume, values=layer_noise[name]) for name, volume in volumes.items()}
    elif noise != "zeros":
        raise LatentsError(f'noise is "zeros", a sequence of arrays or None, not {quote(noise)}.')
    maps = {name: array.astype(dtype) for name, array in maps.items()}
    return Draws(timestep, scale, defaults.is_late, maps, volumes, latents)


def window_seed(spec: NetworkSpec, seed: int, number: int) -> int:
    """Mix the number of a window, from 0 on, into the seed of a film. The first window has the film's seed."""
    return (check_seed(seed) + _WINDOW * number) % (MAX_SEED + 1) if _takes_seed(spec) else seed


def _takes_seed(spec: NetworkSpec) -> bool:
    return spec.has_latent_noise or any(layer.has_noise or layer.noise_channels for layer in spec.layers)


def check_takes_seed(spec: NetworkSpec) -> None:
    """Raise a `LatentsError` if a network adds no noise."""
    if not _takes_seed(spec):
        raise LatentsError("this VAE takes no seed; VAEs 0.9.1 to 0.9.8 and the diffusion decoder of LTX-2.5 do.")


def check_seed(seed: object) -> int:
    """Return a seed; raise a `LatentsError` unless it is a whole number from 0 to `MAX_SEED`."""
    if not isinstance(seed, (int, np.integer)) or isinstance(seed, bool) or not 0 <= seed <= MAX_SEED:
        raise LatentsError(f"a seed is a whole number from 0 to {MAX_SEED}, not {quote(seed)}.")
    return int(seed)


def _expected_shapes(
    shapes: NoiseShapes, tiles: Mapping[Grid, NoiseShapes], count: int
) -> list[tuple[str, Grid, Shape]]:
    """Return the layer, the origin and the shape of the noise in each array that a caller passes.

    If the number of arrays matches, there is a volume for each tile, or only the volumes of keyframe planes are per
    tile, since tiles have different numbers of planes. Otherwise all volumes belong to the whole video.
    """
    per_video = [(name, _VIDEO_ORIGIN, size) for name, size in shapes.items()]
    maps = [entry for entry in per_video if len(entry[-1]) == 2]
    volumes = [
        (name, origin, size)
        for origin, tile_shapes in tiles.items()
        for name, size in tile_shapes.items()
        if len(size) > 2
    ]
    planes_per_tile = [entry for entry in per_video if not entry[0].endswith(PLANES)] + [
        entry for entry in volumes if entry[0].endswith(PLANES)
    ]
    per_tile = (entries for entries in (maps + volumes, planes_per_tile) if len(tiles) > 1 and count == len(entries))
    return next(per_tile, per_video)


def _read_arrays(
    spec: NetworkSpec,
    shape: LatentShape,
    layer_shapes: Sequence[tuple[str, Grid, Shape]],
    noise: Sequence[mx.array | np.ndarray | KeyedNoise],
) -> tuple[mx.array | None, dict[str, dict[Grid, mx.array | KeyedNoise]]]:
    """Return the latent noise, and maps and volumes (B, T, H, W, C) by their layer and origin.

    The latent noise is `None` if the network takes none.
    """
    arrays = [array if isinstance(array, KeyedNoise) else to_mlx(array, "noise arrays") for array in noise]
    evaluate("noise arrays", *(array.key if isinstance(array, KeyedNoise) else array for array in arrays))
    sizes = [size if len(size) == 2 else (shape.batch, size[-1], *size[:-1]) for *_, size in layer_shapes]
    pictures = [_picture(spec, name, size) for (name, *_), size in zip(layer_shapes, sizes, strict=True)]
    latent_shapes: list[tuple[Shape, Shape | None]] = [(tuple(shape), None)] * spec.has_latent_noise
    _check_shapes([array.shape for array in arrays], latent_shapes + list(zip(sizes, pictures, strict=True)))
    latent_noise = cast(mx.array, arrays.pop(0)).astype(mx.float32) if spec.has_latent_noise else None
    layer_noise: dict[str, dict[Grid, mx.array | KeyedNoise]] = {}
    for (name, origin, _), picture, array in zip(layer_shapes, pictures, arrays, strict=True):
        if isinstance(array, KeyedNoise):
            layer_noise.setdefault(name, {})[origin] = replace(array, patch_size=spec.patch_size or 1)
            continue
        values = array if array.ndim == 2 else array.astype(mx.float32).transpose(0, 2, 3, 4, 1)
        values = patchify(values, spec.patch_size or 1) if array.shape == picture else values
        mx.eval(values)  # another thread may run the decode, and it cannot evaluate lazy arrays of this one
        layer_noise.setdefault(name, {})[origin] = values
    mx.eval(latent_noise)
    return latent_noise, layer_noise


def _picture(spec: NetworkSpec, name: str, size: Shape) -> Shape | None:
    """Return the shape (B, 3, T, H, W) of a picture whose patches are the volume (B, C, T, h, w), or `None`."""
    side = spec.patch_size
    if side is None or len(size) == 2 or _rate(spec, name)[1:] != (Fraction(1, side), Fraction(1, side)):
        return None
    batch, channels, frames, height, width = size
    return batch, channels // side**2, frames, side * height, side * width


def _rate(spec: NetworkSpec, name: str) -> Rate:
    """Return the positions of a layer's noise per frame, row and column; for keyframe planes, 0 per frame."""
    frames, rows, columns = spec.rate(name.removesuffix(PLANES))
    return (0 if name.endswith(PLANES) else frames), rows, columns


def _choose_mix(spec: NetworkSpec, options: DecodeOptions, convention: Convention) -> tuple[float | None, float | None]:
    """Return the timestep, and the fraction of the latents that noise replaces, if the network takes them."""
    timestep, scale = options.timestep, options.noise_scale
    if spec.has_timestep:
        timestep = convention.timestep if timestep is None else _check_share(timestep, "decode timestep")
    elif timestep is not None:
        raise LatentsError("this VAE takes no timestep; VAEs 0.9.1 to 0.9.8 do.")
    if scale is not None:
        scale = _check_share(scale, "noise scale")
    if not spec.has_latent_noise:
        if scale:
            raise LatentsError("this VAE takes no noise in its latents; VAEs 0.9.1 to 0.9.8 do.")
        return timestep, None
    scale = convention.noise_scale if scale is None else scale
    return timestep, timestep if scale is None else scale


def _check_share(value: float, name: str) -> float:
    if not 0 <= float(value) <= 1:
        raise LatentsError(f"the {name} must be between 0 and 1, not {value}.")
    return float(value)


def _check_shapes(shapes: Sequence[Shape], expected: Sequence[tuple[Shape, Shape | None]]) -> None:
    """Check the shapes of arrays against the expected shapes, which have the shape of a picture as an alternative."""
    if shapes and not expected:
        raise LatentsError(f"{len(shapes)} noise arrays were given, but this network draws none.")
    for index, (shape, (volume, picture)) in enumerate(zip(shapes, expected, strict=False)):
        if shape not in (volume, picture):
            alternative = f", or the picture {picture}" if picture else ""
            raise LatentsError(f"noise array {index} has the shape {shape}; the network expects {volume}{alternative}.")
    if len(shapes) != len(expected):
        raise LatentsError(f"{len(shapes)} noise arrays were given, and the network draws {len(expected)}.")


def _draw_latents(seed: int, shape: LatentShape, box: LatentBox) -> mx.array:
    """Draw latent noise (B, C, T, H, W) float32 for a part of the latents, which may be longer than `shape` says."""
    time, rows, columns = box
    items = []
    for item in range(shape.batch):
        indices = mx.array(np.arange(item * _ITEM + time.start, item * _ITEM + time.stop, dtype=np.uint32))
        frames = [frame_noise(seed, index, shape) for index in indices]
        items.append(mx.stack(frames, axis=1)[:, :, rows, columns])
    return mx.stack(items)


def frame_noise(seed: int, index: mx.array, shape: LatentShape) -> mx.array:
    """Return the noise (C, H, W) float32 of one frame of latents of this shape, whose number is a uint32 `index`."""
    key = mx.stack([mx.array(seed, dtype=mx.uint32), index])
    return mx.random.normal((shape.channels, shape.height, shape.width), key=key)
