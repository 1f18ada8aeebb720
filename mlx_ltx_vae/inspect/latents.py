"""What a latent file is: what it says, what its values look like, and the video that they will be."""

from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from ..checkpoint import CheckpointHeaders
from ..errors import LatentsError
from ..latents import LatentsInfo, load_latents
from ..latents.layouts import Grid
from ..latents.metadata import parse_metadata
from ..latents.tensor_files import open_tensor_file
from ..shapes import ScaleFactors

_USUAL_SCALE = ScaleFactors(8, 32, 32)
_USUAL_FPS = Fraction(24)
# Normalised latents have a standard deviation near 1 in every channel, a still or plain clip a smaller one in some.
_FAR_BELOW, _FAR_ABOVE = 1 / 3, 3.0


@dataclass(frozen=True)
class LatentStatistics:
    """Statistics over all values, and the extremes of those of single channels.

    Attributes:
        mean, std, min, max: of everything.
        lowest_channel_mean, highest_channel_mean: of one channel each.
        lowest_channel_std, highest_channel_std: likewise.
        channels_far_from_1: how many channels have a std below 1/3 or above 3.
    """

    mean: float
    std: float
    min: float
    max: float
    lowest_channel_mean: float
    highest_channel_mean: float
    lowest_channel_std: float
    highest_channel_std: float
    channels_far_from_1: int

    @classmethod
    def of(cls, latents: mx.array) -> "LatentStatistics":
        """Of latents (B, C, F', H', W')."""
        values = latents.astype(mx.float32)
        overall = mx.stack([values.mean(), values.std(), values.min(), values.max()])
        across = (0, 2, 3, 4)
        means, stds = values.mean(axis=across), values.std(axis=across)
        channels = mx.stack([means.min(), means.max(), stds.min(), stds.max()])
        far = mx.logical_or(stds < _FAR_BELOW, stds > _FAR_ABOVE).sum()
        return cls(*overall.tolist(), *channels.tolist(), far.item())


