"""Memory over time and time per way to decode, as a picture: `bench --plot`."""

import os
from typing import TYPE_CHECKING, Any

from ..errors import LTXVAEError
from .processes import Run
from .samples import Sample
from .tables import GB, MB, median

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which colour-blind people can tell apart.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")

_HEADROOM = 1.05
_LABEL_DISTANCE = 0.06  # of the axes' height
_STEPS = 80  # in which a curve is drawn


def check_plot() -> None:
    """Before anything is measured.

    Raises:
        LTXVAEError: where matplotlib is missing.
    """
    _import_figure()


def draw(runs: list[list[Run]], path: str | os.PathLike) -> None:
    """Draw decodes of one clip to a file.

    Args:
        runs: per case, of tasks DECODE and AGAINST; the first run's samples are drawn, where there are any.
        path: the picture; its ending says the format.

    Raises:
        LTXVAEError: where matplotlib is missing.
    """
    runs = [results for results in runs if "seconds" in results[0]]
    figure = _import_figure()(figsize=(10, 4.2), layout="constrained")
    memory, times = figure.subplots(1, 2, width_ratios=(3, 2))
    colours = dict(zip(map(_name, runs), _COLOURS * len(runs), strict=False))
    _draw_memory(memory, runs, colours)
    _draw_times(times, runs, colours)
    run = runs[0][0]
    title = f"Decoding {run['frames']} frames of {run['width']}x{run['height']}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    figure.savefig(path, dpi=150)


def _import_figure() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise LTXVAEError(
            'a plot takes matplotlib, which is not installed; its extra brings it: pip install "mlx_ltx_vae[plot]".'
        ) from None
    return Figure


def _draw_memory(axes: "Axes", runs: list[list[Run]], colours: dict[str, str]) -> None:
    """What is in use over time, above what was held before; each named beside the axes, at the height of its peak."""
    sampled = sorted((results[0] for results in runs if "samples" in results[0]), key=lambda run: run["peak_bytes"])
    most = max(run["peak_bytes"] for run in sampled)
    unit, name, digits = (GB, "GB", 2) if most >= GB else (MB, "MB", 0)
    top = _HEADROOM * most / unit
    heights = spread([run["peak_bytes"] / unit / top for run in sampled], _LABEL_DISTANCE)
    for run, height in zip(sampled, heights, strict=True):
        held = run["total_peak_bytes"] - run["peak_bytes"]
        seconds, values = highest(run["samples"], _STEPS)
        colour, label = colours[_name([run])], f"{_name([run])}, peak {run['peak_bytes'] / unit:.{digits}f} {name}"
        axes.plot(seconds, [max(0, value - held) / unit for value in values], color=colour, linewidth=1.5)
        axes.text(1.02, height, label, transform=axes.transAxes, color=colour, fontsize=9, va="center")
    axes.set(xlabel="seconds", ylabel=f"{name} in use, without weights and latents", xlim=(0, None), ylim=(0, top))
    _tidy(axes)


def highest(samples: list[Sample], steps: int) -> tuple[list[float], list[int]]:
    """Seconds and the most that was in use about then, in as many steps of time: it falls between any two layers."""
    length = samples[-1][0] / steps
    most: dict[int, int] = {}
    for seconds, active, _ in samples:
        step = min(int(seconds / length), steps - 1)
        most[step] = max(active, most.get(step, 0))
    return [(step + 0.5) * length for step in most], list(most.values())


def spread(heights: list[float], distance: float) -> list[float]:
    """Heights in rising order, moved so far that none is nearer than `distance` to the one below it."""
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + distance) if placed else height)
    return placed


def _draw_times(axes: "Axes", runs: list[list[Run]], colours: dict[str, str]) -> None:
    """A bar for each, as a ratio to the single pass where it was measured, else to the first."""
    reference = next((results for results in runs if results[0]["mode"] == "single"), runs[0])
    names = [_name(results) for results in runs]
    ratios = [median(results, "seconds") / median(reference, "seconds") for results in runs]
    bars = axes.barh(names, ratios, color=[colours[name] for name in names])
    axes.bar_label(bars, [f"{ratio:.2f}" for ratio in ratios], padding=3, fontsize=9)
    axes.invert_yaxis()
    axes.set(xlabel=f"time, {_name(reference)} = 1", xlim=(0, 1.15 * max(ratios)))
    axes.tick_params(axis="y", length=0)
    _tidy(axes)


def _tidy(axes: "Axes") -> None:
    axes.spines[["top", "right"]].set_visible(False)


def _name(results: list[Run]) -> str:
    """What to call a case, in the picture."""
    run = results[0]
    order = f", by {run['order']}" if run["mode"] == "exact" and run["order"] not in ("time", "auto") else ""
    batch = f", {run['tile_batch_size']} at a time" if run["tile_batch_size"] > 1 else ""
    return f"{run['mode']}{order}{batch}"
