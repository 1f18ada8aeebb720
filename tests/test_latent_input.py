"""What `stream` and `decode` take besides normalized latents in one array, and what apps that go deeper call."""

import threading

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latent_files import check_in_parts
from mlx_ltx_vae import DecodeCancelled, LatentsError, PlanError, VideoVAE, tiling

TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def vae(golden):
    return VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint)


@pytest.fixture(scope="module")
def noisy_vae(golden):
    return VideoVAE.from_pretrained(golden("small_ltxv_0_9_1").checkpoint, encoder=False)


def latents_of(vae, frames=4, height=2, width=3, batch=1):
    shape = (batch, vae.config.latent_channels, frames, height, width)
    return mx.random.normal(shape, key=mx.random.key(0))


def denormalized(vae, latents):
    return latents * vae.std.reshape(-1, 1, 1, 1) + vae.mean.reshape(-1, 1, 1, 1)


def assert_close(pixels, expected, tolerance=TOLERANCE):
    assert (pixels.shape, pixels.dtype) == (expected.shape, expected.dtype)
    assert np.abs(np.array(pixels) - np.array(expected)).max() <= tolerance


class Mapped:
    """A file of latents: it has a shape, and gives parts as they are asked for."""

    def __init__(self, latents):
        self._latents = np.array(latents)
        self.shape = self._latents.shape
        self.largest = 0

    def __getitem__(self, index):
        part = mx.array(self._latents[index])
        self.largest = max(self.largest, part.size)
        return part


@pytest.mark.parametrize("make", [np.array, mx.array, lambda latents: Foreign(np.array(latents))])
def test_what_a_caller_assigns_to_an_array_after_the_call_is_not_decoded(vae, make):
    latents = make(latents_of(vae, 2))
    expected = vae.decode(latents)
    stream = vae.stream(latents)
    latents[:] = 0
    assert mx.array_equal(mx.concatenate([chunk.pixels for chunk in stream], axis=2), expected)


class Foreign:
    """An array of another library, which shares its memory."""

    def __init__(self, values):
        self._values = values

    def __array__(self, dtype=None, copy=None):
        return self._values

    def __setitem__(self, index, value):
        self._values[index] = value


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_latents_are_refused(vae, dtype):
    latents = np.array(latents_of(vae)).astype(dtype)
    given = [latents, iter([latents])] + ([mx.array(latents)] if dtype == np.complex64 else [])
    for each in given:
        with pytest.raises(LatentsError, match="latents are .*complex.*; expected float32, float16 or bfloat16"):
            vae.decode(each)


@pytest.mark.parametrize("name", ["small_ltx2_3", "small_ltxv_0_9_1"])
@settings(max_examples=3)
@given(cuts=st.lists(st.integers(1, 3), min_size=1, max_size=3), chunk=st.none() | st.integers(1, 3))
def test_latents_that_arrive_decode_as_one_array_does(golden, name, cuts, chunk):
    vae = VideoVAE.from_pretrained(golden(name).checkpoint, encoder=False)
    latents = latents_of(vae, sum(cuts))
    ends = np.cumsum(cuts)
    parts = [latents[:, :, end - length : end] for length, end in zip(cuts, ends, strict=True)]
    plan = None if chunk is None else vae.plan((1, 8, 9, 2, 3), mode="exact", order="time", chunk=chunk)
    assert_close(vae.decode(iter(parts), plan), vae.decode(latents))


def test_frames_come_out_before_all_latents_are_there(vae):
    latents = latents_of(vae, 24)
    taken = []

    def arriving():
        for index in range(24):
            taken.append(index)
            yield np.array(latents[:, :, index : index + 1])

    chunks = vae.stream(arriving())
    assert not taken
    first = next(chunks)
    assert len(taken) < 24
    assert sum(chunk.frames.shape[1] for chunk in [first, *chunks]) == 185


def test_latents_that_arrive_can_be_decoded_in_tiles_in_space(vae):
    latents = latents_of(vae, 3, 2, 4)
    plan = vae.plan(latents.shape, mode="tiled", tiling=tiling.TilingConfig(tiling.SpatialTilingConfig(64, 32)))
    parts = [latents[:, :, :1], latents[:, :, 1:]]
    assert_close(vae.decode(parts, plan), vae.decode(latents, plan))


