"""Original files and packs of MLX ports: every layout gives the same weights, and nothing else is read."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mlx_ltx_vae.checkpoint import Checkpoint, load_checkpoint
from mlx_ltx_vae.checkpoint.files import open_archive
from mlx_ltx_vae.errors import CheckpointError

GENERATIONS = {
    "ltxv_0_9_0": "LTX-Video 0.9.0",
    "ltxv_0_9_1": "LTX-Video 0.9.1",
    "ltxv_0_9_5": "LTX-Video 0.9.5",
    "ltx2": "LTX-2",
    "ltx2_3": "LTX-2.3",
}
LAYOUTS = [*GENERATIONS, "conv_16x16x4"]
Weights = dict[str, np.ndarray]


def assert_same_weights(found: Mapping[str, mx.array] | None, expected: Mapping[str, mx.array] | None) -> None:
    """Names, shapes, dtypes, then values."""
    assert found is not None
    assert expected is not None
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert (found[name].shape, found[name].dtype) == (array.shape, array.dtype), name
        assert mx.array_equal(found[name], array), name


def assert_same_checkpoint(found: Checkpoint, expected: Checkpoint) -> None:
    """Configuration, both halves and statistics."""
    assert found.config == expected.config
    assert_same_weights(found.encoder, expected.encoder)
    assert_same_weights(found.decoder, expected.decoder)
    assert_same_weights({"mean": found.mean, "std": found.std}, {"mean": expected.mean, "std": expected.std})


@pytest.fixture(scope="session")
def weights(golden: Callable) -> Callable[[str], Weights]:
    """`weights("ltx2_3")`: the tensors of the golden checkpoint as numpy arrays."""
    return lambda name: load_file(golden(name).checkpoint)


def metadata(golden: Callable, name: str) -> dict[str, str]:
    return {"config": json.dumps({"vae": golden(name).manifest["vae_config"]})}


def half_of(tensors: Weights, half: str) -> Weights:
    prefix = f"vae.{half}."
    return {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}


def statistics_of(tensors: Weights) -> tuple[np.ndarray, np.ndarray]:
    return (
        tensors["vae.per_channel_statistics.mean-of-means"],
        tensors["vae.per_channel_statistics.std-of-means"],
    )


def as_an_mlx_port_stores(name: str, array: np.ndarray) -> np.ndarray:
    if array.ndim == 5:
        return np.ascontiguousarray(array.transpose(0, 2, 3, 4, 1))
    if array.ndim == 4:
        return np.ascontiguousarray(array.transpose(0, 2, 3, 1))
    return array


# --- original files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYOUTS)
def test_original_tensors_arrive_under_their_own_names_in_mlx_layout(
    golden: Callable, weights: Callable, name: str
) -> None:
    loaded = load_checkpoint(golden(name).checkpoint)
    tensors = weights(name)
    for half in ("encoder", "decoder"):
        expected = {}
        for tensor, array in half_of(tensors, half).items():
            if array.ndim == 5 and array.shape[2:] == (3, 3, 3):
                array = array.transpose(0, 2, 3, 4, 1)
            elif array.ndim > 2:  # kernels of size one and (C, 1, 1) vectors
                array = array.reshape([size for size in array.shape if size > 1])
            elif tensor == "timestep_scale_multiplier":
                array = array.reshape(())
            expected[tensor] = mx.array(array)
        assert_same_weights(getattr(loaded, half), expected)
    mean, std = statistics_of(tensors)
    assert_same_weights({"mean": loaded.mean, "std": loaded.std}, {"mean": mx.array(mean), "std": mx.array(std)})
    assert loaded.raw_config == golden(name).manifest["vae_config"]
    assert loaded.name == f"{name}.safetensors"


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_weights_keep_the_dtype_of_the_checkpoint_and_statistics_are_float32(
    golden: Callable, tmp_path: Path, dtype: mx.Dtype
) -> None:
    tensors = {name: array.astype(dtype) for name, array in mx.load(str(golden("ltx2_3").checkpoint)).items()}
    mx.save_safetensors(str(tmp_path / "half.safetensors"), tensors, metadata(golden, "ltx2_3"))
    loaded = load_checkpoint(tmp_path / "half.safetensors")
    assert {array.dtype for array in [*loaded.encoder.values(), *loaded.decoder.values()]} == {dtype}
    assert (loaded.mean.dtype, loaded.std.dtype) == (mx.float32, mx.float32)


def test_bare_names_load_like_prefixed_ones(golden: Callable, weights: Callable, tmp_path: Path) -> None:
    bare = {name.removeprefix("vae."): array for name, array in weights("ltx2_3").items()}
    save_file(bare, tmp_path / "split.safetensors", metadata(golden, "ltx2_3"))
    assert_same_checkpoint(
        load_checkpoint(tmp_path / "split.safetensors"), load_checkpoint(golden("ltx2_3").checkpoint)
    )


def test_a_half_that_is_not_asked_for_is_none(golden: Callable) -> None:
    path = golden("ltx2_3").checkpoint
    assert load_checkpoint(path, encoder=False).encoder is None
    assert load_checkpoint(path, decoder=False).decoder is None
    with pytest.raises(ValueError, match="encoder, the decoder or both"):
        load_checkpoint(path, encoder=False, decoder=False)


def test_a_half_that_is_missing_is_none_unless_it_is_all_that_was_asked_for(
    golden: Callable, weights: Callable, tmp_path: Path
) -> None:
    tensors = {name: array for name, array in weights("ltx2_3").items() if not name.startswith("vae.encoder.")}
    save_file(tensors, tmp_path / "decoder.safetensors", metadata(golden, "ltx2_3"))
    loaded = load_checkpoint(tmp_path / "decoder.safetensors")
    assert loaded.encoder is None
    assert loaded.decoder is not None
    with pytest.raises(CheckpointError, match=r"decoder\.safetensors: it holds no encoder"):
        load_checkpoint(tmp_path / "decoder.safetensors", decoder=False)


# --- one file with everything ---------------------------------------------------------------------------------------


def write_among_others(path: Path, source: Path, others: Mapping[str, tuple[str, list[int], int]]) -> int:
    """A sparse file: first `others` (name -> dtype, shape, bytes), all zero, then the tensors of `source`.

    Returns:
        The bytes of the tensors of `source`.
    """
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


# Linux hands the parent's ru_maxrss on to the child, so its own high-water mark is read there.
MEASURE = """
import resource, sys
from pathlib import Path
import mlx.core as mx
from mlx_ltx_vae.checkpoint import load_checkpoint

