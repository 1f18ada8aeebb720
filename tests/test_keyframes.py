"""Keyframe planes of the diffusion decoder: golden data, streams, tiles, plans and what is refused."""

import warnings
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from diffusion_cases import as_numpy
from mlx_ltx_vae import Keyframes, LatentsError, PlanError, VideoVAE
from mlx_ltx_vae.networks.diffusion_decoder.attention import Tables, attend
from mlx_ltx_vae.networks.diffusion_decoder.config import ltx_2_5
from mlx_ltx_vae.networks.diffusion_decoder.neighborhood import joint_segments
from mlx_ltx_vae.networks.diffusion_decoder.specs import decoder_spec
from mlx_ltx_vae.tiling.config import SpatialTilingConfig, TemporalTilingConfig, TilingConfig
from tolerances import tolerance

NARROW, GATED, PUBLISHED = "ltx2_5_keyframes", "ltx2_5_keyframes_gated", "ltx2_5_keyframes_published"
#: What differs between the decodes of the first: ties, planes outside the clip, windows that are cut, padding, steps.
QUICK = ["three_ties_unsorted", "outside_the_clip", "batch", "small", "small_padded", "two_steps", "without_type_emb"]
DECODES = [(NARROW, name) for name in QUICK] + [(GATED, "decode"), (PUBLISHED, "tiny")]
SLOW = [
    (NARROW, name)
    for name in ("two_planes", "one_plane_first", "one_plane_inside", "three_ties", "five_planes", "same_frame_twice",
                 "all_outside")
] + [(PUBLISHED, name) for name in ("one_cell", "two_steps", "batch", "decode", "longer")]  # fmt: skip
TILED = [(NARROW, "tiled"), (NARROW, "tiled_time"), (GATED, "tiled")]


@pytest.fixture(scope="module")
def vaes(golden):
    made = {}

    def make(name, without=()):
        if (name, without) not in made:
            source = golden(name).checkpoint
            weights = {key: each for key, each in mx.load(str(source)).items() if key not in without}
            config = {"vae": golden(name).manifest["vae_config"]}
            made[name, without] = VideoVAE.from_weights(weights, config, dtype="float32")
        return made[name, without]

    return make


def keyframes_of(case, check):
    given = check["keyframes"]
    return Keyframes(case.arrays[given["latents"]], given["indices"])


def assert_golden(vae, case, check, **options):
    latents, keyframes = case.arrays[check["input"]], keyframes_of(case, check)
    plan = vae.plan(latents.shape, keyframes=keyframes, steps=check.get("num_inference_steps"), **options)
    result = as_numpy(vae.decode(latents, plan, keyframes=keyframes, noise=case.noise(check)))
    assert list(result.shape) == check["full_shape"]
    assert np.abs(case.select(result, check) - case.arrays[check["expected"]]).max() < tolerance(1e-4)


@pytest.mark.golden
@pytest.mark.filterwarnings("ignore:this checkpoint has no type_emb")
@pytest.mark.parametrize(("name", "check"), [*DECODES, *(pytest.param(*each, marks=pytest.mark.slow) for each in SLOW)])
def test_decodes_agree_with_the_reference(golden, vaes, name, check):
    case = golden(name)
    check = case.check(check)
    vae = vaes(name, tuple(check.get("without", ())))
    assert_golden(vae, case, check, mode="single")
    if check["name"] in (*(name for _, name in SLOW), "batch", "small_padded"):
        assert_golden(vae, case, check, mode="exact", order="rows")
        assert_golden(vae, case, check, mode="exact", order="columns", chunk=2)


