"""Whole decodes: time and memory (part E), accuracy (part F), and the range of numbers (part G)."""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import numpy as np

from ...backend.mlx_utils import to_float
from ...metrics import compare
from ...models import specs
from ...models.convolution import module as convolution_module
from ...models.convolution.formulations import Padding
from ...models.convolution.module import Conv3d
from ...models.convolution.rules import ConvShape, Formulation, layout_for
from ...models.specs import Activation, ConvSpec, NetworkSpec
from ...planning.memory import stream_memory, with_buffer_cache
from ...planning.plan import DecodePlan
from ..case import Case, Decode, load_spec, loaded_network
from ..decoding import measure_frames
from .system import footprint, sampled_footprint, thermal_state
from .workload import stream_run

_WARM_UP_FRAMES = 3  # latent frames


def timed_decode(
    case: Case, *, prefetch: int | None = None, cache_limit: int | None = None, formulation: str | None = None
) -> dict[str, Any]:
    """Decode a short clip, then the clip of the case.

    Args:
        prefetch: steps ahead; None as planned.
        cache_limit: bytes that MLX's buffer cache may have; None as planned.
        formulation: of all convolutions, a value of `Formulation`; None as the package's rule says.

    Returns:
        What `decoding.measure_frames` does, and step, prefetch, planned_bytes (of what MLX's peak counts),
        planned_total_bytes (with the buffer cache), start_footprint_bytes (before anything was loaded),
        peak_footprint_bytes (of the decode), lifetime_footprint_bytes (with loading), thermal.
    """
    before = footprint()["footprint_bytes"]
    with forced(formulation):
        subject = Decode.from_case(case)
        plan = change_plan(subject.plan, load_spec(case), prefetch, cache_limit)
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


@contextmanager
def forced(formulation: str | None) -> Iterator[None]:
    """Inside the block, all convolutions that are loaded and planned have one formulation, a value of `Formulation`.

    A network that is loaded inside must run inside. A CPU runs only conv3d, taps and columns.
    """
    if formulation is None:
        yield
        return
    wanted = Formulation(formulation)

    def choose(shape: ConvShape, *_: object, **__: object) -> Formulation:
        return Formulation.CONV3D if shape.is_strided else wanted

    def layout(*_: object, is_strided: bool) -> object:
        return layout_for(Formulation.CONV3D if is_strided else wanted)

    with ExitStack() as stack:
        for module in (convolution_module, specs):
            stack.enter_context(patch.object(module, "choose", choose))
        stack.enter_context(patch.object(convolution_module, "load_layout", layout))
        yield


def accuracy(
    case: Case, *, formulation: str | None = None, save: str | None = None, reference: str | None = None
) -> dict[str, Any]:
    """Decode to pixels, and save or compare them.

    Args:
        formulation: see `timed_decode`.
        save: a file to save the pixels to, as `.npy` in float32.
        reference: such a file, to compare with.

    Returns:
        With `reference` psnr in dB (None if they are equal), rms and largest difference of pixels in [-1, 1], None
        where pixels are not finite; without it nothing.
    """
    with forced(formulation):
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
    network = loaded_network(subject.vae)
    names = {id(each): name.removesuffix(".conv") for name, each in network.named_modules()}
    largest: dict[str, tuple[float, float]] = {}
    convolve = Conv3d.__call__

    def recording(module: Conv3d, frames: mx.array, padding: Padding, skip: mx.array | None = None) -> mx.array:
        output = convolve(module, frames, padding, skip)
        name = names[id(module)]
        sizes = (to_float(mx.abs(array.astype(mx.float32)).max()) for array in (frames, output))
        before = largest.get(name, (0.0, 0.0))
        now, then = (max(size, old) if size == size else math.inf for size, old in zip(sizes, before, strict=True))
        largest[name] = now, then
        return output

    with patch.object(Conv3d, "__call__", recording):
        mx.eval(subject.decode_pixels())
    return {
        "runs": [
            {
                "layer": layer.name,
                "channels": [layer.in_channels, layer.conv_channels],
                "is_normalized": layer.activation is not Activation.NONE,
                **{
                    name: size if math.isfinite(size) else None
                    for name, size in zip(("input", "output"), largest[layer.name], strict=True)
                },
            }
            for layer in load_spec(case).layers
            if isinstance(layer, ConvSpec)
        ]
    }
