"""Films of overlapping windows, against arithmetic of numpy over windows that are decoded one by one."""

import itertools
import subprocess
import sys
from fractions import Fraction
from functools import partial
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest

from audio_cases import random_latents
from conftest import active_memory
from mlx_ltx_vae import DecodeCancelled, DecodeError, Film, Keyframes, LatentsError, PlanError, ScaleFactors, VideoVAE
from mlx_ltx_vae.frame_format import RGB8, RGB16, FrameOutput, FrameStep
from mlx_ltx_vae.networks.base import Decoder
from mlx_ltx_vae.networks.specs import LayerSpec, NetworkSpec
from mlx_ltx_vae.planning.film import audio_parts
from mlx_ltx_vae.planning.planner import plan_decode
from mlx_ltx_vae.streaming.context import Stage, StreamContext, pointwise
from mlx_ltx_vae.tiling import SpatialTilingConfig, TemporalTilingConfig, TilingConfig
from tolerances import tolerance
from toy_networks import WIDTH, MemoryDecoder

TOLERANCE = tolerance(1e-5)
N = 10  # latent frames of a window, of 73 frames


@pytest.fixture(scope="module")
def vae():
    """Cheap, causal, and with a memory along time."""
    return VideoVAE(SimpleNamespace(scale=ScaleFactors(8, 8, 8)), None, MemoryDecoder())


def windows_of(*lengths, channels=WIDTH, size=(1, 2), batch=1):
    return [
        mx.random.normal((batch, channels, length, *size), key=mx.random.key(number))
        for number, length in enumerate(lengths)
    ]


def joined(decoded, carry, blend):
    """The film of decoded windows (B, 3, F, H, W)."""
    film = np.array(decoded[0])
    for window in map(np.array, decoded[1:]):
        head, tail = np.split(film, [film.shape[2] - blend], axis=2)
        shared = window[:, :, carry - blend : carry]
        share = (np.arange(1, blend + 1) / (blend + 1)).reshape(-1, 1, 1).astype(np.float32)
        film = np.concatenate([head, (1 - share) * tail + share * shared, window[:, :, carry:]], axis=2)
    return film


def pixels_of(chunks, start=0):
    """The pixels of all chunks, whose starts are checked."""
    parts = []
    for chunk in chunks:
        assert chunk.start == start
        start += chunk.frames.shape[1]
        parts.append(np.array(chunk.pixels))
    return np.concatenate(parts, axis=2)


class Part:
    """Latents in a file: they have a shape, and a part of them is read when it is asked for."""

    def __init__(self, latents):
        self._latents, self.shape = latents, latents.shape

    def __getitem__(self, index):
        return mx.array(self._latents[index])


def extend(done, *counts):
    done += counts


def check(result, expected):
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    assert np.abs(result - expected).max() < TOLERANCE


@pytest.mark.parametrize(("carry", "count"), [(17, 2), (25, 3), (33, 5)])
def test_a_film_is_its_windows_crossfaded(vae, carry, count):
    windows = windows_of(*[N] * (count - 1), N - 4)  # the last one is shorter
    decoded = [vae.decode(window) for window in windows]
    for blend in (0, 1, 8, carry, None):
        stream = vae.stream_joined(windows, carry=carry, blend=blend)
        expected = joined(decoded, carry, carry if blend is None else blend)
        assert stream.num_frames == expected.shape[2] == 73 + (73 - carry) * (count - 2) + 41 - carry
        check(pixels_of(stream), expected)
    assert (vae.stream_joined(windows).num_frames - 73 - 41 + 25) == (73 - 25) * (count - 2)  # 25 are carried


@pytest.mark.parametrize("kind", [list, iter])
def test_by_default_a_blend_is_shorter_than_what_the_window_before_adds(vae, kind):
    windows = windows_of(5, 5, 6, 4, N)  # of 33, 33, 41, 25 and 73 frames
    film = np.array(vae.decode(windows[0]))
    for window, blend in zip(windows[1:], (17, 15, 17, 7), strict=True):  # they add 33, 16, 24 and 8
        film = joined([film, vae.decode(window)], 17, blend)
    check(pixels_of(vae.stream_joined(kind(windows), carry=17)), film)
    part = vae.stream_joined(kind(windows), carry=17, frames=(40, 70))
    check(pixels_of(part, 40), film[:, :, 40:70])


