"""The converter writes what it reads, in the layout of MLX: complete and verified, or nothing."""

import errno
import json
import math
import os
import re
import subprocess
import sys

import mlx.core as mx
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from checkpoint_files import (
    assert_same_checkpoint,
    convert_checkpoint,
    metadata,
    open_checkpoint,
    read_weights,
    write_pack,
)
from commands import convert as main
from conftest import CONV_CASES
from mlx_ltx_vae import CheckpointError, WriterError, __version__
from mlx_ltx_vae.checkpoint import weight_files
from mlx_ltx_vae.conversion import Comparison, Conversion, Verification, verify_conversion
from mlx_ltx_vae.errors import CheckpointsDiffer
from test_checkpoint_diffusers import write_folder

FILES = ["README.md", "config.json", "model.safetensors"]


def open_networks(path, only=None):
    return open_checkpoint(path, encoder=only != "decoder", decoder=only != "encoder")


def convert(source, folder, only=None, **options) -> Conversion:
    return convert_checkpoint(open_networks(source, only), folder, **options)


def verify_paths(source, converted, only=None) -> Verification:
    return verify_conversion(open_networks(source, only), open_networks(converted, only))


def test_a_folder_is_not_named_like_a_file(golden, tmp_path):
    source, path = golden("conv_16x16x4").checkpoint, tmp_path / "out.safetensors"
    for name in (path, str(path), tmp_path / "x.JSON"):
        with pytest.raises(WriterError, match="is the name of a file, and the output is a folder; leave out"):
            convert(source, name)
    assert names_in(tmp_path) == []
    convert(source, tmp_path / "ltx-2.3")
    convert(source, f"{path}/")  # said to be a folder
    assert names_in(path) == FILES


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def header_of(path):
    """(JSON header, where the tensors' bytes begin) of a safetensors file."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return json.loads(file.read(length)), 8 + length


def assert_same_tensors(found, expected):
    """The weights in two folders, by the safetensors library: names, shapes, dtypes, bits."""
    found, expected = (load_file(folder / "model.safetensors") for folder in (found, expected))
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert (found[name].shape, found[name].dtype) == (array.shape, array.dtype), name
        assert found[name].tobytes() == array.tobytes(), name


# --- what is written ------------------------------------------------------------------------------------------------


@pytest.mark.quick(2)
@pytest.mark.parametrize("case", CONV_CASES[::2])
def test_every_generation_converts_to_the_same_checkpoint(golden, tmp_path, case):
    source, folder = golden(case).checkpoint, tmp_path / "vae"
    made = convert(source, folder)
    assert names_in(folder) == FILES
    assert names_in(tmp_path) == ["vae"]
    before, after = open_checkpoint(source), open_checkpoint(folder)
    assert_same_checkpoint(after, before)
    assert after.raw_config == before.raw_config
    assert made.verification.cast == 0
    assert made.verification.decode == Comparison(0.0, None)
    assert made.verification.encode == (Comparison(0.0, None) if "encoder" in before.networks else None)


def test_the_file_has_no_gaps_and_is_read_by_the_safetensors_library(golden, tmp_path):
    convert(golden("small_ltxv_0_9_1").checkpoint, tmp_path / "vae", dtype=mx.bfloat16)
    path = tmp_path / "vae" / "model.safetensors"
    header, start = header_of(path)
    info = header.pop("__metadata__")
    assert info["format"] == "mlx"
    assert info["kernel_layout"] == "O, D, H, W, I"
    stop = 0
    for entry in sorted(header.values(), key=lambda entry: entry["data_offsets"]):
        assert entry["data_offsets"] == [stop, stop + math.prod(entry["shape"]) * {"F32": 4, "BF16": 2}[entry["dtype"]]]
        stop = entry["data_offsets"][1]
    assert path.stat().st_size == start + stop
    with safe_open(path, "numpy") as file:
        assert set(file.keys()) == set(mx.load(str(path)))


@pytest.mark.parametrize(
    ("stored", "dtype"), [(mx.float32, mx.bfloat16), (mx.float32, mx.float16), (mx.bfloat16, mx.bfloat16)]
)
def test_a_dtype_casts_all_but_the_statistics(golden, tmp_path, stored, dtype):
    tensors = {name: array.astype(stored) for name, array in mx.load(str(golden("conv_16x16x4").checkpoint)).items()}
    source = tmp_path / "source.safetensors"
    mx.save_safetensors(str(source), tensors, metadata(golden, "conv_16x16x4"))
    made = convert(source, tmp_path / "vae", dtype=dtype, only="decoder")
    before = read_weights(open_checkpoint(source), "decoder")
    after = read_weights(open_checkpoint(tmp_path / "vae"), "decoder")
    for name, array in before.items():
        assert after[name].dtype == dtype
        assert mx.array_equal(after[name], array.astype(dtype)), name
    assert header_of(tmp_path / "vae" / "model.safetensors")[0]["per_channel_statistics.std-of-means"]["dtype"] == "F32"
    assert made.verification.cast == (0 if dtype == stored else len(before))
    assert (made.verification.decode.psnr is None) == (dtype == stored)


@pytest.mark.parametrize("network", ["encoder", "decoder"])
def test_only_one_network_is_kept(golden, tmp_path, network):
    source = golden("small_ltx2_3").checkpoint
    made = convert(source, tmp_path / "vae", only=network)
    assert made.networks == (network,)
    loaded = open_checkpoint(tmp_path / "vae")
    assert list(loaded.networks) == [network]
    assert loaded.config == open_checkpoint(source).config
    assert verify_paths(source, tmp_path / "vae", only=network).tensors == made.written.tensors
    with pytest.raises(
        CheckpointsDiffer, match=r"vae: it lacks the tensor .* of the source small_ltx2_3\.safe.* --only"
    ):
        verify_paths(source, tmp_path / "vae")


def test_a_diffusers_folder_and_a_pack_convert_to_what_the_original_does(golden, tmp_path):
    tensors = load_file(golden("ltxv_0_9_0").checkpoint)
    write_folder(tmp_path / "diffusers", "ltxv_0_9_0", tensors)
    write_pack(tmp_path / "pack", tensors, "vae_{}.safetensors", "vae_{}.", ("mean", "std"))
    (tmp_path / "pack" / "embedded_config.json").write_text(metadata(golden, "ltxv_0_9_0")["config"])
    expected = convert(golden("ltxv_0_9_0").checkpoint, tmp_path / "expected")
    for source in ("diffusers", "pack"):
        made = convert(tmp_path / source, tmp_path / f"{source}-mlx")
        assert made.source == source
        assert made.written == expected.written
        assert_same_tensors(tmp_path / f"{source}-mlx", tmp_path / "expected")


def test_converting_the_converted_changes_nothing(golden, tmp_path):
    first = convert(golden("small_ltxv_0_9_1").checkpoint, tmp_path / "once")
    second = convert(tmp_path / "once", tmp_path / "twice")
    assert second.written == first.written
    assert_same_tensors(tmp_path / "once", tmp_path / "twice")
    assert (tmp_path / "once" / "config.json").read_bytes() == (tmp_path / "twice" / "config.json").read_bytes()


def test_a_converted_file_is_loaded_without_changing_its_layout(golden, tmp_path, monkeypatch):
    convert(golden("small_ltxv_0_9_1").checkpoint, tmp_path / "vae")

    def forbidden(*_):
        raise AssertionError

    monkeypatch.setattr(weight_files.mx, "moveaxis", forbidden)
    (tmp_path / "vae" / "model.safetensors").rename(tmp_path / "moved.safetensors")
    assert read_weights(open_checkpoint(tmp_path / "moved.safetensors"), "encoder")  # alone
    with pytest.raises(AssertionError):
        read_weights(open_checkpoint(golden("small_ltxv_0_9_1").checkpoint), "encoder")


def test_an_unknown_layout_is_an_error(golden, tmp_path):
    path = tmp_path / "vae.safetensors"
    info = metadata(golden, "ltx2_3") | {"kernel_layout": "I, O"}
    save_file(load_file(golden("ltx2_3").checkpoint), path, info)
    with pytest.raises(CheckpointError, match=r"vae\.safetensors: its metadata states the kernel_layout 'I, O'"):
        open_checkpoint(path)


def test_the_card_describes_the_folder_and_claims_no_license(golden, tmp_path):
    made = convert(golden("ltx2_3").checkpoint, tmp_path / "vae", dtype=mx.bfloat16, only="decoder")
    card = (tmp_path / "vae" / "README.md").read_text()
    _, front, text = card.split("---\n", 2)
    assert "library_name: mlx\n" in front
    assert "license" not in front
    for fact in (
        "LTX-2.3",
        "| networks | decoder |",
        "8 channels; a cell is 8 frames of 32x32",
        "| decoder widths | 64 -> 32 -> 16 -> 8 channels |",
        f"{made.written.parameters:,} parameters in {made.written.tensors} tensors",
        "bfloat16 and float32",
        "`ltx2_3.safetensors`",
        f"mlx_ltx_vae {__version__}",
        str(made.verification),
        "<https://huggingface.co/Lightricks>",
        "vae.decode(latents)",
    ):
        assert fact in text, fact
    assert "vae.encode" not in text
    assert "encoder widths" not in text
    assert str(tmp_path) not in card


# --- complete or nothing --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(errno.EIO, "broken disk"), CheckpointError("spoiled")])
@pytest.mark.parametrize("stage", ["convert", "compare"])
def test_a_failure_in_the_middle_leaves_nothing(golden, tmp_path, stage, error):
    def fail(names, description):
        yield from names[:20]
        if description == stage:
            assert names_in(tmp_path) != []
            raise error

    with pytest.raises((KeyboardInterrupt, OSError, WriterError, CheckpointError)):
        convert(golden("conv_16x16x4").checkpoint, tmp_path / "vae", progress=fail)
    assert names_in(tmp_path) == []


def test_weights_that_overflow_in_the_dtype_are_an_error(golden, tmp_path):
    tensors = load_file(golden("conv_16x16x4").checkpoint)
    tensors["vae.decoder.conv_in.conv.weight"] *= 1e6
    source = tmp_path / "large.safetensors"
    save_file(tensors, source, metadata(golden, "conv_16x16x4"))
    message = r"tensor decoder\.conv_in\.conv\.weight has values that are not finite in float16; use bfloat16"
    with pytest.raises(CheckpointError, match=message):
        convert(source, tmp_path / "vae", dtype=mx.float16, only="decoder")
    assert names_in(tmp_path) == ["large.safetensors"]
    convert(source, tmp_path / "vae", only="decoder")


def test_a_full_disk_is_an_error_and_leaves_nothing(golden, tmp_path):
    arguments = [str(golden("ltx2").checkpoint), "-o", str(tmp_path / "vae")]
    limited = ["bash", "-c", 'ulimit -f 4000; exec "$@"', "bash", sys.executable, "-m", "weights_convert", *arguments]
    done = subprocess.run(limited, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"error: .*/vae: cannot be written \(.*; check the free disk space\)\.\n", done.stderr)
    assert names_in(tmp_path) == []


def test_what_exists_is_never_replaced(golden, tmp_path):
    source = golden("conv_16x16x4").checkpoint
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    for name in ("file", "full"):
        with pytest.raises(WriterError, match=f"{name}: already exists and is not an empty folder"):
            convert(source, tmp_path / name)
    assert (tmp_path / "full" / "file").read_text() == "mine"
    convert(source, tmp_path / "empty")
    assert names_in(tmp_path / "empty") == FILES
    with pytest.raises(WriterError, match="cannot be written"):
        convert(source, tmp_path / "missing" / "vae")
    assert names_in(tmp_path) == ["empty", "file", "full"]


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_command_converts_and_verifies(golden, tmp_path, capsys):
    source, folder = golden("ltx2_3").checkpoint, tmp_path / "vae"
    command = [sys.executable, "-m", "weights_convert", source, "-o", folder, "--only", "decoder"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{folder}: decoder (LTX-2.3), 86 tensors in float32" in done.stdout
    assert "Verified: 86 of 86 tensors equal bit for bit; decode identical\n" in done.stdout
    assert re.search(r" in float32, [0-9.]+ MB, in ", done.stdout)
    assert re.search(r"\nPeak MLX memory: [0-9.]+ MB\n$", done.stdout)
    assert main(["--verify", str(source), str(folder), "--only", "decoder"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == done.stdout.splitlines()[1]
    assert main(["--verify", str(source), str(folder)]) == 1
    out, err = capsys.readouterr()
    assert out == "" and re.fullmatch(r"error: .*vae: it lacks the tensor .*\n", err)


def test_quiet_prints_nothing_and_json_one_object(golden, tmp_path, capfd):
    source, folder = str(golden("conv_16x16x4").checkpoint), str(tmp_path / "vae")
    assert main([source, "-o", str(tmp_path / "quiet"), "--only", "decoder", "-q"]) == 0
    assert capfd.readouterr() == ("", "")
    assert main([source, "-o", folder, "--dtype", "bfloat16", "--json"]) == 0
    made = json.loads(capfd.readouterr().out)
    assert made["source"] == "conv_16x16x4.safetensors"
    assert made["output"] == folder
    assert made["networks"] == ["encoder", "decoder"]
    assert made["written"]["dtypes"] == ["bfloat16", "float32"]
    assert made["written"]["bytes"] < os.path.getsize(source) / 1.9
    assert made["verification"]["decode"]["psnr"] > 40
    assert made["peak_memory_bytes"] > 0
    assert main(["--verify", source, folder, "--json"]) == 0
    captured = capfd.readouterr()
    assert captured.err == ""
    verified = json.loads(captured.out)
    assert len(verified["load_seconds"]) == 2
    assert verified["cast"] == made["verification"]["cast"] == verified["tensors"] - 2


def test_errors_are_one_line_and_debug_shows_the_traceback(tmp_path, capsys):
    arguments = [str(tmp_path / "nothing.safetensors"), "-o", str(tmp_path / "vae")]
    assert main(arguments) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert re.fullmatch(r"error: .*nothing\.safetensors: there is no such file or folder; check the path\.", lines[0])
    assert main([*arguments, "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err
    assert names_in(tmp_path) == []


def test_psnr_is_measured_against_the_range_of_the_reference():
    reference = mx.array([-2.0, 0.0, 2.0, 0.0])
    assert Comparison.of(reference, mx.array(reference)) == Comparison(0.0, None)
    found = Comparison.of(reference, reference + 0.25)
    assert found.max_difference == 0.25
    assert found.psnr == pytest.approx(20 * math.log10(4 / 0.25))
