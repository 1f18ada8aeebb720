"""The example of a web server: a real server, a real client, and a decode that the tests can hold up."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import mlx.core as mx
import numpy as np
import pytest
import uvicorn
from imageio_ffmpeg import get_ffmpeg_exe

from audio_cases import random_latents
from conftest import active_memory
from examples import server
from mlx_ltx_vae import AudioVAE, DecodeError, VideoVAE, demo, load_latents, save_latents
from mlx_ltx_vae.backend.mlx_utils import psnr
from mlx_ltx_vae.pipeline.frames import FrameChunk
from video_files import children, run_ffmpeg

PATIENCE = 60  # seconds, for what must happen at all
SIZE = (128, 96)
FRAMES = 33


class HeldStream:
    """A stream that waits for `released` before the frames from `hold_at` on. Cancelling it ends the wait."""

    def __init__(self, chunks: Iterator[FrameChunk], hold_at: int, error: Exception | None = None) -> None:
        self._chunks, self._hold_at, self._error = chunks, hold_at, error
        self.frames = 0
        self.released, self.cancelled, self.closed = threading.Event(), threading.Event(), threading.Event()

    def __iter__(self) -> "HeldStream":
        return self

    def __next__(self) -> FrameChunk:
        chunk = next(self._chunks)
        if chunk.start >= self._hold_at:
            assert self.released.wait(3 * PATIENCE)
            if self._error is not None:
                raise self._error
        self.frames = chunk.start + chunk.frames.shape[1]
        return chunk

    def cancel(self) -> None:
        self._chunks.cancel()
        self.cancelled.set()
        self.released.set()

    def __enter__(self) -> "HeldStream":
        return self

    def __exit__(self, *_: object) -> None:
        self._chunks.close()
        self.closed.set()


class HeldVAE:
    """The demo VAE, whose streams are held at `hold_at`, after the frames of the first fragment."""

    def __init__(self, vae: VideoVAE) -> None:
        self._vae, self.config, self.plan, self.mean, self.std = vae, vae.config, vae.plan, vae.mean, vae.std
        self.hold_at, self.error = 16, None
        self.streams: list[HeldStream] = []

    def stream(self, *arguments: object, **options: object) -> HeldStream:
        self.streams.append(HeldStream(self._vae.stream(*arguments, **options), self.hold_at, self.error))
        return self.streams[-1]


@pytest.fixture(scope="module")
def demo_vae() -> VideoVAE:
    return VideoVAE.from_pretrained(demo.VAE, encoder=False)


@pytest.fixture
def vae(demo_vae: VideoVAE) -> Iterator[HeldVAE]:
    held = HeldVAE(demo_vae)
    yield held
    for stream in held.streams:
        stream.released.set()


@pytest.fixture(scope="module")
def upload(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A latent file of 33 frames of the demo."""
    path = tmp_path_factory.mktemp("upload") / "clip.safetensors"
    latents, info = load_latents(demo.LATENTS)
    save_latents(path, latents[:, :, :5, :3, :4], fps=info.fps)
    return path.read_bytes()


@contextmanager
def serving(vae: object, **options: object) -> Iterator[str]:
    """The address of the example, run by uvicorn on a thread."""
    app = server.make_app(vae, **options)
    runner = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=runner.run)
    thread.start()
    try:
        until(lambda: runner.started)
        yield f"http://127.0.0.1:{runner.servers[0].sockets[0].getsockname()[1]}"
    finally:
        runner.should_exit = runner.force_exit = True
        thread.join()
        asyncio.run(app.state.pool.close())  # which the end of the server does without `force_exit`
        assert not decode_threads()


