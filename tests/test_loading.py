"""The memory that loading takes, which is that of the weights. Nothing depends on how long it takes."""

import gc
import math
from contextlib import nullcontext
from dataclasses import replace

import mlx.core as mx
import pytest

from benchmarks.loading import write_checkpoint
from benchmarks.measuring import Case, count_weight_bytes
from checkpoint_files import open_checkpoint
from conftest import active_memory
from metal_emulation import emulated
from mlx_ltx_vae import VideoVAE
from tolerances import PEAK_MARGIN

MARGIN = 1.05 * PEAK_MARGIN  # one of the smaller layers in two layouts, or on Metal in float32


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A file of 105 MB with the layers of LTX-2.3's decoder, as the original stores them in float32."""
    path = tmp_path_factory.mktemp("loading") / "vae.safetensors"
    write_checkpoint(Case(), path)
    mx.clear_cache()
    return path


def rewrite(path, change):
    """The file with every tensor changed, beside it."""
    tensors, metadata = mx.load(str(path), return_metadata=True)
    changed = path.with_name("changed.safetensors")
    mx.save_safetensors(str(changed), {name: change(array) for name, array in tensors.items()}, metadata)
    return changed


def with_channels_last(array):
    return mx.contiguous(mx.moveaxis(array, 1, -1)) if array.ndim == 5 else array


def measure(load):
    """The bytes that a load adds at its peak, and those of the weights."""
    gc.collect()  # arrays of earlier tests, which would otherwise be let go of during the load
    before = active_memory()
    mx.reset_peak_memory()
    vae = load()
    return mx.get_peak_memory() - before, count_weight_bytes(vae)


@pytest.mark.quick(2)
@pytest.mark.parametrize("dtype", [None, "bfloat16", "float16"])
def test_loading_takes_no_more_than_the_weights(path, dtype):
    peak, weights = measure(lambda: VideoVAE.from_pretrained(path, dtype=dtype, encoder=False).load())
    assert weights < peak < MARGIN * weights


def test_nor_does_it_where_the_largest_are_stored_last(path):
    checkpoint = open_checkpoint(path)
    stored = checkpoint.networks["decoder"]
    by_size = dict(sorted(stored.tensors.items(), key=lambda item: math.prod(item[1].shape)))
    reordered = replace(checkpoint, networks={"decoder": replace(stored, tensors=by_size)})
    peak, weights = measure(lambda: VideoVAE.from_pretrained(reordered).load())
    assert weights < peak < MARGIN * weights


@pytest.mark.parametrize("where", [nullcontext, emulated])
def test_nor_in_another_layout_nor_in_the_operands_of_metal(path, where):
    changed = rewrite(path, with_channels_last if where is nullcontext else lambda array: array.astype(mx.bfloat16))
    with where():
        peak, weights = measure(lambda: VideoVAE.from_pretrained(changed, encoder=False).load())
    assert weights < peak < MARGIN * weights


def test_arrays_in_memory_are_copied_once(path):
    arrays, metadata = mx.load(str(path), return_metadata=True)
    mx.eval(arrays)
    peak, weights = measure(lambda: VideoVAE.from_weights(arrays))
    assert peak < MARGIN * weights
