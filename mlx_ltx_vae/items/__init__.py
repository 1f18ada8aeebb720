"""Inputs of `decode` and `encode`, one or many: who they are, what they become, and how each of them is run."""

from .decode import ItemDecoder, output_options
from .encode import ItemEncoder
from .inputs import Input, is_list, read_inputs
from .item import Item, Result, Runner
from .outputs import all_exist, are_many, check_many, check_outputs, find_pattern, name_items, name_outputs

__all__ = [
    "Input",
    "Item",
    "ItemDecoder",
    "ItemEncoder",
    "Result",
    "Runner",
    "all_exist",
    "are_many",
    "check_outputs",
    "check_many",
    "find_pattern",
    "is_list",
    "name_items",
    "name_outputs",
    "output_options",
    "read_inputs",
]