def test_windows_that_share_nothing_follow_each_other(vae):
    windows = windows_of(3, 1, 2)
    check(pixels_of(vae.stream_joined(windows, carry=0)), np.concatenate(list(map(vae.decode, windows)), axis=2))


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["small_ltx2_3", "small_ltxv_0_9_1"])
def test_every_order_and_mode_makes_the_same_film(golden, name):
    vae = VideoVAE.from_pretrained(golden(name).checkpoint, encoder=False)
    has_noise = name == "small_ltxv_0_9_1"
    windows = windows_of(3, 3, 3, channels=8, size=(1, 2), batch=2)
    tiles = {"mode": "tiled", "tiling": TilingConfig(width_config=SpatialTilingConfig(64, 32))}
    in_time = {"mode": "tiled", "tiling": TilingConfig(temporal_config=TemporalTilingConfig(16, 8))}
    for options in (
        ({}, tiles, in_time) if has_noise else ({}, {"order": "rows"}, {"order": "columns"}, {"mode": "single"})
    ):
        plan = partial(vae.plan, **options)
        decoded = [
            vae.decode(window, plan(window.shape), seed=(5 + number * 0x85EBCA6B) % 2**32 if has_noise else 0)
            for number, window in enumerate(windows)
        ]
        film = partial(vae.stream_joined, windows, carry=9, blend=6, seed=5 if has_noise else 0, **options)
        expected = joined(decoded, 9, 6)
        check(pixels_of(film()), expected)
        check(pixels_of(film(frames=(5, 22)), start=5), expected[:, :, 5:22])


def test_some_frames_are_those_of_the_film_and_decode_no_other_windows(vae, monkeypatch):
    windows = windows_of(N, N, N, 8)
    whole = pixels_of(vae.stream_joined(windows, blend=8))
    seen = []
    stream = VideoVAE._decode_pipeline(vae, {}).__class__.stream

    def counted(pipeline, latents, plan):
        seen.extend(number for number, window in enumerate(windows) if window is latents)
        return stream(pipeline, latents, plan)

    monkeypatch.setattr(VideoVAE._decode_pipeline(vae, {}).__class__, "stream", counted)
    for frames, needed in {
        (0, 60): [0],
        (60, 66): [0],  # the fade begins at 65
        (65, 66): [0, 1],
        (70, 80): [0, 1],
        (73, 100): [1],
        (100, 200): [1, 2, 3],
        (0, whole.shape[2]): [0, 1, 2, 3],
    }.items():
        for given in (windows, iter(windows)):
            seen.clear()
            result = pixels_of(vae.stream_joined(given, blend=8, frames=frames), start=frames[0])
            check(result, whole[:, :, frames[0] : frames[1]])
            assert seen == ([0, 1] if frames == (60, 66) else needed)


def test_an_iterator_is_asked_for_a_window_when_the_last_one_is_decoded(vae):
    windows, log = windows_of(N, N, N), []

    def generated():
        for number, window in enumerate(windows):
            log.append(f"window {number}")
            yield window

    stream = vae.stream_joined(generated(), blend=8)
    assert stream.num_frames is None
    for chunk in stream:
        log.append(chunk.start + chunk.frames.shape[1])
    assert log.index("window 1") == log.index(65) + 1  # all but the last 8 of 73 frames have left
    assert log.index("window 2") == log.index(65 + 48) + 1


def test_a_film_becomes_a_file_an_array_and_levels(vae, tmp_path):
    windows = windows_of(N, N)
    film = pixels_of(vae.stream_joined(windows))
    levels = np.clip(np.round((film[0].transpose(1, 2, 3, 0).astype(np.float64) + 1) * 127.5), 0, 255).astype(int)
    for given in (windows, iter(windows)):
        done: list[int] = []
        report = vae.decode_to_file(vae.stream_joined(given), tmp_path / "film.npy", progress=partial(extend, done))
        result = np.load(tmp_path / "film.npy")
        assert (report.frames, report.width, report.height) == (121, 16, 8)
        assert np.abs(result.astype(int) - levels).max() <= 1  # of what lies between two levels
        assert (result == levels).mean() > 0.99
        assert done[-2:] == [121, 121]
    vae.decode_to_file(Film(windows), tmp_path / "film.npy")
    assert np.array_equal(np.load(tmp_path / "film.npy"), result)
    assert np.array_equal(vae.decode_uint8(Film(windows)), result)
    assert np.array_equal(vae.decode_uint8(Film(iter(windows))), result)
    plan = vae.plan(Film(windows), frames=(60, 80))
    assert np.array_equal(vae.decode_uint8(Film(windows), plan), result[60:80])
    assert next(vae.stream(Film(windows), bit_depth=10)).frames.dtype == mx.uint16
    check(np.array(vae.decode(Film(windows))), film)
    check(np.array(vae.decode(vae.stream_joined(windows))), film)
    check(pixels_of(vae.stream(vae.stream_joined(windows))), film)
    with pytest.raises(PlanError, match="has its plan and its options already"):
        vae.decode_to_file(vae.stream_joined(windows), tmp_path / "film.npy", seed=3)


