"""What half precision costs and gives: `bench --precision`."""

from dataclasses import asdict, replace
from typing import Any

import mlx.core as mx

from .. import demo
from ..vae import DTYPES
from .case import Case, Task
from .processes import Run
from .quality import Difference, difference
from .subject import Decode
from .tables import MB, markdown, median

_REFERENCE = "float32"


def precision_cases(base: Case) -> list[Case]:
    """Decodes in every precision, and comparisons with float32 of the same weights and of the demo's."""
    others = [dtype for dtype in DTYPES if dtype != _REFERENCE]
    compared = replace(base, task=Task.PRECISION)
    of_demo = replace(compared, model=str(demo.VAE), latents=str(demo.LATENTS))
    decodes = [replace(base, dtype=dtype) for dtype in (_REFERENCE, *others)]
    return decodes + [replace(case, dtype=dtype) for dtype in others for case in (compared, of_demo)]


def precision(case: Case) -> dict[str, Any]:
    """Decode in `case.dtype` and in float32, from the same weights and latents.

    Returns:
        psnr and largest, see `Difference`.
    """
    reference, other = (_decode(replace(case, dtype=dtype)) for dtype in (_REFERENCE, case.dtype))
    return asdict(difference(other, reference))


def _decode(case: Case) -> mx.array:
    subject = Decode.of(case)
    pixels = subject.vae.decode(subject.latents, subject.plan).astype(mx.float32)
    mx.eval(pixels)
    return pixels


def precision_table(runs: list[list[Run]]) -> str:
    """As a Markdown table: times as ratios to float32."""
    decodes = {results[0]["dtype"]: results for results in runs if results[0]["task"] == Task.DECODE.value}
    compared = {
        (run["dtype"], run["latents"] is not None): str(Difference(run["psnr"], run["largest"]))
        for (run, *_) in runs
        if run["task"] == Task.PRECISION.value
    }
    reference = median(decodes[_REFERENCE], "seconds")
    rows = []
    for dtype, results in decodes.items():
        rows.append(
            [
                dtype,
                f"{median(results, 'seconds') / reference:.2f}",
                f"{max(run['peak_bytes'] for run in results) / MB:.0f}",
                f"{results[0]['weights_bytes'] / MB:.0f}",
                *(compared.get((dtype, is_demo), "reference") for is_demo in (True, False)),
            ]
        )
    run = decodes[_REFERENCE][0]
    weights = "these weights" if run["model"] else "random weights"
    head = ["dtype", "time", "peak MB", "weights MB", "PSNR, demo VAE", f"PSNR, {weights}"]
    notes = [
        "",
        f"time: a ratio to float32's. Mode {run['mode']}, {run['frames']} frames of {run['width']}x{run['height']}; "
        f"medians of {len(decodes[_REFERENCE])} fresh processes; peaks are the largest, without the weights.",
    ]
    return "\n".join([markdown(head, rows), *notes])
