"""The noise that a decoder takes, drawn from a seed or passed by the caller.

Noise depends neither on how a clip is cut nor on its length. Every latent frame of a batch item and every noise map has
its own random key, made from the seed and its index. `NoiseVolume` computes each value from the seed and its position.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from typing import Literal, NamedTuple, cast

import mlx.core as mx
import numpy as np

from ..backend.mlx_utils import evaluate, to_mlx
from ..errors import LatentsError, quote
from ..shapes import Grid, LatentShape, Shape
from .layers import patchify
from .specs import DEFAULT_CONVENTION, MAX_SEED, PLANES, ConventionName, NetworkSpec, Rate

#: The shape of each layer's noise by its name, as `NetworkSpec.noise_shapes`.
NoiseShapes = Mapping[str, Shape]

#: Slices of the time, height and width of latents.
LatentBox = tuple[slice, slice, slice]


class Convention(NamedTuple):
    """The defaults of a pipeline for VAEs that take a timestep and noise; a noise scale of None is the timestep."""

    timestep: float
    noise_scale: float | None
    is_late: bool


#: The conventions by name: Lightricks' own pipelines, the default, and diffusers.
CONVENTIONS: dict[ConventionName, Convention] = {
    "ltx-video": Convention(timestep=0.05, noise_scale=0.025, is_late=False),
    "diffusers": Convention(timestep=0.0, noise_scale=None, is_late=True),
}

_WHOLE = (0, 0, 0)  # where the noise of the whole video begins
_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)  # of Threefry's rounds
_PARITY = 0x1BD11BDA
_MIX = ((16, 0x85EBCA6B), (13, 0xC2B2AE35))  # shifts and factors of the finalizer of MurmurHash3
_GOLDEN_RATIO = 0x9E3779B9
_WINDOW = 0x85EBCA6B  # another step than the one between batch items, so that no two have the same noise
_MAPS = 2**31  # indices below belong to latent frames, indices from here on to noise maps
_ITEM = 2**20  # maximum number of latent frames per batch item


class LatentNoise(NamedTuple):
    """`(1 - scale) * latents + scale * values`; values None for zeros. `is_late`: mixed into denormalized latents."""

    values: mx.array | None
    scale: float
    is_late: bool = False

    def mix(self, latents: mx.array) -> mx.array:
        latents = (1 - self.scale) * latents
        return latents if self.values is None else latents + self.scale * self.values


@dataclass(frozen=True)
class KeyedNoise:
    """The noise `mx.random.normal(shape, key=key)` of a picture (B, 3, T, H, W), computed in parts.

    In place of an array, which takes as much memory as the video.
    """

    key: mx.array
    shape: Shape

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def part(self, time: slice, rows: slice, columns: slice) -> mx.array:
        """The noise (B, T, H, W, 3) of a part of the picture."""
        size = math.prod(self.shape)
        axes = (slice(0, self.shape[0]), slice(0, self.shape[1]), time, rows, columns)
        dtype = mx.uint32 if size < 2**32 else mx.int64
        index, stride = mx.zeros((1,) * self.ndim, dtype), size
        for axis, (span, length) in enumerate(zip(axes, self.shape, strict=True)):
            stride //= length
            places = mx.arange(*span.indices(length)[:2], dtype=dtype) * stride
            index = index + places.reshape([-1 if other == axis else 1 for other in range(self.ndim)])
        half = size // 2  # a counter and the one as far behind it as the middle give two numbers
        middle = half + size % 2
        is_second = index >= middle
        first = mx.where(is_second, index - middle, index)
        second = mx.where(index < half, first + middle, mx.where(is_second, index, 0))
        key = self.key.astype(mx.uint32)
        values = _keyed_normal(key[0], key[1], first.astype(mx.uint32), second.astype(mx.uint32), is_second)
        return values.transpose(0, 2, 3, 4, 1)


@dataclass(frozen=True)
class _KeyedPatches:
    """A `KeyedNoise` as a volume (B, T, H, W, C) of patches, of which parts are taken as of an array."""

    noise: KeyedNoise
    side: int

    def __getitem__(self, box: tuple[slice, slice, slice, slice]) -> mx.array:
        _, time, *extents = box
        rows, columns = (slice(each.start * self.side, each.stop * self.side) for each in extents)
        return patchify(self.noise.part(time, rows, columns), self.side)


#: What callers pass: arrays in the order in which the network draws them, "zeros", or None to draw from a seed.
Noise = Sequence[mx.array | np.ndarray | KeyedNoise] | Literal["zeros"] | None


@dataclass(frozen=True)
class NoiseVolume:
    """Standard normal noise for each position of a layer's output, for `StreamContext.draw_noise`, drawn in parts."""

    seed: int | None  # None for zeros
    batch: int
    channels: int
    rate: Rate  # positions of the layer's output per frame, row and column of the video
    # Noise that the caller passed, (B, T, H, W, C), by where it begins: of the whole video, or of each tile. Empty to
    # compute it.
    values: Mapping[Grid, mx.array | _KeyedPatches] = field(default_factory=dict)

    def __call__(self, origins: Sequence[Grid], start: Grid, size: Grid, planes: Sequence[int] = ()) -> mx.array:
        """The noise of `size` positions from `start` on; with `planes`, of these instead of frames."""
        parts = []
        for origin in origins:
            given, first = self.values.get(origin), list(start)
            if given is None:
                first = [begin + int(at * rate) for begin, at, rate in zip(start, origin, self.rate, strict=True)]
                given = self.values.get(_WHOLE)
            box = [slice(begin, begin + count) for begin, count in zip(first, size, strict=True)]
            are_chosen = len(self.values) > 1  # a tile has values for its own planes
            if planes and not are_chosen:
                box[0] = slice(0, max(planes) + 1)
            part = self._computed(box) if given is None else given[:, box[0], box[1], box[2]]
            parts.append(part[:, mx.array(tuple(planes))] if planes and not are_chosen else part)
        return parts[0] if len(parts) == 1 else mx.concatenate(parts)

    def _computed(self, box: Sequence[slice]) -> mx.array:
        axes = [slice(0, self.batch), *box, slice(0, self.channels)]
        if self.seed is None:
            return mx.zeros([axis.stop - axis.start for axis in axes])
        bits = mx.array(self.seed & MAX_SEED, dtype=mx.uint32)
        for axis, span in enumerate(axes):
            shape = [-1 if other == axis else 1 for other in range(len(axes))]
            bits = _mix(bits + mx.arange(span.start, span.stop, dtype=mx.uint32).reshape(shape) * _GOLDEN_RATIO)
        return _normal(bits)


