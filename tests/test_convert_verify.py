"""Verification compares every bit and names what differs; conversion holds one VAE in memory."""

import json
import math
import subprocess
import sys

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from checkpoint_files import metadata
from mlx_ltx_vae import conversion
from mlx_ltx_vae.conversion import Comparison
from mlx_ltx_vae.errors import CheckpointsDiffer
from mlx_ltx_vae.models.video_vae.config import decoder_spec, parse_vae_config
from test_convert import convert, verify_paths
from tolerances import ON_CPU


def changed(golden, path, change):
    """The ltx2_3 checkpoint, written after `change(tensors, configuration)`."""
    tensors = load_file(golden("ltx2_3").checkpoint)
    config = json.loads(metadata(golden, "ltx2_3")["config"])
    change(tensors, config["vae"])
    save_file(tensors, path, {"config": json.dumps(config)})
    return path


def flip_one_bit(tensors, _):
    tensors["vae.decoder.up_blocks.2.res_blocks.0.conv1.conv.weight"].view(np.uint32)[1, 2, 0, 1, 2] ^= 1


def negate_a_zero(tensors, _):
    tensors["vae.encoder.conv_in.conv.bias"][3] = -0.0


def remove_one(tensors, _):
    del tensors["vae.decoder.conv_out.conv.bias"]


def add_one(tensors, _):
    tensors["vae.decoder.conv_out.conv.gain"] = np.ones(1, np.float32)


def reshape_one(tensors, _):
    tensors["vae.decoder.conv_out.conv.bias"] = tensors["vae.decoder.conv_out.conv.bias"].reshape(2, -1)


def change_the_padding(_, config):
    config["spatial_padding_mode"] = "replicate"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (flip_one_bit, r"tensor decoder\.up_blocks\.2\.res_blocks\.0\.conv1\.conv\.weight is not the source's"),
        (negate_a_zero, r"tensor encoder\.conv_in\.conv\.bias is not the source's"),
        (remove_one, r"b\.safetensors: it lacks the tensor decoder\.conv_out\.conv\.bias of the source a\.safetensors"),
        (add_one, r"b\.safetensors: it has the tensor decoder\.conv_out\.conv\.gain, which is not in the source a\.s"),
        (reshape_one, r"tensor decoder\.conv_out\.conv\.bias is not the source's"),
        (change_the_padding, r"its configuration differs from the source a\.safetensors in encoder"),
    ],
)
def test_verification_names_the_tensor_that_differs(golden, tmp_path, change, message):
    def zero(tensors, _):
        tensors["vae.encoder.conv_in.conv.bias"][3] = 0.0

    source = changed(golden, tmp_path / "a.safetensors", zero)
    other = changed(golden, tmp_path / "b.safetensors", lambda *parts: (zero(*parts), change(*parts)))
    with pytest.raises(CheckpointsDiffer, match=message):
        verify_paths(source, other)


def test_a_cast_is_distinguished_from_other_weights(golden, tmp_path):
    source = golden("conv_16x16x4").checkpoint
    convert(source, tmp_path / "cast", dtype=mx.bfloat16)
    assert verify_paths(source, tmp_path / "cast").cast > 0
    with pytest.raises(CheckpointsDiffer, match=r"conv_in\.conv\.bias is not the source's cast to float32 \(cast, bf"):
        verify_paths(tmp_path / "cast", source)


def test_a_checkpoint_is_verified_with_itself(golden):
    source = golden("ltx2_3").checkpoint
    assert verify_paths(source, source).tensors == 170


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
    with pytest.raises(CheckpointsDiffer, match=rf"vae: .* results of decode differ \(PSNR .*; expected {expected}\)"):
        verify_paths(source, tmp_path / "vae")


def test_psnr_is_measured_against_the_range_of_the_reference():
    reference = mx.array([-2.0, 0.0, 2.0, 0.0])
    assert Comparison.of(reference, mx.array(reference)) == Comparison(0.0, None)
    found = Comparison.of(reference, reference + 0.25)
    assert found.max_difference == 0.25
    assert found.psnr == pytest.approx(20 * math.log10(4 / 0.25))


# --- memory ---------------------------------------------------------------------------------------------------------

# On Linux a child inherits the ru_maxrss of its parent, so its own high-water mark is read instead.
MEASURE = """
import resource, sys
from pathlib import Path
import mlx.core as mx
from mlx_ltx_vae.checkpoint import open_checkpoint
from mlx_ltx_vae.conversion import compare_tensors, write_weights

def resident_peak():
    if sys.platform == "linux":
        return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

stage, source, target = sys.argv[1:]
before = resident_peak()
if stage == "write":
    write_weights(open_checkpoint(source), Path(target), mx.bfloat16, None)
else:
    compare_tensors(open_checkpoint(source), open_checkpoint(target))
print(mx.get_peak_memory(), resident_peak() - before)
"""


def write_sparse_decoder(path, width, layers):
    """Write a decoder of residual blocks of one width in the original layout as a sparse file of zeros, with standard
    deviations of 1.

    Returns:
        The bytes of all its tensors and the bytes of the largest.
    """
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


def test_writing_holds_the_written_tensors_and_comparing_holds_one(tmp_path):
    source, target = tmp_path / "sparse.safetensors", tmp_path / "model.safetensors"
    total, largest = write_sparse_decoder(source, 128, 24)
    assert total > 40 * largest

    def measure(stage):
        command = [sys.executable, "-c", MEASURE, stage, str(source), str(target)]
        return map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())

    peak, resident = measure("write")
    assert total / 2 < peak < total / 2 + 3 * largest  # bfloat16, and one tensor in both layouts and dtypes
    assert not ON_CPU or resident < total / 2 + 3 * largest + 32e6  # a GPU's runtime takes memory of its own
    peak, resident = measure("compare")
    assert peak < 3.6 * largest  # one tensor in both layouts, the converted one, and temporaries
    assert not ON_CPU or resident < 3.6 * largest + 32e6
