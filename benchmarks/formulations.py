"""Gain of the package's convolutions over plain MLX, where every convolution is one `mx.conv3d`."""

from dataclasses import replace

from benchmarks.measuring import Case, Job, Run, decode, encode, format_ratios, median, table

#: Base width, width, height and frames.
_DECODES = ((32, 768, 512, 17), (64, 256, 256, 57), (128, 384, 256, 9), (32, 256, 256, 57), (32, 192, 128, 97))
_ENCODE = (32, 768, 512, 17)
#: Frames of growing size, for the cost per pixel.
_GROWING = ((256, 256), (512, 512), (1024, 768), (1920, 1088))
_GROWING_WIDTH, _GROWING_FRAMES = 16, 25


def formulation_jobs() -> list[Job]:
    """Each case with `mx.conv3d` and with the package's rules; then growing frames."""
    jobs = []
    for measure, cases in ((decode, _DECODES), (encode, (_ENCODE,))):
        for base_width, width, height, frames in cases:
            case = Case(base_width=base_width, width=width, height=height, frames=frames)
            jobs += [Job(measure, replace(case, formulation="conv3d")), Job(measure, case)]
    growing = (
        Case(base_width=_GROWING_WIDTH, width=width, height=height, frames=_GROWING_FRAMES)
        for width, height in _GROWING
    )
    return jobs + [Job(decode, case) for case in growing]


def formulation_table(results: list[list[Run]]) -> str:
    """Markdown tables."""
    count = 2 * (len(_DECODES) + 1)
    rows = []
    for before, after in zip(results[:count:2], results[1:count:2], strict=True):
        run = after[0]
        seconds = [median(runs, "seconds") for runs in (before, after)]
        peaks = [max(run["peak_bytes"] for run in runs) for runs in (before, after)]
        rows.append(
            {
                "": run["task"],
                "base width": str(run["base_width"]),
                "size": f"{run['width']}x{run['height']}",
                "frames": str(run["frames"]),
                "time": format_ratios("seconds", after, before),
                "peak": f"{peaks[1] / peaks[0]:.2f}",
                "seconds": f"{seconds[0]:.1f} -> {seconds[1]:.1f}",
                "MB": f"{peaks[0] / 1e6:.0f} -> {peaks[1] / 1e6:.0f}",
            }
        )
    costs = {
        (run["width"], run["height"]): median(runs, "seconds") / (run["frames"] * run["width"] * run["height"])
        for runs in results[count:]
        for run in runs[:1]
    }
    growth = [
        {
            "size": f"{width}x{height}",
            "microseconds per pixel and frame": f"{cost * 1e6:.2f}",
            "of the least": f"{cost / min(costs.values()):.2f}",
        }
        for (width, height), cost in costs.items()
    ]
    notes = [
        f"Medians of {len(results[0])} fresh processes in turns; peaks without the weights.",
        "Relative to plain MLX: every convolution one mx.conv3d.",
    ]
    return f"{table(rows, notes)}\n\n{table(growth, [f'Base width {_GROWING_WIDTH}, {_GROWING_FRAMES} frames.'])}"
