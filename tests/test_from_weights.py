"""`VideoVAE.from_weights`: arrays in memory load like the file that they came from, through the same checks."""

import copy
import json
import threading
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from checkpoint_files import Weights, as_an_mlx_port_stores, assert_same_weights
from conftest import active_memory
from mlx_ltx_vae import CheckpointError, VideoVAE
from mlx_ltx_vae.backend.mlx_utils import named_parameters
from mlx_versions import streams_of_threads
from test_checkpoint_diffusers import CONFIGS, diffusers_config, to_diffusers


def config_of(golden: Callable, case: str) -> dict[str, Any]:
    return copy.deepcopy(golden(case).manifest["vae_config"])


def in_mlx(tensors: Weights) -> dict[str, mx.array]:
    return {name: mx.array(array) for name, array in tensors.items()}


def assert_same_vae(found: VideoVAE, expected: VideoVAE) -> None:
    """Configuration, every weight, statistics."""
    assert found.config == expected.config
    for network in ("encoder", "decoder"):
        ours, theirs = getattr(found, network), getattr(expected, network)
        assert (ours is None) == (theirs is None)
        if ours is not None:
            assert_same_weights(named_parameters(ours), named_parameters(theirs))
    assert mx.array_equal(found.mean, expected.mean)
    assert mx.array_equal(found.std, expected.std)


LAYOUTS = {
    "original": lambda case, tensors: tensors,
    "bare": lambda case, tensors: {name.removeprefix("vae."): array for name, array in tensors.items()},
    "first stage": lambda case, tensors: {f"first_stage_{name.replace('vae', 'model', 1)}": array
                                          for name, array in tensors.items()},
    "channels last": lambda case, tensors: {name: as_an_mlx_port_stores(name, array)
                                            for name, array in tensors.items()},
    "pack": lambda case, tensors: {name.replace("vae.encoder", "vae_encoder").replace("vae.decoder", "vae_decoder"):
                                   as_an_mlx_port_stores(name, array) for name, array in tensors.items()},
    "with others": lambda case, tensors: tensors | {"audio_vae.decoder.conv_in.conv.weight": np.zeros((2, 2, 3, 3)),
                                                    "model.diffusion_model.ids": np.zeros(3, np.int64)},
}  # fmt: skip


@pytest.mark.parametrize(
    ("layout", "case", "kind"),
    [
        (layout, *[("ltxv_0_9_1", "mlx"), ("ltx2_3", "numpy"), ("conv_16x16x4", "mlx")][index % 3])
        for index, layout in enumerate(LAYOUTS)
    ],
)
def test_every_layout_of_files_loads_like_the_file(
    golden: Callable, weights: Callable, layout: str, case: str, kind: str
) -> None:
    tensors = LAYOUTS[layout](case, weights(case))
    tensors = in_mlx(tensors) if kind == "mlx" else tensors
    found = VideoVAE.from_weights(tensors, config_of(golden, case))
    assert_same_vae(found, VideoVAE.from_pretrained(golden(case).checkpoint))


@pytest.mark.parametrize("case", CONFIGS)
def test_the_names_and_the_configuration_of_diffusers_are_understood(
    golden: Callable, weights: Callable, case: str
) -> None:
    found = VideoVAE.from_weights(in_mlx(to_diffusers(case, weights(case))), diffusers_config(case, 8, 8))
    assert_same_vae(found, VideoVAE.from_pretrained(golden(case).checkpoint))


@pytest.mark.parametrize("case", ["ltxv_0_9_1", "ltx2_3", "conv_16x16x4", "pruna"])
def test_what_mlx_loads_from_a_file_decodes_like_the_file(golden: Callable, case: str) -> None:
    path = golden(case).checkpoint
    expected = VideoVAE.from_pretrained(path)
    found = VideoVAE.from_weights(mx.load(str(path)), config_of(golden, case))
    latents = mx.random.normal((1, 8, 1, 2, 2), key=mx.random.key(0))
    assert mx.array_equal(found.decode(latents), expected.decode(latents))


@pytest.mark.parametrize("form", ["entry", "whole", "tuples", "VAEConfig", "inferred"])
def test_a_configuration_may_have_every_form(golden: Callable, weights: Callable, form: str) -> None:
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
def test_weights_of_one_network_load_that_network(golden: Callable, weights: Callable, network: str) -> None:
    keep = (f"vae.{network}.", "vae.per_channel")
    tensors = {name: array for name, array in weights("ltx2_3").items() if name.startswith(keep)}
    vae = VideoVAE.from_weights(in_mlx(tensors), config_of(golden, "ltx2_3"))
    assert (vae.encoder is None, vae.decoder is None) == (network != "encoder", network != "decoder")


@pytest.mark.parametrize("stored", [mx.bfloat16, mx.float16, mx.float32])
@pytest.mark.parametrize("dtype", [None, "bfloat16", "float32"])
def test_the_dtype_is_that_of_the_weights_or_the_one_asked_for(
    golden: Callable, weights: Callable, stored: mx.Dtype, dtype: str | None
) -> None:
    tensors = {name: array.astype(stored) for name, array in in_mlx(weights("ltx2_3")).items()}
    vae = VideoVAE.from_weights(tensors, config_of(golden, "ltx2_3"), dtype=dtype)
    assert vae.dtype == (stored if dtype is None else getattr(mx, dtype))
    if stored == mx.float16 and dtype is None:
        assert vae.encoder.dtype == mx.float32  # as from a file


def change_shape(tensors: Weights, config: dict) -> None:
    tensors["vae.decoder.conv_in.conv.bias"] = tensors["vae.decoder.conv_in.conv.bias"][:-1]


def lose(tensors: Weights, config: dict) -> None:
    del tensors["vae.decoder.conv_out.conv.bias"]


