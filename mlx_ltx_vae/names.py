"""The words that arguments accept, as types: an editor completes them, and a type checker finds those with a typo."""

from typing import Literal

DtypeName = Literal["float32", "bfloat16", "float16"]
ModeName = Literal["auto", "exact", "single", "tiled"]
OrderName = Literal["auto", "time", "rows", "columns"]
ConventionName = Literal["ltx-video", "diffusers"]
BitDepth = Literal[8, 10]
