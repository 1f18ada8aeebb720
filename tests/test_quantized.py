"""Weights in MLX's affine format: every network loads the values that the format states, by its formula in numpy."""

import json

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file

from audio_cases import make_case, random_latents
from checkpoint_files import AUDIO, PICTURES, STATISTICS_TENSORS, open_checkpoint, open_weights, read_all
from commands import convert, info
from mlx_ltx_vae import AudioVAE, CheckpointError, PreviewVAE, VideoVAE
from tolerances import tolerance

quiet = pytest.mark.filterwarnings("ignore:.*are quantized")

PICTURE_CASES = ["ltx2_3", "ltxv_0_9_1", "ltx2_5_diffusion", "taehv_ltx2"]


def quantize(tensors, bits, group_size, dtype=mx.float32):
    """The weights with whole groups as MLX quantizes them, and the others as they are."""
    stored = {}
    for name, array in tensors.items():
        is_weight = name.endswith(".weight") and array.ndim > 1
        if is_weight and array.shape[-1] % group_size == 0:
            parts = mx.quantize(array.astype(dtype), group_size=group_size, bits=bits)
            stem = name.removesuffix("weight")
            stored |= {
                f"{stem}{part}": value for part, value in zip(("weight", "scales", "biases"), parts, strict=True)
            }
        else:
            stored[name] = array
    return stored


def formula(weight, scales, biases, bits):
    """scale * integer + bias, with the integers of a row as consecutive bits, the lowest first."""
    flags = np.unpackbits(np.ascontiguousarray(weight).view(np.uint8), axis=-1, bitorder="little")
    integers = flags.reshape(*weight.shape[:-1], -1, bits) @ (1 << np.arange(bits))
    groups = integers.reshape(*scales.shape, -1).astype(np.float32)
    return (scales[..., None] * groups + biases[..., None]).reshape(integers.shape)


def dequantize(stored, bits):
    """The stored tensors as float32 in numpy, quantized ones by the formula."""
    arrays = {name: np.array(a if a.dtype == mx.uint32 else a.astype(mx.float32)) for name, a in stored.items()}
    values = {name: array for name, array in arrays.items() if not name.endswith((".scales", ".biases"))}
    for name in values:
        stem = name.removesuffix("weight")
        if f"{stem}scales" in arrays:
            values[name] = formula(arrays[name], arrays[f"{stem}scales"], arrays[f"{stem}biases"], bits)
    return values


def save(path, tensors, config):
    path.parent.mkdir(exist_ok=True)
    mx.save_safetensors(str(path), tensors, {"config": json.dumps({"vae": config})} if config else {})
    return path


def open_case(golden, tmp_path, name, medium=PICTURES):
    source = make_case(name, tmp_path).checkpoint if medium is AUDIO else golden(name).checkpoint
    return open_checkpoint(source, medium=medium)


@pytest.mark.quick(2)
@quiet
@pytest.mark.parametrize(("bits", "group_size"), [(4, 32), (8, 64), (3, 32)])
@pytest.mark.parametrize("name", [*PICTURE_CASES, "audio"])
def test_every_network_reads_the_values_of_the_formula(golden, tmp_path, name, bits, group_size):
    medium = AUDIO if name == "audio" else PICTURES
    original = open_case(golden, tmp_path, "ltx2_3" if medium is AUDIO else name, medium)
    stored = quantize(read_all(original), bits, group_size)
    expected = dequantize(stored, bits)
    for config in (
        original.raw_config,
        original.raw_config | {"quantization": {"bits": bits, "group_size": group_size}},
    ):
        found = open_checkpoint(save(tmp_path / "q" / "vae.safetensors", stored, config), medium=medium)
        assert (found.family, found.config) == (original.family, original.config)
        assert found.networks["decoder"].quantized
        for network, part in found.networks.items():
            assert {(info.bits, info.group_size) for info in part.quantized} <= {(bits, group_size)}
            for key, array in part.read(mx.float32):
                values = expected[f"{network}.{key}"]
                assert (array.shape, array.dtype) == (values.shape, mx.float32), key
                np.testing.assert_allclose(np.array(array), values, rtol=0, atol=1e-6 * np.abs(values).max())


