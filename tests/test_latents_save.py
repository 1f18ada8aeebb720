"""Writing latent files: what is written, early refusal, and nothing left behind by a failure."""

import tempfile
import tracemalloc
from fractions import Fraction
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file

from conftest import active_memory, file_size_limit
from latent_files import LatentsWriter, assert_same, write_in_blocks
from mlx_ltx_vae import LatentsError, ScaleFactors, WriterError, load_latents, save_latents
from video_files import names


@pytest.fixture
def latents() -> mx.array:
    return mx.random.normal((1, 8, 3, 4, 5), key=mx.random.key(0))


@settings(max_examples=30)
@given(
    shape=st.tuples(*[st.integers(1, 4)] * 5),
    dtype=st.sampled_from([mx.float32, mx.float16, mx.bfloat16]),
    fps=st.none() | st.fractions(min_value=1, max_value=240, max_denominator=1001),
    scale=st.none() | st.builds(ScaleFactors, *[st.integers(1, 64)] * 3),
)
def test_saved_latents_are_loaded_unchanged(shape: tuple, dtype: mx.Dtype, fps: Fraction, scale: ScaleFactors) -> None:
    latents = mx.random.normal(shape, key=mx.random.key(sum(shape))).astype(dtype)
    num_frames, height, width = scale.video_grid(shape[2:]) if scale else (None, None, None)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clip.safetensors"
        save_latents(path, latents, fps=fps, num_frames=num_frames, height=height, width=width)
        assert names(Path(folder)) == ["clip.safetensors"]
        result, info = load_latents(path, latent_channels=shape[1])
    assert_same(result, latents)
    assert (info.fps, info.num_frames, info.height, info.width) == (fps, num_frames, height, width)
    assert (info.source, info.tensor, info.stored_shape) == (str(path), "latents", shape)


def test_saved_file_has_the_documented_tensor_and_metadata(tmp_path: Path, latents: mx.array) -> None:
    path = tmp_path / "clip.safetensors"
    save_latents(path, latents, fps="23.976", num_frames=17, height=128, width=160)
    tensors, metadata = mx.load(str(path), return_metadata=True)
    assert list(tensors) == ["latents"]
    expected = {"fps": "24000/1001", "num_frames": "17", "height": "128", "width": "160", "normalized": "true"}
    assert expected.items() <= metadata.items()
    assert "source_frames" not in metadata
    save_latents(path, latents, num_frames=17, source_frames=12)
    _, metadata = mx.load(str(path), return_metadata=True)
    assert (metadata["num_frames"], metadata["source_frames"]) == ("17", "12")
    for number in (0, 10**9):  # files that state it cannot be read
        with pytest.raises(LatentsError, match=f"a whole number of frames from 1 to 999999999, not {number}"):
            save_latents(path, latents, source_frames=number)


REFUSED_TARGETS = [
    ("clip.npy", {}, "use a name that ends in .safetensors"),
    ("missing/clip.safetensors", {}, "No such file or directory"),
    ("folder.safetensors", {}, "it is a folder"),
    ("clip.safetensors", {"fps": "fast"}, "'fast' is not a frame rate"),
]


@pytest.mark.parametrize(("name", "options", "words"), REFUSED_TARGETS)
def test_invalid_targets_are_refused(tmp_path: Path, latents: mx.array, name: str, options: dict, words: str) -> None:
    (tmp_path / "folder.safetensors").mkdir()
    with pytest.raises(WriterError) as refusal:
        save_latents(tmp_path / name, latents, **options)
    assert words in str(refusal.value)
    assert str(refusal.value).startswith(f"{tmp_path / name}: ")
    assert names(tmp_path) == ["folder.safetensors"]


@pytest.mark.parametrize(
    ("invalid", "words"),
    [
        (mx.ones((8, 1, 2, 2)), "five axes"),
        (mx.ones((1, 1536, 128)), "packed"),
        (mx.ones((1, 8, 1, 2, 2), mx.complex64), "complex64"),
        (mx.ones((1, 8, 0, 2, 2)), "are empty"),
        (mx.ones((1, 8, 1, 2, 2), mx.uint16), "uint16"),
        (mx.full((1, 8, 1, 2, 2), float("inf")), "not finite"),
        (mx.full((1, 8, 1, 2, 2), float("nan"), mx.bfloat16), "not finite"),
    ],
)
def test_invalid_latents_are_refused_and_leave_the_earlier_file(tmp_path: Path, invalid: mx.array, words: str) -> None:
    path = tmp_path / "clip.safetensors"
    path.write_text("earlier")
    with pytest.raises(LatentsError, match=words) as refusal:
        save_latents(path, invalid)
    assert str(refusal.value).startswith(f"{path}: ")
    assert names(tmp_path) == ["clip.safetensors"]
    assert path.read_text() == "earlier"