@pytest.mark.golden
@pytest.mark.slow
@pytest.mark.parametrize(("name", "check"), [*TILED, (PUBLISHED, "tiled_time")])
def test_tiles_agree_with_the_reference(golden, vaes, name, check):
    case = golden(name)
    check = case.check(check)
    given = check["tiling"]

    def config(key, kind):
        return kind(given[key]["tile_size"], given[key]["overlap"]) if key in given else None

    tiling = TilingConfig(
        temporal_config=config("frames", TemporalTilingConfig),
        height_config=config("height", SpatialTilingConfig),
        width_config=config("width", SpatialTilingConfig),
    )
    assert_golden(vaes(name), case, check, mode="tiled", tiling=tiling)


@pytest.mark.golden
def test_a_tile_in_time_sees_its_planes_and_the_nearest_on_either_side(golden, vaes):
    """The order of `keyframes` in the tiles of the manifest is that of the plan."""
    case = golden(NARROW)
    check = case.check("tiled_time")
    tiling = TilingConfig(temporal_config=TemporalTilingConfig(24, 8))
    plan = vaes(NARROW).plan(
        case.arrays[check["input"]].shape, keyframes=keyframes_of(case, check), mode="tiled", tiling=tiling
    )
    for (tile,), expected in zip(plan.layout.groups(), check["tiles"], strict=True):
        assert list(tile.planes(plan.keyframes)) == expected["planes"]


