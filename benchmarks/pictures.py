"""The pictures of the README and of docs/, decoded from the demo clip."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import imageio.v3 as iio
import numpy as np
from matplotlib.figure import Figure

from benchmarks.against import decode_as_ports
from benchmarks.measuring import Case, Job, decode, run_job
from examples.preview_while_denoising import DEMO_PREVIEW, STEPS, Previews, denoise
from mlx_ltx_vae import PreviewVAE, demo, load_latents
from mlx_ltx_vae.units import MB
from mlx_ltx_vae.video import open_sink

_GIF_STEP = 2  # every second frame, at half the rate: half the size
_TILES = "256:32,16"  # what ltx-2-mlx takes for the smallest of budgets
_CROP = (136, 190)  # height and width, which are shown at twice their size
_GRID = 8


def draw_pictures(folder: Path) -> list[str]:
    """Write demo.gif, the clip; tiles.png, tiles against the exact decode; previews.png. Returns their names."""
    case = Case(model=str(demo.VAE), latents=str(demo.LATENTS), dtype="float32")
    jobs = {
        "a single pass": Job(decode, replace(case, mode="single")),
        "tiles": Job(decode_as_ports, replace(case, mode="ports", tiles=_TILES)),
        "exact, streamed": Job(decode, replace(case, mode="exact")),
    }
    clips, peaks = {}, {}
    with tempfile.TemporaryDirectory() as results:
        for name, job in jobs.items():
            path = Path(results) / f"{name}.npy"
            peaks[name] = run_job(replace(job, options={"save": str(path)}))["total_peak_bytes"]
            clips[name] = np.load(path)
    single, tiles, exact = clips.values()
    if not np.array_equal(single, exact):
        raise AssertionError("the exact decode differs from the single pass")
    with open_sink(folder / "demo.gif", size=(exact.shape[2], exact.shape[1]), fps=24 / _GIF_STEP) as gif:
        gif.write(exact[::_GIF_STEP])
    _draw_tiles(tiles, exact, peaks, folder / "tiles.png")
    _draw_previews(folder / "previews.png")
    return ["demo.gif", "tiles.png", "previews.png"]


def find_crop(frames: np.ndarray, reference: np.ndarray, size: Sequence[int] = _CROP) -> tuple[int, slice, slice]:
    """Find the frame, the rows and the columns of the crop in which two clips (F, H, W, 3) of uint8 differ most."""
    square = np.square(frames.astype(np.float32) - reference).mean(axis=-1)
    sums = np.pad(square, ((0, 0), (1, 0), (1, 0))).cumsum(axis=1).cumsum(axis=2)  # of all pixels above and left
    rows, columns = size
    boxes = (
        sums[:, rows:, columns:] - sums[:, :-rows, columns:] - sums[:, rows:, :-columns] + sums[:, :-rows, :-columns]
    )
    boxes = boxes[:, ::_GRID, ::_GRID]
    frame, row, column = (int(index) for index in np.unravel_index(boxes.argmax(), boxes.shape))
    row, column = _GRID * row, _GRID * column
    return frame, slice(row, row + rows), slice(column, column + columns)


def _draw_tiles(tiles: np.ndarray, exact: np.ndarray, peaks: dict[str, int], path: Path) -> None:
    """Draw the crop in which tiles differ most next to the exact decode, and bars of memory below."""
    crop = find_crop(tiles, exact)
    figure = Figure(layout="constrained")
    figure.set_size_inches(9, 5.2)
    places = figure.add_gridspec(2, 2, height_ratios=(3.7, 1.2))
    size, _, frames = _TILES.partition(",")
    titles = (
        f"tiles of {size.partition(':')[0]} px and {frames} frames, at a seam",
        "exact, streamed: equal to a single pass",
    )
    for column, (clip, title) in enumerate(zip((tiles, exact), titles, strict=True)):
        axis = figure.add_subplot(places[0, column])
        axis.imshow(clip[crop], interpolation="nearest")
        axis.set_title(title, fontsize=12)
        axis.set_axis_off()
    bars = figure.add_subplot(places[1, :])
    drawn = bars.barh(list(peaks), [peak / MB for peak in peaks.values()], color=("#999999", "#d55e00", "#0072b2"))
    bars.bar_label(drawn, [f" {peak / MB:.0f} MB" for peak in peaks.values()])
    bars.set_title(
        f"peak memory of MLX in float32: {len(exact)} frames of {exact.shape[2]}x{exact.shape[1]}, weights included",
        fontsize=12,
    )
    bars.invert_yaxis()
    bars.margins(x=0.12)
    bars.xaxis.set_visible(False)
    bars.spines[["top", "right", "bottom"]].set_visible(False)
    figure.savefig(path, dpi=100)


def _draw_previews(path: Path) -> None:
    """Pictures that `examples/preview_while_denoising.py` shows after some of its steps."""
    figure = Figure(layout="constrained")
    figure.set_size_inches(7.2, 5.2)
    with tempfile.TemporaryDirectory() as results:
        projection, vae = (PreviewVAE.from_pretrained(file) for file in (demo.LATENT_RGB, DEMO_PREVIEW))
        previews = Previews(projection, vae, Path(results), is_stale=lambda: False)
        denoise(load_latents(demo.LATENTS)[0], previews.after_step)
        for axis, step in zip(figure.subplots(3, 1), (1, 3, STEPS - 1), strict=True):
            axis.imshow(iio.imread(Path(results) / f"step-{step}.png"))
            axis.set_title(f"after step {step + 1} of {STEPS}", fontsize=10)
            axis.set_axis_off()
    figure.savefig(path, dpi=80)
