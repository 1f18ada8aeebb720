"""Latents that stay in their file: slices are what they are in the whole, and no more is read or held than is asked."""

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latent_files import open_latents, write, write_sparse
from mlx_ltx_vae import LatentsError
from mlx_ltx_vae.latents import formats
from mlx_ltx_vae.pipeline.sources import find_notice, frame_moments, join_moments, read_frames, sample_moments
from mlx_ltx_vae.shapes import sampled_frames
from test_latents_layouts import STORED_AS

CHANNELS = 7
WHOLE = (slice(None),) * 5


def make_latents(shape: tuple, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def run_threads(targets: list[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=target) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def draw_slice(data: st.DataObject, length: int) -> slice:
    start = data.draw(st.integers(0, length - 1))
    return slice(start, data.draw(st.integers(start + 1, length)))


@settings(max_examples=150)
@given(
    layout=st.sampled_from(list(STORED_AS)),
    ending=st.sampled_from([".safetensors", ".npy", ".npz", ".npz compressed"]),
    dtype=st.sampled_from([mx.float32, mx.float16, mx.bfloat16]),
    shape=st.tuples(st.integers(1, 2), st.just(CHANNELS), *[st.integers(1, 5)] * 3),
    unnormalized=st.booleans(),
    block_bytes=st.sampled_from([1, 40, 300, 2**24]),
    data=st.data(),
)
def test_slices_are_those_of_the_whole(
    layout: str, ending: str, dtype: mx.Dtype, shape: tuple, unnormalized: bool, block_bytes: int, data: st.DataObject
) -> None:
    values = make_latents(shape if "B" in layout else (1, *shape[1:]))
    stored = mx.array(STORED_AS[layout](values)).astype(dtype)
    statistics = (mx.linspace(-0.3, 0.4, CHANNELS), mx.linspace(0.5, 2.0, CHANNELS))
    index = tuple(draw_slice(data, length) for length in values.shape)[: data.draw(st.integers(0, 5))]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats, "_BLOCK_BYTES", block_bytes)
        path = write(Path(folder) / f"clip{ending.split()[0]}", stored, compressed="compressed" in ending)
        file = open_latents(path, latent_channels=CHANNELS, grid=values.shape[2:])
        latents = file.map(unnormalized=unnormalized, statistics=statistics)
        part, whole = latents[index], file.read(unnormalized=unnormalized, statistics=statistics)
    expected = mx.array(values).astype(dtype)[index]
    if unnormalized:
        mean, std = (array.reshape(-1, 1, 1, 1)[index[1:2]] for array in statistics)
        expected = (expected.astype(mx.float32) - mean) / std
    assert (latents.shape, latents.ndim, latents.dtype) == (values.shape, 5, expected.dtype)
    assert (part.shape, part.dtype) == (expected.shape, expected.dtype)
    assert mx.array_equal(part, expected).item()
    assert mx.array_equal(whole[index], part).item()


@pytest.mark.parametrize("dtype", [np.float64, np.dtype(">f4"), np.dtype(">f2")])
def test_slices_of_other_numpy_types_and_orders_are_those_of_the_whole(tmp_path: Path, dtype: np.dtype) -> None:
    values = make_latents((2, CHANNELS, 3, 4, 5)).astype(dtype)
    np.save(tmp_path / "clip.npy", np.asfortranarray(values))
    part = open_latents(tmp_path / "clip.npy").map()[:, 2:5, 1:2]
    assert part.dtype == (mx.float16 if values.itemsize == 2 else mx.float32)
    assert np.array_equal(np.array(part), values[:, 2:5, 1:2].astype(np.float32))


@pytest.mark.parametrize("index", [0, slice(1), (slice(1), 2), (slice(None),) * 6, [slice(1)], (...,)])
def test_an_index_that_is_not_a_tuple_of_slices_is_a_type_error(tmp_path: Path, index: object) -> None:
    latents = open_latents(write(tmp_path / "clip.npy", mx.zeros((1, 2, 1, 2, 2)))).map()
    with pytest.raises(TypeError, match="tuple of up to five slices"):
        latents[index]


@pytest.mark.parametrize("layout", ["BCFHW", "NC"])
def test_values_that_are_not_finite_are_found_in_the_slice_that_has_them(tmp_path: Path, layout: str) -> None:
    values = make_latents((1, CHANNELS, 6, 4, 5))
    values[0, 2, 3, 1, 4] = np.nan
    values[0, 6, 3, 0, 0] = np.inf
    path = write(tmp_path / "clip.npy", mx.array(STORED_AS[layout](values)))
    latents = open_latents(path, latent_channels=CHANNELS, grid=(6, 4, 5)).map()
    assert mx.isfinite(latents[:, :, :3]).all().item()
    assert mx.isfinite(latents[:, :, 4:]).all().item()
    found = r"clip.npy: 1 of 30 values in \[0:1, 1:4, 2:4, 1:2, 0:5\] are not finite .* = \(0, 2, 3, 1, 4\)"
    with pytest.raises(LatentsError, match=found):
        latents[:, 1:4, 2:4, 1:2]
    with pytest.raises(LatentsError, match=r"clip.npy: 2 of 840 values are not finite .* = \(0, 2, 3, 1, 4\)"):
        latents[WHOLE]


_HOLD = """
import resource, sys
import mlx.core as mx
from mlx_ltx_vae.latents import open_latents
from mlx_ltx_vae.pipeline.sources import check_values, sample_moments

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

mx.eval(mx.zeros(1000) + 1)
before = peak()
file = open_latents(sys.argv[1], latent_channels=64)
latents = file.map()
opened = peak()
for frame in range(0, 64, 4):
    latents[:, :, frame : frame + 1]
for row in range(0, 128, 16):
    latents[:, :, :, row : row + 1]
sample_moments(latents)
check_values(latents)
print(opened - before, peak() - before)
"""


@pytest.mark.slow
def test_memory_is_that_of_a_slice_whatever_the_size_of_the_file(tmp_path: Path) -> None:
    path = write_sparse(tmp_path / "clip.safetensors", (1, 64, 64, 128, 128))  # 268 MB
    done = subprocess.run([sys.executable, "-c", _HOLD, path], capture_output=True, text=True, check=True)
    opened, sliced = map(int, done.stdout.split())
    assert opened < 10e6
    assert sliced < 100e6  # a slice has 2 to 4 MB


def test_a_slice_of_a_file_larger_than_memory_is_read(tmp_path: Path) -> None:
    path = write_sparse(tmp_path / "clip.safetensors", (1, 8, 2**20, 256, 32), "BF16")  # 137 GB
    part = open_latents(path, latent_channels=8).map()[:, :, 2**19 : 2**19 + 2, 100:101]
    assert (part.shape, part.dtype) == ((1, 8, 2, 1, 32), mx.bfloat16)
    assert not part.any().item()


@pytest.mark.parametrize("change", [os.unlink, lambda path: os.replace(path.with_name("other.npy"), path)])
def test_an_opened_file_stays_what_it_was(tmp_path: Path, change: Callable[[Path], None]) -> None:
    values = make_latents((1, 2, 3, 4, 5))
    path = write(tmp_path / "clip.npy", mx.array(values))
    write(tmp_path / "other.npy", mx.array(values + 1))
    latents = open_latents(path).map()
    change(path)
    assert np.array_equal(np.array(latents[WHOLE]), values)


def test_a_file_that_is_cut_short_after_opening_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "clip.npy", mx.array(make_latents((1, 2, 30, 40, 50))))
    latents = open_latents(path).map()
    os.truncate(path, 5000)
    with pytest.raises(LatentsError, match="clip.npy: cannot be read"):
        latents[:, :, :1]