@pytest.mark.parametrize(
    "options",
    [
        {"order": "rows", "mode": "exact"},
        {"mode": "tiled", "tiling": tiling.TilingConfig(temporal_config=tiling.TemporalTilingConfig(16, 8))},
    ],
)
def test_a_plan_that_needs_all_latents_refuses_those_that_arrive(vae, options):
    with pytest.raises(PlanError, match="decoded by time"):
        vae.stream(iter([latents_of(vae)]), vae.plan(latents_of(vae).shape, **options))


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([], "no latents to decode"),
        ([[1, 2]], "gave list"),
        ([mx.zeros((8, 2, 2, 3))], "five axes"),
        ([mx.zeros((1, 8, 1, 2, 3)), mx.zeros((1, 8, 1, 2, 4))], r"\(1, 8, 1, 2, 4\) follow"),
        ([mx.zeros((1, 8, 1, 2, 3)) + mx.nan], "48 of 48 latent values are NaN"),
    ],
)
def test_arriving_latents_that_cannot_be_decoded_are_refused(vae, parts, words):
    with pytest.raises(LatentsError, match=words):
        vae.decode(parts)


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "exact", "order": "time"},
        {"mode": "exact", "order": "rows"},
        {"mode": "single"},
        {
            "mode": "tiled",
            "tiling": tiling.TilingConfig(tiling.SpatialTilingConfig(64, 32), tiling.TemporalTilingConfig(16, 8)),
        },
    ],
)
def test_a_file_is_read_in_the_parts_that_the_plan_needs(noisy_vae, options, monkeypatch):
    check_in_parts(monkeypatch, 1)  # of the check before the decode
    latents = latents_of(noisy_vae, 3, 2, 3)
    plan = noisy_vae.plan(latents.shape, **options)
    mapped = Mapped(latents)
    assert_close(noisy_vae.decode(mapped, plan), noisy_vae.decode(latents, plan))
    assert (mapped.largest == latents.size) is (options["mode"] == "single")


def spoiled(latents, value=mx.nan):
    """Latents whose last frame has values that are not finite in the second column."""
    return mx.concatenate([latents[:, :, :-1], mx.where(mx.arange(3) == 1, value, latents[:, :, -1:])], axis=2)


@pytest.mark.parametrize("value", [mx.nan, mx.inf, -mx.inf])
@pytest.mark.parametrize("kind", [np.array, mx.array, Mapped, lambda latents: mx.split(latents, 4, axis=2)])
def test_values_of_latents_that_are_known_as_a_whole_are_checked_before_the_first_frame(vae, tmp_path, kind, value):
    latents, frames = kind(spoiled(latents_of(vae), value)), []
    for decode in (
        vae.stream,
        vae.decode,
        vae.decode_uint8,
        lambda latents: vae.decode(latents, on_frames_ready=lambda *given: frames.append(given)),
        lambda latents: vae.decode_to_file(latents, tmp_path / "clip.mp4"),
    ):
        with pytest.raises(LatentsError, match="16 of (48|192) latent values are NaN or infinite"):
            decode(latents)
    assert frames == list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("order", ["time", "rows", "columns"])
def test_latents_in_a_file_are_checked_in_parts_where_they_are_decoded(vae, order, monkeypatch):
    latents = spoiled(latents_of(vae, 16))
    mapped, frame = Mapped(latents), latents[:, :, :1].size
    check_in_parts(monkeypatch, 3 * frame + 1)
    with pytest.raises(LatentsError, match="NaN or infinite"):
        vae.stream(mapped, vae.plan(latents.shape, order=order))
    assert mapped.largest == 3 * frame
    part = vae.decode(mapped, vae.plan(latents.shape, order=order, frames=(0, 9)))
    assert_close(part, vae.decode(latents[:, :, :-1])[:, :, :9])


def test_latents_that_arrive_are_checked_as_they_come(vae):
    latents = spoiled(latents_of(vae, 12))
    stream = vae.stream(latents[:, :, frame : frame + 1] for frame in range(12))
    assert next(stream).frames.shape[1]
    with pytest.raises(LatentsError, match="16 of 48 latent values are NaN"):
        list(stream)


def test_unnormalized_latents_are_normalized_with_the_vaes_statistics(vae, noisy_vae):
    for model in (vae, noisy_vae):
        latents = latents_of(model, 2)
        expected = model.decode(latents)
        assert_close(model.decode(denormalized(model, latents), unnormalized=True), expected, 1e-4)
        assert not np.allclose(model.decode(denormalized(model, latents)), expected, atol=0.1)


def test_the_convention_of_diffusers_mixes_noise_into_denormalized_latents(noisy_vae):
    """As its pipelines do: the timestep is 0 by default, and the noise scale is the timestep."""
    latents, noise = latents_of(noisy_vae, 1), mx.random.normal((1, 8, 1, 2, 3), key=mx.random.key(1))
    maps = [mx.zeros(shape) for shape in noisy_vae.decoder.spec.noise_shapes((1, 2, 3)).values()]

    def decode(latents, *, scale, timestep):
        """The pipeline of diffusers in our words, on a decoder that adds no noise itself."""
        mixed = (1 - scale) * denormalized(noisy_vae, latents) + scale * noise
        return noisy_vae.decode(mixed, timestep=timestep, noise="zeros", noise_scale=0, unnormalized=True)

    def ours(**options):
        return noisy_vae.decode(latents, like="diffusers", noise=[noise, *maps], **options)

    assert_close(ours(), decode(latents, scale=0, timestep=0), 1e-4)
    assert_close(ours(timestep=0.3), decode(latents, scale=0.3, timestep=0.3), 1e-4)
    assert_close(ours(timestep=0.3, noise_scale=0.1), decode(latents, scale=0.1, timestep=0.3), 1e-4)
    assert_close(
        noisy_vae.decode(latents, like="ltx-video", noise=[noise, *maps]),
        noisy_vae.decode(0.975 * latents + 0.025 * noise, timestep=0.05, noise="zeros", noise_scale=0),
        1e-4,
    )


