"""The configurations of the published generations, for files without metadata."""

from collections.abc import Sequence
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

_ENCODER_2_3 = (
    _res(4), ("compress_space_res", {"multiplier": 2}), _res(6), ("compress_time_res", {"multiplier": 2}), _res(4),
    ("compress_all_res", {"multiplier": 2}), _res(2), ("compress_all_res", {"multiplier": 1}), _res(2),
)  # fmt: skip

#: LTX-2.3 with a decoder of fewer channels.
PRUNA_VAED = "PrunaVAED"

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
        "encoder_blocks": _ENCODER_2_3,
        "decoder_blocks": (
            _res(4), ("compress_space", {"multiplier": 2}), _res(6), ("compress_time", {"multiplier": 2}), _res(4),
            ("compress_all", {"multiplier": 1}), _res(2), ("compress_all", {"multiplier": 2}), _res(2),
        ),
        "spatial_padding_mode": "zeros",
    },
    PRUNA_VAED: {
        "encoder_blocks": _ENCODER_2_3,
        "decoder_blocks": (
            _res(4), ("compress_space", {"multiplier": 2}), _res(6), ("compress_time", {"multiplier": 2}),
            ("res_x_y", {"multiplier": 1.5}), _res(4), ("compress_all", {"multiplier": 1}),
            ("res_x_y", {"multiplier": 4 / 3}), _res(2), ("compress_all", {"multiplier": 2}), _res(2),
        ),
        "decoder_base_channels": 64,
        "spatial_padding_mode": "zeros",
    },
}  # fmt: skip


def name_generation(
    encoder_blocks: Sequence[Any] | None, decoder_blocks: Sequence[Any] | None, has_timestep: bool
) -> str:
    """The generation with these block lists, or "custom". A decoder's list is enough: no two generations share it."""
    if not decoder_blocks:
        return "custom"
    for name, known in GENERATIONS.items():
        encoder, decoder = (known.get(key, known.get("blocks", ())) for key in ("encoder_blocks", "decoder_blocks"))
        is_decoder = _structure(decoder_blocks) == _structure(decoder)
        is_encoder = not encoder_blocks or _structure(encoder_blocks) == _structure(encoder)
        if is_decoder and is_encoder and has_timestep == known.get("timestep_conditioning", False):
            return name
    return "custom"


def _structure(blocks: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(
        (name, options if isinstance(options, int) else options.get("num_layers", 1)) for name, options in blocks
    )