def brute_force(queries, keys, values, kernel, times):
    """Attention to the window cut at the borders, and to the nearest two of the other stream, query by query."""
    frames, height, width = queries.shape[1:4]
    cells = frames - len(times)
    all_times = [*range(cells), *times]
    result = np.zeros(queries.shape)

    def near(index, others):
        return sorted(others, key=lambda other: (abs(all_times[other] - all_times[index]), other))[:2]

    def window(center, reach, extent):
        return range(max(0, center - reach // 2), min(extent, center - reach // 2 + reach))

    for time, row, column in np.ndindex(frames, height, width):
        if time < cells:
            seen = [*window(time, kernel[0], cells), *near(time, range(cells, frames))]
        else:
            seen = [time, *near(time, range(cells))]
        box = np.ix_(seen, window(row, kernel[1], height), window(column, kernel[2], width))
        own_keys, own_values = (each[0][box].reshape(-1, *each.shape[4:]) for each in (keys, values))
        scores = np.einsum("hd,khd->hk", queries[0, time, row, column], own_keys) / queries.shape[-1] ** 0.5
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        result[0, time, row, column] = np.einsum("hk,khd->hd", weights, own_values)
    return result.reshape(*result.shape[:4], -1)


@pytest.mark.parametrize("bound", [50.0, np.inf])
@pytest.mark.parametrize(
    ("grid", "kernel", "times"),
    [
        ((9, 4, 5), (3, 3, 5), (2.0,)),
        ((10, 5, 3), (5, 3, 3), (1.4375, 7.0)),
        ((2, 3, 2), (3, 5, 3), (0.0,)),
        ((14, 3, 3), (3, 3, 3), (8.0, 0.0, 4.0, 30.0)),
    ],
)
def test_attention_is_that_of_each_query_alone(grid, kernel, times, bound):
    rng = np.random.default_rng(0)
    queries, keys, values = (rng.normal(size=(1, *grid, 2, 8)).astype(np.float32) for _ in range(3))
    flat = tuple(mx.array(each.reshape(*each.shape[:4], -1)) for each in (keys, values))
    starts = tuple(tuple(range(-(width // 2), length - width // 2)) for length, width in zip(grid, kernel, strict=True))
    found = attend(mx.array(queries), flat, starts, kernel, bound, Tables(), times)
    assert np.abs(np.array(found) - brute_force(queries, keys, values, kernel, times)).max() < tolerance(1e-5)


def test_blocks_of_frames_far_from_a_change_of_planes_are_one_segment():
    first, *_ = (each for each in joint_segments(121, 11, (24.0, 96.0), 4) if each.blocks > 8)
    assert first.window == 11 + 3 + 2 and len(first.frames) == first.blocks


def test_work_is_that_of_the_planes_and_of_the_keys_that_frames_see_of_them():
    """121 frames of 1216x704 with five planes: 1.12 times the plain decode's, by the arithmetic of the reference."""
    config, grid = ltx_2_5().decoder, (16, 22, 38)
    plain, joint = (decoder_spec(config, None, frames) for frames in ((), (24, 48, 72, 96, 120)))
    assert 1.05 < joint.multiply_adds(grid) / plain.multiply_adds(grid) < 1.12 * 1.05


def some(vae, frames, *, latents=(1, 8, 3, 3, 3)):
    batch, channels, _, *size = latents
    planes = mx.random.normal((batch, channels, len(frames), *size), key=mx.random.key(2))
    return mx.random.normal(latents, key=mx.random.key(1)), Keyframes(planes, frames)


@pytest.mark.slow
def test_a_seed_gives_the_same_in_every_order_and_from_latents_that_arrive(vaes):
    vae = vaes(GATED)
    latents, keyframes = some(vae, [3, 16])
    plan = vae.plan(latents.shape, mode="single", keyframes=keyframes)
    single = vae.decode(latents, plan, keyframes=keyframes, seed=3)
    assert mx.abs(single - vae.decode(latents, seed=3)).max().item() > 0.1
    exact = vae.decode(latents, keyframes=keyframes, seed=3)
    arriving = vae.decode(iter(mx.split(latents, 3, axis=2)), keyframes=keyframes, seed=3)
    assert max(mx.abs(each - single).max().item() for each in (exact, arriving)) < tolerance(1e-4)
    plan = vae.plan(latents.shape, frames=(9, 12), keyframes=keyframes)
    part = vae.decode(latents, plan, keyframes=keyframes, seed=3)
    assert mx.abs(part - single[:, :, 9:12]).max().item() < tolerance(1e-4)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (mx.zeros((1, 8, 1, 3, 2)), r"\(1, 8, 1, 3, 2\) follow latents of \(1, 8, 3, 3, 3\); only the frames"),
        (mx.zeros((8, 1, 3, 3)), r"an iterator of latents gave \(8, 1, 3, 3\); expected arrays"),
        (3, "an iterator of latents gave int; expected arrays"),
    ],
)
def test_latents_that_arrive_beside_keyframes_are_checked(vaes, bad, message):
    latents, keyframes = some(vaes(GATED), [3, 16])
    with pytest.raises(LatentsError, match=message):
        vaes(GATED).decode(iter([latents, bad]), keyframes=keyframes)


@pytest.mark.slow
def test_planes_are_normalized_like_the_latents(vaes):
    vae = vaes(GATED)
    latents, keyframes = some(vae, [3, 16])
    mean, std = (each.reshape(-1, 1, 1, 1) for each in (vae.mean, vae.std))
    raw = Keyframes(keyframes.latents * std + mean, keyframes.frames)
    expected = vae.decode(latents, keyframes=keyframes)
    found = vae.decode(latents * std + mean, keyframes=raw, unnormalized=True)
    assert mx.abs(found - expected).max().item() < tolerance(1e-4)


def test_plans_take_columns_and_name_their_keyframes(vaes):
    vae = vaes(GATED)
    latents, keyframes = some(vae, [3, 16])
    plan = vae.plan(latents.shape, keyframes=keyframes)
    assert plan.order.value != "time" and plan.keyframes == (3, 16) and plan.as_dict()["keyframes"] == [3, 16]
    assert "keyframes at 3, 16" in str(plan)
    with pytest.raises(PlanError, match="frames see keyframes at any distance, so .* use columns or rows"):
        vae.plan(latents.shape, keyframes=keyframes, order="time")
    with pytest.raises(PlanError, match="made for keyframes at 3, 16, and these are at no frame; plan with the same"):
        vae.decode(latents, plan)


@pytest.mark.parametrize(
    "order",
    [
        "columns",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("single", "rows", "tiled", "single in bfloat16")),
    ],
)
@pytest.mark.slow
def test_planned_memory_holds(golden, vaes, order):
    """In bfloat16, of a narrow network, whose noise is the most that it holds at once."""
    vae = vaes(GATED)
    if order.endswith("bfloat16"):
        vae = VideoVAE.from_pretrained(golden(NARROW).checkpoint, dtype="bfloat16", encoder=False)
        order = "single"
    latents, keyframes = some(vae, [0, 8, 16, 24, 40], latents=(1, 8, 4, 4, 5))
    options = {"mode": order} if order in ("single", "tiled") else {"mode": "exact", "order": order}
    if order == "tiled":
        options["tiling"] = TilingConfig(temporal_config=TemporalTilingConfig(16, 8))
    plan = vae.plan(latents.shape, keyframes=keyframes, **options)
    mx.eval(latents, keyframes.latents)
    mx.synchronize()
    held = mx.get_active_memory() - plan.memory.weights - latents.nbytes
    mx.reset_peak_memory()
    for chunk in vae.stream(latents, plan, keyframes=keyframes):  # held while the next one is computed
        mx.eval(chunk.frames)
    assert 1.0 <= plan.memory.active / (mx.get_peak_memory() - held) <= 1.3


def test_bad_keyframes_are_refused_in_one_sentence(vaes):
    planes, latents, vae = mx.zeros((1, 8, 2, 3, 3)), mx.zeros((1, 8, 2, 3, 4)), vaes(GATED)
    with pytest.raises(LatentsError, match=r"latents of the video \(1, 8, 2, 3, 4\); expected \(1, 8, 2, 3, 4\)"):
        vae.stream(latents, keyframes=Keyframes(planes, [0, 1]))
    with pytest.raises(LatentsError, match="NaN or infinite"):
        vae.stream(latents, keyframes=Keyframes(mx.full((1, 8, 2, 3, 4), float("nan")), [0, 1]))
    with pytest.raises(LatentsError, match=r"keyframes have the type tuple; expected Keyframes"):
        vae.decode(latents, keyframes=(planes, [0, 1]))
    with pytest.raises(LatentsError, match="keyframes have the type list; .* or in a plan their frame numbers"):
        vae.plan(latents.shape, keyframes=["first"])


def test_a_plan_takes_the_frame_numbers_of_keyframes(vaes):
    vae = vaes(GATED)
    latents, keyframes = some(vae, [8, 0], latents=(1, 8, 2, 3, 3))
    by_numbers, by_keyframes = (vae.plan(latents.shape, keyframes=each) for each in ([8, 0], keyframes))
    assert replace(by_numbers, machine=by_keyframes.machine) == by_keyframes  # its available memory changes meanwhile


def test_who_gives_keyframes_in_vain_is_told(golden, vaes):
    conv = VideoVAE.from_pretrained(golden("ltx2_3_causal").checkpoint)
    latents, keyframes = some(conv, [0, 8], latents=(1, 8, 2, 3, 3))
    with pytest.warns(UserWarning, match="takes no keyframes, so they are ignored"):
        found = [conv.decode(each, keyframes=keyframes) for each in (latents, iter([latents]))]
    expected = [conv.decode(each) for each in (latents, iter([latents]))]
    assert all(map(mx.array_equal, found, expected))
    without, vae = vaes(NARROW, ("vae.decoder.type_emb",)), vaes(NARROW)
    with pytest.warns(UserWarning, match="has no type_emb"):
        without.stream(latents, keyframes=keyframes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vae.stream(latents, keyframes=keyframes)


def test_an_embedding_of_other_latents_is_none(golden, vaes):
    case = golden(GATED)
    weights = mx.load(str(case.checkpoint)) | {"vae.decoder.type_emb": mx.zeros(128)}
    decoder = VideoVAE.from_weights(weights, {"vae": case.manifest["vae_config"]}).decoder
    assert "has no type_emb" in decoder.spec.keyframe_warning and vaes(GATED).decoder.spec.keyframe_warning is None
