"""`VideoVAE` with the weights that an app has loaded, and with the app's noise.

The weights are in memory once: where the app's single pass is replaced, the arrays of a network move into its VAE at
the first use, except those that the VAE does not keep, and lazy arrays with the same values take their places.
`give_back_weights` reverses this. The statistics of the latents, which apps read, stay. Otherwise the VAE has a copy of
the weights.
"""

import math
import re
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_map_with_path

from ..backend.device import explained_device_errors
from ..backend.mlx_utils import dtype_name, named_parameters
from ..checkpoint import Checkpoint, open_weights
from ..checkpoint.weight_files import StoredNetwork
from ..errors import CheckpointError, PlanError, quote
from ..networks.convolution.conv3d import Conv3d
from ..networks.diffusion_decoder.config import CLASS_NAME as DIFFUSION_CLASS
from ..networks.diffusion_decoder.config import DECODER_CLASS_NAME
from ..networks.noise import KeyedNoise
from ..networks.specs import NetworkSpec
from ..networks.video_vae.config import CLASS_NAME
from ..shapes import Axis
from ..vae import VideoVAE
from .apps import NETWORKS, NetworkNotes

#: Drop-ins that replace an app's single pass, after which the app does not use the weights any more.
_SINGLE_PASSES = ("decode_whole", "decode_float", "encode_whole")
_ATTRIBUTE = "_mlx_ltx_vae"  # of the app's network; neither an array nor a module, and so no parameter


class _LoadedVAE(NamedTuple):
    """VAE of an app's network: the network's arrays and configuration, and what makes those again that have moved."""

    weights: dict[str, mx.array]
    config: dict[str, Any] | None
    vae: VideoVAE
    moved: dict[str, partial]


# An array moves if the VAE has all but this part of its values bit by bit. On Metal float16 lacks the smallest ones.
_MAX_DIFFERENT = 0.01
_moved_networks: list["weakref.ref[nn.Module]"] = []

_DIFFUSION_KEYS = (
    "in_channels", "out_channels", "patch_size", "head_dim", "stage_channels", "stage_depths", "stage_kernels",
    "upsamples", "stage5_kernel", "t_emb_dim", "timestep_scale_multiplier",
)  # fmt: skip
# Padding of convolutions along height and width, by its names in apps. LTX-2-MLX has two ways to pad with zeros.
_PADDING = {"zeros": "zeros", "manual": "zeros", "conv": "zeros", "reflect": "reflect"}
#: Offset that ltx-2-mlx adds to the seed of the diffusion decoder's noise.
_SEED_OFFSET = 30000
#: Beginnings of the names of arrays whose dtypes decide about the one of mlx-video's noise, with the latents'.
_NOISE_DTYPE = ("mean_of_means", "std_of_means", "conv_in.", "det_stages.", "upsamples.")


@explained_device_errors()
def vae_of(network: nn.Module, dtype: mx.Dtype | None = None) -> VideoVAE:
    """Return the `VideoVAE` with the weights of an app's decoder or encoder, which is made once for these weights.

    The configuration is inferred from the names and shapes of the weights, which must be a published generation's. The
    padding is read from the network's convolutions, if they have the attribute, and the rest from the `config` of a
    diffusion decoder. With the `dtype` of the app's input, the VAE computes in the dtype to which MLX promotes the
    input and the weights.

    Raises:
        CheckpointError: if the weights are of no published generation, or are damaged, or if the padding is unknown.
            The network keeps its arrays.
    """
    weights, config = named_parameters(network), _network_config(network)
    if (vae := _cached_vae(network, weights, config)) is not None:
        return vae
    names = _checkpoint_names(type(network), weights)
    checkpoint = open_weights({name: weights[app_name] for name, app_name in names.items()}, config)
    vae = VideoVAE.from_pretrained(checkpoint, dtype=_promoted_dtype(weights, dtype))
    moved: dict[str, partial] = {}
    if _is_replaced(type(network)):
        moved = {names[name]: restore for name, restore in _find_movable(checkpoint, vae).items()}
        # Lazy arrays, which take no memory until something else than a drop-in uses them.
        arrays = {name: restore() for name, restore in moved.items()}
        _update(network, arrays)
        weights |= arrays
        _moved_networks.append(weakref.ref(network))
    setattr(network, _ATTRIBUTE, _LoadedVAE(weights, config, vae, moved))
    return vae