@dataclass(frozen=True)
class LatentsSummary:
    """What a latent file is. `print(summary)` shows it.

    Attributes:
        info: what the file says about itself.
        stored_dtype: in the file.
        shape: (B, C, F', H', W').
        layout: how the stored axes were read.
        normalized: whether the file says that they are; None where it says nothing, which is taken for yes.
        statistics: of the normalised latents.
        scale: of the VAE.
        vae: its name; None where no VAE was given and the scale is the usual one.
    """

    info: LatentsInfo
    stored_dtype: str
    shape: tuple[int, int, int, int, int]
    layout: str
    normalized: bool | None
    statistics: LatentStatistics
    scale: ScaleFactors
    vae: str | None

    @property
    def num_frames(self) -> int:
        """Frames of each video that they will be."""
        return 1 + self.scale.time * (self.shape[2] - 1)

    @property
    def frame_size(self) -> tuple[int, int]:
        """(width, height) of each video."""
        return self.scale.width * self.shape[4], self.scale.height * self.shape[3]

    @property
    def seconds(self) -> float:
        """Of each video, at the file's frame rate or else the one that `decode` takes."""
        return float(self.num_frames / (self.info.fps or _USUAL_FPS))

    def as_dict(self) -> dict[str, Any]:
        """The summary in JSON's terms.

        `fps`, `normalized` and `stated` are what the file says, null where it says nothing. `statistics` are those of
        the normalised latents. `video` is one of each item of the batch; its `vae` is null where none was given and
        the usual `scale`, 32x32 pixels and 8 frames, was taken; without `fps` its `seconds` are at 24.
        """
        info, (width, height) = self.info, self.frame_size
        return {
            "kind": "latents",
            "name": info.source,
            "tensor": info.tensor,
            "stored_shape": list(info.stored_shape),
            "stored_dtype": self.stored_dtype,
            "layout": self.layout,
            "shape": list(self.shape),
            "fps": None if info.fps is None else float(info.fps),
            "normalized": self.normalized,
            "stated": {"frames": info.num_frames, "width": info.width, "height": info.height},
            "statistics": asdict(self.statistics),
            "video": {
                "frames": self.num_frames,
                "width": width,
                "height": height,
                "seconds": self.seconds,
                "scale": self.scale._asdict(),
                "vae": self.vae,
            },
        }

    def __str__(self) -> str:
        info, values = self.info, self.statistics
        batch, channels, time, height, width = self.shape
        videos = f"{batch} x " if batch > 1 else ""
        return "\n".join(
            [
                f"file     {info.source}",
                f"tensor   {info.tensor}, {info.stored_shape} {self.stored_dtype}, read as {self.layout}",
                f"latents  {videos}{channels} channels, {time} x {height} x {width} (frames x rows x columns)",
                f"values   {self._describe_normalized()}",
                f"         mean {values.mean:.3f}, std {values.std:.3f}, all finite, "
                f"from {values.min:.2f} to {values.max:.2f}",
                f"channel  means from {values.lowest_channel_mean:.2f} to {values.highest_channel_mean:.2f}, "
                f"std from {values.lowest_channel_std:.2f} to {values.highest_channel_std:.2f}",
                f"         {self._describe_channels()}",
                f"video    {videos}{self._describe_video()}",
            ]
        )

    def _describe_normalized(self) -> str:
        if self.normalized is False:
            return f"un-normalised in the file; normalised with {self.vae}:"
        return "normalised, as the file says" if self.normalized else "taken for normalised: the file does not say"

    def _describe_channels(self) -> str:
        far, channels = self.statistics.channels_far_from_1, self.shape[1]
        found = f"{far} of {channels} channels have a std far from 1"
        if 2 * far <= channels:
            return found
        return f"{found}: perhaps not normalised, or a plain, still clip"

    def _describe_video(self) -> str:
        info, (width, height) = self.info, self.frame_size
        rate = f"{float(info.fps):.5g} fps" if info.fps else f"{float(_USUAL_FPS):g} fps, as the file has no rate"
        lines = [f"{self.num_frames} frames of {width}x{height}, {self.seconds:.2f} s at {rate}"]
        scale = f"{self.scale.time} frames of {self.scale.width}x{self.scale.height} pixels a cell"
        lines.append(f"with {self.vae}: {scale}" if self.vae else f"at the usual scale, {scale}; -m VAE to be sure")
        stated = (info.num_frames, info.width, info.height)
        if None not in stated and stated != (self.num_frames, width, height):
            lines.append(f"the file says {info.num_frames} frames of {info.width}x{info.height}")
        return "\n         ".join(lines)


def summarise_latents(
    source: str, vae: CheckpointHeaders | None = None, *, tensor: str | None = None, grid: Grid | None = None
) -> LatentsSummary:
    """What a latent file is.

    Args:
        source: the file.
        vae: the checkpoint that it is for, to be exact about the scale and to normalise what is not.
        tensor: which tensor of a file that has several.
        grid: (F', H', W') where they are packed.

    Raises:
        LatentsError: for whatever `load_latents` refuses, values that are not finite among it.
    """
    file = open_tensor_file(Path(source))
    normalized = parse_metadata(file.metadata, source).normalized
    if normalized is False and vae is None:
        raise LatentsError(f"{source}: these latents are un-normalised; give -m VAE, whose statistics normalise them.")
    options = (
        {} if vae is None else {"latent_channels": vae.config.latent_channels, "statistics": vae.read_statistics()}
    )
    latents, info = load_latents(source, tensor=tensor, grid=grid, **options)
    return LatentsSummary(
        info=info,
        stored_dtype=_dtype_name(file.tensors[info.tensor]().dtype),
        shape=latents.shape,
        layout=_layout(info.stored_shape, latents.shape),
        normalized=normalized,
        statistics=LatentStatistics.of(latents),
        scale=_USUAL_SCALE if vae is None else vae.config.scale,
        vae=None if vae is None else vae.name,
    )


def _dtype_name(dtype: np.dtype) -> str:
    return "bfloat16" if dtype == np.dtype("V2") else dtype.name


def _layout(stored: tuple[int, ...], shape: tuple[int, ...]) -> str:
    """How stored axes became (B, C, F', H', W'). What fits two layouts was refused, so the lengths tell."""
    batch = "B, " if len(stored) in (3, 5) else ""
    if len(stored) < 4:
        return f"({batch}tokens, C)"
    return f"({batch}C, F', H', W')" if stored[-4:] == shape[1:] else f"({batch}F', H', W', C)"
