"""Latents in the layouts of other programs: each becomes `(B, C, F', H', W')`, or is an error."""

import json
import tempfile
from fractions import Fraction
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latent_files import assert_same, write
from mlx_ltx_vae import LatentsError, demo, integrations, load_latents, save_latents

CHANNELS = 7
GRID = (3, 4, 5)
GRID_KEYS = ("latent_num_frames", "latent_height", "latent_width")
TRAINER_KEYS = ("num_frames", "height", "width")


def make_latents(batch: int = 1, grid: tuple = GRID) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((batch, CHANNELS, *grid)).astype(np.float32)


def pack(latents: np.ndarray) -> np.ndarray:
    """(B, tokens, C), a token at a time."""
    batch, channels, frames, height, width = latents.shape
    packed = np.empty((batch, frames * height * width, channels), latents.dtype)
    for f, h, w in np.ndindex(frames, height, width):
        packed[:, (f * height + h) * width + w] = latents[:, :, f, h, w]
    return packed


STORED_AS = {
    "BCFHW": lambda latents: latents,
    "BFHWC": lambda latents: np.moveaxis(latents, 1, 4),
    "CFHW": lambda latents: latents[0],
    "FHWC": lambda latents: np.moveaxis(latents[0], 0, 3),
    "BNC": pack,
    "NC": lambda latents: pack(latents)[0],
}


@settings(max_examples=60)
@given(
    layout=st.sampled_from(list(STORED_AS)),
    grid=st.tuples(*[st.integers(1, 5)] * 3),
    batch=st.integers(1, 3),
    dtype=st.sampled_from([mx.float32, mx.float16, mx.bfloat16]),
    named=st.sampled_from(["argument", "grid", "sizes", "trainer"]),
)
def test_every_layout_becomes_the_same_latents(
    layout: str, grid: tuple, batch: int, dtype: mx.Dtype, named: str
) -> None:
    latents = make_latents(batch if "B" in layout else 1, grid)
    metadata = {
        "grid": {"grid": "x".join(map(str, grid))},
        "sizes": dict(zip(GRID_KEYS, map(str, grid), strict=True)),
        "trainer": dict(zip(TRAINER_KEYS, map(str, grid), strict=True)),
    }.get(named, {})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clip.safetensors"
        stored = STORED_AS[layout](latents)
        mx.save_safetensors(str(path), {"latents": mx.array(stored).astype(dtype)}, metadata)
        result, info = load_latents(path, latent_channels=CHANNELS, grid=grid if named == "argument" else None)
    assert_same(result, latents, dtype)
    assert info.stored_shape == stored.shape
    assert (info.num_frames, info.height, info.width) == (None, None, None)


@pytest.mark.parametrize("is_marked", [True, False])
def test_comfyui_latents_are_never_rescaled(tmp_path: Path, is_marked: bool) -> None:
    latents = make_latents()
    tensors = {"latent_tensor": latents, "noise_mask": np.ones((1, 1, *GRID), np.float32)}
    if is_marked:
        tensors["latent_format_version_0"] = np.empty(0, np.float32)
    graph = {"prompt": json.dumps({"3": {"class_type": "SaveLatent"}}), "workflow": json.dumps({"nodes": []})}
    path = write(tmp_path / "ComfyUI_00001_.latent", tensors, graph)
    result, info = load_latents(path, latent_channels=CHANNELS)
    assert_same(result, latents)
    assert info.tensor == "latent_tensor"


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_the_final_latents_of_a_two_stage_sidecar_are_read(tmp_path: Path, ending: str) -> None:
    first, last = make_latents(grid=(3, 2, 2)), make_latents()
    arrays = {
        "stage_1_video_latent": first,
        "stage_2_video_latent": last,
        "final_video_latent": last,
        "final_audio_latent": np.zeros((1, 8, 26, 16), np.float32),
    }
    path = tmp_path / f"clip.{ending}"
    if ending == "npz":
        types = {f"{name}_mlx_dtype": "mlx.core.bfloat16" for name in arrays}
        np.savez(path, pipeline=np.array("distilled_two_stage"), **arrays, **types)
    else:
        write(path, arrays, {"pipeline": "distilled_two_stage"})
    result, info = load_latents(path, latent_channels=CHANNELS)
    assert_same(result, last)
    assert info.tensor == "final_video_latent"
    assert_same(load_latents(path, latent_channels=CHANNELS, tensor="stage_1_video_latent")[0], first)


