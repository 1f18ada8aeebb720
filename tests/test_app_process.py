"""What an app that uses the package keeps: its random numbers, and an end for a process that it forks."""

import subprocess
import sys

import mlx.core as mx
import numpy as np
import pytest

from commands import info
from mlx_ltx_vae import VideoVAE, load_latents, save_latents


def test_no_call_changes_the_random_numbers_of_the_app(golden, tmp_path):
    checkpoint, file = golden("ltxv_0_9_1").checkpoint, tmp_path / "latents.safetensors"
    latents = mx.random.normal((1, 8, 2, 2, 3), key=mx.random.key(1))
    save_latents(file, latents)
    vae = VideoVAE.from_pretrained(checkpoint)
    calls = {
        "load": lambda: VideoVAE.from_pretrained(checkpoint),
        "plan": lambda: vae.plan(latents.shape),
        "decode": lambda: vae.decode(latents, seed=3),
        "stream": lambda: next(vae.stream(latents)),
        "encode": lambda: vae.encode(mx.zeros((1, 3, 9, 64, 64))),
        "info": lambda: (info([str(checkpoint)]), info([str(file), "-m", str(checkpoint)])),
        "load_latents": lambda: load_latents(file),
    }
    numbers = {}
    for name, call in {"nothing": lambda: None, **calls}.items():
        mx.random.seed((7 << 32) + 5)
        mx.random.normal((3,))
        call()
        numbers[name] = np.array(mx.random.normal((3,))).tolist()
    assert [name for name in calls if numbers[name] != numbers["nothing"]] == []


@pytest.mark.skipif(sys.platform != "linux", reason="other systems start processes by spawn")
def test_a_process_that_was_forked_after_mlx_was_used_gets_an_error(golden, tmp_path):
    np.save(tmp_path / "latents.npy", np.zeros((1, 8, 1, 2, 2), np.float32))
    code = f"""
import os, sys
import mlx.core as mx
from mlx_ltx_vae import LTXVAEError, VideoVAE, load_latents
checkpoint = {str(golden("ltx2_3").checkpoint)!r}
def fork(function):
    if (pid := os.fork()) == 0:
        try:
            function()
        except LTXVAEError as error:
            print(error, flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
def decode():
    print(VideoVAE.from_pretrained(checkpoint).decode(mx.zeros((1, 8, 1, 2, 2))).shape, flush=True)
fork(decode)
vae = VideoVAE.from_pretrained(checkpoint)
fork(lambda: VideoVAE.from_pretrained(checkpoint))
fork(lambda: vae.decode(mx.zeros((1, 8, 1, 2, 2))))
fork(lambda: vae.encode(mx.zeros((1, 3, 1, 64, 64))))
fork(lambda: load_latents({str(tmp_path / "latents.npy")!r}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    first, *others = done.stdout.splitlines()
    assert first == "(1, 3, 1, 64, 64)"
    assert len(others) == 4 and all("spawn" in line for line in others)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems start processes by spawn")
def test_a_fork_is_noticed_before_anything_of_the_package_is_used():
    code = """
import os
import mlx.core as mx
import mlx_ltx_vae
mx.eval(mx.zeros(3) + 1)
if (pid := os.fork()) == 0:
    try:
        mlx_ltx_vae.VideoVAE.from_pretrained("vae.safetensors")
    except mlx_ltx_vae.DeviceError as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "spawn" in done.stdout
