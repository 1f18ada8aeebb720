"""`VideoVAE` from a user's side: loading, options, and bad input that never reaches the network."""

from contextlib import nullcontext
from itertools import combinations
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from conftest import active_memory
from mlx_ltx_vae import CheckpointError, DecodeError, FrameChunk, LatentsError, PlanError, VideoVAE
from mlx_ltx_vae.frame_format import RGB8, RGB16, FrameOutput
from mlx_ltx_vae.networks.noise import KeyedNoise, NoiseVolume, draw
from mlx_ltx_vae.options import DecodeOptions
from mlx_ltx_vae.pipeline.execution import Execution
from mlx_ltx_vae.pipeline.output_check import OutputCheck
from mlx_ltx_vae.planning.plan import Order
from mlx_ltx_vae.shapes import LatentShape
from vae_configs import parse_vae_config


@pytest.fixture(scope="module")
def vae(golden):
    return VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint)


@pytest.fixture(scope="module")
def noisy_vae(golden):
    return VideoVAE.from_pretrained(golden("ltxv_0_9_1").checkpoint, encoder=False)


def latents_of(frames=2, height=2, width=3, channels=8, batch=1):
    return mx.random.normal((batch, channels, frames, height, width), key=mx.random.key(0))


def test_dtype_none_keeps_the_checkpoints_and_others_are_cast(golden):
    for dtype, expected in ((None, mx.float32), ("bfloat16", mx.bfloat16), ("float16", mx.float16)):
        vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint, dtype=dtype)
        assert vae.dtype == expected
        assert vae.decoder.conv_out.conv.weight.dtype == expected
        assert vae.mean.dtype == vae.std.dtype == mx.float32
        assert vae.decode(latents_of(1)).dtype == expected


def test_unknown_dtype_is_refused(golden):
    with pytest.raises(CheckpointError, match="float8"):
        VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint, dtype="float8")


def test_half_a_vae_says_what_it_lacks(golden):
    path = golden("small_ltx2_3").checkpoint
    with pytest.raises(CheckpointError, match="encoder=True"):
        VideoVAE.from_pretrained(path, encoder=False).encode(mx.zeros((1, 3, 1, 64, 64)))
    with pytest.raises(CheckpointError, match="decoder=True"):
        VideoVAE.from_pretrained(path, decoder=False).decode(latents_of())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"temporal_shift": 3}, "unknown key 'temporal_shift' = 3, .*; update mlx_ltx_vae, or remove the key if it"),
        ({"scaling_factor": 0.5}, "scaling_factor = 0.5"),
        ({"norm_layer": "layer_norm"}, "norm_layer = 'layer_norm'"),
        ({"spatial_padding_mode": "mirror"}, "spatial_padding_mode = 'mirror'"),
        ({"decoder_blocks": [["warp", 1]]}, "unknown kind 'warp'"),
        ({"decoder_blocks": [["res_x", {"dilation": 2}]]}, "block 'res_x' has the unknown key 'dilation' = 2"),
        ({"decoder_blocks": [["res_x", 1]]}, "do not belong together"),
        ({"_class_name": "CausalDiffusionVAE"}, "_class_name = 'CausalDiffusionVAE'"),
    ],
)
def test_configuration_that_would_change_the_result_is_an_error(golden, change, words):
    with pytest.raises(CheckpointError, match=words.replace("(", r"\(")):
        parse_vae_config({**golden("small_ltx2_3").manifest["vae_config"], **change}, "file")


def test_unknown_key_that_is_switched_off_is_a_warning(golden):
    with pytest.warns(UserWarning, match="use_rope"):
        parse_vae_config({**golden("small_ltx2_3").manifest["vae_config"], "use_rope": False}, "file")


def test_an_encoder_padding_of_its_own_counts_only_without_a_common_one(golden):
    raw = dict(golden("ltx2_3_reflect").manifest["vae_config"])
    assert parse_vae_config(raw, "file").encoder.options.padding.value == "reflect"
    del raw["spatial_padding_mode"]
    assert parse_vae_config(raw, "file").encoder.options.padding.value == "replicate"