@pytest.mark.parametrize(("layout", "ending", "shape"), [("CFHW", "npz", ()), ("NC", "safetensors", (1,))])
def test_sizes_of_a_trainer_are_the_latent_grid(tmp_path: Path, layout: str, ending: str, shape: tuple) -> None:
    latents = make_latents()
    tensors = {"latents": STORED_AS[layout](latents), "fps": np.full(shape, 23.976, np.float32)}
    tensors |= {key: np.full(shape, size, np.int32) for key, size in zip(TRAINER_KEYS, GRID, strict=True)}
    path = write(tmp_path / f"latent_0000.{ending}", tensors)
    result, info = load_latents(path, latent_channels=CHANNELS)
    assert_same(result, latents)
    assert info.fps == Fraction(24000, 1001)
    assert (info.num_frames, info.height, info.width) == (None, None, None)


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_video_sizes_stored_as_tensors_are_reported(tmp_path: Path, ending: str) -> None:
    sizes = {key: np.array(size) for key, size in zip(TRAINER_KEYS, (17, 128, 160), strict=True)}
    tensors = {"latents": make_latents(), "fps": np.array([14.985], np.float32), **sizes}
    path = write(tmp_path / f"clip.{ending}", tensors)
    _, info = load_latents(path)
    assert (info.fps, info.num_frames, info.height, info.width) == (Fraction(2997, 200), 17, 128, 160)


def test_sizes_in_saved_files_are_the_video_sizes(tmp_path: Path) -> None:
    path = tmp_path / "clip.safetensors"
    save_latents(path, mx.array(make_latents()), num_frames=3, height=4, width=5)
    _, info = load_latents(path, latent_channels=CHANNELS)
    assert (info.num_frames, info.height, info.width) == GRID


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_grid_stored_as_tensors_is_read(tmp_path: Path, ending: str) -> None:
    tensors = {"samples": pack(make_latents())}
    tensors |= {key: np.array(size) for key, size in zip(GRID_KEYS, GRID, strict=True)}
    path = write(tmp_path / f"clip.{ending}", tensors)
    assert_same(load_latents(path, latent_channels=CHANNELS)[0], make_latents())


def test_text_arrays_are_metadata(tmp_path: Path, statistics: tuple) -> None:
    path = tmp_path / "clip.npz"
    np.savez(path, latents=pack(denormalize(make_latents(), statistics)), grid="3x4x5", normalized=False)
    result, _ = load_latents(path, statistics=statistics)
    assert result.shape == make_latents().shape
    assert np.abs(np.array(result) - make_latents()).max() < 1e-5


def test_arrays_of_several_elements_are_not_metadata(tmp_path: Path) -> None:
    path = write(tmp_path / "clip.safetensors", {"latents": make_latents(), "height": np.arange(4)})
    assert load_latents(path)[1].height is None
    np.savez(tmp_path / "clip.npz", latents=make_latents(), height=np.arange(4))
    assert load_latents(tmp_path / "clip.npz")[1].height is None


def test_error_for_packed_latents_without_a_grid_says_how_to_give_it(tmp_path: Path) -> None:
    sizes = dict(zip(TRAINER_KEYS, ("17", "128", "160"), strict=True))  # the video's
    path = write(tmp_path / "clip.safetensors", {"latents": pack(make_latents())}, sizes)
    with pytest.raises(LatentsError, match=r"\(1, 60, 7\) are packed, \(B, tokens, C\), .* give it as grid=\(F"):
        load_latents(path, latent_channels=CHANNELS)
    result, info = load_latents(path, latent_channels=CHANNELS, grid=GRID)
    assert_same(result, make_latents())
    assert (info.num_frames, info.height, info.width) == (17, 128, 160)


@pytest.mark.parametrize("layout", list(STORED_AS))
def test_a_grid_that_does_not_fit_is_refused(tmp_path: Path, layout: str) -> None:
    path = write(tmp_path / "clip.safetensors", {"latents": STORED_AS[layout](make_latents())})
    for grid in ((3, 4, 6), (5, 4, 4)) if "N" in layout else ((3, 4, 6), (3, 5, 4)):
        with pytest.raises(LatentsError, match=f"do not have the grid {'x'.join(map(str, grid))}"):
            load_latents(path, latent_channels=CHANNELS, grid=grid)


