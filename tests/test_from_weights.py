"""`VideoVAE.from_weights`: arrays in memory load like the file that they came from, through the same checks."""

import copy
import threading

import mlx.core as mx
import numpy as np
import pytest

from checkpoint_files import LAYOUTS, as_an_mlx_port_stores, assert_same_weights, named_parameters
from conftest import active_memory
from mlx_ltx_vae import CheckpointError, VideoVAE
from mlx_versions import streams_of_threads
from test_checkpoint_diffusers import CONFIGS, diffusers_config, to_diffusers


def config_of(golden, case):
    return copy.deepcopy(golden(case).manifest["vae_config"])


def in_mlx(tensors):
    return {name: mx.array(array) for name, array in tensors.items()}


def assert_same_vae(found, expected):
    """Configuration, every weight, statistics."""
    assert found.config == expected.config
    for network in ("encoder", "decoder"):
        ours, theirs = getattr(found, network), getattr(expected, network)
        assert (ours is None) == (theirs is None)
        if ours is not None:
            assert_same_weights(named_parameters(ours), named_parameters(theirs))
    assert mx.array_equal(found.mean, expected.mean)
    assert mx.array_equal(found.std, expected.std)


@pytest.mark.parametrize(
    ("layout", "case", "convert"),
    [("bare", "ltxv_0_9_1", mx.array), ("first stage", "ltx2_3", np.array), ("pack", "conv_16x16x4", mx.array)],
)
def test_every_layout_of_files_loads_like_the_file(golden, weights, layout, case, convert):
    stored = (LAYOUTS[layout](name, array) for name, array in weights(case).items())
    tensors = {name: convert(array) for name, array in stored}
    others = {"audio_vae.decoder.conv_in.conv.weight": np.zeros((2, 2, 3, 3)), "model.ids": np.zeros(3, np.int64)}
    found = VideoVAE.from_weights(tensors | others, config_of(golden, case))
    assert_same_vae(found, VideoVAE.from_pretrained(golden(case).checkpoint))


@pytest.mark.quick(2)
@pytest.mark.parametrize("case", CONFIGS)
def test_the_names_and_the_configuration_of_diffusers_are_understood(golden, weights, case):
    found = VideoVAE.from_weights(in_mlx(to_diffusers(case, weights(case))), diffusers_config(case, 8, 8))
    assert_same_vae(found, VideoVAE.from_pretrained(golden(case).checkpoint))


@pytest.mark.parametrize("case", ["ltxv_0_9_1", "ltx2_3", "conv_16x16x4", "pruna"])
def test_what_mlx_loads_from_a_file_decodes_like_the_file(golden, case):
    path = golden(case).checkpoint
    expected = VideoVAE.from_pretrained(path)
    found = VideoVAE.from_weights(mx.load(str(path)), config_of(golden, case))
    latents = mx.random.normal((1, 8, 1, 2, 2), key=mx.random.key(0))
    assert mx.array_equal(found.decode(latents), expected.decode(latents))


@pytest.mark.parametrize("form", ["entry", "whole", "tuples", "VAEConfig", "inferred"])
def test_a_configuration_may_have_every_form(golden, weights, form):
    raw, expected = config_of(golden, "ltx2_3"), VideoVAE.from_pretrained(golden("ltx2_3").checkpoint)
    config = {
        "entry": raw,
        "whole": {"vae": raw, "transformer": {"num_layers": 48}},
        "tuples": raw | {"decoder_blocks": tuple(map(tuple, raw["decoder_blocks"]))},
        "VAEConfig": expected.config,
        "inferred": None,
    }[form]
    assert_same_vae(VideoVAE.from_weights(weights("ltx2_3"), config), expected)
    assert raw == config_of(golden, "ltx2_3")


@pytest.mark.parametrize("network", ["encoder", "decoder"])
def test_weights_of_one_network_load_that_network(golden, weights, network):
    keep = (f"vae.{network}.", "vae.per_channel")
    tensors = {name: array for name, array in weights("ltx2_3").items() if name.startswith(keep)}
    vae = VideoVAE.from_weights(in_mlx(tensors), config_of(golden, "ltx2_3"))
    assert (vae.encoder is None, vae.decoder is None) == (network != "encoder", network != "decoder")


@pytest.mark.quick(4)
@pytest.mark.parametrize("stored", [mx.bfloat16, mx.float16, mx.float32])
@pytest.mark.parametrize("dtype", [None, "bfloat16", "float32"])
def test_the_dtype_is_that_of_the_weights_or_the_one_asked_for(golden, weights, stored, dtype):
    tensors = {name: array.astype(stored) for name, array in in_mlx(weights("ltx2_3")).items()}
    vae = VideoVAE.from_weights(tensors, config_of(golden, "ltx2_3"), dtype=dtype)
    assert vae.dtype == (stored if dtype is None else getattr(mx, dtype))
    if stored == mx.float16 and dtype is None:
        assert vae.encoder.dtype == mx.float32  # as from a file