@pytest.mark.parametrize(
    ("latents", "words"),
    [
        (latents_of()[0], "five axes"),
        (latents_of(channels=128), "128 channels; this VAE decodes 8"),
        (latents_of()[:, :, :0], "empty"),
        (mx.where(latents_of() > 2, mx.nan, latents_of()), "NaN or infinite"),
        (latents_of() / 0, "NaN or infinite"),
    ],
)
def test_bad_latents_are_refused_before_the_network_runs(vae, latents, words):
    with pytest.raises(LatentsError, match=words):
        vae.stream(latents)


def test_reflection_needs_two_cells_a_side(golden):
    vae = VideoVAE.from_pretrained(golden("ltx2").checkpoint, encoder=False)
    with pytest.raises(LatentsError, match="reflection"):
        vae.decode(latents_of(height=1))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "fast"}, "mode 'fast'"),
        ({"order": "diagonal"}, "order 'diagonal'"),
        ({"chunk": 0}, "at least 1"),
        ({"chunk": 1.5}, "at least 1"),
        ({"mode": "single", "chunk": 2}, "one chunk"),
        ({"mode": "single", "order": "rows"}, "one chunk"),
    ],
)
def test_bad_plans_are_refused(vae, options, words):
    with pytest.raises(PlanError, match=words):
        vae.plan((1, 8, 2, 2, 3), **options)


@pytest.mark.parametrize("name", ["decode", "encode"])
def test_files_and_arrays_in_place_of_arrays_and_shapes_are_refused_with_what_to_pass(golden, name):
    vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint)
    call, plan = getattr(vae, name), {"decode": vae.plan, "encode": vae.plan_encode}[name]
    remedy = {"decode": r"pass what load_latents\(path\) returns first", "encode": r"is VideoReader\(path\)"}[name]
    for path, kind in (("a.mp4", "str"), (Path("a.mp4"), "PosixPath")):
        with pytest.raises(LatentsError, match=f"^(latents|frames) are {kind}; expected an array.*{remedy}"):
            call(path)
    with pytest.raises(LatentsError, match=r"^a plan takes the shape .*, not an array; pass (latents|frames)\.shape"):
        plan(mx.zeros((1, 8, 1, 2, 2)))


def test_a_plan_for_another_shape_is_refused(vae):
    with pytest.raises(PlanError, match="made for latents"):
        vae.decode(latents_of(2), vae.plan((1, 8, 3, 2, 3)))


def test_timestep_goes_only_to_vaes_that_take_one(vae, noisy_vae):
    with pytest.raises(LatentsError, match="takes no timestep"):
        vae.decode(latents_of(), timestep=0.05)
    with pytest.raises(LatentsError, match="between 0 and 1"):
        noisy_vae.decode(latents_of(), timestep=50)
    assert not mx.array_equal(noisy_vae.decode(latents_of()), noisy_vae.decode(latents_of(), timestep=0.4))


def test_noise_follows_the_seed_and_not_the_cut_or_the_clips_length(noisy_vae):
    spec = noisy_vae.decoder.spec

    def draw_all(seed, *shape):
        draws = draw(spec, LatentShape(*shape), mx.float32, DecodeOptions(seed=seed))
        noise = draws.crop(tuple(slice(0, extent) for extent in shape[2:]))
        return draws, noise.values

    short, short_values = draw_all(3, 1, 8, 2, 2, 3)
    long, long_values = draw_all(3, 2, 8, 5, 2, 3)
    other, other_values = draw_all(4, 1, 8, 2, 2, 3)
    assert mx.array_equal(long_values[:1, :, :2], short_values)
    assert mx.array_equal(long.crop((slice(3, 4), slice(1, 2), slice(0, 2))).values, long_values[:, :, 3:4, 1:2, :2])
    assert not mx.array_equal(long_values[:1], long_values[1:])
    assert not mx.array_equal(other_values, short_values)
    for one, same, different in zip(*(draws.maps.values() for draws in (short, long, other)), strict=True):
        assert mx.array_equal(one, same)
        assert not mx.array_equal(one, different)
    values = np.array(draw_all(0, 1, 8, 64, 8, 8)[1])
    assert abs(values.mean()) < 0.02
    assert abs(values.std() - 1) < 0.02