@pytest.mark.parametrize("grid", [(12, 5), (3, 4, 5, 1), (-3, -4, 5), (0, 4, 5)])
def test_an_invalid_grid_is_refused(tmp_path: Path, grid: tuple) -> None:
    path = write(tmp_path / "clip.safetensors", {"latents": pack(make_latents())})
    with pytest.raises(LatentsError, match="three numbers above 0"):
        load_latents(path, latent_channels=CHANNELS, grid=grid)


def test_two_different_grids_are_an_error_that_names_both(tmp_path: Path) -> None:
    sizes = dict(zip(GRID_KEYS, "345", strict=True))
    path = write(tmp_path / "clip.safetensors", {"latents": pack(make_latents())}, sizes)
    with pytest.raises(LatentsError, match="given as 3x5x4 and as 3x4x5"):
        load_latents(path, latent_channels=CHANNELS, grid=(3, 5, 4))
    assert_same(load_latents(path, latent_channels=CHANNELS, grid=GRID)[0], make_latents())
    path = write(tmp_path / "both.safetensors", {"latents": pack(make_latents())}, sizes | {"grid": "4x3x5"})
    with pytest.raises(LatentsError, match="given as 4x3x5 and as 3x4x5"):
        load_latents(path, latent_channels=CHANNELS)


@pytest.mark.parametrize("shape", [(1, 7, 3, 4, 7), (7, 3, 4, 7)])
def test_a_grid_decides_between_two_layouts(tmp_path: Path, shape: tuple) -> None:
    stored = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    path = write(tmp_path / "clip.safetensors", {"latents": stored})
    names = {5: r"\(B, C, F', H', W'\) or \(B, F', H', W', C\)", 4: r"\(C, F', H', W'\) or \(F', H', W', C\)"}
    with pytest.raises(LatentsError, match=f"could be {names[len(shape)]}, .* \\(grid=\\)"):
        load_latents(path, latent_channels=7)
    batched = stored.reshape(1, 7, 3, 4, 7)
    assert_same(load_latents(path, latent_channels=7, grid=(3, 4, 7))[0], batched)
    assert_same(load_latents(path, latent_channels=7, grid=(7, 3, 4))[0], np.moveaxis(batched, 4, 1))
    sizes = {key: np.array([size], np.int32) for key, size in zip(TRAINER_KEYS, (3, 4, 7), strict=True)}
    path = write(tmp_path / "trainer.safetensors", {"latents": stored} | sizes)
    assert_same(load_latents(path, latent_channels=7)[0], batched)
    save_latents(path, mx.array(batched))  # which states the layout
    assert_same(load_latents(path, latent_channels=7)[0], batched)


def test_error_does_not_suggest_a_grid_that_was_given(tmp_path: Path) -> None:
    path = write(tmp_path / "clip.safetensors", {"latents": np.ones((1, 7, 7, 7, 7), np.float32)})
    with pytest.raises(LatentsError, match="as both axes have 7; write them with save_latents"):
        load_latents(path, latent_channels=7, grid=(7, 7, 7))


def test_packed_latents_of_another_vae_are_refused_before_a_grid_is_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "other.safetensors", {"latents": np.ones((2, 26, 16), np.float32)})
    with pytest.raises(LatentsError, match=r"packed \(B, tokens, C\), have 16 channels where the VAE has 128"):
        load_latents(path, latent_channels=128)


@pytest.mark.parametrize("latent_channels", [None, 128])
@pytest.mark.parametrize("shape", [(8, 26, 16), (1, 8, 26, 16)])
def test_audio_latents_are_told_apart_from_packed_and_other_latents(tmp_path: Path, shape, latent_channels) -> None:
    path = write(tmp_path / "audio.safetensors", {"latents": np.ones(shape, np.float32)})
    with pytest.raises(LatentsError, match=r"are audio latents; read them with load_audio_latents, for AudioVAE"):
        load_latents(path, latent_channels=latent_channels)
    with (
        integrations.speaking_of_options(),
        pytest.raises(LatentsError, match="; give them with --audio-latents beside the video's"),
    ):
        load_latents(path, latent_channels=latent_channels)


