"""`LatentUpsampler`, the class of the public API for latents with more rows and columns, or more frames."""

import os
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np

from .backend.device import check_process, confirm_device, explained_device_errors, this_machine
from .backend.mlx_utils import GivenDtype, dtype_name, parse_dtype, to_mlx
from .checkpoint import Checkpoint, open_checkpoint
from .checkpoint.loading import NetworkHandle
from .errors import LatentsError, PlanError, option
from .latents.files import check_finite
from .networks.base import UPSAMPLERS, Network, Statistics
from .opened_vae import OpenedVAE
from .options import PlanOptions
from .pipeline.progress import Progress, open_bar
from .pipeline.run import Run, RunState, arrays_released
from .pipeline.sources import Source
from .planning.plan import DecodePlan, check_plan
from .planning.planner import plan_upscale
from .shapes import Axis
from .units import format_bytes, format_count

if TYPE_CHECKING:
    from typing_extensions import Self

#: A VAE, or mean and standard deviation of each channel (C,) of its latents.
GivenStatistics = OpenedVAE[Any] | tuple[mx.array | np.ndarray, mx.array | np.ndarray]


class LatentUpsampler:
    """Latent upsampler of LTX. Its weights are read when they are first used.

    Its norms see the whole clip, so it takes a clip in one piece, layer by layer.

    ```python
    vae, upsampler = VideoVAE.from_pretrained("ltx-2.3"), LatentUpsampler.from_pretrained("ltx-2.3-upscaler-x2")
    pixels = vae.decode(upsampler.upscale(latents, statistics=vae))
    ```
    """

    def __init__(self, checkpoint: Checkpoint, dtype: GivenDtype = None) -> None:
        name, network = parse_dtype(dtype), UPSAMPLERS.networks[0]
        handle = NetworkHandle[Network].open(checkpoint, network, checkpoint.cast_dtype(network, name))
        assert handle is not None, "a checkpoint that opens has its network"
        self._network, self._keeps_dtype = handle, name is not None
        self.config, self.source = checkpoint.config, checkpoint.source

    @classmethod
    def from_pretrained(cls, source: str | os.PathLike | Checkpoint, *, dtype: GivenDtype = None) -> "Self":
        """Open an upsampler: read its headers and configuration.

        `source` and `dtype` are as for `VideoVAE.from_pretrained`. Raises a `CheckpointError` if the source cannot be
        read, is no upsampler, is incomplete, or is not supported.
        """
        check_process()
        return cls(source if isinstance(source, Checkpoint) else open_checkpoint(source, medium=UPSAMPLERS), dtype)

    def load(self) -> "Self":
        """Read the weights, if they have not been used, and return this upsampler. Errors as for `VideoVAE.load`."""
        self._network.get()
        return self

    @property
    def dtype(self) -> mx.Dtype:
        """Compute dtype, also of the result."""
        return self._network.dtype

    def out_shape(self, latent_shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape (B, C, F', H', W') of the result for latents of this shape."""
        return (*latent_shape[:2], *self._network.spec.out_grid((latent_shape[2], latent_shape[3], latent_shape[4])))

    def plan(self, latent_shape: Sequence[int], *, memory_budget: str | int | None = None) -> DecodePlan:
        """Plan the run on latents of this shape (B, C, F', H', W'). Pure arithmetic; nothing is computed.

        The plan's video is the one that the result decodes to. `memory_budget` is as for `VideoVAE.plan`.

        Raises:
            LatentsError: for a shape that it cannot take.
            PlanError: if the clip does not fit. The message states the longest one that does.
        """
        return self.plan_with(latent_shape, PlanOptions(memory_budget=memory_budget))

    def plan_with(self, latent_shape: Sequence[int], options: PlanOptions) -> DecodePlan:
        """Plan the run with these options, as `plan`."""
        spec, scale, num_bytes = self._network.spec, self.config.scale, self._network.num_bytes
        machine = this_machine(self.dtype, num_bytes * self._network.is_loaded, keeps_dtype=self._keeps_dtype)

        def plan(frames: int) -> DecodePlan:
            return plan_upscale(spec, (*latent_shape[:2], frames, *latent_shape[3:]), scale, machine, options)

        def is_too_long(frames: int) -> bool:
            try:
                plan(frames)
            except PlanError:
                return True
            return False

        try:
            return plan_upscale(spec, latent_shape, scale, machine, options)
        except PlanError as error:
            longest = bisect_left(range(1, latent_shape[2]), True, key=is_too_long)
            if not longest:
                raise
            frames = format_count(scale.video_grid((longest, 1, 1))[0], "frame")
            raise PlanError(
                f"{str(error).rstrip('.')}; the longest clip of this size that fits has {frames}, before it is upscaled.",
                least_bytes=error.least_bytes,
            ) from error

    def upscale(
        self,
        latents: mx.array | np.ndarray,
        *,
        statistics: GivenStatistics,
        plan: DecodePlan | None = None,
        progress: Progress = False,
    ) -> mx.array:
        """Return latents with more rows and columns, or more frames, normalized like those that are given.

        Args:
            latents: (B, C, F', H', W'), normalized. Each item of the batch is independent.
            statistics: the `VideoVAE` of the latents, or its `(mean, std)`, each (C,).
            plan: from `plan`. `None` means the default.
            progress: as for `PreparedDecode.run`.

        Raises:
            LatentsError: for latents that it cannot take, missing statistics, and results that are not finite.
            PlanError: if the plan was made for other latents, or the clip does not fit.
        """
        latents, known = to_mlx(latents, "latents"), _find_statistics(statistics, self.config.latent_channels)
        plan = plan or self.plan(latents.shape)
        check_plan(plan, DecodePlan)
        if plan.latent_shape != latents.shape:
            raise PlanError(f"the plan was made for latents {tuple(plan.latent_shape)}; these are {latents.shape}.")
        check_finite(latents, "the latents")
        network, state = self._network.get(), RunState(work=plan.multiply_adds)

        def pieces(axis: Axis, chunk: int) -> Iterator[mx.array]:
            yield known.denormalize(latents).transpose(0, 2, 3, 4, 1).astype(network.dtype)

        run = Run(network, plan, Source(plan.batch, plan.latent_shape.grid, pieces), state=state)
        with open_bar(progress, plan.num_frames, name="latents") as bar, arrays_released(), explained_device_errors():
            bar.enter("upscaling")
            bar.watch(state)
            (output,) = run.outputs()
            result = known.normalize(output.transpose(0, 4, 1, 2, 3)).astype(network.dtype)
            mx.eval(result)
            check_finite(result, f"{self.source.name}: the upscaled latents")
            bar.update(plan.num_frames)
        confirm_device()
        return result

    def __repr__(self) -> str:
        size = format_bytes(self._network.num_bytes)
        return f"{type(self).__name__}({self.config.generation}, {dtype_name(self.dtype)}, {size})"


def _find_statistics(statistics: object, channels: int) -> Statistics:
    """Return the statistics of a VAE or a pair; raise a `LatentsError` if there are none, or they do not fit."""
    pair = statistics.statistics if isinstance(statistics, OpenedVAE) else statistics
    if not isinstance(pair, tuple) or len(pair) != 2 or any(values is None for values in pair):
        way = option("statistics=vae, or (vae.mean, vae.std)", "--vae VAE")
        raise LatentsError(f"an upsampler needs the statistics of the latents' VAE; give {way}.")
    mean, std = (to_mlx(values, "statistics") for values in pair)
    if not mean.shape == std.shape == (channels,):
        shapes = f"{tuple(mean.shape)} and {tuple(std.shape)}"
        raise LatentsError(f"the statistics have the shapes {shapes}; this upsampler takes latents of {(channels,)}.")
    return Statistics(mean, std)