def test_slices_are_read_in_any_thread(tmp_path: Path) -> None:
    values = make_latents((1, CHANNELS, 16, 4, 5))
    path = write(tmp_path / "clip.npz", mx.array(values), compressed=True)
    lazy = (mx.zeros(CHANNELS) + 0.5, mx.ones(CHANNELS) * 2)  # not evaluated yet, as MLX returns them
    latents = open_latents(path).map(unnormalized=True, statistics=lazy)

    parts = {}

    def read(start: int) -> None:
        parts[start] = np.array(latents[:, :, start : start + 4])
        mx.clear_streams()

    run_threads([partial(read, start) for start in range(0, 16, 4)])
    whole = np.concatenate([parts[start] for start in range(0, 16, 4)], axis=2)
    assert np.array_equal(whole, (values - 0.5) / 2)


@pytest.mark.parametrize("layout", ["BCFHW", "BFHWC"])
def test_what_cannot_be_read_by_frames_is_read_once_and_not_before_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    values = make_latents((1, CHANNELS, 3, 4, 5))
    path = write(tmp_path / "clip.npz", mx.array(STORED_AS[layout](values)), compressed=True)
    made, read = [], formats._inflate
    monkeypatch.setattr(formats, "_inflate", lambda *given: made.append(1) or read(*given))
    file = open_latents(path, latent_channels=CHANNELS)
    latents = file.map()
    assert made == []
    parts = [np.array(latents[:, :, frame : frame + 1]) for frame in range(3)]
    assert np.array_equal(np.concatenate(parts, axis=2), values)
    assert file.read().shape == values.shape
    assert made == [1]


def test_uint16_that_are_bfloat16_are_known_by_a_sample_of_the_clip(tmp_path: Path) -> None:
    values = make_latents((1, CHANNELS, 20, 4, 5))
    values[:, :, :4] = 0  # a slice alone would not look like latents
    bits = np.array(mx.array(values).astype(mx.bfloat16).view(mx.uint16))
    np.save(tmp_path / "clip.npy", bits)
    latents = open_latents(tmp_path / "clip.npy").map()
    assert latents.dtype == latents[:, :, :1].dtype == mx.bfloat16
    assert mx.array_equal(latents[WHOLE], mx.array(values).astype(mx.bfloat16)).item()
    np.save(tmp_path / "picture.npy", np.arange(values.size, dtype=np.uint16).reshape(values.shape))
    pictures = open_latents(tmp_path / "picture.npy").map()
    with pytest.raises(LatentsError, match="stored as uint16 and are not bfloat16; save them as float32"):
        pictures[:, :, :1]


