"""The configurations of the published generations, for files without metadata."""

from collections.abc import Mapping, Sequence
from typing import Any


def _res(layers: int, **options: Any) -> tuple[str, dict[str, Any]]:
    return ("res_x", {"num_layers": layers, **options})


_ENCODER_0_9_0 = (
    _res(4), ("compress_all", 1), ("res_x_y", 1), _res(3), ("compress_all", 1), ("res_x_y", 1), _res(3),
    ("compress_all", 1), _res(3), _res(4),
)  # fmt: skip
_UP_RESIDUAL = ("compress_all", {"residual": True, "multiplier": 2})
_ENCODER_0_9_5 = (
    _res(4), ("compress_space_res", {"multiplier": 2}), _res(6), ("compress_time_res", {"multiplier": 2}), _res(6),
    ("compress_all_res", {"multiplier": 2}), _res(2), ("compress_all_res", {"multiplier": 2}), _res(2),
)  # fmt: skip
_DECODER_0_9_5 = (_res(5), _UP_RESIDUAL, _res(5), _UP_RESIDUAL, _res(5), _UP_RESIDUAL, _res(5))

#: Configurations by common name, in the format of checkpoint metadata. The metadata of a file takes precedence.
GENERATIONS: dict[str, dict[str, Any]] = {
    "LTX-Video 0.9.0": {"blocks": _ENCODER_0_9_0},
    "LTX-Video 0.9.1": {
        "encoder_blocks": _ENCODER_0_9_0,
        "decoder_blocks": (
            _res(5, inject_noise=True), _UP_RESIDUAL, _res(6, inject_noise=True), _UP_RESIDUAL,
            _res(7, inject_noise=True), _UP_RESIDUAL, _res(8),
        ),
        "timestep_conditioning": True,
    },
    "LTX-Video 0.9.5": {
        "encoder_blocks": _ENCODER_0_9_5,
        "decoder_blocks": _DECODER_0_9_5,
        "timestep_conditioning": True,
    },
    "LTX-2": {"encoder_blocks": _ENCODER_0_9_5, "decoder_blocks": _DECODER_0_9_5},
    "LTX-2.3": {
        "encoder_blocks": (
            _res(4), ("compress_space_res", {"multiplier": 2}), _res(6), ("compress_time_res", {"multiplier": 2}),
            _res(4), ("compress_all_res", {"multiplier": 2}), _res(2), ("compress_all_res", {"multiplier": 1}),
            _res(2),
        ),
        "decoder_blocks": (
            _res(4), ("compress_space", {"multiplier": 2}), _res(6), ("compress_time", {"multiplier": 2}), _res(4),
            ("compress_all", {"multiplier": 1}), _res(2), ("compress_all", {"multiplier": 2}), _res(2),
        ),
        "spatial_padding_mode": "zeros",
    },
}  # fmt: skip


def name_generation(raw: Mapping[str, Any]) -> str:
    """The name of the generation with these block lists, regardless of widths, or "custom"."""
    structure = _structure(raw)
    return next((name for name, known in GENERATIONS.items() if _structure(known) == structure), "custom")


def _structure(raw: Mapping[str, Any]) -> tuple[Any, ...]:
    """The properties that distinguish generations: block names, layer counts and timestep conditioning."""

    def names(blocks: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(
            (name, options if isinstance(options, int) else options.get("num_layers", 1)) for name, options in blocks
        )

    return (
        names(raw.get("encoder_blocks", raw.get("blocks", ()))),
        names(raw.get("decoder_blocks", raw.get("blocks", ()))),
        bool(raw.get("timestep_conditioning", False)),
    )
