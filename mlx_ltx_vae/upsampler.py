"""`LatentUpsampler`, the class of the public API for latents with more rows and columns, or more frames."""

import os
import time
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np

from .backend.device import confirm_device, explained_device_errors
from .backend.mlx_utils import GivenDtype, to_mlx
from .checkpoint import Checkpoint
from .checkpoint.loading import NetworkHandle
from .errors import LatentsError, PlanError, option, warn
from .latents import LatentSpace, LatentsWriter, is_for_comfyui, open_latents
from .latents.formats import check_finite
from .latents.keyframes import Keyframes
from .networks.base import UPSAMPLERS, Config, Statistics
from .networks.specs import check_latent_shape
from .opened_vae import OpenedNetworks, OpenedVAE
from .options import PlanOptions
from .pipeline.execution import Execution, ExecutionState, arrays_released
from .pipeline.progress import Progress, open_bar
from .pipeline.sources import Source, check_values
from .planning.plan import DecodePlan, Mode, check_plan
from .planning.planner import plan_decode
from .shapes import Grid, LatentShape
from .units import format_count

if TYPE_CHECKING:
    from typing_extensions import Self

(_NETWORK,) = UPSAMPLERS.networks


class LatentUpsampler(OpenedNetworks[Config]):
    """Latent upsampler of LTX, which takes a clip in one piece, layer by layer, since its norms see all of it.

    ```python
    vae, upsampler = VideoVAE.from_pretrained("ltx-2.3"), LatentUpsampler.from_pretrained("ltx-2.3-upscaler-x2")
    pixels = vae.decode(upsampler.upscale(latents, statistics=vae))
    ```
    """

    _NAMES, _MEDIUM = (_NETWORK,), UPSAMPLERS

    @classmethod
    def from_pretrained(cls, source: str | os.PathLike | Checkpoint, *, dtype: GivenDtype = None) -> "Self":
        """Open an upsampler: read its headers and configuration. Weights are read at their first use.

        `source`, `dtype` and errors are as for `VideoVAE.from_pretrained`.
        """
        source, dtype = cls._open(source, dtype, UPSAMPLERS, encoder=True, decoder=True)
        network = NetworkHandle[Any].open(source, _NETWORK, source.cast_dtype(_NETWORK, dtype))
        upsampler = cls(source.config, {_NETWORK: network}, keeps_dtype=dtype is not None)
        return upsampler._note_source(source.source)

    @property
    def dtype(self) -> mx.Dtype:
        """Compute dtype, also of the result."""
        return self._network(_NETWORK).dtype

    @property
    def time_factor(self) -> int:
        """Frame rate of the video of the result, as a multiple of the rate before: 1, or 2."""
        return self.spec(_NETWORK).out_grid((2, 2, 2))[0] - 1

    def plan(self, latent_shape: Sequence[int], *, memory_budget: str | int | None = None) -> DecodePlan:
        """Plan the run on latents of this shape (B, C, F', H', W'). Pure arithmetic; nothing is computed.

        The plan's video is the one that the result decodes to. `memory_budget` is as for `VideoVAE.plan`.

        Raises:
            LatentsError: for a shape that it cannot take.
            PlanError: if the clip does not fit. The message states the longest one that does.
        """
        network, machine = self._network(_NETWORK), self._machine(self.dtype)
        shape = check_latent_shape(network.spec, latent_shape)
        load_bytes = max(map(prod, network.spec.weights.values())) * self.dtype.size  # a second layout of a weight

        def plan(frames: int) -> DecodePlan:
            joined = network.spec.out_grid((frames, 1, 1))[0]
            options = PlanOptions(memory_budget, "single", weight_bytes=network.num_bytes, joined=joined)
            plan = plan_decode(network.spec, shape._replace(frames=frames), machine, options)
            work = max(plan.memory.work, 0 if network.is_loaded else load_bytes)
            return replace(plan, memory=replace(plan.memory, work=work))

        def is_too_long(frames: int) -> bool:
            with suppress(PlanError):
                return not plan(frames)
            return True

        try:
            return plan(shape.frames)
        except PlanError as error:
            longest = bisect_left(range(1, shape.frames), True, key=is_too_long)
            if not longest:
                raise
            frames = format_count(self.config.scale.video_grid((longest, 1, 1))[0], "frame")
            problem = f"{str(error).rstrip('.')}; before it is upscaled, the longest clip that fits has {frames}."
            raise PlanError(problem, least_bytes=error.least_bytes) from error

    def upscale(
        self,
        latents: mx.array | np.ndarray,
        *,
        statistics: OpenedVAE[Any] | tuple[mx.array | np.ndarray, mx.array | np.ndarray],
        plan: DecodePlan | None = None,
        progress: Progress = False,
    ) -> mx.array:
        """Return latents with more rows and columns, or more frames, normalized as those that are given.

        Args:
            latents: (B, C, F', H', W'), normalized. The items of a batch are independent.
            statistics: the `VideoVAE` of the latents, or its `(mean, std)`, each (C,).
            plan: from `plan`. `None` means the default.
            progress: as for `PreparedDecode.run`.

        Raises:
            LatentsError: for latents that it cannot take, statistics that are missing or do not fit, and results that
                are not finite.
            PlanError: if the plan was made for other latents, or the clip does not fit.
        """
        latents, vae_statistics = to_mlx(latents, "latents"), self.find_statistics(statistics)
        plan = plan or self.plan(latents.shape)
        check_plan(plan, DecodePlan)
        if plan.latent_shape != latents.shape:
            raise PlanError(f"the plan was made for latents {tuple(plan.latent_shape)}; these are {latents.shape}.")
        if plan.mode is not Mode.SINGLE:
            raise PlanError(f"the plan is {plan.mode.value}, of a decode; give one of LatentUpsampler.plan, or none.")
        check_finite(latents, "the latents")
        network, state = self._get(_NETWORK), ExecutionState(work=plan.multiply_adds)
        inputs = vae_statistics.denormalize(latents).transpose(0, 2, 3, 4, 1).astype(network.dtype)
        source = Source(plan.batch, plan.latent_shape.grid, lambda axis, chunk: iter([inputs]))
        with open_bar(progress, plan.num_frames, name="latents") as bar, arrays_released(), explained_device_errors():
            bar.enter("upscaling")
            bar.watch(state)
            (outputs,) = Execution(network, plan, source, state=state).outputs()
            result = vae_statistics.normalize(outputs.transpose(0, 4, 1, 2, 3)).astype(network.dtype)
            mx.eval(result)
            check_finite(result, f"{self.source.name}: the upscaled latents")
            bar.update(plan.num_frames)
        confirm_device()
        return result

    def find_statistics(self, statistics: object) -> Statistics:
        """Return the statistics of a VAE or a pair. Raises a `LatentsError` if they are missing, or do not fit."""
        pair = statistics.statistics if isinstance(statistics, OpenedVAE) else statistics
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or any(values is None for values in pair):
            way = option("statistics=vae, or (vae.mean, vae.std)", "--vae VAE")
            raise LatentsError(f"{self.source.name}: needs the statistics of the latents' VAE; give {way}.")
        mean, std = (to_mlx(values, "statistics") for values in pair)
        if not mean.shape == std.shape == (self.config.latent_channels,):
            needed, shapes = self.config.latent_channels, f"{mean.shape} and {std.shape}"
            problem = f"takes latents of {needed} channels, and the VAE's statistics have the shapes {shapes}"
            raise LatentsError(f"{self.source.name}: {problem}; give the upsampler and the VAE of one release.")
        return Statistics(mean, std)


