"""Weight files: sets of files by their names, their headers, and the networks in them as stored.

The VAE is 1 to 2 GB of a 40 GB checkpoint, so files are recognized by their headers, and only requested tensors are
read. A set of weights is one file; several shards; or an index that names its shards. diffusers also writes variants
of a set, which differ in dtype:

    model.safetensors               model.fp16.safetensors
    model-00001-of-00002.safetensors  model.fp16-00001-of-00002.safetensors, model-00001-of-00002.fp16.safetensors
    model.safetensors.index.json    model.safetensors.index.fp16.json, model.fp16.safetensors.index.json
"""

import enum
import json
import math
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, NamedTuple

import mlx.core as mx

from ..errors import CheckpointError, excerpt, name_json, quote, warn
from ..files import (
    MAX_HEADER_BYTES,
    MAX_MEMBERS,
    START_BYTES,
    Format,
    file_state,
    find_format,
    open_file,
    read_header,
    read_small_file,
    torch_conversion,
)
from ..shapes import Shape
from .tensors import GROUP_SIZES, TensorInfo, check_unchanged, join_quantized, read_tensors

#: Names of the configuration of all files in a folder. A file may also have its own one (see `file_config_names`).
CONFIG_NAMES = ("config.json", "embedded_config.json")

#: The files of one set: one file, one index, or all shards that no index names.
WeightFiles = tuple[str, ...]

_INDEX = re.compile(r"(?P<stem>.+)\.safetensors\.index(?P<variant>\.[^./]+)?\.json")
_VARIANT = re.compile(r"(?P<base>(?:.+/)?(?:model|diffusion_pytorch_model))\.[^./]+\.safetensors")
_SHARD = re.compile(r"-(?P<number>\d{5})-of-(?P<count>\d{5})(?=(\.[^./]+)?\.safetensors$)")

# Files of the VAE alone, the best first: diffusers folders, then packs of MLX ports with one file per network, as pairs
# of encoder and decoder. Packs for LTX-2.5 have two decoders, in some of them with one file of their equal encoders.
_DIFFUSERS = "diffusion_pytorch_model"
_AUDIO_PAIRS = (f"{{}}/{_DIFFUSERS}.safetensors", "{}.safetensors", "{}/model.safetensors")
_PAIRS = (
    (
        ("vae_encoder_conv", "vae_decoder_conv"),
        ("vae_encoder_av", "vae_decoder_av"),
        ("vae_encoder", "vae_decoder"),
        ("vae_encoder", "vae_diffusion_decoder"),
    ),
    (("encoder/model", "decoder/model"),),
)
# Descriptions of other formats that users pass, for error messages.
_OTHER_FORMATS = {
    Format.GIT_LFS: "a git-lfs pointer instead of the file; fetch the file with `git lfs pull`",
    Format.ZIP: "a PyTorch pickle (zip), which is never loaded because it can run code",
    Format.PICKLE: "a Python pickle, which is never loaded because it can run code",
    Format.GGUF: "a GGUF file; use the safetensors file of the VAE",
    Format.WEB_PAGE: "a web page instead of the file; download the file again",
}
#: The metadata entry in which a file may state its layout, as the value of a `WeightLayout`.
WEIGHT_LAYOUT_KEY = "kernel_layout"


def file_config_names(file: str) -> tuple[str, ...]:
    """Return the possible names of the configuration of one weight file, in the same folder."""
    stem = PurePosixPath(file).stem
    return (f"{stem}_config.json", f"{stem}.json")


def is_index(name: str) -> bool:
    """Return whether a file is an index of shards, by its name."""
    return _INDEX.fullmatch(name) is not None


def shards_of_set(name: str, names: Iterable[str]) -> WeightFiles:
    """Return the shards among `names` that belong to the same set as `name`, none if `name` is not a shard."""
    set_name = _SHARD.sub("", name)
    if set_name == name:
        return ()
    return tuple(sorted(shard for shard in names if _SHARD.sub("", shard) == set_name != shard))


def shard_problem(files: WeightFiles) -> str | None:
    """Describe why shards are not one complete set. Returns `None` if they are, or if `files` are no shards."""
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
    """Choose the sets to download from the file names of a repository (relative, with "/"): one, or one per network.

    They belong to the video VAE, or to the audio VAE and its vocoder. Files of the VAE alone are preferred to files
    of the whole model, so that 40 GB are not downloaded for 2 GB. A set is preferred to its variants, as in diffusers.
    Returns several choices, which differ in their last set, if the names do not decide between them.
    """
    sets = _weight_sets(names)
    if choices := _choose_by_layout(sets, is_audio):
        preferred = prefer_convolutional([choice[-1][0] for choice in choices])
        return [choice for choice in choices if choice[-1][0] in preferred]
    if is_audio:
        candidates = [name for name in sets if "vae" in _stem(name) and "audio" in _stem(name)]
    else:
        candidates = prefer_convolutional([name for name in sets if _is_vae(name)])
    if not candidates and (choices := _set_or_variants(sets, "model")):
        return choices
    return [(sets[name],) for name in sorted(candidates or sets)]


