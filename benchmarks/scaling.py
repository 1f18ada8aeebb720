"""Decodes in row bands on several machines: a simulation from counted bytes and operations and assumed speeds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.exchange import Exchange, band_grid, make_exchange
from benchmarks.measuring import table
from mlx_ltx_vae.backend.machine import Backend, Machine
from mlx_ltx_vae.models.convolution.rules import ConvShape, Formulation, winograd_elements
from mlx_ltx_vae.models.specs import ConvSpec, NetworkSpec
from mlx_ltx_vae.models.video_vae.family import CONV_VAE
from mlx_ltx_vae.options import PlanOptions
from mlx_ltx_vae.planning.clip import Clip
from mlx_ltx_vae.planning.memory import StreamRun, layer_pieces
from mlx_ltx_vae.planning.plan import DecodePlan, split_rows
from mlx_ltx_vae.planning.planner import plan_decode
from mlx_ltx_vae.shapes import Axis, LatentShape
from mlx_ltx_vae.units import GB, MB

#: An assumption: trillions of multiplications and additions per second, convolutions counted as direct ones.
DEFAULT_TFLOPS = 25

_VIDEOS = ((768, 512), (1920, 1088), (3840, 2176))
_RANKS = (1, 2, 3, 4, 8, 16)
_MACHINE = Machine(Backend.METAL, itemsize=2)
#: What each rank is worth, as parts of one machine, in the table of limits.
_WORTH = (0.8, 0.5)


@dataclass(frozen=True)
class Link:
    """A connection between two machines. All numbers are assumptions.

    Attributes:
        bandwidth: bytes per second in each direction.
        latency: seconds per message.
    """

    name: str
    bandwidth: float
    latency: float


LINKS = (
    Link("TB5, RDMA", 3.5 * GB, 50e-6),
    Link("TB5, TCP", 3.0 * GB, 300e-6),
    Link("10 GbE", 1.1 * GB, 300e-6),
    Link("1 GbE", 0.11 * GB, 300e-6),
)


@dataclass(frozen=True)
class Run:
    """A decode by a number of ranks.

    Attributes:
        bands: latent rows of each rank.
        busiest: what the rank that sends most sends.
        seconds: computing, of all rows.
        band_seconds: computing, of the largest band.
        memory: planned peak of the rank with the largest band, without weights and MLX's buffer cache.
        winograd: the share of its operations in convolutions that are large enough for Metal's Winograd kernel.
    """

    bands: tuple[int, ...]
    busiest: Exchange
    seconds: float
    band_seconds: float
    memory: float
    winograd: float

    def sending(self, link: Link) -> float:
        """Seconds that the busiest rank sends, one message after the other."""
        return self.busiest.messages * link.latency + self.busiest.sent_bytes / link.bandwidth

    def speed_up(self, link: Link) -> float:
        """Return the speed-up if no communication overlaps computation."""
        return self.seconds / (self.band_seconds + self.sending(link))

    def overlapped(self, link: Link) -> float:
        """Return the speed-up if communication and computation overlap completely."""
        return self.seconds / max(self.band_seconds, self.sending(link))

    def share(self, link: Link) -> float:
        """Return the part of the time that is spent on communication, without overlap."""
        return self.sending(link) / (self.band_seconds + self.sending(link))


def scaling_tables(tflops: float = DEFAULT_TFLOPS, frames: int = 121) -> str:
    """Markdown tables for LTX-2.3's decoder in bfloat16, one per video size, and one of where row bands stop paying.

    Args:
        tflops: what one machine computes, in trillions of multiplications and additions per second.
        frames: length of the video.
    """
    spec = CONV_VAE.spec(CONV_VAE.published["ltx-2.3"](128), "decoder")
    clips = [_make_clip(spec, width, height, frames) for width, height in _VIDEOS]
    parts = [f"**A simulation, not a measurement:** {tflops:g} TFLOP/s per machine, {frames} frames, bfloat16."]
    parts += [f"**{width}x{height}**\n\n{_size_table(clip, tflops)}" for (width, height), clip in _sized(clips)]
    limits = [
        {"video": f"{width}x{height}, {clip.latent_shape.height} latent rows", **_limits(clip, tflops)}
        for (width, height), clip in _sized(clips)
    ]
    worth = " and ".join(f"{share:g}" for share in _WORTH)
    parts.append(
        "**Where row bands stop paying:** the largest number of ranks, and in brackets the rows of their largest band, "
        f"at which each rank is still worth {worth} of a machine or more, without overlap.\n\n" + table(limits)
    )
    return "\n\n".join(parts)


def simulate(clip: Clip, ranks: int, tflops: float) -> Run:
    """Simulate a decode of a clip by 1 to H' ranks."""
    bands = tuple(band.length for band in split_rows(clip.latent_shape.height, ranks))
    plan = _plan(clip, max(bands))
    run = StreamRun(Axis.TIME, clip.pieces(clip.grid[0], plan.chunk), plan.steps, plan.prefetch, _MACHINE)
    rate = tflops * 1e12 / 2  # multiply-adds per second
    exchanges = [make_exchange(clip, run, bands, rank) for rank in range(min(ranks, 2))]
    return Run(
        bands=bands,
        busiest=max(exchanges, key=lambda exchange: exchange.sent_bytes),
        seconds=clip.spec.multiply_adds(clip.grid) / rate,
        band_seconds=clip.spec.multiply_adds(clip.grid, band_grid(clip, max(bands))[1]) / rate,
        memory=_memory(clip, max(bands), plan),
        winograd=_winograd_share(clip, max(bands), run),
    )


