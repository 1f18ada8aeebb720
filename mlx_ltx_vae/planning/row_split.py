"""Splits the latent rows of a picture into bands, one per rank. No MLX."""

from ..errors import PlanError
from ..tiling.intervals import Interval


def split_rows(rows: int, ranks: int) -> tuple[Interval, ...]:
    """Bands of latent rows, from top to bottom, as even as possible; larger ones come first.

    Raises:
        PlanError: if there are more ranks than rows.
    """
    if not 1 <= ranks <= rows:
        raise PlanError(f"{ranks} ranks cannot share {rows} latent rows; use at most {rows} ranks, or mode batch.")
    size, larger = divmod(rows, ranks)
    starts = [rank * size + min(rank, larger) for rank in range(ranks + 1)]
    return tuple(Interval(start, end) for start, end in zip(starts, starts[1:], strict=False))
