"""Memory over time and time per mode as a picture."""

from typing import TYPE_CHECKING

from ..backend.device import backend
from ..errors import LTXVAEError
from ..units import MB
from .processes import Run
from .tables import median

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
    """Draw the decodes of one video, given the runs of each case: the samples of the first as a curve, times as bars.

    Times are ratios to the first case.
    """
    from matplotlib import style

    with style.context("tableau-colorblind10"):
        memory, times = figure.subplots(1, 2, width_ratios=(3, 2))
        reference = median(results[0], "seconds")
        for runs in results:
            run, ratio = runs[0], median(runs, "seconds") / reference
            (bar,) = times.barh([_name(run)], [ratio])
            times.annotate(f" {ratio:.2f}", (ratio, bar.get_y() + bar.get_height() / 2), va="center", fontsize=9)
            if "samples" in run:
                seconds, active, _ = zip(*run["samples"], strict=True)
                held = run["total_peak_bytes"] - run["peak_bytes"]
                heights = [max(0, each - held) / MB for each in active]
                label = f"{_name(run)}, peak {run['peak_bytes'] / MB:.0f} MB"
                memory.plot(seconds, heights, linewidth=1, label=label, color=bar.get_facecolor())
    memory.set(xlabel="seconds", ylabel="MB in use, without weights and latents", xlim=(0, None), ylim=(0, None))
    memory.legend(fontsize=9, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1))
    times.set(xlabel=f"time, {_name(results[0][0])} = 1")
    times.margins(x=0.15)
    times.invert_yaxis()
    run = results[0][0]
    weights = "a checkpoint" if run["model"] else f"{run['generation']} with {run['base_width']} base channels"
    dtype = run["dtype"] or ("its dtype" if run["model"] else "float32")
    video = f"{run['frames']} frames of {run['width']}x{run['height']} decoded by {weights}, {dtype}"
    figure.suptitle(f"{video}, {backend().value} backend", x=0.01, ha="left", fontsize=11)


def _name(run: Run) -> str:
    order = f", by {run['order']}" if run["mode"] == "exact" else ""
    batch = f", {run['tile_batch_size']} at a time" if run["tile_batch_size"] > 1 else ""
    return f"{run['mode']}{order}{batch}"
