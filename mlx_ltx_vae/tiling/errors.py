"""The error of this room."""

from ..errors import PlanError


class TilingError(PlanError, ValueError):
    """Tiles that cannot be had. Also a ValueError, which is what apps that bring their own decoder catch."""
