"""What a conversion returns."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import mlx.core as mx

from ..dtypes import dtype_name
from .verify import Verification


@dataclass(frozen=True)
class Written:
    """The content of `model.safetensors`: counts of tensors, parameters and bytes, and its dtypes, sorted."""

    tensors: int
    parameters: int
    bytes: int
    dtypes: tuple[str, ...]

    @classmethod
    def of(cls, tensors: Mapping[str, mx.array]) -> "Written":
        """Count tensors. Nothing is evaluated."""
        arrays = tensors.values()
        return cls(
            tensors=len(tensors),
            parameters=sum(array.size for array in arrays),
            bytes=sum(array.nbytes for array in arrays),
            dtypes=tuple(sorted({dtype_name(array.dtype) for array in arrays})),
        )


@dataclass(frozen=True)
class Conversion:
    """A finished conversion.

    Attributes:
        source: the name of the converted checkpoint.
        output: the folder.
        generation: "LTX-2.3", for example.
        networks: "encoder", "decoder" or both.
        written: the content of `model.safetensors`.
        verification: the result of the comparison with the source.
    """

    source: str
    output: str
    generation: str
    networks: tuple[str, ...]
    written: Written
    verification: Verification

    def as_dict(self) -> dict[str, Any]:
        """The conversion as JSON values."""
        return asdict(self)