def test_the_noise_of_a_seed_stays_as_it_is(noisy_vae):
    """Another version must not change every picture. The numbers of the volume are also those of NumPy's float64."""
    volume = NoiseVolume(7, 2, 3, (1, 1, 1))(((0, 0, 0),), (1, 2, 3), (1, 1, 2))
    assert volume.shape == (2, 1, 1, 2, 3)
    expected = [-0.4148100, -0.4560780, -0.4911327, -0.8583009, 1.0674684, 0.4612657,
                -0.9765770, -0.5091800, 0.0778839, 0.1899689, 0.7422327, -1.0343437]  # fmt: skip
    assert np.abs(np.array(volume).flatten() - expected).max() < 1e-5
    draws = draw(noisy_vae.decoder.spec, LatentShape(2, 2, 2, 1, 2), mx.float32, DecodeOptions(seed=7))
    latents = draws.crop((slice(0, 2), slice(0, 1), slice(0, 2))).values
    assert latents.shape == (2, 2, 2, 1, 2)
    expected = [-1.0679927, -0.1283472, 0.4088730, -0.2352084, 0.6302088, 0.1000817, 0.2381816, -0.4034164,
                -0.8433408, 0.5912610, -0.6525956, 0.9113904, -0.0696653, 0.3578224, 0.7381992, -0.3205709]  # fmt: skip
    assert np.abs(np.array(latents).flatten() - expected).max() < 1e-5
    draws = draw(noisy_vae.decoder.spec, LatentShape(1, 8, 1, 1, 2), mx.float32, DecodeOptions(seed=7))
    first, second, *_ = (each.tolist() for each in draws.maps.values())
    assert (len(first), len(first[0])) == (2, 4)
    expected = [0.9653565, 0.0665847, -0.6589603, 0.0240903, -0.1370763, -0.2892710, 0.2459162, 1.0731974]
    assert np.abs(np.array([*first[0], *second[0]]) - expected).max() < 1e-5


@pytest.mark.parametrize("seed", [-1, 2**32, 2**64 - 1, 1.5, True, "7"])
def test_a_seed_out_of_range_is_refused(noisy_vae, seed):
    with pytest.raises(LatentsError, match=r"a seed is a whole number from 0 to 4294967295, not "):
        noisy_vae.stream(latents_of(), seed=seed)


