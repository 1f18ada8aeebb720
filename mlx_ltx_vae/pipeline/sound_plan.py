"""Plans of the decode of sound, by an audio decoder and its vocoder together."""

from collections.abc import Callable
from typing import Any, cast

import mlx.core as mx

from ..backend.machine import Machine
from ..backend.mlx_utils import DTYPES, DtypeName
from ..errors import LatentsError
from ..models.specs import NetworkSpec
from ..planning.plan import AudioPlan, Mode, SoundPlan
from ..planning.planner import plan_decode
from .audio_run import join_specs


def plan_sound(
    spec: NetworkSpec, latents: int, machine: Machine | None = None, *, batch: int = 1, **options: Any
) -> AudioPlan:
    """Plan the decode of so many latents, with the options of `plan_decode`."""
    if any(isinstance(number, bool) or not isinstance(number, int) or number < 1 for number in (latents, batch)):
        raise LatentsError(f"{batch!r} x {latents!r} audio latents cannot be decoded; give whole numbers from 1 on.")
    return cast(AudioPlan, plan_decode(spec, (batch, spec.in_channels, latents, 1, 1), machine, **options))


def plan_networks(
    decoder: NetworkSpec,
    vocoder: NetworkSpec,
    latents: int,
    machine: Machine | None = None,
    *,
    dtype: DtypeName,
    **options: Any,
) -> AudioPlan:
    """The plan of a decode by networks that are not loaded: a decoder in `dtype`, and a vocoder in float32."""
    weights = decoder.num_weights * DTYPES[dtype].size + vocoder.num_weights * mx.float32.size
    return plan_sound(join_specs(decoder, vocoder), latents, machine, weight_bytes=weights, **options)


def every_chunk(make_plan: Callable[..., SoundPlan]) -> list[SoundPlan]:
    """The plans of one sound with all possible chunks, the fastest first."""
    plan = make_plan()
    return [make_plan(chunk=chunk) for chunk in plan.rules.chunks] if plan.mode is Mode.EXACT else [plan]