@dataclass(frozen=True)
class UpscaleReport:
    """Report of an upscaled file: of `upscale --json`, except the networks and the plan.

    `frames`, `width`, `height` and `fps` are those of the video that the latents decode to.
    """

    output: str
    frames: int
    width: int
    height: int
    fps: float | None
    latent_shape: LatentShape
    seconds: float
    peak_memory_bytes: int


class PreparedUpscale:
    """Upscaling of a latent file that is decided, with its metadata, audio and keyframes, where they still hold.

    Attributes:
        plan: of the run.
        shape: of the latents.
        inputs: files that are read, except the latent file.
    """

    def __init__(
        self,
        upsampler: LatentUpsampler,
        vae: OpenedVAE[Any],
        path: str,
        *,
        tensor: str | None = None,
        grid: Grid | None = None,
        unnormalized: bool | None = None,
        memory_budget: str | int | None = None,
    ) -> None:
        """Open the latents of a VAE, and plan. Raises the errors of `open_latents` and of `LatentUpsampler.plan`."""
        self._upsampler, self._vae, self._unnormalized = upsampler, vae, unnormalized
        channels, scale = upsampler.config.latent_channels, vae.config.scale
        self._file = open_latents(
            path, latent_channels=channels, tensor=tensor, grid=grid, scale=scale, vae="the upsampler"
        )
        if problem := vae.describe_mismatch(self._file.info.space):
            warn(f"{path}: its latents are {problem}, so the result will be wrong; give their VAE with --vae.")
        self.shape = self._file.shape
        self.plan = upsampler.plan(self.shape, memory_budget=memory_budget)
        self.inputs = [*upsampler.source.files, *vae.source.files]

    def check_values(self) -> None:
        """Read all latents; raise a `LatentsError` for values that are not finite."""
        check_values(self._file.map(statistics=self._vae.statistics, unnormalized=self._unnormalized))

    def run(self, output: str, *, overwrite: bool = False, progress: Progress = False) -> UpscaleReport:
        """Upscale, and write the file, which appears under its name when it is whole."""
        self._upsampler.load()  # before the clock starts
        start, info, scale = time.perf_counter(), self._file.info, self._vae.config.scale
        rate = self._upsampler.time_factor
        with LatentsWriter(output, overwrite=overwrite) as writer:
            latents = self._file.read(statistics=self._vae.statistics, unnormalized=self._unnormalized)
            result = self._upsampler.upscale(latents, statistics=self._vae, plan=self.plan, progress=progress)
            writer.write(result)
            shape = LatentShape(*result.shape)
            num_frames, height, width = scale.video_grid(shape.grid)
            sizes: dict[str, int | None] = {"num_frames": num_frames, "height": height, "width": width}
            sizes["carry"] = info.carry and rate * (info.carry - 1) + 1
            if info.source_frames:  # a decode leaves out no more than a part of the last latent frame
                source_frames = rate * (self._file.count_source_frames(scale) - 1) + 1
                sizes["source_frames"] = max(source_frames, num_frames - scale.time + 1)
            fps = info.fps and info.fps * rate
            new_path = writer.complete(
                fps=fps,
                sizes=sizes,
                audio=self._read_audio(output),
                keyframes=self._read_keyframes(output, shape, rate),
                space=info.space if info.space != LatentSpace() else self._vae.latent_space,
                workflow=info.workflow,
            )
        seconds, peak = time.perf_counter() - start, mx.get_peak_memory()
        float_fps = None if fps is None else float(fps)
        return UpscaleReport(str(new_path or output), num_frames, width, height, float_fps, shape, seconds, peak)

    def _read_audio(self, output: str) -> mx.array | None:
        """Return the audio latents of the file, which stay as they are, or `None`; warn if they cannot."""
        audio, is_comfyui = self._file.find_audio(), is_for_comfyui(output)
        if audio is None or not (is_comfyui or self._unnormalized or self._file.normalized is False):
            return None if audio is None else audio.read_stored()
        reason = "a .latent file has none" if is_comfyui else "they are unnormalized"
        warn(f"{audio.source}: its audio latents are left out, since {reason}.")
        return None

    def _read_keyframes(self, output: str, shape: LatentShape, rate: int) -> Keyframes | None:
        """Return the keyframes of the file at the new rate, or `None`; warn if they do not fit the result."""
        file = self._file
        if file.has_keyframes and (is_for_comfyui(output) or shape.grid[1:] != file.shape.grid[1:]):
            warn(f"{file.info.source}: its keyframes are left out, since they have the size before the upscaling.")
        elif stills := file.find_keyframes():
            keyframes = stills.read(statistics=self._vae.statistics, unnormalized=self._unnormalized)
            return Keyframes(keyframes.latents, [rate * frame for frame in keyframes.frames])
        return None