@partial(mx.compile, shapeless=True)
def _mix(bits: mx.array) -> mx.array:
    for shift, factor in _MIX:
        bits = (bits ^ (bits >> shift)) * mx.array(factor, dtype=mx.uint32)
    return bits ^ (bits >> 16)


def _normal(bits: mx.array) -> mx.array:
    """A normally distributed float32 for each random uint32, by the Box-Muller transform."""
    radius = (bits.astype(mx.float32) + 1) * 2.0**-32
    angle = _mix(bits + _GOLDEN_RATIO).astype(mx.float32) * (2 * math.pi * 2.0**-32)
    return mx.sqrt(-2 * mx.log(mx.minimum(radius, 1))) * mx.cos(angle)


@partial(mx.compile, shapeless=True)
def _keyed_normal(
    key: mx.array, other_key: mx.array, first: mx.array, second: mx.array, is_second: mx.array
) -> mx.array:
    """The normally distributed float32 of MLX's generator, Threefry-2x32, for pairs of counters."""
    keys = (key, other_key, key ^ other_key ^ mx.array(_PARITY, dtype=mx.uint32))
    first, second = first + keys[0], second + keys[1]
    for group in range(5):
        for each in range(4):
            by = _ROTATIONS[4 * (group % 2) + each]
            first = first + second
            second = ((second << by) | (second >> (32 - by))) ^ first
        first, second = first + keys[(group + 1) % 3], second + keys[(group + 2) % 3] + (group + 1)
    bits = mx.where(is_second, second, first).astype(mx.float32)
    low, below_1 = float(np.nextafter(np.float32(-1), np.float32(0))), float(np.nextafter(np.float32(1), np.float32(0)))
    return math.sqrt(2) * mx.erfinv(mx.minimum(bits / (2**32 - 1), below_1) * (1 - low) + low)


