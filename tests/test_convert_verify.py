"""Verification compares every bit and names what differs; conversion holds one VAE in memory."""

import json
import math
import re

import mlx.core as mx
import numpy as np
import pytest

from checkpoint_files import measured, rewritten
from mlx_ltx_vae import LTXVAEError, conversion
from test_convert import convert, verify_paths
from tolerances import ON_CPU
from vae_configs import decoder_spec, parse_vae_config

WEIGHT, BIAS = "decoder.up_blocks.2.res_blocks.0.conv1.conv.weight", "decoder.conv_out.conv.bias"
ZERO = "encoder.conv_in.conv.bias"


def flip_one_bit(array):
    array.view(np.uint32)[1, 2, 0, 1, 2] ^= 1
    return array


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (WEIGHT, flip_one_bit, "tensor {} is not the source's"),
        (ZERO, np.negative, "tensor {} is not the source's"),
        (BIAS, None, "b.safetensors: its decoder lacks tensor conv_out.conv.bias"),
        ("decoder.gain", lambda _: np.ones(1, np.float32), "b.safetensors: its decoder has the unexpected tensor gain"),
        (BIAS, lambda array: array.reshape(2, -1), "b.safetensors: tensor {} has the shape (2, 24)"),
        (None, "replicate", "its configuration differs from the source a.safetensors in encoder"),
    ],
)
def test_verification_names_what_differs(golden, tmp_path, name, change, message):
    def zero(tensors, config):
        tensors[f"vae.{ZERO}"][:] = 0

    def spoil(tensors, config):
        zero(tensors, config)
        array = tensors.pop(f"vae.{name}", None)
        if name is None:
            config["spatial_padding_mode"] = change
        elif change is not None:
            tensors[f"vae.{name}"] = change(array)

    source = rewritten(golden, tmp_path, zero).rename(tmp_path / "a.safetensors")
    other = rewritten(golden, tmp_path, spoil).rename(tmp_path / "b.safetensors")
    with pytest.raises(LTXVAEError, match=re.escape(message.format(name))):
        verify_paths(source, other)


def test_a_cast_is_distinguished_from_other_weights(golden, tmp_path):
    source = golden("conv_16x16x4").checkpoint
    convert(source, tmp_path / "cast", dtype=mx.bfloat16)
    assert verify_paths(source, tmp_path / "cast").cast > 0
    with pytest.raises(LTXVAEError, match=r"conv_in\.conv\.bias is not the source's cast to float32 \(cast, bf"):
        verify_paths(tmp_path / "cast", source)


@pytest.mark.parametrize("dtype", [None, mx.bfloat16])
def test_networks_that_differ_are_an_error_even_if_their_tensors_are_equal(golden, tmp_path, monkeypatch, dtype):
    source = golden("conv_16x16x4").checkpoint
    convert(source, tmp_path / "vae", dtype=dtype)
    run = conversion._run

    def spoiled(checkpoint):
        results, seconds = run(checkpoint)
        if checkpoint.name == "vae":
            results["decode"][0, 0, 0, 0, 0] += 1e-3 if dtype is None else 100
        return results, seconds

    monkeypatch.setattr(conversion, "_run", spoiled)
    expected = "identical results" if dtype is None else "at least .* dB"
    with pytest.raises(LTXVAEError, match=rf"vae: .* results of decode differ \(PSNR .*; expected {expected}\)"):
        verify_paths(source, tmp_path / "vae")


# --- memory ---------------------------------------------------------------------------------------------------------

MEASURE = """
stage, source, target = sys.argv[1:]
if stage == "write":
    write_weights(open_checkpoint(source), Path(target), mx.bfloat16, None)
else:
    compare_tensors(open_checkpoint(source), open_checkpoint(target))
"""


def write_sparse_decoder(path, width, layers):
    """A decoder as a sparse file of zeros, standard deviations of 1: the bytes of all tensors and of the largest."""
    blocks = [["res_x", {"num_layers": layers}]]
    vae = {"blocks": blocks, "decoder_base_channels": width}
    config = parse_vae_config(vae, "")
    shapes = {f"vae.decoder.{name}": shape for name, shape in decoder_spec(config).weights.items()}
    shapes |= {f"vae.per_channel_statistics.{name}-of-means": (config.latent_channels,) for name in ("mean", "std")}
    header, stop = {"__metadata__": {"config": json.dumps({"vae": vae})}}, 0
    for name, shape in shapes.items():
        stored = (shape[0], shape[4], *shape[1:4]) if len(shape) == 5 else shape
        start, stop = stop, stop + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": stored, "data_offsets": [start, stop]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + stop)
        file.seek(8 + len(text) + header["vae.per_channel_statistics.std-of-means"]["data_offsets"][0])
        file.write(np.ones(config.latent_channels, np.float32).tobytes())
    return stop, 4 * max(map(math.prod, shapes.values()))


@pytest.mark.slow
def test_writing_holds_the_written_tensors_and_comparing_holds_one(tmp_path):
    source, target = tmp_path / "sparse.safetensors", tmp_path / "model.safetensors"
    total, largest = write_sparse_decoder(source, 128, 24)
    assert total > 40 * largest
    peak, resident = measured(MEASURE, "write", source, target)
    assert total / 2 < peak < total / 2 + 3 * largest  # bfloat16, and one tensor in both layouts and dtypes
    assert not ON_CPU or resident < total / 2 + 3 * largest + 32e6  # a GPU's runtime takes memory of its own
    peak, resident = measured(MEASURE, "compare", source, target)
    assert peak < 3.6 * largest  # one tensor in both layouts, the converted one, and temporaries
    assert not ON_CPU or resident < 3.6 * largest + 32e6
