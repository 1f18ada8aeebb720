"""Absurd shapes, sizes and numbers, and compressed bombs, are refused by the commands before anything is allocated."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from safetensors.numpy import save_file

from mlx_ltx_vae import demo
from video_files import write

DIGITS = "9" * 5000
#: Bytes: of Python, numpy and MLX, with nothing read; and half of what the smallest bomb would take.
MEMORY = 400_000_000

_RUN = """
import json, re, resource, sys
from mlx_ltx_vae import decode, encode, info
modules = {"decode": decode, "encode": encode, "info": info}
commands = json.loads(sys.argv[2]) if sys.argv[1] == "many" else [sys.argv[1:]]
try:
    code = max(modules[name].main(arguments) for name, *arguments in commands)
except SystemExit as ended:
    code = ended.code
if sys.platform == "linux":  # where ru_maxrss is at least that of the process that has started this one
    peak = 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
else:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print("peak", peak)
sys.exit(code)
"""


def run_limited(folder, *arguments):
    """A command that must fail after little memory."""
    done = subprocess.run(
        [sys.executable, "-c", _RUN, *map(str, arguments)], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert done.returncode in (1, 2), done
    assert int(re.fullmatch(r"peak (\d+)", done.stdout.strip())[1]) < MEMORY
    return done


def refused(folder, *arguments):
    """The error of a command, which must be one short line after little memory."""
    done = run_limited(folder, *arguments)
    lines = done.stderr.splitlines()
    assert lines[0].startswith("error: ")
    assert len(lines) == done.returncode  # wrong usage has a second line, which names --help
    assert max(map(len, lines)) <= 300
    return lines[0]


SPECIALS = {
    "device": "a device or a socket in place of a file",
    "pipe": "a pipe in place of a file",
    "holes": "more than",
}


def write_special(path, kind):
    """A link to an endless device, a pipe that nobody writes to, or a file of 6 GB that takes no space."""
    if kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.touch()
        os.truncate(path, 6 * 10**9)


@pytest.mark.parametrize("kind", SPECIALS)
def test_what_is_no_file_of_an_expected_size_is_refused_unread(tmp_path, kind):
    """All in one process with little memory, which waits for nothing."""
    for name in ("index", "configuration"):
        (tmp_path / name).mkdir()
    shutil.copy(demo.VAE, tmp_path / "configuration" / "model.safetensors")
    write_special(tmp_path / "index" / "model.safetensors.index.json", kind)
    write_special(tmp_path / "configuration" / "config.json", kind)
    lists = ["@clips.txt", "clips.csv"] if kind != "pipe" else []  # a pipe with names may be written later
    for name in lists:
        write_special(tmp_path / name.strip("@"), kind)
    commands = [["info", name] for name in ("index", "index/model.safetensors.index.json", "configuration")]
    if kind != "holes":  # a file without a header is none
        write_special(tmp_path / "weights.safetensors", kind)
        commands.append(["info", "weights.safetensors"])
    commands += [["decode", str(demo.LATENTS), "-m", "index", "-o", "clip.mp4"]]
    commands += [["decode", name, "-m", str(demo.VAE), "-o", "out/"] for name in lists]
    commands += [["encode", name, "-m", str(demo.VAE), "-o", "out/"] for name in lists]
    done = run_limited(tmp_path, "many", json.dumps(commands))
    lines = done.stderr.splitlines()
    assert len(lines) == len(commands)
    for command, line in zip(commands, lines, strict=True):
        assert line.startswith("error: "), command
        assert SPECIALS[kind] in line, command
        assert len(line) <= 300
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["configuration", "index"]


def test_a_pipe_may_name_inputs_but_not_without_end(tmp_path):
    (tmp_path / "clip.safetensors").symlink_to(demo.LATENTS)
    command = f"{sys.executable} -m mlx_ltx_vae.decode @/dev/stdin -m {demo.VAE} -o out/ --dry-run"
    for writer, words in (("ls *.safetensors", "clip.safetensors -> out/clip.mp4: "), ("yes x", "more than 64.0 MB")):
        shell = ["sh", "-c", f"{writer} | {command}"]
        done = subprocess.run(shell, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert words in done.stdout + done.stderr


def npy_header(shape):
    file = io.BytesIO()
    np.lib.format.write_array_header_2_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return file.getvalue()


def write_sparse(path, shape):
    """A whole .npy file of zeros that takes no space on the disk."""
    header = npy_header(shape)
    path.write_bytes(header)
    os.truncate(path, len(header) + 4 * int(np.prod(shape, dtype=object)))
    return path


def test_a_bomb_in_a_npz_file_is_refused_before_it_is_decompressed(tmp_path):
    shape = (1, 64, 16, 256, 256)
    bomb = zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED)
    with bomb, bomb.open("latents.npy", "w") as member:
        member.write(npy_header(shape))
        for _ in range(64):
            member.write(bytes(4 * 16 * 256 * 256))
    for command in (["decode", "bomb.npz", "-m", demo.VAE, "-o", "clip.mp4"], ["info", "bomb.npz"]):
        assert "decompression bomb" in refused(tmp_path, *command)


@pytest.mark.parametrize("command", ["decode", "info"])
@pytest.mark.parametrize("shape", [(320000,) * 5, (2**32,) * 5, (2**63, 0, 1, 1, 1), (1,) * 3000])
def test_absurd_shapes_in_headers_are_refused(tmp_path, command, shape):
    (tmp_path / "clip.npy").write_bytes(npy_header(shape) + bytes(100))
    output = ["-o", "clip.mp4"] if command == "decode" else []
    assert "clip.npy" in refused(tmp_path, command, "clip.npy", "-m", demo.VAE, *output)


def test_a_small_checkpoint_whose_blocks_double_the_clip_60_times_is_refused(tmp_path):
    blocks, kernel = 60, np.ones((1, 1, 3, 3, 3), np.float32)
    tensors = {f"vae.decoder.up_blocks.{index}.conv.conv": kernel.repeat(2, 0) for index in range(blocks)}
    tensors |= {"vae.decoder.conv_in.conv": kernel, "vae.decoder.conv_out.conv": kernel.repeat(3, 0)}
    tensors = {f"{name}.weight": array for name, array in tensors.items()}
    tensors |= {name.replace("weight", "bias"): np.ones(len(array), np.float32) for name, array in tensors.items()}
    tensors |= {
        f"vae.per_channel_statistics.{name}": np.ones(1, np.float32) for name in ("mean-of-means", "std-of-means")
    }
    config = {"decoder_blocks": [["compress_time", {"multiplier": 1}]] * blocks, "decoder_base_channels": 1}
    config |= {"latent_channels": 1, "patch_size": 1, "spatial_padding_mode": "zeros"}
    save_file(tensors, tmp_path / "vae.safetensors", {"config": json.dumps({"vae": config})})
    np.save(tmp_path / "clip.npy", np.ones((1, 1, 2, 2, 2), np.float32))
    for command in (["info", "vae.safetensors"], ["decode", "clip.npy", "-m", "vae.safetensors", "--dry-run"]):
        assert "scale by 1152921504606846976 x 1 x 1" in refused(tmp_path, *command)


@pytest.mark.parametrize("shape", [(1, 64, 1, 10_000, 10_000), (1, 64, 10**6, 1, 1), (10**6, 64, 1, 1, 1)])
def test_latents_that_no_video_can_be_made_of_are_refused(tmp_path, shape):
    write_sparse(tmp_path / "clip.npy", shape)
    assert "at most" in refused(tmp_path, "decode", "clip.npy", "-m", demo.VAE, "-o", "clip.mp4")


@pytest.mark.parametrize("fit", ["--resize", "--crop"])
def test_frames_that_no_video_has_are_refused(tmp_path, fit):
    write(tmp_path / "clip.mkv", np.zeros((9, 64, 64, 3), np.uint8))
    command = ["encode", "clip.mkv", "--demo", "-o", "clip.safetensors", "--size", "320000x320000", fit]
    assert "is larger than any video" in refused(tmp_path, *command)
    (tmp_path / "clips.csv").write_text("path,width,height\nclip.mkv,320000,320000\n")
    text = refused_in_a_table(tmp_path, fit)
    assert "320000x320000; frames have at most" in text


def refused_in_a_table(folder, fit):
    command = ["encode", "clips.csv", "--demo", "-o", "latents/", fit]
    done = subprocess.run(
        [sys.executable, "-c", _RUN, *command], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    return done.stdout + done.stderr


NUMBERS = ["--chunk", "--seed", "--crf", "--fps", "--timestep", "--memory-budget", "--tile", "--tile-frames", "--grid"]
NUMBERS += ["--codec", "--tensor", "--noise-scale", "--tile-batch-size", "--bit-depth", "--audio", "-m", "-o"]


@pytest.mark.parametrize("option", NUMBERS)
def test_a_number_of_5000_digits_is_refused(option, capsys, tmp_path, monkeypatch):
    from mlx_ltx_vae import decode

    monkeypatch.chdir(tmp_path)
    model = [] if option == "-m" else ["-m", str(demo.VAE)]
    output = [] if option == "-o" else ["-o", "clip.mp4"]
    try:
        code = decode.main([str(demo.LATENTS), *model, *output, option, DIGITS])
    except SystemExit as ended:
        code = ended.code
    assert code in (1, 2)
    assert max(map(len, capsys.readouterr().err.splitlines())) <= 300


@pytest.mark.parametrize("option", ["--size", "--frames", "--fps", "--tile", "--tile-batch-size"])
def test_a_number_of_5000_digits_is_refused_by_encode(option, capsys, tmp_path):
    from mlx_ltx_vae import encode

    with pytest.raises(SystemExit, match="2"):
        encode.main(["clip.mkv", "--demo", "-o", str(tmp_path / "clip.safetensors"), option, DIGITS])
    assert max(map(len, capsys.readouterr().err.splitlines())) <= 300


@pytest.mark.parametrize("command", ["info", "decode", "encode"])
def test_a_file_name_of_5000_characters_is_refused(command, tmp_path):
    output = {"decode": ["-o", "clip.mp4"], "encode": ["-o", "clip.safetensors"], "info": []}[command]
    model = [] if command == "info" else ["-m", demo.VAE]
    refused(tmp_path, command, DIGITS, *model, *output)
