"""Row bands of a plan, for the processes of a group."""

from typing import TYPE_CHECKING

import mlx.core as mx

from ..errors import PlanError
from ..planning.plan import Plan

if TYPE_CHECKING:
    from ..distributed.row_bands import RowBands


def make_bands(group: mx.distributed.Group | None, plan: Plan) -> "RowBands | None":
    """This process's view of the bands of a plan; None without bands.

    Raises:
        PlanError: if the plan was made for another number of ranks.
    """
    ranks = 1 if group is None else group.size()
    planned = max(1, len(plan.bands))
    if planned != ranks:
        raise PlanError(f"the plan was made for {planned} ranks, and the group has {ranks}; plan with ranks={ranks}.")
    if group is None or ranks == 1:
        return None
    from ..distributed.row_bands import RowBands  # not imported where one process works alone

    return RowBands(group, [band.length for band in plan.bands])
