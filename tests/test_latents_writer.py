"""Latents written piece by piece: the file is the one that `save_latents` writes of all of them."""

import json
import tempfile
import tracemalloc
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import file_size_limit
from mlx_ltx_vae.errors import LatentsError, WriterError
from mlx_ltx_vae.latents import LatentsWriter, load_latents, save_latents
from mlx_ltx_vae.latents import writer as latents_writer

KNOWN = {"fps": "24000/1001", "height": 64, "width": 96}
DTYPES = {"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}


def make_latents(shape: tuple[int, ...], dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(sum(shape))).astype(dtype)


def to_numpy(latents: mx.array) -> np.ndarray:
    return np.array(latents.view(mx.uint16)).view("V2") if latents.dtype == mx.bfloat16 else np.array(latents)


def header_and_data(path: Path) -> tuple[dict, bytes]:
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


@settings(max_examples=60, deadline=None)
@given(
    pieces=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    rest=st.tuples(*[st.integers(1, 4)] * 4),
    dtype=st.sampled_from(list(DTYPES)),
    block_bytes=st.sampled_from([1, 40, 200, 2**24]),
    num_frames=st.none() | st.integers(1, 99),
)
def test_file_is_that_of_save_latents_for_every_chunking(
    pieces: list, rest: tuple, dtype: str, block_bytes: int, num_frames: int | None
) -> None:
    batch, channels, height, width = rest
    latents = make_latents((batch, channels, sum(pieces), height, width), DTYPES[dtype])
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(latents_writer, "_BLOCK_BYTES", block_bytes)
        expected, path = Path(folder) / "whole.safetensors", Path(folder) / "pieces.safetensors"
        save_latents(expected, latents, **KNOWN, num_frames=num_frames)
        with LatentsWriter(path, **KNOWN) as out:
            start = 0
            for length in pieces:
                out.write(to_numpy(latents[:, :, start : start + length]))
                start += length
            assert out.shape == latents.shape
            assert names(Path(folder))[1:] == ["whole.safetensors"], "not under its name yet"
            out.num_frames = num_frames
        assert names(Path(folder)) == ["pieces.safetensors", "whole.safetensors"]
        assert header_and_data(path) == header_and_data(expected)
        assert header_and_data(path)[0]["latents"]["dtype"] == dtype
        assert path.read_bytes()[0] % 8 == 0, "data are aligned, as the format asks for"
        result, info = load_latents(path, latent_channels=channels)
    assert result.dtype == latents.dtype
    assert mx.array_equal(result, latents).item()
    assert info.num_frames == num_frames


def test_memory_does_not_grow_with_the_clip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latents_writer, "_BLOCK_BYTES", 2**18)
    piece = np.ones((1, 64, 4, 16, 16), np.float32)  # 262 kB
    tracemalloc.start()
    try:
        with LatentsWriter(tmp_path / "clip.safetensors") as out:
            for _ in range(100):
                out.write(piece)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (tmp_path / "clip.safetensors").stat().st_size > 100 * piece.nbytes
    assert peak < 4 * piece.nbytes


@pytest.mark.parametrize("problem", [ValueError, KeyboardInterrupt])
def test_exception_in_the_block_leaves_nothing(tmp_path: Path, problem: type[BaseException]) -> None:
    (tmp_path / "clip.safetensors").write_text("what was there")
    with pytest.raises(problem), LatentsWriter(tmp_path / "clip.safetensors") as out:
        out.write(np.ones((1, 8, 1, 2, 2), np.float32))
        raise problem
    assert names(tmp_path) == ["clip.safetensors"]
    assert (tmp_path / "clip.safetensors").read_text() == "what was there"
    out.close()
    with pytest.raises(WriterError, match="is closed"):
        out.write(np.ones((1, 8, 1, 2, 2), np.float32))


def test_nothing_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WriterError, match="no latents were written"), LatentsWriter(tmp_path / "clip.safetensors"):
        pass
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("clip.npy", {}, "let the name end in .safetensors"),
        ("missing/clip.safetensors", {}, "No such file or directory"),
        ("clip.safetensors", {"fps": "fast"}, "'fast' is not a frame rate"),
    ],
)
def test_bad_wishes_are_refused_at_once(tmp_path: Path, name: str, options: dict, words: str) -> None:
    with pytest.raises(WriterError) as refusal:
        LatentsWriter(tmp_path / name, **options)
    assert words in str(refusal.value)
    assert names(tmp_path) == []


NAN_BITS = np.full((1, 8, 1, 2, 2), 0x7FC0, np.uint16)


@pytest.mark.parametrize(
    ("latents", "words"),
    [
        (np.ones((1, 8, 1, 2, 3), np.float32), "follow such of (1, 8, 2, 2, 2)"),
        (np.ones((1, 4, 1, 2, 2), np.float32), "follow such of (1, 8, 2, 2, 2)"),
        (np.ones((1, 8, 1, 2, 2), np.float16), "only their number of frames may differ"),
        (np.ones((8, 1, 2, 2), np.float32), "five axes"),
        (np.ones((1, 8, 0, 2, 2), np.float32), "none empty"),
        (np.ones((1, 8, 1, 2, 2), np.uint16), "bfloat16 as V2"),
        (np.full((1, 8, 1, 2, 2), np.inf, np.float32), "NaN or infinite"),
    ],
)
def test_other_latents_than_before_are_refused(tmp_path: Path, latents: np.ndarray, words: str) -> None:
    with pytest.raises(LatentsError) as refusal, LatentsWriter(tmp_path / "clip.safetensors") as out:
        out.write(np.ones((1, 8, 2, 2, 2), np.float32))
        out.write(latents)
    assert words in str(refusal.value)
    assert str(refusal.value).startswith(f"{tmp_path}/clip.safetensors: ")
    assert names(tmp_path) == []


def test_bfloat16_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LatentsError, match="NaN or infinite"), LatentsWriter(tmp_path / "clip.safetensors") as out:
        out.write(NAN_BITS.view("V2"))


@pytest.mark.parametrize("limit", [1000, 9000])  # while pieces come; while the file is made of them
def test_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path, limit: int) -> None:
    target = tmp_path / "clip.safetensors"
    # Not around anything that pytest writes, which may go to a file too.
    with file_size_limit(limit), pytest.raises(WriterError) as refusal, LatentsWriter(target, **KNOWN) as out:
        for _ in range(70):
            out.write(np.ones((1, 8, 1, 2, 2), np.float32))
    assert str(refusal.value) == f"{target}: cannot be written (File too large)."
    assert names(tmp_path) == []
