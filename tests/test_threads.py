"""A VAE that is loaded in one thread and used in others. MLX's streams, and so its lazy arrays, belong to threads."""

import subprocess
import sys
from _thread import start_new_thread
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from threading import Barrier, Event, Thread, current_thread, get_ident

import mlx.core as mx
import numpy as np
import pytest

from mlx_ltx_vae import Film, LatentsError, PreviewVAE, VideoVAE, load_latents, save_latents
from mlx_ltx_vae.backend import mlx_utils
from mlx_ltx_vae.inspect import inspect
from mlx_ltx_vae.latents import open_audio_latents
from mlx_ltx_vae.networks.base import Statistics
from mlx_ltx_vae.networks.video_vae.networks import ConvDecoder
from mlx_ltx_vae.pipeline.film import FilmWindow
from mlx_ltx_vae.tiling import SpatialTilingConfig, TilingConfig
from mlx_versions import streams_of_threads, threads_that_end

LATENTS = np.random.default_rng(1).normal(size=(1, 8, 3, 2, 3)).astype(np.float32)
PLANS = {
    "time": {"mode": "exact", "order": "time"},
    "rows": {"mode": "exact", "order": "rows"},
    "single": {"mode": "single"},
    "tiles_in_space": {"mode": "tiled", "tiling": TilingConfig(SpatialTilingConfig(64, 32))},
    "tiles_in_time": {"mode": "tiled", "tiling": TilingConfig.aggressive()},
}


