"""What stays in memory: beside an exception or a chunk that somebody keeps, and of weights that nobody has used."""

import copy
import gc
import pickle
import shutil
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from checkpoint_files import metadata
from conftest import active_memory
from mlx_ltx_vae import CheckpointError, DecodeCancelled, Film, PlanError, VideoVAE
from mlx_ltx_vae.integrations import decode_tiled
from mlx_ltx_vae.pipeline.execution import _between, peek
from mlx_ltx_vae.shapes import Interval
from tolerances import cpu_only

LATENTS = (1, 8, 6, 2, 6)
SMALL = 300_000  # bytes


@pytest.fixture(scope="module")
def vae(golden):
    """A VAE that has run: what a network makes at its first run stays."""
    vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint)
    vae.decode(vae.encode(pixels()[:9]))
    return vae


def latents():
    array = mx.random.normal(LATENTS, key=mx.random.key(0))
    mx.eval(array)
    return array


def pixels():
    return np.zeros((41, 64, 192, 3), np.uint8)


class Full(Exception):
    """What a caller raises."""


def fail(*arguments):
    """Raise in the middle of a clip: as a callback, at the third call."""
    del arguments  # the caller's own
    fail.calls += 1
    if fail.calls == 3:
        raise Full


def failing(parts):
    for number, part in enumerate(parts):
        if number == 5:
            raise Full
        yield part


RUNS = {
    "on_frames_ready": lambda vae, path: vae.decode(latents(), on_frames_ready=fail),
    "progress": lambda vae, path: vae.decode(latents(), progress=fail),
    "progress of a file": lambda vae, path: vae.decode_to_file(latents(), path, progress=fail),
    "latents": lambda vae, path: vae.decode(failing(latents()[:, :, at : at + 1] for at in range(6))),
    "a stream": lambda vae, path: list(vae.stream(failing(latents()[:, :, at : at + 1] for at in range(6)))),
    "an app's callback": lambda vae, path: decode_tiled(vae.decoder, latents(), on_frames_ready=fail),
    "an encode": lambda vae, path: vae.encode(failing(pixels()[at : at + 8] for at in range(0, 41, 8))),
    "a stream of latents": lambda vae, path: list(
        vae.encode_stream(failing(pixels()[at : at + 8] for at in range(0, 41, 8)))
    ),
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", RUNS)
def test_an_exception_that_is_kept_keeps_no_memory(vae, tmp_path, monkeypatch, name):
    monkeypatch.setattr("mlx_ltx_vae.integrations.dropins.vae_of", lambda decoder: vae)
    gc.collect()
    before, fail.calls, kept = active_memory(), 0, None
    gc.disable()
    try:
        RUNS[name](vae, tmp_path / "clip.npy")
    except Full as error:
        kept = error
    finally:
        gc.enable()
    assert kept is not None and kept.__traceback__ is not None
    mx.synchronize()  # of checks that were under way
    given = np.prod(LATENTS) * 4 * 2  # latents, and the part of them in the caller's generator
    assert active_memory() - before < given + SMALL


def test_a_stream_of_latents_is_closed_by_its_block_and_cancelled_from_any_thread(vae):
    with vae.encode_stream([pixels()]) as stream:
        next(stream)
    assert list(stream) == []

    def arriving():
        yield pixels()[:9]
        thread = threading.Thread(target=stream.cancel)
        thread.start()
        thread.join()
        yield pixels()[9:]

    stream = vae.encode_stream(arriving())
    with pytest.raises(DecodeCancelled, match="cancelled"):
        list(stream)


def test_a_kept_chunk_keeps_no_weights_in_memory(golden):
    gc.collect()
    before = active_memory()
    vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint, encoder=False)
    stream = vae.stream(latents())
    chunk = next(stream)
    chunk.to_uint8()
    weights = vae.decoder.spec.num_weights * 4
    del stream, vae
    left = active_memory() - before - chunk.frames.nbytes
    assert weights > 2 * SMALL, "or this test shows nothing"
    assert left < SMALL
    chunk.check()


