"""The options of a decode, beside those of its plan."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from ..errors import PlanError
from ..latents.keyframes import Keyframes
from ..models.noise import Noise
from ..models.specs import DEFAULT_CONVENTION, ConventionName
from ..planning.options import PlanOptions
from ..planning.plan import DecodePlan
from ..video.frame_format import FrameFormat
from .latent_sources import LatentInput, is_whole
from .progress import Progress


@dataclass(frozen=True)
class DecodeOptions:
    """The options of `VideoVAE.stream`, which documents them."""

    timestep: float | None = None
    seed: int = 0
    noise: Noise = None
    noise_scale: float | None = None
    like: str = DEFAULT_CONVENTION
    unnormalized: bool = False
    steps: int | None = None
    keyframes: Keyframes | None = None
    format: FrameFormat | None = None


_PLANNED = {"frames", "joined", *PlanOptions.__dataclass_fields__}  # options of `VideoVAE.plan`


class StreamOptions(TypedDict, total=False):
    """The options of `VideoVAE.stream` that all decodes have."""

    timestep: float | None
    seed: int
    noise: Noise
    noise_scale: float | None
    like: ConventionName
    unnormalized: bool
    steps: int | None
    keyframes: Keyframes | None


class WholeOptions(StreamOptions, total=False):
    """The options of `VideoVAE.decode`, which documents them."""

    memory_budget: str | int | None
    progress: Progress


def check_options(function: str, options: Mapping[str, object], known: type = StreamOptions) -> None:
    """Raise a `TypeError`, as Python does, unless options are those of a `TypedDict`."""
    plan, given, planned = "plan", "latents", _PLANNED
    if known is not StreamOptions:
        plan, given, planned = "plan_encode", "pixels", {"memory_budget", "mode", "ranks", "joined"}
    for name in options.keys() - known.__annotations__.keys():
        hint = f"; it is one of {plan}(): {function}(..., plan=vae.{plan}({given}.shape, {name}=...))"
        text = f"{function}() got an unexpected keyword argument {name!r}"
        raise TypeError(text + (hint if name in planned else ""))


def default_plan(
    make_plan: Callable[..., DecodePlan],
    latents: LatentInput,
    plan: DecodePlan | None,
    options: StreamOptions,
    *,
    memory_budget: str | int | None,
    **more: Any,
) -> DecodePlan | None:
    """The plan of whole latents if none is given; None for those that arrive."""
    if plan is None and is_whole(latents):
        more |= {"steps": options.get("steps"), "keyframes": options.get("keyframes")}
        return make_plan(latents.shape, memory_budget=memory_budget, **more)
    if memory_budget is not None:
        raise PlanError("a memory budget goes with whole latents, and replaces a plan; leave it out.")
    return plan