def until(condition: Callable[[], bool]) -> None:
    """Wait for what must happen."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def post(address: str, data: bytes, **options: object) -> object:
    """A context manager: the response, of which only the status has been read."""
    return httpx.stream("POST", f"{address}/video/clip.safetensors", content=data, timeout=PATIENCE, **options)


def decode_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("decode")]


def play(data: bytes) -> np.ndarray:
    command = [get_ffmpeg_exe(), "-v", "error", "-i", "pipe:0", "-pix_fmt", "rgb24", "-f", "rawvideo", "-"]
    raw = subprocess.run(command, input=data, capture_output=True, check=True).stdout
    return np.frombuffer(raw, np.uint8).reshape(-1, SIZE[1], SIZE[0], 3)


def test_the_video_plays_before_it_is_decoded_and_has_the_frames_of_a_decode(
    vae: HeldVAE, demo_vae: VideoVAE, upload: bytes
) -> None:
    with serving(vae) as address, post(address, upload) as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == 'video/mp4; codecs="avc1.640033"'
        parts = response.iter_raw()
        data = b""
        while b"mdat" not in data:
            data += next(parts)
        assert not vae.streams[0].released.is_set()
        assert vae.streams[0].frames < FRAMES
        early = play(data)
        vae.streams[0].released.set()
        data += b"".join(parts)
    latents, _ = load_latents(demo.LATENTS)
    expected = np.concatenate([chunk.to_uint8() for chunk in demo_vae.stream(latents[:, :, :5, :3, :4])])
    result = play(data)
    assert result.shape == expected.shape == (FRAMES, 96, 128, 3)
    assert psnr(mx.array(result), mx.array(expected), span=255) > 35
    assert 0 < len(early) < FRAMES
    np.testing.assert_array_equal(early, result[: len(early)])


def with_sound(upload: bytes, folder: Path, sound: np.ndarray) -> bytes:
    """A latent file with those of its sound."""
    path = folder / "sound.safetensors"
    path.write_bytes(upload)
    mx.save_safetensors(str(path), {**mx.load(str(path)), "audio_latents": mx.array(sound)}, {"fps": "24"})
    return path.read_bytes()


def hear(data: bytes) -> np.ndarray:
    """What ffmpeg hears, (2, n) at 24 kHz; nothing if there is no sound."""
    if b"Audio:" not in subprocess.run([get_ffmpeg_exe(), "-i", "pipe:0"], input=data, capture_output=True).stderr:
        return np.empty((2, 0), np.float32)
    samples = run_ffmpeg("-i", "pipe:0", "-map", "0:a", "-f", "f32le", "-ar", "24000", "-", data=data)
    return np.frombuffer(samples, np.float32).reshape(-1, 2).T


def test_a_video_has_its_sound_while_it_is_decoded(
    vae: HeldVAE, audio_vae: Callable, upload: bytes, tmp_path: Path
) -> None:
    latents = random_latents(35)
    whole = np.array(audio_vae("ltx2").decode(latents))[0]
    expected = np.pad(whole, [(0, 0), (0, FRAMES * 1000 - whole.shape[1])])  # 1000 samples for each frame
    both = with_sound(upload, tmp_path, latents)
    with serving(vae, audio_vae=audio_vae("ltx2")) as address:
        with post(address, both) as response:
            assert response.status_code == 200
            assert response.headers["content-type"] == 'video/mp4; codecs="avc1.640033, mp4a.40.2"'
            parts = response.iter_raw()
            data = b""
            while b"mdat" not in data:
                data += next(parts)
            early = hear(data)
            assert not vae.streams[0].released.is_set()
            vae.streams[0].released.set()
            data += b"".join(parts)
        vae.hold_at = FRAMES
        silent = httpx.post(f"{address}/video/x", content=upload, timeout=PATIENCE)
    heard = hear(data)
    assert 0 < early.shape[1] < heard.shape[1]
    np.testing.assert_array_equal(heard[:, : early.shape[1] - 1024], early[:, :-1024])
    assert heard.shape[1] in range(expected.shape[1], expected.shape[1] + 1024)  # the codec's last packet
    error = heard[:, : expected.shape[1]] - expected
    assert np.square(error).mean() < 0.05 * np.square(expected).mean()
    np.testing.assert_array_equal(play(data), play(silent.content))
    assert silent.headers["content-type"] == 'video/mp4; codecs="avc1.640033"' and not hear(silent.content).size


def test_latents_that_their_file_calls_unnormalized_are_normalized(
    demo_vae: VideoVAE, audio_vae: Callable, tmp_path: Path
) -> None:
    shapes = {"latents": (1, 64, 2, 3, 4), "audio_latents": (1, 2, 128)}
    stored = {name: np.random.default_rng(0).normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    path = tmp_path / "clip.safetensors"
    mx.save_safetensors(str(path), {name: mx.array(each) for name, each in stored.items()}, {"normalized": "false"})
    sound = audio_vae("ltx2")
    mean, std = (np.array(each).reshape(64, 1, 1, 1) for each in (demo_vae.mean, demo_vae.std))
    found, _ = server.load_video_latents(path, demo_vae)
    np.testing.assert_allclose(found, (stored["latents"] - mean) / std, rtol=1e-5, atol=1e-6)
    expected = (stored["audio_latents"] - np.array(sound.mean)) / np.array(sound.std)
    np.testing.assert_allclose(server.load_sound_latents(path, sound), expected, rtol=1e-5, atol=1e-6)


def test_a_server_without_an_audio_vae_leaves_the_sound_out(vae: HeldVAE, upload: bytes, tmp_path: Path) -> None:
    vae.hold_at = FRAMES
    with serving(vae) as address:
        both = with_sound(upload, tmp_path, random_latents(35))
        videos = [httpx.post(f"{address}/video/x", content=each, timeout=PATIENCE).content for each in (upload, both)]
    assert videos[0] == videos[1] and not hear(videos[1]).size


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 8, 35, 16), "clip: has the sound of 2 videos; this server takes that of one."),
        ((1, 8, 60, 16), "clip: the video takes 1.38 s and its sound 2.37 s; "),
        ((1, 7, 35, 16), "clip: audio latents 'audio_latents' have the shape (1, 7, 35, 16); "),
    ],
)
def test_sound_of_another_video_is_one_line_and_400(
    vae: HeldVAE, audio_vae: Callable, upload: bytes, tmp_path: Path, shape: tuple, message: str
) -> None:
    both = with_sound(upload, tmp_path, np.ones(shape, np.float32))
    with serving(vae, audio_vae=audio_vae("ltx2")) as address:
        answer = httpx.post(f"{address}/video/clip", content=both, timeout=PATIENCE)
    assert answer.status_code == 400 and answer.text.startswith(message) and "\n" not in answer.text
    assert children() == []


def test_the_command_finds_the_audio_vae_in_a_models_file_or_takes_the_named_one(
    golden: Callable, audio_case: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    video, sound = golden("small_ltx2_3"), audio_case("ltx2")
    both = tmp_path / "model.safetensors"
    tensors = {**mx.load(str(video.checkpoint)), **mx.load(str(sound.checkpoint))}
    config = sound.manifest["config"] | {"vae": video.manifest["vae_config"]}
    mx.save_safetensors(str(both), tensors, {"config": json.dumps(config)})
    latents, heard = random_latents(2), []
    for options in (
        ["-m", both],
        ["-m", video.checkpoint, "--audio-model", sound.checkpoint],
        ["-m", video.checkpoint],
    ):
        monkeypatch.setattr(sys, "argv", ["server.py", *map(str, options)])
        audio_vae = server.load_vaes(server.parse_arguments()).audio
        heard.append(None if audio_vae is None else np.array(audio_vae.decode(latents)))
    assert heard[2] is None
    for each in heard[:2]:
        np.testing.assert_array_equal(each, AudioVAE.from_pretrained(sound.checkpoint).decode(latents))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--demo", "--decodes", "0"], "argument --decodes: 0 is less than 1\n"),
        (["-m", "missing"], "error: missing: there is no such file or folder; check the path."),
    ],
)
def test_wrong_options_of_the_command_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, arguments: list[str], message: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["server.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        server.main()
    assert message in f"{ended.value}{capsys.readouterr().err}"


def test_a_client_that_disconnects_ends_the_decode_and_ffmpeg_and_frees_memory(vae: HeldVAE, upload: bytes) -> None:
    before = active_memory()
    with serving(vae) as address:
        with post(address, upload) as response:
            next(response.iter_raw())
            assert active_memory() > before
        assert vae.streams[0].cancelled.wait(PATIENCE)
    assert vae.streams[0].frames < FRAMES
    assert children() == []
    vae.streams.clear()
    assert active_memory() <= before


def test_a_client_that_disconnects_before_the_first_byte_ends_the_decode(vae: HeldVAE, upload: bytes) -> None:
    vae.hold_at = 0
    with serving(vae) as address:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{address}/video/x", content=upload, timeout=httpx.Timeout(PATIENCE, read=2))
        until(lambda: bool(vae.streams))
        assert vae.streams[0].cancelled.wait(PATIENCE)
    assert children() == []


@pytest.mark.slow
def test_clients_are_served_at_once_and_those_beyond_the_limit_wait(vae: HeldVAE, upload: bytes) -> None:
    with serving(vae, decodes=2) as address:
        with post(address, upload) as one, post(address, upload) as two:
            # Both have bytes, and both decodes are held. A third client waits, and a fourth gives up waiting.
            third: list[bytes] = []
            waiting = threading.Thread(
                target=lambda: third.append(httpx.post(f"{address}/video/x", content=upload, timeout=PATIENCE).content)
            )
            waiting.start()
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{address}/video/x", content=upload, timeout=httpx.Timeout(PATIENCE, read=1))
            assert len(vae.streams) == 2
            assert len(decode_threads()) == 2
            vae.hold_at = FRAMES
            for stream in vae.streams[:2]:
                stream.released.set()
            results = [one.read(), two.read()]
        waiting.join()
    results += third
    for result in results[1:]:
        np.testing.assert_array_equal(play(result), play(results[0]))
    assert len(play(results[0])) == FRAMES


class NoiseVAE(HeldVAE):
    """A VAE whose streams are a long clip of noise, 80 MB as mp4."""

    def stream(self, *_: object, **__: object) -> HeldStream:
        frames = np.random.default_rng(0).integers(0, 256, (1, 8, SIZE[1], SIZE[0], 3), np.uint8)

        class Chunks:
            index = 0
            ended = False

            def __next__(self) -> FrameChunk:
                if self.ended or self.index == 1000:
                    raise StopIteration
                self.index += 1
                return FrameChunk(8 * (self.index - 1), mx.array(frames))

            def cancel(self) -> None:
                self.ended = True

            close = cancel

        self.streams.append(HeldStream(Chunks(), hold_at=8000))
        return self.streams[-1]


@pytest.mark.slow
def test_the_decode_waits_for_a_client_that_does_not_read(demo_vae: VideoVAE, upload: bytes) -> None:
    vae = NoiseVAE(demo_vae)
    small = httpx.HTTPTransport(socket_options=[(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)])
    with serving(vae) as address, httpx.Client(transport=small, timeout=PATIENCE) as client:
        with client.stream("POST", f"{address}/video/x", content=upload) as response:
            parts = response.iter_raw(1 << 20)
            next(parts)
            frames = -1
            while frames != vae.streams[0].frames:  # until it stands still
                frames = vae.streams[0].frames
                time.sleep(1)
            assert frames < 4000
            for _ in range(10):  # it goes on when the client reads
                next(parts)
            until(lambda: vae.streams[0].frames > frames)
        assert vae.streams[0].cancelled.wait(PATIENCE)
    assert vae.streams[0].frames < 8000


def test_a_client_that_stops_reading_loses_its_place_to_the_next(demo_vae: VideoVAE, upload: bytes) -> None:
    vae = NoiseVAE(demo_vae)
    small = httpx.HTTPTransport(socket_options=[(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)])
    with (
        serving(vae, decodes=1, waiting=0, client_timeout=1) as address,
        httpx.Client(transport=small, timeout=PATIENCE) as client,
        client.stream("POST", f"{address}/video/x", content=upload) as response,
    ):
        next(response.iter_raw(1 << 20))
        assert vae.streams[0].cancelled.wait(PATIENCE)
        assert vae.streams[0].closed.wait(PATIENCE)
        with post(address, upload) as second:
            assert second.status_code == 200


def send(address: str, head: str, body: bytes = b"") -> socket.socket:
    """A connection on which a request has been sent."""
    url = httpx.URL(address)
    connection = socket.create_connection((url.host, url.port), PATIENCE)
    connection.sendall(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)
    return connection


def answer_on(connection: socket.socket) -> bytes:
    """The status line of the answer. The server keeps the connection for a while."""
    with connection:
        return connection.makefile("rb").readline()


def test_clients_that_leave_while_they_wait_take_no_threads_and_no_descriptors(
    vae: HeldVAE, upload: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = server.Pool(1, waiting=3)
    monkeypatch.setattr(server, "Pool", lambda *_: pool)
    head = head_of(upload)
    with serving(vae) as address, post(address, upload) as first:
        assert first.status_code == 200
        descriptors, threads = len(os.listdir("/dev/fd")), threading.active_count()
        for _ in range(3):
            waiting = [send(address, head, upload) for _ in range(3)]
            until(lambda: pool.places == 0)
            assert answer_on(send(address, head)).startswith(b"HTTP/1.1 503 ")
            for connection in waiting:
                connection.close()
            until(lambda: len(os.listdir("/dev/fd")) == descriptors and pool.places == 3)
            assert threading.active_count() == threads
        vae.hold_at = FRAMES
        vae.streams[0].released.set()
        first.read()
        assert httpx.post(f"{address}/video/x", content=upload, timeout=PATIENCE).status_code == 200
        assert len(vae.streams) == 2, "nobody who has left is decoded"


def test_one_client_too_many_is_told_to_come_back(vae: HeldVAE, upload: bytes) -> None:
    with serving(vae, decodes=1, waiting=0) as address, post(address, upload):
        answer = httpx.post(f"{address}/video/x", content=upload, timeout=PATIENCE)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "30")
        assert len(vae.streams) == 1


def test_all_decodes_run_on_the_same_threads(vae: HeldVAE, upload: bytes) -> None:
    vae.hold_at = FRAMES
    with serving(vae, decodes=2) as address:
        for _ in range(4):
            assert httpx.post(f"{address}/video/x", content=upload, timeout=PATIENCE).status_code == 200
            names = {thread.name for thread in decode_threads()}
            assert names <= {"decode_0", "decode_1"}


def test_a_place_is_free_when_the_work_is_done_and_not_when_the_client_has_read(
    vae: HeldVAE, upload: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = server.make_app(vae, decodes=1, waiting=0)
    places: list[tuple[bool, int]] = []

    async def observed(scope: dict, receive: Callable, send: Callable) -> None:
        async def observe(message: dict) -> None:
            if message["type"] == "http.response.body":
                places.append((bool(message.get("more_body")), app.state.pool.places))
                vae.streams[0].released.set()
            await send(message)

        await app(scope, receive, observe)

    observed.state = app.state
    monkeypatch.setattr(server, "make_app", lambda *_, **__: observed)
    with serving(vae) as address:
        assert httpx.post(f"{address}/video/x", content=upload, timeout=PATIENCE).status_code == 200
    assert places[0] == (True, 0)
    assert places[-1] == (False, 1), "a client that has read the end may come again at once"


LIMITS = {
    "max_pixels": (
        FRAMES * SIZE[0] * SIZE[1] - 1,
        "clip: decodes to 33 frames of 128x96; this server's limit is 405,503 pixels in all.",
    ),
    "max_seconds": (0.5, "clip: took more than 0.5 s, the limit of this server."),
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_decode_beyond_a_limit_ends(vae: HeldVAE, upload: bytes, name: str) -> None:
    limit, message = LIMITS[name]
    vae.hold_at = 0
    with serving(vae, decodes=1, waiting=0, **{name: limit}) as address:
        answer = httpx.post(f"{address}/video/clip", content=upload, timeout=PATIENCE)
        assert (answer.status_code, answer.text) == (400, message)
        assert all(stream.closed.wait(PATIENCE) for stream in vae.streams)
    assert children() == []


@pytest.mark.slow
def test_a_decode_that_takes_too_long_after_its_first_bytes_is_broken_off(vae: HeldVAE, upload: bytes) -> None:
    with serving(vae, max_seconds=3) as address, post(address, upload) as response:
        assert response.status_code == 200
        with pytest.raises(httpx.RemoteProtocolError):
            response.read()
        assert vae.streams[0].closed.wait(PATIENCE)


@pytest.mark.parametrize("content", ["text", "nothing", "channels", "batch", "audio"])
def test_a_file_that_cannot_be_decoded_is_one_line_and_400(vae: HeldVAE, tmp_path: Path, content: str) -> None:
    path = tmp_path / "bad.safetensors"
    if content in ("text", "nothing"):
        path.write_bytes(b"these are no latents" if content == "text" else b"")
    else:
        shapes = {"channels": (1, 7, 2, 3, 4), "batch": (2, 64, 2, 3, 4), "audio": (1, 8, 20, 16)}
        mx.save_safetensors(str(path), {"samples": mx.zeros(shapes[content])})
    with serving(vae) as address:
        answer = httpx.post(f"{address}/video/bad.safetensors", content=path.read_bytes(), timeout=PATIENCE)
    assert answer.status_code == 400
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.text.endswith(".")
    assert "\n" not in answer.text
    assert "/" not in answer.text.replace(".npy or .npz", "")  # no path of the server
    assert answer.text.startswith("bad.safetensors: ")
    if content in ("batch", "audio"):
        assert answer.text.endswith("this server takes those of one video, (1, 64, F', H', W').")
    assert "--" not in answer.text, "no advice about a command"
    assert not vae.streams


def test_an_upload_that_is_too_large_is_413(vae: HeldVAE, upload: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_UPLOAD", 1000)
    with serving(vae) as address:
        answer = httpx.post(f"{address}/video/clip.safetensors", content=upload, timeout=PATIENCE)
        declared = answer_on(send(address, "POST /video/x HTTP/1.1\nHost: localhost\nContent-Length: 1001"))
        undeclared = httpx.post(f"{address}/video/x", content=iter([upload]), timeout=PATIENCE)
    assert (answer.status_code, answer.text) == (413, "clip.safetensors: is larger than 1000 bytes.")
    assert declared.startswith(b"HTTP/1.1 413 "), "although none of it was sent"
    assert undeclared.status_code == 413
    assert not vae.streams


def test_an_upload_that_stops_is_408_and_loses_its_place(vae: HeldVAE, upload: bytes) -> None:
    head = head_of(upload)
    with serving(vae, decodes=1, waiting=0, client_timeout=1) as address:
        assert answer_on(send(address, head, upload[:1000])).startswith(b"HTTP/1.1 408 ")
        vae.hold_at = FRAMES
        assert httpx.post(f"{address}/video/x", content=upload, timeout=PATIENCE).status_code == 200


#: What Chromium, Firefox and Safari send with a page's request, and what other programs send.
SAME_SITE = [
    {},
    {"Host": "LOCALHOST"},
    {"Host": "[::1]:8000"},
    {"Host": "mac.local:8000", "Origin": "http://mac.local:8000", "Sec-Fetch-Site": "same-origin"},
]
OTHER_SITE = [
    {"Host": "rebound.example:8000"},
    {"Host": ""},
    {"Host": "localhost.rebound.example"},
    {"Host": "localhost:8000", "Origin": "https://other.example", "Sec-Fetch-Site": "cross-site"},
    {"Host": "localhost:8000", "Origin": "http://localhost:3000", "Sec-Fetch-Site": "same-site"},
    {"Host": "localhost:8000", "Origin": "null"},
    {"Host": "localhost:8000", "Origin": "https://other.example"},
    {"Host": "localhost:8000", "Sec-Fetch-Site": "cross-site"},
]


def test_pages_of_other_sites_and_other_names_of_the_server_are_refused(vae: HeldVAE) -> None:
    with serving(vae, allowed_hosts=[*server.LOCAL, "mac.local"]) as address, httpx.Client(timeout=PATIENCE) as client:
        for headers in SAME_SITE:
            assert client.post(f"{address}/video/x", content=b"", headers=headers).status_code == 400, headers
            assert client.get(address, headers=headers).status_code == 200
        for headers in OTHER_SITE:
            assert client.post(f"{address}/video/x", content=b"", headers=headers).status_code == 403, headers
        assert client.get(address, headers=OTHER_SITE[0]).status_code == 403
        linked = {"Host": "localhost", "Sec-Fetch-Site": "cross-site"}
        assert client.get(address, headers=linked).status_code == 200, "a link to the page may be anywhere"


@pytest.fixture(scope="module")
def example(audio_case: Callable) -> list[str]:
    """The command of the example, for videos with sound."""
    return [server.__file__, "--demo", "--audio-model", str(audio_case("ltx2").checkpoint), "--port", "0"]


#: An app as the page of the example mounts it.
MOUNTED = """
import uvicorn
from starlette.applications import Starlette as FastAPI
from examples.server import *
{page}
uvicorn.run(app, port=0, timeout_graceful_shutdown=0)
"""


def mounted_app() -> list[str]:
    (code,) = re.findall(r"```python\n(.*?)```", Path(server.__file__).with_suffix(".md").read_text(), re.DOTALL)
    code = code.replace('"ltx-2.5-video-vae-conv-bf16.safetensors"', "demo.VAE").replace("app.example", "localhost")
    return ["-c", MOUNTED.format(page=code)]


@contextmanager
def server_process(*command: str) -> Iterator[tuple[subprocess.Popen, str, list[str]]]:
    """A server as users start it, its address, and the lines of its log so far."""
    process = subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": f"{Path(server.__file__).parents[1]}:{os.environ['PYTHONPATH']}"},
    )
    log: list[str] = []
    reader = threading.Thread(target=lambda: log.extend(process.stderr))
    reader.start()
    try:
        until(lambda: any("running on" in line for line in log))
        (address,) = re.findall(r"running on (http://\S+)", "".join(log))
        yield process, address, log
    finally:
        process.kill()
        process.wait()
        reader.join()


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A latent file, with sound, whose decode outlasts any test."""
    path = tmp_path_factory.mktemp("endless") / "clip.safetensors"
    save_latents(path, mx.random.normal((1, 64, 4000, 3, 4), key=mx.random.key(0)))
    return with_sound(path.read_bytes(), path.parent, random_latents(33327))


