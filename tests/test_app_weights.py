"""What an app has after an installation, and after a drop-in that failed: its weights, bit by bit."""

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten, tree_unflatten

from app_packages import give_back_weights, network_arrays
from mlx_ltx_vae import integrations


class AppDecoder(nn.Module):
    __call__ = integrations.decode_whole

    def __init__(self, arrays):
        super().__init__()
        for name, value in tree_unflatten(list(arrays.items())).items():
            setattr(self, name, value)


class AppEncoder(AppDecoder):
    __call__ = integrations.encode_whole


def channels_first(array):
    return mx.contiguous(mx.moveaxis(array, -1, 1)) if array.ndim == 5 else array


@pytest.mark.quick(5)
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("arrange", [lambda array: array, channels_first])
@pytest.mark.parametrize(
    ("kind", "case"),
    [(AppDecoder, "ltx2"), (AppDecoder, "ltx2_3"), (AppDecoder, "ltxv_0_9_5"), (AppEncoder, "ltx2_3")],
)
def test_an_apps_network_gets_the_weights_back_that_it_had(weights, kind, case, arrange, dtype):
    """Bit by bit: Conv3d keeps them in another axis order, and those before a depth-to-space in another order too."""
    name = "decoder" if kind is AppDecoder else "encoder"
    arrays = {key: arrange(array).astype(dtype) for key, array in network_arrays(weights(case), name).items()}
    network, before = kind(arrays), dict(arrays)
    mx.eval(arrays)
    vae = integrations.vae_of(network)
    kept = [key for key, array in tree_flatten(network.parameters()) if array is before[key] and array.ndim == 5]
    assert kept == (["conv_out.conv.weight"] if name == "encoder" else [])  # of which the VAE has only the mean's part
    used = dict(tree_flatten(network.parameters()))  # what an app's function that has no drop-in would use
    assert all(mx.array_equal(array, before[key]) for key, array in used.items())
    del used
    give_back_weights()
    after = dict(tree_flatten(network.parameters()))
    assert after.keys() == before.keys()
    for key, array in after.items():
        assert (array.shape, array.dtype) == (before[key].shape, before[key].dtype)
        assert mx.array_equal(array, before[key]), key
    assert integrations.vae_of(network) is not vae