def test_a_film_is_planned_for_what_becomes_of_its_frames(vae, tmp_path, monkeypatch):
    windows, plans = windows_of(N, N), []

    def make_plan(*arguments):
        plans.append(plan_decode(*arguments))
        return plans[-1]

    def film(source=windows):
        plans.clear()
        return vae.stream_joined(source)

    monkeypatch.setattr("mlx_ltx_vae.opened_vae.plan_decode", make_plan)

    def planned(**consumer):
        return vae.plan(windows[0].shape, held_frames=25, **consumer)

    vae.decode(film())
    assert plans[0].memory == planned(joined=121).memory  # frames of both windows
    vae.decode_uint8(film())
    assert plans[0].memory == planned(joined=121, bit_depth=8).memory
    vae.decode(film(iter(windows)))  # whose number is not known
    assert plans[0].memory == planned().memory
    vae.decode(film(), on_frames_ready=lambda *_: None)
    assert plans[0].memory == planned().memory
    halves = FrameStep(lambda frames, _: frames / 2)
    for options in ({}, {"bit_depth": 10}, {"frame_steps": [halves]}):
        vae.decode_to_file(film(), tmp_path / "film.npy", **options)
        steps = tuple(options.get("frame_steps", ()))
        output = FrameOutput(RGB16 if options.get("bit_depth") else RGB8, steps)
        assert plans[0].outputs == (output,)
        assert plans[0].memory == planned(outputs=[output]).memory
        assert plans[0].memory.work > planned().memory.work


def test_what_does_not_fit_is_one_sentence_before_anything_is_decoded(vae):
    good = windows_of(N, N)
    wide = mx.zeros((1, WIDTH, N, 1, 3))
    for windows, options, error, text in [
        ([*good, wide], {}, LatentsError, r"window 3: has latents \(1, 6, 10, 1, 3\), and the first window"),
        ([*good, windows_of(4)[0]], {}, LatentsError, "window 3: has 25 frames, and shares the first 25"),
        (
            [good[0], windows_of(5)[0], good[1]],
            {"blend": 25},
            LatentsError,
            "window 3: shares 25 .* blend of 25, .* only 8 frames; blend at most 7",
        ),
        ([windows_of(4)[0], good[0]], {}, LatentsError, "window 2: shares 25 frames"),
        ([], {}, LatentsError, "there are no windows"),
        ([*good, "w2.safetensors"], {}, LatentsError, "window 3: is str; expected latents"),
        (good, {"carry": 24}, PlanError, r"windows share 1 \+ 8\*k frames, or 0 for none, not 24"),
        (good, {"carry": 25, "blend": 26}, PlanError, "a carry of 25 frames allows a blend of 0 to 25, not 26"),
        (good, {"blend": True}, PlanError, "allows a blend of 0 to 25, not True"),
        (good, {"frames": (100, 200)}, PlanError, "the film has the frames 0:121, and 100:200 are not in it"),
        (good, {"keyframes": Keyframes(good[0][:, :, :1], [0])}, LatentsError, "each window has its own keyframes"),
    ]:
        with pytest.raises(error, match=text) as caught:
            vae.stream_joined(windows, **options)
        assert str(caught.value).count("; ") <= 1
    with pytest.raises(LatentsError, match="there are no windows"):
        list(vae.stream_joined(iter([])))
    with pytest.raises(PlanError, match="the film has the frames 0:121, and 100:200 are not in it"):
        list(vae.stream_joined(iter(good), frames=(100, 200)))
    stream = vae.stream_joined(iter([*good, wide]))
    with pytest.raises(LatentsError, match="window 3: has latents"):
        list(stream)
    with pytest.raises(TypeError, match=r"a decode has no option 'ordre' \(did you mean order\?\)"):
        vae.stream_joined(good, ordre="rows")
    with pytest.raises(PlanError, match="the plan was made for one window; plan the film"):
        vae.stream(Film(good), vae.plan(good[0].shape))
    with pytest.raises(PlanError, match="the plan has its memory_budget already"):
        vae.stream(Film(good), vae.plan(Film(good)), memory_budget="1GB")
    with pytest.raises(PlanError, match="windows that come from an iterator are planned as they come"):
        vae.plan(Film(iter(good)))
    with pytest.raises(PlanError, match="a memory budget of 1 kB is too small for 73 frames"):
        list(vae.stream_joined(good, memory_budget="1KB"))


