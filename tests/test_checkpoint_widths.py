"""Widths come from the tensors, and a block list that disagrees with them is an error that names the block."""

import copy

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkpoint_files import assert_same_checkpoint, open_checkpoint, open_weights, rewritten
from mlx_ltx_vae import CheckpointError, VideoVAE
from vae_configs import GENERATIONS, decoder_spec, parse_vae_config

# --- a pruned decoder, whose widths are no powers of two ------------------------------------------------------------


def projections(blocks, options_of):
    """A block list with other options for each projection, as 64 to 48 and 48 to 32 channels, by its output width."""
    return [[name, options_of(options["out_channels"]) if name == "res_x_y" else options] for name, options in blocks]


@pytest.mark.parametrize(
    "options_of",
    [
        lambda width: {"multiplier": {48: 64 / 48, 32: 1.5}[width]},
        lambda width: {},
    ],
    ids=["fractions", "nothing stated"],
)
def test_the_widths_of_a_pruned_decoder_may_be_stated_otherwise(golden, tmp_path, options_of):
    def change(tensors, config):
        config["decoder_blocks"] = projections(config["decoder_blocks"], options_of)

    found = open_checkpoint(rewritten(golden, tmp_path, change, "pruna"))
    widths = [block.in_channels for block in found.config.decoder.blocks]
    assert widths == [128, 128, 64, 64, 48, 48, 48, 32, 16, 16, 8]
    assert_same_checkpoint(found, open_checkpoint(golden("pruna").checkpoint))
    VideoVAE.from_pretrained(found)


def test_a_fraction_of_the_published_widths_may_be_rounded():
    raw = GENERATIONS["PrunaVAED"]
    config, short = parse_vae_config(raw, ""), {4 / 3: 1.33}
    blocks = [
        (name, {key: short.get(value, value) for key, value in options.items()})
        for name, options in raw["decoder_blocks"]
    ]
    stored = {"decoder": decoder_spec(config).weights}
    assert parse_vae_config({**raw, "decoder_blocks": blocks}, "", stored).decoder == config.decoder


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
def test_a_block_that_disagrees_with_the_tensors_is_named(golden, tmp_path, index, block, words):
    def change(tensors, config):
        config["decoder_blocks"] = [*config["decoder_blocks"][:index], block, *config["decoder_blocks"][index + 1 :]]

    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(rewritten(golden, tmp_path, change, "pruna"))


# --- other widths that a configuration states -----------------------------------------------------------------------


@pytest.mark.parametrize("network", ["encoder", "decoder"])
def test_base_channels_that_the_tensors_do_not_have_are_an_error(golden, tmp_path, network):
    def change(tensors, config):
        config[f"{network}_base_channels"] = 16

    with pytest.raises(
        CheckpointError, match=rf"its {network}_base_channels = 16 .* but the tensor {network}\.\w+_blocks"
    ):
        open_checkpoint(rewritten(golden, tmp_path, change))


def test_widths_that_are_not_stated_are_those_of_the_tensors(golden, tmp_path):
    def change(tensors, config):
        for key in ("encoder_base_channels", "decoder_base_channels", "latent_channels", "patch_size"):
            config.pop(key, None)

    changed = open_checkpoint(rewritten(golden, tmp_path, change))
    assert_same_checkpoint(changed, open_checkpoint(golden("ltx2_3").checkpoint))


def test_an_encoder_that_disagrees_is_named(golden, tmp_path):
    def change(tensors, config):
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
def test_widths_that_a_block_cannot_have_are_an_error_without_tensors_too(blocks, words):
    with pytest.raises(CheckpointError, match=words):
        parse_vae_config({"decoder_blocks": blocks}, "file")


def test_without_tensors_a_fraction_is_rounded_and_a_stated_width_is_taken():
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


def paths_in(value, path=()):
    """The path of every value in nested lists and dicts."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(inner for key, item in items for inner in paths_in(item, (*path, key)))]


SLOW = ["ltxv_0_9_0", "ltxv_0_9_1", "ltx2_3"]


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(data=st.data())
@pytest.mark.parametrize(
    "case", ["small_ltxv_0_9_1", "conv_16x16x4", *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW)]
)
def test_a_changed_configuration_loads_or_is_a_checkpoint_error(golden, weights, case, data):
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
def test_published_widths_follow_from_the_lists_alone(name):
    config = parse_vae_config(GENERATIONS[name], name)
    assert config.encoder.blocks[0].in_channels == 128
    assert config.decoder.blocks[-1].out_channels == (64 if name == "PrunaVAED" else 128)
    last = {"LTX-Video 0.9.0": 512, "LTX-Video 0.9.1": 512, "LTX-2.3": 1024, "PrunaVAED": 1024}.get(name, 2048)
    assert config.encoder.blocks[-1].out_channels == last
