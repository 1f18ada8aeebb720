"""Which family of networks files contain."""

from collections.abc import Sequence
from typing import Any

from ..models import families
from ..models.base import Family, Found
from .files import Archive


def recognize(archives: Sequence[Archive]) -> tuple[Family[Any], list[Found]]:
    """The family of which the archives have the most networks, and what it finds in each of them.

    Among families with as many it is the first in the table. It finds nothing if no family finds anything.
    """
    shapes = [{name: info.shape for name, info in archive.tensors.items()} for archive in archives]
    results = [(family, [family.find(each) for each in shapes]) for family in families.FAMILIES]
    return max(results, key=lambda result: _count(result[1]))


def _count(found: Sequence[Found]) -> tuple[int, int]:
    """The number of networks, then that of unsupported ones."""
    return len({name for part in found for name in part.networks}), sum(len(part.unsupported) for part in found)
