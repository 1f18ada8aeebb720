"""The `VideoVAE` with the weights that an app has loaded, and the noise as the app draws it.

The weights are in memory once: where the app's single pass is replaced, the arrays of a network move into its VAE at
the first use. The statistics of the latents, which apps read, stay. Elsewhere the VAE has a copy of its own.
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

#: Drop-ins that take the place of an app's single pass, beside which nothing of the app uses the weights.
_SINGLE_PASSES: list[Callable[..., mx.array]] = []
_ATTRIBUTE = "_mlx_ltx_vae"  # of the app's network; neither an array nor a module, so no parameter of it

#: What that attribute is: the arrays of the network, what else it states, and its VAE.
_Known = tuple[dict[str, mx.array], dict[str, Any] | None, Any]

# Names in apps of the ways in which their convolutions pad along height and width. LTX-2-MLX has two ways to pad with
# zeros.
_PADDING = {"zeros": "zeros", "manual": "zeros", "conv": "zeros", "reflect": "reflect"}
#: What ltx-2-mlx adds to the seed of the diffusion decoder's noise.
_SEED_OFFSET = 30000


def single_pass(dropin: Callable[..., mx.array]) -> Callable[..., mx.array]:
    """Mark a drop-in that takes the place of an app's single pass."""
    _SINGLE_PASSES.append(dropin)
    return dropin


def vae_of(network: nn.Module, dtype: mx.Dtype | None = None) -> VideoVAE:
    """The `VideoVAE` with the weights of an app's decoder or encoder, made once while nobody gives it others.

    The configuration is inferred from the names and shapes of the weights, which must be a published generation's. The
    padding is what the network's convolutions state, if they do, and a diffusion decoder states its `config`. With the
    `dtype` of what the app's network is given, the VAE computes in the one that MLX makes of it and the weights'.

    Raises:
        CheckpointError: if the weights are not, or are damaged, or if the padding is not known. The network keeps its
            arrays.
    """
    weights, config = named_parameters(network), _stated_config(network)
    if (known := _known(network, weights, config)) is not None:
        return known
    checkpoint = open_weights(weights, config)
    vae = VideoVAE.from_pretrained(checkpoint, dtype=_wider(weights, dtype))
    if _is_replaced(type(network)):
        moved = {info.name for each in checkpoint.networks.values() for info in each.tensors.values()}
        blank = partial(_without_memory, moved=moved)
        network.update(tree_map_with_path(blank, network.parameters()))
        weights = named_parameters(network)
    setattr(network, _ATTRIBUTE, (weights, config, vae))
    return vae


def app_noise(decoder: nn.Module, spec: NetworkSpec, shape: Sequence[int], planes: int, seed: int) -> list[KeyedNoise]:
    """The noise of a diffusion decoder of ltx-2-mlx, as it draws it: of the video, and of keyframe planes."""
    own_key, plane_key = getattr(decoder, "noise_key", None), getattr(decoder, "_keyframe_noise_key", None)
    key = mx.random.key(seed + _SEED_OFFSET) if own_key is None else own_key(seed)
    grid = [length + sum(spec.added(axis, length)) for axis, length in zip(Axis, shape[2:], strict=True)]
    frames, height, width = spec.scale.video_grid(cast(Any, grid))
    noise = [KeyedNoise(key, (shape[0], 3, frames, height, width))]
    if planes:
        other = mx.random.split(key)[1] if plane_key is None else plane_key(seed)
        noise.append(KeyedNoise(other, (shape[0], 3, planes, height, width)))
    return noise


def _known(network: nn.Module, weights: Mapping[str, mx.array], config: dict[str, Any] | None) -> Any:
    """The VAE that was made of a network before; None if there is none, or if its weights are others now."""
    before, stated, vae = cast(_Known, getattr(network, _ATTRIBUTE, ({}, None, None)))
    is_known = before.keys() == weights.keys() and all(before[name] is weights[name] for name in weights)
    return vae if is_known and stated == config else None


def _wider(weights: Mapping[str, mx.array], dtype: mx.Dtype | None) -> Any:
    """The dtype in which an app computes with values of `dtype`, if it is another than the weights'; else None."""
    first = next(array for name, array in sorted(weights.items()) if array.ndim > 1)
    found = first.dtype if dtype is None else mx.result_type(first, mx.zeros((), dtype))
    return None if found == first.dtype else dtype_name(found)


def _is_replaced(kind: type) -> bool:
    """Return whether the single pass of an app's class is a drop-in."""
    found = [getattr(kind, name, None) for name in ("__call__", "decode", "encode")]
    return any(getattr(each, "dropin", each) in _SINGLE_PASSES for each in found)


def _stated_config(network: nn.Module) -> dict[str, Any] | None:
    """Configuration that an app's network states beside its weights, in the checkpoints' terms; None if it has none."""
    own = getattr(network, "config", None)
    if hasattr(own, "stage5_kernel"):
        return _diffusion_config(own)
    modes = {getattr(module, "spatial_padding_mode", None) for module in network.modules()} - {None}
    named = {str(getattr(mode, "value", mode)) for mode in modes}
    padding = {_PADDING.get(name) for name in named}
    if None in padding or len(padding) > 1:
        raise CheckpointError(
            f"weights: the app's decoder pads with {' and '.join(map(quote, sorted(named)))}; expected zeros or "
            "reflect in all of its convolutions."
        )
    config: dict[str, Any] = {"spatial_padding_mode": padding.pop()} if padding else {}
    if getattr(network, "causal", getattr(network, "_causal", False)):
        config["causal_decoder"] = True
    return {"_class_name": CLASS_NAME, **config} if config else None


def _diffusion_config(own: Any) -> dict[str, Any]:
    """The configuration of ltx-2-mlx's diffusion decoder, which predicts the picture in one step."""
    same = ("in_channels", "out_channels", "patch_size", "head_dim", "stage_channels", "stage_depths", "stage_kernels")
    decoder = {name: getattr(own, name) for name in (*same, "upsamples", "stage5_kernel", "timestep_scale_multiplier")}
    decoder |= {"t_emb_dim": own.t_embed_hidden, "default_num_inference_steps": 1, "_class_name": DECODER_CLASS_NAME}
    return {"_class_name": DIFFUSION_CLASS, "model_output_type": "x0", "decoder": decoder}


def _without_memory(name: str, array: mx.array, moved: Collection[str]) -> mx.array:
    """For an array that has moved, another of its shape and dtype, which loads other weights; one number in memory."""
    return mx.broadcast_to(mx.array(math.nan, array.dtype), array.shape) if name in moved else array
