"""`VideoVAE` with the weights that an app has loaded, and with the app's noise.

The weights are in memory once: where the app's single pass is replaced, the arrays of a network move into its VAE when
the first frames have come (`move_weights`). The statistics of the latents, which apps read, stay. Otherwise the VAE has
a copy of the weights.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map_with_path

from ..backend.mlx_utils import dtype_name, named_parameters
from ..checkpoint import open_weights
from ..errors import CheckpointError, quote
from ..models.diffusion_decoder.config import CLASS_NAME as DIFFUSION_CLASS
from ..models.diffusion_decoder.config import DECODER_CLASS_NAME
from ..models.noise import KeyedNoise
from ..models.specs import NetworkSpec
from ..models.video_vae.config import CLASS_NAME
from ..shapes import Axis
from ..vae import VideoVAE

#: Drop-ins that replace an app's single pass, after which the app does not use the weights any more.
_SINGLE_PASSES: list[str] = []
_ATTRIBUTE = "_mlx_ltx_vae"  # of the app's network; neither an array nor a module, and so no parameter

#: Value of this attribute: the arrays of the network, its configuration, its VAE, and the names of arrays that move.
_CachedVAE = tuple[dict[str, mx.array], dict[str, Any] | None, Any, set[str]]

# Padding of convolutions along height and width, by its names in apps. LTX-2-MLX has two ways to pad with zeros.
_PADDING = {"zeros": "zeros", "manual": "zeros", "conv": "zeros", "reflect": "reflect"}
#: Offset that ltx-2-mlx adds to the seed of the diffusion decoder's noise.
_SEED_OFFSET = 30000


def single_pass(dropin: Callable[..., mx.array]) -> Callable[..., mx.array]:
    """Mark a drop-in that replaces an app's single pass."""
    _SINGLE_PASSES.append(dropin.__name__)
    return dropin


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
    checkpoint = open_weights(weights, config)
    vae = VideoVAE.from_pretrained(checkpoint, dtype=_promoted_dtype(weights, dtype))
    names = {info.name for stored in checkpoint.networks.values() for info in stored.tensors.values()}
    setattr(network, _ATTRIBUTE, (weights, config, vae, names))
    return vae


def move_weights(network: nn.Module) -> None:
    """Free the arrays of an app's network that its VAE has too, where the app's single pass is replaced."""
    weights, config, vae, names = cast(_CachedVAE, getattr(network, _ATTRIBUTE, ({}, None, None, set())))
    if vae is None or not names or not _is_replaced(type(network)):
        return
    network.update(tree_map_with_path(partial(_without_memory, moved_names=names), network.parameters()))
    del weights
    setattr(network, _ATTRIBUTE, (named_parameters(network), config, vae, set()))


def has_moved(network: object) -> bool:
    """Return whether the arrays of a network have moved into its VAE, so that the app cannot decode with them."""
    _, _, vae, names = cast(_CachedVAE, getattr(network, _ATTRIBUTE, ({}, None, None, set())))
    return vae is not None and not names and _is_replaced(type(network))


def app_noise(decoder: nn.Module, spec: NetworkSpec, shape: Sequence[int], planes: int, seed: int) -> list[KeyedNoise]:
    """Return the noise that ltx-2-mlx draws for its diffusion decoder: of the video, and of keyframe planes."""
    make_key, make_plane_key = getattr(decoder, "noise_key", None), getattr(decoder, "_keyframe_noise_key", None)
    key = mx.random.key(seed + _SEED_OFFSET) if make_key is None else make_key(seed)
    grid = [length + sum(spec.added(axis, length)) for axis, length in zip(Axis, shape[2:], strict=True)]
    frames, height, width = spec.scale.video_grid(cast(Any, grid))
    noise = [KeyedNoise(key, (shape[0], 3, frames, height, width))]
    if planes:
        plane_key = mx.random.split(key)[1] if make_plane_key is None else make_plane_key(seed)
        noise.append(KeyedNoise(plane_key, (shape[0], 3, planes, height, width)))
    return noise


def _cached_vae(network: nn.Module, weights: Mapping[str, mx.array], config: dict[str, Any] | None) -> Any:
    """Return the VAE that was made of a network before, or `None` without one or if the network has new weights."""
    cached_weights, cached_config, vae, _ = cast(_CachedVAE, getattr(network, _ATTRIBUTE, ({}, None, None, set())))
    is_same = cached_weights.keys() == weights.keys() and all(cached_weights[name] is weights[name] for name in weights)
    return vae if is_same and cached_config == config else None


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
        return _diffusion_config(app_config)
    modes = {getattr(module, "spatial_padding_mode", None) for module in network.modules()} - {None}
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


def _diffusion_config(config: Any) -> dict[str, Any]:
    """Return the configuration of ltx-2-mlx's diffusion decoder, which predicts the picture in one step."""
    names = ("in_channels", "out_channels", "patch_size", "head_dim", "stage_channels", "stage_depths", "stage_kernels")
    more_names = ("upsamples", "stage5_kernel", "timestep_scale_multiplier")
    decoder = {name: getattr(config, name) for name in (*names, *more_names)}
    decoder |= {"t_emb_dim": config.t_embed_hidden, "default_num_inference_steps": 1, "_class_name": DECODER_CLASS_NAME}
    return {"_class_name": DIFFUSION_CLASS, "model_output_type": "x0", "decoder": decoder}


def _without_memory(name: str, array: mx.array, moved_names: Collection[str]) -> mx.array:
    """Return a placeholder of one number in memory for an array that has moved, of its shape and dtype.

    The app can load other weights into it.
    """
    return mx.broadcast_to(mx.array(math.nan, array.dtype), array.shape) if name in moved_names else array
