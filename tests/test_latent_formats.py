"""Formats of latent files are entries in a table: messages, help and `info` follow from it."""

import json
from pathlib import Path

import numpy as np
import pytest

from commands import decode, help_of, info
from latent_files import open_latents, write_sparse
from mlx_ltx_vae import LatentsError, demo, load_latents
from toy_format import ENDINGS, START, add_toy

SHAPE = (1, 64, 2, 3, 4)


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, np.ndarray]:
    """A file in the toy format, which is in the table, and its values."""
    add_toy(monkeypatch)
    values = np.random.default_rng(0).standard_normal(SHAPE).astype("<f4")
    path = tmp_path / "clip.toy"
    path.write_bytes(START + " ".join(map(str, SHAPE)).encode() + b"\n" + values.tobytes())
    return path, values


def test_a_format_of_one_file_and_one_entry_is_read(toy: tuple, capsys: pytest.CaptureFixture) -> None:
    path, values = toy
    assert np.array_equal(np.array(load_latents(path)[0]), values)
    assert np.array_equal(np.array(open_latents(path).map()[:, :, 1:]), values[:, :, 1:])
    assert info([str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["shape"] == list(SHAPE)
    assert report["statistics"]["mean"] == pytest.approx(values.mean(), abs=1e-6)
    output = path.with_name("out")
    assert decode([str(path), "-m", str(demo.VAE), "-o", f"{output}/", "--stills", "-q"]) == 0
    assert len(list(output.iterdir())) == 9


def test_a_damaged_file_of_a_new_format_is_one_sentence(toy: tuple) -> None:
    path, values = toy
    path.write_bytes(START + b"one two\n")
    with pytest.raises(LatentsError, match="clip.toy: cannot be read as .*, .npz or the toy format .invalid literal"):
        open_latents(path)
    path.write_bytes(START + b"1 64 2 3 4\n" + values.tobytes()[:-1])
    with pytest.raises(LatentsError, match="clip.toy: cannot be read"):
        load_latents(path)
    path.write_bytes(b"something else")
    with pytest.raises(LatentsError, match="is neither safetensors nor .npy nor .npz nor the toy format; save"):
        load_latents(path)


def test_help_lists_the_endings_of_the_table() -> None:
    assert f"latent files: {', '.join(ENDINGS)};" in " ".join(help_of("decode").split())


@pytest.mark.parametrize(
    ("shape", "frames_read", "words"),
    [
        ((1, 64, 2**22, 32, 32), 10, "of 10 of 4,194,304 latent frames"),
        ((1, 64, 2, 2**16, 2**16), 0, "since a single latent frame has too many"),
    ],
)
def test_of_a_terabyte_a_stated_part_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, shape: tuple, frames_read: int,
    words: str,
) -> None:  # fmt: skip
    monkeypatch.setattr("mlx_ltx_vae.inspect.MAX_INSPECTED_VALUES", 10 * 64 * 32 * 32)
    path = write_sparse(tmp_path / "clip.safetensors", shape)
    assert info([str(path)]) == 0
    assert words in capsys.readouterr().out
    assert info([str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["frames_read"] == frames_read
    assert (report["statistics"] is None) == (frames_read == 0)