def test_each_network_is_loaded_when_it_is_first_used_and_counts_from_then_on(golden):
    path = golden("small_ltx2_3").checkpoint
    sizes = {name: sum(array.nbytes for key, array in load_file(path).items() if f".{name}." in key) for name in (
        "encoder", "decoder")}  # fmt: skip
    before = active_memory()
    vae = VideoVAE.from_pretrained(path)
    assert vae.plan(LATENTS).memory.weights == sizes["decoder"]
    assert vae.plan_encode((9, 64, 96, 3)).memory.weights == sizes["encoder"]
    assert "encoder" in repr(vae), "which reads no weights"
    assert active_memory() - before < SMALL < sizes["decoder"]
    expected = VideoVAE.from_pretrained(path, decoder=False).encode(pixels()[:9])
    assert mx.array_equal(vae.encode(pixels()[:9]), expected)
    assert active_memory() - before < sizes["encoder"] + SMALL
    assert vae.plan(LATENTS).memory.weights == sizes["decoder"] + sizes["encoder"]
    vae.decode(latents())
    assert active_memory() - before > sizes["decoder"] + sizes["encoder"] - SMALL


def test_weights_in_memory_are_loaded_at_once(weights):
    arrays = {name: mx.array(array) for name, array in weights("ltx2_3").items()}
    vae = VideoVAE.from_weights(arrays)
    expected = VideoVAE.from_weights(arrays).encode(pixels()[:9])
    for array in arrays.values():
        array[...] = mx.nan
    assert mx.array_equal(vae.encode(pixels()[:9]), expected)


@pytest.fixture
def copied(golden, tmp_path):
    shutil.copyfile(golden("small_ltx2_3").checkpoint, tmp_path / "vae.safetensors")
    return tmp_path / "vae.safetensors"


def test_a_file_that_has_changed_before_the_encoder_is_used_is_one_error(copied):
    vae = VideoVAE.from_pretrained(copied)
    assert vae.decoder is not None
    copied.unlink()
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"vae\.safetensors: the file has been moved or removed"):
            vae.encode(pixels()[:9])
    assert vae.decode(latents()[:, :, :2]).shape[2] == 9


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda name, tensors: tensors.pop(name), "encoder lacks tensor conv_out"),
        (lambda name, tensors: tensors.update({name: tensors[name][:3]}), "configuration expects"),
        (lambda name, tensors: tensors.update({name: tensors[name].astype(np.int8)}), "int8"),
    ],
)
def test_what_the_header_tells_of_the_encoder_is_refused_at_once(golden, weights, tmp_path, change, words):
    tensors = weights("small_ltx2_3")
    change("vae.encoder.conv_out.conv.weight", tensors)
    save_file(tensors, tmp_path / "vae.safetensors", metadata(golden, "small_ltx2_3"))
    with pytest.raises(CheckpointError, match=words):
        VideoVAE.from_pretrained(tmp_path / "vae.safetensors")


def test_threads_that_use_the_encoder_at_once_load_it_once(copied, monkeypatch):
    from mlx_ltx_vae.checkpoint import loading

    loads, load = [], loading.load_network
    monkeypatch.setattr(loading, "load_network", lambda *arguments: loads.append(arguments) or load(*arguments))
    vae = VideoVAE.from_pretrained(copied)
    at_once = threading.Barrier(4)

    def encode(_):
        at_once.wait()
        try:
            return np.array(vae.encode(pixels()[:9]))
        finally:
            mx.clear_streams()

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(encode, range(4)))
    assert len(loads) == 1
    assert all(np.array_equal(result, results[0]) for result in results)


@pytest.mark.parametrize("make", [copy.deepcopy, lambda vae: pickle.loads(pickle.dumps(vae))])  # noqa: S301
def test_a_copy_has_its_weights_also_where_the_file_is_gone(copied, make):
    vae = VideoVAE.from_pretrained(copied)
    other = make(vae)
    copied.unlink()
    assert mx.array_equal(other.encode(pixels()[:9]), vae.encode(pixels()[:9]))


def test_parts_that_were_looked_at_are_held_until_they_are_taken():
    class Part:
        pass

    first, parts = peek((Part() for _ in range(2)), "nothing")
    held = weakref.ref(first)
    del first
    next(parts)
    assert held() is None
    assert len(list(parts)) == 1


