"""Row bands of a plan, for the processes of a group."""

from typing import TYPE_CHECKING

import mlx.core as mx

from ..errors import PlanError
from ..planning.plan import Plan

if TYPE_CHECKING:
    from ..distributed.row_bands import RowBands


def make_bands(group: mx.distributed.Group | None, plan: Plan) -> "RowBands | None":
    """This process's view of the bands of a plan; None without bands. All ranks must have the same plan."""
    ranks = 1 if group is None else group.size()
    planned = max(1, len(plan.bands))
    if planned != ranks:
        raise PlanError(f"the plan was made for {planned} ranks, and the group has {ranks}; plan with ranks={ranks}.")
    if group is None or ranks == 1:
        return None
    from ..distributed.agreement import check_same  # not imported where one process works alone
    from ..distributed.row_bands import RowBands

    lengths = [band.length for band in plan.bands]
    steps = [list(plan.latent_shape), plan.num_frames, plan.chunk, list(plan.steps), plan.prefetch]
    check_same(group, {"the plans": [steps, lengths]})
    return RowBands(group, lengths)
