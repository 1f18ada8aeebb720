"""MLX's errors about the device become one sentence that says what to do; others pass unchanged."""

import imageio.v2 as imageio
import mlx.core as mx
import numpy as np
import pytest

from commands import decode as decode_command
from commands import encode as encode_command
from mlx_ltx_vae import DeviceError, FrameChunk, LTXVAEError, VideoVAE

LATENTS = np.random.default_rng(1).normal(size=(1, 8, 3, 2, 2)).astype(np.float32)
PIXELS = np.zeros((9, 64, 64, 3), np.uint8)

# As MLX formats what macOS and CUDA say.
METAL = "[METAL] Command buffer execution failed: {}."
TOO_LONG = [
    METAL.format("Impacting Interactivity (0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity)"),
    METAL.format("Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)"),
]
TOO_LARGE = [
    METAL.format("Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)"),
    "[malloc] Unable to allocate 17179869184 bytes.",
    "[metal::malloc] Attempting to allocate 9 bytes which is greater than the maximum allowed buffer size of 8 bytes.",
    "cudaMallocAsync(&data, size, stream) failed: out of memory",
]
CASES = [(text, "macOS stopped the GPU") for text in TOO_LONG] + [(text, "ran out of memory") for text in TOO_LARGE]
OTHERS = [
    METAL.format("Internal Error (0000000e:kIOGPUCommandBufferCallbackErrorPageFault)"),
    "cudaGraphLaunch(graph_exec, stream()) failed: invalid argument",
    "[conv] Expected the input channels to match.",
]

SINGLE = {"mode": "single"}
RUNS = {
    "decode": lambda vae: vae.decode(LATENTS),
    "single": lambda vae: vae.decode(LATENTS, vae.plan(LATENTS.shape, **SINGLE)),
    "rows": lambda vae: vae.decode(LATENTS, vae.plan(LATENTS.shape, order="rows")),
    "stream": lambda vae: next(vae.stream(LATENTS)),
    "decode_uint8": lambda vae: vae.decode_uint8(LATENTS),
    "encode": lambda vae: vae.encode(PIXELS),
    "encode_stream": lambda vae: next(vae.encode_stream([PIXELS])),
    "decoder": lambda vae: vae.decoder(mx.array(LATENTS)),
}


@pytest.fixture
def fail(monkeypatch):
    """`fail(text, after)`: makes evaluations fail with MLX's error, the first `after` of them excepted."""

    def fail(text, after=0):
        calls = iter(range(after + 1000))

        def failing(evaluate):
            def call(*arrays):
                if next(calls) >= after:
                    raise RuntimeError(text)
                return evaluate(*arrays)

            return call

        for name in ("eval", "async_eval"):
            monkeypatch.setattr(mx, name, failing(getattr(mx, name)))

    return fail


@pytest.fixture
def vae(golden):
    return VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint).load()


def assert_explained(error, text, words):
    assert isinstance(error, LTXVAEError) and isinstance(error, RuntimeError)
    assert words in str(error) and "memory budget or chunk" in str(error)
    assert str(error).count(".") == 1
    assert type(error.__cause__) is RuntimeError and str(error.__cause__) == text


@pytest.mark.quick(3)
@pytest.mark.parametrize(("text", "words"), CASES)
def test_the_watchdog_and_lack_of_memory_are_explained(vae, fail, text, words):
    fail(text, after=5)
    with pytest.raises(DeviceError) as caught:
        vae.decode(LATENTS)
    assert_explained(caught.value, text, words)


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_they_are_explained_wherever_a_network_runs(vae, fail, run):
    fail(TOO_LONG[0], after=4)  # inputs are evaluated first, where they are prepared
    with pytest.raises(DeviceError) as caught:
        run(vae)
    assert_explained(caught.value, TOO_LONG[0], "macOS stopped the GPU")


@pytest.mark.parametrize("after", [0, 1, 20])
def test_they_are_explained_where_arrays_of_a_caller_are_read_as_weights(golden, weights, fail, after):
    arrays = {name: mx.array(array) * 1 for name, array in weights("small_ltx2_3").items()}
    fail(TOO_LARGE[0], after)
    with pytest.raises(DeviceError) as caught:
        VideoVAE.from_weights(arrays, golden("small_ltx2_3").manifest["vae_config"])
    assert_explained(caught.value, TOO_LARGE[0], "ran out of memory")