def test_every_seed_makes_other_noise(noisy_vae):
    spec, shape = noisy_vae.decoder.spec, LatentShape(1, 8, 1, 2, 2)
    seeds = [0, 1, np.int64(2**31), 2**32 - 1]
    whole = (slice(0, 1), slice(0, 2), slice(0, 2))
    latents = [draw(spec, shape, mx.float32, DecodeOptions(seed=seed)).crop(whole).values for seed in seeds]
    volumes = [NoiseVolume(int(seed), 1, 8, (1, 1, 1))(((0, 0, 0),), (0, 0, 0), (1, 2, 2)) for seed in seeds]
    for drawn in (latents, volumes):
        assert all(mx.abs(one - other).max().item() > 0.1 for one, other in combinations(drawn, 2))


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
@pytest.mark.parametrize("shape", [(1, 3, 5, 8, 8), (1, 3, 3, 5, 7), (2, 1, 1, 1, 1)])
def test_keyed_noise_is_that_of_mlx_in_any_part(shape, dtype):
    key = mx.random.key(30005)
    whole = np.array(mx.random.normal(shape, dtype, key=key).astype(mx.float32)).transpose(0, 2, 3, 4, 1)
    part = (slice(shape[2] // 2, shape[2]), slice(0, shape[3]), slice(shape[4] // 2, shape[4]))
    found = np.array(KeyedNoise(key, shape, dtype).part(*part))
    expected = whole[(slice(None), *part)]
    assert found.shape == expected.shape
    assert np.array_equal(found, expected)


def test_a_seed_is_for_vaes_that_add_noise(vae, noisy_vae):
    """The default, 0, is refused nowhere."""
    latents = latents_of()
    assert mx.array_equal(noisy_vae.decode(latents), noisy_vae.decode(latents, seed=0))
    assert vae.decode(latents, seed=0).shape == (1, 3, 9, 64, 96)
    with pytest.raises(LatentsError, match=r"^this VAE takes no seed; VAEs 0\.9\.1 to 0\.9\.8"):
        vae.stream(latents, seed=7)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda noise: noise[:-1], "36 noise arrays were given, and the network draws 37"),
        (lambda noise: [noise[0], noise[2][:1], *noise[2:]], r"noise array 1 has the shape \(1, 6\)"),
        (lambda noise: "ones", "zeros"),
    ],
)
def test_noise_of_another_shape_or_number_is_refused(golden, noisy_vae, change, words):
    case = golden("ltxv_0_9_1")
    noise = case.noise(case.check("decode"))
    with pytest.raises(LatentsError, match=words):
        noisy_vae.decode(latents_of(3), noise=change(noise))


def test_noise_for_a_vae_that_draws_none_is_refused(vae):
    with pytest.raises(LatentsError, match="draws none"):
        vae.decode(latents_of(), noise=[latents_of()])
    assert mx.array_equal(vae.decode(latents_of(), noise="zeros"), vae.decode(latents_of()))


def test_to_uint8_rounds_and_clips():
    levels = np.arange(256)
    exact = levels / 127.5 - 1
    nudged = np.concatenate([exact + 0.4 / 127.5, exact - 0.4 / 127.5, [-3.0, 3.0]])
    frames = mx.array(np.repeat(nudged[None, None, None, :, None], 3, axis=-1).astype(np.float32))
    got = FrameChunk(0, frames).to_uint8()
    assert got.dtype == np.uint8
    assert got.shape == (1, 1, 514, 3)
    assert np.array_equal(got[0, 0, :, 0], np.concatenate([levels, levels, [0, 255]]))


def test_to_uint16_uses_the_full_range_and_bfloat16_keeps_its_levels():
    frames = mx.array([-1.0, 0.0, 1.0]).reshape(1, 1, 1, 1, 3)
    assert FrameChunk(0, frames).to_uint16().tolist() == [[[[0, 32768, 65535]]]]
    fine = mx.array([0.7421875, 0.74609375, 0.75], dtype=mx.bfloat16).reshape(1, 1, 1, 1, 3)
    assert FrameChunk(0, fine).to_uint8().tolist() == [[[[222, 223, 223]]]]


@pytest.mark.parametrize(("target", "level_bytes"), [(RGB8, 1), (RGB16, 2)])
def test_a_long_chunk_is_converted_with_the_memory_of_a_short_one(target, level_bytes):
    frames = mx.random.uniform(-1.2, 1.2, (1, 37, 64, 64, 3), key=mx.random.key(1))
    scale = np.float32(target.peak / 2)
    expected = np.clip(np.rint((np.array(frames[0]) + 1) * scale), 0, target.peak).astype(target.dtype)
    mx.reset_peak_memory()
    before = active_memory()
    got = FrameChunk(0, frames).to_frames(FrameOutput(target))
    peak = mx.get_peak_memory() - before
    np.testing.assert_array_equal(got, expected)
    frame = frames.nbytes / 37
    assert peak < level_bytes * frames.size + 8 * frame * 3


