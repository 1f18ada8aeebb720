"""`LatentUpsampler`, the class of the public API for latents with more rows and columns, or more frames."""

import os
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np

from .backend.device import confirm_device, explained_device_errors
from .backend.mlx_utils import GivenDtype, to_mlx
from .checkpoint import Checkpoint
from .checkpoint.loading import NetworkHandle
from .errors import LatentsError, PlanError, option
from .latents.formats import check_finite
from .networks.base import UPSAMPLERS, Config, Statistics
from .networks.specs import check_latent_shape
from .opened_vae import OpenedNetworks, OpenedVAE
from .options import PlanOptions
from .pipeline.execution import Execution, ExecutionState, arrays_released
from .pipeline.progress import Progress, open_bar
from .pipeline.sources import Source
from .planning.plan import DecodePlan, Mode, check_plan
from .planning.planner import plan_decode
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
