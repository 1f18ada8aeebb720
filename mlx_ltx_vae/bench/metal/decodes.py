"""Whole decodes: time and memory (part E), accuracy (part F), and the range of numbers (part G)."""

import math
from dataclasses import replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ...backend.mlx_utils import to_float
from ...metrics import compare
from ...models.convolution.formulations import Padding
from ...models.convolution.module import Conv3d
from ...models.layers.conv import CausalConv3d
from ...models.specs import Activation, ConvSpec, NetworkSpec
from ...planning.memory import stream_memory, with_buffer_cache
from ...planning.plan import DecodePlan
from ..case import Case, Decode, loaded_network
from ..decoding import measure_frames
from .system import footprint, sampled_footprint, thermal_state
from .workload import stream_run

_WARM_UP_FRAMES = 3  # latent frames


def timed_decode(case: Case, *, prefetch: int | None = None, cache_limit: int | None = None) -> dict[str, Any]:
    """Decode a short clip, then the clip of the case.

    Args:
        prefetch: steps ahead; None as planned.
        cache_limit: bytes that MLX's buffer cache may have; None as planned.

    Returns:
        What `decoding.measure_frames` does, and step, prefetch, planned_bytes (of what MLX's peak counts),
        planned_total_bytes (with the buffer cache), start_footprint_bytes (before anything was loaded),
        peak_footprint_bytes (of the decode), lifetime_footprint_bytes (with loading), thermal.
    """
    before = footprint()["footprint_bytes"]
    subject = Decode.from_case(case)
    plan = change_plan(subject.plan, subject.spec, prefetch, cache_limit)
    short = subject.latents[:, :, :_WARM_UP_FRAMES]
    for _ in Decode(
        subject.vae, short, subject.vae.plan(short.shape, mode=case.mode, order=case.order, chunk=case.chunk)
    ).run():
        pass
    with sampled_footprint() as footprints:
        measured = measure_frames(replace(subject, plan=plan).run())
    return {
        **measured,
        "step": plan.step,
        "prefetch": plan.prefetch,
        "planned_bytes": plan.memory.active,
        "planned_total_bytes": plan.peak_bytes,
        "start_footprint_bytes": before,
        "peak_footprint_bytes": max((size for size in footprints if size is not None), default=None),
        "lifetime_footprint_bytes": footprint()["lifetime_footprint_bytes"],
        "thermal": thermal_state(),
    }


def change_plan(plan: DecodePlan, spec: NetworkSpec, prefetch: int | None, cache_limit: int | None) -> DecodePlan:
    """A plan with another prefetch, whose memory is planned anew, and another limit of MLX's buffer cache, in bytes."""
    if prefetch is not None:
        run = replace(stream_run(plan), prefetch=prefetch)
        memory = stream_memory(spec, plan.latent_shape.grid, plan.latent_shape.batch, run)
        memory = with_buffer_cache(replace(memory, inputs=plan.memory.inputs), plan.machine.backend, None)
        plan = replace(plan, prefetch=prefetch, memory=memory)
    if cache_limit is not None:
        plan = replace(plan, memory=replace(plan.memory, buffer_cache=cache_limit))
    return plan


def accuracy(case: Case, *, save: str | None = None, reference: str | None = None) -> dict[str, Any]:
    """Decode to pixels, and save or compare them.

    Args:
        save: a file to save the pixels to, as `.npy` in float32.
        reference: such a file, to compare with.

    Returns:
        With `reference` psnr in dB (None if they are equal), rms and largest difference of pixels in [-1, 1], None
        where pixels are not finite; without it nothing.
    """
    pixels = Decode.from_case(case).decode_pixels().astype(mx.float32)
    mx.eval(pixels)
    if save:
        np.save(save, np.array(pixels))
    if not reference:
        return {}
    expected = mx.array(np.load(reference))
    rms = to_float(mx.sqrt(mx.square(pixels - expected).mean()))
    if not math.isfinite(rms):
        return {"psnr": None, "rms": None, "largest": None}
    return {**compare(pixels, expected), "rms": rms}


def ranges(case: Case) -> dict[str, Any]:
    """Decode, and note the largest numbers at each convolution.

    Returns:
        runs: for each convolution, in the order of the network, its layer, channels, is_normalized, and the largest
        absolute values input and output, None if they are not finite.
    """
    subject = Decode.from_case(case)
    layers = [layer for layer in loaded_network(subject.vae).modules() if isinstance(layer, CausalConv3d)]
    recorded = {layer.spec.name: _RecordedConv(layer.conv) for layer in layers}
    for layer in layers:
        layer.update_modules({"conv": recorded[layer.spec.name]})
    mx.eval(subject.decode_pixels())
    return {
        "runs": [
            {
                "layer": layer.name,
                "channels": [layer.in_channels, layer.conv_channels],
                "is_normalized": layer.activation is not Activation.NONE,
                **{key: size if math.isfinite(size) else None for key, size in recorded[layer.name].largest.items()},
            }
            for layer in subject.spec.layers
            if isinstance(layer, ConvSpec)
        ]
    }


class _RecordedConv(nn.Module):
    """A convolution that notes the largest absolute values of its inputs and outputs; infinity for NaN."""

    def __init__(self, conv: Conv3d) -> None:
        super().__init__()
        self._conv = conv
        self.dtype, self.operands = conv.dtype, conv.operands
        self._largest = [0.0, 0.0]

    @property
    def largest(self) -> dict[str, float]:
        return dict(zip(("input", "output"), self._largest, strict=True))

    def __call__(self, frames: mx.array, padding: Padding, skip: mx.array | None = None) -> mx.array:
        output = self._conv(frames, padding, skip)
        sizes = (to_float(mx.abs(array.astype(mx.float32)).max()) for array in (frames, output))
        self._largest = [
            max(size, before) if size == size else math.inf for size, before in zip(sizes, self._largest, strict=True)
        ]
        return output
