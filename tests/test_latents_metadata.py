"""Metadata of latent files: both readings of the sizes are taken, and what contradicts the latents is refused."""

import re
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import save_file

from mlx_ltx_vae import LatentsError, ScaleFactors, load_latents

SCALE = ScaleFactors(8, 32, 32)
GRID = (3, 4, 5)
VIDEO = (17, 128, 160)  # at 32x32x8
SMALL_VIDEO = (9, 64, 80)  # at 16x16x4
KEYS = ("num_frames", "height", "width")
LATENT_KEYS = ("latent_num_frames", "latent_height", "latent_width")


def write(folder: Path, metadata: Mapping[str, object]) -> Path:
    path = folder / "clip.safetensors"
    save_file({"latents": np.ones((1, 7, *GRID), np.float32)}, path, {key: str(it) for key, it in metadata.items()})
    return path


def stated(sizes: tuple, keys: tuple = KEYS) -> dict[str, int]:
    return {key: size for key, size in zip(keys, sizes, strict=True) if size is not None}


@pytest.mark.parametrize("scale", [None, SCALE])
@pytest.mark.parametrize("sizes", [VIDEO, (17, None, None), (None, 128, 160)])
def test_sizes_of_the_video_are_reported(tmp_path: Path, sizes: tuple, scale: ScaleFactors | None) -> None:
    _, info = load_latents(write(tmp_path, stated(sizes)), scale=scale)
    assert (info.num_frames, info.height, info.width) == sizes


@pytest.mark.parametrize("scale", [None, SCALE])
@pytest.mark.parametrize("sizes", [GRID, (3, None, None), (None, 4, 5)])
def test_sizes_of_the_latent_grid_are_not_reported_as_the_videos(
    tmp_path: Path, sizes: tuple, scale: ScaleFactors | None
) -> None:
    _, info = load_latents(write(tmp_path, stated(sizes)), scale=scale)
    assert (info.num_frames, info.height, info.width) == (None, None, None)


def test_without_a_scale_the_sizes_at_any_scale_are_taken(tmp_path: Path) -> None:
    path = write(tmp_path, stated(SMALL_VIDEO))
    assert load_latents(path)[1].num_frames == 9
    assert load_latents(path, scale=ScaleFactors(4, 16, 16))[1].num_frames == 9
    with pytest.raises(LatentsError, match="states num_frames 9, height 64, width 80, but"):
        load_latents(path, scale=SCALE)


@pytest.mark.parametrize(
    "sizes",
    [(18, 128, 160), (17, 127, 160), (17, 160, 128), (1, None, None), (2, None, None)],
)  # fmt: skip
@pytest.mark.parametrize("scale", [None, SCALE])
def test_sizes_that_fit_neither_reading_are_refused_with_both(
    tmp_path: Path, sizes: tuple, scale: ScaleFactors | None
) -> None:
    with pytest.raises(
        LatentsError,
        match=r"clip.safetensors: its metadata states num_frames .*, but the latents have num_frames 3, height 4, "
        r"width 5 and their video num_frames 17, height 128, width 160.*; correct the metadata",
    ):
        load_latents(write(tmp_path, stated(sizes)), scale=scale)


@pytest.mark.parametrize("sizes", [(17, 4, 5), (3, 128, 160)])
def test_sizes_of_which_some_are_the_videos_and_some_the_latents_are_refused(tmp_path: Path, sizes: tuple) -> None:
    with pytest.raises(LatentsError, match="correct the metadata"):
        load_latents(write(tmp_path, stated(sizes)), scale=SCALE)


@pytest.mark.parametrize("sizes", [(4, None, None), (None, 5, None), (None, None, 4)])
def test_a_latent_size_that_is_not_the_latents_is_refused(tmp_path: Path, sizes: tuple) -> None:
    with pytest.raises(LatentsError, match=r"states latents with .*, but they have num_frames 3, height 4, width 5"):
        load_latents(write(tmp_path, stated(sizes, LATENT_KEYS)))


def test_latents_of_a_single_image_state_one_frame(tmp_path: Path) -> None:
    path = tmp_path / "image.safetensors"
    save_file({"latents": np.ones((1, 7, 1, 4, 5), np.float32)}, path, {"num_frames": "1"})
    assert load_latents(path)[1].num_frames == 1
    save_file({"latents": np.ones((1, 7, 1, 4, 5), np.float32)}, path, {"num_frames": "9"})
    with pytest.raises(LatentsError, match="states num_frames 9"):
        load_latents(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [("normalized", "yes"), ("normalized", "0.5"), ("normalized", ""), ("normalized", "None"), ("fps", "0"),
     ("fps", "-24"), ("fps", "nan"), ("fps", "inf"), ("fps", "1e400"), ("fps", "24 fps"), ("fps", "24/0"),
     ("num_frames", "-17"), ("num_frames", "0"), ("height", "128.5"), ("width", "1_60"), ("width", "9" * 5000),
     ("latent_height", "-4"), ("grid", "3x4")],
)  # fmt: skip
def test_values_that_mean_nothing_are_refused_by_name(tmp_path: Path, key: str, value: str) -> None:
    with pytest.raises(LatentsError, match=f"clip.safetensors: its metadata has {key} = ") as refusal:
        load_latents(write(tmp_path, {key: value}))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("value", ["0", "20.0", "1000000000", "many", ""])
def test_a_number_that_is_refused_is_told_its_form_and_bounds(tmp_path: Path, value: str) -> None:
    expected = re.escape("is not a whole number, in digits alone, from 1 to 999999999.")
    with pytest.raises(LatentsError, match=f"source_frames = '{value}', which {expected}"):
        load_latents(write(tmp_path, {"source_frames": value}))
    for known in ("1", "020", "999999999"):
        assert load_latents(write(tmp_path, {"source_frames": known}))[1].source_frames == int(known)


def test_a_frame_rate_that_is_stored_in_bfloat16_is_read(tmp_path: Path) -> None:
    tensors = {"latents": mx.ones((1, 7, *GRID)), "fps": mx.array([23.5], mx.bfloat16)}
    mx.save_safetensors(str(tmp_path / "clip.safetensors"), tensors)
    assert load_latents(tmp_path / "clip.safetensors")[1].fps == Fraction(47, 2)
