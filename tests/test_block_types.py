"""A new kind of block is one module and two entries: what the rest of the package says about it follows."""

import math

import mlx.core as mx
import mlx.nn as nn
import pytest

from mlx_ltx_vae import VideoVAE
from mlx_ltx_vae.backend.mlx_utils import named_parameters
from mlx_ltx_vae.networks.base import Statistics
from mlx_ltx_vae.networks.specs import LayerSpec
from mlx_ltx_vae.networks.video_vae import block_types, networks
from mlx_ltx_vae.networks.video_vae.block_types import BlockName, BlockType
from mlx_ltx_vae.networks.video_vae.config import decoder_spec, encoder_spec, parse_vae_config
from mlx_ltx_vae.networks.video_vae.networks import ConvDecoder, ConvEncoder
from mlx_ltx_vae.planning.clip import lookahead, receptive_field
from mlx_ltx_vae.shapes import Axis, WindowSpec
from mlx_ltx_vae.streaming.context import Stage, StreamContext
from mlx_ltx_vae.streaming.window import Window
from tolerances import tolerance

STATISTICS = Statistics(mx.zeros(8), mx.ones(8))
RAW = {
    "latent_channels": 8,
    "encoder_blocks": [["res_x", 1], ["compress_all_res", 1]],
    "decoder_blocks": [["res_x", 1], ["compress_all", {"multiplier": 2}], ["echo", {}]],
    "encoder_base_channels": 8,
    "decoder_base_channels": 8,
    "spatial_padding_mode": "zeros",
}


class Echo(nn.Module):
    """Each frame plus a learned share of the second one before it, along time alone."""

    def __init__(self, spec):
        super().__init__()
        self.share = mx.full((spec.in_channels,), 0.25)
        self._spec_window = spec.window

    def stages(self, context):
        axis = context.axis
        window = Window(axis, self._spec_window(axis))

        def step(x, last):
            view = window.push(x, last)
            if view is None:
                return None
            frames = view.frames
            lead = 2 if axis is not Axis.TIME else view.before
            frames = mx.concatenate([frames[:, :1]] * lead + [frames], axis=1)
            return frames[:, 2:] + self.share * frames[:, :-2]

        return [Stage(step, window)]


def echo_layers(block, options, name):
    windows = (WindowSpec(3, 1, 2, 0), WindowSpec(), WindowSpec())
    weights = ((f"{name}.share", (block.in_channels,)),)
    return [LayerSpec(name, block.in_channels, block.out_channels, windows=windows, weights=weights)]


@pytest.fixture
def vae(monkeypatch):
    echo = BlockType("echo", echo_layers)
    monkeypatch.setitem(block_types.DECODER_BLOCKS, "echo", BlockName(echo))
    monkeypatch.setitem(networks.BLOCK_MODULES, echo, Echo)
    config = parse_vae_config(RAW, "test")
    mx.random.seed(3)
    return VideoVAE(config, None, ConvDecoder(config, STATISTICS))


def test_a_block_of_a_new_type_decodes_exactly_in_every_order(vae):
    latents = mx.random.normal((1, 8, 5, 3, 3), key=mx.random.key(2))
    single = vae.decode(latents, vae.plan(latents.shape, mode="single"))
    without = mx.concatenate([chunk.frames for chunk in vae.stream(latents)], axis=1)
    assert single.shape == (1, 3, 9, 24, 24)
    for order in ("time", "rows", "columns"):
        plan = vae.plan(latents.shape, order=order)
        assert mx.abs(vae.decode(latents, plan) - single).max().item() < tolerance(2e-5)
    vae.decoder.up_blocks[0].share = mx.zeros_like(vae.decoder.up_blocks[0].share)
    silent = mx.concatenate([chunk.frames for chunk in vae.stream(latents)], axis=1)
    assert mx.abs(silent - without).max().item() > 1e-3


def test_plans_and_counts_follow_from_its_spec(vae):
    spec = vae.decoder.spec
    expected = sum(math.prod(array.shape) for array in named_parameters(vae.decoder).values())
    assert spec.num_weights == expected
    # It looks back two latent frames and never ahead.
    plain = decoder_spec(parse_vae_config({**RAW, "decoder_blocks": RAW["decoder_blocks"][:2]}, "test"))
    assert receptive_field(spec).frames_before == receptive_field(plain).frames_before + 2
    assert receptive_field(spec).frames_after == receptive_field(plain).frames_after
    assert lookahead(spec) == lookahead(plain)
    assert vae.plan((1, 8, 5, 3, 3)).memory.caches > 0


@pytest.mark.parametrize("name", ["ltxv_0_9_0", "ltxv_0_9_1", "ltx2_3_causal", "conv_16x16x4"])
def test_every_network_is_what_its_specs_say(golden, name):
    """Weights by name and shape, one stage per layer, and the grids and channels that pass each of them."""
    config = parse_vae_config(golden(name).manifest["vae_config"], name)
    scale = config.scale
    latent_grid = (2, 2, 3)
    for network, spec, grid in (
        (ConvDecoder(config, STATISTICS), decoder_spec(config), latent_grid),
        (ConvEncoder(config, STATISTICS), encoder_spec(config), scale.video_grid(latent_grid)),
    ):
        assert {key: array.shape for key, array in named_parameters(network).items()} == spec.weights
        assert spec.scale == scale
        maps = {key: mx.zeros(shape) for key, shape in spec.noise_shapes(grid).items()}
        timesteps = mx.array([0.05]) if spec.has_timestep else None
        stages = network.stages(StreamContext(timesteps=timesteps, noise_maps=maps))
        x = mx.random.normal((1, *grid, spec.in_channels), key=mx.random.key(0))
        for stage, (layer, extents) in zip(stages, spec.walk(grid), strict=True):
            assert x.shape == (1, *extents, layer.in_channels), layer.name
            x = stage.step(x, True)
            assert x.shape == (1, *layer.out_grid(extents), layer.out_channels), layer.name