@pytest.mark.slow
def test_a_second_signal_ends_the_server_at_once(
    example: list[str], endless: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = Path(tempfile.gettempdir(), "mlx")  # those that MLX has compiled
    kernels.mkdir(exist_ok=True)
    (tmp_path / "mlx").symlink_to(kernels)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with ExitStack() as ends:
        process, address, log = ends.enter_context(server_process(*example, "--grace", "1000"))
        connection = ends.enter_context(send(address, head_of(endless), endless))
        (program,) = programs_of(process, [connection])
        process.send_signal(signal.SIGINT)
        until(lambda: any("Shutting down" in line for line in log))
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
        until(lambda: not is_running(program))
    assert [path.name for path in tmp_path.iterdir()] == ["mlx"], "no upload is left"


@pytest.mark.parametrize(
    ("number", "path"),
    [
        pytest.param(signal.SIGINT, "", id="interrupted"),
        pytest.param(signal.SIGTERM, "", id="terminated", marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, "/ltx", id="mounted", marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_the_server_and_its_decodes(
    example: list[str], endless: bytes, number: signal.Signals, path: str
) -> None:
    head, command = head_of(endless, path), mounted_app() if path else [*example, "--grace", "0"]
    with server_process(*command) as (process, address, log), ExitStack() as clients:
        decoded = [clients.enter_context(send(address, head, endless)) for _ in range(2)]
        programs = programs_of(process, decoded)
        waiting = clients.enter_context(send(address, head, endless))
        process.send_signal(number)
        assert process.wait(PATIENCE) in (0, -number)
        until(lambda: not any(map(is_running, programs)))
        assert answer_on(waiting).startswith(b"HTTP/1.1 503 ")
    assert "Traceback" not in "".join(log)


def programs_of(process: subprocess.Popen, clients: Sequence[socket.socket]) -> list[int]:
    """The programs that a server has started for clients, when it has decoded the first frames for each.

    MLX's CPU backend has compiled its kernels then, by `system`, during which the C library drops SIGINT.
    """
    for client in clients:
        assert client.recv(12) == b"HTTP/1.1 200"
    return children(process.pid)


def is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def head_of(data: bytes, path: str = "") -> str:
    return f"POST {path}/video/x HTTP/1.1\nHost: localhost\nContent-Length: {len(data)}"


def test_an_error_after_the_first_bytes_breaks_the_response_off(vae: HeldVAE, upload: bytes) -> None:
    vae.error = DecodeError("not finite.")
    with serving(vae) as address, post(address, upload) as response:
        assert response.status_code == 200
        vae.streams[0].released.set()
        with pytest.raises(httpx.RemoteProtocolError):
            response.read()


def test_the_page_has_labels_a_file_picker_a_video_and_a_download(vae: HeldVAE) -> None:
    with serving(vae) as address:
        page = httpx.get(address)
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    for part in (
        '<html lang="en">',
        '<label for="file">',
        '<input type="file" id="file"',
        'aria-live="polite"',
        "<video",
        "ondrop",
        "download",
        'headers.get("Content-Type")',
    ):
        assert part in page.text
    assert 'fetch("video/"' in page.text  # relative, so that an app can mount the server anywhere