def test_noise_options_are_checked(vae, noisy_vae):
    with pytest.raises(LatentsError, match="'a1111' is not a known convention; expected ltx-video or diffusers"):
        noisy_vae.stream(latents_of(noisy_vae), like="a1111")
    with pytest.raises(LatentsError, match="noise scale must be between 0 and 1"):
        noisy_vae.stream(latents_of(noisy_vae), noise_scale=2)
    with pytest.raises(LatentsError, match="takes no noise in its latents"):
        vae.stream(latents_of(vae), noise_scale=0.1)
    vae.stream(latents_of(vae), noise_scale=0, like="diffusers")
    with pytest.raises(LatentsError, match="noise arrays need the whole latents"):
        noisy_vae.decode(iter([latents_of(noisy_vae)]), noise=[mx.zeros((1, 8, 4, 2, 3))])


@pytest.mark.parametrize("name", ["small_ltx2_3", "small_ltx2_3_causal", "small_ltxv_0_9_1"])
def test_the_networks_can_be_called_on_whole_clips(golden, name):
    vae = VideoVAE.from_pretrained(golden(name).checkpoint)
    latents = latents_of(vae, 2)
    pixels = vae.decode(latents)
    assert_close(vae.decoder(latents), pixels)
    if vae.encoder is not None:
        assert_close(vae.encoder(pixels), vae.encode(pixels))
    names = [name for name, _ in vae.decoder.named_modules()] + list(vae.decoder.parameters())
    assert "statistics" not in names


def test_the_decoder_is_the_function_that_the_tiler_of_other_ports_calls(vae):
    latents = latents_of(vae, 2, 2, 4)
    plan = vae.plan(latents.shape, mode="tiled", tiling=tiling.TilingConfig(tiling.SpatialTilingConfig(64, 32)))
    tiled = tiling.decode_with_tiling(vae.decoder, latents, tiling.TilingConfig(tiling.SpatialTilingConfig(64, 32)))
    assert_close(tiled, vae.decode(latents, plan), 1e-4)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda vae: vae.decoder(mx.zeros((1, 9, 2, 2, 3))), "9 channels"),
        (
            lambda vae: vae.decoder(mx.zeros((1, 8, 2, 2, 3)), causal=True),
            "causal=False, and was called with causal=True",
        ),
        (lambda vae: vae.decoder(mx.zeros((1, 8, 2, 2, 3)), timestep=0.05), "takes no timestep"),
        (lambda vae: vae.encoder(mx.zeros((1, 3, 2, 64, 64))), "2 frames of 64x64 do not fit"),
        (lambda vae: vae.encoder(mx.zeros((9, 64, 64, 3))), r"expected \(B, 3, F, H, W\)"),
    ],
)
def test_calls_that_the_networks_cannot_take_are_refused(vae, call, words):
    with pytest.raises(LatentsError, match=words):
        call(vae)


def test_a_cancelled_stream_ends_with_an_error_and_frees_its_memory(vae):
    latents = latents_of(vae, 12)
    limit = mx.set_cache_limit(0)
    mx.set_cache_limit(limit)
    for order in ("time", "rows"):
        chunks = vae.stream(latents, vae.plan(latents.shape, mode="exact", order=order))
        next(chunks)
        chunks.cancel()
        assert mx.set_cache_limit(limit) == limit  # the run has ended and restored it
        for _ in range(2):
            with pytest.raises(DecodeCancelled, match="was cancelled"):
                next(chunks)
        chunks.close()


def test_cancelling_from_another_thread_ends_a_decode_between_two_steps(vae):
    """Here the decode waits for latents in its own thread, and is cancelled meanwhile."""
    latents = latents_of(vae, 24)
    cancelled = threading.Event()
    given = []

    def arriving():
        for index in range(24):
            if index == 4:
                thread = threading.Thread(target=lambda: (chunks.cancel(), cancelled.set()))
                thread.start()
                thread.join()
            given.append(index)
            yield latents[:, :, index : index + 1]

    chunks = vae.stream(arriving())
    with pytest.raises(DecodeCancelled):
        list(chunks)
    assert cancelled.is_set()
    assert given == [0, 1, 2, 3, 4]
