"""Keyframes in files: which are read, beside latents or alone, which are refused, and what is written."""

import json

import mlx.core as mx
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from commands import info
from latent_files import LatentsWriter, open_latents, write
from mlx_ltx_vae import Keyframes, LatentsError, load_keyframes, load_latents, save_latents

SHAPE = (2, 8, 3, 4, 5)
FRAMES = (12, 4, 4)  # any order, and repeated
RNG = np.random.default_rng(0)
LATENTS = RNG.normal(size=SHAPE).astype(np.float32)
STILLS = RNG.normal(size=(2, 8, len(FRAMES), 4, 5)).astype(np.float32)
TENSORS = {
    "latents": LATENTS,
    "keyframe_latents": STILLS,
    "keyframe_frame_indices": np.array(FRAMES, np.int64),
}
STATISTICS = mx.array(RNG.normal(size=8).astype(np.float32)), mx.array(1 + RNG.random(8).astype(np.float32))


def bits(array: np.ndarray) -> np.ndarray:
    """The bits of bfloat16, cut off those of float32."""
    return (array.view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize(("ending", "numbers"), [("safetensors", np.int64), ("npz", np.int32), ("latent", np.uint8)])
def test_keyframes_are_read_from_the_latent_file_and_do_not_make_it_ambiguous(tmp_path, ending, numbers):
    tensors = TENSORS | {"keyframe_frame_indices": np.array(FRAMES, numbers)}
    tensors["anything"] = tensors.pop("latents")
    path = write(tmp_path / f"clip.{ending}", tensors)
    file = open_latents(path)
    assert file.info.tensor == "anything"
    keyframes = file.find_keyframes()
    assert (keyframes.shape, keyframes.frames, keyframes.stored_dtype) == (STILLS.shape, FRAMES, "float32")
    for read in (keyframes.read(), load_keyframes(path)):
        assert read.frames == FRAMES
        assert read.latents.dtype == mx.float32
        np.testing.assert_array_equal(np.array(read.latents), STILLS)
    np.testing.assert_array_equal(np.array(file.read()), LATENTS)


@pytest.mark.parametrize("ending", ["safetensors", "npz"])
def test_keyframes_have_the_names_of_what_pipelines_return(tmp_path, capsys, ending):
    tensors = {"frames": LATENTS, "keyframes": STILLS, "keyframe_positions": np.array(FRAMES)}
    path = write(tmp_path / f"clip.{ending}", tensors)
    assert open_latents(path).info.tensor == "frames"
    assert info([str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["keyframes"]["frames"] == list(FRAMES)
    for name in ("clip", "keys"):
        found = load_keyframes(write(tmp_path / f"{name}.{ending}", tensors))
        assert found.frames == FRAMES
        np.testing.assert_array_equal(np.array(found.latents), STILLS)
        tensors.pop("frames", None)
    with pytest.raises(LatentsError, match="has keyframe_latents and keyframes, two names for the same; keep one"):
        load_keyframes(write(path, tensors | TENSORS))


def test_who_reads_latents_is_told_of_keyframes_beside_them(tmp_path):
    with pytest.warns(UserWarning, match=r"clip\.npz: has keyframes too; load_keyframes reads them, for decode"):
        load_latents(write(tmp_path / "clip.npz", TENSORS))


@pytest.mark.parametrize("ending", ["safetensors", "npz"])
def test_frames_behind_the_stated_ones_are_padding_without_keyframes(tmp_path, ending):
    path = write(tmp_path / f"clip.{ending}", TENSORS, {"num_frames": "9", "height": "128", "width": "160"})
    with pytest.warns(UserWarning) as warnings:
        latents, about = load_latents(path)
        keyframes = load_keyframes(path)
    assert {
        f"{path}: states 9 frames, which leaves out 1 latent frame of padding at the end.",
        f"{path}: the 9 frames of its video leave out 1 keyframe at frame 12.",
    } <= {str(each.message) for each in warnings}
    assert (about.num_frames, latents.shape) == (9, (2, 8, 2, 4, 5))
    np.testing.assert_array_equal(np.array(latents), LATENTS[:, :, :2])
    assert keyframes.frames == (4, 4)
    np.testing.assert_array_equal(np.array(keyframes.latents), STILLS[:, :, 1:])


def test_a_file_of_keyframes_alone_is_no_latent_file(tmp_path):
    path = write(tmp_path / "keys.safetensors", {name: TENSORS[name] for name in list(TENSORS)[1:]})
    np.testing.assert_array_equal(np.array(load_keyframes(path).latents), STILLS)
    with pytest.raises(LatentsError, match=r"keys\.safetensors: has keyframes and no latents; give it as keyframes="):
        load_latents(path)


def test_without_keyframes_frame_numbers_are_ignored(tmp_path):
    path = write(tmp_path / "clip.npz", {"latents": LATENTS, "keyframe_frame_indices": np.array([1.5, -2])})
    assert open_latents(path).find_keyframes() is None
    np.testing.assert_array_equal(np.array(load_latents(path)[0]), LATENTS)
    assert load_keyframes(path) is None


@pytest.mark.parametrize("stored", ["float16", "bfloat16", "uint16"])
def test_keyframes_keep_their_dtype_whatever_that_of_the_latents(tmp_path, stored):
    path, expected = tmp_path / "clip.safetensors", STILLS.astype(np.float16).astype(np.float32)
    stills = STILLS.astype(np.float16) if stored == "float16" else bits(STILLS)
    if stored == "bfloat16":
        tensors = {name: mx.array(each) for name, each in TENSORS.items()}
        mx.save_safetensors(str(path), tensors | {"keyframe_latents": mx.array(stills).view(mx.bfloat16)})
    else:
        save_file(TENSORS | {"keyframe_latents": stills}, path)
    if stored != "float16":
        expected = (bits(STILLS).astype(np.uint32) << 16).view(np.float32)
    found = load_keyframes(path).latents
    assert found.dtype == (mx.float16 if stored == "float16" else mx.bfloat16)
    np.testing.assert_array_equal(np.array(found.astype(mx.float32)), expected)


@pytest.mark.parametrize("says_so", ["argument", "metadata"])
def test_unnormalized_keyframes_are_normalized_as_the_latents_are(tmp_path, says_so):
    path = write(tmp_path / "clip.safetensors", TENSORS, {} if says_so == "argument" else {"normalized": "false"})
    unnormalized = True if says_so == "argument" else None
    mean, std = (np.array(each).reshape(-1, 1, 1, 1) for each in STATISTICS)
    found = load_keyframes(path, statistics=STATISTICS, unnormalized=unnormalized).latents
    np.testing.assert_allclose(np.array(found), (STILLS - mean) / std, rtol=1e-5, atol=1e-6)
    with pytest.raises(LatentsError, match=r"clip\.safetensors: is unnormalized; give the VAE's statistics"):
        load_keyframes(path, unnormalized=unnormalized)
    write(path, TENSORS, {"normalized": "true"})
    with pytest.raises(LatentsError, match="are normalized, and the caller that they are unnormalized"):
        load_keyframes(path, statistics=STATISTICS, unnormalized=True)


NOT_FINITE = STILLS.copy()
NOT_FINITE[1, 2, 0, 3, 4] = np.nan
BAD = [
    ({"keyframe_frame_indices": None}, "has keyframe_latents and no keyframe_frame_indices"),
    ({"keyframe_latents": STILLS[0]}, r"keyframe latents have the shape \(8, 3, 4, 5\); expected \(B, C, P, H', W'\)"),
    ({"keyframe_latents": STILLS[:, :, :0]}, r"keyframe latents have the shape \(2, 8, 0, 4, 5\); expected \(B, C, P"),
    ({"keyframe_latents": STILLS[:1]}, r"\(1, 8, 3, 4, 5\), and the latents of the video \(2, 8, 3, 4, 5\); expected"),
    ({"keyframe_latents": STILLS[:, 1:]}, r"\(2, 7, 3, 4, 5\), and the latents of the video .* \(2, 8, 3, 4, 5\)\."),
    ({"keyframe_latents": STILLS[..., 1:, :]}, r"\(2, 8, 3, 3, 5\), and the latents of the video"),
    ({"keyframe_latents": STILLS[..., 1:]}, r"\(2, 8, 3, 4, 4\), and the latents of the video"),
    ({"keyframe_latents": STILLS.astype(np.int32)}, "keyframe_latents is stored as int32; save it as float32"),
    ({"keyframe_latents": NOT_FINITE}, r"keyframe latents: 1 of 960 values are not finite.* = \(1, 2, 0, 3, 4\)"),
    ({"keyframe_frame_indices": [4, 8]}, r"has the shape \(2,\) in int64; expected \(3,\) whole numbers"),
    ({"keyframe_frame_indices": [[4, 8, 12]]}, r"has the shape \(1, 3\) in int64; expected \(3,\) whole numbers"),
    ({"keyframe_frame_indices": [4.5, 8, 12]}, r"has the shape \(3,\) in float64; expected \(3,\) whole numbers"),
    ({"keyframe_frame_indices": [True, False, True]}, r"has the shape \(3,\) in bool; expected \(3,\) whole numbers"),
    ({"keyframe_frame_indices": [4, -8, 12]}, r"one frame number from 0 to 2147483647 .* 3 stills, .* \[4, -8, 12\]\."),
    ({"keyframe_frame_indices": [4, 2**31, 12]}, r"one frame number from 0 to 2147483647 for each of their 3 stills"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "words"), BAD)
def test_bad_keyframes_are_refused_by_one_sentence_that_names_the_file(tmp_path, change, words):
    tensors = {name: np.asarray(each) for name, each in (TENSORS | change).items() if each is not None}
    path = write(tmp_path / "clip.npz", tensors)
    file = open_latents(path)  # whose latents are as good as without
    with pytest.raises(LatentsError, match=words) as error:
        file.find_keyframes().read()
    assert str(error.value).startswith(f"{path}: ")
    assert str(error.value).count("\n") == 0
    assert str(error.value).endswith(".")


@pytest.mark.parametrize(
    ("latents", "frames", "words"),
    [
        (STILLS[0], FRAMES, r"have the shape \(8, 3, 4, 5\); expected \(B, C, P, H', W'\)"),
        (STILLS, FRAMES[:2], r"3 stills, and have \[12, 4\]\."),
        (STILLS, [1, 2, 2.5], r"3 stills, and have \[1.0, 2.0, 2.5\]\."),
        (STILLS, [[1, 2, 3]], r"3 stills, and have \[\[1, 2, 3\]\]\."),
        (STILLS, [1, 2, -1], r"3 stills, and have \[1, 2, -1\]\."),
        (STILLS[:, :, :0], [], r"have the shape \(2, 8, 0, 4, 5\)"),
        (STILLS, [1, 2, 2**70], "frame numbers of keyframes are list; expected an array of numbers"),
        (STILLS, [1, [2], 3], "frame numbers of keyframes are list, which numpy cannot convert"),
        (STILLS, range(10**5), r"3 stills, and have .{0,90}\.$"),
    ],
)
def test_bad_keyframes_of_a_caller_are_refused(latents, frames, words):
    with pytest.raises(LatentsError, match=words):
        Keyframes(latents, frames)


@pytest.mark.parametrize(
    ("dtype", "frames"), [("float32", FRAMES), ("float16", np.array(FRAMES)), ("bfloat16", mx.array(FRAMES))]
)
def test_saved_keyframes_are_tensors_that_other_programs_read(tmp_path, dtype, frames):
    path, audio = tmp_path / "clip.safetensors", RNG.normal(size=(2, 8, 7, 16)).astype(np.float32)
    kept = mx.array(STILLS).astype(getattr(mx, dtype))
    strided = mx.contiguous(kept.transpose(4, 3, 2, 1, 0)).transpose(4, 3, 2, 1, 0)
    save_latents(path, LATENTS, fps=24, audio=audio, keyframes=Keyframes(strided, frames))
    found = mx.load(str(path)) if dtype == "bfloat16" else load_file(path)
    assert set(found) == {"latents", "audio_latents", "keyframe_latents", "keyframe_frame_indices"}
    assert found["keyframe_latents"].dtype == (mx.bfloat16 if dtype == "bfloat16" else dtype)
    assert mx.array_equal(mx.array(found["keyframe_latents"]), kept)
    np.testing.assert_array_equal(np.array(found["keyframe_frame_indices"]), FRAMES)
    np.testing.assert_array_equal(np.array(found["latents"]), LATENTS)
    np.testing.assert_array_equal(np.array(found["audio_latents"]), audio)
    with safe_open(path, framework="numpy") as file:
        assert file.metadata()["normalized"] == "true"
    loaded = load_keyframes(path)
    assert loaded.latents.dtype == kept.dtype
    assert mx.array_equal(loaded.latents, kept)


def test_each_saved_tensor_begins_at_a_multiple_of_the_size_of_its_values(tmp_path):
    """Readers that map the file need it. Three values of bfloat16 are six bytes."""
    path = tmp_path / "clip.safetensors"
    latents = mx.ones((1, 1, 3, 1, 1), mx.bfloat16)
    save_latents(path, latents, keyframes=Keyframes(latents.astype(mx.float32)[:, :, :1], [3]))
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    assert start % 8 == 0
    assert content[start : start + 8] == np.array(1, "<f4").tobytes() + np.array(3, "<i4").tobytes()
    assert content[start + 8 :] == bytes.fromhex("803f" * 3)


def test_keyframes_follow_latents_that_come_and_have_their_grid(tmp_path):
    path = tmp_path / "clip.safetensors"
    with LatentsWriter(path) as writer:
        writer.write(mx.array(LATENTS[:, :, :1]))
        writer.write(mx.array(LATENTS[:, :, 1:]))
        for bad, words in (
            (Keyframes(STILLS[:1], FRAMES), r"\(1, 8, 3, 4, 5\), and the latents of the video \(2, 8, 3, 4, 5\)"),
            (Keyframes(NOT_FINITE, FRAMES), "keyframe latents: 1 of 960 values are not finite"),
            (Keyframes(STILLS.astype(np.int16), FRAMES), r"keyframe latents are mlx\.core\.int16; expected float32"),
        ):
            with pytest.raises(LatentsError, match=words) as error:
                writer.complete(keyframes=bad)
            assert str(error.value).startswith(f"{path}: ")
        writer.complete(keyframes=Keyframes(STILLS, FRAMES))
    np.testing.assert_array_equal(load_file(path)["latents"], LATENTS)
    np.testing.assert_array_equal(load_file(path)["keyframe_latents"], STILLS)