@pytest.mark.quick(1)
@quiet
@pytest.mark.parametrize("name", ["ltx2_3", "ltx2_5_diffusion", "audio"])
def test_a_quantized_vae_decodes_as_one_with_the_values_of_the_formula(golden, tmp_path, name):
    medium = AUDIO if name == "audio" else PICTURES
    original = open_case(golden, tmp_path, "ltx2_3" if medium is AUDIO else name, medium)
    stored = quantize(read_all(original), 4, 32)
    values = {key: mx.array(array) for key, array in dequantize(stored, 4).items()}
    vae_class = AudioVAE if medium is AUDIO else VideoVAE
    vaes = [
        vae_class.from_pretrained(
            open_checkpoint(save(tmp_path / folder / "vae.safetensors", tensors, config), medium=medium)
        )
        for folder, tensors in (("quantized", stored), ("dense", values))
        for config in [original.raw_config]
    ]
    latents = random_latents(3) if medium is AUDIO else np.random.default_rng(0).normal(size=(1, 8, 2, 3, 3))
    results = [vae.decode(mx.array(latents.astype(np.float32))) for vae in vaes]
    assert results[0].shape == results[1].shape
    assert mx.abs(results[0] - results[1]).max().item() < tolerance(1e-4)
    assert mx.abs(results[0] - vae_class.from_pretrained(original).decode(mx.array(latents))).max().item() > 1e-3


@quiet
def test_scales_in_half_precision_are_used_at_full_precision_and_rounded_once(golden, tmp_path):
    original = open_case(golden, tmp_path, "ltx2_5_diffusion")
    stored = quantize(read_all(original), 4, 32, mx.bfloat16)
    path = save(tmp_path / "vae.safetensors", stored, original.raw_config)
    expected = {name: mx.array(array) for name, array in dequantize(stored, 4).items()}
    for dtype, load_dtype in ((None, mx.bfloat16), ("float32", mx.float32), ("float16", mx.float16)):
        decoder = VideoVAE.from_pretrained(path, dtype=dtype, encoder=False).decoder
        weight = decoder.det_stages[0][0].attn.qkv.weight
        assert weight.dtype == load_dtype
        values = expected["decoder.det_stages.0.0.attn.qkv.weight"].astype(load_dtype)
        assert mx.abs(weight - values).max().item() <= 2e-7 * mx.abs(values).max().item() or mx.array_equal(
            weight, values
        )


@pytest.mark.slow
def test_the_group_size_follows_from_the_widths_without_any_configuration(golden, tmp_path):
    """The configuration is inferred from the shapes, which depend on the group size."""
    for name in ("ltx2_5_diffusion_published", "ltx2_3", "taehv_ltx2_wide"):
        original = open_case(golden, tmp_path, name)
        stored = quantize(read_all(original), 8, 32)
        path = save(tmp_path / name / "vae.safetensors", stored, None)
        with pytest.warns(UserWarning, match=r"are quantized \(8-bit in groups of 32\) and dequantized when they"):
            found = open_checkpoint(path)
        assert found.config.latent_channels == original.config.latent_channels
        assert {name: part.shapes for name, part in found.networks.items()} == {
            name: part.shapes for name, part in original.networks.items()
        }
        (PreviewVAE if "taehv" in name else VideoVAE).from_pretrained(found)


