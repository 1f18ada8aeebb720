"""Memory over time and time per mode as a picture."""

from typing import TYPE_CHECKING

from ..backend.device import backend
from ..errors import LTXVAEError
from ..units import byte_unit
from .processes import Run
from .tables import median

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colors, which color-blind people can tell apart.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def new_figure() -> "Figure":
    """An empty picture. Raises `LTXVAEError` if matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise LTXVAEError(
            'a plot needs matplotlib, which is not installed; install it with: pip install "mlx_ltx_vae[plot]".'
        ) from None
    return Figure(figsize=(10, 4.2), layout="constrained")


def draw(figure: "Figure", results: list[list[Run]]) -> None:
    """Draw the decodes of one video, given the runs of each case. The samples of a case's first run become a curve."""
    memory, times = figure.subplots(1, 2, width_ratios=(3, 2))
    colors = dict(zip((_name(runs[0]) for runs in results), _COLORS * len(results), strict=False))
    _draw_memory(memory, [runs[0] for runs in results if "samples" in runs[0]], colors)
    _draw_times(times, results, colors)
    for axes in (memory, times):
        axes.spines[["top", "right"]].set_visible(False)
    run = results[0][0]
    weights = "a checkpoint" if run["model"] else f"{run['generation']} with {run['base_width']} base channels"
    video = f"{run['frames']} frames of {run['width']}x{run['height']}"
    dtype = run["dtype"] or ("its dtype" if run["model"] else "float32")
    title = f"{video} decoded by {weights}, {dtype}, {backend().value} backend"
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)


def _draw_memory(axes: "Axes", runs: list[Run], colors: dict[str, str]) -> None:
    """Bytes in use over time, beyond those in use before."""
    unit, name, digits = byte_unit(max(run["peak_bytes"] for run in runs))
    for run in sorted(runs, key=lambda run: -run["peak_bytes"]):
        held = run["total_peak_bytes"] - run["peak_bytes"]
        seconds, active, _ = zip(*run["samples"], strict=True)
        label = f"{_name(run)}, peak {run['peak_bytes'] / unit:.{digits}f} {name}"
        heights = [max(0, each - held) / unit for each in active]
        axes.plot(seconds, heights, color=colors[_name(run)], linewidth=1, label=label)
    axes.set(xlabel="seconds", ylabel=f"{name} in use, without weights and latents", xlim=(0, None))
    axes.set_ylim(0, axes.get_ylim()[1] * (1 + 0.08 * len(runs)))  # the legend is above the curves
    axes.legend(fontsize=9, frameon=False, loc="upper left")


def _draw_times(axes: "Axes", results: list[list[Run]], colors: dict[str, str]) -> None:
    """A bar for each case, as a ratio to the first case."""
    seconds = {_name(runs[0]): median(runs, "seconds") for runs in results}
    reference = next(iter(seconds))
    ratios = [each / seconds[reference] for each in seconds.values()]
    bars = axes.barh(list(seconds), ratios, color=[colors[name] for name in seconds])
    axes.bar_label(bars, [f"{ratio:.2f}" for ratio in ratios], padding=3, fontsize=9)
    axes.invert_yaxis()
    axes.set(xlabel=f"time, {reference} = 1", xlim=(0, 1.15 * max(ratios)))
    axes.tick_params(axis="y", length=0)


def _name(run: Run) -> str:
    order = f", by {run['order']}" if run["mode"] == "exact" else ""
    batch = f", {run['tile_batch_size']} at a time" if run["tile_batch_size"] > 1 else ""
    return f"{run['mode']}{order}{batch}"
