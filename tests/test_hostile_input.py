"""Absurd shapes, sizes and numbers, and compressed bombs, are refused by the commands before anything is allocated."""

import io
import json
import os
import shutil
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from safetensors.numpy import save_file

from commands import encode
from mlx_ltx_vae import demo
from video_files import write

DIGITS = "9" * 5000
#: Bytes: of Python, numpy and MLX, with nothing read; and half of what the smallest bomb would take.
MEMORY = 400_000_000

_RUN = """
import json, re, resource, sys
from mlx_ltx_vae import decode, encode, info
modules = {"decode": decode, "encode": encode, "info": info}
codes = []
for name, *arguments in json.loads(sys.argv[1]):
    try:
        codes.append(modules[name].main(arguments))
    except SystemExit as ended:
        codes.append(ended.code)
if sys.platform == "linux":  # where ru_maxrss is at least that of the process that has started this one
    peak = 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
else:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print("ended", peak, *codes)
"""


def refused(folder, *commands):
    """The errors of commands, which must be one short line each after little memory. All in one process."""
    names = [list(map(str, command)) for command in commands]
    done = subprocess.run(
        [sys.executable, "-c", _RUN, json.dumps(names)], cwd=folder, capture_output=True, text=True, timeout=60
    )
    peak, *codes = map(int, done.stdout.splitlines()[-1].removeprefix("ended ").split())
    assert peak < MEMORY
    lines = done.stderr.splitlines()
    assert max(map(len, lines)) <= 300
    errors = [line for line in lines if line.startswith("error: ")]
    assert len(errors) == len(commands)
    assert len(lines) == sum(codes)  # wrong usage, which is 2, has a second line, which names --help
    assert set(codes) <= {1, 2}
    return errors


SPECIALS = {
    "device": "a device or a socket instead of a file",
    "pipe": "a pipe instead of a file",
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


@pytest.mark.quick(2)
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
    for command, error in zip(commands, refused(tmp_path, *commands), strict=True):
        assert SPECIALS[kind] in error, command
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
    shape = (1, 64, 16, 128, 256)
    bomb = zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED)
    with bomb, bomb.open("latents.npy", "w") as member:
        member.write(npy_header(shape))
        for _ in range(64):
            member.write(bytes(4 * 16 * 128 * 256))
    commands = ["decode", "bomb.npz", "-m", demo.VAE, "-o", "clip.mp4"], ["info", "bomb.npz"]
    assert all("decompression bomb" in error for error in refused(tmp_path, *commands))


def test_absurd_shapes_in_headers_are_refused(tmp_path):
    commands = []
    for index, shape in enumerate([(320000,) * 5, (2**32,) * 5, (2**63, 0, 1, 1, 1), (1,) * 3000]):
        (tmp_path / f"clip{index}.npy").write_bytes(npy_header(shape) + bytes(100))
        command = ["info", f"clip{index}.npy", "-m", demo.VAE]
        commands += [command, ["decode", *command[1:], "-o", "clip.mp4"]]
    for command, error in zip(commands, refused(tmp_path, *commands), strict=True):
        assert command[1] in error


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
    commands = ["info", "vae.safetensors"], ["decode", "clip.npy", "-m", "vae.safetensors", "--dry-run"]
    assert all("scale by 1152921504606846976 x 1 x 1" in error for error in refused(tmp_path, *commands))


def test_latents_that_no_video_can_be_made_of_are_refused(tmp_path):
    commands = []
    for index, shape in enumerate([(1, 64, 1, 10_000, 10_000), (1, 64, 10**6, 1, 1), (10**6, 64, 1, 1, 1)]):
        path = write_sparse(tmp_path / f"clip{index}.npy", shape)
        commands.append(["decode", path, "-m", demo.VAE, "-o", "clip.mp4"])
    assert all("at most" in error for error in refused(tmp_path, *commands))


def test_frames_that_no_video_has_are_refused(tmp_path, capsys, monkeypatch):
    write(tmp_path / "clip.mkv", np.zeros((9, 64, 64, 3), np.uint8))
    command = ["encode", "clip.mkv", "--demo", "-o", "clip.safetensors", "--size", "320000x320000"]
    errors = refused(tmp_path, *([*command, fit] for fit in ("--resize", "--crop")))
    assert all("is larger than any video" in error for error in errors)
    (tmp_path / "clips.csv").write_text("path,width,height\nclip.mkv,320000,320000\n")
    monkeypatch.chdir(tmp_path)
    assert encode(["clips.csv", "--demo", "-o", "latents/", "--crop"]) == 1
    assert "320000x320000; frames have at most" in capsys.readouterr().err


NUMBERS = ["--chunk", "--seed", "--crf", "--fps", "--timestep", "--memory-budget", "--tile", "--tile-frames", "--grid"]
NUMBERS += ["--codec", "--tensor", "--noise-scale", "--tile-batch-size", "--bit-depth", "--audio", "-m", "-o"]
ENCODE_NUMBERS = ["--size", "--frames", "--fps", "--tile", "--tile-batch-size"]


def test_numbers_and_names_of_5000_characters_are_refused(tmp_path):
    model = ["-m", demo.VAE, "-o"]
    commands = [["info", DIGITS], ["decode", DIGITS, *model, "clip.mp4"], ["encode", DIGITS, *model, "c.safetensors"]]
    commands += [["decode", demo.LATENTS, *model, "clip.mp4", option, DIGITS] for option in NUMBERS]
    commands += [["encode", "clip.mkv", *model, "c.safetensors", option, DIGITS] for option in ENCODE_NUMBERS]
    refused(tmp_path, *commands)