class Exponential(Decoder):
    """Not finite for latents above 88."""

    dtype = mx.float32

    def __init__(self) -> None:
        super().__init__(NetworkSpec((LayerSpec("exponential", in_channels=3, out_channels=3),)))

    def stages(self, context: StreamContext) -> list[Stage]:
        return [pointwise(mx.exp)]


def test_values_that_are_not_finite_are_an_error_before_they_are_blended():
    vae = VideoVAE(SimpleNamespace(scale=ScaleFactors(1, 1, 1)), None, Exponential())
    windows = windows_of(9, 9, channels=3, size=(8, 8))
    windows[0][:, :, 7:] = 100
    stream, taken = vae.stream_joined(windows, carry=3), 0
    with pytest.raises(DecodeError, match="not finite"):
        for chunk in stream:
            taken += chunk.frames.shape[1]
    assert taken == 6


@pytest.mark.parametrize("kind", [np.array, mx.array, lambda latents: Part(np.array(latents))])
def test_values_of_all_windows_that_are_known_are_checked_before_the_first_is_decoded(vae, kind):
    good, *others = windows_of(N, N, N)
    others[1][:, 2, -1] = mx.inf
    windows = [kind(window) for window in (good, *others)]
    with pytest.raises(LatentsError, match="window 3: 2 of (12|120) latent values are NaN or infinite"):
        vae.stream_joined(windows)
    part = pixels_of(vae.stream_joined(windows, frames=(0, 96)))  # the last window is not needed
    check(part, joined(list(map(vae.decode, (good, others[0]))), 25, 25)[:, :, :96])
    stream = vae.stream_joined(iter(windows))
    assert next(stream).start == 0
    with pytest.raises(LatentsError, match="NaN or infinite"):
        list(stream)


def test_values_of_all_keyframes_are_checked_before_the_first_window_is_decoded(golden):
    vae = VideoVAE.from_pretrained(golden("ltx2_5_keyframes").checkpoint, encoder=False)
    windows = windows_of(3, 3, channels=vae.decoder.spec.in_channels, size=(2, 2))
    still = windows[0][:, :, :1]
    for latents, text in (
        (still * mx.nan, "window 2, keyframes: 32 of 32 latent values are NaN or infinite"),
        (still[..., :1], r"window 2: keyframe latents have the shape \(1, 8, 1, 2, 1\)"),
    ):
        with pytest.raises(LatentsError, match=text):
            vae.stream_joined([windows[0], (windows[1], Keyframes(latents, [4]))], carry=9)


def test_a_film_is_cancelled_and_closed_like_any_stream(vae):
    stream = vae.stream_joined(windows_of(N, N))
    next(stream)
    stream.cancel()
    with pytest.raises(DecodeCancelled):
        next(stream)
    with vae.stream_joined(windows_of(N, N)) as stream:
        next(stream)
    assert list(stream) == []


@pytest.mark.slow
def test_memory_does_not_grow_with_the_film_and_is_planned(golden):
    others = active_memory()  # of other tests
    vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint, encoder=False)
    shape, peaks = (1, 8, 4, 2, 4), []
    for count in 4 * (2, 5):  # the first run makes what stays; another thread frees buffers, sooner or later
        mx.synchronize()
        mx.clear_cache()
        mx.reset_peak_memory()
        windows = (mx.random.normal(shape, key=mx.random.key(number)) for number in range(count))
        for chunk in vae.stream_joined(windows, carry=9):
            chunk.to_uint8()
            del chunk
        peaks.append(mx.get_peak_memory() - others)
    assert min(peaks[1::2]) <= 1.05 * min(peaks[2::2])  # three windows of frames are a third of the peak
    assert max(peaks[1:]) <= vae.plan(shape, held_frames=9, bit_depth=8).peak_bytes


