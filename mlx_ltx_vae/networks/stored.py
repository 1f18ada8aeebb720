"""Parts of checkpoints that families read: keys of configurations and names of latent statistics. No MLX."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import CheckpointError, quote, warn
from .specs import Shapes

#: Prefixes of the names of latent statistics, after the prefix of a network or a VAE.
STATISTICS_PREFIXES = ("per_channel_statistics.", "")


class Key(NamedTuple):
    """Valid values of a key of a configuration, and its meaning if it is missing.

    `rule` says in an error which values are valid. A configuration must have a key with `is_needed`, and it must not be
    null.
    """

    is_valid: Callable[[Any], bool]
    rule: str
    default: Any = None
    is_needed: bool = False


#: A key whose value is a string, and one whose value is checked elsewhere, or changes nothing.
WORD = Key(lambda value: isinstance(value, str), "expected a string")
ANYTHING = Key(lambda value: True, "")


def is_whole(value: Any, high: int) -> bool:
    """Return whether a value is a whole number from 1 to `high`."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= high


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < math.inf


def is_list(value: Any, is_item: Callable[[Any], bool], most: int) -> bool:
    """Return whether a value is a list of 1 to `most` items."""
    return isinstance(value, (list, tuple)) and 0 < len(value) <= most and all(map(is_item, value))


def is_grid(value: Any, high: int) -> bool:
    """Return whether a value is a list of three whole numbers from 1 to `high`."""
    return is_list(value, lambda extent: is_whole(extent, high), 3) and len(value) == 3


def whole(high: int, default: int | None = None) -> Key:
    """Return a key whose value is a whole number from 1 to `high`."""
    return Key(lambda value: is_whole(value, high), f"expected a whole number from 1 to {high}", default)


def flag(default: bool | None) -> Key:
    """Return a key whose value is true or false."""
    return Key(lambda value: isinstance(value, bool), "expected true or false", default)


def listing(is_item: Callable[[Any], bool], most: int, noun: str) -> Key:
    """Return a key whose value is a list of 1 to `most` items, which are `noun` in errors."""
    return Key(lambda value: is_list(value, is_item, most), f"expected a list of {noun}")


def grid(high: int, default: Sequence[int] | None = None) -> Key:
    """Return a key whose value is a list of three whole numbers from 1 to `high`."""
    return Key(lambda value: is_grid(value, high), f"expected three whole numbers from 1 to {high}", default)


def choice(*values: Any, default: Any = None) -> Key:
    """Return a key with several supported values."""
    return Key(lambda value: value in values, f"expected {' or '.join(map(repr, values))}", default)


def only(default: Any) -> Key:
    """Return a key with a single supported value, which is also its default."""
    return Key(lambda value: value == default, f"only {default!r} is supported", default)


def needed(key: Key) -> Key:
    """Return the same key, which a configuration must have."""
    return key._replace(is_needed=True)


def read_config(
    raw: Mapping[str, Any], keys: Mapping[str, Key], subject: str, *, refuses_others: bool = True
) -> dict[str, Any]:
    """Return the values of `keys` in a configuration, with defaults; raise a `CheckpointError` for an invalid value.

    With `refuses_others`, an unknown key raises it too, since it could change what the networks compute, unless it is
    switched off or private (`_diffusers_version`). `subject` names the configuration in errors.
    """
    values = {}
    for name, key in keys.items():
        values[name] = raw.get(name, key.default)
        if key.is_needed and values[name] is None:
            raise CheckpointError(
                f"{subject} has no {name}, without which the same weights may give another result; use the "
                "configuration that came with the weights."
            )
        if name in raw and not key.is_valid(values[name]):
            raise CheckpointError(
                f"{subject} has {name} = {quote(values[name])}; {key.rule}; use the configuration that came with the "
                "weights."
            )
    unknown_keys = raw.keys() - keys.keys() if refuses_others else ()
    for name in sorted(name for name in unknown_keys if not name.startswith("_")):
        if raw[name]:
            raise CheckpointError(
                f"{subject} has the unknown key {quote(name, 40)} = {quote(raw[name])}, which could change the result; "
                "update mlx_ltx_vae, or remove the key if it changes nothing that the VAE computes."
            )
        warn(f"{subject} has the unknown key {quote(name)}, which is switched off and ignored.")
    return values


def find_statistics(
    shapes: Shapes, prefixes: Iterable[str], mean_names: Collection[str], std_names: Collection[str]
) -> tuple[str, str] | None:
    """Return the tensors of the mean and the standard deviation, under the first prefix that has both.

    Returns `None` if no prefix has both.
    """
    for prefix in (prefix + stem for prefix in prefixes for stem in STATISTICS_PREFIXES):
        tensors = {plain_name(name.removeprefix(prefix)): name for name in shapes if name.startswith(prefix)}
        mean, std = (
            next((tensors[name] for name in names if name in tensors), None) for names in (mean_names, std_names)
        )
        if mean is not None and std is not None:
            return mean, std
    return None


def plain_name(name: str) -> str:
    """Return one spelling for `mean-of-means`, `_mean_of_means` and `mean_of_means`."""
    return name.lstrip("_").replace("-", "_")