def test_levels_of_a_batch_keep_its_axis_and_those_of_one_video_have_none(vae):
    latents = latents_of(2, batch=2)
    chunk = next(vae.stream(latents))
    assert chunk.pixels.shape == (2, 3, 1, 64, 96)
    levels = chunk.to_uint8()
    assert (levels.shape, levels.dtype) == ((2, 1, 64, 96, 3), np.uint8)
    clips = vae.decode_uint8(latents)
    assert clips.shape == (2, 9, 64, 96, 3)
    for item in range(2):
        clip = vae.decode_uint8(latents[item : item + 1])
        assert (clip.shape, clip.dtype) == ((9, 64, 96, 3), np.uint8)
        assert np.abs(clip.astype(int) - clips[item]).max() <= 1


def test_pixels_that_are_not_finite_and_frames_of_one_flat_patch_are_reported():
    good = mx.random.normal((1, 2, 8, 8, 3))
    patch = mx.tile(mx.random.normal((1, 1, 4, 4, 3)), (1, 2, 2, 2, 1))
    bad = mx.where(good > 1, mx.inf, good)
    constant, varying = mx.ones(40, mx.bool_), mx.zeros(40, mx.bool_)
    for pieces, may_be_flat, words in (
        ([good] * 20, varying, None),
        ([good, patch], constant, None),
        ([good, 0 * patch - 1], varying, None),  # black
        ([patch] * 2, varying, "pixels are one flat patch everywhere"),
        ([good] * 9 + [patch] + [good] * 9, varying, "2 of the frames 18 to 19 of 38 are one flat patch"),
        ([mx.concatenate([good, patch])], varying, "flat patch everywhere"),  # one of two videos
        ([good, bad, good], varying, r"not finite: because\.$"),
    ):
        check = OutputCheck(
            4,
            may_be_flat=lambda: may_be_flat[: 2 * len(pieces)],  # noqa: B023
            explain=lambda: "because.",
            find_cause=lambda: None,
        )
        for index, piece in enumerate(pieces):
            check.update(piece, 2 * index)
        with pytest.raises(DecodeError, match=words) if words else nullcontext():
            check.close()


@pytest.mark.parametrize("options", [{}, {"order": "rows"}, {"mode": "single"}, {"mode": "tiled"}])
def test_frames_that_a_device_leaves_constant_are_named(vae, monkeypatch, options):
    latents = latents_of(5)
    latents[:, :, 3:] = latents[:, :, 3:, :1, :1]  # the latents of the frames from 17 on
    plan = vae.plan(latents.shape, **options)
    outputs = Execution.outputs

    def gray(first):
        """Makes the network's frames gray, from the one of this index on."""

        def change(run):
            start = 0
            for frames in outputs(run):
                frames[:, max(0, first - start) :] = 0.1
                start += frames.shape[1] if plan.order is Order.TIME else 0
                yield frames

        monkeypatch.setattr(Execution, "outputs", change)

    gray(17)
    list(vae.stream(latents, plan))
    gray(9)
    with pytest.raises(DecodeError, match="8 of the frames 9 to 16 of 33 are one flat patch"):
        list(vae.stream(latents, plan))


def test_a_video_that_is_too_large_for_one_array_is_refused_and_streams(vae, monkeypatch):
    monkeypatch.setattr("mlx_ltx_vae.pipeline.decode.MAX_ARRAY_ELEMENTS", 17 * 64 * 96 * 3)
    assert vae.decode(latents_of(2)).shape == (1, 3, 9, 64, 96)
    with pytest.raises(LatentsError, match=r"an array of 2\^31 elements or more, .* take its frames from stream"):
        vae.decode(latents_of(3))
    assert sum(chunk.frames.shape[1] for chunk in vae.stream(latents_of(3))) == 17