def test_frames_before_an_excerpt_are_not_held_while_the_next_are_computed():
    alive = weakref.WeakSet()

    class Piece:
        shape = (1, 1, 4, 4, 3)

        def __getitem__(self, index):
            return self

    def computed():
        for _ in range(4):
            counts.append(len(alive))
            piece = Piece()
            alive.add(piece)
            box = [piece]
            del piece
            yield box.pop()

    counts = []
    for piece in _between(computed(), Interval(2, 4)):
        del piece
    assert counts == [0, 0, 0, 0]


@cpu_only("plans of the CPU are compared with measurements")
def test_the_result_of_a_decode_counts_and_is_held_once_in_memory(vae):
    given = mx.random.normal((1, 8, 20, 2, 3), key=mx.random.key(0))
    mx.eval(given)
    plan = vae.plan(given.shape, joined=True)
    assert plan.memory.result == 4 * 3 * 153 * 64 * 96
    assert plan.memory.active == vae.plan(given.shape).memory.active + plan.memory.result
    weights = plan.memory.weights + given.nbytes
    before = active_memory()
    mx.reset_peak_memory()
    assert vae.decode(given, plan).nbytes == plan.memory.result
    assert mx.get_peak_memory() - before + weights < 1.05 * plan.memory.active  # of a network as small as this
    assert plan.memory.result > 0.2 * plan.memory.active, "which a second copy would exceed"
    for latents in (given, given.astype(mx.float16)):
        with pytest.raises(PlanError, match="too small"):
            vae.decode(latents, memory_budget=plan.memory.result)
    vae.decode(given, memory_budget=plan.memory.active, on_frames_ready=lambda frames, start: None)


@pytest.mark.parametrize("num_windows", [0, 3])
def test_the_array_of_levels_counts_wherever_it_is(vae, num_windows):
    latents = mx.random.normal((1, 8, 3, 1, 2), key=mx.random.key(0))
    source = Film([latents] * num_windows, carry=9) if num_windows else latents
    plan_of = partial(vae.plan, source if num_windows else latents.shape)
    num_frames = 17 + 2 * 8 if num_windows else 17
    plan, frames = plan_of(joined=True, bit_depth=8), vae.decode_uint8(source)
    assert frames.shape == (num_frames, 32, 64, 3)
    assert plan.memory.result == frames.nbytes
    assert plan_of(joined=True).memory.result == vae.decode(source).nbytes == 4 * frames.nbytes
    assert plan_of(joined=True, frames=(7, 15)).memory.result == 8 * 32 * 64 * 3 * 4
    with pytest.raises(PlanError) as of_stream:
        plan_of(bit_depth=8, order="time", memory_budget=1)
    with pytest.raises(PlanError, match="too small"):
        vae.decode_uint8(source, order="time", memory_budget=of_stream.value.least_bytes)
    np.testing.assert_array_equal(vae.decode_uint8(source, memory_budget=plan.memory.active), frames)


def test_the_rest_of_a_stream_becomes_an_array_of_its_length(vae):
    latents = mx.random.normal((1, 8, 3, 1, 2), key=mx.random.key(0))
    for decode, axis in ((vae.decode_uint8, 0), (vae.decode, 2)):
        whole, stream = np.asarray(decode(latents)), vae.stream(latents)
        first = next(stream).frames.shape[1]
        rest = np.asarray(decode(stream))
        np.testing.assert_array_equal(rest, np.split(whole, [first], axis=axis)[1])


@cpu_only("the cache of a GPU is cleared before each run, too")
def test_the_buffer_cache_is_as_before_after_a_load_and_a_run(golden):
    script = f"""
import mlx.core as mx
from mlx_ltx_vae import VideoVAE
caches = []
vae = VideoVAE.from_pretrained({str(golden("small_ltx2_3").checkpoint)!r})
caches.append(mx.get_cache_memory())
latents = mx.random.normal((1, 8, 4, 4, 6))
pixels = vae.decode(latents)
caches.append(mx.get_cache_memory())
vae.decode(latents, on_frames_ready=lambda frames, start: None)
caches.append(mx.get_cache_memory())
vae.encode(pixels)
caches.append(mx.get_cache_memory())
print(max(caches))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) < SMALL
