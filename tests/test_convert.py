"""The converter: what it writes is what it read, in MLX's layout; whole and verified, or not at all."""

import errno
import hashlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import time

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from conftest import CONV_CASES
from mlx_ltx_vae import CheckpointError, DecodeError, VideoVAE, WriterError, __version__
from mlx_ltx_vae.checkpoint import load, load_checkpoint
from mlx_ltx_vae.checkpoint import weight_layout as kernels
from mlx_ltx_vae.models.video_vae.config import parse_vae_config
from mlx_ltx_vae.models.video_vae.decoder import Decoder
from test_checkpoint import assert_same_weights, metadata, write_pack_of_halves
from test_checkpoint_diffusers import write_folder
from weights_convert import CheckpointsDiffer, Likeness, convert, verify
from weights_convert import verify as verify_function
from weights_convert.__main__ import main

FILES = ["README.md", "config.json", "model.safetensors"]
verification = sys.modules[verify_function.__module__]


def run_cli(*arguments, **options):
    command = [sys.executable, "-m", "weights_convert", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def header_of(path):
    """(JSON header, where the tensors' bytes begin) of a safetensors file."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return json.loads(file.read(length)), 8 + length


def assert_same_tensors(found, expected):
    """Two model.safetensors, by the safetensors library: names, shapes, dtypes, bits."""
    found, expected = load_file(found), load_file(expected)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert (found[name].shape, found[name].dtype) == (array.shape, array.dtype), name
        assert found[name].tobytes() == array.tobytes(), name


def assert_same_checkpoint(found, expected):
    """Configuration, statistics, and the halves that are there."""
    assert found.raw_config == expected.raw_config
    assert_same_weights({"mean": found.mean, "std": found.std}, {"mean": expected.mean, "std": expected.std})
    for half in ("encoder", "decoder"):
        assert_same_weights(getattr(found, half) or {}, getattr(expected, half) or {})


# --- what is written ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CONV_CASES)
def test_every_generation_converts_to_the_same_checkpoint_and_the_same_decode(golden, tmp_path, case):
    source, folder = golden(case).checkpoint, tmp_path / "vae"
    made = convert(source, folder)
    assert names_in(folder) == FILES
    assert names_in(tmp_path) == ["vae"]
    before, after = load_checkpoint(source), load_checkpoint(folder)
    assert_same_checkpoint(after, before)
    assert made.verification.cast == 0
    assert made.verification.decode == Likeness(0.0, None)
    assert made.verification.encode == (Likeness(0.0, None) if before.encoder else None)
    latents = mx.random.normal((1, before.config.latent_channels, 2, 3, 2), key=mx.random.key(7))
    decodes = [VideoVAE.from_pretrained(path, encoder=False).decode(latents) for path in (source, folder)]
    assert decodes[0].shape == decodes[1].shape
    assert mx.array_equal(*decodes)


def test_kernels_are_stored_channels_last_under_the_original_names(golden, tmp_path):
    convert(golden("ltxv_0_9_1").checkpoint, tmp_path / "vae")
    stored = load_file(tmp_path / "vae" / "model.safetensors")
    kernels_seen = 0
    for name, array in load_file(golden("ltxv_0_9_1").checkpoint).items():
        name = name.removeprefix("vae.")
        if name.startswith("per_channel_statistics.") and name.rpartition(".")[2] not in (
            "mean-of-means",
            "std-of-means",
        ):
            continue
        if array.ndim == 5 and array.shape[2:] == (3, 3, 3):
            array = array.transpose(0, 2, 3, 4, 1)
            kernels_seen += 1
        elif array.ndim > 2 or name.endswith("timestep_scale_multiplier"):
            array = np.squeeze(array)
        assert stored[name].shape == array.shape, name
        assert np.array_equal(stored.pop(name), array), name
    assert kernels_seen
    assert stored == {}


def test_the_file_keeps_the_alignment_of_the_format(golden, tmp_path):
    convert(golden("ltxv_0_9_0").checkpoint, tmp_path / "vae", dtype=mx.bfloat16)
    path = tmp_path / "vae" / "model.safetensors"
    header, start = header_of(path)
    info = header.pop("__metadata__")
    assert info["format"] == "mlx"
    assert info["kernel_layout"] == "O, D, H, W, I"
    assert start % 8 == 0
    sizes = {"F32": 4, "BF16": 2}
    stop = 0
    for entry in header.values():
        assert entry["data_offsets"][0] == stop
        assert (start + stop) % sizes[entry["dtype"]] == 0
        stop += math.prod(entry["shape"]) * sizes[entry["dtype"]]
        assert entry["data_offsets"][1] == stop
    assert path.stat().st_size == start + stop
    with safe_open(path, "numpy") as file:
        assert set(file.keys()) == set(mx.load(str(path)))


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
@pytest.mark.parametrize("stored", [mx.float32, mx.bfloat16])
def test_a_dtype_casts_all_but_the_statistics(golden, tmp_path, stored, dtype):
    tensors = {name: array.astype(stored) for name, array in mx.load(str(golden("conv_16x16x4").checkpoint)).items()}
    source = tmp_path / "source.safetensors"
    mx.save_safetensors(str(source), tensors, metadata(golden, "conv_16x16x4"))
    made = convert(source, tmp_path / "vae", dtype=dtype, only="decoder")
    before, after = load_checkpoint(source, encoder=False), load_checkpoint(tmp_path / "vae")
    for name, array in before.decoder.items():
        assert after.decoder[name].dtype == dtype
        assert mx.array_equal(after.decoder[name], array.astype(dtype)), name
    assert after.mean.dtype == mx.float32
    assert header_of(tmp_path / "vae" / "model.safetensors")[0]["per_channel_statistics.std-of-means"]["dtype"] == "F32"
    assert made.verification.cast == (0 if dtype == stored else len(before.decoder))
    assert (made.verification.decode.psnr is None) == (dtype == stored)


@pytest.mark.parametrize("half", ["encoder", "decoder"])
def test_only_one_half_is_kept(golden, tmp_path, half):
    source = golden("ltx2_3").checkpoint
    made = convert(source, tmp_path / "vae", only=half)
    assert made.halves == [half]
    loaded = load_checkpoint(tmp_path / "vae")
    assert [name for name in ("encoder", "decoder") if getattr(loaded, name) is not None] == [half]
    assert loaded.config == load_checkpoint(source).config
    assert verify(source, tmp_path / "vae", only=half).tensors == made.written.tensors
    with pytest.raises(CheckpointsDiffer, match=r"vae: it lacks the tensor .* of .*ltx2_3\.safetensors.* --only"):
        verify(source, tmp_path / "vae")


def test_a_diffusers_folder_and_a_pack_convert_to_what_the_original_does(golden, tmp_path):
    tensors = load_file(golden("ltxv_0_9_0").checkpoint)
    write_folder(tmp_path / "diffusers", "ltxv_0_9_0", tensors)
    write_pack_of_halves(tmp_path / "pack", tensors, "vae_{}.safetensors", "vae_{}.", ("mean", "std"))
    (tmp_path / "pack" / "embedded_config.json").write_text(metadata(golden, "ltxv_0_9_0")["config"])
    expected = convert(golden("ltxv_0_9_0").checkpoint, tmp_path / "expected")
    for source in ("diffusers", "pack"):
        made = convert(tmp_path / source, tmp_path / f"{source}-mlx")
        assert made.source == source
        assert made.written == expected.written, "the fingerprint too"
        assert_same_tensors(
            tmp_path / f"{source}-mlx" / "model.safetensors", tmp_path / "expected" / "model.safetensors"
        )


def test_converting_the_converted_changes_nothing(golden, tmp_path):
    first = convert(golden("ltxv_0_9_0").checkpoint, tmp_path / "once")
    second = convert(tmp_path / "once", tmp_path / "twice")
    assert second.written == first.written
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "once" / name).read_bytes() == (tmp_path / "twice" / name).read_bytes()


def test_the_fingerprint_tells_weights_apart(golden, tmp_path):
    tensors = load_file(golden("conv_16x16x4").checkpoint)
    tensors["vae.decoder.conv_in.conv.bias"][0] += 1
    save_file(tensors, tmp_path / "other.safetensors", metadata(golden, "conv_16x16x4"))
    prints = [
        convert(golden("conv_16x16x4").checkpoint, tmp_path / "a").written.fingerprint,
        convert(golden("conv_16x16x4").checkpoint, tmp_path / "b", dtype=mx.bfloat16).written.fingerprint,
        convert(tmp_path / "other.safetensors", tmp_path / "c").written.fingerprint,
    ]
    assert prints[0] == prints[1] != prints[2]


def test_a_converted_file_is_loaded_without_a_guess_and_without_a_transpose(golden, tmp_path, monkeypatch):
    convert(golden("ltxv_0_9_1").checkpoint, tmp_path / "vae")

    def forbidden(*_):
        raise AssertionError

    monkeypatch.setattr(load, "kernel_layout", forbidden)
    monkeypatch.setattr(kernels.mx, "contiguous", forbidden)
    for source in (tmp_path / "vae", tmp_path / "vae" / "model.safetensors"):
        assert load_checkpoint(source).encoder
    with pytest.raises(AssertionError):
        load_checkpoint(golden("ltxv_0_9_1").checkpoint)


def test_the_file_of_tensors_loads_by_itself(golden, tmp_path):
    convert(golden("ltx2_3_causal").checkpoint, tmp_path / "vae")
    (tmp_path / "vae" / "model.safetensors").rename(tmp_path / "moved.safetensors")
    expected = load_checkpoint(golden("ltx2_3_causal").checkpoint)
    assert_same_checkpoint(load_checkpoint(tmp_path / "moved.safetensors"), expected)


def test_a_layout_that_is_not_known_is_refused(golden, tmp_path):
    path = tmp_path / "vae.safetensors"
    info = metadata(golden, "ltx2_3") | {"kernel_layout": "I, O"}
    save_file(load_file(golden("ltx2_3").checkpoint), path, info)
    with pytest.raises(CheckpointError, match=r"vae\.safetensors: its metadata states the kernel_layout 'I, O'"):
        load_checkpoint(path)


def test_the_card_says_what_the_folder_is_and_claims_no_licence(golden, tmp_path):
    made = convert(golden("ltx2_3").checkpoint, tmp_path / "vae", dtype=mx.bfloat16, only="decoder")
    card = (tmp_path / "vae" / "README.md").read_text()
    _, front, text = card.split("---\n", 2)
    assert "library_name: mlx\n" in front
    assert "license" not in front
    for fact in (
        "LTX-2.3",
        "| holds | decoder |",
        "8 channels; a cell is 8 frames of 32x32",
        "| decoder widths | 64 -> 32 -> 16 -> 8 channels |",
        f"{made.written.parameters:,} parameters in {made.written.tensors} tensors",
        "bfloat16 and float32",
        "`ltx2_3.safetensors`",
        made.written.fingerprint,
        f"mlx_ltx_vae {__version__}",
        str(made.verification),
        "<https://huggingface.co/Lightricks>",
        "vae.decode(latents)",
    ):
        assert fact in text, fact
    assert "vae.encode" not in text
    assert "encoder widths" not in text
    assert str(tmp_path) not in card


def test_the_fingerprint_can_be_made_again_as_the_card_describes_it(golden, tmp_path):
    made = convert(golden("ltx2_3").checkpoint, tmp_path / "vae")
    tensors = load_file(tmp_path / "vae" / "model.safetensors")
    lines = [f"{hashlib.sha256(tensors[name].tobytes()).hexdigest()}  {name}\n" for name in sorted(tensors)]
    assert made.written.fingerprint == hashlib.sha256("".join(lines).encode()).hexdigest()


# --- whole or not at all --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(errno.EIO, "broken disk"), CheckpointError("spoilt")])
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


def test_weights_that_overflow_in_the_wanted_dtype_are_refused(golden, tmp_path):
    tensors = load_file(golden("conv_16x16x4").checkpoint)
    tensors["vae.decoder.conv_in.conv.weight"] *= 1e6
    source = tmp_path / "large.safetensors"
    save_file(tensors, source, metadata(golden, "conv_16x16x4"))
    with pytest.raises(DecodeError, match="not finite"):
        convert(source, tmp_path / "vae", dtype=mx.float16, only="decoder")
    assert names_in(tmp_path) == ["large.safetensors"]
    convert(source, tmp_path / "vae", only="decoder")


def test_a_full_disk_is_one_line_and_leaves_nothing(golden, tmp_path):
    arguments = [str(golden("ltx2").checkpoint), "-o", str(tmp_path / "vae")]
    limited = ["bash", "-c", 'ulimit -f 4000; exec "$@"', "bash", sys.executable, "-m", "weights_convert", *arguments]
    done = subprocess.run(limited, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"error: .*/vae: cannot be written \(File too large\)\.\n", done.stderr)
    assert names_in(tmp_path) == []


def test_an_interrupted_command_exits_with_130_and_leaves_nothing(golden, tmp_path):
    command = [sys.executable, "-m", "weights_convert", golden("ltxv_0_9_5").checkpoint, "-o", tmp_path / "vae"]
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True)
    while not list(tmp_path.rglob("model.safetensors")):
        assert process.poll() is None
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.strip() == "interrupted"
    assert names_in(tmp_path) == []


def test_what_exists_is_never_replaced(golden, tmp_path):
    source = golden("conv_16x16x4").checkpoint
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    for name in ("file", "full"):
        with pytest.raises(WriterError, match=f"{name}: it exists and is not an empty folder"):
            convert(source, tmp_path / name)
    assert (tmp_path / "full" / "file").read_text() == "mine"
    convert(source, tmp_path / "empty")
    assert names_in(tmp_path / "empty") == FILES
    with pytest.raises(WriterError, match="cannot be written"):
        convert(source, tmp_path / "missing" / "vae")
    assert names_in(tmp_path) == ["empty", "file", "full"]


# --- verification ---------------------------------------------------------------------------------------------------


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


def leave_one_out(tensors, _):
    del tensors["vae.decoder.conv_out.conv.bias"]


def put_one_more(tensors, _):
    tensors["vae.decoder.conv_out.conv.gain"] = np.ones(1, np.float32)


def reshape_one(tensors, _):
    tensors["vae.decoder.conv_out.conv.bias"] = tensors["vae.decoder.conv_out.conv.bias"][:, None]


def pad_otherwise(_, config):
    config["spatial_padding_mode"] = "replicate"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (flip_one_bit, r"tensor decoder\.up_blocks\.2\.res_blocks\.0\.conv1\.conv\.weight is not that of"),
        (negate_a_zero, r"tensor encoder\.conv_in\.conv\.bias is not that of"),
        (leave_one_out, r"b\.safetensors: it lacks the tensor decoder\.conv_out\.conv\.bias of"),
        (put_one_more, r"a\.safetensors: it lacks the tensor decoder\.conv_out\.conv\.gain of .*b\.safetensors"),
        (reshape_one, r"tensor decoder\.conv_out\.conv\.bias is not that of"),
        (pad_otherwise, r"its configuration differs from that of .* in encoder"),
    ],
)
def test_verification_names_what_differs(golden, tmp_path, change, message):
    def zero(tensors, _):
        tensors["vae.encoder.conv_in.conv.bias"][3] = 0.0

    source = changed(golden, tmp_path / "a.safetensors", zero)
    other = changed(golden, tmp_path / "b.safetensors", lambda *parts: (zero(*parts), change(*parts)))
    assert verify(source, source).tensors == 170
    with pytest.raises(CheckpointsDiffer, match=message):
        verify(source, other)


def test_a_cast_is_told_from_weights_that_were_not_those(golden, tmp_path):
    source = golden("conv_16x16x4").checkpoint
    convert(source, tmp_path / "half", dtype=mx.bfloat16)
    assert verify(source, tmp_path / "half").cast > 0
    with pytest.raises(CheckpointsDiffer, match=r"conv_in\.conv\.bias is float32 and not the cast of .* \(bfloat16\)"):
        verify(tmp_path / "half", source)


@pytest.mark.parametrize("dtype", [None, mx.float16, mx.bfloat16])
def test_networks_that_disagree_are_an_error_though_their_tensors_agree(golden, tmp_path, monkeypatch, dtype):
    source = golden("conv_16x16x4").checkpoint
    convert(source, tmp_path / "vae", dtype=dtype)
    honest = verification._try

    def spoilt(path, only):
        trial = honest(path, "decoder")
        if path != source:
            trial.results["decode"][0, 0, 0, 0, 0] += 1e-3 if dtype is None else 100
        return trial

    monkeypatch.setattr(verification, "_try", spoilt)
    wanted = "they should be identical" if dtype is None else "at least .* dB are expected"
    with pytest.raises(CheckpointsDiffer, match=rf"vae: .* the two decode differently \(PSNR .*; {wanted}\)"):
        verify(source, tmp_path / "vae")


def test_likeness_is_measured_against_the_range_of_the_reference():
    reference = np.array([-2.0, 0.0, 2.0, 0.0], np.float32)
    assert Likeness.of(reference, reference.copy()) == Likeness(0.0, None)
    found = Likeness.of(reference, reference + np.float32(0.25))
    assert found.max_difference == 0.25
    assert found.psnr == pytest.approx(20 * math.log10(4 / 0.25))


# --- memory ---------------------------------------------------------------------------------------------------------

# Linux hands the parent's ru_maxrss on to the child, so its own high-water mark is read there.
MEASURE = """
import resource, sys
from pathlib import Path
import mlx.core as mx
from weights_convert.tensors import open_checkpoint, silent, take_tensors, write_tensors
from weights_convert.verify import compare_tensors

def resident_peak():
    if sys.platform == "linux":
        return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

source, target, dtype, config = sys.argv[1:]
before = resident_peak()
tensors = take_tensors(open_checkpoint(source, None))
metadata = {"config": config, "kernel_layout": "O, D, H, W, I"}
written = write_tensors(Path(target), tensors, getattr(mx, dtype), metadata, silent)
print(mx.get_peak_memory(), resident_peak() - before)
mx.reset_peak_memory()
compare_tensors(source, target, None, silent)
print(mx.get_peak_memory(), resident_peak() - before)
"""


def write_hollow_decoder(path, width, layers):
    """A decoder of residual blocks of one width in the original layout, all zero and without a block on the disk.

    Returns:
        The bytes of all its tensors, the bytes of the largest, and its configuration.
    """
    blocks = [["res_x", {"num_layers": layers}]]
    vae = {"blocks": blocks, "decoder_base_channels": width}
    config = parse_vae_config(vae, "")
    decoder = Decoder(config.decoder, config.patch_size)
    shapes = {f"vae.decoder.{name}": array.shape for name, array in tree_flatten(decoder.parameters())}
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
    return stop, 4 * max(map(math.prod, shapes.values())), header["__metadata__"]["config"]


def test_tensors_pass_through_memory_one_by_one(tmp_path):
    source = tmp_path / "hollow.safetensors"
    total, largest, config = write_hollow_decoder(source, 128, 24)
    assert total > 40 * largest
    command = [sys.executable, "-c", MEASURE, str(source), str(tmp_path / "model.safetensors"), "bfloat16", config]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    (write_peak, write_resident), (compare_peak, compare_resident) = (map(int, line.split()) for line in lines)
    assert largest < write_peak < 2.1 * largest  # a kernel in the source's layout and in MLX's
    assert compare_peak < 3.6 * largest  # that, and the same kernel of the other file and what comparing takes
    assert max(write_resident, compare_resident) < 3.6 * largest + 32e6


# --- the command line -----------------------------------------------------------------------------------------------


def test_the_command_converts_and_verifies(golden, tmp_path):
    source, folder = golden("ltx2_3").checkpoint, tmp_path / "vae"
    done = run_cli(source, "-o", folder, "--only", "decoder")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{folder}: decoder (LTX-2.3), 86 tensors in float32" in done.stdout
    assert "Verified: 86 of 86 tensors equal bit for bit; decode identical\n" in done.stdout
    again = run_cli("--verify", source, folder, "--only", "decoder")
    assert again.returncode == 0
    assert again.stdout.splitlines()[0] == done.stdout.splitlines()[1]
    refused = run_cli("--verify", source, folder)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert re.fullmatch(r"error: .*vae: it lacks the tensor .*\n", refused.stderr)


def test_json_is_one_object_and_nothing_else(golden, tmp_path, capfd):
    source, folder = str(golden("conv_16x16x4").checkpoint), str(tmp_path / "vae")
    assert main([source, "-o", folder, "--dtype", "bfloat16", "--json"]) == 0
    made = json.loads(capfd.readouterr().out)
    assert made["source"] == "conv_16x16x4.safetensors"
    assert made["output"] == folder
    assert made["halves"] == ["encoder", "decoder"]
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


def test_quiet_says_nothing(golden, tmp_path, capfd):
    assert main([str(golden("conv_16x16x4").checkpoint), "-o", str(tmp_path / "vae"), "-q"]) == 0
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "SOURCE is missing"),
        (["vae"], "-o FOLDER is missing"),
        (["vae", "-o", "out", "--dtype", "float8"], "invalid choice"),
        (["vae", "-o", "out", "--only", "half"], "invalid choice"),
        (["--verify", "a"], "expected 2 arguments"),
        (["--verify", "a", "b", "-o", "out"], "--verify A B writes nothing"),
        (["vae", "--verify", "a", "b"], "--verify A B writes nothing"),
    ],
)
def test_wrong_usage_exits_with_2(arguments, words, capsys):
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    assert exit_info.value.code == 2
    assert words in capsys.readouterr().err


def test_errors_are_one_line_and_debug_shows_the_traceback(tmp_path, capsys):
    arguments = [str(tmp_path / "nothing.safetensors"), "-o", str(tmp_path / "vae")]
    assert main(arguments) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert re.fullmatch(r"error: .*nothing\.safetensors: no such file or folder; check the path\.", lines[0])
    assert main([*arguments, "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err
    assert names_in(tmp_path) == []