@quiet
def test_layers_of_several_widths_of_bits_and_files_of_several_shards_load(golden, tmp_path):
    original = open_case(golden, tmp_path, "ltx2_5_diffusion")
    tensors = read_all(original)
    first = {name: array for name, array in tensors.items() if "det_stages" in name}
    others = {name: array for name, array in tensors.items() if name not in first}
    stored = quantize(first, 4, 64) | quantize(others, 8, 32)
    expected = dequantize(quantize(first, 4, 64), 4) | dequantize(quantize(others, 8, 32), 8)
    is_last = {name: name.endswith((".scales", ".biases")) for name in stored}
    for number in (1, 2):
        shard = {name: array for name, array in stored.items() if is_last[name] == (number == 2)}
        mx.save_safetensors(str(tmp_path / f"model-0000{number}-of-00002.safetensors"), shard)
    (tmp_path / "config.json").write_text(json.dumps(original.raw_config | {"quantization": {"bits": 4}}))
    for key, array in open_checkpoint(tmp_path).networks["decoder"].read():
        values = expected[f"decoder.{key}"]
        np.testing.assert_allclose(np.array(array), values, rtol=0, atol=1e-6 * np.abs(values).max())


@quiet
def test_arrays_of_an_app_may_be_quantized(golden, tmp_path):
    original = open_case(golden, tmp_path, "ltx2_5_diffusion")
    stored = quantize(read_all(original), 4, 32)
    expected = dequantize(stored, 4)
    for arrays in (stored, {name: np.array(array) for name, array in stored.items()}):
        found = open_weights(arrays, original.raw_config)
        values = dict(found.networks["decoder"].read())["det_stages.0.0.attn.qkv.weight"]
        np.testing.assert_allclose(
            np.array(values), expected["decoder.det_stages.0.0.attn.qkv.weight"], rtol=0, atol=1e-6
        )


def test_info_and_a_conversion_say_what_is_stored(golden, tmp_path, capsys):
    original = open_case(golden, tmp_path, "ltx2_3")
    path = save(tmp_path / "vae.safetensors", quantize(read_all(original), 4, 32), original.raw_config)
    assert info([str(path), "--json"]) == 0
    out, err = capsys.readouterr()
    decoder = json.loads(out)["decoder"]
    assert decoder["quantization"] == [{"bits": 4, "group_size": 32}]
    assert decoder["bytes"] == sum(a.nbytes for name, a in load_arrays(path).items() if name.startswith("decoder."))
    assert err.count("\n") == 1
    assert err.startswith(
        "warning: vae.safetensors: weights of its encoder and decoder are quantized (4-bit in groups of 32)"
    )
    for source in (path, tmp_path):
        assert info([str(source)]) == 0
        out, err = capsys.readouterr()
        assert "encoder and decoder in float32, quantized to 4 bits, " in out.split("\n")[0]
        assert err.count("warning: ") == 1
    assert convert([str(path), "-o", str(tmp_path / "dense"), "-q"]) == 0
    dense = load_file(tmp_path / "dense" / "model.safetensors")
    assert {array.dtype for array in dense.values()} == {np.dtype(np.float32)}
    assert dense.keys() == read_all(original).keys() >= set(STATISTICS_TENSORS)


def load_arrays(path):
    return mx.load(str(path))


@pytest.mark.parametrize("lost", ["scales", "biases", "shape", "mode"])
def test_what_is_quantized_in_part_or_in_another_way_is_an_error_of_one_sentence(golden, tmp_path, lost):
    original = open_case(golden, tmp_path, "ltx2_3")
    stored = quantize(read_all(original), 4, 32)
    stem = next(name for name in stored if name.endswith(".scales")).removesuffix("scales")
    if lost == "shape":
        stored[f"{stem}scales"] = stored[f"{stem}scales"][..., :0]
    elif lost == "mode":  # mxfp4 and its like have one byte per scale and no biases
        stored[f"{stem}scales"] = stored[f"{stem}scales"].astype(mx.uint8)
        stored.pop(f"{stem}biases")
    else:
        stored.pop(f"{stem}{lost}")
    path = save(tmp_path / "vae.safetensors", stored, original.raw_config)
    with pytest.raises(CheckpointError, match=r"weight is stored as uint32, .*in MLX's affine format, with \.scales"):
        open_checkpoint(path)
