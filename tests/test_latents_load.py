"""Reading latent files: which are read, which are refused, and the error messages."""

import json
import tempfile
from fractions import Fraction
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latent_files import assert_same, open_latents
from mlx_ltx_vae import LatentsError, load_latents, save_latents

SHAPE = (1, 8, 3, 4, 5)


@pytest.fixture
def latents() -> mx.array:
    return mx.random.normal(SHAPE, key=mx.random.key(0))


def same_bits(array: mx.array) -> np.ndarray:
    """The bits of bfloat16 values, which numpy cannot represent."""
    return np.array(array.view(mx.uint16))


@pytest.mark.parametrize(
    "name", ["latents", "latent", "samples", "latent_tensor", "stage_2_video_latent", "final_video_latent", "anything"]
)
def test_known_names_and_a_single_tensor_of_any_name_are_read(tmp_path: Path, latents: mx.array, name: str) -> None:
    path = tmp_path / "clip.latent"
    others = {} if name == "anything" else {"other": mx.zeros((2,))}
    mx.save_safetensors(str(path.with_suffix(".safetensors")), {name: latents} | others)
    path.with_suffix(".safetensors").rename(path)  # ComfyUI's ending; the content decides
    result, info = load_latents(path)
    assert_same(result, latents)
    assert info.tensor == name


@pytest.mark.parametrize("names", [("latents", "samples"), ("a", "b")])
def test_several_candidate_tensors_are_named_and_one_can_be_chosen(
    tmp_path: Path, latents: mx.array, names: tuple
) -> None:
    path = tmp_path / "clip.safetensors"
    mx.save_safetensors(str(path), {names[0]: latents, names[1]: latents + 1})
    with pytest.raises(LatentsError, match=f"{names[0]}, {names[1]}"):
        load_latents(path)
    result, info = load_latents(path, tensor=names[1])
    assert info.tensor == names[1]
    assert_same(result, latents + 1)
    with pytest.raises(LatentsError, match="no tensor 'c'"):
        load_latents(path, tensor="c")


@pytest.mark.parametrize(("ending", "dtype"), [("npy", "float32"), ("npz", "bfloat16"), ("safetensors", "float16")])
def test_an_opened_file_describes_the_latents_that_it_reads(
    tmp_path: Path, latents: mx.array, dtype: str, ending: str
) -> None:
    path, packed = tmp_path / f"clip.{ending}", latents.reshape(8, 60).T.astype(getattr(mx, dtype))
    if ending == "npy":
        mx.save(str(path), packed)
    elif ending == "npz":
        mx.savez(str(path), latents=packed)
    else:
        mx.save_safetensors(str(path), {"latents": packed})
    file = open_latents(path, grid=SHAPE[2:])
    assert (file.shape, file.stored_dtype, file.layout) == (SHAPE, dtype, "(tokens, C)")
    assert (file.normalized, file.info.stored_shape) == (None, (60, 8))
    assert_same(file.read(), latents.astype(getattr(mx, dtype)))


def test_opening_checks_shapes_and_reading_checks_values(tmp_path: Path, latents: mx.array) -> None:
    latents[0, 2, 1, 3, 4] = float("nan")
    mx.save_safetensors(str(tmp_path / "clip.safetensors"), {"latents": latents})
    with pytest.raises(LatentsError, match="have 8 channels where the VAE has 128"):
        open_latents(tmp_path / "clip.safetensors", latent_channels=128)
    file = open_latents(tmp_path / "clip.safetensors", latent_channels=8)
    with pytest.raises(LatentsError, match="1 of 480 values are not finite"):
        file.read()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.dtype(">f4")])
@pytest.mark.parametrize("ending", ["npy", "npz"])
def test_numpy_files_are_read(tmp_path: Path, latents: mx.array, dtype: np.dtype, ending: str) -> None:
    path, array = tmp_path / f"clip.{ending}", np.asfortranarray(np.array(latents).astype(dtype))
    np.save(path, array) if ending == "npy" else np.savez(path, latents=array, fps=23.976, num_frames=17)
    result, info = load_latents(path, latent_channels=8)
    assert_same(result, latents.astype(mx.float16 if dtype == np.float16 else mx.float32))
    assert (info.fps, info.num_frames) == ((Fraction(24000, 1001), 17) if ending == "npz" else (None, None))