def elsewhere(function, *arguments):
    """The result of a call in another thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *arguments).result()


def frames_of(stream):
    return np.concatenate([chunk.to_uint8() for chunk in stream])


def frames_of_threads(stream):
    """The frames of a stream of which each step, and each conversion, runs in a thread of its own."""
    return np.concatenate([elsewhere(chunk.to_uint8) for chunk in steps_of_threads(stream)])


def steps_of_threads(stream):
    """What a stream yields, each step in a thread of its own."""
    while (step := elsewhere(next, stream, None)) is not None:
        yield step


@pytest.fixture(params=["small_ltx2_3", "small_ltxv_0_9_1"])  # the second with a timestep and noise
def path(golden, request):
    return golden(request.param).checkpoint


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("name", "options", "bit_depth"),
    [("small_ltxv_0_9_1", PLANS["time"], None), ("small_ltx2_3", PLANS["tiles_in_space"], 8)]
    + [("small_ltx2_3", PLANS[name], None) for name in ("single", "rows", "tiles_in_time")],
)
def test_each_step_of_a_decode_in_another_thread(golden, name, options, bit_depth):
    path = golden(name).checkpoint
    vae = VideoVAE.from_pretrained(path, encoder=False)
    plan = vae.plan(LATENTS.shape, **options)
    expected = frames_of(vae.stream(LATENTS, plan))

    loaded = elsewhere(VideoVAE.from_pretrained, path)
    np.testing.assert_array_equal(frames_of(loaded.stream(LATENTS, plan)), expected)
    started = elsewhere(lambda: loaded.stream(LATENTS, loaded.plan(LATENTS.shape, **options), bit_depth=bit_depth))
    np.testing.assert_array_equal(frames_of_threads(started), expected)


def test_a_stream_goes_on_in_another_thread_and_is_closed_in_a_third(path):
    vae = VideoVAE.from_pretrained(path, encoder=False)
    plan = vae.plan(LATENTS.shape, mode="exact", order="time")
    expected = frames_of(vae.stream(LATENTS, plan))
    stream = vae.stream(LATENTS, plan, bit_depth=8)
    first = next(stream).to_uint8()
    second = elsewhere(lambda: next(stream).to_uint8())
    np.testing.assert_array_equal(np.concatenate([first, second]), expected[: len(first) + len(second)])
    elsewhere(stream.close)
    assert list(stream) == []


def test_what_another_thread_decodes_and_encodes_can_be_used_here(path):
    vae = VideoVAE.from_pretrained(path)
    pixels = elsewhere(vae.decode, LATENTS)
    np.testing.assert_array_equal(np.asarray(pixels), np.asarray(vae.decode(LATENTS)))
    latents = elsewhere(vae.encode, pixels)
    np.testing.assert_array_equal(np.asarray(latents), np.asarray(vae.encode(pixels)))
    parts = [np.asarray(part) for part in steps_of_threads(elsewhere(vae.encode_stream, [pixels]))]
    np.testing.assert_array_equal(np.concatenate(parts, axis=2), np.asarray(latents))
    levels = elsewhere(vae.decode_uint8, LATENTS[:, :, :1])
    (part,) = steps_of_threads(elsewhere(vae.encode_stream, [levels]))
    np.testing.assert_array_equal(np.asarray(part), np.asarray(vae.encode(levels)))


def test_chunks_pixels_and_what_is_pushed_can_be_used_here(golden):
    path = golden("taehv_ltx2").checkpoint
    vae = PreviewVAE.from_pretrained(path)
    latents = np.random.default_rng(0).normal(size=(1, vae.config.latent_channels, 2, 2, 3)).astype(np.float32)
    expected = np.asarray(vae.decode(latents))
    chunks = elsewhere(lambda: [chunk.pixels for chunk in vae.stream(latents)])
    pushed = [elsewhere(vae.push, latents[:, :, index : index + 1]) for index in range(2)] + [elsewhere(vae.flush)]
    for parts in (chunks, pushed):
        arrays = [np.asarray(part) for part in parts if part is not None]
        np.testing.assert_array_equal(np.concatenate(arrays, axis=2), expected)


@pytest.mark.slow
def test_audio_can_be_used_here(audio_vae, tmp_path):
    vae, encoder = audio_vae("ltx2_3"), audio_vae("encoder")
    latents = np.random.default_rng(0).normal(size=(1, 8, 5, 16)).astype(np.float32)
    parts = [np.asarray(chunk.waveform) for chunk in steps_of_threads(elsewhere(vae.stream, latents))]
    waveform = np.concatenate(parts, axis=2)
    np.testing.assert_array_equal(waveform, np.asarray(vae.decode(latents)))
    encoded = elsewhere(encoder.encode, waveform, 16_000)
    np.testing.assert_array_equal(np.asarray(encoded), np.asarray(encoder.encode(waveform, 16_000)))
    mx.save_safetensors(str(tmp_path / "audio.safetensors"), {"audio_latents": mx.array(latents)})
    file = open_audio_latents(tmp_path / "audio.safetensors")
    np.testing.assert_array_equal(np.asarray(elsewhere(file.read)), latents)


@pytest.mark.parametrize("name", ["small_ltxv_0_9_1", "ltx2_5_diffusion"])
def test_noise_arrays_are_used_in_another_thread(golden, name):
    """The latent noise of the first becomes float32, and the volumes of the second are transposed."""
    vae = VideoVAE.from_pretrained(golden(name).checkpoint, encoder=False)
    spec, shape = vae.decoder.spec, (1, vae.config.latent_channels, 2, 2, 3)
    rng = np.random.default_rng(0)
    shapes = [shape] * spec.has_latent_noise
    shapes += [each if len(each) == 2 else (1, each[-1], *each[:-1]) for each in spec.noise_shapes(shape[2:]).values()]
    noise = [rng.normal(size=each).astype(np.float16) for each in shapes]
    latents = rng.normal(size=shape).astype(np.float32)
    started = vae.stream(latents, noise=noise)
    np.testing.assert_array_equal(frames_of_threads(started), frames_of(vae.stream(latents, noise=noise)))


def test_statistics_that_an_app_gives_in_bfloat16_can_be_used_in_other_threads(path):
    loaded = VideoVAE.from_pretrained(path, encoder=False)
    lazy = Statistics(loaded.mean.astype(mx.bfloat16), loaded.std.astype(mx.bfloat16))
    decoder = ConvDecoder(loaded.config, lazy)
    mx.eval(decoder.parameters())
    vae = VideoVAE(loaded.config, None, decoder)
    assert np.isfinite(elsewhere(lambda: np.asarray(vae.decode(LATENTS)))).all()


def test_two_decodes_at_once_in_two_threads(path):
    vae = VideoVAE.from_pretrained(path, encoder=False)
    clips = [LATENTS, LATENTS[..., ::-1].copy()]
    expected = [frames_of(vae.stream(latents)) for latents in clips]
    barrier = Barrier(2)

    def decode(latents):
        stream = vae.stream(latents)
        first = next(stream)
        barrier.wait(60)
        return frames_of(chain([first], stream))

    with ThreadPoolExecutor(2) as pool:
        for got, wanted in zip(pool.map(decode, clips), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("use", [next, lambda stream: elsewhere(next, stream)], ids=["here", "elsewhere"])
def test_a_stream_that_its_own_latents_use_is_an_error(golden, use):
    vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint, encoder=False)

    def latents():
        yield LATENTS[:, :, :1]
        yield use(stream)

    stream = vae.stream(latents())
    with pytest.raises(ValueError, match="the stream is already computing a chunk"):
        list(stream)
    assert list(stream) == []


@streams_of_threads
def test_lazy_arrays_of_another_thread_are_refused_and_evaluated_ones_are_not(path):
    vae = VideoVAE.from_pretrained(path)
    latents = mx.array(LATENTS)

    def left_lazy(array):
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(lambda: array + 0).result()

    with pytest.raises(LatentsError, match="the latents are lazy arrays of another thread"):
        vae.stream(left_lazy(latents))
    with pytest.raises(LatentsError, match="the frames are lazy arrays of another thread"):
        vae.encode(left_lazy(mx.zeros((1, 3, 9, 64, 64))))

    def evaluated():
        array = latents + 0
        mx.eval(array)
        return array

    np.testing.assert_array_equal(frames_of(vae.stream(elsewhere(evaluated))), frames_of(vae.stream(latents)))


def test_lazy_noise_of_another_thread_is_refused(golden):
    vae = VideoVAE.from_pretrained(golden("small_ltxv_0_9_1").checkpoint, encoder=False)
    with ThreadPoolExecutor(1) as pool:
        noise = pool.submit(lambda: [mx.zeros(LATENTS.shape) + 1]).result()
    with pytest.raises(LatentsError, match="the noise arrays are lazy arrays of another thread"):
        vae.stream(LATENTS, noise=noise)


DECODE_IN_A_THREAD = """
import sys, threading
import mlx.core as mx
from mlx_ltx_vae import VideoVAE