@dataclass(frozen=True)
class Draws:
    """All the noise and the timestep of one decode."""

    timestep: float | None  # 0 to 1; None if the network takes none
    scale: float | None  # the fraction of the latents that is replaced by noise; None if the network takes none
    is_late: bool
    maps: Mapping[str, mx.array]  # by the name of the layer that adds them, as volumes
    volumes: Mapping[str, NoiseVolume]
    latents: Callable[[LatentBox], mx.array] | None  # draws the noise of a part of the latents; None for zeros

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
    *,
    noise: Noise = None,
    seed: int = 0,
    timestep: float | None = None,
    noise_scale: float | None = None,
    like: str = DEFAULT_CONVENTION,
    tiles: Mapping[Grid, NoiseShapes] | None = None,
) -> Draws:
    """Draw the noise of one decode, or check the noise that the caller passed. Arguments as `VideoVAE.stream`.

    `noise` is None to draw from `seed`, "zeros", or the arrays themselves: the latent noise (B, C, F', H', W') if the
    network takes it, then maps (H, W) and volumes (B, C, T, H, W) in the order of the layers; a volume of patches may
    be a picture (B, 3, T, H, W) instead. Noise from a seed does not depend on the number of frames. Maps have the
    `dtype`. With `tiles`, the shapes of each one's noise by where it begins in the video, the volumes may be given
    per tile instead, in their order.
    """
    if like not in CONVENTIONS:
        raise LatentsError(f"{like!r} is not a known convention; expected {' or '.join(CONVENTIONS)}.")
    convention = CONVENTIONS[like]
    if check_seed(seed):  # any network takes the default
        check_takes_seed(spec)
    timestep = _choose_timestep(spec, timestep, convention)
    scale = _choose_scale(spec, noise_scale, timestep, convention)
    shapes = spec.noise_shapes(shape.grid)
    volumes = {
        name: NoiseVolume(None, shape.batch, size[-1], _rate(spec, name))
        for name, size in shapes.items()
        if len(size) > 2
    }
    maps = {name: mx.zeros(size) for name, size in shapes.items() if name not in volumes}
    latents: Callable[[LatentBox], mx.array] | None = None
    if noise is None:
        keys = _keys(seed, _MAPS, _MAPS + len(maps))
        maps = {name: mx.random.normal(each.shape, key=keys[at]) for at, (name, each) in enumerate(maps.items())}
        volumes = {name: replace(each, seed=seed + at) for at, (name, each) in enumerate(volumes.items())}
        latents = partial(_draw_latents, seed, shape)
    elif isinstance(noise, Sequence) and not isinstance(noise, str):
        wanted = _choose_wanted(shapes, tiles or {}, len(noise) - spec.has_latent_noise)
        own, given = _take_given(spec, shape, wanted, noise)
        latents = None if own is None else lambda box: own[:, :, box[0], box[1], box[2]]
        maps = {name: cast(mx.array, given[name][_WHOLE]) for name in maps}
        volumes = {name: replace(each, values=given[name]) for name, each in volumes.items()}
    elif noise != "zeros":
        raise LatentsError(f'noise is "zeros", a sequence of arrays or None, not {quote(noise)}.')
    of_maps = {name: array.astype(dtype) for name, array in maps.items()}
    return Draws(timestep, scale, convention.is_late, of_maps, volumes, latents)


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
    """A seed; anything else than a whole number from 0 to `MAX_SEED` is a `LatentsError`."""
    if not isinstance(seed, (int, np.integer)) or isinstance(seed, bool) or not 0 <= seed <= MAX_SEED:
        raise LatentsError(f"a seed is a whole number from 0 to {MAX_SEED}, not {quote(seed)}.")
    return int(seed)


def _choose_wanted(shapes: NoiseShapes, tiles: Mapping[Grid, NoiseShapes], count: int) -> list[tuple[str, Grid, Shape]]:
    """The layer, the beginning and the shape of the noise in each array that a caller passes.

    Volumes belong to each tile if there are as many arrays, or only the volumes of keyframe planes do, which tiles have
    in different numbers; else they belong to the whole video.
    """
    whole = [(name, _WHOLE, size) for name, size in shapes.items()]
    maps = [each for each in whole if len(each[-1]) == 2]
    parts = [(name, at, size) for at, own in tiles.items() for name, size in own.items() if len(size) > 2]
    mixed = [each for each in whole if not each[0].endswith(PLANES)] + [
        each for each in parts if each[0].endswith(PLANES)
    ]
    of_tiles = (each for each in (maps + parts, mixed) if len(tiles) > 1 and count == len(each))
    return next(of_tiles, whole)


