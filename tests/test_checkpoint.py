"""Original files: their weights load under their own names, and nothing else of the file is read."""

import json

import mlx.core as mx
import pytest
from safetensors.numpy import save_file

from checkpoint_files import (
    GENERATIONS,
    assert_same_checkpoint,
    assert_same_weights,
    measured,
    metadata,
    network_of,
    open_checkpoint,
    read_statistics,
    read_weights,
    statistics_of,
)
from mlx_ltx_vae import CheckpointError
from tolerances import ON_CPU

LAYOUTS = [*GENERATIONS, "conv_16x16x4"]


@pytest.mark.parametrize("name", LAYOUTS)
def test_original_tensors_keep_their_names_and_get_the_layout_of_mlx(golden, weights, name):
    loaded = open_checkpoint(golden(name).checkpoint)
    tensors = weights(name)
    for network in ("encoder", "decoder"):
        expected = {}
        for tensor, array in network_of(tensors, network).items():
            if array.ndim == 5 and array.shape[2:] == (3, 3, 3):
                array = array.transpose(0, 2, 3, 4, 1)
            elif array.ndim > 2:  # convolutions with a kernel of one and (C, 1, 1) vectors
                array = array.reshape([size for size in array.shape if size > 1])
            elif tensor == "timestep_scale_multiplier":
                array = array.reshape(())
            expected[tensor] = mx.array(array)
        assert_same_weights(read_weights(loaded, network), expected)
    mean, std = statistics_of(tensors)
    assert_same_weights(read_statistics(loaded), {"mean": mx.array(mean), "std": mx.array(std)})
    assert loaded.raw_config == golden(name).manifest["vae_config"]
    assert loaded.name == f"{name}.safetensors"


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_weights_keep_the_dtype_of_the_checkpoint_and_statistics_are_float32(golden, tmp_path, dtype):
    tensors = {name: array.astype(dtype) for name, array in mx.load(str(golden("ltx2_3").checkpoint)).items()}
    mx.save_safetensors(str(tmp_path / "cast.safetensors"), tensors, metadata(golden, "ltx2_3"))
    loaded = open_checkpoint(tmp_path / "cast.safetensors")
    for network in ("encoder", "decoder"):
        assert {array.dtype for array in read_weights(loaded, network).values()} == {dtype}
        assert loaded.networks[network].dtype == str(dtype).removeprefix("mlx.core.")
    assert {array.dtype for array in loaded.read_statistics()} == {mx.float32}


def test_a_network_that_is_not_asked_for_or_missing_is_absent(golden, weights, tmp_path):
    path = golden("ltx2_3").checkpoint
    assert list(open_checkpoint(path, decoder=False).networks) == ["encoder"]
    with pytest.raises(ValueError, match="encoder, the decoder or both"):
        open_checkpoint(path, encoder=False, decoder=False)
    tensors = {name: array for name, array in weights("ltx2_3").items() if not name.startswith("vae.encoder.")}
    save_file(tensors, tmp_path / "decoder.safetensors", metadata(golden, "ltx2_3"))
    assert list(open_checkpoint(tmp_path / "decoder.safetensors").networks) == ["decoder"]
    with pytest.raises(CheckpointError, match=r"decoder\.safetensors: it has no encoder"):
        open_checkpoint(tmp_path / "decoder.safetensors", decoder=False)


# --- one file with everything ---------------------------------------------------------------------------------------


def write_among_others(path, source, others):
    """A sparse file: `others` (name -> dtype, shape, bytes), all zero, and the tensors of `source`: its bytes."""
    content = source.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    new, offset = {"__metadata__": header.pop("__metadata__")}, 0
    for name, (dtype, shape, size) in others.items():
        new[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    for name, entry in header.items():
        new[name] = entry | {"data_offsets": [offset + end for end in entry["data_offsets"]]}
    raw = json.dumps(new).encode()
    with path.open("wb") as stream:
        stream.write(len(raw).to_bytes(8, "little") + raw)
        stream.seek(offset, 1)
        stream.write(content[8 + length :])
    return len(content) - 8 - length


MEASURE = """
loaded = open_checkpoint(sys.argv[1])
lazy = mx.get_peak_memory()
arrays = []
for stored in loaded.networks.values():
    for name, array in stored.read():
        mx.eval(array)
        arrays.append(array)
mx.eval(loaded.read_statistics())
print(lazy)
"""


def test_only_the_vae_is_read_out_of_a_file_with_everything(golden, tmp_path):
    others = {
        "model.diffusion_model.blocks.0.weight": ("BF16", [1024, 1024, 1024], 2 << 30),
        "audio_vae.decoder.conv_in.conv.weight": ("F32", [4, 4, 3, 3], 576),
        "vocoder.ups.0.weight": ("F8_E4M3", [16], 16),
    }
    path = tmp_path / "everything.safetensors"
    vae_bytes = write_among_others(path, golden("ltxv_0_9_5").checkpoint, others)
    lazy, peak, resident = measured(MEASURE, path)
    assert lazy < 0.01 * vae_bytes
    assert vae_bytes * 0.9 < peak < vae_bytes * 1.25  # one weight exists twice while its layout changes
    if ON_CPU:  # a GPU's runtime takes memory of its own
        assert resident < 256e6
    assert_same_checkpoint(open_checkpoint(path), open_checkpoint(golden("ltxv_0_9_5").checkpoint))


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_a_type_unknown_to_mlx_elsewhere_in_the_file_is_harmless(golden, tmp_path, dtype):
    tensors = {name: array.astype(dtype) for name, array in mx.load(str(golden("ltx2_3").checkpoint)).items()}
    source, path = tmp_path / "vae.safetensors", tmp_path / "fp4.safetensors"
    mx.save_safetensors(str(source), tensors, metadata(golden, "ltx2_3"))
    write_among_others(path, source, {"model.diffusion_model.weight": ("F4", [64], 32)})
    assert_same_checkpoint(open_checkpoint(path), open_checkpoint(source))