def add(tensors: Weights, config: dict) -> None:
    tensors["vae.decoder.conv_out.conv.gain"] = np.ones(1, np.float32)


def spoil(tensors: Weights, config: dict) -> None:
    tensors["vae.decoder.conv_out.conv.bias"][0] = np.nan


def quantize(tensors: Weights, config: dict) -> None:
    tensors["vae.decoder.conv_out.conv.bias"] = tensors["vae.decoder.conv_out.conv.bias"].astype(np.int8)


def widen(tensors: Weights, config: dict) -> None:
    tensors["vae.decoder.conv_out.conv.bias"] = tensors["vae.decoder.conv_out.conv.bias"].astype(np.float64)


def lose_statistics(tensors: Weights, config: dict) -> None:
    del tensors["vae.per_channel_statistics.std-of-means"]


def lose_everything(tensors: Weights, config: dict) -> None:
    tensors.clear()


def store_a_list(tensors: Weights, config: dict) -> None:
    tensors["vae.decoder.conv_out.conv.bias"] = [0.0] * 48


def use_a_number(tensors: Weights, config: dict) -> None:
    tensors[3] = np.ones(2, np.float32)


def empty_config(tensors: Weights, config: dict) -> None:
    config.clear()


def set_in_config(tensors: Weights, config: dict) -> None:
    config["decoder_blocks"] = {1, 2}


def narrow_config(tensors: Weights, config: dict) -> None:
    config["decoder_blocks"][1] = ["compress_space", {"multiplier": 4}]


def mix_layouts(tensors: Weights, config: dict) -> None:
    name = "vae.decoder.conv_in.conv.weight"
    tensors[name] = as_an_mlx_port_stores(name, tensors[name])


def replace_decoder(tensors: Weights, config: dict) -> None:
    for name in [name for name in tensors if name.startswith("vae.decoder.")]:
        del tensors[name]
    tensors["vae.decoder.det_stages.0.0.attn.qkv.weight"] = np.zeros((12, 4), np.float32)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            change_shape,
            r"tensor decoder\.conv_in\.conv\.bias has the shape \(63,\), but the configuration expects \(64",
        ),
        (lose, r"its decoder lacks tensor conv_out\.conv\.bias"),
        (add, r"its decoder has the unexpected tensor conv_out\.conv\.gain"),
        (spoil, r"decoder\.conv_out\.conv\.bias has 1 of 48 values that are NaN"),
        (quantize, r"conv_out\.conv\.bias is stored as int8, and only"),
        (widen, r"conv_out\.conv\.bias is stored as float64, and only"),
        (lose_statistics, r"the statistics of the latents .* are missing"),
        (lose_everything, r"expected a video VAE .* and found no tensor"),
        (store_a_list, r"expected names with mx\.array or numpy arrays, and .*conv_out\.conv\.bias' is a list"),
        (use_a_number, r"expected names with mx\.array or numpy arrays, and 3 is"),
        (empty_config, r"their configuration describes no video VAE; pass a dict with encoder_blocks"),
        (set_in_config, r"their configuration cannot be JSON"),
        (narrow_config, r"decoder\.up_blocks\.7 \(compress_space\) .* makes 4 channels of 16, but"),
        (mix_layouts, r"some of its convolution weights are stored as \(O, I, D, H, W\)"),
        (replace_decoder, r"their configuration describes no video VAE"),
    ],
)
def test_what_a_file_may_not_have_is_a_checkpoint_error(
    golden: Callable, weights: Callable, change: Callable, words: str
) -> None:
    tensors, config = weights("ltx2_3"), config_of(golden, "ltx2_3")
    change(tensors, config)
    with pytest.raises(CheckpointError, match=rf"^weights: .*{words}"):
        VideoVAE.from_weights(tensors, config)


def test_a_configuration_of_other_weights_is_an_error(golden: Callable, weights: Callable) -> None:
    other = VideoVAE.from_pretrained(golden("ltx2").checkpoint).config
    with pytest.raises(CheckpointError, match="^weights: its (de|en)coder (lacks|has the unexpected) tensor"):
        VideoVAE.from_weights(weights("ltx2_3"), other)


@pytest.mark.parametrize("config", [[1], "config.json", 3, json.dumps({"vae": {}})])
def test_a_configuration_that_is_no_dict_is_an_error(weights: Callable, config: object) -> None:
    with pytest.raises(CheckpointError, match="their configuration describes no video VAE; pass a dict"):
        VideoVAE.from_weights(weights("ltx2_3"), config)


@streams_of_threads
@pytest.mark.parametrize("name", ["vae.decoder.conv_in.conv.bias", "vae.per_channel_statistics.mean-of-means"])
def test_lazy_arrays_of_another_thread_are_a_checkpoint_error(golden: Callable, weights: Callable, name: str) -> None:
    tensors = in_mlx(weights("ltx2_3"))

    def make() -> None:
        mx.eval(tensors)
        tensors[name] = 2 * tensors[name]
        mx.clear_streams()

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    with pytest.raises(CheckpointError, match="weights are lazy arrays of another thread.*call mx.eval"):
        VideoVAE.from_weights(tensors, config_of(golden, "ltx2_3"))


def test_arrays_of_other_models_are_not_evaluated(golden: Callable, weights: Callable) -> None:
    """A whole model's arrays from `mx.load` are lazy, and reading them all would take 40 GB."""
    size = 1 << 28
    tensors = in_mlx(weights("ltx2_3"))
    mx.eval(tensors)
    tensors["model.diffusion_model.weight"] = mx.zeros(size, mx.uint8) + 1
    before = active_memory()
    mx.reset_peak_memory()
    VideoVAE.from_weights(tensors, config_of(golden, "ltx2_3"))
    assert mx.get_peak_memory() - before < size / 4