SCRIPT = """
import sys
import mlx.core as mx
from mlx_ltx_vae import VideoVAE
vae = VideoVAE.from_pretrained(sys.argv[1], encoder=False)
windows = (mx.random.normal((1, 8, 6, 4, 4), key=mx.random.key(number)) for number in range(int(sys.argv[2])))
for chunk in vae.stream_joined(windows, carry=17):
    chunk.to_uint8()
print(mx.get_peak_memory())
"""


@pytest.mark.slow
def test_twenty_windows_take_the_memory_of_two(golden):
    script = [sys.executable, "-c", SCRIPT, golden("small_ltx2_3").checkpoint]
    two, twenty = (int(subprocess.check_output([*script, count])) for count in ("2", "20"))
    assert twenty <= 1.01 * two


@pytest.mark.slow
def test_windows_see_their_own_keyframes_and_those_in_the_carry(golden):
    case = golden("ltx2_5_keyframes")
    vae = VideoVAE.from_pretrained(case.checkpoint, encoder=False)
    shape = next(
        array.shape
        for array in case.arrays.values()
        if array.ndim == 5 and array.shape[1] == vae.decoder.spec.in_channels
    )
    windows = windows_of(3, 3, 3, channels=shape[1], size=shape[3:])  # 17 frames, of which 9 are carried
    stills = windows_of(2, 2, 2, channels=shape[1], size=shape[3:])
    plan = partial(vae.plan, order="columns")
    film = partial(vae.stream_joined, carry=9, blend=4, seed=3, order="columns")
    for own, seen in [  # numbers of each window; and window, still and number of what each sees
        ([[8], [16], []], [[(0, 0, 8)], [(0, 0, 0), (1, 0, 16)], [(1, 0, 8)]]),
        ([[2, 16], [8, 3], [0, 5]], [[(0, 0, 2), (0, 1, 16)], [(1, 0, 8), (1, 1, 3)], [(2, 0, 0), (2, 1, 5)]]),
    ]:
        pairs = [
            (window, Keyframes(still[:, :, : len(frames)], frames) if frames else None)
            for window, still, frames in zip(windows, stills, own, strict=True)
        ]
        decoded = []
        for number, (window, planes) in enumerate(zip(windows, seen, strict=True)):
            latents = mx.concatenate([stills[source][:, :, index : index + 1] for source, index, _ in planes], axis=2)
            keyframes = Keyframes(latents, [frame for *_, frame in planes])
            options = {"keyframes": keyframes, "seed": (3 + number * 0x85EBCA6B) % 2**32}
            decoded.append(vae.decode(window, plan(window.shape, keyframes=keyframes), **options))
        expected = joined(decoded, 9, 4)
        check(pixels_of(film(pairs)), expected)
        check(pixels_of(film(iter(pairs), frames=(19, 30)), start=19), expected[:, :, 19:30])
    other = Keyframes(mx.zeros((1, shape[1], 1, 1, 1)), [8])
    with pytest.raises(LatentsError, match="window 2: keyframe latents have the shape"):
        list(film([pairs[0], (windows[1], other)]))


def test_noise_of_windows_and_of_batch_items_differs(golden):
    """Windows of the same latents are noisy in different ways, and the first is as it is alone."""
    vae = VideoVAE.from_pretrained(golden("small_ltxv_0_9_1").checkpoint, encoder=False)
    latents = mx.random.normal((1, 8, 3, 1, 1), key=mx.random.key(0))
    film = pixels_of(vae.stream_joined([mx.repeat(latents, 2, axis=0)] * 2, carry=0, seed=7))
    clips = [film[item : item + 1, :, start : start + 17] for item in range(2) for start in (0, 17)]
    check(clips[0], np.array(vae.decode(latents, seed=7)))
    for one, other in itertools.combinations(clips, 2):
        assert np.abs(one - other).max() > 1e-3


def joined_audio(waveforms, kept, rate):
    """The audio of windows (2, n), of which the last `kept` samples are added, the first after silence."""
    first, length = waveforms[0][:, -kept[0] :], round(0.04 * rate)
    film = np.pad(first, [(0, 0), (kept[0] - first.shape[1], 0)])
    for waveform, count in zip(waveforms[1:], kept[1:], strict=True):
        fade = min(length, waveform.shape[1] - count, first.shape[1])
        angle = np.linspace(0, 1, fade) * np.pi / 2
        left, right = film[:, film.shape[1] - fade :], waveform[:, -count - fade : -count]
        mixed = left * np.cos(angle) + right * np.sin(angle)
        film = np.concatenate([film[:, : film.shape[1] - fade], mixed, waveform[:, -count:]], axis=1)
    return film