def test_a_checkpoint_in_place_of_latents_is_told_apart() -> None:
    with pytest.raises(LatentsError, match=r"has no latents but weights of a network \(vae\.decoder.*; load it wi"):
        load_latents(demo.VAE)


@pytest.mark.parametrize(
    ("stored", "latent_channels", "shape"),
    [
        ((5, 8, 7, 16), 16, (1, 16, 5, 8, 7)),
        ((128, 8, 11, 16), None, (1, 128, 8, 11, 16)),
        ((128, 8, 11, 16), 128, (1, 128, 8, 11, 16)),
    ],
)
def test_eight_frames_or_16_channels_are_not_taken_for_audio(tmp_path: Path, stored, latent_channels, shape) -> None:
    path = write(tmp_path / "clip.safetensors", {"latents": np.ones(stored, np.float32)})
    assert load_latents(path, latent_channels=latent_channels)[0].shape == shape


@pytest.fixture
def statistics() -> tuple[mx.array, mx.array]:
    return mx.linspace(-0.3, 0.4, CHANNELS), mx.linspace(0.5, 2.0, CHANNELS)


def denormalize(latents: np.ndarray, statistics: tuple[mx.array, mx.array]) -> np.ndarray:
    """As diffusers does before it returns latents of LTX-2."""
    mean, std = (np.array(array).reshape(1, -1, 1, 1, 1) for array in statistics)
    return latents * std + mean


@pytest.mark.parametrize(
    ("says_so", "layout", "dtype"),
    [("argument", "BCFHW", mx.float32), ("metadata", "FHWC", mx.bfloat16), ("both", "BNC", mx.float32)],
)
def test_unnormalized_latents_are_normalized_in_float32(
    tmp_path: Path, statistics: tuple, says_so: str, layout: str, dtype: mx.Dtype
) -> None:
    path = tmp_path / "clip.safetensors"
    stored = mx.array(denormalize(make_latents(), statistics)).astype(dtype)
    metadata = {} if says_so == "argument" else {"normalized": "false"}
    layouted = mx.array(STORED_AS[layout](np.array(stored.astype(mx.float32)))).astype(dtype)
    mx.save_safetensors(str(path), {"latents": layouted}, metadata)
    result, _ = load_latents(
        path,
        latent_channels=CHANNELS,
        grid=GRID,
        unnormalized=None if says_so == "metadata" else True,
        statistics=statistics,
    )
    mean, std = (array.reshape(-1, 1, 1, 1) for array in statistics)
    assert_same(result, np.array((stored.astype(mx.float32) - mean) / std))
    assert np.abs(np.array(result) - make_latents()).max() < (1e-5 if dtype == mx.float32 else 0.05)


@pytest.mark.parametrize(("metadata", "unnormalized"), [({}, None), ({}, False), ({"normalized": "true"}, False)])
def test_normalized_latents_are_unchanged(
    tmp_path: Path, statistics: tuple, metadata: dict, unnormalized: bool | None
) -> None:
    path = write(tmp_path / "clip.safetensors", {"latents": make_latents()}, metadata)
    assert_same(load_latents(path, unnormalized=unnormalized, statistics=statistics)[0], make_latents())


@pytest.mark.parametrize(
    ("normalized", "unnormalized", "words"),
    [("true", True, "are normalized, and the caller that they are unnormalized"),
     ("false", False, "are unnormalized, and the caller that they are normalized")],
)  # fmt: skip
def test_unnormalized_that_contradicts_the_metadata_is_refused(
    tmp_path: Path, statistics: tuple, normalized: str, unnormalized: bool, words: str
) -> None:
    path = write(tmp_path / "clip.safetensors", {"latents": make_latents()}, {"normalized": normalized})
    with pytest.raises(LatentsError, match=words):
        load_latents(path, unnormalized=unnormalized, statistics=statistics)


def test_unnormalized_latents_need_statistics_of_as_many_channels(tmp_path: Path, statistics: tuple) -> None:
    path = write(tmp_path / "clip.safetensors", {"latents": make_latents()})
    with pytest.raises(LatentsError, match=r"give the VAE's statistics=\(vae.mean, vae.std\)"):
        load_latents(path, unnormalized=True)
    mean, std = statistics
    with pytest.raises(LatentsError, match=r"need statistics \(7,\), and these are \(7,\) and \(6,\)"):
        load_latents(path, unnormalized=True, statistics=(mean, std[:6]))