def test_frames_that_are_not_finite_are_never_handed_over_as_levels(golden):
    vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint, encoder=False)
    vae.decoder.conv_out.conv.bias = mx.full(vae.decoder.conv_out.conv.bias.shape, mx.nan)
    handed = []
    for order in ("time", "rows"):
        chunks = vae.stream(latents_of(2), vae.plan(latents_of(2).shape, order=order), bit_depth=8)
        with pytest.raises(DecodeError, match=r"not finite: NaN weights in decoder\.conv_out\.conv\.bias \(48 of 48\)"):
            handed.append(next(chunks).to_uint8())
    with pytest.raises(DecodeError, match="not finite"):
        vae.decode(latents_of(2), on_frames_ready=lambda frames, start: handed.append(start))
    with pytest.raises(DecodeError, match="not finite"):
        vae.decode(latents_of(2))
    assert handed == []


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("order", ["time", "rows"])
def test_latents_that_no_model_makes_are_named_as_the_cause(golden, dtype, order):
    vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint, encoder=False, dtype=dtype)
    latents = latents_of(2)
    huge = 1e30 * latents / mx.abs(latents).max()
    with pytest.raises(
        DecodeError, match=r"pixels are .*: the latents reach 1e\+30, .* check the program that made them"
    ):
        vae.decode(huge, vae.plan(huge.shape, order=order))
    unnormalized = huge * vae.std.reshape(-1, 1, 1, 1) + vae.mean.reshape(-1, 1, 1, 1)
    with pytest.raises(DecodeError, match=r"the latents reach 1e\+30"):
        vae.decode(unnormalized, unnormalized=True)


@pytest.mark.parametrize(("dtype", "words"), [("float16", "float16; try dtype float32"), ("float32", "float32, which")])
def test_a_network_that_overflows_by_itself_is_named_as_the_cause(golden, dtype, words):
    vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint, encoder=False, dtype=dtype)
    conv = vae.decoder.conv_out.conv
    largest = {"float16": 6e4, "float32": 3e38}[dtype]
    conv.weight = mx.full(conv.weight.shape, largest, conv.weight.dtype)
    with pytest.raises(DecodeError, match=f"pixels are not finite: the decoder overflowed in {words}"):
        vae.decode(latents_of(2))


def test_a_network_that_loses_frames_is_noticed(vae, monkeypatch):
    short = iter([mx.random.normal((1, 3, 64, 96, 3))])
    monkeypatch.setattr("mlx_ltx_vae.pipeline.execution.run_stream", lambda *args, **kwargs: short)
    with pytest.raises(DecodeError, match="3 frames came out of the network, and 9 should have"):
        list(vae.stream(latents_of(2)))


def test_loading_reads_one_tensor_at_a_time(golden):
    """What is read is not kept beside what it becomes: the peak stays near the weights' own bytes."""
    mx.clear_cache()
    before = active_memory()
    mx.reset_peak_memory()
    vae = VideoVAE.from_pretrained(golden("ltx2_3").checkpoint)
    held = active_memory() - before
    assert mx.get_peak_memory() - before < 1.35 * held
    assert vae.config.generation == "LTX-2.3"


def test_a_memory_budget_in_the_place_of_a_plan_is_named(golden, audio_vae, tmp_path):
    vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint)
    latents = mx.zeros((1, vae.config.latent_channels, 2, 2, 2))
    pixels = mx.zeros((1, 3, 9, 64, 64))
    audio = audio_vae("encoder")
    calls = [
        lambda: vae.decode(latents, "8GB"),
        lambda: vae.stream(latents, "8GB"),
        lambda: vae.decode_uint8(latents, "8GB"),
        lambda: vae.decode_to_file(latents, tmp_path / "a.mp4", "8GB"),
        lambda: vae.encode(pixels, "8GB"),
        lambda: audio.decode(mx.zeros((1, 8, 5, 16)), "8GB"),
        lambda: audio.encode(mx.zeros((1, 2, 48000)), 48000, "8GB"),
    ]
    for call in calls:
        with pytest.raises(PlanError, match=r"plan is '8GB'; expected a (Dec|Enc)odePlan, .* memory_budget='8GB', to "):
            call()
    with pytest.raises(PlanError, match=r"plan is \{\}; expected a DecodePlan, so pass what plan returns"):
        vae.decode(latents, {})