vae = VideoVAE.from_pretrained(sys.argv[1], encoder=False)

def decode():
    for chunk in vae.stream(mx.random.normal((1, 8, 1, 1, 1))):
        chunk.to_uint8()

thread = threading.Thread(target=decode)
thread.start()
thread.join()
"""


@pytest.mark.slow
@threads_that_end
def test_a_process_ends_well_after_threads_have_decoded(golden):
    """Half of the runs end with 134 if streams stay, as those of MLX alone do."""
    command = [sys.executable, "-c", DECODE_IN_A_THREAD, str(golden("small_ltx2_3").checkpoint)]
    assert [subprocess.run(command, check=False).returncode for _ in range(3)] == [0] * 3


def test_one_thread_reads_the_windows_of_all_films(golden):
    """MLX keeps something of each thread that has computed."""
    vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint, encoder=False)
    readers = []

    class ComputedWindow(FilmWindow):
        def read(self, *, is_decoded=True):
            mx.eval(self.latents + 1)
            readers.append(current_thread())  # an object, since numbers of threads are used again
            return self

    film = Film([ComputedWindow(mx.array(LATENTS), name=str(number)) for number in range(3)], carry=1)
    expected, closed = frames_of(vae.stream(film)), vae.stream(film)
    next(closed)
    other = vae.stream(film)
    next(other)
    closed.close()  # what it has not read is left to no other film
    assert elsewhere(frames_of, other).shape[0] == len(expected) - 1
    assert len(set(map(id, readers))) == 1
    assert readers[0] is not current_thread()


@pytest.fixture
def cleared(monkeypatch):
    """The threads that have cleared their streams."""
    threads, clear = [], mx.clear_streams
    monkeypatch.setattr(mx, "clear_streams", lambda: (clear(), threads.append(get_ident())))
    return threads


@pytest.mark.parametrize(
    "use",
    [
        lambda vae, chunk, path: VideoVAE.from_pretrained(path),
        lambda vae, chunk, path: vae.stream(LATENTS),
        lambda vae, chunk, path: list(vae.stream(LATENTS)),
        lambda vae, chunk, path: chunk.to_uint8(),
        lambda vae, chunk, path: vae.encode(np.zeros((1, 3, 1, 64, 64), np.float32)),
        lambda vae, chunk, path: save_latents(path.with_name("threads.safetensors"), mx.array(LATENTS)),
        lambda vae, chunk, path: load_latents(path.with_name("threads.safetensors")),
        lambda vae, chunk, path: inspect(str(path.with_name("threads.safetensors"))),
    ],
    ids=["load", "plan", "decode", "convert", "encode", "save", "read", "info"],
)
def test_a_thread_clears_its_streams_when_it_ends_and_not_before(golden, cleared, use):
    path = golden("small_ltx2_3").checkpoint
    vae = VideoVAE.from_pretrained(path)
    chunk = next(vae.stream(LATENTS))
    save_latents(path.with_name("threads.safetensors"), mx.array(LATENTS))
    used = []

    def work():
        for _ in range(2):  # MLX cannot be used again in a thread whose streams are cleared
            use(vae, chunk, path)
        used.append((get_ident(), list(cleared)))

    thread = Thread(target=work)
    thread.start()
    thread.join(60)
    ((number, before),) = used
    assert (before, cleared) == ([], [number])


def test_the_main_thread_and_those_of_other_languages_keep_their_streams(golden):
    vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint, encoder=False)
    ends, done = [], Event()

    def work():
        vae.decode(LATENTS)
        ends.append(mlx_utils._local.end)

    def start():
        work()
        mx.clear_streams()  # otherwise this process may abort
        done.set()

    work()
    start_new_thread(start, ())  # as Python sees the threads of C
    assert done.wait(60)
    assert ends == [None, None]


def test_commands_clear_the_streams_of_mlx_at_exit(golden):
    code = (
        "import sys, mlx.core as mx\nclear = mx.clear_streams\n"
        "mx.clear_streams = lambda: (clear(), print('cleared'))\n"
        "from mlx_ltx_vae.info import main\nsys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, str(golden("small_ltx2_3").checkpoint)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("cleared\n")