def test_a_partial_file_that_a_signal_has_removed_is_not_created_again(tmp_path: Path, latents: mx.array) -> None:
    with LatentsWriter(tmp_path / "clip.safetensors") as writer:
        writer.write(latents)
        for path in tmp_path.iterdir():
            path.unlink()
        with pytest.raises(WriterError, match="cannot be written"):
            writer.complete()
    assert names(tmp_path) == []


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("block_bytes", [1, 700, 2**25])
def test_latents_that_come_along_time_are_one_tensor_to_other_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: type, block_bytes: int
) -> None:
    write_in_blocks(monkeypatch, block_bytes)
    expected = np.random.default_rng(0).normal(size=(2, 8, 7, 3, 5)).astype(dtype)
    audio = np.random.default_rng(1).normal(size=(2, 8, 4, 16)).astype(np.float32)
    path = tmp_path / "clip.safetensors"
    with LatentsWriter(path) as latents:
        for start, end in ((0, 1), (1, 4), (4, 7)):
            latents.write(mx.array(expected[:, :, start:end]))
            assert not path.exists()
        latents.complete(fps=24, audio=mx.array(audio).transpose(0, 1, 3, 2).transpose(0, 1, 3, 2))
    found = load_file(path)
    assert found["latents"].dtype == dtype
    np.testing.assert_array_equal(found["latents"], expected)
    np.testing.assert_array_equal(found["audio_latents"], audio)
    with safe_open(path, framework="numpy") as file:
        assert file.metadata()["fps"] == "24"
    assert names(tmp_path) == ["clip.safetensors"]


def test_latents_that_come_take_no_memory_that_grows_with_the_clip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_in_blocks(monkeypatch, 2**16)
    part = mx.zeros((1, 128, 2, 8, 8))
    mx.eval(part)
    before = active_memory()
    mx.reset_peak_memory()
    tracemalloc.start()  # numpy's arrays
    with LatentsWriter(tmp_path / "clip.safetensors") as latents:
        for _ in range(100):
            latents.write(part)
        latents.complete()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (tmp_path / "clip.safetensors").stat().st_size > 100 * part.nbytes
    assert max(peak, mx.get_peak_memory() - before) < 10 * part.nbytes


def test_latents_of_another_kind_do_not_follow(tmp_path: Path, latents: mx.array) -> None:
    with LatentsWriter(tmp_path / "clip.safetensors") as out:
        out.write(latents)
        for other in (latents[:, :, :, 1:], latents[:, :3], latents.astype(mx.bfloat16)):
            with pytest.raises(LatentsError, match="of another kind"):
                out.write(other)
    assert names(tmp_path) == []


def test_full_disk_leaves_the_earlier_file_and_nothing_else(tmp_path: Path, latents: mx.array) -> None:
    path = tmp_path / "clip.safetensors"
    save_latents(path, latents)
    with file_size_limit(1024), pytest.raises(WriterError, match="cannot be written"):
        save_latents(path, latents + 1)
    assert names(tmp_path) == ["clip.safetensors"]
    assert_same(load_latents(path)[0], latents)


@pytest.mark.parametrize("sizes", [(18, 128, 160), (17, 127, 160), (17, 128, 3), (0, 128, 160), (17, -128, 160)])
def test_sizes_that_no_video_of_the_latents_has_are_refused(tmp_path: Path, latents: mx.array, sizes: tuple) -> None:
    num_frames, height, width = sizes
    with pytest.raises(LatentsError, match=f"states num_frames {num_frames}, height {height}, width {width}, but"):
        save_latents(tmp_path / "clip.safetensors", latents, num_frames=num_frames, height=height, width=width)
    assert names(tmp_path) == []


@pytest.mark.parametrize(("carry", "frames"), [(17, 25), (0, 1), (9, 33)])
def test_a_carry_is_stated(tmp_path, carry, frames):
    path = tmp_path / "clip.safetensors"
    save_latents(path, mx.zeros((1, 8, 1 + (frames - 1) // 8, 2, 3)), carry=carry)
    with safe_open(path, "np") as file:
        assert file.metadata()["carry"] == str(carry)
    assert load_latents(path)[1].carry == carry


@pytest.mark.parametrize("carry", [-7, 18, 25, 17.0, True, "17"])
def test_a_carry_that_no_window_has_is_refused(tmp_path, carry):
    with pytest.raises(LatentsError, match="windows share 1 .* not|a window of 25 frames cannot share 25"):
        save_latents(tmp_path / "clip.safetensors", mx.zeros((1, 8, 4, 2, 3)), carry=carry)
    assert list(tmp_path.iterdir()) == []
