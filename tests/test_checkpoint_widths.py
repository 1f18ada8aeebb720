"""Widths come from the tensors, and a block list that disagrees with them is an error that names the block."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

import synthetic_checkpoint
from checkpoint_files import Weights, assert_same_checkpoint, rewritten
from conftest import FIXTURES
from mlx_ltx_vae import VideoVAE
from mlx_ltx_vae.checkpoint import open_checkpoint, open_weights
from mlx_ltx_vae.errors import CheckpointError
from mlx_ltx_vae.models.video_vae.config import GENERATIONS, parse_vae_config

PRUNA = json.loads((FIXTURES / "pruna.json").read_text())


# --- a pruned decoder, whose widths are no powers of two ------------------------------------------------------------


def write_pruna(path: Path, blocks: list[Any] | None = None) -> Path:
    """PrunaVAED as one file with the original's names; or with another block list for its decoder."""
    config = copy.deepcopy(PRUNA["layouts"]["original"]["metadata"]["config"])
    if blocks is not None:
        config["vae"]["decoder_blocks"] = blocks
    save_file(synthetic_checkpoint.make_weights(PRUNA), path, {"config": json.dumps(config)})
    return path


def as_factors(blocks: list[Any]) -> list[Any]:
    """A block list with a fractional factor for each projection, as 64 to 48 and 48 to 32 channels."""
    factors = {48: 64 / 48, 32: 1.5}
    return [
        [name, {"multiplier": factors[options["out_channels"]]} if name == "res_x_y" else options]
        for name, options in blocks
    ]


def without_widths(blocks: list[Any]) -> list[Any]:
    return [[name, {} if name == "res_x_y" else options] for name, options in blocks]


def pruna_blocks() -> list[Any]:
    return PRUNA["layouts"]["original"]["metadata"]["config"]["vae"]["decoder_blocks"]