def _take_given(
    spec: NetworkSpec,
    shape: LatentShape,
    wanted: Sequence[tuple[str, Grid, Shape]],
    noise: Sequence[mx.array | np.ndarray | KeyedNoise],
) -> tuple[mx.array | None, dict[str, dict[Grid, mx.array | _KeyedPatches]]]:
    """The latent noise, if the network takes it; maps and volumes (B, T, H, W, C) by their layer and beginning."""
    arrays = [array if isinstance(array, KeyedNoise) else to_mlx(array, "noise arrays") for array in noise]
    evaluate("noise arrays", *(array.key if isinstance(array, KeyedNoise) else array for array in arrays))
    sizes = [size if len(size) == 2 else (shape.batch, size[-1], *size[:-1]) for *_, size in wanted]
    pictures = [_picture(spec, name, size) for (name, *_), size in zip(wanted, sizes, strict=True)]
    before: list[tuple[Shape, Shape | None]] = [(tuple(shape), None)] * spec.has_latent_noise
    _check([array.shape for array in arrays], before + list(zip(sizes, pictures, strict=True)))
    own = cast(mx.array, arrays.pop(0)).astype(mx.float32) if spec.has_latent_noise else None
    given: dict[str, dict[Grid, mx.array | _KeyedPatches]] = {}
    for (name, start, _), picture, array in zip(wanted, pictures, arrays, strict=True):
        if isinstance(array, KeyedNoise):
            given.setdefault(name, {})[start] = _KeyedPatches(array, spec.patch_size or 1)
            continue
        values = array if array.ndim == 2 else array.astype(mx.float32).transpose(0, 2, 3, 4, 1)
        values = patchify(values, spec.patch_size or 1) if array.shape == picture else values
        mx.eval(values)  # another thread may run the decode, and could not evaluate what is lazy here
        given.setdefault(name, {})[start] = values
    mx.eval(own)
    return own, given


def _picture(spec: NetworkSpec, name: str, size: Shape) -> Shape | None:
    """The shape (B, 3, T, H, W) of the picture whose patches are a volume (B, C, T, h, w); None for other noise."""
    side = spec.patch_size
    if side is None or len(size) == 2 or _rate(spec, name)[1:] != (Fraction(1, side), Fraction(1, side)):
        return None
    batch, channels, frames, height, width = size
    return batch, channels // side**2, frames, side * height, side * width


def _rate(spec: NetworkSpec, name: str) -> Rate:
    """The map of a volume; keyframe planes have the same in all frames."""
    frames, rows, columns = spec.rate(name.removesuffix(PLANES))
    return (0 if name.endswith(PLANES) else frames), rows, columns


def _choose_timestep(spec: NetworkSpec, timestep: float | None, convention: Convention) -> float | None:
    if spec.has_timestep:
        return convention.timestep if timestep is None else _check_share(timestep, "decode timestep")
    if timestep is not None:
        raise LatentsError("this VAE takes no timestep; VAEs 0.9.1 to 0.9.8 do.")
    return None


def _choose_scale(
    spec: NetworkSpec, scale: float | None, timestep: float | None, convention: Convention
) -> float | None:
    if scale is not None:
        scale = _check_share(scale, "noise scale")
    if not spec.has_latent_noise:
        if scale:
            raise LatentsError("this VAE takes no noise in its latents; VAEs 0.9.1 to 0.9.8 do.")
        return None
    scale = convention.noise_scale if scale is None else scale
    return timestep if scale is None else scale


def _check_share(value: float, what: str) -> float:
    if not 0 <= float(value) <= 1:
        raise LatentsError(f"the {what} must be between 0 and 1, not {value}.")
    return float(value)


def _check(given: Sequence[Shape], expected: Sequence[tuple[Shape, Shape | None]]) -> None:
    """Check shapes against the expected ones, each with an alternative."""
    if given and not expected:
        raise LatentsError(f"{len(given)} noise arrays were given, but this network draws none.")
    for index, (got, (wanted, other)) in enumerate(zip(given, expected, strict=False)):
        if got not in (wanted, other):
            picture = f", or the picture {other}" if other else ""
            raise LatentsError(f"noise array {index} has the shape {got}; the network expects {wanted}{picture}.")
    if len(given) != len(expected):
        raise LatentsError(f"{len(given)} noise arrays were given, and the network draws {len(expected)}.")


def _draw_latents(seed: int, shape: LatentShape, box: LatentBox) -> mx.array:
    """Latent noise (B, C, T, H, W) float32 of a part of the latents, which may be longer than `shape` says."""
    time, rows, columns = box
    frame = (shape.channels, shape.height, shape.width)
    items = []
    for item in range(shape.batch):
        keys = _keys(seed, item * _ITEM + time.start, item * _ITEM + time.stop)
        frames = [mx.random.normal(frame, key=keys[index]) for index in range(keys.shape[0])]
        items.append(mx.stack(frames, axis=1)[:, :, rows, columns])
    return mx.stack(items)


def _keys(seed: int, start: int, stop: int) -> mx.array:
    """Random keys (n, 2), different for each pair of a seed and an index from `start` to `stop`."""
    indices = mx.array(np.arange(start, stop, dtype=np.uint32))  # mx.arange before 0.32 takes no start of 2^31
    return mx.stack([mx.full(indices.shape, seed, dtype=mx.uint32), indices], axis=1)
