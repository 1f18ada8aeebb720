"""The names of weight files: which of them belong together, and which of them are the video VAE's.

A set of weights is one file; several shards; or an index that names its shards. diffusers also writes variants of a
set, which differ in dtype:

    model.safetensors               model.fp16.safetensors
    model-00001-of-00002.safetensors  model.fp16-00001-of-00002.safetensors, model-00001-of-00002.fp16.safetensors
    model.safetensors.index.json    model.safetensors.index.fp16.json, model.fp16.safetensors.index.json
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

CONFIG_NAMES = ("config.json", "embedded_config.json")

#: The files of one set: one file, one index, or all shards that no index names.
WeightFiles = tuple[str, ...]

_INDEX = re.compile(r"(?P<stem>.+)\.safetensors\.index(?P<variant>\.[^./]+)?\.json")
_SHARD = re.compile(r"-(?P<number>\d{5})-of-(?P<count>\d{5})(?=(\.[^./]+)?\.safetensors$)")

# Files of the VAE alone, the best first: diffusers folders, then packs of MLX ports with one file per network.
_DIFFUSERS = "diffusion_pytorch_model"
_PAIRS = ("vae_{}_conv.safetensors", "vae_{}.safetensors", "{}/model.safetensors")


def is_index(name: str) -> bool:
    """Whether a file is an index of shards, by its name."""
    return _INDEX.fullmatch(name) is not None


def shards_beside(name: str, names: Iterable[str]) -> WeightFiles:
    """The shards among `names` that belong to the same set as `name`; empty if that is not a shard."""
    whole = _SHARD.sub("", name)
    return () if whole == name else tuple(sorted(other for other in names if _SHARD.sub("", other) == whole != other))


def shard_problem(files: WeightFiles) -> str | None:
    """Why shards are not one complete set; None if they are, or if `files` are no shards."""
    matches = [match for match in map(_SHARD.search, files) if match]
    if not matches:
        return None
    count = matches[0]["count"]
    numbers = [match["number"] for match in matches]
    if len({match["count"] for match in matches}) > 1 or len(set(numbers)) < len(numbers):
        return f"its shards are of several sets ({', '.join(files)}); give the index of one"
    missing = [f"{number:05d}" for number in range(1, int(count) + 1) if f"{number:05d}" not in numbers]
    if missing:
        return f"its shard {missing[0]} of {count} is missing; download all {int(count)}"
    return None


def choose_weights(names: Sequence[str]) -> list[tuple[WeightFiles, ...]]:
    """The sets to open out of the file names of a folder (relative, with "/"): one, or one per network.

    Files of the VAE alone are preferred to files of the whole model, so that 40 GB are not downloaded for 2 GB. A set
    is preferred to its variants, as in diffusers. Several choices, of a set each, if the names do not decide it.
    """
    sets = _weight_sets(names)
    for folder in ("", "vae/"):
        if found := _set_or_variants(sets, folder + _DIFFUSERS):
            return found
        for pattern in _PAIRS:
            pair = dict.fromkeys(folder + pattern.format(network) for network in ("encoder", "decoder"))
            if chosen := tuple(sets[name] for name in pair if name in sets):
                return [chosen]
    vae_names = [name for name in sets if "vae" in _stem(name) and "audio" not in _stem(name)]
    candidates = [name for name in vae_names if "conv" in _stem(name)] or vae_names
    if not candidates:
        if found := _set_or_variants(sets, "model"):
            return found
        candidates = list(sets)
    return [(sets[name],) for name in sorted(candidates)]


def _weight_sets(names: Iterable[str]) -> dict[str, WeightFiles]:
    """The sets by the name of each as a single file: indexes, then files, then shards that no index is named like."""
    shards: dict[str, WeightFiles] = {}
    files: dict[str, WeightFiles] = {}
    indexes: dict[str, WeightFiles] = {}
    for name in sorted(names):
        if match := _INDEX.fullmatch(name):
            indexes[f"{match['stem']}{match['variant'] or ''}.safetensors"] = (name,)
        elif _SHARD.search(name):
            whole = _SHARD.sub("", name)
            shards[whole] = (*shards.get(whole, ()), name)
        elif name.endswith(".safetensors"):
            files[name] = (name,)
    return shards | files | indexes


def _set_or_variants(sets: dict[str, WeightFiles], stem: str) -> list[tuple[WeightFiles, ...]]:
    """The set with this name, or else its variants."""
    if found := sets.get(f"{stem}.safetensors"):
        return [(found,)]
    variant = re.compile(re.escape(stem) + r"\.[^./]+\.safetensors")
    return [(files,) for name, files in sets.items() if variant.fullmatch(name)]


def _stem(name: str) -> str:
    return PurePosixPath(name).stem.lower()
