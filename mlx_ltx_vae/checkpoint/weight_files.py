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

from ..errors import warn

#: What the configuration of all files in a folder is called; each file may have its own (see `own_config_names`).
CONFIG_NAMES = ("config.json", "embedded_config.json")

#: The files of one set: one file, one index, or all shards that no index names.
WeightFiles = tuple[str, ...]

_INDEX = re.compile(r"(?P<stem>.+)\.safetensors\.index(?P<variant>\.[^./]+)?\.json")
_VARIANT = re.compile(r"(?P<base>(?:.+/)?(?:model|diffusion_pytorch_model))\.[^./]+\.safetensors")
_SHARD = re.compile(r"-(?P<number>\d{5})-of-(?P<count>\d{5})(?=(\.[^./]+)?\.safetensors$)")

# Files of the VAE alone, the best first: diffusers folders, then packs of MLX ports with one file per network. Those
# for LTX-2.5 have two VAEs.
_DIFFUSERS = "diffusion_pytorch_model"
_AUDIO_PAIRS = (f"{{}}/{_DIFFUSERS}.safetensors", "{}.safetensors", "{}/model.safetensors")
_PAIRS = (("vae_{}_conv.safetensors", "vae_{}_av.safetensors"), ("vae_{}.safetensors",), ("{}/model.safetensors",))


def own_config_names(file: str) -> tuple[str, ...]:
    """The names of files that may be the configuration of one weight file, which lies in the same folder."""
    stem = PurePosixPath(file).stem
    return (f"{stem}_config.json", f"{stem}.json")


def is_index(name: str) -> bool:
    """Return whether a file is an index of shards, by its name."""
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


def choose_weights(names: Sequence[str], *, is_audio: bool = False) -> list[tuple[WeightFiles, ...]]:
    """The sets to download out of the file names of a repository (relative, with "/"): one, or one per network.

    They belong to the video VAE, or to the audio VAE and its vocoder. Files of the VAE alone are preferred to files
    of the whole model, so that 40 GB are not downloaded for 2 GB. A set is preferred to its variants, as in diffusers.
    Several choices if the names do not decide it: they differ in their last set.
    """
    sets = _weight_sets(names)
    if found := _choose_by_layout(sets, is_audio):
        wanted = prefer_convolutional([choice[-1][0] for choice in found])
        return [choice for choice in found if choice[-1][0] in wanted]
    if is_audio:
        candidates = [name for name in sets if "vae" in _stem(name) and "audio" in _stem(name)]
    else:
        candidates = prefer_convolutional([name for name in sets if _is_vae(name)])
    if not candidates and (found := _set_or_variants(sets, "model")):
        return found
    return [(sets[name],) for name in sorted(candidates or sets)]


def list_weights(names: Sequence[str], *, is_audio: bool = False) -> list[tuple[WeightFiles, ...]]:
    """`choose_weights` for a folder whose headers can be read: they decide what only a name would decide."""
    sets = _weight_sets(names)
    variants = [name for name in sets if (match := _VARIANT.fullmatch(name)) and f"{match['base']}.safetensors" in sets]
    return _choose_by_layout(sets, is_audio) or [(sets[name],) for name in sorted(sets.keys() - set(variants))]


def prefer_convolutional(names: Sequence[str]) -> list[str]:
    """The VAEs whose decoders are convolutional by their names, with a warning; all if no name says so."""
    chosen = [name for name in names if _is_vae(name) and "conv" in _stem(name)]
    others = [name for name in names if name not in chosen]
    if not chosen or not all(_is_vae(name) and not _is_pruned(name) for name in others):
        return list(names)
    if others:
        warn(
            f"{' and '.join(chosen)} is used, whose decoder is convolutional, and not {' and '.join(others)}, whose "
            "decoder may be another one (LTX-2.5's denoises, and takes longer); to use that, give its file."
        )
    return chosen


def _choose_by_layout(sets: dict[str, WeightFiles], is_audio: bool) -> list[tuple[WeightFiles, ...]]:
    """The choices in a folder of diffusers, or in a pack with a file per network; empty for other folders."""
    if is_audio:
        pairs = [[pattern.format(name) for name in ("audio_vae", "vocoder")] for pattern in _AUDIO_PAIRS]
        return [chosen for pair in pairs if (chosen := tuple(sets[name] for name in pair if name in sets))][:1]
    for folder in ("", "vae/"):
        if found := _set_or_variants(sets, folder + _DIFFUSERS):
            return found
        for patterns in _PAIRS:
            found = []
            for pattern in patterns:
                encoder, decoder = (folder + pattern.format(network) for network in ("encoder", "decoder"))
                first = [sets[encoder]] if encoder in sets else []
                if first or decoder in sets:
                    names = [
                        each for each in sets if each == decoder or (not found and _is_pruned_decoder(each, folder))
                    ]
                    found += [(*first, sets[name]) for name in names] or [tuple(first)]
            if found:
                return found
    return []


def choose_file(names: Sequence[str], file: str, *, is_audio: bool = False) -> tuple[WeightFiles, ...]:
    """The sets in a folder to open for a file that is named: of a pack with a file per network, several.

    With a decoder its encoder; with an audio VAE its vocoder, and the other way around.
    """
    for choice in list_weights(names, is_audio=is_audio):
        if any(file in files for files in (choice if is_audio else choice[-1:])):
            return choice
    return (shards_beside(file, names) or (file,),)


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


def _is_vae(name: str) -> bool:
    return "vae" in _stem(name) and "audio" not in _stem(name)


def _is_pruned_decoder(name: str, folder: str) -> bool:
    """Return whether a file in a pack is, by its name, a decoder that can replace the whole one."""
    return name.startswith(folder) and _is_vae(name) and _is_pruned(name) and "encoder" not in _stem(name)


def _is_pruned(name: str) -> bool:
    return "pruna" in _stem(name)


def _stem(name: str) -> str:
    return PurePosixPath(name).stem.lower()
