"""Which family of networks files contain."""

from collections.abc import Sequence
from typing import Any

from ..models import families
from ..models.base import Family, Found
from .files import Archive


def recognize(archives: Sequence[Archive]) -> tuple[Family[Any], list[Found]]:
    """The family of which the archives have the most networks, and what it finds in each of them.

    Among families with as many it is the first in the table, which has none if no family finds any.
    """
    shapes = [{name: info.shape for name, info in archive.tensors.items()} for archive in archives]
    results = [(family, [family.find(each) for each in shapes]) for family in families.FAMILIES]
    return max(results, key=lambda result: len({network for found in result[1] for network in found.networks}))
