"""What half precision costs and gives: time, memory, and the difference to float32."""

from dataclasses import replace

from mlx_ltx_vae.bench.case import Case
from mlx_ltx_vae.bench.decoding import decode
from mlx_ltx_vae.bench.processes import Job, Run
from mlx_ltx_vae.bench.tables import timing_table
from mlx_ltx_vae.dtypes import DTYPES

_REFERENCE = "float32"


def precision_jobs(case: Case, reference: str) -> list[Job]:
    """Decodes in every dtype, compared with float32, whose frames are saved in the file `reference`."""
    return [
        Job(decode, replace(case, dtype=dtype), {"save" if dtype == _REFERENCE else "reference": reference})
        for dtype in sorted(DTYPES, key=lambda dtype: dtype != _REFERENCE)
    ]


def precision_table(results: list[list[Run]]) -> str:
    """Medians; times as ratios to float32."""
    return timing_table(
        results, reference=_REFERENCE, notes=["largest, PSNR: of the 8-bit levels, compared with float32."]
    )
