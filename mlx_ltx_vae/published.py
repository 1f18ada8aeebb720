"""Plan a decode by a published VAE, without its weights."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import mlx.core as mx

from .backend.device import this_machine
from .backend.machine import Machine
from .backend.mlx_utils import DTYPES, DtypeName, GivenDtype, parse_dtype
from .errors import LatentsError, PlanError, quote, suggest
from .latents.keyframes import frame_numbers
from .models.base import SOUND, Config, Family, Network, SoundConfig, Statistics
from .models.families import published
from .models.specs import NetworkSpec
from .options import PLAN_DEFAULTS, PlanKeywords, PlanOptions
from .pipeline.audio import every_chunk, plan_networks
from .planning.plan import DecodePlan, Plan
from .planning.planner import plan_decode
from .shapes import Grid, LatentShape, Size, format_size, parse_size
from .units import DEFAULT_FPS, Rate, find_fps

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: Decoders of one generation's latents.
DecoderName = Literal["conv", "diffusion"]

# Releases of LTX-Video with the VAE of another one.
_SAME_VAE = dict.fromkeys(("0.9.6", "0.9.7", "0.9.8"), "0.9.5")


@dataclass(frozen=True)
class PublishedVAE:
    """Published VAE by its name, such as "ltx-2.3", at its published widths unless `config` has other widths."""

    name: str
    family: Family[Any]
    config: Config

    @classmethod
    def find(
        cls, generation: str, decoder: DecoderName = "conv", *, base_channels: int | None = None
    ) -> "PublishedVAE":
        """Find the VAE of this generation with this decoder, or one with other widths: see `Family.published`.

        Generations may also have the names that `info` prints, such as "LTX-Video 0.9.5".

        Raises:
            PlanError: if none is published.
        """
        if decoder not in get_args(DecoderName):
            raise PlanError(
                f"the decoder {quote(decoder)} is not known; expected {' or '.join(get_args(DecoderName))}."
            )
        families = published()
        if not isinstance(generation, str):
            raise PlanError(f"the generation is {quote(generation)}; expected one of {', '.join(families)}.")
        name = generation.lower().replace(" ", "-").removeprefix("ltx-video-")
        name = _SAME_VAE.get(name, name)
        if decoder == "diffusion":
            name = f"{name.removesuffix('-diffusion')}-diffusion"
        if name not in families:
            hint = suggest(name, list(families))
            raise PlanError(f"no published VAE is named {quote(name)}{hint}; expected one of {', '.join(families)}.")
        family = families[name]
        widths = [] if base_channels is None else [base_channels]
        return cls(name, family, family.published[name](*widths))

    def spec(self, network: str) -> NetworkSpec:
        """Return the layers of a network. Raises a `CheckpointError` if the VAE has no such network."""
        return self.family.spec(self.config, network)

    def make(self, network: str, dtype: DtypeName | None = None) -> Network:
        """Make a network with random weights, the same each time, as a file in this dtype would store them.

        `dtype` is by default the published file's. Raises a `CheckpointError` if the VAE has no such network.
        """
        self.spec(network)
        ones = mx.ones((self.config.latent_channels,))
        mx.random.seed(0)
        module = self.family.make(self.config, network, Statistics(0 * ones, ones))
        module.set_dtype(DTYPES[dtype or self.family.published_dtype])
        mx.eval(module.parameters())
        return module

    def machine(self, dtype: GivenDtype = None) -> Machine:
        """Return the default device, for the decoder in this dtype. `None` means the published file's dtype."""
        requested = parse_dtype(dtype)
        return this_machine(DTYPES[requested or self.family.published_dtype], keeps_dtype=requested is not None)

    def latent_shape(self, video: Grid) -> LatentShape:
        """Return the shape of the latents of a video (F, H, W). Raises a `LatentsError` if it does not fit the grid."""
        return LatentShape(1, self.config.latent_channels, *self.config.scale.latent_grid(video))

    def plan(
        self,
        video: Grid,
        options: PlanOptions = PLAN_DEFAULTS,
        *,
        dtype: GivenDtype = None,
        sound_fps: Rate | None = None,
    ) -> DecodePlan:
        """Plan the decode of a video (F, H, W).

        With `sound_fps`, the frame rate of playback, the plan covers the video and its sound.
        """
        machine = self.machine(dtype)
        sound = [] if sound_fps is None else self._sound(video[0], sound_fps, machine, dtype)
        options = replace(options, sound=sound)
        return plan_decode(self.spec("decoder"), self.latent_shape(video), machine, options)

    def find_sound(self) -> "PublishedVAE":
        """Return the audio VAE of the same generation. Raises a `PlanError` if there is none."""
        name, families = self.name.removesuffix("-diffusion"), published(SOUND)
        if name not in families:
            raise PlanError(f"{self.name} has no sound; choose one of {', '.join(families)}.")
        return PublishedVAE(name, families[name], families[name].published[name]())

    def _sound(self, frames: int, fps: Rate, machine: Machine, dtype: GivenDtype) -> list[Plan]:
        """Return the plans of the sound of this many frames."""
        vae = self.find_sound()
        decoder, vocoder = map(vae.spec, ("decoder", "vocoder"))
        per_second = cast(SoundConfig, vae.config).latents_per_second
        latents = max(1, round(frames * per_second / find_fps("fps", fps, PlanError)))
        stored = parse_dtype(dtype) or vae.family.published_dtype
        machine = replace(machine, itemsize=mx.float32.size)
        return every_chunk(partial(plan_networks, decoder, vocoder, latents, machine, stored))


