"""Tile sizes and overlaps, presets, and tile sizes as text."""

import pytest

from mlx_ltx_vae import PlanError, tiling


def sizes(config):
    """(spatial tile, overlap), (temporal tile, overlap); None for an axis that is not split."""
    space, time = config.spatial_config, config.temporal_config
    return (
        space and (space.tile_size_in_pixels, space.tile_overlap_in_pixels),
        time and (time.tile_size_in_frames, time.tile_overlap_in_frames),
    )


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (tiling.TilingConfig(), (None, None)),
        (tiling.TilingConfig.default(), ((512, 64), (64, 24))),
        (tiling.TilingConfig.aggressive(), ((256, 64), (32, 8))),
        (tiling.TilingConfig.conservative(), ((768, 64), (96, 24))),
        (tiling.TilingConfig.wide(), ((512, 160), (96, 40))),
        (tiling.TilingConfig.spatial_only(), ((512, 64), None)),
        (tiling.TilingConfig.spatial_only(tile_size=256, overlap=32), ((256, 32), None)),
        (tiling.TilingConfig.temporal_only(), (None, (64, 24))),
        (tiling.TilingConfig.temporal_only(tile_size=40, overlap=8), (None, (40, 8))),
    ],
)
def test_presets_have_the_sizes_that_apps_expect(config, expected):
    assert sizes(config) == expected
    assert config.height_config is None
    assert config.width_config is None


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((512, 512, 65), None),
        ((512, 544, 65), ((512, 64), None)),
        ((544, 512, 65), ((512, 64), None)),
        ((512, 512, 66), (None, (64, 24))),
        ((2176, 3840, 1001), ((512, 64), (64, 24))),
    ],
)
def test_auto_chooses_the_same_sizes_for_every_video_over_a_threshold(size, expected):
    config = tiling.TilingConfig.auto(*size)
    assert (config and sizes(config)) == expected


def test_auto_accepts_thresholds():
    assert tiling.TilingConfig.auto(768, 768, 97, spatial_threshold=768, temporal_threshold=97) is None
    assert sizes(tiling.TilingConfig.auto(256, 256, 33, temporal_threshold=32)) == (None, (64, 24))
    assert sizes(tiling.TilingConfig.auto(256, 256, 33, spatial_threshold=128)) == ((512, 64), None)


def test_presets_are_found_by_name():
    for name in ["default", "aggressive", "conservative", "spatial_only", "temporal_only", "wide"]:
        assert tiling.preset(name, 64, 64, 9) == getattr(tiling.TilingConfig, name)()
    assert tiling.preset("auto", 64, 64, 9) is None
    assert tiling.preset("auto", 512, 768, 121) == tiling.TilingConfig.auto(512, 768, 121)


def test_an_unknown_preset_is_refused_and_the_error_names_the_known_ones():
    with pytest.raises(tiling.TilingError, match=f"'timid'.*{', '.join(tiling.PRESETS)}"):
        tiling.preset("timid", 64, 64, 9)


@pytest.mark.parametrize(
    "values", [(0, 0), (-64, 0), (64, 64), (64, 96), (64, -32), (64.0, 0), (64, False), (True, 0), ("64", 0)]
)
@pytest.mark.parametrize("kind", [tiling.SpatialTilingConfig, tiling.TemporalTilingConfig])
def test_impossible_sizes_are_refused(kind, values):
    with pytest.raises(tiling.TilingError, match=r"^.*\.$"):
        kind(*values)


def test_tiling_errors_are_value_errors_and_plan_errors():
    for kind in [ValueError, PlanError]:
        with pytest.raises(kind):
            tiling.TilingConfig.spatial_only(0)


@pytest.mark.parametrize(("text", "expected"), [("512:64", (512, 64)), ("512", (512, 0)), ("112:16", (112, 16))])
def test_tile_sizes_are_parsed_with_and_without_an_overlap(text, expected):
    assert tiling.parse_tile(text) == expected


@pytest.mark.parametrize("text", ["", "512:", ":64", "512:64:8", "-512", "512.0"])
def test_text_that_is_no_tile_size_is_refused(text):
    with pytest.raises(ValueError, match=r"not a tile size .*512:64\.$"):
        tiling.parse_tile(text)