@pytest.mark.parametrize(
    "run", [lambda vae: vae.decode(mx.array(LATENTS) * 1), lambda vae: vae.encode(mx.zeros((1, 3, 9, 64, 64)) + 0.5)]
)
def test_they_are_explained_where_arrays_of_a_caller_are_evaluated(vae, fail, run):
    fail(TOO_LARGE[0])
    with pytest.raises(DeviceError, match="ran out of memory"):
        run(vae)


def test_they_are_explained_where_frames_are_read(monkeypatch):
    def out_of_memory(*_):
        raise RuntimeError(TOO_LARGE[0])

    chunk = FrameChunk(0, mx.zeros((1, 1, 4, 4, 3)), mx.array(True))
    monkeypatch.setattr(np, "asarray", out_of_memory)
    for read in (chunk.to_uint8, chunk.to_uint16):
        with pytest.raises(DeviceError, match="ran out of memory"):
            read()
    monkeypatch.setattr("mlx_ltx_vae.pipeline.frames.to_bool", out_of_memory)
    with pytest.raises(DeviceError, match="ran out of memory"):
        chunk.check()


@pytest.mark.parametrize("name", ["decoder", "encoder", "decode", "stream"])
def test_transformations_of_functions_are_refused(golden, name):
    vae = VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint)
    values = mx.zeros((1, 3, 9, 64, 64) if name == "encoder" else (1, 8, 2, 2, 2))
    function = {"stream": lambda latents: next(vae.stream(latents)).pixels}.get(name) or getattr(vae, name)
    with pytest.raises(LTXVAEError, match="cannot be compiled, vmapped or differentiated; call them outside of mx"):
        mx.compile(function)(values)


@pytest.mark.parametrize("text", OTHERS)
def test_other_errors_pass(vae, fail, text):
    fail(text, after=5)
    with pytest.raises(RuntimeError) as caught:
        vae.decode(LATENTS)
    assert type(caught.value) is RuntimeError and str(caught.value) == text


def test_an_error_of_the_consumer_is_its_own(vae):
    with pytest.raises(RuntimeError) as caught:
        for _ in vae.stream(LATENTS):
            raise RuntimeError(TOO_LONG[0])
    assert type(caught.value) is RuntimeError


@pytest.mark.parametrize("command", [decode_command, encode_command])
def test_commands_print_the_sentence_and_fail(golden, fail, tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    np.save("latents.npy", LATENTS)
    imageio.mimwrite("frames.gif", list(PIXELS))
    source, output = ("latents.npy", "out.mp4") if command is decode_command else ("frames.gif", "out.safetensors")
    load = VideoVAE.from_pretrained

    def failing_after_load(*arguments, **options):
        loaded = load(*arguments, **options).load()
        fail(TOO_LONG[0], after=3)
        return loaded

    monkeypatch.setattr(VideoVAE, "from_pretrained", failing_after_load)
    assert command([source, "-m", str(golden("small_ltx2_3").checkpoint), "-o", output]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: macOS stopped the GPU because one step")
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize("command", [decode_command, encode_command])
@pytest.mark.parametrize("failure", ["an error that MLX reports late", "a wrong result"])
def test_a_file_gets_its_name_only_after_the_device_has_answered_once_more(
    golden, tmp_path, monkeypatch, capsys, command, failure
):
    monkeypatch.chdir(tmp_path)
    np.save("latents.npy", LATENTS)
    imageio.mimwrite("frames.gif", list(PIXELS))

    def late_error():
        raise RuntimeError(TOO_LONG[0])

    if failure == "a wrong result":
        monkeypatch.setattr("mlx_ltx_vae.backend.device.to_int", lambda array: 0)
    else:
        monkeypatch.setattr(mx, "synchronize", late_error)
    source, output = ("latents.npy", "out.mp4") if command is decode_command else ("frames.gif", "out.safetensors")
    assert command([source, "-m", str(golden("small_ltx2_3").checkpoint), "-o", output]) == 1
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and ("no longer computes" in line or "AGX_RELAX_CDM_CTXSTORE_TIMEOUT=1" in line)
    assert not list(tmp_path.glob("out*"))