@pytest.mark.parametrize("stored_as", ["V2", np.uint16])
def test_bfloat16_in_numpy_files_is_recognized(tmp_path: Path, latents: mx.array, stored_as: object) -> None:
    expected = latents.astype(mx.bfloat16)
    np.savez(tmp_path / "clip.npz", latents=same_bits(expected).view(stored_as))
    assert_same(load_latents(tmp_path / "clip.npz")[0], expected)


@pytest.mark.parametrize(
    ("value", "dtype"), [(float("nan"), mx.float32), (float("inf"), mx.float16), (-float("inf"), mx.bfloat16)]
)
def test_values_that_are_not_finite_are_counted_and_located(
    tmp_path: Path, latents: mx.array, value: float, dtype: mx.Dtype
) -> None:
    latents = latents.astype(dtype)
    latents[0, 2, 1, 3, 4] = value
    latents[0, 7, 2, 0, 0] = value
    with pytest.raises(LatentsError, match=r"2 of 480 values .* = \(0, 2, 1, 3, 4\)"):
        save_latents(tmp_path / "clip.safetensors", latents)


def test_integers_in_a_file_are_refused(tmp_path: Path) -> None:
    mx.save_safetensors(str(tmp_path / "clip.safetensors"), {"latents": mx.zeros(SHAPE, mx.int32)})
    with pytest.raises(LatentsError, match="int32"):
        load_latents(tmp_path / "clip.safetensors")


def test_safetensors_are_not_taken_for_pickles_at_any_header_length(tmp_path: Path) -> None:
    path, entry = tmp_path / "clip.safetensors", {"dtype": "F32", "shape": [1] * 5, "data_offsets": [0, 4]}
    header = json.dumps({"latents": entry}).encode()
    for length in range(len(header), len(header) + 256):  # all first bytes, and 128 is that of a pickle
        path.write_bytes(length.to_bytes(8, "little") + header.ljust(length) + bytes(4))
        assert load_latents(path)[0].shape == (1, 1, 1, 1, 1)


@pytest.mark.parametrize("ending", ["safetensors", "npy", "npz"])
def test_every_truncation_is_a_one_line_error(tmp_path: Path, ending: str) -> None:
    whole, cut = tmp_path / f"whole.{ending}", tmp_path / f"cut.{ending}"
    array = np.ones((1, 2, 1, 2, 2), np.float32)
    if ending == "safetensors":
        save_latents(whole, mx.array(array))
    else:
        np.save(whole, array) if ending == "npy" else np.savez(whole, latents=array)
    content = whole.read_bytes()
    for length in range(len(content)):
        cut.write_bytes(content[:length])
        with pytest.raises(LatentsError) as refusal:
            load_latents(cut)
        assert str(refusal.value).startswith(str(cut))
        assert "\n" not in str(refusal.value)


@settings(max_examples=80)
@given(content=st.binary(max_size=64), json_like=st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda
       inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["latents", "__metadata__", "dtype",
       "shape", "data_offsets"]), inner, max_size=4)))  # fmt: skip
def test_arbitrary_content_is_a_latents_error(content: bytes, json_like: object) -> None:
    header = json.dumps(json_like).encode()
    for data in (content, len(header).to_bytes(8, "little") + header + content):
        with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
            file.write(data)
            file.flush()
            with pytest.raises(LatentsError):
                load_latents(file.name)


def test_unknown_dtype_is_named(tmp_path: Path) -> None:
    header = b'{"latents":{"dtype":"F8_E4M3","shape":[1,1,1,1,1],"data_offsets":[0,1]}}'
    (tmp_path / "clip.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0")
    with pytest.raises(LatentsError, match="stored as F8_E4M3; save it as"):
        load_latents(tmp_path / "clip.safetensors")


@pytest.mark.parametrize("offsets", [[8, 4], [-4, 0], [0, 4], [4, 4], [0, 8, 8], [], None])
def test_inconsistent_header_is_refused(tmp_path: Path, offsets: object) -> None:
    entry = {"dtype": "F32", "shape": [-1 if offsets == [8, 4] else 2, 1, 1, 1, 1], "data_offsets": offsets}
    header = json.dumps({"latents": entry}).encode()
    (tmp_path / "clip.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(LatentsError, match="cannot be read"):
        load_latents(tmp_path / "clip.safetensors")