@pytest.mark.slow
def test_audio_is_joined_to_the_sample(audio_vae):
    vae, fps, carry = audio_vae("ltx2"), Fraction(24000, 1001), 9
    rate, frames = vae.sample_rate, [17, 17, 17, 11]
    latents = [random_latents(round(count / fps * 25), seed=seed) for seed, count in enumerate(frames)]
    ends = np.cumsum([frames[0], *(count - carry for count in frames[1:])])
    positions = [0, *(round(int(end) / fps * rate) for end in ends)]
    kept = np.diff(positions)
    expected = joined_audio([np.array(vae.decode(each))[0] for each in latents], kept.tolist(), rate)
    stream = vae.stream_joined(latents, frames, fps=fps, carry=carry)
    assert (stream.sample_rate, stream.num_samples) == (rate, expected.shape[1])
    chunks = list(stream)
    assert [chunk.start for chunk in chunks] == np.cumsum([0, *(c.waveform.shape[2] for c in chunks)])[:-1].tolist()
    result = np.concatenate([np.array(chunk.waveform)[0] for chunk in chunks], axis=1)
    assert result.shape == expected.shape
    assert np.abs(result - expected).max() < 10 * TOLERANCE
    again = vae.stream_joined(iter(latents), iter(frames), fps=fps, carry=carry)
    assert again.num_samples is None
    assert next(again).start == 0


@pytest.mark.parametrize("fps", [Fraction(24), Fraction(24000, 1001), Fraction(50), Fraction(7, 3)])
def test_an_hour_of_audio_does_not_drift_from_the_picture(fps):
    rate, frames, carry = 48000, 97, 25
    count = round(3600 * fps / (frames - carry))
    ends = [frames + number * (frames - carry) for number in range(count)]
    for length in (round(frames / fps * rate) - 1500, round(frames / fps * rate) + 7):
        parts = list(audio_parts(ends, [length] * count, rate, fps))
        assert parts[0].frames.start == max(0, round(frames / fps * rate) - length)
        for end, part in zip(ends, parts, strict=True):
            assert abs(part.frames.end - end / fps * rate) <= 0.5
            assert part.frames.end - part.start == length
        for one, other in itertools.pairwise(parts):
            assert other.fade.end == one.frames.end
            assert other.fade.length == 1920


def test_windows_with_too_little_audio_begin_with_silence(audio_vae):
    vae = audio_vae("ltx2")
    lengths, frames, carry = [12, 1, 3], [12, 17, 17], 5  # 12 new frames take half a second
    latents = [random_latents(length, seed=seed) for seed, length in enumerate(lengths)]
    waveforms = [np.array(vae.decode(each))[0] for each in latents]
    rate = vae.sample_rate
    ends = [rate // 2, rate, rate * 3 // 2]
    expected = np.zeros((2, ends[-1]), np.float32)
    for end, waveform in zip(ends, waveforms, strict=True):  # none reaches the end of the window before
        expected[:, end - waveform.shape[1] : end] = waveform
    stream = vae.stream_joined(latents, frames, fps=24, carry=carry)
    assert stream.num_samples == ends[-1]
    result = np.concatenate([np.array(chunk.waveform)[0] for chunk in stream], axis=1)
    assert result.shape == expected.shape
    assert np.abs(result - expected).max() < 10 * TOLERANCE


def test_a_fade_is_no_longer_than_the_audio_of_both_windows(audio_vae):
    vae = audio_vae("ltx2")
    latents = [random_latents(length, seed=seed) for seed, length in enumerate([1, 20])]  # 1 latent takes 10 ms
    first, second = (np.array(vae.decode(each))[0] for each in latents)
    stream = vae.stream_joined(latents, [12, 17], fps=24, carry=5)
    result = np.concatenate([np.array(chunk.waveform)[0] for chunk in stream], axis=1)
    kept = vae.sample_rate // 2
    assert np.abs(result - joined_audio([first, second], [kept, kept], vae.sample_rate)).max() < 10 * TOLERANCE
