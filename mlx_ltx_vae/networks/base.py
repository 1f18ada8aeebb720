"""Interfaces between the networks and the rest of the package, which uses nothing else of them.

A `Family` finds its networks in a checkpoint, describes them and creates them. A `Network` can be planned, streamed and
tiled.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ..backend.mlx_utils import DtypeName
from ..errors import LatentsError
from ..latents.statistics import Statistics as Statistics
from ..model_table import Kind
from ..options import DecodeOptions
from ..shapes import ScaleFactors, Shape
from ..streaming.context import Stage, StreamContext
from ..streaming.driver import run_whole
from .noise import LatentNoise, draw
from .specs import NETWORKS as NETWORKS
from .specs import NetworkSpec, Shapes, check_frame_shape, check_latent_shape


@dataclass(frozen=True)
class Medium:
    """Purpose for which a checkpoint is opened, since a file may have networks of pictures and of audio."""

    noun: str
    tensors: str  # examples of their names, for errors
    networks: tuple[str, ...]
    kinds: tuple[Kind, ...]  # of the published models


PICTURES = Medium("a video VAE", "vae.encoder.*, vae.decoder.* or the like", NETWORKS, (Kind.VIDEO, Kind.PREVIEW))
AUDIO = Medium("an audio VAE", "audio_vae.decoder.*, vocoder.* or the like", (*NETWORKS, "vocoder"), (Kind.AUDIO,))
UPSAMPLERS = Medium("a latent upsampler", "initial_conv.*, upsampler.*", ("upsampler",), (Kind.UPSAMPLER,))
#: By the kind of published model.
MEDIA = {kind: medium for medium in (PICTURES, AUDIO, UPSAMPLERS) for kind in medium.kinds}


class Network(nn.Module, ABC):
    """Encoder or decoder. Its dtype is the dtype of the first tensors in its spec.

    Attributes:
        statistics: mean and std of its latents. `None` if the network works on normalized latents directly.
    """

    def __init__(self, spec: NetworkSpec, statistics: Statistics | None = None) -> None:
        super().__init__()
        self.spec = spec
        self.statistics = statistics

    @property
    def dtype(self) -> mx.Dtype:
        *_, (name, _) = next(layer.weights for layer in self.spec.layers if layer.weights)  # a bias keeps its dtype
        return self.at(name).dtype

    def at(self, path: str) -> Any:
        """Return the module or the array with this path, which is its name in a checkpoint."""
        value: Any = self
        for part in path.split("."):
            value = value[int(part) if isinstance(value, list) else part]
        return value

    @abstractmethod
    def stages(self, context: StreamContext) -> list[Stage]:
        """Return the stages of the forward pass in a new stream, with empty caches.

        If `context.clip` is set, only the stages from `spec.tiles.start` on are run.
        """


class Decoder(Network):
    """Decoder of latents to pixels (B, T, H, W, 3), approximately in [-1, 1]."""

    def __call__(self, latents: mx.array) -> mx.array:
        """Decode normalized latents (B, C, T, H, W) to pixels (B, 3, F, H, W) in one pass, with noise of seed 0.

        Memory grows with the clip; `VideoVAE.stream` gives the same result. Raises a `LatentsError` for latents that it
        cannot take.
        """
        return self.decode_whole(latents)

    def decode_whole(self, latents: mx.array, timestep: float | None = None, steps: int | None = None) -> mx.array:
        """Decode like a call. See `VideoVAE.stream` for the timestep and the denoising steps."""
        shape = check_latent_shape(self.spec, latents.shape)
        draws = draw(self.spec, shape, self.dtype, DecodeOptions(timestep=timestep))
        box = (slice(0, shape.frames), slice(0, shape.height), slice(0, shape.width))
        context = StreamContext(
            timesteps=draws.timesteps(shape.batch), noise_maps=draws.maps, noise=draws.volumes, denoising_steps=steps
        )
        prepared = self.prepare(latents, draws.crop(box))
        return run_whole(self.stages(context), prepared).transpose(0, 4, 1, 2, 3)

    def stills(self, *, small: bool = False) -> "Decoder | None":
        """Return the decoder of one picture for each latent frame, with the same weights, or a smaller one.

        Returns `None` if there is no such decoder.
        """
        return self if self.spec.scale.time == 1 else None

    def prepare(self, latents: mx.array, noise: LatentNoise | None) -> mx.array:
        """Return the input of the first stage (B, T, H, W, C) in `dtype`, for all normalized latents or a part of them.

        `latents` are (B, C, T, H, W). `noise` is the noise of these latents, and `None` if `spec.has_latent_noise` is
        false.
        """
        if noise is not None and not noise.is_late:
            latents = noise.mix(latents.astype(mx.float32))
        if self.statistics is not None:
            latents = self.statistics.denormalize(latents)
        if noise is not None and noise.is_late:
            latents = noise.mix(latents.astype(mx.float32))
        return latents.transpose(0, 2, 3, 4, 1).astype(self.dtype)


class Encoder(Network):
    """Encoder of pixels (B, T, H, W, 3) in [-1, 1]."""

    def __call__(self, pixels: mx.array) -> mx.array:
        """Encode pixels (B, 3, F, H, W) in [-1, 1] in one pass to normalized latents (B, C, F', H', W') in `dtype`.

        Memory grows with the clip; `VideoVAE.encode` gives the same result. Raises a `LatentsError` for frames that it
        cannot take, or would leave out.
        """
        if pixels.ndim != 5:
            raise LatentsError(f"frames have the shape {pixels.shape}; expected (B, 3, F, H, W).")
        check_frame_shape(self.spec, pixels.shape, pad=False)
        if not self.spec.takes_any_length:
            self.spec.scale.latent_grid(pixels.shape[2:])
        frames = pixels.transpose(0, 2, 3, 4, 1).astype(self.dtype)
        return self.to_latents(run_whole(self.stages(StreamContext()), frames))

    def to_latents(self, outputs: mx.array) -> mx.array:
        """Return normalized latents (B, C, T', H', W') in `dtype`, from the last stage's output (B, T', H', W', C)."""
        latents = outputs.transpose(0, 4, 1, 2, 3)
        return latents if self.statistics is None else self.statistics.normalize(latents).astype(self.dtype)


class AudioEncoder(Encoder):
    """Encoder of audio, through a spectrogram (B, T, bins, 1, channels), to packed latents (B, C, T', 1, 1)."""

    @abstractmethod
    def prepare(self, waveform: Iterable[np.ndarray], sample_rate: int, frames: int = 256) -> Iterator[mx.array]:
        """Yield the input of the first stage, some frames at a time, for pieces (B, channels, n) of a waveform."""


class Config(Protocol):
    """Parsed configuration of a VAE: frozen, and equal to another one if both describe the same networks."""

    @property
    def latent_channels(self) -> int: ...

    @property
    def scale(self) -> ScaleFactors:
        """Pixels of the whole video per latent cell. A preview decoder makes fewer; see its spec."""

    @property
    def time_scale(self) -> int: ...  # see `Scaled`

    @property
    def spatial_scale(self) -> int: ...

    @property
    def generation(self) -> str:
        """Name of the published VAE with this configuration, or "custom"."""


class AudioConfig(Config, Protocol):
    """Parsed configuration of an audio VAE. `latent_channels` counts packed latents: channels * bins."""

    @property
    def channels(self) -> int:
        """Channels of latents that are not packed."""

    @property
    def bins(self) -> int:
        """Frequency bins of latents."""

    @property
    def sample_rate(self) -> int:
        """Samples per second of the vocoder's output."""

    @property
    def latents_per_second(self) -> float: ...

    def num_samples(self, latents: int) -> int:
        """Return the number of samples that this many latents decode to."""


ConfigT = TypeVar("ConfigT", bound=Config)


class NetworkTensors(NamedTuple):
    """Names of the tensors that a family finds in an archive."""

    networks: Mapping[str, Mapping[str, str]]  # per network: the stored name of each tensor by its name in the network
    statistics: tuple[str, str] | None = None  # the stored names of mean and standard deviation, if both are there


class CheckpointParts(NamedTuple):
    """Parts of a VAE that a checkpoint stores. Its configuration must agree with them."""

    source: str  # names the checkpoint in errors
    networks: Mapping[str, Shapes]  # all in the checkpoint, requested or not; convolution weights are channels-last
    requested_networks: Collection[str]  # networks that are loaded if the checkpoint has them


@dataclass(frozen=True)
class Configuration(Generic[ConfigT]):
    """Configuration of a checkpoint."""

    config: ConfigT
    raw: dict[str, Any]  # the JSON object of this configuration, which a converted checkpoint stores
    # For each network whose tensors have the names of another vocabulary: our names by those names.
    names: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Family(Generic[ConfigT]):
    """Kind of VAE, as functions of plain data: a family opens no file.

    A tensor's name within its network is its path in the module that `make` returns. Converted checkpoints have these
    names after the network's name ("decoder.conv_in.conv.weight").

    Attributes:
        choose_config: returns the first of some parsed JSON files that is a configuration of this family, or `None`.
        configure: completes and parses the result of `choose_config`, or takes a parsed configuration. `None` means
            that the configuration is inferred from the tensors. Raises `CheckpointError` if the configuration is not
            known, or does not belong to the tensors.
        spec: returns the layers of a network, with the name and the shape of every weight. Raises `CheckpointError` if
            the configuration does not describe this network.
        make: returns a network with random weights: an `Encoder` or a `Decoder`.
        describe: returns entries of the report of `info`: the special properties of a configuration, and a dict for
            each network that it describes, which may have the `widths` of its layers.
        stills: returns the configuration of a decoder with the same weights that makes one picture per latent frame,
            with less work. `None` if the family has no such decoder.
        computes_in_half: the networks whose values fit float16. Other networks compute in float32 if they are stored
            in float16.
        decoder: one word for the kind of its decoder.
        published: the published VAEs by short names, such as "ltx-2.3". Each function returns the configuration at the
            published widths, or with another number of base channels (128 in LTX-2.3). A family without base channels
            scales its own widths by this number.
        same_layers: the generations whose layers are those of another one, by the name of that one and the version that
            their files or names state.
        published_dtype: dtype of the published files.
    """

    name: str
    decoder: str
    kernels: Collection[Shape]  # sizes of its convolutions, (3, 3, 3) or (3,): these weights become channels-last
    has_statistics: bool  # its networks need the statistics of the latents, and it is an error if they are missing
    config_type: type[ConfigT]
    find: Callable[[Shapes], NetworkTensors]  # finds the networks in an archive, which may have other tensors
    choose_config: Callable[[Iterable[object]], Mapping[str, Any] | None]
    configure: Callable[[Mapping[str, Any] | ConfigT | None, CheckpointParts], Configuration[ConfigT]]
    spec: Callable[[ConfigT, str], NetworkSpec]
    make: Callable[[ConfigT, str, Statistics | None], Network]
    describe: Callable[[ConfigT], dict[str, Any]]
    stills: Callable[[ConfigT], ConfigT] | None = None
    computes_in_half: Collection[str] = ("decoder",)
    published: Mapping[str, Callable[..., ConfigT]] = field(default_factory=dict)
    same_layers: Mapping[tuple[str, tuple[int, int]], str] = field(default_factory=dict)
    published_dtype: DtypeName = "bfloat16"
    medium: Medium = PICTURES