def give_back_weights() -> None:
    """Give all apps' networks the arrays that have moved into VAEs, with the same values, and forget these VAEs.

    An app's own functions can use its networks then.
    """
    while _moved_networks:
        network = _moved_networks.pop()()
        loaded = cast(_LoadedVAE | None, getattr(network, _ATTRIBUTE, None))
        if network is None or loaded is None:
            continue
        arrays, weights = {}, named_parameters(network)
        for name, restore in loaded.moved.items():
            if weights.get(name) is loaded.weights[name]:  # else the app has loaded another one
                arrays[name] = restore()
                mx.eval(arrays[name])  # which another thread may use
        _update(network, arrays)
        delattr(network, _ATTRIBUTE)


def app_noise(decoder: nn.Module, spec: NetworkSpec, latents: mx.array, planes: int, seed: int) -> list[KeyedNoise]:
    """Return the noise that an app draws for its diffusion decoder: of the video, and of keyframe planes.

    Raises:
        PlanError: for a short clip that the app pads otherwise.
    """
    grid = [length + sum(spec.added(axis, length)) for axis, length in zip(Axis, latents.shape[2:], strict=True)]
    frames, height, width = spec.scale.video_grid(cast(Any, grid))
    shapes = [(len(latents), 3, length, height, width) for length in (frames, planes) if length]
    if not seeds_generator(decoder):
        keys = _ltx_2_mlx_keys(decoder, seed)
        return [KeyedNoise(key, shape) for key, shape in zip(keys, shapes, strict=False)]
    if grid[0] != latents.shape[2]:
        raise PlanError(f"the app decodes clips of fewer than {grid[0]} latent frames in its own way.")
    mx.random.seed(seed)
    arrays = [array for name, array in named_parameters(decoder).items() if name.startswith(_NOISE_DTYPE)]
    return [KeyedNoise(_draw_key(), shape, mx.result_type(latents, *arrays)) for shape in shapes]


def seeds_generator(network: nn.Module) -> bool:
    """Return whether an app's network draws noise with MLX's global generator."""
    return _notes(type(network)).seeds_generator


def _ltx_2_mlx_keys(decoder: nn.Module, seed: int) -> Iterator[mx.array]:
    """Yield the keys of the noise that ltx-2-mlx draws, of the video and of keyframe planes."""
    make_key, make_plane_key = getattr(decoder, "noise_key", None), getattr(decoder, "_keyframe_noise_key", None)
    key = mx.random.key(seed + _SEED_OFFSET) if make_key is None else make_key(seed)
    yield key
    yield mx.random.split(key)[1] if make_plane_key is None else make_plane_key(seed)


def _draw_key() -> mx.array:
    """Return the key of the next draw of MLX's global generator, and let it go on as after that draw."""
    state = cast(list[mx.array], mx.random.state)
    key = mx.random.split(state[0])[1]
    mx.random.normal(())
    return key


def _cached_vae(network: nn.Module, weights: Mapping[str, mx.array], config: dict[str, Any] | None) -> VideoVAE | None:
    """Return the VAE that was made of a network before, or `None` without one or if the network has new weights."""
    loaded = cast(_LoadedVAE | None, getattr(network, _ATTRIBUTE, None))
    if loaded is None or loaded.config != config or loaded.weights.keys() != weights.keys():
        return None
    return loaded.vae if all(loaded.weights[name] is weights[name] for name in weights) else None


def _find_movable(checkpoint: Checkpoint, vae: VideoVAE) -> dict[str, partial]:
    """Return what makes an app's weights again from those of a VAE, bit by bit, by their names in the checkpoint."""
    movable = {}
    for network_name, stored in checkpoint.networks.items():
        modules = dict(getattr(vae, network_name).named_modules())
        layout = replace(stored, tensors={})  # without the arrays
        for key, info in stored.tensors.items():
            owner, _, name = key.rpartition(".")
            module, weight = modules.get(owner, {}), cast(mx.array, info.array)
            if name not in module or module[name].size != weight.size:  # the VAE has a part of it
                continue
            restore = partial(_restore, module, name, layout, weight.shape, weight.dtype)
            different = np.flatnonzero(np.array(restore() != weight))
            if len(different) <= _MAX_DIFFERENT * weight.size:
                indices = mx.array(different.astype(np.uint32))
                values = weight.flatten()[indices]
                mx.eval(indices, values)
                movable[info.name] = partial(_repair, restore, indices, values)
    return movable


def _repair(restore: Callable[[], mx.array], indices: mx.array, values: mx.array) -> mx.array:
    """Return a restored weight with the `values` at some flat indices, as a lazy array."""
    array = mx.contiguous(restore())
    if indices.size:
        shape, array = array.shape, array.flatten()
        array[indices] = values
        array = array.reshape(shape)
    return array