def estimate(
    generation: str,
    *,
    frames: int,
    size: str | Size,
    dtype: GivenDtype = None,
    decoder: DecoderName = "conv",
    sound: bool = False,
    fps: Rate = DEFAULT_FPS,
    keyframes: Sequence[int] = (),
    joined: bool = False,
    **options: "Unpack[PlanKeywords]",
) -> DecodePlan:
    """Plan the decode of a video by a published VAE, without its weights: the plan is the one of the loaded VAE.

    It tells apps the memory of a decode before they load anything. `plan.peak_bytes` includes the weights.

    Args:
        generation: "ltx-2.5", "ltx-2.3", "ltx-2", "0.9.0" to "0.9.8", "prunavaed", or "taehv".
        frames: 1 + 8*k.
        size: "1280x704", or (width, height), multiples of 32.
        dtype: as for `from_pretrained`. `None` means the published file's.
        decoder: "diffusion" for the other decoder of LTX-2.5.
        keyframes: the frame numbers of keyframe planes.
        sound: also decode the sound of the video, which has `fps` frames per second.
        joined: as for `plan`, as are the further options: memory_budget, mode, order, tiling, chunk, steps.

    Raises:
        LatentsError: if the size or the number of frames is impossible.
        PlanError: if no such VAE is published, or as for `plan`.
    """
    width, height = check_size(size)
    if not _is_integer(frames):
        raise LatentsError(f"frames is {quote(frames)}; expected a whole number such as 121.")
    plan_options = PlanOptions(keyframes=frame_numbers(keyframes), joined=joined, **options)
    video, sound_fps = (frames, height, width), fps if sound else None
    return PublishedVAE.find(generation, decoder).plan(video, plan_options, dtype=dtype, sound_fps=sound_fps)


def check_size(size: str | Size) -> Size:
    """Return a caller's size as (width, height). Raises a `LatentsError` for anything but two whole numbers above 0."""
    if isinstance(size, str):
        return parse_size(size)
    if not isinstance(size, Sequence) or len(size) != 2 or not all(map(_is_integer, size)):
        raise LatentsError(f"size is {quote(size)}; expected a width and a height, such as 768x512.")
    return parse_size(format_size(*size))


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