def notice(clip, statistics):
    was_unnormalized = getattr(clip, "was_unnormalized", False)
    return find_notice(*join_moments(sample_moments(clip)), 42, statistics, was_unnormalized=was_unnormalized)


@pytest.mark.parametrize("frames", [1, 5, 40])
def test_unnormalized_latents_are_noticed_in_a_file_as_in_an_array(tmp_path: Path, frames: int) -> None:
    mean, std = mx.linspace(-0.8, 0.9, CHANNELS), mx.linspace(0.3, 3.0, CHANNELS)
    latents = mx.array(make_latents((2, CHANNELS, frames, 6, 7)))
    for values, expected in [(latents, False), (latents * std.reshape(-1, 1, 1, 1) + mean.reshape(-1, 1, 1, 1), True)]:
        file = open_latents(write(tmp_path / "clip.safetensors", values))
        said, remedy = "the channels have the statistics of", "if the picture is wrong,"
        for clip in (file.map(), values, np.array(values)):
            found = f"{said} unnormalized latents; {remedy} add unnormalized=True."
            assert notice(clip, (mean, std)) == (found if expected else None)
        twice = file.map(statistics=(mean, std), unnormalized=True)
        found = f"{said} normalized latents; {remedy} leave out unnormalized=True."
        assert notice(twice, (mean, std)) == notice(twice.item(0), (mean, std)) == (None if expected else found)


def test_at_most_eight_frames_spread_over_the_clip_are_looked_at(tmp_path: Path) -> None:
    assert sampled_frames(3) == [0, 1, 2]
    assert sampled_frames(8) == list(range(8))
    frames = sampled_frames(1000)
    assert len(frames) == 8
    assert (min(frames), max(frames)) == (62, 937)


def test_moments_of_frames_are_those_of_all_values() -> None:
    latents = make_latents((2, CHANNELS, 9, 3, 4)) * 3 + 100 + np.arange(9).reshape(-1, 1, 1)
    frames = read_frames(mx.array(latents), range(9))
    means, stds = join_moments([frame_moments(frame) for frame in frames])
    assert means == pytest.approx(latents.mean(axis=(0, 2, 3, 4), dtype=np.float64), rel=1e-6)
    assert stds == pytest.approx(latents.std(axis=(0, 2, 3, 4), dtype=np.float64), rel=1e-5)


_READ_FOREVER = """
import sys
from mlx_ltx_vae.errors import LatentsError
from mlx_ltx_vae.latents import open_latents

latents = open_latents(sys.argv[1]).map()
print("opened", flush=True)
try:
    while True:
        latents[()]
except LatentsError as error:
    print(error)
"""


def test_a_file_that_shrinks_while_it_is_read_is_one_sentence(tmp_path: Path) -> None:
    """A mapped page behind the end of its file ends the process with SIGBUS, without a word."""
    for size, shape in ((100_000, (1, 4, 16, 512, 512)), (0, (1, 512, 64, 32, 16))):
        path = write_sparse(tmp_path / f"{size}.safetensors", shape)
        reader = subprocess.Popen([sys.executable, "-c", _READ_FOREVER, path], stdout=subprocess.PIPE, text=True)
        with reader:
            assert reader.stdout.readline() == "opened\n"
            os.truncate(path, size)
            said = reader.stdout.read()
        assert (reader.returncode, said.count("\n")) == (0, 1)
        assert said.startswith(f"{path}: cannot be read, as the file changed while it was read")


@pytest.mark.parametrize("ending", [".npy", ".safetensors"])
def test_a_file_that_is_written_to_while_it_is_read_is_an_error(tmp_path: Path, ending: str) -> None:
    values = make_latents((1, 2, 3, 4, 5))
    path = write(tmp_path / f"clip{ending}", mx.array(values))
    os.utime(path, ns=(0, 0))  # before any tick of the clock in which the test runs
    latents = open_latents(path).map()
    assert np.array_equal(np.array(latents[:, :, :1]), values[:, :, :1])
    with path.open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"....")
    with pytest.raises(LatentsError, match="clip.* the file changed while it was read"):
        latents[:, :, 1:2]


@settings(max_examples=60)
@given(
    block_bytes=st.sampled_from([1, 600, 2**24]),
    steps=st.lists(st.sampled_from([-3, -2, -1, 1, 2, 5]), min_size=5, max_size=5),
    order=st.sampled_from(["C", "F"]),
    batch=st.sampled_from([1, 2]),
)
def test_slices_with_any_step_are_read_however_they_lie_in_the_file(
    batch: int, block_bytes: int, steps: list[int], order: str
) -> None:
    values = make_latents((batch, 3, 4, 5, 6))
    index = tuple(slice(None, None, step) for step in steps)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats, "_BLOCK_BYTES", block_bytes)
        np.save(f"{folder}/clip.npy", np.asarray(values, order=order))
        part = open_latents(f"{folder}/clip.npy").map()[index]
    assert np.array_equal(np.array(part), values[index])
