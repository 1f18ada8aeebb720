"""Hours of video in memory that does not grow, and without files that stay open. Slow: minutes each."""

import json
import os
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import save_file

from fuzz_corpus import CHANNELS, small_config, small_weights
from mlx_ltx_vae import VideoVAE

pytestmark = pytest.mark.slow

GRID = (2, 3)  # rows and columns of the latents
FRAME_BYTES = 3 * 16 * 24  # of the video
BLOCKS, TIME_SCALE = 5, 2  # of LTX-2.3's blocks: short enough for minutes, and with both kinds of upsampling
FPS = 24
GROWTH = 16e6  # bytes; the latents of the long run alone take 15 MB


def resident(process_id):
    """Bytes of memory in use."""
    return 1000 * int(subprocess.check_output(["ps", "-o", "rss=", "-p", str(process_id)]))


def open_files(process_id):
    """The number of file descriptors; 0 where that is unknown."""
    folder = Path(f"/proc/{process_id}/fd")
    return len(os.listdir(folder)) if folder.exists() else 0


@pytest.fixture
def checkpoint(tmp_path):
    config = small_config("ltx2_3", BLOCKS)
    save_file(small_weights(config), tmp_path / "vae.safetensors", {"config": json.dumps({"vae": config})})
    return tmp_path / "vae.safetensors"


def test_10000_latent_frames_take_the_memory_and_the_files_of_the_first(checkpoint, tmp_path):
    num_latents = 10_000
    rng = np.random.default_rng(0)
    np.save(tmp_path / "clip.npy", rng.standard_normal((1, CHANNELS, num_latents, *GRID), np.float32))
    command = ["mlx_ltx_vae.decode", str(tmp_path / "clip.npy"), "-m", str(checkpoint), "-o", "-", "-q"]
    process = subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE)
    num_frames, samples = 0, []
    with process:
        while frame := process.stdout.read(FRAME_BYTES):
            assert len(frame) == FRAME_BYTES
            num_frames += 1
            if num_frames % 1000 == 0:
                samples.append((resident(process.pid), open_files(process.pid)))
    assert process.returncode == 0
    assert num_frames == 1 + TIME_SCALE * (num_latents - 1)
    memory, files = zip(*samples[:-1], strict=True)  # at the last one the process may be about to end
    assert max(memory[1:]) - memory[1] < GROWTH, memory
    assert max(files) == min(files)


def test_an_hour_is_planned_and_its_first_minutes_take_no_more_memory_than_the_first_seconds(checkpoint):
    vae = VideoVAE.from_pretrained(checkpoint, encoder=False)

    def plan(seconds):
        return vae.plan((1, CHANNELS, 1 + seconds * FPS // TIME_SCALE, *GRID), mode="exact", order="time")

    hour = plan(3600)
    assert hour.num_frames == 3600 * FPS + 1
    held = 4 * CHANNELS * GRID[0] * GRID[1] * 3600 * FPS / TIME_SCALE  # the latents, which grow with the clip
    assert hour.peak_bytes - plan(10).peak_bytes <= 1.5 * held

    def latents():
        for index in range(hour.latent_shape[2]):
            yield mx.random.normal((1, CHANNELS, 1, *GRID), key=mx.random.key(index))

    samples = []
    stream = vae.stream(latents(), hour)
    try:
        for chunk in stream:
            chunk.to_uint8()
            if chunk.start % 240 < TIME_SCALE:
                samples.append((resident(os.getpid()), open_files(os.getpid())))
            if chunk.start >= 180 * FPS:
                break
    finally:
        stream.close()
    memory, files = zip(*samples, strict=True)
    assert max(memory[1:]) - memory[1] < GROWTH, memory
    assert max(files) == min(files)