def _winograd_share(clip: Clip, rows: int, run: StreamRun) -> float:
    """Return the share of a band's operations in steps that Metal computes with its Winograd kernel."""
    fast = total = 0
    band = band_grid(clip, rows)
    for (layer, extents), pieces in zip(clip.spec.walk(band), layer_pieces(clip.spec, clip.grid, run), strict=False):
        work = layer.multiply_adds(extents, extents)
        total += work
        if isinstance(layer, ConvSpec):
            frames = sorted(pieces)[len(pieces) // 2]  # of most steps: those at the ends of the clip are shorter
            shape = ConvShape((frames, *extents[1:]), layer.in_channels, layer.conv_channels)
            is_joined = layer.rule(shape, Backend.METAL) is Formulation.JOINED
            fast += work * (is_joined and winograd_elements(shape) > 0)
    return fast / total


def _memory(clip: Clip, rows: int, plan: DecodePlan) -> float:
    """Return the plan's peak for a band, with two more rows in the layers with the largest activations."""
    memory = plan.memory.active - plan.memory.weights
    if rows == clip.latent_shape.height:
        return memory
    taller = _plan(clip, rows + 1).memory
    widest = max(clip.spec.walk(clip.grid), key=lambda pair: pair[0].in_channels * math.prod(pair[1]))[1]
    return memory + 2 * clip.grid[1] / widest[1] * (taller.active - taller.weights - memory)


def _plan(clip: Clip, rows: int) -> DecodePlan:
    shape = clip.latent_shape._replace(height=rows)
    return plan_decode(clip.spec, shape, _MACHINE, PlanOptions(mode="exact", order="time"))


def _make_clip(spec: NetworkSpec, width: int, height: int, frames: int) -> Clip:
    video = (frames, height, width)
    shape = LatentShape(1, spec.in_channels, *spec.scale.latent_grid(video))
    return Clip(spec, 1, shape.grid, shape, video, is_decode=True)


def _sized(clips: Sequence[Clip]) -> zip:
    return zip(_VIDEOS, clips, strict=True)


def _size_table(clip: Clip, tflops: float) -> str:
    rows = []
    for ranks in _RANKS:
        run = simulate(clip, ranks, tflops)
        sent = run.busiest
        cells = {
            "ranks": str(ranks),
            "rows": str(max(run.bands)) if min(run.bands) == max(run.bands) else f"{max(run.bands)}, {min(run.bands)}",
            "MB": f"{sent.bytes_per_latent_frame / MB:.1f}" if ranks > 1 else "0",
            "messages": f"{sent.messages_per_latent_frame:.0f}",
            "GB": f"{run.memory / GB:.2f}",
            "Winograd": f"{100 * run.winograd:.0f} %",
        }
        for link in LINKS:
            cells[link.name] = (
                f"{run.speed_up(link):.2f} ({run.overlapped(link):.2f}), {100 * run.share(link):.0f} %"
                if ranks > 1
                else "1"
            )
        rows.append(cells)
    return f"One rank computes for {run.seconds:.1f} s.\n\n{table(rows)}"


def _limits(clip: Clip, tflops: float) -> dict[str, str]:
    runs = [simulate(clip, ranks, tflops) for ranks in range(1, clip.latent_shape.height + 1)]
    return {link.name: ", ".join(_limit(runs, link, share) for share in _WORTH) for link in LINKS}


def _limit(runs: Sequence[Run], link: Link, worth: float) -> str:
    most = [run for run in runs if run.speed_up(link) >= worth * len(run.bands)][-1]
    return f"{len(most.bands)} ({max(most.bands)})"