CONV_IN, CONV_OUT = "vae.decoder.conv_in.conv.weight", "vae.decoder.conv_out.conv.bias"


def only_attention(tensors):
    """The encoder, and a tensor of a diffusion decoder."""
    kept = {name: array for name, array in tensors.items() if not name.startswith("vae.decoder.")}
    return kept | {"vae.decoder.det_stages.0.0.attn.qkv.weight": np.zeros((12, 4), np.float32)}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda old: {CONV_OUT: old[CONV_OUT][:-1]}, r"bias has the shape \(47,\), but .* expects \(48"),
        (lambda old: {CONV_OUT: None}, r"its decoder lacks tensor conv_out\.conv\.bias"),
        (lambda old: {"vae.decoder.gain": np.ones(1, np.float32)}, "its decoder has the unexpected tensor gain"),
        (lambda old: {CONV_OUT: old[CONV_OUT] + np.nan}, r"conv_out\.conv\.bias has 48 of 48 values that are NaN"),
        (lambda old: {CONV_OUT: old[CONV_OUT].astype(np.int8)}, r"conv_out\.conv\.bias is stored as int8, and only"),
        (lambda old: {CONV_OUT: old[CONV_OUT].astype(np.float64)}, "bias is stored as float64, and only"),
        (lambda old: dict.fromkeys(old), "expected a video VAE .* and found no tensor"),
        (lambda old: {CONV_OUT: [0.0] * 48}, r"expected names with mx\.array or numpy arrays, and .*bias' is a list"),
        (lambda old: {3: np.ones(2, np.float32)}, r"expected names with mx\.array or numpy arrays, and 3 is"),
        (lambda old: {CONV_IN: as_an_mlx_port_stores(CONV_IN, old[CONV_IN])}, r"are stored as \(O, I, D, H, W\)"),
        (lambda old: dict.fromkeys(old) | only_attention(old), "their configuration describes no video VAE"),
    ],
)
def test_what_a_file_may_not_have_is_a_checkpoint_error(golden, weights, change, words):
    tensors = weights("ltx2_3")
    given = {name: array for name, array in (tensors | change(tensors)).items() if array is not None}
    with pytest.raises(CheckpointError, match=rf"^weights: .*{words}"):
        VideoVAE.from_weights(given, config_of(golden, "ltx2_3"))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "their configuration describes no video VAE; pass a dict with encoder_blocks"),
        ([1], "their configuration describes no video VAE; pass a dict"),
        ("config.json", "their configuration describes no video VAE; pass a dict"),
        ({"decoder_blocks": {1, 2}}, "their configuration cannot be JSON"),
    ],
)
def test_a_configuration_that_is_none_is_an_error(weights, config, words):
    with pytest.raises(CheckpointError, match=f"^weights: {words}"):
        VideoVAE.from_weights(weights("ltx2_3"), config)


def test_a_configuration_of_other_weights_is_an_error(golden, weights):
    other = VideoVAE.from_pretrained(golden("ltx2").checkpoint).config
    with pytest.raises(CheckpointError, match="^weights: its (de|en)coder (lacks|has the unexpected) tensor"):
        VideoVAE.from_weights(weights("ltx2_3"), other)


@streams_of_threads
@pytest.mark.parametrize("name", ["vae.decoder.conv_in.conv.bias", "vae.per_channel_statistics.mean-of-means"])
def test_lazy_arrays_of_another_thread_are_a_checkpoint_error(golden, weights, name):
    tensors = in_mlx(weights("ltx2_3"))

    def make():
        mx.eval(tensors)
        tensors[name] = 2 * tensors[name]
        mx.clear_streams()

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    with pytest.raises(CheckpointError, match="weights are lazy arrays of another thread.*call mx.eval"):
        VideoVAE.from_weights(tensors, config_of(golden, "ltx2_3"))


def test_arrays_of_other_models_are_not_evaluated(golden, weights):
    """A whole model's arrays from `mx.load` are lazy, and reading them all would take 40 GB."""
    size = 1 << 28
    tensors = in_mlx(weights("ltx2_3"))
    mx.eval(tensors)
    tensors["model.diffusion_model.weight"] = mx.zeros(size, mx.uint8) + 1
    before = active_memory()
    mx.reset_peak_memory()
    VideoVAE.from_weights(tensors, config_of(golden, "ltx2_3"))
    assert mx.get_peak_memory() - before < size / 4