def list_weights(names: Sequence[str], *, is_audio: bool = False) -> list[tuple[WeightFiles, ...]]:
    """List the choices in a folder as `choose_weights`, but keep those that the headers of the files decide between."""
    sets = _weight_sets(names)
    variants = [name for name in sets if (match := _VARIANT.fullmatch(name)) and f"{match['base']}.safetensors" in sets]
    return _choose_by_layout(sets, is_audio) or [(sets[name],) for name in sorted(sets.keys() - set(variants))]


def prefer_convolutional(names: Sequence[str]) -> list[str]:
    """Return the VAEs with convolutional decoders by their names, and warn; return all VAEs if no name says so."""
    vaes = [name for name in names if _is_vae(name)]
    convolutional = [name for name in vaes if "conv" in _stem(name)]
    if not convolutional and any("diffusion" in _stem(name) for name in vaes):
        convolutional = [name for name in vaes if "diffusion" not in _stem(name)]
    remaining = [name for name in names if name not in convolutional]
    if not convolutional or not all(_is_vae(name) and "pruna" not in _stem(name) for name in remaining):
        return list(names)
    if remaining:
        warn(
            f"{' and '.join(convolutional)} is used, whose decoder is convolutional, and not "
            f"{' and '.join(remaining)}, whose decoder may be another one (LTX-2.5's denoises, and takes longer); to "
            "use that, give its file."
        )
    return convolutional


def _choose_by_layout(sets: dict[str, WeightFiles], is_audio: bool) -> list[tuple[WeightFiles, ...]]:
    """Return the choices in a folder of diffusers, or in a pack with a file per network; none for other folders."""
    if is_audio:
        pairs = [[pattern.format(name) for name in ("audio_vae", "vocoder")] for pattern in _AUDIO_PAIRS]
        return [choice for pair in pairs if (choice := tuple(sets[name] for name in pair if name in sets))][:1]
    for folder in ("", "vae/"):
        if choices := _set_or_variants(sets, folder + _DIFFUSERS):
            return choices
        pruned = [name for name in sets if name.startswith(folder) and _is_vae(name) and "pruna" in _stem(name)]
        pruned_decoders = [name for name in pruned if "encoder" not in _stem(name)]  # which can replace the decoder
        for pack in _PAIRS:
            choices, encoders = [], []
            for names in pack:
                encoder, decoder = (f"{folder}{name}.safetensors" for name in names)
                encoder_sets = [sets[encoder]] if encoder in sets else []
                if encoder_sets or decoder in sets:
                    replacements = [] if choices else pruned_decoders
                    decoders = [name for name in sets if name == decoder or name in replacements]
                    choices += [(*encoder_sets, sets[name]) for name in decoders]
                    encoders.append(tuple(encoder_sets))
            if choices or encoders:
                return choices or list(dict.fromkeys(encoders))
    return []


def choose_file(names: Sequence[str], file: str, *, is_audio: bool = False) -> tuple[WeightFiles, ...]:
    """Return the sets in a folder to open for a named file; several in a pack with a file per network.

    A decoder is opened with its encoder, and an audio VAE with its vocoder, and vice versa.
    """
    for choice in list_weights(names, is_audio=is_audio):
        if any(file in files for files in (choice if is_audio else choice[-1:])):
            return choice
    return (shards_of_set(file, names) or (file,),)


def _weight_sets(names: Iterable[str]) -> dict[str, WeightFiles]:
    """Return the sets by the name that each has, or would have, as one file.

    An index replaces a file and shards of the same name, and a file replaces shards.
    """
    shards: dict[str, WeightFiles] = {}
    files: dict[str, WeightFiles] = {}
    indexes: dict[str, WeightFiles] = {}
    for name in sorted(names):
        if match := _INDEX.fullmatch(name):
            indexes[f"{match['stem']}{match['variant'] or ''}.safetensors"] = (name,)
        elif _SHARD.search(name):
            set_name = _SHARD.sub("", name)
            shards[set_name] = (*shards.get(set_name, ()), name)
        elif name.endswith(".safetensors"):
            files[name] = (name,)
    return shards | files | indexes


def _set_or_variants(sets: dict[str, WeightFiles], stem: str) -> list[tuple[WeightFiles, ...]]:
    """Return the set with this name, or else its variants."""
    if files := sets.get(f"{stem}.safetensors"):
        return [(files,)]
    variant = re.compile(re.escape(stem) + r"\.[^./]+\.safetensors")
    return [(files,) for name, files in sets.items() if variant.fullmatch(name)]