def resident_peak():
    if sys.platform == "linux":
        return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

before = resident_peak()
loaded = load_checkpoint(sys.argv[1])
lazy = mx.get_peak_memory()
for array in [*loaded.encoder.values(), *loaded.decoder.values(), loaded.mean, loaded.std]:
    mx.eval(array)
print(lazy, mx.get_peak_memory(), resident_peak() - before)
"""


def test_only_the_vae_is_read_out_of_a_file_with_everything(golden: Callable, tmp_path: Path) -> None:
    others = {
        "model.diffusion_model.blocks.0.weight": ("BF16", [1024, 1024, 1024], 2 << 30),
        "audio_vae.decoder.conv_in.conv.weight": ("F32", [4, 4, 3, 3], 576),
        "vocoder.ups.0.weight": ("F8_E4M3", [16], 16),
    }
    path = tmp_path / "everything.safetensors"
    vae_bytes = write_among_others(path, golden("ltxv_0_9_5").checkpoint, others)
    command = [sys.executable, "-c", MEASURE, str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    lazy, peak, resident = map(int, result.stdout.split())
    assert lazy < 0.01 * vae_bytes
    assert vae_bytes * 0.9 < peak < vae_bytes * 1.25  # one kernel more, while its axes are put in order
    assert resident < 256e6
    assert_same_checkpoint(load_checkpoint(path), load_checkpoint(golden("ltxv_0_9_5").checkpoint))


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_a_type_that_mlx_does_not_know_elsewhere_in_the_file_does_no_harm(
    golden: Callable, tmp_path: Path, dtype: mx.Dtype
) -> None:
    tensors = {name: array.astype(dtype) for name, array in mx.load(str(golden("ltx2_3").checkpoint)).items()}
    source, path = tmp_path / "vae.safetensors", tmp_path / "fp4.safetensors"
    mx.save_safetensors(str(source), tensors, metadata(golden, "ltx2_3"))
    write_among_others(path, source, {"model.diffusion_model.weight": ("F4", [64], 32)})
    assert_same_checkpoint(load_checkpoint(path), load_checkpoint(source))


def test_a_quantised_vae_is_refused_by_the_name_of_its_tensor(
    golden: Callable, weights: Callable, tmp_path: Path
) -> None:
    name = "vae.decoder.conv_in.conv.bias"
    tensors = weights("ltx2_3") | {name: np.zeros(64, np.uint8)}
    save_file(tensors, tmp_path / "quantised.safetensors", metadata(golden, "ltx2_3"))
    with pytest.raises(CheckpointError, match=rf"{name} is stored as U8.*not quantised"):
        load_checkpoint(tmp_path / "quantised.safetensors")


# --- packs of MLX ports ---------------------------------------------------------------------------------------------


def write_pack_of_halves(folder: Path, tensors: Weights, pattern: str, prefix: str, names: tuple[str, str]) -> None:
    """One file per half, statistics within each."""
    for half in ("encoder", "decoder"):
        stored = {
            prefix.format(half) + name: as_an_mlx_port_stores(name, array)
            for name, array in half_of(tensors, half).items()
        }
        for name, array in zip(names, statistics_of(tensors), strict=True):
            stored[f"{prefix.format(half)}per_channel_statistics.{name}"] = array
        path = folder / pattern.format(half)
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(stored, path)


@pytest.mark.parametrize(
    ("pattern", "prefix", "names"),
    [
        ("vae_{}.safetensors", "vae_{}.", ("mean", "std")),
        ("vae_{}.safetensors", "vae.{}.", ("mean-of-means", "std-of-means")),
        ("vae_{}.safetensors", "{}.", ("_mean_of_means", "_std_of_means")),
        ("vae_{}.safetensors", "", ("_mean_of_means", "_std_of_means")),
        ("vae_{}_conv.safetensors", "vae_{}_conv.", ("mean", "std")),
        ("vae/{}/model.safetensors", "", ("mean", "std")),
    ],
)
@pytest.mark.parametrize("case", ["ltxv_0_9_1", "ltx2_3", "conv_16x16x4"])
def test_packs_with_a_file_per_half_load_like_the_original(
    golden: Callable, weights: Callable, tmp_path: Path, case: str, pattern: str, prefix: str, names: tuple[str, str]
) -> None:
    write_pack_of_halves(tmp_path, weights(case), pattern, prefix, names)
    (tmp_path / "embedded_config.json").write_text(metadata(golden, case)["config"])
    (tmp_path / "transformer.safetensors").write_bytes(b"never opened")
    assert_same_checkpoint(load_checkpoint(tmp_path), load_checkpoint(golden(case).checkpoint))


def test_one_half_of_a_pack_can_be_named_as_a_file(golden: Callable, weights: Callable, tmp_path: Path) -> None:
    write_pack_of_halves(tmp_path, weights("ltx2_3"), "vae_{}.safetensors", "vae_{}.", ("mean", "std"))
    loaded = load_checkpoint(tmp_path / "vae_decoder.safetensors")
    assert loaded.encoder is None
    assert_same_weights(loaded.decoder, load_checkpoint(golden("ltx2_3").checkpoint).decoder)


@pytest.mark.parametrize("prefix", ["vae_{}.", "vae.{}.", "{}."])
def test_packs_in_one_file_load_like_the_original(
    golden: Callable, weights: Callable, tmp_path: Path, prefix: str
) -> None:
    tensors = weights("ltxv_0_9_1")
    stored = {
        prefix.format(half) + name: as_an_mlx_port_stores(name, array)
        for half in ("encoder", "decoder")
        for name, array in half_of(tensors, half).items()
    }
    stored["mean"], stored["std"] = statistics_of(tensors)
    save_file(stored, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(golden("ltxv_0_9_1").manifest["vae_config"]))
    expected = load_checkpoint(golden("ltxv_0_9_1").checkpoint)
    assert_same_checkpoint(load_checkpoint(tmp_path), expected)
    assert_same_checkpoint(load_checkpoint(tmp_path / "model.safetensors"), expected)


def test_causal_convolutions_wrapped_once_more_get_their_names_back(
    golden: Callable, weights: Callable, tmp_path: Path
) -> None:
    tensors = {}
    for name, array in weights("ltx2_3").items():
        if name.startswith("vae.decoder.") and ".conv.conv." not in name:
            name = name.replace(".conv.", ".conv.conv.")
        tensors[name] = array
    assert "vae.decoder.up_blocks.0.res_blocks.0.conv1.conv.conv.weight" in tensors
    save_file(tensors, tmp_path / "wrapped.safetensors", metadata(golden, "ltx2_3"))
    expected = load_checkpoint(golden("ltx2_3").checkpoint)
    assert_same_checkpoint(load_checkpoint(tmp_path / "wrapped.safetensors"), expected)


def test_kernels_in_two_layouts_are_refused(golden: Callable, weights: Callable, tmp_path: Path) -> None:
    tensors = weights("ltx2_3")
    name = "vae.decoder.conv_in.conv.weight"
    tensors[name] = as_an_mlx_port_stores(name, tensors[name])
    save_file(tensors, tmp_path / "mixed.safetensors", metadata(golden, "ltx2_3"))
    with pytest.raises(CheckpointError, match=r"mixed\.safetensors: some of its kernels .* convert it again"):
        load_checkpoint(tmp_path / "mixed.safetensors")


# --- where the configuration is -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "files",
    [
        {"config.json": "entry"},
        {"config.json": "whole"},
        {"config.json": "transformer", "embedded_config.json": "whole"},
        {"config.json": "half", "embedded_config.json": "whole"},
        {"config.json": "diffusion", "embedded_config.json": "whole"},
    ],
)
def test_the_configuration_is_found_beside_the_file_among_others(
    golden: Callable, weights: Callable, tmp_path: Path, files: dict[str, str]
) -> None:
    config = golden("conv_16x16x4").manifest["vae_config"]
    contents: dict[str, Any] = {
        "whole": {"vae": config, "transformer": {"num_layers": 48}},
        "entry": config,
        "transformer": {"_class_name": "LTXVideoTransformer3DModel", "num_layers": 48},
        "half": {"encoder_blocks": config["encoder_blocks"], "patch_size": 4},
        "diffusion": {"vae": {"_class_name": "CausalDiffusionVAE", "decoder": {"stage_channels": [8]}}},
    }
    save_file(weights("conv_16x16x4"), tmp_path / "vae.safetensors")
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(contents[content]))
    expected = load_checkpoint(golden("conv_16x16x4").checkpoint)
    assert_same_checkpoint(load_checkpoint(tmp_path / "vae.safetensors"), expected)


@pytest.mark.parametrize(("name", "generation"), GENERATIONS.items())
@pytest.mark.parametrize("store", [lambda name, array: array, as_an_mlx_port_stores])
def test_a_published_generation_is_recognised_by_its_tensors(
    golden: Callable, weights: Callable, tmp_path: Path, name: str, generation: str, store: Callable
) -> None:
    tensors = {tensor: store(tensor, array) for tensor, array in weights(name).items()}
    save_file(tensors, tmp_path / "vae.safetensors")
    loaded = load_checkpoint(tmp_path / "vae.safetensors")
    assert loaded.config.generation == generation
    assert_same_checkpoint(loaded, load_checkpoint(golden(name).checkpoint))
    assert json.loads(json.dumps(loaded.raw_config)) == loaded.raw_config


@pytest.mark.parametrize(("name", "generation"), GENERATIONS.items())
def test_a_decoder_alone_is_recognised(weights: Callable, tmp_path: Path, name: str, generation: str) -> None:
    tensors = {tensor: array for tensor, array in weights(name).items() if not tensor.startswith("vae.encoder.")}
    save_file(tensors, tmp_path / "vae.safetensors")
    assert load_checkpoint(tmp_path / "vae.safetensors").config.generation == generation


def test_an_encoder_alone_is_recognised_where_no_other_generation_has_it(
    golden: Callable, weights: Callable, tmp_path: Path
) -> None:
    tensors = {tensor: array for tensor, array in weights("ltx2_3").items() if not tensor.startswith("vae.decoder.")}
    save_file(tensors, tmp_path / "vae.safetensors")
    assert load_checkpoint(tmp_path / "vae.safetensors").config == load_checkpoint(golden("ltx2_3").checkpoint).config


def test_an_encoder_that_two_generations_share_is_not_guessed_at(weights: Callable, tmp_path: Path) -> None:
    tensors = {tensor: array for tensor, array in weights("ltx2").items() if not tensor.startswith("vae.decoder.")}
    save_file(tensors, tmp_path / "vae.safetensors")
    with pytest.raises(CheckpointError, match=r"fit LTX-Video 0\.9\.5 and LTX-2; put one into the metadata"):
        load_checkpoint(tmp_path / "vae.safetensors")


def test_a_structure_that_was_never_published_needs_a_configuration(weights: Callable, tmp_path: Path) -> None:
    save_file(weights("conv_16x16x4"), tmp_path / "vae.safetensors")
    with pytest.raises(CheckpointError, match="no configuration .* no published generation; put one .* config.json"):
        load_checkpoint(tmp_path / "vae.safetensors")


# --- statistics -----------------------------------------------------------------------------------------------------


def test_missing_statistics_are_an_error(golden: Callable, weights: Callable, tmp_path: Path) -> None:
    tensors = weights("ltx2_3")
    del tensors["vae.per_channel_statistics.std-of-means"]
    save_file(tensors, tmp_path / "vae.safetensors", metadata(golden, "ltx2_3"))
    with pytest.raises(CheckpointError, match="statistics of the latents .* are missing"):
        load_checkpoint(tmp_path / "vae.safetensors")


def test_statistics_of_another_width_are_an_error(golden: Callable, weights: Callable, tmp_path: Path) -> None:
    tensors = weights("ltx2_3") | {"vae.per_channel_statistics.std-of-means": np.ones(4, np.float32)}
    save_file(tensors, tmp_path / "vae.safetensors", metadata(golden, "ltx2_3"))
    with pytest.raises(CheckpointError, match="8 and 4 values, and its latents 8 channels"):
        load_checkpoint(tmp_path / "vae.safetensors")


# --- folders --------------------------------------------------------------------------------------------------------


def test_the_one_file_with_a_vae_is_found_by_its_header(golden: Callable, tmp_path: Path) -> None:
    (tmp_path / "ltx-2.3.safetensors").write_bytes(golden("ltx2_3").checkpoint.read_bytes())
    save_file({"lora.weight": np.zeros(2, np.float32)}, tmp_path / "lora.safetensors")
    assert load_checkpoint(tmp_path).config.generation == "LTX-2.3"


def test_two_files_with_a_vae_are_an_error_that_names_them(golden: Callable, tmp_path: Path) -> None:
    for name in ("a.safetensors", "b.safetensors"):
        (tmp_path / name).write_bytes(golden("ltx2_3").checkpoint.read_bytes())
    with pytest.raises(CheckpointError, match=r"several files hold a VAE; name one of a\.safetensors, b\.safetensors"):
        load_checkpoint(tmp_path)


def test_an_index_is_read_over_all_its_shards(golden: Callable, weights: Callable, tmp_path: Path) -> None:
    write_shards(tmp_path, weights("ltx2_3"), metadata(golden, "ltx2_3"))
    archive = open_archive(tmp_path / "model.safetensors.index.json")
    assert len({info.path for info in archive.tensors.values()}) == 2
    assert_same_checkpoint(load_checkpoint(tmp_path), load_checkpoint(golden("ltx2_3").checkpoint))


def test_a_missing_shard_is_named(golden: Callable, weights: Callable, tmp_path: Path) -> None:
    write_shards(tmp_path, weights("ltx2_3"), metadata(golden, "ltx2_3"))
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"its shard model-00002-of-00002\.safetensors is missing"):
        load_checkpoint(tmp_path)


def write_shards(folder: Path, tensors: Weights, file_metadata: dict[str, str]) -> None:
    names = sorted(tensors)
    weight_map = {}
    for index, chosen in enumerate((names[::2], names[1::2]), start=1):
        shard = f"model-{index:05d}-of-00002.safetensors"
        save_file({name: tensors[name] for name in chosen}, folder / shard, file_metadata)
        weight_map |= dict.fromkeys(chosen, shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
