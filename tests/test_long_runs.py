"""Hours of video in memory that does not grow, and without files that stay open. Slow: minutes each.

`python tests/test_long_runs.py 200 50` runs the soak with as many decodes and encodes.
"""

import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from itertools import islice
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import save_file

from conftest import FIXTURES, synthetic_checkpoint
from fuzz_corpus import CHANNELS, small_config, small_weights
from mlx_ltx_vae import VideoReader, VideoVAE, tiling
from video_files import OutputOptions, open_sink

pytestmark = pytest.mark.slow

GRID = (2, 3)  # rows and columns of the latents
FRAME_BYTES = 3 * 16 * 24  # of the video
BLOCKS, TIME_SCALE = 5, 2  # of LTX-2.3's blocks: short enough for minutes, and with both kinds of upsampling
FPS = 24
SOAK_GROWTH = 16e6  # bytes
GROWTH = 16e6  # bytes; the latents of the long run alone take 8 MB


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


def test_2500_latent_frames_take_the_memory_and_the_files_of_the_first(checkpoint, tmp_path):
    num_latents = 2500
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
            if chunk.start >= 45 * FPS:
                break
    finally:
        stream.close()
    memory, files = zip(*samples, strict=True)
    assert max(memory[1:]) - memory[1] < GROWTH, memory
    assert max(files) == min(files)


#: For each decode of the soak: the output, its options, and how the plan is made.
DECODES = [
    ("out.mp4", {}, {"mode": "exact", "order": "time"}),
    ("out.mkv", {"codec": "ffv1"}, {"mode": "exact", "order": "rows"}),
    ("out.gif", {}, {"mode": "exact", "order": "columns"}),
    ("out.npy", {}, {"mode": "single"}),
    ("stills/", {}, {"mode": "tiled", "tiling": tiling.TilingConfig(tiling.SpatialTilingConfig(64, 32))}),
]
#: How a decode of the soak ends.
CLOSED, DROPPED_AFTER_A_CHUNK, DROPPED_WITHOUT_A_CHUNK = range(3)
ENDS = [CLOSED, DROPPED_AFTER_A_CHUNK, CLOSED, DROPPED_WITHOUT_A_CHUNK]  # not as many as decodes, so that all combine


def held():
    """What this process holds: bytes of memory, threads, open files, and programs."""
    gc.collect()
    mx.clear_cache()
    children = subprocess.run(["ps", "-A", "-o", "ppid="], capture_output=True, text=True, check=True).stdout.split()
    return (
        resident(os.getpid()),
        threading.active_count(),
        open_files(os.getpid()),
        children.count(str(os.getpid())) - 1,
    )


def golden_checkpoint(folder):
    """A checkpoint of LTX-2.3 in small."""
    synthetic_checkpoint.write_checkpoint(
        json.loads((FIXTURES / "ltx2_3.json").read_text()), folder / "vae.safetensors"
    )
    return folder / "vae.safetensors"


def decode_once(vae, folder, output, options, how, end):
    """Decode a clip to a sink. Streams and sinks that are dropped are not closed."""
    latents = mx.random.normal((1, CHANNELS, 5, 4, 6), key=mx.random.key(0))
    plan = vae.plan(latents.shape, **how)
    stream = vae.stream(latents, plan)
    sink = open_sink(f"{folder}/{output}", size=plan.frame_size, fps=FPS, options=OutputOptions(**options))
    for chunk in islice(stream, {CLOSED: None, DROPPED_AFTER_A_CHUNK: 1, DROPPED_WITHOUT_A_CHUNK: 0}[end]):
        sink.write(chunk.to_uint8())
    if end == CLOSED:
        sink.close()
        shutil.rmtree(folder / output) if output.endswith("/") else os.remove(folder / output)


def encode_once(vae, video, end):
    """Encode a video. Readers and streams that are dropped are not closed."""
    reader = VideoReader(video)
    latents = vae.encode_stream(reader, vae.plan_encode((reader.num_frames, *reader.size[::-1], 3)))
    for _ in islice(latents, None if end == CLOSED else 1):
        pass


def soak(checkpoint, folder, num_decodes, num_encodes, samples):
    """Mixed decodes and encodes in one process. Returns what it holds at `samples` moments after a warm-up."""
    vae = VideoVAE.from_pretrained(checkpoint)
    video = folder / "clip.mkv"
    with open_sink(video, size=(96, 64), fps=FPS) as out:
        out.write(np.random.default_rng(0).integers(0, 256, (17, 64, 96, 3), np.uint8))
    (folder / "out").mkdir()
    runs = [(decode_once, (folder / "out", *DECODES[i % 5], ENDS[i % 4])) for i in range(num_decodes)]
    step = max(1, num_decodes // max(1, num_encodes))
    for i in range(num_encodes):
        runs.insert(i * (step + 1), (encode_once, (video, ENDS[i % 4])))
    warm_up = runs[:30]
    for run, arguments in warm_up:
        run(vae, *arguments)
    results = [held()]
    for number, (run, arguments) in enumerate(runs, 1):
        run(vae, *arguments)
        if number % (len(runs) // samples) == 0:
            results.append(held())
    assert list((folder / "out").iterdir()) == []
    return results


def test_a_soak_of_mixed_decodes_and_encodes_with_abandoned_writers_is_flat(tmp_path):
    checkpoint = golden_checkpoint(tmp_path)
    memory, *counts = zip(*soak(checkpoint, tmp_path, 20, 5, samples=5), strict=True)
    assert max(memory) - memory[0] < SOAK_GROWTH, memory
    for count in counts:
        assert len(set(count)) == 1, counts


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        for sample in soak(golden_checkpoint(Path(name)), Path(name), *map(int, sys.argv[1:]), samples=10):
            print("{:,} bytes, {} threads, {} open files, {} programs".format(*sample), flush=True)