def _is_vae(name: str) -> bool:
    return "vae" in _stem(name) and "audio" not in _stem(name)


def _stem(name: str) -> str:
    return PurePosixPath(name).stem.lower()


class Archive(NamedTuple):
    """Tensors of one safetensors file, of all shards of a set, or of a mapping of arrays."""

    path: Path
    tensors: dict[str, TensorInfo]
    metadata: dict[str, str]


def open_archive(path: Path, *shards: Path) -> Archive:
    """Read the header of a file, of every shard that an index names, or of several shards, which must be complete."""
    if is_index(path.name):
        names = shard_names(path)
        for name in names:
            if not os.path.isfile(path.parent / name):  # not Path.is_file, which raises for a name that is too long
                raise CheckpointError(
                    f"{path}: its shard {excerpt(name)} is missing; download all the files that the index names."
                )
        shards = tuple(path.parent / name for name in names)
    elif problem := shard_problem(tuple(shard.name for shard in (path, *shards))):
        raise CheckpointError(f"{path}: {problem}.")
    else:
        shards = (path, *shards)
    tensors: dict[str, TensorInfo] = {}
    metadata: dict[str, str] = {}
    for part in map(_open_file, shards):
        tensors |= part.tensors
        metadata |= part.metadata
        if len(tensors) > MAX_MEMBERS:
            raise CheckpointError(
                f"{path}: expected at most {MAX_MEMBERS} tensors in all its files; give the VAE's file."
            )
    return Archive(path, join_quantized(tensors), metadata)


def shard_names(index: Path) -> list[str]:
    """Return the file names in an index, sorted, each once. Raises a `CheckpointError` for one outside its folder."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise CheckpointError(f"{index}: expected an index with a 'weight_map'; download it again.")
    names = sorted(set(weight_map.values()))
    for name in names:
        if PurePath(name).is_absolute() or ".." in PurePath(name).parts or not PurePath(name).name:
            raise CheckpointError(
                f"{index}: it names the shard {quote(name)}, which is not in its folder; download the index again from "
                "the original."
            )
    return names


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a configuration or an index, which may be as long as a header."""
    try:
        content = json.loads(read_small_file(path, MAX_HEADER_BYTES).decode())
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(
            f"{path}: expected JSON ({excerpt(reason, 120)}); download it again or repair it."
        ) from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: expected a JSON object and found {name_json(content)}.")
    return content


def _open_file(path: Path) -> Archive:
    try:
        with open_file(path) as stream:
            file_format, state = find_format(stream.read(START_BYTES)), file_state(stream.fileno())
            if file_format in _OTHER_FORMATS:
                remedy = f"; {torch_conversion(path)}" if file_format in (Format.ZIP, Format.PICKLE) else "."
                raise CheckpointError(f"{path}: this is {_OTHER_FORMATS[file_format]}{remedy}")
            if file_format is not Format.SAFETENSORS:
                raise CheckpointError(f"{path}: not a safetensors file; give the .safetensors file of the VAE.")
            headers, metadata = read_header(stream)
    except ValueError as error:
        raise CheckpointError(f"{path}: not a whole safetensors file ({error}); download it again.") from error
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: no such file; check the path.") from error
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error}).") from error
    tensors = {
        name: TensorInfo(path.absolute(), name, header.dtype, header.shape, header.begin, state=state)
        for name, header in headers.items()
    }
    check_unchanged(tensors.values())
    # `safetensors.torch.save_model` stores a tied tensor under one name, and its other names in the metadata.
    tied = {name: tensors[stored] for name, stored in metadata.items() if "." in name and stored in tensors}
    return Archive(path, tied | tensors, metadata)


class WeightLayout(enum.Enum):
    """Axis order of convolution weights. O and I are output and input channels; some weights have no D, or no H."""

    CHANNELS_FIRST = "O, I, D, H, W"
    CHANNELS_LAST = "O, D, H, W, I"


