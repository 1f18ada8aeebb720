"""Single layers at the published widths, against results of the CPU: the first that a new GPU should compute."""

import numpy as np
import pytest

import real_width_layers
from checkpoint_files import AUDIO, PICTURES
from metal_emulation import EmulatedGPU, emulated
from mlx_ltx_vae.networks.convolution.rules import Formulation
from mlx_ltx_vae.networks.families import published
from real_width_layers import LAYERS, Expected, convolution, module_path, plane, preview
from tolerances import cpu_only

# Twice the emulated error, and what two roundings of a dtype may come to: attention and exponentials are not emulated.
_FACTOR = 2
_FLOORS = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 8e-3}
# The largest of 512 differences, of their rms: 3.2 for a normal distribution.
_LARGEST = 12

QUICK = "ltx-2.3 vocoder bwe_generator.resblocks.14"
WINOGRAD = "ltx-2.3 decoder up_blocks.8.res_blocks.0"


@pytest.fixture(scope="module")
def expected():
    return Expected()


def find_problems(expected, layer, dtype, **options):
    """What is wrong with a layer's result on the default device."""
    expected.check_input(layer)
    limit = max(_FACTOR * expected.emulated_error(layer, dtype), _FLOORS[dtype])
    errors = expected.errors(layer, real_width_layers.run_layer(layer, dtype, **options))
    limits = {"rms": limit, "largest": _LARGEST * limit, "norm": limit}
    # Not a NaN either.
    return {name: (error, limits[name]) for name, error in errors.items() if not error <= limits[name]}


@pytest.mark.layers
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_at_a_published_width_agrees_with_the_cpu(expected, name):
    """In every dtype, of the same random values."""
    layer = LAYERS[name]
    try:
        assert {dtype: find_problems(expected, layer, dtype) for dtype in layer.dtypes} == dict.fromkeys(
            layer.dtypes, {}
        )
    finally:
        real_width_layers.forget()  # a virtual Mac has 5 GB


def test_the_layers_cover_the_widths_and_the_kernels_of_metal(expected):
    """Also whether what is stored is of today's list."""
    routes = {name: expected.routes(layer) for name, layer in LAYERS.items()}
    assert sum("winograd" in each for each in routes.values()) >= 8
    assert sum("product" in each for each in routes.values()) >= 8
    diffusion = {layer.width for layer in LAYERS.values() if layer.generation == "ltx-2.5-diffusion"}
    assert diffusion >= {48, 128, 256, 512, 1024, 2048}


@pytest.mark.parametrize(
    ("medium", "family", "key"),
    [(PICTURES, "video_vae", convolution), (PICTURES, "preview_vae", preview), (AUDIO, "audio_vae", plane)],
)
def test_every_width_of_every_published_vae_is_among_the_layers(medium, family, key):
    def keys(generation, network):
        made = published(medium)[generation]
        layers = made.spec(made.published[generation](), network).layers
        return {module_path(each): key(each) for each in reversed(layers) if each.weights}

    generations = [name for name, each in published(medium).items() if each.name == family]
    own = [each for each in LAYERS.values() if each.generation in generations and each.is_audio == (medium is AUDIO)]
    found = {keys(each.generation, each.network).get(each.path) for each in own}
    for generation in generations:
        for network in medium.networks[:2]:
            assert set(keys(generation, network).values()) <= found, (generation, network)


def test_the_smallest_layer_agrees_here(expected):
    assert find_problems(expected, LAYERS[QUICK], "float32") == {}


@cpu_only("a damaged result is one on any device")
def test_a_layer_that_is_wrong_in_a_part_is_found(expected, monkeypatch):
    layer, run = LAYERS[QUICK], real_width_layers.run_layer

    def damaged(*arguments):
        result = run(*arguments)
        result[:, -70:] = 0  # as kernels have returned zeros in silence
        return result

    monkeypatch.setattr(real_width_layers, "run_layer", damaged)
    assert find_problems(expected, layer, "float32").keys() == {"rms", "largest", "norm"}
    monkeypatch.setattr(real_width_layers, "run_layer", lambda *arguments: run(*arguments) * np.nan)
    assert find_problems(expected, layer, "float32")


@cpu_only("it is about the emulation")
@pytest.mark.slow
def test_bfloat16_in_winograd_kernels_is_found(expected):
    """Which the package's rule avoids, by operands in float16."""
    gpu = EmulatedGPU(formulation=Formulation.CONV3D)
    with emulated():
        assert find_problems(expected, LAYERS[WINOGRAD], "bfloat16") == {}
    with emulated(gpu):
        assert "rms" in find_problems(expected, LAYERS[WINOGRAD], "bfloat16", rule=gpu.choose, keeps_dtype=True)