def _restore(module: nn.Module, name: str, layout: StoredNetwork, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    """Return a weight of a VAE's module as the app's network had it."""
    array = module.stored(name) if isinstance(module, Conv3d) else module[name]
    return layout.unsanitize(array, shape).astype(dtype)


def _notes(kind: type) -> NetworkNotes:
    """Return the table's notes on an app's network of this class."""
    names = [f"{base.__module__}:{base.__qualname__}" for base in kind.__mro__]
    return next((NETWORKS[name] for name in names if name in NETWORKS), NetworkNotes())


def _checkpoint_names(kind: type, names: Collection[str]) -> dict[str, str]:
    """Return the names of an app's tensors by those that checkpoints have, without tensors that change nothing."""
    notes, is_timed = _notes(kind), any("time_embedder" in name for name in names)
    checkpoint_names = {}
    for app_name in names:
        if notes.untimed and not is_timed and re.search(notes.untimed, app_name):
            continue
        name = app_name
        for pattern, replacement in notes.names:
            name = re.sub(pattern, replacement, name)
        checkpoint_names[name] = app_name
    return checkpoint_names


def _promoted_dtype(weights: Mapping[str, mx.array], dtype: mx.Dtype | None) -> Any:
    """Return the dtype in which an app computes with values of `dtype`, or `None` if it is the dtype of the weights."""
    weight = next(array for name, array in sorted(weights.items()) if array.ndim > 1)
    promoted = weight.dtype if dtype is None else mx.result_type(weight, mx.zeros((), dtype))
    return None if promoted == weight.dtype else dtype_name(promoted)


def _is_replaced(kind: type) -> bool:
    """Return whether the single pass of an app's class is a drop-in."""
    methods = [getattr(kind, name, None) for name in ("__call__", "decode", "encode")]
    names = [getattr(method, "dropin", getattr(method, "__name__", "")) for method in methods]
    return any(name in _SINGLE_PASSES for name in names)


def _network_config(network: nn.Module) -> dict[str, Any] | None:
    """Return the configuration in the attributes of an app's network, as checkpoints state it; `None` without any."""
    app_config = getattr(network, "config", None)
    if hasattr(app_config, "stage5_kernel"):
        return _diffusion_config(app_config, {"t_emb_dim": getattr(app_config, "t_embed_hidden", None)})
    if hasattr(network, "stage_kernels"):
        return _diffusion_config(network, _geometry(network))
    modes = {getattr(module, "spatial_padding_mode", None) for module in network.modules()} - {None}
    modes = modes or {_notes(type(network)).padding} - {None}
    mode_names = {str(getattr(mode, "value", mode)) for mode in modes}
    padding = {_PADDING.get(name) for name in mode_names}
    if None in padding or len(padding) > 1:
        raise CheckpointError(
            f"weights: the app's decoder pads with {' and '.join(map(quote, sorted(mode_names)))}; expected zeros or "
            "reflect in all of its convolutions."
        )
    config: dict[str, Any] = {"spatial_padding_mode": padding.pop()} if padding else {}
    if getattr(network, "causal", getattr(network, "_causal", False)):
        config["causal_decoder"] = True
    return {"_class_name": CLASS_NAME, **config} if config else None


def _diffusion_config(source: object, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of an app's diffusion decoder, which predicts the picture in one step.

    `values` replace the attributes of the `source`.
    """
    decoder = {name: getattr(source, name) for name in _DIFFUSION_KEYS if hasattr(source, name)}
    decoder |= {**values, "default_num_inference_steps": 1, "_class_name": DECODER_CLASS_NAME}
    return {"_class_name": DIFFUSION_CLASS, "model_output_type": "x0", "decoder": decoder}


def _geometry(network: nn.Module) -> dict[str, Any]:
    """Return the configuration of mlx-video's diffusion decoder that is no attribute, from its modules and weights."""
    shapes = {name: array.shape for name, array in named_parameters(network).items()}
    upsamples = []
    for index, module in enumerate(getattr(network, "upsamples", ())):
        rows, width = shapes[f"upsamples.{index}.proj.weight"]
        upsamples.append([module.stride, math.prod(module.stride) * width // rows])
    (head_dim,) = shapes["det_stages.0.0.attn.q_norm.weight"]
    return {"upsamples": upsamples, "head_dim": head_dim, "t_emb_dim": shapes["t_embedder.mlp.0.weight"][0]}


def _update(network: nn.Module, arrays: Mapping[str, mx.array]) -> None:
    """Put arrays into a network, by the names of `named_parameters`."""
    network.update(tree_map_with_path(lambda name, array: arrays.get(name, array), network.parameters()))