@dataclass(frozen=True)
class StoredNetwork:
    """Encoder or decoder whose tensors have not been read.

    Attributes:
        tensors: where each tensor is stored, by its name within the network ("conv_in.conv.weight").
        expected: the shape of each weight in its module, in the order of the layers; empty until the configuration is
            determined.
    """

    tensors: Mapping[str, TensorInfo]
    layout: WeightLayout
    kernels: Collection[Shape]
    expected: Mapping[str, Shape] = field(default_factory=dict)

    @property
    def shapes(self) -> dict[str, Shape]:
        """Shapes of the tensors as `read` yields them."""
        return {name: self._sanitized_shape(name, info.shape) for name, info in self.tensors.items()}

    @property
    def dtype(self) -> str:
        """Dtype of the first weight, in which the network computes: "float32", "bfloat16" or "float16"."""
        return next(self.tensors[name].dtype for name in [*self.expected, *self.tensors] if name in self.tensors)

    @property
    def parameters_by_dtype(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        for info in self.tensors.values():
            counts[info.dtype] += math.prod(info.shape)
        return counts

    @property
    def num_bytes(self) -> int:
        """Stored bytes, with the scales and biases of quantized weights."""
        return sum(info.num_bytes for info in self.tensors.values())

    @property
    def quantized(self) -> list[TensorInfo]:
        """Weights that are stored in MLX's affine format."""
        return [info for info in self.tensors.values() if info.parts]

    def with_group_size(self, size: int) -> "StoredNetwork":
        """Return the network with this group size of its quantized weights, where that is possible."""
        return replace(self, tensors={name: info.with_group_size(size) for name, info in self.tensors.items()})

    def fit_quantized(self) -> "StoredNetwork":
        """Return the network with the group sizes for which its quantized weights have the expected shapes.

        A weight that no group size fits is unchanged, and so of an unexpected shape.
        """
        tensors = dict(self.tensors)
        for name, info in self.tensors.items():
            for candidate in (info.with_group_size(size) for size in reversed(GROUP_SIZES)):
                if self._sanitized_shape(name, candidate.shape) == self.expected.get(name):
                    tensors[name] = candidate
        return replace(self, tensors=tensors)

    def read(self, dtype: mx.Dtype | None = None) -> Iterator[tuple[str, mx.array]]:
        """Yield each tensor with its name, sanitized and lazy, and quantized weights as `read_tensors` does.

        Weights whose layout changes are views, so that one copy lays them out.
        """
        for name, array in read_tensors(self.tensors, dtype):
            sanitized = [self.sanitize(name, array)]
            del array  # a suspended generator must not hold an array that it has yielded
            yield name, sanitized.pop()

    def sanitize(self, name: str, array: mx.array) -> mx.array:
        """Return a weight with channels last and axes of length one as expected. The strict load rejects other shapes.

        MLX stores weights of transposed convolutions with output channels first, torch with input channels first.
        """
        shape = self._sanitized_shape(name, array.shape)
        if self._is_channels_first(array.shape):
            array = mx.moveaxis(array, 1, -1)
        if array.shape == shape:
            return array
        return array.reshape(shape) if _without_ones(array.shape) == _without_ones(shape) else array.swapaxes(0, 2)

    def unsanitize(self, array: mx.array, shape: Shape) -> mx.array:
        """Return a weight that `sanitize` has made of one of this shape, as that was."""
        is_first = self._is_channels_first(shape)
        target = (shape[0], *shape[2:], shape[1]) if is_first else shape
        if _without_ones(array.shape) == _without_ones(target):
            array = array.reshape(target)
        elif array.shape != target:
            array = array.swapaxes(0, 2)
        return mx.moveaxis(array, -1, 1) if is_first else array

    def _sanitized_shape(self, name: str, shape: Shape) -> Shape:
        expected = self.expected.get(name)
        if self._is_channels_first(shape):
            shape = (shape[0], *shape[2:], shape[1])
        is_transposed = expected is not None and len(shape) == 3 and shape == expected[::-1]
        if expected is not None and (_without_ones(shape) == _without_ones(expected) or is_transposed):
            return expected
        return shape

    def _is_channels_first(self, shape: Shape) -> bool:
        return self.layout is WeightLayout.CHANNELS_FIRST and shape[2:] in self.kernels


def find_layout(
    metadata: Mapping[str, str], shapes: Iterable[Shape], kernels: Collection[Shape], source: str
) -> WeightLayout:
    """Return the layout that the metadata states, or that all weights with one of the `kernels` allow.

    A weight may allow both.
    """
    if (text := metadata.get(WEIGHT_LAYOUT_KEY)) is not None:
        layouts = {layout.value: layout for layout in WeightLayout}
        if text in layouts:
            return layouts[text]
        raise CheckpointError(
            f"{source}: its metadata states the {WEIGHT_LAYOUT_KEY} {quote(text)}, and known are "
            f"{' and '.join(f'({layout})' for layout in layouts)}; convert it again from the original."
        )
    # A filter with one axis longer than 1 has the same values in all layouts.
    allowed = {(shape[2:] in kernels, shape[1:-1] in kernels) for shape in shapes if len(_without_ones(shape)) > 1}
    is_first, is_last = (True, False) in allowed, (False, True) in allowed
    if is_first and is_last:
        raise CheckpointError(
            f"{source}: some of its convolution weights are stored as ({WeightLayout.CHANNELS_FIRST.value}) and others "
            f"as ({WeightLayout.CHANNELS_LAST.value}); convert it again from the original."
        )
    return WeightLayout.CHANNELS_LAST if is_last else WeightLayout.CHANNELS_FIRST


def _without_ones(shape: Shape) -> Shape:
    return tuple(extent for extent in shape if extent != 1)