@pytest.fixture(params=["out_channels", "fractions", "rounded fractions", "nothing stated"])
def pruna(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "pruna.safetensors"
    if request.param == "out_channels":
        return write_pruna(path)
    if request.param == "fractions":
        return write_pruna(path, as_factors(pruna_blocks()))
    if request.param == "rounded fractions":
        blocks = json.loads(json.dumps(as_factors(pruna_blocks())).replace(str(64 / 48), "1.33"))
        return write_pruna(path, blocks)
    return write_pruna(path, without_widths(pruna_blocks()))


def test_a_pruned_decoder_matches_the_golden_data_however_its_widths_are_stated(pruna: Path) -> None:
    arrays = load_file(FIXTURES / "pruna.safetensors") | synthetic_checkpoint.make_inputs(PRUNA)
    vae = VideoVAE.from_pretrained(pruna)
    assert [block.in_channels for block in vae.config.decoder.blocks] == [128, 128, 64, 64, 48, 48, 48, 32, 16, 16, 8]
    for check in PRUNA["checks"]:
        call = vae.decode if check["op"] == "decode" else vae.encode
        result = np.array(call(mx.array(arrays[check["input"]])))
        assert list(result.shape) == check["full_shape"]
        assert np.abs(synthetic_checkpoint.select(result, check) - arrays[check["expected"]]).max() < 1e-4


@pytest.mark.parametrize(
    ("index", "block", "words"),
    [
        (4, ["res_x_y", {"out_channels": 24}], r"decoder\.up_blocks\.6 \(res_x_y\) .* 24 channels of 48, but .* 32"),
        (4, ["res_x_y", {"multiplier": 2}], r"decoder\.up_blocks\.6 \(res_x_y\) .* 24 channels of 48, but .* 32"),
        (4, ["res_x_y", {"multiplier": 1.6}], r"decoder\.up_blocks\.6 \(res_x_y\) .* 30 channels of 48, but .* 32"),
        (4, ["res_x", {"num_layers": 1}], r"lacks tensor up_blocks\.6\.res_blocks\.0\.conv1\.conv\.weight of a res_x"),
        (6, ["compress_all", {"multiplier": 2}], r"decoder\.up_blocks\.4 \(compress_all\) .* 24 channels of 48, but"),
        (9, ["compress_all", {}], r"decoder\.up_blocks\.1 \(compress_all\) .* 128 channels of 128, but .* takes 64"),
        (3, ["compress_time", {"multiplier": 1.5}], r"decoder\.up_blocks\.7 .* 21 channels of 32, but .* takes 16"),
    ],
)
def test_a_block_that_disagrees_with_the_tensors_is_named(
    tmp_path: Path, index: int, block: list[Any], words: str
) -> None:
    blocks = copy.deepcopy(pruna_blocks())
    blocks[index] = block
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(write_pruna(tmp_path / "pruna.safetensors", blocks))


# --- other widths that a configuration states -----------------------------------------------------------------------


@pytest.mark.parametrize("network", ["encoder", "decoder"])
def test_base_channels_that_the_tensors_do_not_have_are_an_error(
    golden: Callable, tmp_path: Path, network: str
) -> None:
    def change(tensors: Weights, config: dict[str, Any]) -> None:
        config[f"{network}_base_channels"] = 16

    with pytest.raises(
        CheckpointError, match=rf"its {network}_base_channels = 16 .* but the tensor {network}\.\w+_blocks"
    ):
        open_checkpoint(rewritten(golden, tmp_path, change))


def test_widths_that_are_not_stated_are_those_of_the_tensors(golden: Callable, tmp_path: Path) -> None:
    def change(tensors: Weights, config: dict[str, Any]) -> None:
        for key in ("encoder_base_channels", "decoder_base_channels", "latent_channels", "patch_size"):
            config.pop(key, None)

    changed = open_checkpoint(rewritten(golden, tmp_path, change))
    assert_same_checkpoint(changed, open_checkpoint(golden("ltx2_3").checkpoint))


def test_an_encoder_that_disagrees_is_named(golden: Callable, tmp_path: Path) -> None:
    def change(tensors: Weights, config: dict[str, Any]) -> None:
        first, _, *others = config["encoder_blocks"]
        config["encoder_blocks"] = [first, ["compress_space_res", {"multiplier": 4}], *others]

    words = r"encoder\.down_blocks\.1 \(compress_space_res\) .* makes 32 channels of 8, but the tensor encoder\.down_bl"
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(rewritten(golden, tmp_path, change))


@pytest.mark.parametrize(
    ("blocks", "words"),
    [
        ([["compress_all", {"residual": True, "multiplier": 3}]], "cannot make 128 channels of 384"),
        ([["res_x", {"out_channels": 64}]], "cannot make 64 channels of 128"),
    ],
)
def test_widths_that_a_block_cannot_have_are_an_error_without_tensors_too(blocks: list[Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        parse_vae_config({"decoder_blocks": blocks}, "file")


def test_without_tensors_a_fraction_is_rounded_and_a_stated_width_is_taken() -> None:
    blocks = [["res_x", 1], ["res_x_y", {"multiplier": 1.5}], ["res_x_y", {"out_channels": 96}], ["compress_all", 2]]
    decoder = parse_vae_config({"decoder_blocks": blocks, "decoder_base_channels": 64}, "file").decoder
    assert [(block.in_channels, block.out_channels) for block in decoder.blocks] == [
        (96, 96), (96, 96), (96, 64), (64, 64),
    ]  # fmt: skip


# --- anything else --------------------------------------------------------------------------------------------------

_SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 70), st.just(10**40), st.floats(), st.text(max_size=3),
    st.sampled_from(["res_x", "res_x_y", "compress_all", "compress_time_res", "attn", "zeros", "reflect"]),
)  # fmt: skip
_OPTIONS = st.dictionaries(
    st.sampled_from(["num_layers", "multiplier", "out_channels", "residual", "inject_noise", "x"]), _SCALARS
)
_VALUES = st.one_of(_SCALARS, _OPTIONS, st.lists(st.one_of(_SCALARS, st.tuples(_SCALARS, _OPTIONS).map(list))))


def paths_in(value: Any, path: tuple = ()) -> list[tuple]:
    """The path of every value in nested lists and dicts."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(inner for key, item in items for inner in paths_in(item, (*path, key)))]


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(data=st.data())
@pytest.mark.parametrize(
    "case",
    ["ltxv_0_9_1", "conv_16x16x4", *(pytest.param(case, marks=pytest.mark.slow) for case in ("ltxv_0_9_0", "ltx2_3"))],
)
def test_a_changed_configuration_loads_or_is_a_checkpoint_error(
    golden: Callable, weights: Callable, case: str, data: st.DataObject
) -> None:
    config = copy.deepcopy(golden(case).manifest["vae_config"])
    for _ in range(data.draw(st.integers(1, 3))):
        *parents, key = data.draw(st.sampled_from([path for path in paths_in(config) if path]))
        inside = config
        for parent in parents:
            inside = inside[parent]
        if data.draw(st.booleans()):
            inside[key] = data.draw(_VALUES)
        elif len(inside) > 1:
            del inside[key]
    try:
        vae = VideoVAE.from_pretrained(open_weights(weights(case), config))
    except CheckpointError as error:
        assert len(str(error)) < 600
    else:
        latents = mx.random.normal((1, vae.config.latent_channels, 1, 2, 2), key=mx.random.key(0))
        assert vae.decode(latents, noise="zeros").shape[:2] == (1, 3)


@pytest.mark.parametrize("name", GENERATIONS)
def test_published_widths_follow_from_the_lists_alone(name: str) -> None:
    config = parse_vae_config(GENERATIONS[name], name)
    assert config.encoder.blocks[0].in_channels == 128
    assert config.decoder.blocks[-1].out_channels == (64 if name == "PrunaVAED" else 128)
    last = {"LTX-Video 0.9.0": 512, "LTX-Video 0.9.1": 512, "LTX-2.3": 1024, "PrunaVAED": 1024}.get(name, 2048)
    assert config.encoder.blocks[-1].out_channels == last
