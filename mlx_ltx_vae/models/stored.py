"""Parts of checkpoints that families read: keys of configurations, and names of latent statistics. No MLX."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import CheckpointError, quote, warn
from .specs import Shapes

#: Names of latent statistics, after the prefix of a network or a VAE.
STATISTICS_PREFIXES = ("per_channel_statistics.", "")


class Key(NamedTuple):
    """Valid values of a key of a configuration, and its meaning if it is missing.

    `rule` says in an error what is valid. A key that is `needed` must be there, and not be null.
    """

    is_valid: Callable[[Any], bool]
    rule: str
    default: Any = None
    is_needed: bool = False


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
    """A whole number from 1 to `high`."""
    return Key(lambda value: is_whole(value, high), f"expected a whole number from 1 to {high}", default)


def flag(default: bool | None) -> Key:
    """True or false."""
    return Key(lambda value: isinstance(value, bool), "expected true or false", default)


def word(default: str | None = None) -> Key:
    """A string."""
    return Key(lambda value: isinstance(value, str), "expected a string", default)


def listing(is_item: Callable[[Any], bool], most: int, what: str) -> Key:
    """A list of 1 to `most` items; `what` says of what, in errors."""
    return Key(lambda value: is_list(value, is_item, most), f"expected a list of {what}")


def grid(high: int, default: Sequence[int] | None = None) -> Key:
    """Three whole numbers from 1 to `high`."""
    return Key(lambda value: is_grid(value, high), f"expected three whole numbers from 1 to {high}", default)


def choice(*known: Any, default: Any = None) -> Key:
    """One of some values."""
    return Key(lambda value: value in known, f"expected {' or '.join(map(repr, known))}", default)


def only(value: Any) -> Key:
    """A key with a single supported value."""
    return Key(lambda given: given == value, f"only {value!r} is supported", value)


def anything(default: Any = None) -> Key:
    """A key whose value is checked elsewhere, or changes nothing."""
    return Key(lambda value: True, "", default)


def needed(key: Key) -> Key:
    """The same key, which must be there."""
    return key._replace(is_needed=True)


def read_config(
    raw: Mapping[str, Any], keys: Mapping[str, Key], what: str, *, refuses_others: bool = True
) -> dict[str, Any]:
    """The values of `keys` in a configuration, defaults included. An invalid value raises a `CheckpointError`.

    With `refuses_others`, an unknown key raises it too, since it could change what the networks compute, unless it is
    switched off or private (`_diffusers_version`). `what` names the configuration in errors.
    """
    values = {}
    for name, key in keys.items():
        values[name] = raw.get(name, key.default)
        if key.is_needed and values[name] is None:
            raise CheckpointError(
                f"{what} has no {name}, without which the same weights may give another result; use the configuration "
                "that came with the weights."
            )
        if name in raw and not key.is_valid(values[name]):
            raise CheckpointError(
                f"{what} has {name} = {quote(values[name])}; {key.rule}; use the configuration that came with the "
                "weights."
            )
    others = raw.keys() - keys.keys() if refuses_others else ()
    for name in sorted(name for name in others if not name.startswith("_")):
        if raw[name]:
            raise CheckpointError(
                f"{what} has the unknown key {quote(name, 40)} = {quote(raw[name])}, which could change the result; "
                "update mlx_ltx_vae, or remove the key if it changes nothing that the VAE computes."
            )
        warn(f"{what} has the unknown key {quote(name)}, which is switched off and ignored.")
    return values


def find_statistics(
    shapes: Shapes, prefixes: Iterable[str], mean_names: Collection[str], std_names: Collection[str]
) -> tuple[str, str] | None:
    """The tensors of the mean and the standard deviation, under the first prefix that has both."""
    for prefix in (prefix + stem for prefix in prefixes for stem in STATISTICS_PREFIXES):
        found = {plain_name(name.removeprefix(prefix)): name for name in shapes if name.startswith(prefix)}
        mean, std = (next((found[name] for name in names if name in found), None) for names in (mean_names, std_names))
        if mean is not None and std is not None:
            return mean, std
    return None


def plain_name(name: str) -> str:
    """One spelling for `mean-of-means`, `_mean_of_means` and `mean_of_means`."""
    return name.lstrip("_").replace("-", "_")
