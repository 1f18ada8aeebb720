"""Names of outputs: long ones, symbolic links and named pipes, which stay what they are."""

import os
import threading
from itertools import product
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlx_ltx_vae import VideoReader, WriterError, load_latents, save_latents
from video_files import check_output, names, open_sink

SIZE = (64, 32)
FRAMES = np.random.default_rng(0).integers(0, 256, (3, SIZE[1], SIZE[0], 3), np.uint8)
ENDINGS = [".mp4", ".mkv", ".gif", ".npy", "/"]


def write(path):
    check_output(path, size=SIZE, fps=24)
    with open_sink(path, size=SIZE, fps=24) as out:
        out.write(FRAMES)


@pytest.mark.parametrize(("letter", "ending"), [*(("x", ending) for ending in ENDINGS), ("漢", ".mp4")])
def test_names_may_have_255_bytes(tmp_path, ending, letter):
    name = letter * ((255 - len(ending.strip("/"))) // len(letter.encode())) + ending.strip("/")
    write(f"{tmp_path}/{name}{'/' if ending == '/' else ''}")
    assert names(tmp_path) == [name]


def test_latents_may_have_names_of_255_bytes(tmp_path):
    path = tmp_path / ("x" * 243 + ".safetensors")
    save_latents(path, mx.zeros((1, 8, 1, 1, 1)))
    assert names(tmp_path) == [path.name]


def test_longer_names_are_refused_before_any_work(tmp_path):
    for ending, call in product(ENDINGS, (check_output, open_sink)):
        with pytest.raises(WriterError, match="File name too long"):
            call(f"{tmp_path}/{'x' * 256}{ending}", size=SIZE, fps=24)
    assert names(tmp_path) == []


@pytest.mark.parametrize("ending", [".mp4", ".npy"])
@pytest.mark.parametrize("is_dangling", [False, True])
def test_a_symbolic_link_stays_and_its_target_is_replaced(tmp_path, ending, is_dangling):
    real, link = tmp_path / "disk" / f"real{ending}", tmp_path / f"link{ending}"
    real.parent.mkdir()
    link.symlink_to(Path("disk") / real.name)
    if not is_dangling:
        real.write_text("old")
    write(link)
    assert link.is_symlink()
    assert real.stat().st_size > 1000
    assert (names(tmp_path), names(real.parent)) == (["disk", link.name], [real.name])


@pytest.mark.parametrize("ending", [".mkv", ".npy"])
def test_a_named_pipe_stays_and_gets_the_whole_file(tmp_path, ending):
    pipe, copy = tmp_path / f"pipe{ending}", tmp_path / f"copy{ending}"
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: copy.write_bytes(pipe.read_bytes()))
    reader.start()
    write(pipe)
    reader.join()
    assert pipe.is_fifo()
    assert names(tmp_path) == [copy.name, pipe.name]
    frames = np.load(copy) if ending == ".npy" else np.concatenate(list(VideoReader(copy)))
    assert frames.shape == FRAMES.shape


def test_latents_are_written_into_a_named_pipe(tmp_path):
    pipe, copy = tmp_path / "pipe.safetensors", tmp_path / "copy.safetensors"
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: copy.write_bytes(pipe.read_bytes()))
    reader.start()
    latents = mx.random.normal((1, 8, 1, 2, 2))
    save_latents(pipe, latents)
    reader.join()
    assert pipe.is_fifo()
    assert mx.array_equal(load_latents(copy)[0], latents)
