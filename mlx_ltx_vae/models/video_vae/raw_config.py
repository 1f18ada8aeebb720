"""Checks the type and the range of every key of a checkpoint's configuration. No MLX."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ...errors import CheckpointError, quote

#: What the configuration of every original checkpoint calls itself.
CLASS_NAME = "CausalVideoAutoencoder"

_MAX_BLOCKS = 100


class _Key(NamedTuple):
    default: Any
    is_valid: Callable[[Any], bool]
    expected: str


def _number(default: int | None, high: int, kind: str = "whole number") -> _Key:
    types = (int,) if kind == "whole number" else (int, float)

    def is_valid(value: Any) -> bool:
        return isinstance(value, types) and not isinstance(value, bool) and 1 <= value <= high

    return _Key(default, is_valid, f"a {kind} from 1 to {high}")


def _flag(default: bool | None) -> _Key:
    return _Key(default, lambda value: isinstance(value, bool), "true or false")


def _is_block_list(value: Any) -> bool:
    return (
        isinstance(value, (list, tuple))
        and 0 < len(value) <= _MAX_BLOCKS
        and all(isinstance(block, (list, tuple)) and len(block) == 2 for block in value)
        and all(isinstance(name, str) and isinstance(options, (int, Mapping)) for name, options in value)
    )


_WORD = _Key(None, lambda value: isinstance(value, str), "a string")
_BLOCKS = _Key(None, _is_block_list, f"a list of 1 to {_MAX_BLOCKS} blocks, each [name, options]")
_KEYS = {
    "latent_channels": _number(128, 4096),
    "patch_size": _number(4, 64),
    "encoder_base_channels": _number(None, 2**16),
    "decoder_base_channels": _number(None, 2**16),
    "timestep_conditioning": _flag(False),
    "causal_decoder": _flag(False),
    "latent_log_var": _WORD._replace(default="uniform"),
    "spatial_padding_mode": _WORD,
    "encoder_spatial_padding_mode": _WORD,
    "decoder_spatial_padding_mode": _WORD,
    "blocks": _BLOCKS,
    "encoder_blocks": _BLOCKS,
    "decoder_blocks": _BLOCKS,
}
_BLOCK_OPTIONS = {
    "num_layers": _number(1, 256),
    "multiplier": _number(None, 64, "number"),
    "out_channels": _number(None, 2**20),
    "residual": _flag(None),
    "inject_noise": _flag(False),
    "attention_head_dim": _number(None, 2**16),
}

# Keys with a single supported value, which every published checkpoint has. This excludes group norm: it is an option of
# ltx-core that no checkpoint uses, and a norm over the whole clip cannot be streamed.
_FIXED = {
    "_class_name": CLASS_NAME,
    "dims": 3,
    "in_channels": 3,
    "out_channels": 3,
    "scaling_factor": 1.0,
    "use_quant_conv": False,
    "normalize_latent_channels": False,
    "norm_layer": "pixel_norm",
    "causal_encoder": True,
}
# Keys of other programs that do not change what the networks compute.
_WITHOUT_EFFECT = {
    "norm_num_groups", "latents_mean", "latents_std", "ltx_variant", "condition_encoder_subdir",
    "spatial_compression_ratio", "temporal_compression_ratio", "double_z", "latent_log_var_value",
}  # fmt: skip


def check_config(raw: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The known keys of a configuration with their values, defaults included. Refuses whatever is not known."""
    check_fixed(raw, _FIXED, source)
    for key in sorted(raw.keys() - _FIXED.keys() - _KEYS.keys() - _WITHOUT_EFFECT):
        if key.startswith("_"):
            continue
        if raw[key]:
            raise unknown_key(f"{source}: its configuration", key, raw[key])
        warnings.warn(
            f"{source}: the unknown configuration key {quote(key)} is switched off and ignored.", stacklevel=4
        )
    return _check(raw, _KEYS, f"{source}: its configuration")


def check_fixed(raw: Mapping[str, Any], fixed: Mapping[str, Any], source: str) -> None:
    """Refuse another value of a key than the one that is supported."""
    for key, expected in fixed.items():
        if raw.get(key, expected) != expected:
            raise CheckpointError(
                f"{source}: its configuration has {key} = {quote(raw[key])}; only {expected!r} is supported."
            )


def unknown_key(what: str, key: str, value: Any) -> CheckpointError:
    """The error of a key that could change what the networks compute. `what` names the configuration."""
    return CheckpointError(
        f"{what} has the unknown key {quote(key, 40)} = {quote(value)}, which could change the result; update "
        "mlx_ltx_vae, or remove the key if it changes nothing that the VAE computes."
    )


def check_block(name: str, options: Any, source: str) -> dict[str, Any]:
    """The options of a block with their values, defaults included. A number stands for `num_layers`."""
    given = options if isinstance(options, Mapping) else {"num_layers": options}
    if unknown := sorted(given.keys() - _BLOCK_OPTIONS.keys()):
        raise unknown_key(f"{source}: block {quote(name)}", unknown[0], given[unknown[0]])
    return _check(given, _BLOCK_OPTIONS, f"{source}: block {quote(name)}")


def _check(raw: Mapping[str, Any], keys: Mapping[str, _Key], what: str) -> dict[str, Any]:
    checked = {}
    for name, key in keys.items():
        checked[name] = raw.get(name, key.default)
        if name in raw and not key.is_valid(raw[name]):
            raise CheckpointError(f"{what} has {name} = {quote(raw[name])}; expected {key.expected}.")
    return checked
